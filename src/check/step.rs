//! Steps: compiled once per set of argument shapes, then run.

use std::sync::{Arc, Mutex, atomic::Ordering};

use super::{
    Evaluator, Mode,
    args::{Args, ParamName},
    errors::{Eval, Halt},
    frame::{Capture, Ensure, Frame, FrameKind, InputSource, ScalarBinding},
    operator::equal,
    run::{collect_tensors, map_tensors},
    scope::ScopeKind,
    types::Meaning,
    value::{Cell, GraphTensor, Optimizer, Record, Step, Stored, Unknown, Value, lock},
    walk,
};
use crate::{
    codes,
    diagnostic::Diagnostic,
    exec::{
        Tensor,
        cpu::{Executable, RunError, ScalarPage},
    },
    ir::{DType, Graph, NodeId, Origin, Output, ScalarSource, Type, ValueId},
    lower,
    plan::Plan,
    source::Span,
    syntax::ast::{DimExpr, ExprKind, Name, TypeExpr},
};

/// A step, compiled for one set of arguments.
pub struct Compiled {
    key: Vec<KeyPart>,
    captures: Vec<Capture>,
    /// As elaborated.
    pub graph: Arc<Graph>,
    pub plan: Mutex<Option<Arc<Plan>>>,
    executable: Mutex<Option<Executable>>,
    cells: Vec<Arc<Cell>>,
    inputs: Vec<InputSource>,
    scalars: Vec<ScalarBinding>,
    /// The result; a graph tensor in it holds the number of an output.
    template: Value,
    output_types: Vec<Type>,
    ensures: Vec<Ensure>,
    updates: Vec<Arc<Optimizer>>,
}

/// What of an argument a compiled step depends on.
#[derive(Debug, Clone, PartialEq)]
enum KeyPart {
    Tensor(Type),
    /// A run-time scalar.
    Scalar(DType),
    Int(i64),
    /// The bits.
    Float(u64),
    Bool(bool),
    Str(Arc<str>),
    DType(DType),
    Unit,
    Open(usize),
    /// A model, a function, …: by identity.
    Object(u64),
}

/// Arguments in the form in which a compiled step takes them.
#[derive(Default)]
struct Flat {
    key: Vec<KeyPart>,
    tensors: Vec<Arc<Stored>>,
    /// Numbers of run-time scalars.
    scalars: Vec<f64>,
}

impl Evaluator {
    /// A call from the script.
    pub(super) fn call_step(&mut self, step: &Arc<Step>, args: Args, span: Span) -> Eval {
        let name = Arc::clone(step.name());
        if self.in_graph() {
            return Err(self.report(
                Diagnostic::error(
                    codes::NOT_IN_GRAPH,
                    span,
                    format!("the step `{name}` is called from graph code"),
                )
                .help("steps are called by the script; write what they share as a `fn`"),
            ));
        }
        let script = super::value::Cx { ast: Arc::clone(&step.cx.ast), scope: Arc::clone(&self.script) };
        self.resume(&script, span)?;
        let values = self.step_args(step, args, span)?;
        let flat = self.flatten(step, &values, span)?;
        let compiled = self.compiled(step, &values, &flat, span)?;
        if self.mode == Mode::Check {
            let outputs: Vec<Value> =
                compiled.output_types.iter().map(|ty| Value::Stored(Stored::new(ty.clone(), None))).collect();
            return Ok(fill(&compiled.template, &outputs));
        }
        let results = self.run_step(step, &compiled, &flat, span)?;
        let outputs: Vec<Value> = results
            .into_iter()
            .map(|tensor| Value::Stored(Stored::new(tensor.ty().clone(), Some(tensor))))
            .collect();
        Ok(fill(&compiled.template, &outputs))
    }

    /// Arguments by parameter, defaults included.
    fn step_args(&mut self, step: &Arc<Step>, args: Args, span: Span) -> Eval<Vec<(Value, Span)>> {
        let params = &step.decl.params;
        let names: Vec<ParamName<'_>> = params
            .iter()
            .map(|p| ParamName { name: &p.name.name, required: p.default.is_none(), span: Some(p.name.span) })
            .collect();
        let bound = self.bind_args(step.name(), &names, args, span)?;
        let mut values = Vec::with_capacity(bound.len());
        for (param, bound) in params.iter().zip(bound) {
            values.push(match (bound, param.default) {
                (Some(bound), _) => bound,
                (None, Some(default)) => (self.expr(&step.cx, default)?, step.cx.ast.expr(default).span),
                (None, None) => (Value::Unit, span),
            });
        }
        Ok(values)
    }

