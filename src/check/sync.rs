//! `sync g over world with hook, bucket: 25 MiB`: gradients that every rank has alike.
//!
//! Gradients go into buckets in the order in which they become ready. Each bucket is one vector, which
//! the hook makes the same on every rank; the gradients are views of what comes back.

use std::sync::Arc;

use super::{
    Evaluator,
    args::Args,
    errors::{Eval, Halt},
    value::{Cx, Hook, Tree, Value},
};
use crate::{
    codes,
    diagnostic::{Diagnostic, Severity},
    ir::{DType, Graph, Type, ValueId},
    ops::{Op, OpError, Slice, SliceRange},
    report::Bytes,
    source::Span,
    syntax::ast::{Arg, ExprId, ExprKind, Ident, Name},
};

/// Bytes of a bucket where the statement does not say: large enough that the start of a collective
/// costs little beside it, small enough that the first ones go while the rest is computed.
const BUCKET: u64 = 25 << 20;

/// What tells the states of hooks in one step apart: the statement, the calls that led there, the
/// number of the bucket, the name.
pub type StateKey = (Span, u64, usize, Name);

/// Some of the gradients, which travel together.
struct Bucket {
    dtype: DType,
    elements: usize,
    bytes: u64,
    /// Positions among the gradients, in the order in which they become ready.
    pieces: Vec<usize>,
    /// When it is full, in the same order.
    ready: usize,
}

impl Evaluator {
    pub(super) fn sync_stmt(
        &mut self,
        cx: &Cx,
        (target, over, with): (ExprId, ExprId, Option<ExprId>),
        options: &[Arg],
        span: Span,
    ) -> Eval {
        self.only_in_step("sync", span)?;
        let target_span = cx.ast.expr(target).span;
        let ExprKind::Name(name) = &cx.ast.expr(target).kind else {
            return Err(self.report(
                Diagnostic::error(
                    codes::BAD_TARGET,
                    target_span,
                    "`sync` changes a variable that holds gradients",
                )
                .help("bind them first: `let g = grad(loss, net)`, then `sync g over world`"),
            ));
        };
        let gradients = self.expr(cx, target);
        // What was gathered before is not needed for the buckets.
        self.frame(span)?.end_gather();
        let gradients = gradients.and_then(|g| self.refuse_parts(&g, target_span).map(|()| g));
        let gradients = self.part(gradients)?;
        let ranks = self.check_ranks(cx, over, codes::BAD_OPTION, &format!("sync {name} over"));
        let ranks = self.part(ranks)?;
        let limit = self.bucket_bytes(cx, options);
        let limit = self.part(limit)?;
        let hook = with.map(|with| self.hook_expr(cx, with)).transpose()?;
        let (Some(gradients), Some(()), Some(limit)) = (gradients, ranks, limit) else {
            return Err(Halt::Reported);
        };
        let local = match &gradients {
            Value::Tree(tree) if tree.is_local => Some(Arc::clone(tree)),
            _ => None,
        };
        if let (Some(tree), Some(with)) = (&local, with) {
            let hook_span = cx.ast.expr(with).span;
            return Err(self.hook_of_parts(tree, hook_span, target_span));
        }
        let values = self.gradient_values(&gradients, target_span)?;
        // The mean over one rank is what there is.
        if self.settings.world == 1 && hook.is_none() && local.is_none() {
            return Ok(Value::Unit);
        }
        let compute = self.frame(span)?.compute.take();
        let result = match local {
            Some(tree) => {
                self.note_whole(name, &tree, span);
                self.sync_local(&tree, limit, span)
            }
            None => self.sync_values(&values, hook.as_ref(), limit, span).map(|s| rebuild(&gradients, s)),
        };
        self.frame(span)?.compute = compute;
        self.rebind(cx, name, result?, target_span)?;
        Ok(Value::Unit)
    }

