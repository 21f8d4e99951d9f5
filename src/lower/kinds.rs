//! What a buffer counts as in reports.

use crate::{
    ir::{Graph, Role, SlotKind, ValueId},
    ops::Op,
    plan::{BufferKind, Home},
};

/// The kind of the buffer of `value`. Activations and gradients are told from temporaries by their
/// users, in [`refine_kinds`].
pub(super) fn buffer_kind(graph: &Graph, value: ValueId, home: Home, is_output: bool) -> BufferKind {
    let (node, _) = graph.producer(value);
    match home {
        Home::Slot(slot) => match graph.slots.get(slot.0 as usize).map(|s| s.kind) {
            Some(SlotKind::Param { .. }) => BufferKind::Params,
            _ => BufferKind::State,
        },
        Home::Input(_) => BufferKind::Inputs,
        Home::Arena if is_output => BufferKind::Outputs,
        // Results of collectives, and vectors that are filled to be sent.
        Home::Arena
            if matches!(node.op(), Op::CollectiveStart(_) | Op::CollectiveDone(_) | Op::Insert(_)) =>
        {
            BufferKind::Comm
        }
        Home::Arena if node.instance() != 0 => BufferKind::Recompute,
        Home::Arena => BufferKind::Temporaries,
    }
}

/// The kind of a temporary, given a node that reads it.
pub(super) fn refine(
    made_by: Role,
    reader: &Op,
    read_by: Role,
    reader_is_recompute: bool,
) -> Option<BufferKind> {
    match (made_by, read_by) {
        // What is sent stays as it is until it has arrived.
        _ if matches!(reader, Op::CollectiveStart(_)) => Some(BufferKind::Comm),
        (Role::Forward, Role::Backward { .. }) => Some(BufferKind::Activations),
        (Role::Forward, Role::Forward) if reader_is_recompute => Some(BufferKind::Activations),
        // Whoever but the backward pass reads its results reads whole gradients: updates, clipping.
        (Role::Backward { .. }, Role::Update { .. } | Role::Forward) => Some(BufferKind::Grads),
        _ => None,
    }
}
