//! `save` and `load`: parameters, state and optimizers by name; and `--resume`.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, atomic::Ordering},
};

use serde_json::{Value as Json, json};

use super::{
    Evaluator, Mode,
    args::Args,
    errors::Eval,
    value::{Cell, Cx, Optimizer, Step, Unknown, Value, cells_of, lock},
    walk,
};
use crate::{
    codes,
    diagnostic::Diagnostic,
    exec::Tensor,
    ir::Type,
    script::{self, safetensors},
    source::Span,
    syntax::ast::{Ast, Block, ExprKind, StrPart},
};

/// A loop of the script that is running.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LoopPosition {
    /// Where its `for` starts in the file.
    pub start: u32,
    pub pass: usize,
}

/// What `--resume` found: loops go on after these passes.
#[derive(Debug, Default)]
pub(super) struct Resume {
    pub loops: Vec<LoopPosition>,
}

/// What `save` and `load` are about.
#[derive(Default)]
struct Contents {
    cells: Vec<Arc<Cell>>,
    optimizers: Vec<Arc<Optimizer>>,
    /// Tensors of the script, by the name of their argument.
    tensors: Vec<(String, Type, Option<Tensor>)>,
    steps: Vec<Arc<Step>>,
}

impl Evaluator {
    fn contents(&mut self, what: &str, args: &Args) -> Eval<Contents> {
        let mut contents = Contents::default();
        let positional = args.positional.iter().skip(1).map(|(v, s)| (None, v, *s));
        let named = args.named.iter().map(|(n, v, s)| (Some(n), v, *s));
        for (name, value, at) in positional.chain(named) {
            match (name, value) {
                (Some(name), Value::Stored(stored)) => {
                    contents.tensors.push((name.name.to_string(), stored.ty.clone(), stored.data.clone()));
                }
                (_, Value::Optimizer(optimizer)) => contents.optimizers.push(Arc::clone(optimizer)),
                (_, Value::Step(step)) => {
                    let mut inline: Vec<_> = lock(&step.optimizers).values().cloned().collect();
                    inline.sort_by_key(|o| o.name());
                    contents.optimizers.extend(inline);
                    contents.steps.push(Arc::clone(step));
                }
                (_, Value::Model(_) | Value::Param(_) | Value::List(_)) if !cells_of(value).is_empty() => {
                    for cell in cells_of(value) {
                        if !contents.cells.iter().any(|c| c.id == cell.id) {
                            contents.cells.push(cell);
                        }
                    }
                }
                (_, Value::Unknown(_)) => {}
                (None, Value::Stored(_)) => {
                    return Err(self.report(
                        Diagnostic::error(
                            codes::ARGUMENTS,
                            at,
                            format!("`{what}` needs a name for a tensor"),
                        )
                        .help(format!("`{what}(\"file.safetensors\", name: x)`")),
                    ));
                }
                (_, other) => {
                    let kind = other.kind();
                    return Err(self.error(
                        codes::TYPE_MISMATCH,
                        at,
                        format!("`{what}` takes models, optimizers, steps and named tensors, got {kind}"),
                    ));
                }
            }
        }
        Ok(contents)
    }

    fn file_argument(&mut self, what: &str, args: &Args, span: Span) -> Eval<Option<(PathBuf, Span)>> {
        let Some((file, at)) = args.positional.first() else {
            return Err(self.error(codes::ARGUMENTS, span, format!("`{what}` needs a file name first")));
        };
        let (file, at) = (file.clone(), *at);
        let Some(name) = self.known_text(&file, "a file name", at)? else { return Ok(None) };
        let path = self.path(&name);
        if path.extension().and_then(|e| e.to_str()) != Some("safetensors") {
            return Err(self.report(
                Diagnostic::error(codes::FILE, at, format!("`{what}` uses safetensors files, got `{name}`"))
                    .help("end the name in `.safetensors`"),
            ));
        }
        Ok(Some((path, at)))
    }

    pub(super) fn save(&mut self, args: Args, span: Span) -> Eval {
        self.only_in_script("save", span)?;
        let file = self.file_argument("save", &args, span)?;
        let contents = self.contents("save", &args)?;
        let Some((path, at)) = file else { return Ok(Value::Unit) };
        if self.mode == Mode::Check || self.in_graph() {
            self.written.insert(path);
            return Ok(Value::Unit);
        }
        let mut tensors: Vec<(String, Tensor)> = Vec::new();
        let mut cells = contents.cells.clone();
        for optimizer in &contents.optimizers {
            cells.extend(lock(&optimizer.state_order).iter().cloned());
        }
        for cell in cells {
            self.prepare_cell(&cell, span)?;
            if let Some(data) = cell.data() {
                tensors.push((cell.name().to_string(), data));
            }
        }
        tensors.extend(contents.tensors.into_iter().filter_map(|(n, _, data)| Some((n, data?))));
        let mut notes = safetensors::Notes::new();
        for optimizer in &contents.optimizers {
            let count = optimizer.count.load(Ordering::Relaxed);
            notes.insert(format!("updates.{}", optimizer.name()), count.to_string());
        }
        for step in self.steps.clone() {
            let runs = step.runs.load(Ordering::Relaxed);
            notes.insert(format!("runs.{}", step.name()), runs.to_string());
        }
        notes.insert("seed".into(), self.settings.seed.to_string());
        notes.insert("random".into(), self.random_calls.to_string());
        let loops: Vec<Json> = self.loops.iter().map(|l| json!([l.start, l.pass])).collect();
        notes.insert("loops".into(), Json::Array(loops).to_string());
        notes.insert("variables".into(), Json::Object(self.plain_variables()).to_string());
        safetensors::write(&path, &tensors, &notes).map_err(|e| self.script_error(codes::FILE, at, e))?;
        Ok(Value::Unit)
    }

