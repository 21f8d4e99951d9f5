//! Softmax, its gradient, and its logarithm, over the last axis.

use std::ops::Range;

use super::{
    real::{Accumulator, Real, for_float, vectorised},
    rows::{BLOCK, Row, Rows, blocks, dot, for_rows, largest, sum},
};
use crate::{exec::cpu::Call, ops::OpError};

/// Operand x → y. y may lie over x.
pub fn softmax(call: &Call<'_>) -> Result<(), OpError> {
    for_float!(call.arg_operand(0)?.ty.dtype(), softmax_of(call))
}

fn softmax_of<T: Real>(call: &Call<'_>) -> Result<(), OpError> {
    let x = Rows::<T>::new(&call.arg_operand(0)?)?;
    let y = Rows::<T>::new(&call.result_operand(0)?)?;
    for_rows(y.rows, y.columns, |rows| softmax_rows(x, y, rows));
    Ok(())
}

/// Operand x → y. y may lie over x.
pub fn log_softmax(call: &Call<'_>) -> Result<(), OpError> {
    for_float!(call.arg_operand(0)?.ty.dtype(), log_softmax_of(call))
}

fn log_softmax_of<T: Real>(call: &Call<'_>) -> Result<(), OpError> {
    let x = Rows::<T>::new(&call.arg_operand(0)?)?;
    let y = Rows::<T>::new(&call.result_operand(0)?)?;
    for_rows(y.rows, y.columns, |rows| log_softmax_rows(x, y, rows));
    Ok(())
}

/// Operands (y, g) → dx. dx may lie over either.
pub fn softmax_grad(call: &Call<'_>) -> Result<(), OpError> {
    for_float!(call.arg_operand(0)?.ty.dtype(), softmax_grad_of(call))
}

fn softmax_grad_of<T: Real>(call: &Call<'_>) -> Result<(), OpError> {
    let y = Rows::<T>::new(&call.arg_operand(0)?)?;
    let g = Rows::<T>::new(&call.arg_operand(1)?)?;
    let dx = Rows::<T>::new(&call.result_operand(0)?)?;
    for_rows(dx.rows, dx.columns, |rows| softmax_grad_rows(y, g, dx, rows));
    Ok(())
}

/// The largest element (0 where all are −∞, so that differences stay defined).
///
/// # Safety
/// As [`Row::load`].
#[inline(always)]
pub unsafe fn shift<T: Real>(x: Row<T>, columns: usize) -> T::Acc {
    let mut buffer = [T::Acc::ZERO; BLOCK];
    let mut top = T::Acc::NEG_INFINITY;
    for (start, len) in blocks(columns) {
        let block = &mut buffer[..len];
        // SAFETY: the block is inside the row; the rest is the caller's promise.
        unsafe { x.load(start, block) };
        let here = largest(block);
        top = if here > top { here } else { top };
    }
    if top == T::Acc::NEG_INFINITY { T::Acc::ZERO } else { top }
}

/// log Σ exp of a row in two parts, whose sum it is: the largest element, and the logarithm of the
/// sum against it. Apart, they do not round small differences away between large elements. The second
/// is −∞ where all elements are. Blocks are summed in f64.
///
/// # Safety
/// As [`Row::load`].
#[inline(always)]
pub unsafe fn log_sum_exp<T: Real>(x: Row<T>, columns: usize) -> (T::Acc, T::Acc) {
    // SAFETY: the caller's promise, here and below.
    let shift = unsafe { shift(x, columns) };
    let mut buffer = [T::Acc::ZERO; BLOCK];
    let mut total = 0.0;
    for (start, len) in blocks(columns) {
        let block = &mut buffer[..len];
        // SAFETY: as above.
        unsafe { x.load(start, block) };
        for value in block.iter_mut() {
            *value = (*value - shift).exp();
        }
        total += sum(block).to_f64();
    }
    (shift, T::Acc::from_f64(total.ln()))
}

