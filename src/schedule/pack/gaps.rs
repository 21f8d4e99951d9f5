//! Placements into the gaps between blocks that lie already.

use super::{Placement, Problem, greedy::Fit};

/// How many placements in a row may be no lower before blocks are no longer reordered.
const REORDER_PATIENCE: usize = 4;

/// Places blocks into gaps again and again: those that end above the goal come first in the next
/// round, where the best places are still free (squeaky wheel optimisation; Joslin and Clements, 1999).
pub(super) struct Reordering {
    order: Vec<usize>,
    fit: Fit,
    /// The lowest so far.
    height: u64,
    patience: usize,
}

impl Reordering {
    pub(super) fn new(order: &[usize], fit: Fit) -> Self {
        Reordering { order: order.to_vec(), fit, height: u64::MAX, patience: REORDER_PATIENCE }
    }

    /// Goes on from where it was until `work` runs out or nothing gets lower; the lowest placement, if it
    /// is lower than all before.
    pub(super) fn run(&mut self, problem: &Problem, goal: u64, work: &mut u64) -> Option<Placement> {
        let mut best = None;
        while self.patience > 0
            && self.height > goal
            && let Some(found) = gaps(problem, &self.order, self.fit, work)
        {
            let is_high = |i: usize| found.offsets[i].saturating_add(problem.blocks[i].bytes) > goal;
            let (mut next, low): (Vec<usize>, Vec<usize>) = self.order.iter().partition(|&&i| is_high(i));
            next.extend(low);
            let is_same = next == self.order;
            self.order = next;
            if found.height < self.height {
                self.height = found.height;
                best = Some(found);
                self.patience = REORDER_PATIENCE;
            } else {
                self.patience -= 1;
            }
            if is_same {
                self.patience = 0;
            }
        }
        best
    }
}

/// Up to so many blocks, those that are placed are kept in the order of their offsets, and gaps are
/// looked for along all of them; beyond, along those that are alive with a block, which have to be found and sorted.
const SCANNED: usize = 8192;

/// Each block into a gap between the placed blocks that are alive with it. `None` when `work` ran
/// out.
pub(super) fn gaps(problem: &Problem, order: &[usize], fit: Fit, work: &mut u64) -> Option<Placement> {
    if problem.blocks.len() > SCANNED {
        return gaps_by_tree(problem, order, fit, work);
    }
    // Packed, as this is the innermost loop: offset, top, first and last time.
    let mut placed: Vec<(u64, u64, u32, u32)> = Vec::with_capacity(order.len());
    let mut offsets = vec![0u64; problem.blocks.len()];
    let mut height = 0;
    for &i in order {
        let block = problem.blocks[i];
        let (first, last) = (block.first as u32, block.last as u32);
        let mut gap = Gap::new(block.bytes, fit);
        let mut looked_at = 0;
        for &(from, to, start, end) in &placed {
            if start <= last && first <= end {
                looked_at += 1;
                if gap.is_found_below(from, to) {
                    break;
                }
            }
        }
        *work = work.checked_sub(looked_at + placed.len() as u64 / 16 + 1)?;
        let offset = gap.offset();
        offsets[i] = offset;
        let top = offset.saturating_add(block.bytes);
        let at = placed.partition_point(|other| other.0 <= offset);
        placed.insert(at, (offset, top, first, last));
        height = height.max(top);
    }
    Some(Placement { offsets, height })
}

fn gaps_by_tree(problem: &Problem, order: &[usize], fit: Fit, work: &mut u64) -> Option<Placement> {
    let mut placed = Overlaps::new(problem.times, problem.blocks.len());
    let mut offsets = vec![0u64; problem.blocks.len()];
    let mut height = 0;
    let mut near: Vec<(u64, u64)> = Vec::new();
    for &i in order {
        let block = problem.blocks[i];
        near.clear();
        let looked_at = placed.visit(block.first, block.last, |other| {
            near.push((offsets[other], offsets[other].saturating_add(problem.blocks[other].bytes)));
        });
        *work = work.checked_sub(looked_at + 1)?;
        near.sort_unstable();
        let mut gap = Gap::new(block.bytes, fit);
        let _ = near.iter().any(|&(from, to)| gap.is_found_below(from, to));
        let offset = gap.offset();
        offsets[i] = offset;
        placed.insert(i, block.first, block.last);
        height = height.max(offset.saturating_add(block.bytes));
    }
    Some(Placement { offsets, height })
}

/// A gap for a block, looked for along taken ranges in the order of their offsets.
struct Gap {
    bytes: u64,
    fit: Fit,
    /// Above all ranges so far.
    top: u64,
    /// Size and offset of the smallest one that is large enough.
    best: Option<(u64, u64)>,
}

impl Gap {
    fn new(bytes: u64, fit: Fit) -> Gap {
        Gap { bytes, fit, top: 0, best: None }
    }

