//! What the grammar's actions call: makes nodes and keeps the tree within [`MAX_DEPTH`].

use rustc_hash::FxHashMap;
use std::sync::Arc;

use super::{
    ast::{
        Arg, Ast, BinaryOp, Block, Expr, ExprId, ExprKind, FieldDecl, FnDecl, Ident, IndexItem, MAX_DEPTH,
        ModelDecl, OptimizerDecl, ParamDecl, ShardDecl, Stmt, StmtId, StmtKind, TypeExpr,
    },
    children::Child,
    errors::Recovery,
};
use crate::{
    codes,
    diagnostic::{Diagnostic, Edit},
    source::{FileId, Span},
};

/// The tree under construction, and what was found wrong with it.
pub(crate) struct Builder<'s> {
    /// The whole file.
    pub text: &'s str,
    /// Where its lines start; found when the first error is put into words.
    pub lines: Option<Vec<u32>>,
    pub ast: Ast,
    pub docs: FxHashMap<u32, Arc<str>>,
    pub diagnostics: Vec<Diagnostic>,
    /// Places where the grammar recovered, not yet put into words.
    pub recoveries: Vec<Recovery<'s>>,
    /// Height of the tree below each node.
    expr_heights: Vec<u32>,
    stmt_heights: Vec<u32>,
    too_deep_reported: bool,
    /// `param` and `state` statements, and those among them that a model or optimizer holds.
    fields: Vec<StmtId>,
    placed: Vec<StmtId>,
    /// Statements that did not parse, by their place.
    pub(super) failed: Vec<Span>,
    /// How many things were reported, also those that there was no room for.
    reports: usize,
}

impl<'s> Builder<'s> {
    pub(crate) fn new(file: FileId, docs: FxHashMap<u32, Arc<str>>) -> Self {
        Builder {
            text: "",
            lines: None,
            ast: Ast { file, ..Ast::default() },
            docs,
            diagnostics: Vec::new(),
            recoveries: Vec::new(),
            expr_heights: Vec::new(),
            stmt_heights: Vec::new(),
            too_deep_reported: false,
            fields: Vec::new(),
            placed: Vec::new(),
            failed: Vec::new(),
            reports: 0,
        }
    }

    /// A builder that adds another file to the arena of `ast`.
    pub(crate) fn onto(ast: Ast, file: FileId, docs: FxHashMap<u32, Arc<str>>) -> Self {
        let (exprs, stmts) = (ast.exprs.len(), ast.stmts.len());
        let mut builder = Builder::new(file, docs);
        builder.expr_heights.resize(exprs, 0);
        builder.stmt_heights.resize(stmts, 0);
        builder.ast = Ast { file, body: Vec::new(), ..ast };
        builder
    }

    pub(crate) fn span(&self, start: u32, end: u32) -> Span {
        Span { file: self.ast.file, start, end: end.max(start) }
    }

    pub(crate) fn report(&mut self, diagnostic: Diagnostic) {
        self.reports += 1;
        if self.diagnostics.len() < super::MAX_ERRORS {
            self.diagnostics.push(diagnostic);
        }
    }

    /// A number that rises with every report.
    pub(crate) fn unreported(&self) -> usize {
        self.reports
    }

    pub(crate) fn recovered(&mut self, recovery: Recovery<'s>) {
        if self.recoveries.len() < super::MAX_ERRORS {
            self.recoveries.push(recovery);
        }
    }

    pub(crate) fn expr(&mut self, kind: ExprKind, start: u32, end: u32) -> ExprId {
        let mut height = 0;
        kind.for_each_child(&mut |child| height = height.max(self.height(child)));
        let span = self.span(start, end);
        let kind = if height < MAX_DEPTH {
            kind
        } else {
            height = 0;
            self.too_deep(span);
            ExprKind::Error
        };
        self.expr_heights.push(height + 1);
        self.ast.exprs.push(Expr { kind, span });
        ExprId(self.ast.exprs.len() as u32 - 1)
    }

