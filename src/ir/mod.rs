//! The intermediate representation of a step.

mod graph;
mod origin;
mod release;
mod shard;
pub mod text;
mod types;
mod verify;

pub use graph::{
    Bind, Cursor, GradCallId, GradientCall, Graph, Input, Node, NodeId, Output, Phase, Policy, Region,
    RegionId, Release, Role, ScalarSource, Slot, SlotId, SlotKind, ValueId,
};
pub use origin::{Origin, OriginId, Origins};
pub use shard::{Gathered, Shard};
pub use types::{DType, MAX_BYTES, ShapeText, TooLarge, Type};
pub use verify::verify;
