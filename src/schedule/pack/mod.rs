//! Static memory allocation: an offset for every block such that blocks alive at the same time do
//! not overlap and the arena is low. It knows nothing of graphs.

mod greedy;
mod search;

use std::time::{Duration, Instant};

use search::{Outcome, Search};

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
    let mut best = greedy::portfolio(&problem, goal);
    if best.height > goal {
        sections(&problem, goal, options.time_limit, &mut best);
    }
    let mut offsets = vec![0; blocks.len()];
    for (block, &offset) in problem.blocks.iter().zip(&best.offsets) {
        offsets[block.id] = offset;
    }
    Packing { offsets, height: best.height, load: problem.load }
}

/// Searches where the greedy placement is too high, separately for parts that share no time.
fn sections(problem: &Problem, goal: u64, time_limit: Duration, best: &mut Placement) {
    let start = Instant::now();
    let mut order: Vec<usize> = (0..problem.blocks.len()).collect();
    order.sort_by_key(|&i| problem.blocks[i].first);
    let mut at = 0;
    let mut height = 0;
    while at < order.len() {
        let from = at;
        let mut last = 0;
        while at < order.len() && (at == from || problem.blocks[order[at]].first <= last) {
            last = last.max(problem.blocks[order[at]].last);
            at += 1;
        }
        let members = &order[from..at];
        let top = |best: &Placement, i: usize| best.offsets[i].saturating_add(problem.blocks[i].bytes);
        let mut section_height = members.iter().map(|&i| top(best, i)).max().unwrap_or(0);
        if section_height > goal {
            let first = problem.blocks[order[from]].first;
            let items: Vec<Item> = members
                .iter()
                .enumerate()
                .map(|(id, &i)| {
                    let item = problem.blocks[i];
                    Item { id, first: item.first - first, last: item.last - first, ..item }
                })
                .collect();
            let section = Problem { blocks: items, times: last - first + 1, load: problem.load };
            let left = time_limit.saturating_sub(start.elapsed());
            let greedy = greedy::portfolio(&section, goal);
            let found = if greedy.height > goal { solve(&section, goal, left) } else { Some(greedy.clone()) };
            let found = found.unwrap_or(greedy);
            if found.height < section_height {
                section_height = found.height;
                for (&i, &offset) in members.iter().zip(&found.offsets) {
                    best.offsets[i] = offset;
                }
            }
        }
        height = height.max(section_height);
    }
    best.height = height;
}

/// A packing of a section that is at most `goal` high, by searches that start over with other
/// orders and twice the nodes.
fn solve(section: &Problem, goal: u64, time_limit: Duration) -> Option<Placement> {
    let start = Instant::now();
    let unit = section.blocks.iter().fold(goal, |unit, item| common(unit, item.bytes)).max(1);
    let mut search = Search::new(&section.blocks, section.times, unit, goal)?;
    let orders = greedy::search_orders(section);
    let mut nodes = FIRST_NODES;
    while nodes <= MOST_NODES {
        for order in &orders {
            match search.run(order, nodes) {
                Outcome::Placed => {
                    let offsets: Vec<u64> =
                        (0..section.blocks.len()).map(|i| search.offset(i) * unit).collect();
                    let tops = section.blocks.iter().zip(&offsets).map(|(item, &at)| at + item.bytes);
                    let height = tops.max().unwrap_or(0);
                    return Some(Placement { offsets, height });
                }
                Outcome::Impossible => return None,
                Outcome::GaveUp => {}
            }
            if start.elapsed() >= time_limit {
                return None;
            }
        }
        nodes *= 2;
    }
    None
}

/// Greatest common divisor.
fn common(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { common(b, a % b) }
}

/// Nodes of the first searches and of the last ones.
const FIRST_NODES: u64 = 1_000;
const MOST_NODES: u64 = 1 << 40;

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
