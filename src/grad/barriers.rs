//! The barriers that a backward pass leaves at `checkpoint` regions.
//!
//! Entering a region from behind, the cotangents of its values pass through a [`BarrierKind::Region`]
//! barrier; lowering adds the saved inputs. With `bind: all` that barrier also waits for every
//! parameter-gradient contribution made so far that no barrier holds yet, and, where the incoming
//! cotangents do not depend on the forward pass, for the forward result they start from (else the
//! whole region could be recomputed before the loss is known). Inside such a region, a layer's
//! contributions come before the step back to the layer before it ([`BarrierKind::StepBack`]).
//! Then no legal order can put parameter gradients off until many of them wait.

use super::{Backward, get, set};
use crate::{
    ir::{Bind, Graph, NodeId, RegionId, ValueId},
    ops::{Barrier, BarrierKind, OpError},
};

pub(super) struct Barriers {
    /// The regions around the last node that was differentiated, outermost first.
    inside: Vec<RegionId>,
    /// Parameters, and values made of parameters alone, that got a contribution which no barrier
    /// holds yet.
    unbound: Vec<ValueId>,
    /// Operands of the last layer of a region: their cotangents wait for `unbound`.
    step_back: Vec<ValueId>,
    /// The results that the backward pass starts from.
    outputs: Vec<ValueId>,
}

impl Barriers {
    pub fn new(outputs: &[(ValueId, ValueId)]) -> Self {
        Barriers {
            inside: Vec::new(),
            unbound: Vec::new(),
            step_back: Vec::new(),
            outputs: outputs.iter().map(|&(output, _)| output).collect(),
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

    /// Called after a node with these operands was differentiated.
    pub fn after(
        &mut self,
        graph: &Graph,
        pass: &Backward,
        region: Option<RegionId>,
        args: &[ValueId],
        wanted: &[bool],
    ) {
        let bind = region.and_then(|r| graph.regions.get(r.0 as usize)).map(|r| r.bind);
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
        if contributes && bind == Some(Bind::All) {
            self.step_back.extend(data);
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
            after = self.take_unbound(graph, pass);
            let depends_on_forward =
                held.iter().filter_map(|&v| get(&pass.cotangents, v)).any(|c| get(&pass.data, c));
            if !depends_on_forward {
                after.extend(self.outputs.iter().map(|&o| graph.producer(o).0.id));
            }
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
