//! Reductions.
//!
//! The tree of a reduction depends on the number of reduced elements only: not on the layout, the
//! kernel or the threads. The elements, in row-major order of the reduced axes, are cut into chunks
//! of [`CHUNK`]; element j of a chunk goes to lane j mod [`LANES`]; the lanes of a chunk are joined
//! by halves, and the chunks by a binary tree.

use half::{bf16, f16};

use super::{
    Call, Shared, convert, parallel, simd,
    strided::{Axis, Walk, axes},
};
use crate::{
    exec::Element,
    ir::DType,
    ops::{OpError, ReduceKind},
};

/// Elements summed lane by lane before a pairwise step.
const CHUNK: usize = 1024;
/// Two AVX registers of f32: independent sums hide the latency of an addition.
const LANES: usize = 16;
/// Outputs that the column kernel makes at once.
const COLUMNS: usize = 64;
/// Reductions of fewer elements than this stay on one thread.
const PARALLEL_ELEMENTS: usize = 1 << 16;

/// An element type and the type it is accumulated in.
pub(super) trait Wide: Element {
    type Acc: Element + PartialOrd;

    fn widen(self) -> Self::Acc;
    fn narrow(acc: Self::Acc) -> Self;
    /// A sum over `n`; only floating-point types have means.
    fn divide(sum: Self::Acc, n: f64) -> Self::Acc;
}

macro_rules! wide {
    ($($ty:ty, $acc:ty, $x:ident => $widen:expr, $a:ident => $narrow:expr, $sum:ident, $n:ident => $divide:expr;)*) => {
        $(impl Wide for $ty {
            type Acc = $acc;

            #[inline(always)]
            fn widen(self) -> $acc {
                let $x = self;
                $widen
            }

            #[inline(always)]
            fn narrow($a: $acc) -> $ty {
                $narrow
            }

            #[inline(always)]
            fn divide($sum: $acc, $n: f64) -> $acc {
                $divide
            }
        })*
    };
}
wide! {
    f32, f32, x => x, a => a, s, n => s / n as f32;
    f64, f64, x => x, a => a, s, n => s / n;
    f16, f32, x => convert::f16_to_f32(x.to_bits()), a => f16::from_bits(convert::f32_to_f16(a)), s, n => s / n as f32;
    bf16, f32, x => convert::bf16_to_f32(x.to_bits()), a => bf16::from_bits(convert::f32_to_bf16(a)), s, n => s / n as f32;
    i32, i32, x => x, a => a, s, _n => s;
    i64, i64, x => x, a => a, s, _n => s;
    u8, u8, x => x, a => a, s, _n => s;
    bool, u8, x => u8::from(x), a => a != 0, s, _n => s;
}

/// An associative operation with a neutral element.
trait Fold<A>: 'static {
    const NEUTRAL: A;

    fn fold(a: A, b: A) -> A;
}

struct Sum;
struct Prod;
struct Max;
struct Min;

macro_rules! folds {
    (float: $($float:ty),*; int: $($int:ty),*) => {
        $(impl Fold<$float> for Sum {
            const NEUTRAL: $float = 0.0;
            #[inline(always)]
            fn fold(a: $float, b: $float) -> $float { a + b }
        }
        impl Fold<$float> for Prod {
            const NEUTRAL: $float = 1.0;
            #[inline(always)]
            fn fold(a: $float, b: $float) -> $float { a * b }
        }
        impl Fold<$float> for Max {
            const NEUTRAL: $float = <$float>::NEG_INFINITY;
            #[inline(always)]
            #[allow(clippy::eq_op)]
            fn fold(a: $float, b: $float) -> $float { if a > b || a != a { a } else { b } }
        }
        impl Fold<$float> for Min {
            const NEUTRAL: $float = <$float>::INFINITY;
            #[inline(always)]
            #[allow(clippy::eq_op)]
            fn fold(a: $float, b: $float) -> $float { if a < b || a != a { a } else { b } }
        })*
        $(impl Fold<$int> for Sum {
            const NEUTRAL: $int = 0;
            #[inline(always)]
            fn fold(a: $int, b: $int) -> $int { a.wrapping_add(b) }
        }
        impl Fold<$int> for Prod {
            const NEUTRAL: $int = 1;
            #[inline(always)]
            fn fold(a: $int, b: $int) -> $int { a.wrapping_mul(b) }
        }
        impl Fold<$int> for Max {
            const NEUTRAL: $int = <$int>::MIN;
            #[inline(always)]
            fn fold(a: $int, b: $int) -> $int { a.max(b) }
        }
        impl Fold<$int> for Min {
            const NEUTRAL: $int = <$int>::MAX;
            #[inline(always)]
            fn fold(a: $int, b: $int) -> $int { a.min(b) }
        })*
    };
}
folds!(float: f32, f64; int: i32, i64, u8);

