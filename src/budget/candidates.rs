//! The list of candidates: solutions of the dynamic program for every amount of memory, as regions.

use std::cmp::Reverse;

use rustc_hash::FxHashSet;

use super::{
    chain::{Chain, chains, inner_chains},
    dp::{SLOTS, Step, Table},
    facts::Facts,
    replay::Assignment,
};
use crate::{
    ir::{Bind, Graph, Node, NodeId, Origins, Policy, Region, RegionId},
    ops::Op,
};

/// The whole of what is kept, and the lower parts of it in finer units.
const RANGES: [u64; 3] = [1, 8, 64];
/// A candidate with more extra work than this many steps is of no use.
const MOST_WORK: f64 = 2.0;

/// Candidates by estimated work; the first is the graph as it is.
pub(super) struct Candidates<'g> {
    graph: &'g Graph,
    chains: Vec<Chain>,
    /// Of each candidate but the first, the steps of each chain.
    steps: Vec<Vec<Vec<Step>>>,
}

impl<'g> Candidates<'g> {
    pub fn new(graph: &'g Graph) -> Candidates<'g> {
        let step = Facts::of(graph, 0);
        let outer = chains(graph, &step);
        let step: f64 = step.flops.iter().sum();
        let inner = inner_chains(graph);
        let mut found = solutions(&outer, step);
        if !inner.is_empty() {
            // Inside of the regions that are written, outside of them, and both with the same memory.
            let plain = |count: usize| vec![Vec::new(); count];
            for (_, steps) in &mut found {
                steps.extend(plain(inner.len()));
            }
            let inside = solutions(&inner, step);
            found.extend(inside.into_iter().map(|(cost, s)| (cost, [plain(outer.len()), s].concat())));
        }
        let is_both = !inner.is_empty() && !outer.is_empty();
        let chains: Vec<Chain> = outer.into_iter().chain(inner).collect();
        if is_both {
            found.extend(solutions(&chains, step));
        }
        // A stable sort: of the same work, the finer unit comes later and takes less memory.
        found.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut known: FxHashSet<Vec<Vec<Step>>> = FxHashSet::default();
        let steps = found.into_iter().map(|(_, steps)| steps).filter(|s| known.insert(s.clone())).collect();
        Candidates { graph, chains, steps }
    }

    pub fn len(&self) -> usize {
        self.steps.len() + 1
    }

    /// The regions of a candidate.
    pub fn assignment(&self, candidate: usize) -> Assignment {
        let plain = Assignment::original(self.graph);
        match candidate.checked_sub(1).and_then(|k| self.steps.get(k)) {
            Some(steps) => assignment(self.graph, &self.chains, steps, &plain),
            None => plain,
        }
    }
}

/// For amounts of memory, the steps with the least extra work and that work. A chain that stays as it is has
/// no steps.
fn solutions(chains: &[Chain], step: f64) -> Vec<(f64, Vec<Vec<Step>>)> {
    let whole = chains.iter().map(Chain::plain_bytes).max().unwrap_or(0);
    let is_plain = |s: &Step| matches!(s, Step::Stage { mode: 0, .. });
    let mut found: Vec<(f64, Vec<Vec<Step>>)> = Vec::new();
    for range in RANGES {
        let unit = unit(chains, (whole / range).div_ceil(SLOTS as u64).max(1));
        let tables: Vec<Table> = chains.iter().map(|c| Table::new(c, unit)).collect();
        let mut last = f64::INFINITY;
        for m in 0..=SLOTS {
            let cost: f64 = tables.iter().map(|t| f64::from(t.cost(m))).sum();
            if cost < last && cost <= MOST_WORK * step {
                last = cost;
                let mut steps: Vec<Vec<Step>> = tables.iter().filter_map(|t| t.solution(m)).collect();
                let is_whole = steps.len() == chains.len();
                steps.iter_mut().filter(|s| s.iter().all(is_plain)).for_each(Vec::clear);
                if is_whole && steps.iter().any(|s| !s.is_empty()) {
                    found.push((cost, steps));
                }
            }
        }
    }
    found
}

/// A unit close to `about` of which the commonest crossing is a multiple, where that is larger.
fn unit(chains: &[Chain], about: u64) -> u64 {
    let mut sizes: Vec<u64> = chains
        .iter()
        .flat_map(|c| (1..c.stages.len()).map(|k| c.crossing_bytes(k - 1, k)))
        .filter(|&b| b > 0)
        .collect();
    sizes.sort_unstable();
    let Some(&middle) = sizes.get(sizes.len() / 2) else { return about };
    match middle / about {
        0 => about,
        parts => middle.div_ceil(parts),
    }
}

fn assignment(graph: &Graph, chains: &[Chain], steps: &[Vec<Step>], plain: &Assignment) -> Assignment {
    let mut build = Build { graph, regions: Vec::new(), homes: Vec::new() };
    for (chain, steps) in chains.iter().zip(steps) {
        build.steps(chain, steps, None);
    }
    let added = build.regions.len();
    let place_of = |written: RegionId| added + written.0 as usize;
    for (k, home) in build.homes.iter().enumerate() {
        let parent = &mut build.regions[k].0;
        *parent = parent.or(home.map(place_of));
    }
    // Those of the program are inside of the innermost that is around them.
    for region in &graph.regions {
        let parent = build.innermost(region.parent, region.nodes.start).or(region.parent.map(place_of));
        build.regions.push((parent, region.clone()));
    }
    // Parents come before children, in the order of the source.
    let mut order: Vec<usize> = (0..build.regions.len()).collect();
    order.sort_by_key(|&k| {
        let region = &build.regions[k].1;
        (region.nodes.start, Reverse(region.nodes.end), k)
    });
    let mut place = vec![RegionId(0); order.len()];
    for (at, &k) in order.iter().enumerate() {
        place[k] = RegionId(at as u32);
    }
    let regions = order
        .iter()
        .map(|&k| {
            let (parent, region) = &build.regions[k];
            Region { parent: parent.map(|p| place[p]), ..region.clone() }
        })
        .collect();
    let written = |region: Option<RegionId>| region.map(|r| place[added + r.0 as usize]);
    let mut region_of: Vec<Option<RegionId>> = plain.region_of.iter().map(|&r| written(r)).collect();
    // Later ones are inside of earlier ones.
    for (k, (_, region)) in build.regions[..added].iter().enumerate() {
        for id in region.nodes.clone() {
            let node = graph.node(NodeId(id));
            if node.region() == build.homes[k] && !is_leaf(&node) {
                region_of[id as usize] = Some(place[k]);
            }
        }
    }
    Assignment { regions, region_of, call_regions: plain.call_regions.iter().map(|&r| written(r)).collect() }
}

/// Belongs to no region wherever it stands: what it gives is there before the step starts.
fn is_leaf(node: &Node<'_>) -> bool {
    matches!(node.op(), Op::Read(_) | Op::Input(_) | Op::Scalar(_))
}

struct Build<'g> {
    graph: &'g Graph,
    /// With the position of the parent; parents first.
    regions: Vec<(Option<usize>, Region)>,
    /// Of each that was added: the region of the program that it is inside of.
    homes: Vec<Option<RegionId>>,
}

