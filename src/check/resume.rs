//! `--resume`: where a run was when it saved, and how a later run gets there again.
//!
//! A position is a stack of loops: for each its number among the loops of the script, a hash of its
//! header, and how many passes were done. A resumed run executes the script from its first line,
//! skips the loops that were over, and takes over what was saved when it comes to the position.

use std::{path::PathBuf, sync::Arc};

use rustc_hash::FxHashSet;
use serde_json::{Map, Value as Json, json};

use super::{
    Evaluator, Mode,
    args::Args,
    errors::Eval,
    frame::stable_hash,
    scope::{Scope, ScopeKind},
    value::{Cx, Stored, Value, cells_of},
    walk,
};
use crate::{
    codes,
    diagnostic::Diagnostic,
    exec::Tensor,
    script::safetensors::{Notes, Reader},
    source::Span,
    syntax::ast::{Arg, Ast, Block, ExprId, ExprKind, Ident, IndexItem, Name, StmtKind, StrPart},
};

/// A loop of the script, by what stays the same while lines around it change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LoopPlace {
    /// Its number among the loops of the script.
    ordinal: usize,
    /// A hash of `for x in xs`.
    header: u64,
}

/// A `for` of the script outside of functions.
pub(super) struct LoopHead {
    /// Where its body starts.
    body: u32,
    span: Span,
    header: u64,
}

/// A loop of the script that is running.
pub(super) struct RunningLoop {
    pub place: LoopPlace,
    pub pass: usize,
    /// The scope in which the loop stands.
    pub around: Arc<Scope>,
}

/// How things were when a loop of the top level ended: what is saved after it, before the next
/// loop, continues from its end.
pub(super) struct Finished {
    place: LoopPlace,
    passes: usize,
    scopes: Vec<Vec<(Name, Value)>>,
    random_calls: u64,
}

/// What `--resume` found.
#[derive(Default)]
pub(super) struct Resume {
    /// The loops up to the position with the passes to leave out; empty where it is reached.
    loops: Vec<(LoopPlace, usize)>,
    file: Option<SavedFile>,
}

#[derive(Clone)]
struct SavedFile {
    path: PathBuf,
    /// As the script names it.
    title: Arc<str>,
    args: Vec<Arg>,
}

impl Evaluator {
    /// Lists the loops of the script that this evaluator runs.
    pub(super) fn set_program(&mut self, ast: &Arc<Ast>) {
        if self.program.is_some() {
            return;
        }
        self.program = Some(Arc::clone(ast));
        let mut heads = Vec::new();
        walk::walk_block(ast, &whole(ast), &mut |item| {
            if let walk::Item::Stmt(id) = item
                && let StmtKind::For { body, .. } = &ast.stmt(id).kind
            {
                let stmt = ast.stmt(id).span;
                let span = Span { end: body.span.start, ..stmt };
                let text: String = self.sources.text(span).split_whitespace().collect();
                heads.push(LoopHead { body: body.span.start, span, header: stable_hash(&text) });
            }
        });
        heads.sort_by_key(|head| head.body);
        self.loop_heads = heads;
    }

    /// The place of a loop; `None` for those that are not of the script itself.
    pub(super) fn loop_place(&self, cx: &Cx, body: &Block) -> Option<LoopPlace> {
        self.program.as_ref().filter(|program| Arc::ptr_eq(program, &cx.ast))?;
        let ordinal = self.loop_heads.binary_search_by_key(&body.span.start, |head| head.body).ok()?;
        Some(LoopPlace { ordinal, header: self.loop_heads.get(ordinal)?.header })
    }

    /// Remembers how things are after a loop of the top level.
    pub(super) fn loop_finished(&mut self, place: LoopPlace, passes: usize, scope: &Arc<Scope>) {
        let scopes = self.changing_variables(scope);
        self.finished = Some(Finished { place, passes, scopes, random_calls: self.random_calls });
    }

