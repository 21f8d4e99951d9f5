//! Branch and bound for one packing problem and one height, after minimalloc (Moffitt and Fernando,
//! ASPLOS 2023).
//!
//! Blocks are placed in order of their offsets, each as low as those below it allow: every packing
//! can be brought into that form. So a block never goes below the last one placed, and a block is
//! not next if another one fits entirely below it. At each time, the blocks still to come must fit
//! under the height, each no lower than its lowest open place. Blocks that no longer share a time
//! with each other are separate problems.

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

/// Which of the blocks that may be next is tried first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum By {
    /// The one that lies lowest; then by rank.
    Offset,
    Rank,
}

pub(super) struct Search {
    first: Vec<u32>,
    last: Vec<u32>,
    size: Vec<i32>,
    height: i32,
    /// Lowest offset still open to each block that is not placed; its offset if it is.
    low: Vec<i32>,
    /// Scratch: how far the blocks reach at each time.
    tops: Vec<i32>,
    /// Place of each block in the order that breaks ties.
    rank: Vec<u32>,
    by: By,
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
            tops: vec![0; times],
            rank: vec![0; items.len()],
            by: By::Offset,
            work: 0,
        })
    }

    /// Looks for a packing until `work` block-times have been looked at; ties between blocks go to the one that is earlier in `order`. Offsets
    /// are then in [`Search::offset`].
    pub(super) fn run(&mut self, order: &[usize], by: By, work: u64) -> Outcome {
        self.by = by;
        for (rank, &block) in order.iter().enumerate() {
            self.rank[block] = rank as u32;
        }
        self.low.fill(0);
        self.work = work;
        let mut blocks: Vec<u32> = order.iter().map(|&i| i as u32).collect();
        blocks.sort_by_key(|&i| self.first[i as usize]);
        self.parts(blocks, (0, 0))
    }

    pub(super) fn work_left(&self) -> u64 {
        self.work
    }

    pub(super) fn offset(&self, block: usize) -> u64 {
        self.low[block].max(0) as u64
    }

    /// Places blocks, sorted by their first time, part by part where no time joins the parts; the
    /// part with the least room comes first.
    fn parts(&mut self, blocks: Vec<u32>, last: (i32, u32)) -> Outcome {
        let mut parts: Vec<(i32, usize, usize)> = Vec::new();
        let mut start = 0;
        let mut end = 0;
        for at in 0..=blocks.len() {
            if at > start && (at == blocks.len() || self.first[blocks[at] as usize] > end) {
                let reach = self.reach(&blocks[start..at]);
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
            let outcome = self.place(&blocks[start..at], last);
            if outcome != Outcome::Placed {
                return outcome;
            }
        }
        Outcome::Placed
    }

    fn place(&mut self, blocks: &[u32], last: (i32, u32)) -> Outcome {
        let top = |s: &Self, i: u32| s.low[i as usize] + s.size[i as usize];
        let limit = blocks.iter().map(|&i| top(self, i)).min().unwrap_or(0);
        let mut candidates: Vec<u32> = blocks
            .iter()
            .copied()
            .filter(|&i| {
                let low = self.low[i as usize];
                // The other order of two blocks at one offset has been tried.
                low < limit && (low, self.rank[i as usize]) >= last
            })
            .collect();
        match self.by {
            By::Offset => candidates.sort_unstable_by_key(|&i| (self.low[i as usize], self.rank[i as usize])),
            By::Rank => candidates.sort_unstable_by_key(|&i| self.rank[i as usize]),
        }
        let saved: Vec<i32> = blocks.iter().map(|&i| self.low[i as usize]).collect();
        for chosen in candidates {
            let (outcome, covered) = self.try_block(blocks, chosen);
            if outcome != Outcome::Impossible {
                return outcome;
            }
            for (&i, &low) in blocks.iter().zip(&saved) {
                self.low[i as usize] = low;
            }
            if !covered {
                // Nothing goes above it: it was out of everybody's way.
                return Outcome::Impossible;
            }
        }
        Outcome::Impossible
    }

    /// Places one block and then the others. Also tells whether an unplaced one shares a time.
    fn try_block(&mut self, blocks: &[u32], chosen: u32) -> (Outcome, bool) {
        let c = chosen as usize;
        let (first, last) = (self.first[c], self.last[c]);
        let offset = self.low[c];
        let top = offset + self.size[c];
        let mut covered = false;
        let mut fits = true;
        for &i in blocks {
            let i = i as usize;
            if i == c {
                continue;
            }
            let shares = self.first[i] <= last && first <= self.last[i];
            covered |= shares;
            let low = self.low[i].max(if shares { top } else { offset });
            self.low[i] = low;
            fits &= low + self.size[i] <= self.height;
        }
        if !fits {
            return (Outcome::Impossible, covered);
        }
        let rest: Vec<u32> = blocks.iter().copied().filter(|&i| i != chosen).collect();
        let outcome = self.parts(rest, (offset, self.rank[c]));
        (outcome, covered)
    }

    /// How far the blocks reach at the worst time if each time were filled on its own: there, blocks
    /// go on top of each other in the order of their lowest open places.
    fn reach(&mut self, blocks: &[u32]) -> i32 {
        let start = blocks.iter().map(|&i| self.first[i as usize]).min().unwrap_or(0) as usize;
        let end = blocks.iter().map(|&i| self.last[i as usize]).max().unwrap_or(0) as usize;
        let mut sorted: Vec<u32> = blocks.to_vec();
        sorted.sort_unstable_by_key(|&i| self.low[i as usize]);
        self.tops[start..=end].fill(0);
        let mut work = 8 * sorted.len() as u64;
        for &i in &sorted {
            let i = i as usize;
            work += u64::from(self.last[i] - self.first[i]);
            let (low, size) = (self.low[i], self.size[i]);
            for top in &mut self.tops[self.first[i] as usize..=self.last[i] as usize] {
                *top = (*top).max(low) + size;
            }
        }
        self.work = self.work.saturating_sub(work);
        self.tops[start..=end].iter().copied().max().unwrap_or(0)
    }
}
