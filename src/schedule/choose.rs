//! Which views become copies: those whose base is at the peak only for their sake.
//!
//! All views start as views. Around the hottest ops, bases that nothing but views holds any longer
//! are looked for; where the parts that are still read are smaller than the base, they are copied,
//! and the graph is planned again. Only what lowers the peak is kept.

use super::{
    Bound, BufferId, OpId, Options, OrderKind, ScheduleGraph, ViewId,
    bound::{self, Proof},
    index::Index,
    profile::profile,
    schedule_as_it_is, search,
    views::{Relaxed, Resolved, Source, relax, resolve},
};
use crate::plan::Schedule;

/// How often a graph is planned again, by its number of ops.
const REPLANS: [(usize, usize); 4] = [(200, 60), (3_000, 24), (30_000, 8), (usize::MAX, 4)];

/// In graphs of up to so many ops, copies are tried that the order at hand gives no reason for: with
/// them, others may be better.
const SMALL: usize = 200;

/// Bases that are tried one by one where all together do not help.
const SINGLES: usize = 4;

/// A planned graph, with what was decided about its views.
#[derive(Debug, Clone)]
pub struct Planned {
    /// The graph that is planned: some views are copies.
    pub resolved: Resolved,
    pub schedule: Schedule,
    /// The height of the arena with every view a view, if some are not.
    pub arena_bytes_without_copies: Option<u64>,
}

/// Plans a graph and decides which of its views are copied. Orders other than the best are planned
/// with views as views.
pub fn schedule_with_copies(graph: &ScheduleGraph, options: &Options) -> Planned {
    let schedule = super::schedule(graph, options);
    let untouched = resolve(graph, |_| false);
    if options.order != OrderKind::Best || schedule.live_peak_bytes <= schedule.lower_bound_bytes {
        return Planned { resolved: untouched, schedule, arena_bytes_without_copies: None };
    }
    let plain = schedule.arena_bytes;
    let bound = schedule.bound.clone();
    let floor = bound.bytes;
    let replans = REPLANS.iter().find(|(ops, _)| graph.op_count() <= *ops).map_or(0, |&(_, n)| n);
    let best = Trial { copied: Vec::new(), resolved: untouched, schedule };
    let mut search = Search { graph, options: *options, best, replans };
    while search.best.schedule.live_peak_bytes > floor && search.step() {}
    if search.best.copied.is_empty() {
        let Trial { resolved, schedule, .. } = search.best;
        return Planned { resolved, schedule, arena_bytes_without_copies: None };
    }
    search.drop_useless();
    let Trial { resolved, mut schedule, .. } = search.best;
    // The first bound was sought with the order of the views as views.
    let mut bound = bound;
    if schedule.live_peak_bytes > floor {
        let order = original_order(&resolved, &schedule.order);
        let other = bound_of_choices(graph, &order, schedule.live_peak_bytes, options);
        if other.bytes > bound.bytes {
            bound = other;
        }
    }
    schedule.bound = in_resolved(&resolved, &bound);
    schedule.lower_bound_bytes = schedule.bound.bytes;
    Planned { resolved, schedule, arena_bytes_without_copies: Some(plain) }
}

/// A choice of copies with its plan.
struct Trial {
    /// Sorted.
    copied: Vec<ViewId>,
    resolved: Resolved,
    schedule: Schedule,
}

impl Trial {
    fn cost(&self) -> (u64, u64) {
        (self.schedule.arena_bytes, self.schedule.live_peak_bytes)
    }
}

struct Search<'g> {
    graph: &'g ScheduleGraph,
    options: Options,
    best: Trial,
    /// How many more plans may be made.
    replans: usize,
}

