//! Arithmetic on numbers known while the script is read: whole numbers are checked, `//` and `%`
//! round towards −∞ so that `q * b + r == a`.

use std::cmp::Ordering;

use super::Number;
use crate::{
    exec::cpu,
    ops::OpError,
    syntax::ast::{BinaryOp, UnaryOp},
};

/// Applies an operator to two numbers.
///
/// Errors on overflow of 64 bits, on division of whole numbers by 0, on `/` of whole numbers, and
/// on booleans in arithmetic.
pub fn fold_binary(op: BinaryOp, a: Number, b: Number) -> Result<Number, OpError> {
    use BinaryOp::*;
    match op {
        And | Or => match (a, b) {
            (Number::Bool(a), Number::Bool(b)) => Ok(Number::Bool(if op == And { a && b } else { a || b })),
            _ => Err(needs_bool(op.symbol(), &format!("`{a}` and `{b}`"))),
        },
        Eq | Ne | Lt | Le | Gt | Ge => Ok(Number::Bool(compare(op, a, b))),
        MatMul => Err(OpError::new(format!("`@` needs tensors, got `{a}` and `{b}`")).help("use `*`")),
        Add | Sub | Mul | Div | FloorDiv | Rem | Pow => match (a, b) {
            (Number::Bool(_), _) | (_, Number::Bool(_)) => {
                Err(OpError::new(format!("`{}` of `{a}` and `{b}`: booleans are not numbers", op.symbol()))
                    .help("convert with `int(x)`"))
            }
            (Number::Int(a), Number::Int(b)) => fold_ints(op, a, b),
            _ => Ok(Number::Float(fold_floats(op, a.as_f64(), b.as_f64()))),
        },
    }
}

/// Applies a prefix operator to a number.
pub(super) fn fold_unary(op: UnaryOp, x: Number) -> Result<Number, OpError> {
    match (op, x) {
        (UnaryOp::Not, Number::Bool(x)) => Ok(Number::Bool(!x)),
        (UnaryOp::Not, _) => Err(needs_bool("not", &format!("`{x}`"))),
        (UnaryOp::Neg, Number::Int(value)) => value
            .checked_neg()
            .map(Number::Int)
            .ok_or_else(|| OpError::new(format!("`-` of `{value}`: the result does not fit in 64 bits"))),
        (UnaryOp::Neg, Number::Float(value)) => Ok(Number::Float(-value)),
        (UnaryOp::Neg, Number::Bool(value)) => {
            Err(OpError::new(format!("`-` of `{value}`: booleans are not numbers")).help("write `not x`"))
        }
    }
}

pub(super) fn needs_bool(op: &str, got: &str) -> OpError {
    OpError::new(format!("`{op}` needs bools, got {got}")).help("compare first: `x != 0`")
}

fn compare(op: BinaryOp, a: Number, b: Number) -> bool {
    let order = match (a, b) {
        (Number::Int(a), Number::Int(b)) => Some(a.cmp(&b)),
        (Number::Bool(a), Number::Bool(b)) => Some(a.cmp(&b)),
        _ => a.as_f64().partial_cmp(&b.as_f64()),
    };
    match op {
        BinaryOp::Eq => order == Some(Ordering::Equal),
        BinaryOp::Ne => order != Some(Ordering::Equal),
        BinaryOp::Lt => order == Some(Ordering::Less),
        BinaryOp::Le => order.is_some_and(Ordering::is_le),
        BinaryOp::Gt => order == Some(Ordering::Greater),
        _ => order.is_some_and(Ordering::is_ge),
    }
}

