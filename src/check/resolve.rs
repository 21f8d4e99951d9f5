//! Names in code that evaluation has not visited: functions, steps and models that a script declares
//! are judged even where it never uses them, and so are branches that it does not take.
//!
//! The pass is lenient where only values can tell (fields, arguments) and exact about scopes.

use rustc_hash::FxHashSet;

use super::{Evaluator, args::option_word, language, tensor, value::Cx, walk};
use crate::{
    ir::DType,
    source::Span,
    syntax::ast::{
        Arg, Ast, Block, DimExpr, ExprId, ExprKind, FnDecl, Ident, IndexItem, ModelDecl, Name, OptimizerDecl,
        ParamDecl, StmtId, StmtKind, StrPart, TypeExpr,
    },
};

struct Resolver<'a> {
    ast: &'a Ast,
    /// Names in scope, the innermost last.
    scopes: Vec<FxHashSet<Name>>,
    unknown: Vec<(Name, Span, Vec<String>)>,
    unknown_types: Vec<&'a TypeExpr>,
}

impl Evaluator {
    /// Reports names in the declarations of a file that nothing defines. What evaluation has
    /// reported already is the same diagnostic, and is not repeated.
    pub(super) fn resolve_declarations(&mut self, cx: &Cx) {
        let mut resolver =
            Resolver { ast: &cx.ast, scopes: Vec::new(), unknown: Vec::new(), unknown_types: Vec::new() };
        // A function sees every name of the top level when it is called, wherever that is bound.
        let mut top: FxHashSet<Name> = cx.scope.visible_names().into_iter().collect();
        let whole = Block { stmts: cx.ast.body.clone(), tail: None, span: Span::default() };
        walk::walk_block(&cx.ast, &whole, &mut |item| {
            if let walk::Item::Stmt(id) = item {
                top.extend(bound_names(&cx.ast.stmt(id).kind).into_iter().map(|n| Name::clone(&n.name)));
            }
        });
        top.extend(self.settings.host.names().map(Name::from));
        resolver.scopes.push(top);
        for &id in &cx.ast.body {
            resolver.stmt(&cx.ast.stmt(id).kind);
        }
        let unknown_types = resolver.unknown_types;
        for (name, span, known) in resolver.unknown {
            self.unknown_name(Some(&cx.ast), &name, span, &known);
        }
        for ty in unknown_types {
            // Everything that is in scope was tried; this words the message.
            let _ = self.meaning(cx, ty);
        }
    }
}

/// The names that a statement binds in its own scope.
fn bound_names(stmt: &StmtKind) -> Vec<&Ident> {
    match stmt {
        StmtKind::Let { names, .. } | StmtKind::Error(names) => names.iter().collect(),
        StmtKind::Const { name, .. } => vec![name],
        StmtKind::Use { path, alias } => alias.as_ref().or(path.last()).into_iter().collect(),
        StmtKind::Fn(decl) | StmtKind::Step(decl) => vec![&decl.name],
        StmtKind::Model(decl) => vec![&decl.name],
        StmtKind::Optimizer(decl) | StmtKind::Hook(decl) => vec![&decl.name],
        StmtKind::Param(decl) | StmtKind::State(decl) => vec![&decl.name],
        _ => Vec::new(),
    }
}

impl<'a> Resolver<'a> {
    fn is_known(&self, name: &str) -> bool {
        self.scopes.iter().any(|s| s.contains(name))
            || language::names().any(|n| n == name)
            || tensor::find(name).is_some()
    }

    fn bind(&mut self, name: &Name) {
        if let Some(scope) = self.scopes.last_mut() {
            scope.insert(Name::clone(name));
        }
    }

    fn scoped(&mut self, body: impl FnOnce(&mut Self)) {
        self.scopes.push(FxHashSet::default());
        body(self);
        self.scopes.pop();
    }

    fn declaration(&mut self, stmt: &'a StmtKind) {
        match stmt {
            StmtKind::Fn(decl) | StmtKind::Step(decl) => self.function(decl),
            StmtKind::Model(decl) => self.model(decl),
            StmtKind::Optimizer(decl) => self.optimizer(decl, &["p", "g", "t"]),
            StmtKind::Hook(decl) => self.optimizer(decl, &[]),
            _ => {}
        }
    }

