//! Matrix products.
//!
//! The work is cut into tiles that depend on the shapes only, and each tile is computed by one
//! thread: the bits of the result do not depend on the number of threads.

use half::{bf16, f16};

use super::{
    Call, Operand, Shared, parallel,
    reduce::Wide,
    simd,
    strided::{Axis, Walk},
};
use crate::{
    exec::Element,
    ir::{DType, Type},
    ops::OpError,
};

/// Tiles of f16 and bf16 products are computed in f32, in scratch memory of this many rows and
/// columns, and this much of the inner axis at a time.
const HALF_TILE: usize = 192;
const HALF_DEPTH: usize = 512;
/// As many half-precision tiles may be under way at once.
const HALF_LANES: usize = 8;

/// Products of fewer multiplications than this stay on one thread.
const PARALLEL_WORK: usize = 1 << 17;

/// A matrix in memory: address of the first element, strides of rows and columns in elements.
struct Matrix<T> {
    start: Shared<T>,
    rows: usize,
    columns: usize,
}

impl<T> Clone for Matrix<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Matrix<T> {}

impl<T: Element> Matrix<T> {
    fn new(operand: &Operand<'_>) -> Self {
        let (rows, columns) = match *operand.layout.strides {
            [.., rows, columns] => (rows, columns),
            _ => (0, 0),
        };
        Matrix { start: Shared::new(operand.as_ptr::<T>()), rows, columns }
    }

    fn at(self, row: usize, column: usize) -> *mut T {
        self.start.get().wrapping_add(row * self.rows + column * self.columns)
    }

    /// The matrix that starts `offset` elements later.
    fn shifted(self, offset: usize) -> Self {
        Matrix { start: Shared::new(self.start.get().wrapping_add(offset)), ..self }
    }

    fn part(self, row: usize, column: usize) -> Self {
        Matrix { start: Shared::new(self.at(row, column)), ..self }
    }

    fn transposed(self) -> Self {
        Matrix { start: self.start, rows: self.columns, columns: self.rows }
    }
}

#[derive(Clone, Copy)]
struct Size {
    m: usize,
    k: usize,
    n: usize,
}

/// What is added to each row of the sums: address of the first element, stride in elements.
struct Bias<T> {
    start: Shared<T>,
    step: usize,
}

impl<T> Clone for Bias<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Bias<T> {}

impl<T: Element> Bias<T> {
    fn new(operand: &Operand<'_>) -> Self {
        Bias {
            start: Shared::new(operand.as_ptr::<T>()),
            step: operand.layout.strides.first().copied().unwrap_or(0),
        }
    }

    /// # Safety
    /// The bias has an element for this column.
    unsafe fn at(self, column: usize) -> T {
        // SAFETY: as for this function.
        unsafe { *self.start.get().add(column * self.step) }
    }

    /// The bias that starts at this column.
    fn part(self, column: usize) -> Self {
        Bias { start: Shared::new(self.start.get().wrapping_add(column * self.step)), ..self }
    }
}

/// One product: sizes, the matrices of batch 0, and the walk over batches.
struct Product<T> {
    size: Size,
    a: Matrix<T>,
    b: Matrix<T>,
    c: Matrix<T>,
    bias: Option<Bias<T>>,
    batch: Walk<3>,
}

/// A tile of the result, and the rows of a and columns of b that it is made of.
struct Tile<T> {
    a: Matrix<T>,
    b: Matrix<T>,
    c: Matrix<T>,
    bias: Option<Bias<T>>,
    rows: usize,
    columns: usize,
}

fn size_of_product(a: &Type, b: &Type) -> Size {
    match (a.shape(), b.shape()) {
        ([.., m, k], [.., n]) => Size { m: *m, k: *k, n: *n },
        _ => Size { m: 0, k: 0, n: 0 },
    }
}

/// Scratch of one half-precision tile, in f32 elements: the parts of a, of b, and the sums. Each a
/// multiple of 16, so that all stay aligned.
fn half_parts(size: Size) -> [usize; 3] {
    let (m, n) = (size.m.min(HALF_TILE), size.n.min(HALF_TILE));
    let k = size.k.min(HALF_DEPTH);
    [m * k, k * n, m * n].map(|part| part.next_multiple_of(16))
}

