//! Which order to take: heuristics, a bound, and search while they differ.

use std::time::Instant;

use crate::guard;

use super::{
    Options, OrderKind,
    bound::{self, Proof},
    depth::{Operands, depth_first},
    exact::{Found, Range, WIDTH, search},
    greedy::{Tie, list, list_backward, lpmf},
    improve::{Effort, improve},
    index::Index,
    parts,
    profile::profile,
    refute::{NARROW, Refutation, refute},
};

type Heuristic = fn(&Index) -> Vec<u32>;

const SOURCE: [(&str, Heuristic); 1] = [("source", |ix| (0..ix.ops as u32).collect())];
const LIST: [(&str, Heuristic); 4] = [
    ("list", |ix| list(ix, Tie::Users)),
    ("list", |ix| list(ix, Tie::Newest)),
    ("list from the end", |ix| list_backward(ix, Tie::Users)),
    ("list from the end", |ix| list_backward(ix, Tie::Newest)),
];
const LPMF: [(&str, Heuristic); 1] = [("lpmf", lpmf)];
const DFS: [(&str, Heuristic); 3] = [
    ("dfs", |ix| depth_first(ix, Operands::Source)),
    ("dfs", |ix| depth_first(ix, Operands::Largest)),
    ("dfs", |ix| depth_first(ix, Operands::Deepest)),
];

/// Sets of done ops that the search over a whole graph of up to [`WIDTH`] ops may look at.
const WHOLE_STATES: usize = 60_000;
const WINDOW_STATES: usize = 200_000;
/// Arcs and ops that cuts may look at while they improve an order.
const IMPROVE_WORK: u64 = 20_000_000;
/// In a graph of more than so many ops, a gap below one part in so many is as good as none: it gets
/// a sixteenth of the work.
const LARGE: usize = 512;
const CLOSE: i64 = 2000;
const CLOSE_SHARE: u64 = 16;
/// How many of the heuristics' orders are improved.
const STARTS: usize = 3;

pub(super) struct Chosen {
    pub(super) order: Vec<u32>,
    pub(super) found_by: &'static str,
    pub(super) proof: Proof,
}

pub(super) fn choose(ix: &Index, options: &Options) -> Chosen {
    let (first, others): (Vec<_>, Vec<_>) = match options.order {
        // The segment tree makes `lpmf` the slowest; it is left out where the others are optimal.
        OrderKind::Best | OrderKind::Witness => ([&SOURCE[..], &LIST, &DFS].concat(), LPMF.to_vec()),
        OrderKind::Source => (SOURCE.to_vec(), Vec::new()),
        // The plain ones, so that they can be compared with what others do.
        OrderKind::List => (LIST[..1].to_vec(), Vec::new()),
        OrderKind::Lpmf => (LPMF.to_vec(), Vec::new()),
        OrderKind::Dfs => (DFS[..1].to_vec(), Vec::new()),
    };
    let end = Instant::now().checked_add(options.time_limit);
    let is_best = options.order == OrderKind::Best;
    let mut search =
        Search { ix, found: Vec::new(), proof: bound::footprints(ix), end, proves: options.prove };
    search.run(&first);
    let merged = if is_best { search.merge() } else { None };
    search.cut();
    if let Some((units, proof)) = merged {
        search.proof.refute(units, proof);
    }
    search.refute();
    if search.is_open() {
        search.run(&others);
        search.cut();
        search.refute();
    }
    if is_best && search.is_open() {
        search.improve();
        if let Some((units, proof)) = search.merge() {
            search.proof.refute(units, proof);
        }
    }
    search.tighten(is_best);
    if options.prove
        && let Some(best) = search.found.first()
    {
        bound::explain(ix, &best.order, &mut search.proof);
    }
    let proof = search.proof;
    match search.found.into_iter().next() {
        Some(best) => Chosen { order: best.order, found_by: best.by, proof },
        None => Chosen { order: Vec::new(), found_by: "source", proof },
    }
}

/// An order and what it costs.
#[derive(Debug, Clone)]
struct Candidate {
    peak: i64,
    by: &'static str,
    order: Vec<u32>,
}

struct Search<'a> {
    ix: &'a Index,
    /// The best first.
    found: Vec<Candidate>,
    proof: Proof,
    end: Option<Instant>,
    /// Close what gap the search leaves.
    proves: bool,
}

