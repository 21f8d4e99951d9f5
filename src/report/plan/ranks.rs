//! What the ranks of a step send to each other, and how much of it has other work beside it.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;
use serde_json::{Value, json};

use crate::{
    ir::{Graph, Node, NodeId},
    ops::{CollectiveKind, CollectiveStart, Op},
    plan::{Kernel, Plan},
};

/// The collectives of a step, as each rank takes part in them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RanksReport {
    pub world: u32,
    /// All collectives.
    pub all: Sent,
    /// Those of each kind, as the language names it.
    pub by_kind: BTreeMap<&'static str, Sent>,
    /// Collectives between whose start and end something else runs.
    pub overlapped: Sent,
    /// What makes the parts of vectors equal: bytes of persistent tensors on one rank, on average.
    pub padding_bytes: u64,
}

/// What one rank sends in some collectives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sent {
    pub count: usize,
    /// At least, by the volume of each collective.
    pub bytes: u64,
}

impl Sent {
    fn add(&mut self, bytes: u64) {
        self.count += 1;
        self.bytes = self.bytes.saturating_add(bytes);
    }
}

impl RanksReport {
    pub(super) fn json(&self) -> Value {
        let kind = |(name, sent): (&&str, &Sent)| json!({ "collective": name, "count": sent.count, "bytes": sent.bytes });
        json!({
            "world": self.world,
            "collectives": self.all.count,
            "bytes": self.all.bytes,
            "by_collective": self.by_kind.iter().map(kind).collect::<Vec<_>>(),
            "overlapped": self.overlapped.count,
            "overlapped_bytes": self.overlapped.bytes,
            "padding_bytes": self.padding_bytes,
        })
    }
}

/// `None` where a step has no collectives.
pub fn ranks(plan: &Plan) -> Option<RanksReport> {
    let graph = &plan.graph;
    let world = graph.nodes().find_map(|node| match node.op() {
        Op::CollectiveStart(start) => Some(start.world),
        _ => None,
    })?;
    let mut report = RanksReport {
        world,
        all: Sent::default(),
        by_kind: BTreeMap::new(),
        overlapped: Sent::default(),
        padding_bytes: padding(graph),
    };
    // Of the collectives that are on their way, whether something ran beside them.
    let mut running: FxHashMap<NodeId, bool> = FxHashMap::default();
    for op in plan.executed() {
        let Some(id) = plan.op_nodes.get(op.0 as usize).copied() else { continue };
        let node = graph.node(id);
        match (plan.kernels.get(op.0 as usize), node.op()) {
            (Some(Kernel::Nothing) | None, _) => {}
            (_, Op::CollectiveStart(_)) => drop(running.insert(id, false)),
            (Some(Kernel::Wait { .. }), _) => {
                let start = node.args().first().map(|&started| graph.producer(started).0);
                let Some(start) = start else { continue };
                let Op::CollectiveStart(collective) = start.op() else { continue };
                let bytes = volume(&start, collective);
                report.all.add(bytes);
                report.by_kind.entry(collective.kind.name()).or_default().add(bytes);
                if running.remove(&start.id) == Some(true) {
                    report.overlapped.add(bytes);
                }
            }
            // What computes a number of the step, such as a learning rate, hides nothing.
            _ if is_work(&node) => running.values_mut().for_each(|beside| *beside = true),
            _ => {}
        }
    }
    Some(report)
}

fn is_work(node: &Node<'_>) -> bool {
    node.arg_types().any(|ty| ty.elements() > 1)
}

/// What one rank sends in a collective at least.
fn volume(node: &Node<'_>, start: &CollectiveStart) -> u64 {
    let bytes = |ty: Option<&crate::ir::Type>| ty.map_or(0, |ty| ty.bytes());
    let operand = bytes(node.arg_types().next());
    let world = u64::from(start.world.max(1));
    match start.kind {
        // Its part to each of the others.
        CollectiveKind::AllGather => operand.saturating_mul(world - 1),
        CollectiveKind::ReduceScatter => operand / world * (world - 1),
        CollectiveKind::AllReduce => operand / world * (world - 1) * 2,
        CollectiveKind::Broadcast | CollectiveKind::Reduce => operand,
    }
}

fn padding(graph: &Graph) -> u64 {
    let of = |(slot, shard): (&crate::ir::SlotId, &crate::ir::Shard)| {
        let ty = &graph.slots.get(slot.0 as usize)?.ty;
        let whole = ty.bytes().saturating_mul(u64::from(shard.world));
        let used = (shard.elements as u64).saturating_mul(ty.dtype().size() as u64);
        Some(whole.saturating_sub(used) / u64::from(shard.world.max(1)))
    };
    graph.shards.iter().filter_map(of).sum()
}
