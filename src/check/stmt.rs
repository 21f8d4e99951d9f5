//! Statements.

use std::sync::Arc;

use super::{
    Evaluator,
    args::Args,
    errors::{Eval, Halt},
    frame::Compute,
    scope::ScopeKind,
    value::{Cx, Function, Hook, ModelDef, OptimizerDef, Step, Value, fresh_id, name_value},
};
use crate::{
    codes,
    diagnostic::Diagnostic,
    ir::{DType, SlotKind},
    source::Span,
    syntax::ast::{Arg, Ast, Block, ExprId, ExprKind, Ident, Name, Stmt, StmtId, StmtKind},
};

impl Evaluator {
    /// The statements of a block and its value, in the scope of `cx`.
    pub(super) fn block(&mut self, cx: &Cx, block: &Block) -> Eval {
        let released = self.frames.last().map_or(0, |f| f.releases.len());
        let result = self.block_statements(cx, block);
        self.end_releases(released);
        result
    }

    fn block_statements(&mut self, cx: &Cx, block: &Block) -> Eval {
        let failures = self.failures;
        self.statements(cx, &block.stmts)?;
        match block.tail {
            Some(tail) => self.expr(cx, tail),
            // What a block with a failed statement would have given is not known.
            None if self.failures > failures => Err(Halt::Reported),
            None => Ok(Value::Unit),
        }
    }

    /// Statements in order. One that fails poisons the names it binds, and the rest goes on.
    /// The value is that of a last statement that is an expression.
    pub(super) fn statements(&mut self, cx: &Cx, stmts: &[StmtId]) -> Eval {
        self.hoist(cx, stmts);
        let mut last = Value::Unit;
        for &id in stmts {
            if self.cancelled() {
                return Err(Halt::Cancelled);
            }
            match self.stmt(cx, id) {
                Ok(value) => last = value,
                Err(Halt::Reported) => {
                    self.failures += 1;
                    // What comes next in a session finds its names as they were.
                    if self.stops_at_errors() {
                        return Err(Halt::Reported);
                    }
                    self.poison(cx, cx.ast.stmt(id));
                    last = Value::Unit;
                }
                Err(other) => return Err(other),
            }
        }
        Ok(last)
    }

    /// Declares the functions, models, optimizers and steps of a block, so that they may use each
    /// other in any order.
    fn hoist(&mut self, cx: &Cx, stmts: &[StmtId]) {
        for &id in stmts {
            let stmt = cx.ast.stmt(id);
            let (name, value) = match &stmt.kind {
                StmtKind::Fn(decl) => {
                    let function =
                        Function { id: fresh_id(), decl: Arc::clone(decl), cx: cx.clone(), owner: None };
                    (&decl.name, Value::Function(Arc::new(function)))
                }
                StmtKind::Model(decl) => {
                    let def = ModelDef { id: fresh_id(), decl: Arc::clone(decl), cx: cx.clone() };
                    (&decl.name, Value::ModelDef(Arc::new(def)))
                }
                StmtKind::Optimizer(decl) => {
                    let def = OptimizerDef { id: fresh_id(), decl: Arc::clone(decl), cx: cx.clone() };
                    (&decl.name, Value::OptimizerDef(Arc::new(def)))
                }
                StmtKind::Hook(decl) => {
                    let def = OptimizerDef { id: fresh_id(), decl: Arc::clone(decl), cx: cx.clone() };
                    let hook = Hook { id: fresh_id(), def, settings: Args::default() };
                    (&decl.name, Value::Hook(Arc::new(hook)))
                }
                StmtKind::Step(decl) => {
                    let step = Arc::new(Step {
                        id: fresh_id(),
                        decl: Arc::clone(decl),
                        cx: cx.clone(),
                        compiled: Default::default(),
                        optimizers: Default::default(),
                        hook_states: Default::default(),
                        runs: Default::default(),
                    });
                    self.steps.push(Arc::clone(&step));
                    (&decl.name, Value::Step(step))
                }
                _ => continue,
            };
            self.remember_scope(&cx.scope);
            cx.scope.declare(&name.name, value, name.span);
        }
    }

