//! Pooling over the last two axes, plane by plane.

use std::ops::Range;

use super::{
    real::{Accumulator, Real, for_float},
    rows::{Shared, for_rows, for_units, lanes},
};
use crate::{
    exec::cpu::Call,
    ir::Type,
    ops::{OpError, PoolShape},
};

/// The sizes of a pooling.
#[derive(Clone, Copy)]
pub struct Pool {
    pub shape: PoolShape,
    /// n · c
    pub planes: usize,
    /// (h, w) of the input.
    pub input: (usize, usize),
    /// (h', w') of the output.
    pub output: (usize, usize),
}

impl Pool {
    /// `input` and `output` are [n, c, h, w].
    pub fn new(shape: PoolShape, input: &Type, output: &Type) -> Pool {
        let at = |ty: &Type, k: usize| ty.shape().get(k).copied().unwrap_or(0);
        Pool {
            shape,
            planes: at(input, 0) * at(input, 1),
            input: (at(input, 2), at(input, 3)),
            output: (at(output, 2), at(output, 3)),
        }
    }

    fn inputs(&self) -> usize {
        self.input.0 * self.input.1
    }

    fn outputs(&self) -> usize {
        self.output.0 * self.output.1
    }

    /// Elements of f32 workspace for [`max_pool2d_grad`] of a type that is summed in another.
    pub fn grad_workspace(&self) -> usize {
        lanes(self.planes).saturating_mul(self.inputs())
    }

    /// Input rows and columns under the window of output (y, x), without the padding.
    #[inline(always)]
    fn window(&self, y: usize, x: usize) -> (Range<usize>, Range<usize>) {
        let range = |at: usize, stride: usize, padding: usize, kernel: usize, size: usize| {
            let start = at * stride;
            start.saturating_sub(padding).min(size)..(start + kernel).saturating_sub(padding).min(size)
        };
        let PoolShape { kernel, stride, padding } = self.shape;
        (
            range(y, stride.0, padding.0, kernel.0, self.input.0),
            range(x, stride.1, padding.1, kernel.1, self.input.1),
        )
    }

    /// Outputs along one axis whose windows cover input `at`.
    #[inline(always)]
    fn covering(at: usize, stride: usize, padding: usize, kernel: usize, outputs: usize) -> Range<usize> {
        let end = ((at + padding) / stride + 1).min(outputs);
        let start = (at + padding + 1).saturating_sub(kernel).div_ceil(stride);
        start.min(end)..end
    }

    /// The first largest element of a window of `plane`; NaN is larger than anything. `None` for a
    /// window of padding only.
    #[inline(always)]
    fn largest<T: Real>(&self, plane: &[T], y: usize, x: usize) -> Option<usize> {
        let (rows, columns) = self.window(y, x);
        let first = rows.start * self.input.1 + columns.start;
        if rows.is_empty() || columns.is_empty() {
            return None;
        }
        let mut best = first;
        let mut top = plane[first].widen();
        for row in rows {
            let start = row * self.input.1;
            for (index, value) in
                (start + columns.start..).zip(&plane[start + columns.start..start + columns.end])
            {
                // Without branches, which random data would mispredict: NaN wins over numbers, and
                // nothing wins over NaN.
                let value = value.widen();
                let better = (value > top) | (value.is_nan() & !top.is_nan());
                best = if better { index } else { best };
                top = if better { value } else { top };
            }
        }
        Some(best)
    }

    /// Calls `run(output index, y, x)` for every output of a plane.
    #[inline(always)]
    fn for_outputs(&self, mut run: impl FnMut(usize, usize, usize)) {
        for y in 0..self.output.0 {
            for x in 0..self.output.1 {
                run(y * self.output.1 + x, y, x);
            }
        }
    }
}

/// Operand x → y.
pub fn max_pool2d(call: &Call<'_>, pool: &Pool) -> Result<(), OpError> {
    for_float!(call.arg_operand(0)?.ty.dtype(), max_of((call, pool)))
}