    /// Gradients of a model that is spread over the ranks, of which each rank has its own: parts of
    /// those of vectors, and the means of those that are in no vector.
    fn sync_local(&mut self, tree: &Tree, limit: u64, span: Span) -> Eval {
        let parts = self.scatter(tree, span)?;
        let mut entries = Vec::with_capacity(tree.entries.len());
        for ((cell, value), part) in tree.entries.iter().zip(&parts) {
            entries.push((Arc::clone(cell), if part.is_some() { None } else { value.clone() }));
        }
        let rest = tree.with(entries);
        let values = self.gradient_values(&rest, span)?;
        let mut rest = match self.settings.world {
            1 => values.into_iter().map(|id| self.graph_value(id, false)).collect(),
            _ => self.sync_values(&values, None, limit, span)?,
        }
        .into_iter();
        let entries = tree.entries.iter().zip(parts).map(|((cell, value), part)| {
            let synced = part.or_else(|| value.as_ref().and_then(|_| rest.next()));
            (Arc::clone(cell), synced)
        });
        let (root, entries) = (tree.root.clone(), entries.collect());
        Ok(Value::Tree(Arc::new(Tree { root, entries, is_local: false })))
    }

    /// Says what it takes to add up whole gradients.
    fn note_whole(&mut self, name: &Name, tree: &Tree, span: Span) {
        let cells = tree.entries.iter().filter(|(_, value)| value.is_some()).map(|(cell, _)| cell);
        let (mut whole, mut parts) = (0u64, 0u64);
        for (cell, group) in cells.filter_map(|cell| Some((cell, cell.group()?))) {
            parts = parts.saturating_add(cell.ty.bytes());
            whole = whole.saturating_add(cell.ty.bytes().saturating_mul(u64::from(group.shard.world)));
        }
        if whole == 0 {
            return;
        }
        let message = format!(
            "`{name}` is whole on every rank up to here: {}, of which the parts are {}",
            Bytes(whole),
            Bytes(parts)
        );
        self.report(Diagnostic::new(Severity::Note, codes::SHARD, span, message).help(
            "`grad(loss, net)` without `local: true` reduces what each call gives, and keeps its part: less memory for more collectives",
        ));
    }

    fn hook_of_parts(&mut self, tree: &Tree, hook: Span, target: Span) -> Halt {
        let title = tree.entries.iter().find_map(|(cell, _)| cell.spread()).map(|g| Arc::clone(&g.title));
        let title = title.unwrap_or_else(|| "the model".into());
        self.report(
            Diagnostic::error(
                codes::SHARD,
                hook,
                format!("a hook for gradients of `{title}`, which is spread over the ranks"),
            )
            .secondary(target, "these are reduced and scattered unit by unit")
            .help(
                "leave `with …` out: a hook gives every rank all of its bucket, and here each keeps a part",
            ),
        )
    }

    fn bucket_bytes(&mut self, cx: &Cx, options: &[Arg]) -> Eval<u64> {
        let mut bytes = BUCKET;
        for option in options {
            let at = cx.ast.expr(option.value).span;
            match option.name.as_ref().map(|n| &*n.name) {
                Some("bucket") => {
                    let help = "write `bucket: 25 MiB`";
                    bytes = self.bytes_expr(cx, option.value, codes::BAD_OPTION, "`bucket`", help)?;
                    if bytes == 0 {
                        return Err(self.report(
                            Diagnostic::error(
                                codes::BAD_OPTION,
                                at,
                                "`bucket: 0` leaves no room for a gradient",
                            )
                            .help(help),
                        ));
                    }
                }
                name => {
                    let message = format!("`sync` has no option `{}`", name.unwrap_or_default());
                    return Err(self.report(
                        Diagnostic::error(codes::BAD_OPTION, at, message)
                            .help("`sync g over world with hook, bucket: 25 MiB`"),
                    ));
                }
            }
        }
        Ok(bytes)
    }

    fn hook_expr(&mut self, cx: &Cx, with: ExprId) -> Eval<Value> {
        let span = cx.ast.expr(with).span;
        match self.expr(cx, with)? {
            value @ (Value::Hook(_) | Value::Function(_)) => Ok(value),
            other => {
                let kind = other.kind();
                Err(self.report(
                    Diagnostic::error(codes::TYPE_MISMATCH, span, format!("expected a hook, got {kind}"))
                        .help("`use hooks`, then `sync g over world with hooks.fp16_compress`"),
                ))
            }
        }
    }