impl Search<'_> {
    fn plan(&mut self, copied: Vec<ViewId>) -> Option<Trial> {
        self.replans = self.replans.checked_sub(1)?;
        let resolved = resolve(self.graph, |id| copied.binary_search(&id).is_ok());
        let options = Options { prove: false, ..self.options };
        let schedule = schedule_as_it_is(&resolved.graph, &options);
        Some(Trial { copied, resolved, schedule })
    }

    /// Tries more copies; true if that is better.
    fn try_more(&mut self, more: &[ViewId]) -> bool {
        let mut copied = self.best.copied.clone();
        copied.extend(more);
        copied.sort_unstable();
        copied.dedup();
        if copied.len() == self.best.copied.len() {
            return false;
        }
        match self.plan(copied) {
            Some(trial) if trial.cost() < self.best.cost() => {
                self.best = trial;
                true
            }
            _ => false,
        }
    }

    /// One improvement: first what holds the peak itself, then all that is about as high, then the
    /// largest savings one by one.
    fn step(&mut self) -> bool {
        let at_peak = candidates(self.graph, &self.best, false);
        let all = |list: &[Candidate]| list.iter().flat_map(|c| c.views.clone()).collect::<Vec<ViewId>>();
        if self.try_more(&all(&at_peak)) {
            return true;
        }
        let around = candidates(self.graph, &self.best, true);
        if around.len() > at_peak.len() && self.try_more(&all(&around)) {
            return true;
        }
        let singles = if at_peak.len() > 1 { at_peak } else { Vec::new() };
        singles.iter().take(SINGLES).any(|candidate| self.try_more(&candidate.views))
            || self.graph.op_count() <= SMALL && self.any().iter().any(|views| self.try_more(views))
    }

    /// Each view that is no copy, with the others of its base and alone.
    fn any(&self) -> Vec<Vec<ViewId>> {
        let is_view = |id: &ViewId| self.best.copied.binary_search(id).is_err();
        let mut sets = Vec::new();
        for (viewed, base) in self.graph.viewed().iter().enumerate() {
            let ids = (0..base.views.len()).map(|view| ViewId { viewed: viewed as u32, view: view as u32 });
            let ids: Vec<ViewId> = ids.filter(is_view).collect();
            if ids.len() > 1 {
                sets.push(ids.clone());
            }
            sets.extend(ids.into_iter().map(|id| vec![id]));
        }
        sets
    }

    /// Turns copies back into views where that costs nothing.
    fn drop_useless(&mut self) {
        let mut bases: Vec<u32> = self.best.copied.iter().map(|id| id.viewed).collect();
        bases.dedup();
        let single = bases.len() == 1;
        for base in bases {
            let ids: Vec<ViewId> = self.best.copied.iter().copied().filter(|id| id.viewed == base).collect();
            // All copies of the only base cannot go: something was gained by them.
            let all = [ids.clone()].into_iter().filter(|_| !single);
            let each = ids.iter().map(|&id| vec![id]).filter(|_| ids.len() > 1);
            for gone in all.chain(each) {
                let copied: Vec<ViewId> =
                    self.best.copied.iter().copied().filter(|id| !gone.contains(id)).collect();
                if copied.is_empty() || copied.len() == self.best.copied.len() {
                    continue;
                }
                match self.plan(copied) {
                    Some(trial) if trial.cost() <= self.best.cost() => self.best = trial,
                    Some(_) => {}
                    None => return,
                }
            }
        }
    }
}

/// Views to copy, all of one base.
struct Candidate {
    saves: u64,
    views: Vec<ViewId>,
}

/// The bases that only views hold while one of the hottest ops runs, the largest saving first. The
/// hottest are those that reach the peak; `around`, those that the largest saving would bring under
/// it too.
fn candidates(graph: &ScheduleGraph, trial: &Trial, around: bool) -> Vec<Candidate> {
    let resolved = &trial.resolved;
    let ix = Index::new(&resolved.graph);
    let mut position = vec![0usize; ix.ops];
    let mut order = Vec::with_capacity(ix.ops);
    for (at, op) in trial.schedule.order.iter().enumerate() {
        position[op.0 as usize] = at;
        order.push(op.0);
    }
    let profile = profile(&ix, &order);
    let peak = profile.peak;
    let at = |op: OpId| resolved.ops.get(op.0 as usize).map_or(0, |op| position[op.0 as usize]);
    // By base: from where on only views hold it, and its views with their last readers.
    let mut held: Vec<(usize, u64, Vec<(usize, u64, ViewId)>)> = Vec::new();
    let mut most = 0;
    for (viewed, base) in graph.viewed().iter().enumerate() {
        let maker = graph.maker(base.buffer).map(at);
        let ids = (0..base.views.len()).map(|view| ViewId { viewed: viewed as u32, view: view as u32 });
        let mut last = base.readers.iter().map(|&op| at(op)).chain(maker).max();
        let mut views = Vec::new();
        for (id, view) in ids.zip(&base.views) {
            if trial.copied.binary_search(&id).is_ok() {
                let copy = resolved.copies.binary_search_by_key(&id, |c| c.0).map(|k| resolved.copies[k].1).ok();
                let made = copy.and_then(|copy| resolved.graph.maker(copy));
                last = last.max(made.map(|op| position[op.0 as usize]));
                continue;
            }
            let end = if view.output { Some(order.len()) } else { view.readers.iter().map(|&op| at(op)).max() };
            views.extend(end.map(|end| (end, view.bytes, id)));
        }
        views.sort_unstable_by_key(|&(end, _, id)| (std::cmp::Reverse(end), id));
        let Some(&(end, smallest, _)) = views.first() else { continue };
        let bytes = graph.arena_bytes(base.buffer);
        let from = last.map_or(0, |last| last + 1);
        if from <= end && smallest < bytes {
            most = most.max(bytes - smallest);
            held.push((from, bytes, views));
        }
    }
    let most = i64::try_from(most >> ix.shift).unwrap_or(i64::MAX);
    let threshold = if around { peak.saturating_sub(most).saturating_add(1) } else { peak };
    // The next position from each on that is hot.
    let mut next = vec![usize::MAX; order.len() + 1];
    for at in (0..order.len()).rev() {
        next[at] = if profile.live[at] >= threshold { at } else { next[at + 1] };
    }
    let mut found: Vec<Candidate> = Vec::new();
    for (from, bytes, views) in held {
        // At the first hot op the most parts are still read, so the last one saves most.
        let mut best: Option<Candidate> = None;
        let mut hot = next.get(from).copied().unwrap_or(usize::MAX);
        let mut looks = 0;
        while hot < order.len() && looks < 64 {
            let needed: Vec<(u64, ViewId)> =
                views.iter().take_while(|&&(end, _, _)| end >= hot).map(|&(_, b, id)| (b, id)).collect();
            if needed.is_empty() {
                break;
            }
            let copies: u64 = needed.iter().map(|(b, _)| *b).fold(0, u64::saturating_add);
            if copies < bytes && best.as_ref().is_none_or(|b| bytes - copies > b.saves) {
                best = Some(Candidate {
                    saves: bytes - copies,
                    views: needed.into_iter().map(|(_, id)| id).collect(),
                });
            }
            hot = next.get(hot + 1).copied().unwrap_or(usize::MAX);
            looks += 1;
        }
        found.extend(best);
    }
    found.sort_by_key(|c| (std::cmp::Reverse(c.saves), c.views.first().copied()));
    found
}

