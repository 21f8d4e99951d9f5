//! Batch norm over all axes but the second, and its gradient.

use super::{
    real::{Accumulator, Real, for_float, vectorised},
    rows::{BLOCK, Shared, blocks, dot, for_rows, sum},
};
use crate::{exec::cpu::Call, ir::Type, ops::OpError};

/// A dense [n, c, inner] tensor as its channels: for each, n runs of `inner` elements.
#[derive(Clone, Copy)]
struct Channels<T> {
    start: Shared<T>,
    images: usize,
    channels: usize,
    inner: usize,
}

impl<T: Real> Channels<T> {
    /// `start` is the first of the elements of `ty`.
    fn new(start: *mut T, ty: &Type) -> Self {
        let shape = ty.shape();
        Channels {
            start: Shared::new(start),
            images: shape.first().copied().unwrap_or(1),
            channels: shape.get(1).copied().unwrap_or(1),
            inner: shape.get(2..).unwrap_or_default().iter().product(),
        }
    }

    /// Elements of a channel.
    #[inline(always)]
    fn len(&self) -> usize {
        self.images * self.inner
    }

    /// Loads elements of a channel, from number `start` in (image, position) order on.
    ///
    /// # Safety
    /// The elements exist and no other thread writes the channel.
    #[inline(always)]
    unsafe fn load(&self, channel: usize, start: usize, to: &mut [T::Acc]) {
        let len = to.len();
        if self.inner == 1 {
            for (image, to) in (start..).zip(to) {
                // SAFETY: the element is inside the tensor; the rest is the caller's promise.
                *to = unsafe { *self.start.at(image * self.channels + channel) }.widen();
            }
            return;
        }
        // SAFETY: `runs` gives places inside the tensor; the rest is the caller's promise.
        self.runs(channel, start, len, |offset, done, len| unsafe {
            T::widen_slice(self.start.read(offset, len), &mut to[done..done + len]);
        });
    }

    /// Stores elements of a channel, as [`Channels::load`].
    ///
    /// # Safety
    /// The elements exist and no other thread uses the channel.
    #[inline(always)]
    unsafe fn store(&self, channel: usize, start: usize, from: &[T::Acc]) {
        if self.inner == 1 {
            for (image, &from) in (start..).zip(from) {
                // SAFETY: as in `load`.
                unsafe { *self.start.at(image * self.channels + channel) = T::narrow(from) };
            }
            return;
        }
        // SAFETY: as in `load`.
        self.runs(channel, start, from.len(), |offset, done, len| unsafe {
            T::narrow_slice(&from[done..done + len], self.start.write(offset, len));
        });
    }

    /// Calls `each(offset in the tensor, elements before, length)` for the contiguous runs.
    #[inline(always)]
    fn runs(&self, channel: usize, start: usize, len: usize, mut each: impl FnMut(usize, usize, usize)) {
        let (mut image, mut position) = (start / self.inner, start % self.inner);
        let mut done = 0;
        while done < len {
            let run = (self.inner - position).min(len - done);
            each((image * self.channels + channel) * self.inner + position, done, run);
            done += run;
            position = 0;
            image += 1;
        }
    }
}

/// Operands (x, w, b) → (y, mean, variance). y may lie over x.
pub fn batch_norm(call: &Call<'_>, eps: f64) -> Result<(), OpError> {
    for_float!(call.arg_operand(0)?.ty.dtype(), batch_norm_of((call, eps)))
}