    /// The next range. True if what comes after it does not matter.
    fn is_found_below(&mut self, from: u64, to: u64) -> bool {
        if from >= self.top && from - self.top >= self.bytes {
            let size = from - self.top;
            if self.best.is_none_or(|(least, _)| size < least) {
                self.best = Some((size, self.top));
            }
            if self.fit == Fit::Lowest {
                return true;
            }
        }
        self.top = self.top.max(to);
        false
    }

    fn offset(&self) -> u64 {
        self.best.map_or(self.top, |(_, offset)| offset)
    }
}

/// Which inserted blocks overlap a range of times: a segment tree with the blocks that cover a
/// node's range, and those that lie within it.
#[derive(Debug)]
struct Overlaps {
    width: usize,
    covering: Vec<Vec<u32>>,
    within: Vec<Vec<u32>>,
    stamp: Vec<u32>,
    clock: u32,
}

impl Overlaps {
    fn new(times: usize, blocks: usize) -> Overlaps {
        let width = times.next_power_of_two().max(1);
        Overlaps {
            width,
            covering: vec![Vec::new(); width * 2],
            within: vec![Vec::new(); width * 2],
            stamp: vec![0; blocks],
            clock: 0,
        }
    }

    fn insert(&mut self, block: usize, first: usize, last: usize) {
        let (mut lo, mut hi) = (self.width + first, self.width + last + 1);
        let mut above = (lo / 2, (hi - 1) / 2);
        while lo < hi {
            if lo % 2 == 1 {
                self.covering[lo].push(block as u32);
                lo += 1;
            }
            if hi % 2 == 1 {
                hi -= 1;
                self.covering[hi].push(block as u32);
            }
            lo /= 2;
            hi /= 2;
        }
        while above.0 > 0 {
            self.within[above.0].push(block as u32);
            if above.1 != above.0 {
                self.within[above.1].push(block as u32);
            }
            above = (above.0 / 2, above.1 / 2);
        }
    }

    /// Calls `each` once for every inserted block that overlaps the range. Returns the entries it
    /// looked at.
    fn visit(&mut self, first: usize, last: usize, mut each: impl FnMut(usize)) -> u64 {
        self.clock += 1;
        let mut looked_at = 0;
        let clock = self.clock;
        let stamp = &mut self.stamp;
        let mut list = |blocks: &[u32]| {
            looked_at += blocks.len() as u64;
            for &b in blocks {
                if stamp[b as usize] != clock {
                    stamp[b as usize] = clock;
                    each(b as usize);
                }
            }
        };
        let (mut lo, mut hi) = (self.width + first, self.width + last + 1);
        let mut above = (lo, hi - 1);
        while lo < hi {
            if lo % 2 == 1 {
                list(&self.covering[lo]);
                list(&self.within[lo]);
                lo += 1;
            }
            if hi % 2 == 1 {
                hi -= 1;
                list(&self.covering[hi]);
                list(&self.within[hi]);
            }
            lo /= 2;
            hi /= 2;
        }
        while above.0 > 0 {
            list(&self.covering[above.0]);
            if above.1 != above.0 {
                list(&self.covering[above.1]);
            }
            above = (above.0 / 2, above.1 / 2);
        }
        looked_at
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::pack::{Block, greedy::orders};

    /// Blocks whose lives and sizes follow no pattern.
    fn scattered(count: u64) -> Problem {
        let blocks: Vec<Block> = (0..count)
            .map(|i| {
                let lower = i * 7919 % 97;
                Block { lower, upper: lower + 1 + i * 104_729 % 23, bytes: 1 + i * 31 % 17 }
            })
            .collect();
        Problem::new(&blocks)
    }

    #[test]
    fn both_ways_to_look_for_gaps_give_the_same_offsets() {
        let problem = scattered(300);
        for order in orders(&problem.blocks) {
            for fit in [Fit::Lowest, Fit::Best] {
                let (mut work, mut more) = (u64::MAX, u64::MAX);
                let scanned = gaps(&problem, &order, fit, &mut work).map(|p| p.offsets);
                let found = gaps_by_tree(&problem, &order, fit, &mut more).map(|p| p.offsets);
                assert!(scanned.is_some());
                assert_eq!(scanned, found);
            }
        }
    }

    #[test]
    fn placing_high_blocks_first_lowers_the_arena() {
        // The third finds no room below the second, which could lie above it.
        let block = |lower, upper, bytes| Block { lower, upper, bytes };
        let blocks = [block(0, 2, 2), block(1, 4, 2), block(3, 5, 3)];
        let problem = Problem::new(&blocks);
        let order: Vec<usize> = (0..blocks.len()).collect();
        let once = gaps(&problem, &order, Fit::Lowest, &mut u64::MAX.clone()).map(|p| p.height);
        let again = Reordering::new(&order, Fit::Lowest).run(&problem, problem.load, &mut u64::MAX.clone());
        assert_eq!((once, again.map(|p| p.height), problem.load), (Some(7), Some(5), 5));
    }
}