    /// The variables of the scopes around a place, outermost first, that running the script again
    /// up to there does not give.
    fn changing_variables(&self, scope: &Arc<Scope>) -> Vec<Vec<(Name, Value)>> {
        let Some(program) = &self.program else { return Vec::new() };
        let names = changing_names(program);
        let bound = |scope: &Arc<Scope>| {
            let all = scope.bindings().into_iter().map(|(name, binding)| (name, binding.value));
            all.filter(|(name, _)| names.contains(name)).collect()
        };
        chain(scope).iter().map(bound).collect()
    }

    /// Adds the position and the variables to what a `save` writes. Nothing is on its way.
    pub(super) fn save_position(&mut self, tensors: &mut Vec<(String, Tensor)>, notes: &mut Notes) {
        let innermost = self.loops.len().saturating_sub(1);
        let mut loops: Vec<Json> = Vec::new();
        for (k, running) in self.loops.iter().enumerate() {
            // The pass in which a file is saved is over, those around it are not.
            loops.push(position(running.place, running.pass + usize::from(k == innermost)));
        }
        let (scopes, random) = match (self.loops.last(), &self.finished) {
            (Some(running), _) => (self.changing_variables(&running.around), self.random_calls),
            (None, Some(finished)) => {
                loops.push(position(finished.place, finished.passes));
                (finished.scopes.clone(), finished.random_calls)
            }
            (None, None) => (self.changing_variables(&self.script), self.random_calls),
        };
        let mut saved: Vec<Json> = Vec::new();
        for (k, scope) in scopes.iter().enumerate() {
            let mut fields = Map::new();
            for (name, value) in scope {
                let first = tensors.len();
                if let Some(field) = encode(value, &format!("let:{k}.{name}"), tensors) {
                    fields.insert(name.to_string(), field);
                } else {
                    tensors.truncate(first);
                    if holds_numbers(value) {
                        fields.insert(name.to_string(), json!({ "lost": value.kind() }));
                    }
                }
            }
            saved.push(Json::Object(fields));
        }
        notes.insert("random".into(), random.to_string());
        notes.insert("loops".into(), Json::Array(loops).to_string());
        notes.insert("variables".into(), Json::Array(saved).to_string());
    }

    /// Whether the position of the saved file is still ahead.
    pub(super) fn is_resuming(&self) -> bool {
        !self.resume_at.loops.is_empty()
    }

    /// `--resume`, at the first loop or call of a step: looks for the last file that the script
    /// saves, and for the position in it.
    pub(super) fn resume(&mut self, scope: &Arc<Scope>, span: Span) -> Eval<()> {
        if !self.settings.resume || self.resumed || self.mode != Mode::Run || self.in_graph() {
            return Ok(());
        }
        self.resumed = true;
        let Some(file) = self.last_save(scope)?.filter(|file| file.path.exists()) else {
            (self.notice)("no saved file found: starting from the beginning");
            return Ok(());
        };
        let notes = Reader::open(&file.path)
            .map(|reader| reader.metadata().clone())
            .map_err(|e| self.script_error(codes::FILE, span, e))?;
        let title = Arc::clone(&file.title);
        self.resume_at.file = Some(file);
        let loops: Option<Vec<(usize, String, usize)>> =
            notes.get("loops").and_then(|l| serde_json::from_str(l).ok());
        let Some(loops) = loops else {
            return Err(self.cannot_resume(span, format!("`{title}` does not say where the run was")));
        };
        let mut shown = format!("resumed from {title}");
        let innermost = loops.len().saturating_sub(1);
        for (k, (ordinal, header, passes)) in loops.into_iter().enumerate() {
            let head = self.loop_heads.get(ordinal).filter(|head| format!("{:x}", head.header) == header);
            let Some((header, at)) = head.map(|head| (head.header, head.span)) else {
                return Err(self.script_changed(span));
            };
            let line = self.sources.start(at).line;
            let joint = if k == 0 { ":" } else { "," };
            shown += &match k == innermost {
                true => format!("{joint} loop at line {line} after pass {passes}"),
                false => format!("{joint} loop at line {line} in pass {}", passes.saturating_add(1)),
            };
            self.resume_at.loops.push((LoopPlace { ordinal, header }, passes));
        }
        if !self.runs_program {
            // A host calls steps: no loop will come to the position.
            self.resume_at.loops.clear();
            self.restore(scope, false, span)?;
        } else if self.resume_at.loops.is_empty() {
            shown += ": saved before any loop";
            self.restore(scope, true, span)?;
        }
        (self.notice)(&shown);
        Ok(())
    }

