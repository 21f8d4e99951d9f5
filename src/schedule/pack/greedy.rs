//! Greedy placements: blocks one after another, each into a gap between those that are placed.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

use super::{
    Item, Limits, Placement, Problem,
    gaps::{Reordering, gaps},
};

/// After this many neighbours looked at, no more gaps are searched: on large problems the
/// near-linear placements decide.
const GAP_WORK: u64 = 4_000_000;

/// The same for placements that are made again with other orders.
const REORDER_WORK: u64 = 4_000_000;

/// Tries the placements, cheap ones first, until one reaches `goal` or the time is over; the lowest
/// arena otherwise. The first placement is always made.
pub(super) fn portfolio(problem: &Problem, goal: u64, limits: &Limits) -> Placement {
    let mut best = by_time(problem, Fit::Lowest);
    let mut keep = |found: Option<Placement>| {
        if let Some(found) = found
            && found.height < best.height
        {
            best = found;
        }
        best.height <= goal || limits.is_late()
    };
    if keep(None) || keep(Some(by_time(problem, Fit::Best))) {
        return best;
    }
    let orders = orders(&problem.blocks);
    for order in &orders {
        if keep(Some(stacked(problem, order))) {
            return best;
        }
    }
    // A few rounds from one order reach the goal in most graphs of training steps, sooner than the
    // other orders do.
    let fits = [Fit::Lowest, Fit::Best];
    let each = fits.into_iter().flat_map(|fit| orders.iter().map(move |order| Reordering::new(order, fit)));
    let mut reorderings: Vec<Reordering> = each.collect();
    let mut left = REORDER_WORK;
    if let Some(first) = reorderings.first_mut() {
        let mut few = left / 8;
        left -= few;
        if keep(first.run(problem, goal, &mut few)) {
            return best;
        }
        left += few;
    }
    let mut work = GAP_WORK;
    for fit in fits {
        for order in &orders {
            if keep(gaps(problem, order, fit, &mut work)) {
                return best;
            }
        }
    }
    for reordering in &mut reorderings {
        if keep(reordering.run(problem, goal, &mut left)) {
            return best;
        }
    }
    best
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fit {
    /// The lowest gap that is large enough.
    Lowest,
    /// The smallest gap that is large enough.
    Best,
}

/// Orders in which blocks are placed: large ones, long ones and large areas first, and by time.
pub(super) fn orders(blocks: &[Item]) -> Vec<Vec<usize>> {
    let life = |i: usize| (blocks[i].last - blocks[i].first + 1) as u64;
    let area = |i: usize| u128::from(life(i)) * u128::from(blocks[i].bytes);
    let sorted = |key: &dyn Fn(usize) -> (u128, u128)| {
        let mut order: Vec<usize> = (0..blocks.len()).collect();
        order.sort_by_cached_key(|&i| (Reverse(key(i)), blocks[i].first));
        order
    };
    let size = |i: usize| u128::from(blocks[i].bytes);
    vec![
        sorted(&|i| (u128::from(life(i)), size(i))),
        sorted(&|i| (size(i), u128::from(life(i)))),
        sorted(&|i| (area(i), size(i))),
        sorted(&|i| (size(i), u128::MAX - blocks[i].first as u128)),
        sorted(&|i| (u128::MAX - blocks[i].first as u128, size(i))),
        sorted(&|i| (blocks[i].last as u128, size(i))),
    ]
}

/// Orders that break ties in searches: long, large and crowded blocks first.
pub(super) fn search_orders(problem: &Problem) -> Vec<Vec<usize>> {
    let blocks = &problem.blocks;
    let mut change = vec![0i128; problem.times + 1];
    for block in blocks {
        change[block.first] += i128::from(block.bytes);
        change[block.last + 1] -= i128::from(block.bytes);
    }
    let mut now = 0;
    let crowd: Vec<i128> = change[..problem.times]
        .iter()
        .map(|delta| {
            now += delta;
            now
        })
        .collect();
    let total = |i: usize| crowd[blocks[i].first..=blocks[i].last].iter().copied().max().unwrap_or(0);
    let life = |i: usize| (blocks[i].last - blocks[i].first + 1) as i128;
    let area = |i: usize| life(i) * i128::from(blocks[i].bytes);
    let sorted = |key: &dyn Fn(usize) -> [i128; 3]| {
        let mut order: Vec<usize> = (0..blocks.len()).collect();
        order.sort_by_cached_key(|&i| (Reverse(key(i)), i));
        order
    };
    let span = |i: usize| i128::from(blocks[i].span);
    let room = |i: usize| span(i).saturating_mul(i128::from(blocks[i].bytes));
    vec![
        sorted(&|i| [area(i), life(i), total(i)]),
        sorted(&|i| [total(i), life(i), area(i)]),
        sorted(&|i| [life(i), area(i), total(i)]),
        sorted(&|i| [total(i), area(i), life(i)]),
        sorted(&|i| [span(i), room(i), total(i)]),
        sorted(&|i| [total(i), room(i), span(i)]),
        sorted(&|i| [total(i), span(i), room(i)]),
        sorted(&|i| [life(i), room(i), total(i)]),
    ]
}

/// An order by a random mixture of the same traits.
pub(super) fn mixed_order(problem: &Problem, seed: u64) -> Vec<usize> {
    let blocks = &problem.blocks;
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut random = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    };
    let weights = [random(), random(), random() * 0.4];
    let mut keyed: Vec<(f64, usize)> = (0..blocks.len())
        .map(|i| {
            let life = ((blocks[i].last - blocks[i].first + 1) as f64).ln();
            let size = (blocks[i].bytes as f64).ln();
            (weights[0] * life + weights[1] * size + weights[2] * random(), i)
        })
        .collect();
    keyed.sort_by(|a, b| b.0.total_cmp(&a.0));
    keyed.into_iter().map(|(_, i)| i).collect()
}

