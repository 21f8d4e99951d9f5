//! The columns of a convolution: for a run of output positions, the inputs that each filter tap
//! sees, one tap a row.

use std::ops::Range;

use super::real::{Accumulator, Real};
use crate::ops::ConvShape;

/// One image's planes under a filter.
#[derive(Clone, Copy)]
pub struct Window {
    pub shape: ConvShape,
    /// (h, w) of the input.
    pub input: (usize, usize),
    /// (h', w') of the output.
    pub output: (usize, usize),
    pub kernel: (usize, usize),
}

/// Where a tap reads a run of positions of one output row.
struct Run {
    /// In the run of positions: how many read padding, how many the input, then padding again.
    before: usize,
    inside: usize,
    after: usize,
    /// Offset in the plane of the first one inside.
    offset: usize,
}

impl Window {
    pub fn taps(&self) -> usize {
        self.kernel.0 * self.kernel.1
    }

    pub fn pixels(&self) -> usize {
        self.output.0 * self.output.1
    }

    pub fn plane(&self) -> usize {
        self.input.0 * self.input.1
    }

    /// Output positions are input positions: the columns are the input itself.
    pub fn is_pointwise(&self) -> bool {
        self.kernel == (1, 1) && self.shape.stride == (1, 1) && self.shape.padding == (0, 0)
    }

    /// Calls `each(start of the run in positions, run)` for the output rows that `positions` covers,
    /// as tap (i, j) sees them.
    #[inline(always)]
    fn runs(&self, (i, j): (usize, usize), positions: &Range<usize>, mut each: impl FnMut(usize, Run)) {
        let (height, width) = self.input;
        let (stride_y, stride_x) = self.shape.stride;
        let (top, left) = (i * self.shape.dilation.0, j * self.shape.dilation.1);
        let (pad_y, pad_x) = self.shape.padding;
        // Output columns lo..hi read inside the input: 0 ≤ x·stride + left − pad < width.
        let lo = pad_x.saturating_sub(left).div_ceil(stride_x);
        let hi = (width + pad_x).saturating_sub(left).div_ceil(stride_x).max(lo);
        let mut done = positions.start;
        while done < positions.end {
            let (y, x) = (done / self.output.1, done % self.output.1);
            let end = self.output.1.min(x + positions.end - done);
            let len = end - x;
            let (lo, hi) = (lo.clamp(x, end), hi.clamp(x, end));
            let row = (y * stride_y + top).checked_sub(pad_y).filter(|&row| row < height);
            let run = match row {
                Some(row) if hi > lo => Run {
                    before: lo - x,
                    inside: hi - lo,
                    after: end - hi,
                    offset: row * width + lo * stride_x + left - pad_x,
                },
                _ => Run { before: len, inside: 0, after: 0, offset: 0 },
            };
            each(done - positions.start, run);
            done += len;
        }
    }

    /// Fills `columns` ([channels · taps, positions], rows `positions.len()` apart) from the planes.
    #[inline(always)]
    pub fn gather<T: Real>(&self, planes: &[T], positions: Range<usize>, columns: &mut [T::Acc]) {
        let (count, taps) = (positions.len(), self.taps());
        if count == 0 || taps == 0 {
            return;
        }
        let stride = self.shape.stride.1;
        for (row, columns) in columns.chunks_exact_mut(count).enumerate() {
            let (channel, tap) = (row / taps, row % taps);
            let tap = (tap / self.kernel.1, tap % self.kernel.1);
            let plane = channel * self.plane();
            self.runs(tap, &positions, |start, run| {
                let columns = &mut columns[start..start + run.before + run.inside + run.after];
                let (before, rest) = columns.split_at_mut(run.before);
                let (inside, after) = rest.split_at_mut(run.inside);
                before.fill(T::Acc::ZERO);
                after.fill(T::Acc::ZERO);
                let from = plane + run.offset;
                if stride == 1 {
                    T::widen_slice(&planes[from..from + inside.len()], inside);
                } else {
                    for (k, value) in inside.iter_mut().enumerate() {
                        *value = planes[from + k * stride].widen();
                    }
                }
            });
        }
    }

    /// Adds `columns` into the planes: the transpose of [`Window::gather`].
    #[inline(always)]
    pub fn scatter<A: Accumulator>(&self, columns: &[A], positions: Range<usize>, planes: &mut [A]) {
        let (count, taps) = (positions.len(), self.taps());
        if count == 0 || taps == 0 {
            return;
        }
        let stride = self.shape.stride.1;
        for (row, columns) in columns.chunks_exact(count).enumerate() {
            let (channel, tap) = (row / taps, row % taps);
            let tap = (tap / self.kernel.1, tap % self.kernel.1);
            let plane = channel * self.plane();
            self.runs(tap, &positions, |start, run| {
                let columns = &columns[start + run.before..start + run.before + run.inside];
                let from = plane + run.offset;
                if stride == 1 {
                    for (to, &value) in planes[from..from + columns.len()].iter_mut().zip(columns) {
                        *to += value;
                    }
                } else {
                    for (k, &value) in columns.iter().enumerate() {
                        planes[from + k * stride] += value;
                    }
                }
            });
        }
    }
}
