//! What the kinds ask of a planned step, worked out once, in time linear in the plan.

use crate::{
    ir::{Graph, Node, NodeId, OriginId, Origins, Phase, Role, SlotId, Type, ValueId},
    ops::{Alias, Op},
    plan::{Home, Plan},
    schedule::{BufferId, OpId},
    source::{SourceMap, Span},
};

use super::tree::Tree;

/// A planned step with the texts and the tree that it comes from.
pub struct Facts<'a> {
    pub plan: &'a Plan,
    /// The step as it was written, before regions were lowered.
    pub written: &'a Graph,
    pub sources: &'a SourceMap,
    pub tree: &'a Tree<'a>,
    /// Arena and persistent buffers that are alive at the peak, largest first.
    pub at_peak: Vec<BufferId>,
    /// Position of the peak in the order.
    pub peak: usize,
    /// Of each op, its position in the order.
    positions: Vec<usize>,
    /// Of each buffer, the first and last position at which it is alive.
    ranges: Vec<Option<(usize, usize)>>,
    /// Of each buffer, the op that reads it last.
    last_readers: Vec<Option<OpId>>,
    /// Of each value of the planned graph, the value whose memory it is in.
    bases: Vec<ValueId>,
    /// Of each value that is a base, the nodes that use it or a view of it.
    users: Vec<Vec<NodeId>>,
}

impl<'a> Facts<'a> {
    pub fn new(plan: &'a Plan, written: &'a Graph, sources: &'a SourceMap, tree: &'a Tree<'a>) -> Facts<'a> {
        let schedule = &plan.schedule_graph;
        let order = &plan.schedule.order;
        let end = order.len().saturating_sub(1);
        let mut positions = vec![0; schedule.op_count()];
        let mut ranges: Vec<Option<(usize, usize)>> = schedule
            .buffer_ids()
            .map(|id| {
                let flags = schedule.buffer(id).flags;
                (flags.persistent || flags.input).then_some(if flags.persistent || flags.output {
                    (0, end)
                } else {
                    (0, 0)
                })
            })
            .collect();
        let mut last_readers = vec![None; schedule.buffer_count()];
        for (position, &op) in order.iter().enumerate() {
            if let Some(entry) = positions.get_mut(op.0 as usize) {
                *entry = position;
            }
            for made in schedule.makes(op) {
                let last = if schedule.buffer(*made).flags.output { end } else { position };
                if let Some(entry) = ranges.get_mut(made.0 as usize) {
                    *entry = Some((position, last));
                }
            }
            for read in schedule.reads(op) {
                if let Some(Some((_, last))) = ranges.get_mut(read.0 as usize) {
                    *last = (*last).max(position);
                }
                if let Some(entry) = last_readers.get_mut(read.0 as usize) {
                    *entry = Some(op);
                }
            }
        }
        let (bases, users) = follow(&plan.graph);
        let mut facts = Facts {
            plan,
            written,
            sources,
            tree,
            at_peak: Vec::new(),
            peak: plan.schedule.peak_position,
            positions,
            ranges,
            last_readers,
            bases,
            users,
        };
        // A place that the op at the peak takes over counts once, for what is made there.
        let made_at_peak = order.get(facts.peak).map(|&op| schedule.makes(op)).unwrap_or_default();
        let overwrites = &plan.schedule.overwrites;
        let taken: Vec<BufferId> =
            made_at_peak.iter().filter_map(|b| overwrites.get(b.0 as usize).copied().flatten()).collect();
        let counts = |&b: &BufferId| facts.is_alive(b, facts.peak) && !taken.contains(&b);
        let mut at_peak: Vec<BufferId> = schedule.buffer_ids().filter(counts).collect();
        at_peak.sort_by_key(|&b| std::cmp::Reverse(facts.bytes(b)));
        facts.at_peak = at_peak;
        facts
    }

    pub fn peak_bytes(&self) -> u64 {
        self.plan.peak_bytes()
    }

    pub fn is_alive(&self, buffer: BufferId, position: usize) -> bool {
        self.range(buffer).is_some_and(|(first, last)| first <= position && position <= last)
    }

    /// First and last position at which a buffer is alive.
    pub fn range(&self, buffer: BufferId) -> Option<(usize, usize)> {
        self.ranges.get(buffer.0 as usize).copied().flatten()
    }

    /// As the buffer counts: rounded up to the alignment.
    pub fn bytes(&self, buffer: BufferId) -> u64 {
        self.plan.schedule_graph.buffer(buffer).bytes
    }

    pub fn is_output(&self, buffer: BufferId) -> bool {
        self.plan.schedule_graph.buffer(buffer).flags.output
    }

    pub fn is_persistent(&self, buffer: BufferId) -> bool {
        self.plan.schedule_graph.buffer(buffer).flags.persistent
    }

    pub fn position(&self, op: OpId) -> usize {
        self.positions.get(op.0 as usize).copied().unwrap_or(0)
    }

    pub fn last_reader(&self, buffer: BufferId) -> Option<OpId> {
        self.last_readers.get(buffer.0 as usize).copied().flatten()
    }

    /// The value that a buffer was made for.
    pub fn value(&self, buffer: BufferId) -> Option<ValueId> {
        self.plan.buffers.get(buffer.0 as usize).map(|b| b.value)
    }

    pub fn home(&self, buffer: BufferId) -> Home {
        self.plan.buffers.get(buffer.0 as usize).map_or(Home::Arena, |b| b.home)
    }

    pub fn ty(&self, buffer: BufferId) -> Option<&'a Type> {
        let value = self.value(buffer)?;
        ((value.0 as usize) < self.plan.graph.value_count()).then(|| self.plan.graph.ty(value))
    }

