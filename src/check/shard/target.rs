//! Gradients and updates of parameters that are spread over the ranks: of each rank's parts.

use std::sync::Arc;

use rustc_hash::FxHashSet;

use crate::{
    check::{
        Evaluator,
        errors::{Eval, Halt},
        persistent::Group,
        value::{Cell, GraphTensor, Tree, Value},
    },
    codes,
    diagnostic::Diagnostic,
    ir::{Graph, NodeId, ValueId},
    ops::{Alias, CollectiveKind, Op},
    report::bytes::Bytes,
    source::Span,
};

impl Evaluator {
    /// The tensors that hold parameters on this rank: the parameters themselves, and parts of those
    /// that are spread over the ranks. All parameters of a part have to be among them.
    pub(in crate::check) fn parts_of(&mut self, cells: &[Arc<Cell>], span: Span) -> Eval<Vec<Arc<Cell>>> {
        let ids: FxHashSet<u64> = cells.iter().map(|c| c.id).collect();
        let mut seen = FxHashSet::default();
        let mut parts = Vec::with_capacity(cells.len());
        for cell in cells {
            let Some(home) = cell.home() else {
                parts.push(Arc::clone(cell));
                continue;
            };
            let Some(group) = home.group.upgrade() else { continue };
            let others = group.members.iter().filter(|m| m.cell.is_trainable() && !ids.contains(&m.cell.id));
            if let Some(other) = others.map(|m| Arc::clone(&m.cell)).next() {
                return Err(self.part_of_group(cell, &other, &group, span));
            }
            let part = home.part.and_then(|part| part.upgrade());
            let held = part.unwrap_or_else(|| Arc::clone(cell));
            if seen.insert(held.id) {
                parts.push(held);
            }
        }
        Ok(parts)
    }

    fn part_of_group(&mut self, cell: &Cell, other: &Cell, group: &Group, span: Span) -> Halt {
        self.report(
            Diagnostic::error(
                codes::SHARD,
                span,
                format!(
                    "`{}` and `{}` are parts of one vector, and only the first is among the parameters here",
                    cell.name(),
                    other.name()
                ),
            )
            .secondary(group.span, "spread over the ranks here")
            .help("name the whole unit, declare what is not trained `param frozen`, or leave out `flat`"),
        )
    }

    /// An error where each rank would update with what it has by itself.
    pub(in crate::check) fn only_local(&mut self, span: Span) -> Halt {
        self.report(
            Diagnostic::error(codes::SHARD, span, "these gradients are of this rank alone")
                .note("they were taken with `local: true`: whole vectors, which nobody has reduced")
                .help("bind them, `let g = grad(loss, net, local: true)`, and write `sync g over world` before the update"),
        )
    }

    /// Reduces and scatters the gradients of vectors that each rank has whole, and gives the tree of
    /// parts. The others are made equal by [`Evaluator::sync_values`].
    pub(in crate::check) fn scatter(&mut self, tree: &Tree, span: Span) -> Eval<Vec<Option<Value>>> {
        let mut parts = Vec::with_capacity(tree.entries.len());
        for (cell, value) in &tree.entries {
            let (Some(value), Some(group)) = (value, cell.group()) else {
                parts.push(None);
                continue;
            };
            let (whole, _) = self.tensor_value(value, span)?;
            let shard = group.shard;
            let part = self.build(span, |f| {
                let sum = f.graph.collective(CollectiveKind::ReduceScatter, shard.world, whole)?;
                if !shard.mean {
                    return Ok(sum);
                }
                let ranks = f.graph.splat_like(sum, f64::from(shard.world))?;
                f.graph.div(sum, ranks)
            })?;
            parts.push(Some(self.graph_value(part, false)));
        }
        Ok(parts)
    }

    /// An error where gradients are those of a model that is spread over the ranks, and reduced.
    pub(in crate::check) fn refuse_parts(&mut self, gradients: &Value, span: Span) -> Eval<()> {
        let Value::Tree(tree) = gradients else { return Ok(()) };
        if tree.is_local {
            return Ok(());
        }
        let Some(group) = tree.entries.iter().find_map(|(cell, _)| cell.spread()) else { return Ok(()) };
        Err(self.report(
            Diagnostic::error(
                codes::SHARD,
                span,
                format!("`sync` of gradients of `{}`, which is spread over the ranks", group.title),
            )
            .secondary(group.span, "by this statement")
            .help("leave `sync` out: each rank has its part of the sum over all of them. Gradients that are added up first are taken with `grad(loss, net, local: true)`"),
        ))
    }

