//! `x[…]` on lists, strings and tensors.

use super::{
    Evaluator,
    args::Args,
    errors::{Eval, Halt},
    tensor::{self, Index, Operand},
    value::{Cx, Unknown, Value},
};
use crate::{
    codes,
    diagnostic::Diagnostic,
    source::Span,
    syntax::ast::{ExprId, IndexItem},
};

impl Evaluator {
    pub(super) fn index_expr(&mut self, cx: &Cx, base: ExprId, items: &[IndexItem], span: Span) -> Eval {
        let value = self.expr(cx, base)?;
        match &value {
            Value::List(list) | Value::Tuple(list) => {
                let is_list = matches!(value, Value::List(_));
                let [item] = items else {
                    return Err(self.report(
                        Diagnostic::error(codes::BAD_INDEX, span, "a list has one index")
                            .help("write `xs[i][j]` for a list of lists"),
                    ));
                };
                match item {
                    IndexItem::Slice { low, high, step, .. } => {
                        let (positions, known) =
                            self.slice_positions(cx, [*low, *high, *step], list.len(), span)?;
                        if !known {
                            return Ok(Value::Unknown(Unknown::Any));
                        }
                        let part = positions.filter_map(|p| list.get(p).cloned()).collect();
                        Ok(if is_list { Value::list(part) } else { Value::tuple(part) })
                    }
                    IndexItem::At(at) => {
                        let index = self.expr(cx, *at)?;
                        let at_span = cx.ast.expr(*at).span;
                        let (index, known) = self.as_int(&index, at_span)?;
                        if !known {
                            // Any item may be meant; the sample picks one of the right kind.
                            let position =
                                usize::try_from(index).unwrap_or(0).min(list.len().saturating_sub(1));
                            return Ok(match list.get(position) {
                                Some(item) => item.clone(),
                                None => Value::Unknown(Unknown::Any),
                            });
                        }
                        let position = self.list_position(index, list.len(), at_span)?;
                        match list.get(position) {
                            Some(Value::Poison) => Err(Halt::Reported),
                            Some(item) => Ok(item.clone()),
                            None => Ok(Value::Unknown(Unknown::Any)),
                        }
                    }
                    _ => Err(self.error(codes::BAD_INDEX, span, "a list takes an index or a slice")),
                }
            }
            Value::Str(text) => {
                let chars: Vec<char> = text.chars().collect();
                match items {
                    [IndexItem::Slice { low, high, step, .. }] => {
                        let (positions, known) =
                            self.slice_positions(cx, [*low, *high, *step], chars.len(), span)?;
                        if !known {
                            return Ok(Value::Unknown(Unknown::Str));
                        }
                        Ok(Value::str(positions.filter_map(|p| chars.get(p)).collect::<String>()))
                    }
                    [IndexItem::At(at)] => {
                        let (index, known) = self.int_expr(cx, *at)?;
                        if !known {
                            return Ok(Value::Unknown(Unknown::Str));
                        }
                        let position = self.list_position(index, chars.len(), span)?;
                        Ok(Value::str(chars.get(position).map(char::to_string).unwrap_or_default()))
                    }
                    _ => Err(self.error(codes::BAD_INDEX, span, "a string takes an index or a slice")),
                }
            }
            Value::Range(range) if range.known => match items {
                [IndexItem::At(at)] => {
                    let (index, _) = self.int_expr(cx, *at)?;
                    let len = usize::try_from(range.len()).unwrap_or(usize::MAX);
                    let position = self.list_position(index, len, span)?;
                    Ok(range.get(position as u64).map_or(Value::Unit, Value::Int))
                }
                _ => Err(self.error(codes::BAD_INDEX, span, "a range takes one index")),
            },
            Value::Record(record) => {
                let [IndexItem::At(at)] = items else {
                    return Err(self.error(codes::BAD_INDEX, span, "a file's tensors are picked by name"));
                };
                match self.expr(cx, *at)? {
                    Value::Str(name) => match record.get(&name) {
                        Some(value) => Ok(value.clone()),
                        None => {
                            let names: Vec<&str> = record.fields.iter().map(|(n, _)| &**n).collect();
                            let message = format!("no tensor `{name}` here; there are {}", listed(&names));
                            Err(self.error(codes::UNKNOWN_FIELD, span, message))
                        }
                    },
                    other => {
                        let kind = other.kind();
                        Err(self.error(codes::BAD_INDEX, span, format!("expected a name, got {kind}")))
                    }
                }
            }
            Value::Tree(tree) => match (&tree.root, items) {
                (Value::List(list), [IndexItem::At(at)]) => {
                    let (index, _) = self.int_expr(cx, *at)?;
                    let position = self.list_position(index, list.len(), span)?;
                    let part = list.get(position).cloned().unwrap_or(Value::Unit);
                    self.sub_tree(tree, part, span)
                }
                _ => Err(self.error(codes::BAD_INDEX, span, "this part of a tree of gradients has no items")),
            },
            Value::Unknown(_) => Ok(Value::Unknown(Unknown::Any)),
            v if v.is_tensor() => self.scripted(span, |ev| ev.index_tensor(cx, &value, items, span)),
            other => {
                let kind = other.kind();
                let mut diagnostic =
                    Diagnostic::error(codes::BAD_INDEX, span, format!("{kind} cannot be indexed"));
                if matches!(other, Value::Stream(_)) {
                    diagnostic.help.push("go through it with `for batch in …`".into());
                }
                Err(self.report(diagnostic))
            }
        }
    }