fn half_lanes(size: Size, batches: usize) -> usize {
    let tiles = size.m.div_ceil(HALF_TILE).saturating_mul(size.n.div_ceil(HALF_TILE));
    tiles.saturating_mul(batches).clamp(1, HALF_LANES)
}

/// Scratch bytes of `a @ b`.
pub(crate) fn workspace(a: &Type, b: &Type) -> u64 {
    if !matches!(a.dtype(), DType::F16 | DType::BF16) {
        return 0;
    }
    let size = size_of_product(a, b);
    let batches = a.shape().iter().rev().skip(2).product();
    let part: usize = half_parts(size).iter().sum();
    (half_lanes(size, batches) * part * size_of::<f32>()) as u64
}

/// Runs [`crate::ops::MatMul`].
pub(crate) fn run(call: &Call<'_>) -> Result<(), OpError> {
    match call.arg_operand(0)?.ty.dtype() {
        DType::F32 => float::<f32>(&product(call)?),
        DType::F64 => float::<f64>(&product(call)?),
        DType::F16 => half::<f16>(&product(call)?, call.workspace()),
        DType::BF16 => half::<bf16>(&product(call)?, call.workspace()),
        DType::I32 => whole::<i32>(&product(call)?, i32::wrapping_mul, i32::wrapping_add),
        DType::I64 => whole::<i64>(&product(call)?, i64::wrapping_mul, i64::wrapping_add),
        DType::U8 => whole::<u8>(&product(call)?, u8::wrapping_mul, u8::wrapping_add),
        DType::Bool => Err(OpError::new("internal: `matmul` of bool values")),
    }
}

fn product<T: Element>(call: &Call<'_>) -> Result<Product<T>, OpError> {
    let (a, b, c) = (call.arg_operand(0)?, call.arg_operand(1)?, call.result_operand(0)?);
    let lead = c.ty.rank().saturating_sub(2);
    let strides = |operand: &Operand<'_>, k: usize| operand.layout.strides.get(k).copied().unwrap_or(0);
    let batch = Walk::new(
        c.ty.shape()
            .iter()
            .enumerate()
            .take(lead)
            .map(|(k, &size)| Axis { size, strides: [strides(&a, k), strides(&b, k), strides(&c, k)] }),
    );
    let size = size_of_product(a.ty, b.ty);
    let bias = call.args.get(2).map(Bias::new);
    let product = Product { size, a: Matrix::new(&a), b: Matrix::new(&b), c: Matrix::new(&c), bias, batch };
    if size.k == 0 {
        call.result::<T>(0)?.fill(T::default());
    }
    Ok(product)
}

impl<T: Element> Product<T> {
    /// Whether there are no terms to be multiplied; `add` adds the bias, if there is one.
    fn is_trivial(&self, add: impl Fn(T, T) -> T) -> bool {
        let Size { m, k, n } = self.size;
        if m == 0 || n == 0 || self.batch.count() == 0 {
            return true;
        }
        if k == 0 {
            let Product { a, b, c, bias, .. } = *self;
            Tile { a, b, c, bias, rows: m, columns: n }.add_bias(add);
        }
        k == 0
    }

    fn is_parallel(&self) -> bool {
        let Size { m, k, n } = self.size;
        m.saturating_mul(k).saturating_mul(n).saturating_mul(self.batch.count()) >= PARALLEL_WORK
    }

    /// Calls `task` for every tile of every batch.
    fn tiles(&self, rows: usize, columns: usize, task: &(dyn Fn(Tile<T>) + Sync)) {
        let Size { m, n, .. } = self.size;
        let (down, across) = (m.div_ceil(rows), n.div_ceil(columns));
        let run = |index: usize| {
            let (batch, tile) = (index / (down * across), index % (down * across));
            let (row, column) = (tile / across * rows, tile % across * columns);
            let [a, b, c] = self.batch.offsets(batch);
            task(Tile {
                a: self.a.shifted(a).part(row, 0),
                b: self.b.shifted(b).part(0, column),
                c: self.c.shifted(c).part(row, column),
                bias: self.bias.map(|bias| bias.part(column)),
                rows: rows.min(m - row),
                columns: columns.min(n - column),
            });
        };
        let count = down * across * self.batch.count();
        parallel::tasks(count, self.is_parallel(), &run);
    }
}