    /// Whether a parameter is a run-time scalar: declared with a dtype and no shape.
    fn scalar_dtype(ty: Option<&TypeExpr>) -> Option<DType> {
        let ty = ty?;
        if ty.dims.as_ref().is_some_and(|d| !d.is_empty()) {
            return None;
        }
        // `bool` without a shape is the compile-time type.
        DType::parse(&ty.base.name).filter(|&d| d != DType::Bool || ty.dims.is_some())
    }

    fn flatten(&mut self, step: &Arc<Step>, values: &[(Value, Span)], span: Span) -> Eval<Flat> {
        let mut flat = Flat::default();
        for (param, (value, at)) in step.decl.params.iter().zip(values) {
            match Self::scalar_dtype(param.ty.as_ref()) {
                Some(dtype) => match self.scalar_argument(value) {
                    Some(number) => {
                        flat.key.push(KeyPart::Scalar(dtype));
                        flat.scalars.push(number);
                    }
                    None => {
                        let kind = value.kind();
                        let name = &param.name.name;
                        return Err(self.report(
                            Diagnostic::error(
                                codes::TYPE_MISMATCH,
                                *at,
                                format!("`{name}` of `{}` is a number ({dtype}), got {kind}", step.name()),
                            )
                            .secondary(param.name.span, "declared here"),
                        ));
                    }
                },
                None => self.flatten_value(value, &mut flat, *at, span)?,
            }
        }
        Ok(flat)
    }

    fn scalar_argument(&self, value: &Value) -> Option<f64> {
        match value {
            Value::Stored(stored) if stored.ty.elements() == 1 => {
                Some(stored.data.as_ref().and_then(|t| t.get_f64(0)).unwrap_or(0.5))
            }
            Value::Param(cell) if cell.ty.elements() == 1 => {
                Some(cell.data().and_then(|t| t.get_f64(0)).unwrap_or(0.5))
            }
            Value::Unknown(Unknown::Any) => Some(0.5),
            other => super::operator::number(other).map(|(n, _)| n.as_f64()),
        }
    }

    fn flatten_value(&mut self, value: &Value, flat: &mut Flat, at: Span, span: Span) -> Eval<()> {
        let part = match value {
            Value::Stored(stored) => {
                flat.tensors.push(Arc::clone(stored));
                KeyPart::Tensor(stored.ty.clone())
            }
            Value::Param(cell) => {
                self.prepare_cell(cell, span)?;
                flat.tensors.push(Stored::new(cell.ty.clone(), cell.data()));
                KeyPart::Tensor(cell.ty.clone())
            }
            Value::Int(value) | Value::Unknown(Unknown::Int(value)) => KeyPart::Int(*value),
            Value::Float(value) | Value::Unknown(Unknown::Float(value)) => KeyPart::Float(value.to_bits()),
            Value::Bool(value) | Value::Unknown(Unknown::Bool(value)) => KeyPart::Bool(*value),
            Value::Unknown(_) => KeyPart::Unit,
            Value::Str(text) => KeyPart::Str(Arc::clone(text)),
            Value::DType(dtype) => KeyPart::DType(*dtype),
            Value::Unit => KeyPart::Unit,
            Value::Range(range) => {
                flat.key.extend([range.low, range.high].map(KeyPart::Int));
                KeyPart::Int(range.step)
            }
            Value::List(items) | Value::Tuple(items) => {
                flat.key.push(KeyPart::Open(items.len()));
                for item in items.iter() {
                    self.flatten_value(item, flat, at, span)?;
                }
                return Ok(());
            }
            Value::Record(record) => {
                flat.key.push(KeyPart::Open(record.fields.len()));
                for (name, item) in &record.fields {
                    flat.key.push(KeyPart::Str(Arc::clone(name)));
                    self.flatten_value(item, flat, at, span)?;
                }
                return Ok(());
            }
            Value::Tree(tree) => {
                flat.key.push(KeyPart::Open(tree.entries.len()));
                for (cell, item) in &tree.entries {
                    flat.key.push(KeyPart::Object(cell.id));
                    self.flatten_value(item.as_ref().unwrap_or(&Value::Unit), flat, at, span)?;
                }
                return Ok(());
            }
            Value::Model(model) => KeyPart::Object(model.id),
            Value::Function(function) => KeyPart::Object(function.id),
            Value::ModelDef(def) => KeyPart::Object(def.id),
            Value::OptimizerDef(def) => KeyPart::Object(def.id),
            Value::Optimizer(optimizer) => KeyPart::Object(optimizer.id),
            Value::TensorFunction(function) => KeyPart::Str(function.name.into()),
            Value::Builtin(builtin) => KeyPart::Str(builtin.name.into()),
            Value::Poison => return Err(Halt::Reported),
            other => {
                let kind = other.kind();
                return Err(self.error(
                    codes::TYPE_MISMATCH,
                    at,
                    format!("{kind} cannot be passed to a step"),
                ));
            }
        };
        flat.key.push(part);
        Ok(())
    }

