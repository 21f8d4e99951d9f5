//! Fewer launches for the same work. Addresses are fixed when a step is prepared, so its work may run in any
//! order that keeps each hazard between bytes: what was written before it is read, what was read before it is
//! overwritten. In such an order, launches of one kernel that do not wait for each other come together and
//! become one. The memory of the plan stays as it is.

use std::{collections::BTreeSet, sync::Arc};

use rustc_hash::FxHashMap;

use super::{
    hazards::{self, Touch},
    kernels::merged::{self, TABLE_WORDS},
    work::{Launch, Work},
};
use crate::schedule::OpId;

/// Blocks of one launch, on every device.
const MOST_BLOCKS: u64 = i32::MAX as u64;

/// A piece of work, with an op that it is done for and the bytes that it touches.
pub(super) struct Item {
    pub op: OpId,
    pub work: Work,
    pub touches: Vec<Touch>,
}

/// Work in an order and in launches of its own; what it computes has the same bits.
pub(super) fn merged(items: Vec<Item>) -> Vec<(OpId, Work)> {
    let (mut works, mut touches) = (Vec::with_capacity(items.len()), Vec::with_capacity(items.len()));
    for Item { op, work, touches: touched } in items {
        works.push((op, work));
        touches.push(touched);
    }
    let (kinds, count) = kinds(&works);
    let groups = groups(&hazards::before(&touches), &kinds, count);
    let mut sources = Sources::default();
    let mut pieces: Vec<Vec<u32>> = Vec::new();
    for group in groups {
        pieces.extend(split(&group, &works));
    }
    for piece in pieces.iter().filter(|piece| piece.len() > 1) {
        if let Some((_, Work::Launch(launch))) = piece.first().and_then(|&k| works.get(k as usize)) {
            sources.merge(&launch.source);
        }
    }
    let mut result = Vec::with_capacity(pieces.len());
    for piece in pieces {
        let all: Vec<&(OpId, Work)> = piece.iter().filter_map(|&k| works.get(k as usize)).collect();
        let Some((op, first)) = all.first() else { continue };
        let launches: Vec<&Launch> = all
            .iter()
            .filter_map(|(_, work)| if let Work::Launch(launch) = work { Some(launch) } else { None })
            .collect();
        // A text that is compiled for several launches is not compiled again for single ones.
        let source = match launches.first() {
            Some(launch) if merged::can_merge(launch) => sources.merged(&launch.source),
            _ => None,
        };
        let work = match source.and_then(|source| merged::launch(source, &launches)) {
            Some(launch) => Work::Launch(launch),
            None => first.clone(),
        };
        result.push((*op, work));
    }
    result
}

/// The texts for several launches, by the text for one.
#[derive(Default)]
struct Sources(FxHashMap<Arc<str>, Arc<str>>);

impl Sources {
    fn merge(&mut self, source: &Arc<str>) {
        self.0.entry(Arc::clone(source)).or_insert_with(|| merged::source(source));
    }

    fn merged(&self, source: &Arc<str>) -> Option<Arc<str>> {
        self.0.get(source).map(Arc::clone)
    }
}

/// For each work, which others it can be one launch with; and how many kinds there are. `None` for what is
/// always alone.
fn kinds(works: &[(OpId, Work)]) -> (Vec<Option<u32>>, usize) {
    // By source, function and threads of a block.
    type Kind<'a> = (&'a Arc<str>, &'a Arc<str>, [u32; 3]);
    let mut known: FxHashMap<Kind, u32> = FxHashMap::default();
    let kinds = works.iter().map(|(_, work)| match work {
        Work::Launch(launch) if merged::can_merge(launch) => {
            let next = known.len() as u32;
            Some(*known.entry((&launch.source, &launch.function, launch.block)).or_insert(next))
        }
        _ => None,
    });
    let kinds = kinds.collect();
    (kinds, known.len())
}

/// Works of one kind that are ready at the same time, in an order of groups in which all of `before` a work
/// are in earlier groups.
fn groups(before: &[Vec<u32>], kinds: &[Option<u32>], count: usize) -> Vec<Vec<u32>> {
    let mut behind: Vec<Vec<u32>> = vec![Vec::new(); before.len()];
    for (k, list) in before.iter().enumerate() {
        for &earlier in list {
            if let Some(behind) = behind.get_mut(earlier as usize) {
                behind.push(k as u32);
            }
        }
    }
    // How many works follow one after another at least: who has many behind it should not wait.
    let mut heights = vec![0u32; before.len()];
    for k in (0..before.len()).rev() {
        let behind = behind.get(k).into_iter().flatten();
        let height = behind.filter_map(|&later| heights.get(later as usize)).max().map_or(0, |h| h + 1);
        if let Some(entry) = heights.get_mut(k) {
            *entry = height;
        }
    }
    let kind = |work: u32| kinds.get(work as usize).copied().flatten();
    let mut waiting: Vec<usize> = before.iter().map(Vec::len).collect();
    let mut ready =
        Ready { alone: BTreeSet::new(), of_kind: vec![BTreeSet::new(); count], kinds: BTreeSet::new() };
    let mut to_come = vec![0usize; count];
    for kind in kinds.iter().flatten() {
        if let Some(number) = to_come.get_mut(*kind as usize) {
            *number += 1;
        }
    }
    for (k, _) in waiting.iter().enumerate().filter(|(_, waiting)| **waiting == 0) {
        ready.add(k as u32, kind(k as u32));
    }
    let mut groups = Vec::new();
    while let Some(group) = ready.next(&to_come, &heights) {
        for &work in &group {
            if let Some(number) = kind(work).and_then(|kind| to_come.get_mut(kind as usize)) {
                *number -= 1;
            }
            for &later in behind.get(work as usize).into_iter().flatten() {
                if let Some(number) = waiting.get_mut(later as usize) {
                    *number -= 1;
                    if *number == 0 {
                        ready.add(later, kind(later));
                    }
                }
            }
        }
        groups.push(group);
    }
    groups
}

