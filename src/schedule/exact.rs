//! The lowest peak of a stretch of an order, exactly, by search over the sets of ops that can be
//! done (down-sets), cheapest peak first.
//!
//! The number of sets is held down by one rule: an op that is ready, fits under the peak so far
//! and leaves no more alive than before is done at once, and so is a run of ops that does so as a
//! whole: a chain, with the ops that become ready along it and leave no more alive.
//!
//! That never hurts. The units alive after a set are a cut function of it, so submodular: adding the
//! run `T` to a set `X` that holds the present set `S` changes them by at most
//! `f(S + T) − f(S + T ∩ X)`. That is not above 0, because the run ends as soon as it is down to
//! `f(S)`, and on the way there an op beside the chain only ever lowers them. So whatever follows
//! finds the same units alive or fewer.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, hash_map::Entry},
};

use rustc_hash::{FxHashMap, FxHashSet};

use super::index::{Csr, Index};
use crate::guard;

/// The widest stretch: a set of its ops is one word.
pub(super) const WIDTH: usize = 128;

/// A stretch of an order, with ops and buffers renumbered.
struct Stretch<'a> {
    ix: &'a Index,
    ops: &'a [u32],
    preds: Vec<u128>,
    succs: Vec<u128>,
    /// For each op the buffers that it may free: the units and the readers that must be done.
    frees: Vec<Vec<(i64, u128)>>,
    /// Units left alive by each op: what it makes and somebody reads.
    kept: Vec<i64>,
    /// The readers of each buffer that is read, or `None` if it outlives the stretch.
    readers: FxHashMap<u32, Option<u128>>,
    /// Inputs that nobody reads, alive during the first op.
    unread: i64,
}

/// What the search found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Found {
    /// An order of the lowest peak, which is below the limit.
    Order(Vec<u32>, i64),
    /// Every order of the stretch reaches the limit.
    Nothing,
    /// The search was given up. No order has a peak below this.
    GaveUp(i64),
}

/// A stretch of a legal order: everything before it is done, nothing after it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Range<'a> {
    pub(super) order: &'a [u32],
    /// By op.
    pub(super) position: &'a [u32],
    pub(super) start: usize,
    pub(super) end: usize,
    /// Units alive before it.
    pub(super) alive: i64,
}

/// Orders a stretch for the lowest peak below `limit`; what is at most `floor` is as good as that.
/// At most `states` sets are looked at.
pub(super) fn search(ix: &Index, range: Range<'_>, floor: i64, limit: i64, states: &mut usize) -> Found {
    let ops = &range.order[range.start..range.end];
    if ops.len() > WIDTH {
        return Found::GaveUp(0);
    }
    let stretch = Stretch::new(ix, range);
    let all = if ops.len() == WIDTH { u128::MAX } else { (1 << ops.len()) - 1 };
    let mut known: FxHashMap<u128, State> = FxHashMap::default();
    let mut seen: FxHashSet<u128> = FxHashSet::default();
    // By peak, then the set that is furthest, then the newest.
    let mut heap: BinaryHeap<(Reverse<i64>, u32, u64, u128, u8)> = BinaryHeap::new();
    let mut peak = floor;
    let mut clock = 0u64;
    let mut entry = State { from: 0, steps: Vec::new(), alive: range.alive };
    let mut set = 0u128;
    loop {
        if *states == 0 || guard::cancelled() {
            return Found::GaveUp(peak);
        }
        *states -= 1;
        stretch.settle(&mut set, &mut entry, peak);
        if set == all {
            let mut order: Vec<u32> = entry.steps.iter().rev().map(|&op| ops[op as usize]).collect();
            let mut from = entry.from;
            while let Some(state) = known.get(&from) {
                order.extend(state.steps.iter().rev().map(|&op| ops[op as usize]));
                if state.from == from {
                    break;
                }
                from = state.from;
            }
            order.reverse();
            return Found::Order(order, peak);
        }
        if let Entry::Vacant(place) = known.entry(set) {
            for op in 0..ops.len() {
                if stretch.is_ready(op, set) && !seen.contains(&(set | 1 << op)) {
                    let need = (entry.alive + stretch.cost(op, set).0).max(peak);
                    if need < limit {
                        clock += 1;
                        heap.push((Reverse(need), set.count_ones(), clock, set, op as u8));
                    }
                }
            }
            place.insert(entry);
        }
        loop {
            let Some((Reverse(need), _, _, from, op)) = heap.pop() else { return Found::Nothing };
            let next = from | 1 << op;
            if let Some(state) = known.get(&from)
                && seen.insert(next)
            {
                peak = peak.max(need);
                let (_, net) = stretch.cost(op as usize, from);
                entry = State { from, steps: vec![op], alive: state.alive + net };
                set = next;
                break;
            }
        }
    }
}

/// A run of ops has at most so many links, and beside them what they allow.
const LINKS: usize = 24;

/// How a set was reached: from an earlier one, by which ops in turn, and what is alive then.
struct State {
    from: u128,
    steps: Vec<u8>,
    alive: i64,
}

