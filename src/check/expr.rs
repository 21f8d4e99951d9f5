//! Expressions.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::{
    Evaluator, Mode,
    errors::{Eval, Halt},
    frame::FrameKind,
    language,
    scope::ScopeKind,
    tensor,
    value::{Cx, Range, Unknown, Value},
};
use crate::{
    codes,
    diagnostic::Diagnostic,
    ir::DType,
    source::Span,
    syntax::ast::{Block, ExprId, ExprKind, Ident, Name},
};

/// The deepest nesting of lists and tuples.
const MAX_NESTING: usize = 100;

impl Evaluator {
    pub(super) fn expr(&mut self, cx: &Cx, id: ExprId) -> Eval {
        let span = cx.ast.expr(id).span;
        match self.deeper(span, |ev| ev.expr_kind(cx, id, span)) {
            Ok(Value::Poison) => Err(Halt::Reported),
            result => result,
        }
    }

    fn expr_kind(&mut self, cx: &Cx, id: ExprId, span: Span) -> Eval {
        match &cx.ast.expr(id).kind {
            ExprKind::Error => Err(Halt::Reported),
            ExprKind::Int(value) => Ok(Value::Int(*value)),
            ExprKind::Float(value) => Ok(Value::Float(*value)),
            ExprKind::Size(bytes) => match i64::try_from(*bytes) {
                Ok(bytes) => Ok(Value::Int(bytes)),
                Err(_) => Err(self.error(codes::NUMBER_RANGE, span, "a size of 2^63 bytes or more")),
            },
            ExprKind::Bool(value) => Ok(Value::Bool(*value)),
            ExprKind::Str(parts) => self.string(cx, parts, span),
            ExprKind::Name(name) => self.name(cx, name, span),
            ExprKind::List(items) => {
                let items = self.exprs(cx, items)?;
                self.check_nesting(&items, span)?;
                Ok(Value::list(items))
            }
            ExprKind::ListFor { body, names, iter, condition } => {
                self.list_for(cx, *body, names, *iter, *condition)
            }
            ExprKind::Tuple(items) => {
                let items = self.exprs(cx, items)?;
                self.check_nesting(&items, span)?;
                Ok(if items.is_empty() { Value::Unit } else { Value::tuple(items) })
            }
            ExprKind::Unary(op, operand) => self.unary(cx, *op, *operand, span),
            ExprKind::Binary { op, left, right, .. } => self.binary(cx, *op, *left, *right, span),
            ExprKind::Range { low, high } => self.range(cx, *low, *high, span),
            ExprKind::Call { callee, args } => self.call_expr(cx, *callee, args, span),
            ExprKind::Field(base, field) => {
                let base = self.expr(cx, *base)?;
                self.field(&base, field, span)
            }
            ExprKind::Index(base, items) => self.index_expr(cx, *base, items, span),
            ExprKind::Block(block) => self.inner_block(cx, block),
            ExprKind::If { condition, then, otherwise } => self.if_expr(cx, *condition, then, *otherwise),
            ExprKind::Checkpoint { options, body } => self.checkpoint(cx, options, body, span),
            ExprKind::Barrier(operands) => self.barrier_expr(cx, operands, span),
            ExprKind::In { value, dtype } => self.in_dtype(cx, *value, dtype),
        }
    }

    /// Expressions in order. One that fails does not hide what is wrong with the others.
    pub(super) fn exprs(&mut self, cx: &Cx, items: &[ExprId]) -> Eval<Vec<Value>> {
        let mut values = Vec::with_capacity(items.len());
        for &item in items {
            let value = self.expr(cx, item).and_then(|v| self.read_state(v, cx.ast.expr(item).span));
            values.extend(self.part(value)?);
        }
        if values.len() < items.len() { Err(Halt::Reported) } else { Ok(values) }
    }