/// Runs [`crate::ops::Reduce`].
pub(crate) fn run(call: &Call<'_>, kind: ReduceKind, axes: &[usize]) -> Result<(), OpError> {
    match call.arg_operand(0)?.ty.dtype() {
        DType::F32 => run_typed::<f32>(call, kind, axes),
        DType::F16 => run_typed::<f16>(call, kind, axes),
        DType::BF16 => run_typed::<bf16>(call, kind, axes),
        DType::F64 => run_typed::<f64>(call, kind, axes),
        DType::I32 => run_typed::<i32>(call, kind, axes),
        DType::I64 => run_typed::<i64>(call, kind, axes),
        DType::U8 => run_typed::<u8>(call, kind, axes),
        DType::Bool => run_typed::<bool>(call, kind, axes),
    }
}

fn run_typed<T: Wide>(call: &Call<'_>, kind: ReduceKind, axes: &[usize]) -> Result<(), OpError>
where
    Sum: Fold<T::Acc>,
    Prod: Fold<T::Acc>,
    Max: Fold<T::Acc>,
    Min: Fold<T::Acc>,
{
    match kind {
        ReduceKind::Sum => reduce::<T, Sum>(call, axes, false),
        ReduceKind::Mean => reduce::<T, Sum>(call, axes, true),
        ReduceKind::Max => reduce::<T, Max>(call, axes, false),
        ReduceKind::Min => reduce::<T, Min>(call, axes, false),
        ReduceKind::Prod => reduce::<T, Prod>(call, axes, false),
    }
}

fn reduce<T: Wide, F: Fold<T::Acc>>(call: &Call<'_>, reduced: &[usize], mean: bool) -> Result<(), OpError> {
    let x = call.arg_operand(0)?;
    let result = call.result::<T>(0)?;
    let (shape, strides) = (x.ty.shape(), &x.layout.strides);
    let part = |wanted: bool| {
        axes(shape, strides)
            .enumerate()
            .filter(move |(k, _)| reduced.contains(k) == wanted)
            .map(|(_, axis)| axis)
    };
    let (kept, over) = (Walk::new(part(false)), Walk::new(part(true)));
    let n = over.count();
    let finish = |acc: T::Acc| T::narrow(if mean { T::divide(acc, n as f64) } else { acc });
    if n == 0 {
        result.fill(finish(F::NEUTRAL));
        return Ok(());
    }
    if result.is_empty() {
        return Ok(());
    }
    let source = Source { start: x.as_ptr::<T>(), over: &over, n };
    let parallel = n.saturating_mul(result.len()) >= PARALLEL_ELEMENTS;
    let in_rows = over.axes.last().is_none_or(|axis| axis.strides == [1]);
    let columns = kept.axes.last().filter(|axis| axis.strides == [1] && axis.size >= 4 && !in_rows);
    if let Some(columns) = columns {
        let per_row = columns.size.div_ceil(COLUMNS);
        let outer = Walk { axes: kept.axes.split_last().map_or(Vec::new(), |(_, outer)| outer.to_vec()) };
        let width = columns.size;
        let target = Shared::new(result.as_mut_ptr());
        let task = |tile: usize| {
            let (row, first) = (tile / per_row, tile % per_row * COLUMNS);
            let count = COLUMNS.min(width - first);
            let [offset] = outer.offsets(row);
            let mut acc = [F::NEUTRAL; COLUMNS];
            // SAFETY: `count` outputs from `first` on lie in this row, a unit stride apart, and with
            // each of them so does every reduced element.
            unsafe { source.columns::<F>(offset + first, count, 0, n.div_ceil(CHUNK), &mut acc, parallel) };
            for (k, &acc) in acc.iter().enumerate().take(count) {
                // SAFETY: outputs are row-major in the kept axes; each tile writes its own.
                unsafe { *target.get().add(row * width + first + k) = finish(acc) };
            }
        };
        let tiles = per_row * outer.count();
        parallel::tasks(tiles, parallel, &task);
    } else {
        let (count, target) = (result.len(), Shared::new(result.as_mut_ptr()));
        let group = (PARALLEL_ELEMENTS / 4 / n).max(1);
        parallel::tasks(count.div_ceil(group), parallel, &|k| {
            for index in k * group..((k + 1) * group).min(count) {
                let [offset] = kept.offsets(index);
                // SAFETY: an index of the kept axes, and every index of the reduced ones; each task
                // writes outputs of its own.
                unsafe {
                    let acc = source.row::<F>(offset, 0, n.div_ceil(CHUNK), parallel);
                    *target.get().add(index) = finish(acc);
                }
            }
        });
    }
    Ok(())
}

/// The elements that make one output, from the place of its first.
struct Source<'a, T> {
    start: *const T,
    over: &'a Walk<1>,
    n: usize,
}

