//! Planning steps. What their contracts say of the plans is in `contract`.

use std::{sync::Arc, time::Duration};

use super::{
    Evaluator, Planning,
    errors::Eval,
    frame::Ensure,
    plans::{Known, Made},
    scope::ScopeKind,
    step::Compiled,
    types::Meaning,
    value::{Cx, Step, Stored, Value, lock},
    walk,
};
use crate::{
    codes,
    diagnostic::{Diagnostic, Severity},
    lower,
    ops::OpError,
    plan::Plan,
    schedule,
    source::Span,
    syntax::ast::{DimExpr, ExprId, ExprKind, Name, StmtKind, TypeExpr},
};

impl Evaluator {
    /// The plan of a compiled step, made when it is asked for first.
    pub(super) fn plan_of(&mut self, step: &Arc<Step>, compiled: &Compiled, span: Span) -> Eval<Arc<Plan>> {
        if let Some(plan) = lock(&compiled.plan).clone() {
            return Ok(plan);
        }
        let prove = self.settings.planning == Planning::Proved;
        let of_every_order = prove || compiled.ensures.iter().any(|e| e.every_schedule);
        let order = self.settings.order;
        let mut options = schedule::Options { prove, order, ..Default::default() };
        if self.settings.world > 1 {
            // Each rank plans by itself, and all need the same plan: work is limited, time is not.
            options.time_limit = Duration::MAX;
        }
        let options = lower::PlanOptions { schedule: options, target: self.settings.target };
        let cache = Arc::clone(&self.settings.plans);
        let budget = compiled.budget.map(|b| b.bytes);
        let known = cache.get(step.name(), &compiled.graph, budget, (options.target, prove), || {
            let mut made = match compiled.budget {
                Some(budget) => self.plan_within(step, compiled, budget, &options)?,
                None => lower::plan(&compiled.graph, step.name(), &options)
                    .map(Made::from)
                    .map_err(|error| self.op_error(step.decl.name.span, error))?,
            };
            if of_every_order {
                made.plan.bound_every_order();
                OpError::if_cancelled().map_err(|error| self.op_error(step.decl.name.span, error))?;
            }
            Ok(made)
        })?;
        let Known { plan, fitted } = known;
        *lock(&compiled.fitted) = fitted;
        *lock(&compiled.plan) = Some(Arc::clone(&plan));
        self.plans.push(Arc::clone(&plan));
        self.check_peak(step, compiled, &plan, span)?;
        Ok(plan)
    }

    /// Plans every step: for its signature where that is fully known, else for the calls seen.
    pub(super) fn plan_signatures(&mut self) {
        for step in self.steps.clone() {
            let is_library = self.sources.get(step.decl.span.file).is_some_and(|f| f.is_library);
            if is_library || self.cancelled() {
                continue;
            }
            let span = step.decl.name.span;
            let errors = self.error_count();
            let mut compiled = Vec::new();
            if let Ok(Some(values)) = self.signature(&step) {
                let flat = self.flatten(&step, &values, span);
                if let Ok(flat) = flat
                    && let Ok(made) = self.compiled(&step, &values, &flat, span)
                {
                    compiled.push(made);
                }
            } else {
                compiled = lock(&step.compiled).clone();
                if compiled.is_empty() && self.error_count() == 0 {
                    self.warn_not_planned(&step);
                }
            }
            if self.settings.planning == Planning::Nothing || self.error_count() > errors {
                continue;
            }
            for compiled in compiled {
                // Failures are reported by then.
                let _ = self.plan_of(&step, &compiled, span);
            }
        }
    }

    /// A step that nothing plans: what its `ensure` says is not checked.
    fn warn_not_planned(&mut self, step: &Arc<Step>) {
        let ast = Arc::clone(&step.cx.ast);
        let mut ensure = None;
        walk::walk_block(&ast, &step.decl.body, &mut |item| {
            if let walk::Item::Stmt(id) = item
                && matches!(ast.stmt(id).kind, StmtKind::Ensure { .. } | StmtKind::Budget(_))
            {
                ensure.get_or_insert(ast.stmt(id).span);
            }
        });
        let (Some(span), true) = (ensure, self.settings.planning != Planning::Nothing) else { return };
        let cx = step.cx.in_scope(step.cx.scope.child(ScopeKind::Body));
        let mut open = None;
        for param in &step.decl.params {
            let name = &param.name.name;
            let (missing, help) = match &param.ty {
                None => (name.to_string(), format!("declare its type: `{name}: f32[32, 4]`")),
                Some(ty) => {
                    // Errors in it are reported by now.
                    let _ = self.bind_default_dims(&cx, ty);
                    match open_dimension(&cx, ty) {
                        Some(Some(dim)) => (dim.to_string(), format!("write `{dim} = 32` in its signature")),
                        Some(None) => (name.to_string(), format!("write all sizes of `{name}`")),
                        None => {
                            let is_tensor = matches!(self.meaning(&cx, ty), Ok(Meaning::Tensor(_)));
                            if is_tensor || param.default.is_some() {
                                continue;
                            }
                            (name.to_string(), format!("give `{name}` a default, or call the step"))
                        }
                    }
                }
            };
            open = Some((missing, help));
            break;
        }
        let Some((missing, help)) = open else { return };
        let message = format!("step `{}` is not planned: no call gives `{missing}`", step.name());
        self.report(
            Diagnostic::new(Severity::Warning, codes::NOT_PLANNED, span, message)
                .secondary(step.decl.name.span, "declared here")
                .help(help),
        );
    }