    /// The step compiled for these arguments, from the cache where it is there.
    fn compiled(
        &mut self,
        step: &Arc<Step>,
        values: &[(Value, Span)],
        flat: &Flat,
        span: Span,
    ) -> Eval<Arc<Compiled>> {
        let known = lock(&step.compiled).clone();
        if let Some(compiled) = known.iter().find(|c| c.key == flat.key && is_current(c)) {
            return Ok(Arc::clone(compiled));
        }
        let compiled = Arc::new(self.compile(step, values, flat, span)?);
        let mut list = lock(&step.compiled);
        // What was compiled for names that mean something else by now is of no use any more.
        list.retain(|c| c.key != flat.key);
        list.push(Arc::clone(&compiled));
        Ok(compiled)
    }

    /// Elaborates the body of a step.
    fn compile(
        &mut self,
        step: &Arc<Step>,
        values: &[(Value, Span)],
        flat: &Flat,
        span: Span,
    ) -> Eval<Compiled> {
        let errors = self.error_count();
        let mut frame = Frame::new(FrameKind::Step(Arc::clone(step)));
        frame.training = walk::takes_gradients(&step.cx.ast, &step.decl.body);
        let depth = self.frames.len();
        self.frames.push(frame);
        let name = Arc::clone(step.name());
        let result = self.enter_call(&name, span, |ev| {
            let cx = step.cx.in_scope(step.cx.scope.child(ScopeKind::Body));
            ev.bind_step_params(step, &cx, values)?;
            let result = ev.function_body(&cx, &name, &step.decl)?;
            let at = step.decl.body.tail.map_or(step.decl.name.span, |t| cx.ast.expr(t).span);
            ev.lift(&result, at)
        });
        self.frames.truncate(depth + 1);
        let Some(mut frame) = self.frames.pop() else { return Err(Halt::Reported) };
        let result = result?;
        let (template, output_types) = self.outputs(&mut frame, step, &result);
        self.verify_releases(&frame);
        if self.error_count() > errors {
            return Err(Halt::Reported);
        }
        match super::hoist::hoist_leaves(&frame.graph) {
            Ok(None) => {}
            Ok(Some(graph)) => frame.graph = graph,
            Err(error) => return Err(self.op_error(step.decl.name.span, error)),
        }
        let compiled = Compiled {
            key: flat.key.clone(),
            captures: frame.captures,
            graph: Arc::new(frame.graph),
            plan: Mutex::new(None),
            executable: Mutex::new(None),
            cells: frame.slots.into_iter().map(|s| s.cell).collect(),
            inputs: frame.inputs,
            scalars: frame.scalars,
            template,
            output_types,
            ensures: frame.ensures,
            updates: frame.updates,
        };
        Ok(compiled)
    }

