//! Running graphs: tensor expressions of the script, and the first values of parameters.

use std::sync::Arc;

use super::{
    Evaluator, Mode,
    errors::{Eval, Halt, holds},
    frame::{Frame, FrameKind, InputSource, stable_hash},
    scope::ScopeKind,
    value::{Cell, Cx, Init, Record, Stored, Value, lock},
};
use crate::{
    codes,
    diagnostic::Diagnostic,
    exec::{
        Persistent, Tensor,
        comm::Link,
        cpu::{self, ScalarPage},
        on_host,
    },
    guard::OutOfMemory,
    ir::{Graph, Output, Type, ValueId},
    ops::{Cause, Op},
    report::Bytes,
    source::Span,
    syntax::ast::ExprId,
};

/// How many calls around a failed op a message shows.
const SHOWN_ORIGINS: usize = 3;

/// Where the first value of a parameter or state comes from.
enum Initial {
    Expr(Cx, ExprId),
    Value(Value),
}

/// Tensors that were taken out of their cells. They go back when this is dropped, also while a
/// panic of a kernel unwinds: an empty cell would be given its first value again.
pub(super) struct TakenSlots<'a> {
    cells: &'a [Arc<Cell>],
    pub slots: Vec<Persistent>,
}

impl Drop for TakenSlots<'_> {
    fn drop(&mut self) {
        for (cell, slot) in self.cells.iter().zip(std::mem::take(&mut self.slots)) {
            cell.put_data(slot);
        }
    }
}

impl Evaluator {
    /// Evaluates `body` in the graph that is open, or in one of its own that is run at once.
    pub(super) fn scripted(&mut self, span: Span, body: impl FnOnce(&mut Self) -> Eval) -> Eval {
        if self.in_graph() {
            return body(self);
        }
        let mut frame = Frame::new(FrameKind::Script);
        frame.path = (stable_hash("script"), 0);
        self.frames.push(frame);
        let result = body(self);
        self.frames.truncate(1);
        let frame = self.frames.pop();
        match (result, frame) {
            (Ok(value), Some(frame)) => self.finish(frame, value, span),
            (Ok(_), None) => Err(Halt::Reported),
            (Err(halt), _) => Err(halt),
        }
    }

    /// Runs a finished graph of the script; the tensors in `value` become tensors of the script.
    fn finish(&mut self, mut frame: Frame, value: Value, span: Span) -> Eval {
        frame.end_gather();
        let mut outputs: Vec<ValueId> = Vec::new();
        let id = frame.id;
        collect_tensors(&value, &mut |tensor| {
            if tensor.frame == id && !outputs.contains(&tensor.value) {
                outputs.push(tensor.value);
            }
        });
        let has_effects = frame.graph.nodes().any(|n| n.op().memory().effect);
        if outputs.is_empty() && !has_effects {
            return Ok(value);
        }
        let types: Vec<Type> = outputs.iter().map(|&v| frame.graph.ty(v).clone()).collect();
        let results: Vec<Option<Tensor>> = if self.mode == Mode::Check {
            types.iter().map(|_| None).collect()
        } else {
            self.check_host_bytes(&frame.graph, span)?;
            for ty in &types {
                self.checked_type(ty.dtype(), ty.shape(), span)?;
            }
            let origin = frame.graph.cursor.origin;
            frame.graph.outputs = outputs
                .iter()
                .enumerate()
                .map(|(k, &value)| Output { name: format!("result{k}").into(), value, origin })
                .collect();
            let inputs = self.input_tensors(&frame.inputs, &[], span)?;
            if frame.graph.nodes().any(|n| matches!(n.op(), Op::Random(_))) {
                self.random_calls += 1;
            }
            let values = self.script_scalars(&frame.scalars);
            let page = ScalarPage { values, seed: self.settings.seed, step: self.random_calls };
            let cells: Vec<Arc<Cell>> = frame.slots.iter().map(|s| Arc::clone(&s.cell)).collect();
            self.execute(&frame.graph, &cells, &inputs, &page, span)?.into_iter().map(Some).collect()
        };
        let stored: Vec<Arc<Stored>> =
            types.into_iter().zip(results).map(|(ty, data)| Stored::new(ty, data)).collect();
        Ok(map_tensors(&value, &mut |tensor| {
            let position = outputs.iter().position(|&v| v == tensor.value);
            match position.and_then(|p| stored.get(p)) {
                Some(stored) if tensor.frame == id => Value::Stored(Arc::clone(stored)),
                _ => Value::Poison,
            }
        }))
    }

