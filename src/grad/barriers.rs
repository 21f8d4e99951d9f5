//! The barriers that a backward pass leaves at `checkpoint` regions.
//!
//! Entering a region from behind, the cotangents of its values pass through a [`BarrierKind::Region`]
//! barrier; lowering adds the saved inputs. With `bind: all` that barrier also waits for every
//! parameter-gradient contribution made so far that no barrier holds yet, for the cotangents that
//! the region before it hands on, and for what the forward pass makes of the region's values on the
//! way to the loss (else they stay alive for that while the region is recomputed, and where the
//! cotangents are constants, the whole region could be recomputed before the loss is known). Inside
//! such a region, a layer's contributions come before the step back to the layer before it
//! ([`BarrierKind::StepBack`]). Then no legal order can put parameter gradients off until many of
//! them wait, or work on two regions at a time.
//!
//! A barrier waits for nodes that are there before it is made, so it never closes a cycle.

use std::collections::BTreeSet;

use super::{Backward, get, set};
use crate::{
    ir::{Bind, Graph, NodeId, Policy, RegionId, Role, ValueId},
    ops::{Barrier, BarrierKind, Op, OpError},
};

pub(super) struct Barriers {
    /// The regions around the last node that was differentiated, outermost first.
    inside: Vec<RegionId>,
    /// Parameters, and values made of parameters alone, that got a contribution which no barrier
    /// holds yet.
    unbound: Vec<ValueId>,
    /// Operands of the last layer of a region: their cotangents wait for `unbound`.
    step_back: Vec<ValueId>,
    /// Values from outside of the regions that were left, which they gave cotangents to.
    handed_on: Vec<ValueId>,
    /// The results that the backward pass starts from.
    outputs: Vec<ValueId>,
    forward: Forward,
}

impl Barriers {
    pub fn new(graph: &Graph, start: u32, end: u32, outputs: &[(ValueId, ValueId)]) -> Self {
        Barriers {
            inside: Vec::new(),
            unbound: Vec::new(),
            step_back: Vec::new(),
            handed_on: Vec::new(),
            outputs: outputs.iter().map(|&(output, _)| output).collect(),
            forward: Forward::new(graph, start, end),
        }
    }

    /// Called before `node` is differentiated.
    pub fn before(
        &mut self,
        graph: &mut Graph,
        pass: &mut Backward,
        node: NodeId,
        region: Option<RegionId>,
        is_data: bool,
    ) -> Result<(), OpError> {
        let moves = self.inside.last().copied() != region;
        // Nodes that only transform parameters come between a layer and its step back.
        if moves || is_data {
            self.step_back(graph, pass)?;
        }
        if moves {
            let chain = graph.region_chain(region);
            let common = chain.iter().zip(&self.inside).take_while(|(a, b)| a == b).count();
            for &entered in chain.iter().skip(common) {
                self.enter(graph, pass, node, entered)?;
            }
            self.inside = chain;
        }
        Ok(())
    }

    /// Called after [`Barriers::before`]: lets the cotangents of a product with a parameter wait for
    /// its other operand, where that is recomputed. The parameter's gradient needs both, so the step
    /// back gains nothing by being done while only one is there, and the one would wait beside it.
    pub fn hold(
        &mut self,
        graph: &mut Graph,
        pass: &mut Backward,
        node: NodeId,
        wanted: &[bool],
    ) -> Result<(), OpError> {
        let node = graph.node(node);
        let Some(region) = node.region() else { return Ok(()) };
        let is_bound = graph
            .regions
            .get(region.0 as usize)
            .is_some_and(|r| r.bind == Bind::All && r.policy != Policy::Gathers);
        if !is_bound || !matches!(node.op(), Op::MatMul(_) | Op::Conv2d(_)) {
            return Ok(());
        }
        // The gradient of a bias, the third operand, needs neither of the others.
        let wanted_args = node.args().iter().zip(wanted).take(2).filter(|&(_, &w)| w);
        let (parameters, data): (Vec<ValueId>, Vec<ValueId>) =
            wanted_args.map(|(&arg, _)| arg).partition(|&arg| pass.is_parameter_like(arg));
        let producers = data.iter().map(|&arg| graph.producer(arg).0);
        let inside = producers.filter(|p| graph.region_chain(p.region()).contains(&region));
        let after: Vec<NodeId> = inside.map(|p| p.id).collect();
        if parameters.is_empty() || after.is_empty() {
            return Ok(());
        }
        let results: Vec<ValueId> = node.results().collect();
        Self::pass_through(graph, pass, BarrierKind::StepBack, &results, &after)
    }

