//! The fewest bytes that any order has alive while a given op runs, by one minimum cut.
//!
//! What must precede the op is done, what must follow it is not; every other op is free. A set of
//! done ops that is closed under predecessors costs the buffers made in it (or from the start
//! there) that someone outside still reads. That is the capacity of a cut: an op on the source side
//! is done, its buffer's arc is cut when a reader is not, and arcs without limit lead from an op to
//! its predecessors.

use rustc_hash::FxHashMap;

use crate::guard;

use super::{
    flow::{INFINITE, Network},
    index::{Index, NONE},
};

/// At most so many ways to choose the overwrites of one op are tried one by one; beyond that, all
/// of them are granted at once, which keeps the bound sound.
const MAX_CHOICES: usize = 9;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    /// Done before the op.
    Before,
    /// Not done when the op runs; the op itself too.
    After,
    /// Either.
    Free,
}

/// The result for one op.
#[derive(Debug, Clone)]
pub(super) struct Cut {
    /// No order has fewer units alive while the op runs.
    pub(super) units: i64,
    /// The sets below have exactly these units: the flow was carried to its end.
    pub(super) complete: bool,
    /// Free ops done in the smallest and in the largest optimal set.
    pub(super) smallest: Vec<u32>,
    pub(super) largest: Vec<u32>,
    /// Ops that the op neither needs nor is needed by.
    pub(super) free: Vec<u32>,
}

/// Order edges assumed on top of the graph's.
#[derive(Debug, Clone, Default)]
pub(super) struct Extra {
    preds: FxHashMap<u32, Vec<u32>>,
    succs: FxHashMap<u32, Vec<u32>>,
}

impl Extra {
    pub(super) fn add(&mut self, before: u32, after: u32) {
        self.preds.entry(after).or_default().push(before);
        self.succs.entry(before).or_default().push(after);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.preds.is_empty()
    }

    pub(super) fn preds(&self, op: u32) -> &[u32] {
        self.preds.get(&op).map_or(&[], Vec::as_slice)
    }

    pub(super) fn succs(&self, op: u32) -> &[u32] {
        self.succs.get(&op).map_or(&[], Vec::as_slice)
    }
}

/// Builds and solves the networks. Ops outside the current segment of the order are done before it
/// or come after it.
pub(super) struct Cutter<'a> {
    pub(super) ix: &'a Index,
    pub(super) extra: Extra,
    /// Of ops in the segment; `Free` between calls.
    side: Vec<Side>,
    pub(super) order: Vec<u32>,
    pub(super) position: Vec<u32>,
    start: u32,
    end: u32,
    node: Vec<u32>,
    stamp: Vec<u32>,
    clock: u32,
    network: Network,
    to_sink: Vec<i64>,
    /// Ops whose side was set.
    decided: Vec<u32>,
    /// Those among them whose side is not that of the order.
    contrary: Vec<u32>,
    /// Position of the op, and what the buffers in the network cost in the order at hand.
    here: u32,
    present: i64,
}

/// A read buffer that may be overwritten, and the free ops that must have read it.
type Partner = (u32, Vec<u32>);

/// A network that has been solved for one op, to be asked what forcing another op costs.
pub(super) struct Solved {
    network: Network,
    node: FxHashMap<u32, u32>,
    units: i64,
}

const SOURCE: u32 = 0;
const SINK: u32 = 1;

impl<'a> Cutter<'a> {
    pub(super) fn new(ix: &'a Index, order: &[u32]) -> Self {
        let mut cutter = Cutter {
            ix,
            extra: Extra::default(),
            side: vec![Side::Free; ix.ops],
            order: order.to_vec(),
            position: vec![0; ix.ops],
            start: 0,
            end: 0,
            node: vec![0; ix.ops],
            stamp: vec![0; ix.buffers],
            clock: 0,
            network: Network::default(),
            to_sink: Vec::new(),
            decided: Vec::new(),
            contrary: Vec::new(),
            here: 0,
            present: 0,
        };
        cutter.set_segment(order, 0, order.len());
        cutter
    }

    /// From now on, ops at positions before `start` are done and those from `end` on are not.
    pub(super) fn set_segment(&mut self, order: &[u32], start: usize, end: usize) {
        self.order[start..end].copy_from_slice(&order[start..end]);
        for (at, &op) in order.iter().enumerate().take(end).skip(start) {
            self.position[op as usize] = at as u32;
        }
        (self.start, self.end) = (start as u32, end as u32);
    }