    /// Charges the memory of a graph of the script before it is taken: the reference interpreter
    /// keeps every value until the end.
    fn check_host_bytes(&mut self, graph: &Graph, span: Span) -> Eval<()> {
        let slots: u64 = graph.slots.iter().map(|s| s.ty.bytes()).fold(0, u64::saturating_add);
        let values = graph
            .nodes()
            .flat_map(|n| n.results())
            .map(|v| graph.ty(v).bytes())
            .fold(slots, u64::saturating_add);
        let ledger = &self.guard.ledger;
        let (used, limit) = (ledger.used(), ledger.limit());
        if values <= limit.saturating_sub(used) {
            return Ok(());
        }
        let [values, used, limit] = [values, used, limit].map(Bytes);
        let message = format!(
            "this needs {values}, more than the {limit} of `max_host_bytes`, of which {used} are in use"
        );
        Err(self.report(
            Diagnostic::error(codes::LIMIT, span, message)
                .help("compute it in a `step`, whose memory is planned, or in parts"),
        ))
    }

    /// A parameter or state that there is no memory for.
    pub(super) fn out_of_memory(&mut self, cell: &Cell, error: OutOfMemory, span: Span) -> Halt {
        let message = format!("no memory for `{}`: {error}", cell.name());
        self.report(Diagnostic::error(codes::LIMIT, span, message).secondary(cell.span, "declared here"))
    }

    /// The tensors that a graph reads, in the order of its inputs.
    pub(super) fn input_tensors(
        &mut self,
        sources: &[InputSource],
        arguments: &[Tensor],
        span: Span,
    ) -> Eval<Vec<Tensor>> {
        let mut tensors = Vec::with_capacity(sources.len());
        for source in sources {
            let tensor = match source {
                InputSource::Argument(k) => arguments.get(*k).cloned(),
                InputSource::Stored(stored) => self.tensor_of(stored, span)?,
                InputSource::Captured { scope, name } => match scope.get(name).map(|b| b.value) {
                    Some(Value::Stored(stored)) => self.tensor_of(&stored, span)?,
                    _ => None,
                },
            };
            match tensor {
                Some(tensor) => tensors.push(tensor),
                None => {
                    return Err(self.error(
                        codes::INTERNAL,
                        span,
                        "a tensor has no data while the script runs",
                    ));
                }
            }
        }
        Ok(tensors)
    }

    /// Runs a graph in source order and puts the new values of its slots back.
    pub(super) fn execute(
        &mut self,
        graph: &Graph,
        cells: &[Arc<Cell>],
        inputs: &[Tensor],
        page: &ScalarPage,
        span: Span,
    ) -> Eval<Vec<Tensor>> {
        // What the script computes with is to be right.
        self.land()?;
        let mut slots = self.take_slots(cells, span)?;
        let output = Arc::clone(&self.output);
        let sources = &self.sources;
        let place = |graph: &Graph, node| super::rank::place_of(sources, graph, node);
        let mut link = Link { comm: &mut *self.comm, place: &place };
        let mut show = |label: &str, tensor: &Tensor| {
            (lock(&output))(&format!("{label}: {}", crate::script::print::tensor(tensor)));
        };
        // What is only read may stay on a device.
        let mut written = vec![false; cells.len()];
        for node in graph.nodes() {
            if let Op::Write(write) = node.op()
                && let Some(written) = written.get_mut(write.slot.0 as usize)
            {
                *written = true;
            }
        }
        let is_written = |slot: usize| written.get(slot).copied().unwrap_or(true);
        let result = on_host(&mut slots.slots, &is_written, |tensors| {
            cpu::eval_among(graph, tensors, inputs, page, &mut show, &mut link)
        });
        drop(slots);
        let result = result.unwrap_or_else(|error| Err(cpu::RunError::of_no_op(error)));
        result.map_err(|error| self.run_error(error, graph, span, None))
    }