    /// An error where a parameter is spread over the ranks: nobody has the whole of its gradient.
    pub(in crate::check) fn need_whole(&mut self, cell: &Cell, span: Span) -> Eval<()> {
        let Some(home) = cell.home() else { return Ok(()) };
        let name = cell.name();
        let mut diagnostic = Diagnostic::error(
            codes::SHARD,
            span,
            format!("the gradient of `{name}` alone: each rank has a part of the gradient of its unit"),
        );
        if let Some(group) = home.group.upgrade() {
            diagnostic = diagnostic.secondary(group.span, "spread over the ranks here");
        }
        Err(self.report(diagnostic.help(
            "take the gradients of the whole model, `grad(loss, net)`: `+ - * /`, `norm`, `map` and `update` work on them",
        )))
    }

    /// Parameters that got no gradient beside others of their vector: the vector has room for theirs,
    /// and an optimizer would change them.
    pub(in crate::check) fn check_whole_groups(
        &mut self,
        cells: &[Arc<Cell>],
        grads: &[Option<ValueId>],
        span: Span,
    ) -> Eval<()> {
        for (cell, grad) in cells.iter().zip(grads) {
            let (None, Some(home)) = (grad, cell.home()) else { continue };
            let Some(group) = home.group.upgrade() else { continue };
            let trained =
                cells.iter().zip(grads).find(|(other, grad)| grad.is_some() && group.member(other).is_some());
            if let Some((other, _)) = trained {
                let (name, other) = (cell.name(), other.name());
                let size = Bytes(cell.ty.bytes());
                return Err(self.report(
                    Diagnostic::error(
                        codes::FROZEN_IN_GROUP,
                        span,
                        format!("`{name}` gets no gradient, and is in one flat group with `{other}`, which does"),
                    )
                    .label("updates a group as one vector")
                    .secondary(cell.span, format!("{} is declared here", cell.ty))
                    .secondary(group.span, "the groups are made here")
                    .note(format!(
                        "the group would have room for its gradient, {size}, and the optimizer would change it"
                    ))
                    .help("declare it `param frozen`: then it is in a group of its own, without a gradient"),
                ));
            }
        }
        Ok(())
    }

    /// The body of an optimizer, or a function of gradients, sees parts: what it computes of an
    /// element must not depend on the others. `start` is the first node of the body, `seen` what it
    /// starts from.
    pub(in crate::check) fn check_elementwise(
        &mut self,
        start: u32,
        seen: &[ValueId],
        group: &Group,
        what: &str,
        span: Span,
    ) -> Eval<()> {
        let Some(frame) = self.frames.last() else { return Ok(()) };
        let Some((node, op)) = first_of_several(&frame.graph, start, seen) else { return Ok(()) };
        let place = frame.graph.origins.get(frame.graph.node(node).origin()).span;
        let title = &group.title;
        let message = if group.is_flat {
            format!("{what} takes the `{op}` of a parameter, and `{title}` is one vector of several")
        } else {
            format!("{what} takes the `{op}` of a parameter, of which each rank has a part")
        };
        Err(self.report(
            Diagnostic::error(codes::SHARD, span, message)
                .secondary(place, "in this operation")
                .secondary(group.span, "spread over the ranks here")
                .note("every rank updates its part of the vector, element by element")
                .help("use an optimizer that treats each element alike, such as `optim.sgd` or `optim.adamw`; `norm(g)` of a whole tree of gradients is fine"),
        ))
    }

    /// Whether a value of the graph is a part, or was computed of parts element by element.
    pub(in crate::check) fn part_group(&self, value: &Value) -> Option<Arc<Group>> {
        match value {
            // With one rank an optimizer sees the parameter itself, which counts as its own part.
            Value::Param(cell) if self.in_optimizer() => cell.spread(),
            Value::Param(cell) => cell.group(),
            Value::Tensor(GraphTensor { frame, value, .. }) => {
                let frame = self.frames.iter().rev().find(|f| f.id == *frame)?;
                frame.part_values.get(value).cloned()
            }
            _ => None,
        }
    }
}

/// The first node from one on that does not treat the elements of parts alike.
fn first_of_several(graph: &Graph, start: u32, seen: &[ValueId]) -> Option<(NodeId, &'static str)> {
    let mut parts: FxHashSet<ValueId> = seen.iter().copied().collect();
    for node in graph.nodes_from(NodeId(start)) {
        if !node.args().iter().any(|a| parts.contains(a)) {
            continue;
        }
        let is_elementwise = match node.op() {
            op if op.is_elementwise() => true,
            Op::StopGrad(_) | Op::Write(_) | Op::Print(_) | Op::Barrier(_) => true,
            // Scalars that were computed elsewhere.
            op => op.memory().alias == Alias::View && keeps_shape(graph, node.args(), node.result(0)),
        };
        if !is_elementwise {
            return Some((node.id, node.op().name()));
        }
        parts.extend(node.results());
    }
    None
}

fn keeps_shape(graph: &Graph, args: &[ValueId], result: ValueId) -> bool {
    args.first().is_some_and(|&arg| graph.ty(arg).shape() == graph.ty(result).shape())
}
