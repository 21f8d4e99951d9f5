//! Strings with holes, and values as text.

use std::{fmt::Write, sync::Arc};

use super::{
    Evaluator,
    errors::Eval,
    value::{Cx, Unknown, Value},
};
use crate::{
    codes,
    diagnostic::Diagnostic,
    exec::Tensor,
    ir::DType,
    script::{self, format::Format},
    source::Span,
    syntax::ast::{Ident, StrPart},
};

impl Evaluator {
    /// `"loss {loss:.3f}"`; unknown where a value in it is.
    pub(super) fn string(&mut self, cx: &Cx, parts: &[StrPart], span: Span) -> Eval {
        let mut text = String::new();
        let mut known = true;
        for part in parts {
            match part {
                StrPart::Text(fixed) => text.push_str(fixed),
                StrPart::Hole { expr, format } => {
                    let value = self.expr(cx, *expr)?;
                    let at = cx.ast.expr(*expr).span;
                    match self.formatted(&value, format.as_ref(), at)? {
                        Some(shown) => text.push_str(&shown),
                        None => known = false,
                    }
                }
            }
        }
        let limit = self.settings.limits.max_items;
        if text.len() > limit {
            return Err(self.error(
                codes::LIMIT,
                span,
                format!("a string of more than {limit} bytes (`max_items` of this engine)"),
            ));
        }
        Ok(if known { Value::Str(text.into()) } else { Value::Unknown(Unknown::Str) })
    }

    fn formatted(&mut self, value: &Value, format: Option<&Ident>, span: Span) -> Eval<Option<String>> {
        if let Value::Tensor(_) = value {
            return Err(self.graph_text(span));
        }
        let Some(format) = format else { return self.text(value, span) };
        let parsed = match Format::parse(&format.name) {
            Ok(parsed) => parsed,
            Err(error) => return Err(self.script_error(codes::BAD_FORMAT, format.span, error)),
        };
        let (shown, sample) = match value {
            Value::Unknown(Unknown::Int(sample)) => (parsed.int(*sample), true),
            Value::Unknown(Unknown::Float(sample)) => (parsed.float(*sample), true),
            Value::Unknown(_) => return Ok(None),
            Value::Int(number) => (parsed.int(*number), false),
            Value::Float(number) => (parsed.float(*number), false),
            Value::Bool(flag) => (parsed.text(if *flag { "true" } else { "false" }), false),
            Value::Str(text) => (parsed.text(text), false),
            v if v.is_tensor() && self.tensor_type(v).is_some_and(|t| t.elements() == 1) => {
                match self.host_tensor(v, span)? {
                    Some(tensor) => (format_element(&parsed, &tensor), false),
                    None => {
                        let is_int = self.tensor_type(v).is_some_and(|t| t.dtype().is_int());
                        (if is_int { parsed.int(1) } else { parsed.float(0.5) }, true)
                    }
                }
            }
            other => {
                let kind = other.kind();
                return Err(self.error(
                    codes::BAD_FORMAT,
                    span,
                    format!("a format applies to numbers and text, got {kind}"),
                ));
            }
        };
        match shown {
            Ok(_) if sample => Ok(None),
            Ok(text) => Ok(Some(text)),
            Err(error) => Err(self.script_error(codes::BAD_FORMAT, format.span, error)),
        }
    }

    /// A value as `print` shows it; `None` where it is not known.
    pub(super) fn text(&mut self, value: &Value, span: Span) -> Eval<Option<String>> {
        if let Value::Tensor(_) = value {
            return Err(self.graph_text(span));
        }
        let mut text = String::new();
        let known = self.write_text(value, &mut text, false, span)?;
        Ok(known.then_some(text))
    }

    fn graph_text(&mut self, span: Span) -> super::Halt {
        self.report(
            Diagnostic::error(
                codes::NOT_IN_GRAPH,
                span,
                "a tensor has no value yet when its graph is built: it cannot be shown as text",
            )
            .help("return it and print it in the script, or write `debug(x)` to see it while the step runs"),
        )
    }

