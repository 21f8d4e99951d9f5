//! Steps: compiled once per set of argument shapes, then run.

use std::sync::{Arc, Mutex, atomic::Ordering};

use super::{
    Evaluator, Mode,
    args::Args,
    device::Flight,
    errors::{Eval, Halt},
    frame::{Budget, Capture, Ensure, Frame, FrameKind, InputSource, ScalarBinding},
    operator::equal,
    rank::place_of,
    run::{collect_tensors, map_tensors},
    scope::ScopeKind,
    step_args::{Flat, KeyPart},
    value::{Cell, GraphTensor, Optimizer, Step, Stored, Value, lock},
    walk,
};
use crate::{
    codes,
    diagnostic::Diagnostic,
    exec::{
        Call, Device, Prepared, Tensor,
        comm::Link,
        cpu::{RunError, ScalarPage},
    },
    ir::{Graph, Origin, Output, Type, ValueId},
    ops::Cause,
    plan::Plan,
    report::Bytes,
    source::Span,
};

/// A step, compiled for one set of arguments.
pub struct Compiled {
    pub(super) key: Vec<KeyPart>,
    captures: Vec<Capture>,
    /// As elaborated.
    pub graph: Arc<Graph>,
    pub plan: Mutex<Option<Arc<Plan>>>,
    pub(super) executable: Mutex<Option<Prepared>>,
    cells: Vec<Arc<Cell>>,
    inputs: Vec<InputSource>,
    scalars: Vec<ScalarBinding>,
    /// The result; a graph tensor in it holds the number of an output.
    template: Value,
    output_types: Vec<Type>,
    pub(super) ensures: Vec<Ensure>,
    pub(super) budget: Option<Budget>,
    /// With the regions that the budget adds, once they are chosen.
    pub(super) fitted: Mutex<Option<Arc<Graph>>>,
    updates: Vec<Arc<Optimizer>>,
    /// The name of the step to the end of its body.
    pub(super) declared: Span,
}

impl Compiled {
    /// Whether the step reads or writes a persistent tensor.
    pub(super) fn uses(&self, cell: &Cell) -> bool {
        self.cells.iter().any(|c| c.id == cell.id)
    }

