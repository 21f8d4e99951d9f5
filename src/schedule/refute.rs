//! Proofs that no order stays below a peak, where one cut stops short of it.
//!
//! Assume an order below the target. Then, for an op `v` and another `u` whose place is open: if
//! the cut at `v` with `u` done reaches the target, `u` must come after `v`; if it does so with `u`
//! not done, before. Every such edge tightens the other cuts. When some op's cut reaches the
//! target, or both places of `u` do, or those of the op of a set that is the last (or first) of it to
//! run, whichever that is, there is no such order. Where nothing more follows, both places of one `u`
//! are tried in turn.

use rustc_hash::{FxHashMap, FxHashSet};

use super::{
    OpId,
    cut::{Cut, Cutter, Extra},
    extreme::{Extreme, extreme},
    index::Index,
    profile::Profile,
};

/// How much one attempt looks at.
#[derive(Debug, Clone, Copy)]
pub(super) struct Width {
    /// Ops whose cuts are looked at, hottest first.
    hot: usize,
    /// Places tried for each.
    near: usize,
    /// Depth of the case distinctions.
    depth: usize,
}

/// For most graphs.
pub(super) const NARROW: Width = Width { hot: 24, near: 48, depth: 4 };

/// Where many steps are alike, what follows for one step must be carried through all the others.
pub(super) const WIDE: Width = Width { hot: 150, near: 200, depth: 4 };

/// The part of the work left that one look for a set with a last or first op may take.
const EXTREME_SHARE: u64 = 4;

/// A proof that every order reaches some number of bytes. Edges are assumed in turn; each of them
/// holds because the opposite, with all edges before it, brings the cut of an op to that number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refutation {
    pub edges: Vec<Forced>,
    pub end: End,
}

impl Refutation {
    /// The proof in a graph with other ids, which has at least as much alive.
    pub(super) fn renamed(&self, name: &impl Fn(OpId) -> Option<OpId>) -> Option<Refutation> {
        let all = |ops: &[OpId]| ops.iter().map(|&op| name(op)).collect::<Option<Vec<OpId>>>();
        let edge = |edge: &Forced| {
            Some(Forced { op: name(edge.op)?, first: name(edge.first)?, second: name(edge.second)? })
        };
        let end = match &self.end {
            End::Cut(op) => End::Cut(name(*op)?),
            End::Both { op, other } => End::Both { op: name(*op)?, other: name(*other)? },
            End::Last(ops) => End::Last(all(ops)?),
            End::First(ops) => End::First(all(ops)?),
            End::Search => End::Search,
            End::Fork { ops: [a, b], cases } => {
                let [first, second] = &**cases;
                let cases = Box::new([first.renamed(name)?, second.renamed(name)?]);
                End::Fork { ops: [name(*a)?, name(*b)?], cases }
            }
        };
        Some(Refutation { edges: self.edges.iter().map(edge).collect::<Option<Vec<Forced>>>()?, end })
    }
}

/// `first` runs before `second`, one of which is `op`: otherwise the cut at `op` reaches the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Forced {
    pub op: OpId,
    pub first: OpId,
    pub second: OpId,
}

/// Why no order is left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// The cut at this op reaches the target, or the edges contradict each other there.
    Cut(OpId),
    /// The cut at `op` does so with `other` done, and with `other` not done.
    Both { op: OpId, other: OpId },
    /// One of these ops is the last of them to run. The cut at each, with the others done, reaches the
    /// target.
    Last(Vec<OpId>),
    /// One of these ops is the first. The cut at each, with none of the others done, reaches the target.
    First(Vec<OpId>),
    /// A search of all orders of a small graph, by the sets of ops that can be done.
    Search,
    /// With the first before the second, and with the second before the first.
    Fork { ops: [OpId; 2], cases: Box<[Refutation; 2]> },
}

struct Refuter<'a, 'w> {
    /// What is alive at each position of the order at hand.
    live: &'a [i64],
    target: i64,
    width: Width,
    work: &'w mut u64,
}