    /// A block with a scope of its own, through which assignments pass.
    pub(super) fn inner_block(&mut self, cx: &Cx, block: &Block) -> Eval {
        let inner = cx.in_scope(cx.scope.child(ScopeKind::Block));
        self.block(&inner, block)
    }

    pub(super) fn name(&mut self, cx: &Cx, name: &Name, span: Span) -> Eval {
        let found = cx.scope.lookup(name).map(|(scope, binding)| (Arc::clone(scope), binding));
        if let Some((scope, binding)) = found {
            if matches!(binding.value, Value::Poison) {
                return Err(Halt::Reported);
            }
            self.capture(&scope, name, &binding, span)?;
            if let Value::Tensor(tensor) = &binding.value {
                self.check_released(tensor.value, span)?;
            }
            return Ok(binding.value);
        }
        if &**name == "rank" {
            return self.rank_value(span);
        }
        if let Some(value) = self.builtin_name(name).or_else(|| self.settings.host.value(name)) {
            return Ok(value);
        }
        let mut known: Vec<String> = cx.scope.visible_names().iter().map(ToString::to_string).collect();
        known.extend(language::names().map(String::from));
        known.extend(tensor::functions().iter().map(|f| f.name.to_string()));
        known.extend(self.settings.host.names().map(String::from));
        Err(self.unknown_name(Some(&cx.ast), name, span, &known))
    }

    /// Names that are there without a declaration.
    pub(super) fn builtin_name(&mut self, name: &str) -> Option<Value> {
        Some(match name {
            "training" => Value::Bool(self.frames.last().is_some_and(|f| f.training)),
            "inf" => Value::Float(f64::INFINITY),
            "nan" => Value::Float(f64::NAN),
            "pi" => Value::Float(std::f64::consts::PI),
            "world" => Value::Int(i64::from(self.settings.world)),
            _ => {
                if let Some(dtype) = DType::parse(name) {
                    Value::DType(dtype)
                } else if let Some(builtin) = language::find(name) {
                    Value::Builtin(builtin)
                } else if let Some(module) = self.native_module(name) {
                    module
                } else {
                    Value::TensorFunction(tensor::find(name)?)
                }
            }
        })
    }

    /// Notes that the step which is being built depends on a script name.
    fn capture(
        &mut self,
        scope: &Arc<super::Scope>,
        name: &Name,
        binding: &super::scope::Binding,
        span: Span,
    ) -> Eval<()> {
        let value = &binding.value;
        let in_step = self.frames.last().is_some_and(|f| matches!(f.kind, FrameKind::Step(_)));
        if scope.kind != ScopeKind::Script || !in_step {
            return Ok(());
        }
        self.check_same_on_ranks(name, binding, span)?;
        if let Value::Stored(stored) = value {
            let stored = Arc::clone(stored);
            self.build(span, |f| f.capture_stored(scope, name, &stored))?;
        }
        if let Some(frame) = self.frames.last_mut()
            && !frame.captures.iter().any(|c| c.name == *name)
        {
            frame.captures.push(super::frame::Capture {
                scope: Arc::clone(scope),
                name: Arc::clone(name),
                value: value.clone(),
            });
        }
        Ok(())
    }

    fn range(&mut self, cx: &Cx, low: Option<ExprId>, high: Option<ExprId>, span: Span) -> Eval {
        let low = low.map_or(Ok((0, true)), |low| self.int_expr(cx, low));
        let low = self.part(low)?;
        let Some(high_expr) = high else {
            return Err(self.report(
                Diagnostic::error(codes::TYPE_MISMATCH, span, "a range without an end")
                    .help("only slices, `x[2..]`, may leave the end out"),
            ));
        };
        let (high, high_known) = self.int_expr(cx, high_expr)?;
        let Some((low, low_known)) = low else { return Err(Halt::Reported) };
        Ok(Value::Range(Range { low, high, step: 1, known: low_known && high_known }))
    }