    /// The gradients that a value holds, in their order there.
    fn gradient_values(&mut self, value: &Value, span: Span) -> Eval<Vec<ValueId>> {
        let all: Vec<Value> = match value {
            Value::Tree(tree) => tree.entries.iter().filter_map(|(_, v)| v.clone()).collect(),
            Value::List(items) | Value::Tuple(items) => items.as_ref().clone(),
            single => vec![single.clone()],
        };
        let mut values = Vec::with_capacity(all.len());
        for value in &all {
            if !value.is_tensor() {
                let kind = value.kind();
                return Err(self.report(
                    Diagnostic::error(
                        codes::GRADIENT,
                        span,
                        format!("`sync` makes gradients equal on all ranks, got {kind}"),
                    )
                    .help("`let g = grad(loss, net)` gives them"),
                ));
            }
            let (id, _) = self.tensor_value(value, span)?;
            let ty = self.frame(span)?.graph.ty(id).clone();
            if !ty.dtype().is_float() {
                return Err(self.error(
                    codes::GRADIENT,
                    span,
                    format!("`sync` forms means of floating-point values, got {ty}"),
                ));
            }
            values.push(id);
        }
        Ok(values)
    }

    fn sync_values(
        &mut self,
        values: &[ValueId],
        hook: Option<&Value>,
        limit: u64,
        span: Span,
    ) -> Eval<Vec<Value>> {
        let stored: Vec<Stored> = {
            let graph = &self.frame(span)?.graph;
            values.iter().map(|&value| Stored::of(graph, value)).collect()
        };
        let buckets = buckets(&self.frame(span)?.graph, &stored, limit);
        let mut synced: Vec<ValueId> = values.to_vec();
        let count = buckets.len();
        for (number, bucket) in buckets.iter().enumerate() {
            let name = if count == 1 { "bucket".to_owned() } else { format!("bucket {}", number + 1) };
            let whole = self.build(span, |f| fill(&mut f.graph, &stored, bucket, &name))?;
            let whole = self.graph_value(whole, false);
            let result = match hook {
                None => self.mean_over_ranks(whole, span)?,
                Some(Value::Hook(hook)) => {
                    let hook: Arc<Hook> = Arc::clone(hook);
                    self.run_hook(&hook, whole, number, span)?
                }
                Some(function) => self.call_value(function, Args::one(whole, span), span)?,
            };
            let result = self.hook_result(hook, &result, bucket, span)?;
            let mut start = 0;
            for &piece in &bucket.pieces {
                let Some((stored, slot)) = stored.get(piece).zip(synced.get_mut(piece)) else { continue };
                let part = self.build(span, |f| {
                    let size = f.graph.ty(stored.value).elements();
                    let ranges = [SliceRange { start, step: 1, size }];
                    start += size;
                    let part = if size == bucket.elements {
                        result
                    } else {
                        f.graph.value(Slice { ranges: ranges.into() }, &[result])?
                    };
                    stored.view(&mut f.graph, part)
                })?;
                *slot = part;
            }
        }
        Ok(synced.into_iter().map(|id| self.graph_value(id, false)).collect())
    }

    fn mean_over_ranks(&mut self, bucket: Value, span: Span) -> Eval {
        let mean = Ident { name: "mean".into(), span };
        let args = Args { positional: vec![(bucket, span)], named: vec![(mean, Value::Bool(true), span)] };
        self.call_tensor_function_named("all_reduce", args, span)
    }

    /// What a hook gives has the type of its bucket.
    fn hook_result(
        &mut self,
        hook: Option<&Value>,
        result: &Value,
        bucket: &Bucket,
        span: Span,
    ) -> Eval<ValueId> {
        let (what, place) = match hook {
            Some(Value::Hook(hook)) => (hook.def.decl.name.name.to_string(), Some(result_span(hook))),
            Some(Value::Function(function)) => (function.title(), Some(function.decl.name.span)),
            _ => ("all_reduce".to_owned(), None),
        };
        let got = match result {
            value if value.is_tensor() => {
                let (id, _) = self.tensor_value(value, span)?;
                let ty = self.frame(span)?.graph.ty(id).clone();
                if ty.dtype() == bucket.dtype && ty.shape() == [bucket.elements] {
                    return Ok(id);
                }
                ty.to_string()
            }
            Value::Poison => return Err(Halt::Reported),
            other => other.kind(),
        };
        let want = Type::new(bucket.dtype, [bucket.elements]).map(|ty| ty.to_string()).unwrap_or_default();
        let mut diagnostic = Diagnostic::error(
            codes::SHAPE_MISMATCH,
            place.unwrap_or(span),
            format!("the hook `{what}` gives {got} for a bucket {want}"),
        )
        .help("a hook gives what becomes of its bucket, in the same shape and dtype");
        if place.is_some_and(|place| place != span) {
            diagnostic = diagnostic.secondary(span, "called for this");
        }
        Err(self.report(diagnostic))
    }
}

