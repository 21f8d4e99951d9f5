//! Element-wise groups that a reduction computes as it reads them. Their result keeps its place in the plan, but
//! nobody writes it: the operands of the group are read where its result would have been.

use rustc_hash::FxHashMap;

use super::{
    hazards::Touch,
    kernels,
    prepare::{Action, Step},
    work::Work,
};
use crate::{
    ops::{Op, OpError},
    plan::{Elementwise, Home, Instr, Kernel, Plan},
    schedule::{BufferId, OpId},
};

/// What a step does instead of its own work.
pub(super) struct Instead {
    pub works: Vec<Work>,
    pub touches: Vec<Touch>,
}

/// Larger groups are better computed four elements at a time.
const INSTRUCTIONS: usize = 32;
const INPUTS: usize = 6;

/// Steps that may lie between a group and the reduction that reads it.
const BETWEEN: usize = 64;

/// For each step, what it does instead where it is a reduction that computes its operand, or the group that
/// makes it.
pub(super) fn reductions(
    plan: &Plan,
    steps: &[Step],
    touches: &[Vec<Touch>],
) -> Result<Vec<Option<Instead>>, OpError> {
    let mut makers: FxHashMap<BufferId, usize> = FxHashMap::default();
    let mut readers: FxHashMap<BufferId, usize> = FxHashMap::default();
    for (at, step) in steps.iter().enumerate() {
        plan.schedule_graph.reads(step.op).iter().for_each(|&read| *readers.entry(read).or_default() += 1);
        makers.extend(plan.schedule_graph.makes(step.op).iter().map(|&made| (made, at)));
    }
    let mut instead: Vec<Option<Instead>> = steps.iter().map(|_| None).collect();
    for (at, step) in steps.iter().enumerate() {
        let Some(buffer) = reduced(plan, step.op) else { continue };
        let Some(&maker) = makers.get(&buffer) else { continue };
        let (Some(made_by), Some(own)) = (steps.get(maker), touches.get(at)) else { continue };
        let is_own = readers.get(&buffer) == Some(&1)
            && matches!(plan.buffers.get(buffer.0 as usize).map(|b| b.home), Some(Home::Arena))
            && !plan.schedule_graph.buffer(buffer).flags.output;
        if !is_own || maker >= at || at - maker > BETWEEN || !is_readable(plan, made_by.op) {
            continue;
        }
        let (Some(of_group), Some(later)) = (touches.get(maker), touches.get(maker + 1..=at)) else { continue };
        let is_kept = later.iter().flatten().filter(|touch| touch.writes).all(|write| {
            of_group.iter().filter(|touch| !touch.writes).all(|read| !write.overlaps(read))
        });
        let runs_through = steps.get(maker..=at).is_some_and(|steps| {
            steps.iter().all(|step| matches!(step.action, Action::Device(_)))
        });
        if !is_kept || !runs_through {
            continue;
        }
        let works = kernels::reduced(plan, made_by.op, step.op)?;
        let reads = of_group.iter().filter(|touch| !touch.writes);
        let writes = own.iter().filter(|touch| touch.writes);
        let touches = reads.chain(writes).cloned().collect();
        if let Some(entry) = instead.get_mut(maker) {
            *entry = Some(Instead { works: Vec::new(), touches: Vec::new() });
        }
        if let Some(entry) = instead.get_mut(at) {
            *entry = Some(Instead { works, touches });
        }
    }
    Ok(instead)
}

/// The buffer that a reduction reads all of, in the order in which it lies there.
fn reduced(plan: &Plan, op: OpId) -> Option<BufferId> {
    let Kernel::Node { node, args, .. } = plan.kernels.get(op.0 as usize)? else { return None };
    let [operand] = args.as_slice() else { return None };
    let buffer = plan.buffers.get(operand.buffer.0 as usize)?;
    let is_whole = operand.ty.bytes() == buffer.dense_bytes && operand.layout.offset == 0;
    let is_reduction = matches!(plan.graph.node(*node).op(), Op::Reduce(_));
    (is_reduction && is_whole && operand.layout.is_dense(operand.ty.shape())).then_some(operand.buffer)
}

/// Whether an op is a small group with one result and no random numbers.
fn is_readable(plan: &Plan, op: OpId) -> bool {
    let Some(Kernel::Elementwise(Elementwise { instrs, inputs, outputs, shape, .. })) =
        plan.kernels.get(op.0 as usize)
    else {
        return false;
    };
    let is_random = |instr: &Instr| matches!(instr, Instr::Random { .. });
    instrs.len() <= INSTRUCTIONS
        && inputs.len() <= INPUTS
        && outputs.len() == 1
        && !shape.contains(&0)
        && !instrs.iter().any(is_random)
}
