//! Operators on the values of the script; tensors go on to [`super::tensor`].

use std::sync::Arc;

use super::{
    Evaluator,
    errors::{Eval, Halt},
    tensor::{self, Number},
    value::{Cx, Unknown, Value},
};
use crate::{
    codes,
    diagnostic::{Code, Diagnostic},
    ops::OpError,
    source::Span,
    syntax::ast::{BinaryOp, ExprId, UnaryOp},
};

impl Evaluator {
    pub(super) fn unary(&mut self, cx: &Cx, op: UnaryOp, operand: ExprId, span: Span) -> Eval {
        let value = self.expr(cx, operand)?;
        match (&value, op) {
            (Value::Unknown(Unknown::Any), _) => Ok(value),
            (Value::Unknown(unknown), _) => {
                let Some((sample, _)) = number(&value) else { return Ok(Value::Unknown(*unknown)) };
                let known = known_number(sample);
                let result = self.unary_value(op, &known, span)?;
                Ok(unknown_like(&result))
            }
            (Value::Tree(tree), UnaryOp::Neg) => {
                let tree = Arc::clone(tree);
                self.tree_binary(BinaryOp::Mul, &Value::Tree(tree), &Value::Float(-1.0), span)
            }
            _ => self.unary_value(op, &value, span),
        }
    }

    fn unary_value(&mut self, op: UnaryOp, value: &Value, span: Span) -> Eval {
        self.scripted(span, |ev| {
            let Some(operand) = ev.operand(value, span)? else {
                let (symbol, kind) = (if op == UnaryOp::Neg { "-" } else { "not" }, value.kind());
                return Err(ev.error(
                    codes::BAD_OPERANDS,
                    span,
                    format!("`{symbol}` does not apply to {kind}"),
                ));
            };
            let result = ev.build_any(span, |graph| tensor::unary(graph, op, operand))?;
            Ok(ev.operand_value(result))
        })
    }

    /// Runs `build` on the innermost graph. Numbers are folded, so a graph that gets nothing costs
    /// nothing.
    pub(super) fn build_any<T>(
        &mut self,
        span: Span,
        build: impl FnOnce(&mut crate::ir::Graph) -> Result<T, OpError>,
    ) -> Eval<T> {
        self.build(span, |f| build(&mut f.graph))
    }

    pub(super) fn binary(&mut self, cx: &Cx, op: BinaryOp, left: ExprId, right: ExprId, span: Span) -> Eval {
        let a = match self.expr(cx, left) {
            Err(Halt::Reported) if !self.stops_at_errors() => {
                // One side that fails does not hide what is wrong with the other.
                self.expr(cx, right)?;
                return Err(Halt::Reported);
            }
            value => value?,
        };
        // The right side may write it.
        let a = self.read_state(a, cx.ast.expr(left).span)?;
        // `and` and `or` leave the right side out where the left one decides.
        match (op, &a) {
            (BinaryOp::And, Value::Bool(false)) | (BinaryOp::Or, Value::Bool(true)) => return Ok(a),
            _ => {}
        }
        let b = self.expr(cx, right)?;
        self.binary_values(op, &a, &b, span)
    }

