//! Ops that act element by element on operands of one shape.

use crate::ir::DType;

/// One operand. Dtype of the result: that of the operand, except `IsNan` and `Not` (bool).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Unary {
    Neg,
    Abs,
    Sign,
    Exp,
    Log,
    Log1p,
    Expm1,
    Sqrt,
    Rsqrt,
    Recip,
    Sin,
    Cos,
    Tanh,
    Sigmoid,
    /// max(x, 0); NaN stays NaN; the gradient at 0 is 0.
    Relu,
    /// x·Φ(x) in the tanh form.
    Gelu,
    Silu,
    Erf,
    Floor,
    Ceil,
    Round,
    Not,
    IsNan,
}

/// Two operands of the same type. Comparisons and `And`/`Or` give bool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Binary {
    Add,
    Sub,
    Mul,
    /// Floats only.
    Div,
    /// Rounds towards −∞: `q * b + r == a` with `Rem`. Division of integers by 0 gives 0, and
    /// the remainder then is `a`.
    FloorDiv,
    Rem,
    Pow,
    /// NaN if either is NaN; at ties the gradient is halved between the operands.
    Max,
    Min,
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
    And,
    Or,
}

/// `condition ? a : b`, operands (condition: bool, a, b).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Select;

/// Conversion to another element type. Float to int truncates and saturates; NaN gives 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Cast {
    pub to: DType,
}

crate::ops::scaffold!(Unary, Binary, Select, Cast);
