//! What scheduling hands on.

use super::{Bound, BufferId, OpId};

/// The chosen order and places, with the figures that prove how good they are. Bytes of the arena
/// only: persistent tensors are counted by [`Plan`](crate::plan::Plan).
#[derive(Debug, Clone, PartialEq)]
pub struct Schedule {
    pub order: Vec<OpId>,
    /// For each buffer, the one whose place it takes over (an op's `may_overwrite` pair).
    pub overwrites: Vec<Option<BufferId>>,
    /// For each buffer, its offset in the arena; `None` for persistent ones.
    pub offsets: Vec<Option<u64>>,
    /// For each op, the offset of its workspace.
    pub workspace_offsets: Vec<Option<u64>>,
    /// Height of the arena.
    pub arena_bytes: u64,
    /// The largest sum of live buffers and workspace.
    pub live_peak_bytes: u64,
    /// Position in `order` at which that is reached first.
    pub peak_position: usize,
    /// No order and no choice of overwrites has a lower `live_peak_bytes`.
    pub lower_bound_bytes: u64,
    /// What proves that.
    pub bound: Bound,
    /// The heuristic that won: `source`, `list`, `lpmf`, `dfs`, …; `witness` for the worst order.
    pub found_by: &'static str,
}

/// The instructions of a schedule, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Instruction {
    Exec(OpId),
    /// The buffer's memory may be used for others from here on.
    Free(BufferId),
}
