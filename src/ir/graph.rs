//! The graph: nodes in SSA form, in an order in which every operand precedes its users.

use std::{fmt, sync::Arc};

use rustc_hash::FxHashMap;

use super::{OriginId, Origins, Shard, Type};
use crate::ops::{Alias, Op, OpError};

/// A node: one op applied to values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub u32);

/// One result of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ValueId(pub u32);

/// A persistent tensor: parameter, state, optimizer state. An index into [`Graph::slots`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SlotId(pub u32);

/// A `checkpoint < … >` region. An index into [`Graph::regions`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RegionId(pub u32);

/// One call of `grad` (or of `minimize`, `pullback`): 0 is the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GradCallId(pub u32);

/// What a node is there for. Reports and fusion ask; results do not depend on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    Forward,
    /// Made by a gradient call, for the forward node `of`.
    Backward {
        of: NodeId,
        call: GradCallId,
    },
    /// Part of a parameter's update.
    Update {
        slot: SlotId,
    },
}

/// A role without whom it serves. Nodes of different phases are neither merged nor fused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Phase {
    Forward,
    Backward,
    Update,
}

impl Role {
    pub fn phase(self) -> Phase {
        match self {
            Role::Forward => Phase::Forward,
            Role::Backward { .. } => Phase::Backward,
            Role::Update { .. } => Phase::Update,
        }
    }
}

/// Which edges the barrier of a region holds. See the language reference, "checkpoint".
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Bind {
    /// Saved inputs, incoming gradients, later parameter gradients or updates, the loss tie, and
    /// the order of layers inside the region: every legal order is then as good as the best.
    #[default]
    All,
    /// Saved inputs and incoming gradients.
    Grad,
    /// The region's forward inputs and outputs (a flawed form that others use).
    Output,
    /// No barrier: common-subexpression elimination merges the recompute away.
    None,
}

/// Which values of a region are kept in spite of it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub enum Policy {
    #[default]
    Nothing,
    /// Results of matrix products and convolutions.
    Dots,
    /// Values marked `name(x, "…")` with one of these names.
    Names(Vec<Arc<str>>),
    /// All but gathered vectors, and what is made of them alone: the call of a unit of a sharded model.
    /// It gathers again for its backward pass.
    Gathers,
    /// All: the region orders its backward pass, and recomputes nothing.
    Everything,
}

/// A `checkpoint < … >`. Its nodes are contiguous: a region is a statement of the source.
#[derive(Debug, Clone, PartialEq)]
pub struct Region {
    pub parent: Option<RegionId>,
    pub bind: Bind,
    pub policy: Policy,
    /// Values kept by `keep: [h]`.
    pub keep: Vec<ValueId>,
    /// The values that leave the region.
    pub outputs: Vec<ValueId>,
    pub origin: OriginId,
    /// First node, and one past the last.
    pub nodes: std::ops::Range<u32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SlotKind {
    Param { trainable: bool },
    State,
    OptimizerState,
}

/// A tensor that outlives the step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slot {
    /// Dotted name: `net.blocks.3.conv1.w`, `opt.m.net.w`.
    pub name: Arc<str>,
    pub ty: Type,
    pub kind: SlotKind,
}

/// An argument of the step that is a tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Input {
    pub name: Arc<str>,
    pub ty: Type,
}

/// An entry of the scalar page: one `f64` that may change at every call without a new plan.
#[derive(Debug, Clone, PartialEq)]
pub enum ScalarSource {
    /// How often this step has run before (from 0).
    Step,
    /// This rank's number.
    Rank,
    /// The number of the optimizer's update, from 1. `optimizer` names it in saved files.
    UpdateCount { optimizer: Arc<str> },
    /// A hyper-parameter, by name, with the value it had when the step was compiled.
    Hyper { name: Arc<str>, value: f64 },
    /// The step's argument with this position.
    Argument(u32),
}

/// A named result of the step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Output {
    pub name: Arc<str>,
    pub value: ValueId,
    /// Of the `return` that names it.
    pub origin: OriginId,
}

