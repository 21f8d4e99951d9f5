//! Which views become copies: those whose base is at the peak only for their sake.
//!
//! All views start as views. Around the hottest ops, bases that nothing but views holds any longer
//! are looked for; where the parts that are still read are smaller than the base, they are copied,
//! and the graph is planned again. Only what lowers the peak is kept.

use super::{
    Bound, BufferId, OpId, Options, OrderKind, Schedule, ScheduleGraph, ViewId,
    bound::{self, Proof},
    candidates::{Candidate, candidates},
    index::Index,
    profile::{Profile, profile},
    schedule_as_it_is, schedule_of, search,
    views::{Relaxed, Resolved, Source, relax, resolve, view_ids},
};

/// Ops that all trials of one graph may look at together. A trial keeps the order at hand and takes
/// time in proportion to the graph.
const TRIAL_WORK: usize = 3_000_000;

/// How often a graph is planned anew with the copies that trials have found.
const ROUNDS: usize = 3;

/// Bases that are tried one by one where all together do not help.
const SINGLES: usize = 4;

/// In graphs of up to so many ops, all views together are tried as copies, with an order of their own:
/// the order at hand was found for a large base that is alive in any case.
const WHOLE: usize = 2_000;

/// In graphs of up to so many ops, copies are tried too that the order at hand gives no reason for:
/// with them, another order may be better. Each takes a plan.
const SMALL: usize = 100;
const GUESSES: usize = 8;

/// A planned graph, with what was decided about its views.
#[derive(Debug, Clone)]
pub struct Planned {
    /// The graph that is planned: some views are copies.
    pub resolved: Resolved,
    pub schedule: Schedule,
    /// The height of the arena with every view a view, if some are not.
    pub arena_bytes_without_copies: Option<u64>,
}

