//! Static memory allocation: an offset for every block such that blocks alive at the same time do
//! not overlap and the arena is low. It knows nothing of graphs.

mod greedy;

use std::time::Duration;

/// A block of memory and the time it is needed: from `lower` up to, not including, `upper`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    pub lower: u64,
    pub upper: u64,
    pub bytes: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PackOptions {
    /// Stop as soon as the arena is this low. The load is always such a goal.
    pub goal: u64,
    /// Upper limit on the time for the search that follows the greedy placements.
    pub time_limit: Duration,
}

impl Default for PackOptions {
    fn default() -> Self {
        PackOptions { goal: 0, time_limit: Duration::from_secs(1) }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packing {
    /// By block.
    pub offsets: Vec<u64>,
    /// Height of the arena.
    pub height: u64,
    /// The largest sum of blocks alive at one time: no packing is lower.
    pub load: u64,
}

/// Places all blocks. Blocks of no bytes or no time are placed at 0. Heights saturate.
pub fn pack(blocks: &[Block], options: &PackOptions) -> Packing {
    let problem = Problem::new(blocks);
    let goal = options.goal.max(problem.load);
    let best = greedy::portfolio(&problem, goal);
    let mut offsets = vec![0; blocks.len()];
    for (block, &offset) in problem.blocks.iter().zip(&best.offsets) {
        offsets[block.id] = offset;
    }
    Packing { offsets, height: best.height, load: problem.load }
}

/// A block whose times are ranks among the times at which something starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Item {
    id: usize,
    /// First and last rank at which it is alive.
    first: usize,
    last: usize,
    bytes: u64,
}

/// The blocks that take room, with compressed times.
#[derive(Debug, Clone)]
struct Problem {
    blocks: Vec<Item>,
    times: usize,
    load: u64,
}

#[derive(Debug, Clone)]
struct Placement {
    offsets: Vec<u64>,
    height: u64,
}

impl Problem {
    fn new(blocks: &[Block]) -> Problem {
        let alive = || blocks.iter().enumerate().filter(|(_, b)| b.bytes > 0 && b.lower < b.upper);
        // The load changes upwards only where a block starts: other times need no rank.
        let mut starts: Vec<u64> = alive().map(|(_, b)| b.lower).collect();
        starts.sort_unstable();
        starts.dedup();
        let items: Vec<Item> = alive()
            .map(|(id, b)| Item {
                id,
                first: starts.partition_point(|&t| t < b.lower),
                last: starts.partition_point(|&t| t < b.upper).saturating_sub(1),
                bytes: b.bytes,
            })
            .collect();
        let mut change = vec![0i128; starts.len() + 1];
        for item in &items {
            change[item.first] += i128::from(item.bytes);
            change[item.last + 1] -= i128::from(item.bytes);
        }
        let (mut now, mut load) = (0i128, 0i128);
        for delta in change {
            now += delta;
            load = load.max(now);
        }
        Problem { blocks: items, times: starts.len(), load: u64::try_from(load).unwrap_or(u64::MAX) }
    }
}
