//! The statements `minimize` and `update`.

use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

use super::{
    Evaluator,
    errors::{Eval, Halt},
    file_names::within,
    frame::FrameKind,
    gradient::Ranks,
    value::{Cell, Cx, Model, Optimizer, Value, cells_of},
};
use crate::{codes, diagnostic::Diagnostic, ir::Role, source::Span, syntax::ast::ExprId};

impl Evaluator {
    fn optimizer_expr(&mut self, cx: &Cx, with: ExprId) -> Eval<Arc<Optimizer>> {
        let span = cx.ast.expr(with).span;
        match self.expr(cx, with)? {
            Value::Optimizer(optimizer) => Ok(optimizer),
            Value::OptimizerDef(def) => {
                let name = Arc::clone(&def.decl.name.name);
                Err(self.report(
                    Diagnostic::error(codes::OPTIMIZER, span, format!("`{name}` is declared here, not made"))
                        .help(format!("call it: `{name}(lr: 0.01)`")),
                ))
            }
            other => {
                let kind = other.kind();
                Err(self.error(codes::OPTIMIZER, span, format!("expected an optimizer, got {kind}")))
            }
        }
    }

    /// The parameters that a `minimize` or `update` changes.
    fn targets(&mut self, value: &Value, span: Span) -> Eval<Vec<Arc<Cell>>> {
        if !matches!(value, Value::Model(_) | Value::Param(_) | Value::List(_) | Value::Tuple(_)) {
            let kind = value.kind();
            return Err(self.report(
                Diagnostic::error(
                    codes::TYPE_MISMATCH,
                    span,
                    format!("expected a model or a parameter, got {kind}"),
                )
                .help("only parameters of models are trained; declare one with `param` in a `model`"),
            ));
        }
        let cells: Vec<Arc<Cell>> = cells_of(value).into_iter().filter(|c| c.is_trainable()).collect();
        if cells.is_empty() {
            if is_incomplete(value) {
                return Err(Halt::Reported);
            }
            let kind = value.kind();
            return Err(self.error(codes::GRADIENT, span, format!("{kind} has no parameters to train")));
        }
        Ok(cells)
    }

    /// `minimize loss over net with opt`
    pub(super) fn minimize(
        &mut self,
        cx: &Cx,
        loss: ExprId,
        over: &[ExprId],
        with: ExprId,
        span: Span,
    ) -> Eval {
        self.only_in_step("minimize", span)?;
        let loss_span = cx.ast.expr(loss).span;
        let loss = self.expr(cx, loss);
        let mut cells: Vec<Arc<Cell>> = Vec::new();
        let mut known = FxHashSet::default();
        let mut failed = false;
        for &target in over {
            let target_span = cx.ast.expr(target).span;
            let found = self.expr(cx, target).and_then(|value| self.targets(&value, target_span));
            match self.part(found)? {
                Some(found) => cells.extend(found.into_iter().filter(|c| known.insert(c.id))),
                None => failed = true,
            }
        }
        let optimizer = self.optimizer_expr(cx, with);
        let loss = loss.and_then(|loss| self.scalar_loss(&loss, loss_span));
        let (Some(loss), Some(optimizer), false) = (self.part(loss)?, self.part(optimizer)?, failed) else {
            return Err(Halt::Reported);
        };
        let grads = self.cell_gradients(loss, &cells, Ranks::All, span)?;
        self.report_missing(&cells, &grads.of_cells, &[loss], loss_span, span);
        let pairs = grads
            .parts
            .into_iter()
            .zip(grads.of_parts)
            .filter_map(|(cell, grad)| Some((cell, self.graph_value(grad?, false))))
            .collect();
        self.update_cells(&optimizer, pairs, span)?;
        Ok(Value::Unit)
    }