    fn stmt(&mut self, cx: &Cx, id: StmtId) -> Eval {
        let stmt = cx.ast.stmt(id);
        let top = matches!(cx.scope.kind, ScopeKind::Script | ScopeKind::Module);
        if top && !(self.effects && cx.scope.kind == ScopeKind::Script) && !is_definition(&stmt.kind) {
            return Ok(Value::Unit);
        }
        match &stmt.kind {
            StmtKind::Error(_) => Err(Halt::Reported),
            StmtKind::Fn(_)
            | StmtKind::Model(_)
            | StmtKind::Optimizer(_)
            | StmtKind::Hook(_)
            | StmtKind::Step(_)
            | StmtKind::Allow(_) => Ok(Value::Unit),
            StmtKind::Use { path, alias } => self.use_module(cx, path, alias.as_ref(), stmt.span),
            StmtKind::Const { name, value } => self.const_stmt(cx, name, *value),
            StmtKind::Let { names, ty, value } => {
                let span = cx.ast.expr(*value).span;
                let mut bound = self.expr(cx, *value)?;
                let of_rank = self.follows_rank(cx, *value);
                if let Some(ty) = ty {
                    bound = self.check_annotation(cx, ty, bound, span)?;
                }
                bound = self.settle(cx, bound, span)?;
                if names.len() > 1 {
                    bound = self.settle_items(cx, bound, span)?;
                }
                self.bind_names(cx, names, bound, span)?;
                if of_rank {
                    names.iter().for_each(|n| cx.scope.mark_of_rank(&n.name));
                }
                Ok(Value::Unit)
            }
            StmtKind::Assign { targets, op, value } => self.assign_stmt(cx, targets, *op, *value),
            StmtKind::StateWrite { target, value } => self.state_write(cx, *target, *value, stmt.span),
            StmtKind::Expr(expr) => self.expr(cx, *expr),
            StmtKind::For { names, iter, body } => self.for_stmt(cx, names, *iter, body),
            StmtKind::Return(values) => self.return_stmt(cx, values, stmt.span),
            StmtKind::Param(decl) => self.param_stmt(cx, decl, false),
            StmtKind::State(decl) => self.param_stmt(cx, decl, true),
            StmtKind::Minimize { loss, over, with } => self.minimize(cx, *loss, over, *with, stmt.span),
            StmtKind::Update { target, with, grads } => {
                self.update_stmt(cx, *target, *with, *grads, stmt.span)
            }
            StmtKind::Sync { target, over, with, options } => {
                self.sync_stmt(cx, (*target, *over, *with), options, stmt.span)
            }
            StmtKind::Ensure { limit, every_schedule } => {
                self.ensure_stmt(cx, *limit, *every_schedule, stmt.span)
            }
            StmtKind::Budget(limit) => self.budget_stmt(cx, *limit, stmt.span),
            StmtKind::Release(values) => self.release_stmt(cx, values, stmt.span),
            StmtKind::Shard(decl) => self.shard_stmt(cx, decl, stmt.span),
            StmtKind::With { settings, body } => self.with_stmt(cx, settings, body, stmt.span),
        }
    }

