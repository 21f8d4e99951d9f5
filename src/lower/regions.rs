//! Lowers `checkpoint < … >`: whatever the backward pass needs from inside a region is recomputed
//! there, from saved inputs that pass through the region's barrier.
//!
//! One pass lowers the outermost regions. A region nested in one of them is copied with the
//! recompute, and the copy is an outermost region of the next pass, until none is left. So each
//! level is recomputed from what the level above it recomputed.

use std::ops::Range;

use rustc_hash::{FxHashMap, FxHashSet};

use crate::{
    ir::{
        Bind, Cursor, Gathered, GradCallId, Graph, Node, NodeId, Output, Policy, Region, RegionId, Role,
        ValueId,
    },
    ops::{Alias, Barrier, BarrierKind, Op, OpError},
};

/// Lowers all regions.
pub(super) fn lower_regions(mut graph: Graph) -> Result<Graph, OpError> {
    let mut instances = 0;
    while !graph.regions.is_empty() {
        graph = Level::new(&graph).rebuild(&mut instances)?;
    }
    Ok(graph)
}

/// One backward pass through one outermost region: what a recompute is for.
type Recompute = (RegionId, GradCallId);

/// Lowering of the outermost regions of a graph.
struct Level<'g> {
    graph: &'g Graph,
    /// Of each region, the outermost one around it.
    top: Vec<RegionId>,
    /// The recomputes for which the gradient left a barrier.
    recomputes: FxHashSet<Recompute>,
    /// Values of outermost regions that the backward pass uses as they are.
    kept: FxHashSet<ValueId>,
    /// What is made of gathered vectors alone.
    gathered: Gathered,
    /// What each recompute saves: values from outside its region, in order of first use.
    saved: FxHashMap<Recompute, Vec<ValueId>>,
}

impl<'g> Level<'g> {
    fn new(graph: &'g Graph) -> Self {
        let top = (0..graph.regions.len() as u32)
            .map(|r| graph.region_chain(Some(RegionId(r))).first().copied().unwrap_or(RegionId(r)))
            .collect();
        let mut level = Level {
            graph,
            top,
            recomputes: FxHashSet::default(),
            kept: FxHashSet::default(),
            gathered: Gathered::new(graph),
            saved: FxHashMap::default(),
        };
        level.recomputes = graph.nodes().filter_map(|n| level.entry(&n)).collect();
        let asked_for = level.asked_for();
        level.kept = asked_for.clone();
        // A result that a later region saves is there anyway, and what is saved depends on what is
        // recomputed, which depends on what is kept: the second round sees the first one's answer.
        for _ in 0..2 {
            let (saved, shared) = level.demand();
            level.saved = saved;
            level.kept = asked_for.union(&shared).copied().collect();
        }
        level.saved = level.demand().0;
        level
    }

    /// The outermost region around a node.
    fn top(&self, node: &Node<'_>) -> Option<RegionId> {
        node.region().and_then(|r| self.top.get(r.0 as usize).copied())
    }

    /// The recompute whose values a node uses: that of the region which its forward node is in,
    /// unless the node is inside that region itself.
    fn context(&self, node: &Node<'_>) -> Option<Recompute> {
        let Role::Backward { of, call } = node.role() else { return None };
        let region = self.top(&self.graph.node(of))?;
        (self.top(node) != Some(region)).then_some((region, call)).filter(|r| self.recomputes.contains(r))
    }

    /// The recompute that a barrier is the entry of.
    fn entry(&self, node: &Node<'_>) -> Option<Recompute> {
        match (node.op(), node.role()) {
            (Op::Barrier(Barrier { kind: BarrierKind::Region(region) }), Role::Backward { call, .. }) => {
                let is_outermost = self.top.get(region.0 as usize) == Some(region);
                (is_outermost && self.top(node) != Some(*region)).then_some((*region, call))
            }
            _ => None,
        }
    }

