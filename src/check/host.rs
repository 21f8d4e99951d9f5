//! What a host asks of the evaluator: calls by name, values as text, what is alive.

use std::{path::Path, sync::Arc};

use super::{
    Evaluator, Written,
    args::Args,
    errors::Eval,
    modules::ModuleState,
    value::{Cell, Stored, Value, cells_of, lock},
};
use crate::{
    codes,
    diagnostic::Diagnostic,
    engine::{self, Parameter, Variable},
    ir::Graph,
    source::Span,
};

impl Evaluator {
    /// Calls a step, function or model of the script.
    pub fn call_by_name(&mut self, name: &str, arguments: &[engine::Value]) -> Eval<engine::Value> {
        let (callee, span) = self.named_value(name)?;
        let before = self.diagnostics.len();
        let result = self.call_from_host(&callee, arguments, span);
        if result.is_err() {
            self.add_signature(&callee, span, before);
        }
        result
    }

    /// Whether [`Evaluator::call_by_name`] only has to run what is compiled.
    pub fn is_ready(&self, name: &str, arguments: &[engine::Value]) -> bool {
        let Some(Value::Step(step)) = self.script.get(name).map(|b| b.value) else { return false };
        let simple = arguments.iter().map(|argument| {
            Some(match argument {
                engine::Value::Tensor(tensor) => Value::Stored(Stored::new(tensor.ty().clone(), None)),
                engine::Value::Int(number) => Value::Int(*number),
                engine::Value::Float(number) => Value::Float(*number),
                engine::Value::Bool(flag) => Value::Bool(*flag),
                engine::Value::Str(text) => Value::Str(Arc::clone(text)),
                engine::Value::DType(dtype) => Value::DType(*dtype),
                _ => return None,
            })
        });
        simple.collect::<Option<Vec<Value>>>().is_some_and(|values| self.is_prepared(&step, &values))
    }

    fn call_from_host(
        &mut self,
        callee: &Value,
        arguments: &[engine::Value],
        span: Span,
    ) -> Eval<engine::Value> {
        let mut positional = Vec::with_capacity(arguments.len());
        for argument in arguments {
            positional.push((self.host_value(argument, span)?, span));
        }
        let result = self.call_value(callee, Args { positional, named: Vec::new() }, span)?;
        self.value_for_host(&result, span)
    }

    /// Messages about a host's call point at the declaration, and say how it is called.
    fn add_signature(&mut self, callee: &Value, span: Span, before: usize) {
        let decl = match callee {
            Value::Step(step) => &step.decl,
            Value::Function(function) => &function.decl,
            _ => return,
        };
        let signature = engine::head(&self.sources, decl.span, decl.body.span);
        for diagnostic in self.diagnostics.iter_mut().skip(before) {
            if diagnostic.primary.span == span {
                if diagnostic.primary.text.is_empty() {
                    diagnostic.primary.text = "called by the host".into();
                }
                // The list of names that `bind_args` gives says less.
                diagnostic.notes.retain(|note| !note.starts_with("it is called as"));
                diagnostic.notes.push(format!("it is declared as `{signature}`"));
            }
        }
    }

    /// What a dotted name stands for: a variable, a field of a model, an item of a list, the state of
    /// an optimizer.
    fn named_value(&mut self, path: &str) -> Eval<(Value, Span)> {
        let mut parts = path.split('.');
        let head = parts.next().unwrap_or_default();
        let Some(binding) = self.script.get(head) else {
            if let Some(cell) = self.cell_named(path) {
                return Ok((Value::Param(Arc::clone(&cell)), cell.span));
            }
            let known: Vec<String> = self.script.bindings().into_iter().map(|(n, _)| n.to_string()).collect();
            return Err(self.unknown_name(None, head, Span::default(), &known));
        };
        if matches!(binding.value, Value::Poison) {
            return Err(super::Halt::Reported);
        }
        let mut span = match &binding.value {
            Value::Step(step) => step.decl.name.span,
            Value::Function(function) => function.decl.name.span,
            _ => binding.span,
        };
        let mut value = binding.value;
        for part in parts {
            let next = match &value {
                Value::Model(model) => model.scope.get(part).map(|b| b.value),
                Value::Record(record) => record.get(part).cloned(),
                Value::Module(module) => module.scope.get(part).map(|b| b.value),
                Value::List(items) | Value::Tuple(items) => {
                    part.parse::<usize>().ok().and_then(|k| items.get(k).cloned())
                }
                _ => None,
            };
            value = match next {
                Some(next) => next,
                None => match self.cell_named(path) {
                    Some(cell) => return Ok((Value::Param(Arc::clone(&cell)), cell.span)),
                    None => return Err(self.unknown_part(path, part, &value, span)),
                },
            };
            if let Value::Param(cell) = &value {
                span = cell.span;
            }
        }
        Ok((value, span))
    }

    fn unknown_part(&mut self, path: &str, part: &str, of: &Value, span: Span) -> super::Halt {
        let kind = of.kind();
        let message = format!("`{path}`: {kind} has no `{part}`");
        let mut diagnostic = Diagnostic::error(codes::UNKNOWN_FIELD, span, message);
        let known: Vec<String> = match of {
            Value::Model(model) => model.fields().into_iter().map(|(name, _)| name.to_string()).collect(),
            Value::Record(record) => record.fields.iter().map(|(name, _)| name.to_string()).collect(),
            _ => Vec::new(),
        };
        match super::closest(part, known.iter().map(String::as_str)) {
            Some(close) => diagnostic.help.push(format!("did you mean `{close}`?")),
            None if !known.is_empty() => diagnostic.notes.push(format!("it has {}", known.join(", "))),
            None => {}
        }
        self.report(diagnostic)
    }

