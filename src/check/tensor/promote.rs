//! Which dtype operands have together. The rules of weak values and of mixed dtypes are here and
//! nowhere else.
//!
//! | together | result |
//! |---|---|
//! | tensors of one dtype | that dtype |
//! | a float tensor with int or bool tensors | the float's dtype |
//! | other mixed tensors | an error that shows the cast |
//! | a tensor with a weak operand | the tensor's dtype |
//! | an int or bool tensor with a weak float | `f32` |
//! | a bool tensor with an int literal | `i32` |
//! | weak run-time scalars, with literals or without | `f64`, weak |
//! | literals alone | `f32`, `i32` (`i64` where one does not fit), `bool` |

use super::{Number, Operand};
use crate::{
    ir::{DType, Graph, ValueId},
    ops::{self, Const, OpError},
};

/// The operands as values of one dtype, and whether the result is weak. `op` is the name that
/// errors use.
///
/// Errors where dtypes do not mix, and where a number does not fit in an integer dtype.
pub fn promote(graph: &mut Graph, op: &str, operands: &[Operand]) -> Result<(Vec<ValueId>, bool), OpError> {
    let (dtype, weak) = common(graph, op, operands)?;
    let values = operands.iter().map(|&o| with_dtype(graph, op, o, dtype)).collect::<Result<Vec<_>, _>>()?;
    Ok((values, weak))
}

/// The dtype that the operands have together, and whether the result is weak.
pub(super) fn common(graph: &Graph, op: &str, operands: &[Operand]) -> Result<(DType, bool), OpError> {
    let mut strong: Option<DType> = None;
    let (mut weak_float, mut weak_int, mut weak_bool, mut run_time) = (false, false, false, false);
    let mut fits_i32 = true;
    for &operand in operands {
        match operand {
            Operand::Tensor { value, weak: false } => {
                let dtype = graph.ty(value).dtype();
                strong = Some(match strong {
                    None => dtype,
                    Some(other) => join(other, dtype).ok_or_else(|| mixed(graph, op, operands))?,
                });
            }
            Operand::Tensor { value, weak: true } => {
                run_time = true;
                if graph.ty(value).dtype() == DType::Bool {
                    weak_bool = true;
                } else {
                    weak_float = true;
                }
            }
            Operand::Number(Number::Float(_)) => weak_float = true,
            Operand::Number(Number::Int(value)) => {
                weak_int = true;
                fits_i32 &= i32::try_from(value).is_ok();
            }
            Operand::Number(Number::Bool(_)) => weak_bool = true,
        }
    }
    Ok(match strong {
        Some(dtype) if dtype.is_float() => (dtype, false),
        Some(_) if weak_float => (DType::F32, false),
        Some(DType::Bool) if weak_int => (if fits_i32 { DType::I32 } else { DType::I64 }, false),
        Some(dtype) => (dtype, false),
        None if run_time && (weak_float || weak_int) => (DType::F64, true),
        None if run_time => (DType::Bool, true),
        None if weak_float => (DType::F32, false),
        None if weak_int => (if fits_i32 { DType::I32 } else { DType::I64 }, false),
        None if weak_bool => (DType::Bool, false),
        None => (DType::F32, false),
    })
}

/// The common dtype of two tensors.
fn join(a: DType, b: DType) -> Option<DType> {
    if a == b || (a.is_float() && !b.is_float()) {
        Some(a)
    } else if b.is_float() && !a.is_float() {
        Some(b)
    } else {
        None
    }
}

/// The error for the first two tensors whose dtypes do not mix.
fn mixed(graph: &Graph, op: &str, operands: &[Operand]) -> OpError {
    let tensors: Vec<_> = operands
        .iter()
        .filter_map(|o| match o {
            Operand::Tensor { value, weak: false } => Some(graph.ty(*value)),
            _ => None,
        })
        .collect();
    for (i, a) in tensors.iter().enumerate() {
        for b in tensors.iter().skip(i + 1) {
            if join(a.dtype(), b.dtype()).is_none() {
                let to = wider(a.dtype(), b.dtype());
                let from = if to == a.dtype() { b.dtype() } else { a.dtype() };
                return OpError::new(format!(
                    "`{op}` of {a} and {b} mixes the dtypes {} and {}",
                    a.dtype(),
                    b.dtype()
                ))
                .help(format!("convert one of them: `{to}(x)` of the {from} operand"));
            }
        }
    }
    OpError::new(format!("internal: `{op}` found no mixed dtypes"))
}

/// The dtype to suggest: the one that loses less.
fn wider(a: DType, b: DType) -> DType {
    let rank = |d: DType| match d {
        DType::Bool => 0,
        DType::U8 => 1,
        DType::I32 => 2,
        DType::I64 => 3,
        DType::F16 => 4,
        DType::BF16 => 5,
        DType::F32 => 6,
        DType::F64 => 7,
    };
    if rank(a) >= rank(b) { a } else { b }
}

/// One operand in a dtype that it may have by the rules above.
pub(super) fn with_dtype(
    graph: &mut Graph,
    op: &str,
    operand: Operand,
    dtype: DType,
) -> Result<ValueId, OpError> {
    match operand {
        Operand::Tensor { value, .. } => graph.cast(value, dtype),
        Operand::Number(number) => constant(graph, op, number, dtype),
    }
}

/// The operand as a value in the dtype that it has by itself.
pub(super) fn value(graph: &mut Graph, op: &str, operand: Operand) -> Result<ValueId, OpError> {
    let (dtype, _) = common(graph, op, &[operand])?;
    with_dtype(graph, op, operand, dtype)
}

/// A number as a 0-d constant. Errors where an integer dtype cannot hold it.
pub fn constant(graph: &mut Graph, op: &str, number: Number, dtype: DType) -> Result<ValueId, OpError> {
    let value = if dtype.is_float() {
        ops::Number::float(number.as_f64())
    } else {
        ops::Number::Int(whole(op, number, dtype)?)
    };
    graph.value(Const { dtype, value }, &[])
}

/// A number as an element of an integer dtype (or of `bool`), checked.
pub(super) fn whole(op: &str, number: Number, dtype: DType) -> Result<i64, OpError> {
    let does_not_fit = || OpError::new(format!("`{op}`: {number} does not fit in {dtype}"));
    let value = match number {
        Number::Int(value) => value,
        Number::Bool(value) => i64::from(value),
        // 2^63 itself is the first float that is too large.
        Number::Float(value)
            if value.fract() == 0.0 && (-(2f64.powi(63))..2f64.powi(63)).contains(&value) =>
        {
            value as i64
        }
        Number::Float(_) => return Err(does_not_fit()),
    };
    let (low, high) = match dtype {
        DType::Bool => (0, 1),
        DType::U8 => (0, i64::from(u8::MAX)),
        DType::I32 => (i64::from(i32::MIN), i64::from(i32::MAX)),
        _ => (i64::MIN, i64::MAX),
    };
    if (low..=high).contains(&value) { Ok(value) } else { Err(does_not_fit()) }
}