    /// How many passes of a loop are left out because the saved run has done them.
    pub(super) fn passes_done(&mut self, place: LoopPlace, scope: &Arc<Scope>, span: Span) -> Eval<usize> {
        let depth = self.loops.len();
        let Some(&(saved, passes)) = self.resume_at.loops.get(depth) else { return Ok(0) };
        if place.ordinal > saved.ordinal {
            return Err(self.script_changed(span));
        }
        let is_innermost = self.resume_at.loops.len() == depth + 1;
        let is_reached = place == saved && is_innermost;
        self.restore(scope, is_reached, span)?;
        if is_reached {
            // From here on the run is like any other.
            self.resume_at.loops.clear();
        }
        Ok(if place == saved { passes } else { usize::MAX })
    }

    /// At the end of the script: an error where it never came to the saved position.
    pub(super) fn all_resumed(&mut self) -> Eval<()> {
        if self.is_resuming() { Err(self.script_changed(Span::default())) } else { Ok(()) }
    }

    fn script_changed(&mut self, span: Span) -> super::Halt {
        let title = self.resume_at.file.as_ref().map_or_else(|| "the file".into(), |f| Arc::clone(&f.title));
        self.resume_at.loops.clear();
        self.cannot_resume(span, format!("the script changed before the loop since `{title}` was written"))
    }

    fn cannot_resume(&mut self, span: Span, message: String) -> super::Halt {
        self.report(
            Diagnostic::error(codes::FILE_CONTENT, span, message)
                .help("run it without `--resume`, or with the script that wrote the file"),
        )
    }

    /// Takes over what was saved, as far as it is there by now; all of it where the position
    /// `is_reached`.
    fn restore(&mut self, scope: &Arc<Scope>, is_reached: bool, span: Span) -> Eval<()> {
        let (Some(file), Some(program)) = (self.resume_at.file.clone(), self.program.clone()) else {
            return Ok(());
        };
        let cx = Cx { ast: Arc::clone(&program), scope: Arc::clone(scope) };
        let args = self.saved_args(&cx, &file, is_reached)?;
        let mut contents = self.contents("save", &args)?;
        contents.steps = self.steps.clone();
        self.load_into(&file.path, &contents, span)?;
        let mut reader = Reader::open(&file.path).map_err(|e| self.script_error(codes::FILE, span, e))?;
        let notes = reader.metadata().clone();
        if let Some(random) = notes.get("random").and_then(|r| r.parse().ok()) {
            self.random_calls = random;
        }
        let variables = notes.get("variables").and_then(|v| serde_json::from_str::<Vec<Json>>(v).ok());
        let scopes = chain(scope);
        let (changing, bound) = (changing_names(&program), bound_names(&program));
        let mut lost: Vec<String> = Vec::new();
        for (k, fields) in variables.unwrap_or_default().iter().enumerate() {
            for (name, field) in fields.as_object().into_iter().flatten() {
                if !bound.contains(name.as_str()) {
                    lost.push(name.clone());
                    continue;
                }
                // What is a constant by now has the value that the script gives it. Names that are
                // not bound yet are bound later.
                let binding = scopes.get(k).and_then(|s| Some((s, s.get(name)?)));
                let Some((scope, binding)) = binding.filter(|_| changing.contains(name.as_str())) else {
                    continue;
                };
                match decode(field, &mut reader) {
                    Some(value) => scope.set_value(&name.as_str().into(), value, binding.span),
                    None => lost.push(name.clone()),
                }
            }
        }
        if is_reached && !lost.is_empty() {
            let names: Vec<String> = lost.iter().map(|name| format!("`{name}`")).collect();
            let (names, title) = (names.join(", "), &file.title);
            return Err(self.cannot_resume(span, format!("{names} cannot be restored from `{title}`")));
        }
        Ok(())
    }

