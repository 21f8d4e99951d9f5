//! Static memory allocation: an offset for every block such that blocks alive at the same time do
//! not overlap and the arena is low. It knows nothing of graphs.

mod gaps;
mod greedy;
mod search;

use std::time::{Duration, Instant};

use crate::guard;
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
    /// Upper limit on the time. What is begun is brought to an end first, and one placement is always
    /// made: a second for each million blocks.
    pub time_limit: Duration,
    /// Upper limit on its work, in blocks times the times at which they are alive. It is the same on
    /// every machine.
    pub work_limit: u64,
}

impl Default for PackOptions {
    fn default() -> Self {
        PackOptions { goal: 0, time_limit: Duration::from_secs(10), work_limit: u64::MAX }
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
    /// No packing is lower: the load, or more where the search went through all packings.
    pub bound: u64,
}

/// Places all blocks. Blocks of no bytes or no time are placed at 0. Heights saturate.
pub fn pack(blocks: &[Block], options: &PackOptions) -> Packing {
    let mut limits = Limits { end: Instant::now().checked_add(options.time_limit), work: options.work_limit };
    let problem = Problem::new(blocks);
    let goal = options.goal.max(problem.load);
    let mut best = greedy::portfolio(&problem, goal, &limits);
    let mut bound = problem.load;
    if best.height > goal && !limits.is_over() {
        bound = bound.max(sections(&problem, goal, &mut limits, &mut best));
    }
    let mut offsets = vec![0; blocks.len()];
    for (block, &offset) in problem.blocks.iter().zip(&best.offsets) {
        offsets[block.id] = offset;
    }
    Packing { offsets, height: best.height, load: problem.load, bound }
}

/// Searches where the greedy placement is too high, separately for parts that share no time.
/// Returns a bound on the height.
fn sections(problem: &Problem, goal: u64, limits: &mut Limits, best: &mut Placement) -> u64 {
    let mut order: Vec<usize> = (0..problem.blocks.len()).collect();
    order.sort_by_key(|&i| problem.blocks[i].first);
    let mut at = 0;
    let mut height = 0;
    let mut bound = 0;
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
            // Alone, a section may be placed better than among others; all of them are known already.
            let start = if members.len() == problem.blocks.len() {
                Placement { offsets: members.iter().map(|&i| best.offsets[i]).collect(), height: best.height }
            } else {
                greedy::portfolio(&section, goal, limits)
            };
            let (found, least) = lower(&section, goal, start, limits);
            bound = bound.max(least);
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
    bound
}

/// What is left for searches.
#[derive(Debug, Clone, Copy)]
struct Limits {
    end: Option<Instant>,
    work: u64,
}

impl Limits {
    fn is_over(&self) -> bool {
        self.work == 0 || self.is_late()
    }

    fn is_late(&self) -> bool {
        guard::cancelled() || self.end.is_some_and(|end| Instant::now() >= end)
    }
}

/// Lowers a packing of a section to `goal`, or else as far as bisection gets. Also returns what no
/// packing is lower than.
fn lower(section: &Problem, goal: u64, mut best: Placement, limits: &mut Limits) -> (Placement, u64) {
    let mut target = goal;
    let mut failed = goal;
    let mut bound = 0;
    for step in 0..=BISECTIONS {
        if best.height <= goal || limits.is_over() {
            break;
        }
        // Half of what is left each time: most of it goes to the goal itself.
        let mut share = Limits { work: limits.work / 2, ..*limits };
        if step > 0 {
            share.work = share.work.min(BISECTION_WORK);
        }
        let given = share.work;
        let found = solve(section, target, &mut share);
        limits.work -= given - share.work;
        match found {
            Solved::Placed(found) => best = found,
            Solved::Above(least) => (failed, bound) = (target, bound.max(least)),
            Solved::GaveUp => failed = target,
        }
        target = failed + best.height.saturating_sub(failed) / 2;
        if target <= failed {
            break;
        }
    }
    (best, bound)
}

enum Solved {
    Placed(Placement),
    /// Every packing is at least so high.
    Above(u64),
    GaveUp,
}

/// A packing of a section that is at most `height` high, by short searches in many orders, then
/// longer ones.
fn solve(section: &Problem, height: u64, limits: &mut Limits) -> Solved {
    let exact = section.blocks.iter().fold(0, |unit, item| common(unit, item.bytes)).max(1);
    // Sizes whose sums are too large for the search are rounded up to a coarser unit.
    let unit = exact.max(height >> 24);
    let Some(mut search) = Search::new(&section.blocks, section.times, unit, height) else {
        return Solved::GaveUp;
    };
    let mut orders = greedy::search_orders(section);
    let fixed = orders.len();
    let mut work = FIRST_WORK;
    let mut seed = 0;
    loop {
        orders.truncate(fixed);
        orders.extend((0..MIXED).map(|i| greedy::mixed_order(section, seed + i)));
        seed += MIXED;
        for order in &orders {
            let given = work.min(limits.work);
            let outcome = search.run(order, given);
            limits.work -= given - search.work_left();
            match outcome {
                Outcome::Placed => {
                    let offsets: Vec<u64> =
                        (0..section.blocks.len()).map(|i| search.offset(i) * unit).collect();
                    let tops = section.blocks.iter().zip(&offsets).map(|(item, &at)| at + item.bytes);
                    let height = tops.max().unwrap_or(0);
                    return Solved::Placed(Placement { offsets, height });
                }
                // Heights of exact packings are multiples of the unit.
                Outcome::Impossible if unit == exact => {
                    return Solved::Above((height / unit + 1).saturating_mul(unit));
                }
                Outcome::Impossible => return Solved::GaveUp,
                Outcome::GaveUp => {}
            }
            if limits.is_over() {
                return Solved::GaveUp;
            }
        }
        work += work / 2;
    }
}

/// How many heights between the goal and the best packing are tried, and the work for each.
const BISECTIONS: usize = 5;
const BISECTION_WORK: u64 = 200_000_000;

/// Work of the first searches.
const FIRST_WORK: u64 = 1_000_000;

/// Random orders for each of the increasing limits.
const MIXED: u64 = 12;

/// Greatest common divisor.
fn common(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { common(b, a % b) }
}

/// A block whose times are ranks among the times at which something starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Item {
    id: usize,
    /// First and last rank at which it is alive.
    first: usize,
    last: usize,
    bytes: u64,
    /// The time it is alive, as given.
    span: u64,
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
                span: b.upper - b.lower,
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
