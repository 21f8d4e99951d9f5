//! Greedy orders: at each step the ready op that looks best. Ops are taken from the front of the
//! order or, walking the graph against its edges, from its end.

use std::{cmp::Reverse, collections::BinaryHeap};

use super::index::{Index, NONE};

/// What taking an op now does to the bytes alive, kept up to date while ops are taken.
trait Sweep {
    /// Ops that can be taken first.
    fn start(&self) -> Vec<u32>;
    /// Growth of the bytes alive from before the op to after it.
    fn net(&self, op: usize) -> i64;
    /// Takes an op. Appends the ops that became ready and those whose `net` changed.
    fn take(&mut self, op: usize, ready: &mut Vec<u32>, changed: &mut Vec<u32>);
    /// The larger wins ties.
    fn source_rank(&self, op: u32) -> u32;
}

/// Front to back.
struct Forward<'a> {
    ix: &'a Index,
    waiting: Vec<u32>,
    readers_left: Vec<u32>,
    /// Sum of the ids of the remaining readers: the last one when one is left.
    readers_sum: Vec<u64>,
    freed: Vec<i64>,
}

impl<'a> Forward<'a> {
    fn new(ix: &'a Index) -> Self {
        let mut freed = vec![0; ix.ops];
        let mut readers_sum = vec![0; ix.buffers];
        let mut readers_left = vec![0; ix.buffers];
        for b in 0..ix.buffers {
            let users = ix.users.get(b);
            readers_left[b] = users.len() as u32;
            readers_sum[b] = users.iter().map(|&u| u64::from(u)).sum();
            if let &[only] = users
                && !ix.output[b]
            {
                freed[only as usize] += ix.size[b];
            }
        }
        let waiting = (0..ix.ops).map(|v| ix.preds.count(v) as u32).collect();
        Forward { ix, waiting, readers_left, readers_sum, freed }
    }

    /// Growth while the op runs: what it makes and its workspace, less what it overwrites.
    fn up(&self, op: usize) -> i64 {
        let saved = self.ix.saved(op, |r| self.readers_left[r] == 1);
        self.ix.made[op] + self.ix.workspace[op] - saved
    }
}

impl Sweep for Forward<'_> {
    fn start(&self) -> Vec<u32> {
        (0..self.ix.ops as u32).filter(|&v| self.waiting[v as usize] == 0).collect()
    }

    fn net(&self, op: usize) -> i64 {
        self.ix.made[op] - self.ix.dead[op] - self.freed[op]
    }

    fn take(&mut self, op: usize, ready: &mut Vec<u32>, changed: &mut Vec<u32>) {
        for &r in self.ix.reads.get(op) {
            let b = r as usize;
            self.readers_left[b] -= 1;
            self.readers_sum[b] -= op as u64;
            if self.readers_left[b] == 1 && !self.ix.output[b] {
                let last = self.readers_sum[b] as u32;
                self.freed[last as usize] += self.ix.size[b];
                changed.push(last);
            }
        }
        for &s in self.ix.succs.get(op) {
            let waiting = &mut self.waiting[s as usize];
            *waiting -= 1;
            if *waiting == 0 {
                ready.push(s);
            }
        }
    }

    fn source_rank(&self, op: u32) -> u32 {
        NONE - op
    }
}

/// Back to front: an op's makes die when it is taken, its reads come alive.
struct Backward<'a> {
    ix: &'a Index,
    waiting: Vec<u32>,
    alive: Vec<bool>,
    /// Units of reads that are not alive yet.
    fresh: Vec<i64>,
}

impl<'a> Backward<'a> {
    fn new(ix: &'a Index) -> Self {
        let alive = ix.output.clone();
        let unit = |&r: &u32| if alive[r as usize] { 0 } else { ix.size[r as usize] };
        let fresh = (0..ix.ops).map(|v| ix.reads.get(v).iter().map(unit).sum()).collect();
        let waiting = (0..ix.ops).map(|v| ix.succs.count(v) as u32).collect();
        Backward { ix, waiting, alive, fresh }
    }
}

impl Sweep for Backward<'_> {
    fn start(&self) -> Vec<u32> {
        (0..self.ix.ops as u32).filter(|&v| self.waiting[v as usize] == 0).collect()
    }

    fn net(&self, op: usize) -> i64 {
        self.fresh[op] - (self.ix.made[op] - self.ix.dead[op])
    }

    fn take(&mut self, op: usize, ready: &mut Vec<u32>, changed: &mut Vec<u32>) {
        for &r in self.ix.reads.get(op) {
            let b = r as usize;
            if !self.alive[b] {
                self.alive[b] = true;
                for &u in self.ix.users.get(b) {
                    self.fresh[u as usize] -= self.ix.size[b];
                    changed.push(u);
                }
            }
        }
        for &p in self.ix.preds.get(op) {
            let waiting = &mut self.waiting[p as usize];
            *waiting -= 1;
            if *waiting == 0 {
                ready.push(p);
            }
        }
    }

    fn source_rank(&self, op: u32) -> u32 {
        op
    }
}

/// How a greedy order breaks ties between ops of the same growth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tie {
    /// More users first, then source order.
    Users,
    /// What became ready last, so that a chain is followed to its end.
    Newest,
}

/// Takes the ready op that frees most and makes least.
pub(super) fn list(ix: &Index, tie: Tie) -> Vec<u32> {
    greedy(ix, Forward::new(ix), tie)
}

/// The same from the end of the order: every op as late as it can be afforded.
pub(super) fn list_backward(ix: &Index, tie: Tie) -> Vec<u32> {
    let mut order = greedy(ix, Backward::new(ix), tie);
    order.reverse();
    order
}