    /// Called after a node with these operands was differentiated.
    pub fn after(
        &mut self,
        graph: &Graph,
        pass: &Backward,
        region: Option<RegionId>,
        args: &[ValueId],
        wanted: &[bool],
    ) {
        let data_of = region.and_then(|r| graph.regions.get(r.0 as usize));
        let bind = data_of.map(|r| r.bind);
        // In a unit that gathers again the gradients of parameters come last.
        let is_unit = data_of.is_some_and(|r| r.policy == Policy::Gathers);
        let mut data = Vec::new();
        let mut contributes = false;
        for (&arg, _) in args.iter().zip(wanted).filter(|&(_, &w)| w) {
            if pass.is_parameter_like(arg) {
                contributes = true;
                self.unbound.push(arg);
            } else if !data.contains(&arg) {
                data.push(arg);
            }
        }
        if bind == Some(Bind::All) {
            let is_outside = |value: &ValueId| {
                let chain = graph.region_chain(graph.producer(*value).0.region());
                !region.is_some_and(|region| chain.contains(&region))
            };
            self.handed_on.extend(data.iter().copied().filter(is_outside));
            if contributes && !is_unit {
                self.step_back.extend(data);
            }
        }
    }

    /// Holds the cotangents of the last layer's operands until its contributions are made.
    fn step_back(&mut self, graph: &mut Graph, pass: &mut Backward) -> Result<(), OpError> {
        let held = std::mem::take(&mut self.step_back);
        if held.is_empty() {
            return Ok(());
        }
        let after = self.take_unbound(graph, pass);
        if after.is_empty() {
            return Ok(());
        }
        Self::pass_through(graph, pass, BarrierKind::StepBack, &held, &after)
    }

    fn enter(
        &mut self,
        graph: &mut Graph,
        pass: &mut Backward,
        node: NodeId,
        region: RegionId,
    ) -> Result<(), OpError> {
        let Some(data) = graph.regions.get(region.0 as usize) else { return Ok(()) };
        let (bind, first) = (data.bind, data.nodes.start);
        let end = data.nodes.end;
        let mut held = Vec::new();
        if matches!(bind, Bind::All | Bind::Grad) {
            for inner in graph.nodes_from(NodeId(first)).take_while(|n| n.id <= node) {
                // Parameters that are read for the first time in a region do not belong to it.
                if graph.region_chain(inner.region()).contains(&region) {
                    held.extend(inner.results().filter(|&v| get(&pass.cotangents, v).is_some()));
                }
            }
        }
        let mut after = Vec::new();
        if bind == Bind::All {
            self.unbound.append(&mut self.handed_on);
            after = self.take_unbound(graph, pass);
            let tie = self.forward.tie(graph, pass, &held, end);
            let depends_on_forward =
                held.iter().filter_map(|&v| get(&pass.cotangents, v)).any(|c| get(&pass.data, c));
            if tie.is_empty() && !depends_on_forward {
                after.extend(self.outputs.iter().map(|&o| graph.producer(o).0.id));
            }
            after.extend(tie);
        }
        // With `bind: none` nothing is held, and lowering lets the recompute merge away; the
        // barrier still marks where the recompute belongs.
        Self::pass_through(graph, pass, BarrierKind::Region(region), &held, &after)
    }

    /// The nodes that made the unbound contributions.
    fn take_unbound(&mut self, graph: &Graph, pass: &Backward) -> Vec<NodeId> {
        let mut nodes: Vec<NodeId> = std::mem::take(&mut self.unbound)
            .into_iter()
            .filter_map(|value| get(&pass.cotangents, value))
            .map(|cotangent| graph.producer(cotangent).0.id)
            .collect();
        nodes.sort_unstable();
        nodes.dedup();
        nodes
    }