    pub(crate) fn stmt(&mut self, kind: StmtKind, start: u32, end: u32) -> StmtId {
        let mut height = 0;
        kind.for_each_child(&mut |child| height = height.max(self.height(child)));
        let span = self.span(start, end);
        let kind = if height < MAX_DEPTH {
            kind
        } else {
            height = 0;
            self.too_deep(span);
            StmtKind::Error(Vec::new())
        };
        let id = StmtId(self.ast.stmts.len() as u32);
        if matches!(kind, StmtKind::Param(_) | StmtKind::State(_)) {
            self.fields.push(id);
        }
        self.stmt_heights.push(height + 1);
        self.ast.stmts.push(Stmt { kind, span, docs: self.docs.get(&start).cloned() });
        id
    }

    fn height(&self, child: Child) -> u32 {
        let height = match child {
            Child::Expr(id) => self.expr_heights.get(id.0 as usize),
            Child::Stmt(id) => self.stmt_heights.get(id.0 as usize),
        };
        height.copied().unwrap_or(0)
    }

    fn too_deep(&mut self, span: Span) {
        if !std::mem::replace(&mut self.too_deep_reported, true) {
            self.report(
                Diagnostic::error(
                    codes::NESTED_TOO_DEEP,
                    span,
                    format!("nested deeper than {MAX_DEPTH} levels"),
                )
                .help("give a part of it a name with `let`"),
            );
        }
    }

    // ---- Parts

    pub(crate) fn ident(&self, name: &str, start: u32, end: u32) -> Ident {
        Ident { name: name.into(), span: self.span(start, end) }
    }

    pub(crate) fn dotted(&self, mut path: Vec<Ident>, start: u32, end: u32) -> Ident {
        match path.as_slice() {
            [_] => path.swap_remove(0),
            _ => {
                let names: Vec<&str> = path.iter().map(|i| &*i.name).collect();
                self.ident(&names.join("."), start, end)
            }
        }
    }

    /// Statements as a block: a last expression is its value.
    /// `cut_off` says that its `}` is missing: then nothing is known of what it holds.
    pub(crate) fn block(&mut self, mut stmts: Vec<StmtId>, start: u32, end: u32, cut_off: bool) -> Block {
        if cut_off {
            self.lose(start, end);
            let tail = Some(self.expr(ExprKind::Error, start, end));
            return Block { stmts: Vec::new(), tail, span: self.span(start, end) };
        }
        let tail = match stmts.last().map(|&s| &self.ast.stmt(s).kind) {
            Some(&StmtKind::Expr(value)) => Some(value),
            _ => None,
        };
        if tail.is_some() {
            stmts.pop();
        }
        Block { stmts, tail, span: self.span(start, end) }
    }

    /// An expression as the body of a function or region.
    pub(crate) fn body(&mut self, value: ExprId) -> Block {
        match self.ast.expr(value) {
            Expr { kind: ExprKind::Block(block), .. } => block.clone(),
            &Expr { span, .. } => Block { stmts: Vec::new(), tail: Some(value), span },
        }
    }

    pub(crate) fn tuple(&mut self, mut items: Vec<ExprId>, start: u32, end: u32) -> ExprId {
        match items.as_slice() {
            [_] => items.swap_remove(0),
            _ => self.expr(ExprKind::Tuple(items), start, end),
        }
    }

    pub(crate) fn parentheses(
        &mut self,
        mut items: Vec<ExprId>,
        last: Option<ExprId>,
        start: u32,
        end: u32,
    ) -> ExprId {
        match last {
            Some(only) if items.is_empty() => only,
            _ => {
                items.extend(last);
                self.expr(ExprKind::Tuple(items), start, end)
            }
        }
    }

    pub(crate) fn checkpoint(&mut self, options: Vec<Arg>, body: ExprId, start: u32, end: u32) -> ExprId {
        let body = self.body(body);
        self.expr(ExprKind::Checkpoint { options, body }, start, end)
    }

    pub(crate) fn chained(&mut self, left: ExprId, op_span: Span, start: u32, end: u32) -> ExprId {
        self.report(
            Diagnostic::error(codes::CHAINED_COMPARISON, op_span, "comparisons cannot be chained")
                .secondary(self.ast.expr(left).span, "already a comparison")
                .help("write `a < b and b < c`"),
        );
        // What it would compare is not what was meant.
        self.expr(ExprKind::Error, start, end)
    }