    /// All persistent tensors that the script's variables and steps hold, each once.
    fn all_cells(&self) -> Vec<Arc<Cell>> {
        let mut cells: Vec<Arc<Cell>> = Vec::new();
        let mut seen = rustc_hash::FxHashSet::default();
        let mut add = |cell: &Arc<Cell>| {
            if seen.insert(cell.id) {
                cells.push(Arc::clone(cell));
            }
        };
        for (_, binding) in self.script.bindings() {
            cells_of(&binding.value).iter().for_each(&mut add);
            if let Value::Optimizer(optimizer) = &binding.value {
                lock(&optimizer.state_order).iter().for_each(&mut add);
            }
        }
        for step in &self.steps {
            for optimizer in lock(&step.optimizers).values() {
                lock(&optimizer.state_order).iter().for_each(&mut add);
            }
        }
        cells
    }

    fn cell_named(&self, name: &str) -> Option<Arc<Cell>> {
        self.all_cells().into_iter().find(|cell| *cell.name() == *name)
    }

    /// The parameters and states in a variable (of all variables and steps where it is empty).
    pub fn parameters(&mut self, name: &str) -> Eval<Vec<Parameter>> {
        let cells = if name.is_empty() {
            self.all_cells()
        } else {
            let (value, span) = self.named_value(name)?;
            match &value {
                Value::Optimizer(optimizer) => lock(&optimizer.state_order).to_vec(),
                Value::Model(_) | Value::Param(_) | Value::List(_) | Value::Tuple(_) => cells_of(&value),
                other => {
                    let message = format!("`{name}` is {}, which has no parameters", other.kind());
                    return Err(self.error(codes::TYPE_MISMATCH, span, message));
                }
            }
        };
        Ok(cells
            .iter()
            .map(|cell| Parameter {
                name: cell.name(),
                ty: cell.ty.clone(),
                kind: cell.kind,
                span: cell.span,
            })
            .collect())
    }

    /// The value of a variable, parameter or state.
    pub fn get_named(&mut self, path: &str) -> Eval<engine::Value> {
        let (value, span) = self.named_value(path)?;
        self.value_for_host(&value, span)
    }

    /// Changes a parameter, a state or a variable that there is.
    pub fn set_named(&mut self, path: &str, new: &engine::Value) -> Eval<()> {
        let (old, span) = self.named_value(path)?;
        if let Value::Param(cell) = &old {
            let Some(tensor) = new.as_tensor().filter(|t| *t.ty() == cell.ty) else {
                let kind = new.kind();
                return Err(self.report(
                    Diagnostic::error(
                        codes::SHAPE_MISMATCH,
                        cell.span,
                        format!("`{path}` is {}, got {kind}", cell.ty),
                    )
                    .label("declared here"),
                ));
            };
            let (cell, tensor) = (Arc::clone(cell), tensor.clone());
            return self.set_whole(&cell, tensor, span);
        }
        let is_definition = matches!(
            old,
            Value::Step(_)
                | Value::Function(_)
                | Value::ModelDef(_)
                | Value::OptimizerDef(_)
                | Value::Hook(_)
                | Value::Module(_)
        );
        if path.contains('.') || is_definition {
            let message = format!("`{path}` is {}, which a host cannot set", old.kind());
            return Err(self.report(
                Diagnostic::error(codes::TYPE_MISMATCH, span, message)
                    .help("variables of the script, parameters and states can be set"),
            ));
        }
        let value = self.host_value(new, span)?;
        self.script.declare(&path.into(), value, span);
        Ok(())
    }

    /// `save` and `load` for a host: everything that the script holds, or what is named.
    pub fn save_or_load(&mut self, is_save: bool, path: &Path, names: &[&str]) -> Eval<()> {
        let span = Span::default();
        let mut values = Vec::new();
        if names.is_empty() {
            for (_, binding) in self.script.bindings() {
                let holds = match &binding.value {
                    Value::Optimizer(_) | Value::Step(_) => true,
                    value => !cells_of(value).is_empty(),
                };
                if holds {
                    values.push((binding.value, binding.span));
                }
            }
        }
        for name in names {
            values.push(self.named_value(name)?);
        }
        let Some(text) = path.to_str() else {
            let message = format!("the name of the file is not Unicode: {}", path.display());
            return Err(self.error(codes::FILE, span, message));
        };
        // Paths of a host start from the folder of the process, not from that of the script.
        let directory = std::mem::replace(&mut self.settings.directory, ".".into());
        let mut positional = vec![(Value::str(text), span)];
        positional.extend(values);
        let args = Args { positional, named: Vec::new() };
        let result = if is_save { self.save(args, span) } else { self.load(args, span) };
        self.settings.directory = directory;
        result.map(|_| ())
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
        self.runner.as_ref().map_or(0, crate::exec::Runner::arena_bytes)
    }

    /// Forgets what was going on when an evaluation ended early; variables stay.
    pub fn reset(&mut self) {
        self.abandon();
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
