//! Order and effects: barriers, state writes, debug prints.

use std::sync::Arc;

use crate::ir::{RegionId, SlotId};

/// What a barrier is there for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BarrierKind {
    /// Written in the source, or its gradient.
    User,
    /// Where the backward pass enters a checkpoint region; made by the gradient with the cotangents
    /// of the region's values, completed with the saved inputs by lowering.
    Region(RegionId),
    /// Inside a region: before the step back to the layer before.
    StepBack(RegionId),
}

/// Returns its operands. Nothing that uses a result may start before every operand, and every node
/// in its `after` list, is complete. Nothing is merged, moved or copied through it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Barrier {
    pub kind: BarrierKind,
}

/// Commits a new value of a persistent tensor; the result is the new value. It happens after every
/// reader of the old one.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Write {
    pub slot: SlotId,
}

/// Shows a value while the step runs, in source order; the result is the operand.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Print {
    pub label: Arc<str>,
}

crate::ops::scaffold!(Barrier, Write, Print);