    /// Appends a value as text; false where some of it is not known. Strings in lists are quoted.
    fn write_text(&mut self, value: &Value, into: &mut String, inner: bool, span: Span) -> Eval<bool> {
        match value {
            Value::Int(number) => into.push_str(&number.to_string()),
            Value::Float(number) => into.push_str(&script::format::float(*number)),
            Value::Bool(flag) => into.push_str(if *flag { "true" } else { "false" }),
            Value::Str(text) if inner => {
                // Writing to a string cannot fail.
                let _ = write!(into, "{text:?}");
            }
            Value::Str(text) => into.push_str(text),
            Value::Unit => into.push_str("()"),
            Value::Unknown(_) => return Ok(false),
            Value::DType(dtype) => into.push_str(dtype.name()),
            Value::Range(range) => {
                let _ = write!(into, "{}..{}", range.low, range.high);
            }
            Value::List(items) | Value::Tuple(items) => {
                let is_list = matches!(value, Value::List(_));
                into.push(if is_list { '[' } else { '(' });
                let mut known = true;
                for (k, item) in items.iter().enumerate() {
                    if k > 0 {
                        into.push_str(", ");
                    }
                    known &= self.write_text(item, into, true, span)?;
                }
                into.push(if is_list { ']' } else { ')' });
                return Ok(known);
            }
            Value::Tensor(_) => return Err(self.graph_text(span)),
            Value::Stored(_) | Value::Param(_) => match self.host_tensor(value, span)? {
                Some(tensor) => into.push_str(&script::print::tensor(&tensor)),
                None => return Ok(false),
            },
            other => into.push_str(&other.kind()),
        }
        Ok(true)
    }

    /// The tensor itself, in the script; `None` in mode Check.
    pub(super) fn host_tensor(&mut self, value: &Value, span: Span) -> Eval<Option<Tensor>> {
        match value {
            Value::Stored(stored) => self.tensor_of(stored, span),
            Value::Param(cell) if !self.in_graph() => self.whole_data(cell, span),
            Value::Param(_) | Value::Tensor(_) => Err(self.graph_text(span)),
            _ => Ok(None),
        }
    }

    pub(super) fn script_error(
        &mut self,
        code: crate::diagnostic::Code,
        span: Span,
        error: script::Error,
    ) -> super::Halt {
        let code = if error.is_limit { codes::LIMIT } else { code };
        let mut diagnostic = Diagnostic::error(code, span, error.message);
        diagnostic.help.extend(error.help);
        self.report(diagnostic)
    }
}

fn format_element(format: &Format, tensor: &Tensor) -> Result<String, script::Error> {
    let number = tensor.get_f64(0).unwrap_or(f64::NAN);
    match tensor.dtype() {
        DType::Bool => format.text(if number != 0.0 { "true" } else { "false" }),
        DType::I64 => format.int(tensor.as_slice::<i64>().and_then(|s| s.first().copied()).unwrap_or(0)),
        dtype if dtype.is_int() => format.int(number as i64),
        _ => format.float(number),
    }
}

/// The type of a value, as `type(x)` gives it.
pub(super) fn type_name(value: &Value) -> Arc<str> {
    match value {
        Value::Unit | Value::Poison => "nothing",
        Value::Int(_) | Value::Unknown(Unknown::Int(_)) => "int",
        Value::Float(_) | Value::Unknown(Unknown::Float(_)) => "float",
        Value::Bool(_) | Value::Unknown(Unknown::Bool(_)) => "bool",
        Value::Str(_) | Value::Unknown(Unknown::Str) => "str",
        Value::Unknown(Unknown::Any) => "unknown",
        Value::List(_) => "list",
        Value::Tuple(_) => "tuple",
        Value::Range(_) => "range",
        Value::Record(_) => "record",
        Value::DType(_) => "dtype",
        Value::Tensor(_) | Value::Stored(_) | Value::Param(_) => "tensor",
        Value::Module(_) => "module",
        Value::Function(_)
        | Value::Builtin(_)
        | Value::TensorFunction(_)
        | Value::Method(_)
        | Value::HostFunction(_)
        | Value::HostOp(_) => "function",
        Value::ModelDef(_) | Value::OptimizerDef(_) => "declaration",
        Value::Model(_) => "model",
        Value::Optimizer(_) => "optimizer",
        Value::Hook(_) => "hook",
        Value::Step(_) => "step",
        Value::Tree(_) => "tree",
        Value::Stream(_) => "sequence",
        Value::Vocabulary(_) => "vocabulary",
    }
    .into()
}
