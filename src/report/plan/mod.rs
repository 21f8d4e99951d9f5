//! What a plan does with memory: who is alive at the peak, since when, and kept by what.

mod full;
mod json;
mod live;
mod placed;
mod ranks;
mod recompute;
mod terminal;
#[cfg(test)]
mod tests;
mod view;
pub mod why;

use std::sync::Arc;

pub use full::full;
pub use json::{step as json, steps as json_file};
pub use placed::{PlacedBuffer, PlacedOp, buffers, ops};
pub use ranks::{RanksReport, Sent, ranks};
pub use recompute::{Line, Recompute, recompute};
pub use terminal::render;

use crate::{
    exec::cuda,
    ir::Type,
    plan::{BufferKind, Plan, Target},
    schedule::{BufferId, OpId},
    source::{FileId, Position, SourceMap, Span},
};
pub(crate) use terminal::{generalize, place_text};
pub use view::Pass;
pub(crate) use view::{Deed, View, op_name, pass};

/// The memory of one step.
#[derive(Debug, Clone)]
pub struct PlanReport {
    pub name: Arc<str>,
    /// Nodes of the graph after lowering, ops of the schedule graph, instructions of the plan.
    pub nodes: usize,
    pub ops: usize,
    pub instructions: usize,
    pub peak_bytes: u64,
    pub persistent_bytes: u64,
    pub arena_bytes: u64,
    /// The largest sum of live buffers in the arena; what the arena is higher is fragmentation.
    pub live_peak_bytes: u64,
    pub lower_bound_bytes: u64,
    /// What every legal order stays within; `None` where that was not worked out.
    pub worst: Option<WorstLegal>,
    /// The heuristic that found the order.
    pub order: &'static str,
    /// What the ranks send to each other, if they do.
    pub ranks: Option<RanksReport>,
    /// What kernels and uploads of a CUDA device need; `None` of a plan for the CPU.
    pub device: Option<DeviceReport>,
    pub peak_at: PeakAt,
    /// Bytes at the peak of each kind, in a fixed order, `fragmentation` last. Their sum is
    /// `peak_bytes`.
    pub by_kind: Vec<(&'static str, u64)>,
    /// Largest first.
    pub live_at_peak: Vec<LiveBuffer>,
    /// For each position in the order, everything resident while that op runs, in bytes.
    pub curve: Vec<u64>,
}

/// The most that any legal order has alive, persistent bytes included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorstLegal {
    /// No legal order has more.
    pub bytes: u64,
    /// The worst order that was found has this much.
    pub witness_bytes: u64,
}

impl WorstLegal {
    pub fn of(plan: &Plan) -> Option<WorstLegal> {
        Some(WorstLegal {
            bytes: plan.worst_legal_bytes()?,
            witness_bytes: plan.worst_legal_witness_bytes()?,
        })
    }

    pub fn is_exact(self) -> bool {
        self.bytes == self.witness_bytes
    }
}

/// What a step needs on a CUDA device that the program does not name.
#[derive(Debug, Clone)]
pub struct DeviceReport {
    /// The largest workspace of an op, which is a part of the arena.
    pub workspace_bytes: u64,
    /// The op that needs it, and where it comes from.
    pub workspace_op: String,
    pub workspace_place: Option<Place>,
    /// The workspace of the op that runs at the peak.
    pub workspace_at_peak_bytes: u64,
    /// Beside the plan: a second place for inputs, so that the next ones are uploaded while a step runs,
    /// and the scalars.
    pub beside_bytes: u64,
}

/// Where the peak is reached first.
#[derive(Debug, Clone)]
pub struct PeakAt {
    /// The line of the program that the op comes from.
    pub place: Option<Place>,
    pub op: String,
    /// Index in the plan's instructions, and position in the order.
    pub instruction: usize,
    pub position: usize,
}

/// A position in a file that is not part of the library (unless nothing else led there).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    pub file: FileId,
    pub at: Position,
    pub span: Span,
}

/// A buffer that is alive at the peak.
#[derive(Debug, Clone)]
pub struct LiveBuffer {
    pub name: String,
    /// As it counts: rounded up to the alignment.
    pub bytes: u64,
    pub ty: Option<Type>,
    pub kind: BufferKind,
    pub place: Option<Place>,
    /// The op that reads it last, `output`, or `state` for what outlives the step.
    pub kept_by: String,
    pub kept_by_place: Option<Place>,
    /// The first and last instruction during which it is alive.
    pub from: usize,
    pub to: usize,
}

