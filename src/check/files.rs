//! `save` and `load`: parameters, state and optimizers by name.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{Arc, atomic::Ordering},
};

use serde_json::json;

use super::{
    Evaluator, Mode,
    args::Args,
    errors::Eval,
    file_names::Names,
    shard,
    value::{Cell, Optimizer, Step, Value, cells_of, lock},
};
use rustc_hash::FxHashSet;

use crate::{
    codes,
    diagnostic::Diagnostic,
    exec::Tensor,
    ir::Type,
    script::{self, safetensors},
    source::Span,
};

/// What `save` and `load` are about.
#[derive(Default)]
pub(super) struct Contents {
    cells: Vec<Arc<Cell>>,
    optimizers: Vec<Arc<Optimizer>>,
    /// Tensors of the script, by the name of their argument.
    tensors: Vec<(String, Type, Option<Tensor>)>,
    pub steps: Vec<Arc<Step>>,
    /// Those of `optimizers` that are written in a step.
    inline: Vec<Arc<Optimizer>>,
    /// What the file calls them.
    names: Names,
}

impl Contents {
    pub fn cells(&self) -> &[Arc<Cell>] {
        &self.cells
    }

    pub fn optimizers(&self) -> &[Arc<Optimizer>] {
        &self.optimizers
    }
}

