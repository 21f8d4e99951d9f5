//! Every buffer of a plan with its place in time and in the arena: what pictures and traces draw.

use std::ops::RangeInclusive;

use super::{LiveBuffer, Place, View, live::Live, op_name};
use crate::{plan::Plan, source::SourceMap};

/// A buffer with its place.
#[derive(Debug, Clone)]
pub struct PlacedBuffer {
    pub buffer: LiveBuffer,
    /// The positions in the order at which it is alive.
    pub positions: RangeInclusive<usize>,
    /// In the arena; `None` for persistent buffers.
    pub offset: Option<u64>,
}

/// An op of the order.
#[derive(Debug, Clone)]
pub struct PlacedOp {
    pub name: String,
    pub place: Option<Place>,
    /// Scratch memory that it needs while it runs.
    pub workspace_bytes: u64,
    /// Where in the arena that lies.
    pub workspace_offset: Option<u64>,
}

/// The buffers that take memory, in the order of their ids. A buffer whose place is taken over right
/// after it was made has no range of its own and is left out.
pub fn buffers(plan: &Plan, sources: &SourceMap) -> Vec<PlacedBuffer> {
    let live = Live::new(plan);
    let view = View::new(plan, sources);
    plan.schedule_graph
        .buffer_ids()
        .zip(&live.ranges)
        .filter_map(|(id, range)| {
            let range = range.as_ref()?;
            let bytes = plan.schedule_graph.buffer(id).bytes;
            (bytes > 0).then(|| PlacedBuffer {
                buffer: view.buffer(&live, id, bytes, range),
                positions: range.clone(),
                offset: plan.schedule.offsets.get(id.0 as usize).copied().flatten(),
            })
        })
        .collect()
}

/// The ops in the order in which they run.
pub fn ops(plan: &Plan, sources: &SourceMap) -> Vec<PlacedOp> {
    let view = View::new(plan, sources);
    plan.schedule
        .order
        .iter()
        .map(|&op| {
            let node = view.op_node(op);
            PlacedOp {
                name: node.map_or_else(String::new, |n| op_name(n).to_owned()),
                place: node.and_then(|n| view.place(n)),
                workspace_bytes: plan.schedule_graph.workspace(op),
                workspace_offset: plan.schedule.workspace_offsets.get(op.0 as usize).copied().flatten(),
            }
        })
        .collect()
}