    /// The value of a parameter or state, if it has one: from a device where that has it.
    pub(super) fn cell_data(&mut self, cell: &Cell, span: Span) -> Eval<Option<Tensor>> {
        self.land()?;
        cell.data().map_err(|error| {
            let mut diagnostic = Diagnostic::error(codes::RUN_FAILED, span, error.message);
            diagnostic.help.extend(error.help);
            self.report(diagnostic.secondary(cell.span, format!("`{}` is declared here", cell.name())))
        })
    }

    /// The tensors of cells, taken out so that they can be changed in place.
    pub(super) fn take_slots<'a>(&mut self, cells: &'a [Arc<Cell>], span: Span) -> Eval<TakenSlots<'a>> {
        for cell in cells {
            self.prepare_cell(cell, span)?;
        }
        let mut slots = TakenSlots { cells, slots: Vec::with_capacity(cells.len()) };
        for cell in cells {
            match cell.take_data() {
                Some(slot) => slots.slots.push(slot),
                None => {
                    let name = cell.name();
                    return Err(self.error(codes::INTERNAL, span, format!("`{name}` has no value")));
                }
            }
        }
        Ok(slots)
    }

    /// An op that failed while a graph ran, at the call and in the line that it comes from.
    pub(super) fn run_error(
        &mut self,
        error: cpu::RunError,
        graph: &Graph,
        span: Span,
        step: Option<Span>,
    ) -> Halt {
        self.run_error_with(error, graph, span, step, Vec::new())
    }

    /// The same, with what is to be told beside.
    pub(super) fn run_error_with(
        &mut self,
        error: cpu::RunError,
        graph: &Graph,
        span: Span,
        step: Option<Span>,
        notes: Vec<String>,
    ) -> Halt {
        if error.is_cancelled() || self.cancelled() {
            return Halt::Cancelled;
        }
        let internal = error.error.message.strip_prefix("internal: ").map(String::from);
        let code = match error.error.cause {
            _ if internal.is_some() => codes::INTERNAL,
            Cause::Limit => codes::LIMIT,
            Cause::OtherRank => codes::OTHER_RANK,
            Cause::RanksDisagree => codes::RANKS_DISAGREE,
            _ => codes::RUN_FAILED,
        };
        let mut diagnostic = Diagnostic::error(code, span, internal.unwrap_or(error.error.message));
        if (error.node.0 as usize) < graph.len() {
            let mut shown = span;
            // From the op outwards, through the calls that led to it.
            for origin in graph.origins.chain(graph.node(error.node).origin()).take(SHOWN_ORIGINS) {
                // A step has the graph of the call that it was compiled for: `span` is the one that runs.
                let is_call = origin.parent.is_none() && step.is_some_and(|s| !holds(s, origin.span));
                if !is_call && ![shown, span, Span::default()].contains(&origin.span) {
                    let text = match &origin.iteration {
                        Some(iteration) => format!("in this operation ({iteration})"),
                        None => "in this operation".to_string(),
                    };
                    let text = if diagnostic.secondary.is_empty() { text } else { "called here".into() };
                    diagnostic = diagnostic.secondary(origin.span, text);
                    shown = origin.span;
                }
            }
        }
        diagnostic.notes.extend(notes);
        diagnostic.help.extend(error.error.help);
        self.report(diagnostic)
    }

    /// Gives a parameter or state its first value (in mode Check, checks the expression for it).
    pub(super) fn prepare_cell(&mut self, cell: &Arc<Cell>, span: Span) -> Eval<()> {
        if cell.has_data() {
            return Ok(());
        }
        if self.mode == Mode::Check {
            let key = (cell.span, cell.ty.clone());
            if matches!(cell.init, Init::Zeros | Init::Shard(_)) || !self.checked_inits.insert(key) {
                return Ok(());
            }
        }
        let name = cell.name();
        if let Some(tensor) = self.pending.remove(&*name)
            && *tensor.ty() == cell.ty
        {
            cell.set_data(tensor);
            return Ok(());
        }
        if let Some(group) = cell.group()
            && self.pending_part(cell, &group, span)?
        {
            return Ok(());
        }
        let initial = match &cell.init {
            Init::Shard(group) => {
                let group = Arc::clone(group);
                return self.prepare_part(cell, &group, span);
            }
            Init::Zeros => {
                let zeros = Tensor::try_zeros(cell.ty.clone());
                cell.set_data(zeros.map_err(|error| self.out_of_memory(cell, error, span))?);
                return Ok(());
            }
            Init::Expr { cx, expr } => Initial::Expr(cx.clone(), *expr),
            Init::Master { param } => {
                self.prepare_cell(param, span)?;
                Initial::Value(Value::Param(Arc::clone(param)))
            }
            Init::HookState { cx, expr, bucket, ty } => {
                let scope = cx.scope.child(ScopeKind::Body);
                scope.declare(bucket, Value::Param(super::hook::zeros(bucket, ty, cell.span)), cell.span);
                Initial::Expr(cx.in_scope(scope), *expr)
            }
            Init::OptimizerState { cx, expr, param } => {
                if self.mode == Mode::Run {
                    self.prepare_cell(param, span)?;
                }
                let scope = cx.scope.child(ScopeKind::Body);
                scope.declare(&"p".into(), Value::Param(Arc::clone(param)), cell.span);
                Initial::Expr(cx.in_scope(scope), *expr)
            }
        };
        let mut frame = Frame::new(FrameKind::Init);
        frame.path = (stable_hash(&name), 0);
        let depth = self.frames.len();
        self.frames.push(frame);
        let declared = self.declared.replace(cell.ty.clone());
        let (value, expr_span) = match initial {
            Initial::Expr(cx, expr) => (self.expr(&cx, expr), cx.ast.expr(expr).span),
            Initial::Value(value) => (Ok(value), cell.span),
        };
        self.declared = None;
        let result = value.and_then(|value| self.initial_value(cell, value, expr_span));
        self.declared = declared;
        self.frames.truncate(depth + 1);
        let frame = self.frames.pop();
        let (value, Some(mut frame)) = (result?, frame) else { return Err(Halt::Reported) };
        if self.mode == Mode::Check {
            return Ok(());
        }
        self.check_host_bytes(&frame.graph, span)?;
        let origin = frame.graph.cursor.origin;
        frame.graph.outputs = vec![Output { name, value, origin }];
        let inputs = self.input_tensors(&frame.inputs, &[], span)?;
        let page = ScalarPage { values: Vec::new(), seed: self.settings.seed, step: 0 };
        let cells: Vec<Arc<Cell>> = frame.slots.iter().map(|s| Arc::clone(&s.cell)).collect();
        let tensors = self.execute(&frame.graph, &cells, &inputs, &page, span)?;
        if let Some(tensor) = tensors.into_iter().next() {
            cell.set_data(tensor);
        }
        Ok(())
    }

    /// The value of an initialiser: a function of the shape, a tensor or a number.
    fn initial_value(&mut self, cell: &Arc<Cell>, value: Value, span: Span) -> Eval<ValueId> {
        let value = match &value {
            Value::Function(_) | Value::TensorFunction(_) | Value::Builtin(_) => {
                let shape = super::call::shape_value(cell.ty.shape());
                self.call_value(&value, super::args::Args::one(shape, span), span)?
            }
            _ => value,
        };
        let Some(mut operand) = self.operand(&value, span)? else {
            let kind = value.kind();
            return Err(self.report(
                Diagnostic::error(
                    codes::TYPE_MISMATCH,
                    span,
                    format!(
                        "`{}` starts as a tensor, a number or a function of the shape, got {kind}",
                        cell.short_name
                    ),
                )
                .secondary(cell.span, format!("declared {} here", cell.ty)),
            ));
        };
        // Initialisers compute in f32; the parameter may be stored in another float type.
        if let super::tensor::Operand::Tensor { value, weak: false } = operand {
            let dtype = cell.ty.dtype();
            let actual = self.frame(span)?.graph.ty(value).dtype();
            if dtype.is_float() && actual.is_float() && dtype != actual {
                operand = super::tensor::Operand::tensor(self.build(span, |f| f.graph.cast(value, dtype))?);
            }
        }
        let what = format!("the first value of `{}`", cell.short_name);
        self.fit(operand, &cell.ty.clone(), &what, span, cell.span)
    }
}