// SAFETY: the elements are only read, and nobody writes them during the call (`Call`).
unsafe impl<T: Sync> Sync for Source<'_, T> {}

/// The largest power of two below `chunks`: where the tree over them is cut.
fn cut(chunks: usize) -> usize {
    (chunks - 1).checked_ilog2().map_or(1, |bits| 1 << bits)
}

/// Chunks of one task of a parallel tree, at least.
const PARALLEL_CHUNKS: usize = PARALLEL_ELEMENTS / CHUNK / 2;

impl<T: Wide> Source<'_, T> {
    /// # Safety
    /// Every index of `over`, from `offset` on, is an element that may be read.
    unsafe fn row<F: Fold<T::Acc>>(
        &self,
        offset: usize,
        first: usize,
        chunks: usize,
        parallel: bool,
    ) -> T::Acc {
        if chunks > 1 {
            let left = cut(chunks);
            // SAFETY (both): a part of the same elements.
            let a = || unsafe { self.row::<F>(offset, first, left, parallel) };
            let b = || unsafe { self.row::<F>(offset, first + left, chunks - left, parallel) };
            let (a, b) = if parallel && chunks > PARALLEL_CHUNKS { rayon::join(a, b) } else { (a(), b()) };
            return F::fold(a, b);
        }
        let index = first * CHUNK;
        let count = CHUNK.min(self.n - index);
        match self.over.axes.as_slice() {
            // SAFETY (both): `count` elements from `index` on, one behind the other.
            [] => simd::dispatch1(FoldChunk::<T, F>::new(), unsafe {
                std::slice::from_raw_parts(self.start.add(offset), count)
            }),
            [Axis { strides: [1], .. }] => simd::dispatch1(FoldChunk::<T, F>::new(), unsafe {
                std::slice::from_raw_parts(self.start.add(offset + index), count)
            }),
            _ => {
                let mut buffer = [T::default(); CHUNK];
                let chunk = buffer.get_mut(..count).unwrap_or_default();
                // SAFETY: indices below `n`.
                unsafe { self.gather(offset, index, chunk) };
                simd::dispatch1(FoldChunk::<T, F>::new(), chunk)
            }
        }
    }

    /// Copies elements from row-major number `index` on.
    ///
    /// # Safety
    /// As for `row`; `index + chunk.len()` is at most `n`.
    unsafe fn gather(&self, offset: usize, mut index: usize, chunk: &mut [T]) {
        let Some(&Axis { size, strides: [stride] }) = self.over.axes.last() else { return };
        let mut rest = chunk;
        while !rest.is_empty() {
            let [at] = self.over.offsets(index);
            let run = rest.len().min(size - index % size);
            let (now, later) = rest.split_at_mut(run);
            for (k, element) in now.iter_mut().enumerate() {
                // SAFETY: the run stays inside the innermost axis.
                *element = unsafe { *self.start.add(offset + at + k * stride) };
            }
            rest = later;
            index += run;
        }
    }

    /// As `row`, for `count` outputs beside each other; their results go to `acc`.
    ///
    /// # Safety
    /// As for `row`, from each of the `count` places from `offset` on.
    unsafe fn columns<F: Fold<T::Acc>>(
        &self,
        offset: usize,
        count: usize,
        first: usize,
        chunks: usize,
        acc: &mut [T::Acc; COLUMNS],
        parallel: bool,
    ) {
        if chunks > 1 {
            let left = cut(chunks);
            let mut other = [F::NEUTRAL; COLUMNS];
            // SAFETY (both): a part of the same elements.
            parallel::both(
                parallel && chunks > PARALLEL_CHUNKS,
                &mut || unsafe { self.columns::<F>(offset, count, first, left, acc, parallel) },
                &mut || unsafe {
                    self.columns::<F>(offset, count, first + left, chunks - left, &mut other, parallel);
                },
            );
            for (a, &b) in acc.iter_mut().zip(&other) {
                *a = F::fold(*a, b);
            }
            return;
        }
        let mut lanes = [[F::NEUTRAL; COLUMNS]; LANES];
        let start = first * CHUNK;
        let rows = CHUNK.min(self.n - start);
        // One axis is the common case and needs no division per row.
        let single = match self.over.axes.as_slice() {
            [Axis { strides: [stride], .. }] => Some(*stride),
            _ => None,
        };
        for j in 0..rows {
            let at = match single {
                Some(stride) => (start + j) * stride,
                None => self.over.offsets(start + j)[0],
            };
            // SAFETY: `count` elements beside each other (see above).
            let row = unsafe { std::slice::from_raw_parts(self.start.add(offset + at), count) };
            if let Some(lane) = lanes.get_mut(j % LANES) {
                simd::dispatch2(FoldRow::<T, F>::new(), lane, row);
            }
        }
        let mut half = LANES / 2;
        while half > 0 {
            let (low, high) = lanes.split_at_mut(half);
            for (low, high) in low.iter_mut().zip(high.iter()) {
                for (a, &b) in low.iter_mut().zip(high) {
                    *a = F::fold(*a, b);
                }
            }
            half /= 2;
        }
        *acc = lanes[0];
    }
}