/// A bound for all orders, overwrites and choices of copies. `order` is a good order of the graph
/// itself; a bound of `enough` is as good as any.
pub(super) fn bound_of_choices(
    graph: &ScheduleGraph,
    order: &[OpId],
    enough: u64,
    options: &Options,
) -> Bound {
    let relaxed = relax(graph);
    let ix = Index::new(&relaxed.graph);
    let own = Index::new(graph);
    if !ix.exact {
        return in_graph(&relaxed, graph, &bound::rough(&relaxed.graph, &ix));
    }
    let order: Vec<u32> = order.iter().map(|op| op.0).filter(|&op| (op as usize) < own.ops).collect();
    let order = relaxed.order(&order);
    let profile = profile(&ix, &order);
    let mut proof: Proof = bound::single_cuts(&ix, &order, &profile, &mut bound::CUT_WORK.clone());
    if ix.to_bytes(proof.units) < enough && proof.units < profile.peak {
        if ix.ops <= super::exact::WIDTH {
            let whole = search::choose(&ix, options).proof;
            if whole.units > proof.units {
                proof = whole;
            }
        } else if options.prove {
            bound::tighten(&ix, &order, &mut proof, bound::REFUTE_WORK);
        }
    }
    in_graph(&relaxed, graph, &proof.to_bound(&ix))
}

/// A bound on the relaxed graph as one on the graph itself. What makes the parts of a base there
/// stands for the op that makes the base.
fn in_graph(relaxed: &Relaxed, graph: &ScheduleGraph, bound: &Bound) -> Bound {
    let op = bound.op.and_then(|op| (0..=op.0).rev().find_map(|op| relaxed.source(OpId(op))));
    let mut before: Vec<OpId> = bound.before.iter().filter_map(|&op| relaxed.source(op)).collect();
    before.sort_unstable();
    before.retain(|&b| Some(b) != op);
    debug_assert!(before.iter().all(|op| (op.0 as usize) < graph.op_count()));
    Bound { before: if op.is_some() { before } else { Vec::new() }, op, ..*bound }
}

/// A bound on a graph as one on the graph with copies: the copies that the ops done need are done.
fn in_resolved(resolved: &Resolved, bound: &Bound) -> Bound {
    let map = |op: OpId| resolved.ops.get(op.0 as usize).copied();
    let Some(op) = bound.op.and_then(map) else { return bound.clone() };
    let graph = &resolved.graph;
    let mut done = vec![false; graph.op_count()];
    let mut stack = vec![op];
    stack.extend(bound.before.iter().filter_map(|&op| map(op)));
    for op in stack.iter().skip(1) {
        done[op.0 as usize] = true;
    }
    while let Some(u) = stack.pop() {
        let data = graph.reads(u).iter().filter_map(|&b: &BufferId| graph.maker(b));
        for p in data.chain(graph.after(u).iter().copied()) {
            if p != op && !std::mem::replace(&mut done[p.0 as usize], true) {
                stack.push(p);
            }
        }
    }
    let before = graph.ops().filter(|op| done[op.0 as usize]).collect();
    Bound { before, op: Some(op), ..*bound }
}

/// The order of the ops that are not copies, in the graph without copies.
fn original_order(resolved: &Resolved, order: &[OpId]) -> Vec<OpId> {
    let sources = order.iter().filter_map(|op| resolved.sources.get(op.0 as usize));
    sources
        .filter_map(|source| match source {
            Source::Op(op) => Some(*op),
            Source::Copy(_) => None,
        })
        .collect()
}