    pub(super) fn binary_values(&mut self, op: BinaryOp, a: &Value, b: &Value, span: Span) -> Eval {
        if let (Some((x, x_known)), Some((y, y_known))) = (number(a), number(b)) {
            return match tensor::fold_binary(op, x, y) {
                Ok(result) => {
                    let value = known_number(result);
                    Ok(if x_known && y_known { value } else { unknown_like(&value) })
                }
                // With a sample in it, the error may not happen.
                Err(_) if !(x_known && y_known) => Ok(unknown_like(a)),
                Err(error) => Err(self.number_error(op, span, error)),
            };
        }
        match (op, a, b) {
            (_, Value::Tree(_), _) | (_, _, Value::Tree(_)) => self.tree_binary(op, a, b, span),
            _ if a.is_tensor() || b.is_tensor() => self.scripted(span, |ev| ev.tensor_binary(op, a, b, span)),
            (_, Value::Unknown(Unknown::Any), _) | (_, _, Value::Unknown(Unknown::Any)) => {
                Ok(Value::Unknown(Unknown::Any))
            }
            (BinaryOp::Eq | BinaryOp::Ne, _, _) => match equal(a, b) {
                Some(same) => Ok(Value::Bool(same == (op == BinaryOp::Eq))),
                None => Ok(Value::Unknown(Unknown::Bool(true))),
            },
            (BinaryOp::Add, Value::Str(x), Value::Str(y)) => {
                let limit = self.settings.limits.max_items;
                if x.len() + y.len() > limit {
                    return Err(self.error(
                        codes::LIMIT,
                        span,
                        format!("a string of more than {limit} bytes (`max_items` of this engine)"),
                    ));
                }
                Ok(Value::Str(format!("{x}{y}").into()))
            }
            (
                BinaryOp::Add,
                Value::Str(_) | Value::Unknown(Unknown::Str),
                Value::Str(_) | Value::Unknown(Unknown::Str),
            ) => Ok(Value::Unknown(Unknown::Str)),
            (BinaryOp::Lt | BinaryOp::Le | BinaryOp::Gt | BinaryOp::Ge, Value::Str(x), Value::Str(y)) => {
                Ok(Value::Bool(match op {
                    BinaryOp::Lt => x < y,
                    BinaryOp::Le => x <= y,
                    BinaryOp::Gt => x > y,
                    _ => x >= y,
                }))
            }
            (BinaryOp::Add, Value::List(x), Value::List(y)) => {
                self.check_items(x.len().saturating_add(y.len()), span)?;
                Ok(Value::list(x.iter().chain(y.iter()).cloned().collect()))
            }
            (BinaryOp::Add, Value::Tuple(x), Value::Tuple(y)) => {
                Ok(Value::tuple(x.iter().chain(y.iter()).cloned().collect()))
            }
            (BinaryOp::Mul, Value::List(x), Value::Int(n))
            | (BinaryOp::Mul, Value::Int(n), Value::List(x)) => {
                let times = usize::try_from(*n).unwrap_or(0);
                self.check_items(x.len().saturating_mul(times), span)?;
                Ok(Value::list(x.iter().cloned().cycle().take(x.len() * times).collect()))
            }
            _ => Err(self.bad_operands(op, a, b, span)),
        }
    }

    pub(super) fn check_items(&mut self, count: usize, span: Span) -> Eval<()> {
        let limit = self.settings.limits.max_items;
        if count <= limit {
            return Ok(());
        }
        Err(self.error(
            codes::LIMIT,
            span,
            format!("a list of {count} items; the limit of this engine is {limit} (`max_items`)"),
        ))
    }

    pub(super) fn tensor_binary(&mut self, op: BinaryOp, a: &Value, b: &Value, span: Span) -> Eval {
        let (Some(x), Some(y)) = (self.operand(a, span)?, self.operand(b, span)?) else {
            return Err(self.bad_operands(op, a, b, span));
        };
        let result = self.build_any(span, |graph| tensor::binary(graph, op, x, y))?;
        Ok(self.operand_value(result))
    }

    fn number_error(&mut self, op: BinaryOp, span: Span, error: OpError) -> Halt {
        let code: Code = if op == BinaryOp::Div {
            codes::DIVISION_OF_INTS
        } else if error.message.contains("booleans") || error.message.contains("needs") {
            codes::BAD_OPERANDS
        } else {
            codes::NUMBER_RANGE
        };
        let mut diagnostic = Diagnostic::error(code, span, error.message);
        diagnostic.help.extend(error.help);
        self.report(diagnostic)
    }

