//! The schedule of the worst order that was found, to look at and to run.

use super::{
    BufferId, OpId, Options, OrderKind, ScheduleGraph, WorstOptions, index::Index, pack::PackOptions,
    place::place_indexed, profile::lifetimes, worst_order,
};
use crate::plan::Schedule;

/// Plans the witness of [`worst_order`]. It overwrites nothing, as the bound on all orders assumes,
/// so what it has alive is what that bound claims for it. The lower bound is that of the graph.
pub(super) fn witness(graph: &ScheduleGraph, options: &Options, work_limit: u64) -> Schedule {
    let best = super::schedule(graph, &Options { order: OrderKind::Best, ..*options });
    let worst = worst_order(graph, &WorstOptions { time_limit: options.time_limit, ..Default::default() });
    let ix = Index::new(graph);
    let order: Vec<u32> = worst.witness.iter().map(|op| op.0).filter(|&op| (op as usize) < ix.ops).collect();
    if order.is_empty() {
        return Schedule { found_by: "witness", ..best };
    }
    let overwrites = vec![None; ix.buffers];
    let pack_options = PackOptions { goal: 0, time_limit: options.time_limit, work_limit };
    let places = place_indexed(graph, &ix, &order, &overwrites, &pack_options);
    let (live_peak_bytes, peak_position) = plain_peak(graph, &ix, &order);
    Schedule {
        order: order.into_iter().map(OpId).collect(),
        overwrites,
        offsets: places.offsets,
        workspace_offsets: places.workspace_offsets,
        arena_bytes: places.arena_bytes,
        live_peak_bytes,
        peak_position,
        found_by: "witness",
        ..best
    }
}

/// The most bytes alive where nothing is overwritten, and the first position with so many.
fn plain_peak(graph: &ScheduleGraph, ix: &Index, order: &[u32]) -> (u64, usize) {
    let mut change = vec![0i128; order.len() + 1];
    for (b, span) in lifetimes(ix, order).into_iter().enumerate() {
        if let Some((first, last)) = span {
            let bytes = i128::from(graph.arena_bytes(BufferId(b as u32)));
            change[first as usize] += bytes;
            change[last as usize + 1] -= bytes;
        }
    }
    let (mut now, mut peak, mut position) = (0i128, 0i128, 0);
    for (at, &op) in order.iter().enumerate() {
        now += change[at];
        let here = now + i128::from(graph.workspace(OpId(op)));
        if here > peak {
            (peak, position) = (here, at);
        }
    }
    (u64::try_from(peak).unwrap_or(u64::MAX), position)
}
