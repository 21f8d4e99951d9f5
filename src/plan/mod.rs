//! A planned step: what a device interprets and what reports read.

mod kernel;
mod moves;
mod refused;
mod target;

use std::sync::Arc;

pub use kernel::{Access, Elementwise, Instr, Kernel, Reg};
pub use moves::{Excess, Move, Moved};
pub use refused::{Refusal, RefusalReason};
pub use target::Target;

pub use crate::schedule::{Instruction, Schedule};

use crate::{
    ir::{Graph, NodeId, SlotId, ValueId},
    schedule::{BufferId, OpId, ScheduleGraph, Worst, WorstOptions, worst_order},
};

/// What every buffer takes at least, in bytes, on every device.
pub const ALIGNMENT: u64 = 256;

/// Where the content of a buffer comes from, and what it is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Home {
    /// Somewhere in the arena.
    Arena,
    /// In the arena, filled with the step's input before the first op.
    Input(u32),
    /// A persistent tensor.
    Slot(SlotId),
}

/// What a buffer counts as in reports: the kinds of `by_kind`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum BufferKind {
    Params,
    State,
    Grads,
    /// A forward value that the backward pass uses.
    Activations,
    Recompute,
    Temporaries,
    Comm,
    Inputs,
    Outputs,
}

impl BufferKind {
    pub const ALL: [BufferKind; 9] = [
        BufferKind::Params,
        BufferKind::State,
        BufferKind::Grads,
        BufferKind::Activations,
        BufferKind::Recompute,
        BufferKind::Temporaries,
        BufferKind::Comm,
        BufferKind::Inputs,
        BufferKind::Outputs,
    ];

    /// As in `by_kind` of the JSON form.
    pub fn name(self) -> &'static str {
        match self {
            BufferKind::Params => "params",
            BufferKind::State => "state",
            BufferKind::Grads => "grads",
            BufferKind::Activations => "activations",
            BufferKind::Recompute => "recompute",
            BufferKind::Temporaries => "temporaries",
            BufferKind::Comm => "comm",
            BufferKind::Inputs => "inputs",
            BufferKind::Outputs => "outputs",
        }
    }
}

/// A buffer of the schedule graph as the program sees it.
#[derive(Debug, Clone, PartialEq)]
pub struct PlanBuffer {
    pub home: Home,
    pub kind: BufferKind,
    /// Its content without padding.
    pub dense_bytes: u64,
    /// The value it was made for: dtype, shape, name and source line.
    pub value: ValueId,
}

/// A slice that could be copied out of its base, so that the base need not live as long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ViewChoice {
    /// The slice.
    pub value: ValueId,
    /// The buffer that it is a view of, or was copied from.
    pub base: BufferId,
    /// What a copy takes.
    pub bytes: u64,
    /// The copy, where that lowers the peak. `None` for one that stays a view.
    pub copy: Option<BufferId>,
}

/// A commit to a persistent tensor that copies the new value, which lies in a buffer of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CommitCopy {
    pub slot: SlotId,
    /// The new value.
    pub value: ValueId,
    /// The op that copies it.
    pub op: OpId,
    pub reason: CommitReason,
}

/// Why the op that makes a new value cannot write it where the old one is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommitReason {
    /// This op reads the old value, and cannot do so before the new one is made.
    ReadLater(OpId),
    /// The op that makes the value would write over elements of the old one that it has yet to read.
    OutOfStep(OpId),
    /// The step returns this value, and a later commit replaces it.
    Returned,
    /// It was made in place in this persistent tensor.
    Elsewhere(SlotId),
    /// No order of the step allows it.
    Order,
}

/// A planned step.
#[derive(Debug, Clone)]
pub struct Plan {
    pub name: Arc<str>,
    pub target: Target,
    /// After lowering, simplification and layout.
    pub graph: Arc<Graph>,
    pub schedule_graph: ScheduleGraph,
    /// One per op of the schedule graph.
    pub kernels: Vec<Kernel>,
    /// One per buffer of the schedule graph.
    pub buffers: Vec<PlanBuffer>,
    /// The node that stands for each op in reports.
    pub op_nodes: Vec<NodeId>,
    pub schedule: Schedule,
    /// What every legal order stays within; `None` until [`Plan::bound_every_order`] is called.
    pub worst: Option<Worst>,
    pub instructions: Vec<Instruction>,
    /// Where each output of the graph lies when the step ends, in the order of `graph.outputs`.
    pub outputs: Vec<Access>,
    /// Parameters, state and optimizer state that the step touches, each rounded up to
    /// [`ALIGNMENT`].
    pub persistent_bytes: u64,
    /// The slices that could be copied. Those that were are ops and buffers like any other.
    pub views: Vec<ViewChoice>,
    /// The height of the arena if all slices were views; `None` if they are.
    pub arena_bytes_without_copies: Option<u64>,
    /// Commits to persistent tensors that take a copy, and why.
    pub commits: Vec<CommitCopy>,
    /// Floating-point operations of the step, and of those the recomputed ones.
    pub flops: f64,
    pub recomputed_flops: f64,
}

impl Plan {
    /// Everything resident on the device for the step, in bytes.
    pub fn peak_bytes(&self) -> u64 {
        self.persistent_bytes + self.schedule.arena_bytes
    }

    /// No schedule of this step has a lower peak, in bytes.
    pub fn lower_bound_bytes(&self) -> u64 {
        self.persistent_bytes + self.schedule.lower_bound_bytes
    }

    /// Works out [`Plan::worst`], within limits of its own on the work.
    pub fn bound_every_order(&mut self) {
        self.worst = Some(worst_order(&self.schedule_graph, &WorstOptions::default()));
    }

    /// No legal order has more bytes alive, whatever it overwrites: persistent ones included.
    pub fn worst_legal_bytes(&self) -> Option<u64> {
        Some(self.persistent_bytes.saturating_add(self.worst.as_ref()?.bytes))
    }

    /// What the worst order that was found has alive: persistent bytes included.
    pub fn worst_legal_witness_bytes(&self) -> Option<u64> {
        Some(self.persistent_bytes.saturating_add(self.worst.as_ref()?.witness_bytes))
    }
}
