//! Sets of which every op may be the last to run, and has much alive then.
//!
//! Some op of a set is the last of it to run, and while it does, the others are done. If the cut at each
//! op, with all others done, reaches the target, then so does every order. Likewise for the first op of a
//! set, with none of the others done.
//!
//! The set is that of the maximal ops of a down-set. Begin with all ops. An op at which the cut stays
//! below the target can be in no such set that lies within the down-set: the less has to be done, the
//! lower the cut. So it goes, and with it no set is lost. What is left in the end is the largest
//! down-set that proves anything, or empty. For a first op, the same with up-sets.

use super::cut::{Cutter, Side};

/// Which op of a set is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Extreme {
    Last,
    First,
}

/// A set of ops whose last (or first) to run reaches `target`, whichever it is. `live` is what is alive at
/// each position of the cutter's order, which is about the whole graph.
pub(super) fn extreme(
    cutter: &mut Cutter<'_>,
    which: Extreme,
    live: &[i64],
    target: i64,
    work: &mut u64,
) -> Option<Vec<u32>> {
    let ops = cutter.order.len();
    // Ops of the set, and how many others of it stand on the far side of each.
    let mut inside = vec![true; ops];
    let mut beyond = vec![0u32; ops];
    let mut edge: Vec<u32> = Vec::new();
    for op in 0..ops as u32 {
        beyond[op as usize] = beyond_of(cutter, which, op).count() as u32;
        if beyond[op as usize] == 0 {
            edge.push(op);
        }
    }
    *work = work.saturating_sub(ops as u64);
    // While no edges are assumed, what the order at hand has alive is no less than a cut.
    let trusts = cutter.extra.is_empty();
    // So many ops at the front of the edge reach the target with the set at hand.
    let mut high = 0;
    let mut left = ops;
    loop {
        if *work == 0 {
            return None;
        }
        let low = if trusts {
            outermost(cutter, which, &inside, &mut left).filter(|&op| live[at(cutter, op)] < target)
        } else {
            None
        };
        let low = match low {
            Some(op) => Some(op),
            None => {
                let Some(&op) = edge.get(high) else { break };
                let side = if which == Extreme::Last { Side::Before } else { Side::After };
                let here = live[at(cutter, op)];
                if cutter.solve_beside(op, (&edge, side), here, target, work) >= target {
                    high += 1;
                    None
                } else {
                    Some(op)
                }
            }
        };
        let Some(low) = low else { continue };
        inside[low as usize] = false;
        high = 0;
        *work = work.saturating_sub(edge.len() as u64);
        edge.retain(|&op| op != low);
        let near: Vec<u32> = near_of(cutter, which, low).collect();
        for op in near {
            beyond[op as usize] -= 1;
            if beyond[op as usize] == 0 {
                edge.push(op);
            }
        }
    }
    edge.sort_unstable();
    (!edge.is_empty()).then_some(edge)
}

fn at(cutter: &Cutter<'_>, op: u32) -> usize {
    cutter.position[op as usize] as usize
}

/// The op of the set that is the last (or first) in the order at hand; `left` only falls.
fn outermost(cutter: &Cutter<'_>, which: Extreme, inside: &[bool], left: &mut usize) -> Option<u32> {
    while *left > 0 {
        let at = if which == Extreme::Last { *left - 1 } else { inside.len() - *left };
        let op = cutter.order[at];
        if inside[op as usize] {
            return Some(op);
        }
        *left -= 1;
    }
    None
}

/// Ops that have to run later than one, for a last op; earlier for a first.
fn beyond_of<'c>(cutter: &'c Cutter<'_>, which: Extreme, op: u32) -> impl Iterator<Item = u32> + 'c {
    let (edges, extra) = match which {
        Extreme::Last => (&cutter.ix.succs, cutter.extra.succs(op)),
        Extreme::First => (&cutter.ix.preds, cutter.extra.preds(op)),
    };
    edges.get(op as usize).iter().chain(extra).copied()
}

fn near_of<'c>(cutter: &'c Cutter<'_>, which: Extreme, op: u32) -> impl Iterator<Item = u32> + 'c {
    beyond_of(cutter, if which == Extreme::Last { Extreme::First } else { Extreme::Last }, op)
}