/// A call of `grad::gradients`, so that it can be made again on another form of the graph. Only its
/// results are used by nodes outside of `nodes`.
#[derive(Debug, Clone, PartialEq)]
pub struct GradientCall {
    /// The nodes it appended.
    pub nodes: std::ops::Range<u32>,
    /// Pairs (output, cotangent).
    pub outputs: Vec<(ValueId, ValueId)>,
    pub wrt: Vec<ValueId>,
    /// One per value of `wrt`.
    pub results: Vec<Option<ValueId>>,
    /// Of the caller.
    pub cursor: Cursor,
}

/// A `release` statement: the nodes from `nodes.start` to `nodes.end` wait for the users of `value`
/// that come before them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Release {
    pub value: ValueId,
    pub nodes: std::ops::Range<u32>,
}

/// What [`Graph::push`] stamps on the nodes it makes. Set by elaboration and by passes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cursor {
    pub origin: OriginId,
    pub region: Option<RegionId>,
    pub role: Role,
    /// Which recompute the node belongs to; 0 for originals. Nodes of different instances are
    /// never merged.
    pub instance: u32,
}

#[derive(Debug, Clone, PartialEq)]
struct NodeData {
    op: Op,
    args: std::ops::Range<u32>,
    after: std::ops::Range<u32>,
    first_result: u32,
    results: u32,
    at: Cursor,
}

/// A training step, or any other piece of tensor code.
///
/// Invariants, held by [`super::verify`]: every operand and every `after` node precedes its user;
/// result types are what the op infers from its operands; regions nest and are contiguous in
/// graphs that have not been lowered; a slot is written at most once per version, in order.
///
/// Equal graphs have the same plan: nodes, names and origins are all compared.
#[derive(Debug, Clone, PartialEq)]
pub struct Graph {
    nodes: Vec<NodeData>,
    args: Vec<ValueId>,
    after: Vec<NodeId>,
    value_types: Vec<u32>,
    value_nodes: Vec<NodeId>,
    types: Vec<Type>,
    type_ids: FxHashMap<Type, u32>,
    pub slots: Vec<Slot>,
    /// The slots that hold a rank's part of a vector.
    pub shards: FxHashMap<SlotId, Shard>,
    pub inputs: Vec<Input>,
    pub scalars: Vec<ScalarSource>,
    pub outputs: Vec<Output>,
    pub regions: Vec<Region>,
    pub origins: Origins,
    /// Names of values for reports: the `let` they are bound by, or `name(x, "…")`.
    pub names: FxHashMap<ValueId, Arc<str>>,
    /// Values marked by `name(x, "…")`, for `policy: names(…)`.
    pub marks: FxHashMap<ValueId, Arc<str>>,
    pub grad_calls: u32,
    /// The gradient calls and releases of an elaborated graph, in their order. Passes that rebuild
    /// a graph drop them: nodes of the backward pass are then nodes like others.
    pub gradients: Vec<GradientCall>,
    pub releases: Vec<Release>,
    pub cursor: Cursor,
}

impl Default for Graph {
    fn default() -> Self {
        Graph {
            nodes: Vec::new(),
            args: Vec::new(),
            after: Vec::new(),
            value_types: Vec::new(),
            value_nodes: Vec::new(),
            types: Vec::new(),
            type_ids: FxHashMap::default(),
            slots: Vec::new(),
            shards: FxHashMap::default(),
            inputs: Vec::new(),
            scalars: Vec::new(),
            outputs: Vec::new(),
            regions: Vec::new(),
            origins: Origins::default(),
            names: FxHashMap::default(),
            marks: FxHashMap::default(),
            grad_calls: 0,
            gradients: Vec::new(),
            releases: Vec::new(),
            cursor: Cursor { origin: Origins::NOWHERE, region: None, role: Role::Forward, instance: 0 },
        }
    }
}

/// Read access to one node.
#[derive(Clone, Copy)]
pub struct Node<'g> {
    pub id: NodeId,
    graph: &'g Graph,
    data: &'g NodeData,
}