    /// A whole number, and whether it is known (see [`Unknown`]).
    pub(super) fn int_expr(&mut self, cx: &Cx, id: ExprId) -> Eval<(i64, bool)> {
        let value = self.expr(cx, id)?;
        let span = cx.ast.expr(id).span;
        self.as_int(&value, span)
    }

    pub(super) fn as_int(&mut self, value: &Value, span: Span) -> Eval<(i64, bool)> {
        match value {
            Value::Int(value) => Ok((*value, true)),
            Value::Unknown(Unknown::Int(sample)) => Ok((*sample, false)),
            Value::Unknown(Unknown::Any) => Ok((1, false)),
            other => {
                let kind = other.kind();
                let mut diagnostic = Diagnostic::error(
                    codes::TYPE_MISMATCH,
                    span,
                    format!("expected a whole number, got {kind}"),
                );
                match other {
                    Value::Float(_) => diagnostic.help.push("convert it with `int(x)`".into()),
                    v if v.is_tensor() => diagnostic.help.push(
                        "sizes and counts must be known when the graph is built; in the script, `int(x)` reads a tensor".into(),
                    ),
                    _ => {}
                }
                Err(self.report(diagnostic))
            }
        }
    }

    /// A condition; `None` where it is not known in mode Check.
    pub(super) fn condition(&mut self, value: &Value, span: Span) -> Eval<Option<bool>> {
        match value {
            Value::Bool(value) => Ok(Some(*value)),
            Value::Unknown(Unknown::Bool(_) | Unknown::Any) => Ok(None),
            Value::Stored(stored) if !self.in_graph() && stored.ty.elements() == 1 => {
                Ok(self.tensor_of(stored, span)?.and_then(|t| t.get_f64(0)).map(|x| x != 0.0))
            }
            v if v.is_tensor() => Err(self.tensor_condition(v, span)),
            other => {
                let kind = other.kind();
                Err(self.report(
                    Diagnostic::error(
                        codes::TYPE_MISMATCH,
                        span,
                        format!("a condition is a bool, got {kind}"),
                    )
                    .help("compare: `x != 0`, `len(xs) > 0`"),
                ))
            }
        }
    }

    fn if_expr(&mut self, cx: &Cx, condition: ExprId, then: &Block, otherwise: Option<ExprId>) -> Eval {
        let value = self.expr(cx, condition)?;
        let taken = self.condition(&value, cx.ast.expr(condition).span)?;
        self.on_some_ranks(cx, condition, (then, otherwise), |ev| match taken {
            Some(true) => ev.inner_block(cx, then),
            Some(false) => match otherwise {
                Some(otherwise) => ev.expr(cx, otherwise),
                None => Ok(Value::Unit),
            },
            // Either may be taken at run time: both are followed.
            None => ev.either(cx, then, otherwise),
        })
    }

