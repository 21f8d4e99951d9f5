//! The backward pass through a unit of a sharded model, whose vector was gathered again.
//!
//! First come the gradients of data, which need the vector. When the pass leaves the unit, the gradients
//! of its parameters follow, behind a barrier that waits for the last use of the vector: so it and the
//! vector of gradients are not alive together. Each gradient is written into its part of that vector,
//! which is reduced and scattered at the end.

use rustc_hash::{FxHashMap, FxHashSet};

use super::{Backward, GradError, barriers::Barriers, get, set};
use crate::{
    ir::{Graph, Node, NodeId, Policy, RegionId, Role, ValueId},
    ops::{Barrier, BarrierKind, CollectiveDone, GradNode, Gradient, Insert, Op, OpError, SliceRange},
};

/// What the pass through a unit has put off.
pub(super) struct Unit {
    region: RegionId,
    /// The first forward node of the unit.
    pub first: u32,
    /// The node with which the backward pass through it begins.
    start: u32,
    nodes: Vec<Late>,
    /// Values that get more when those nodes are differentiated.
    values: FxHashSet<ValueId>,
}

/// A node that is differentiated when the pass leaves its unit.
struct Late {
    node: NodeId,
    wanted: Vec<bool>,
    /// Of its results, as they were; `None` where they are complete only then.
    cotangents: Option<Vec<Option<ValueId>>>,
}

impl Backward {
    /// Whether something that is put off adds to a result of this node.
    pub(super) fn gets_more(&self, node: &Node<'_>) -> bool {
        self.unit.as_ref().is_some_and(|unit| node.results().any(|r| unit.values.contains(&r)))
    }

    /// Puts off what is for parameters of a unit, and says which operands are left to be done now.
    pub(super) fn put_off(&mut self, graph: &Graph, id: NodeId, wanted: &[bool]) -> Vec<bool> {
        let node = graph.node(id);
        let unit = node.region().filter(|r| {
            graph.regions.get(r.0 as usize).is_some_and(|region| region.policy == Policy::Gathers)
        });
        let Some(region) = unit else { return wanted.to_vec() };
        let is_made_of_it = node.results().next().is_some_and(|r| self.gathered.of(r).is_some());
        let is_first_view = matches!(node.op(), Op::Slice(_)) && is_vector(graph, node.args());
        let is_gather = matches!(node.op(), Op::CollectiveStart(_) | Op::CollectiveDone(_));
        let is_late = is_made_of_it && (is_gather || is_first_view || self.gets_more(&node));
        let late: Vec<bool> = if is_late {
            wanted.to_vec()
        } else if matches!(node.op(), Op::MatMul(_) | Op::Conv2d(_) | Op::Gather(_)) {
            // The rules of these ops build the gradient of each operand by itself.
            let is_parameter = |a: ValueId| self.gathered.of(a).is_some();
            node.args().iter().zip(wanted).map(|(&a, &w)| w && is_parameter(a)).collect()
        } else {
            vec![false; wanted.len()]
        };
        if !late.contains(&true) {
            self.unit(graph, region);
            return wanted.to_vec();
        }
        let cotangents = (!is_late).then(|| node.results().map(|r| get(&self.cotangents, r)).collect());
        let unit = self.unit(graph, region);
        unit.values.extend(node.args().iter().zip(&late).filter(|&(_, &l)| l).map(|(&a, _)| a));
        let now = wanted.iter().zip(&late).map(|(&w, &l)| w && !l).collect();
        unit.nodes.push(Late { node: id, wanted: late, cotangents });
        now
    }

    fn unit(&mut self, graph: &Graph, region: RegionId) -> &mut Unit {
        self.unit.get_or_insert_with(|| Unit {
            region,
            first: graph.regions.get(region.0 as usize).map_or(0, |r| r.nodes.start),
            start: graph.len() as u32,
            nodes: Vec::new(),
            values: FxHashSet::default(),
        })
    }

