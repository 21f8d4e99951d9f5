//! Pooling over windows of the last two axes of [n, c, h, w].

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PoolShape {
    pub kernel: (usize, usize),
    pub stride: (usize, usize),
    pub padding: (usize, usize),
}

/// The largest element of each window; padding never wins; NaN does.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct MaxPool2d {
    pub shape: PoolShape,
}

/// Operands (x, g) → dx: each window's gradient goes to its first largest element.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct MaxPool2dGrad {
    pub shape: PoolShape,
}

/// Operands (x, t: like x) → like the pooled x: the elements of t where x is largest in its window.
/// The transpose of [`MaxPool2dGrad`] in its second operand.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct MaxPool2dGather {
    pub shape: PoolShape,
}

/// The mean of each window; padding counts as zeros.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct AvgPool2d {
    pub shape: PoolShape,
}

/// Operand (g) → dx of size [n, c, height, width].
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct AvgPool2dGrad {
    pub shape: PoolShape,
    /// (h, w) of x.
    pub input: (usize, usize),
}

crate::ops::scaffold!(MaxPool2d, MaxPool2dGrad, MaxPool2dGather, AvgPool2d, AvgPool2dGrad);