impl Build<'_> {
    fn steps(&mut self, chain: &Chain, steps: &[Step], parent: Option<usize>) {
        for step in steps {
            match step {
                Step::Stage { stage, mode } => {
                    let mode = chain.stages.get(*stage).and_then(|s| s.modes.get(*mode));
                    if let Some(keep) = mode.and_then(|m| m.keep.as_ref()) {
                        self.region(chain, *stage, stage + 1, parent, keep.clone());
                    }
                }
                Step::Region { first, end, inside } => {
                    // All stages of a region that is written are that region.
                    let is_home = chain.home.is_some() && end - first == chain.stages.len();
                    let this = match is_home {
                        true => parent,
                        false => Some(self.region(chain, *first, *end, parent, Vec::new())),
                    };
                    self.steps(chain, inside, this);
                }
            }
        }
    }

    fn region(
        &mut self,
        chain: &Chain,
        first: usize,
        end: usize,
        parent: Option<usize>,
        keep: Vec<crate::ir::ValueId>,
    ) -> usize {
        let nodes = chain.stages[first].nodes.start..chain.stages[end - 1].nodes.end;
        let outputs = chain.crossing[end].iter().filter(|c| c.maker >= nodes.start).map(|c| c.base).collect();
        let range = nodes.start..nodes.end;
        let mut inside = range.map(|id| self.graph.node(NodeId(id)));
        let origin = inside.find(|n| !n.args().is_empty()).map_or(Origins::NOWHERE, |n| n.origin());
        let region =
            Region { parent: None, bind: Bind::All, policy: Policy::Nothing, keep, outputs, origin, nodes };
        self.regions.push((parent, region));
        self.homes.push(chain.home);
        self.regions.len() - 1
    }

    /// The innermost around a node of those that were added inside of a region of the program.
    fn innermost(&self, home: Option<RegionId>, node: u32) -> Option<usize> {
        let is_around = |k: &usize| self.homes[*k] == home && self.regions[*k].1.nodes.contains(&node);
        (0..self.homes.len()).rev().find(is_around)
    }
}
