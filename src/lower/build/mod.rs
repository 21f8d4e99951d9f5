//! Builds the schedule graph: one op per kernel, one buffer per tensor that is stored.

mod collect;
mod commit;
mod emit;

use rustc_hash::FxHashMap;

use super::{fuse::GroupId, layout::Laid};
use crate::{
    ir::{Graph, NodeId, SlotId, ValueId},
    ops::OpError,
    plan::{Access, Kernel, PlanBuffer},
    schedule::ScheduleGraph,
};

/// The schedule graph with what its ops and buffers are.
pub(super) struct Built {
    pub schedule_graph: ScheduleGraph,
    pub kernels: Vec<Kernel>,
    pub op_nodes: Vec<NodeId>,
    pub buffers: Vec<PlanBuffer>,
    pub outputs: Vec<Access>,
    pub persistent_bytes: u64,
}

/// What becomes one op.
#[derive(Debug, Clone)]
enum Unit {
    Group(GroupId),
    Node(NodeId),
    /// Stores a constant or scalar that some kernel wants in memory.
    Store(ValueId),
    Barrier,
    /// The end of a collective.
    Wait(NodeId),
    /// A commit that could not be made by the op whose value it commits.
    Commit(NodeId),
}

type UnitId = u32;

pub(super) fn build(
    laid: &Laid,
    groups: &[Option<GroupId>],
    members: &[Vec<NodeId>],
) -> Result<Built, OpError> {
    // Commits in place put an op after every reader of the old value. That is decided by positions
    // in the source order, which suffices except where a later node waits for such a reader in a
    // roundabout way; then commits are copies.
    for in_place in [true, false] {
        let mut units = Units::new(laid, groups, members);
        units.collect();
        units.commit(in_place);
        if let Some(order) = units.order() {
            return units.emit(&order);
        }
    }
    Err(OpError::new("internal: the barriers of the step form a cycle"))
}

struct Units<'a> {
    laid: &'a Laid,
    graph: &'a Graph,
    groups: &'a [Option<GroupId>],
    members: &'a [Vec<NodeId>],
    units: Vec<Unit>,
    /// The last node of each unit: its place in the source order.
    rank: Vec<NodeId>,
    of_group: Vec<Option<UnitId>>,
    of_node: Vec<Option<UnitId>>,
    stores: FxHashMap<ValueId, UnitId>,
    /// Units that read each value's memory (by base).
    readers: Vec<Vec<UnitId>>,
    /// What a unit waits for: data, barriers, commits.
    before: Vec<Vec<UnitId>>,
    /// Values that lie in a persistent tensor because their maker commits them.
    in_slot: FxHashMap<ValueId, SlotId>,
    /// Commits that are made by another unit.
    folded: Vec<Option<UnitId>>,
    /// Of each value: it is the base of an output of the step.
    is_output: Vec<bool>,
}

impl<'a> Units<'a> {
    fn new(laid: &'a Laid, groups: &'a [Option<GroupId>], members: &'a [Vec<NodeId>]) -> Self {
        let graph = &laid.graph;
        let mut is_output = vec![false; graph.value_count()];
        for output in &graph.outputs {
            is_output[laid.places[output.value.0 as usize].base.0 as usize] = true;
        }
        Units {
            laid,
            graph,
            groups,
            members,
            units: Vec::new(),
            rank: Vec::new(),
            of_group: vec![None; members.len()],
            of_node: vec![None; graph.len()],
            stores: FxHashMap::default(),
            readers: vec![Vec::new(); graph.value_count()],
            before: Vec::new(),
            in_slot: FxHashMap::default(),
            folded: Vec::new(),
            is_output,
        }
    }

    fn add(&mut self, unit: Unit, rank: NodeId) -> UnitId {
        self.units.push(unit);
        self.rank.push(rank);
        self.before.push(Vec::new());
        self.folded.push(None);
        self.units.len() as UnitId - 1
    }

    /// A topological order that follows the source order; `None` if there is a cycle.
    fn order(&mut self) -> Option<Vec<UnitId>> {
        use std::{cmp::Reverse, collections::BinaryHeap};
        for before in &mut self.before {
            for target in before {
                *target = self.folded[*target as usize].unwrap_or(*target);
            }
        }
        for (unit, before) in self.before.iter_mut().enumerate() {
            before.sort_unstable();
            before.dedup();
            before.retain(|&b| b as usize != unit);
        }
        let mut followers: Vec<Vec<UnitId>> = vec![Vec::new(); self.units.len()];
        let mut waiting: Vec<usize> = self.before.iter().map(Vec::len).collect();
        for (unit, before) in self.before.iter().enumerate() {
            for &b in before {
                followers[b as usize].push(unit as UnitId);
            }
        }
        let rank = |u: UnitId| Reverse((self.rank[u as usize], u));
        let mut ready: BinaryHeap<_> = (0..self.units.len())
            .filter(|&u| self.folded[u].is_none() && waiting[u] == 0)
            .map(|u| rank(u as UnitId))
            .collect();
        let mut order = Vec::with_capacity(self.units.len());
        while let Some(Reverse((_, unit))) = ready.pop() {
            order.push(unit);
            for &follower in &followers[unit as usize] {
                waiting[follower as usize] -= 1;
                if waiting[follower as usize] == 0 {
                    ready.push(rank(follower));
                }
            }
        }
        let real = self.folded.iter().filter(|f| f.is_none()).count();
        (order.len() == real).then_some(order)
    }
}