    pub(crate) fn argument_with_equals(&mut self, name: Ident, start: u32, end: u32, value: ExprId) -> Arg {
        let span = self.span(start, end);
        let edit = Edit { span: self.span(name.span.end, end), text: ":".into() };
        self.report(
            Diagnostic::error(codes::FOREIGN, span, "named arguments are written with `:`")
                .fix(format!("write `{}: …`", name.name), vec![edit]),
        );
        Arg { name: Some(name), value }
    }

    pub(crate) fn index_item(&mut self, id: ExprId) -> IndexItem {
        let expr = self.ast.expr(id);
        match &expr.kind {
            &ExprKind::Range { low, high } => IndexItem::Slice { low, high, step: None, span: expr.span },
            ExprKind::Name(name) if &**name == "new" => IndexItem::NewAxis(expr.span),
            _ => IndexItem::At(id),
        }
    }

    // ---- Statements

    pub(crate) fn assign(&mut self, targets: Vec<ExprId>, op: Option<BinaryOp>, value: ExprId) -> StmtKind {
        let mut sound = true;
        for &target in &targets {
            sound &= self.check_target(target);
        }
        if sound { StmtKind::Assign { targets, op, value } } else { StmtKind::Error(Vec::new()) }
    }

    pub(crate) fn state_write(&mut self, target: ExprId, value: ExprId) -> StmtKind {
        if self.check_target(target) {
            StmtKind::StateWrite { target, value }
        } else {
            StmtKind::Error(Vec::new())
        }
    }

    /// Whether an expression is a place; an error where it is not.
    fn check_target(&mut self, target: ExprId) -> bool {
        let expr = self.ast.expr(target);
        let is_place = matches!(
            expr.kind,
            ExprKind::Name(_) | ExprKind::Field(..) | ExprKind::Index(..) | ExprKind::Error
        );
        if !is_place {
            let error = Diagnostic::error(codes::BAD_TARGET, expr.span, "cannot assign to this expression")
                .label("not a name, a field or an element");
            let error = match expr.kind {
                ExprKind::Binary { .. } => error.help("`==` compares"),
                ExprKind::Tuple(_) => error.help("write `a, b = …` without parentheses"),
                _ => error,
            };
            self.report(error);
        }
        is_place
    }

    pub fn shard(
        &mut self,
        flat: bool,
        target: ExprId,
        unit: ExprId,
        over: Option<ExprId>,
        options: Option<Vec<Arg>>,
    ) -> Box<ShardDecl> {
        Box::new(ShardDecl { flat, target, unit, over, options: options.unwrap_or_default() })
    }

    pub(crate) fn ensure(&mut self, what: Ident, limit: ExprId, scope: Option<(Ident, Ident)>) -> StmtKind {
        let mut sound = &*what.name == "peak";
        if !sound {
            self.report(
                Diagnostic::error(codes::UNEXPECTED, what.span, format!("`{}` cannot be ensured", what.name))
                    .help("write `ensure peak <= 4 GiB`"),
            );
        }
        if let Some((every, schedule)) = &scope
            && (&*every.name, &*schedule.name) != ("every", "schedule")
        {
            sound = false;
            self.report(
                Diagnostic::error(
                    codes::UNEXPECTED,
                    every.span.to(schedule.span),
                    format!("expected `every schedule`, found `{} {}`", every.name, schedule.name),
                )
                .help("write `ensure peak <= 4 GiB in every schedule`"),
            );
        }
        if !sound {
            return StmtKind::Error(Vec::new());
        }
        StmtKind::Ensure { limit, every_schedule: scope.is_some() }
    }

    // ---- Declarations

    fn docs_at(&self, start: u32) -> Option<Arc<str>> {
        self.docs.get(&start).cloned()
    }

    pub(crate) fn param(
        &self,
        name: Ident,
        ty: Option<TypeExpr>,
        default: Option<ExprId>,
        start: u32,
    ) -> ParamDecl {
        ParamDecl { name, ty, default, docs: self.docs_at(start) }
    }