    pub(super) fn load(&mut self, args: Args, span: Span) -> Eval {
        self.only_in_script("load", span)?;
        if args.positional.len() == 1 && args.named.is_empty() {
            let (file, at) = args.positional.first().cloned().unwrap_or((Value::Unit, span));
            return self.load_file(&file, at);
        }
        let file = self.file_argument("load", &args, span)?;
        let contents = self.contents("load", &args)?;
        let Some((path, at)) = file else { return Ok(Value::Unit) };
        // A file that the script itself will have written by then may be missing in mode Check.
        if self.mode == Mode::Check && !path.exists() || self.in_graph() {
            return Ok(Value::Unit);
        }
        self.load_into(&path, &contents, at)?;
        Ok(Value::Unit)
    }

    fn load_into(&mut self, path: &Path, contents: &Contents, at: Span) -> Eval<()> {
        let result = safetensors::Reader::open(path).and_then(|mut reader| {
            // First everything is checked, so that nothing is half loaded.
            let mut loaded = Vec::with_capacity(contents.cells.len());
            for cell in &contents.cells {
                let name = cell.name();
                if self.mode == Mode::Check {
                    let found = reader.ty(&name)?;
                    if found != cell.ty {
                        let text = format!("`{}`: `{name}` is {found}, expected {}", path.display(), cell.ty);
                        return Err(script::Error::new(text));
                    }
                } else {
                    loaded.push(reader.read_as(&name, &cell.ty)?);
                }
            }
            let mut states = Vec::new();
            if self.mode == Mode::Run {
                for optimizer in &contents.optimizers {
                    let prefix = format!("{}.", optimizer.name());
                    let names: Vec<String> =
                        reader.names().filter(|n| n.starts_with(&prefix)).map(String::from).collect();
                    for name in names {
                        let tensor = reader.read(&name)?;
                        states.push((name, tensor));
                    }
                }
            }
            Ok((loaded, states, reader.metadata().clone()))
        });
        let (loaded, states, notes) = result.map_err(|e| {
            let error = if contents.cells.iter().any(|c| e.message.contains(&*c.name())) && e.help.is_none() {
                e.help("names are those of the variables: save and load under the same ones")
            } else {
                e
            };
            self.script_error(codes::FILE_CONTENT, at, error)
        })?;
        if self.mode == Mode::Check {
            return Ok(());
        }
        for (cell, tensor) in contents.cells.iter().zip(loaded) {
            cell.set_data(tensor);
        }
        let known: Vec<Arc<Cell>> =
            contents.optimizers.iter().flat_map(|o| lock(&o.state_order).clone()).collect();
        for (name, tensor) in states {
            match known.iter().find(|c| *c.name() == *name && c.ty == *tensor.ty()) {
                Some(cell) => cell.set_data(tensor),
                // The state is made when a step that uses it is compiled.
                None => drop(self.pending.insert(name, tensor)),
            }
        }
        let number = |key: String| notes.get(&key).and_then(|v| v.parse::<u64>().ok());
        for optimizer in &contents.optimizers {
            if let Some(count) = number(format!("updates.{}", optimizer.name())) {
                optimizer.count.store(count, Ordering::Relaxed);
            }
        }
        for step in &contents.steps {
            if let Some(runs) = number(format!("runs.{}", step.name())) {
                step.runs.store(runs, Ordering::Relaxed);
            }
        }
        Ok(())
    }

    /// The numbers and strings of the script's variables, as they are saved for `--resume`.
    fn plain_variables(&self) -> serde_json::Map<String, Json> {
        self.script
            .bindings()
            .into_iter()
            .filter_map(|(name, binding)| Some((name.to_string(), to_json(&binding.value)?)))
            .collect()
    }