    /// The node that makes the content of a buffer.
    pub fn maker(&self, buffer: BufferId) -> Option<Node<'a>> {
        let value = self.value(buffer)?;
        ((value.0 as usize) < self.plan.graph.value_count()).then(|| self.plan.graph.producer(value).0)
    }

    /// Whether a buffer holds a gathered vector.
    pub fn is_gathered(&self, buffer: BufferId) -> bool {
        self.maker(buffer).is_some_and(|node| self.plan.graph.gathers(&node).is_some())
    }

    /// The buffer that holds a value of the planned graph.
    pub fn base(&self, value: ValueId) -> ValueId {
        self.bases.get(value.0 as usize).copied().unwrap_or(value)
    }

    /// The nodes that use a value or a view of it, in the order of the source.
    pub fn users(&self, base: ValueId) -> &[NodeId] {
        self.users.get(base.0 as usize).map_or(&[], Vec::as_slice)
    }

    pub fn op_node(&self, op: OpId) -> Option<Node<'a>> {
        let id = *self.plan.op_nodes.get(op.0 as usize)?;
        ((id.0 as usize) < self.plan.graph.len()).then(|| self.plan.graph.node(id))
    }

    /// The op that runs at the peak.
    pub fn peak_node(&self) -> Option<Node<'a>> {
        self.op_node(*self.plan.schedule.order.get(self.peak)?)
    }

    /// Whether an op that belongs to no backward pass runs before the first that does.
    pub fn is_forward_pass(&self, position: usize) -> bool {
        let phase = |&op: &OpId| self.op_node(op).map(|n| n.role().phase());
        let first = self.plan.schedule.order.iter().position(|op| phase(op) == Some(Phase::Backward));
        first.is_some_and(|first| position < first)
    }

    /// The node in the last reader of a buffer that uses it. A fused op stands for several nodes.
    pub fn last_user(&self, buffer: BufferId) -> Option<Node<'a>> {
        let op = self.op_node(self.last_reader(buffer)?)?;
        let users = self.users(self.value(buffer)?);
        let up_to = users.partition_point(|n| *n <= op.id);
        let nodes = users.get(..up_to).unwrap_or_default().iter().rev().map(|&n| self.plan.graph.node(n));
        let same = |n: &Node<'a>| {
            n.role().phase() == op.role().phase() && n.instance() == op.instance() && !is_barrier(n)
        };
        nodes.into_iter().find(same).or(Some(op))
    }

    /// The forward node that a node was made for: itself, unless it belongs to a backward pass.
    pub fn forward_of(&self, node: Node<'a>) -> Node<'a> {
        match node.role() {
            Role::Backward { of, .. } if (of.0 as usize) < self.plan.graph.len() => self.plan.graph.node(of),
            _ => node,
        }
    }

    /// The phase of the buffer's maker.
    pub fn phase(&self, buffer: BufferId) -> Option<Phase> {
        self.maker(buffer).map(|n| n.role().phase())
    }

    /// The innermost line of the program that led to an origin; library code is left out.
    pub fn user_span(&self, origin: OriginId) -> Option<Span> {
        self.plan.graph.origins.user_span(origin, self.sources)
    }

    /// The lines that led to an origin, from the inside to the outside.
    pub fn frames(&self, origin: OriginId) -> Vec<Frame> {
        if origin == Origins::NOWHERE {
            return Vec::new();
        }
        let origins = &self.plan.graph.origins;
        origins
            .chain(origin)
            .filter_map(|o| {
                let file = self.sources.get(o.span.file)?;
                Some(Frame { span: o.span, is_library: file.is_library })
            })
            .collect()
    }

    /// The line of the program that a node comes from.
    pub fn span_of(&self, node: Node<'_>) -> Option<Span> {
        self.user_span(node.origin())
    }

    pub fn slot_name(&self, slot: SlotId) -> String {
        self.plan.graph.slots.get(slot.0 as usize).map_or_else(String::new, |s| s.name.to_string())
    }
}

/// One line of a chain of calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame {
    pub span: Span,
    /// In a file of the library.
    pub is_library: bool,
}

pub fn is_barrier(node: &Node<'_>) -> bool {
    matches!(node.op(), Op::Barrier(_))
}

/// Of each value its base, and of each base its users.
fn follow(graph: &Graph) -> (Vec<ValueId>, Vec<Vec<NodeId>>) {
    let mut bases: Vec<ValueId> = Vec::with_capacity(graph.value_count());
    let mut users: Vec<Vec<NodeId>> = vec![Vec::new(); graph.value_count()];
    for node in graph.nodes() {
        let is_view = node.op().memory().alias == Alias::View;
        for &arg in node.args() {
            let base = bases.get(arg.0 as usize).copied().unwrap_or(arg);
            if !is_view
                && let Some(list) = users.get_mut(base.0 as usize)
                && list.last() != Some(&node.id)
            {
                list.push(node.id);
            }
        }
        for (k, result) in node.results().enumerate() {
            let parent = node.shared_operand(k);
            let base = parent.map_or(result, |p| bases.get(p.0 as usize).copied().unwrap_or(p));
            bases.push(base);
        }
    }
    (bases, users)
}