    pub(crate) fn function(
        &mut self,
        name: Ident,
        mut params: Vec<ParamDecl>,
        result: Option<TypeExpr>,
        body: Block,
        start: u32,
        end: u32,
    ) -> Arc<FnDecl> {
        if let Some(first) = params.first().filter(|p| &*p.name.name == "self") {
            let error =
                Diagnostic::error(codes::FOREIGN, first.name.span, "functions of a model have no `self`")
                    .help("leave it out: the fields of a model are used by their bare names");
            self.report(error);
            params.remove(0);
        }
        let (docs, span) = (self.docs_at(start), self.span(start, end));
        Arc::new(FnDecl { name, params, result, body, docs, span })
    }

    pub(crate) fn field(
        &self,
        name: Ident,
        ty: TypeExpr,
        init: Option<ExprId>,
        trainable: bool,
        start: u32,
    ) -> Arc<FieldDecl> {
        Arc::new(FieldDecl { name, ty: Some(ty), init, trainable, docs: self.docs_at(start) })
    }

    /// The form of an optimizer: the shape is that of the value.
    pub(crate) fn untyped_state(&self, name: Ident, init: ExprId, start: u32) -> StmtKind {
        let docs = self.docs_at(start);
        StmtKind::State(Arc::new(FieldDecl { name, ty: None, init: Some(init), trainable: false, docs }))
    }

    pub(crate) fn model(
        &mut self,
        name: Ident,
        params: Vec<ParamDecl>,
        body: Vec<StmtId>,
        start: u32,
        end: u32,
    ) -> StmtKind {
        let fields = self.fields_in(&body);
        for &id in &fields {
            let stmt = self.ast.stmt(id);
            if let StmtKind::State(field) = &stmt.kind
                && field.ty.is_none()
            {
                let message = format!("the state `{}` of a model needs a type", field.name.name);
                let error = Diagnostic::error(codes::UNEXPECTED, field.name.span, message)
                    .help(format!("write `state {}: f32[n] = …`", field.name.name));
                self.report(error);
            }
        }
        self.placed.extend(fields);
        let (docs, span) = (self.docs_at(start), self.span(start, end));
        StmtKind::Model(Arc::new(ModelDecl { name, params, body, docs, span }))
    }

    pub(crate) fn optimizer(
        &mut self,
        name: Ident,
        params: Vec<ParamDecl>,
        body: Block,
        start: u32,
        end: u32,
    ) -> StmtKind {
        StmtKind::Optimizer(self.with_states(("an optimizer", "p"), name, params, body, (start, end)))
    }

    pub(crate) fn hook(
        &mut self,
        name: Ident,
        params: Vec<ParamDecl>,
        body: Block,
        start: u32,
        end: u32,
    ) -> StmtKind {
        let like = params.first().map_or_else(|| "bucket".into(), |p| Arc::clone(&p.name.name));
        let decl = self.with_states(("a hook", &like), name, params, body, (start, end));
        if decl.params.is_empty() {
            let message = format!("the hook `{}` has no parameter for the bucket", decl.name.name);
            self.report(
                Diagnostic::error(codes::UNEXPECTED, decl.name.span, message)
                    .help(format!("write `hook {}(bucket) {{ … }}`", decl.name.name)),
            );
        }
        StmtKind::Hook(decl)
    }

    /// A declaration whose body starts with states. `kind` says what it is, and what its states are
    /// like.
    fn with_states(
        &mut self,
        kind: (&str, &str),
        name: Ident,
        params: Vec<ParamDecl>,
        mut body: Block,
        (start, end): (u32, u32),
    ) -> Arc<OptimizerDecl> {
        let mut states = Vec::new();
        let mut placed = Vec::new();
        body.stmts.retain(|&id| match &self.ast.stmt(id).kind {
            StmtKind::State(field) => {
                states.extend(field.init.map(|init| (field.name.clone(), init)));
                placed.push((id, field.init.is_none().then(|| field.name.clone())));
                false
            }
            _ => true,
        });
        for (id, without_value) in placed {
            self.placed.push(id);
            if let Some(name) = without_value {
                self.ast.lost.push(Arc::clone(&name.name));
                let message = format!("the state `{}` of {} needs a value", name.name, kind.0);
                self.report(
                    Diagnostic::error(codes::UNEXPECTED, name.span, message)
                        .help(format!("write `state {} = zeros_like({})`", name.name, kind.1)),
                );
            }
        }
        let (docs, span) = (self.docs_at(start), self.span(start, end));
        Arc::new(OptimizerDecl { name, params, states, body, docs, span })
    }

