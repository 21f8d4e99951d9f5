//! Optimizers: making them, and their bodies, elaborated once per parameter.

use std::sync::{Arc, atomic::Ordering};

use super::{
    Evaluator,
    args::Args,
    errors::{Eval, Halt},
    frame::{Frame, FrameKind, ScalarBinding},
    scope::{Scope, ScopeKind},
    tensor::Operand,
    value::{Cell, Cx, Init, MadeFor, Optimizer, OptimizerDef, Unknown, Value, cells_of, lock},
};
use crate::{
    codes,
    diagnostic::Diagnostic,
    ir::{DType, Role, ScalarSource, SlotKind, Type},
    source::Span,
    syntax::ast::{BinaryOp, ExprId, Name},
};

impl Evaluator {
    /// `optim.sgd(lr: 0.1)`, with the model that it is for first, if at all.
    pub(super) fn make_optimizer(&mut self, def: &Arc<OptimizerDef>, mut args: Args, span: Span) -> Eval {
        let is_target = |v: &Value| match v {
            Value::Model(_) | Value::Param(_) => true,
            Value::List(items) => items.iter().any(|i| matches!(i, Value::Model(_) | Value::Param(_))),
            _ => false,
        };
        let mut made_for = None;
        // Most likely the model, where a first argument failed.
        let failed = args.positional.first().is_some_and(|(v, _)| matches!(v, Value::Poison));
        if failed {
            args.positional.remove(0);
        }
        if args.positional.first().is_some_and(|(v, _)| is_target(v)) {
            let (target, at) = args.positional.remove(0);
            let cells = cells_of(&target).iter().map(|c| c.id).collect();
            made_for = Some(MadeFor { cells, what: titled(&target), span: at });
        }
        let title = Arc::clone(&def.decl.name.name);
        let master = self.master(def, &mut args)?;
        let cx = def.cx.in_scope(def.cx.scope.child(ScopeKind::Body));
        self.bind_params(&cx, &title, &def.decl.params, args, span)?;
        if failed {
            return Err(Halt::Reported);
        }
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
            let optimizer = Optimizer::new(Arc::clone(def), hyper, master);
            *lock(&optimizer.made_for) = made_for;
            return Ok(Value::Optimizer(optimizer));
        };
        let mut known = lock(&step.optimizers);
        let count = known.len();
        let optimizer = known.entry((span, path)).or_insert_with(|| {
            let optimizer = Optimizer::new(Arc::clone(def), Vec::new(), master);
            let number = if count == 0 { String::new() } else { format!("{}", count + 1) };
            optimizer.name_once(&format!("{}.{}{number}", step.name(), def.decl.name.name));
            // Loaded before the step was compiled.
            if let Some(count) = self.pending_counts.remove(&*optimizer.name()) {
                optimizer.count.store(count, Ordering::Relaxed);
            }
            optimizer
        });
        *lock(&optimizer.hyper) = hyper;
        *lock(&optimizer.made_for) = made_for;
        Ok(Value::Optimizer(Arc::clone(optimizer)))
    }

    /// Takes `master: f32` out of the arguments: every optimizer has it.
    fn master(&mut self, def: &OptimizerDef, args: &mut Args) -> Eval<Option<DType>> {
        if def.decl.params.iter().any(|p| &*p.name.name == "master") {
            return Ok(None);
        }
        let Some(at) = args.named.iter().position(|(name, _, _)| &*name.name == "master") else {
            return Ok(None);
        };
        match args.named.remove(at) {
            (_, Value::DType(dtype), _) if dtype.is_float() => Ok(Some(dtype)),
            (_, Value::Poison, _) => Err(Halt::Reported),
            (_, value, span) => {
                let kind = value.kind();
                Err(self.report(
                    Diagnostic::error(
                        codes::TYPE_MISMATCH,
                        span,
                        format!("`master` is a floating-point dtype, got {kind}"),
                    )
                    .help(
                        "`master: f32` keeps a second copy of each bf16 or f16 parameter, which is updated",
                    ),
                ))
            }
        }
    }

    /// The optimizer's body for each parameter with its gradient.
    pub(super) fn update_cells(
        &mut self,
        optimizer: &Arc<Optimizer>,
        pairs: Vec<(Arc<Cell>, Value)>,
        span: Span,
    ) -> Eval<()> {
        self.check_made_for(optimizer, &pairs, span)?;
        let t = self.update_count(optimizer, span)?;
        let frame = self.frame(span)?;
        // A parameter that the statement has read outside of its unit stays gathered until here.
        frame.end_gather();
        let compute = frame.compute.take();
        let role = frame.graph.cursor.role;
        frame.updates.push(Arc::clone(optimizer));
        let mut result = Ok(());
        for (cell, grad) in pairs {
            lock(&optimizer.targets).insert(&cell);
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

    /// An optimizer that was made for a model trains that, or parts of it.
    fn check_made_for(
        &mut self,
        optimizer: &Arc<Optimizer>,
        pairs: &[(Arc<Cell>, Value)],
        span: Span,
    ) -> Eval<()> {
        let made_for = lock(&optimizer.made_for);
        let Some(known) = made_for.as_ref() else { return Ok(()) };
        let Some((other, _)) = pairs.iter().find(|(cell, _)| !holds(known, cell)) else {
            return Ok(());
        };
        let (title, what, place) = (optimizer.name(), known.what.clone(), known.span);
        drop(made_for);
        Err(self.report(
            Diagnostic::error(
                codes::OPTIMIZER,
                span,
                format!("`{title}` is made for {what}, and does not train `{}`", other.name()),
            )
            .secondary(place, "made for this")
            .secondary(other.span, format!("`{}` is declared here", other.name()))
            .help("make an optimizer for each model, or leave the model out where it is made"),
        ))
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
        self.binary_values(BinaryOp::Add, &count, &Value::Int(earlier as i64), span)
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
        // The body updates the master copy, where there is one.
        let master = self.master_copy(optimizer, cell);
        let updated = master.as_ref().unwrap_or(cell);
        let grad = self.gradient_operand(updated, &grad, span)?;
        let title = optimizer.name();
        let def = &optimizer.def;
        let scope = def.cx.scope.child(ScopeKind::Body);
        let cx = def.cx.in_scope(Arc::clone(&scope));
        self.bind_hyper(optimizer, &scope, t, span)?;
        let place = def.decl.name.span;
        scope.declare(&"p".into(), Value::Param(Arc::clone(updated)), place);
        scope.declare(&"g".into(), grad.clone(), place);
        scope.declare(&"t".into(), t.clone(), place);
        let mut states: Vec<Arc<Cell>> = master.iter().cloned().collect();
        for (name, init) in &def.decl.states {
            let state =
                self.optimizer_state(optimizer, updated, &cell.name(), &name.name, *init, name.span)?;
            scope.declare(&name.name, Value::Param(Arc::clone(&state)), name.span);
            states.push(state);
        }
        let start = self.frame(span)?.graph.len() as u32;
        let mut seen = Vec::new();
        let group = cell.spread();
        if let (Some(group), Value::Tensor(grad)) = (&group, &grad) {
            seen.push(grad.value);
            self.frame(span)?.part_values.insert(grad.value, Arc::clone(group));
        }
        self.enter_call(&title, span, |ev| match ev.block(&cx, &def.decl.body) {
            Ok(_) | Err(Halt::Return(_)) => Ok(Value::Unit),
            Err(halt) => Err(halt),
        })?;
        if let Some(master) = &master
            && self.frame(span)?.has_slot(master).is_some()
        {
            let value = self.operand(&Value::Param(Arc::clone(master)), span)?;
            if let Some(Operand::Tensor { value, .. }) = value {
                let rounded = self.build(span, |f| f.graph.cast(value, cell.ty.dtype()))?;
                self.build(span, |f| f.write(cell, rounded))?;
            }
        }
        if let Some(group) = group {
            let frame = self.frame(span)?;
            for held in states.iter().chain([cell, updated]).filter(|c| c.ty.shape() == updated.ty.shape()) {
                let slot = frame.has_slot(held).and_then(|slot| frame.slots.get(slot.0 as usize));
                seen.extend(slot.iter().flat_map(|slot| &slot.versions));
            }
            self.check_elementwise(start, &seen, &group, &format!("`{title}`"), span)?;
        }
        // States that no branch touched are not there at all.
        let frame = self.frame(span)?;
        for state in states {
            if frame.has_slot(&state).is_some() {
                lock(&optimizer.state_order).insert(&state);
            }
        }
        Ok(())
    }

    /// The copy of a parameter in the optimizer's `master` type, where that is another than its own.
    fn master_copy(&mut self, optimizer: &Arc<Optimizer>, cell: &Arc<Cell>) -> Option<Arc<Cell>> {
        let dtype = (*lock(&optimizer.master)).filter(|&dtype| dtype != cell.ty.dtype())?;
        let name: Name = "master".into();
        let mut states = lock(&optimizer.states);
        if let Some(known) = states.get(&(cell.id, Arc::clone(&name))) {
            return Some(Arc::clone(known));
        }
        let ty = cell.ty.with_dtype(dtype).ok()?;
        let init = Init::Master { param: Arc::clone(cell) };
        let copy = Cell::new(Arc::clone(&name), ty, SlotKind::OptimizerState, cell.span, init);
        copy.name_once(&format!("{}.{name}.{}", optimizer.name(), cell.name()));
        states.insert((cell.id, name), Arc::clone(&copy));
        Some(copy)
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
        scope: &Arc<Scope>,
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
        parameter: &str,
        name: &Name,
        init: ExprId,
        span: Span,
    ) -> Eval<Arc<Cell>> {
        let key = (cell.id, Arc::clone(name));
        if let Some(state) = lock(&optimizer.states).get(&key) {
            return Ok(Arc::clone(state));
        }
        let cx = &optimizer.def.cx;
        let ty = self.optimizer_state_type(cx, init, cell, span)?;
        let source = Init::OptimizerState { cx: cx.clone(), expr: init, param: Arc::clone(cell) };
        let state = Cell::new(Arc::clone(name), ty, SlotKind::OptimizerState, span, source);
        state.name_once(&format!("{}.{name}.{}", optimizer.name(), parameter));
        lock(&optimizer.states).insert(key, Arc::clone(&state));
        Ok(state)
    }

    /// The type of `zeros_like(p)` for one parameter.
    fn optimizer_state_type(&mut self, cx: &Cx, init: ExprId, cell: &Arc<Cell>, span: Span) -> Eval<Type> {
        let key = (cx.ast.expr(init).span, cell.ty.clone());
        if let Some(ty) = self.state_types.get(&key) {
            return Ok(ty.clone());
        }
        let ty = self.state_type(cx, init, (&"p".into(), cell), span)?;
        self.state_types.insert(key, ty.clone());
        Ok(ty)
    }

    /// The type of the first value of a state; the expression sees a tensor under this name.
    pub(super) fn state_type(
        &mut self,
        cx: &Cx,
        init: ExprId,
        (name, cell): (&Name, &Arc<Cell>),
        span: Span,
    ) -> Eval<Type> {
        let scope = cx.scope.child(ScopeKind::Body);
        scope.declare(name, Value::Param(Arc::clone(cell)), span);
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
            Some(ty) => Ok(ty),
            None => Err(self.error(codes::TYPE_MISMATCH, expr_span, "a state starts as a tensor")),
        }
    }
}

/// Whether an optimizer is made for a parameter, or for all of those that a rank's part is of.
fn holds(made_for: &MadeFor, cell: &Cell) -> bool {
    match cell.group() {
        Some(group) => group.members.iter().all(|m| made_for.cells.contains(&m.cell.id)),
        None => made_for.cells.contains(&cell.id),
    }
}

/// What an optimizer is made for, in words. Names are those of variables, which are known by then.
fn titled(target: &Value) -> String {
    match target {
        Value::Model(model) => format!("the model `{}`", model.title()),
        Value::Param(cell) => format!("the parameter `{}`", cell.name()),
        _ => "a list of models".to_string(),
    }
}