/// Works that wait for nothing any more.
struct Ready {
    alone: BTreeSet<u32>,
    of_kind: Vec<BTreeSet<u32>>,
    /// Kinds of which some are ready.
    kinds: BTreeSet<u32>,
}

impl Ready {
    fn add(&mut self, work: u32, kind: Option<u32>) {
        match kind.and_then(|kind| Some((kind, self.of_kind.get_mut(kind as usize)?))) {
            Some((kind, ready)) => {
                ready.insert(work);
                self.kinds.insert(kind);
            }
            None => {
                self.alone.insert(work);
            }
        }
    }

    /// What runs next: first what is always alone, then a kind of which all that is left is ready; else the
    /// kind of the work with most behind it, as all kinds would gain by waiting.
    fn next(&mut self, to_come: &[usize], heights: &[u32]) -> Option<Vec<u32>> {
        if let Some(work) = self.alone.pop_first() {
            return Some(vec![work]);
        }
        let ready = |kind: u32| self.of_kind.get(kind as usize);
        let is_whole = |&&kind: &&u32| ready(kind).map(BTreeSet::len) == to_come.get(kind as usize).copied();
        let height = |kind: u32| {
            let all = ready(kind).into_iter().flatten();
            all.filter_map(|&work| heights.get(work as usize)).max().copied()
        };
        let whole = self.kinds.iter().find(is_whole);
        let most = || self.kinds.iter().max_by_key(|&&kind| (height(kind), std::cmp::Reverse(kind)));
        let kind = *whole.or_else(most)?;
        self.kinds.remove(&kind);
        let group = std::mem::take(self.of_kind.get_mut(kind as usize)?);
        Some(group.into_iter().collect())
    }
}

/// A group in pieces whose arguments and blocks fit into one launch.
fn split(group: &[u32], works: &[(OpId, Work)]) -> Vec<Vec<u32>> {
    let (mut pieces, mut piece) = (Vec::new(), Vec::new());
    let (mut words, mut blocks) = (0, 0);
    for &work in group {
        let (own_words, own_blocks) = match works.get(work as usize) {
            Some((_, Work::Launch(launch))) => (merged::words(launch), merged::blocks(launch)),
            _ => (0, 0),
        };
        if !piece.is_empty() && (words + own_words > TABLE_WORDS || blocks + own_blocks > MOST_BLOCKS) {
            pieces.push(std::mem::take(&mut piece));
            (words, blocks) = (0, 0);
        }
        piece.push(work);
        words += own_words;
        blocks += own_blocks;
    }
    pieces.push(piece);
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exec::cuda::hazards::Space;

    #[test]
    fn every_work_runs_once_and_behind_all_that_it_conflicts_with() {
        let mut state = 7u64;
        let mut random = move |below: u64| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) % below
        };
        let mut merged = 0;
        for _ in 0..300 {
            let count = 1 + random(60) as usize;
            let touches: Vec<Vec<Touch>> = (0..count)
                .map(|_| {
                    let touch = |writes| {
                        let start = random(200);
                        Touch { space: Space::Arena, bytes: start..start + 1 + random(8), writes }
                    };
                    [false, false, true].map(touch).to_vec()
                })
                .collect();
            let kinds: Vec<Option<u32>> =
                (0..count).map(|_| random(4).checked_sub(1).map(|k| k as u32)).collect();
            let groups = groups(&hazards::before(&touches), &kinds, 3);
            let mut place = vec![None; count];
            for (at, group) in groups.iter().enumerate() {
                merged += group.len() - 1;
                for &work in group {
                    assert_eq!(place[work as usize].replace(at), None, "{work} runs twice");
                    assert_eq!(kinds[work as usize], kinds[group[0] as usize]);
                    assert!(kinds[work as usize].is_some() || group.len() == 1);
                }
            }
            for k in 0..count {
                for earlier in 0..k {
                    let conflict = touches[k].iter().any(|a| touches[earlier].iter().any(|b| a.conflicts(b)));
                    assert!(place[k].is_some() && (!conflict || place[earlier] < place[k]), "{earlier}, {k}");
                }
            }
        }
        assert!(merged > 1000, "{merged} launches fewer");
    }
}
