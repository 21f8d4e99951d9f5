//! Ops that act element by element on operands of one shape.

mod grad;

use super::{GradNode, Gradient, Memory, OpError, Operation, expect_args, expect_float};
use crate::ir::{DType, Graph, Type};

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

impl Unary {
    pub const ALL: [Unary; 23] = [
        Unary::Neg,
        Unary::Abs,
        Unary::Sign,
        Unary::Exp,
        Unary::Log,
        Unary::Log1p,
        Unary::Expm1,
        Unary::Sqrt,
        Unary::Rsqrt,
        Unary::Recip,
        Unary::Sin,
        Unary::Cos,
        Unary::Tanh,
        Unary::Sigmoid,
        Unary::Relu,
        Unary::Gelu,
        Unary::Silu,
        Unary::Erf,
        Unary::Floor,
        Unary::Ceil,
        Unary::Round,
        Unary::Not,
        Unary::IsNan,
    ];

    /// The dtype of the result for operands of `dtype`; an error where the op does not take them.
    /// The message says `what` the operand is: its type.
    fn result(self, dtype: DType, what: &Type) -> Result<DType, OpError> {
        match self {
            Unary::Not if dtype == DType::Bool => Ok(DType::Bool),
            Unary::Not => Err(OpError::new(format!("`not` needs bool values, got {what}"))
                .help("compare first: `x != 0` gives bool values")),
            Unary::IsNan => expect_float(self.name(), what).map(|_| DType::Bool),
            Unary::Neg | Unary::Abs | Unary::Sign | Unary::Relu => expect_number(self.name(), what),
            _ => expect_float(self.name(), what),
        }
    }
}

impl Binary {
    pub const ALL: [Binary; 17] = [
        Binary::Add,
        Binary::Sub,
        Binary::Mul,
        Binary::Div,
        Binary::FloorDiv,
        Binary::Rem,
        Binary::Pow,
        Binary::Max,
        Binary::Min,
        Binary::Eq,
        Binary::Ne,
        Binary::Lt,
        Binary::Le,
        Binary::Gt,
        Binary::Ge,
        Binary::And,
        Binary::Or,
    ];

    fn result(self, dtype: DType, what: &Type) -> Result<DType, OpError> {
        match self {
            Binary::Add
            | Binary::Sub
            | Binary::Mul
            | Binary::FloorDiv
            | Binary::Rem
            | Binary::Pow
            | Binary::Max
            | Binary::Min => expect_number(self.name(), what),
            Binary::Div if dtype.is_int() => {
                Err(OpError::new(format!("`div` needs floating-point values, got {what}"))
                    .help("`//` divides whole numbers, rounding down"))
            }
            Binary::Div => expect_float(self.name(), what),
            Binary::Eq | Binary::Ne | Binary::Lt | Binary::Le | Binary::Gt | Binary::Ge => Ok(DType::Bool),
            Binary::And | Binary::Or if dtype == DType::Bool => Ok(DType::Bool),
            Binary::And | Binary::Or => {
                Err(OpError::new(format!("`{}` needs bool values, got {what}", self.name()))
                    .help("compare first: `x != 0` gives bool values"))
            }
        }
    }
}

/// Requires an operand that is not bool.
fn expect_number(name: &str, ty: &Type) -> Result<DType, OpError> {
    match ty.dtype() {
        DType::Bool => Err(OpError::new(format!("`{name}` needs numbers, got {ty}"))
            .help(format!("convert it first: `i32(x)` makes {}", ty.with_dtype(DType::I32)?))),
        dtype => Ok(dtype),
    }
}