vectorised! {
    fn softmax_rows<T: Real>(x: Rows<'_, T>, y: Rows<'_, T>, rows: Range<usize>) {
        let mut buffer = [T::Acc::ZERO; BLOCK];
        for index in rows {
            let (x, y, columns) = (x.row(index), y.row(index), y.columns);
            // SAFETY: blocks are inside the rows, and this task alone uses rows `rows`. Where y
            // lies over x, the exponentials replace x only after the shift is known, and for types
            // that would round them x is kept until the last pass.
            unsafe {
                let shift = shift(x, columns);
                let mut total = 0.0;
                for (start, len) in blocks(columns) {
                    let block = &mut buffer[..len];
                    x.load(start, block);
                    for value in block.iter_mut() {
                        *value = (*value - shift).exp();
                    }
                    total += sum(block).to_f64();
                    if T::EXACT {
                        y.store(start, block);
                    }
                }
                let scale = T::Acc::from_f64(if total == 0.0 { 0.0 } else { total.recip() });
                for (start, len) in blocks(columns) {
                    let block = &mut buffer[..len];
                    if T::EXACT {
                        y.load(start, block);
                        for value in block.iter_mut() {
                            *value *= scale;
                        }
                    } else {
                        x.load(start, block);
                        for value in block.iter_mut() {
                            *value = (*value - shift).exp() * scale;
                        }
                    }
                    y.store(start, block);
                }
            }
        }
    }
}

vectorised! {
    fn log_softmax_rows<T: Real>(x: Rows<'_, T>, y: Rows<'_, T>, rows: Range<usize>) {
        let mut buffer = [T::Acc::ZERO; BLOCK];
        for index in rows {
            let (x, y, columns) = (x.row(index), y.row(index), y.columns);
            // SAFETY: blocks are inside the rows, this task alone uses rows `rows`, and each block
            // is loaded before it is stored.
            unsafe {
                let (shift, log) = log_sum_exp(x, columns);
                let masked = log == T::Acc::NEG_INFINITY;
                for (start, len) in blocks(columns) {
                    let block = &mut buffer[..len];
                    x.load(start, block);
                    if !masked {
                        for value in block.iter_mut() {
                            *value = *value - shift - log;
                        }
                    }
                    y.store(start, block);
                }
            }
        }
    }
}

vectorised! {
    fn softmax_grad_rows<T: Real>(
        y: Rows<'_, T>,
        g: Rows<'_, T>,
        dx: Rows<'_, T>,
        rows: Range<usize>,
    ) {
        /// Where y is 0, g does not count, not even an infinite one.
        #[inline(always)]
        fn hide<A: Accumulator>(y: &[A], g: &mut [A]) {
            for (&y, g) in y.iter().zip(g) {
                *g = if y == A::ZERO { A::ZERO } else { *g };
            }
        }
        let mut y_buffer = [T::Acc::ZERO; BLOCK];
        let mut g_buffer = [T::Acc::ZERO; BLOCK];
        for index in rows {
            let columns = dx.columns;
            let (y, g, dx) = (y.row(index), g.row(index), dx.row(index));
            // SAFETY: blocks are inside the rows, this task alone uses rows `rows`, and each block
            // of y and g is loaded before dx is stored over it.
            unsafe {
                let mut total = 0.0;
                for (start, len) in blocks(columns) {
                    let (y_block, g_block) = (&mut y_buffer[..len], &mut g_buffer[..len]);
                    y.load(start, y_block);
                    g.load(start, g_block);
                    hide(y_block, g_block);
                    total += dot(y_block, g_block).to_f64();
                }
                let total = T::Acc::from_f64(total);
                for (start, len) in blocks(columns) {
                    let (y_block, g_block) = (&mut y_buffer[..len], &mut g_buffer[..len]);
                    y.load(start, y_block);
                    g.load(start, g_block);
                    for (&y, g) in y_block.iter().zip(g_block.iter_mut()) {
                        *g = if y == T::Acc::ZERO { T::Acc::ZERO } else { y * (*g - total) };
                    }
                    dx.store(start, g_block);
                }
            }
        }
    }
}
