//! The forward pass as a chain of stages: cut where few bytes cross.

use std::ops::Range;

use rustc_hash::{FxHashMap, FxHashSet};

use super::{
    facts::{Facts, depths},
    keep,
};
use crate::ir::{Graph, NodeId, Policy, RegionId, Role, ValueId};

/// Stages of one chain at most: the dynamic program is cubic in them. Where there are several chains
/// they share its work.
const MAX_STAGES: usize = 128;
const MIN_STAGES: usize = 8;
/// A cut is left out where cuts on both sides of it, among so many, are narrower by this factor.
const NEIGHBOURS: usize = 3;
const WIDER: u64 = 3;

/// The score of a position inside of a unit, where nothing is cut.
const WALL: i64 = i64::MAX;

/// A run of forward nodes without a gradient call in between.
pub(super) struct Chain {
    /// The region of the program that it is inside of.
    pub home: Option<RegionId>,
    pub stages: Vec<Stage>,
    /// `crossing[k]`: what stages from `k` on need of those before, by maker. One more than stages.
    pub crossing: Vec<Vec<Crossing>>,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Crossing {
    pub base: ValueId,
    pub maker: u32,
    /// Of this and all later ones.
    pub bytes: u64,
}

pub(super) struct Stage {
    pub nodes: Range<u32>,
    /// Work to make again all that is needed of the stage; and that without what the next stage needs.
    pub full_flops: f64,
    pub last_flops: f64,
    /// What is alive while the backward pass goes through the stage.
    pub backward_bytes: u64,
    /// What the stage may keep: everything first.
    pub modes: Vec<Mode>,
}

/// One way to go through a stage.
#[derive(Debug, Clone)]
pub(super) struct Mode {
    /// Kept until the backward pass comes to the stage.
    pub bytes: u64,
    /// Extra work then.
    pub flops: f64,
    /// `None`: no region. Otherwise a region that keeps these.
    pub keep: Option<Vec<ValueId>>,
}

impl Chain {
    /// Bytes of what stages from `k` on need of those from `s` on.
    pub fn crossing_bytes(&self, s: usize, k: usize) -> u64 {
        let (Some(stage), Some(crossing)) = (self.stages.get(s), self.crossing.get(k)) else { return 0 };
        let first = crossing.partition_point(|c| c.maker < stage.nodes.start);
        crossing.get(first).map_or(0, |c| c.bytes)
    }

