//! Trees of gradients: arithmetic, fields, norms.

use std::sync::Arc;

use super::{
    Evaluator,
    args::Args,
    errors::Eval,
    tensor,
    value::{Tree, Value, cells_of},
};
use crate::{
    codes,
    diagnostic::Diagnostic,
    ir::DType,
    source::Span,
    syntax::ast::{BinaryOp, Ident},
};

impl Evaluator {
    /// `+ - * /` with trees of the same model, numbers and scalars.
    pub(super) fn tree_binary(&mut self, op: BinaryOp, a: &Value, b: &Value, span: Span) -> Eval {
        if !matches!(op, BinaryOp::Add | BinaryOp::Sub | BinaryOp::Mul | BinaryOp::Div) {
            return Err(self.error(
                codes::BAD_OPERANDS,
                span,
                format!("`{}` does not apply to a tree of gradients", op.symbol()),
            ));
        }
        self.scripted(span, |ev| match (a, b) {
            (Value::Tree(x), Value::Tree(y)) => {
                let same = x.entries.len() == y.entries.len()
                    && x.entries.iter().zip(&y.entries).all(|((c, _), (d, _))| c.id == d.id);
                if !same {
                    return Err(ev.error(
                        codes::BAD_OPERANDS,
                        span,
                        format!("`{}` of gradients of different parameters", op.symbol()),
                    ));
                }
                if x.is_local != y.is_local {
                    return Err(ev.report(
                        Diagnostic::error(
                            codes::SHARD,
                            span,
                            format!(
                                "`{}` of gradients of this rank and of parts of those of all ranks",
                                op.symbol()
                            ),
                        )
                        .help("take both with `local: true`, and begin a sum of them with `let g = 0`"),
                    ));
                }
                let mut entries = Vec::with_capacity(x.entries.len());
                for ((cell, p), (_, q)) in x.entries.iter().zip(&y.entries) {
                    let value = match (p, q, op) {
                        (Some(p), Some(q), _) => Some(ev.tensor_binary(op, p, q, span)?),
                        (p, None, BinaryOp::Add | BinaryOp::Sub) => p.clone(),
                        (None, q, BinaryOp::Add) => q.clone(),
                        (None, Some(q), BinaryOp::Sub) => {
                            Some(ev.tensor_binary(BinaryOp::Mul, q, &Value::Float(-1.0), span)?)
                        }
                        _ => None,
                    };
                    entries.push((Arc::clone(cell), value));
                }
                Ok(x.with(entries))
            }
            // The start of a sum: `let g = 0`.
            (Value::Int(0), Value::Tree(_)) if op == BinaryOp::Add => Ok(b.clone()),
            (Value::Tree(_), Value::Int(0)) if op == BinaryOp::Add => Ok(a.clone()),
            (Value::Tree(tree), other) => {
                ev.map_tree(tree, &mut |ev, value| ev.tensor_binary(op, value, other, span))
            }
            (other, Value::Tree(tree)) => {
                ev.map_tree(tree, &mut |ev, value| ev.tensor_binary(op, other, value, span))
            }
            _ => Ok(Value::Unit),
        })
    }

    /// The tree with every gradient replaced.
    pub(super) fn map_tree(
        &mut self,
        tree: &Arc<Tree>,
        map: &mut dyn FnMut(&mut Self, &Value) -> Eval,
    ) -> Eval {
        let mut entries = Vec::with_capacity(tree.entries.len());
        for (cell, value) in &tree.entries {
            let start = self.frames.last().map_or(0, |f| f.graph.len() as u32);
            let mapped = value.as_ref().map(|v| map(self, v)).transpose()?;
            if let (Some(Value::Tensor(seen)), Some(group)) = (value, cell.spread()) {
                let span = cell.span;
                let span = self.calls.last().map_or(span, |call| call.span);
                self.check_elementwise(start, &[seen.value], &group, "a function of gradients", span)?;
            }
            entries.push((Arc::clone(cell), mapped));
        }
        Ok(tree.with(entries))
    }

    /// A tensor function of a tree: `norm` of everything in it, others of each gradient.
    pub(super) fn tree_function(
        &mut self,
        function: &'static tensor::Function,
        tree: &Arc<Tree>,
        args: Args,
        span: Span,
    ) -> Eval {
        if function.name == "norm" && args.positional.len() == 1 && args.named.is_empty() {
            return self.tree_norm(tree, span);
        }
        self.scripted(span, |ev| {
            ev.map_tree(tree, &mut |ev, value| {
                let mut args = args.clone();
                if let Some((first, _)) = args.positional.first_mut() {
                    *first = value.clone();
                }
                ev.call_tensor_function(function, args, span)
            })
        })
    }

