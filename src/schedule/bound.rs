//! A lower bound on the live peak of every order, with what proves it.

use super::{
    OpId, ScheduleGraph,
    cut::Cutter,
    index::Index,
    parts,
    profile::{Profile, profile},
    refute::{End, NARROW, Refutation, WIDE, refute},
};

/// Arcs that all cuts of one bound may look at together.
pub(super) const CUT_WORK: u64 = 12_000_000;

/// The same for proofs by case distinction, and how many peaks below the best are tried.
pub(super) const REFUTE_WORK: u64 = 40_000_000;
/// Arcs that the search for a proof may look at where the bound is known.
const EXPLAIN_WORK: u64 = 4_000_000;

/// Arcs that cuts of independent parts may look at.
pub(super) const PARTS_WORK: u64 = 4_000_000;
const BISECTIONS: usize = 4;

/// Where a gap of more than one part in so many is left in a graph of at most so many ops, proofs may
/// look at more ops and places, and at so many arcs: about a second.
const WIDE_GAP: i64 = 100;
const WIDE_OPS: usize = 1024;
const WIDE_WORK: u64 = 400_000_000;

/// No order, and no choice of overwrites, has a lower live peak.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Bound {
    pub bytes: u64,
    /// The op that runs with at least this much alive. `None` for an empty graph.
    pub op: Option<OpId>,
    /// The ops done before `op` where that is cheapest for it, in source order. With `branched` they
    /// belong to the best single cut, which may prove less than `bytes`.
    pub before: Vec<OpId>,
    /// One cut was not enough; see `refutation`.
    pub branched: bool,
    /// How. `None` where one cut was enough, or where nobody asked for a proof.
    pub refutation: Option<Refutation>,
}

/// The bound on all orders of a graph, and on all choices of copies. `order` is a good one: its hottest ops are looked at first,
/// and the search stops when its peak is met.
pub fn lower_bound(graph: &ScheduleGraph, order: &[OpId]) -> Bound {
    if !graph.viewed().is_empty() {
        return super::choose::bound_of_choices(graph, order, u64::MAX, &super::Options::default());
    }
    let ix = Index::new(graph);
    let order: Vec<u32> = order.iter().map(|op| op.0).filter(|&op| (op as usize) < ix.ops).collect();
    if !ix.exact {
        return rough(graph, &ix);
    }
    let profile = profile(&ix, &order);
    let mut proof = single_cuts(&ix, &order, &profile, &mut CUT_WORK.clone());
    if proof.units < profile.peak
        && let Some(merged) = parts::merge(&ix, &order, PARTS_WORK)
    {
        proof.refute(merged.units, merged.proof);
    }
    if proof.units < profile.peak {
        tighten(&ix, &order, &mut proof, REFUTE_WORK, true);
    }
    explain(&ix, &order, &mut proof);
    proof.to_bound(&ix)
}

/// Raises a bound that is below the peak of `order`: to that peak if it can be proved optimal,
/// otherwise as far as bisection gets. Where much is left, the peak itself is tried a second time, with
/// more work; not unless a proof of it `closes` the gap.
pub(super) fn tighten(ix: &Index, order: &[u32], proof: &mut Proof, mut work: u64, closes: bool) {
    let profile = profile(ix, order);
    let mut target = profile.peak;
    for step in 0..BISECTIONS {
        let mut share = work / 2;
        work -= share;
        let mut found = refute(ix, order, &profile, target, NARROW, &mut share);
        let gap = profile.peak - proof.units;
        if found.is_none() && closes && step == 0 && gap > profile.peak / WIDE_GAP && ix.ops <= WIDE_OPS {
            found = refute(ix, order, &profile, target, WIDE, &mut WIDE_WORK.clone());
        }
        if let Some(found) = found {
            proof.refute(target, found);
            if target == profile.peak {
                return;
            }
        } else {
            work += share;
        }
        let below = if proof.units < target { target } else { profile.peak };
        target = proof.units + (below - proof.units + 1) / 2;
        if target <= proof.units {
            return;
        }
    }
}

/// A proof that can be followed step by step, for a bound that the search of all orders of a small graph
/// has found. Where there is none, the search itself is named.
pub(super) fn explain(ix: &Index, order: &[u32], proof: &mut Proof) {
    if !proof.branched {
        if proof.done.is_empty() && ix.exact {
            certify(proof, order, &profile(ix, order), Cutter::new(ix, order), &mut EXPLAIN_WORK.clone());
        }
        return;
    }
    if proof.refutation.is_some() {
        return;
    }
    let profile = profile(ix, order);
    proof.refutation = refute(ix, order, &profile, proof.units, NARROW, &mut EXPLAIN_WORK.clone());
    proof.refutation.get_or_insert(Refutation { edges: Vec::new(), end: End::Search });
}

/// A bound in units.
#[derive(Debug, Clone, Default)]
pub(super) struct Proof {
    pub(super) units: i64,
    pub(super) op: Option<u32>,
    /// Free ops done before `op` in the best cut.
    pub(super) done: Vec<u32>,
    pub(super) branched: bool,
    pub(super) refutation: Option<Refutation>,
    /// The inputs and the cheapest first op prove it.
    start: bool,
}

impl Proof {
    /// Says that one of the ops that can be first has so much alive, where ops that the graph does not
    /// have, copies, may run before it.
    pub(super) fn allow_copies_first(&mut self, ix: &Index) {
        if self.start && !self.branched {
            let ready = (0..ix.ops).filter(|&v| ix.preds.count(v) == 0).map(|v| OpId(v as u32)).collect();
            self.branched = true;
            self.refutation = Some(Refutation { edges: Vec::new(), end: End::First(ready) });
        }
    }