fn max_of<T: Real>((call, pool): (&Call<'_>, &Pool)) -> Result<(), OpError> {
    let x = call.arg::<T>(0)?;
    each_plane(call.result::<T>(0)?, pool, |plane, result| {
        let x = &x[plane * pool.inputs()..(plane + 1) * pool.inputs()];
        pool.for_outputs(|index, row, column| {
            result[index] = match pool.largest(x, row, column) {
                Some(best) => x[best],
                None => T::narrow(T::Acc::NEG_INFINITY),
            };
        });
    });
    Ok(())
}

/// Operands (x, t) → the elements of t where x is largest.
pub fn max_pool2d_gather(call: &Call<'_>, pool: &Pool) -> Result<(), OpError> {
    for_float!(call.arg_operand(0)?.ty.dtype(), gather_of((call, pool)))
}

fn gather_of<T: Real>((call, pool): (&Call<'_>, &Pool)) -> Result<(), OpError> {
    let (x, t) = (call.arg::<T>(0)?, call.arg::<T>(1)?);
    each_plane(call.result::<T>(0)?, pool, |plane, result| {
        let plane = plane * pool.inputs()..(plane + 1) * pool.inputs();
        let (x, t) = (&x[plane.clone()], &t[plane]);
        pool.for_outputs(|index, row, column| {
            result[index] = match pool.largest(x, row, column) {
                Some(best) => t[best],
                None => T::narrow(T::Acc::ZERO),
            };
        });
    });
    Ok(())
}

/// Operands (x, g) → dx.
pub fn max_pool2d_grad(call: &Call<'_>, pool: &Pool) -> Result<(), OpError> {
    for_float!(call.arg_operand(0)?.ty.dtype(), max_grad_of((call, pool)))
}

fn max_grad_of<T: Real>((call, pool): (&Call<'_>, &Pool)) -> Result<(), OpError> {
    let (x, g, dx) = (call.arg::<T>(0)?, call.arg::<T>(1)?, Shared::of(call.result::<T>(0)?));
    let lane = if T::EXACT { 0 } else { pool.inputs() };
    for_units(pool.planes, call.workspace::<T::Acc>(), lane, |plane, sums| {
        let x = &x[plane * pool.inputs()..(plane + 1) * pool.inputs()];
        let g = &g[plane * pool.outputs()..(plane + 1) * pool.outputs()];
        // SAFETY: planes of the result are disjoint, and each belongs to one unit.
        let dx = unsafe { dx.write(plane * pool.inputs(), pool.inputs()) };
        if T::EXACT {
            dx.fill(T::narrow(T::Acc::ZERO));
        } else {
            sums.fill(T::Acc::ZERO);
        }
        pool.for_outputs(|index, row, column| {
            if let Some(best) = pool.largest(x, row, column) {
                if T::EXACT {
                    dx[best] = T::narrow(dx[best].widen() + g[index].widen());
                } else {
                    sums[best] += g[index].widen();
                }
            }
        });
        if !T::EXACT {
            T::narrow_slice(sums, dx);
        }
    })
}

/// Operand x → y.
pub fn avg_pool2d(call: &Call<'_>, pool: &Pool) -> Result<(), OpError> {
    for_float!(call.arg_operand(0)?.ty.dtype(), avg_of((call, pool)))
}

/// Elements of a window, padding included.
fn area<A: Accumulator>(pool: &Pool) -> A {
    A::from_f64(pool.shape.kernel.0 as f64 * pool.shape.kernel.1 as f64)
}

fn avg_of<T: Real>((call, pool): (&Call<'_>, &Pool)) -> Result<(), OpError> {
    let x = call.arg::<T>(0)?;
    let area = area::<T::Acc>(pool);
    each_plane(call.result::<T>(0)?, pool, |plane, result| {
        let x = &x[plane * pool.inputs()..(plane + 1) * pool.inputs()];
        pool.for_outputs(|index, row, column| {
            let (rows, columns) = pool.window(row, column);
            let mut total = T::Acc::ZERO;
            for row in rows {
                for value in &x[row * pool.input.1 + columns.start..row * pool.input.1 + columns.end] {
                    total += value.widen();
                }
            }
            result[index] = T::narrow(total / area);
        });
    });
    Ok(())
}

/// Operand g → dx: for each input, the sum over the windows that cover it.
pub fn avg_pool2d_grad(call: &Call<'_>, pool: &Pool) -> Result<(), OpError> {
    for_float!(call.arg_operand(0)?.ty.dtype(), avg_grad_of((call, pool)))
}

fn avg_grad_of<T: Real>((call, pool): (&Call<'_>, &Pool)) -> Result<(), OpError> {
    let (g, dx) = (call.arg::<T>(0)?, Shared::of(call.result::<T>(0)?));
    let area = area::<T::Acc>(pool);
    let PoolShape { kernel, stride, padding } = pool.shape;
    for_rows(pool.planes, pool.inputs(), |planes| {
        for plane in planes {
            let g = &g[plane * pool.outputs()..(plane + 1) * pool.outputs()];
            // SAFETY: planes of the result are disjoint, and each belongs to one task.
            let dx = unsafe { dx.write(plane * pool.inputs(), pool.inputs()) };
            for row in 0..pool.input.0 {
                let rows = Pool::covering(row, stride.0, padding.0, kernel.0, pool.output.0);
                for column in 0..pool.input.1 {
                    let columns = Pool::covering(column, stride.1, padding.1, kernel.1, pool.output.1);
                    let mut total = T::Acc::ZERO;
                    for y in rows.clone() {
                        for x in columns.clone() {
                            total += g[y * pool.output.1 + x].widen();
                        }
                    }
                    dx[row * pool.input.1 + column] = T::narrow(total / area);
                }
            }
        }
    });
    Ok(())
}

/// Calls `run(plane, its outputs)` for every plane.
fn each_plane<T: Real>(result: &mut [T], pool: &Pool, run: impl Fn(usize, &mut [T]) + Sync) {
    let work = pool.outputs().saturating_mul(pool.shape.kernel.0).saturating_mul(pool.shape.kernel.1);
    let result = Shared::of(result);
    for_rows(pool.planes, work, |planes| {
        for plane in planes {
            // SAFETY: planes of the result are disjoint, and each belongs to one task.
            run(plane, unsafe { result.write(plane * pool.outputs(), pool.outputs()) });
        }
    });
}