    /// Follows both branches of an `if` whose condition is not known, each from the variables as
    /// they are before it. A branch that ends in `error` has no part in what is known afterwards.
    fn either(&mut self, cx: &Cx, then: &Block, otherwise: Option<ExprId>) -> Eval {
        let mut before = self.assigned_values(cx, then);
        if let Some(otherwise) = otherwise {
            let block = Block { stmts: Vec::new(), tail: Some(otherwise), span: then.span };
            for (name, scope, value) in self.assigned_values(cx, &block) {
                if !before.iter().any(|(n, _, _)| *n == name) {
                    before.push((name, scope, value));
                }
            }
        }
        self.doubtful += 1;
        let first = self.inner_block(cx, then);
        let mut after_first = Vec::with_capacity(before.len());
        for (name, scope, value) in &before {
            after_first.push(scope.get(name));
            if let Some(now) = scope.get(name) {
                scope.set_value(name, value.clone(), now.span);
            }
        }
        let second = match otherwise {
            Some(otherwise) => self.expr(cx, otherwise),
            None => Ok(Value::Unit),
        };
        self.doubtful -= 1;
        let first_ends = matches!(first, Err(Halt::Ended));
        let second_ends = matches!(second, Err(Halt::Ended));
        for ((name, scope, _), first) in before.iter().zip(after_first) {
            let (Some(first), Some(second)) = (first, scope.get(name)) else { continue };
            let value = match (first_ends, second_ends) {
                (true, _) => second.value,
                (false, true) => first.value,
                (false, false) => join(first.value, second.value),
            };
            scope.declare(name, value, first.span);
            if first.of_rank || second.of_rank {
                scope.mark_of_rank(name);
            }
        }
        match (first, second) {
            (Err(Halt::Ended), Err(Halt::Ended)) if self.doubtful > 0 => Err(Halt::Ended),
            // Whatever follows never runs; it is judged all the same.
            (Err(Halt::Ended), Err(Halt::Ended)) => Ok(Value::Unknown(Unknown::Any)),
            (Err(Halt::Ended), other) | (other, Err(Halt::Ended)) => other,
            (first, second) => Ok(join(first?, second?)),
        }
    }

    /// Whether mode Check follows code that may never run.
    pub(super) fn is_doubtful(&self) -> bool {
        self.is_check() && self.doubtful > 0
    }

    fn list_for(
        &mut self,
        cx: &Cx,
        body: ExprId,
        names: &[Ident],
        iter: ExprId,
        condition: Option<ExprId>,
    ) -> Eval {
        let iterable = self.expr(cx, iter)?;
        let span = cx.ast.expr(iter).span;
        let items = self.items(&iterable, span)?;
        let mut result = Vec::new();
        for item in items {
            let inner = cx.in_scope(cx.scope.child(ScopeKind::Block));
            self.bind_names(&inner, names, item, span)?;
            if let Some(condition) = condition {
                let value = self.expr(&inner, condition)?;
                if self.condition(&value, cx.ast.expr(condition).span)? == Some(false) {
                    continue;
                }
            }
            let item = self.expr(&inner, body)?;
            result.push(self.read_state(item, cx.ast.expr(body).span)?);
        }
        Ok(Value::list(result))
    }

    fn in_dtype(&mut self, cx: &Cx, value: ExprId, dtype: &Ident) -> Eval {
        let parsed = DType::parse(&dtype.name).filter(|d| d.is_float());
        let Some(parsed) = parsed else {
            return Err(self.report(
                Diagnostic::error(
                    codes::TYPE_MISMATCH,
                    dtype.span,
                    format!("`in` takes a floating-point dtype, got `{}`", dtype.name),
                )
                .help(match cx.scope.lookup(&dtype.name) {
                    Some(_) => format!(
                        "`e in bf16` gives e a dtype; whether a list has an item says `len([i for i in {} if i == x]) > 0`",
                        dtype.name
                    ),
                    None => "one of `f32`, `bf16`, `f16`, `f64`".to_owned(),
                }),
            ));
        };
        let outer = self.param_dtype.replace(parsed);
        let first_new = super::value::fresh_id();
        let result = self.expr(cx, value);
        self.param_dtype = outer;
        let result = result?;
        match &result {
            Value::Model(model) if model.id < first_new => {
                return Err(self.report(
                    Diagnostic::error(
                        codes::TYPE_MISMATCH,
                        cx.ast.expr(value).span,
                        format!(
                            "`{}` is there already, and keeps the dtype of its parameters",
                            model.title()
                        ),
                    )
                    .help(format!("say it where the model is made: `let net = Net(…) in {parsed}`")),
                ));
            }
            Value::Model(_) | Value::List(_) => return Ok(result),
            _ => {}
        }
        let kind = result.kind();
        Err(self.report(
            Diagnostic::error(
                codes::TYPE_MISMATCH,
                cx.ast.expr(value).span,
                format!("`in {parsed}` makes a model with {parsed} parameters, got {kind}"),
            )
            .help(format!("to convert a tensor write `{parsed}(x)`")),
        ))
    }

