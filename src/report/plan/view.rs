//! A plan in the words of its program: names, lines, what ops and buffers are there for.

use rustc_hash::FxHashMap;

use super::Place;
use crate::{
    ir::{Graph, Node, NodeId, Origins, Role, SlotId, ValueId},
    ops::Op,
    plan::{BufferKind, Home, Plan},
    schedule::{BufferId, OpId},
    source::{FileId, SourceMap, Span},
};

/// A plan with the texts it comes from.
pub(crate) struct View<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) sources: &'a SourceMap,
    /// The parameter whose update reads a buffer.
    updates: FxHashMap<BufferId, SlotId>,
}

impl<'a> View<'a> {
    pub(crate) fn new(plan: &'a Plan, sources: &'a SourceMap) -> Self {
        let mut view = View { plan, sources, updates: FxHashMap::default() };
        for op in plan.schedule_graph.ops() {
            if let Some(Role::Update { slot }) = view.op_node(op).map(|n| n.role()) {
                view.updates.extend(plan.schedule_graph.reads(op).iter().map(|&b| (b, slot)));
            }
        }
        view
    }

    pub(crate) fn graph(&self) -> &'a Graph {
        &self.plan.graph
    }

    pub(crate) fn node(&self, id: NodeId) -> Option<Node<'a>> {
        ((id.0 as usize) < self.graph().len()).then(|| self.graph().node(id))
    }

    pub(crate) fn op_node(&self, op: OpId) -> Option<Node<'a>> {
        self.node(*self.plan.op_nodes.get(op.0 as usize)?)
    }

    pub(crate) fn producer(&self, value: ValueId) -> Option<Node<'a>> {
        ((value.0 as usize) < self.graph().value_count()).then(|| self.graph().producer(value).0)
    }

    /// The node that makes a buffer.
    pub(crate) fn maker_node(&self, buffer: BufferId) -> Option<Node<'a>> {
        self.producer(self.plan.buffers.get(buffer.0 as usize)?.value)
    }

    pub(crate) fn op_name(&self, op: OpId) -> &'a str {
        self.op_node(op).map_or("op", |n| op_name(n))
    }

    pub(crate) fn op_place(&self, op: OpId) -> Option<Place> {
        self.op_node(op).and_then(|n| self.place(n))
    }

    /// The line of the program that a node comes from: the innermost call that is not in the
    /// library, or the library's own line where all are.
    pub(crate) fn place(&self, node: Node<'_>) -> Option<Place> {
        let origins = &self.graph().origins;
        if node.origin() == Origins::NOWHERE {
            return None;
        }
        let known = |span: Span| self.sources.get(span.file).map(|file| (span, file.is_library));
        let chain: Vec<(Span, bool)> = origins.chain(node.origin()).filter_map(|o| known(o.span)).collect();
        let (span, _) = chain.iter().find(|(_, is_library)| !is_library).or(chain.first())?;
        Some(self.at(*span))
    }

    pub(crate) fn at(&self, span: Span) -> Place {
        Place { file: span.file, at: self.sources.start(span), span }
    }

    /// `line 21`, with the file's name where it is not the program itself.
    pub(crate) fn line(&self, place: Place) -> String {
        super::place_text(place, Some(FileId(0)), self.sources)
    }

    /// Where a value is returned.
    pub(crate) fn output_place(&self, value: ValueId) -> Option<Place> {
        let output = self.graph().outputs.iter().find(|o| o.value == value)?;
        let span =
            self.graph().origins.chain(output.origin).map(|o| o.span).find(|s| *s != Span::default())?;
        self.sources.get(span.file)?;
        Some(self.at(span))
    }

    /// The name by which the program knows a buffer: that of the parameter, input or `let`; for a
    /// gradient that of its parameter; otherwise the op that made it.
    pub(crate) fn name(&self, id: BufferId, producer: Option<Node<'_>>) -> String {
        let graph = self.graph();
        let Some(info) = self.plan.buffers.get(id.0 as usize) else { return format!("b{}", id.0) };
        let slot_name = |slot: SlotId| graph.slots.get(slot.0 as usize).map(|s| s.name.to_string());
        // Before the name of a `let`: a gradient's is one in the library.
        if info.kind == BufferKind::Grads
            && let Some(name) = self.updates.get(&id).and_then(|&slot| slot_name(slot))
        {
            return format!("gradient of {name}");
        }
        let named = match info.home {
            Home::Slot(slot) => slot_name(slot),
            Home::Input(index) => graph.inputs.get(index as usize).map(|i| i.name.to_string()),
            Home::Arena => graph.names.get(&info.value).map(|n| n.to_string()),
        };
        if let Some(name) = named {
            return name;
        }
        producer.map_or_else(|| format!("b{}", id.0), |node| op_name(node).to_owned())
    }

    /// What an op does, in the plural words of reports: `parameter gradients`, `relu`.
    pub(crate) fn deed(&self, op: OpId) -> Deed {
        let Some(node) = self.op_node(op) else { return Deed::Op { name: "op".into(), how: Pass::Forward } };
        let is_gradient = |b: &BufferId| {
            self.plan.buffers.get(b.0 as usize).is_some_and(|info| info.kind == BufferKind::Grads)
        };
        match node.role() {
            Role::Update { .. } => Deed::Updates,
            _ if self.plan.schedule_graph.makes(op).iter().any(is_gradient) => Deed::Gradients,
            _ => Deed::Op { name: op_name(node).to_owned(), how: pass(node) },
        }
    }
}

/// When in a step an op runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Pass {
    Forward,
    /// A forward op that runs again, for `checkpoint`.
    Recompute,
    Backward,
    Update,
}

impl Pass {
    /// As in reports and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Pass::Forward => "forward",
            Pass::Recompute => "recompute",
            Pass::Backward => "backward",
            Pass::Update => "update",
        }
    }
}

pub(crate) fn pass(node: Node<'_>) -> Pass {
    match node.role() {
        Role::Update { .. } => Pass::Update,
        Role::Backward { .. } => Pass::Backward,
        Role::Forward if node.instance() != 0 => Pass::Recompute,
        Role::Forward => Pass::Forward,
    }
}

/// What an op is there for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Deed {
    Gradients,
    Updates,
    Op { name: String, how: Pass },
}

impl Deed {
    /// `the 64 parameter gradients`, `the recomputed `relu``.
    pub(crate) fn phrase(&self, count: usize) -> String {
        let number = if count > 1 { format!("{count} ") } else { String::new() };
        let ops = |words: &str, name: &str| match count {
            0 | 1 => format!("the {words}`{name}`"),
            _ => format!("the {count} {words}ops `{name}`"),
        };
        let plural = if count > 1 { "s" } else { "" };
        match self {
            Deed::Gradients => format!("the {number}parameter gradient{plural}"),
            Deed::Updates => format!("the {number}parameter update{plural}"),
            Deed::Op { name, how: Pass::Recompute } => ops("recomputed ", name),
            Deed::Op { name, .. } => ops("", name),
        }
    }
}

/// An op of another system has a name of its own.
pub(crate) fn op_name<'a>(node: Node<'a>) -> &'a str {
    match node.op() {
        Op::Opaque(op) => &op.name,
        op => op.name(),
    }
}
