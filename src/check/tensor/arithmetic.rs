//! The operators of the language.

use super::{
    Number, Operand,
    broadcast::together,
    matmul::matmul,
    number::{fold_binary, fold_unary, needs_bool},
    promote::{common, value, with_dtype},
};
use crate::{
    ir::{DType, Graph, ValueId},
    ops::{Binary, OpError, Unary},
    syntax::ast::{BinaryOp, UnaryOp},
};

/// Applies an infix operator, with NumPy's broadcasting. Two numbers fold to a number.
pub fn binary(graph: &mut Graph, op: BinaryOp, a: Operand, b: Operand) -> Result<Operand, OpError> {
    if let (Operand::Number(a), Operand::Number(b)) = (a, b) {
        return fold_binary(op, a, b).map(Operand::Number);
    }
    let symbol = op.symbol();
    let (dtype, _) = common(graph, symbol, &[a, b])?;
    let both = |graph: &Graph| format!("{} and {}", a.describe(graph), b.describe(graph));
    match op {
        BinaryOp::MatMul => matmul(graph, symbol, a, b).map(Operand::tensor),
        BinaryOp::Pow => power(graph, symbol, a, b),
        BinaryOp::And | BinaryOp::Or => {
            if dtype != DType::Bool {
                return Err(needs_bool(symbol, &both(graph)));
            }
            let op = if op == BinaryOp::And { Binary::And } else { Binary::Or };
            elementwise(graph, symbol, op, a, b)
        }
        BinaryOp::Eq => elementwise(graph, symbol, Binary::Eq, a, b),
        BinaryOp::Ne => elementwise(graph, symbol, Binary::Ne, a, b),
        BinaryOp::Lt => ordering(graph, symbol, Binary::Lt, a, b),
        BinaryOp::Le => ordering(graph, symbol, Binary::Le, a, b),
        BinaryOp::Gt => ordering(graph, symbol, Binary::Gt, a, b),
        BinaryOp::Ge => ordering(graph, symbol, Binary::Ge, a, b),
        _ if dtype == DType::Bool => Err(not_for_bools(symbol, &both(graph))),
        BinaryOp::Add => elementwise(graph, symbol, Binary::Add, a, b),
        BinaryOp::Sub => elementwise(graph, symbol, Binary::Sub, a, b),
        BinaryOp::Mul => elementwise(graph, symbol, Binary::Mul, a, b),
        BinaryOp::Div if !dtype.is_float() => {
            Err(OpError::new(format!("`/` of {}: whole numbers have no fractions", both(graph)))
                .help("`//` rounds down; for fractions convert first, `f32(x)`"))
        }
        BinaryOp::Div => elementwise(graph, symbol, Binary::Div, a, b),
        BinaryOp::FloorDiv | BinaryOp::Rem => {
            if !dtype.is_float() && b == Operand::Number(Number::Int(0)) {
                return Err(OpError::new(format!("`{symbol}` of {}: division by zero", both(graph))));
            }
            let op = if op == BinaryOp::Rem { Binary::Rem } else { Binary::FloorDiv };
            elementwise(graph, symbol, op, a, b)
        }
    }
}

/// Applies a prefix operator.
pub fn unary(graph: &mut Graph, op: UnaryOp, x: Operand) -> Result<Operand, OpError> {
    let (value, weak) = match x {
        Operand::Number(number) => return fold_unary(op, number).map(Operand::Number),
        Operand::Tensor { value, weak } => (value, weak),
    };
    let dtype = graph.ty(value).dtype();
    let op = match op {
        UnaryOp::Not if dtype != DType::Bool => return Err(needs_bool("not", &x.describe(graph))),
        UnaryOp::Not => Unary::Not,
        UnaryOp::Neg if dtype == DType::Bool => {
            return Err(OpError::new(format!("`-` of {}: booleans are not numbers", x.describe(graph)))
                .help("write `not x`, or convert first: `f32(x)`"));
        }
        UnaryOp::Neg if dtype == DType::U8 => {
            return Err(OpError::new(format!("`-` of {}: u8 has no negative numbers", x.describe(graph)))
                .help("convert first: `i32(x)`"));
        }
        UnaryOp::Neg => Unary::Neg,
    };
    Ok(Operand::Tensor { value: graph.unary(op, value)?, weak })
}