    /// Binds the parameters of a step to inputs and scalars of its graph.
    fn bind_step_params(
        &mut self,
        step: &Arc<Step>,
        cx: &super::value::Cx,
        values: &[(Value, Span)],
    ) -> Eval<()> {
        let (mut tensors, mut scalars) = (0, 0);
        let mut inputs = Vec::with_capacity(values.len());
        for (param, (value, at)) in step.decl.params.iter().zip(values) {
            let name = &param.name.name;
            let value = match Self::scalar_dtype(param.ty.as_ref()) {
                Some(dtype) => {
                    let k = scalars;
                    scalars += 1;
                    let id = self.build(param.name.span, |f| {
                        let source = ScalarSource::Argument(k as u32);
                        f.scalar((0, k), source, ScalarBinding::Argument(k), dtype)
                    })?;
                    self.graph_value(id, false)
                }
                None => self.input_value(name, value, &mut tensors, param.name.span)?,
            };
            self.label(&value, name, param.name.span);
            inputs.push((value, *at));
        }
        for (param, (value, _)) in step.decl.params.iter().zip(&inputs) {
            if let Some(ty) = &param.ty {
                self.bind_dims(&cx.scope, &cx.ast, ty, value);
            }
        }
        for (param, (value, at)) in step.decl.params.iter().zip(inputs) {
            let value = match &param.ty {
                Some(ty) if Self::scalar_dtype(Some(ty)).is_none() => {
                    let what = format!("`{}` of `{}`", param.name.name, step.name());
                    self.check_type(cx, ty, value, &what, at)?
                }
                _ => value,
            };
            cx.scope.declare(&param.name.name, value, param.name.span);
        }
        Ok(())
    }

    /// An argument with every tensor in it made an input of the graph.
    fn input_value(&mut self, name: &Name, value: &Value, tensors: &mut usize, span: Span) -> Eval {
        Ok(match value {
            Value::Stored(_) | Value::Param(_) => {
                let Some(ty) = self.tensor_type(value) else { return Err(Halt::Reported) };
                let source = InputSource::Argument(*tensors);
                *tensors += 1;
                let id = self.build(span, |f| f.add_input(Arc::clone(name), &ty, source))?;
                self.graph_value(id, false)
            }
            Value::List(items) | Value::Tuple(items) => {
                let mut inputs = Vec::with_capacity(items.len());
                for (k, item) in items.iter().enumerate() {
                    let name = format!("{name}.{k}").into();
                    inputs.push(self.input_value(&name, item, tensors, span)?);
                }
                if matches!(value, Value::List(_)) { Value::list(inputs) } else { Value::tuple(inputs) }
            }
            Value::Record(record) => {
                let mut fields = Vec::with_capacity(record.fields.len());
                for (field, item) in &record.fields {
                    let name = format!("{name}.{field}").into();
                    fields.push((Arc::clone(field), self.input_value(&name, item, tensors, span)?));
                }
                Value::Record(Arc::new(Record { what: record.what, fields }))
            }
            Value::Tree(tree) => {
                let mut entries = Vec::with_capacity(tree.entries.len());
                for (cell, item) in &tree.entries {
                    let item = match item {
                        Some(item) => {
                            let name = format!("{name}.{}", cell.name()).into();
                            Some(self.input_value(&name, item, tensors, span)?)
                        }
                        None => None,
                    };
                    entries.push((Arc::clone(cell), item));
                }
                Value::Tree(Arc::new(super::value::Tree { root: tree.root.clone(), entries }))
            }
            other => other.clone(),
        })
    }

    /// Makes the tensors of a result outputs of the graph.
    fn outputs(&mut self, frame: &mut Frame, step: &Arc<Step>, result: &Value) -> (Value, Vec<Type>) {
        let mut outputs: Vec<ValueId> = Vec::new();
        collect_tensors(result, &mut |t| outputs.push(t.value));
        let graph = &mut frame.graph;
        let returned = last_return(&step.cx.ast, &step.decl.body).unwrap_or(step.decl.name.span);
        let origin = graph.origins.intern(Origin { span: returned, parent: None, iteration: None });
        graph.outputs = outputs
            .iter()
            .enumerate()
            .map(|(k, &value)| {
                let name = graph.names.get(&value).cloned().unwrap_or_else(|| format!("result{k}").into());
                Output { name, value, origin }
            })
            .collect();
        let types = outputs.iter().map(|&v| graph.ty(v).clone()).collect();
        let mut next = 0;
        let template = map_tensors(result, &mut |tensor| {
            let value = ValueId(next);
            next += 1;
            Value::Tensor(GraphTensor { value, ..tensor })
        });
        (template, types)
    }

