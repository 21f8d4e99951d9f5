//! `release x`: the buffer of x is free from here, in every order.

use rustc_hash::FxHashMap;

use super::{
    Evaluator,
    errors::Eval,
    frame::Frame,
    held,
    value::{Cx, Value},
};
use crate::{
    codes,
    diagnostic::Diagnostic,
    ir::{self, Graph, NodeId, ValueId},
    ops::Op,
    source::Span,
    syntax::ast::{ExprId, ExprKind, Name},
};

impl Evaluator {
    pub(super) fn release_stmt(&mut self, cx: &Cx, values: &[ExprId], span: Span) -> Eval {
        if !self.in_graph() {
            return Err(self.error(codes::ONLY_IN_STEP, span, "`release` outside of graph code"));
        }
        for &id in values {
            let at = cx.ast.expr(id).span;
            let value = self.expr(cx, id)?;
            let Value::Tensor(tensor) = &value else {
                let kind = value.kind();
                return Err(self.report(
                    Diagnostic::error(
                        codes::TYPE_MISMATCH,
                        at,
                        format!("`release` frees a tensor of this graph, got {kind}"),
                    )
                    .help("parameters and state live as long as their model"),
                ));
            };
            let name: Name = match &cx.ast.expr(id).kind {
                ExprKind::Name(name) => Name::clone(name),
                _ => self.sources.text(at).into(),
            };
            let Frame { graph, releases, .. } = self.frame(span)?;
            releases.buffers.follow(graph);
            let base = releases.buffers.base(tensor.value);
            let persistent = matches!(graph.producer(base).0.op(), Op::Read(_) | Op::Input(_));
            if persistent {
                return Err(self.report(
                    Diagnostic::error(
                        codes::RELEASED,
                        at,
                        format!(
                            "`{name}` cannot be released: it is an input or a parameter, or a view of one"
                        ),
                    )
                    .help("`copy(x)` makes a value with memory of its own"),
                ));
            }
            let from_node = graph.len();
            releases.by_base.entry(base).or_insert(releases.list.len());
            releases.list.push(Release {
                name,
                span: at,
                value: tensor.value,
                base,
                from_node,
                ended: false,
            });
        }
        Ok(Value::Unit)
    }

    /// An error where a released value is used.
    pub(super) fn check_released(&mut self, value: ValueId, span: Span) -> Eval<()> {
        let Some(Frame { graph, releases, .. }) = self.frames.last_mut() else { return Ok(()) };
        if releases.list.is_empty() {
            return Ok(());
        }
        releases.buffers.follow(graph);
        let base = releases.buffers.base(value);
        let found = releases.by_base.get(&base).and_then(|&k| releases.list.get(k));
        let found =
            found.map(|r| (Name::clone(&r.name), r.span, r.value, held::made(graph, &self.sources, r.value)));
        let Some((name, released, freed, made)) = found else { return Ok(()) };
        let label = if value == freed { "used here" } else { "used here, by way of a view of it" };
        Err(self.report(
            Diagnostic::error(codes::RELEASED, span, format!("`{name}` is used after its release"))
                .label(label)
                .secondary(released, "released here")
                .note(format!("`{name}` {made}, must be free from its `release` on, in every order"))
                .help("move the release behind the last use, or keep a `copy`"),
        ))
    }

    /// At the end of a body: everything in it after a release waits for the users of the value.
    pub(super) fn end_releases(&mut self, first: usize) {
        if let Some(frame) = self.frames.last_mut() {
            order_releases(frame, first);
        }
    }