impl<'g> Node<'g> {
    pub fn op(&self) -> &'g Op {
        &self.data.op
    }

    /// Data operands.
    pub fn args(&self) -> &'g [ValueId] {
        self.graph.args.get(self.data.args.start as usize..self.data.args.end as usize).unwrap_or_default()
    }

    /// Nodes that must be complete before this one, for reasons other than data.
    pub fn after(&self) -> &'g [NodeId] {
        self.graph.after.get(self.data.after.start as usize..self.data.after.end as usize).unwrap_or_default()
    }

    pub fn results(&self) -> impl ExactSizeIterator<Item = ValueId> + use<> {
        let first = self.data.first_result;
        // A range of u32 is not `ExactSizeIterator` on every target, a mapped usize range is.
        (0..self.data.results as usize).map(move |i| ValueId(first + i as u32))
    }

    pub fn result_count(&self) -> usize {
        self.data.results as usize
    }

    /// The `k`-th result. A wrong `k` gives a value that no node has, which the verifier reports.
    pub fn result(&self, k: usize) -> ValueId {
        ValueId(self.data.first_result + k as u32)
    }

    /// The operand in whose memory result `k` lies, if it is a view or passes through a barrier.
    pub fn shared_operand(&self, k: usize) -> Option<ValueId> {
        match self.op().memory().alias {
            Alias::Fresh => None,
            Alias::View => self.args().first().copied(),
            Alias::Each => self.args().get(k).copied(),
        }
    }

    pub fn arg_types(&self) -> impl ExactSizeIterator<Item = &'g Type> + use<'g> {
        let graph = self.graph;
        self.args().iter().map(move |&a| graph.ty(a))
    }

    /// The type of a value of the same graph.
    pub fn graph_type(&self, value: ValueId) -> &'g Type {
        self.graph.ty(value)
    }

    pub fn origin(&self) -> OriginId {
        self.data.at.origin
    }

    pub fn region(&self) -> Option<RegionId> {
        self.data.at.region
    }

    pub fn role(&self) -> Role {
        self.data.at.role
    }

    pub fn instance(&self) -> u32 {
        self.data.at.instance
    }

    /// All that [`Graph::cursor`] stamped on it.
    pub fn stamp(&self) -> Cursor {
        self.data.at
    }
}

impl Graph {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    pub fn value_count(&self) -> usize {
        self.value_nodes.len()
    }

    /// Appends a node; its type is inferred.
    pub fn push(&mut self, op: impl Into<Op>, args: &[ValueId]) -> Result<NodeId, OpError> {
        self.push_after(op, args, &[])
    }

    /// Appends a node that must also wait for the nodes in `after`.
    pub fn push_after(
        &mut self,
        op: impl Into<Op>,
        args: &[ValueId],
        after: &[NodeId],
    ) -> Result<NodeId, OpError> {
        let op = op.into();
        let types = {
            let arg_types: Vec<&Type> = args.iter().map(|&a| self.ty(a)).collect();
            op.infer(self, &arg_types)?
        };
        for ty in &types {
            let ty = self.intern_type(ty);
            self.value_types.push(ty);
        }
        self.append(op, args, after)
    }

    /// Appends a copy of a node of the graph that this one is the [`Graph::skeleton`] of, with
    /// operands of the same types. The types of its results are taken over, not inferred again.
    /// `op` is that of the node, or one that makes the same of such operands.
    pub fn push_copy(
        &mut self,
        node: &Node<'_>,
        op: Op,
        args: &[ValueId],
        after: &[NodeId],
    ) -> Result<NodeId, OpError> {
        debug_assert!(args.iter().map(|&a| self.ty(a)).eq(node.arg_types()), "operands of other types");
        let first = node.data.first_result as usize;
        let types = node.graph.value_types.get(first..first + node.result_count()).unwrap_or_default();
        self.value_types.extend_from_slice(types);
        self.append(op, args, after)
    }

    /// Appends a node whose results are those values that have a type and no node.
    fn append(&mut self, op: Op, args: &[ValueId], after: &[NodeId]) -> Result<NodeId, OpError> {
        if self.nodes.len() >= u32::MAX as usize - 1 {
            return Err(OpError::new("the graph has more than 2^32 nodes"));
        }
        let id = NodeId(self.nodes.len() as u32);
        let first_result = self.value_nodes.len() as u32;
        self.value_nodes.resize(self.value_types.len(), id);
        let args_start = self.args.len() as u32;
        self.args.extend_from_slice(args);
        let after_start = self.after.len() as u32;
        self.after.extend_from_slice(after);
        self.nodes.push(NodeData {
            op,
            args: args_start..self.args.len() as u32,
            after: after_start..self.after.len() as u32,
            first_result,
            results: self.value_nodes.len() as u32 - first_result,
            at: self.cursor,
        });
        Ok(id)
    }