    /// Sends the cotangents of `values` through a new barrier.
    fn pass_through(
        graph: &mut Graph,
        pass: &mut Backward,
        kind: BarrierKind,
        values: &[ValueId],
        after: &[NodeId],
    ) -> Result<(), OpError> {
        let (values, cotangents): (Vec<ValueId>, Vec<ValueId>) =
            values.iter().filter_map(|&v| Some((v, get(&pass.cotangents, v)?))).unzip();
        let barrier = graph.push_after(Barrier { kind }, &cotangents, after)?;
        let results: Vec<ValueId> = graph.node(barrier).results().collect();
        for (value, result) in values.into_iter().zip(results) {
            set(&mut pass.cotangents, value, Some(result));
        }
        pass.extend_data(graph);
        Ok(())
    }
}

/// The forward pass that is differentiated, and which of its nodes a barrier waits for.
struct Forward {
    start: u32,
    /// Users of the results of each node, in CSR form. Empty where there is no region.
    starts: Vec<u32>,
    users: Vec<u32>,
    is_tied: Vec<bool>,
}

impl Forward {
    fn new(graph: &Graph, start: u32, end: u32) -> Self {
        let mut forward = Forward { start, starts: Vec::new(), users: Vec::new(), is_tied: Vec::new() };
        if graph.regions.is_empty() {
            return forward;
        }
        let mut edges: Vec<(u32, u32)> = Vec::new();
        for node in graph.nodes_from(NodeId(start)).take_while(|n| n.id.0 < end) {
            if node.role() == Role::Forward {
                let producers = node.args().iter().map(|&arg| graph.producer(arg).0.id.0);
                edges.extend(producers.filter(|&p| p >= start).map(|p| (p - start, node.id.0)));
            }
        }
        edges.sort_unstable();
        edges.dedup();
        let count = end.saturating_sub(start) as usize;
        let ends = (0..=count).map(|row| edges.partition_point(|&(p, _)| (p as usize) < row) as u32);
        forward.starts = ends.collect();
        forward.users = edges.into_iter().map(|(_, user)| user).collect();
        forward.is_tied = vec![false; count];
        forward
    }

    fn users(&self, node: u32) -> &[u32] {
        let row = node.saturating_sub(self.start) as usize;
        match (self.starts.get(row), self.starts.get(row + 1)) {
            (Some(&a), Some(&b)) => self.users.get(a as usize..b as usize).unwrap_or_default(),
            _ => &[],
        }
    }

    /// The last nodes of what the forward pass makes of the values `held` of a region and of what was
    /// there when the region ended, up to nodes that an earlier barrier waits for.
    fn tie(&mut self, graph: &Graph, pass: &Backward, held: &[ValueId], end: u32) -> Vec<NodeId> {
        let mut next: BTreeSet<u32> = BTreeSet::new();
        let mut tied: BTreeSet<u32> = BTreeSet::new();
        for &value in held {
            next.extend(self.users(graph.producer(value).0.id.0).iter().filter(|&&u| u >= end));
        }
        while let Some(user) = next.pop_first() {
            let node = graph.node(NodeId(user));
            let is_there = |arg: ValueId| {
                let producer = graph.producer(arg).0.id.0;
                producer < end || tied.contains(&producer) || !get(&pass.data, arg)
            };
            let row = user.saturating_sub(self.start) as usize;
            if self.is_tied.get(row).copied().unwrap_or(true) || !node.args().iter().all(|&arg| is_there(arg))
            {
                continue;
            }
            if let Some(flag) = self.is_tied.get_mut(row) {
                *flag = true;
            }
            tied.insert(user);
            next.extend(self.users(user));
        }
        // Waiting for a node puts its result into memory: not for the middle of an element-wise chain.
        let is_last = |&&node: &&u32| {
            let users = self.users(node);
            let is_elementwise = matches!(
                graph.node(NodeId(node)).op(),
                Op::Unary(_) | Op::Binary(_) | Op::Select(_) | Op::Cast(_)
            );
            users.is_empty() || !is_elementwise && users.iter().all(|user| !tied.contains(user))
        };
        tied.iter().filter(is_last).map(|&node| NodeId(node)).collect()
    }
}
