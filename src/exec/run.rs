//! What all devices share of running a step.

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

/// The error of an op that failed after the step began to write.
pub(crate) fn half_written(error: OpError) -> OpError {
    let message = format!("{} (the step had already written some parameters)", error.message);
    OpError { message, ..error }
}

/// Whether the persistent tensors and inputs that a step is given are those of its graph.
pub(crate) fn check_arguments<'a>(
    graph: &Graph,
    slots: impl ExactSizeIterator<Item = &'a Type>,
    inputs: impl ExactSizeIterator<Item = &'a Type>,
) -> Result<(), OpError> {
    if slots.len() != graph.slots.len() || inputs.len() != graph.inputs.len() {
        return Err(OpError::new(format!(
            "the step takes {} inputs and {} persistent tensors, got {} and {}",
            graph.inputs.len(),
            graph.slots.len(),
            inputs.len(),
            slots.len()
        )));
    }
    let named = graph
        .slots
        .iter()
        .map(|slot| (&slot.name, &slot.ty))
        .zip(slots)
        .chain(graph.inputs.iter().map(|input| (&input.name, &input.ty)).zip(inputs));
    for ((name, ty), given) in named {
        if given != ty {
            return Err(OpError::new(format!("`{name}` must be {ty}, got {given}")));
        }
    }
    Ok(())
}