    /// Marks what a failed statement would have bound, so that its uses are not reported too.
    fn poison(&mut self, cx: &Cx, stmt: &Stmt) {
        match &stmt.kind {
            StmtKind::Let { names, .. } | StmtKind::Error(names) => {
                names.iter().for_each(|n| cx.scope.declare(&n.name, Value::Poison, n.span));
            }
            StmtKind::Const { name, .. } => cx.scope.declare(&name.name, Value::Poison, name.span),
            StmtKind::Use { path, alias } => {
                if let Some(name) = alias.as_ref().or(path.last()) {
                    cx.scope.declare(&name.name, Value::Poison, name.span);
                }
            }
            StmtKind::Param(decl) | StmtKind::State(decl) => {
                cx.scope.declare(&decl.name.name, Value::Poison, decl.name.span);
            }
            StmtKind::Assign { targets, .. } => {
                for &target in targets {
                    if let ExprKind::Name(name) = &cx.ast.expr(target).kind
                        && let super::scope::AssignTarget::Here(scope) = cx.scope.assign_target(name)
                    {
                        scope.declare(name, Value::Poison, cx.ast.expr(target).span);
                    }
                }
            }
            // `xs.append(x)` and the like were meant to change the list.
            StmtKind::Expr(call) => {
                if let Some(list) = changed_list(&cx.ast, *call)
                    && let super::scope::AssignTarget::Here(scope) = cx.scope.assign_target(list)
                {
                    scope.declare(list, Value::Poison, stmt.span);
                }
            }
            // A pass that failed ended the loop: what it gives to outer names is not known.
            StmtKind::For { body, .. } => {
                for name in super::walk::assigned_names(&cx.ast, body) {
                    if let super::scope::AssignTarget::Here(scope) = cx.scope.assign_target(&name) {
                        scope.declare(&name, Value::Poison, stmt.span);
                    }
                }
            }
            _ => {}
        }
    }

    /// Binds a value to one name, or its items to several.
    pub(super) fn bind_names(&mut self, cx: &Cx, names: &[Ident], value: Value, span: Span) -> Eval<()> {
        if let [name] = names {
            self.bind(cx, name, value);
            return Ok(());
        }
        let items = self.unpack(value, names.len(), span)?;
        for (name, item) in names.iter().zip(items) {
            self.bind(cx, name, item);
        }
        Ok(())
    }

    /// The items of a value that several names take.
    pub(super) fn unpack(&mut self, value: Value, count: usize, span: Span) -> Eval<Vec<Value>> {
        let items = match &value {
            Value::Tuple(items) | Value::List(items) => items.as_ref().clone(),
            Value::Unknown(super::value::Unknown::Any) => vec![value; count],
            other => {
                let kind = other.kind();
                return Err(self.error(
                    codes::UNPACK,
                    span,
                    format!("{count} names for {kind}, which has no parts"),
                ));
            }
        };
        if items.len() != count {
            let (got, s) = (items.len(), if items.len() == 1 { "" } else { "s" });
            return Err(self.error(codes::UNPACK, span, format!("{count} names for {got} value{s}")));
        }
        Ok(items)
    }

    fn bind(&mut self, cx: &Cx, name: &Ident, value: Value) {
        match cx.scope.kind {
            // The variable of the script gives models and parameters their names.
            ScopeKind::Script => name_value(&value, &name.name),
            ScopeKind::Module => {}
            _ => {}
        }
        self.label(&value, &name.name, name.span);
        self.note_field(cx, &name.name);
        cx.scope.declare(&name.name, value, name.span);
    }

    /// Names a graph value after its variable, for reports. Names in the user's code win over
    /// those in the library.
    pub(super) fn label(&mut self, value: &Value, name: &std::sync::Arc<str>, span: Span) {
        let Value::Tensor(tensor) = value else { return };
        let library = self.sources.get(span.file).is_some_and(|f| f.is_library);
        if let Some(frame) = self.frames.last_mut()
            && frame.id == tensor.frame
            && !frame.graph.marks.contains_key(&tensor.value)
        {
            if library {
                frame.graph.names.entry(tensor.value).or_insert_with(|| Arc::clone(name));
            } else {
                frame.graph.names.insert(tensor.value, Arc::clone(name));
            }
        }
    }

    /// A state of graph code is read where it stands: a later write does not change what an argument or
    /// an item of a list is. What trains parameters takes them as such.
    pub(super) fn read_state(&mut self, value: Value, span: Span) -> Eval {
        match &value {
            Value::Param(cell) if self.in_graph() && !matches!(cell.kind, SlotKind::Param { .. }) => {
                let (id, weak) = self.tensor_value(&value, span)?;
                Ok(self.graph_value(id, weak))
            }
            _ => Ok(value),
        }
    }

