//! Proofs that no order stays below a peak, where one cut stops short of it.
//!
//! Assume an order below the target. Then, for an op `v` and another `u` whose place is open: if
//! the cut at `v` with `u` done reaches the target, `u` must come after `v`; if it does so with `u`
//! not done, before. Every such edge tightens the other cuts. When some op's cut reaches the
//! target, or both places of `u` do, there is no such order. Where nothing more follows, both
//! places of one `u` are tried in turn.

use rustc_hash::{FxHashMap, FxHashSet};

use super::{
    cut::{Cut, Cutter, Extra},
    index::Index,
    profile::Profile,
};

/// Ops whose cuts are looked at in one attempt, hottest first, and places tried for each.
const HOT_OPS: usize = 24;
const NEIGHBOURS: usize = 48;
/// Depth of the case distinctions.
const DEPTH: usize = 4;

struct Refuter<'a, 'w> {
    /// What is alive at each position of the order at hand.
    live: &'a [i64],
    target: i64,
    work: &'w mut u64,
}

/// True if every order reaches `target`. False says nothing.
pub(super) fn refute(ix: &Index, order: &[u32], profile: &Profile, target: i64, work: &mut u64) -> bool {
    let mut hot: Vec<u32> = (0..order.len() as u32).collect();
    hot.sort_by_key(|&at| std::cmp::Reverse(profile.live[at as usize]));
    hot.truncate(HOT_OPS);
    let hot: Vec<u32> = hot.into_iter().map(|at| order[at as usize]).collect();
    let mut refuter = Refuter { live: &profile.live, target, work };
    let mut cutter = Cutter::new(ix, order);
    refuter.attempt(&mut cutter, &hot, DEPTH)
}

impl Refuter<'_, '_> {
    fn attempt(&mut self, cutter: &mut Cutter<'_>, hot: &[u32], depth: usize) -> bool {
        // The last cut of each op; with more edges it can only have grown.
        let mut cuts: FxHashMap<u32, i64> = FxHashMap::default();
        for &v in hot {
            if *self.work == 0 {
                return false;
            }
            if self.solve(cutter, v, &mut cuts) {
                return true;
            }
        }
        // Ops that gave no edge since the last one was added.
        let mut settled: FxHashSet<u32> = FxHashSet::default();
        // The pair whose two places are closest to impossible.
        let mut fork: Option<(i64, u32, u32)> = None;
        loop {
            let open = cuts.iter().filter(|(v, _)| !settled.contains(v));
            let Some(v) = open.max_by_key(|&(&v, &units)| (units, std::cmp::Reverse(v))).map(|(&v, _)| v)
            else {
                break;
            };
            settled.insert(v);
            let (cut, mut solved) = cutter.solve_open(v, self.live(cutter, v), self.target, self.work);
            if cut.units >= self.target {
                return true;
            }
            cuts.insert(v, cut.units);
            let here = cutter.position[v as usize];
            let mut near = open_places(&cut, solved.len() > 1);
            near.sort_by_key(|&(u, _, _)| (cutter.position[u as usize].abs_diff(here), u));
            near.truncate(NEIGHBOURS);
            for (u, ask_before, ask_after) in near {
                if *self.work == 0 {
                    return false;
                }
                let mut place = |asked: bool, done: bool, work: &mut u64| -> i64 {
                    if !asked {
                        return cut.units;
                    }
                    let each = solved.iter_mut().map(|s| s.force(u, done, self.target, work));
                    each.min().unwrap_or(0)
                };
                let before = place(ask_before, true, self.work);
                let after = place(ask_after, false, self.work);
                if before >= self.target && after >= self.target {
                    return true;
                }
                if before < self.target && after < self.target {
                    let both = before.min(after).saturating_mul(4).saturating_add(before.max(after));
                    if fork.is_none_or(|(best, _, _)| both > best) {
                        fork = Some((both, u, v));
                    }
                    continue;
                }
                let (first, second) = if before >= self.target { (v, u) } else { (u, v) };
                cutter.extra.add(first, second);
                if self.solve(cutter, u, &mut cuts) {
                    return true;
                }
                settled.clear();
                fork = None;
                break;
            }
        }
        let Some((_, u, v)) = fork else { return false };
        if depth == 0 {
            return false;
        }
        let mut hot: Vec<u32> = cuts.keys().copied().collect();
        hot.sort_by_key(|op| (std::cmp::Reverse(cuts[op]), *op));
        hot.truncate(HOT_OPS);
        let known: Extra = cutter.extra.clone();
        hot.retain(|&op| op != u && op != v);
        hot.extend([u, v]);
        for (first, second) in [(u, v), (v, u)] {
            cutter.extra = known.clone();
            cutter.extra.add(first, second);
            if !self.attempt(cutter, &hot, depth - 1) {
                return false;
            }
        }
        true
    }

    fn live(&self, cutter: &Cutter<'_>, op: u32) -> i64 {
        self.live[cutter.position[op as usize] as usize]
    }

    /// Solves the cut of one op; true if it reaches the target.
    fn solve(&mut self, cutter: &mut Cutter<'_>, op: u32, cuts: &mut FxHashMap<u32, i64>) -> bool {
        let cut = cutter.solve(op, self.live(cutter, op), self.target, self.work);
        cuts.insert(op, cut.units);
        cut.units >= self.target
    }
}

/// The free ops of a cut, with the places that can cost more than the cut: an op that is done in
/// every optimal set costs nothing if it is done, and one that is done in none if it is not.
fn open_places(cut: &Cut, choices: bool) -> Vec<(u32, bool, bool)> {
    let always: FxHashSet<u32> = cut.smallest.iter().copied().collect();
    let sometimes: FxHashSet<u32> = cut.largest.iter().copied().collect();
    let open = cut
        .free
        .iter()
        .map(|&u| if choices { (u, true, true) } else { (u, !sometimes.contains(&u), always.contains(&u)) });
    open.filter(|&(_, before, after)| before || after).collect()
}