/// One chunk, contiguous.
struct FoldChunk<T, F>(std::marker::PhantomData<(T, F)>);

impl<T, F> FoldChunk<T, F> {
    fn new() -> Self {
        FoldChunk(std::marker::PhantomData)
    }
}

impl<T: Wide, F: Fold<T::Acc>> simd::Kernel1<&[T], T::Acc> for FoldChunk<T, F> {
    #[inline(always)]
    fn run(self, chunk: &[T]) -> T::Acc {
        let mut lanes = [F::NEUTRAL; LANES];
        let (groups, rest) = chunk.as_chunks::<LANES>();
        for group in groups {
            for (lane, &x) in lanes.iter_mut().zip(group) {
                *lane = F::fold(*lane, x.widen());
            }
        }
        for (lane, &x) in lanes.iter_mut().zip(rest) {
            *lane = F::fold(*lane, x.widen());
        }
        let mut half = LANES / 2;
        while half > 0 {
            let (low, high) = lanes.split_at_mut(half);
            for (a, &b) in low.iter_mut().zip(high.iter()) {
                *a = F::fold(*a, b);
            }
            half /= 2;
        }
        lanes[0]
    }
}

/// One row of the column kernel into its lane.
struct FoldRow<T, F>(std::marker::PhantomData<(T, F)>);

impl<T, F> FoldRow<T, F> {
    fn new() -> Self {
        FoldRow(std::marker::PhantomData)
    }
}

impl<T: Wide, F: Fold<T::Acc>> simd::Kernel2<&mut [T::Acc; COLUMNS], &[T]> for FoldRow<T, F> {
    #[inline(always)]
    fn run(self, lane: &mut [T::Acc; COLUMNS], row: &[T]) {
        for (acc, &x) in lane.iter_mut().zip(row) {
            *acc = F::fold(*acc, x.widen());
        }
    }
}

/// Runs [`crate::ops::ArgReduce`].
pub(crate) fn run_arg(call: &Call<'_>, largest: bool, axis: usize) -> Result<(), OpError> {
    match call.arg_operand(0)?.ty.dtype() {
        DType::F32 => arg_reduce::<f32>(call, largest, axis),
        DType::F16 => arg_reduce::<f16>(call, largest, axis),
        DType::BF16 => arg_reduce::<bf16>(call, largest, axis),
        DType::F64 => arg_reduce::<f64>(call, largest, axis),
        DType::I32 => arg_reduce::<i32>(call, largest, axis),
        DType::I64 => arg_reduce::<i64>(call, largest, axis),
        DType::U8 => arg_reduce::<u8>(call, largest, axis),
        DType::Bool => arg_reduce::<bool>(call, largest, axis),
    }
}

#[allow(clippy::eq_op)]
fn arg_reduce<T: Wide>(call: &Call<'_>, largest: bool, axis: usize) -> Result<(), OpError> {
    let x = call.arg_operand(0)?;
    let result = call.result::<i32>(0)?;
    let (shape, strides) = (x.ty.shape(), &x.layout.strides);
    let kept = Walk::new(axes(shape, strides).enumerate().filter(|&(k, _)| k != axis).map(|(_, a)| a));
    let (Some(&size), Some(&stride)) = (shape.get(axis), strides.get(axis)) else {
        return Err(OpError::new("internal: `argmax` along a missing axis"));
    };
    let start = Shared::new(x.as_ptr::<T>());
    let target = Shared::new(result.as_mut_ptr());
    let task = |index: usize| {
        let [offset] = kept.offsets(index);
        // SAFETY: indices below the sizes of the kept axes and of `axis`.
        let at = |k: usize| unsafe { (*start.get().add(offset + k * stride)).widen() };
        let (mut best, mut place) = (at(0), 0);
        for k in 1..size {
            let x = at(k);
            let wins = if largest { x > best } else { x < best };
            if wins || (x != x && best == best) {
                (best, place) = (x, k);
            }
        }
        // SAFETY: each task writes its own output.
        unsafe { *target.get().add(index) = place as i32 };
    };
    let is_large = size.saturating_mul(result.len()) >= PARALLEL_ELEMENTS;
    parallel::tasks(result.len(), is_large, &task);
    Ok(())
}
