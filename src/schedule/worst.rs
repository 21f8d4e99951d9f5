//! The most bytes that any legal order can have alive: an upper bound over all of them, and an
//! order that comes close. Optional overwrites are not assumed.
//!
//! Between two ops the done ones form a set closed under predecessors. A buffer with one last
//! reader adds its size when its maker is done and takes it away when that reader is: the most that
//! is alive is a closure of maximum weight, by one minimum cut. Where several readers may be the
//! last, only an op behind all of them is sure to find the buffer gone; telling apart which of them
//! comes last tightens that.

use crate::guard;

use super::{
    OpId, ScheduleGraph,
    flow::{INFINITE, Network},
    index::Index,
    profile::lifetimes,
};

/// Arcs that all closures of one bound may look at together.
const WORK: u64 = 60_000_000;

/// Ops looked at in the search for an op behind all readers of a buffer.
const JOIN_STEPS: usize = 400;

/// Depth of the distinctions of last readers, and closures for all of them.
const DEPTH: usize = 8;
const CLOSURES: usize = 200;
/// Ops at which each guess of last readers looks for a witness.
const WITNESS_OPS: usize = 4;

/// What every legal order stays within. Bytes of the arena only.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Worst {
    /// No legal order has more alive.
    pub bytes: u64,
    /// A legal order, and what it has alive at its worst.
    pub witness: Vec<OpId>,
    pub witness_bytes: u64,
}

impl Worst {
    /// The witness is as bad as orders get.
    pub fn is_exact(&self) -> bool {
        self.bytes == self.witness_bytes
    }
}

/// Bounds the live bytes of every legal order of a graph.
pub fn worst_order(graph: &ScheduleGraph) -> Worst {
    let ix = Index::new(graph);
    let source: Vec<u32> = (0..ix.ops as u32).collect();
    if !ix.exact || ix.ops == 0 {
        let all = graph.buffer_ids().map(|b| u128::from(graph.arena_bytes(b))).sum::<u128>()
            + graph.ops().map(|op| u128::from(graph.workspace(op))).max().unwrap_or(0);
        return Worst {
            bytes: u64::try_from(all).unwrap_or(u64::MAX),
            witness_bytes: if ix.exact { ix.to_bytes(plain_peak(&ix, &source).0) } else { 0 },
            witness: source.into_iter().map(OpId).collect(),
        };
    }
    let mut search = Search::new(&ix, source);
    search.allow(WORK / 4, CLOSURES / 4);
    let mut bytes = search.bound(&[], 0);
    if bytes > search.witness_peak {
        search.allow(WORK / 2, CLOSURES);
        search.seek_witness();
        search.allow(WORK, CLOSURES);
        bytes = bytes.min(search.bound(&[], DEPTH));
    }
    let bytes = bytes.max(search.witness_peak);
    Worst {
        bytes: ix.to_bytes(bytes),
        witness_bytes: ix.to_bytes(search.witness_peak),
        witness: search.witness.into_iter().map(OpId).collect(),
    }
}

/// All buffers at once, with the largest workspace.
fn everything(ix: &Index) -> i64 {
    ix.size.iter().sum::<i64>() + ix.workspace.iter().copied().max().unwrap_or(0)
}

/// The peak without overwrites, and where.
fn plain_peak(ix: &Index, order: &[u32]) -> (i64, usize) {
    let mut change = vec![0i64; order.len() + 1];
    for (b, span) in lifetimes(ix, order).iter().enumerate() {
        if let Some((first, last)) = *span
            && !order.is_empty()
        {
            change[first as usize] += ix.size[b];
            change[last as usize + 1] -= ix.size[b];
        }
    }
    let (mut now, mut best) = (0, (0, 0));
    for (at, &op) in order.iter().enumerate() {
        now += change[at];
        let here = now + ix.workspace[op as usize];
        if here > best.0 {
            best = (here, at);
        }
    }
    best
}

struct Search<'a> {
    ix: &'a Index,
    witness: Vec<u32>,
    witness_peak: i64,
    work: u64,
    closures: usize,
}

/// A reader with a smaller value is guessed to be the last.
type Rule = fn(&Index, u32) -> (i64, u32);

/// How a buffer's death shows in the weights of a closure.
struct Deaths {
    /// Units that each op takes away, being the last reader.
    by_op: Vec<i64>,
    /// Buffers with several possible last readers: units, the readers, and ops behind them all.
    open: Vec<Open>,
}

#[derive(Debug, Clone)]
struct Open {
    size: i64,
    readers: Vec<u32>,
    joins: Vec<u32>,
}

