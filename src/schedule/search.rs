//! Which order to take: heuristics, a bound, and search while they differ.

use super::{
    Options, OrderKind,
    bound::{self, Proof},
    depth::{Operands, depth_first},
    exact::{Found, Range, WIDTH, search},
    greedy::{Tie, list, list_backward, lpmf},
    improve::{Effort, improve},
    index::Index,
    profile::profile,
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
const IMPROVE_WORK: u64 = 60_000_000;
/// How many of the heuristics' orders are improved.
const STARTS: usize = 3;

pub(super) struct Chosen {
    pub(super) order: Vec<u32>,
    pub(super) found_by: &'static str,
    pub(super) proof: Proof,
}

pub(super) fn choose(ix: &Index, options: &Options) -> Chosen {
    let all: Vec<(&'static str, Heuristic)> = match options.order {
        OrderKind::Best => [&SOURCE[..], &LIST, &LPMF, &DFS].concat(),
        OrderKind::Source => SOURCE.to_vec(),
        // The plain ones, so that they can be compared with what others do.
        OrderKind::List => LIST[..1].to_vec(),
        OrderKind::Lpmf => LPMF.to_vec(),
        OrderKind::Dfs => DFS[..1].to_vec(),
    };
    let mut found: Vec<(i64, &'static str, Vec<u32>)> = all
        .into_iter()
        .map(|(name, heuristic)| {
            let order = heuristic(ix);
            (profile(ix, &order).peak, name, order)
        })
        .collect();
    found.sort_by_key(|&(peak, _, _)| peak);
    let Some((mut peak, mut found_by, mut order)) = found.first().cloned() else {
        return Chosen { order: Vec::new(), found_by: "source", proof: bound::footprints(ix) };
    };
    let mut proof = if ix.exact {
        bound::single_cuts(ix, &order, &profile(ix, &order), &mut bound::CUT_WORK.clone())
    } else {
        bound::footprints(ix)
    };
    if options.order == OrderKind::Best && peak > proof.units && ix.exact {
        match whole(ix, &order, proof.units, peak) {
            Whole::Better(better) => {
                (peak, order, found_by) = (profile(ix, &better).peak, better, "search");
                proof.raise(peak);
            }
            Whole::Optimal => proof.raise(peak),
            Whole::AtLeast(units) => {
                proof.raise(units);
                let mut effort = Effort { work: IMPROVE_WORK, states: WINDOW_STATES };
                for (_, _, start) in found.into_iter().take(STARTS) {
                    let (better, lower) = improve(ix, start, proof.units, &mut effort);
                    if lower < peak {
                        (peak, order, found_by) = (lower, better, "search");
                    }
                    if peak <= proof.units {
                        break;
                    }
                }
            }
        }
    }
    Chosen { order, found_by, proof }
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