impl<T: Element> Tile<T> {
    /// Adds the bias, if there is one, to each row of the sums.
    #[inline(always)]
    fn add_bias(&self, add: impl Fn(T, T) -> T) {
        let Tile { c, bias: Some(bias), rows, columns, .. } = *self else { return };
        for row in 0..rows {
            if c.columns == 1 && bias.step == 1 {
                // SAFETY: the row of this tile, which no other task touches, and its part of the bias, which
                // nobody writes.
                let (row, bias) = unsafe {
                    (
                        std::slice::from_raw_parts_mut(c.at(row, 0), columns),
                        std::slice::from_raw_parts(bias.start.get().cast_const(), columns),
                    )
                };
                row.iter_mut().zip(bias).for_each(|(sum, &bias)| *sum = add(*sum, bias));
                continue;
            }
            for column in 0..columns {
                // SAFETY: as above.
                unsafe { *c.at(row, column) = add(*c.at(row, column), bias.at(column)) };
            }
        }
    }
}

/// [`Tile::add_bias`] of floating-point numbers that are what they are summed in.
struct AddBias<'a, T>(&'a Tile<T>);

impl<T: Float> simd::Kernel1<(), ()> for AddBias<'_, T> {
    #[inline(always)]
    fn run(self, (): ()) {
        self.0.add_bias(|sum, bias| sum + bias);
    }
}

/// Cuts `size` into at most 8 parts of at least 192, multiples of 48 (the largest micro-kernels).
fn tile(size: usize) -> usize {
    size.div_ceil((size / 192).clamp(1, 8)).next_multiple_of(48)
}

/// What the `gemm` crate computes, as this module calls it: c = a·b, or c += a·b.
///
/// # Safety
/// The three matrices hold `size.m`×`size.k`, `size.k`×`size.n` and `size.m`×`size.n` elements, and
/// nobody else touches the last.
unsafe fn gemm_tile<T: Element>(size: Size, a: Matrix<T>, b: Matrix<T>, c: Matrix<T>, add: bool, one: T) {
    let [ar, ac, br, bc, cr, cc] =
        [a.rows, a.columns, b.rows, b.columns, c.rows, c.columns].map(|stride| stride as isize);
    // SAFETY: as for this function; strides of existing tensors fit into isize.
    unsafe {
        gemm::gemm(
            size.m,
            size.n,
            size.k,
            c.start.get(),
            cc,
            cr,
            add,
            a.start.get().cast_const(),
            ac,
            ar,
            b.start.get().cast_const(),
            bc,
            br,
            one,
            one,
            false,
            false,
            false,
            gemm::Parallelism::None,
        );
    }
}

trait Float: Wide<Acc = Self> + std::ops::Add<Output = Self> {
    const ONE: Self;

    fn mul_add(self, b: Self, c: Self) -> Self;
}

impl Float for f32 {
    const ONE: f32 = 1.0;

    #[inline(always)]
    fn mul_add(self, b: f32, c: f32) -> f32 {
        f32::mul_add(self, b, c)
    }
}

impl Float for f64 {
    const ONE: f64 = 1.0;

    #[inline(always)]
    fn mul_add(self, b: f64, c: f64) -> f64 {
        f64::mul_add(self, b, c)
    }
}

fn float<T: Float>(product: &Product<T>) -> Result<(), OpError> {
    if product.is_trivial(|sum, bias| sum + bias) {
        return Ok(());
    }
    let Size { m, k, n } = product.size;
    // While the tile is in the cache.
    let finish = |tile: &Tile<T>| {
        if tile.bias.is_some() {
            simd::dispatch1(AddBias(tile), ());
        }
    };
    if n == 1 {
        // c = a·b with a vector b.
        product.tiles(64, 1, &|tile| {
            let Tile { a, b, c, rows, .. } = tile;
            simd::dispatch1(
                MatVec { matrix: a, vector: (b.start, b.rows), result: (c.start, c.rows), rows, k },
                (),
            );
            finish(&tile);
        });
    } else if m == 1 {
        product.tiles(1, 64, &|tile| {
            let Tile { a, b, c, columns, .. } = tile;
            simd::dispatch1(
                MatVec {
                    matrix: b.transposed(),
                    vector: (a.start, a.columns),
                    result: (c.start, c.columns),
                    rows: columns,
                    k,
                },
                (),
            );
            finish(&tile);
        });
    } else {
        product.tiles(tile(m), tile(n), &|tile| {
            let Tile { a, b, c, rows, columns, .. } = tile;
            // SAFETY: the tile lies inside the three operands; no other tile writes its part of c.
            unsafe { gemm_tile(Size { m: rows, k, n: columns }, a, b, c, false, T::ONE) };
            finish(&tile);
        });
    }
    Ok(())
}