/// A proof that every order reaches `target`. `None` says nothing.
pub(super) fn refute(
    ix: &Index,
    order: &[u32],
    profile: &Profile,
    target: i64,
    width: Width,
    work: &mut u64,
) -> Option<Refutation> {
    let mut hot: Vec<u32> = (0..order.len() as u32).collect();
    hot.sort_by_key(|&at| std::cmp::Reverse(profile.live[at as usize]));
    hot.truncate(width.hot);
    let hot: Vec<u32> = hot.into_iter().map(|at| order[at as usize]).collect();
    let mut refuter = Refuter { live: &profile.live, target, width, work };
    let mut cutter = Cutter::new(ix, order);
    refuter.attempt(&mut cutter, &hot, width.depth)
}

impl Refuter<'_, '_> {
    fn attempt(&mut self, cutter: &mut Cutter<'_>, hot: &[u32], depth: usize) -> Option<Refutation> {
        let mut edges: Vec<Forced> = Vec::new();
        let cut_at = |edges: Vec<Forced>, op: u32| Some(Refutation { edges, end: End::Cut(OpId(op)) });
        // The last cut of each op; with more edges it can only have grown.
        let mut cuts: FxHashMap<u32, i64> = FxHashMap::default();
        for &v in hot {
            if *self.work == 0 {
                return None;
            }
            if self.solve(cutter, v, &mut cuts) {
                return cut_at(edges, v);
            }
        }
        if let Some(end) = self.extremes(cutter) {
            return Some(Refutation { edges, end });
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
                return cut_at(edges, v);
            }
            cuts.insert(v, cut.units);
            let here = cutter.position[v as usize];
            let mut near = open_places(&cut, solved.len() > 1);
            near.sort_by_key(|&(u, _, _)| (cutter.position[u as usize].abs_diff(here), u));
            near.truncate(self.width.near);
            for (u, ask_before, ask_after) in near {
                if *self.work == 0 {
                    return None;
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
                    return Some(Refutation { edges, end: End::Both { op: OpId(v), other: OpId(u) } });
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
                edges.push(Forced { op: OpId(v), first: OpId(first), second: OpId(second) });
                if self.solve(cutter, u, &mut cuts) {
                    return cut_at(edges, u);
                }
                settled.clear();
                fork = None;
                break;
            }
        }
        if !edges.is_empty()
            && let Some(end) = self.extremes(cutter)
        {
            return Some(Refutation { edges, end });
        }
        let (_, u, v) = fork.filter(|_| depth > 0)?;
        let mut hot: Vec<u32> = cuts.keys().copied().collect();
        hot.sort_by_key(|op| (std::cmp::Reverse(cuts[op]), *op));
        hot.truncate(self.width.hot);
        let known: Extra = cutter.extra.clone();
        hot.retain(|&op| op != u && op != v);
        hot.extend([u, v]);
        let mut case = |first: u32, second: u32| {
            cutter.extra = known.clone();
            cutter.extra.add(first, second);
            self.attempt(cutter, &hot, depth - 1)
        };
        let cases = Box::new([case(u, v)?, case(v, u)?]);
        Some(Refutation { edges, end: End::Fork { ops: [OpId(u), OpId(v)], cases } })
    }

    /// A set whose last op, or first, reaches the target whichever it is.
    fn extremes(&mut self, cutter: &mut Cutter<'_>) -> Option<End> {
        for which in [Extreme::Last, Extreme::First] {
            let mut share = *self.work / EXTREME_SHARE;
            *self.work -= share;
            let found = extreme(cutter, which, self.live, self.target, &mut share);
            *self.work += share;
            if let Some(ops) = found {
                let ops = ops.into_iter().map(OpId).collect();
                return Some(match which {
                    Extreme::Last => End::Last(ops),
                    Extreme::First => End::First(ops),
                });
            }
        }
        None
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