impl Evaluator {
    pub(super) fn contents(&mut self, what: &str, args: &Args) -> Eval<Contents> {
        let mut contents = Contents::default();
        let positional = args.positional.iter().skip(1).map(|(v, s)| (None, v, *s));
        let named = args.named.iter().map(|(n, v, s)| (Some(n), v, *s));
        for (name, value, at) in positional.chain(named) {
            match (name, value) {
                (Some(name), Value::Stored(stored)) => {
                    contents.tensors.push((
                        name.name.to_string(),
                        stored.ty.clone(),
                        self.tensor_of(stored, at)?,
                    ));
                }
                (name, Value::Optimizer(optimizer)) => {
                    contents.names.add_optimizer(optimizer, name.map(|n| &*n.name));
                    contents.optimizers.push(Arc::clone(optimizer));
                }
                (_, Value::Step(step)) => {
                    contents.steps.push(Arc::clone(step));
                }
                (name, Value::Model(_) | Value::Param(_) | Value::List(_)) if !cells_of(value).is_empty() => {
                    contents.names.add(value, name.map(|n| &*n.name));
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
        self.add_inline(&mut contents);
        Ok(contents)
    }

    /// Optimizers written in a step belong to the step, and to the parameters that they update.
    fn add_inline(&self, contents: &mut Contents) {
        for step in &self.steps {
            let whole = contents.steps.iter().any(|s| s.id == step.id);
            let mut inline: Vec<_> = lock(&step.optimizers).values().cloned().collect();
            inline.sort_by_key(|o| o.name());
            for optimizer in inline {
                let updates = |cell: &Arc<Cell>| contents.cells.iter().any(|c| c.id == cell.id);
                if whole || lock(&optimizer.targets).iter().any(updates) {
                    contents.names.add_optimizer(&optimizer, None);
                    contents.optimizers.push(Arc::clone(&optimizer));
                    contents.inline.push(optimizer);
                }
            }
        }
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
        let mut args = args;
        let per_rank = self.per_rank("save", &mut args)?;
        let contents = self.contents("save", &args)?;
        let Some((path, at)) = file else { return Ok(Value::Unit) };
        if self.mode == Mode::Check || self.in_graph() {
            self.warn_of_missing_folder(&path, at);
            self.written.insert(path);
            return Ok(Value::Unit);
        }
        // The run that is resumed has saved this, and more.
        if self.is_resuming() {
            return Ok(Value::Unit);
        }
        let mut tensors: Vec<(String, Tensor)> = Vec::new();
        let mut cells = contents.cells.clone();
        for optimizer in &contents.optimizers {
            cells.extend(lock(&optimizer.state_order).iter().cloned());
        }
        let mut seen = FxHashSet::default();
        for cell in cells {
            let held = cell.part().map_or_else(|| Arc::clone(&cell), |(part, _)| part);
            if !seen.insert(held.id) {
                continue;
            }
            if per_rank {
                self.prepare_cell(&held, span)?;
                let data = self.cell_data(&held, span)?;
                tensors.extend(data.map(|data| (held.name().to_string(), data)));
                continue;
            }
            // Every rank takes part where a vector is gathered, and one of them writes.
            let named = self.named_data(&held, span)?;
            if self.leads() {
                let is_asked =
                    |name: &str| held.id == cell.id || contents.cells.iter().any(|c| *c.name() == *name);
                tensors.extend(named.into_iter().filter(|(name, _)| is_asked(name)));
            }
        }
        for (name, _) in &mut tensors {
            *name = contents.names.in_file(name);
        }
        let mut notes = safetensors::Notes::new();
        self.save_hooks(&contents, per_rank, (&mut tensors, &mut notes), span)?;
        tensors.extend(contents.tensors.into_iter().filter_map(|(n, _, data)| Some((n, data?))));
        for optimizer in &contents.optimizers {
            let count = optimizer.count.load(Ordering::Relaxed);
            notes.insert(format!("updates.{}", contents.names.in_file(&optimizer.name())), count.to_string());
        }
        for step in self.steps.clone() {
            let runs = step.runs.load(Ordering::Relaxed);
            notes.insert(format!("runs.{}", step.name()), runs.to_string());
        }
        notes.insert("seed".into(), self.settings.seed.to_string());
        for optimizer in &contents.inline {
            let names: Vec<String> =
                lock(&optimizer.targets).iter().map(|c| contents.names.in_file(&c.name())).collect();
            notes.insert(format!("inline.{}", optimizer.name()), json!(names).to_string());
        }
        let path = if per_rank { self.rank_path(&path) } else { path };
        // What all ranks have together is written by one of them.
        if !per_rank && !self.leads() {
            return Ok(Value::Unit);
        }
        self.land()?;
        self.save_position(&mut tensors, &mut notes);
        safetensors::write(&path, &tensors, &notes).map_err(|e| self.script_error(codes::FILE, at, e))?;
        Ok(Value::Unit)
    }

    /// A run would get to its first `save` before it fails.
    fn warn_of_missing_folder(&mut self, path: &Path, at: Span) {
        let Some(folder) = path.parent().filter(|f| !f.as_os_str().is_empty() && !f.exists()) else { return };
        self.report(
            Diagnostic::warning(codes::FILE, at, format!("there is no folder `{}`", folder.display()))
                .help("`save` makes no folders: create it before the run, or name another"),
        );
    }

    pub(super) fn load(&mut self, args: Args, span: Span) -> Eval {
        self.only_in_script("load", span)?;
        if args.positional.len() == 1 && args.named.is_empty() {
            let (file, at) = args.positional.first().cloned().unwrap_or((Value::Unit, span));
            if self.mode == Mode::Run {
                self.meet("load", span)?;
            }
            return self.load_file(&file, at);
        }
        let file = self.file_argument("load", &args, span)?;
        if let Some((name, _, at)) = args.named.iter().find(|(_, v, _)| matches!(v, Value::Stored(_))) {
            let (name, at) = (name.clone(), *at);
            return Err(self.report(
                Diagnostic::error(
                    codes::ARGUMENTS,
                    at,
                    format!("`load` fills models and optimizers, and `{}` is a tensor", name.name),
                )
                .help(format!(
                    "a tensor is a value: bind what the file holds, `let {0} = load(\"file.safetensors\").{0}`",
                    name.name
                )),
            ));
        }
        let mut args = args;
        let per_rank = self.per_rank("load", &mut args)?;
        let contents = self.contents("load", &args)?;
        let Some((path, at)) = file else { return Ok(Value::Unit) };
        let path = if per_rank { self.rank_path(&path) } else { path };
        // A file that the script itself will have written by then may be missing in mode Check.
        if self.mode == Mode::Check && !path.exists() || self.in_graph() {
            return Ok(Value::Unit);
        }
        // What rank 0 has saved before is there by the time it comes here.
        if self.mode == Mode::Run {
            self.meet("load", span)?;
        }
        self.load_into(&path, &contents, at)?;
        Ok(Value::Unit)
    }

    /// Whether a tensor of a file is what a parameter or state takes.
    fn fits(&self, path: &Path, cell: &Cell, found: &Type) -> Result<(), script::Error> {
        let (name, expected) = (cell.name(), &cell.ty);
        if found == expected {
            return Ok(());
        }
        let text = format!("`{}`: `{name}` is {found}, expected {expected}", path.display());
        Err(script::Error::new(text).help(if found.shape() == expected.shape() {
            format!("it was saved as {}: make the model with that dtype, `… in {}`", found.dtype(), found.dtype())
        } else {
            "the model that was saved had other sizes: make this one with the same, also with the same `--set`".into()
        }))
    }

    /// The number of a rank and of all, in the name of its own file.
    pub(super) fn rank_path(&self, path: &Path) -> PathBuf {
        let (rank, world) = (self.comm.rank(), self.comm.world());
        path.with_extension(format!("rank{rank}of{world}.safetensors"))
    }

    /// Takes `per_rank: true` out of the arguments: a file for each rank, with what it holds.
    fn per_rank(&mut self, what: &str, args: &mut Args) -> Eval<bool> {
        let Some(at) = args.named.iter().position(|(name, _, _)| &*name.name == "per_rank") else {
            return Ok(false);
        };
        match args.named.remove(at) {
            (_, Value::Bool(per_rank), _) => Ok(per_rank),
            (_, value, span) => {
                let kind = value.kind();
                let message = format!("`per_rank` of `{what}` is `true` or `false`, got {kind}");
                Err(self.error(codes::TYPE_MISMATCH, span, message))
            }
        }
    }

    pub(super) fn load_into(&mut self, path: &Path, contents: &Contents, at: Span) -> Eval<()> {
        let states: Vec<Arc<Cell>> =
            contents.optimizers.iter().flat_map(|o| lock(&o.state_order).to_vec()).collect();
        let known = shard::states_by_name(&states);
        if self.mode == Mode::Run {
            self.prepare_partly_loaded(contents, at)?;
        }
        let rank = self.comm.rank();
        let result = safetensors::Reader::open(path).and_then(|mut reader| {
            // First everything is checked, so that nothing is half loaded.
            let names = &contents.names;
            let in_file = |cell: &Cell| names.in_file(&cell.name());
            let is_held = |reader: &safetensors::Reader, held: &Cell| reader.ty(&in_file(held)).is_ok();
            for cell in &contents.cells {
                match cell.part() {
                    Some((part, _)) if is_held(&reader, &part) => {
                        self.fits(path, &part, &reader.ty(&in_file(&part))?)?;
                    }
                    _ => {
                        let found = reader.ty(&in_file(cell));
                        let found = found.map_err(|e| names.suggest(&reader, &contents.cells, cell, e))?;
                        self.fits(path, cell, &found)?;
                    }
                }
            }
            let notes = reader.metadata().clone();
            let mut loaded: Vec<(Arc<Cell>, Tensor)> = Vec::new();
            let mut states = Vec::new();
            if self.mode == Mode::Check {
                return Ok((loaded, states, notes));
            }
            for cell in &contents.cells {
                let Some((part, group)) = cell.part() else {
                    loaded.push((Arc::clone(cell), reader.read_as(&in_file(cell), &cell.ty)?));
                    continue;
                };
                let place = loaded.iter().position(|(known, _)| known.id == part.id);
                if is_held(&reader, &part) {
                    if place.is_none() {
                        let tensor = reader.read_as(&in_file(&part), &part.ty)?;
                        loaded.push((part, tensor));
                    }
                    continue;
                }
                let short = |error: crate::guard::OutOfMemory| script::Error::new(error.to_string());
                let whole = reader.read_as(&in_file(cell), &cell.ty)?;
                let place = match place {
                    Some(place) => place,
                    None => {
                        let held = part.data().map_err(|error| script::Error::new(error.message))?;
                        let start = held.map_or_else(|| Tensor::try_zeros(part.ty.clone()), Ok);
                        loaded.push((Arc::clone(&part), start.map_err(short)?));
                        loaded.len() - 1
                    }
                };
                if let (Some(member), Some((_, tensor))) = (group.member(cell), loaded.get_mut(place)) {
                    group.put(tensor, member, &whole, rank).map_err(short)?;
                }
            }
            let mut optimizers: Vec<(String, String)> = contents
                .optimizers
                .iter()
                .map(|o| (o.name().to_string(), names.in_file(&o.name())))
                .collect();
            optimizers.extend(unmade(contents, &notes).into_iter().map(|name| (name.clone(), name)));
            for (own, in_file) in optimizers {
                let rests = reader.names().filter_map(|n| n.strip_prefix(&*in_file)?.strip_prefix('.'));
                for rest in rests.map(String::from).collect::<Vec<_>>() {
                    let tensor = reader.read(&format!("{in_file}.{rest}"))?;
                    let (state, parameter) = rest.split_once('.').unwrap_or((&rest, ""));
                    states.push((format!("{own}.{state}.{}", names.own(parameter)), tensor));
                }
            }
            Ok((loaded, states, notes))
        });
        let (loaded, states, notes) =
            result.map_err(|error| self.script_error(codes::FILE_CONTENT, at, error))?;
        if self.mode == Mode::Check {
            return Ok(());
        }
        for (cell, tensor) in loaded {
            cell.set_data(tensor);
        }
        for (name, tensor) in states {
            let mut is_known = false;
            for state in known.get(&name).into_iter().flatten() {
                is_known = is_known || self.set_state(state, &tensor, at)?;
            }
            // Others are made when a step that uses them is compiled.
            if !is_known {
                self.pending.insert(name, tensor);
            }
        }
        let number = |key: String| notes.get(&key).and_then(|v| v.parse::<u64>().ok());
        for optimizer in &contents.optimizers {
            if let Some(count) = number(format!("updates.{}", contents.names.in_file(&optimizer.name()))) {
                optimizer.count.store(count, Ordering::Relaxed);
            }
        }
        for name in unmade(contents, &notes) {
            if let Some(count) = number(format!("updates.{name}")) {
                self.pending_counts.insert(name, count);
            }
        }
        let unmade = unmade(contents, &notes);
        self.load_hooks(path, contents, (&notes, &unmade), at)?;
        for step in &contents.steps {
            if let Some(runs) = number(format!("runs.{}", step.name())) {
                step.runs.store(runs, Ordering::Relaxed);
            }
        }
        Ok(())
    }
}

/// Optimizers in a file that are written in a step which is not compiled yet, and that update what
/// is loaded.
fn unmade(contents: &Contents, notes: &BTreeMap<String, String>) -> Vec<String> {
    let inline = notes.iter().filter_map(|(key, params)| Some((key.strip_prefix("inline.")?, params)));
    inline
        .filter(|(name, _)| !contents.optimizers.iter().any(|o| *o.name() == **name))
        .filter(|(name, params)| {
            let params: Vec<String> = serde_json::from_str(params).unwrap_or_default();
            contents.cells.iter().any(|c| params.contains(&contents.names.in_file(&c.name())))
                || contents.steps.iter().any(|s| name.split('.').next() == Some(s.name()))
        })
        .map(|(name, _)| name.to_string())
        .collect()
}
