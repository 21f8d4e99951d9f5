//! The schedule of the worst order that was found, to look at and to run.

use super::{
    OpId, Options, OrderKind, Schedule, ScheduleGraph, WorstOptions,
    index::Index,
    pack::PackOptions,
    place::place_indexed,
    profile::{spans, summed_peak},
    worst_order,
};

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
    let (live_peak_bytes, peak_position) = summed_peak(graph, &order, &spans(graph, &ix, &order));
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
