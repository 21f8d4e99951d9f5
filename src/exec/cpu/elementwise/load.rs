//! Between tensors in memory and registers.

use super::{
    Bound,
    compile::{InputPlan, OutputPlan, Place},
};
use crate::{exec::cpu::convert, ir::DType};

/// Address of a register's elements in this block.
///
/// # Safety
/// The place is one of the bound program; inputs in place are dense.
#[inline(always)]
pub(super) unsafe fn address<T>(place: Place, bound: &Bound<'_>, base: *mut u8, start: usize) -> *const T {
    match place {
        Place::Scratch(at) => base.wrapping_add(at).cast(),
        Place::Input(k) => match bound.inputs.get(k) {
            Some(input) => input.get().cast::<T>().wrapping_add(start),
            None => base.cast(),
        },
    }
}

/// Loads elements `start..start + len` of input `k` into a register.
///
/// # Safety
/// As for [`super::Program::run`]; `dest` has room for `len` elements of the register's class.
#[inline(always)]
pub(super) unsafe fn load(k: usize, bound: &Bound<'_>, dest: *mut u8, start: usize, len: usize) {
    let (Some(input), Some(source)) = (bound.program.inputs.get(k), bound.inputs.get(k)) else { return };
    let (source, sizes) = (source.get(), &bound.program.sizes);
    // SAFETY (all below): as for this function.
    unsafe {
        match input.dtype {
            DType::F32 => rows::<f32, f32>(input, sizes, source, dest, start, len, |x| x),
            DType::F16 => rows::<u16, f32>(input, sizes, source, dest, start, len, convert::f16_to_f32),
            DType::BF16 => rows::<u16, f32>(input, sizes, source, dest, start, len, convert::bf16_to_f32),
            DType::F64 => rows::<f64, f64>(input, sizes, source, dest, start, len, |x| x),
            DType::I32 => rows::<i32, i32>(input, sizes, source, dest, start, len, |x| x),
            DType::I64 => rows::<i64, i64>(input, sizes, source, dest, start, len, |x| x),
            DType::U8 | DType::Bool => rows::<u8, u8>(input, sizes, source, dest, start, len, |x| x),
        }
    }
}

/// Row by row of the innermost axis: dense, repeated, or with a stride.
#[inline(always)]
unsafe fn rows<S: Copy, D: Copy>(
    input: &InputPlan,
    sizes: &[usize],
    source: *const u8,
    dest: *mut u8,
    start: usize,
    len: usize,
    convert: impl Fn(S) -> D,
) {
    // SAFETY: `len` elements (see `load`).
    let dest = unsafe { std::slice::from_raw_parts_mut(dest.cast::<D>(), len) };
    let source = source.cast::<S>();
    let (Some((&size, outer_sizes)), Some((&stride, outer_strides))) =
        (sizes.split_last(), input.strides.split_last())
    else {
        // A single element.
        // SAFETY: the input has it.
        dest.fill(convert(unsafe { *source }));
        return;
    };
    let (mut row, mut column) = (start / size, start % size);
    let mut rest = dest;
    while !rest.is_empty() {
        let mut offset = column * stride;
        let mut index = row;
        for (&size, &stride) in outer_sizes.iter().zip(outer_strides).rev() {
            offset += index % size * stride;
            index /= size;
        }
        let run = rest.len().min(size - column);
        let (now, later) = rest.split_at_mut(run);
        let from = source.wrapping_add(offset);
        match stride {
            0 => {
                // SAFETY: an element of the input.
                now.fill(convert(unsafe { *from }));
            }
            1 => {
                // SAFETY: the rest of this row, without gaps.
                let from = unsafe { std::slice::from_raw_parts(from, run) };
                for (to, &from) in now.iter_mut().zip(from) {
                    *to = convert(from);
                }
            }
            _ => {
                for (i, to) in now.iter_mut().enumerate() {
                    // SAFETY: the rest of this row.
                    *to = convert(unsafe { *from.add(i * stride) });
                }
            }
        }
        rest = later;
        row += 1;
        column = 0;
    }
}

/// Stores a register into elements `start..start + len` of a dense output.
///
/// # Safety
/// As for [`super::Program::run`].
#[inline(always)]
pub(super) unsafe fn store(
    output: &OutputPlan,
    target: *mut u8,
    bound: &Bound<'_>,
    base: *mut u8,
    start: usize,
    len: usize,
) {
    // SAFETY (all below): as for this function. An output may lie over the input that the register
    // still is, so the plain copies allow overlap.
    unsafe {
        match output.dtype {
            DType::F16 => halves(output, target, bound, base, start, len, convert::f32_to_f16),
            DType::BF16 => halves(output, target, bound, base, start, len, convert::f32_to_bf16),
            DType::F32 | DType::I32 => plain::<u32>(output, target, bound, base, start, len),
            DType::F64 | DType::I64 => plain::<u64>(output, target, bound, base, start, len),
            DType::U8 | DType::Bool => plain::<u8>(output, target, bound, base, start, len),
        }
    }
}

#[inline(always)]
unsafe fn plain<T>(
    output: &OutputPlan,
    target: *mut u8,
    bound: &Bound<'_>,
    base: *mut u8,
    start: usize,
    len: usize,
) {
    // SAFETY: as for `store`.
    unsafe {
        let from = address::<T>(output.place, bound, base, start);
        target.cast::<T>().add(start).copy_from(from, len);
    }
}

#[inline(always)]
unsafe fn halves(
    output: &OutputPlan,
    target: *mut u8,
    bound: &Bound<'_>,
    base: *mut u8,
    start: usize,
    len: usize,
    round: impl Fn(f32) -> u16,
) {
    // SAFETY: as for `store`; a register of halves is never an input in place.
    let (from, to) = unsafe {
        let from = address::<f32>(output.place, bound, base, start);
        (
            std::slice::from_raw_parts(from, len),
            std::slice::from_raw_parts_mut(target.cast::<u16>().add(start), len),
        )
    };
    for (to, &from) in to.iter_mut().zip(from) {
        *to = round(from);
    }
}
