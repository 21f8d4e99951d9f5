//! `release x`: the buffer of x is free from here, in every order.

use rustc_hash::FxHashSet;

use super::{
    Evaluator,
    errors::Eval,
    frame::{Frame, Release},
    value::{Cx, Value},
};
use crate::{
    codes,
    diagnostic::Diagnostic,
    ir::{Graph, NodeId, ValueId},
    ops::{Alias, Op},
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
            let frame = self.frame(span)?;
            let aliases = aliases(&frame.graph, tensor.value);
            let persistent =
                aliases.iter().any(|&v| matches!(frame.graph.producer(v).0.op(), Op::Read(_) | Op::Input(_)));
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
            let from_node = frame.graph.len();
            frame.releases.push(Release { name, span: at, aliases, from_node, ended: false });
        }
        Ok(Value::Unit)
    }

    /// An error where a released value is used.
    pub(super) fn check_released(&mut self, value: ValueId, span: Span) -> Eval<()> {
        let Some(frame) = self.frames.last() else { return Ok(()) };
        let found = frame.releases.iter().find(|r| r.aliases.contains(&value));
        let Some((name, released)) = found.map(|r| (Name::clone(&r.name), r.span)) else { return Ok(()) };
        Err(self.report(
            Diagnostic::error(codes::RELEASED, span, format!("`{name}` is used after its release"))
                .label("used here")
                .secondary(released, "released here")
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
        for release in &frame.releases {
            let late = frame
                .graph
                .nodes()
                .skip(release.from_node)
                .find(|n| n.args().iter().any(|a| release.aliases.contains(a)));
            let mut diagnostic = Diagnostic::error(
                codes::RELEASED,
                release.span,
                format!("`{}` is still held after its release", release.name),
            )
            .label("released here");
            if let Some(node) = late {
                let place = frame.graph.origins.get(node.origin()).span;
                let text = match node.role() {
                    crate::ir::Role::Backward { .. } => "kept for the backward pass of this",
                    _ => "needed here",
                };
                diagnostic = diagnostic.secondary(place, text).help(
                    "compute it again in the backward pass with `checkpoint < … >`, or release it later",
                );
            } else if let Some(output) =
                frame.graph.outputs.iter().find(|o| release.aliases.contains(&o.value))
            {
                let place = frame.graph.origins.get(output.origin).span;
                diagnostic = diagnostic.secondary(place, "returned here").help("return a `copy`");
            } else {
                continue;
            }
            self.report(diagnostic);
        }
    }
}

/// All values that share memory with one: the base that it is a view of, and every view of that.
fn aliases(graph: &Graph, value: ValueId) -> FxHashSet<ValueId> {
    let parent = |value: ValueId| {
        let (node, k) = graph.producer(value);
        match node.op().memory().alias {
            Alias::Fresh => None,
            Alias::View => node.args().first().copied(),
            Alias::Each => node.args().get(k).copied(),
        }
    };
    let base = std::iter::successors(Some(value), |&v| parent(v)).last().unwrap_or(value);
    let mut all = FxHashSet::from_iter([base]);
    for node in graph.nodes() {
        for result in node.results() {
            if parent(result).is_some_and(|p| all.contains(&p)) {
                all.insert(result);
            }
        }
    }
    all
}

fn order_releases(frame: &mut Frame, first: usize) {
    let Frame { releases, graph, .. } = frame;
    for release in releases.iter_mut().skip(first).filter(|r| !r.ended) {
        release.ended = true;
        let users: Vec<NodeId> = graph
            .nodes()
            .take(release.from_node)
            .filter(|n| {
                n.args().iter().any(|a| release.aliases.contains(a))
                    || n.results().any(|r| release.aliases.contains(&r))
            })
            .map(|n| n.id)
            .collect();
        // Only the first op of each chain needs the edge: what uses its result follows it. Views and
        // leaves take no time of their own, so an edge on them would order nothing.
        let mut ordered: FxHashSet<ValueId> = FxHashSet::default();
        let mut late: Vec<NodeId> = Vec::new();
        for node in graph.nodes().skip(release.from_node) {
            let follows = node.args().iter().any(|a| ordered.contains(a));
            let is_leaf = matches!(
                node.op(),
                Op::Read(_) | Op::Input(_) | Op::Const(_) | Op::Scalar(_) | Op::Literal(_)
            );
            if !follows && (is_leaf || node.op().memory().alias == Alias::View) {
                continue;
            }
            if !follows {
                late.push(node.id);
            }
            ordered.extend(node.results());
        }
        for node in late {
            let mut after = graph.node(node).after().to_vec();
            after.extend(&users);
            after.sort_unstable();
            after.dedup();
            graph.set_after(node, &after);
        }
    }
}