    fn run_step(
        &mut self,
        step: &Arc<Step>,
        compiled: &Compiled,
        flat: &Flat,
        span: Span,
    ) -> Eval<Vec<Tensor>> {
        let arguments: Vec<Tensor> = flat.tensors.iter().filter_map(|s| s.data.clone()).collect();
        let inputs = self.input_tensors(&compiled.inputs, &arguments, span)?;
        let values = compiled.scalars.iter().map(|s| scalar_value(s, flat)).collect();
        let page = ScalarPage { values, seed: self.settings.seed, step: step.runs.load(Ordering::Relaxed) };
        let plan = self.plan_of(step, compiled, span)?;
        let (peak, limit) = (plan.peak_bytes(), self.settings.limits.max_host_bytes);
        if peak > limit {
            return Err(self.report(
                Diagnostic::error(
                    codes::LIMIT,
                    span,
                    format!("`{}` needs {} to run, more than the {} that there are", step.name(), mebibytes(peak), mebibytes(limit)),
                )
                .help("`tg plan` shows what takes them; make it smaller with `--set`, or recompute with `checkpoint < … >`"),
            ));
        }
        let mut slots = self.take_slots(&compiled.cells, span)?;
        let taken = lock(&compiled.executable).take();
        let executable = match taken {
            Some(executable) => Ok(executable),
            None => Executable::new(plan),
        };
        let result = match executable {
            Ok(mut executable) => {
                let printed = Arc::new(Mutex::new(Vec::new()));
                let sink = Arc::clone(&printed);
                executable.set_printer(Some(Box::new(move |label, tensor| {
                    lock(&sink).push(format!("{label}: {}", crate::script::print::tensor(tensor)));
                })));
                let cancel = Arc::clone(&self.cancel);
                let result = executable.run(&mut self.arena, &mut slots, &inputs, &page, &cancel);
                *lock(&compiled.executable) = Some(executable);
                for line in std::mem::take(&mut *lock(&printed)) {
                    self.write_line(&line);
                }
                result
            }
            Err(error) => Err(RunError { node: NodeId(0), error }),
        };
        for (cell, tensor) in compiled.cells.iter().zip(slots) {
            cell.set_data(tensor);
        }
        let results = result.map_err(|error| self.run_error(error, span))?.outputs;
        step.runs.fetch_add(1, Ordering::Relaxed);
        for optimizer in &compiled.updates {
            optimizer.count.fetch_add(1, Ordering::Relaxed);
        }
        Ok(results)
    }

    /// The plan of a compiled step, made when it is asked for first.
    pub(super) fn plan_of(&mut self, step: &Arc<Step>, compiled: &Compiled, span: Span) -> Eval<Arc<Plan>> {
        if let Some(plan) = lock(&compiled.plan).clone() {
            return Ok(plan);
        }
        let options = lower::PlanOptions::default();
        let plan = match lower::plan(&compiled.graph, step.name(), &options) {
            Ok(plan) => Arc::new(plan),
            Err(error) => return Err(self.op_error(step.decl.name.span, error)),
        };
        *lock(&compiled.plan) = Some(Arc::clone(&plan));
        self.plans.push(Arc::clone(&plan));
        self.check_peak(step, compiled, &plan, span)?;
        Ok(plan)
    }