    /// The models, optimizers and steps that the script saves, where they are known by now.
    fn saved_args(&mut self, cx: &Cx, file: &SavedFile, is_reached: bool) -> Eval<Args> {
        let mut known = Args::default();
        known.positional.push((Value::Str(Arc::clone(&file.title)), Span::default()));
        for arg in file.args.iter().skip(1) {
            let span = cx.ast.expr(arg.value).span;
            if is_known(cx, arg.value) {
                let value = self.expr(cx, arg.value)?;
                if !matches!(value, Value::Stored(_) | Value::Int(_) | Value::Float(_) | Value::Bool(_)) {
                    known.positional.push((value, span));
                }
            } else if is_reached && arg.name.is_none() {
                let text = self.sources.text(span).to_string();
                let message = format!("`{text}` cannot be restored: it is not there before the loop");
                return Err(self.cannot_resume(span, message));
            }
        }
        Ok(known)
    }

    /// The last `save` in the script with a fixed file name; with `per_rank: true`, this rank's file.
    fn last_save(&mut self, scope: &Arc<Scope>) -> Eval<Option<SavedFile>> {
        let Some(ast) = self.program.clone() else { return Ok(None) };
        let mut found: Option<(u32, Arc<str>, Vec<Arg>)> = None;
        walk::walk_block(&ast, &whole(&ast), &mut |item| {
            if let walk::Item::Expr(id) = item
                && let ExprKind::Call { callee, args } = &ast.expr(id).kind
                && matches!(&ast.expr(*callee).kind, ExprKind::Name(n) if &**n == "save")
                && let Some(file) = args.first()
                && let ExprKind::Str(parts) = &ast.expr(file.value).kind
                && let [StrPart::Text(text)] = parts.as_slice()
            {
                let start = ast.expr(id).span.start;
                if found.as_ref().is_none_or(|(last, _, _)| *last <= start) {
                    found = Some((start, Arc::clone(text), args.clone()));
                }
            }
        });
        let Some((_, title, args)) = found else { return Ok(None) };
        let mut path = self.path(&title);
        let per_rank = args.iter().find(|a| a.name.as_ref().is_some_and(|n| &*n.name == "per_rank"));
        if let Some(per_rank) = per_rank.map(|arg| arg.value) {
            let cx = Cx { ast: Arc::clone(&ast), scope: Arc::clone(scope) };
            let is_literal = matches!(ast.expr(per_rank).kind, ExprKind::Bool(_));
            if (is_literal || is_known(&cx, per_rank))
                && matches!(self.expr(&cx, per_rank)?, Value::Bool(true))
            {
                path = self.rank_path(&path);
            }
        }
        Ok(Some(SavedFile { path, title, args }))
    }
}

fn position(place: LoopPlace, passes: usize) -> Json {
    json!([place.ordinal, format!("{:x}", place.header), passes])
}

fn whole(ast: &Ast) -> Block {
    Block { stmts: ast.body.clone(), tail: None, span: Span::default() }
}

/// The scopes from the top level of the script to this one.
fn chain(scope: &Arc<Scope>) -> Vec<Arc<Scope>> {
    let mut scopes = Vec::new();
    let mut next = Some(scope);
    while let Some(scope) = next {
        scopes.push(Arc::clone(scope));
        next = if scope.kind == ScopeKind::Script { None } else { scope.parent.as_ref() };
    }
    scopes.reverse();
    scopes
}

/// The names whose values running the script again does not give: those that it assigns to, and
/// those that it binds after its first loop has started. Constants never are among them.
fn changing_names(ast: &Ast) -> FxHashSet<Name> {
    let block = whole(ast);
    let mut names: FxHashSet<Name> = walk::assigned_names(ast, &block).into_iter().collect();
    let mut first_loop = u32::MAX;
    let mut late: Vec<(u32, Vec<Ident>)> = Vec::new();
    let mut constants: Vec<Name> = Vec::new();
    walk::walk_block(ast, &block, &mut |item| {
        let walk::Item::Stmt(id) = item else { return };
        let stmt = ast.stmt(id);
        match &stmt.kind {
            StmtKind::For { .. } => first_loop = first_loop.min(stmt.span.start),
            StmtKind::Let { names, .. } => late.push((stmt.span.start, names.clone())),
            StmtKind::Const { name, .. } => constants.push(Name::clone(&name.name)),
            _ => {}
        }
    });
    for (start, idents) in late {
        if start > first_loop {
            names.extend(idents.into_iter().map(|ident| ident.name));
        }
    }
    names.retain(|name| !constants.contains(name));
    names
}