    /// `update net with opt, grads`
    pub(super) fn update_stmt(
        &mut self,
        cx: &Cx,
        target: ExprId,
        with: ExprId,
        grads: ExprId,
        span: Span,
    ) -> Eval {
        self.only_in_step("update", span)?;
        let target_span = cx.ast.expr(target).span;
        let found = self
            .expr(cx, target)
            .and_then(|value| self.targets(&value, target_span).map(|cells| (value, cells)));
        let found = self.part(found)?;
        let optimizer = self.optimizer_expr(cx, with);
        let optimizer = self.part(optimizer)?;
        let grads_span = cx.ast.expr(grads).span;
        let grads = self.expr(cx, grads)?;
        let (Some((target, cells)), Some(optimizer)) = (found, optimizer) else {
            return Err(Halt::Reported);
        };
        let pairs = match &grads {
            Value::Model(other) if let Value::Model(model) = &target => {
                self.of_other_model(&cells, (model, other), target_span, grads_span)?
            }
            Value::Tree(tree) if tree.is_local => return Err(self.only_local(grads_span)),
            Value::Tree(tree) => {
                let by_cell: FxHashMap<u64, &Option<Value>> =
                    tree.entries.iter().map(|(c, grad)| (c.id, grad)).rev().collect();
                let mut pairs = Vec::new();
                for cell in self.parts_of(&cells, target_span)? {
                    if let Some(Some(grad)) = by_cell.get(&cell.id) {
                        pairs.push((cell, grad.clone()));
                    }
                }
                if pairs.is_empty() {
                    return Err(self.error(
                        codes::GRADIENT,
                        grads_span,
                        "these gradients belong to other parameters",
                    ));
                }
                pairs
            }
            Value::List(_) | Value::Tuple(_) | Value::Tensor(_)
                if cells.iter().any(|c| c.home().is_some()) =>
            {
                if let Some(cell) = cells.iter().find(|c| c.home().is_some()) {
                    self.need_whole(cell, grads_span)?;
                }
                Vec::new()
            }
            Value::List(items) | Value::Tuple(items) if items.len() == cells.len() => {
                cells.into_iter().zip(items.iter().cloned()).collect()
            }
            Value::List(items) | Value::Tuple(items) => {
                let (got, want) = (items.len(), cells.len());
                return Err(self.error(
                    codes::GRADIENT,
                    grads_span,
                    format!("{got} gradients for {want} parameters"),
                ));
            }
            v if v.is_tensor() && cells.len() == 1 => cells.into_iter().map(|c| (c, grads.clone())).collect(),
            other => {
                let kind = other.kind();
                return Err(self.error(
                    codes::GRADIENT,
                    grads_span,
                    format!("expected the gradients of the parameters, got {kind}"),
                ));
            }
        };
        self.update_cells(&optimizer, pairs, span)?;
        Ok(Value::Unit)
    }

    /// The parameters of a model in place of the gradients of another one, which has the same form.
    fn of_other_model(
        &mut self,
        cells: &[Arc<Cell>],
        (model, other): (&Arc<Model>, &Arc<Model>),
        span: Span,
        other_span: Span,
    ) -> Eval<Vec<(Arc<Cell>, Value)>> {
        let others: Vec<Arc<Cell>> =
            cells_of(&Value::Model(Arc::clone(other))).into_iter().filter(|c| c.is_trainable()).collect();
        let form = |cell: &Cell, model: &Model| {
            let name = cell.name();
            let rest = within(&name, &model.title()).map(String::from);
            (rest.unwrap_or_else(|| name.to_string()), cell.ty.shape().to_vec())
        };
        let differs = |(a, b): &(&Arc<Cell>, &Arc<Cell>)| form(a, model) != form(b, other);
        let pair = cells.iter().zip(&others).find(differs);
        // Where one has more, the first of those.
        let more = || cells.get(others.len()).or(others.get(cells.len()));
        let odd: Vec<&Arc<Cell>> = pair.map_or_else(|| more().into_iter().collect(), |(a, b)| vec![a, b]);
        if !odd.is_empty() {
            let (title, given) = (model.title(), other.title());
            let message = format!("`{given}` has other parameters than `{title}`");
            let odd = odd.iter().map(|cell| format!("`{}` {}", cell.name(), cell.ty));
            return Err(self.report(
                Diagnostic::error(codes::GRADIENT, other_span, message)
                    .secondary(span, "of the same form as this")
                    .note(format!("the first that differ: {}", odd.collect::<Vec<_>>().join(", "))),
            ));
        }
        let parts = self.parts_of(cells, span)?;
        let given = self.parts_of(&others, other_span)?;
        if parts.iter().map(|c| c.ty.shape()).ne(given.iter().map(|c| c.ty.shape())) {
            let message = format!(
                "`{}` and `{}` are not spread over the ranks in the same units",
                other.title(),
                model.title()
            );
            return Err(self.report(
                Diagnostic::error(codes::SHARD, other_span, message)
                    .secondary(span, "of the same form as this")
                    .help("`shard` both alike"),
            ));
        }
        Ok(parts.into_iter().zip(given.into_iter().map(Value::Param)).collect())
    }

    pub(super) fn only_in_step(&mut self, what: &str, span: Span) -> Eval<()> {
        match self.frames.last() {
            Some(frame) if matches!(frame.graph.cursor.role, Role::Update { .. }) => {
                Err(self.error(codes::ONLY_IN_STEP, span, format!("`{what}` in the body of an optimizer")))
            }
            Some(frame) if matches!(frame.kind, FrameKind::Step(_)) => match frame.written_region() {
                None => Ok(()),
                Some(_) => Err(self.error(
                    codes::ONLY_IN_STEP,
                    span,
                    format!("`{what}` inside of `checkpoint < … >`"),
                )),
            },
            _ => Err(self.report(
                Diagnostic::error(codes::ONLY_IN_STEP, span, format!("`{what}` outside of a step"))
                    .help("put it into the body of `step name(…) { … }` and call the step"),
            )),
        }
    }
}

/// Whether something of a model could not be made, which is reported: then nobody knows what it holds.
fn is_incomplete(value: &Value) -> bool {
    match value {
        Value::Poison => true,
        Value::Model(model) => model.scope.bindings().iter().any(|(_, b)| match &b.value {
            // A model cannot hold itself, so this comes to an end.
            Value::Model(_) | Value::List(_) | Value::Poison => is_incomplete(&b.value),
            _ => false,
        }),
        Value::List(items) => items.iter().any(is_incomplete),
        _ => false,
    }
}
