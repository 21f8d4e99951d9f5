//! Assignments: `a = e`, `a, b = e`, `a += e`, `xs[i] = e`, `mean := e`.

use std::sync::Arc;

use super::{
    Evaluator,
    errors::{Eval, Halt},
    rank::mark_of_rank,
    scope::AssignTarget,
    value::{Cell, Cx, Value, lock},
};
use crate::{
    codes,
    diagnostic::Diagnostic,
    ir::{Role, SlotKind},
    source::Span,
    syntax::ast::{BinaryOp, ExprId, ExprKind, IndexItem, Name},
};

impl Evaluator {
    pub(super) fn assign_stmt(
        &mut self,
        cx: &Cx,
        targets: &[ExprId],
        op: Option<BinaryOp>,
        value: ExprId,
    ) -> Eval {
        let span = cx.ast.expr(value).span;
        let mut new = self.expr(cx, value)?;
        new = self.settle(cx, new, span)?;
        let of_rank = self.targets_of_rank(cx, targets, op.is_some(), value);
        match (targets, op) {
            (&[target], None) => self.assign(cx, target, new)?,
            (&[target], Some(op)) => {
                let old = self.expr(cx, target)?;
                let target_span = cx.ast.expr(target).span;
                let result = self.binary_values(op, &old, &new, target_span.to(span))?;
                self.assign(cx, target, result)?;
            }
            (targets, _) => {
                let items = self.unpack(new, targets.len(), span)?;
                for (&target, item) in targets.iter().zip(items) {
                    self.assign(cx, target, item)?;
                }
            }
        }
        mark_of_rank(cx, &of_rank);
        Ok(Value::Unit)
    }

    fn assign(&mut self, cx: &Cx, target: ExprId, value: Value) -> Eval<()> {
        let span = cx.ast.expr(target).span;
        match &cx.ast.expr(target).kind {
            ExprKind::Name(name) => self.rebind(cx, name, value, span),
            ExprKind::Tuple(items) | ExprKind::List(items) => {
                let values = self.unpack(value, items.len(), span)?;
                for (&item, value) in items.iter().zip(values) {
                    self.assign(cx, item, value)?;
                }
                Ok(())
            }
            ExprKind::Index(base, items) => {
                let container = self.expr(cx, *base)?;
                let updated = self.with_item(cx, container, items, value, span)?;
                self.assign(cx, *base, updated)
            }
            ExprKind::Field(base, field) => {
                let owner = self.expr(cx, *base)?;
                self.set_field(&owner, &field.name, value, span)
            }
            _ => Err(self.error(codes::TYPE_MISMATCH, span, "this cannot be assigned to")),
        }
    }

    pub(super) fn rebind(&mut self, cx: &Cx, name: &Name, value: Value, span: Span) -> Eval<()> {
        match cx.scope.assign_target(name) {
            AssignTarget::Here(scope) => {
                if scope.kind == super::ScopeKind::Script {
                    super::value::name_value(&value, name);
                }
                self.label(&value, name, span);
                scope.declare(name, value, span);
                Ok(())
            }
            AssignTarget::Outside(bound) => Err(self.report(
                Diagnostic::error(
                    codes::REBINDS_OUTER,
                    span,
                    format!("`{name}` is bound outside of this body"),
                )
                .label("assigned here, inside")
                .secondary(bound, format!("`{name}` is bound here, outside"))
                .help("return the new value and assign it outside, or bind a new name with `let`"),
            )),
            AssignTarget::Unknown if self.is_lost(name) => Err(Halt::Reported),
            AssignTarget::Unknown if self.builtin_name(name).is_some() => Err(self.report(
                Diagnostic::error(
                    codes::REBINDS_OUTER,
                    span,
                    format!("`{name}` is built in and cannot be assigned to"),
                )
                .help(format!("bind a new name: `let {name} = …`")),
            )),
            AssignTarget::Unknown => {
                if let Some(halt) = self.not_made(name, span) {
                    return Err(halt);
                }
                let halt = self.report(
                    Diagnostic::error(codes::UNKNOWN_NAME, span, format!("unknown name `{name}`"))
                        .help(format!("bind it first: `let {name} = …`")),
                );
                // A forgotten `let` is said once.
                cx.scope.declare(name, Value::Poison, span);
                Err(halt)
            }
        }
    }

    /// A list with one item replaced.
    fn with_item(
        &mut self,
        cx: &Cx,
        container: Value,
        items: &[IndexItem],
        value: Value,
        span: Span,
    ) -> Eval {
        match container {
            Value::List(mut list) => {
                let [IndexItem::At(index)] = items else {
                    return Err(self.error(
                        codes::BAD_INDEX,
                        span,
                        "a list is assigned to one item at a time",
                    ));
                };
                let (index, known) = self.int_expr(cx, *index)?;
                if !known {
                    return Ok(Value::List(list));
                }
                let position = self.list_position(index, list.len(), span)?;
                if let Some(item) = Arc::make_mut(&mut list).get_mut(position) {
                    *item = value;
                }
                Ok(Value::List(list))
            }
            v if v.is_tensor() => Err(self.report(
                Diagnostic::error(
                    codes::TYPE_MISMATCH,
                    span,
                    "tensors are values: their elements cannot be assigned to",
                )
                .help("build the new tensor, with `where(mask, a, b)` or `concat([…])`"),
            )),
            other => {
                let kind = other.kind();
                Err(self.error(codes::BAD_INDEX, span, format!("items of {kind} cannot be assigned to")))
            }
        }
    }