    /// Values that are kept because the source says so, or because nothing else is sound.
    fn asked_for(&self) -> FxHashSet<ValueId> {
        let mut kept: FxHashSet<ValueId> = self.graph.outputs.iter().map(|o| o.value).collect();
        for node in self.graph.nodes() {
            let Some(region) = self.top(&node).and_then(|r| self.graph.regions.get(r.0 as usize)) else {
                continue;
            };
            // The policy of a region is for its own values; regions nested in it have their own.
            let is_own = node.region() == self.top(&node);
            let by_policy = is_own
                && match &region.policy {
                    Policy::Nothing => false,
                    Policy::Dots => matches!(node.op(), Op::MatMul(_) | Op::Conv2d(_)),
                    Policy::Names(names) => node
                        .results()
                        .any(|r| self.graph.marks.get(&r).is_some_and(|mark| names.contains(mark))),
                    Policy::Gathers => !self.is_gathered(&node),
                    Policy::Everything => true,
                };
            // A collective must not be issued twice, except for one that gathers what is used again.
            if by_policy || (matches!(node.op(), Op::CollectiveDone(_)) && !self.is_gathered(&node)) {
                kept.extend(node.results());
            }
            kept.extend(region.keep.iter().copied().filter(|_| region.nodes.start == node.id.0));
        }
        kept
    }

    /// Whether the results of a node are made of gathered vectors alone.
    fn is_gathered(&self, node: &Node<'_>) -> bool {
        node.results().next().is_some_and(|r| self.gathered.of(r).is_some())
    }

    /// What each recompute saves, and which values of regions others than their own backward pass
    /// use late.
    fn demand(&self) -> (FxHashMap<Recompute, Vec<ValueId>>, FxHashSet<ValueId>) {
        let mut saved: FxHashMap<Recompute, Vec<ValueId>> = FxHashMap::default();
        let mut shared = FxHashSet::default();
        let mut seen: FxHashSet<(Recompute, ValueId)> = FxHashSet::default();
        let mut work: Vec<(Recompute, ValueId)> = Vec::new();
        for node in self.graph.nodes() {
            match self.context(&node) {
                Some(recompute) => work.extend(node.args().iter().map(|&arg| (recompute, arg))),
                None if matches!(node.role(), Role::Backward { .. }) => {
                    shared.extend(node.args().iter().copied())
                }
                None => {}
            }
        }
        work.reverse();
        while let Some((recompute, value)) = work.pop() {
            if !seen.insert((recompute, value)) {
                continue;
            }
            let (producer, _) = self.graph.producer(value);
            if self.top(&producer) == Some(recompute.0) {
                if !self.kept.contains(&value) {
                    work.extend(producer.args().iter().map(|&arg| (recompute, arg)));
                }
            } else if is_saved(&producer) {
                saved.entry(recompute).or_default().push(value);
                shared.insert(value);
            }
        }
        (saved, shared)
    }

    fn rebuild(self, instances: &mut u32) -> Result<Graph, OpError> {
        let graph = self.graph;
        let mut build = Rebuild::new(&self);
        for node in graph.nodes() {
            match self.entry(&node) {
                Some(recompute) => build.enter(&node, recompute, instances)?,
                None => build.copy(&node)?,
            }
        }
        build.finish()
    }
}

/// Whether a value of a forward pass is data that a barrier should hold back. Parameters and
/// constants are there anyway.
fn is_saved(producer: &Node<'_>) -> bool {
    producer.role() == Role::Forward
        && !matches!(producer.op(), Op::Read(_) | Op::Const(_) | Op::Literal(_) | Op::Iota(_) | Op::Scalar(_))
}

/// The graph without the outermost regions, as it grows.
struct Rebuild<'l> {
    level: &'l Level<'l>,
    new: Graph,
    /// Of each old value and node, the new one.
    values: Vec<ValueId>,
    nodes: Vec<NodeId>,
    /// Of each old region that goes on, the new one.
    regions: FxHashMap<RegionId, RegionId>,
    clones: FxHashMap<Recompute, Clones>,
    /// Of each backward pass, the barriers of the units that it gathers again, in its order.
    units: FxHashMap<GradCallId, Vec<NodeId>>,
}

/// A region's recompute.
#[derive(Default)]
struct Clones {
    values: FxHashMap<ValueId, ValueId>,
    nodes: FxHashMap<NodeId, NodeId>,
    regions: FxHashMap<RegionId, RegionId>,
    /// Saved values as they come out of the barrier.
    saved: FxHashMap<ValueId, ValueId>,
}

