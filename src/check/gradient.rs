//! `grad`, `value_and_grad` and `pullback`.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::{
    Evaluator,
    args::Args,
    errors::Eval,
    tensor::Operand,
    value::{Cell, Tree, Value, cells_of},
};
use crate::{codes, diagnostic::Diagnostic, grad, ir::ValueId, ops::Cause, source::Span};

/// One per value asked for; `None` where nothing depends on it.
type Gradients = Vec<Option<ValueId>>;

/// Of what ranks the gradients of parameters are that are spread over them.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Ranks {
    /// Reduced over all, a part for each.
    All,
    /// Of the whole vectors, on this rank.
    Own,
}

/// The gradients of parameters.
pub(super) struct CellGradients {
    /// The tensors that hold them: parameters, and this rank's parts of those that are spread.
    pub parts: Vec<Arc<Cell>>,
    /// One per part.
    pub of_parts: Gradients,
    /// One per parameter: what it got, if it got one.
    pub of_cells: Gradients,
}

impl Evaluator {
    /// A loss: one floating-point number of the graph.
    pub(super) fn scalar_loss(&mut self, value: &Value, span: Span) -> Eval<ValueId> {
        if matches!(value, Value::Stored(_)) {
            return Err(self.report(
                Diagnostic::error(
                    codes::GRADIENT,
                    span,
                    "this loss is already computed: nothing is known of how",
                )
                .help("compute it in the same step as its gradient"),
            ));
        }
        if !value.is_tensor() {
            let kind = value.kind();
            return Err(self.error(codes::GRADIENT, span, format!("a loss is a scalar tensor, got {kind}")));
        }
        let (id, _) = self.tensor_value(value, span)?;
        let ty = self.frame(span)?.graph.ty(id).clone();
        if ty.rank() == 0 && ty.dtype().is_float() {
            return Ok(id);
        }
        if ty.dtype().is_float() && ty.elements() == 1 {
            return self.build(span, |f| f.graph.reshape(id, &[]));
        }
        let mut diagnostic = Diagnostic::error(
            codes::GRADIENT,
            span,
            format!("a loss is a scalar of a floating-point dtype, got {ty}"),
        );
        if ty.dtype().is_float() {
            diagnostic.help.push("reduce it with `mean(…)` or `sum(…)`".into());
        }
        Err(self.report(diagnostic))
    }

    /// Builds gradients; an op without one is reported where it stands.
    pub(super) fn gradients(
        &mut self,
        outputs: &[(ValueId, ValueId)],
        wrt: &[ValueId],
        span: Span,
    ) -> Eval<Gradients> {
        let frame = self.frame_at(span)?;
        frame.end_gather();
        let start = frame.graph.len() as u32;
        match grad::gradients(&mut frame.graph, outputs, wrt) {
            Ok(grads) => {
                frame.note_uses(start);
                Ok(grads)
            }
            Err(failure) => {
                let origin = frame.graph.node(failure.node).origin();
                let at = frame.graph.origins.get(origin).span;
                let error = failure.error;
                if error.cause != Cause::Program {
                    return Err(self.op_error(span, error));
                }
                let code =
                    if error.message.starts_with("internal: ") { codes::INTERNAL } else { codes::GRADIENT };
                let mut diagnostic =
                    Diagnostic::error(code, span, error.message).secondary(at, "of this operation");
                diagnostic.help.extend(error.help);
                Err(self.report(diagnostic))
            }
        }
    }

    /// The gradients of a scalar with respect to parameters. Each is taken at the newest value of
    /// the parameter that the loss depends on.
    pub(super) fn cell_gradients(
        &mut self,
        loss: ValueId,
        cells: &[Arc<Cell>],
        ranks: Ranks,
        span: Span,
    ) -> Eval<CellGradients> {
        let one = self.build(span, |f| {
            let dtype = f.graph.ty(loss).dtype();
            f.graph.constant(dtype, 1.0)
        })?;
        self.cotangent_gradients(&[(loss, one)], (cells, ranks), &[], span).map(|(grads, _)| grads)
    }