/// Every name that the script binds outside of functions.
fn bound_names(ast: &Ast) -> FxHashSet<Name> {
    let mut bound = FxHashSet::default();
    walk::walk_block(ast, &whole(ast), &mut |item| {
        let walk::Item::Stmt(id) = item else { return };
        match &ast.stmt(id).kind {
            StmtKind::Let { names, .. } | StmtKind::For { names, .. } => {
                bound.extend(names.iter().map(|n| Name::clone(&n.name)));
            }
            StmtKind::Const { name, .. } => {
                bound.insert(Name::clone(&name.name));
            }
            _ => {}
        }
    });
    bound
}

/// Whether an expression names something that is there: `net`, `net.encoder`, `nets[0]`, `[a, b]`.
fn is_known(cx: &Cx, id: ExprId) -> bool {
    let mut todo = vec![id];
    while let Some(id) = todo.pop() {
        match &cx.ast.expr(id).kind {
            ExprKind::Name(name) if cx.scope.lookup(name).is_some() => {}
            ExprKind::Int(_) => {}
            ExprKind::Field(base, _) => todo.push(*base),
            ExprKind::Index(base, items) => {
                todo.push(*base);
                for item in items {
                    let IndexItem::At(at) = item else { return false };
                    todo.push(*at);
                }
            }
            ExprKind::List(items) | ExprKind::Tuple(items) => todo.extend(items),
            _ => return false,
        }
    }
    true
}

/// Whether losing a value would change what a run computes.
fn holds_numbers(value: &Value) -> bool {
    let kinds = matches!(value, Value::List(_) | Value::Tuple(_) | Value::Record(_) | Value::Tree(_));
    kinds && cells_of(value).is_empty()
}

fn encode(value: &Value, name: &str, tensors: &mut Vec<(String, Tensor)>) -> Option<Json> {
    let mut all =
        |items: &[Value]| items.iter().map(|item| encode(item, name, tensors)).collect::<Option<Vec<_>>>();
    match value {
        Value::Int(number) => Some(json!({ "int": number.to_string() })),
        // As bits: JSON has no NaN, and every bit counts.
        Value::Float(number) => Some(json!({ "float": number.to_bits().to_string() })),
        Value::Bool(flag) => Some(json!(flag)),
        Value::Str(text) => Some(json!(&**text)),
        Value::List(items) => all(items).map(Json::Array),
        Value::Tuple(items) => Some(json!({ "tuple": Json::Array(all(items)?) })),
        Value::Stored(stored) => {
            let key = format!("{name}.{}", tensors.len());
            tensors.push((key.clone(), stored.ready().cloned()?));
            Some(json!({ "tensor": key }))
        }
        _ => None,
    }
}

fn decode(field: &Json, reader: &mut Reader) -> Option<Value> {
    let mut all = |items: &[Json]| items.iter().map(|item| decode(item, reader)).collect::<Option<Vec<_>>>();
    match field {
        Json::Bool(flag) => Some(Value::Bool(*flag)),
        Json::String(text) => Some(Value::str(text)),
        Json::Array(items) => all(items).map(Value::list),
        Json::Object(fields) => {
            let text = |key: &str| fields.get(key).and_then(Json::as_str);
            if let Some(number) = text("int") {
                return number.parse().ok().map(Value::Int);
            }
            if let Some(items) = fields.get("tuple").and_then(Json::as_array) {
                return all(items).map(Value::tuple);
            }
            if let Some(name) = text("tensor") {
                let tensor = reader.read(name).ok()?;
                return Some(Value::Stored(Stored::new(tensor.ty().clone(), Some(tensor))));
            }
            text("float")?.parse().ok().map(|bits| Value::Float(f64::from_bits(bits)))
        }
        _ => None,
    }
}
