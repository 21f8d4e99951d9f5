//! What the ranks of a step send to each other, and how much of it has other work beside it.

use rustc_hash::FxHashMap;

use crate::{
    ir::{Graph, Node, NodeId},
    ops::{CollectiveKind, Op},
    plan::{Kernel, Plan},
};

/// The collectives of a step, as each rank takes part in them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RanksReport {
    pub world: u32,
    pub collectives: usize,
    /// What one rank sends at least, by the volume of each collective.
    pub bytes: u64,
    /// Collectives between whose start and end something else runs, and what is sent in them.
    pub overlapped: usize,
    pub overlapped_bytes: u64,
    /// What makes the parts of vectors equal: bytes of persistent tensors on one rank, on average.
    pub padding_bytes: u64,
}

/// `None` where a step has no collectives and no parts.
pub fn ranks(plan: &Plan) -> Option<RanksReport> {
    let graph = &plan.graph;
    let world = graph.nodes().find_map(|node| match node.op() {
        Op::CollectiveStart(start) => Some(start.world),
        _ => None,
    })?;
    let mut report = RanksReport {
        world,
        collectives: 0,
        bytes: 0,
        overlapped: 0,
        overlapped_bytes: 0,
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
                let bytes = volume(&start);
                report.collectives += 1;
                report.bytes = report.bytes.saturating_add(bytes);
                if running.remove(&start.id) == Some(true) {
                    report.overlapped += 1;
                    report.overlapped_bytes = report.overlapped_bytes.saturating_add(bytes);
                }
            }
            _ => running.values_mut().for_each(|beside| *beside = true),
        }
    }
    Some(report)
}

/// What one rank sends in a collective at least.
fn volume(node: &Node<'_>) -> u64 {
    let Op::CollectiveStart(start) = node.op() else { return 0 };
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