    /// Checks a plan against the `ensure` statements of its step and the limit of the engine.
    fn check_peak(&mut self, step: &Arc<Step>, compiled: &Compiled, plan: &Plan, span: Span) -> Eval<()> {
        let peak = plan.peak_bytes();
        let bound = plan.lower_bound_bytes();
        let mut fits = true;
        for ensure in &compiled.ensures {
            if ensure.every_schedule {
                self.report(Diagnostic::new(
                    crate::diagnostic::Severity::Note,
                    codes::NOT_CHECKED_YET,
                    ensure.span,
                    "`in every schedule` is not checked yet; the peak of the chosen schedule is",
                ));
            }
            if peak > ensure.limit {
                fits = false;
                let mut diagnostic = Diagnostic::error(
                    codes::OVER_PEAK,
                    ensure.span,
                    format!(
                        "the peak of `{}` is {}, over the {} that are ensured",
                        step.name(),
                        mebibytes(peak),
                        mebibytes(ensure.limit)
                    ),
                )
                .note(format!("no schedule of this step needs less than {}", mebibytes(bound)));
                if span != step.decl.name.span {
                    diagnostic = diagnostic.secondary(span, "for this call");
                }
                diagnostic
                    .help
                    .push("`tg plan` shows what is alive at the peak; `checkpoint < … >` recomputes instead of keeping".into());
                self.report(diagnostic);
            }
        }
        let limit = self.settings.limits.max_bytes;
        if peak > limit {
            return Err(self.error(
                codes::LIMIT,
                step.decl.name.span,
                format!(
                    "the peak of `{}` is {}; the limit of this engine is {}",
                    step.name(),
                    mebibytes(peak),
                    mebibytes(limit)
                ),
            ));
        }
        if fits { Ok(()) } else { Err(Halt::Reported) }
    }

    /// Plans every step: for its signature where that is fully known, else for the calls seen.
    pub(super) fn plan_signatures(&mut self) {
        for step in self.steps.clone() {
            let is_library = self.sources.get(step.decl.span.file).is_some_and(|f| f.is_library);
            if is_library || self.cancelled() {
                continue;
            }
            let span = step.decl.name.span;
            let errors = self.error_count();
            let mut compiled = Vec::new();
            if let Ok(Some(values)) = self.signature(&step) {
                let flat = self.flatten(&step, &values, span);
                if let Ok(flat) = flat
                    && let Ok(made) = self.compiled(&step, &values, &flat, span)
                {
                    compiled.push(made);
                }
            } else {
                compiled = lock(&step.compiled).clone();
            }
            if !self.settings.plan || self.error_count() > errors {
                continue;
            }
            for compiled in compiled {
                // Failures are reported by then.
                let _ = self.plan_of(&step, &compiled, span);
            }
        }
    }

    /// Arguments of the types that a step declares; `None` where it leaves something open.
    fn signature(&mut self, step: &Arc<Step>) -> Eval<Option<Vec<(Value, Span)>>> {
        let cx = step.cx.in_scope(step.cx.scope.child(ScopeKind::Body));
        let mut values = Vec::with_capacity(step.decl.params.len());
        for param in &step.decl.params {
            let span = param.name.span;
            let Some(ty) = &param.ty else { return Ok(None) };
            if !self.bind_default_dims(&cx, ty)? || !is_closed(&cx, ty) {
                return Ok(None);
            }
            let value = match self.meaning(&cx, ty)? {
                Meaning::Tensor(dtype) => {
                    let ty = self.declared_type(&cx, ty, dtype)?;
                    Value::Stored(Stored::new(ty, None))
                }
                _ => match param.default {
                    Some(default) => self.expr(&step.cx, default)?,
                    None => return Ok(None),
                },
            };
            values.push((value, span));
        }
        Ok(Some(values))
    }

    /// Gives the dimensions with a default their size, or the one of `--set`.
    fn bind_default_dims(&mut self, cx: &super::value::Cx, ty: &TypeExpr) -> Eval<bool> {
        for dim in ty.dims.iter().flatten() {
            let DimExpr::Default { name, value } = dim else { continue };
            if cx.scope.contains(&name.name) {
                continue;
            }
            let set = self.settings.sets.iter().find(|(n, _)| **n == *name.name).cloned();
            let size = match set {
                Some((set, text)) => {
                    self.used_sets.insert(set);
                    match text.trim().parse::<i64>() {
                        Ok(size) if size >= 0 => size,
                        _ => {
                            return Err(self.error(
                                codes::BAD_SET,
                                name.span,
                                format!("`--set {}={text}`: a dimension is a whole number", name.name),
                            ));
                        }
                    }
                }
                None => self.int_expr(cx, *value)?.0,
            };
            cx.scope.declare(&name.name, Value::Int(size), name.span);
        }
        Ok(true)
    }

