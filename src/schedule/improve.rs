//! Search that starts from a good order: cuts move ops across the peak, wherever they are; an
//! exhaustive search reorders a window around it.

use crate::guard;

use super::{
    cut::{Cut, Cutter},
    exact::{Found, Range, WIDTH, search},
    flow::INFINITE,
    index::{Index, NONE},
    profile::{Profile, profile},
};

/// Limits on iterations, so that results do not depend on the machine.
#[derive(Debug, Clone, Copy)]
pub(super) struct Effort {
    /// Arcs and ops that cuts may look at.
    pub(super) work: u64,
    /// Sets of done ops that window searches may look at.
    pub(super) states: usize,
}

/// Lowers the peak of an order until it is at most `goal`, a lower bound, or nothing helps.
pub(super) fn improve(ix: &Index, order: Vec<u32>, goal: i64, effort: &mut Effort) -> (Vec<u32>, i64) {
    let mut best = order;
    let mut peak = profile(ix, &best).peak;
    loop {
        let before = peak;
        for take in [Take::Smallest, Take::Largest, Take::Nearest] {
            if peak <= goal || effort.work == 0 {
                break;
            }
            let order = refine(ix, &best, goal, take, effort);
            let found = profile(ix, &order).peak;
            if found < peak {
                (best, peak) = (order, found);
            }
        }
        peak = windows(ix, &mut best, goal, effort);
        if peak <= goal || peak == before {
            return (best, peak);
        }
    }
}

/// Which of the optimal sets of a cut is done before its op.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Take {
    Smallest,
    Largest,
    /// The one that leaves the lower peak in the segment as it is.
    Nearest,
}

/// Splits the order at its hottest op so that the fewest bytes are alive there, then treats the
/// parts on both sides alike, until every part is below `goal`.
fn refine(ix: &Index, order: &[u32], goal: i64, take: Take, effort: &mut Effort) -> Vec<u32> {
    let mut order = order.to_vec();
    let mut cutter = Cutter::new(ix, &order);
    let mut local = Local::new(ix, &order);
    let mut parts = vec![(0usize, order.len())];
    while let Some((start, end)) = parts.pop() {
        if end - start < 2 || effort.work == 0 {
            continue;
        }
        let (live, at) = local.peak(ix, &order, start, end, &mut effort.work);
        if live <= goal {
            continue;
        }
        let op = order[at];
        cutter.set_segment(&order, start, end);
        let segment = order[start..end].to_vec();
        let cut = cutter.solve(op, live, INFINITE, &mut effort.work);
        if !cut.complete {
            continue;
        }
        let Cut { smallest, largest, .. } = cut;
        let mut choices = Vec::new();
        if take != Take::Largest {
            choices.push(local.split(ix, &segment, start, op, &smallest));
        }
        if take != Take::Smallest && (take == Take::Largest || largest != smallest) {
            choices.push(local.split(ix, &segment, start, op, &largest));
        }
        let mut best: Option<(i64, Vec<u32>)> = None;
        for choice in choices {
            order[start..end].copy_from_slice(&choice);
            local.place(&order, start, end);
            let peak = local.peak(ix, &order, start, end, &mut effort.work).0;
            if best.as_ref().is_none_or(|&(lowest, _)| peak < lowest) {
                best = Some((peak, choice));
            }
        }
        if let Some((_, choice)) = best {
            order[start..end].copy_from_slice(&choice);
            local.place(&order, start, end);
        }
        // Ops have changed sides: parts that are looked at later must know.
        cutter.set_segment(&order, start, end);
        let middle = local.position[op as usize] as usize;
        parts.push((start, middle));
        parts.push((middle + 1, end));
    }
    order
}

/// Figures of a part of an order, from that part alone.
struct Local {
    position: Vec<u32>,
    left: Vec<u32>,
    stamp: Vec<u32>,
    clock: u32,
    done: Vec<bool>,
    /// Units alive before each position. Parts are split in place, so the value at the start of a
    /// part does not change once it is known.
    alive: Vec<i64>,
}

impl Local {
    fn new(ix: &Index, order: &[u32]) -> Local {
        let mut local = Local {
            position: vec![0; ix.ops],
            left: vec![0; ix.buffers],
            stamp: vec![0; ix.buffers],
            clock: 0,
            done: vec![false; ix.ops],
            alive: vec![0; order.len() + 1],
        };
        local.place(order, 0, order.len());
        if let Some(first) = local.alive.first_mut() {
            *first = ix.inputs.iter().map(|&b| ix.size[b as usize]).sum();
        }
        local
    }

    fn place(&mut self, order: &[u32], start: usize, end: usize) {
        for (at, &op) in order.iter().enumerate().take(end).skip(start) {
            self.position[op as usize] = at as u32;
        }
    }

