//! Tensors as rows along their last axis, with any strides; and how rows are spread over threads.

use std::{marker::PhantomData, ops::Range};

use super::{
    product::Matrix,
    real::{Accumulator, Real},
};
use crate::{
    exec::cpu::parallel,
    exec::{Element, cpu::Operand},
    ops::OpError,
};

/// Elements that a loop converts and computes at a time: small enough for the first-level cache.
pub const BLOCK: usize = 256;

/// Elements below which a loop is not worth a thread of its own.
const GRAIN: usize = 16 * 1024;

/// An operand or result as rows along the last axis. A scalar is one row of one element.
#[derive(Clone, Copy)]
pub struct Rows<'a, T> {
    start: *mut T,
    /// Sizes and strides of the axes before the last.
    shape: &'a [usize],
    strides: &'a [usize],
    dense: bool,
    pub rows: usize,
    pub columns: usize,
    column_stride: usize,
    _memory: PhantomData<&'a mut [T]>,
}

// SAFETY: an address with a layout; the methods that touch memory state what they need.
unsafe impl<T: Send> Send for Rows<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Rows<'_, T> {}

impl<'a, T: Element> Rows<'a, T> {
    pub fn new(operand: &Operand<'a>) -> Result<Self, OpError> {
        if operand.ty.dtype() != T::DTYPE {
            return Err(OpError::new(format!("internal: a kernel for {} got {}", T::DTYPE, operand.ty)));
        }
        let shape = operand.ty.shape();
        let strides = &*operand.layout.strides;
        let (columns, shape) = shape.split_last().map_or((1, shape), |(&last, lead)| (last, lead));
        let (column_stride, strides) =
            strides.split_last().map_or((1, strides), |(&last, lead)| (last, lead));
        Ok(Rows {
            start: operand.as_ptr::<T>(),
            shape,
            strides,
            dense: operand.layout.is_dense(operand.ty.shape()),
            rows: shape.iter().product(),
            columns,
            column_stride,
            _memory: PhantomData,
        })
    }

    /// Every element as a row of its own: for one number a row of another tensor.
    pub fn elements(operand: &Operand<'a>) -> Result<Self, OpError> {
        let rows = Rows::new(operand)?;
        Ok(Rows {
            shape: operand.ty.shape(),
            strides: &operand.layout.strides,
            rows: operand.ty.elements(),
            columns: 1,
            column_stride: 1,
            ..rows
        })
    }

    /// Row number `index`, in row-major order of the axes before the last.
    #[inline(always)]
    pub fn row(&self, index: usize) -> Row<T> {
        debug_assert!(index < self.rows);
        let offset = if self.dense {
            index * self.columns
        } else {
            let mut rest = index;
            let mut offset = 0;
            for (&dim, &stride) in self.shape.iter().zip(self.strides).rev() {
                offset += (rest % dim) * stride;
                rest /= dim;
            }
            offset
        };
        let stride = if self.dense { 1 } else { self.column_stride };
        Row { start: self.start.wrapping_add(offset), stride, columns: self.columns }
    }
}

impl<T: Real> Rows<'_, T> {
    /// Rows `index..index + rows`, which differ in the last of the axes before the columns only, in
    /// the accumulator's type: where they are, or converted into `scratch`. For reading.
    ///
    /// # Safety
    /// The rows exist, no other thread writes them, and `scratch` holds `rows · columns` elements.
    #[inline]
    pub unsafe fn tile(&self, index: usize, rows: usize, scratch: &mut [T::Acc]) -> Matrix<T::Acc> {
        let row = self.strides.last().copied().unwrap_or(0);
        // Products want distinct addresses for distinct elements.
        if T::EXACT && row != 0 && self.column_stride != 0 {
            return Matrix::new(self.row(index).start.cast::<T::Acc>(), row, self.column_stride);
        }
        for (k, to) in scratch.chunks_exact_mut(self.columns.max(1)).take(rows).enumerate() {
            // SAFETY: the row exists and is not written.
            unsafe { self.row(index + k).load(0, to) };
        }
        Matrix::new(scratch.as_mut_ptr(), self.columns, 1)
    }
}