impl<'l> Rebuild<'l> {
    fn new(level: &'l Level<'l>) -> Self {
        let mut new = level.graph.skeleton();
        new.regions.clear();
        Rebuild {
            level,
            new,
            values: Vec::with_capacity(level.graph.value_count()),
            nodes: Vec::with_capacity(level.graph.len()),
            regions: FxHashMap::default(),
            clones: FxHashMap::default(),
            units: FxHashMap::default(),
        }
    }

    /// Copies a node that is not the entry of a recompute.
    fn copy(&mut self, node: &Node<'_>) -> Result<(), OpError> {
        let context = self.level.context(node);
        let args: Vec<ValueId> = node.args().iter().map(|&a| self.operand(a, context)).collect();
        // What waits for a node of the region behind a recompute waits for its copy.
        let clones = context.and_then(|c| self.clones.get(&c));
        let after = node.after().iter().map(|a| clones.and_then(|c| c.nodes.get(a)).copied());
        let after: Vec<NodeId> =
            after.zip(node.after()).map(|(copy, &a)| copy.unwrap_or_else(|| self.node(a))).collect();
        let region = self.region(node.region(), None);
        let op = self.retarget(node.op(), context);
        let role = self.role(node.role(), context);
        let id = self.push_copy(node, op, &args, &after, Cursor { region, role, ..node.stamp() })?;
        self.record(node, id, None);
        Ok(())
    }

    /// The barrier of a region, and behind it the recompute of the region.
    fn enter(&mut self, node: &Node<'_>, recompute: Recompute, instances: &mut u32) -> Result<(), OpError> {
        let Some(region) = self.level.graph.regions.get(recompute.0.0 as usize) else { return Ok(()) };
        let saved = self.level.saved.get(&recompute).cloned().unwrap_or_default();
        let stamp = Cursor {
            region: self.region(node.region(), None),
            role: self.role(node.role(), None),
            ..node.stamp()
        };
        let mut clones = Clones::default();
        let mut barrier = None;
        let mut gated = FxHashSet::default();
        if region.bind == Bind::None {
            for (&arg, result) in node.args().iter().zip(node.results()) {
                debug_assert_eq!(result.0 as usize, self.values.len());
                self.values.push(self.value(arg));
            }
            // Stands for the barrier that is not there.
            self.nodes.push(self.nodes.last().copied().unwrap_or(NodeId(0)));
        } else {
            let mut args: Vec<ValueId> = node.args().iter().map(|&a| self.value(a)).collect();
            args.extend(saved.iter().map(|&s| self.value(s)));
            let mut after: Vec<NodeId> = node.after().iter().map(|&a| self.node(a)).collect();
            if region.bind == Bind::Output {
                after.extend(region.outputs.iter().map(|&o| self.node(self.level.graph.producer(o).0.id)));
            }
            let barrier_op = Barrier { kind: BarrierKind::Recompute };
            let id = self.push(barrier_op.into(), &args, &after, stamp)?;
            let results: Vec<ValueId> = self.new.node(id).results().collect();
            let (own, passed) = results.split_at(node.result_count().min(results.len()));
            self.values.extend_from_slice(own);
            self.nodes.push(id);
            clones.saved = saved.iter().copied().zip(passed.iter().copied()).collect();
            gated.extend(passed.iter().copied());
            barrier = Some(id);
            if region.policy == Policy::Gathers {
                self.units.entry(recompute.1).or_default().push(id);
            }
            *instances += 1;
        }
        let instance = if barrier.is_some() { *instances } else { 0 };
        let range = region.nodes.clone();
        self.clones.insert(recompute, clones);
        self.clone_region(recompute, range, instance, barrier, gated)
    }

