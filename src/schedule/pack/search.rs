//! Branch and bound for one packing problem and one height, after minimalloc (Moffitt and Fernando,
//! ASPLOS 2023), with stronger bounds.
//!
//! Take a packing whose offsets have the least sum, and its blocks in the order of their offsets.
//! Each then lies at 0 or right on top of an earlier one: at its lowest open place. So blocks are
//! placed in that order and only there; equal offsets come in the order of ranks. Two more things
//! follow.
//!
//! - A block whose place is below the last one placed has missed its turn. It moves up only if one
//!   that is still to come, and that it shares a time with, gets in its way; it then lies above
//!   that one. If none can, there is no such packing.
//! - A block is not next if another fits entirely below it: nothing could come in that one's way.
//!
//! At each time, the blocks still to come must fit under the height, each no lower than the least
//! offset that it can have. Blocks that no longer share a time with each other are separate
//! problems.

use super::Item;
use crate::guard;

/// A search with more blocks than this is not started.
pub(super) const MOST_BLOCKS: usize = 4_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    Placed,
    /// There is no packing of this height.
    Impossible,
    GaveUp,
}

pub(super) struct Search {
    first: Vec<u32>,
    last: Vec<u32>,
    size: Vec<i32>,
    height: i32,
    /// Lowest open place of each block that is not placed; its offset if it is.
    low: Vec<i32>,
    /// What a block that is not placed must have at least, by the order of offsets.
    least: Vec<i32>,
    /// Scratch: how far the blocks reach at each time.
    tops: Vec<i32>,
    /// Place of each block in the order that breaks ties.
    rank: Vec<u32>,
    work: u64,
}

impl Search {
    /// `items` with sizes in `unit` bytes, rounded up; `times` is the number of ranks in use.
    pub(super) fn new(items: &[Item], times: usize, unit: u64, height: u64) -> Option<Search> {
        let most = i64::from(i32::MAX / 4);
        let total: u128 = items.iter().map(|i| u128::from(i.bytes.div_ceil(unit))).sum();
        let height = i64::try_from(height / unit).ok()?;
        if height > most || total > most as u128 || items.len() > MOST_BLOCKS {
            return None;
        }
        let size: Vec<i32> = items.iter().map(|i| i.bytes.div_ceil(unit) as i32).collect();
        Some(Search {
            first: items.iter().map(|i| i.first as u32).collect(),
            last: items.iter().map(|i| i.last as u32).collect(),
            size,
            height: height as i32,
            low: vec![0; items.len()],
            least: vec![0; items.len()],
            tops: vec![0; times],
            rank: vec![0; items.len()],
            work: 0,
        })
    }

    /// Looks for a packing until `work` block-times have been looked at. Of the blocks that may be
    /// next, the lowest comes first, then the one that is earlier in `order`. Offsets are then in
    /// [`Search::offset`].
    pub(super) fn run(&mut self, order: &[usize], work: u64) -> Outcome {
        for (rank, &block) in order.iter().enumerate() {
            self.rank[block] = rank as u32;
        }
        self.low.fill(0);
        self.work = work;
        let mut blocks: Vec<u32> = order.iter().map(|&i| i as u32).collect();
        blocks.sort_by_key(|&i| self.first[i as usize]);
        self.parts(&blocks, (0, 0))
    }

    pub(super) fn work_left(&self) -> u64 {
        self.work
    }

    pub(super) fn offset(&self, block: usize) -> u64 {
        self.low[block].max(0) as u64
    }

    /// Places blocks, sorted by their first time, part by part where no time joins the parts; the
    /// part with the least room comes first. `last` is the offset and rank of the last one placed.
    fn parts(&mut self, blocks: &[u32], last: (i32, u32)) -> Outcome {
        let mut parts: Vec<(i32, usize, usize)> = Vec::new();
        let mut start = 0;
        let mut end = 0;
        for at in 0..=blocks.len() {
            if at > start && (at == blocks.len() || self.first[blocks[at] as usize] > end) {
                let part = &blocks[start..at];
                let reach = if self.raise(part, last) { self.reach(part) } else { i32::MAX };
                if self.work == 0 || guard::cancelled() {
                    return Outcome::GaveUp;
                }
                if reach > self.height {
                    return Outcome::Impossible;
                }
                parts.push((reach, start, at));
                start = at;
                end = 0;
            }
            if at < blocks.len() {
                end = end.max(self.last[blocks[at] as usize]);
            }
        }
        parts.sort_unstable_by_key(|&(reach, start, at)| (std::cmp::Reverse(reach), at - start));
        for (_, start, at) in parts {
            // One block alone lies at its lowest place, turn or no turn.
            if at - start > 1 {
                let outcome = self.place(&blocks[start..at], last);
                if outcome != Outcome::Placed {
                    return outcome;
                }
            }
        }
        Outcome::Placed
    }

