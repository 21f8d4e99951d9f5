//! Views, and ops that only move elements.

/// Where the elements of a value lie in its buffer, counted in elements.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Layout {
    pub offset: usize,
    /// One stride per axis; 0 along a broadcast axis.
    pub strides: Box<[usize]>,
}

impl Layout {
    /// Row-major, without gaps.
    pub fn dense(shape: &[usize]) -> Layout {
        let mut strides = vec![0; shape.len()].into_boxed_slice();
        let mut next = 1usize;
        for (stride, &dim) in strides.iter_mut().zip(shape).rev() {
            *stride = next;
            next = next.saturating_mul(dim.max(1));
        }
        Layout { offset: 0, strides }
    }

    /// Row-major without gaps, from wherever it starts. Axes of size 1 do not matter.
    pub fn is_dense(&self, shape: &[usize]) -> bool {
        if shape.contains(&0) {
            return true;
        }
        let dense = Layout::dense(shape);
        self.strides.iter().zip(&dense.strides).zip(shape).all(|((a, b), &dim)| dim == 1 || a == b)
    }
}

/// The same elements in another shape.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Reshape {
    pub shape: Box<[usize]>,
}

/// Axis `k` of the result is axis `axes[k]` of the operand.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Transpose {
    pub axes: Box<[usize]>,
}

/// NumPy's broadcasting: axes are aligned at the end, sizes of 1 repeat.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Broadcast {
    pub shape: Box<[usize]>,
}

/// `start, start + step, …`, `size` elements of one axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SliceRange {
    pub start: usize,
    pub step: usize,
    pub size: usize,
}

/// A part of every axis; `ranges` has one entry per axis. In bounds, `step` at least 1.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Slice {
    pub ranges: Box<[SliceRange]>,
}

/// A dense copy.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Copy;

/// Joins one or more operands along an axis.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Concat {
    pub axis: usize,
}

/// Puts the operand into zeros of `shape`, at `ranges` (whose sizes are the operand's shape): the
/// gradient of [`Slice`].
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Pad {
    pub shape: Box<[usize]>,
    pub ranges: Box<[SliceRange]>,
}

crate::ops::scaffold!(Reshape, Transpose, Broadcast, Slice, Copy, Concat, Pad);
