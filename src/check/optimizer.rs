//! Optimizers: `minimize`, `update`, and the bodies of optimizers, elaborated once per parameter.

use std::sync::Arc;

use super::{
    Evaluator,
    args::Args,
    errors::{Eval, Halt},
    frame::{Frame, FrameKind, ScalarBinding},
    scope::ScopeKind,
    tensor::Operand,
    value::{Cell, Cx, Init, Optimizer, OptimizerDef, Unknown, Value, cells_of, lock},
};
use crate::{
    codes,
    diagnostic::Diagnostic,
    ir::{DType, Role, ScalarSource, SlotKind, Type, ValueId},
    source::Span,
    syntax::ast::{ExprId, Name},
};

impl Evaluator {
    /// `optim.sgd(lr: 0.1)`, with the model that it is for first, if at all.
    pub(super) fn make_optimizer(&mut self, def: &Arc<OptimizerDef>, mut args: Args, span: Span) -> Eval {
        let is_target = |v: &Value| match v {
            Value::Model(_) | Value::Param(_) => true,
            Value::List(items) => items.iter().any(|i| matches!(i, Value::Model(_) | Value::Param(_))),
            _ => false,
        };
        if args.positional.first().is_some_and(|(v, _)| is_target(v)) {
            args.positional.remove(0);
        }
        let title = Arc::clone(&def.decl.name.name);
        let cx = def.cx.in_scope(def.cx.scope.child(ScopeKind::Body));
        self.bind_params(&cx, &title, &def.decl.params, args, span)?;
        let mut hyper = Vec::with_capacity(def.decl.params.len());
        for param in &def.decl.params {
            let Some(binding) = cx.scope.get(&param.name.name) else { return Err(Halt::Reported) };
            let value = binding.value;
            if param.ty.is_none() {
                let run_time = match &value {
                    Value::Int(_) | Value::Float(_) | Value::Function(_) | Value::Unknown(_) => true,
                    v => v.is_tensor() && self.tensor_type(v).is_some_and(|t| t.rank() == 0),
                };
                if !run_time {
                    let kind = value.kind();
                    return Err(self.report(
                        Diagnostic::error(
                            codes::TYPE_MISMATCH,
                            span,
                            format!(
                                "`{}` of `{title}` is a number or a function of the update count, got {kind}",
                                param.name.name
                            ),
                        )
                        .secondary(param.name.span, "declared here"),
                    ));
                }
            }
            hyper.push(value);
        }
        // An optimizer that is written in a step keeps its state when the step is compiled again.
        let inline = match self.frames.last() {
            Some(Frame { kind: FrameKind::Step(step), path, .. }) => Some((Arc::clone(step), path.0)),
            _ => None,
        };
        let Some((step, path)) = inline else {
            return Ok(Value::Optimizer(Optimizer::new(Arc::clone(def), hyper)));
        };
        let mut known = lock(&step.optimizers);
        let count = known.len();
        let optimizer = known.entry((span, path)).or_insert_with(|| {
            let optimizer = Optimizer::new(Arc::clone(def), Vec::new());
            let number = if count == 0 { String::new() } else { format!("{}", count + 1) };
            optimizer.name_once(&format!("{}.{}{number}", step.name(), def.decl.name.name));
            optimizer
        });
        *lock(&optimizer.hyper) = hyper;
        Ok(Value::Optimizer(Arc::clone(optimizer)))
    }

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
        for &target in over {
            let target_span = cx.ast.expr(target).span;
            let value = self.expr(cx, target)?;
            for cell in self.targets(&value, target_span)? {
                if !cells.iter().any(|c| c.id == cell.id) {
                    cells.push(cell);
                }
            }
        }
        let optimizer = self.optimizer_expr(cx, with)?;
        let loss = self.scalar_loss(&loss?, loss_span)?;
        let grads = self.cell_gradients(loss, &cells, span)?;
        self.report_missing(&cells, &grads, loss_span, span);
        let pairs = cells
            .into_iter()
            .zip(grads)
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
        let value = self.expr(cx, target)?;
        let cells = self.targets(&value, target_span)?;
        let optimizer = self.optimizer_expr(cx, with)?;
        let grads_span = cx.ast.expr(grads).span;
        let grads = self.expr(cx, grads)?;
        let pairs = match &grads {
            Value::Tree(tree) => {
                let mut pairs = Vec::new();
                for cell in cells {
                    let entry = tree.entries.iter().find(|(c, _)| c.id == cell.id);
                    if let Some((_, Some(grad))) = entry {
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

    pub(super) fn only_in_step(&mut self, what: &str, span: Span) -> Eval<()> {
        match self.frames.last() {
            Some(frame) if matches!(frame.kind, FrameKind::Step(_)) => match frame.current_region() {
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

    /// The optimizer's body for each parameter with its gradient.
    fn update_cells(
        &mut self,
        optimizer: &Arc<Optimizer>,
        pairs: Vec<(Arc<Cell>, Value)>,
        span: Span,
    ) -> Eval<()> {
        let t = self.update_count(optimizer, span)?;
        let frame = self.frame(span)?;
        let compute = frame.compute.take();
        let role = frame.graph.cursor.role;
        frame.updates.push(Arc::clone(optimizer));
        let mut result = Ok(());
        for (cell, grad) in pairs {
            result = self.update_cell(optimizer, &cell, grad, &t, span);
            if result.is_err() {
                break;
            }
        }
        let frame = self.frame(span)?;
        frame.compute = compute;
        frame.graph.cursor.role = role;
        result
    }

    /// `t`: the number of this update, from 1.
    fn update_count(&mut self, optimizer: &Arc<Optimizer>, span: Span) -> Eval {
        let name = optimizer.name();
        let earlier = self.frame(span)?.updates.iter().filter(|o| o.id == optimizer.id).count();
        let count = self.build(span, |f| {
            let binding = ScalarBinding::UpdateCount(Arc::clone(optimizer));
            f.scalar(
                (optimizer.id, usize::MAX),
                ScalarSource::UpdateCount { optimizer: name },
                binding,
                DType::F64,
            )
        })?;
        let count = self.graph_value(count, true);
        if earlier == 0 {
            return Ok(count);
        }
        self.binary_values(crate::syntax::ast::BinaryOp::Add, &count, &Value::Int(earlier as i64), span)
    }

    fn update_cell(
        &mut self,
        optimizer: &Arc<Optimizer>,
        cell: &Arc<Cell>,
        grad: Value,
        t: &Value,
        span: Span,
    ) -> Eval<()> {
        let frame = self.frame(span)?;
        let slot = frame.slot(cell);
        frame.graph.cursor.role = Role::Update { slot };
        let grad = self.gradient_operand(cell, &grad, span)?;
        let title = optimizer.name();
        let def = &optimizer.def;
        let scope = def.cx.scope.child(ScopeKind::Body);
        let cx = def.cx.in_scope(Arc::clone(&scope));
        self.bind_hyper(optimizer, &scope, t, span)?;
        let place = def.decl.name.span;
        scope.declare(&"p".into(), Value::Param(Arc::clone(cell)), place);
        scope.declare(&"g".into(), grad, place);
        scope.declare(&"t".into(), t.clone(), place);
        let mut states = Vec::with_capacity(def.decl.states.len());
        for (name, init) in &def.decl.states {
            let state = self.optimizer_state(optimizer, cell, &name.name, *init, name.span)?;
            scope.declare(&name.name, Value::Param(Arc::clone(&state)), name.span);
            states.push(state);
        }
        self.enter_call(&title, span, |ev| match ev.block(&cx, &def.decl.body) {
            Ok(_) | Err(Halt::Return(_)) => Ok(Value::Unit),
            Err(halt) => Err(halt),
        })?;
        // States that no branch touched are not there at all.
        let frame = self.frame(span)?;
        for state in states {
            if frame.has_slot(&state).is_some() {
                let mut order = lock(&optimizer.state_order);
                if !order.iter().any(|s| s.id == state.id) {
                    order.push(state);
                }
            }
        }
        Ok(())
    }

    /// A gradient in the parameter's type.
    fn gradient_operand(&mut self, cell: &Arc<Cell>, grad: &Value, span: Span) -> Eval {
        let Some(operand) = self.operand(grad, span)? else {
            let kind = grad.kind();
            return Err(self.error(codes::GRADIENT, span, format!("expected a gradient, got {kind}")));
        };
        if let Operand::Tensor { value, .. } = operand {
            let ty = self.frame(span)?.graph.ty(value).clone();
            if ty.shape() != cell.ty.shape() {
                let (name, want) = (cell.name(), &cell.ty);
                return Err(self.error(
                    codes::SHAPE_MISMATCH,
                    span,
                    format!("the gradient of `{name}` ({want}) is {ty}"),
                ));
            }
            if ty.dtype() != cell.ty.dtype() {
                let cast = self.build(span, |f| f.graph.cast(value, cell.ty.dtype()))?;
                return Ok(self.graph_value(cast, false));
            }
            return Ok(self.graph_value(value, false));
        }
        let what = format!("the gradient of `{}`", cell.name());
        let value = self.fit(operand, &cell.ty.clone(), &what, span, cell.span)?;
        Ok(self.graph_value(value, false))
    }

    /// Binds hyper-parameters: compile-time ones as they are, run-time ones as entries of the
    /// scalar page, functions applied to `t`.
    fn bind_hyper(
        &mut self,
        optimizer: &Arc<Optimizer>,
        scope: &Arc<super::Scope>,
        t: &Value,
        span: Span,
    ) -> Eval<()> {
        let values = lock(&optimizer.hyper).clone();
        for (k, (param, value)) in optimizer.def.decl.params.iter().zip(values).enumerate() {
            let bound = match &value {
                _ if param.ty.is_some() => value,
                Value::Int(_) | Value::Float(_) | Value::Unknown(Unknown::Int(_) | Unknown::Float(_)) => {
                    let number = super::operator::number(&value).map_or(0.0, |(n, _)| n.as_f64());
                    let name: Name = format!("{}.{}", optimizer.name(), param.name.name).into();
                    let scalar = self.build(span, |f| {
                        let binding = ScalarBinding::Hyper(Arc::clone(optimizer), k);
                        let source = ScalarSource::Hyper { name, value: number };
                        f.scalar((optimizer.id, k), source, binding, DType::F64)
                    })?;
                    self.graph_value(scalar, true)
                }
                Value::Function(function) => {
                    let result = self.call_function(function, Args::one(t.clone(), span), span)?;
                    if super::operator::number(&result).is_none()
                        && self.tensor_type(&result).is_none_or(|ty| ty.rank() != 0)
                    {
                        let kind = result.kind();
                        return Err(self.error(
                            codes::TYPE_MISMATCH,
                            span,
                            format!("`{}` should give a number for each update, got {kind}", param.name.name),
                        ));
                    }
                    result
                }
                _ => value,
            };
            scope.declare(&param.name.name, bound, param.name.span);
        }
        Ok(())
    }

    /// The state of one parameter, made when it is asked for first.
    fn optimizer_state(
        &mut self,
        optimizer: &Arc<Optimizer>,
        cell: &Arc<Cell>,
        name: &Name,
        init: ExprId,
        span: Span,
    ) -> Eval<Arc<Cell>> {
        let key = (cell.id, Arc::clone(name));
        if let Some(state) = lock(&optimizer.states).get(&key) {
            return Ok(Arc::clone(state));
        }
        let cx = &optimizer.def.cx;
        let ty = self.state_type(cx, init, cell, span)?;
        let source = Init::OptimizerState { cx: cx.clone(), expr: init, param: Arc::clone(cell) };
        let state = Cell::new(Arc::clone(name), ty, SlotKind::OptimizerState, span, source);
        state.name_once(&format!("{}.{name}.{}", optimizer.name(), cell.name()));
        lock(&optimizer.states).insert(key, Arc::clone(&state));
        Ok(state)
    }

    /// The type of `zeros_like(p)` for one parameter.
    fn state_type(&mut self, cx: &Cx, init: ExprId, cell: &Arc<Cell>, span: Span) -> Eval<Type> {
        let key = (cx.ast.expr(init).span, cell.ty.clone());
        if let Some(ty) = self.state_types.get(&key) {
            return Ok(ty.clone());
        }
        let scope = cx.scope.child(ScopeKind::Body);
        scope.declare(&"p".into(), Value::Param(Arc::clone(cell)), span);
        let depth = self.frames.len();
        self.frames.push(Frame::new(FrameKind::Init));
        let expr_span = cx.ast.expr(init).span;
        let value = self.expr(&cx.in_scope(scope), init).and_then(|value| {
            let operand = self.operand(&value, expr_span)?;
            Ok(match operand {
                Some(Operand::Tensor { value, .. }) => Some(self.frame(span)?.graph.ty(value).clone()),
                Some(Operand::Number(_)) => Some(Type::scalar(DType::F32)),
                None => None,
            })
        });
        self.frames.truncate(depth);
        match value? {
            Some(ty) => {
                self.state_types.insert(key, ty.clone());
                Ok(ty)
            }
            None => Err(self.error(codes::TYPE_MISMATCH, expr_span, "a state starts as a tensor")),
        }
    }

    /// Warns of parameters that get no gradient: a low peak may then mean that nothing was computed.
    pub(super) fn report_missing(
        &mut self,
        cells: &[Arc<Cell>],
        grads: &[Option<ValueId>],
        loss_span: Span,
        span: Span,
    ) {
        let missing: Vec<&Arc<Cell>> =
            cells.iter().zip(grads).filter(|(_, g)| g.is_none()).map(|(c, _)| c).collect();
        if missing.is_empty() {
            return;
        }
        let names: Vec<String> = missing.iter().map(|c| c.name().to_string()).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let message = if missing.len() == cells.len() {
            "none of the parameters gets a gradient".to_string()
        } else {
            let s = if missing.len() == 1 { "parameter gets" } else { "parameters get" };
            format!("{} of {} {s} no gradient: {}", missing.len(), cells.len(), super::index::listed(&names))
        };
        let frame = self.frames.last();
        let unused = missing.iter().filter(|c| frame.is_none_or(|f| f.has_slot(c).is_none())).count();
        let note = if unused == missing.len() {
            "the step does not use them before this line".to_string()
        } else if unused > 0 {
            format!(
                "{unused} of them are not used at all; the others reach the loss only through operations without a gradient"
            )
        } else {
            "they reach the loss only through operations without a gradient (`stop_grad`, comparisons, whole numbers), or not at all".to_string()
        };
        let mut diagnostic = Diagnostic::warning(codes::NO_GRADIENT, span, message)
            .secondary(loss_span, "the loss does not depend on them")
            .note(note)
            .help("parameters that are not to be trained are declared `param frozen`");
        if let Some(first) = missing.first() {
            diagnostic = diagnostic.secondary(first.span, format!("`{}` is declared here", first.name()));
        }
        self.report(diagnostic);
    }
}