fn fold_ints(op: BinaryOp, a: i64, b: i64) -> Result<Number, OpError> {
    let symbol = op.symbol();
    let by_zero = || OpError::new(format!("`{symbol}` of `{a}` and `{b}`: division by zero"));
    let result = match op {
        BinaryOp::Add => a.checked_add(b),
        BinaryOp::Sub => a.checked_sub(b),
        BinaryOp::Mul => a.checked_mul(b),
        BinaryOp::Div => {
            return Err(OpError::new(format!("`/` of the whole numbers `{a}` and `{b}`"))
                .help("`//` rounds down; for a fraction write one of them as a float, `float(x)`"));
        }
        BinaryOp::FloorDiv if b == 0 => return Err(by_zero()),
        BinaryOp::Rem if b == 0 => return Err(by_zero()),
        BinaryOp::FloorDiv => {
            a.checked_div(b).map(|q| if a.wrapping_rem(b) != 0 && (a < 0) != (b < 0) { q - 1 } else { q })
        }
        // i64::MIN % -1 is 0, which `wrapping_rem` gives.
        _ if op == BinaryOp::Rem => {
            let r = a.wrapping_rem(b);
            Some(if r != 0 && (r < 0) != (b < 0) { r + b } else { r })
        }
        // `**`
        _ if b < 0 => return Ok(Number::Float((a as f64).powf(b as f64))),
        _ => match u32::try_from(b) {
            Ok(b) => a.checked_pow(b),
            // Only 0, 1 and -1 have such powers in 64 bits.
            Err(_) => match a {
                0 | 1 => Some(a),
                -1 => Some(if b % 2 == 0 { 1 } else { -1 }),
                _ => None,
            },
        },
    };
    result.map(Number::Int).ok_or_else(|| {
        OpError::new(format!("`{symbol}` of `{a}` and `{b}`: the result does not fit in 64 bits"))
            .help("write one of them as a float, `float(x)`")
    })
}

fn fold_floats(op: BinaryOp, a: f64, b: f64) -> f64 {
    match op {
        BinaryOp::Add => a + b,
        BinaryOp::Sub => a - b,
        BinaryOp::Mul => a * b,
        BinaryOp::Div => a / b,
        BinaryOp::FloorDiv => cpu::floor_div(a, b),
        BinaryOp::Rem => cpu::floor_rem(a, b),
        _ => a.powf(b),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EDGES: [i64; 11] = [i64::MIN, i64::MIN + 1, -7, -2, -1, 0, 1, 2, 7, i64::MAX - 1, i64::MAX];

    #[test]
    fn floor_division_and_remainder_agree() {
        for a in EDGES {
            for b in EDGES {
                let quotient = fold_binary(BinaryOp::FloorDiv, Number::Int(a), Number::Int(b));
                let remainder = fold_binary(BinaryOp::Rem, Number::Int(a), Number::Int(b));
                if b == 0 {
                    assert!(quotient.is_err() && remainder.is_err());
                    continue;
                }
                let Ok(Number::Int(r)) = remainder else { panic!("{a} % {b}") };
                assert!(r == 0 || (r < 0) == (b < 0), "{a} % {b} = {r}");
                match quotient {
                    Ok(Number::Int(q)) => {
                        assert_eq!(i128::from(q) * i128::from(b) + i128::from(r), i128::from(a));
                    }
                    _ => assert_eq!((a, b), (i64::MIN, -1)),
                }
            }
        }
    }

    #[test]
    fn every_operator_on_every_edge_gives_a_number_or_an_error() {
        use BinaryOp::*;
        let numbers = EDGES.map(Number::Int).into_iter().chain(
            [0.0, -0.0, 1.5, f64::NAN, f64::INFINITY]
                .map(Number::Float)
                .into_iter()
                .chain([Number::Bool(true)]),
        );
        let numbers: Vec<Number> = numbers.collect();
        let mut errors = 0;
        for op in [Or, And, Eq, Ne, Lt, Le, Gt, Ge, Add, Sub, Mul, Div, FloorDiv, Rem, MatMul, Pow] {
            for &a in &numbers {
                for &b in &numbers {
                    errors += usize::from(fold_binary(op, a, b).is_err());
                }
            }
        }
        assert!(errors > 0);
    }

    #[test]
    fn powers() {
        let pow = |a, b| fold_binary(BinaryOp::Pow, Number::Int(a), Number::Int(b));
        assert_eq!(pow(2, 10), Ok(Number::Int(1024)));
        assert_eq!(pow(2, -1), Ok(Number::Float(0.5)));
        assert_eq!(pow(-1, i64::MAX), Ok(Number::Int(-1)));
        assert_eq!(
            pow(2, 64).map_err(|e| e.message),
            Err("`**` of `2` and `64`: the result does not fit in 64 bits".into())
        );
    }
}