    fn function(&mut self, decl: &'a FnDecl) {
        self.scoped(|r| {
            r.params(&decl.params);
            r.types(decl.result.iter());
            r.block(&decl.body);
        });
    }

    fn model(&mut self, decl: &'a ModelDecl) {
        self.scoped(|r| {
            r.params(&decl.params);
            // Methods see every field; declarations may stand inside of `if` and `for`.
            let body = Block { stmts: decl.body.clone(), tail: None, span: decl.span };
            let ast = r.ast;
            walk::walk_block(ast, &body, &mut |item| {
                if let walk::Item::Stmt(id) = item {
                    bound_names(&ast.stmt(id).kind).iter().for_each(|n| r.bind(&n.name));
                }
            });
            r.statements(&decl.body);
        });
    }

    fn optimizer(&mut self, decl: &'a OptimizerDecl, given: &[&str]) {
        self.scoped(|r| {
            r.params(&decl.params);
            given.iter().copied().for_each(|n| r.bind(&n.into()));
            decl.states.iter().for_each(|(name, _)| r.bind(&name.name));
            decl.states.iter().for_each(|(_, init)| r.expr(*init));
            r.block(&decl.body);
        });
    }

    fn params(&mut self, params: &'a [ParamDecl]) {
        self.types(params.iter().filter_map(|p| p.ty.as_ref()));
        for param in params {
            param.default.into_iter().for_each(|d| self.expr(d));
            self.bind(&param.name.name);
        }
    }

    /// Capitalised names in shapes are dimension variables unless they are bound.
    fn types(&mut self, types: impl Iterator<Item = &'a TypeExpr>) {
        for ty in types {
            let base = &*ty.base.name;
            let is_scalar = matches!(base, "int" | "float" | "bool" | "str" | "list" | "tuple" | "function");
            if !is_scalar
                && DType::parse(base).is_none()
                && !self.scopes.iter().any(|s| s.contains(base))
                && !base.contains('.')
            {
                self.unknown_types.push(ty);
            }
            for dim in ty.dims.iter().flatten() {
                match dim {
                    DimExpr::Default { name, .. } => self.bind(&name.name),
                    DimExpr::Expr(id) => {
                        if let ExprKind::Name(name) = &self.ast.expr(*id).kind
                            && name.starts_with(char::is_uppercase)
                        {
                            self.bind(name);
                        }
                    }
                    DimExpr::Rest(_) => {}
                }
            }
        }
    }

    fn block(&mut self, block: &'a Block) {
        self.statements(&block.stmts);
        block.tail.into_iter().for_each(|t| self.expr(t));
    }

    fn statements(&mut self, stmts: &[StmtId]) {
        let ast = self.ast;
        for &id in stmts {
            if matches!(
                ast.stmt(id).kind,
                StmtKind::Fn(_)
                    | StmtKind::Model(_)
                    | StmtKind::Step(_)
                    | StmtKind::Optimizer(_)
                    | StmtKind::Hook(_)
            ) {
                bound_names(&ast.stmt(id).kind).iter().for_each(|n| self.bind(&n.name));
            }
        }
        for &id in stmts {
            self.stmt(&ast.stmt(id).kind);
        }
    }