/// One row.
#[derive(Clone, Copy)]
pub struct Row<T> {
    start: *mut T,
    stride: usize,
    columns: usize,
}

// SAFETY: an address with a length; the methods that touch memory state what they need.
unsafe impl<T: Send> Send for Row<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Row<T> {}

impl<T: Element> Row<T> {
    /// Element `index` of the row.
    ///
    /// # Safety
    /// No other thread writes the row.
    #[inline(always)]
    pub unsafe fn get(&self, index: usize) -> T {
        debug_assert!(index < self.columns);
        // SAFETY: the caller's promise; the index is inside the operand.
        unsafe { *self.start.add(index * self.stride) }
    }

    /// # Safety
    /// No other thread uses the row.
    #[inline(always)]
    pub unsafe fn set(&self, index: usize, value: T) {
        debug_assert!(index < self.columns);
        // SAFETY: the caller's promise; the index is inside the result.
        unsafe { *self.start.add(index * self.stride) = value }
    }
}

impl<T: Real> Row<T> {
    /// Loads the elements from `start` on.
    ///
    /// # Safety
    /// `start + to.len()` is at most the row's length, and no other thread writes the row.
    #[inline(always)]
    pub unsafe fn load(&self, start: usize, to: &mut [T::Acc]) {
        debug_assert!(start + to.len() <= self.columns);
        // SAFETY: the caller's promise: these elements belong to the operand.
        unsafe {
            if self.stride == 1 {
                T::widen_slice(std::slice::from_raw_parts(self.start.add(start), to.len()), to);
            } else {
                for (i, to) in to.iter_mut().enumerate() {
                    *to = (*self.start.add((start + i) * self.stride)).widen();
                }
            }
        }
    }

    /// Stores elements from `start` on. Rows of results are dense.
    ///
    /// # Safety
    /// `start + from.len()` is at most the row's length, and no other thread uses the row.
    #[inline(always)]
    pub unsafe fn store(&self, start: usize, from: &[T::Acc]) {
        debug_assert!(start + from.len() <= self.columns && self.stride == 1);
        // SAFETY: the caller's promise: these elements belong to the result.
        unsafe {
            T::narrow_slice(from, std::slice::from_raw_parts_mut(self.start.add(start), from.len()));
        }
    }
}

/// The blocks of a row: start and length.
#[inline(always)]
pub fn blocks(columns: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..columns.div_ceil(BLOCK)).map(move |k| (k * BLOCK, BLOCK.min(columns - k * BLOCK)))
}

/// The sum in eight lanes: an order that depends on the length only.
#[inline(always)]
pub fn sum<A: Accumulator>(values: &[A]) -> A {
    let mut lanes = [A::ZERO; 8];
    let chunks = values.chunks_exact(8);
    let rest = chunks.remainder();
    for chunk in chunks {
        for (lane, &x) in lanes.iter_mut().zip(chunk) {
            *lane += x;
        }
    }
    for (lane, &x) in lanes.iter_mut().zip(rest) {
        *lane += x;
    }
    let [a, b, c, d, e, f, g, h] = lanes;
    ((a + e) + (c + g)) + ((b + f) + (d + h))
}

/// The sum of products, in the order of [`sum`].
#[inline(always)]
pub fn dot<A: Accumulator>(a: &[A], b: &[A]) -> A {
    let mut lanes = [A::ZERO; 8];
    let (left, right) = (a.chunks_exact(8), b.chunks_exact(8));
    let (left_rest, right_rest) = (left.remainder(), right.remainder());
    for (left, right) in left.zip(right) {
        for ((lane, &x), &y) in lanes.iter_mut().zip(left).zip(right) {
            *lane += x * y;
        }
    }
    for ((lane, &x), &y) in lanes.iter_mut().zip(left_rest).zip(right_rest) {
        *lane += x * y;
    }
    let [a, b, c, d, e, f, g, h] = lanes;
    ((a + e) + (c + g)) + ((b + f) + (d + h))
}