    fn bad_operands(&mut self, op: BinaryOp, a: &Value, b: &Value, span: Span) -> Halt {
        let (symbol, x, y) = (op.symbol(), a.kind(), b.kind());
        let mut diagnostic =
            Diagnostic::error(codes::BAD_OPERANDS, span, format!("`{symbol}` does not apply to {x} and {y}"));
        match (op, a, b) {
            (BinaryOp::Add, Value::Str(_), _) | (BinaryOp::Add, _, Value::Str(_)) => {
                diagnostic.help.push("write values into the text: `\"loss {loss}\"`".into());
            }
            (BinaryOp::Rem, Value::Str(_), _) => {
                diagnostic.help.push("write values into the text: `\"loss {loss:.3f}\"`".into());
            }
            (_, Value::Unit, _) | (_, _, Value::Unit) => diagnostic.help.push(NOTHING.into()),
            (BinaryOp::Add, Value::List(_), _) => diagnostic.help.push("add one item with `xs + [x]`".into()),
            _ => {}
        }
        self.report(diagnostic)
    }
}

/// What to do about a value that is nothing.
pub(super) const NOTHING: &str =
    "a body whose last line is a statement gives nothing: end it with an expression, or `return` one";

/// A number, and whether it is known.
pub(super) fn number(value: &Value) -> Option<(Number, bool)> {
    Some(match value {
        Value::Int(value) => (Number::Int(*value), true),
        Value::Float(value) => (Number::Float(*value), true),
        Value::Bool(value) => (Number::Bool(*value), true),
        Value::Unknown(Unknown::Int(sample)) => (Number::Int(*sample), false),
        Value::Unknown(Unknown::Float(sample)) => (Number::Float(*sample), false),
        Value::Unknown(Unknown::Bool(sample)) => (Number::Bool(*sample), false),
        _ => return None,
    })
}

pub(super) fn known_number(number: Number) -> Value {
    match number {
        Number::Int(value) => Value::Int(value),
        Number::Float(value) => Value::Float(value),
        Number::Bool(value) => Value::Bool(value),
    }
}

/// A value of the same kind that is not known.
pub(super) fn unknown_like(value: &Value) -> Value {
    Value::Unknown(match value {
        Value::Int(sample) => Unknown::Int(*sample),
        Value::Float(sample) => Unknown::Float(*sample),
        Value::Bool(sample) => Unknown::Bool(*sample),
        Value::Str(_) => Unknown::Str,
        Value::Unknown(unknown) => *unknown,
        _ => Unknown::Any,
    })
}

/// Whether two values are the same; `None` where that is not known.
pub(super) fn equal(a: &Value, b: &Value) -> Option<bool> {
    Some(match (a, b) {
        (Value::Unknown(_), _) | (_, Value::Unknown(_)) => return None,
        (Value::Str(x), Value::Str(y)) => x == y,
        (Value::DType(x), Value::DType(y)) => x == y,
        (Value::Unit, Value::Unit) => true,
        (Value::List(x), Value::List(y)) | (Value::Tuple(x), Value::Tuple(y)) => {
            if x.len() != y.len() {
                return Some(false);
            }
            let mut all = true;
            for (x, y) in x.iter().zip(y.iter()) {
                all &= equal(x, y)?;
            }
            all
        }
        (Value::Range(x), Value::Range(y)) => x == y,
        (Value::Model(x), Value::Model(y)) => x.id == y.id,
        (Value::Param(x), Value::Param(y)) => x.id == y.id,
        (Value::Optimizer(x), Value::Optimizer(y)) => x.id == y.id,
        (Value::Hook(x), Value::Hook(y)) => x.id == y.id,
        (Value::Function(x), Value::Function(y)) => x.id == y.id,
        (Value::ModelDef(x), Value::ModelDef(y)) => x.id == y.id,
        (Value::OptimizerDef(x), Value::OptimizerDef(y)) => x.id == y.id,
        (Value::Step(x), Value::Step(y)) => x.id == y.id,
        (Value::Module(x), Value::Module(y)) => Arc::ptr_eq(x, y),
        (Value::Builtin(x), Value::Builtin(y)) => std::ptr::eq(*x, *y),
        (Value::TensorFunction(x), Value::TensorFunction(y)) => x.name == y.name,
        (Value::Stored(x), Value::Stored(y)) => x.id == y.id,
        _ => match (number(a), number(b)) {
            (Some((x, _)), Some((y, _))) => tensor::fold_binary(BinaryOp::Eq, x, y) == Ok(Number::Bool(true)),
            _ => false,
        },
    })
}
