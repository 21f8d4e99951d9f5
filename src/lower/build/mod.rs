//! Builds the schedule graph: one op per kernel, one buffer per tensor that is stored.

mod collect;
mod commit;
mod emit;
mod inserts;
mod viewed;

use rustc_hash::FxHashMap;

use inserts::Inserts;

use super::{fuse::GroupId, layout::Laid};
use crate::{
    ir::{Graph, NodeId, SlotId, ValueId},
    ops::OpError,
    plan::{Access, CommitCopy, Kernel, PlanBuffer, Target, ViewChoice},
    schedule::{Planned, ScheduleGraph},
};

/// The schedule graph, planned, with what its ops and buffers are.
pub(super) struct Built {
    pub planned: Planned,
    pub kernels: Vec<Kernel>,
    pub op_nodes: Vec<NodeId>,
    pub buffers: Vec<PlanBuffer>,
    pub outputs: Vec<Access>,
    pub persistent_bytes: u64,
    pub views: Vec<ViewChoice>,
    pub commits: Vec<CommitCopy>,
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

/// Units that the searches for a place of all commits may look at.
const WALK_STEPS: usize = 4_000_000;

/// Which commits are made in place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum InPlace {
    /// Those whose readers of the old value come first in the source order, and those that no reader
    /// waits for.
    BySource,
    /// Only the latter: what comes first in the source may wait in a roundabout way.
    ByWaiting,
    Never,
}

/// Builds the schedule graph of a step. `schedule` plans it and decides which views are copied.
pub(super) fn build(
    laid: &Laid,
    groups: &[Option<GroupId>],
    members: &[Vec<NodeId>],
    target: Target,
    schedule: &dyn Fn(&ScheduleGraph) -> Planned,
) -> Result<Built, OpError> {
    for inserts in [true, false] {
        for in_place in [InPlace::BySource, InPlace::ByWaiting, InPlace::Never] {
            let mut units = Units::new(laid, groups, members);
            if inserts {
                units.inserts = Inserts::find(laid, target);
            }
            units.collect();
            units.order_inserts();
            units.commit(in_place);
            if let Some(order) = units.order() {
                return units.emit(&order, target, schedule);
            }
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
    /// Units that wait for each view that may be copied, and do not read it.
    view_waits: Vec<Vec<UnitId>>,
    /// Commits that are copies.
    copied: Vec<Copied>,
    walk: Walk,
    inserts: Inserts,
}

/// A commit that is a copy, and why.
struct Copied {
    commit: UnitId,
    slot: SlotId,
    value: ValueId,
    reason: Refused,
}

/// [`CommitReason`] with units.
#[derive(Debug, Clone, Copy)]
enum Refused {
    ReadLater(UnitId),
    OutOfStep(UnitId),
    Returned,
    Elsewhere(SlotId),
    Order,
}

/// The state of searches through what units wait for.
struct Walk {
    /// By unit, the search that met it last.
    seen: Vec<u32>,
    clock: u32,
    /// How many more units all searches together may look at.
    steps: usize,
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
            view_waits: vec![Vec::new(); laid.views.len()],
            copied: Vec::new(),
            walk: Walk { seen: Vec::new(), clock: 0, steps: WALK_STEPS },
            inserts: Inserts::default(),
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
