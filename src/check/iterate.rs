//! What `for` and list comprehensions go through.

use std::sync::Arc;

use super::{
    Evaluator,
    errors::Eval,
    tensor::{Index, Operand},
    value::{Range, StreamKind, Unknown, Value},
};
use crate::{codes, diagnostic::Diagnostic, source::Span};

impl Evaluator {
    /// Calls `visit` for each item; with `once`, for one that stands for all.
    pub(super) fn each(
        &mut self,
        iterable: &Value,
        span: Span,
        once: bool,
        visit: &mut dyn FnMut(&mut Self, usize, Value) -> Eval<()>,
    ) -> Eval<()> {
        match iterable {
            Value::Range(range) => self.each_number(*range, span, once, visit),
            Value::List(items) | Value::Tuple(items) => {
                let count = if once { 1 } else { items.len() };
                for (k, item) in items.iter().take(count).enumerate() {
                    self.pause(span)?;
                    visit(self, k, item.clone())?;
                }
                Ok(())
            }
            Value::Str(text) => {
                for (k, c) in text.chars().enumerate() {
                    self.pause(span)?;
                    visit(self, k, Value::str(c.to_string()))?;
                }
                Ok(())
            }
            Value::Stream(stream) => match &stream.kind {
                StreamKind::Progress { items, label } => {
                    self.each_with_progress(items, label, stream.len, span, once, visit)
                }
                _ => self.each_batch(stream, span, once, visit),
            },
            v if v.is_tensor() => {
                let rows = self.tensor_type(v).and_then(|t| t.shape().first().copied());
                let Some(rows) = rows else {
                    return Err(self.error(
                        codes::TYPE_MISMATCH,
                        span,
                        "a scalar tensor has no items to go through",
                    ));
                };
                for k in 0..if once { rows.min(1) } else { rows } {
                    self.pause(span)?;
                    let row = self.scripted(span, |ev| {
                        let (id, _) = ev.tensor_value(iterable, span)?;
                        let row = ev.build(span, |f| {
                            super::tensor::index(&mut f.graph, Operand::tensor(id), &[Index::At(k as i64)])
                        })?;
                        Ok(ev.operand_value(row))
                    })?;
                    visit(self, k, row)?;
                }
                Ok(())
            }
            Value::Unknown(Unknown::Any) => visit(self, 0, iterable.clone()),
            other => {
                let kind = other.kind();
                let mut diagnostic =
                    Diagnostic::error(codes::TYPE_MISMATCH, span, format!("`for` cannot go through {kind}"));
                if matches!(other, Value::Int(_) | Value::Unknown(Unknown::Int(_))) {
                    diagnostic.help.push("write `0..n` for the numbers from 0 to n - 1".into());
                }
                Err(self.report(diagnostic))
            }
        }
    }

    fn each_number(
        &mut self,
        range: Range,
        span: Span,
        once: bool,
        visit: &mut dyn FnMut(&mut Self, usize, Value) -> Eval<()>,
    ) -> Eval<()> {
        if self.in_graph() {
            let limit = self.settings.limits.max_items as u64;
            if range.len() > limit {
                return Err(self.error(
                    codes::LIMIT,
                    span,
                    format!(
                        "a loop of {} passes in graph code, which unrolls; the limit is {limit} (`max_items`)",
                        range.len()
                    ),
                ));
            }
        }
        if once || !range.known {
            let sample = range.low;
            return visit(self, 0, Value::Unknown(Unknown::Int(sample)));
        }
        for k in 0..range.len() {
            self.pause(span)?;
            let Some(number) = range.get(k) else { break };
            visit(self, k as usize, Value::Int(number))?;
        }
        Ok(())
    }

    /// All items as a list.
    pub(super) fn items(&mut self, iterable: &Value, span: Span) -> Eval<Vec<Value>> {
        if let Value::List(items) | Value::Tuple(items) = iterable {
            return Ok(items.as_ref().clone());
        }
        let limit = self.settings.limits.max_items;
        let mut items = Vec::new();
        self.each(iterable, span, false, &mut |ev, _, item| {
            if items.len() >= limit {
                return Err(ev.error(
                    codes::LIMIT,
                    span,
                    format!("a list of more than {limit} items (`max_items` of this engine)"),
                ));
            }
            items.push(item);
            Ok(())
        })?;
        Ok(items)
    }

    /// How many items there are, where that is known.
    pub(super) fn count(&self, value: &Value) -> Option<u64> {
        match value {
            Value::List(items) | Value::Tuple(items) => Some(items.len() as u64),
            Value::Range(range) if range.known => Some(range.len()),
            Value::Str(text) => Some(text.chars().count() as u64),
            Value::Stream(stream) => stream.len.map(|n| n as u64),
            v if v.is_tensor() => Some(*self.tensor_type(v)?.shape().first()? as u64),
            Value::Vocabulary(vocabulary) => Some(vocabulary.len() as u64),
            Value::Record(record) => Some(record.fields.len() as u64),
            _ => None,
        }
    }

    /// A list built from pairs, for `zip` and `enumerate`.
    pub(super) fn pairs(&self, items: Vec<(Value, Value)>) -> Value {
        Value::list(items.into_iter().map(|(a, b)| Value::Tuple(Arc::new(vec![a, b]))).collect())
    }
}
