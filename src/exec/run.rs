//! What all devices share of running a step.

use std::sync::atomic::{AtomicBool, Ordering};

use super::Tensor;
use crate::{
    ir::{Graph, Type},
    ops::OpError,
};

/// Called with the label and the value of every `debug(x)`, in the planned order.
pub type Printer = Box<dyn FnMut(&str, &Tensor) + Send>;

/// What a run gave.
#[derive(Debug, Clone)]
pub struct Run {
    pub outputs: Vec<Tensor>,
    /// End of the highest byte that a buffer or workspace used, from the start of the arena.
    pub high_water_bytes: u64,
}

/// How far a run has come: from the first write of a persistent tensor on it goes to its end, and its errors
/// tell of that.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Progress {
    has_written: bool,
}

impl Progress {
    /// Before work that `writes` persistent tensors or not: an error where the run is cancelled in time.
    /// `change` comes before the first of those that write.
    pub fn go_on(&mut self, writes: bool, cancel: &AtomicBool, change: impl FnOnce()) -> Result<(), OpError> {
        if self.has_written {
            return Ok(());
        }
        if cancel.load(Ordering::Relaxed) {
            return Err(OpError::cancelled());
        }
        if writes {
            self.has_written = true;
            change();
        }
        Ok(())
    }

    /// The error of an op that fails now.
    pub fn error(self, error: OpError) -> OpError {
        if !self.has_written {
            return error;
        }
        let message = format!("{} (the step had already written some parameters)", error.message);
        OpError { message, ..error }
    }
}

/// Whether the inputs that a step is given are those of its graph.
pub(crate) fn check_inputs<'a>(
    graph: &'a Graph,
    given: impl ExactSizeIterator<Item = &'a Type>,
) -> Result<(), OpError> {
    check("inputs", graph.inputs.iter().map(|input| (&*input.name, &input.ty)), given)
}

/// The same for its persistent tensors.
pub(crate) fn check_slots<'a>(
    graph: &'a Graph,
    given: impl ExactSizeIterator<Item = &'a Type>,
) -> Result<(), OpError> {
    check("persistent tensors", graph.slots.iter().map(|slot| (&*slot.name, &slot.ty)), given)
}

fn check<'a>(
    what: &str,
    wanted: impl ExactSizeIterator<Item = (&'a str, &'a Type)>,
    given: impl ExactSizeIterator<Item = &'a Type>,
) -> Result<(), OpError> {
    if wanted.len() != given.len() {
        return Err(OpError::new(format!("the step takes {} {what}, got {}", wanted.len(), given.len())));
    }
    for ((name, ty), given) in wanted.zip(given) {
        if given != ty {
            return Err(OpError::new(format!("`{name}` must be {ty}, got {given}")));
        }
    }
    Ok(())
}
