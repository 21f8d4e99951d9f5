//! Kernels that only move elements: copy, concatenate, pad.

use super::{
    Call, Operand, Shared, parallel,
    strided::{Axis, Walk},
};
use crate::ops::{Layout, OpError, SliceRange};

/// Moves of fewer bytes than this stay on one thread: waking another costs more.
const PARALLEL_BYTES: usize = 1 << 20;

/// A block of a transposing copy, elements a side: two blocks of 8-byte elements fit into L1.
const TILE: usize = 32;

/// Operand 0 to result 0, a dense copy of it.
pub(crate) fn copy(call: &Call<'_>) -> Result<(), OpError> {
    let (from, to) = (call.arg_operand(0)?, call.result_operand(0)?);
    let target = Target { offset: to.layout.offset, strides: to.layout.strides.to_vec() };
    // SAFETY: both operands hold a tensor of this shape (`Operand::new`), and do not overlap (`Call`).
    unsafe { copy_into(&from, &to, &target) };
    Ok(())
}

/// The operands one after another along `axis`.
pub(crate) fn concat(call: &Call<'_>, axis: usize) -> Result<(), OpError> {
    let to = call.result_operand(0)?;
    let stride = to.layout.strides.get(axis).copied().unwrap_or(0);
    let mut start = 0;
    for from in call.args {
        let target =
            Target { offset: to.layout.offset + start * stride, strides: to.layout.strides.to_vec() };
        // SAFETY: `infer` has checked that the parts fit into the result beside each other; the
        // operands do not overlap it (`Call`).
        unsafe { copy_into(from, &to, &target) };
        start += from.ty.shape().get(axis).copied().unwrap_or(0);
    }
    Ok(())
}

/// Zeros, with the operand at `ranges`.
pub(crate) fn pad(call: &Call<'_>, ranges: &[SliceRange]) -> Result<(), OpError> {
    let (from, to) = (call.arg_operand(0)?, call.result_operand(0)?);
    // SAFETY: the result is dense, so its bytes are contiguous and belong to it (`Operand::new`).
    unsafe { to.start().write_bytes(0, to.ty.bytes() as usize) };
    let target = part(&to, ranges);
    // SAFETY: `infer` has checked that the ranges lie inside the result and have the operand's
    // sizes; the operand does not overlap the result (`Call`).
    unsafe { copy_into(&from, &to, &target) };
    Ok(())
}

/// Operand 0, with operand 1 at `ranges`. Where the result was planned over operand 0, the rest of it
/// is there already.
pub(crate) fn insert(call: &Call<'_>, ranges: &[SliceRange]) -> Result<(), OpError> {
    let (whole, piece, to) = (call.arg_operand(0)?, call.arg_operand(1)?, call.result_operand(0)?);
    if whole.start() != to.start() {
        let target = Target { offset: to.layout.offset, strides: to.layout.strides.to_vec() };
        // SAFETY: both hold a tensor of this shape (`Operand::new`). The result overlaps no operand
        // but one that it was planned to overwrite, and that would start where it does (`Call`).
        unsafe { copy_into(&whole, &to, &target) };
    }
    let mut target = part(&to, ranges);
    if piece.ty.rank() != to.ty.rank() {
        // Row by row into a vector, which is dense.
        target.strides = Layout::dense(piece.ty.shape()).strides.into();
    }
    // SAFETY: `infer` has checked that the ranges lie inside the result and have the sizes of the
    // piece, or as many elements in a row, which does not overlap the result (`Call`: only operand 0 may be overwritten).
    unsafe { copy_into(&piece, &to, &target) };
    Ok(())
}

/// Where the elements of a part of `to` lie.
fn part(to: &Operand<'_>, ranges: &[SliceRange]) -> Target {
    let mut target = Target { offset: to.layout.offset, strides: to.layout.strides.to_vec() };
    for (stride, range) in target.strides.iter_mut().zip(ranges) {
        target.offset += range.start * *stride;
        *stride *= range.step;
    }
    target
}

/// Fills result 0 with these bytes.
pub(crate) fn fill_bytes(call: &Call<'_>, data: &[u8]) -> Result<(), OpError> {
    let to = call.result_operand(0)?;
    if to.ty.bytes() != data.len() as u64 {
        return Err(OpError::new("internal: a literal with a wrong number of bytes"));
    }
    // SAFETY: the result is dense, so its bytes are contiguous and belong to it (`Operand::new`).
    unsafe { to.start().copy_from_nonoverlapping(data.as_ptr(), data.len()) };
    Ok(())
}

/// Where the elements of an operand go in the buffer of another.
struct Target {
    offset: usize,
    strides: Vec<usize>,
}