fn greedy(ix: &Index, mut sweep: impl Sweep, tie: Tie) -> Vec<u32> {
    let mut order = Vec::with_capacity(ix.ops);
    let mut state = vec![State::Waiting; ix.ops];
    let mut rank = vec![0u32; ix.ops];
    let mut clock = 0;
    let mut heap = BinaryHeap::new();
    let mut ready = sweep.start();
    let mut changed = Vec::new();
    loop {
        clock += 1;
        for &op in &ready {
            let v = op as usize;
            state[v] = State::Ready;
            rank[v] = match tie {
                Tie::Users => ix.makes.get(v).iter().map(|&b| ix.users.count(b as usize) as u32).sum(),
                Tie::Newest => clock,
            };
            heap.push((Reverse(sweep.net(v)), rank[v], sweep.source_rank(op), op));
        }
        for &op in &changed {
            let v = op as usize;
            if state[v] == State::Ready {
                heap.push((Reverse(sweep.net(v)), rank[v], sweep.source_rank(op), op));
            }
        }
        ready.clear();
        changed.clear();
        // Entries are not removed when an op's growth changes; stale ones are skipped here.
        let next = loop {
            match heap.pop() {
                None => return order,
                Some((Reverse(net), _, _, op)) => {
                    if state[op as usize] == State::Ready && net == sweep.net(op as usize) {
                        break op;
                    }
                }
            }
        };
        state[next as usize] = State::Taken;
        order.push(next);
        sweep.take(next as usize, &mut ready, &mut changed);
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Waiting,
    Ready,
    Taken,
}

/// Least peak first: among the ready ops that do not raise the peak so far, the one that grows
/// least; if all raise it, the one that raises it least. A segment tree over the ops' growth
/// while they run answers both questions in logarithmic time.
pub(super) fn lpmf(ix: &Index) -> Vec<u32> {
    let mut sweep = Forward::new(ix);
    let largest = |v: usize| ix.made[v] + ix.workspace[v];
    let smallest = |v: usize| largest(v) - ix.saved(v, |_| true);
    // A leaf for each op and growth it can have: with all its overwrites, or without one.
    let mut leaves: Vec<(i64, u32)> = Vec::with_capacity(ix.ops * 2);
    for v in 0..ix.ops {
        leaves.push((largest(v), v as u32));
        if smallest(v) < largest(v) {
            leaves.push((smallest(v), v as u32));
        }
    }
    leaves.sort_unstable();
    let mut tree = Tree::new(leaves.len());
    let mut order = Vec::with_capacity(ix.ops);
    let mut place = vec![NONE; ix.ops];
    let mut now: i64 = ix.inputs.iter().map(|&b| ix.size[b as usize]).sum();
    let mut peak = now;
    let mut ready = sweep.start();
    let mut changed = Vec::new();
    let mut taken = vec![false; ix.ops];
    loop {
        for &op in ready.iter().chain(changed.iter()) {
            let v = op as usize;
            if taken[v] || sweep.waiting[v] > 0 {
                continue;
            }
            let up = if sweep.up(v) <= smallest(v) { smallest(v) } else { largest(v) };
            if let Ok(leaf) = leaves.binary_search(&(up, op)) {
                if place[v] != NONE && place[v] as usize != leaf {
                    tree.set(place[v] as usize, None);
                }
                place[v] = leaf as u32;
                tree.set(leaf, Some((sweep.net(v), op)));
            }
        }
        ready.clear();
        changed.clear();
        let fitting = leaves.partition_point(|&(up, _)| now + up <= peak);
        let Some((_, op)) = tree.min(fitting).or_else(|| tree.first_group(&leaves)) else {
            return order;
        };
        let v = op as usize;
        taken[v] = true;
        tree.set(place[v] as usize, None);
        order.push(op);
        peak = peak.max(now + sweep.up(v));
        now += sweep.net(v);
        sweep.take(v, &mut ready, &mut changed);
    }
}

/// A segment tree of (growth, op) minima.
struct Tree {
    width: usize,
    nodes: Vec<Option<(i64, u32)>>,
}

impl Tree {
    fn new(leaves: usize) -> Tree {
        let width = leaves.next_power_of_two().max(1);
        Tree { width, nodes: vec![None; width * 2] }
    }

    fn set(&mut self, leaf: usize, value: Option<(i64, u32)>) {
        let mut at = self.width + leaf;
        self.nodes[at] = value;
        while at > 1 {
            at /= 2;
            self.nodes[at] = least(self.nodes[at * 2], self.nodes[at * 2 + 1]);
        }
    }

    /// The minimum over the leaves before `end`.
    fn min(&self, end: usize) -> Option<(i64, u32)> {
        let (mut lo, mut hi) = (self.width, self.width + end);
        let mut best = None;
        while lo < hi {
            if lo % 2 == 1 {
                best = least(best, self.nodes[lo]);
                lo += 1;
            }
            if hi % 2 == 1 {
                hi -= 1;
                best = least(best, self.nodes[hi]);
            }
            lo /= 2;
            hi /= 2;
        }
        best
    }

    /// The minimum among the occupied leaves of the smallest key.
    fn first_group(&self, leaves: &[(i64, u32)]) -> Option<(i64, u32)> {
        self.nodes[1]?;
        let mut at = 1;
        while at < self.width {
            at = if self.nodes[at * 2].is_some() { at * 2 } else { at * 2 + 1 };
        }
        let key = leaves[at - self.width].0;
        self.min(leaves.partition_point(|&(up, _)| up <= key))
    }
}

fn least(a: Option<(i64, u32)>, b: Option<(i64, u32)>) -> Option<(i64, u32)> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}
