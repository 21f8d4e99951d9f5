//! The most bytes that any legal order can have alive: an upper bound over all of them, and an
//! order that comes close. Optional overwrites are not assumed.
//!
//! While an op runs, the done ones form a set closed under predecessors. A buffer with one last
//! reader adds its size when its maker is done and takes it away when that reader is: the most that
//! is alive is a closure of maximum weight, by one minimum cut (`closure`). Where several readers
//! may be the last, the closure counts the buffer as alive until an op behind all of them is done,
//! which is too much; `search` tells the cases apart. Ops that every other op precedes or follows
//! cut the graph into sections that are looked at alone (`section`).

mod closure;
mod greedy;
mod readers;
mod search;
mod section;

use std::time::Duration;

use super::{OpId, ScheduleGraph, index::Index, profile::lifetimes};

/// How hard to look for the worst legal order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorstOptions {
    /// Ends the search early. Its work is limited too, and those limits are reached first: results do
    /// not depend on the machine's speed unless this one ends it.
    pub time_limit: Duration,
    /// Multiplies the limits on the work; 1 is for reports that are made on every compilation.
    pub effort: u32,
}

impl Default for WorstOptions {
    fn default() -> Self {
        WorstOptions { time_limit: Duration::from_secs(10), effort: 1 }
    }
}

/// What every legal order stays within. Bytes of the arena only.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Worst {
    /// No legal order has more alive.
    pub bytes: u64,
    /// A legal order, what it has alive at its worst, and the position of that moment in it.
    pub witness: Vec<OpId>,
    pub witness_bytes: u64,
    pub witness_position: usize,
}

impl Worst {
    /// The witness is as bad as orders get.
    pub fn is_exact(&self) -> bool {
        self.bytes == self.witness_bytes
    }
}

/// Bounds the live bytes of every legal order of a graph.
pub fn worst_order(graph: &ScheduleGraph, options: &WorstOptions) -> Worst {
    worst_up_to(graph, options, u64::MAX)
}

/// As [`worst_order`], but stops looking for a worse order when one above `limit` is found.
pub(super) fn worst_up_to(graph: &ScheduleGraph, options: &WorstOptions, limit: u64) -> Worst {
    let ix = Index::new(graph);
    if !ix.exact || ix.ops == 0 {
        return coarse(graph, &ix);
    }
    let found = search::search(&ix, options, i64::try_from(limit >> ix.shift).unwrap_or(i64::MAX));
    let (peak, position) = plain_peak(&ix, &found.witness);
    Worst {
        bytes: ix.to_bytes(found.bound.max(peak)),
        witness_bytes: ix.to_bytes(peak),
        witness_position: position,
        witness: found.witness.into_iter().map(OpId).collect(),
    }
}

/// All buffers at once, with the largest workspace: for sizes whose sums do not fit the units, and
/// for a graph without ops.
fn coarse(graph: &ScheduleGraph, ix: &Index) -> Worst {
    let buffers = graph.buffer_ids().map(|b| u128::from(graph.arena_bytes(b))).sum::<u128>();
    let all = buffers + graph.ops().map(|op| u128::from(graph.workspace(op))).max().unwrap_or(0);
    let source: Vec<u32> = (0..ix.ops as u32).collect();
    let (peak, position) = plain_peak(ix, &source);
    let bytes = u64::try_from(all).unwrap_or(u64::MAX);
    let witness_bytes = match (ix.ops, ix.exact) {
        (0, _) => bytes,
        (_, true) => ix.to_bytes(peak),
        (_, false) => 0,
    };
    Worst {
        bytes,
        witness_bytes,
        witness_position: position,
        witness: source.into_iter().map(OpId).collect(),
    }
}

/// The peak without overwrites, and where.
pub(super) fn plain_peak(ix: &Index, order: &[u32]) -> (i64, usize) {
    let mut change = vec![0i64; order.len() + 1];
    for (b, span) in lifetimes(ix, order).iter().enumerate() {
        if let Some((first, last)) = *span
            && !order.is_empty()
        {
            change[first as usize] += ix.size[b];
            change[last as usize + 1] -= ix.size[b];
        }
    }
    let (mut now, mut best) = (0, (0, 0));
    for (at, &op) in order.iter().enumerate() {
        now += change[at];
        let here = now + ix.workspace[op as usize];
        if here > best.0 {
            best = (here, at);
        }
    }
    best
}
