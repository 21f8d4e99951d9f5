//! Order edges that bring the worst legal order under a limit.
//!
//! All edges agree with one good order, so they never contradict each other and that order stays
//! legal. The witness of the bound shows what is wrong: at its peak some ops are put off that the
//! good order does before others which are done already. Each edge makes one such pair wait; then
//! the graph is bounded again. Marchal, Simon and Vivien (2019) add edges to task graphs in this way.

use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;

use super::{
    BufferId, GraphBuilder, OpId, Options, OrderKind, ScheduleGraph, Worst, WorstOptions,
    index::Index,
    schedule,
    worst::{plain_peak, worst_up_to},
};

/// How often edges are added and the graph is bounded again, and edges for one witness.
const ROUNDS: usize = 64;
const EDGES: usize = 256;
/// How often leaving out edges is tried.
const TRIALS: usize = 400;

/// Edges that keep every legal order within a limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Repair {
    /// Pairs: the first has to be complete before the second starts.
    /// Those with the same second are one barrier.
    pub edges: Vec<(OpId, OpId)>,
    /// The worst legal order with these edges.
    pub worst: Worst,
    /// The live peak of the best order with these edges.
    pub live_peak_bytes: u64,
}

impl Repair {
    /// The edges as barriers: what each op has to wait for.
    pub fn barriers(&self) -> Vec<(Vec<OpId>, OpId)> {
        let mut barriers: Vec<(Vec<OpId>, OpId)> = Vec::new();
        let mut place: FxHashMap<OpId, usize> = FxHashMap::default();
        for &(first, second) in &self.edges {
            let at = *place.entry(second).or_insert(barriers.len());
            match barriers.get_mut(at) {
                Some((firsts, _)) => firsts.push(first),
                None => barriers.push((vec![first], second)),
            }
        }
        barriers
    }
}

/// Looks for few edges with which no legal order has more than `limit_bytes` alive. `None` if none
/// were found: surely where even the best order, without overwrites, has more.
pub fn repair(graph: &ScheduleGraph, limit_bytes: u64, options: &Options) -> Option<Repair> {
    let end = Instant::now().checked_add(options.time_limit);
    let order = good_order(graph, limit_bytes, options)?;
    let mut search = Search { renumbered: renumber(graph, &order, &[]), limit: limit_bytes, end };
    let (edges, worst) = search.find()?;
    let (edges, worst) = search.prune(edges, worst);
    let repaired = renumber(&search.renumbered, &source(graph), &edges);
    let old = |op: OpId| order.get(op.0 as usize).copied().unwrap_or(op);
    Some(Repair {
        edges: edges.iter().map(|&(before, after)| (old(OpId(before)), old(OpId(after)))).collect(),
        worst: Worst { witness: worst.witness.iter().map(|&op| old(op)).collect(), ..worst },
        live_peak_bytes: schedule(&repaired, &Options { prove: false, ..*options }).live_peak_bytes,
    })
}

fn source(graph: &ScheduleGraph) -> Vec<OpId> {
    graph.ops().collect()
}

/// An order within the limit without overwrites: the one with the lowest peak, if it is, else the one
/// with the lowest peak without overwrites.
fn good_order(graph: &ScheduleGraph, limit: u64, options: &Options) -> Option<Vec<OpId>> {
    let options = Options { order: OrderKind::Best, prove: false, ..*options };
    let ix = Index::new(graph);
    if !ix.exact {
        return None;
    }
    let is_within = |order: &Vec<OpId>| {
        let order: Vec<u32> = order.iter().map(|op| op.0).collect();
        ix.to_bytes(plain_peak(&ix, &order).0) <= limit
    };
    let best = schedule(graph, &options).order;
    if is_within(&best) {
        return Some(best);
    }
    let plain = build(graph, &source(graph), &[], false);
    Some(schedule(&plain, &options).order).filter(is_within)
}

/// The graph with its ops in another legal order, and more edges between the new ids.
fn renumber(graph: &ScheduleGraph, order: &[OpId], edges: &[(u32, u32)]) -> ScheduleGraph {
    build(graph, order, edges, true)
}

fn build(graph: &ScheduleGraph, order: &[OpId], edges: &[(u32, u32)], overwrites: bool) -> ScheduleGraph {
    let mut builder = GraphBuilder::new();
    for buffer in graph.buffer_ids() {
        let buffer = graph.buffer(buffer);
        builder.buffer(buffer.bytes, buffer.flags);
    }
    let mut new = vec![OpId(0); graph.op_count()];
    for (at, op) in order.iter().enumerate() {
        new[op.0 as usize] = OpId(at as u32);
    }
    let mut more: Vec<Vec<OpId>> = vec![Vec::new(); order.len()];
    for &(before, after) in edges {
        more[after as usize].push(OpId(before));
    }
    for (&op, more) in order.iter().zip(&more) {
        let mut after: Vec<OpId> = graph.after(op).iter().map(|p| new[p.0 as usize]).collect();
        after.extend(more);
        let pairs = if overwrites { graph.may_overwrite(op) } else { &[] };
        builder.op(graph.reads(op), graph.makes(op), &after, pairs, graph.workspace(op));
    }
    builder.finish()
}

struct Search {
    /// With ids in the good order.
    renumbered: ScheduleGraph,
    limit: u64,
    end: Option<Instant>,
}

type Edges = Vec<(u32, u32)>;