/// A closure: what is alive at most, by whom, and the set.
struct Closure {
    units: i64,
    done: Vec<bool>,
}

impl<'a> Search<'a> {
    fn new(ix: &'a Index, source: Vec<u32>) -> Self {
        let witness_peak = plain_peak(ix, &source).0;
        Search { ix, witness: source, witness_peak, work: 0, closures: 0 }
    }

    fn allow(&mut self, work: u64, closures: usize) {
        (self.work, self.closures) = (work, closures);
    }

    /// Guesses a last reader for each buffer that has several possible ones. A set that leaves it out
    /// does have the buffer alive, so the closure is what some order reaches.
    fn seek_witness(&mut self) {
        let ix = self.ix;
        let order: Vec<u32> = (0..ix.ops as u32).collect();
        let open = deaths(ix, &[], &order);
        let rules: [Rule; 3] = [
            |ix, u| (ix.made[u as usize], ix.ops as u32 - u),
            |ix, u| (ix.succs.count(u as usize) as i64, ix.ops as u32 - u),
            |ix, u| (0, ix.ops as u32 - u),
        ];
        for rule in rules {
            let mut guess = Deaths { by_op: open.by_op.clone(), open: Vec::new() };
            for buffer in &open.open {
                if let Some(&last) = buffer.readers.iter().min_by_key(|&&u| rule(ix, u)) {
                    guess.by_op[last as usize] += buffer.size;
                }
            }
            let Some(between) = self.closure(&[], &guess, None) else { return };
            self.witness_from(&[], &between.done, None);
            let mut ops: Vec<u32> = order.clone();
            ops.sort_by_key(|&v| std::cmp::Reverse(ix.made[v as usize] + ix.workspace[v as usize]));
            for &v in ops.iter().take(WITNESS_OPS) {
                let Some(closure) = self.closure(&[], &guess, Some(v)) else { return };
                self.witness_from(&[], &closure.done, Some(v));
            }
        }
    }

    /// An upper bound on all orders that have the `edges` too.
    fn bound(&mut self, edges: &[(u32, u32)], depth: usize) -> i64 {
        let ix = self.ix;
        let Some(order) = with_edges(ix, edges) else { return 0 };
        let deaths = deaths(ix, edges, &order);
        let Some(between) = self.closure(edges, &deaths, None) else {
            return everything(ix);
        };
        self.witness_from(edges, &between.done, None);
        // Between two ops is at most this much; while one runs, what it makes and uses is added.
        let mut ops: Vec<(i64, u32)> = (0..ix.ops as u32)
            .map(|v| (between.units + ix.made[v as usize] + ix.workspace[v as usize] + ix.unread, v))
            .collect();
        ops.sort_unstable_by_key(|&(units, v)| (std::cmp::Reverse(units), v));
        // The exact figure of each op that could be worse than the witness.
        let mut worst = self.witness_peak;
        let mut culprit: Option<Closure> = None;
        for &(units, v) in &ops {
            if units <= worst {
                break;
            }
            let Some(closure) = self.closure(edges, &deaths, Some(v)) else {
                // Out of work: the rest is at most the cheap figure of this op.
                return units;
            };
            self.witness_from(edges, &closure.done, Some(v));
            if closure.units > worst {
                worst = closure.units;
                culprit = Some(closure);
            }
            worst = worst.max(self.witness_peak);
        }
        if worst <= self.witness_peak || depth == 0 {
            return worst.max(self.witness_peak);
        }
        // The largest buffer that the closure counts although all its readers are done, or that it
        // holds by leaving out one reader: the readers take turns at being the last.
        let Some(closure) = culprit else { return worst };
        let wrong = |open: &&Open| open.readers.iter().all(|&u| closure.done[u as usize]);
        let Some(open) = deaths.open.iter().filter(wrong).max_by_key(|open| open.size) else { return worst };
        let readers = open.readers.clone();
        let mut most = self.witness_peak;
        for &last in &readers {
            let mut more = edges.to_vec();
            more.extend(readers.iter().filter(|&&u| u != last).map(|&u| (u, last)));
            most = most.max(self.bound(&more, depth - 1));
            if most >= worst {
                return worst;
            }
        }
        most
    }