    /// Copies the nodes of a region behind its barrier. What nobody uses goes away later.
    fn clone_region(
        &mut self,
        recompute: Recompute,
        range: Range<u32>,
        instance: u32,
        barrier: Option<NodeId>,
        mut gated: FxHashSet<ValueId>,
    ) -> Result<(), OpError> {
        for id in range.map(NodeId) {
            let node = self.level.graph.node(id);
            // Parameters and constants may be read between the nodes of a region.
            if self.level.top(&node) != Some(recompute.0) {
                continue;
            }
            match node.op() {
                // Effects happen once. The value written is the value read afterwards.
                Op::Write(_) | Op::Print(_) => {
                    if let Some(&arg) = node.args().first() {
                        let value = self.operand(arg, Some(recompute));
                        self.clones(recompute).values.insert(node.result(0), value);
                    }
                    continue;
                }
                Op::CollectiveStart(_) | Op::CollectiveDone(_) if !self.level.is_gathered(&node) => {
                    for result in node.results() {
                        let value = self.value(result);
                        self.clones(recompute).values.insert(result, value);
                    }
                    continue;
                }
                _ => {}
            }
            // Inside the region a node uses the recompute, unless it has one of its own (a gradient
            // taken inside the region), which the next pass sees to.
            let args: Vec<ValueId> = node.args().iter().map(|&a| self.operand(a, Some(recompute))).collect();
            let mut after: Vec<NodeId> = node
                .after()
                .iter()
                .map(|&a| self.clones(recompute).nodes.get(&a).copied().unwrap_or_else(|| self.node(a)))
                .collect();
            let is_gated = args.iter().any(|a| gated.contains(a));
            // Nothing of a recompute may start early, not even what needs no saved value. Views of
            // parameters and constants do not run: it is their users that have to wait.
            let runs = node.op().memory().alias != Alias::View
                && !matches!(node.op(), Op::Read(_) | Op::Const(_) | Op::Scalar(_) | Op::Input(_));
            let waits_for = barrier.filter(|_| runs && !is_gated);
            after.extend(waits_for.map(|barrier| self.gather_behind(&node, recompute, barrier)));
            let region = self.region(node.region(), Some(recompute));
            let op = self.retarget(node.op(), Some(recompute));
            let role = self.role(node.role(), Some(recompute));
            let stamp = Cursor { region, role, instance, ..node.stamp() };
            let new = self.push_copy(&node, op, &args, &after, stamp)?;
            if runs || is_gated {
                gated.extend(self.new.node(new).results());
            }
            self.record(&node, new, Some(recompute));
        }
        Ok(())
    }

    /// The barrier that a node of a recompute waits for: its own. What gathers a unit may start behind
    /// the barrier of a unit whose backward pass comes before, as many units as are gathered ahead.
    fn gather_behind(&self, node: &Node<'_>, recompute: Recompute, own: NodeId) -> NodeId {
        let Some((_, shard)) = self.level.graph.gathers(node) else { return own };
        let barriers = self.units.get(&recompute.1).map(Vec::as_slice).unwrap_or_default();
        let place = barriers.iter().position(|&b| b == own);
        let ahead = place.map(|k| k.saturating_sub(shard.prefetch as usize));
        ahead.and_then(|k| barriers.get(k)).copied().unwrap_or(own)
    }

    fn push(&mut self, op: Op, args: &[ValueId], after: &[NodeId], stamp: Cursor) -> Result<NodeId, OpError> {
        self.new.cursor = stamp;
        let id = self.new.push_after(op, args, after)?;
        self.new.extend_regions(id);
        Ok(id)
    }

    fn push_copy(
        &mut self,
        node: &Node<'_>,
        op: Op,
        args: &[ValueId],
        after: &[NodeId],
        stamp: Cursor,
    ) -> Result<NodeId, OpError> {
        self.new.cursor = stamp;
        let id = self.new.push_copy(node, op, args, after)?;
        self.new.extend_regions(id);
        Ok(id)
    }

    /// Remembers what a node became.
    fn record(&mut self, old: &Node<'_>, new: NodeId, recompute: Option<Recompute>) {
        let results: Vec<ValueId> = self.new.node(new).results().collect();
        for (old, &new) in old.results().zip(&results) {
            if let Some(name) = self.level.graph.names.get(&old) {
                self.new.names.insert(new, name.clone());
            }
            if let Some(mark) = self.level.graph.marks.get(&old) {
                self.new.marks.insert(new, mark.clone());
            }
        }
        match recompute {
            None => {
                self.values.extend(results);
                self.nodes.push(new);
            }
            Some(recompute) => {
                let clones = self.clones(recompute);
                clones.values.extend(old.results().zip(results));
                clones.nodes.insert(old.id, new);
            }
        }
    }

    fn clones(&mut self, recompute: Recompute) -> &mut Clones {
        self.clones.entry(recompute).or_default()
    }

