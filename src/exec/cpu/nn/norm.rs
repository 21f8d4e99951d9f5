//! Layer norm and RMS norm over the last axis, and their gradients.

use std::ops::Range;

use super::{
    real::{Accumulator, Real, for_float, vectorised},
    rows::{BLOCK, Rows, blocks, dot, for_rows, part, sum},
};
use crate::{
    exec::cpu::{Call, parallel},
    ops::OpError,
};

/// Operands and results of a forward norm. RMS norm has neither shift nor mean.
#[derive(Clone, Copy)]
struct Forward<'a, T: Real> {
    x: Rows<'a, T>,
    w: Rows<'a, T>,
    b: Option<Rows<'a, T>>,
    y: Rows<'a, T>,
    mean: Option<Rows<'a, T::Acc>>,
    rstd: Rows<'a, T::Acc>,
    eps: f64,
}

/// Operands (x, w, b) → (y, mean, rstd). y may lie over x.
pub fn layer_norm(call: &Call<'_>, eps: f64) -> Result<(), OpError> {
    for_float!(call.arg_operand(0)?.ty.dtype(), layer_norm_of((call, eps)))
}

fn layer_norm_of<T: Real>((call, eps): (&Call<'_>, f64)) -> Result<(), OpError> {
    let norm = Forward::<T> {
        x: Rows::new(&call.arg_operand(0)?)?,
        w: Rows::new(&call.arg_operand(1)?)?,
        b: Some(Rows::new(&call.arg_operand(2)?)?),
        y: Rows::new(&call.result_operand(0)?)?,
        mean: Some(Rows::elements(&call.result_operand(1)?)?),
        rstd: Rows::elements(&call.result_operand(2)?)?,
        eps,
    };
    for_rows(norm.y.rows, norm.y.columns, |rows| forward_rows(norm, rows));
    Ok(())
}

/// Operands (x, w) → (y, rstd). y may lie over x.
pub fn rms_norm(call: &Call<'_>, eps: f64) -> Result<(), OpError> {
    for_float!(call.arg_operand(0)?.ty.dtype(), rms_norm_of((call, eps)))
}

fn rms_norm_of<T: Real>((call, eps): (&Call<'_>, f64)) -> Result<(), OpError> {
    let norm = Forward::<T> {
        x: Rows::new(&call.arg_operand(0)?)?,
        w: Rows::new(&call.arg_operand(1)?)?,
        b: None,
        y: Rows::new(&call.result_operand(0)?)?,
        mean: None,
        rstd: Rows::elements(&call.result_operand(1)?)?,
        eps,
    };
    for_rows(norm.y.rows, norm.y.columns, |rows| forward_rows(norm, rows));
    Ok(())
}

vectorised! {
    fn forward_rows<T: Real>(norm: Forward<'_, T>, rows: Range<usize>) {
        let mut buffer = [T::Acc::ZERO; BLOCK];
        let mut factor = [T::Acc::ZERO; BLOCK];
        let columns = norm.y.columns;
        let w = norm.w.row(0);
        for index in rows {
            let (x, y) = (norm.x.row(index), norm.y.row(index));
            // SAFETY: blocks are inside the rows, this task alone uses row `index` of the results,
            // and each block of x is loaded for the last time before y is stored over it.
            unsafe {
                let mut mean = T::Acc::ZERO;
                if norm.mean.is_some() {
                    let mut total = 0.0;
                    for (start, len) in blocks(columns) {
                        let block = &mut buffer[..len];
                        x.load(start, block);
                        total += sum(block).to_f64();
                    }
                    mean = T::Acc::from_f64(total / columns as f64);
                }
                let mut squares = 0.0;
                for (start, len) in blocks(columns) {
                    let block = &mut buffer[..len];
                    x.load(start, block);
                    for value in block.iter_mut() {
                        *value -= mean;
                    }
                    squares += dot(block, block).to_f64();
                }
                let rstd = T::Acc::from_f64((squares / columns as f64 + norm.eps).sqrt().recip());
                for (start, len) in blocks(columns) {
                    let (block, factor) = (&mut buffer[..len], &mut factor[..len]);
                    x.load(start, block);
                    w.load(start, factor);
                    for (value, &w) in block.iter_mut().zip(factor.iter()) {
                        *value = (*value - mean) * rstd * w;
                    }
                    if let Some(b) = norm.b {
                        b.row(0).load(start, factor);
                        for (value, &b) in block.iter_mut().zip(factor.iter()) {
                            *value += b;
                        }
                    }
                    y.store(start, block);
                }
                if let Some(means) = norm.mean {
                    means.row(index).set(0, mean);
                }
                norm.rstd.row(index).set(0, rstd);
            }
        }
    }
}

/// Operands and results of a gradient. RMS norm has neither mean nor db.
#[derive(Clone, Copy)]
struct Backward<'a, T: Real> {
    x: Rows<'a, T>,
    w: Rows<'a, T>,
    mean: Option<Rows<'a, T::Acc>>,
    rstd: Rows<'a, T::Acc>,
    g: Rows<'a, T>,
    dx: Rows<'a, T>,
}

/// Into how many parts the rows are divided for dw and db: each is summed by itself, then the parts
/// in order. By shape only.
fn parts(rows: usize) -> usize {
    (rows / 32).clamp(1, 16)
}

/// Elements of workspace, in the accumulator's type: a sum of dw (and one of db) for each part.
pub fn grad_workspace(rows: usize, columns: usize, sums: usize) -> usize {
    parts(rows).saturating_mul(columns).saturating_mul(sums)
}

/// Operands (x, w, mean, rstd, g) → (dx, dw, db). dx may lie over x or g.
pub fn layer_norm_grad(call: &Call<'_>) -> Result<(), OpError> {
    for_float!(call.arg_operand(0)?.ty.dtype(), layer_norm_grad_of(call))
}

fn layer_norm_grad_of<T: Real>(call: &Call<'_>) -> Result<(), OpError> {
    let norm = Backward::<T> {
        x: Rows::new(&call.arg_operand(0)?)?,
        w: Rows::new(&call.arg_operand(1)?)?,
        mean: Some(Rows::elements(&call.arg_operand(2)?)?),
        rstd: Rows::elements(&call.arg_operand(3)?)?,
        g: Rows::new(&call.arg_operand(4)?)?,
        dx: Rows::new(&call.result_operand(0)?)?,
    };
    backward(norm, call.workspace(), &mut [call.result(1)?, call.result(2)?])
}

/// Operands (x, w, rstd, g) → (dx, dw). dx may lie over x or g.
pub fn rms_norm_grad(call: &Call<'_>) -> Result<(), OpError> {
    for_float!(call.arg_operand(0)?.ty.dtype(), rms_norm_grad_of(call))
}

fn rms_norm_grad_of<T: Real>(call: &Call<'_>) -> Result<(), OpError> {
    let norm = Backward::<T> {
        x: Rows::new(&call.arg_operand(0)?)?,
        w: Rows::new(&call.arg_operand(1)?)?,
        mean: None,
        rstd: Rows::elements(&call.arg_operand(2)?)?,
        g: Rows::new(&call.arg_operand(3)?)?,
        dx: Rows::new(&call.result_operand(0)?)?,
    };
    backward(norm, call.workspace(), &mut [call.result(1)?])
}

/// `sums` are dw and, for layer norm, db.
fn backward<T: Real>(
    norm: Backward<'_, T>,
    workspace: &mut [T::Acc],
    sums: &mut [&mut [T]],
) -> Result<(), OpError> {
    let (rows, columns) = (norm.dx.rows, norm.dx.columns);
    if columns == 0 {
        return Ok(());
    }
    let parts = parts(rows);
    let width = columns * sums.len();
    let Some(partial) = workspace.get_mut(..parts * width) else {
        return Err(OpError::new("internal: a kernel got less workspace than it asked for"));
    };
    partial.fill(T::Acc::ZERO);
    let task = |index: usize, partial: &mut [T::Acc]| {
        let (dw, db) = partial.split_at_mut(columns);
        backward_rows(norm, dw, db, part(rows, parts, index));
    };
    if rows.saturating_mul(columns) < 16 * 1024 {
        partial.chunks_exact_mut(width).enumerate().for_each(|(index, partial)| task(index, partial));
    } else {
        parallel::chunks(partial, width, &task);
    }
    for (k, result) in sums.iter_mut().enumerate() {
        for (column, result) in result.iter_mut().enumerate() {
            let mut total = T::Acc::ZERO;
            for part in partial.chunks_exact(width) {
                total += part[k * columns + column];
            }
            *result = T::narrow(total);
        }
    }
    Ok(())
}

vectorised! {
    /// With x̂ = (x − mean)·rstd and ĝ = g·w: dx = rstd·(ĝ − mean(ĝ) − x̂·mean(ĝ·x̂)), dw += g·x̂,
    /// db += g; RMS norm is without the means.
    fn backward_rows<T: Real>(
        norm: Backward<'_, T>,
        dw: &mut [T::Acc],
        db: &mut [T::Acc],
        rows: Range<usize>,
    ) {
        let mut x_buffer = [T::Acc::ZERO; BLOCK];
        let mut g_buffer = [T::Acc::ZERO; BLOCK];
        let mut w_buffer = [T::Acc::ZERO; BLOCK];
        let columns = norm.dx.columns;
        let centred = norm.mean.is_some();
        let w = norm.w.row(0);
        for index in rows {
            let (x, g, dx) = (norm.x.row(index), norm.g.row(index), norm.dx.row(index));
            // SAFETY: blocks are inside the rows, this task alone uses row `index` of the result,
            // and each block of x and g is loaded for the last time before dx is stored over it.
            unsafe {
                let mean = norm.mean.map_or(T::Acc::ZERO, |mean| mean.row(index).get(0));
                let rstd = norm.rstd.row(index).get(0);
                let (mut total, mut projection) = (0.0, 0.0);
                for (start, len) in blocks(columns) {
                    let x_block = &mut x_buffer[..len];
                    let g_block = &mut g_buffer[..len];
                    let w_block = &mut w_buffer[..len];
                    x.load(start, x_block);
                    g.load(start, g_block);
                    w.load(start, w_block);
                    for ((x, g), &w) in
                        x_block.iter_mut().zip(g_block.iter_mut()).zip(w_block.iter())
                    {
                        *x = (*x - mean) * rstd;
                        *g *= w;
                    }
                    total += sum(g_block).to_f64();
                    projection += dot(g_block, x_block).to_f64();
                }
                let average = if centred { total / columns as f64 } else { 0.0 };
                let average = T::Acc::from_f64(average);
                let projection = T::Acc::from_f64(projection / columns as f64);
                for (start, len) in blocks(columns) {
                    let x_block = &mut x_buffer[..len];
                    let g_block = &mut g_buffer[..len];
                    let w_block = &mut w_buffer[..len];
                    x.load(start, x_block);
                    g.load(start, g_block);
                    w.load(start, w_block);
                    for ((x, &g), dw) in
                        x_block.iter_mut().zip(g_block.iter()).zip(&mut dw[start..start + len])
                    {
                        *x = (*x - mean) * rstd;
                        *dw += g * *x;
                    }
                    if centred {
                        for (db, &g) in db[start..start + len].iter_mut().zip(g_block.iter()) {
                            *db += g;
                        }
                    }
                    for ((x, &g), &w) in
                        x_block.iter_mut().zip(g_block.iter()).zip(w_block.iter())
                    {
                        *x = rstd * (g * w - average - *x * projection);
                    }
                    dx.store(start, x_block);
                }
            }
        }
    }
}