/// Where a hook says what it gives.
fn result_span(hook: &Hook) -> Span {
    let decl = &hook.def.decl;
    decl.body.tail.map_or(decl.name.span, |tail| hook.def.cx.ast.expr(tail).span)
}

/// A gradient in the order in which its elements are made: that of a transposed product is made
/// transposed, and goes into its bucket without a copy.
struct Stored {
    value: ValueId,
    /// The views that lead from it to the gradient, the last one first.
    views: Vec<Op>,
}

impl Stored {
    fn of(graph: &Graph, mut value: ValueId) -> Stored {
        let mut views = Vec::new();
        loop {
            let node = graph.producer(value).0;
            match (node.op(), node.args()) {
                (op @ (Op::Transpose(_) | Op::Reshape(_)), &[base]) => {
                    views.push(op.clone());
                    value = base;
                }
                _ => return Stored { value, views },
            }
        }
    }

    /// The gradient, from its elements as a vector.
    fn view(&self, graph: &mut Graph, flat: ValueId) -> Result<ValueId, OpError> {
        let shape = graph.ty(self.value).shape().to_vec();
        let mut value = graph.reshape(flat, &shape)?;
        for op in self.views.iter().rev() {
            value = graph.value(op.clone(), &[value])?;
        }
        Ok(value)
    }
}

/// Gradients in the order in which their ops come, in buckets of one dtype each. A bucket is closed
/// before it exceeds the limit; a larger gradient has one of its own. Those without elements stay as
/// they are.
fn buckets(graph: &Graph, gradients: &[Stored], limit: u64) -> Vec<Bucket> {
    let mut order: Vec<usize> = (0..gradients.len()).collect();
    order.sort_by_key(|&k| gradients.get(k).map(|g| graph.producer(g.value).0.id));
    let mut closed: Vec<Bucket> = Vec::new();
    let mut open: Vec<Bucket> = Vec::new();
    for (ready, piece) in order.into_iter().enumerate() {
        let Some(gradient) = gradients.get(piece) else { continue };
        let ty = graph.ty(gradient.value);
        let (dtype, elements, bytes) = (ty.dtype(), ty.elements(), ty.bytes());
        if elements == 0 {
            continue;
        }
        let is_full = |b: &Bucket| b.dtype == dtype && b.bytes.saturating_add(bytes) > limit;
        if let Some(full) = open.iter().position(is_full) {
            closed.push(open.remove(full));
        }
        match open.iter_mut().find(|b| b.dtype == dtype) {
            Some(bucket) => {
                bucket.elements += elements;
                bucket.bytes += bytes;
                bucket.pieces.push(piece);
                bucket.ready = ready;
            }
            None => open.push(Bucket { dtype, elements, bytes, pieces: vec![piece], ready }),
        }
    }
    closed.append(&mut open);
    closed.sort_by_key(|b| b.ready);
    closed
}

/// The gradients of a bucket one after another, in memory of its own: a hook may release it.
fn fill(graph: &mut Graph, gradients: &[Stored], bucket: &Bucket, name: &str) -> Result<ValueId, OpError> {
    let pieces: Vec<ValueId> =
        bucket.pieces.iter().filter_map(|&k| gradients.get(k).map(|g| g.value)).collect();
    let zero = graph.constant(bucket.dtype, 0.0)?;
    let mut whole = graph.broadcast(zero, &[bucket.elements])?;
    let mut start = 0;
    for piece in pieces {
        let size = graph.ty(piece).elements();
        let flat = graph.reshape(piece, &[size])?;
        whole = graph.insert(whole, flat, &[SliceRange { start, step: 1, size }])?;
        start += size;
    }
    graph.names.insert(whole, name.into());
    Ok(whole)
}

/// The gradients in the form in which they came.
fn rebuild(form: &Value, synced: Vec<Value>) -> Value {
    let mut synced = synced.into_iter();
    match form {
        Value::Tree(tree) => {
            let entry = |(cell, old): &(_, Option<Value>)| {
                (Arc::clone(cell), old.as_ref().and_then(|_| synced.next()))
            };
            let entries = tree.entries.iter().map(entry).collect();
            tree.with(entries)
        }
        Value::List(_) => Value::list(synced.collect()),
        Value::Tuple(_) => Value::tuple(synced.collect()),
        _ => synced.next().unwrap_or(Value::Unit),
    }
}