    /// What a variable holds of a parameter is its value at that time, except as a field of a
    /// model.
    pub(super) fn settle(&mut self, cx: &Cx, value: Value, span: Span) -> Eval {
        if self.is_model_body(cx) {
            return Ok(value);
        }
        if let Value::List(items) | Value::Tuple(items) = &value {
            if self.in_graph() || !items.iter().any(holds_parameter) {
                return Ok(value);
            }
            return self.settle_items(cx, value, span);
        }
        let Value::Param(cell) = &value else { return Ok(value) };
        if self.in_graph() {
            let (id, weak) = self.tensor_value(&value, span)?;
            return Ok(self.graph_value(id, weak));
        }
        let cell = Arc::clone(cell);
        let data = self.whole_data(&cell, span)?;
        Ok(Value::Stored(super::value::Stored::new(cell.ty.clone(), data)))
    }

    fn settle_items(&mut self, cx: &Cx, value: Value, span: Span) -> Eval {
        let (Value::List(items) | Value::Tuple(items)) = &value else { return Ok(value) };
        let settled = items.iter().map(|item| self.settle(cx, item.clone(), span));
        let settled: Arc<Vec<Value>> = Arc::new(settled.collect::<Eval<_>>()?);
        Ok(match value {
            Value::List(_) => Value::List(settled),
            _ => Value::Tuple(settled),
        })
    }

    fn const_stmt(&mut self, cx: &Cx, name: &Ident, value: ExprId) -> Eval {
        let span = cx.ast.expr(value).span;
        let mut bound = self.expr(cx, value)?;
        if cx.scope.kind == ScopeKind::Script
            && let Some((_, text)) = self.settings.sets.iter().find(|(n, _)| **n == *name.name).cloned()
        {
            self.used_sets.insert(name.name.to_string());
            bound = self.set_value(&bound, &text, name)?;
        }
        if bound.is_tensor() {
            let kind = bound.kind();
            return Err(self.report(
                Diagnostic::error(codes::TYPE_MISMATCH, span, format!("a constant holds no {kind}"))
                    .help("use `let` for tensors"),
            ));
        }
        self.bind(cx, name, bound);
        Ok(Value::Unit)
    }

    /// The text of `--set`, read as the constant's own type.
    fn set_value(&mut self, constant: &Value, text: &str, name: &Ident) -> Eval {
        let text = text.trim();
        let parsed = match constant {
            // Sizes such as `4 GiB` are whole numbers.
            Value::Int(_) => {
                let size = || crate::syntax::size(text).and_then(|bytes| i64::try_from(bytes).ok());
                text.replace('_', "").parse().ok().or_else(size).map(Value::Int)
            }
            Value::Float(_) => text.replace('_', "").parse().ok().map(Value::Float),
            Value::Bool(_) => text.parse().ok().map(Value::Bool),
            Value::Str(_) => Some(Value::str(text)),
            Value::DType(_) => DType::parse(text).map(Value::DType),
            _ => None,
        };
        match parsed {
            Some(value) => Ok(value),
            None => {
                let kind = constant.kind();
                Err(self.error(
                    codes::BAD_SET,
                    name.span,
                    format!("`--set {}={text}`: the constant is {kind}", name.name),
                ))
            }
        }
    }

    fn return_stmt(&mut self, cx: &Cx, values: &[ExprId], span: Span) -> Eval {
        if !self.in_body(cx) {
            return Err(self.error(codes::NOT_IN_GRAPH, span, "`return` outside of a function or step"));
        }
        let mut results = Vec::with_capacity(values.len());
        for &value in values {
            let result = self.expr(cx, value);
            let result = result.and_then(|r| self.settle(cx, r, cx.ast.expr(value).span));
            results.extend(self.part(result)?);
        }
        if results.len() < values.len() {
            return Err(Halt::Reported);
        }
        let value = match results.len() {
            0 => Value::Unit,
            1 => results.remove(0),
            _ => Value::tuple(results),
        };
        Err(Halt::Return(value))
    }