    /// The `param` and `state` statements of a model's body, branches and loops included.
    fn fields_in(&self, body: &[StmtId]) -> Vec<StmtId> {
        let mut found = Vec::new();
        let mut stmts = body.to_vec();
        let mut exprs = Vec::new();
        loop {
            if let Some(id) = stmts.pop() {
                match &self.ast.stmt(id).kind {
                    StmtKind::Param(_) | StmtKind::State(_) => found.push(id),
                    StmtKind::For { body, .. } | StmtKind::With { body, .. } => {
                        stmts.extend(&body.stmts);
                        exprs.extend(body.tail);
                    }
                    &StmtKind::Expr(value) => exprs.push(value),
                    _ => {}
                }
            } else if let Some(id) = exprs.pop() {
                match &self.ast.expr(id).kind {
                    ExprKind::If { then, otherwise, .. } => {
                        stmts.extend(&then.stmts);
                        exprs.extend(then.tail);
                        exprs.extend(otherwise);
                    }
                    ExprKind::Block(block) => {
                        stmts.extend(&block.stmts);
                        exprs.extend(block.tail);
                    }
                    _ => {}
                }
            } else {
                return found;
            }
        }
    }

    /// Reports `param` and `state` outside of the declarations that own such things.
    pub(crate) fn report_misplaced(&mut self) {
        self.placed.sort_unstable();
        for id in std::mem::take(&mut self.fields) {
            if self.placed.binary_search(&id).is_ok() {
                continue;
            }
            let stmt = self.ast.stmt(id);
            let (word, place) = match stmt.kind {
                StmtKind::Param(_) => ("param", "the body of a model"),
                _ => ("state", "the body of a model, or at the top of the body of an optimizer or hook"),
            };
            let message = format!("`{word}` does not belong here");
            let mut error = Diagnostic::error(codes::MISPLACED, stmt.span, message)
                .help(format!("`{word}` stands in {place}"));
            if word == "state" {
                error = error.note("a state that no branch uses takes no memory");
            }
            self.report(error);
            self.forget(id);
        }
        self.report_nested();
    }

    /// Reports declarations of the top level that stand inside of a body.
    fn report_nested(&mut self) {
        let mut at_home = self.ast.body.clone();
        // Constants of a model are fields of it.
        for stmt in &self.ast.stmts {
            if let StmtKind::Model(decl) = &stmt.kind {
                let is_const = |id: &&StmtId| matches!(self.ast.stmt(**id).kind, StmtKind::Const { .. });
                at_home.extend(decl.body.iter().filter(is_const));
            }
        }
        at_home.sort_unstable();
        let mut nested = Vec::new();
        for (k, stmt) in self.ast.stmts.iter().enumerate() {
            let word = match &stmt.kind {
                StmtKind::Use { .. } => "use",
                StmtKind::Const { .. } => "const",
                StmtKind::Step(_) => "step",
                StmtKind::Optimizer(_) => "optimizer",
                StmtKind::Hook(_) => "hook",
                StmtKind::Model(_) => "model",
                _ => continue,
            };
            if at_home.binary_search(&StmtId(k as u32)).is_err() {
                nested.push((
                    StmtId(k as u32),
                    Diagnostic::error(codes::MISPLACED, stmt.span, format!("`{word}` does not belong here"))
                        .help(match word {
                            "const" => "`const` stands at the top level of a file; write `let`".to_string(),
                            _ => format!("`{word}` stands at the top level of a file"),
                        }),
                ));
            }
        }
        for (id, error) in nested {
            self.report(error);
            self.forget(id);
        }
    }
}