    /// The highest figure in the part, and where.
    fn peak(&mut self, ix: &Index, order: &[u32], start: usize, end: usize, work: &mut u64) -> (i64, usize) {
        self.clock += 1;
        let mut now = self.alive[start];
        let (mut peak, mut position) = (i64::MIN, start);
        for (at, &op) in order.iter().enumerate().take(end).skip(start) {
            let v = op as usize;
            let mut freed = 0;
            for &r in ix.reads.get(v) {
                let r = r as usize;
                if self.stamp[r] != self.clock {
                    self.stamp[r] = self.clock;
                    let users = ix.users.get(r);
                    *work = work.saturating_sub(users.len() as u64);
                    self.left[r] =
                        users.iter().filter(|&&u| self.position[u as usize] as usize >= start).count() as u32;
                }
                self.left[r] -= 1;
                if self.left[r] == 0 && !ix.output[r] {
                    freed += ix.size[r];
                }
            }
            let mut here = now + ix.made[v] + ix.workspace[v];
            if ix.has_pairs(v) {
                here -= ix.saved(v, |r| self.left[r] == 0);
            }
            if at == 0 {
                here += ix.unread;
            }
            if here > peak {
                (peak, position) = (here, at);
            }
            now += ix.made[v] - ix.dead[v] - freed;
            self.alive[at + 1] = now;
        }
        *work = work.saturating_sub((end - start) as u64);
        (peak, position)
    }

    /// The segment with `chosen` and what `op` needs first, then `op`, then the rest, each in their
    /// present order.
    fn split(&mut self, ix: &Index, segment: &[u32], start: usize, op: u32, chosen: &[u32]) -> Vec<u32> {
        for &u in segment {
            self.done[u as usize] = false;
        }
        for &u in chosen {
            self.done[u as usize] = true;
        }
        let mut stack = vec![op];
        while let Some(u) = stack.pop() {
            for &p in ix.preds.get(u as usize) {
                if !self.done[p as usize] && self.position[p as usize] as usize >= start {
                    self.done[p as usize] = true;
                    stack.push(p);
                }
            }
        }
        let first = segment.iter().copied().filter(|&u| self.done[u as usize]);
        let rest = segment.iter().copied().filter(|&u| !self.done[u as usize] && u != op);
        first.chain([op]).chain(rest).collect()
    }
}

/// Windows are tried in these sizes, small ones first.
const WINDOWS: [usize; 4] = [12, 24, 48, 96];

/// A window search ends after so many sets, so that one window does not use up everything.
const WINDOW_STATES: usize = 4_000;

/// Reorders windows around the peak for as long as that lowers it. Returns the peak.
fn windows(ix: &Index, order: &mut Vec<u32>, goal: i64, effort: &mut Effort) -> i64 {
    let mut position = vec![NONE; ix.ops];
    loop {
        let now = profile(ix, order);
        effort.work = effort.work.saturating_sub(ix.weight());
        if now.peak <= goal || effort.states == 0 || effort.work == 0 || guard::cancelled() {
            return now.peak;
        }
        for (at, &op) in order.iter().enumerate() {
            position[op as usize] = at as u32;
        }
        let mut changed = order.clone();
        if !lower_all(ix, &mut changed, &mut position, &now, goal, effort) {
            return now.peak;
        }
        *order = changed;
    }
}

/// Lowers every place at which the peak is reached; false if one resists.
fn lower_all(
    ix: &Index,
    order: &mut [u32],
    position: &mut [u32],
    before: &Profile,
    goal: i64,
    effort: &mut Effort,
) -> bool {
    let mut at = 0;
    let mut now = before.clone();
    while let Some(step) = now.live[at..].iter().position(|&live| live >= before.peak) {
        let hot = at + step;
        let mut lowered = false;
        'sizes: for size in WINDOWS {
            for shift in [2usize, 1, 3] {
                // The peak in the middle of the window, near its end, near its start.
                let start = hot.saturating_sub(size * shift / 4);
                let end = (start + size.min(WIDTH)).min(order.len());
                let range = Range { order, position, start, end, alive: now.before[start] };
                let mut states = effort.states.min(WINDOW_STATES);
                let given = states;
                let found = search(ix, range, goal, before.peak, &mut states);
                effort.states -= given - states;
                if let Found::Order(ops, _) = found {
                    order[start..end].copy_from_slice(&ops);
                    for (i, &op) in ops.iter().enumerate() {
                        position[op as usize] = (start + i) as u32;
                    }
                    lowered = true;
                    break 'sizes;
                }
                if end - start == order.len() {
                    break 'sizes;
                }
            }
        }
        if !lowered {
            return false;
        }
        now = profile(ix, order);
        effort.work = effort.work.saturating_sub(ix.weight());
        at = hot;
        if effort.states == 0 || effort.work == 0 {
            return now.peak < before.peak;
        }
    }
    true
}