fn batch_norm_of<T: Real>((call, eps): (&Call<'_>, f64)) -> Result<(), OpError> {
    let (x, y) = (call.arg_operand(0)?, call.result_operand(0)?);
    let x = Channels::<T>::new(x.as_ptr(), x.ty);
    let y = Channels::<T>::new(y.as_ptr(), y.ty);
    let (w, b) = (call.arg::<T>(1)?, call.arg::<T>(2)?);
    let (mean, variance) = (call.result::<T::Acc>(1)?, call.result::<T::Acc>(2)?);
    let (means, variances) = (Shared::of(mean), Shared::of(variance));
    for_rows(x.channels, x.len(), |channels| {
        for channel in channels {
            let statistics = forward_channel(x, y, channel, w[channel].widen(), b[channel].widen(), eps);
            // SAFETY: this task alone writes the channel's elements, which exist.
            unsafe {
                (*means.at(channel), *variances.at(channel)) = statistics;
            }
        }
    });
    Ok(())
}

vectorised! {
    fn forward_channel<T: Real>(
        x: Channels<T>,
        y: Channels<T>,
        channel: usize,
        w: T::Acc,
        b: T::Acc,
        eps: f64,
    ) -> (T::Acc, T::Acc) {
        let mut buffer = [T::Acc::ZERO; BLOCK];
        let count = x.len() as f64;
        // SAFETY: blocks are inside the channel, which this task alone uses, and each is loaded for
        // the last time before y is stored over it.
        unsafe {
            let mut total = 0.0;
            for (start, len) in blocks(x.len()) {
                let block = &mut buffer[..len];
                x.load(channel, start, block);
                total += sum(block).to_f64();
            }
            let mean = T::Acc::from_f64(total / count);
            let mut squares = 0.0;
            for (start, len) in blocks(x.len()) {
                let block = &mut buffer[..len];
                x.load(channel, start, block);
                for value in block.iter_mut() {
                    *value -= mean;
                }
                squares += dot(block, block).to_f64();
            }
            let variance = T::Acc::from_f64(squares / count);
            let scale = T::Acc::from_f64((variance.to_f64() + eps).sqrt().recip()) * w;
            for (start, len) in blocks(x.len()) {
                let block = &mut buffer[..len];
                x.load(channel, start, block);
                for value in block.iter_mut() {
                    *value = (*value - mean) * scale + b;
                }
                y.store(channel, start, block);
            }
            (mean, variance)
        }
    }
}

/// Operands (x, w, mean, variance, g) → (dx, dw, db). dx may lie over x or g.
pub fn batch_norm_grad(call: &Call<'_>, eps: f64) -> Result<(), OpError> {
    for_float!(call.arg_operand(0)?.ty.dtype(), batch_norm_grad_of((call, eps)))
}

fn batch_norm_grad_of<T: Real>((call, eps): (&Call<'_>, f64)) -> Result<(), OpError> {
    let (x, g, dx) = (call.arg_operand(0)?, call.arg_operand(4)?, call.result_operand(0)?);
    let x = Channels::<T>::new(x.as_ptr(), x.ty);
    let g = Channels::<T>::new(g.as_ptr(), g.ty);
    let dx = Channels::<T>::new(dx.as_ptr(), dx.ty);
    let w = call.arg::<T>(1)?;
    let (mean, variance) = (call.arg::<T::Acc>(2)?, call.arg::<T::Acc>(3)?);
    let (dw, db) = (Shared::of(call.result::<T>(1)?), Shared::of(call.result::<T>(2)?));
    for_rows(x.channels, x.len(), |channels| {
        for channel in channels {
            let rstd = T::Acc::from_f64((variance[channel].to_f64() + eps).sqrt().recip());
            let sums = backward_channel(x, g, dx, channel, w[channel].widen(), mean[channel], rstd);
            // SAFETY: this task alone writes the channel's elements, which exist.
            unsafe {
                *dw.at(channel) = T::narrow(sums.0);
                *db.at(channel) = T::narrow(sums.1);
            }
        }
    });
    Ok(())
}

vectorised! {
    /// With x̂ = (x − mean)·rstd: db = Σ g, dw = Σ g·x̂, dx = w·rstd·(g − db/m − x̂·dw/m).
    fn backward_channel<T: Real>(
        x: Channels<T>,
        g: Channels<T>,
        dx: Channels<T>,
        channel: usize,
        w: T::Acc,
        mean: T::Acc,
        rstd: T::Acc,
    ) -> (T::Acc, T::Acc) {
        let mut x_buffer = [T::Acc::ZERO; BLOCK];
        let mut g_buffer = [T::Acc::ZERO; BLOCK];
        let count = x.len() as f64;
        // SAFETY: blocks are inside the channel, which this task alone uses, and each block of x and
        // g is loaded for the last time before dx is stored over it.
        unsafe {
            let (mut total, mut projection) = (0.0, 0.0);
            for (start, len) in blocks(x.len()) {
                let (x_block, g_block) = (&mut x_buffer[..len], &mut g_buffer[..len]);
                x.load(channel, start, x_block);
                g.load(channel, start, g_block);
                for value in x_block.iter_mut() {
                    *value = (*value - mean) * rstd;
                }
                total += sum(g_block).to_f64();
                projection += dot(g_block, x_block).to_f64();
            }
            let average = T::Acc::from_f64(total / count);
            let slope = T::Acc::from_f64(projection / count);
            let scale = w * rstd;
            for (start, len) in blocks(x.len()) {
                let (x_block, g_block) = (&mut x_buffer[..len], &mut g_buffer[..len]);
                x.load(channel, start, x_block);
                g.load(channel, start, g_block);
                for (x, &g) in x_block.iter_mut().zip(g_block.iter()) {
                    *x = scale * (g - average - (*x - mean) * rstd * slope);
                }
                dx.store(channel, start, x_block);
            }
            (T::Acc::from_f64(projection), T::Acc::from_f64(total))
        }
    }
}