/// Works out the report of a plan. `sources` are the texts that its origins point into.
pub fn report(plan: &Plan, sources: &SourceMap) -> PlanReport {
    let live = live::Live::new(plan);
    let view = View::new(plan, sources);
    let position = plan.schedule.peak_position;
    let peak_op = plan.schedule.order.get(position).copied();
    let peak_node = peak_op.and_then(|op| view.op_node(op));
    let live_at_peak = live_at_peak(&view, &live, position, peak_op);
    PlanReport {
        name: Arc::clone(&plan.name),
        nodes: plan.graph.len(),
        ops: plan.schedule_graph.op_count(),
        instructions: plan.instructions.len(),
        peak_bytes: plan.peak_bytes(),
        persistent_bytes: plan.persistent_bytes,
        arena_bytes: plan.schedule.arena_bytes,
        live_peak_bytes: plan.schedule.live_peak_bytes,
        lower_bound_bytes: plan.lower_bound_bytes(),
        worst: WorstLegal::of(plan),
        order: plan.schedule.found_by,
        ranks: ranks(plan),
        device: (plan.target == Target::Cuda).then(|| device(&view, peak_op)),
        peak_at: PeakAt {
            place: peak_node.and_then(|n| view.place(n)),
            op: peak_node.map_or(String::new(), |n| op_name(n).to_owned()),
            instruction: live.instruction(position),
            position,
        },
        by_kind: by_kind(plan.peak_bytes(), &live_at_peak),
        curve: live.arena.iter().map(|&bytes| plan.persistent_bytes.saturating_add(bytes)).collect(),
        live_at_peak,
    }
}

fn device(view: &View<'_>, peak_op: Option<OpId>) -> DeviceReport {
    let graph = &view.plan.schedule_graph;
    let workspace = |op: OpId| graph.workspace(op);
    // Of several that are as large, the first.
    let largest = graph.ops().max_by_key(|&op| (workspace(op), std::cmp::Reverse(op)));
    let node = largest.and_then(|op| view.op_node(op));
    DeviceReport {
        workspace_bytes: largest.map_or(0, workspace),
        workspace_op: node.map_or(String::new(), |n| op_name(n).to_owned()),
        workspace_place: node.and_then(|n| view.place(n)),
        workspace_at_peak_bytes: peak_op.map_or(0, workspace),
        beside_bytes: cuda::beside_bytes(view.plan),
    }
}

fn live_at_peak(
    view: &View<'_>,
    live: &live::Live,
    position: usize,
    peak_op: Option<OpId>,
) -> Vec<LiveBuffer> {
    let plan = view.plan;
    let mut all: Vec<LiveBuffer> = live
        .ranges
        .iter()
        .zip(plan.schedule_graph.buffer_ids())
        .filter_map(|(range, id)| {
            let range = range.as_ref().filter(|r| r.contains(&position))?;
            let bytes = plan.schedule_graph.buffer(id).bytes;
            (bytes > 0).then(|| view.buffer(live, id, bytes, range))
        })
        .collect();
    let workspace = peak_op.map_or(0, |op| plan.schedule_graph.workspace(op));
    if let Some(op) = peak_op
        && workspace > 0
    {
        let node = view.op_node(op);
        let name = node.map_or("op", |n| op_name(n));
        all.push(LiveBuffer {
            name: format!("workspace of {name}"),
            bytes: workspace,
            ty: None,
            kind: BufferKind::Temporaries,
            place: node.and_then(|n| view.place(n)),
            kept_by: name.to_owned(),
            kept_by_place: node.and_then(|n| view.place(n)),
            from: live.instruction(position),
            to: live.instruction(position),
        });
    }
    // A stable sort: equal sizes stay in source order.
    all.sort_by_key(|b| std::cmp::Reverse(b.bytes));
    all
}

fn by_kind(peak: u64, live: &[LiveBuffer]) -> Vec<(&'static str, u64)> {
    let mut kinds: Vec<(&'static str, u64)> = BufferKind::ALL
        .into_iter()
        .map(|kind| (kind.name(), live.iter().filter(|b| b.kind == kind).map(|b| b.bytes).sum()))
        .collect();
    let sum: u64 = kinds.iter().map(|(_, bytes)| bytes).sum();
    kinds.push(("fragmentation", peak.saturating_sub(sum)));
    kinds
}

impl View<'_> {
    fn buffer(
        &self,
        live: &live::Live,
        id: BufferId,
        bytes: u64,
        range: &std::ops::RangeInclusive<usize>,
    ) -> LiveBuffer {
        let plan = self.plan;
        let info = plan.buffers.get(id.0 as usize);
        let producer = info.and_then(|b| self.producer(b.value));
        let persistent = plan.schedule_graph.buffer(id).flags.persistent;
        let is_output = plan.schedule_graph.buffer(id).flags.output;
        let reader = live.last_readers.get(id.0 as usize).copied().flatten();
        let (kept_by, kept_by_place) = if persistent {
            ("state".to_owned(), None)
        } else if is_output {
            ("output".to_owned(), info.and_then(|b| self.output_place(b.value)))
        } else {
            match reader.and_then(|op| self.op_node(op)) {
                Some(node) => (op_name(node).to_owned(), self.place(node)),
                None => ("nothing".to_owned(), None),
            }
        };
        LiveBuffer {
            name: self.name(id, producer),
            bytes,
            ty: info.filter(|_| producer.is_some()).map(|b| self.graph().ty(b.value).clone()),
            kind: info.map_or(BufferKind::Temporaries, |b| b.kind),
            place: producer.and_then(|n| self.place(n)),
            kept_by,
            kept_by_place,
            from: live.instruction(*range.start()),
            to: live.instruction(*range.end()),
        }
    }
}