    /// The gradients with respect to parameters and to values.
    fn cotangent_gradients(
        &mut self,
        outputs: &[(ValueId, ValueId)],
        (cells, ranks): (&[Arc<Cell>], Ranks),
        values: &[ValueId],
        span: Span,
    ) -> Eval<(CellGradients, Gradients)> {
        let parts = self.parts_of(cells, span)?;
        let frame = self.frame(span)?;
        let versions = |cell: &Arc<Cell>| {
            let state = frame.has_slot(cell).and_then(|slot| frame.slots.get(slot.0 as usize));
            state.map(|s| s.versions.clone()).unwrap_or_default()
        };
        // Of what each part is taken, with the version of the part that it is of.
        let of_parts: Vec<Vec<(ValueId, ValueId)>> = parts
            .iter()
            .map(|part| match (ranks, part.group()) {
                (Ranks::Own, Some(_)) => frame.gathers.vectors_of(part),
                _ => versions(part).into_iter().map(|value| (value, value)).collect(),
            })
            .collect();
        // Of parameters that are parts of a vector, the views tell whether the loss depends on them.
        let of_cells: Vec<Vec<ValueId>> = cells
            .iter()
            .map(|cell| match cell.part() {
                Some(_) => frame.gathers.views_of(cell).collect(),
                None => Vec::new(),
            })
            .collect();
        let mut wrt: Vec<ValueId> = values.to_vec();
        wrt.extend(of_parts.iter().flatten().map(|(_, value)| value));
        wrt.extend(of_cells.iter().flatten());
        let mut grads = self.gradients(outputs, &wrt, span)?.into_iter();
        let of_values = grads.by_ref().take(values.len()).collect();
        let mut sums: Vec<Vec<ValueId>> = Vec::with_capacity(parts.len());
        for versions in &of_parts {
            let found = versions.iter().zip(grads.by_ref());
            let found: Vec<_> = found.filter_map(|((of, _), grad)| Some((*of, grad?))).collect();
            let newest = found.last().map(|(of, _)| *of);
            // A vector that is gathered for several uses has a gradient for each of them.
            sums.push(found.into_iter().filter(|(of, _)| Some(*of) == newest).map(|(_, g)| g).collect());
        }
        let mut newest = |versions: &[ValueId]| grads.by_ref().take(versions.len()).flatten().last();
        let mut of_cells: Gradients = of_cells.iter().map(|views| newest(views)).collect();
        let mut of_parts: Gradients = Vec::with_capacity(sums.len());
        for sum in sums {
            let mut sum = sum.into_iter();
            let mut total = sum.next();
            for next in sum {
                total = total.map(|total| self.build(span, |f| f.graph.add(total, next))).transpose()?;
            }
            of_parts.push(total);
        }
        let of_part: FxHashMap<u64, Option<ValueId>> =
            parts.iter().map(|part| part.id).zip(of_parts.iter().copied()).collect();
        for (cell, grad) in cells.iter().zip(&mut of_cells) {
            if let Some(of_part) = of_part.get(&cell.id) {
                *grad = *of_part;
            }
        }
        self.check_whole_groups(cells, &of_cells, span)?;
        Ok((CellGradients { parts, of_parts, of_cells }, of_values))
    }

    /// Takes `local: true` out of the arguments of `grad`.
    fn ranks_asked(&mut self, args: &mut Args) -> Eval<Ranks> {
        let Some(at) = args.named.iter().position(|(name, _, _)| &*name.name == "local") else {
            return Ok(Ranks::All);
        };
        match args.named.remove(at) {
            (_, Value::Bool(true), _) => Ok(Ranks::Own),
            (_, Value::Bool(false), _) => Ok(Ranks::All),
            (_, value, span) => {
                let message = format!("`local` is `true` or `false`, got {}", value.kind());
                Err(self.error(codes::TYPE_MISMATCH, span, message))
            }
        }
    }

    /// `grad(loss, net)`, `grad(loss, [a, b])`, `grad(loss, x)`.
    pub(super) fn grad_builtin(&mut self, mut args: Args, span: Span) -> Eval {
        let ranks = self.ranks_asked(&mut args)?;
        let [loss, wrt] = self.take_args("grad", ["loss", "over"], args, span)?;
        self.need_graph("grad", span)?;
        let loss = self.scalar_loss(&loss.0, loss.1)?;
        self.grad_of(loss, (&wrt.0, wrt.1), ranks, span)
    }