    /// An index that may count from the end, as a position.
    pub(super) fn list_position(&mut self, index: i64, len: usize, span: Span) -> Eval<usize> {
        let position = if index < 0 { index.checked_add_unsigned(len as u64) } else { Some(index) };
        match position.and_then(|p| usize::try_from(p).ok()).filter(|&p| p < len) {
            Some(position) => Ok(position),
            None => {
                let s = if len == 1 { "" } else { "s" };
                Err(self.error(
                    codes::BAD_INDEX,
                    span,
                    format!("index {index} is out of range for {len} item{s}"),
                ))
            }
        }
    }

    /// The numbers of a slice, and whether each is known. One that is wrong does not hide the others.
    fn bounds(&mut self, cx: &Cx, parts: [Option<ExprId>; 3]) -> Eval<[Option<(i64, bool)>; 3]> {
        let mut values = [None; 3];
        let mut failed = false;
        for (slot, part) in values.iter_mut().zip(parts) {
            if let Some(part) = part {
                let value = self.int_expr(cx, part);
                *slot = self.part(value)?;
                failed |= slot.is_none();
            }
        }
        if failed { Err(Halt::Reported) } else { Ok(values) }
    }

    /// The positions of `low..high..step`; bounds beyond the ends are an error, as with tensors.
    fn slice_positions(
        &mut self,
        cx: &Cx,
        parts: [Option<ExprId>; 3],
        len: usize,
        span: Span,
    ) -> Eval<(std::iter::StepBy<std::ops::Range<usize>>, bool)> {
        let mut known = true;
        let bounds = self.bounds(cx, parts)?;
        let [low, high, step] = bounds.map(|bound| {
            let (value, sure) = bound?;
            known &= sure;
            Some(value)
        });
        if !known {
            return Ok(((0..0).step_by(1), false));
        }
        let step = match step {
            None => 1,
            Some(step) if step > 0 => usize::try_from(step).unwrap_or(usize::MAX),
            Some(step) => {
                return Err(self.error(
                    codes::BAD_INDEX,
                    span,
                    format!("a slice has a step of at least 1, got {step}"),
                ));
            }
        };
        let mut bound = |value: Option<i64>, default: usize| match value {
            None => Ok(default),
            Some(value) => {
                let position = if value < 0 { value.checked_add_unsigned(len as u64) } else { Some(value) };
                match position.and_then(|p| usize::try_from(p).ok()).filter(|&p| p <= len) {
                    Some(position) => Ok(position),
                    None => {
                        let s = if len == 1 { "" } else { "s" };
                        Err(self.error(
                            codes::BAD_INDEX,
                            span,
                            format!("the bound {value} of a slice is out of range for {len} item{s}"),
                        ))
                    }
                }
            }
        };
        let (low, high) = (bound(low, 0)?, bound(high, len)?);
        Ok(((low..high.max(low)).step_by(step), true))
    }

    fn index_tensor(&mut self, cx: &Cx, value: &Value, items: &[IndexItem], span: Span) -> Eval {
        let mut indices = Vec::with_capacity(items.len());
        for item in items {
            let index = self.tensor_index(cx, item);
            indices.extend(self.part(index)?);
        }
        if indices.len() < items.len() {
            return Err(Halt::Reported);
        }
        let (id, weak) = self.tensor_value(value, span)?;
        let result = self
            .build_any(span, |graph| tensor::index(graph, Operand::Tensor { value: id, weak }, &indices))?;
        Ok(self.operand_value(result))
    }

    fn tensor_index(&mut self, cx: &Cx, item: &IndexItem) -> Eval<Index> {
        let at = match item {
            IndexItem::Ellipsis(_) => return Ok(Index::Ellipsis),
            IndexItem::NewAxis(_) => return Ok(Index::NewAxis),
            IndexItem::Slice { low, high, step, .. } => {
                let bounds = self.bounds(cx, [*low, *high, *step])?;
                let [low, high, step] = bounds.map(|bound| bound.map(|(value, _)| value));
                return Ok(Index::Slice { low, high, step });
            }
            IndexItem::At(at) => *at,
        };
        let span = cx.ast.expr(at).span;
        Ok(match self.expr(cx, at)? {
            Value::Range(range) => Index::Slice {
                low: Some(range.low),
                high: Some(range.high),
                step: (range.step != 1).then_some(range.step),
            },
            Value::List(list) => Index::Tensor(self.list_tensor(&Value::List(list), span)?),
            v if v.is_tensor() => Index::Tensor(self.tensor_value(&v, span)?.0),
            other => Index::At(self.as_int(&other, span)?.0),
        })
    }

    /// A list of numbers as a tensor of the innermost graph.
    fn list_tensor(&mut self, list: &Value, span: Span) -> Eval<crate::ir::ValueId> {
        let made = self.call_tensor_function_named("tensor", Args::one(list.clone(), span), span)?;
        Ok(self.tensor_value(&made, span)?.0)
    }
}

/// `a`, `b` and `c`.
pub(super) fn listed(names: &[&str]) -> String {
    const SHOWN: usize = 12;
    let mut text = names.iter().take(SHOWN).map(|n| format!("`{n}`")).collect::<Vec<_>>().join(", ");
    if names.is_empty() {
        text.push_str("none");
    } else if names.len() > SHOWN {
        text += &format!(" and {} more", names.len() - SHOWN);
    }
    text
}