/// # Safety
/// `target` gives, for every index of `from`, an element of the buffer of `to`, which has the same
/// dtype and shares no byte with `from`.
unsafe fn copy_into(from: &Operand<'_>, to: &Operand<'_>, target: &Target) {
    if from.ty.elements() == 0 {
        return;
    }
    let axes = from.ty.shape().iter().zip(&from.layout.strides).zip(&target.strides);
    let walk = Walk::new(axes.map(|((&size, &s), &t)| Axis { size, strides: [s, t] }));
    let size = from.ty.dtype().size();
    let (source, dest) = (
        from.buffer().wrapping_add(from.layout.offset * size),
        to.buffer().wrapping_add(target.offset * size),
    );
    // SAFETY: as for this function; the four types have the size of the dtype and no invalid bits,
    // and are aligned as it is.
    unsafe {
        match size {
            1 => copy_walk::<u8>(&walk, source.cast(), dest.cast()),
            2 => copy_walk::<u16>(&walk, source.cast(), dest.cast()),
            4 => copy_walk::<u32>(&walk, source.cast(), dest.cast()),
            _ => copy_walk::<u64>(&walk, source.cast(), dest.cast()),
        }
    }
}

/// # Safety
/// Every index of the walk gives a readable element after `source` and a writable one after `dest`,
/// all different and apart from the source.
unsafe fn copy_walk<T: Copy + Send + Sync>(walk: &Walk<2>, source: *const T, dest: *mut T) {
    let (source, dest) = (Shared::new(source.cast_mut()), Shared::new(dest));
    // The axis that the source walks without gaps, if it is not the last: a transposition.
    let inner = walk.axes.len().saturating_sub(1);
    let turned = match walk.axes.last() {
        Some(last) if last.strides != [1, 1] => {
            walk.axes.iter().position(|a| a.strides[0] == 1).filter(|&k| k != inner)
        }
        _ => None,
    };
    let (rows, columns) = match (walk.axes.last(), turned.and_then(|k| walk.axes.get(k))) {
        (None, _) => {
            // SAFETY: a single element.
            unsafe { *dest.get() = *source.get() };
            return;
        }
        (Some(&last), None) => (Axis { size: 1, strides: [0, 0] }, last),
        (Some(&last), Some(&turned)) => (turned, last),
    };
    let outer = Walk {
        axes: walk
            .axes
            .iter()
            .enumerate()
            .filter(|&(k, _)| k != inner && Some(k) != turned)
            .map(|(_, &a)| a)
            .collect(),
    };
    let task = |index: usize| {
        let [s, d] = outer.offsets(index);
        // SAFETY: inside the walk.
        unsafe { copy_plane(rows, columns, source.get().wrapping_add(s), dest.get().wrapping_add(d)) };
    };
    let planes = outer.count();
    let bytes = walk.count() * size_of::<T>();
    if bytes < PARALLEL_BYTES {
        parallel::tasks(planes, false, &task);
    } else if planes > 1 {
        let group = (PARALLEL_BYTES * planes / bytes / 4).max(1);
        parallel::tasks(planes.div_ceil(group), true, &|k| {
            (k * group..((k + 1) * group).min(planes)).for_each(task);
        });
    } else {
        // One plane: cut its longer side.
        let by_rows = rows.size > columns.size;
        let side = if by_rows { rows } else { columns };
        let part = side.size.div_ceil(16).next_multiple_of(TILE);
        parallel::tasks(side.size.div_ceil(part), true, &|k| {
            let start = k * part;
            let cut = Axis { size: part.min(side.size - start), ..side };
            let (rows, columns) = if by_rows { (cut, columns) } else { (rows, cut) };
            let [s, d] = side.strides.map(|stride| stride * start);
            // SAFETY: inside the walk.
            unsafe { copy_plane(rows, columns, source.get().wrapping_add(s), dest.get().wrapping_add(d)) };
        });
    }
}

/// # Safety
/// As [`copy_walk`], for two axes.
unsafe fn copy_plane<T: Copy>(rows: Axis<2>, columns: Axis<2>, source: *const T, dest: *mut T) {
    // SAFETY (all below): indices stay below the sizes of the two axes.
    if rows.size == 1 {
        unsafe { copy_row(columns, source, dest) };
        return;
    }
    for row in (0..rows.size).step_by(TILE) {
        for column in (0..columns.size).step_by(TILE) {
            for r in row..rows.size.min(row + TILE) {
                for c in column..columns.size.min(column + TILE) {
                    unsafe {
                        let from = source.add(r * rows.strides[0] + c * columns.strides[0]);
                        *dest.add(r * rows.strides[1] + c * columns.strides[1]) = *from;
                    }
                }
            }
        }
    }
}

/// # Safety
/// As [`copy_walk`], for one axis.
unsafe fn copy_row<T: Copy>(axis: Axis<2>, source: *const T, dest: *mut T) {
    // SAFETY (all below): indices stay below the size of the axis.
    unsafe {
        match axis.strides {
            [1, 1] => dest.copy_from_nonoverlapping(source, axis.size),
            [0, 1] => std::slice::from_raw_parts_mut(dest, axis.size).fill(*source),
            [from, to] => {
                for i in 0..axis.size {
                    *dest.add(i * to) = *source.add(i * from);
                }
            }
        }
    }
}
