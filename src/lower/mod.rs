//! From an elaborated step to a plan: regions, simplification, updates, layout, fusion, the schedule
//! graph, its order.
//!
//! The passes own every id they index their arrays by: ids come from the graph that an array was
//! sized for, and the verifier holds that between passes.
#![allow(clippy::indexing_slicing)]

mod build;
mod casts;
mod fuse;
mod gather;
mod kinds;
mod layout;
mod program;
mod regions;
mod simplify;
mod updates;
mod views;

use std::sync::Arc;

use crate::{
    ir::{Graph, Role, verify},
    ops::{Op, OpError},
    plan::{BufferKind, Instruction, Kernel, Plan, Target},
    schedule::{self, BufferId, OpId, OrderKind, ScheduleGraph},
};

/// How to plan a step.
#[derive(Debug, Clone, Copy, Default)]
pub struct PlanOptions {
    pub schedule: schedule::Options,
    pub target: Target,
}

/// Plans a step. Errors are limits and faults of `tg`; what a program can do wrong was reported
/// when it was elaborated.
pub fn plan(graph: &Graph, name: &str, options: &PlanOptions) -> Result<Plan, OpError> {
    let plan = plan_regions(graph, name, options)?;
    // Of a model that is spread over ranks, units whose backward pass comes next.
    let Some(kept) = gather::kept_once(graph) else { return Ok(plan) };
    let other = plan_regions(&kept, name, options)?;
    Ok(if other.peak_bytes() <= plan.peak_bytes() { other } else { plan })
}

fn plan_regions(graph: &Graph, name: &str, options: &PlanOptions) -> Result<Plan, OpError> {
    let graph = lower(graph)?;
    let laid = layout::lay_out(&graph)?;
    check(&laid.graph)?;
    let groups = fuse::groups(&laid, options.target);
    let members = fuse::members(&groups);
    let schedule = |graph: &ScheduleGraph| schedule::schedule_with_copies(graph, &options.schedule);
    let build::Built { planned, kernels, op_nodes, buffers, outputs, persistent_bytes, views, commits } =
        build::build(&laid, &groups, &members, options.target, &schedule)?;
    let (schedule_graph, mut schedule) = (planned.resolved.graph, planned.schedule);
    // Collectives go on beside other work. The worst order and the written one stay what they are.
    if !matches!(options.schedule.order, OrderKind::Witness | OrderKind::Source) {
        let waits = |op: OpId| matches!(kernels.get(op.0 as usize), Some(Kernel::Wait { .. }));
        let starts =
            |op: OpId| matches!(laid.graph.node(op_nodes[op.0 as usize]).op(), Op::CollectiveStart(_));
        if options.schedule.order == OrderKind::Best {
            let collectives = schedule::Collectives { starts: &starts, waits: &waits };
            let time_limit = options.schedule.time_limit;
            schedule::work_beside(&schedule_graph, &mut schedule, &collectives, time_limit);
        }
        schedule::wait_late(&schedule_graph, &mut schedule, &waits);
    }
    // Searches end early where the host asks them to: what they leave is no plan to keep.
    OpError::if_cancelled()?;
    let instructions = schedule::instructions(&schedule_graph, &schedule.order, &schedule.overwrites);
    let mut plan = Plan {
        name: name.into(),
        target: options.target,
        graph: Arc::new(laid.graph),
        schedule_graph,
        kernels,
        buffers,
        op_nodes,
        schedule,
        worst: None,
        instructions,
        outputs,
        persistent_bytes,
        views,
        arena_bytes_without_copies: planned.arena_bytes_without_copies,
        commits,
        flops: 0.0,
        recomputed_flops: 0.0,
    };
    refine_kinds(&mut plan);
    count_flops(&mut plan);
    Ok(plan)
}

/// The graph that `plan` schedules, without the copies that layouts need.
pub fn lower(graph: &Graph) -> Result<Graph, OpError> {
    check(graph)?;
    // First what nobody uses goes: it must not decide what regions keep.
    let graph = simplify::simplify(graph)?;
    check(&graph)?;
    let graph = regions::lower_regions(graph)?;
    check(&graph)?;
    let graph = simplify::simplify(&graph)?;
    check(&graph)?;
    let graph = updates::bind_updates(graph)?;
    check(&graph)?;
    Ok(graph)
}

/// Between two passes: ends where the host asks for it and, in debug builds, verifies the graph.
fn check(graph: &Graph) -> Result<(), OpError> {
    OpError::if_cancelled()?;
    if !cfg!(debug_assertions) {
        return Ok(());
    }
    verify(graph).map_err(|faults| {
        OpError::new(format!("internal: a pass left a faulty graph: {}", faults.join("; ")))
    })
}

/// Tells kept activations and gradients from temporaries, by who reads them.
fn refine_kinds(plan: &mut Plan) {
    let mut kinds: Vec<(BufferId, BufferKind)> = Vec::new();
    for op in plan.schedule_graph.ops() {
        if matches!(plan.kernels[op.0 as usize], Kernel::Nothing) {
            continue;
        }
        let node = plan.graph.node(plan.op_nodes[op.0 as usize]);
        let reader = node.stamp();
        for &read in plan.schedule_graph.reads(op) {
            let buffer = &plan.buffers[read.0 as usize];
            let maker = plan.graph.producer(buffer.value).0.stamp();
            if buffer.kind == BufferKind::Temporaries {
                let is_recompute = reader.instance != 0 && maker.instance == 0;
                kinds.extend(
                    kinds::refine(maker.role, node.op(), reader.role, is_recompute).map(|kind| (read, kind)),
                );
            }
        }
    }
    for (buffer, kind) in kinds {
        plan.buffers[buffer.0 as usize].kind = kind;
    }
}

fn count_flops(plan: &mut Plan) {
    for node in plan.graph.nodes() {
        let args: Vec<_> = node.arg_types().collect();
        let results: Vec<_> = node.results().map(|r| plan.graph.ty(r)).collect();
        let flops = node.op().flops(&args, &results);
        plan.flops += flops;
        if node.instance() != 0 && node.role() == Role::Forward {
            plan.recomputed_flops += flops;
        }
    }
}

impl Plan {
    /// The ops in the order in which they run.
    pub fn executed(&self) -> impl Iterator<Item = schedule::OpId> + '_ {
        self.instructions.iter().filter_map(|i| match i {
            Instruction::Exec(op) => Some(*op),
            Instruction::Free(_) => None,
        })
    }
}