    fn side(&self, op: u32) -> Side {
        match self.position[op as usize] {
            at if at < self.start => Side::Before,
            at if at >= self.end => Side::After,
            _ => self.side[op as usize],
        }
    }

    /// The least units alive while `op` runs, where the ops of the segment (`op` among them) are
    /// ordered freely. `live` is what is alive in the order at hand. Stops early once the least is
    /// known to be at least `enough`.
    pub(super) fn solve(&mut self, op: u32, live: i64, enough: i64, work: &mut u64) -> Cut {
        self.cut(op, (&[], Side::Before), live, enough, work).0
    }

    /// The same where some other ops are done before `op` (or none of them is, [`Side::After`]), with what
    /// that implies.
    pub(super) fn solve_beside(
        &mut self,
        op: u32,
        (others, side): (&[u32], Side),
        live: i64,
        enough: i64,
        work: &mut u64,
    ) -> i64 {
        self.cut(op, (others, side), live, enough, work).0.units
    }

    /// The same as `solve`, with the networks, one for each choice of overwrites, for [`Solved::force`].
    pub(super) fn solve_open(
        &mut self,
        op: u32,
        live: i64,
        enough: i64,
        work: &mut u64,
    ) -> (Cut, Vec<Solved>) {
        let (cut, networks) = self.cut(op, (&[], Side::Before), live, enough, work);
        let node: FxHashMap<u32, u32> =
            cut.free.iter().enumerate().map(|(i, &u)| (u, i as u32 + 2)).collect();
        let solved = networks
            .into_iter()
            .map(|(network, units)| Solved { network, node: node.clone(), units })
            .collect();
        (cut, solved)
    }

    fn cut(
        &mut self,
        op: u32,
        given: (&[u32], Side),
        live: i64,
        enough: i64,
        work: &mut u64,
    ) -> (Cut, Vec<(Network, i64)>) {
        if guard::cancelled() {
            *work = 0;
        }
        let v = op as usize;
        self.here = self.position[v];
        let consistent = self.split(op, given);
        let segment = self.start as usize..self.end as usize;
        *work = work.saturating_sub(segment.len() as u64 / 2 + 1);
        let free: Vec<u32> =
            self.order[segment].iter().copied().filter(|&u| self.side[u as usize] == Side::Free).collect();
        for (i, &u) in free.iter().enumerate() {
            self.node[u as usize] = i as u32 + 2;
        }
        let base = self.build(&free) - self.present + live + self.own(v);
        // Building takes longer than a look at what is built.
        *work = work.saturating_sub(self.network.size().saturating_mul(3));
        let choices = self.choices(v);
        let mut best: Option<Cut> = None;
        let mut networks = Vec::new();
        let last = choices.len() - 1;
        for (i, choice) in choices.into_iter().enumerate() {
            let mut network =
                if i == last { std::mem::take(&mut self.network) } else { self.network.clone() };
            let mut units = base;
            for (size, readers) in choice {
                units -= size;
                if !readers.is_empty() {
                    let node = network.node();
                    network.arc(SOURCE, node, size);
                    for reader in readers {
                        network.arc(node, self.node[reader as usize], INFINITE);
                    }
                }
            }
            let flow = network.push(SOURCE, SINK, (enough - units).max(0), work);
            units += flow.amount;
            if best.as_ref().is_none_or(|b| units < b.units) {
                let mut cut = Cut {
                    units,
                    complete: flow.maximum,
                    smallest: Vec::new(),
                    largest: Vec::new(),
                    free: Vec::new(),
                };
                if flow.maximum {
                    let chosen = |side: &[bool]| -> Vec<u32> {
                        free.iter().zip(&side[2..]).filter(|&(_, &s)| s).map(|(&u, _)| u).collect()
                    };
                    cut.smallest = chosen(&network.source_side(SOURCE));
                    cut.largest = chosen(&network.largest_source_side(SINK));
                }
                best = Some(cut);
            }
            networks.push((network, units));
        }
        for u in self.decided.drain(..) {
            self.side[u as usize] = Side::Free;
        }
        if !consistent && let Some(best) = &mut best {
            (best.units, best.complete) = (INFINITE, false);
        }
        let mut cut = best.unwrap_or(Cut {
            units: base,
            complete: false,
            smallest: Vec::new(),
            largest: Vec::new(),
            free: Vec::new(),
        });
        cut.free = free;
        (cut, networks)
    }