    /// The most alive between two ops, or while `running` runs. `None` when the work has run out.
    fn closure(&mut self, edges: &[(u32, u32)], deaths: &Deaths, running: Option<u32>) -> Option<Closure> {
        if self.work == 0 || self.closures == 0 || guard::cancelled() {
            return None;
        }
        self.closures -= 1;
        let ix = self.ix;
        let (source, sink) = (0u32, 1u32);
        let node = |op: u32| op + 2;
        let mut network = Network::default();
        network.reset(ix.ops + 2);
        let mut units: i64 = ix.inputs.iter().map(|&b| ix.size[b as usize]).sum();
        for v in 0..ix.ops as u32 {
            let gain = ix.made[v as usize] - ix.dead[v as usize];
            let weight = gain - deaths.by_op[v as usize];
            if weight > 0 {
                units += weight;
                network.arc(source, node(v), weight);
            } else if weight < 0 {
                network.arc(node(v), sink, -weight);
            }
            for &p in ix.preds.get(v as usize) {
                network.arc(node(v), node(p), INFINITE);
            }
        }
        for &(before, after) in edges {
            network.arc(node(after), node(before), INFINITE);
        }
        for open in &deaths.open {
            if !open.joins.is_empty() {
                let gone = network.node();
                network.arc(gone, sink, open.size);
                for &join in &open.joins {
                    network.arc(node(join), gone, INFINITE);
                }
            }
        }
        if let Some(v) = running {
            // Not done, but all before it is. What follows it is not done either, by precedence.
            network.arc(node(v), sink, INFINITE);
            for &p in ix.preds.get(v as usize) {
                network.arc(source, node(p), INFINITE);
            }
            for &(before, _) in edges.iter().filter(|&&(_, after)| after == v) {
                network.arc(source, node(before), INFINITE);
            }
            units += ix.made[v as usize] + ix.workspace[v as usize];
            if ix.preds.count(v as usize) == 0 {
                units += ix.unread;
            }
        }
        let flow = network.push(source, sink, INFINITE, &mut self.work);
        units -= flow.amount;
        let done = if flow.maximum { network.source_side(source) } else { vec![false; ix.ops + 2] };
        Some(Closure { units, done: done[2..ix.ops + 2].to_vec() })
    }

    /// The order that does a set first, then an op, then the rest, if it is worse than the witness.
    fn witness_from(&mut self, edges: &[(u32, u32)], done: &[bool], running: Option<u32>) {
        let Some(order) = with_edges(self.ix, edges) else { return };
        let is_first = |u: u32| done[u as usize] && Some(u) != running;
        let first = order.iter().copied().filter(|&u| is_first(u));
        let rest = order.iter().copied().filter(|&u| !is_first(u) && Some(u) != running);
        let candidate: Vec<u32> = first.chain(running).chain(rest).collect();
        if !is_legal(self.ix, &candidate) {
            return;
        }
        let peak = plain_peak(self.ix, &candidate).0;
        if peak > self.witness_peak {
            (self.witness, self.witness_peak) = (candidate, peak);
        }
    }
}

fn is_legal(ix: &Index, order: &[u32]) -> bool {
    let mut done = vec![false; ix.ops];
    for &op in order {
        if !ix.preds.get(op as usize).iter().all(|&p| done[p as usize]) {
            return false;
        }
        done[op as usize] = true;
    }
    true
}

/// An order with more edges, source order where they leave a choice; `None` if they contradict.
fn with_edges(ix: &Index, edges: &[(u32, u32)]) -> Option<Vec<u32>> {
    if edges.is_empty() {
        return Some((0..ix.ops as u32).collect());
    }
    let mut waiting: Vec<u32> = (0..ix.ops).map(|v| ix.preds.count(v) as u32).collect();
    for &(_, after) in edges {
        waiting[after as usize] += 1;
    }
    let mut ready: std::collections::BinaryHeap<std::cmp::Reverse<u32>> =
        (0..ix.ops as u32).filter(|&v| waiting[v as usize] == 0).map(std::cmp::Reverse).collect();
    let mut order = Vec::with_capacity(ix.ops);
    while let Some(std::cmp::Reverse(op)) = ready.pop() {
        order.push(op);
        let more = edges.iter().filter(|&&(before, _)| before == op).map(|&(_, after)| after);
        for s in ix.succs.get(op as usize).iter().copied().chain(more) {
            waiting[s as usize] -= 1;
            if waiting[s as usize] == 0 {
                ready.push(std::cmp::Reverse(s));
            }
        }
    }
    (order.len() == ix.ops).then_some(order)
}