/// `result[i] = Σ matrix[i, j]·vector[j]` for up to 64 rows.
struct MatVec<T> {
    matrix: Matrix<T>,
    vector: (Shared<T>, usize),
    result: (Shared<T>, usize),
    rows: usize,
    k: usize,
}

impl<T: Float> simd::Kernel1<(), ()> for MatVec<T> {
    #[inline(always)]
    fn run(self, (): ()) {
        let (vector, step) = self.vector;
        let mut sums = [T::default(); 64];
        // SAFETY (all below): rows below `rows`, inner indices below `k`, inside the operands.
        let at = |j: usize| unsafe { *vector.get().add(j * step) };
        if self.matrix.rows == 1 {
            for j in 0..self.k {
                let x = at(j);
                let column = unsafe { std::slice::from_raw_parts(self.matrix.at(0, j), self.rows) };
                for (sum, &a) in sums.iter_mut().zip(column) {
                    *sum = a.mul_add(x, *sum);
                }
            }
        } else if self.matrix.columns == 1 && step == 1 {
            let vector = unsafe { std::slice::from_raw_parts(vector.get(), self.k) };
            for (i, sum) in sums.iter_mut().enumerate().take(self.rows) {
                let row = unsafe { std::slice::from_raw_parts(self.matrix.at(i, 0), self.k) };
                *sum = dot(row, vector);
            }
        } else {
            for (i, sum) in sums.iter_mut().enumerate().take(self.rows) {
                for j in 0..self.k {
                    *sum = unsafe { *self.matrix.at(i, j) }.mul_add(at(j), *sum);
                }
            }
        }
        let (result, step) = self.result;
        for (i, &sum) in sums.iter().enumerate().take(self.rows) {
            unsafe { *result.get().add(i * step) = sum };
        }
    }
}

/// A scalar product with 32 partial sums.
#[inline(always)]
fn dot<T: Float>(a: &[T], b: &[T]) -> T {
    const LANES: usize = 32;
    let mut lanes = [T::default(); LANES];
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    for (a, b) in a.iter().zip(b) {
        for (lane, (&a, &b)) in lanes.iter_mut().zip(a.iter().zip(b)) {
            *lane = a.mul_add(b, *lane);
        }
    }
    for (lane, (&a, &b)) in lanes.iter_mut().zip(a_rest.iter().zip(b_rest)) {
        *lane = a.mul_add(b, *lane);
    }
    let mut half = LANES / 2;
    while half > 0 {
        let (low, high) = lanes.split_at_mut(half);
        for (a, &b) in low.iter_mut().zip(high.iter()) {
            *a = *a + b;
        }
        half /= 2;
    }
    lanes[0]
}

