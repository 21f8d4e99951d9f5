//! From the schedule graph to an execution order and a place for every buffer.

mod graph;

pub use graph::{Buffer, BufferFlags, BufferId, GraphBuilder, OpId, ScheduleGraph};