impl Search {
    fn is_late(&self) -> bool {
        self.end.is_some_and(|end| Instant::now() >= end)
    }

    /// Up to `limit`: what is above it need not be known exactly.
    fn bound(&self, edges: &Edges, effort: u32, limit: u64) -> (ScheduleGraph, Worst) {
        let graph = renumber(&self.renumbered, &source(&self.renumbered), edges);
        let time_limit = self.end.map_or(Duration::from_secs(3600), |end| end - Instant::now().min(end));
        let worst = worst_up_to(&graph, &WorstOptions { time_limit, effort }, limit);
        (graph, worst)
    }

    /// Adds edges until the bound is within the limit.
    fn find(&mut self) -> Option<(Edges, Worst)> {
        let mut edges = Edges::new();
        for _ in 0..ROUNDS {
            let (graph, mut worst) = self.bound(&edges, 1, u64::MAX);
            if worst.bytes > self.limit && worst.witness_bytes <= self.limit {
                // No witness to go by: only a closer look can help.
                worst = self.bound(&edges, 8, u64::MAX).1;
            }
            if worst.bytes <= self.limit {
                return Some((edges, worst));
            }
            if worst.witness_bytes <= self.limit || self.is_late() {
                return None;
            }
            let more = self.separate(&graph, &worst);
            if more.is_empty() {
                return None;
            }
            edges.extend(more);
        }
        None
    }

    /// Edges that the peak of the witness violates, and the good order does not.
    fn separate(&self, graph: &ScheduleGraph, worst: &Worst) -> Edges {
        let ix = Index::new(graph);
        let mut is_done = vec![false; ix.ops];
        for op in worst.witness.iter().take(worst.witness_position + 1) {
            is_done[op.0 as usize] = true;
        }
        let running = worst.witness.get(worst.witness_position).map(|op| op.0);
        let Some(furthest) = (0..ix.ops as u32).rev().find(|&op| is_done[op as usize]) else {
            return Edges::new();
        };
        // What each op that is put off would free, shared among the readers that are missing.
        let mut frees = vec![0i64; ix.ops];
        let mut alive = vec![false; ix.buffers];
        for (b, alive) in alive.iter_mut().enumerate() {
            let missing = ix.users.get(b).iter().filter(|&&u| !is_done[u as usize]).count() as i64;
            let maker = graph.maker(BufferId(b as u32)).map(|op| op.0 as usize);
            if missing == 0 || ix.output[b] || !maker.is_none_or(|op| is_done[op]) {
                continue;
            }
            *alive = true;
            for &u in ix.users.get(b).iter().filter(|&&u| !is_done[u as usize]) {
                frees[u as usize] += ix.size[b] / missing;
            }
        }
        // The running op may be late itself.
        let mut late: Vec<u32> =
            (0..furthest).filter(|&op| !is_done[op as usize] || running == Some(op)).collect();
        late.sort_by_key(|&op| (std::cmp::Reverse(frees[op as usize]), op));
        let excess = worst.witness_bytes.saturating_sub(self.limit);
        let mut edges = Edges::new();
        let mut freed = 0;
        for op in late.into_iter().take(EDGES) {
            if !edges.is_empty() && (freed >= excess || frees[op as usize] == 0) {
                break;
            }
            if let Some(after) = first_too_early(&ix, &is_done, &alive, op) {
                edges.push((op, after));
                freed = freed.saturating_add(ix.to_bytes(frees[op as usize]));
            }
        }
        edges
    }

    /// Leaves out edges, many at a time at first, as long as the limit holds without them.
    fn prune(&self, mut edges: Edges, mut worst: Worst) -> (Edges, Worst) {
        let mut size = edges.len().div_ceil(2);
        let mut trials = 0;
        while size > 0 {
            let mut at = 0;
            while at < edges.len() {
                trials += 1;
                if trials > TRIALS || self.is_late() {
                    return (edges, worst);
                }
                let end = (at + size).min(edges.len());
                let fewer: Edges = edges[..at].iter().chain(&edges[end..]).copied().collect();
                let (_, bound) = self.bound(&fewer, 1, self.limit);
                if bound.bytes <= self.limit {
                    (edges, worst) = (fewer, bound);
                } else {
                    at = end;
                }
            }
            size = if size == 1 { 0 } else { size.div_ceil(2) };
        }
        (edges, worst)
    }
}

/// Among the done ops that come after `late` in the good order and after no other such op, the one
/// whose followers made most of what is alive.
fn first_too_early(ix: &Index, is_done: &[bool], alive: &[bool], late: u32) -> Option<u32> {
    let mut seen = vec![false; ix.ops];
    let mut best: Option<(i64, u32)> = None;
    let mut stack = Vec::new();
    for op in late + 1..ix.ops as u32 {
        if !is_done[op as usize] || seen[op as usize] {
            continue;
        }
        let mut made = 0;
        seen[op as usize] = true;
        stack.push(op);
        while let Some(u) = stack.pop() {
            let held = ix.makes.get(u as usize).iter().filter(|&&b| alive[b as usize]);
            made += held.map(|&b| ix.size[b as usize]).sum::<i64>();
            for &s in ix.succs.get(u as usize) {
                if is_done[s as usize] && !std::mem::replace(&mut seen[s as usize], true) {
                    stack.push(s);
                }
            }
        }
        if best.is_none_or(|(most, _)| made > most) {
            best = Some((made, op));
        }
    }
    best.map(|(_, op)| op)
}