/// Calls `visit` for every graph tensor in a value.
pub(super) fn collect_tensors(value: &Value, visit: &mut dyn FnMut(super::value::GraphTensor)) {
    match value {
        Value::Tensor(tensor) => visit(*tensor),
        Value::List(items) | Value::Tuple(items) => items.iter().for_each(|v| collect_tensors(v, visit)),
        Value::Record(record) => record.fields.iter().for_each(|(_, v)| collect_tensors(v, visit)),
        Value::Tree(tree) => {
            tree.entries.iter().filter_map(|(_, v)| v.as_ref()).for_each(|v| collect_tensors(v, visit));
        }
        _ => {}
    }
}

/// The value with every graph tensor in it replaced.
pub(super) fn map_tensors(value: &Value, map: &mut dyn FnMut(super::value::GraphTensor) -> Value) -> Value {
    match value {
        Value::Tensor(tensor) => map(*tensor),
        Value::List(items) if has_tensor(items) => {
            Value::list(items.iter().map(|v| map_tensors(v, map)).collect())
        }
        Value::Tuple(items) if has_tensor(items) => {
            Value::tuple(items.iter().map(|v| map_tensors(v, map)).collect())
        }
        Value::Record(record) => {
            let fields = record.fields.iter().map(|(n, v)| (Arc::clone(n), map_tensors(v, map))).collect();
            Value::Record(Arc::new(Record { what: record.what, fields }))
        }
        Value::Tree(tree) => {
            let entries = tree
                .entries
                .iter()
                .map(|(c, v)| (Arc::clone(c), v.as_ref().map(|v| map_tensors(v, map))))
                .collect();
            tree.with(entries)
        }
        other => other.clone(),
    }
}

fn has_tensor(items: &[Value]) -> bool {
    let mut found = false;
    for item in items {
        collect_tensors(item, &mut |_| found = true);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::{DType, SlotKind};

    #[test]
    fn tensors_go_back_when_a_kernel_panics() {
        let (ty, kind) = (Type::scalar(DType::F32), SlotKind::Param { trainable: true });
        let cells = [Cell::new("w".into(), ty.clone(), kind, Span::default(), Init::Zeros)];
        cells[0].set_data(Tensor::zeros(ty));
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let taken = cells.iter().filter_map(|c| c.take_data()).collect();
            let slots = TakenSlots { cells: &cells, slots: taken };
            assert!(!cells[0].has_data() && slots.slots.is_empty(), "a kernel fails");
        }));
        assert!(result.is_err() && cells[0].has_data());
    }
}