    /// What `v` has with no overwrites, less what it has in the order at hand: there it may
    /// overwrite, and at the very start of an order inputs that nobody reads are still there.
    fn own(&self, v: usize) -> i64 {
        let ix = self.ix;
        let dies = |r: usize| ix.users.get(r).iter().all(|&u| self.position[u as usize] <= self.here);
        let unread = if self.here == 0 { ix.unread } else { 0 };
        ix.saved(v, dies) - unread
    }

    fn decide(&mut self, op: u32, side: Side) {
        self.side[op as usize] = side;
        self.decided.push(op);
        if (self.position[op as usize] < self.here) != (side == Side::Before) {
            self.contrary.push(op);
        }
    }

    /// Marks what must be before and after `op` among the free ops, where `others` are on one side of
    /// it. False if the assumed edges contradict that or each other: no order has them all.
    fn split(&mut self, op: u32, (others, side): (&[u32], Side)) -> bool {
        let ix = self.ix;
        let mut consistent = true;
        self.contrary.clear();
        self.decide(op, Side::After);
        let mut stack = vec![op];
        if side == Side::Before {
            for &other in others.iter().filter(|&&other| other != op) {
                if self.side(other) == Side::Free {
                    self.decide(other, side);
                    stack.push(other);
                }
            }
        }
        while let Some(u) = stack.pop() {
            for &p in ix.preds.get(u as usize) {
                if self.side(p) == Side::Free {
                    self.decide(p, Side::Before);
                    stack.push(p);
                }
            }
            for i in 0..self.extra.preds(u).len() {
                let p = self.extra.preds(u)[i];
                if self.side(p) == Side::Free {
                    self.decide(p, Side::Before);
                    stack.push(p);
                }
            }
        }
        stack.push(op);
        if side == Side::After {
            for &other in others.iter().filter(|&&other| other != op) {
                consistent &= self.side(other) != Side::Before;
                if self.side(other) == Side::Free {
                    self.decide(other, side);
                    stack.push(other);
                }
            }
        }
        while let Some(u) = stack.pop() {
            for &s in ix.succs.get(u as usize) {
                consistent &= self.side(s) != Side::Before;
                if self.side(s) == Side::Free {
                    self.decide(s, Side::After);
                    stack.push(s);
                }
            }
            for i in 0..self.extra.succs(u).len() {
                let s = self.extra.succs(u)[i];
                consistent &= self.side(s) != Side::Before;
                if self.side(s) == Side::Free {
                    self.decide(s, Side::After);
                    stack.push(s);
                }
            }
        }
        consistent
    }

    /// Fills the network with the free ops and the buffers that they, or contrary ops, decide.
    /// Returns the units of those that are alive whatever free ops do; `present` becomes what all
    /// of them cost in the order at hand.
    fn build(&mut self, free: &[u32]) -> i64 {
        let ix = self.ix;
        self.network.reset(free.len() + 2);
        self.to_sink.clear();
        self.to_sink.resize(free.len() + 2, 0);
        self.clock += 1;
        self.present = 0;
        let mut base = 0;
        let contrary = std::mem::take(&mut self.contrary);
        for &u in free.iter().chain(&contrary) {
            for &b in ix.makes.get(u as usize).iter().chain(ix.reads.get(u as usize)) {
                base += self.buffer(b as usize);
            }
        }
        self.contrary = contrary;
        for (i, &u) in free.iter().enumerate() {
            let node = i as u32 + 2;
            let units = self.to_sink[node as usize];
            if units > 0 {
                self.network.arc(node, SINK, units);
            }
            for &p in ix.preds.get(u as usize).iter().chain(self.extra.preds(u)) {
                if self.side(p) == Side::Free {
                    self.network.arc(node, self.node[p as usize], INFINITE);
                }
            }
        }
        base
    }

