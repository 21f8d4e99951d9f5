//! Axis numbers as users write them: from the front or, negative, from the end.

use super::Arg;
use crate::{ir::Type, ops::OpError};

/// One axis of a value, counted from the front.
pub(super) fn axis(op: &str, axis: i64, ty: &Type) -> Result<usize, OpError> {
    resolve(axis, ty.rank()).ok_or_else(|| out_of_range(op, axis, ty))
}

/// A place for a new axis: one more than the axes there are.
pub(super) fn new_axis(op: &str, axis: i64, ty: &Type) -> Result<usize, OpError> {
    resolve(axis, ty.rank() + 1).ok_or_else(|| {
        let rank = ty.rank() as i64;
        OpError::new(format!("`{op}`: no new axis {axis} for {ty}"))
            .help(format!("it can go to {} … {rank}", -rank - 1))
    })
}

/// The axes of an `axis:` argument, ascending; all of them where it is left out.
pub(super) fn axes(op: &str, arg: &Arg, ty: &Type) -> Result<Vec<usize>, OpError> {
    let listed = match arg {
        Arg::None => return Ok((0..ty.rank()).collect()),
        Arg::Int(only) => std::slice::from_ref(only),
        Arg::Ints(list) => list,
        _ => return Err(OpError::new(format!("internal: `{op}` got an axis that is not a number"))),
    };
    let mut axes = listed.iter().map(|&a| axis(op, a, ty)).collect::<Result<Vec<_>, _>>()?;
    axes.sort_unstable();
    match axes.windows(2).find(|pair| matches!(pair, [a, b] if a == b)) {
        Some(pair) => Err(OpError::new(format!(
            "`{op}`: axis {} of {ty} is listed twice",
            pair.first().copied().unwrap_or_default()
        ))),
        None => Ok(axes),
    }
}

/// `index` counted from the front in `0..size`.
pub(super) fn resolve(index: i64, size: usize) -> Option<usize> {
    let index = if index < 0 { index.checked_add(i64::try_from(size).ok()?)? } else { index };
    usize::try_from(index).ok().filter(|&i| i < size)
}

fn out_of_range(op: &str, axis: i64, ty: &Type) -> OpError {
    let error = OpError::new(format!("`{op}`: axis {axis} is out of range for {ty}"));
    match ty.rank() {
        0 if matches!(op, "max" | "min") => error.help(format!(
            "`{op}imum(a, b)` chooses between two values; `{op}(x, axis: 0)` goes through one"
        )),
        0 => error.help("it is a scalar: it has no axes"),
        rank => error.help(format!("its axes are 0 … {} (or -{rank} … -1)", rank - 1)),
    }
}