    /// Whether the step makes an update with an optimizer.
    pub(super) fn updates_with(&self, optimizer: &Optimizer) -> bool {
        self.updates.iter().any(|o| o.id == optimizer.id)
    }
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
        let scope = Arc::clone(&self.script);
        self.resume(&scope, span)?;
        let values = self.step_args(step, args, span)?;
        let flat = self.flatten(step, &values, span)?;
        let compiled = self.compiled(step, &values, &flat, span)?;
        if self.mode == Mode::Check {
            let outputs: Vec<Value> =
                compiled.output_types.iter().map(|ty| Value::Stored(Stored::new(ty.clone(), None))).collect();
            return Ok(fill(&compiled.template, &outputs));
        }
        let results = self.run_step(step, &compiled, &flat, span)?;
        let outputs: Vec<Value> = results.into_iter().map(Value::Stored).collect();
        Ok(fill(&compiled.template, &outputs))
    }

    /// The step compiled for these arguments, from the cache where it is there.
    pub(super) fn compiled(
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

    /// Whether a call of a step needs no compilation: everything that it takes is there.
    pub(super) fn is_prepared(&self, step: &Step, values: &[Value]) -> bool {
        let known = lock(&step.compiled).clone();
        let mut flat = Flat::default();
        let is_flat = step.decl.params.len() == values.len()
            && step.decl.params.iter().zip(values).all(|(param, value)| {
                let scalar = Self::scalar_dtype(param.ty.as_ref());
                flat.push_simple(scalar, value)
            });
        is_flat
            && !self.settings.resume
            && known.iter().any(|compiled| {
                compiled.key == flat.key
                    && lock(&compiled.plan).is_some()
                    && lock(&compiled.executable).is_some()
                    && compiled.cells.iter().all(|cell| cell.has_data())
                    && is_current(compiled)
            })
    }

    /// Elaborates the body of a step.
    fn compile(
        &mut self,
        step: &Arc<Step>,
        values: &[(Value, Span)],
        flat: &Flat,
        span: Span,
    ) -> Eval<Compiled> {
        let errors = (self.error_count(), self.failures);
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
        frame.end_gather();
        let result = result?;
        let (template, output_types) = self.outputs(&mut frame, step, &result);
        self.verify_releases(&frame);
        // A statement that failed is reported, perhaps before: what is left is not the step.
        if (self.error_count(), self.failures) != errors {
            return Err(Halt::Reported);
        }
        let compiled = Compiled {
            declared: step.decl.name.span.to(step.decl.body.span),
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
            budget: frame.budget,
            fitted: Mutex::new(None),
            updates: frame.updates,
        };
        Ok(compiled)
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
        compiled: &Arc<Compiled>,
        flat: &Flat,
        span: Span,
    ) -> Eval<Vec<Arc<Stored>>> {
        let mut arguments: Vec<Tensor> = Vec::with_capacity(flat.tensors.len());
        for stored in &flat.tensors {
            arguments.extend(self.tensor_of(stored, span)?);
        }
        let inputs = self.input_tensors(&compiled.inputs, &arguments, span)?;
        let rank = self.comm.rank();
        let values = compiled.scalars.iter().map(|s| scalar_value(s, flat, rank)).collect();
        let page = ScalarPage { values, seed: self.step_seed(), step: step.runs.load(Ordering::Relaxed) };
        let plan = self.plan_of(step, compiled, span)?;
        let planned_step = Arc::clone(&plan);
        let graph = Arc::clone(&plan.graph);
        let planned = plan.schedule.arena_bytes;
        let (peak, limit) = (plan.peak_bytes(), self.settings.limits.max_host_bytes);
        if peak > limit && self.settings.device == Device::Cpu {
            return Err(self.report(
                Diagnostic::error(
                    codes::LIMIT,
                    span,
                    format!("`{}` needs {} to run, more than the {} of `max_host_bytes`", step.name(), Bytes(peak), Bytes(limit)),
                )
                .help("`tg plan` shows what takes them; make it smaller with `--set`, or recompute with `checkpoint < … >`"),
            ));
        }
        self.upload_ahead(compiled, &inputs, &page, &graph, span)?;
        self.land()?;
        let mut slots = self.take_slots(&compiled.cells, span)?;
        let mut runner = self.take_runner(span)?;
        let taken = lock(&compiled.executable).take();
        let prepared = match taken {
            Some(prepared) => Ok(prepared),
            None => runner.prepare(plan),
        };
        let result = match prepared {
            Ok(mut prepared) => {
                let output = Arc::clone(&self.output);
                let printer = Box::new(move |label: &str, tensor: &Tensor| {
                    (lock(&output))(&format!("{label}: {}", crate::script::print::tensor(tensor)));
                });
                let cancel = self.guard.cancel.clone();
                let sources = &self.sources;
                let place = |graph: &Graph, node| place_of(sources, graph, node);
                let mut link = Link { comm: &mut *self.comm, place: &place };
                let (inputs, page, cancel) = (&*inputs, &page, cancel.flag());
                let call = Call { inputs, page, cancel, link: &mut link, printer };
                let result = runner.start(&mut prepared, &mut slots.slots, call);
                *lock(&compiled.executable) = Some(prepared);
                result
            }
            Err(error) => Err(RunError::of_no_op(error)),
        };
        drop(slots);
        self.runner = Some(runner);
        let run = result.map_err(|error| {
            let is_short = error.error.cause == Cause::Limit && self.settings.device != Device::Cpu;
            let notes = if is_short { self.peak_notes(&planned_step) } else { Vec::new() };
            self.run_error_with(error, &graph, span, Some(compiled.declared), notes)
        })?;
        let results = match run {
            Some(run) => {
                debug_assert_eq!(
                    run.high_water_bytes,
                    planned,
                    "the plan states what `{}` uses",
                    step.name()
                );
                let stored = |tensor: Tensor| Stored::new(tensor.ty().clone(), Some(tensor));
                run.outputs.into_iter().map(stored).collect()
            }
            None => {
                let outputs: Vec<Arc<Stored>> =
                    compiled.output_types.iter().map(|ty| Stored::promised(ty.clone())).collect();
                let (compiled, promised) = (Arc::clone(compiled), outputs.clone());
                self.flight = Some(Flight { compiled, graph, planned, page, span, promised });
                outputs
            }
        };
        step.runs.fetch_add(1, Ordering::Relaxed);
        for optimizer in &compiled.updates {
            optimizer.count.fetch_add(1, Ordering::Relaxed);
        }
        Ok(results)
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

fn scalar_value(binding: &ScalarBinding, flat: &Flat, rank: u32) -> f64 {
    match binding {
        ScalarBinding::Rank => f64::from(rank),
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
