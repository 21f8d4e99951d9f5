//! Which readers of a buffer can be its last, and which ops are behind all of them.
//!
//! Reachability is asked for many pairs of ops. A longest path through the graph answers most: what
//! reaches the path before the place where the path reaches the other op comes before it. The rest is
//! searched, 64 readers at a time.

use std::{cmp::Reverse, collections::BinaryHeap};

use rustc_hash::FxHashMap;

use crate::schedule::index::Index;

/// Ops looked at for all pairs that the path does not decide.
const REACH_WORK: usize = 10_000_000;
/// Ops looked at in the search for an op behind all readers of a buffer.
const JOIN_STEPS: usize = 200;
/// Readers that this search can tell apart.
const JOIN_READERS: usize = 64;

/// A longest path, and where each op meets it.
pub(super) struct Spine {
    path: Vec<u32>,
    /// Of each op, the first place on the path that it reaches; `path.len()` if it reaches none.
    out: Vec<u32>,
    /// Of each op, the places on the path that come before it or are it: all before this one.
    into: Vec<u32>,
}

impl Spine {
    pub(super) fn new(ix: &Index) -> Spine {
        let mut depth = vec![0u32; ix.ops];
        for v in 0..ix.ops {
            depth[v] = ix.preds.get(v).iter().map(|&p| depth[p as usize] + 1).max().unwrap_or(0);
        }
        let mut path = Vec::new();
        let mut at = (0..ix.ops).max_by_key(|&v| (depth[v], Reverse(v)));
        while let Some(v) = at {
            path.push(v as u32);
            let preds = ix.preds.get(v).iter().map(|&p| p as usize);
            at = preds.max_by_key(|&p| (depth[p], Reverse(p)));
        }
        path.reverse();
        let mut out = vec![path.len() as u32; ix.ops];
        let mut into = vec![0u32; ix.ops];
        for (place, &v) in path.iter().enumerate() {
            out[v as usize] = place as u32;
            into[v as usize] = place as u32 + 1;
        }
        for v in 0..ix.ops {
            for &p in ix.preds.get(v) {
                into[v] = into[v].max(into[p as usize]);
            }
        }
        for v in (0..ix.ops).rev() {
            for &s in ix.succs.get(v) {
                out[v] = out[v].min(out[s as usize]);
            }
        }
        Spine { path, out, into }
    }

    /// `before` precedes `after` in every order, by way of the path. False says nothing.
    fn precedes(&self, before: u32, after: u32) -> bool {
        before != after && self.out[before as usize] < self.into[after as usize]
    }

    /// The first op of the path behind all `readers`.
    fn join(&self, readers: &[u32]) -> Option<u32> {
        let place = readers.iter().map(|&u| self.out[u as usize]).max()?;
        self.path.get(place as usize).copied().filter(|op| !readers.contains(op))
    }
}

/// For each list of readers, in source order, those that no other of the list follows; too many
/// where the work runs out.
pub(super) fn last_readers(ix: &Index, spine: &Spine, mut lists: Vec<Vec<u32>>) -> Vec<Vec<u32>> {
    for readers in &mut lists {
        // The last in source order that the path leads into furthest decides most of them.
        let Some(&furthest) = readers.iter().max_by_key(|&&u| spine.into[u as usize]) else { continue };
        readers.retain(|&u| !spine.precedes(u, furthest));
    }
    // (reader, list, rank of the reader).
    let mut asked: Vec<(u32, usize, usize)> = Vec::new();
    for (i, readers) in lists.iter().enumerate() {
        let some = readers.len().saturating_sub(1);
        asked.extend(readers.iter().enumerate().take(some).map(|(rank, &u)| (u, i, rank)));
    }
    asked.sort_unstable();
    let mut followed: Vec<Vec<bool>> = lists.iter().map(|readers| vec![false; readers.len()]).collect();
    let mut reach = vec![0u64; ix.ops];
    let mut work = REACH_WORK;
    for batch in asked.chunks(64) {
        let start = batch.first().map_or(0, |&(u, _, _)| u as usize);
        let end = batch.iter().filter_map(|&(_, i, _)| lists[i].last()).map(|&u| u as usize).max();
        let end = end.unwrap_or(start).max(start);
        if work < end - start {
            break;
        }
        work -= end - start;
        reach[start..=end].fill(0);
        for (bit, &(u, _, _)) in batch.iter().enumerate() {
            reach[u as usize] |= 1 << bit;
        }
        for op in start..=end {
            let preds = ix.preds.get(op).iter().filter(|&&p| p as usize >= start);
            reach[op] = preds.fold(reach[op], |mask, &p| mask | reach[p as usize]);
        }
        for (bit, &(_, i, rank)) in batch.iter().enumerate() {
            followed[i][rank] = lists[i][rank + 1..].iter().any(|&u| reach[u as usize] >> bit & 1 == 1);
        }
    }
    for (readers, followed) in lists.iter_mut().zip(&followed) {
        let mut followed = followed.iter();
        readers.retain(|_| followed.next() != Some(&true));
    }
    lists
}

/// Ops behind all `readers`: the first ones, as far as a bounded search finds them, and one on the
/// path.
pub(super) fn joins(ix: &Index, spine: &Spine, readers: &[u32]) -> Vec<u32> {
    let mut found: Vec<u32> = Vec::new();
    if readers.len() <= JOIN_READERS {
        let all = u64::MAX >> (64 - readers.len().max(1));
        let mut masks: FxHashMap<u32, u64> = FxHashMap::default();
        let mut heap = BinaryHeap::new();
        for (bit, &u) in readers.iter().enumerate() {
            masks.insert(u, 1 << bit);
            heap.push(Reverse(u));
        }
        for _ in 0..JOIN_STEPS {
            let Some(Reverse(op)) = heap.pop() else { break };
            let mask = masks.get(&op).copied().unwrap_or(0);
            if mask == all {
                found.push(op);
                continue;
            }
            for &s in ix.succs.get(op as usize) {
                let entry = masks.entry(s).or_insert(0);
                if *entry == 0 {
                    heap.push(Reverse(s));
                }
                *entry |= mask;
            }
        }
    }
    found.extend(spine.join(readers).filter(|join| !found.contains(join)));
    found
}