    /// The root of the sum of all squares: in f64 where any gradient is, else in f32.
    fn tree_norm(&mut self, tree: &Arc<Tree>, span: Span) -> Eval {
        let is_f64 = |value: &Value| self.tensor_type(value).is_some_and(|ty| ty.dtype() == DType::F64);
        let dtype = if tree.entries.iter().any(|(_, value)| value.as_ref().is_some_and(is_f64)) {
            DType::F64
        } else {
            DType::F32
        };
        self.scripted(span, |ev| {
            // Of values that every rank has, and of those of which each has a part.
            let mut totals: [Option<Value>; 2] = [None, None];
            for (cell, value) in &tree.entries {
                let Some(value) = value else { continue };
                let (id, _) = ev.tensor_value(value, span)?;
                let wide = ev.build(span, |f| f.graph.cast(id, dtype))?;
                let wide = ev.graph_value(wide, false);
                let square = ev.call_tensor_function_named("square", Args::one(wide, span), span)?;
                let sum = ev.call_tensor_function_named("sum", Args::one(square, span), span)?;
                let [whole, parts] = &mut totals;
                let is_part = !tree.is_local && cell.group().is_some();
                let total = if is_part { parts } else { whole };
                *total = Some(match total.take() {
                    Some(total) => ev.tensor_binary(BinaryOp::Add, &total, &sum, span)?,
                    None => sum,
                });
            }
            let [whole, parts] = totals;
            let parts = match parts {
                Some(parts) => {
                    Some(ev.call_tensor_function_named("all_reduce", Args::one(parts, span), span)?)
                }
                None => None,
            };
            let total = match (whole, parts) {
                (Some(a), Some(b)) => Some(ev.tensor_binary(BinaryOp::Add, &a, &b, span)?),
                (a, b) => a.or(b),
            };
            match total {
                Some(total) => {
                    let (id, _) = ev.tensor_value(&total, span)?;
                    let root = ev.build(span, |f| tensor::root(&mut f.graph, id))?;
                    Ok(ev.graph_value(root, false))
                }
                None => Ok(Value::Float(0.0)),
            }
        })
    }

    /// Zeros in the shape of a model's trainable parameters.
    pub(super) fn zero_tree(&mut self, root: &Value, span: Span) -> Eval {
        self.scripted(span, |ev| {
            let mut entries = Vec::new();
            let cells: Vec<_> = cells_of(root).into_iter().filter(|c| c.is_trainable()).collect();
            for cell in ev.parts_of(&cells, span)? {
                let zeros = ev.build(span, |f| {
                    let zero = f.graph.constant(cell.ty.dtype(), 0.0)?;
                    f.graph.broadcast(zero, cell.ty.shape())
                })?;
                let zeros = ev.graph_value(zeros, false);
                entries.push((cell, Some(zeros)));
            }
            Ok(Value::Tree(Arc::new(Tree { root: root.clone(), entries, is_local: false })))
        })
    }

    /// `g.fc1` is the tree of a sub-model, `g.fc1.w` one gradient.
    pub(super) fn tree_field(&mut self, tree: &Arc<Tree>, field: &Ident, span: Span) -> Eval {
        let part = self.field(&tree.root, field, span)?;
        self.sub_tree(tree, part, span)
    }

    /// The gradients of a part of the tree's model.
    pub(super) fn sub_tree(&mut self, tree: &Arc<Tree>, part: Value, span: Span) -> Eval {
        if let Value::Param(cell) = &part {
            self.need_whole(cell, span)?;
            let entry = tree.entries.iter().find(|(c, _)| c.id == cell.id);
            return match entry {
                Some((_, Some(value))) => Ok(value.clone()),
                _ => {
                    let name = cell.name();
                    Err(self.error(
                        codes::GRADIENT,
                        span,
                        format!("there is no gradient of `{name}` in this tree"),
                    ))
                }
            };
        }
        let cells = cells_of(&part);
        if cells.is_empty() {
            let kind = part.kind();
            return Err(self.error(
                codes::UNKNOWN_FIELD,
                span,
                format!("a tree of gradients has parameters only, not {kind}"),
            ));
        }
        let trained: Vec<_> = cells.into_iter().filter(|c| c.is_trainable()).collect();
        let parts = self.parts_of(&trained, span)?;
        let entries = tree
            .entries
            .iter()
            .filter(|(c, _)| parts.iter().any(|d| d.id == c.id))
            .map(|(c, v)| (Arc::clone(c), v.clone()))
            .collect();
        Ok(Value::Tree(Arc::new(Tree { root: part, entries, is_local: tree.is_local })))
    }
}
