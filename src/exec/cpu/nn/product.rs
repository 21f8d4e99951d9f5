//! Matrix products of tiles.

use super::real::Accumulator;

/// A matrix in memory: its first element and the strides of rows and columns, in elements.
#[derive(Clone, Copy)]
pub struct Matrix<A> {
    pub start: *mut A,
    pub row: usize,
    pub column: usize,
}

impl<A> Matrix<A> {
    pub fn new(start: *mut A, row: usize, column: usize) -> Self {
        Matrix { start, row, column }
    }

    /// The matrix from row `row` and column `column` on.
    #[inline(always)]
    pub fn at(self, row: usize, column: usize) -> Self {
        Matrix { start: self.start.wrapping_add(row * self.row + column * self.column), ..self }
    }

    pub fn transposed(self) -> Self {
        Matrix { row: self.column, column: self.row, ..self }
    }
}

/// `to (+)= scale · a · b` for a: [m, k] and b: [k, n], on this thread. Adds to what is there where
/// `add`. Products over no terms are 0.
///
/// # Safety
/// Every element of the three matrices may be used, `to` overlaps neither operand, nor itself, and
/// no other thread uses it.
#[inline]
#[allow(clippy::too_many_arguments)]
pub unsafe fn product<A: Accumulator>(
    [m, k, n]: [usize; 3],
    to: Matrix<A>,
    add: bool,
    scale: A,
    a: Matrix<A>,
    b: Matrix<A>,
) {
    if m == 0 || n == 0 {
        return;
    }
    if k == 0 {
        if !add {
            for i in 0..m {
                for j in 0..n {
                    // SAFETY: an element of `to`.
                    unsafe { *to.at(i, j).start = A::ZERO };
                }
            }
        }
        return;
    }
    // SAFETY: the caller's promise. Accumulators are `f32` and `f64`, which `gemm` knows.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            to.start,
            to.column as isize,
            to.row as isize,
            add,
            a.start,
            a.column as isize,
            a.row as isize,
            b.start,
            b.column as isize,
            b.row as isize,
            A::ONE,
            scale,
            false,
            false,
            false,
            gemm::Parallelism::None,
        );
    }
}
