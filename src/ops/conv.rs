//! Two-dimensional convolution (cross-correlation, as everywhere in the field).

/// Geometry of a convolution. Pairs are (height, width).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ConvShape {
    pub stride: (usize, usize),
    /// Zeros added on both sides.
    pub padding: (usize, usize),
    pub dilation: (usize, usize),
    pub groups: usize,
}

/// Operands (x: [n, c, h, w], weight: [o, c / groups, kh, kw]) → [n, o, h', w'], with an optional
/// third operand bias: [o].
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Conv2d {
    pub shape: ConvShape,
}

/// Operands (weight, g) → dx of size [n, c, height, width].
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Conv2dGradInput {
    pub shape: ConvShape,
    /// (h, w) of x.
    pub input: (usize, usize),
}

/// Operands (x, g) → dweight.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Conv2dGradWeight {
    pub shape: ConvShape,
    /// (kh, kw)
    pub kernel: (usize, usize),
}

crate::ops::scaffold!(Conv2d, Conv2dGradInput, Conv2dGradWeight);
