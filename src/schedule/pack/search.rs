//! Branch and bound for one packing problem and one height, after minimalloc (Moffitt and Fernando,
//! ASPLOS 2023).
//!
//! Blocks are placed in order of their offsets, each as low as those below it allow: every packing
//! can be brought into that form. So a block never goes below the last one placed, and a block is
//! not next if another one fits entirely below it. At each time, what is placed, the lowest place
//! open there and the blocks still to come must fit under the height. Blocks that no longer share
//! a time with each other are separate problems.

use super::Item;

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
    /// Lowest offset still open to each block that is not placed; its offset if it is.
    low: Vec<i32>,
    /// Sum of sizes of unplaced blocks at each time.
    to_come: Vec<i32>,
    /// Scratch: lowest place open at each time.
    floor: Vec<i32>,
    /// Place of each block in the order that breaks ties.
    rank: Vec<u32>,
    nodes: u64,
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
        let mut to_come = vec![0; times];
        for (item, &size) in items.iter().zip(&size) {
            to_come[item.first..=item.last].iter_mut().for_each(|t| *t += size);
        }
        Some(Search {
            first: items.iter().map(|i| i.first as u32).collect(),
            last: items.iter().map(|i| i.last as u32).collect(),
            size,
            height: height as i32,
            low: vec![0; items.len()],
            to_come,
            floor: vec![0; times],
            rank: vec![0; items.len()],
            nodes: 0,
        })
    }

    /// Looks for a packing; ties between blocks go to the one that is earlier in `order`. Offsets
    /// are then in [`Search::offset`].
    pub(super) fn run(&mut self, order: &[usize], nodes: u64) -> Outcome {
        for (rank, &block) in order.iter().enumerate() {
            self.rank[block] = rank as u32;
        }
        self.low.fill(0);
        self.nodes = nodes;
        let mut blocks: Vec<u32> = order.iter().map(|&i| i as u32).collect();
        blocks.sort_by_key(|&i| self.first[i as usize]);
        self.parts(blocks, (0, 0))
    }

    pub(super) fn offset(&self, block: usize) -> u64 {
        self.low[block].max(0) as u64
    }

    /// Places blocks, sorted by their first time, part by part where no time joins the parts.
    fn parts(&mut self, blocks: Vec<u32>, last: (i32, u32)) -> Outcome {
        let mut start = 0;
        let mut end = 0;
        for at in 0..blocks.len() {
            let i = blocks[at] as usize;
            if at > start && self.first[i] > end {
                let outcome = self.place(&blocks[start..at], last);
                if outcome != Outcome::Placed {
                    return outcome;
                }
                start = at;
                end = 0;
            }
            end = end.max(self.last[i]);
        }
        if start == blocks.len() { Outcome::Placed } else { self.place(&blocks[start..], last) }
    }

    fn place(&mut self, blocks: &[u32], last: (i32, u32)) -> Outcome {
        if self.nodes == 0 {
            return Outcome::GaveUp;
        }
        self.nodes -= 1;
        if !self.fits(blocks) {
            return Outcome::Impossible;
        }
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
        candidates.sort_unstable_by_key(|&i| (self.low[i as usize], self.rank[i as usize]));
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
        let size = self.size[c];
        let span = first as usize..=last as usize;
        self.to_come[span.clone()].iter_mut().for_each(|t| *t -= size);
        let rest: Vec<u32> = blocks.iter().copied().filter(|&i| i != chosen).collect();
        let outcome = self.parts(rest, (offset, self.rank[c]));
        self.to_come[span].iter_mut().for_each(|t| *t += size);
        (outcome, covered)
    }

    /// Whether at each time the blocks to come fit between the lowest open place and the height.
    fn fits(&mut self, blocks: &[u32]) -> bool {
        let start = blocks.iter().map(|&i| self.first[i as usize]).min().unwrap_or(0) as usize;
        let end = blocks.iter().map(|&i| self.last[i as usize]).max().unwrap_or(0) as usize;
        self.floor[start..=end].fill(i32::MAX / 2);
        for &i in blocks {
            let i = i as usize;
            let low = self.low[i];
            for floor in &mut self.floor[self.first[i] as usize..=self.last[i] as usize] {
                *floor = (*floor).min(low);
            }
        }
        let height = self.height;
        self.floor[start..=end]
            .iter()
            .zip(&self.to_come[start..=end])
            .all(|(&floor, &to_come)| to_come == 0 || floor + to_come <= height)
    }
}