    /// A search has shown that nothing is below `units`.
    pub(super) fn raise(&mut self, units: i64) {
        if units > self.units {
            (self.units, self.branched, self.refutation) = (units, true, None);
        }
    }

    /// The same, by edges that follow from cuts.
    pub(super) fn refute(&mut self, units: i64, refutation: Refutation) {
        if units > self.units {
            (self.units, self.branched, self.refutation) = (units, true, Some(refutation));
        }
    }

    pub(super) fn to_bound(&self, ix: &Index) -> Bound {
        let Some(op) = self.op else { return Bound { bytes: ix.to_bytes(self.units), ..Bound::default() } };
        let mut before = vec![false; ix.ops];
        for &u in &self.done {
            before[u as usize] = true;
        }
        let mut stack = vec![op];
        while let Some(u) = stack.pop() {
            for &p in ix.preds.get(u as usize) {
                if !before[p as usize] {
                    before[p as usize] = true;
                    stack.push(p);
                }
            }
        }
        let before = (0..ix.ops as u32).filter(|&u| before[u as usize]).map(OpId).collect();
        Bound {
            bytes: ix.to_bytes(self.units),
            op: Some(OpId(op)),
            before,
            branched: self.branched,
            refutation: self.refutation.clone(),
        }
    }
}

/// What op needs by itself: all it reads and makes, with every overwrite granted.
fn footprint(ix: &Index, v: usize) -> i64 {
    let reads: i64 = ix.reads.get(v).iter().map(|&r| ix.size[r as usize]).sum();
    reads + ix.made[v] - ix.saved(v, |_| true) + ix.workspace[v]
}

/// The footprints, and the inputs before the first op.
pub(super) fn footprints(ix: &Index) -> Proof {
    let inputs: i64 = ix.inputs.iter().map(|&b| ix.size[b as usize]).sum();
    let first = (0..ix.ops)
        .filter(|&v| ix.preds.count(v) == 0)
        .map(|v| (ix.made[v] - ix.saved(v, |_| true) + ix.workspace[v], v as u32))
        .min();
    let mut best = match first {
        Some((grows, v)) => {
            Proof { units: inputs + ix.unread + grows, op: Some(v), start: true, ..Proof::default() }
        }
        None => Proof { units: inputs + ix.unread, ..Proof::default() },
    };
    for v in 0..ix.ops {
        let units = footprint(ix, v);
        if units > best.units {
            best = Proof { units, op: Some(v as u32), ..Proof::default() };
        }
    }
    best
}

/// The best bound of a single op. Only ops with more alive in `order` than the bound so far can
/// improve it, so the hottest come first.
pub(super) fn single_cuts(ix: &Index, order: &[u32], profile: &Profile, work: &mut u64) -> Proof {
    let mut best = footprints(ix);
    let mut hot: Vec<u32> = (0..order.len() as u32).collect();
    hot.sort_by_key(|&at| std::cmp::Reverse(profile.live[at as usize]));
    let mut cutter = Cutter::new(ix, order);
    for at in hot {
        if profile.live[at as usize] <= best.units || *work == 0 {
            break;
        }
        let op = order[at as usize];
        let cut = cutter.solve(op, profile.live[at as usize], profile.peak, work);
        if cut.units > best.units {
            best = Proof { units: cut.units, op: Some(op), done: cut.smallest, ..Proof::default() };
        }
    }
    certify(&mut best, order, profile, cutter, work);
    best
}

/// What an op needs by itself says nothing of which ops are done before it. Where the order at hand
/// has no more alive then, those done in it are an example; otherwise a cut is, and may prove more.
fn certify(proof: &mut Proof, order: &[u32], profile: &Profile, mut cutter: Cutter<'_>, work: &mut u64) {
    let Some(op) = proof.op.filter(|_| proof.done.is_empty() && !proof.branched) else { return };
    let Some(at) = order.iter().position(|&o| o == op) else { return };
    if profile.live[at] <= proof.units {
        proof.done = order[..at].to_vec();
        return;
    }
    if *work > 0 {
        let cut = cutter.solve(op, profile.live[at], profile.peak, work);
        if cut.units >= proof.units {
            proof.start &= cut.units == proof.units;
            (proof.units, proof.done) = (cut.units, cut.smallest);
        }
    }
}

/// The footprints in wide arithmetic, for sizes whose sums do not fit the units.
pub(super) fn rough(graph: &ScheduleGraph, ix: &Index) -> Bound {
    let bytes = |b: u32| u128::from(graph.arena_bytes(super::BufferId(b)));
    let mut best = Bound::default();
    for v in 0..ix.ops {
        let sum = |list: &[u32]| -> u128 { list.iter().map(|&b| bytes(b)).sum() };
        let saved: u128 = ix.matching(v, |_| true).iter().map(|&(m, _)| bytes(m)).sum();
        let op = OpId(v as u32);
        let units = sum(ix.reads.get(v)) + sum(ix.makes.get(v)) - saved + u128::from(graph.workspace(op));
        let units = u64::try_from(units).unwrap_or(u64::MAX);
        if units > best.bytes {
            let before = Proof { op: Some(op.0), ..Proof::default() };
            best = Bound { bytes: units, ..before.to_bound(ix) };
        }
    }
    best
}