    /// Whether code stands in the body of a function, model or step.
    fn in_body(&self, cx: &Cx) -> bool {
        let mut scope = Some(&cx.scope);
        while let Some(current) = scope {
            if current.kind == ScopeKind::Body {
                return true;
            }
            scope = current.parent.as_ref();
        }
        false
    }

    fn with_stmt(&mut self, cx: &Cx, settings: &[Arg], body: &Block, span: Span) -> Eval {
        let mut training = None;
        let mut compute = None;
        for setting in settings {
            let at = cx.ast.expr(setting.value).span;
            let value = self.expr(cx, setting.value)?;
            match setting.name.as_ref().map(|n| &*n.name) {
                Some("training") => training = self.condition(&value, at)?,
                Some("compute") => match value {
                    Value::DType(dtype) if dtype.is_float() => compute = Some(dtype),
                    other => {
                        let kind = other.kind();
                        return Err(self.error(
                            codes::BAD_OPTION,
                            at,
                            format!("`compute` takes a floating-point dtype, got {kind}"),
                        ));
                    }
                },
                name => {
                    let message = match name {
                        Some(name) => format!("`with` has no setting `{name}`"),
                        None => "`with` takes named settings".to_string(),
                    };
                    return Err(self.report(
                        Diagnostic::error(codes::BAD_OPTION, at, message)
                            .help("`with training: false { … }`, `with compute: bf16 { … }`"),
                    ));
                }
            }
        }
        let Some(frame) = self.frames.last_mut() else {
            return Err(self.error(codes::ONLY_IN_STEP, span, "`with` settings apply to graph code only"));
        };
        let outer = (frame.training, frame.compute);
        frame.training = training.unwrap_or(frame.training);
        if let Some(dtype) = compute {
            frame.compute = Some(Compute { dtype, since: frame.graph.value_count() as u32 });
        }
        let result = self.inner_block(cx, body);
        if let Some(frame) = self.frames.last_mut() {
            (frame.training, frame.compute) = outer;
        }
        result
    }

    /// A name that `let` bound in the body of a model becomes a field.
    pub(super) fn note_field(&mut self, cx: &Cx, name: &crate::syntax::ast::Name) {
        if let Some(order) = self.building_model(cx)
            && !order.contains(name)
        {
            order.push(Arc::clone(name));
        }
    }
}

/// What a session that only defines evaluates.
fn is_definition(stmt: &StmtKind) -> bool {
    matches!(
        stmt,
        StmtKind::Use { .. }
            | StmtKind::Const { .. }
            | StmtKind::Let { .. }
            | StmtKind::Fn(_)
            | StmtKind::Model(_)
            | StmtKind::Step(_)
            | StmtKind::Optimizer(_)
            | StmtKind::Shard(_)
            | StmtKind::Hook(_)
            | StmtKind::Allow(_)
            | StmtKind::Error(_)
    )
}

/// Whether a value is a parameter or state, or a list with one in it.
fn holds_parameter(value: &Value) -> bool {
    match value {
        Value::Param(_) => true,
        Value::List(items) | Value::Tuple(items) => items.iter().any(holds_parameter),
        _ => false,
    }
}

/// The list that a call such as `xs.append(x)` names.
fn changed_list(ast: &Ast, call: ExprId) -> Option<&Name> {
    let ExprKind::Call { callee, .. } = &ast.expr(call).kind else { return None };
    let ExprKind::Field(list, method) = &ast.expr(*callee).kind else { return None };
    let changes = matches!(&*method.name, "append" | "extend" | "insert" | "pop" | "remove");
    match &ast.expr(*list).kind {
        ExprKind::Name(name) if changes => Some(name),
        _ => None,
    }
}