    /// The new form of a value, as it was before any recompute.
    fn value(&self, old: ValueId) -> ValueId {
        self.values.get(old.0 as usize).copied().unwrap_or(old)
    }

    fn node(&self, old: NodeId) -> NodeId {
        self.nodes.get(old.0 as usize).copied().unwrap_or(old)
    }

    /// The new form of a value for a user that belongs to a recompute, or to the backward pass
    /// behind it.
    fn operand(&self, old: ValueId, context: Option<Recompute>) -> ValueId {
        let Some(clones) = context.and_then(|c| self.clones.get(&c)) else { return self.value(old) };
        if self.level.kept.contains(&old) && !clones.saved.contains_key(&old) {
            return self.value(old);
        }
        let found = clones.saved.get(&old).or_else(|| clones.values.get(&old));
        found.copied().unwrap_or_else(|| self.value(old))
    }

    /// The new form of a region: `None` for the outermost ones, which this pass lowers.
    fn region(&mut self, old: Option<RegionId>, recompute: Option<Recompute>) -> Option<RegionId> {
        let old = old?;
        if self.level.top.get(old.0 as usize) == Some(&old) {
            return None;
        }
        let known = match recompute {
            None => self.regions.get(&old),
            Some(recompute) => self.clones.get(&recompute).and_then(|c| c.regions.get(&old)),
        };
        if let Some(&known) = known {
            return Some(known);
        }
        let data = self.level.graph.regions.get(old.0 as usize)?.clone();
        let parent = self.region(data.parent, recompute);
        let new = RegionId(self.new.regions.len() as u32);
        // Values are filled in by `finish`, when all of them have a new form.
        self.new.regions.push(Region { parent, nodes: 0..0, ..data });
        match recompute {
            None => self.regions.insert(old, new),
            Some(recompute) => self.clones(recompute).regions.insert(old, new),
        };
        Some(new)
    }

    /// Barriers of nested regions move on to the copies of those regions.
    fn retarget(&mut self, op: &Op, recompute: Option<Recompute>) -> Op {
        let Op::Barrier(Barrier { kind }) = op else { return op.clone() };
        let kind = match *kind {
            BarrierKind::Region(region) => {
                self.region(Some(region), recompute).map_or(BarrierKind::Recompute, BarrierKind::Region)
            }
            lowered => lowered,
        };
        Op::Barrier(Barrier { kind })
    }

    /// A backward node behind a recompute serves the recomputed forward node.
    fn role(&mut self, role: Role, recompute: Option<Recompute>) -> Role {
        match role {
            Role::Backward { of, call } => {
                let own = recompute.and_then(|r| self.clones.get(&r)).and_then(|clones| {
                    // An effect has no copy; its neighbour in the same region stands for it.
                    (0..=of.0).rev().map(NodeId).take(64).find_map(|n| clones.nodes.get(&n).copied())
                });
                Role::Backward { of: own.unwrap_or_else(|| self.node(of)), call }
            }
            other => other,
        }
    }

    fn finish(mut self) -> Result<Graph, OpError> {
        let old = self.level.graph;
        self.new.outputs =
            old.outputs.iter().map(|o| Output { value: self.value(o.value), ..o.clone() }).collect();
        let own = self.regions.iter().map(|(&old, &new)| (old, new, None));
        let copied = self.clones.iter().flat_map(|(&recompute, clones)| {
            clones.regions.iter().map(move |(&old, &new)| (old, new, Some(recompute)))
        });
        let all: Vec<_> = own.chain(copied).collect();
        for (from, to, recompute) in all {
            let Some(region) = old.regions.get(from.0 as usize) else { continue };
            let map = |values: &[ValueId]| -> Vec<ValueId> {
                let clones = recompute.and_then(|r| self.clones.get(&r));
                values
                    .iter()
                    .map(|v| clones.and_then(|c| c.values.get(v)).copied().unwrap_or_else(|| self.value(*v)))
                    .collect()
            };
            let (keep, outputs) = (map(&region.keep), map(&region.outputs));
            if let Some(target) = self.new.regions.get_mut(to.0 as usize) {
                target.keep = keep;
                target.outputs = outputs;
            }
        }
        Ok(self.new)
    }
}