    /// Adds one buffer, the first time it is met; returns its units if it is alive in any case.
    fn buffer(&mut self, b: usize) -> i64 {
        if self.stamp[b] == self.clock {
            return 0;
        }
        self.stamp[b] = self.clock;
        let ix = self.ix;
        let size = ix.size[b];
        let users = ix.users.get(b);
        let made = ix.maker[b] == NONE || self.position[ix.maker[b] as usize] < self.here;
        if made && (ix.output[b] || users.iter().any(|&u| self.position[u as usize] >= self.here)) {
            self.present += size;
        }
        let maker = match ix.maker[b] {
            NONE => None,
            m => match self.side(m) {
                Side::Before => None,
                Side::Free => Some(self.node[m as usize]),
                Side::After => return 0,
            },
        };
        let mut readers = 0;
        let mut only = 0;
        let mut needed = ix.output[b];
        for &u in users {
            match self.side(u) {
                Side::After => needed = true,
                Side::Free => (readers, only) = (readers + 1, self.node[u as usize]),
                Side::Before => {}
            }
        }
        match (maker, needed) {
            (None, true) => return size,
            (Some(maker), true) => self.to_sink[maker as usize] += size,
            (_, false) if readers == 0 => {}
            (maker, false) => {
                let from = maker.unwrap_or(SOURCE);
                if readers == 1 {
                    self.network.arc(from, only, size);
                } else {
                    let node = self.network.node();
                    self.network.arc(from, node, size);
                    for &u in users {
                        if self.side(u) == Side::Free {
                            self.network.arc(node, self.node[u as usize], INFINITE);
                        }
                    }
                }
            }
        }
        0
    }

    /// The choices of overwrites that can be best for `v`: for each pair its units and the free
    /// readers that must be done for it. Never empty.
    fn choices(&self, v: usize) -> Vec<Vec<(i64, Vec<u32>)>> {
        let ix = self.ix;
        if !ix.has_pairs(v) {
            return vec![Vec::new()];
        }
        // Free readers of a read buffer besides `v`; `None` if one comes after `v`.
        let pending = |r: u32| -> Option<Vec<u32>> {
            let mut list = Vec::new();
            for &u in ix.users.get(r as usize) {
                if u as usize != v {
                    match self.side(u) {
                        Side::After => return None,
                        Side::Free => list.push(u),
                        Side::Before => {}
                    }
                }
            }
            Some(list)
        };
        let mut by_made: Vec<(u32, Vec<Partner>)> = Vec::new();
        let mut undecided = false;
        for (m, r) in ix.pairs(v) {
            if let Some(readers) = pending(r) {
                undecided |= !readers.is_empty();
                match by_made.iter_mut().find(|(made, _)| *made == m) {
                    Some((_, list)) => list.push((r, readers)),
                    None => by_made.push((m, vec![(r, readers)])),
                }
            }
        }
        let granted = |r: usize| by_made.iter().any(|(_, list)| list.iter().any(|&(x, _)| x as usize == r));
        let ways = by_made.iter().map(|(_, list)| list.len()).try_fold(1usize, |a, b| a.checked_mul(b));
        if !undecided || ways.is_none_or(|ways| ways > MAX_CHOICES) {
            return vec![vec![(ix.saved(v, granted), Vec::new())]];
        }
        let mut choices: Vec<Vec<(u32, i64, Vec<u32>)>> = vec![Vec::new()];
        for (m, list) in &by_made {
            choices = choices
                .into_iter()
                .flat_map(|choice| {
                    let mut grown: Vec<_> = list
                        .iter()
                        .filter(|(r, _)| choice.iter().all(|(taken, _, _)| taken != r))
                        .map(|(r, readers)| {
                            let mut with = choice.clone();
                            with.push((*r, ix.shared(*m, *r), readers.clone()));
                            with
                        })
                        .collect();
                    if grown.is_empty() {
                        grown.push(choice);
                    }
                    grown
                })
                .collect();
        }
        choices
            .into_iter()
            .map(|choice| choice.into_iter().map(|(_, size, readers)| (size, readers)).collect())
            .collect()
    }
}

impl Solved {
    /// The least units alive while the op runs if `other`, a free op, is done before it, or not.
    /// At least `enough` is as good as that.
    ///
    /// Doing `other` is an arc without limit from the source to it. A flow that is maximal stays so
    /// for the source, so it is enough to push on from `other` itself; likewise towards it.
    pub(super) fn force(&mut self, other: u32, done: bool, enough: i64, work: &mut u64) -> i64 {
        let Some(&node) = self.node.get(&other) else { return self.units };
        let (from, to) = if done { (node, SINK) } else { (SOURCE, node) };
        self.network.mark();
        let flow = self.network.push(from, to, (enough - self.units).max(0), work);
        self.network.undo();
        self.units + flow.amount
    }
}