    /// `ensure peak <= 4 GiB`
    pub(super) fn ensure_stmt(
        &mut self,
        cx: &super::value::Cx,
        limit: crate::syntax::ast::ExprId,
        every_schedule: bool,
        span: Span,
    ) -> Eval {
        self.only_in_step("ensure", span)?;
        let at = cx.ast.expr(limit).span;
        let value = self.expr(cx, limit)?;
        let limit = match value {
            Value::Int(bytes) => u64::try_from(bytes).ok(),
            Value::Float(bytes) if bytes >= 0.0 => Some(bytes as u64),
            _ => None,
        };
        let Some(limit) = limit else {
            let kind = value.kind();
            return Err(self.report(
                Diagnostic::error(codes::TYPE_MISMATCH, at, format!("a peak is a size in bytes, got {kind}"))
                    .help("write `ensure peak <= 4 GiB`"),
            ));
        };
        self.frame(span)?.ensures.push(Ensure { limit, every_schedule, span });
        Ok(Value::Unit)
    }
}

/// Whether the script names that a compiled step depends on still mean the same.
fn is_current(compiled: &Compiled) -> bool {
    let same = compiled.captures.iter().all(|capture| {
        let Some(now) = capture.scope.get(&capture.name) else { return false };
        match (&capture.value, &now.value) {
            (Value::Stored(x), Value::Stored(y)) => x.ty == y.ty,
            (x @ Value::Unknown(_), y) => format!("{x:?}") == format!("{y:?}"),
            (x, y) => equal(x, y).unwrap_or(false),
        }
    });
    same && compiled.scalars.iter().all(|binding| match binding {
        ScalarBinding::Hyper(optimizer, k) => {
            lock(&optimizer.hyper).get(*k).is_some_and(|v| super::operator::number(v).is_some())
        }
        _ => true,
    })
}

fn scalar_value(binding: &ScalarBinding, flat: &Flat) -> f64 {
    match binding {
        ScalarBinding::Argument(k) => flat.scalars.get(*k).copied().unwrap_or(f64::NAN),
        ScalarBinding::UpdateCount(optimizer) => optimizer.count.load(Ordering::Relaxed) as f64 + 1.0,
        ScalarBinding::Hyper(optimizer, k) => {
            let hyper = lock(&optimizer.hyper);
            hyper.get(*k).and_then(super::operator::number).map_or(f64::NAN, |(n, _)| n.as_f64())
        }
    }
}

/// A template with its outputs put in.
fn fill(template: &Value, outputs: &[Value]) -> Value {
    map_tensors(template, &mut |tensor| {
        outputs.get(tensor.value.0 as usize).cloned().unwrap_or(Value::Poison)
    })
}

/// Whether every size of an annotation can be worked out from what is in scope.
fn is_closed(cx: &super::value::Cx, ty: &TypeExpr) -> bool {
    ty.dims.iter().flatten().all(|dim| match dim {
        DimExpr::Rest(_) => false,
        DimExpr::Default { name, .. } => cx.scope.lookup(&name.name).is_some(),
        DimExpr::Expr(id) => {
            let mut todo = vec![*id];
            while let Some(id) = todo.pop() {
                match &cx.ast.expr(id).kind {
                    ExprKind::Name(name)
                        if name.starts_with(char::is_uppercase) && cx.scope.lookup(name).is_none() =>
                    {
                        return false;
                    }
                    ExprKind::Binary { left, right, .. } => todo.extend([*left, *right]),
                    ExprKind::Unary(_, operand) => todo.push(*operand),
                    _ => {}
                }
            }
            true
        }
    })
}

/// Where a body returns: its last `return`, or its last expression.
fn last_return(ast: &crate::syntax::ast::Ast, body: &crate::syntax::ast::Block) -> Option<Span> {
    let returned = body
        .stmts
        .iter()
        .rev()
        .map(|&s| ast.stmt(s))
        .find(|s| matches!(s.kind, crate::syntax::ast::StmtKind::Return(_)));
    returned.map(|s| s.span).or_else(|| body.tail.map(|t| ast.expr(t).span))
}

pub(super) fn mebibytes(bytes: u64) -> String {
    let size = bytes as f64 / (1u64 << 20) as f64;
    if size >= 0.05 { format!("{size:.1} MiB") } else { format!("{bytes} bytes") }
}