impl<'a> Stretch<'a> {
    fn new(ix: &'a Index, range: Range<'a>) -> Self {
        let ops = &range.order[range.start..range.end];
        let inside = |op: u32| {
            let at = range.position[op as usize] as usize;
            (range.start..range.end).contains(&at).then(|| 1u128 << (at - range.start))
        };
        let masks = |edges: &Csr| -> Vec<u128> {
            ops.iter().map(|&op| edges.get(op as usize).iter().filter_map(|&p| inside(p)).sum()).collect()
        };
        let (preds, succs) = (masks(&ix.preds), masks(&ix.succs));
        let mut readers: FxHashMap<u32, Option<u128>> = FxHashMap::default();
        for &op in ops {
            for &b in ix.reads.get(op as usize) {
                readers.entry(b).or_insert_with(|| {
                    let users = ix.users.get(b as usize);
                    let later = users.iter().any(|&u| range.position[u as usize] as usize >= range.end);
                    (!later && !ix.output[b as usize]).then(|| users.iter().filter_map(|&u| inside(u)).sum())
                });
            }
        }
        let frees = ops
            .iter()
            .map(|&op| {
                let reads = ix.reads.get(op as usize).iter();
                reads.filter_map(|&r| readers[&r].map(|mask| (ix.size[r as usize], mask))).collect()
            })
            .collect();
        let kept = ops.iter().map(|&op| ix.made[op as usize] - ix.dead[op as usize]).collect();
        let unread = if range.start == 0 { ix.unread } else { 0 };
        Stretch { ix, ops, preds, succs, frees, kept, readers, unread }
    }

    fn is_ready(&self, op: usize, set: u128) -> bool {
        set >> op & 1 == 0 && self.preds[op] & !set == 0
    }

    /// Does everything that leaves no more alive than before and fits under `peak`.
    fn settle(&self, set: &mut u128, entry: &mut State, peak: i64) {
        let mut run = Vec::new();
        let mut moved = true;
        while moved {
            moved = false;
            let mut open: Vec<usize> = Vec::new();
            for op in 0..self.ops.len() {
                if self.is_ready(op, *set) {
                    let (up, net) = self.cost(op, *set);
                    if entry.alive + up > peak {
                        continue;
                    }
                    if net <= 0 {
                        *set |= 1 << op;
                        entry.alive += net;
                        entry.steps.push(op as u8);
                        moved = true;
                    } else {
                        open.push(op);
                    }
                }
            }
            if moved {
                continue;
            }
            for op in open {
                run.clear();
                if let Some((next, alive)) = self.run(op, *set, entry.alive, peak, &mut run) {
                    *set = next;
                    entry.alive = alive;
                    entry.steps.append(&mut run);
                    moved = true;
                    break;
                }
            }
        }
    }

    /// A run that starts with `op` and ends with no more alive than before it: the set after it and
    /// what is alive then. `steps` becomes its ops.
    fn run(&self, op: usize, from: u128, before: i64, peak: i64, steps: &mut Vec<u8>) -> Option<(u128, i64)> {
        let (mut set, mut alive) = (from, before);
        // Ops that follow one of the run and are not done.
        let mut next = 0u128;
        let mut link = op;
        for _ in 0..LINKS {
            let (up, net) = self.cost(link, set);
            if alive + up > peak {
                return None;
            }
            set |= 1 << link;
            alive += net;
            steps.push(link as u8);
            next = (next | self.succs[link]) & !set;
            let mut only = None;
            let mut more = false;
            let mut rest = next;
            while rest != 0 && alive > before {
                let at = rest.trailing_zeros() as usize;
                rest &= rest - 1;
                if !self.is_ready(at, set) {
                    continue;
                }
                let (up, net) = self.cost(at, set);
                if net <= 0 && alive + up <= peak {
                    set |= 1 << at;
                    alive += net;
                    steps.push(at as u8);
                    next = (next | self.succs[at]) & !set;
                    // What was passed over may have become ready, or free of cost.
                    (rest, only, more) = (next, None, false);
                } else {
                    more |= only.is_some();
                    only = Some(at);
                }
            }
            if alive <= before {
                return Some((set, alive));
            }
            match only {
                Some(at) if !more => link = at,
                _ => return None,
            }
        }
        None
    }

    /// Growth while the op runs after `set`, and from before it to after it.
    fn cost(&self, op: usize, set: u128) -> (i64, i64) {
        let v = self.ops[op] as usize;
        let done = set | 1 << op;
        let dead = |&&(_, readers): &&(i64, u128)| readers & !done == 0;
        let freed: i64 = self.frees[op].iter().filter(dead).map(|&(size, _)| size).sum();
        let dies = |r: usize| matches!(self.readers.get(&(r as u32)), Some(Some(mask)) if mask & !done == 0);
        let mut up = self.ix.made[v] + self.ix.workspace[v] - self.ix.saved(v, dies);
        if set == 0 {
            up += self.unread;
        }
        (up, self.kept[op] - freed)
    }
}