    /// The pass leaves a unit: differentiates what was put off.
    pub(super) fn leave_unit(&mut self, graph: &mut Graph, barriers: &mut Barriers) -> Result<(), GradError> {
        let Some(unit) = self.unit.take() else { return Ok(()) };
        let Some(first) = unit.nodes.first().map(|late| late.node) else { return Ok(()) };
        self.gathered.extend(graph);
        let uses = self.gathered.last_uses(graph, unit.start..graph.len() as u32);
        let mut after: Vec<NodeId> = uses
            .into_iter()
            .filter(|(region, _)| *region == unit.region)
            .flat_map(|(_, nodes)| nodes)
            .collect();
        let mut held: Vec<ValueId> = Vec::new();
        for &cotangent in unit.nodes.iter().flat_map(|late| &late.cotangents).flatten().flatten() {
            if !held.contains(&cotangent) {
                held.push(cotangent);
            }
        }
        let mut behind: FxHashMap<ValueId, ValueId> = FxHashMap::default();
        if !held.is_empty() {
            self.stamp(graph, first);
            let barrier = Barrier { kind: BarrierKind::StepBack };
            let barrier =
                graph.push_after(barrier, &held, &after).map_err(|error| GradError { node: first, error })?;
            behind = held.into_iter().zip(graph.node(barrier).results()).collect();
            after = vec![barrier];
            self.extend_data(graph);
        }
        // One gradient at a time: the next one waits until the last is in its place.
        let mut written = None;
        for late in in_order(graph, unit.nodes) {
            let made = self.late(graph, barriers, late, &behind, &after, written)?;
            written = made.or(written);
        }
        Ok(())
    }

    fn stamp(&self, graph: &mut Graph, of: NodeId) {
        graph.cursor.role = Role::Backward { of: self.serves.unwrap_or(of), call: self.call };
        graph.cursor.origin = graph.node(of).origin();
    }

    /// Differentiates one node; gives the one that wrote a gradient into its place, if it did.
    fn late(
        &mut self,
        graph: &mut Graph,
        barriers: &mut Barriers,
        late: Late,
        behind: &FxHashMap<ValueId, ValueId>,
        after: &[NodeId],
        written: Option<NodeId>,
    ) -> Result<Option<NodeId>, GradError> {
        let id = late.node;
        let fail = |error| GradError { node: id, error };
        let node = graph.node(id);
        let (op, args, region) = (node.op().clone(), node.args().to_vec(), node.region());
        let results: Vec<ValueId> = node.results().collect();
        let through = |cotangent: ValueId| behind.get(&cotangent).copied().unwrap_or(cotangent);
        let is_snapshot = late.cotangents.is_some();
        let mut cotangents: Vec<Option<ValueId>> = match late.cotangents {
            Some(cotangents) => cotangents.into_iter().map(|c| c.map(through)).collect(),
            None => results.iter().map(|&r| get(&self.cotangents, r)).collect(),
        };
        if cotangents.iter().all(Option::is_none) {
            return Ok(None);
        }
        self.stamp(graph, id);
        if let Some(written) = written.filter(|_| is_snapshot) {
            let held: Vec<ValueId> = cotangents.iter().copied().flatten().collect();
            let barrier = Barrier { kind: BarrierKind::StepBack };
            let barrier = graph.push_after(barrier, &held, &[written]).map_err(fail)?;
            let passed = graph.node(barrier).results();
            for (cotangent, result) in cotangents.iter_mut().flatten().zip(passed) {
                *cotangent = result;
            }
        }
        let mut made = None;
        if let (Op::Slice(slice), &[vector], &[Some(piece)]) = (&op, &args[..], &cotangents[..])
            && is_vector(graph, &args)
        {
            let whole = self.write(graph, vector, piece, &slice.ranges, after).map_err(fail)?;
            set(&mut self.cotangents, vector, Some(whole));
            made = Some(graph.producer(whole).0.id);
        } else {
            let gathers = graph.gathers(&graph.node(id)).map(|(_, shard)| shard);
            let (args, wanted) = (&args, &late.wanted);
            let at = GradNode { node: id, args, results: &results, cotangents: &cotangents, wanted };
            let gradients = match op.grad(graph, &at).map_err(fail)? {
                Gradient::Args(gradients) => gradients,
                Gradient::Zero => return Ok(None),
                Gradient::Decompose => self.through_decomposition(graph, &op, &at)?,
            };
            for ((&arg, &wanted), gradient) in args.iter().zip(wanted).zip(gradients) {
                let (true, Some(mut gradient)) = (wanted, gradient) else { continue };
                if let Some(shard) = gathers.filter(|shard| shard.mean) {
                    let ranks = graph.splat_like(gradient, f64::from(shard.world)).map_err(fail)?;
                    gradient = graph.div(gradient, ranks).map_err(fail)?;
                }
                self.accumulate(graph, id, arg, gradient)?;
            }
        }
        self.extend_data(graph);
        barriers.after(graph, self, region, &args, &late.wanted);
        Ok(made)
    }

