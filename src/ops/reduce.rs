//! Reductions.

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ReduceKind {
    Sum,
    /// Accumulated wide, so that the mean of f16 values is finite where it fits.
    Mean,
    Max,
    Min,
    Prod,
}

/// Reduces the listed axes (ascending, without repeats) and drops them. Accumulates f16 and bf16
/// in f32. `Max` and `Min` give NaN where any element is NaN; their gradient is split evenly among
/// ties. Over no elements: sum 0, product 1, mean NaN, `Max` −∞, `Min` +∞ (integers: the least and
/// largest value of the type).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Reduce {
    pub kind: ReduceKind,
    pub axes: Box<[usize]>,
}

/// The index (i32) of the first largest (or smallest) element along an axis, which is dropped. NaN
/// counts as largest (and as smallest).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ArgReduce {
    pub largest: bool,
    pub axis: usize,
}

crate::ops::scaffold!(Reduce, ArgReduce);
