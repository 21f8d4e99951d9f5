//! Results that their only reader computes itself: element-wise groups that a reduction computes as it reads
//! them, and products and gradients of norms that another tensor is added to. The result keeps its place in the plan, but nobody
//! writes it: the operands of what makes it are read where it would have been read.

use rustc_hash::FxHashMap;

use super::{
    hazards::Touch,
    kernels,
    prepare::{Action, Step},
    work::{Address, Matrix, Product, Work},
};
use crate::{
    exec::place::Place,
    ir::DType,
    ops::{Binary, Op, OpError},
    plan::{ALIGNMENT, Access, Elementwise, Home, Instr, Kernel, Plan},
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

/// For each step, what it does instead where it computes what another one makes, or where its own result is
/// computed so.
pub(super) fn instead(
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
    let is_own = |buffer: BufferId| {
        readers.get(&buffer) == Some(&1)
            && matches!(plan.buffers.get(buffer.0 as usize).map(|b| b.home), Some(Home::Arena))
            && !plan.schedule_graph.buffer(buffer).flags.output
    };
    let mut instead: Vec<Option<Instead>> = steps.iter().map(|_| None).collect();
    for (at, step) in steps.iter().enumerate() {
        for operand in candidates(plan, step.op) {
            let Some(&maker) = makers.get(&operand.buffer).filter(|_| is_own(operand.buffer)) else {
                continue;
            };
            if maker >= at || at - maker > BETWEEN || instead.get(maker).is_none_or(Option::is_some) {
                continue;
            }
            let (Some(made_by), Some(of_maker), Some(own)) =
                (steps.get(maker), touches.get(maker), touches.get(at))
            else {
                continue;
            };
            // What the maker reads is there until this step has run.
            let mut writes = touches.get(maker + 1..=at).into_iter().flatten().flatten().filter(|t| t.writes);
            let reads = || of_maker.iter().filter(|touch| !touch.writes);
            let is_kept = writes.all(|write| reads().all(|read| !write.overlaps(read)));
            let on_device = |step: &Step| matches!(step.action, Action::Device(_));
            if !is_kept || !steps.get(maker..=at).is_some_and(|steps| steps.iter().all(on_device)) {
                continue;
            }
            let computed = match operand.reads {
                Reads::Reduction if is_readable(plan, made_by.op) => {
                    let works = kernels::reduced(plan, made_by.op, step.op)?;
                    Some(Computed { before: Vec::new(), works })
                }
                Reads::Reduction => None,
                Reads::Sum { plus } => sum(plan, made_by, step, operand.buffer, plus)?,
            };
            let Some(Computed { before, works }) = computed else { continue };
            let of_step =
                own.iter().filter(|touch| touch.writes || matches!(operand.reads, Reads::Sum { .. }));
            let touches = reads().chain(of_step).cloned().collect();
            if let Some(entry) = instead.get_mut(maker) {
                *entry = Some(Instead { works: before, touches: of_maker.clone() });
            }
            if let Some(entry) = instead.get_mut(at) {
                *entry = Some(Instead { works, touches });
            }
            break;
        }
    }
    Ok(instead)
}

/// What a step does whose result another one computes, and what that one does.
struct Computed {
    before: Vec<Work>,
    works: Vec<Work>,
}

/// How a step reads an operand that it could compute itself.
#[derive(Clone, Copy)]
enum Reads {
    Reduction,
    /// It adds its operand `plus`, and does nothing else.
    Sum {
        plus: usize,
    },
}

struct Candidate {
    buffer: BufferId,
    reads: Reads,
}

/// What a step may compute itself: it reads all of it, in the order in which it lies there.
fn candidates(plan: &Plan, op: OpId) -> Vec<Candidate> {
    if let Some(buffer) = reduced(plan, op) {
        return vec![Candidate { buffer, reads: Reads::Reduction }];
    }
    let Some(Kernel::Elementwise(group)) = plan.kernels.get(op.0 as usize) else { return Vec::new() };
    let ([Instr::Load(0), Instr::Load(1), Instr::Binary(Binary::Add, a, b)], [_, _], [_]) =
        (&*group.instrs, &*group.inputs, &*group.outputs)
    else {
        return Vec::new();
    };
    if a + b != 1 || !group.inputs.iter().all(|input| input.layout.is_dense(input.ty.shape())) {
        return Vec::new();
    }
    let whole = group.inputs.iter().enumerate().filter(|(_, input)| is_whole(plan, input));
    whole.map(|(k, input)| Candidate { buffer: input.buffer, reads: Reads::Sum { plus: 1 - k } }).collect()
}

fn is_whole(plan: &Plan, access: &Access) -> bool {
    let bytes = plan.buffers.get(access.buffer.0 as usize).map(|buffer| buffer.dense_bytes);
    bytes == Some(access.ty.bytes()) && access.layout.offset == 0
}

/// What remains of a step whose result is only added to something, and what adds it. A product takes operand
/// `plus` of the sum into its own sums, which are rounded to the dtype before: f32 and f64 are what they are
/// summed in. The gradient of a norm adds it to the rounded result.
fn sum(
    plan: &Plan,
    maker: &Step,
    sum: &Step,
    made: BufferId,
    plus: usize,
) -> Result<Option<Computed>, OpError> {
    let Some(Kernel::Elementwise(group)) = plan.kernels.get(sum.op.0 as usize) else { return Ok(None) };
    let ([(_, to)], Some(plus)) = (&*group.outputs, group.inputs.get(plus)) else { return Ok(None) };
    let at = |access: &Access| {
        let place = Place::new(plan, access)?;
        let offset = (place.layout.offset * place.ty.dtype().size()) as u64;
        Ok::<_, OpError>(Address { root: place.root, offset })
    };
    let (to_at, plus_at) = (at(to)?, at(plus)?);
    // The sum lies over its operand or beside it.
    let meet = Touch::new(to_at, to.ty.bytes(), true).overlaps(&Touch::new(plus_at, plus.ty.bytes(), false));
    if to_at != plus_at && meet {
        return Ok(None);
    }
    let [Work::Product(product)] = maker.works() else {
        let works = kernels::norm_sum(plan, maker.op, made, plus, to)?;
        return Ok(works.map(|mut works| {
            let adding = works.pop();
            Computed { before: works, works: adding.into_iter().collect() }
        }));
    };
    let is_exact = matches!(product.dtype, DType::F32 | DType::F64) && to.ty.dtype() == product.dtype;
    // The algorithm is that of the product alone, which is chosen by alignment, too.
    let is_aligned = [to_at, plus_at].iter().all(|at| at.offset.is_multiple_of(ALIGNMENT));
    // What is added would come before the bias, which gives other bits where the sum is not taken in.
    let is_product = product.plus.is_none() && product.bias.is_none();
    if !is_exact || !is_aligned || product.workspace_bytes > 0 || !is_product {
        return Ok(None);
    }
    let c = Matrix { at: to_at, ..product.c };
    let product = Product { c, plus: Some(plus_at), ..product.clone() };
    Ok(Some(Computed { before: Vec::new(), works: vec![Work::Product(product)] }))
}

/// The buffer that a reduction reads all of, in the order in which it lies there.
fn reduced(plan: &Plan, op: OpId) -> Option<BufferId> {
    let Kernel::Node { node, args, .. } = plan.kernels.get(op.0 as usize)? else { return None };
    let [operand] = args.as_slice() else { return None };
    let is_reduction = matches!(plan.graph.node(*node).op(), Op::Reduce(_));
    let fits = is_reduction && is_whole(plan, operand) && operand.layout.is_dense(operand.ty.shape());
    fits.then_some(operand.buffer)
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
