//! What the ops of a plan are on the device. Each family of ops has a text in CUDA C beside the code
//! that chooses its launches. Results depend on shapes, dtypes and layouts only: sums have a fixed
//! order, and no floats are added by atomics.

mod attention;
mod call;
mod check;
mod conv;
mod elementwise;
mod gather;
mod launch;
pub(super) mod merged;
mod movement;
mod pool;
mod product;
mod reduce;
mod rows;

use self::{
    call::{Call, Tensor},
    launch::Kernel,
};
use super::work::{Address, Arg, Launch, Work};
use crate::{
    exec::place::{self, fault as internal},
    ir::Type,
    ops::{Op, OpError},
    plan::{self, Access, Plan},
    schedule::{BufferId, OpId},
};

pub(super) use check::{fault, same_check};

/// What every source begins with.
pub(super) const PRELUDE: &str = concat!(include_str!("prelude.cu"), include_str!("math.cu"));

/// What an op of the plan does, in this order.
pub(super) fn works(plan: &Plan, id: OpId) -> Result<Vec<Work>, OpError> {
    let kernel = plan.kernels.get(id.0 as usize).ok_or_else(|| internal("the plan runs a missing op"))?;
    match kernel {
        plan::Kernel::Nothing => Ok(Vec::new()),
        // With one rank a collective is over when it starts.
        plan::Kernel::Wait { operands } => {
            Ok(place::wait(plan, id, operands)?.map_or_else(Vec::new, |_| vec![Work::Host]))
        }
        plan::Kernel::Copy { from, to } => commit(plan, from, to),
        plan::Kernel::Elementwise(group) => elementwise::works(plan, id, group),
        plan::Kernel::Node { node, args, results } => {
            if node.0 as usize >= plan.graph.len() {
                return Err(internal("the plan runs a missing node"));
            }
            let op = plan.graph.node(*node).op();
            let arg_types: Vec<&Type> = args.iter().map(|a| &a.ty).collect();
            let result_types: Vec<&Type> = results.iter().map(|a| &a.ty).collect();
            place::check_workspace(plan, id, op, workspace(op, &arg_types, &result_types))?;
            node_works(op, &Call::new(plan, id, args, results)?)
        }
    }
}

/// What a reduction does that computes its operand as it reads it, instead of the group that makes it.
pub(super) fn reduced(plan: &Plan, producer: OpId, id: OpId) -> Result<Vec<Work>, OpError> {
    let kernel = |id: OpId| plan.kernels.get(id.0 as usize);
    let (Some(plan::Kernel::Elementwise(group)), Some(plan::Kernel::Node { node, args, results })) =
        (kernel(producer), kernel(id))
    else {
        return Err(internal("a reduction of no group"));
    };
    match plan.graph.node(*node).op() {
        Op::Reduce(reduce) => {
            let reader = elementwise::reader(plan, producer, group)?;
            reduce::works(&Call::new(plan, id, args, results)?, reduce, Some(&reader))
        }
        _ => Err(internal("a group is read by what is no reduction")),
    }
}

/// What the gradient of a norm does whose dx is only added to `plus`, into `to`; the last of the works is the one
/// that adds. `None` for other ops, and for a tensor that is not dx.
pub(super) fn norm_sum(
    plan: &Plan,
    id: OpId,
    dx: BufferId,
    plus: &Access,
    to: &Access,
) -> Result<Option<Vec<Work>>, OpError> {
    let Some(plan::Kernel::Node { node, args, results }) = plan.kernels.get(id.0 as usize) else {
        return Ok(None);
    };
    let centred = match plan.graph.node(*node).op() {
        Op::LayerNormGrad(_) => true,
        Op::RmsNormGrad(_) => false,
        _ => return Ok(None),
    };
    if results.first().is_none_or(|first| first.buffer != dx || first.ty.elements() == 0) {
        return Ok(None);
    }
    let sum = (Tensor::new(plan, plus)?, Tensor::new(plan, to)?);
    rows::norm_grad(&Call::new(plan, id, args, results)?, centred, Some((&sum.0, &sum.1))).map(Some)
}

/// A commit to a persistent tensor; nothing to do where the value was planned into it.
fn commit(plan: &Plan, from: &Access, to: &Access) -> Result<Vec<Work>, OpError> {
    let (from, to) = (Tensor::new(plan, from)?, Tensor::new(plan, to)?);
    if from.ty() != to.ty() || !from.is_dense() || !to.is_dense() {
        return Err(internal("a commit between tensors of other forms"));
    }
    movement::copy(&from, &to)
}