impl Operation for Unary {
    fn name(&self) -> &'static str {
        match self {
            Unary::Neg => "neg",
            Unary::Abs => "abs",
            Unary::Sign => "sign",
            Unary::Exp => "exp",
            Unary::Log => "log",
            Unary::Log1p => "log1p",
            Unary::Expm1 => "expm1",
            Unary::Sqrt => "sqrt",
            Unary::Rsqrt => "rsqrt",
            Unary::Recip => "recip",
            Unary::Sin => "sin",
            Unary::Cos => "cos",
            Unary::Tanh => "tanh",
            Unary::Sigmoid => "sigmoid",
            Unary::Relu => "relu",
            Unary::Gelu => "gelu",
            Unary::Silu => "silu",
            Unary::Erf => "erf",
            Unary::Floor => "floor",
            Unary::Ceil => "ceil",
            Unary::Round => "round",
            Unary::Not => "not",
            Unary::IsNan => "isnan",
        }
    }

    fn infer(&self, _graph: &Graph, args: &[&Type]) -> Result<Vec<Type>, OpError> {
        let [x] = expect_args(self.name(), args)?;
        Ok(vec![x.with_dtype(self.result(x.dtype(), x)?)?])
    }

    fn grad(&self, graph: &mut Graph, at: &GradNode<'_>) -> Result<Gradient, OpError> {
        grad::unary(*self, graph, at)
    }

    fn memory(&self) -> Memory {
        Memory { overwrites: vec![(0, 0)], strided: true, ..Memory::FRESH }
    }
}

impl Operation for Binary {
    fn name(&self) -> &'static str {
        match self {
            Binary::Add => "add",
            Binary::Sub => "sub",
            Binary::Mul => "mul",
            Binary::Div => "div",
            Binary::FloorDiv => "floor_div",
            Binary::Rem => "rem",
            Binary::Pow => "pow",
            Binary::Max => "maximum",
            Binary::Min => "minimum",
            Binary::Eq => "eq",
            Binary::Ne => "ne",
            Binary::Lt => "lt",
            Binary::Le => "le",
            Binary::Gt => "gt",
            Binary::Ge => "ge",
            Binary::And => "and",
            Binary::Or => "or",
        }
    }

    fn infer(&self, _graph: &Graph, args: &[&Type]) -> Result<Vec<Type>, OpError> {
        let [a, b] = expect_args(self.name(), args)?;
        if a != b {
            let error = OpError::new(format!("`{}` of {a} and {b}: the types differ", self.name()));
            return Err(if a.shape() == b.shape() {
                error.help(format!("convert one of them: `{}(x)`", a.dtype()))
            } else {
                error
            });
        }
        Ok(vec![a.with_dtype(self.result(a.dtype(), a)?)?])
    }

    fn grad(&self, graph: &mut Graph, at: &GradNode<'_>) -> Result<Gradient, OpError> {
        grad::binary(*self, graph, at)
    }

    fn memory(&self) -> Memory {
        Memory { overwrites: vec![(0, 0), (0, 1)], strided: true, ..Memory::FRESH }
    }
}

impl Operation for Select {
    fn name(&self) -> &'static str {
        "select"
    }

    fn infer(&self, _graph: &Graph, args: &[&Type]) -> Result<Vec<Type>, OpError> {
        let [condition, a, b] = expect_args(self.name(), args)?;
        if condition.dtype() != DType::Bool || a != b || condition.shape() != a.shape() {
            return Err(OpError::new(format!(
                "`select` of {condition}, {a} and {b}: the first must be bool, the others alike, the shapes equal"
            )));
        }
        Ok(vec![a.clone()])
    }

    fn grad(&self, graph: &mut Graph, at: &GradNode<'_>) -> Result<Gradient, OpError> {
        grad::select(graph, at)
    }

    fn memory(&self) -> Memory {
        Memory { overwrites: vec![(0, 1), (0, 2), (0, 0)], strided: true, ..Memory::FRESH }
    }
}

impl Operation for Cast {
    fn name(&self) -> &'static str {
        "cast"
    }

    fn infer(&self, _graph: &Graph, args: &[&Type]) -> Result<Vec<Type>, OpError> {
        let [x] = expect_args(self.name(), args)?;
        Ok(vec![x.with_dtype(self.to)?])
    }

    fn grad(&self, graph: &mut Graph, at: &GradNode<'_>) -> Result<Gradient, OpError> {
        let from = graph.ty(at.arg(0)?).dtype();
        match at.cotangent(0) {
            Some(g) if from.is_float() && self.to.is_float() => {
                Ok(Gradient::Args(vec![Some(graph.cast(g, from)?)]))
            }
            _ => Ok(Gradient::Zero),
        }
    }

    fn memory(&self) -> Memory {
        Memory { overwrites: vec![(0, 0)], strided: true, ..Memory::FRESH }
    }

    fn attributes(&self) -> String {
        format!("to={}", self.to)
    }
}