/// f16 and bf16: tiles are converted to f32 and summed there, so that only the end rounds.
fn half<T: Wide<Acc = f32>>(product: &Product<T>, workspace: &mut [f32]) -> Result<(), OpError> {
    if product.is_trivial(|sum, bias| T::narrow(sum.widen() + bias.widen())) {
        return Ok(());
    }
    let Size { m, k, n } = product.size;
    let parts = half_parts(product.size);
    let per_lane: usize = parts.iter().sum();
    let lanes = half_lanes(product.size, product.batch.count());
    if workspace.len() < lanes * per_lane {
        return Err(OpError::new("internal: the workspace of `matmul` is too small"));
    }
    let (down, across) = (m.div_ceil(HALF_TILE), n.div_ceil(HALF_TILE));
    let count = down * across * product.batch.count();
    let start = Shared::new(workspace.as_mut_ptr());
    let run = |lane: usize| {
        // SAFETY: the workspace holds `lanes` parts of this size, and each lane uses its own.
        let scratch = unsafe { std::slice::from_raw_parts_mut(start.get().add(lane * per_lane), per_lane) };
        let (a_part, rest) = scratch.split_at_mut(parts[0]);
        let (b_part, c_part) = rest.split_at_mut(parts[1]);
        for index in (lane..count).step_by(lanes) {
            let (batch, tile) = (index / (down * across), index % (down * across));
            let (row, column) = (tile / across * HALF_TILE, tile % across * HALF_TILE);
            let (rows, columns) = (HALF_TILE.min(m - row), HALF_TILE.min(n - column));
            let [a, b, c] = product.batch.offsets(batch);
            let (a, b) = (product.a.shifted(a).part(row, 0), product.b.shifted(b).part(0, column));
            let c = product.c.shifted(c).part(row, column);
            for start in (0..k).step_by(HALF_DEPTH) {
                let depth = HALF_DEPTH.min(k - start);
                // SAFETY: the parts lie inside the operands and fit into the scratch; no other tile
                // writes this part of c.
                unsafe {
                    let a = widen(a.part(0, start), rows, depth, a_part);
                    let b = widen(b.part(start, 0), depth, columns, b_part);
                    let c = Matrix { start: Shared::new(c_part.as_mut_ptr()), rows: columns, columns: 1 };
                    gemm_tile(Size { m: rows, k: depth, n: columns }, a, b, c, start > 0, 1.0);
                }
            }
            let bias = product.bias.map(|bias| bias.part(column));
            for (i, sums) in c_part.chunks(columns).take(rows).enumerate() {
                for (j, &sum) in sums.iter().enumerate() {
                    // SAFETY: inside the tile, and inside the bias, which has an element for each column.
                    unsafe {
                        let sum = bias.map_or(sum, |bias| sum + bias.at(j).widen());
                        *c.at(i, j) = T::narrow(sum);
                    }
                }
            }
        }
    };
    parallel::tasks(lanes, product.is_parallel(), &run);
    Ok(())
}

/// Converts a part of a matrix into scratch, along its shorter stride.
///
/// # Safety
/// `rows`×`columns` elements may be read, and `scratch` holds as many.
unsafe fn widen<T: Wide<Acc = f32>>(
    matrix: Matrix<T>,
    rows: usize,
    columns: usize,
    scratch: &mut [f32],
) -> Matrix<f32> {
    struct Row<T>(Matrix<T>, usize);
    impl<T: Wide<Acc = f32>> simd::Kernel1<&mut [f32], ()> for Row<T> {
        #[inline(always)]
        fn run(self, target: &mut [f32]) {
            let Row(matrix, row) = self;
            if matrix.columns == 1 {
                // SAFETY: as for `widen`.
                let source = unsafe { std::slice::from_raw_parts(matrix.at(row, 0), target.len()) };
                for (to, &from) in target.iter_mut().zip(source) {
                    *to = from.widen();
                }
            } else {
                for (j, to) in target.iter_mut().enumerate() {
                    // SAFETY: as for `widen`.
                    *to = unsafe { *matrix.at(row, j) }.widen();
                }
            }
        }
    }
    let turned = matrix.rows == 1 && matrix.columns != 1;
    let (source, outer, inner) =
        if turned { (matrix.transposed(), columns, rows) } else { (matrix, rows, columns) };
    for (row, target) in scratch.chunks_mut(inner.max(1)).take(outer).enumerate() {
        simd::dispatch1(Row(source, row), target);
    }
    let start = Shared::new(scratch.as_mut_ptr());
    let dense = Matrix { start, rows: inner, columns: 1 };
    if turned { dense.transposed() } else { dense }
}

/// Whole numbers, wrapping.
fn whole<T: Element>(
    product: &Product<T>,
    multiply: impl Fn(T, T) -> T + Sync,
    add: impl Fn(T, T) -> T + Sync,
) -> Result<(), OpError> {
    if product.is_trivial(&add) {
        return Ok(());
    }
    let k = product.size.k;
    product.tiles(16, product.size.n, &|tile| {
        let Tile { a, b, c, rows, columns, .. } = tile;
        for i in 0..rows {
            for j in 0..columns {
                let mut sum = T::default();
                for l in 0..k {
                    // SAFETY: inside the operands.
                    sum = add(sum, unsafe { multiply(*a.at(i, l), *b.at(l, j)) });
                }
                // SAFETY: inside the tile of c, which no other task writes.
                unsafe { *c.at(i, j) = sum };
            }
        }
        tile.add_bias(&add);
    });
    Ok(())
}