fn node_works(op: &Op, call: &Call) -> Result<Vec<Work>, OpError> {
    let no_kernel = || internal(format_args!("`{}` is run on its own", op.name()));
    match op {
        Op::Input(_)
        | Op::Const(_)
        | Op::Scalar(_)
        | Op::Read(_)
        | Op::Write(_)
        | Op::Reshape(_)
        | Op::Transpose(_)
        | Op::Broadcast(_)
        | Op::Slice(_)
        | Op::StopGrad(_)
        | Op::Barrier(_)
        | Op::CollectiveDone(_) => Err(no_kernel()),
        // These are groups, even alone.
        Op::Unary(_) | Op::Binary(_) | Op::Select(_) | Op::Cast(_) | Op::Iota(_) | Op::Random(_) => {
            Err(no_kernel())
        }
        Op::Literal(literal) => movement::literal(call, literal),
        Op::Opaque(_) | Op::Print(_) => Ok(vec![Work::Host]),
        Op::CollectiveStart(start) if start.world > 1 => Ok(vec![Work::Host]),
        Op::Copy(_) | Op::CollectiveStart(_) => movement::copy(call.arg(0)?, call.result(0)?),
        Op::Concat(concat) => movement::concat(call, concat.axis),
        Op::Pad(pad) => movement::pad(call, &pad.ranges),
        Op::Insert(insert) => movement::insert(call, &insert.ranges),
        Op::Gather(_) => gather::gather(call),
        Op::ScatterAdd(scatter) => gather::scatter_add(call, scatter.rows),
        Op::Reduce(reduce) => reduce::works(call, reduce, None),
        Op::ArgReduce(reduce) => reduce::arg_works(call, reduce),
        Op::MatMul(_) => product::works(call),
        Op::Softmax(_) => rows::softmax(call, rows::Softmax::Plain),
        Op::LogSoftmax(_) => rows::softmax(call, rows::Softmax::Log),
        Op::SoftmaxGrad(_) => rows::softmax_grad(call),
        Op::CrossEntropy(_) => rows::cross_entropy(call),
        Op::CrossEntropyGrad(_) => rows::cross_entropy_grad(call),
        Op::LayerNorm(norm) => rows::norm(call, true, norm.eps.as_f64()),
        Op::RmsNorm(norm) => rows::norm(call, false, norm.eps.as_f64()),
        Op::LayerNormGrad(_) => rows::norm_grad(call, true, None),
        Op::RmsNormGrad(_) => rows::norm_grad(call, false, None),
        Op::BatchNorm(norm) => rows::batch_norm(call, norm.eps.as_f64()),
        Op::BatchNormGrad(norm) => rows::batch_norm_grad(call, norm.eps.as_f64()),
        Op::Conv2d(conv) => conv::forward(call, conv.shape),
        Op::Conv2dGradInput(conv) => conv::grad_input(call, conv.shape),
        Op::Conv2dGradWeight(conv) => conv::grad_weight(call, conv.shape),
        Op::MaxPool2d(pool) => pool::works(call, "max_pool", pool.shape, call.arg(0)?, call.result(0)?),
        Op::MaxPool2dGather(pool) => {
            pool::works(call, "max_pool_gather", pool.shape, call.arg(0)?, call.result(0)?)
        }
        Op::MaxPool2dGrad(pool) => pool::works(call, "max_pool_grad", pool.shape, call.arg(0)?, call.arg(1)?),
        Op::AvgPool2d(pool) => pool::works(call, "avg_pool", pool.shape, call.arg(0)?, call.result(0)?),
        Op::AvgPool2dGrad(pool) => {
            pool::works(call, "avg_pool_grad", pool.shape, call.result(0)?, call.arg(0)?)
        }
        Op::Attention(op) => {
            attention::forward(call, attention::Form { causal: op.causal, scale: op.scale.as_f64() })
        }
        Op::AttentionGrad(op) => {
            attention::backward(call, attention::Form { causal: op.causal, scale: op.scale.as_f64() })
        }
    }
}

/// Bytes of the arena that an op needs on the device while it runs.
pub(crate) fn workspace(op: &Op, args: &[&Type], results: &[&Type]) -> u64 {
    match op {
        Op::Reduce(_) => reduce::workspace(args, results),
        Op::MatMul(_) => product::workspace(args, results),
        Op::ScatterAdd(scatter) => gather::scatter_workspace(scatter.rows, args),
        Op::LayerNormGrad(_) => rows::norm_grad_workspace(args, 2),
        Op::RmsNormGrad(_) => rows::norm_grad_workspace(args, 1),
        Op::Conv2d(conv) => conv::workspace(conv::Part::Forward, conv.shape, args, results),
        Op::Conv2dGradInput(conv) => conv::workspace(conv::Part::GradInput, conv.shape, args, results),
        Op::Conv2dGradWeight(conv) => conv::workspace(conv::Part::GradWeight, conv.shape, args, results),
        Op::AttentionGrad(_) => attention::grad_workspace(args),
        // The host's own, wherever it runs.
        Op::Opaque(_) => op.workspace(args, results),
        Op::Input(_)
        | Op::Const(_)
        | Op::Literal(_)
        | Op::Iota(_)
        | Op::Scalar(_)
        | Op::Read(_)
        | Op::Random(_)
        | Op::Unary(_)
        | Op::Binary(_)
        | Op::Select(_)
        | Op::Cast(_)
        | Op::Reshape(_)
        | Op::Transpose(_)
        | Op::Broadcast(_)
        | Op::Slice(_)
        | Op::Copy(_)
        | Op::Concat(_)
        | Op::Pad(_)
        | Op::Insert(_)
        | Op::Gather(_)
        | Op::StopGrad(_)
        | Op::ArgReduce(_)
        | Op::Softmax(_)
        | Op::SoftmaxGrad(_)
        | Op::LogSoftmax(_)
        | Op::CrossEntropy(_)
        | Op::CrossEntropyGrad(_)
        | Op::LayerNorm(_)
        | Op::RmsNorm(_)
        | Op::BatchNorm(_)
        | Op::BatchNormGrad(_)
        | Op::MaxPool2d(_)
        | Op::MaxPool2dGrad(_)
        | Op::MaxPool2dGather(_)
        | Op::AvgPool2d(_)
        | Op::AvgPool2dGrad(_)
        | Op::Attention(_)
        | Op::Barrier(_)
        | Op::Write(_)
        | Op::Print(_)
        | Op::CollectiveStart(_)
        | Op::CollectiveDone(_) => 0,
    }
}