    /// Bytes that are kept where nothing is recomputed.
    pub fn plain_bytes(&self) -> u64 {
        self.stages.iter().filter_map(|s| s.modes.first()).map(|m| m.bytes).sum()
    }
}

/// The chains outside of all regions of the program.
pub(super) fn chains(graph: &Graph, facts: &Facts) -> Vec<Chain> {
    let blocks = blocks(graph);
    let stretches = stretches(graph, facts, blocks.get(&None).map_or(&[], Vec::as_slice));
    all(graph, facts, stretches.into_iter().map(|stretch| (None, stretch)).collect())
}

/// The chains inside of regions of the program, whose backward pass makes all their values again at once.
/// What a region keeps by a policy of its own, or by name, is its business.
pub(super) fn inner_chains(graph: &Graph) -> Vec<Chain> {
    let depths = depths(graph);
    let mut chains = Vec::new();
    for level in 1..=depths.iter().copied().max().unwrap_or(0) {
        let facts = Facts::of(graph, level);
        let is_free = |id: u32| {
            let node = graph.node(NodeId(id));
            !facts.in_call[id as usize] && node.role() == Role::Forward
        };
        let regions = graph.regions.iter().zip(0..).zip(&depths).filter(|(_, depth)| **depth == level);
        let homes = regions.filter(|((region, _), _)| {
            let is_plain = region.policy == Policy::Nothing && region.keep.is_empty();
            is_plain && !region.nodes.is_empty() && region.nodes.clone().all(is_free)
        });
        let stretches = homes.map(|((region, id), _)| (Some(RegionId(id)), region.nodes.clone())).collect();
        chains.extend(all(graph, &facts, stretches));
    }
    // One stage is the region itself.
    chains.retain(|chain| chain.stages.len() > 1);
    chains
}

fn all(graph: &Graph, facts: &Facts, stretches: Vec<(Option<RegionId>, Range<u32>)>) -> Vec<Chain> {
    let limit = (MAX_STAGES as f64 / (stretches.len() as f64).cbrt()) as usize;
    let limit = limit.clamp(MIN_STAGES, MAX_STAGES);
    let blocks = blocks(graph);
    stretches
        .into_iter()
        .map(|(home, stretch)| {
            let blocks = blocks.get(&home).map_or(&[][..], Vec::as_slice);
            Chain { home, ..chain(graph, facts, blocks, stretch, limit) }
        })
        .filter(|chain| chain.stages.iter().any(|s| s.backward_bytes > 0))
        .collect()
}

/// The regions of the program by the one that they are right inside of; they are not cut.
fn blocks(graph: &Graph) -> FxHashMap<Option<RegionId>, Vec<Range<u32>>> {
    let mut blocks: FxHashMap<Option<RegionId>, Vec<Range<u32>>> = FxHashMap::default();
    for region in graph.regions.iter().filter(|r| !r.nodes.is_empty()) {
        blocks.entry(region.parent).or_default().push(region.nodes.clone());
    }
    blocks
}

fn stretches(graph: &Graph, facts: &Facts, blocks: &[Range<u32>]) -> Vec<Range<u32>> {
    let mut free = vec![true; graph.len()];
    for node in graph.nodes() {
        free[node.id.0 as usize] = !facts.in_call[node.id.0 as usize] && node.role() == Role::Forward;
    }
    for block in blocks {
        let nodes = block.start as usize..block.end as usize;
        if !free[nodes.clone()].iter().all(|&f| f) {
            free[nodes].iter_mut().for_each(|f| *f = false);
        }
    }
    let mut stretches = Vec::new();
    let mut start = None;
    for (at, &is_free) in free.iter().chain([&false]).enumerate() {
        match (start, is_free) {
            (None, true) => start = Some(at as u32),
            (Some(first), false) => {
                stretches.push(first..at as u32);
                start = None;
            }
            _ => {}
        }
    }
    // A call without nodes ends a stretch as well.
    for call in &graph.gradients {
        let at = call.nodes.start;
        if let Some(k) = stretches.iter().position(|s: &Range<u32>| s.start < at && at < s.end) {
            let rest = at..stretches[k].end;
            stretches[k].end = at;
            stretches.insert(k + 1, rest);
        }
    }
    stretches
}

fn chain(graph: &Graph, facts: &Facts, blocks: &[Range<u32>], stretch: Range<u32>, limit: usize) -> Chain {
    let mut bounds = vec![stretch.start];
    bounds.extend(thin_out(graph, facts, &stretch, cuts(graph, facts, blocks, &stretch), limit));
    bounds.push(stretch.end);
    let crossing: Vec<Vec<Crossing>> = {
        let mut crossing: Vec<Vec<Crossing>> = vec![Vec::new(); bounds.len()];
        for base in made_in(graph, facts, &stretch) {
            let maker = facts.maker[base.0 as usize].0;
            let first = bounds.partition_point(|&b| b <= maker);
            let last = bounds.partition_point(|&b| b <= facts.last_use[base.0 as usize]);
            for list in crossing.iter_mut().take(last).skip(first) {
                list.push(Crossing { base, maker, bytes: facts.bytes(base) });
            }
        }
        for list in &mut crossing {
            let mut sum = 0u64;
            for crossing in list.iter_mut().rev() {
                sum = sum.saturating_add(crossing.bytes);
                crossing.bytes = sum;
            }
        }
        crossing
    };
    let stages = (0..bounds.len() - 1)
        .map(|k| stage(graph, facts, bounds[k]..bounds[k + 1], &crossing[k + 1]))
        .collect();
    Chain { home: None, stages, crossing }
}

/// The live bases with memory that a range of nodes makes.
fn made_in(graph: &Graph, facts: &Facts, nodes: &Range<u32>) -> Vec<ValueId> {
    graph
        .nodes_from(NodeId(nodes.start))
        .take_while(|n| n.id.0 < nodes.end)
        .filter(|n| facts.live[n.id.0 as usize])
        .flat_map(|n| n.results())
        .filter(|&v| facts.base(v) == v && facts.bytes(v) > 0)
        .collect()
}

/// Positions inside of a stretch where few bytes cross, those that are kept anyway preferred.
fn cuts(graph: &Graph, facts: &Facts, blocks: &[Range<u32>], stretch: &Range<u32>) -> Vec<u32> {
    let length = stretch.len();
    // Differences of the score between neighbouring positions.
    let mut change = vec![0i64; length + 2];
    let mut forbidden = vec![0i64; length + 2];
    // Whether other values cross than at the position before.
    let mut moves = vec![false; length + 2];
    // From the first value that is kept to the last.
    let mut kept: Option<(u32, u32)> = None;
    for base in made_in(graph, facts, stretch) {
        let from = (facts.maker[base.0 as usize].0 + 1 - stretch.start) as usize;
        let index = base.0 as usize;
        let to = facts.last_use[index].saturating_add(1).min(stretch.end + 1);
        let to = to.saturating_sub(stretch.start) as usize;
        if to <= from {
            continue;
        }
        // What is not needed anyway would be kept for the cut alone.
        let weight = if facts.needed[index] { 1 } else { 3 };
        let bytes = i64::try_from(facts.bytes(base) / 256).unwrap_or(i64::MAX / 1024).saturating_mul(weight);
        change[from] = change[from].saturating_add(bytes);
        change[to] = change[to].saturating_sub(bytes);
        moves[from] |= bytes > 0;
        moves[to] |= bytes > 0;
        if facts.needed[index] {
            let maker = facts.maker[index].0;
            kept = Some((kept.map_or(maker, |(first, _)| first), maker));
        }
        if facts.released[index] {
            forbidden[from] += 1;
            forbidden[to] -= 1;
        }
    }
    for block in blocks.iter().filter(|b| b.start >= stretch.start && b.end <= stretch.end) {
        forbidden[(block.start + 1 - stretch.start) as usize] += 1;
        forbidden[(block.end - stretch.start) as usize] -= 1;
    }
    // What a unit makes stays unless it is recomputed: units of like width are stages of their own.
    let mut is_in_unit = vec![false; length];
    let units = graph.regions.iter().filter(|r| r.policy == Policy::Gathers);
    for unit in units.filter(|r| r.nodes.start >= stretch.start && r.nodes.end <= stretch.end) {
        let inside =
            (unit.nodes.start + 1 - stretch.start) as usize..(unit.nodes.end - stretch.start) as usize;
        is_in_unit.get_mut(inside).into_iter().flatten().for_each(|is_in| *is_in = true);
    }
    let (mut score, mut blocked) = (0i64, 0i64);
    let mut scores: Vec<(u32, i64)> = Vec::new();
    for at in 0..length {
        score = score.saturating_add(change[at]);
        blocked += forbidden[at];
        let here = match blocked {
            0 => score,
            _ if is_in_unit[at] => WALL,
            _ => continue,
        };
        let is_other = scores.last().is_none_or(|&(_, last)| last != here);
        if at > 0 && (is_other || here != WALL && moves[at]) {
            scores.push((stretch.start + at as u32, here));
        }
    }
    // A value may give way to another one of its size: then each of these positions is as good.
    let runs: Vec<&[(u32, i64)]> = scores.chunk_by(|a, b| a.1 == b.1).collect();
    // Nothing is kept before the first value is made and after the last: that is no narrower cut.
    let is_inside = |run: &[(u32, i64)]| {
        let (first, last) = (run.first().map_or(0, |r| r.0), run.last().map_or(0, |r| r.0));
        kept.is_some_and(|kept| kept.0 < last && first <= kept.1)
    };
    let score_of = |run: &&[(u32, i64)]| run.first().map(|&(_, score)| score);
    let minima: Vec<(&[(u32, i64)], u64)> = (0..runs.len())
        .filter_map(|k| {
            let own = score_of(&runs[k]).filter(|&score| score != WALL)?;
            let lower = |run: Option<&&[(u32, i64)]>| {
                run.filter(|run| is_inside(run)).and_then(score_of).is_none_or(|score| own < score)
            };
            let is_lowest = lower(k.checked_sub(1).and_then(|k| runs.get(k))) && lower(runs.get(k + 1));
            is_lowest.then_some((runs[k], own.max(1) as u64))
        })
        .collect();
    let narrow = |k: usize| {
        let width = minima[k].1;
        let is_narrower =
            |o: &(&[(u32, i64)], u64)| is_inside(o.0) && o.1.saturating_mul(WIDER) < width.saturating_mul(2);
        let is_wide = |side: &[(&[(u32, i64)], u64)]| side.iter().any(is_narrower);
        !(is_wide(&minima[k.saturating_sub(NEIGHBOURS)..k])
            && is_wide(&minima[k + 1..(k + 1 + NEIGHBOURS).min(minima.len())]))
    };
    let kept_runs = (0..minima.len()).filter(|&k| narrow(k)).map(|k| minima[k].0);
    kept_runs.flatten().map(|&(at, _)| at).collect()
}

/// Leaves out cuts so that at most `limit` stages of like size remain.
fn thin_out(graph: &Graph, facts: &Facts, stretch: &Range<u32>, cuts: Vec<u32>, limit: usize) -> Vec<u32> {
    if cuts.len() < limit {
        return cuts;
    }
    let needed: Vec<ValueId> =
        made_in(graph, facts, stretch).into_iter().filter(|b| facts.needed[b.0 as usize]).collect();
    let total: u128 = needed.iter().map(|&b| u128::from(facts.bytes(b))).sum();
    let (mut sum, mut next, mut done) = (0u128, 0, 0u128);
    let mut kept = Vec::new();
    for cut in cuts {
        while let Some(&base) = needed.get(next).filter(|b| facts.maker[b.0 as usize].0 < cut) {
            sum += u128::from(facts.bytes(base));
            next += 1;
        }
        // The share of the whole that lies before the cut, in stages.
        let share = (sum * (limit as u128 - 1)).checked_div(total).unwrap_or(0);
        if share > done {
            done = share;
            kept.push(cut);
        }
    }
    kept
}

fn stage(graph: &Graph, facts: &Facts, nodes: Range<u32>, leaving: &[Crossing]) -> Stage {
    let made = made_in(graph, facts, &nodes);
    let first = leaving.partition_point(|l| l.maker < nodes.start);
    let leaves: FxHashSet<ValueId> = leaving.iter().skip(first).map(|l| l.base).collect();
    let needed: Vec<ValueId> = made.iter().copied().filter(|b| facts.needed[b.0 as usize]).collect();
    let inner: Vec<ValueId> = needed.iter().copied().filter(|b| !leaves.contains(b)).collect();
    let leaving_bytes = leaving.get(first).map_or(0, |l| l.bytes);
    let bytes = leaving_bytes + inner.iter().map(|&b| facts.bytes(b)).sum::<u64>();
    let gradient = made.iter().map(|&b| facts.bytes(b)).max().unwrap_or(0);
    let whole: Vec<ValueId> =
        needed.iter().copied().chain(leaving.iter().skip(first).map(|l| l.base)).collect();
    let mut modes = vec![Mode { bytes, flops: 0.0, keep: None }];
    for kept in keep::choices(graph, facts, &nodes, &inner, |base| leaves.contains(&base)) {
        let known = modes.iter().any(|m| m.bytes <= leaving_bytes + kept.bytes && m.flops <= kept.flops);
        if !known {
            let (bytes, flops) = (leaving_bytes + kept.bytes, kept.flops);
            modes.push(Mode { bytes, flops, keep: Some(kept.values) });
        }
    }
    Stage {
        full_flops: work(graph, facts, &nodes, &whole, |_| false),
        last_flops: work(graph, facts, &nodes, &inner, |base| leaves.contains(&base)),
        backward_bytes: if needed.is_empty() { 0 } else { bytes + gradient },
        nodes,
        modes,
    }
}

/// Operations that make `targets` from what a range of nodes finds, and from what `is_there`.
fn work(
    graph: &Graph,
    facts: &Facts,
    nodes: &Range<u32>,
    targets: &[ValueId],
    is_there: impl Fn(ValueId) -> bool,
) -> f64 {
    let mut seen = vec![false; nodes.len()];
    let mut todo: Vec<ValueId> = targets.to_vec();
    let mut flops = Vec::new();
    while let Some(base) = todo.pop() {
        let maker = facts.maker[base.0 as usize];
        let Some(entry) = maker.0.checked_sub(nodes.start).and_then(|k| seen.get_mut(k as usize)) else {
            continue;
        };
        if std::mem::replace(entry, true) {
            continue;
        }
        flops.push((maker, facts.flops[maker.0 as usize]));
        todo.extend(facts.operands(graph, maker).into_iter().filter(|&b| !is_there(b)));
    }
    // Sums of floats depend on their order.
    flops.sort_by_key(|f| f.0);
    flops.iter().map(|f| f.1).sum()
}