impl Search<'_> {
    fn run(&mut self, heuristics: &[(&'static str, Heuristic)]) {
        for &(by, heuristic) in heuristics {
            if guard::cancelled() && !self.found.is_empty() {
                return;
            }
            let order = heuristic(self.ix);
            self.add(by, order);
        }
    }

    fn add(&mut self, by: &'static str, order: Vec<u32>) {
        let peak = profile(self.ix, &order).peak;
        let at = self.found.partition_point(|other| other.peak <= peak);
        self.found.insert(at, Candidate { peak, by, order });
    }

    /// The best order is not proved to be optimal, and nobody wants to stop here.
    fn is_open(&self) -> bool {
        !guard::cancelled()
            && self.ix.exact
            && self.found.first().is_some_and(|best| best.peak > self.proof.units)
    }

    /// What the work on the gap is divided by.
    fn share(&self) -> u64 {
        let is_close =
            self.found.first().is_some_and(|best| best.peak - self.proof.units <= best.peak / CLOSE);
        if self.ix.ops > LARGE && is_close { CLOSE_SHARE } else { 1 }
    }

    /// Bounds by single cuts.
    fn cut(&mut self) {
        if !self.is_open() {
            return;
        }
        let best = &self.found[0];
        let profile = profile(self.ix, &best.order);
        let proof = bound::single_cuts(self.ix, &best.order, &profile, &mut bound::CUT_WORK.clone());
        if proof.units > self.proof.units {
            self.proof = proof;
        }
    }

    /// A short try to prove the best order optimal.
    fn refute(&mut self) {
        if self.is_open() && self.ix.ops > WIDTH {
            let best = &self.found[0];
            let profile = profile(self.ix, &best.order);
            let mut work = bound::REFUTE_WORK / if self.proves { 8 } else { 64 };
            let peak = best.peak;
            if let Some(found) = refute(self.ix, &best.order, &profile, peak, NARROW, &mut work) {
                self.proof.refute(peak, found);
            }
        }
    }

    /// Merges the independent parts of a wide graph. Returns a bound on what any order can do.
    fn merge(&mut self) -> Option<(i64, Refutation)> {
        if !self.is_open() {
            return None;
        }
        let merged = parts::merge(self.ix, &self.found[0].order, bound::PARTS_WORK)?;
        // As a start for the search, an order that is no better is worth less than another heuristic's.
        if profile(self.ix, &merged.order).peak < self.found[0].peak {
            self.add("merge", merged.order);
        }
        Some((merged.units, merged.proof))
    }

    /// Exhaustive search on a small graph, otherwise search around the best orders.
    fn improve(&mut self) {
        match whole(self.ix, &self.found[0].order, self.proof.units, self.found[0].peak) {
            Whole::Better(better) => {
                self.add("search", better);
                self.proof.raise(self.found[0].peak);
            }
            Whole::Optimal => self.proof.raise(self.found[0].peak),
            Whole::AtLeast(units) => {
                self.proof.raise(units);
                let share = self.share();
                let mut effort =
                    Effort { work: IMPROVE_WORK / share, states: WINDOW_STATES / share as usize };
                let starts: Vec<Candidate> = self.found.iter().take(STARTS).cloned().collect();
                for start in starts {
                    let (better, peak) = improve(self.ix, start.order, self.proof.units, &mut effort);
                    if peak < self.found[0].peak {
                        self.add("search", better);
                    }
                    if !self.is_open() || self.end.is_some_and(|end| Instant::now() >= end) {
                        return;
                    }
                }
            }
        }
    }

    /// An order that was asked for need not be near its bound.
    fn tighten(&mut self, is_best: bool) {
        let is_late = self.end.is_some_and(|end| Instant::now() >= end);
        if self.proves && !is_late && self.is_open() {
            let work = bound::REFUTE_WORK / self.share();
            bound::tighten(self.ix, &self.found[0].order, &mut self.proof, work, is_best);
        }
    }
}

enum Whole {
    Better(Vec<u32>),
    /// The order at hand is optimal.
    Optimal,
    AtLeast(i64),
}

/// Exhaustive search over a small graph.
fn whole(ix: &Index, order: &[u32], floor: i64, peak: i64) -> Whole {
    if ix.ops > WIDTH {
        return Whole::AtLeast(floor);
    }
    let mut position = vec![0; ix.ops];
    for (at, &op) in order.iter().enumerate() {
        position[op as usize] = at as u32;
    }
    let alive = ix.inputs.iter().map(|&b| ix.size[b as usize]).sum();
    let range = Range { order, position: &position, start: 0, end: order.len(), alive };
    match search(ix, range, floor, peak, &mut WHOLE_STATES.clone()) {
        Found::Order(better, _) => Whole::Better(better),
        Found::Nothing => Whole::Optimal,
        Found::GaveUp(units) => Whole::AtLeast(units),
    }
}