    /// At the end of a step: what was released must not be used by nodes that came later (the
    /// backward pass), and must not be an output.
    pub(super) fn verify_releases(&mut self, frame: &Frame) {
        if frame.releases.list.is_empty() {
            return;
        }
        let mut buffers = Buffers::default();
        buffers.follow(&frame.graph);
        for release in &frame.releases.list {
            let users = buffers.users(release);
            let held = held::Released { value: release.value, base: release.base, users };
            let holders = held.holders(&frame.graph, &self.sources, |v| buffers.base(v));
            let Some(first) = holders.first() else { continue };
            let name = &release.name;
            let mut diagnostic = Diagnostic::error(
                codes::RELEASED,
                release.span,
                format!("`{name}` is still held after its release"),
            )
            .label("released here")
            .help(first.help());
            let made = held::made(&frame.graph, &self.sources, release.value);
            for holder in holders.iter().take(HOLDERS) {
                if let Some(place) = holder.place {
                    diagnostic = diagnostic.secondary(place, holder.label(&frame.graph));
                }
                let why = holder.sentence(&frame.graph, &self.sources);
                diagnostic = diagnostic.note(format!("`{name}` {made}, {why}"));
            }
            if let Some(more) = holders.len().checked_sub(HOLDERS).filter(|more| *more > 0) {
                let s = if more == 1 { "" } else { "s" };
                diagnostic = diagnostic.note(format!("{more} more place{s} hold it"));
            }
            self.report(diagnostic);
        }
    }
}

/// Places that are shown of those that hold a released value.
const HOLDERS: usize = 3;

/// A released value.
struct Release {
    name: Name,
    span: Span,
    value: ValueId,
    /// What holds its buffer: every value with this base is released with it.
    base: ValueId,
    /// Nodes from this one on come after it.
    from_node: usize,
    /// Its body is over, and its edges are there.
    ended: bool,
}

/// The releases of a graph, in their order.
#[derive(Default)]
pub(super) struct Releases {
    list: Vec<Release>,
    /// Positions in the list.
    by_base: FxHashMap<ValueId, usize>,
    buffers: Buffers,
}

impl Releases {
    pub fn len(&self) -> usize {
        self.list.len()
    }
}

/// Which values share memory, and who uses it. It follows a growing graph, so that each node is
/// looked at once however many releases there are.
#[derive(Default)]
struct Buffers {
    /// Of each value: the value that it is a view of at last, or itself.
    bases: Vec<ValueId>,
    /// Of each value that is a base: the nodes that use it or a view of it, and those that make them.
    users: Vec<Vec<NodeId>>,
    /// Nodes seen.
    nodes: usize,
}

impl Buffers {
    fn follow(&mut self, graph: &Graph) {
        for k in self.nodes..graph.len() {
            let node = graph.node(NodeId(k as u32));
            for (k, value) in node.results().enumerate() {
                let parent = node.shared_operand(k);
                // Values are numbered in the order of their nodes.
                self.bases.push(parent.map_or(value, |parent| self.base(parent)));
                self.users.push(Vec::new());
            }
            for value in node.args().iter().copied().chain(node.results()) {
                let base = self.base(value);
                if let Some(users) = self.users.get_mut(base.0 as usize)
                    && users.last() != Some(&node.id)
                {
                    users.push(node.id);
                }
            }
        }
        self.nodes = graph.len();
    }

    fn base(&self, value: ValueId) -> ValueId {
        self.bases.get(value.0 as usize).copied().unwrap_or(value)
    }

    /// The users of a released buffer before the release and after it.
    fn users(&self, release: &Release) -> (&[NodeId], &[NodeId]) {
        let users = self.users.get(release.base.0 as usize).map_or(&[][..], Vec::as_slice);
        let before = users.partition_point(|node| (node.0 as usize) < release.from_node);
        users.split_at_checked(before).unwrap_or((users, &[]))
    }
}

fn order_releases(frame: &mut Frame, first: usize) {
    let Frame { releases: Releases { list, buffers, .. }, graph, .. } = frame;
    if list.len() <= first {
        return;
    }
    buffers.follow(graph);
    for release in list.iter_mut().skip(first).filter(|r| !r.ended) {
        release.ended = true;
        let (users, _) = buffers.users(release);
        let nodes = release.from_node as u32..graph.len() as u32;
        graph.order_release(users, nodes.clone());
        graph.releases.push(ir::Release { value: release.value, nodes });
    }
}