    /// `opt.lr = 0.01` is the only field that can change: a hyper-parameter known at run time.
    fn set_field(&mut self, owner: &Value, field: &Name, value: Value, span: Span) -> Eval<()> {
        if let Value::Optimizer(optimizer) = owner
            && !self.in_graph()
        {
            let params = &optimizer.def.decl.params;
            if let Some(position) = params.iter().position(|p| p.name.name == *field) {
                let compile_time = params.get(position).is_some_and(|p| p.ty.is_some());
                if compile_time {
                    return Err(self.report(
                        Diagnostic::error(
                            codes::OPTIMIZER,
                            span,
                            format!("`{field}` of the optimizer is fixed when it is made"),
                        )
                        .help("only parameters without a type are run-time values"),
                    ));
                }
                if !matches!(value, Value::Int(_) | Value::Float(_) | Value::Function(_) | Value::Unknown(_))
                {
                    let kind = value.kind();
                    return Err(self.error(
                        codes::OPTIMIZER,
                        span,
                        format!("`{field}` is a number or a function of the update count, got {kind}"),
                    ));
                }
                if let Some(slot) = lock(&optimizer.hyper).get_mut(position) {
                    *slot = value;
                }
                return Ok(());
            }
        }
        let kind = owner.kind();
        Err(self.report(
            Diagnostic::error(codes::TYPE_MISMATCH, span, format!("the field `{field}` of {kind} cannot be assigned to"))
                .help("parameters change by `minimize` and `update`, state by `name := value` in a function of its model"),
        ))
    }

    /// `mean := e`: a state of a model, or of an optimizer in its body.
    pub(super) fn state_write(&mut self, cx: &Cx, target: ExprId, value: ExprId, span: Span) -> Eval {
        let target_span = cx.ast.expr(target).span;
        if !self.in_graph() {
            return Err(self.report(
                Diagnostic::error(codes::ONLY_IN_STEP, span, "`:=` outside of graph code")
                    .help("state is written in functions of its model, while a step runs"),
            ));
        }
        let owner = self.expr(cx, target)?;
        let Value::Param(cell) = owner else {
            let kind = owner.kind();
            return Err(self.report(
                Diagnostic::error(codes::TYPE_MISMATCH, target_span, format!("`:=` writes a state, got {kind}"))
                    .help("declare it in the model: `state name: f32[n] = zeros()`; other names are assigned with `=`"),
            ));
        };
        if let SlotKind::Param { trainable } = cell.kind
            && !self.in_optimizer()
        {
            return Err(self.parameter_written(&cell, trainable, span));
        }
        let value_span = cx.ast.expr(value).span;
        let new = self.expr(cx, value)?;
        self.write_cell(&cell, &new, value_span, span)?;
        Ok(Value::Unit)
    }

    /// Whether the body of an optimizer is being elaborated: it alone writes parameters.
    pub(super) fn in_optimizer(&self) -> bool {
        self.frames.last().is_some_and(|f| matches!(f.graph.cursor.role, Role::Update { .. }))
    }

    fn parameter_written(&mut self, cell: &Cell, trainable: bool, span: Span) -> Halt {
        let name = cell.name();
        let what = if trainable { "a parameter" } else { "a frozen parameter" };
        let diagnostic =
            Diagnostic::error(codes::MODEL, span, format!("`:=` writes a state, and `{name}` is {what}"))
                .secondary(cell.span, "declared here");
        self.report(if trainable {
            diagnostic.help(
                "parameters change by `minimize loss over net with opt` or `update net with opt, grads`; `update target with optim.ema(decay), net` follows another model; what a model changes itself is declared `state`",
            )
        } else {
            diagnostic.help("declare it as `state`")
        })
    }

    /// Commits a value to a persistent tensor, broadcast to its type; dtypes must agree.
    pub(super) fn write_cell(
        &mut self,
        cell: &Arc<Cell>,
        new: &Value,
        value_span: Span,
        span: Span,
    ) -> Eval<()> {
        self.prepare_cell(cell, span)?;
        let Some(operand) = self.operand(new, value_span)? else {
            let kind = new.kind();
            return Err(self.error(
                codes::TYPE_MISMATCH,
                value_span,
                format!("a state holds a tensor, got {kind}"),
            ));
        };
        let name = cell.name();
        let value = self.fit(operand, &cell.ty, &format!("`{name}` := …"), value_span, cell.span)?;
        self.build(span, |f| f.write(cell, value))?;
        Ok(())
    }
}