/// Blocks in the order of their start into the free ranges of that moment, as an allocator that
/// runs along would.
fn by_time(problem: &Problem, fit: Fit) -> Placement {
    let blocks = &problem.blocks;
    let mut starts: Vec<usize> = (0..blocks.len()).collect();
    starts.sort_by_key(|&i| (blocks[i].first, Reverse(blocks[i].last), Reverse(blocks[i].bytes)));
    let mut ends: Vec<usize> = (0..blocks.len()).collect();
    ends.sort_by_key(|&i| blocks[i].last);
    let mut ends = ends.into_iter().peekable();
    let mut offsets = vec![0u64; blocks.len()];
    let mut height = 0u64;
    let mut free = Free::default();
    for i in starts {
        let block = blocks[i];
        while let Some(dead) = ends.next_if(|&d| blocks[d].last < block.first) {
            free.release(offsets[dead], blocks[dead].bytes);
        }
        let offset = match free.find(block.bytes, fit) {
            Some(gap) => {
                free.claim(gap, block.bytes);
                gap
            }
            // The free range at the top, if any, is extended.
            None => match free.top(height) {
                Some(gap) => {
                    free.claim(gap, height - gap);
                    gap
                }
                None => height,
            },
        };
        offsets[i] = offset;
        height = height.max(offset.saturating_add(block.bytes));
    }
    Placement { offsets, height }
}

/// Free ranges by offset and by length.
#[derive(Debug, Default)]
struct Free {
    by_offset: BTreeMap<u64, u64>,
    by_length: BTreeSet<(u64, u64)>,
}

impl Free {
    fn insert(&mut self, offset: u64, length: u64) {
        self.by_offset.insert(offset, length);
        self.by_length.insert((length, offset));
    }

    fn remove(&mut self, offset: u64) -> u64 {
        let length = self.by_offset.remove(&offset).unwrap_or(0);
        self.by_length.remove(&(length, offset));
        length
    }