    fn stmt(&mut self, stmt: &'a StmtKind) {
        match stmt {
            StmtKind::For { names, iter, body } => {
                self.expr(*iter);
                self.scoped(|r| {
                    names.iter().for_each(|n| r.bind(&n.name));
                    r.block(body);
                });
            }
            StmtKind::With { settings, body } => {
                self.args(settings);
                self.scoped(|r| r.block(body));
            }
            StmtKind::Fn(_)
            | StmtKind::Step(_)
            | StmtKind::Model(_)
            | StmtKind::Optimizer(_)
            | StmtKind::Hook(_) => {
                self.declaration(stmt);
            }
            StmtKind::Let { ty, value, .. } => {
                self.expr(*value);
                self.types(ty.iter());
            }
            StmtKind::Const { value, .. } | StmtKind::Expr(value) => self.expr(*value),
            StmtKind::Assign { targets, value, .. } => {
                self.expr(*value);
                targets.iter().for_each(|&t| self.expr(t));
            }
            StmtKind::StateWrite { target, value } => {
                self.expr(*target);
                self.expr(*value);
            }
            StmtKind::Return(values) | StmtKind::Release(values) => {
                values.iter().for_each(|&v| self.expr(v));
            }
            StmtKind::Param(decl) | StmtKind::State(decl) => {
                decl.init.into_iter().for_each(|i| self.expr(i));
            }
            StmtKind::Minimize { loss, over, with } => {
                self.expr(*loss);
                over.iter().for_each(|&o| self.expr(o));
                self.expr(*with);
            }
            StmtKind::Update { target, with, grads } => {
                [*target, *with, *grads].into_iter().for_each(|e| self.expr(e));
            }
            StmtKind::Shard(decl) => {
                [decl.target, decl.unit].into_iter().chain(decl.over).for_each(|e| self.expr(e));
                self.args(&decl.options);
            }
            StmtKind::Sync { target, over, with, options } => {
                [*target, *over].into_iter().chain(*with).for_each(|e| self.expr(e));
                self.args(options);
            }
            StmtKind::Ensure { limit, .. } | StmtKind::Budget(limit) => self.expr(*limit),
            StmtKind::Error(_) | StmtKind::Use { .. } | StmtKind::Allow(_) => {}
        }
        bound_names(stmt).iter().for_each(|n| self.bind(&n.name));
    }

    fn args(&mut self, args: &[Arg]) {
        args.iter().filter(|a| option_word(self.ast, a).is_none()).for_each(|a| self.expr(a.value));
    }

    fn expr(&mut self, id: ExprId) {
        let ast = self.ast;
        let expr = ast.expr(id);
        match &expr.kind {
            ExprKind::Name(name) => {
                if !self.is_known(name) {
                    let known = self.scopes.iter().flatten().map(ToString::to_string);
                    let known = known
                        .chain(language::names().map(String::from))
                        .chain(tensor::functions().iter().map(|f| f.name.to_string()));
                    let known = known.collect();
                    self.unknown.push((Name::clone(name), expr.span, known));
                }
            }
            ExprKind::Str(parts) => {
                for part in parts {
                    if let StrPart::Hole { expr, .. } = part {
                        self.expr(*expr);
                    }
                }
            }
            ExprKind::List(items) | ExprKind::Tuple(items) | ExprKind::Barrier(items) => {
                items.iter().for_each(|&i| self.expr(i));
            }
            ExprKind::ListFor { body, names, iter, condition } => {
                self.expr(*iter);
                self.scoped(|r| {
                    names.iter().for_each(|n| r.bind(&n.name));
                    condition.iter().for_each(|&c| r.expr(c));
                    r.expr(*body);
                });
            }
            ExprKind::Unary(_, operand) => self.expr(*operand),
            ExprKind::Field(base, _) => self.expr(*base),
            ExprKind::Binary { left, right, .. } => {
                self.expr(*left);
                self.expr(*right);
            }
            ExprKind::Range { low, high } => [*low, *high].into_iter().flatten().for_each(|e| self.expr(e)),
            ExprKind::Call { callee, args } => {
                self.expr(*callee);
                self.args(args);
            }
            ExprKind::Index(base, items) => {
                self.expr(*base);
                for item in items {
                    match item {
                        IndexItem::At(at) => self.expr(*at),
                        IndexItem::Slice { low, high, step, .. } => {
                            [*low, *high, *step].into_iter().flatten().for_each(|e| self.expr(e));
                        }
                        IndexItem::Ellipsis(_) | IndexItem::NewAxis(_) => {}
                    }
                }
            }
            ExprKind::Block(block) => self.scoped(|r| r.block(block)),
            ExprKind::If { condition, then, otherwise } => {
                self.expr(*condition);
                self.scoped(|r| r.block(then));
                otherwise.iter().for_each(|&o| self.expr(o));
            }
            ExprKind::Checkpoint { options, body } => self.scoped(|r| {
                r.block(body);
                // Words of `bind` and `policy` are no names; `keep` sees the body's.
                let kept = options.iter().filter(|a| a.name.as_ref().is_some_and(|n| &*n.name == "keep"));
                kept.for_each(|a| r.expr(a.value));
            }),
            ExprKind::In { value, .. } => self.expr(*value),
            ExprKind::Error
            | ExprKind::Int(_)
            | ExprKind::Float(_)
            | ExprKind::Size(_)
            | ExprKind::Bool(_) => {}
        }
    }
}