    /// Arguments of the types that a step declares; `None` where it leaves something open.
    fn signature(&mut self, step: &Arc<Step>) -> Eval<Option<Vec<(Value, Span)>>> {
        let cx = step.cx.in_scope(step.cx.scope.child(ScopeKind::Body));
        let mut values = Vec::with_capacity(step.decl.params.len());
        for param in &step.decl.params {
            let span = param.name.span;
            let Some(ty) = &param.ty else { return Ok(None) };
            if !self.bind_default_dims(&cx, ty)? || !is_closed(&cx, ty) {
                return Ok(None);
            }
            let value = match self.meaning(&cx, ty)? {
                Meaning::Tensor(dtype) => {
                    let ty = self.declared_type(&cx, ty, dtype)?;
                    Value::Stored(Stored::new(ty, None))
                }
                _ => match param.default {
                    Some(default) => self.expr(&step.cx, default)?,
                    None => return Ok(None),
                },
            };
            values.push((value, span));
        }
        Ok(Some(values))
    }

    /// Gives the dimensions with a default their size, or the one of `--set`.
    fn bind_default_dims(&mut self, cx: &Cx, ty: &TypeExpr) -> Eval<bool> {
        for dim in ty.dims.iter().flatten() {
            let DimExpr::Default { name, value } = dim else { continue };
            if cx.scope.contains(&name.name) {
                continue;
            }
            let set = self.settings.sets.iter().find(|(n, _)| **n == *name.name).cloned();
            let size = match set {
                Some((set, text)) => {
                    self.used_sets.insert(set);
                    match text.trim().parse::<i64>() {
                        Ok(size) if size >= 0 => size,
                        _ => {
                            return Err(self.error(
                                codes::BAD_SET,
                                name.span,
                                format!("`--set {}={text}`: a dimension is a whole number", name.name),
                            ));
                        }
                    }
                }
                None => self.int_expr(cx, *value)?.0,
            };
            cx.scope.declare(&name.name, Value::Int(size), name.span);
        }
        Ok(true)
    }

    /// `ensure peak <= 4 GiB`
    pub(super) fn ensure_stmt(&mut self, cx: &Cx, limit: ExprId, every_schedule: bool, span: Span) -> Eval {
        self.only_in_step("ensure", span)?;
        let help = "write `ensure peak <= 4 GiB`";
        let limit = self.bytes_expr(cx, limit, codes::TYPE_MISMATCH, "a peak", help)?;
        self.frame(span)?.ensures.push(Ensure { limit, every_schedule, span });
        Ok(Value::Unit)
    }
}

/// Whether every size of an annotation can be worked out from what is in scope.
fn is_closed(cx: &Cx, ty: &TypeExpr) -> bool {
    open_dimension(cx, ty).is_none()
}

/// The first size of an annotation that cannot be worked out from what is in scope, with its name.
fn open_dimension(cx: &Cx, ty: &TypeExpr) -> Option<Option<Name>> {
    ty.dims.iter().flatten().find_map(|dim| match dim {
        DimExpr::Rest(_) => Some(None),
        DimExpr::Default { name, .. } => {
            cx.scope.lookup(&name.name).is_none().then(|| Some(Name::clone(&name.name)))
        }
        DimExpr::Expr(id) => {
            let mut todo = vec![*id];
            while let Some(id) = todo.pop() {
                match &cx.ast.expr(id).kind {
                    ExprKind::Name(name)
                        if name.starts_with(char::is_uppercase) && cx.scope.lookup(name).is_none() =>
                    {
                        return Some(Some(Name::clone(name)));
                    }
                    ExprKind::Binary { left, right, .. } => todo.extend([*left, *right]),
                    ExprKind::Unary(_, operand) => todo.push(*operand),
                    _ => {}
                }
            }
            None
        }
    })
}