    /// Appends a node and returns its first result.
    pub fn value(&mut self, op: impl Into<Op>, args: &[ValueId]) -> Result<ValueId, OpError> {
        let node = self.push(op, args)?;
        Ok(self.node(node).result(0))
    }

    /// The node of an id that this graph gave out.
    ///
    /// Panics on an id of another graph: ids are only made by [`Graph::push`], so that is a fault
    /// of a pass and no input reaches it.
    #[allow(clippy::indexing_slicing)]
    pub fn node(&self, id: NodeId) -> Node<'_> {
        Node { id, graph: self, data: &self.nodes[id.0 as usize] }
    }

    pub fn nodes(&self) -> impl DoubleEndedIterator<Item = Node<'_>> + ExactSizeIterator {
        self.nodes.iter().enumerate().map(|(i, data)| Node { id: NodeId(i as u32), graph: self, data })
    }

    /// The nodes from one on.
    pub fn nodes_from(&self, first: NodeId) -> impl Iterator<Item = Node<'_>> {
        let rest = self.nodes.get(first.0 as usize..).unwrap_or_default();
        rest.iter().enumerate().map(move |(i, data)| Node {
            id: NodeId(first.0 + i as u32),
            graph: self,
            data,
        })
    }

    /// The node that makes a value, and which of its results the value is.
    #[allow(clippy::indexing_slicing)]
    pub fn producer(&self, value: ValueId) -> (Node<'_>, usize) {
        let node = self.node(self.value_nodes[value.0 as usize]);
        (node, (value.0 - node.data.first_result) as usize)
    }

    #[allow(clippy::indexing_slicing)]
    pub fn ty(&self, value: ValueId) -> &Type {
        &self.types[self.value_types[value.0 as usize] as usize]
    }

    fn intern_type(&mut self, ty: &Type) -> u32 {
        if let Some(&id) = self.type_ids.get(ty) {
            return id;
        }
        let id = self.types.len() as u32;
        self.types.push(ty.clone());
        self.type_ids.insert(ty.clone(), id);
        id
    }

    /// Replaces the `after` list of a node. For lowering: the verifier checks the order later.
    #[allow(clippy::indexing_slicing)]
    pub fn set_after(&mut self, node: NodeId, after: &[NodeId]) {
        let start = self.after.len() as u32;
        self.after.extend_from_slice(after);
        self.nodes[node.0 as usize].after = start..self.after.len() as u32;
    }

    /// A graph with the same slots, inputs, scalars, types, regions and origins, and no nodes: what a
    /// pass that rebuilds starts from. Values in regions, names, marks and outputs are left out.
    pub fn skeleton(&self) -> Graph {
        Graph {
            nodes: Vec::with_capacity(self.nodes.len()),
            args: Vec::with_capacity(self.args.len()),
            value_types: Vec::with_capacity(self.value_types.len()),
            value_nodes: Vec::with_capacity(self.value_nodes.len()),
            types: self.types.clone(),
            type_ids: self.type_ids.clone(),
            slots: self.slots.clone(),
            shards: self.shards.clone(),
            inputs: self.inputs.clone(),
            scalars: self.scalars.clone(),
            regions: self
                .regions
                .iter()
                .map(|r| Region { keep: Vec::new(), outputs: Vec::new(), ..r.clone() })
                .collect(),
            origins: self.origins.clone(),
            grad_calls: self.grad_calls,
            ..Graph::default()
        }
    }

    /// Counts a node that was just appended to the regions it is in.
    pub fn extend_regions(&mut self, node: NodeId) {
        for region in self.region_chain(self.node(node).region()) {
            if let Some(region) = self.regions.get_mut(region.0 as usize) {
                if region.nodes.is_empty() {
                    region.nodes = node.0..node.0;
                }
                region.nodes.end = node.0 + 1;
            }
        }
    }

    /// The regions around a region, itself last.
    pub fn region_chain(&self, region: Option<RegionId>) -> Vec<RegionId> {
        let mut chain: Vec<RegionId> =
            std::iter::successors(region, |r| self.regions.get(r.0 as usize).and_then(|r| r.parent))
                .collect();
        chain.reverse();
        chain
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "n{}", self.0)
    }
}

impl fmt::Display for ValueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "%{}", self.0)
    }
}
