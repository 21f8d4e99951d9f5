//! Data that no check before the run could see: indices that are none of a table. Kernels on a device
//! cannot fail, so what they find is left in four words for the runtime, which looks at them when the
//! step ends.

use super::{
    Arg, Kernel, OpError, Tensor, Work,
    call::Call,
    internal,
    launch::{element, index_type, locate, with_types},
};
use crate::{ops::Op, plan::Plan, schedule::OpId};

const TEXT: &str = include_str!("check.cu");

/// Looks for an index that is not below `limit`.
pub(super) fn indices(call: &Call, indices: &Tensor, limit: usize) -> Result<Vec<Work>, OpError> {
    let count = indices.elements();
    if count == 0 {
        return Ok(Vec::new());
    }
    let index = index_type(indices.reach().max(count));
    let text = locate("index_at", indices.shape(), indices.strides()) + TEXT;
    let kernel =
        Kernel::new(with_types(&[("L", element(indices.dtype())), ("I", index)], &text), "check_indices")
            .arg(indices)
            .arg(Arg::Fault)
            .sizes([call.id.0 as usize, count, limit]);
    Ok(vec![kernel.blocks(1, 1, 1, 256)?])
}

/// Whether two looks find the same: all but the op that is told is equal.
pub(in crate::exec::cuda) fn same_check(a: &Work, b: &Work) -> bool {
    let (Work::Launch(a), Work::Launch(b)) = (a, b) else { return false };
    let same = |k: usize| a.args.get(k) == b.args.get(k);
    // The third argument is the op.
    a.source == b.source && a.args.len() == b.args.len() && (0..a.args.len()).all(|k| k == 2 || same(k))
}

/// What the words of [`Arg::Fault`] say after a step: the op and the error of the first fault.
pub(in crate::exec::cuda) fn fault(plan: &Plan, words: [u64; 4]) -> Option<(OpId, OpError)> {
    let [op, position, value, limit] = words;
    let id = OpId(u32::try_from(op.checked_sub(1)?).unwrap_or(u32::MAX));
    let node = plan.op_nodes.get(id.0 as usize).filter(|node| (node.0 as usize) < plan.graph.len());
    let Some(&node) = node else {
        return Some((id, internal("a kernel of no op found a fault")));
    };
    let op = plan.graph.node(node).op();
    let (name, value) = (op.name(), value as i64);
    let message = match op {
        Op::CrossEntropy(_) | Op::CrossEntropyGrad(_) => {
            format!("`{name}`: label {value} of row {position} is outside 0 ≤ label < {limit}")
        }
        _ => format!("`{name}`: index {value} at position {position} is outside 0 ≤ index < {limit}"),
    };
    Some((id, OpError::new(message)))
}
