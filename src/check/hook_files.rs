//! States of hooks in files: each rank has its own, so a file has those of all ranks, one after another,
//! and only as many ranks take them back.

use std::{collections::BTreeMap, path::Path, sync::Arc};

use serde_json::{Value as Json, json};

use super::{
    Evaluator,
    errors::Eval,
    files::Contents,
    rank::line_of,
    value::{Cell, Optimizer, Step, lock},
};
use crate::{
    codes,
    diagnostic::Diagnostic,
    exec::{Tensor, comm::Request},
    ir::Type,
    ops::CollectiveKind,
    script::safetensors::{Notes, Reader},
    source::Span,
};

/// Before the name of a state, in the notes of a file.
const NOTE: &str = "hook.";

/// What a file says of one state.
struct Saved {
    name: String,
    world: u64,
    /// The file has it for all ranks.
    is_stacked: bool,
}

impl Evaluator {
    /// The steps whose hooks are saved: those that are named, and those that update with an optimizer
    /// that is saved. By name, so that all ranks have them in one order.
    fn steps_saved(&self, contents: &Contents) -> Vec<(Arc<Step>, Vec<String>)> {
        let mut found: Vec<(Arc<Step>, Vec<String>)> = Vec::new();
        for step in &self.steps {
            let compiled = lock(&step.compiled).clone();
            let uses = |o: &&Arc<Optimizer>| compiled.iter().any(|c| c.updates_with(o));
            let optimizers: Vec<String> =
                contents.optimizers().iter().filter(uses).map(|o| o.name().to_string()).collect();
            if !optimizers.is_empty() || contents.steps.iter().any(|s| s.id == step.id) {
                found.push((Arc::clone(step), optimizers));
            }
        }
        found.sort_by(|(a, _), (b, _)| a.name().cmp(b.name()));
        found
    }

    /// Adds the states of hooks to what a `save` writes. Every rank takes part.
    pub(super) fn save_hooks(
        &mut self,
        contents: &Contents,
        per_rank: bool,
        (tensors, notes): (&mut Vec<(String, Tensor)>, &mut Notes),
        span: Span,
    ) -> Eval<()> {
        let world = self.comm.world();
        for (step, optimizers) in self.steps_saved(contents) {
            for state in hook_states(&step) {
                self.prepare_cell(&state, span)?;
                let Some(data) = self.cell_data(&state, span)? else { continue };
                let data = if per_rank { data } else { self.of_all_ranks(&state, &data, span)? };
                let note = json!({
                    "step": &**step.name(), "optimizers": &optimizers, "ranks": world, "all": !per_rank
                });
                notes.insert(format!("{NOTE}{}", state.name()), note.to_string());
                tensors.push((state.name().to_string(), data));
            }
        }
        Ok(())
    }

    /// What the ranks have for a state, along a new first axis.
    fn of_all_ranks(&mut self, state: &Cell, data: &Tensor, span: Span) -> Eval<Tensor> {
        let mut shape = vec![self.comm.world() as usize];
        shape.extend(state.ty.shape());
        let ty = self.checked_type(state.ty.dtype(), &shape, span)?;
        let mut all = match Tensor::try_zeros(ty) {
            Ok(all) => all,
            Err(error) => return Err(self.out_of_memory(state, error, span)),
        };
        let bytes = match all.bytes_mut() {
            Ok(bytes) => bytes,
            Err(error) => return Err(self.out_of_memory(state, error, span)),
        };
        if self.comm.world() == 1 {
            bytes.copy_from_slice(data.bytes());
            return Ok(all);
        }
        let ty = self.checked_type(state.ty.dtype(), &[state.ty.elements()], span)?;
        let (kind, place) = (CollectiveKind::AllGather, line_of(&self.sources, span));
        let request = Request { kind, name: "save", ty, node: 0, place };
        let ticket = self.comm.start(request).map_err(|failure| self.op_error(span, failure.into()))?;
        let result = self.comm.wait(ticket, data.bytes(), bytes);
        result.map_err(|failure| self.op_error(span, failure.into()))?;
        Ok(all)
    }

