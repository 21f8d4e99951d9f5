//! What a host asks of the evaluator: calls by name, values as text, what is alive.

use std::sync::Arc;

use super::{
    Evaluator, Written,
    args::Args,
    errors::Eval,
    modules::ModuleState,
    value::{Stored, Value, cells_of, lock},
};
use crate::{codes, diagnostic::Diagnostic, engine::Variable, exec::Tensor, ir::Graph, source::Span};

impl Evaluator {
    /// Calls a step, function or model of the script with tensors.
    pub fn call_by_name(&mut self, name: &str, arguments: &[Tensor]) -> Eval<Vec<Tensor>> {
        let found = self.script.get(name);
        let span = found.as_ref().map_or(Span::default(), |b| b.span);
        let Some(binding) = found else {
            let known: Vec<String> = self.script.bindings().into_iter().map(|(n, _)| n.to_string()).collect();
            return Err(self.unknown_name(name, span, &known));
        };
        let positional = arguments
            .iter()
            .map(|t| (Value::Stored(Stored::new(t.ty().clone(), Some(t.clone()))), span))
            .collect();
        let result = self.call_value(&binding.value, Args { positional, named: Vec::new() }, span)?;
        let mut tensors = Vec::new();
        self.result_tensors(&result, &mut tensors, span)?;
        Ok(tensors)
    }

    fn result_tensors(&mut self, value: &Value, into: &mut Vec<Tensor>, span: Span) -> Eval<()> {
        match value {
            Value::Unit => {}
            Value::List(items) | Value::Tuple(items) => {
                for item in items.iter() {
                    self.result_tensors(item, into, span)?;
                }
            }
            Value::Record(record) => {
                for (_, item) in &record.fields {
                    self.result_tensors(item, into, span)?;
                }
            }
            Value::Tree(tree) => {
                for (_, item) in &tree.entries {
                    if let Some(item) = item {
                        self.result_tensors(item, into, span)?;
                    }
                }
            }
            Value::Int(number) => into.extend(Tensor::from_slice(&[], &[*number])),
            Value::Float(number) => into.extend(Tensor::from_slice(&[], &[*number])),
            Value::Bool(flag) => into.extend(Tensor::from_slice(&[], &[*flag])),
            v if v.is_tensor() => into.extend(self.host_tensor(v, span)?),
            other => {
                let kind = other.kind();
                return Err(self.report(
                    Diagnostic::error(
                        codes::TYPE_MISMATCH,
                        span,
                        format!("the result is {kind}, not tensors"),
                    )
                    .help("return tensors and numbers from what a host calls"),
                ));
            }
        }
        Ok(())
    }

    /// A value as the REPL shows it.
    pub fn show(&mut self, value: &Value) -> Eval<String> {
        if let Value::Str(text) = value {
            return Ok(format!("{text:?}"));
        }
        Ok(self.text(value, Span::default())?.unwrap_or_else(|| "…".into()))
    }

    /// The type of a value, in words.
    pub fn describe(&self, value: &Value) -> String {
        match self.tensor_type(value) {
            Some(ty) => ty.to_string(),
            None => value.kind(),
        }
    }

    /// The variables of the script.
    pub fn variables(&self) -> Vec<Variable> {
        self.script
            .bindings()
            .into_iter()
            .map(|(name, binding)| Variable {
                name,
                kind: self.describe(&binding.value),
                bytes: bytes_of(&binding.value),
                span: binding.span,
            })
            .collect()
    }

    pub fn arena_bytes(&self) -> u64 {
        self.arena.bytes()
    }

    /// Forgets what was going on when an evaluation ended early; variables stay.
    pub fn reset(&mut self) {
        self.frames.clear();
        self.calls.clear();
        self.building.clear();
        self.loops.clear();
        self.runs_program = false;
        self.doubtful = 0;
        self.depth = 0;
        self.declared = None;
        self.param_dtype = None;
    }

    /// Forgets what definitions left that failed: poisoned names would hide the cause when they are
    /// evaluated again.
    pub fn forget_definitions(&mut self) {
        self.script.clear();
        self.steps.clear();
        self.modules.retain(|_, state| !matches!(state, ModuleState::Failed | ModuleState::Loading));
    }

    /// The elaborated graph of every compiled step as it is written, and its budget in bytes.
    pub fn written_graphs(&self) -> Vec<Written> {
        let all = self.steps.iter().flat_map(|step| {
            let compiled = lock(&step.compiled).clone();
            compiled.into_iter().map(|c| Written {
                name: Arc::clone(step.name()),
                graph: Arc::clone(&c.graph),
                budget: c.budget.map(|b| b.bytes),
            })
        });
        all.collect()
    }

    /// The elaborated graph of every compiled step, with the regions that its budget added.
    pub fn graphs(&self) -> Vec<(Arc<str>, Arc<Graph>)> {
        self.steps
            .iter()
            .flat_map(|step| {
                let compiled = lock(&step.compiled).clone();
                compiled.into_iter().map(|c| {
                    let fitted = lock(&c.fitted).clone();
                    (Arc::clone(step.name()), fitted.unwrap_or_else(|| Arc::clone(&c.graph)))
                })
            })
            .collect()
    }
}

/// Bytes of the tensors that a value holds.
fn bytes_of(value: &Value) -> u64 {
    match value {
        Value::Stored(stored) => stored.ty.bytes(),
        Value::Model(_) | Value::Param(_) => cells_of(value).iter().map(|c| c.ty.bytes()).sum(),
        Value::List(items) | Value::Tuple(items) => items.iter().map(bytes_of).sum(),
        Value::Record(record) => record.fields.iter().map(|(_, v)| bytes_of(v)).sum(),
        Value::Optimizer(optimizer) => lock(&optimizer.state_order).iter().map(|c| c.ty.bytes()).sum(),
        Value::Tree(tree) => tree.entries.iter().filter_map(|(_, v)| v.as_ref()).map(bytes_of).sum(),
        _ => 0,
    }
}