/// The largest value; NaN is passed over. −∞ for none.
#[inline(always)]
pub fn largest<A: Accumulator>(values: &[A]) -> A {
    #[inline(always)]
    fn larger<A: Accumulator>(a: A, b: A) -> A {
        if b > a { b } else { a }
    }
    let mut lanes = [A::NEG_INFINITY; 8];
    let chunks = values.chunks_exact(8);
    let rest = chunks.remainder();
    for chunk in chunks {
        for (lane, &x) in lanes.iter_mut().zip(chunk) {
            *lane = larger(*lane, x);
        }
    }
    for (lane, &x) in lanes.iter_mut().zip(rest) {
        *lane = larger(*lane, x);
    }
    lanes.into_iter().fold(A::NEG_INFINITY, larger)
}

/// Calls `run` for ranges that together are `0..rows`, on several threads where there is enough to
/// do. `run` treats every row by itself, so results do not depend on the ranges.
pub fn for_rows(rows: usize, columns: usize, run: impl Fn(Range<usize>) + Sync) {
    let per_task = (GRAIN / columns.max(1)).max(1);
    let tasks = rows.div_ceil(per_task).min(256);
    if tasks <= 1 || rayon::current_num_threads() == 1 {
        run(0..rows);
        return;
    }
    parallel::tasks(tasks, true, &|task| run(part(rows, tasks, task)));
}

/// The `index`-th of `parts` nearly equal parts of `0..total`.
pub fn part(total: usize, parts: usize, index: usize) -> Range<usize> {
    let at = |i: usize| (total as u128 * i as u128 / parts.max(1) as u128) as usize;
    at(index)..at(index + 1)
}

/// Into how many lanes of scratch memory work is divided. A fixed number, so that the planned
/// workspace does not depend on the machine.
pub const LANES: usize = 8;

/// Lanes that `units` of work use.
pub fn lanes(units: usize) -> usize {
    units.clamp(1, LANES)
}

/// Calls `run(unit, scratch)` for every unit of work. Units are dealt to lanes in turn; each lane
/// has `lane_len` elements of `scratch` of its own, with any content. Without scratch, every unit
/// is a task.
pub fn for_units<A: Accumulator>(
    units: usize,
    scratch: &mut [A],
    lane_len: usize,
    run: impl Fn(usize, &mut [A]) + Sync,
) -> Result<(), OpError> {
    if units == 0 {
        return Ok(());
    }
    if lane_len == 0 {
        parallel::tasks(units, true, &|unit| run(unit, &mut []));
        return Ok(());
    }
    let lanes = lanes(units);
    if scratch.len() / lane_len < lanes {
        return Err(OpError::new("internal: a kernel got less workspace than it asked for"));
    }
    parallel::chunks(&mut scratch[..lanes * lane_len], lane_len, &|lane, scratch| {
        for unit in (lane..units).step_by(lanes) {
            run(unit, scratch);
        }
    });
    Ok(())
}

/// An address that several threads may hold.
#[derive(Clone, Copy)]
pub struct Shared<T>(*mut T);

// SAFETY: only an address; whoever dereferences it says why that is sound.
unsafe impl<T: Send> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Shared<T> {}

impl<T> Shared<T> {
    pub fn new(start: *mut T) -> Self {
        Shared(start)
    }

    pub fn of(slice: &mut [T]) -> Self {
        Shared(slice.as_mut_ptr())
    }

    /// The address `offset` elements on.
    #[inline(always)]
    pub fn at(&self, offset: usize) -> *mut T {
        self.0.wrapping_add(offset)
    }

    /// # Safety
    /// The elements belong to the memory this was made of and are initialised, and nobody writes them
    /// while the slice is used.
    #[inline(always)]
    pub unsafe fn read<'a>(&self, offset: usize, len: usize) -> &'a [T] {
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts(self.0.add(offset), len) }
    }

    /// # Safety
    /// The elements belong to the memory this was made of, which may be written, and nobody else uses
    /// them while the slice is used.
    #[inline(always)]
    pub unsafe fn write<'a>(&self, offset: usize, len: usize) -> &'a mut [T] {
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.0.add(offset), len) }
    }
}