    /// Takes the states of hooks out of a file. Those of another number of ranks start anew, which is
    /// reported.
    pub(super) fn load_hooks(
        &mut self,
        path: &Path,
        contents: &Contents,
        (notes, unmade): (&BTreeMap<String, String>, &[String]),
        span: Span,
    ) -> Eval<()> {
        let saved = saved(notes, contents, unmade);
        let Some(first) = saved.first() else { return Ok(()) };
        let world = u64::from(self.comm.world());
        if let Some(other) = saved.iter().find(|s| s.world != world) {
            let (name, ranks) = (&other.name, other.world);
            let s = if ranks == 1 { "" } else { "s" };
            let message = format!(
                "`{}` has states of hooks of {ranks} rank{s}, and this run has {world}: they start anew",
                path.display()
            );
            self.report(
                Diagnostic::warning(codes::FILE_CONTENT, span, message)
                    .note(format!("`{name}` belongs to one rank: what it had not sent yet is lost"))
                    .help(format!("run it with `--world {ranks}` to go on with them")),
            );
            return Ok(());
        }
        let rank = self.comm.rank() as usize;
        let read = |saved: &Saved, reader: &mut Reader| -> Result<Tensor, String> {
            let tensor = reader.read(&saved.name).map_err(|error| error.message)?;
            if !saved.is_stacked {
                return Ok(tensor);
            }
            let shape = tensor.shape().get(1..).unwrap_or_default().to_vec();
            let ty = Type::new(tensor.dtype(), shape).map_err(|error| error.to_string())?;
            let size = ty.bytes() as usize;
            let own = rank.saturating_mul(size)..rank.saturating_add(1).saturating_mul(size);
            Tensor::from_bytes(ty, tensor.bytes().get(own).unwrap_or_default()).map_err(|e| e.to_string())
        };
        let opened = Reader::open(path).map_err(|error| error.message);
        let result = opened.and_then(|mut reader| {
            let each = saved.iter().map(|s| Ok((s.name.clone(), read(s, &mut reader)?)));
            each.collect::<Result<Vec<(String, Tensor)>, String>>()
        });
        let found = match result {
            Ok(found) => found,
            Err(message) => {
                let message = format!("the state `{}` of a hook: {message}", first.name);
                return Err(self.error(codes::FILE_CONTENT, span, message));
            }
        };
        let known: Vec<Arc<Cell>> = self.steps.iter().flat_map(|step| hook_states(step)).collect();
        for (name, tensor) in found {
            match known.iter().find(|state| *state.name() == *name && state.ty == *tensor.ty()) {
                Some(state) => state.set_data(tensor),
                // Others are made when their step is compiled.
                None => {
                    self.pending.insert(name, tensor);
                }
            }
        }
        Ok(())
    }
}

/// The states of a step's hooks, by name.
fn hook_states(step: &Step) -> Vec<Arc<Cell>> {
    let mut states: Vec<Arc<Cell>> = lock(&step.hook_states).values().cloned().collect();
    states.sort_by_key(|state| state.name());
    states
}

/// The states in a file that belong to what is loaded.
fn saved(notes: &BTreeMap<String, String>, contents: &Contents, unmade: &[String]) -> Vec<Saved> {
    let mut found = Vec::new();
    for (key, note) in notes {
        let (Some(name), Ok(note)) = (key.strip_prefix(NOTE), serde_json::from_str::<Json>(note)) else {
            continue;
        };
        let step = note.get("step").and_then(Json::as_str);
        let mut optimizers = note.get("optimizers").and_then(Json::as_array).into_iter().flatten();
        let is_asked = contents.steps.iter().any(|s| step == Some(&**s.name()))
            || optimizers.any(|optimizer| {
                let name = optimizer.as_str().unwrap_or_default();
                contents.optimizers().iter().any(|o| *o.name() == *name) || unmade.iter().any(|u| u == name)
            });
        if is_asked {
            let world = note.get("ranks").and_then(Json::as_u64).unwrap_or(0);
            let is_stacked = note.get("all").and_then(Json::as_bool).unwrap_or(true);
            found.push(Saved { name: name.to_owned(), world, is_stacked });
        }
    }
    found
}