    /// `--resume`, at the first loop or call of a step: reads the last file that the script saves,
    /// if it is there: parameters, optimizers, counters, and plain variables. Loops then go on after
    /// the pass in which the file was saved.
    pub(super) fn resume(&mut self, cx: &Cx, span: Span) -> Eval<()> {
        if !self.settings.resume || self.resumed || self.mode != Mode::Run || self.in_graph() {
            return Ok(());
        }
        self.resumed = true;
        let Some((path, targets)) = self.last_save(cx) else { return Ok(()) };
        if !path.exists() {
            return Ok(());
        }
        let mut contents = self.contents("save", &targets)?;
        contents.steps = self.steps.clone();
        self.load_into(&path, &contents, span)?;
        let notes = safetensors::Reader::open(&path)
            .map(|r| r.metadata().clone())
            .map_err(|e| self.script_error(codes::FILE, span, e))?;
        if let Some(random) = notes.get("random").and_then(|r| r.parse().ok()) {
            self.random_calls = random;
        }
        let variables = notes.get("variables").and_then(|v| serde_json::from_str::<Json>(v).ok());
        for (name, value) in variables.as_ref().and_then(Json::as_object).into_iter().flatten() {
            if let (Some(binding), Some(value)) = (self.script.get(name), from_json(value))
                && to_json(&binding.value).is_some()
            {
                self.script.declare(&name.as_str().into(), value, binding.span);
            }
        }
        let loops = notes.get("loops").and_then(|l| serde_json::from_str::<Vec<(u32, usize)>>(l).ok());
        let loops = loops.unwrap_or_default();
        self.resume_at =
            Resume { loops: loops.into_iter().map(|(start, pass)| LoopPosition { start, pass }).collect() };
        Ok(())
    }

    /// How many passes of a loop were done when the file was saved that this run resumes from.
    pub(super) fn passes_done(&mut self, start: u32) -> usize {
        let depth = self.loops.len();
        match self.resume_at.loops.get(depth) {
            Some(position) if position.start == start => {
                let is_innermost = self.resume_at.loops.len() == depth + 1;
                let pass = position.pass;
                if is_innermost {
                    // From here on the run is like any other.
                    self.resume_at.loops.clear();
                    pass + 1
                } else {
                    pass
                }
            }
            _ => 0,
        }
    }

    /// The last `save` in the script with a fixed file name, with its arguments where they are
    /// known by now.
    fn last_save(&mut self, cx: &Cx) -> Option<(PathBuf, Args)> {
        let ast: Arc<Ast> = Arc::clone(&cx.ast);
        let body = Block { stmts: ast.body.clone(), tail: None, span: Span::default() };
        let mut found = None;
        walk::walk_block(&ast, &body, &mut |item| {
            if let walk::Item::Expr(id) = item
                && let ExprKind::Call { callee, args } = &ast.expr(id).kind
                && matches!(&ast.expr(*callee).kind, ExprKind::Name(n) if &**n == "save")
                && let Some(file) = args.first()
                && let ExprKind::Str(parts) = &ast.expr(file.value).kind
                && let [StrPart::Text(text)] = parts.as_slice()
            {
                found = Some((Arc::clone(text), args.clone()));
            }
        });
        let (file, args) = found?;
        let top = Cx { ast: Arc::clone(&ast), scope: Arc::clone(&self.script) };
        let mut known = Args::default();
        for arg in args {
            if let ExprKind::Name(name) = &ast.expr(arg.value).kind
                && let Some((_, binding)) = top.scope.lookup(name)
            {
                known.positional.push((binding.value, ast.expr(arg.value).span));
            } else if known.positional.is_empty() {
                known.positional.push((Value::Str(Arc::clone(&file)), ast.expr(arg.value).span));
            }
        }
        known.positional.retain(|(v, _)| !matches!(v, Value::Stored(_)));
        Some((self.path(&file), known))
    }
}

fn to_json(value: &Value) -> Option<Json> {
    match value {
        Value::Int(number) => Some(json!({ "int": number.to_string() })),
        // As bits: JSON has no NaN, and every bit counts.
        Value::Float(number) => Some(json!({ "float": number.to_bits().to_string() })),
        Value::Bool(flag) => Some(json!(flag)),
        Value::Str(text) => Some(json!(&**text)),
        Value::List(items) => items.iter().map(to_json).collect::<Option<Vec<_>>>().map(Json::Array),
        Value::Unknown(Unknown::Any) => None,
        _ => None,
    }
}

fn from_json(value: &Json) -> Option<Value> {
    match value {
        Json::Bool(flag) => Some(Value::Bool(*flag)),
        Json::String(text) => Some(Value::str(text)),
        Json::Array(items) => items.iter().map(from_json).collect::<Option<Vec<_>>>().map(Value::list),
        Json::Object(fields) => {
            let text = |key: &str| fields.get(key).and_then(Json::as_str);
            if let Some(number) = text("int") {
                return number.parse().ok().map(Value::Int);
            }
            text("float")?.parse().ok().map(|bits| Value::Float(f64::from_bits(bits)))
        }
        _ => None,
    }
}
