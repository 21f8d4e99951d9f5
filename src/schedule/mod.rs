//! From the schedule graph to an execution order and a place for every buffer.
//!
//! `index` checks every id of a graph once; the passes behind it index its arrays by them.
#![allow(clippy::indexing_slicing)]

mod depth;
mod graph;
mod greedy;
mod index;
pub mod pack;
mod place;
mod profile;

use std::time::Duration;

pub use graph::{Buffer, BufferFlags, BufferId, GraphBuilder, OpId, ScheduleGraph};
pub use place::{Places, place};
pub use profile::instructions;

use crate::plan::Schedule;
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
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    pub order: OrderKind,
    /// Upper limit on the time for search, on top of the heuristics. The search also has limits on
    /// its iterations, which are reached first: results do not depend on the machine's speed unless
    /// this one ends it.
    pub time_limit: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Options { order: OrderKind::Best, time_limit: Duration::from_secs(10) }
    }
}

/// Plans a graph: order, overwrites, offsets, and the bound on every other plan.
pub fn schedule(graph: &ScheduleGraph, options: &Options) -> Schedule {
    let ix = Index::new(graph);
    let (found_by, order) = best_order(&ix, options);
    let overwrites = profile::overwrites(&ix, &order);
    let pack_options = pack::PackOptions { time_limit: options.time_limit, ..Default::default() };
    let places = place::place_indexed(graph, &ix, &order, &overwrites, &pack_options);
    let (live_peak_bytes, peak_position) = profile::exact_peak(graph, &ix, &order);
    Schedule {
        order: order.into_iter().map(OpId).collect(),
        overwrites,
        offsets: places.offsets,
        workspace_offsets: places.workspace_offsets,
        arena_bytes: places.arena_bytes,
        live_peak_bytes,
        peak_position,
        lower_bound_bytes: 0,
        found_by,
    }
}

type Heuristic = fn(&Index) -> Vec<u32>;

const SOURCE: [(&str, Heuristic); 1] = [("source", |ix| (0..ix.ops as u32).collect())];
const LIST: [(&str, Heuristic); 4] = [
    ("list", |ix| greedy::list(ix, greedy::Tie::Users)),
    ("list", |ix| greedy::list(ix, greedy::Tie::Newest)),
    ("list from the end", |ix| greedy::list_backward(ix, greedy::Tie::Users)),
    ("list from the end", |ix| greedy::list_backward(ix, greedy::Tie::Newest)),
];
const LPMF: [(&str, Heuristic); 1] = [("lpmf", greedy::lpmf)];
const DFS: [(&str, Heuristic); 3] = [
    ("dfs", |ix| depth::depth_first(ix, depth::Operands::Source)),
    ("dfs", |ix| depth::depth_first(ix, depth::Operands::Largest)),
    ("dfs", |ix| depth::depth_first(ix, depth::Operands::Deepest)),
];

fn best_order(ix: &Index, options: &Options) -> (&'static str, Vec<u32>) {
    let all: Vec<(&'static str, Heuristic)> = match options.order {
        OrderKind::Best => [&SOURCE[..], &LIST, &LPMF, &DFS].concat(),
        OrderKind::Source => SOURCE.to_vec(),
        // The plain ones, so that they can be compared with what others do.
        OrderKind::List => LIST[..1].to_vec(),
        OrderKind::Lpmf => LPMF.to_vec(),
        OrderKind::Dfs => DFS.to_vec(),
    };
    let mut best: Option<(i64, &'static str, Vec<u32>)> = None;
    for (name, heuristic) in all {
        let order = heuristic(ix);
        let peak = profile::profile(ix, &order).peak;
        if best.as_ref().is_none_or(|&(lowest, _, _)| peak < lowest) {
            best = Some((peak, name, order));
        }
    }
    best.map_or(("source", Vec::new()), |(_, name, order)| (name, order))
}