fn deaths(ix: &Index, edges: &[(u32, u32)], order: &[u32]) -> Deaths {
    let mut position = vec![0u32; ix.ops];
    for (at, &op) in order.iter().enumerate() {
        position[op as usize] = at as u32;
    }
    let mut result = Deaths { by_op: vec![0; ix.ops], open: Vec::new() };
    let mut several: Vec<usize> = Vec::new();
    for b in 0..ix.buffers {
        if ix.size[b] == 0 || ix.output[b] {
            continue;
        }
        match ix.users.get(b) {
            [] => {}
            &[only] => result.by_op[only as usize] += ix.size[b],
            _ => several.push(b),
        }
    }
    let last = last_readers(ix, edges, order, &position, &several);
    for (&b, readers) in several.iter().zip(last) {
        if let &[only] = readers.as_slice() {
            result.by_op[only as usize] += ix.size[b];
        } else {
            let joins = joins(ix, edges, &position, &readers);
            result.open.push(Open { size: ix.size[b], readers, joins });
        }
    }
    result
}

/// For each buffer its readers without those that another reader follows. Reachability is computed
/// for 64 readers at a time, in one pass over the ops between them.
fn last_readers(
    ix: &Index,
    edges: &[(u32, u32)],
    order: &[u32],
    position: &[u32],
    buffers: &[usize],
) -> Vec<Vec<u32>> {
    let mut result: Vec<Vec<u32>> = buffers.iter().map(|&b| ix.users.get(b).to_vec()).collect();
    for readers in &mut result {
        readers.sort_unstable_by_key(|&u| position[u as usize]);
    }
    let mut more: rustc_hash::FxHashMap<u32, Vec<u32>> = rustc_hash::FxHashMap::default();
    for &(before, after) in edges {
        more.entry(after).or_default().push(before);
    }
    // (reader, buffer, rank of the reader), by position.
    let mut asked: Vec<(u32, usize, usize)> = Vec::new();
    for (i, readers) in result.iter().enumerate() {
        asked.extend(readers.iter().enumerate().take(readers.len() - 1).map(|(k, &u)| (u, i, k)));
    }
    asked.sort_unstable_by_key(|&(u, _, _)| position[u as usize]);
    let mut followed: Vec<Vec<bool>> = result.iter().map(|readers| vec![false; readers.len()]).collect();
    let mut reach = vec![0u64; ix.ops];
    for batch in asked.chunks(64) {
        let start = batch.first().map_or(0, |&(u, _, _)| position[u as usize] as usize);
        let end =
            batch.iter().filter_map(|&(_, i, _)| result[i].last()).map(|&u| position[u as usize] as usize);
        let end = end.max().unwrap_or(start);
        for &op in &order[start..=end] {
            reach[op as usize] = 0;
        }
        for (bit, &(u, _, _)) in batch.iter().enumerate() {
            reach[u as usize] |= 1 << bit;
        }
        for &op in &order[start..=end] {
            let mut mask = reach[op as usize];
            for &p in ix.preds.get(op as usize).iter().chain(more.get(&op).into_iter().flatten()) {
                if position[p as usize] as usize >= start {
                    mask |= reach[p as usize];
                }
            }
            reach[op as usize] = mask;
        }
        for (bit, &(_, i, k)) in batch.iter().enumerate() {
            followed[i][k] = result[i][k + 1..].iter().any(|&later| reach[later as usize] >> bit & 1 == 1);
        }
    }
    for (readers, followed) in result.iter_mut().zip(&followed) {
        let mut k = 0;
        readers.retain(|_| {
            k += 1;
            !followed[k - 1]
        });
    }
    result
}

/// The first ops behind all `readers`, as far as a bounded search finds them.
fn joins(ix: &Index, edges: &[(u32, u32)], position: &[u32], readers: &[u32]) -> Vec<u32> {
    if readers.len() > 64 {
        return Vec::new();
    }
    let all = if readers.len() == 64 { u64::MAX } else { (1 << readers.len()) - 1 };
    let mut masks: rustc_hash::FxHashMap<u32, u64> = rustc_hash::FxHashMap::default();
    let mut heap = std::collections::BinaryHeap::new();
    for (bit, &u) in readers.iter().enumerate() {
        masks.insert(u, 1 << bit);
        heap.push(std::cmp::Reverse((position[u as usize], u)));
    }
    let mut found = Vec::new();
    for _ in 0..JOIN_STEPS {
        let Some(std::cmp::Reverse((_, op))) = heap.pop() else { break };
        let mask = masks.get(&op).copied().unwrap_or(0);
        if mask == all {
            found.push(op);
            continue;
        }
        let more = edges.iter().filter(|&&(before, _)| before == op).map(|&(_, after)| after);
        for s in ix.succs.get(op as usize).iter().copied().chain(more) {
            let entry = masks.entry(s).or_insert(0);
            if *entry == 0 {
                heap.push(std::cmp::Reverse((position[s as usize], s)));
            }
            *entry |= mask;
        }
    }
    found
}