    fn grad_of(&mut self, loss: ValueId, (wrt, wrt_span): (&Value, Span), ranks: Ranks, span: Span) -> Eval {
        let loss_span = {
            let frame = self.frame(span)?;
            let origin = frame.graph.producer(loss).0.origin();
            frame.graph.origins.get(origin).span
        };
        match wrt {
            Value::Model(_) | Value::Param(_) => {
                if let Value::Param(cell) = wrt {
                    self.need_whole(cell, span)?;
                }
                let cells: Vec<_> = cells_of(wrt).into_iter().filter(|c| c.is_trainable()).collect();
                let grads = self.cell_gradients(loss, &cells, ranks, span)?;
                self.report_missing(&cells, &grads.of_cells, &[loss], loss_span, span);
                if let (Value::Param(_), &[Some(grad)]) = (wrt, grads.of_parts.as_slice()) {
                    return Ok(self.graph_value(grad, false));
                }
                Ok(self.tree(wrt, grads, ranks))
            }
            Value::List(items) if items.iter().any(|v| !cells_of(v).is_empty() && !v.is_tensor()) => {
                let cells: Vec<_> = cells_of(wrt).into_iter().filter(|c| c.is_trainable()).collect();
                let grads = self.cell_gradients(loss, &cells, ranks, span)?;
                self.report_missing(&cells, &grads.of_cells, &[loss], loss_span, span);
                Ok(self.tree(wrt, grads, ranks))
            }
            Value::List(items) | Value::Tuple(items) => {
                let mut values = Vec::with_capacity(items.len());
                for item in items.iter() {
                    values.push(self.differentiable(item, wrt_span)?);
                }
                let one = self.build(span, |f| {
                    let dtype = f.graph.ty(loss).dtype();
                    f.graph.constant(dtype, 1.0)
                })?;
                let grads = self.gradients(&[(loss, one)], &values, span)?;
                let grads = self.or_zeros(&values, grads, span)?;
                Ok(if matches!(wrt, Value::List(_)) { Value::list(grads) } else { Value::tuple(grads) })
            }
            _ => {
                let value = self.differentiable(wrt, wrt_span)?;
                let one = self.build(span, |f| {
                    let dtype = f.graph.ty(loss).dtype();
                    f.graph.constant(dtype, 1.0)
                })?;
                let grads = self.gradients(&[(loss, one)], &[value], span)?;
                Ok(self.or_zeros(&[value], grads, span)?.into_iter().next().unwrap_or(Value::Unit))
            }
        }
    }

    /// A value that a gradient can be taken with respect to.
    fn differentiable(&mut self, value: &Value, span: Span) -> Eval<ValueId> {
        if !value.is_tensor() {
            let kind = value.kind();
            return Err(self.error(
                codes::GRADIENT,
                span,
                format!("no gradient is taken with respect to {kind}"),
            ));
        }
        if let Value::Param(cell) = value {
            self.need_whole(cell, span)?;
        }
        let (id, _) = self.tensor_value(value, span)?;
        let ty = self.frame(span)?.graph.ty(id).clone();
        if ty.dtype().is_float() {
            return Ok(id);
        }
        Err(self.error(
            codes::GRADIENT,
            span,
            format!("no gradient is taken with respect to {ty}: it needs a floating-point dtype"),
        ))
    }

    /// Gradients as values; zeros for what nothing depends on.
    fn or_zeros(&mut self, wrt: &[ValueId], grads: Vec<Option<ValueId>>, span: Span) -> Eval<Vec<Value>> {
        let mut values = Vec::with_capacity(grads.len());
        for (&value, grad) in wrt.iter().zip(grads) {
            let grad = match grad {
                Some(grad) => grad,
                None => self.build(span, |f| f.graph.splat_like(value, 0.0))?,
            };
            values.push(self.graph_value(grad, false));
        }
        Ok(values)
    }

    fn tree(&self, root: &Value, grads: CellGradients, ranks: Ranks) -> Value {
        let entries = grads
            .parts
            .into_iter()
            .zip(grads.of_parts)
            .map(|(cell, grad)| (cell, grad.map(|g| self.graph_value(g, false))))
            .collect::<Vec<(Arc<Cell>, Option<Value>)>>();
        // With one rank, too: a program is for any number of them.
        let is_local = ranks == Ranks::Own && entries.iter().any(|(cell, _)| cell.spread().is_some());
        Value::Tree(Arc::new(Tree { root: root.clone(), entries, is_local }))
    }