    fn release(&mut self, mut offset: u64, mut length: u64) {
        if let Some((&before, &size)) = self.by_offset.range(..offset).next_back()
            && before.saturating_add(size) == offset
        {
            self.remove(before);
            offset = before;
            length = length.saturating_add(size);
        }
        if self.by_offset.contains_key(&offset.saturating_add(length)) {
            let after = self.remove(offset.saturating_add(length));
            length = length.saturating_add(after);
        }
        self.insert(offset, length);
    }

    fn find(&self, length: u64, fit: Fit) -> Option<u64> {
        match fit {
            Fit::Best => self.by_length.range((length, 0)..).next().map(|&(_, offset)| offset),
            Fit::Lowest => self.by_offset.iter().find(|&(_, &size)| size >= length).map(|(&at, _)| at),
        }
    }

    /// The free range that ends at `height`.
    fn top(&self, height: u64) -> Option<u64> {
        let (&at, &size) = self.by_offset.iter().next_back()?;
        (at.saturating_add(size) == height).then_some(at)
    }

    fn claim(&mut self, offset: u64, length: u64) {
        let size = self.remove(offset);
        if size > length {
            self.insert(offset.saturating_add(length), size - length);
        }
    }
}

/// Each block on top of all that are placed and alive with it; gaps below stay empty. Exact for
/// nested lifetimes when long ones come first.
fn stacked(problem: &Problem, order: &[usize]) -> Placement {
    let mut skyline = Skyline::new(problem.times);
    let mut offsets = vec![0u64; problem.blocks.len()];
    let mut height = 0;
    for &i in order {
        let block = problem.blocks[i];
        let offset = skyline.max(block.first, block.last);
        offsets[i] = offset;
        let top = offset.saturating_add(block.bytes);
        skyline.raise(block.first, block.last, top);
        height = height.max(top);
    }
    Placement { offsets, height }
}

/// Maxima over ranges; raising a range to a value. Raises only ever go above what is there.
#[derive(Debug)]
struct Skyline {
    width: usize,
    /// Largest height in the subtree, and the height that holds for all of it.
    largest: Vec<u64>,
    whole: Vec<u64>,
}

impl Skyline {
    fn new(times: usize) -> Skyline {
        let width = times.next_power_of_two().max(1);
        Skyline { width, largest: vec![0; width * 2], whole: vec![0; width * 2] }
    }

    fn max(&self, first: usize, last: usize) -> u64 {
        let (mut lo, mut hi) = (self.width + first, self.width + last + 1);
        let (first, last) = (lo, hi - 1);
        let mut best = 0;
        while lo < hi {
            if lo % 2 == 1 {
                best = best.max(self.largest[lo]);
                lo += 1;
            }
            if hi % 2 == 1 {
                hi -= 1;
                best = best.max(self.largest[hi]);
            }
            lo /= 2;
            hi /= 2;
        }
        for mut at in [first, last] {
            while at > 0 {
                best = best.max(self.whole[at]);
                at /= 2;
            }
        }
        best
    }

    fn raise(&mut self, first: usize, last: usize, top: u64) {
        let (mut lo, mut hi) = (self.width + first, self.width + last + 1);
        let (first, last) = (lo, hi - 1);
        while lo < hi {
            if lo % 2 == 1 {
                self.cover(lo, top);
                lo += 1;
            }
            if hi % 2 == 1 {
                hi -= 1;
                self.cover(hi, top);
            }
            lo /= 2;
            hi /= 2;
        }
        for mut at in [first, last] {
            while at > 1 {
                at /= 2;
                self.largest[at] = self.largest[at * 2].max(self.largest[at * 2 + 1]).max(self.whole[at]);
            }
        }
    }

    fn cover(&mut self, node: usize, top: u64) {
        self.whole[node] = self.whole[node].max(top);
        self.largest[node] = self.largest[node].max(top);
    }
}
