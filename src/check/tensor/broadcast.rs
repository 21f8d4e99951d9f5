//! NumPy's broadcasting, made explicit: views without a copy, before element-wise ops.

use super::{Operand, promote::promote};
use crate::{
    ir::{Graph, ValueId},
    ops::OpError,
};

/// The operands in one dtype and one shape, and whether the result is weak.
pub(super) fn together(
    graph: &mut Graph,
    op: &str,
    operands: &[Operand],
) -> Result<(Vec<ValueId>, bool), OpError> {
    let shape = common_shape(graph, op, operands)?;
    let (values, weak) = promote(graph, op, operands)?;
    let values = values.into_iter().map(|v| graph.broadcast(v, &shape)).collect::<Result<Vec<_>, _>>()?;
    Ok((values, weak))
}

/// The shape that the operands have together; the error names the two that clash, and where.
pub(super) fn common_shape(graph: &Graph, op: &str, operands: &[Operand]) -> Result<Vec<usize>, OpError> {
    let mut shape: Vec<usize> = Vec::new();
    for (k, &operand) in operands.iter().enumerate() {
        match broadcast_shapes(&shape, operand.shape(graph)) {
            Some(joined) => shape = joined,
            None => {
                // Some operand before this one clashes with it: sizes of 1 never do.
                let other = operands
                    .iter()
                    .take(k)
                    .find(|o| broadcast_shapes(o.shape(graph), operand.shape(graph)).is_none())
                    .copied()
                    .unwrap_or(operand);
                return Err(clash(graph, op, other, operand));
            }
        }
    }
    Ok(shape)
}

/// Axes are aligned at the end; sizes of 1 repeat. `None` where two sizes differ otherwise.
pub(super) fn broadcast_shapes(a: &[usize], b: &[usize]) -> Option<Vec<usize>> {
    let (long, short) = if a.len() >= b.len() { (a, b) } else { (b, a) };
    let lead = long.len() - short.len();
    long.iter()
        .enumerate()
        .map(|(i, &dim)| match i.checked_sub(lead).and_then(|j| short.get(j)) {
            Some(&other) if dim == 1 => Some(other),
            Some(&other) if other != 1 && other != dim => None,
            _ => Some(dim),
        })
        .collect()
}

fn clash(graph: &Graph, op: &str, a: Operand, b: Operand) -> OpError {
    let (left, right) = (a.shape(graph), b.shape(graph));
    let place = left
        .iter()
        .rev()
        .zip(right.iter().rev())
        .position(|(&x, &y)| x != y && x != 1 && y != 1)
        .map(|back| (left.len() - 1 - back, right.len() - 1 - back));
    let mut message = format!("`{op}` cannot broadcast {} with {}", a.describe(graph), b.describe(graph));
    if let Some((i, j)) = place
        && let (Some(x), Some(y)) = (left.get(i), right.get(j))
    {
        message += &if i == j {
            format!(": axis {i} is {x} on the left and {y} on the right")
        } else {
            format!(": axis {i} on the left is {x}, axis {j} on the right is {y}")
        };
    }
    let error = OpError::new(message);
    match (left, right) {
        (&[first, ..], &[only]) | (&[only], &[first, ..]) if first == only && left.len() != right.len() => {
            let rank = left.len().max(right.len());
            let ones: Vec<&str> = (1..rank).map(|_| "new").collect();
            error.help(format!(
                "axes are aligned at the end; to align the first axis, write `x[.., {}]` for the 1-d operand",
                ones.join(", ")
            ))
        }
        _ => error,
    }
}