/// Plans a graph and decides which of its views are copied. That is decided for the best order: the
/// others are orders of the same graph, with the same copies.
pub fn schedule_with_copies(graph: &ScheduleGraph, options: &Options) -> Planned {
    if options.order != OrderKind::Best && !graph.viewed().is_empty() {
        let best = schedule_with_copies(graph, &Options { order: OrderKind::Best, ..*options });
        let Schedule { bound, lower_bound_bytes, .. } = best.schedule;
        // The bound is that of all choices.
        let schedule = super::schedule(&best.resolved.graph, &Options { prove: false, ..*options });
        return Planned { schedule: Schedule { bound, lower_bound_bytes, ..schedule }, ..best };
    }
    let schedule = super::schedule(graph, options);
    let views = resolve(graph, |_| false);
    let mut bound = schedule.bound.clone();
    if options.order != OrderKind::Best || schedule.live_peak_bytes <= bound.bytes {
        return Planned { resolved: views, schedule, arena_bytes_without_copies: None };
    }
    let plain = schedule.arena_bytes;
    let mut search = Search { graph, options, work: TRIAL_WORK, floor: bound.bytes };
    let start = Choice { copied: Vec::new(), resolved: views, schedule };
    let best = search.run(start);
    if best.copied.is_empty() {
        return Planned {
            resolved: best.resolved,
            schedule: best.schedule,
            arena_bytes_without_copies: None,
        };
    }
    let Choice { resolved, mut schedule, .. } = best;
    // The first bound was sought with the order of the views as views.
    if schedule.live_peak_bytes > bound.bytes {
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
struct Choice {
    /// Sorted.
    copied: Vec<ViewId>,
    resolved: Resolved,
    schedule: Schedule,
}

impl Choice {
    fn cost(&self) -> (u64, u64) {
        (self.schedule.arena_bytes, self.schedule.live_peak_bytes)
    }
}

/// A choice of copies with an order.
pub(super) struct Trial {
    /// Sorted.
    pub(super) copied: Vec<ViewId>,
    pub(super) resolved: Resolved,
    /// Of the ops that are not copies, in the graph without copies.
    order: Vec<OpId>,
    /// With the copies, and what is alive.
    pub(super) full: Vec<u32>,
    pub(super) profile: Profile,
    pub(super) shift: u32,
    is_exact: bool,
}

impl Trial {
    /// Puts each copy behind the last other reader of its base, or before its own first one.
    fn new(graph: &ScheduleGraph, copied: Vec<ViewId>, order: Vec<OpId>) -> Trial {
        let resolved = resolve(graph, |id| copied.binary_search(&id).is_ok());
        let mut position = vec![0usize; graph.op_count()];
        for (at, op) in order.iter().enumerate() {
            position[op.0 as usize] = at;
        }
        let at = |op: &OpId| position.get(op.0 as usize).copied().unwrap_or(0);
        // The place in the order before which each copy is made.
        let mut places: Vec<(usize, OpId)> = Vec::with_capacity(copied.len());
        for &(id, copy) in &resolved.copies {
            let Some((base, view)) = graph.viewed().get(id.viewed as usize).zip(graph.view(id)) else {
                continue;
            };
            let kept = base.views.iter().enumerate().filter(|&(k, _)| {
                copied.binary_search(&ViewId { viewed: id.viewed, view: k as u32 }).is_err()
            });
            let others = base.readers.iter().chain(kept.flat_map(|(_, view)| &view.readers));
            let needed = view.after.iter().copied().chain(graph.maker(base.buffer));
            let last = others.map(at).chain(needed.map(|op| at(&op))).max().map_or(0, |last| last + 1);
            let first = view.readers.iter().chain(&view.waits).map(at).min().unwrap_or(usize::MAX);
            places.extend(resolved.graph.maker(copy).map(|op| (last.min(first), op)));
        }
        places.sort_unstable();
        let mut full = Vec::with_capacity(order.len() + places.len());
        let mut next = places.iter().peekable();
        for (at, op) in order.iter().enumerate() {
            while let Some(&(_, copy)) = next.next_if(|place| place.0 <= at) {
                full.push(copy.0);
            }
            full.extend(resolved.ops.get(op.0 as usize).map(|op| op.0));
        }
        full.extend(next.map(|place| place.1.0));
        let ix = Index::new(&resolved.graph);
        let profile = profile(&ix, &full);
        Trial { copied, resolved, order, full, profile, shift: ix.shift, is_exact: ix.exact }
    }

    /// In bytes: units differ from graph to graph.
    fn peak(&self) -> u128 {
        u128::from(self.profile.peak.unsigned_abs()) << self.shift
    }
}

struct Search<'g> {
    graph: &'g ScheduleGraph,
    options: &'g Options,
    /// Ops that trials may still look at.
    work: usize,
    /// Nothing has less alive.
    floor: u64,
}

impl Search<'_> {
    fn run(&mut self, start: Choice) -> Choice {
        let mut best = self.rounds(start);
        if best.schedule.live_peak_bytes > self.floor && self.graph.op_count() <= WHOLE {
            let all = self.plan(view_ids(self.graph).collect(), None);
            if all.cost() < best.cost() {
                let pruned = self.pruned(all);
                best = self.rounds(pruned);
            }
        }
        self.guess(best)
    }

    /// Copies turned back into views where the order does as well without.
    fn pruned(&mut self, choice: Choice) -> Choice {
        let order = original_order(&choice.resolved, &choice.schedule.order);
        let trial = Trial::new(self.graph, choice.copied.clone(), order);
        let trial = self.without_useless(trial);
        let pruned = self.plan(trial.copied.clone(), Some(&trial));
        if pruned.cost() <= choice.cost() { pruned } else { choice }
    }

    /// Copies that lower the peak of the order at hand, planned anew, and again.
    fn rounds(&mut self, start: Choice) -> Choice {
        let mut best = start;
        for _ in 0..ROUNDS {
            let order = original_order(&best.resolved, &best.schedule.order);
            let mut trial = Trial::new(self.graph, best.copied.clone(), order);
            let mut found = false;
            while trial.peak() > u128::from(self.floor) {
                let Some(better) = self.improve(&trial) else { break };
                (trial, found) = (better, true);
            }
            if !found {
                break;
            }
            let trial = self.without_useless(trial);
            let choice = self.plan(trial.copied.clone(), Some(&trial));
            if choice.cost() >= best.cost() {
                break;
            }
            best = choice;
            if best.schedule.live_peak_bytes <= self.floor {
                break;
            }
        }
        best
    }

    /// The plan of a choice; that of a trial where its order is better.
    fn plan(&self, copied: Vec<ViewId>, trial: Option<&Trial>) -> Choice {
        let resolved = resolve(self.graph, |id| copied.binary_search(&id).is_ok());
        let options = Options { prove: false, ..*self.options };
        let schedule = schedule_as_it_is(&resolved.graph, &options);
        let planned = Choice { copied, resolved, schedule };
        let Some(trial) = trial else { return planned };
        // No arena is lower than what is alive: then the trial's order needs no offsets to lose.
        if u128::from(planned.schedule.arena_bytes) <= trial.peak() && trial.is_exact {
            return planned;
        }
        let ix = Index::new(&trial.resolved.graph);
        let found = ("search", Bound::default());
        let schedule = schedule_of(&trial.resolved.graph, &ix, trial.full.clone(), found, &options);
        let kept = Choice { copied: trial.copied.clone(), resolved: trial.resolved.clone(), schedule };
        if kept.cost() < planned.cost() { kept } else { planned }
    }

    /// More copies, if that lowers the peak of the order at hand.
    fn try_more(&mut self, trial: &Trial, more: &[ViewId]) -> Option<Trial> {
        let mut copied = trial.copied.clone();
        copied.extend(more);
        copied.sort_unstable();
        copied.dedup();
        if copied.len() == trial.copied.len() {
            return None;
        }
        self.work = self.work.checked_sub(trial.full.len() + 1)?;
        let other = Trial::new(self.graph, copied, trial.order.clone());
        (other.peak() < trial.peak()).then_some(other)
    }

    /// One improvement: first what holds the peak itself, then all that is about as high, then the
    /// largest savings one by one.
    fn improve(&mut self, trial: &Trial) -> Option<Trial> {
        let at_peak = candidates(self.graph, trial, false);
        let all = |list: &[Candidate]| list.iter().flat_map(|c| c.views.clone()).collect::<Vec<ViewId>>();
        if let Some(better) = self.try_more(trial, &all(&at_peak)) {
            return Some(better);
        }
        let around = candidates(self.graph, trial, true);
        if around.len() > at_peak.len()
            && let Some(better) = self.try_more(trial, &all(&around))
        {
            return Some(better);
        }
        let singles: &[Candidate] = if at_peak.len() > 1 { &at_peak } else { &[] };
        let single = singles.iter().take(SINGLES).find_map(|c| self.try_more(trial, &c.views));
        if single.is_some() {
            return single;
        }
        // Where some views are done with earlier, the others would be copied behind them, perhaps at
        // the peak. With all of them copied, the base is gone as soon as it is there.
        let graph = self.graph;
        let mut bases: Vec<u32> = around.iter().flat_map(|c| c.views.first()).map(|id| id.viewed).collect();
        bases.sort_unstable();
        let whole: Vec<ViewId> =
            view_ids(graph).filter(|id| bases.binary_search(&id.viewed).is_ok()).collect();
        self.try_more(trial, &whole)
    }

    /// Turns copies back into views where that costs nothing.
    fn without_useless(&mut self, mut trial: Trial) -> Trial {
        for id in trial.copied.clone().into_iter().rev() {
            let copied: Vec<ViewId> = trial.copied.iter().copied().filter(|&c| c != id).collect();
            let Some(left) = self.work.checked_sub(trial.full.len() + 1) else { break };
            self.work = left;
            let other = Trial::new(self.graph, copied, trial.order.clone());
            if other.peak() <= trial.peak() {
                trial = other;
            }
        }
        trial
    }

    /// In a small graph: copies for which the order at hand gives no reason.
    fn guess(&self, mut best: Choice) -> Choice {
        if self.graph.op_count() > SMALL {
            return best;
        }
        let mut left = GUESSES;
        for viewed in 0..self.graph.viewed().len() {
            for views in self.sets(viewed, &best.copied) {
                if left == 0 || best.schedule.live_peak_bytes <= self.floor {
                    return best;
                }
                left -= 1;
                let mut copied = best.copied.clone();
                copied.extend(views);
                copied.sort_unstable();
                let choice = self.plan(copied, None);
                if choice.cost() < best.cost() {
                    best = choice;
                }
            }
        }
        best
    }

    /// The views of a base that are no copies: all of them, and each alone.
    fn sets(&self, viewed: usize, copied: &[ViewId]) -> Vec<Vec<ViewId>> {
        let views = self.graph.viewed().get(viewed).map_or(0, |base| base.views.len());
        let ids = (0..views).map(|view| ViewId { viewed: viewed as u32, view: view as u32 });
        let ids: Vec<ViewId> = ids.filter(|id| copied.binary_search(id).is_err()).collect();
        let alone = if ids.len() > 1 { ids.iter().map(|&id| vec![id]).collect() } else { Vec::new() };
        let all = if ids.is_empty() { None } else { Some(ids) };
        all.into_iter().chain(alone).collect()
    }
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
    if !ix.exact {
        return in_graph(&relaxed, graph, &bound::rough(&relaxed.graph, &ix));
    }
    let order: Vec<u32> =
        order.iter().map(|op| op.0).filter(|&op| (op as usize) < graph.op_count()).collect();
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
            // The order may be worse here than it is with the copies that are not decided yet.
            let closes = options.order == OrderKind::Best && ix.to_bytes(profile.peak) >= enough;
            bound::tighten(&ix, &order, &mut proof, bound::REFUTE_WORK, closes);
        }
    }
    if graph.viewed().iter().any(|base| graph.maker(base.buffer).is_none()) {
        proof.allow_copies_first(&ix);
    }
    if options.prove {
        bound::explain(&ix, &order, &mut proof);
    }
    in_graph(&relaxed, graph, &proof.to_bound(&ix))
}

/// A bound on the relaxed graph as one on the graph itself. What makes the parts of a base there
/// stands for the op that makes the base. Every cut of the proof is at least as large in the graph
/// itself: a set of ops that can be done has at least as much alive in it.
fn in_graph(relaxed: &Relaxed, graph: &ScheduleGraph, bound: &Bound) -> Bound {
    // The order in which the parts are made right behind the base has no more alive than the base's.
    let name = |op: OpId| (0..=op.0).rev().find_map(|op| relaxed.source(OpId(op)));
    let op = bound.op.and_then(name);
    let mut before: Vec<OpId> = bound.before.iter().filter_map(|&op| relaxed.source(op)).collect();
    before.sort_unstable();
    before.retain(|&b| Some(b) != op);
    debug_assert!(before.iter().all(|op| (op.0 as usize) < graph.op_count()));
    let before = if op.is_some() { before } else { Vec::new() };
    let refutation = bound.refutation.as_ref().and_then(|proof| proof.renamed(&name));
    Bound { bytes: bound.bytes, op, before, branched: bound.branched, refutation }
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
    let refutation = bound.refutation.as_ref().and_then(|proof| proof.renamed(&map));
    Bound { bytes: bound.bytes, op: Some(op), before, branched: bound.branched, refutation }
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