    /// Lists in lists in lists: dropping them recurses, and showing one that holds a list twice shows
    /// that twice.
    fn check_nesting(&mut self, items: &[Value], span: Span) -> Eval<()> {
        let limit = self.settings.limits.max_items;
        let size = nested_size(items, &mut FxHashMap::default());
        let message = if size.depth > MAX_NESTING {
            format!("lists are nested more than {MAX_NESTING} deep")
        } else if size.items > limit {
            format!(
                "a list that holds more than {limit} items, with all the lists in it (`max_items` of this engine)"
            )
        } else {
            return Ok(());
        };
        Err(self.error(codes::LIMIT, span, message))
    }

    /// One more pass of a loop: the host may wish to stop, and passes are counted.
    pub(super) fn pause(&mut self, span: Span) -> Eval<()> {
        if self.cancelled() {
            return Err(Halt::Cancelled);
        }
        self.passes += 1;
        let limit = self.settings.limits.max_iterations;
        if self.passes > limit {
            let message = format!("loops make more than {limit} passes (`max_iterations` of this engine)");
            return Err(self.error(codes::LIMIT, span, message));
        }
        Ok(())
    }

    pub(super) fn is_check(&self) -> bool {
        self.mode == Mode::Check
    }
}

/// How large a list is when everything in it is written out.
#[derive(Clone, Copy, Default)]
struct NestedSize {
    depth: usize,
    items: usize,
}

/// Each shared list is measured once. Lists that were measured before are at most [`MAX_NESTING`]
/// deep, so this recurses no deeper than that.
fn nested_size(items: &[Value], known: &mut FxHashMap<*const Vec<Value>, NestedSize>) -> NestedSize {
    let mut size = NestedSize { depth: 0, items: items.len() };
    for item in items {
        let (Value::List(inner) | Value::Tuple(inner)) = item else { continue };
        let address = Arc::as_ptr(inner);
        let part = match known.get(&address) {
            Some(&part) => part,
            None => {
                let part = nested_size(inner, known);
                known.insert(address, part);
                part
            }
        };
        size.depth = size.depth.max(part.depth + 1);
        size.items = size.items.saturating_add(part.items);
    }
    size
}

/// What is known of a value that is one of two.
pub(super) fn join(a: Value, b: Value) -> Value {
    match (&a, &b) {
        (Value::Unit | Value::Poison, _) => b,
        (_, Value::Unknown(Unknown::Any)) => b,
        (Value::Int(x), Value::Int(y)) if x == y => a,
        (Value::Bool(x), Value::Bool(y)) if x == y => a,
        (Value::Float(x), Value::Float(y)) if x == y => a,
        (
            Value::Int(x) | Value::Unknown(Unknown::Int(x)),
            Value::Int(_) | Value::Unknown(Unknown::Int(_)),
        ) => Value::Unknown(Unknown::Int(*x)),
        (
            Value::Float(x) | Value::Unknown(Unknown::Float(x)),
            Value::Float(_) | Value::Int(_) | Value::Unknown(Unknown::Float(_) | Unknown::Int(_)),
        ) => Value::Unknown(Unknown::Float(*x)),
        (
            Value::Int(_) | Value::Unknown(Unknown::Int(_)),
            Value::Float(y) | Value::Unknown(Unknown::Float(y)),
        ) => Value::Unknown(Unknown::Float(*y)),
        (Value::Bool(x), Value::Bool(_)) => Value::Unknown(Unknown::Bool(*x)),
        (Value::Str(_), Value::Str(_)) => Value::Unknown(Unknown::Str),
        // A list that grows in a loop: its length is not known.
        (Value::List(x), Value::List(y)) if x.len() != y.len() => Value::Unknown(Unknown::Any),
        _ => a,
    }
}