/// A binary op on operands brought to one type.
pub(super) fn elementwise(
    graph: &mut Graph,
    name: &str,
    op: Binary,
    a: Operand,
    b: Operand,
) -> Result<Operand, OpError> {
    let (values, weak) = together(graph, name, &[a, b])?;
    Ok(Operand::Tensor { value: graph.value(op, &values)?, weak })
}

/// `<` and its kin; booleans are ordered as 0 and 1.
fn ordering(graph: &mut Graph, name: &str, op: Binary, a: Operand, b: Operand) -> Result<Operand, OpError> {
    let (mut values, weak) = together(graph, name, &[a, b])?;
    for value in &mut values {
        if graph.ty(*value).dtype() == DType::Bool {
            *value = graph.cast(*value, DType::U8)?;
        }
    }
    Ok(Operand::Tensor { value: graph.value(op, &values)?, weak })
}

pub(super) fn not_for_bools(op: &str, got: &str) -> OpError {
    OpError::new(format!("`{op}` of {got}: booleans are not numbers"))
        .help("use `and`, `or`, `not`, or convert first: `f32(x)`")
}

/// `a ** b`. Small constant powers become products and roots, which are exact where `pow` is not
/// and have simpler gradients; the list is the field's usual one.
pub(super) fn power(graph: &mut Graph, name: &str, a: Operand, b: Operand) -> Result<Operand, OpError> {
    let (dtype, weak) = common(graph, name, &[a, b])?;
    if dtype == DType::Bool || matches!(b, Operand::Number(Number::Bool(_))) {
        return Err(not_for_bools(name, &format!("{} and {}", a.describe(graph), b.describe(graph))));
    }
    let Operand::Number(exponent) = b else {
        return elementwise(graph, name, Binary::Pow, a, b);
    };
    if dtype.is_float() {
        let base = with_dtype(graph, name, a, dtype)?;
        let value = match exponent.as_f64() {
            1.0 => base,
            2.0 => graph.mul(base, base)?,
            3.0 => {
                let square = graph.mul(base, base)?;
                graph.mul(square, base)?
            }
            0.5 => graph.unary(Unary::Sqrt, base)?,
            -0.5 => graph.unary(Unary::Rsqrt, base)?,
            -1.0 => graph.unary(Unary::Recip, base)?,
            -2.0 => {
                // The square of a large or small number leaves the range sooner than its reciprocal's.
                let recip = graph.unary(Unary::Recip, base)?;
                graph.mul(recip, recip)?
            }
            _ => return elementwise(graph, name, Binary::Pow, a, b),
        };
        return Ok(Operand::Tensor { value, weak });
    }
    let Number::Int(exponent) = exponent else {
        return elementwise(graph, name, Binary::Pow, a, b);
    };
    if exponent < 0 {
        return Err(OpError::new(format!(
            "`{name}` of {} and `{exponent}`: whole numbers have no negative powers",
            a.describe(graph)
        ))
        .help("convert first: `f32(x)`"));
    }
    // The exponent need not fit in the base's dtype, so the base alone decides it.
    let base = value(graph, name, a)?;
    Ok(Operand::tensor(integer_power(graph, base, exponent)?))
}

/// By squaring; wraps around as products of whole numbers do.
fn integer_power(graph: &mut Graph, base: ValueId, mut exponent: i64) -> Result<ValueId, OpError> {
    let mut result: Option<ValueId> = None;
    let mut square = base;
    while exponent > 0 {
        if exponent % 2 == 1 {
            result = Some(match result {
                Some(r) => graph.mul(r, square)?,
                None => square,
            });
        }
        exponent /= 2;
        if exponent > 0 {
            square = graph.mul(square, square)?;
        }
    }
    match result {
        Some(result) => Ok(result),
        None => graph.splat_like(base, 1.0),
    }
}