    /// `value_and_grad(loss, net)`, or `value_and_grad(f, a, b)`: (f(a, b), gradients of a and b).
    pub(super) fn value_and_grad_builtin(&mut self, mut args: Args, span: Span) -> Eval {
        let callable = matches!(
            args.positional.first(),
            Some((Value::Function(_) | Value::Model(_) | Value::TensorFunction(_), _))
        );
        if !callable {
            self.need_graph("value_and_grad", span)?;
            let ranks = self.ranks_asked(&mut args)?;
            let [loss, wrt] = self.take_args("value_and_grad", ["loss", "over"], args, span)?;
            let id = self.scalar_loss(&loss.0, loss.1)?;
            let grads = self.grad_of(id, (&wrt.0, wrt.1), ranks, span)?;
            return Ok(Value::tuple(vec![loss.0, grads]));
        }
        self.scripted(span, |ev| {
            let (function, _) = args.positional.remove(0);
            let mut values = Vec::with_capacity(args.positional.len());
            for (arg, at) in &mut args.positional {
                let value = ev.differentiable(arg, *at)?;
                *arg = ev.graph_value(value, false);
                values.push(value);
            }
            let result = ev.call_value(&function, args, span)?;
            let loss = ev.scalar_loss(&result, span)?;
            let one = ev.build(span, |f| {
                let dtype = f.graph.ty(loss).dtype();
                f.graph.constant(dtype, 1.0)
            })?;
            let grads = ev.gradients(&[(loss, one)], &values, span)?;
            let grads = ev.or_zeros(&values, grads, span)?;
            Ok(Value::tuple(vec![result, Value::list(grads)]))
        })
    }

    /// `pullback(f, x, g)`: for a model the gradients of its parameters and of x, for a function
    /// that of x.
    pub(super) fn pullback_builtin(&mut self, args: Args, span: Span) -> Eval {
        self.need_graph("pullback", span)?;
        let [function, x, g] = self.take_args("pullback", ["f", "x", "g"], args, span)?;
        let inputs: Vec<Value> = match &x.0 {
            Value::List(items) | Value::Tuple(items) => items.as_ref().clone(),
            single => vec![single.clone()],
        };
        let mut values = Vec::with_capacity(inputs.len());
        let mut call = Args::default();
        for input in &inputs {
            let value = self.differentiable(input, x.1)?;
            values.push(value);
            call.positional.push((self.graph_value(value, false), x.1));
        }
        let result = self.call_value(&function.0, call, span)?;
        let results: Vec<Value> = match &result {
            Value::List(items) | Value::Tuple(items) => items.as_ref().clone(),
            single => vec![single.clone()],
        };
        let cotangents: Vec<Value> = match &g.0 {
            Value::List(items) | Value::Tuple(items) => items.as_ref().clone(),
            single => vec![single.clone()],
        };
        if results.len() != cotangents.len() {
            let (want, got) = (results.len(), cotangents.len());
            return Err(self.error(
                codes::GRADIENT,
                g.1,
                format!("`pullback`: the function gives {want} values, but there are {got} gradients"),
            ));
        }
        let mut outputs = Vec::with_capacity(results.len());
        for (result, cotangent) in results.iter().zip(&cotangents) {
            let output = self.differentiable(result, span)?;
            let ty = self.frame(span)?.graph.ty(output).clone();
            let Some(operand) = self.operand(cotangent, g.1)? else {
                let kind = cotangent.kind();
                return Err(self.error(codes::GRADIENT, g.1, format!("expected a gradient, got {kind}")));
            };
            if let Operand::Tensor { value, .. } = operand {
                let got = self.frame(span)?.graph.ty(value).clone();
                if got != ty {
                    return Err(self.error(
                        codes::SHAPE_MISMATCH,
                        g.1,
                        format!("`pullback`: the function gives {ty}, its gradient is {got}"),
                    ));
                }
            }
            let value = self.fit(operand, &ty, "the gradient", g.1, span)?;
            outputs.push((output, value));
        }
        let cells: Vec<_> = cells_of(&function.0).into_iter().filter(|c| c.is_trainable()).collect();
        let (of_cells, of_values) =
            self.cotangent_gradients(&outputs, (&cells, Ranks::All), &values, span)?;
        let mut back = self.or_zeros(&values, of_values, span)?;
        let back = match &x.0 {
            Value::List(_) => Value::list(back),
            Value::Tuple(_) => Value::tuple(back),
            _ => back.pop().unwrap_or(Value::Unit),
        };
        if matches!(function.0, Value::Model(_)) {
            let outputs: Vec<ValueId> = outputs.iter().map(|(o, _)| *o).collect();
            self.report_missing(&cells, &of_cells.of_cells, &outputs, span, span);
            return Ok(Value::tuple(vec![self.tree(&function.0, of_cells, Ranks::All), back]));
        }
        Ok(back)
    }

    /// Gradients belong to graph code: there is nothing to differentiate among stored tensors.
    fn need_graph(&mut self, what: &str, span: Span) -> Eval<()> {
        if self.in_graph() {
            return Ok(());
        }
        Err(self.report(
            Diagnostic::error(codes::ONLY_IN_STEP, span, format!("`{what}` outside of a step or function"))
                .help("compute the loss and its gradient in one step or function, and return what you need"),
        ))
    }
}