    /// The gradients of a vector with those of one of its parameters in their place. Parameters do not
    /// overlap.
    fn write(
        &self,
        graph: &mut Graph,
        vector: ValueId,
        piece: ValueId,
        ranges: &[SliceRange],
        after: &[NodeId],
    ) -> Result<ValueId, OpError> {
        let ranges: Box<[SliceRange]> = ranges.into();
        // In the parameter's own shape it needs no copy where it lies in other strides.
        let made = graph.producer(piece).0;
        let shaped = made.args().first().copied().filter(|_| matches!(made.op(), Op::Reshape(_)));
        let piece = shaped.unwrap_or(piece);
        let name = graph.names.get(&vector).map(|name| format!("gradients of {name}"));
        let written = match get(&self.cotangents, vector) {
            Some(whole) => graph.push(Insert { ranges }, &[whole, piece])?,
            None => {
                let zeros = graph.splat_like(vector, 0.0)?;
                graph.push_after(Insert { ranges }, &[zeros, piece], after)?
            }
        };
        let written = graph.node(written).result(0);
        graph.names.extend(name.map(|name| (written, name.into())));
        Ok(written)
    }
}

/// Nodes that were put off, in an order in which each comes as soon as all others that add to its results
/// are done: then a gradient is in its place before the next one is made.
fn in_order(graph: &Graph, nodes: Vec<Late>) -> Vec<Late> {
    let mut missing: FxHashMap<ValueId, usize> = FxHashMap::default();
    let wanted = |late: &Late| -> Vec<ValueId> {
        let args = graph.node(late.node).args().iter().zip(&late.wanted);
        args.filter(|&(_, &wanted)| wanted).map(|(&arg, _)| arg).collect()
    };
    for arg in nodes.iter().flat_map(wanted) {
        *missing.entry(arg).or_default() += 1;
    }
    let places: FxHashMap<NodeId, usize> = nodes.iter().enumerate().map(|(k, late)| (late.node, k)).collect();
    let mut left: Vec<Option<Late>> = nodes.into_iter().map(Some).collect();
    let mut order = Vec::with_capacity(left.len());
    for first in 0..left.len() {
        let mut ready = vec![first];
        while let Some(k) = ready.pop() {
            let is_complete = |late: &Late| {
                graph.node(late.node).results().all(|r| missing.get(&r).is_none_or(|&count| count == 0))
            };
            let Some(late) = left.get_mut(k).and_then(|late| late.take_if(|late| is_complete(late))) else {
                continue;
            };
            for arg in wanted(&late) {
                if let Some(count) = missing.get_mut(&arg) {
                    *count = count.saturating_sub(1);
                }
                ready.extend(places.get(&graph.producer(arg).0.id));
            }
            order.push(late);
        }
    }
    order
}

/// Whether the first operand is a gathered vector itself.
fn is_vector(graph: &Graph, args: &[ValueId]) -> bool {
    let Some(&vector) = args.first() else { return false };
    let done = graph.producer(vector).0;
    let start = match (done.op(), done.args().first()) {
        (Op::CollectiveDone(CollectiveDone { .. }), Some(&started)) => graph.producer(started).0,
        _ => return false,
    };
    graph.gathers(&start).is_some()
}