    fn has_turn(&self, block: usize, last: (i32, u32)) -> bool {
        (self.low[block], self.rank[block]) >= last
    }

    fn place(&mut self, blocks: &[u32], last: (i32, u32)) -> Outcome {
        let tops = blocks.iter().map(|&i| self.low[i as usize] + self.size[i as usize]);
        let limit = tops.min().unwrap_or(0);
        let mut candidates: Vec<u32> = blocks
            .iter()
            .copied()
            .filter(|&i| self.low[i as usize] < limit && self.has_turn(i as usize, last))
            .collect();
        candidates.sort_unstable_by_key(|&i| (self.low[i as usize], self.rank[i as usize]));
        let saved: Vec<i32> = blocks.iter().map(|&i| self.low[i as usize]).collect();
        for chosen in candidates {
            let outcome = self.place_next(blocks, chosen as usize);
            if outcome != Outcome::Impossible {
                return outcome;
            }
            for (&i, &low) in blocks.iter().zip(&saved) {
                self.low[i as usize] = low;
            }
        }
        Outcome::Impossible
    }

    /// Places one block and then the others.
    fn place_next(&mut self, blocks: &[u32], chosen: usize) -> Outcome {
        let (first, last) = (self.first[chosen], self.last[chosen]);
        let offset = self.low[chosen];
        let top = offset + self.size[chosen];
        let mut rest = Vec::with_capacity(blocks.len() - 1);
        for &i in blocks {
            let u = i as usize;
            if u == chosen {
                continue;
            }
            rest.push(i);
            if self.first[u] <= last && first <= self.last[u] {
                self.low[u] = self.low[u].max(top);
                if self.low[u] + self.size[u] > self.height {
                    return Outcome::Impossible;
                }
            }
        }
        self.parts(&rest, (offset, self.rank[chosen]))
    }

    /// Works out the least offsets of a part. False if a block has missed its turn for good.
    fn raise(&mut self, blocks: &[u32], last: (i32, u32)) -> bool {
        let mut late = false;
        for &i in blocks {
            let u = i as usize;
            let has_turn = self.has_turn(u, last);
            late |= !has_turn;
            self.least[u] = if has_turn { self.low[u] } else { self.low[u].max(last.0) };
        }
        if let &[only] = blocks {
            self.least[only as usize] = self.low[only as usize];
            return true;
        }
        if !late {
            return true;
        }
        let mut looked_at = 0;
        let mut possible = true;
        for &i in blocks {
            let u = i as usize;
            if self.has_turn(u, last) {
                continue;
            }
            let ceiling = self.low[u] + self.size[u];
            let mut above = i32::MAX;
            for &j in blocks {
                let w = j as usize;
                looked_at += 1;
                if self.first[w] > self.last[u] {
                    break;
                }
                if j != i && self.last[w] >= self.first[u] && self.least[w] < ceiling {
                    above = above.min(self.least[w] + self.size[w]);
                }
            }
            if above == i32::MAX || above + self.size[u] > self.height {
                possible = false;
                break;
            }
            self.least[u] = self.least[u].max(above);
        }
        self.work = self.work.saturating_sub(looked_at / 2);
        possible
    }

    /// How far the blocks reach at the worst time if each time were filled on its own: there, blocks
    /// go on top of each other in the order of their least offsets.
    fn reach(&mut self, blocks: &[u32]) -> i32 {
        let start = blocks.iter().map(|&i| self.first[i as usize]).min().unwrap_or(0) as usize;
        let end = blocks.iter().map(|&i| self.last[i as usize]).max().unwrap_or(0) as usize;
        let mut sorted: Vec<u32> = blocks.to_vec();
        sorted.sort_unstable_by_key(|&i| self.least[i as usize]);
        self.tops[start..=end].fill(0);
        let mut work = 8 * sorted.len() as u64;
        for &i in &sorted {
            let i = i as usize;
            work += u64::from(self.last[i] - self.first[i]);
            let (low, size) = (self.least[i], self.size[i]);
            for top in &mut self.tops[self.first[i] as usize..=self.last[i] as usize] {
                *top = (*top).max(low) + size;
            }
        }
        self.work = self.work.saturating_sub(work);
        self.tops[start..=end].iter().copied().max().unwrap_or(0)
    }
}
