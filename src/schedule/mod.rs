//! From the schedule graph to an execution order and a place for every buffer.
//!
//! `index` checks every id of a graph once; the passes behind it index its arrays by them.
#![allow(clippy::indexing_slicing)]

mod beside;
mod bound;
mod candidates;
mod choose;
mod cut;
mod depth;
mod exact;
mod extreme;
pub(crate) mod flow;
mod graph;
mod greedy;
mod improve;
mod index;
mod late;
mod outcome;
pub mod pack;
mod parts;
mod place;
mod profile;
mod refute;
mod repair;
mod search;
mod views;
mod witness;
mod worst;

use std::time::Duration;

pub use beside::{Collectives, work_beside};
pub use bound::{Bound, lower_bound};
pub use choose::{Planned, schedule_with_copies};
pub use graph::{
    Buffer, BufferFlags, BufferId, CopyableView, GraphBuilder, OpId, ScheduleGraph, ViewId, ViewedBuffer,
};
pub use late::wait_late;
pub use outcome::{Instruction, Schedule};
pub use place::{Places, place};
pub use profile::instructions;
pub use refute::{End, Forced, Refutation};
pub use repair::{Repair, repair};
pub use views::{Resolved, Source, resolve};
pub use worst::{Worst, WorstOptions, worst_order};

use index::Index;

/// Which order to take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OrderKind {
    /// The lowest peak that the heuristics and the search find.
    #[default]
    Best,
    /// As written.
    Source,
    /// Greedy by bytes freed less bytes defined.
    List,
    /// Least peak memory first.
    Lpmf,
    /// Operands right before their user.
    Dfs,
    /// The worst legal order that is found, without overwrites.
    Witness,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    pub order: OrderKind,
    /// Upper limit on the time for search, on top of the heuristics. The search also has limits on
    /// its iterations, which are reached first: results do not depend on the machine's speed unless
    /// this one ends it.
    pub time_limit: Duration,
    /// Try hard to prove that nothing is lower than the peak that was found. The order is the same
    /// without; the bound can be lower.
    pub prove: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options { order: OrderKind::Best, time_limit: Duration::from_secs(10), prove: true }
    }
}

/// Work of the search for offsets: a fraction of a second.
const PACK_WORK: u64 = 400_000_000;

/// Plans a graph: order, overwrites, offsets, and the bound on every other plan. Views that may be
/// copied stay views, but the bound holds for their copies too; [`schedule_with_copies`] decides.
pub fn schedule(graph: &ScheduleGraph, options: &Options) -> Schedule {
    if options.order == OrderKind::Witness {
        return witness::witness(graph, options, PACK_WORK);
    }
    if graph.viewed().is_empty() {
        return schedule_as_it_is(graph, options);
    }
    // The order is the same without a proof, which would not hold for copies.
    let schedule = schedule_as_it_is(graph, &Options { prove: false, ..*options });
    let bound = choose::bound_of_choices(graph, &schedule.order, schedule.live_peak_bytes, options);
    Schedule { lower_bound_bytes: bound.bytes, bound, ..schedule }
}

/// The same, with a bound for the plans in which views are views.
fn schedule_as_it_is(graph: &ScheduleGraph, options: &Options) -> Schedule {
    let ix = Index::new(graph);
    let chosen = search::choose(&ix, options);
    let bound = if ix.exact { chosen.proof.to_bound(&ix) } else { bound::rough(graph, &ix) };
    schedule_of(graph, &ix, chosen.order, (chosen.found_by, bound), options)
}

/// The plan of an order.
fn schedule_of(
    graph: &ScheduleGraph,
    ix: &Index,
    order: Vec<u32>,
    (found_by, bound): (&'static str, Bound),
    options: &Options,
) -> Schedule {
    let overwrites = profile::overwrites(ix, &order);
    let pack_options = pack::PackOptions { goal: 0, time_limit: options.time_limit, work_limit: PACK_WORK };
    let places = place::place_indexed(graph, ix, &order, &overwrites, &pack_options);
    let (live_peak_bytes, peak_position) = profile::exact_peak(graph, ix, &order);
    Schedule {
        order: order.into_iter().map(OpId).collect(),
        overwrites,
        offsets: places.offsets,
        workspace_offsets: places.workspace_offsets,
        arena_bytes: places.arena_bytes,
        live_peak_bytes,
        peak_position,
        lower_bound_bytes: bound.bytes,
        bound,
        found_by,
    }
}
