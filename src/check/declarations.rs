//! What declarations say by themselves, wherever they stand and whether anything uses them: each
//! name is declared once.

use rustc_hash::FxHashMap;

use super::{Evaluator, types::variable, walk};
use crate::{
    codes,
    diagnostic::Diagnostic,
    source::Span,
    syntax::ast::{
        Ast, DimExpr, ExprKind, Ident, ModelDecl, Name, OptimizerDecl, ParamDecl, StmtId, StmtKind,
    },
};

/// The names that are there in the body of an optimizer.
const OF_AN_UPDATE: [&str; 3] = ["p", "g", "t"];

/// The declarations of one body so far, with what each name is.
#[derive(Default)]
struct Declared {
    names: FxHashMap<Name, (Span, &'static str)>,
}

struct Judge<'a> {
    ast: &'a Ast,
    found: Vec<Diagnostic>,
}

impl Evaluator {
    /// Reports names that are declared twice, and what else is wrong with declarations as such.
    /// Whether all is well.
    pub(super) fn judge_declarations(&mut self, ast: &Ast) -> bool {
        let mut judge = Judge { ast, found: Vec::new() };
        judge.top_level();
        for stmt in &ast.stmts {
            judge.stmt(&stmt.kind);
        }
        for expr in &ast.exprs {
            if let ExprKind::ListFor { names, .. } = &expr.kind {
                judge.names(names);
            }
        }
        let sound = judge.found.is_empty();
        for diagnostic in judge.found {
            self.report(diagnostic);
        }
        sound
    }
}

impl Judge<'_> {
    /// `what` is what the name is here, with its article. `_` may stand for any number of values that
    /// nobody wants.
    fn declare(&mut self, declared: &mut Declared, name: &Ident, what: &'static str) {
        if &*name.name == "_" {
            return;
        }
        let Some((first, kind)) = declared.names.insert(name.name.clone(), (name.span, what)) else { return };
        let message = if kind == what {
            format!("`{}` is declared twice", name.name)
        } else {
            format!("`{}` is declared twice: as {kind} and as {what}", name.name)
        };
        self.found.push(
            Diagnostic::error(codes::DUPLICATE_NAME, name.span, message)
                .label("declared again here")
                .secondary(first, "first declared here"),
        );
    }

    fn names(&mut self, names: &[Ident]) {
        let mut declared = Declared::default();
        for name in names {
            self.declare(&mut declared, name, "a name of this list");
        }
    }

    /// Constants and declarations have one meaning in the whole file. Variables may be bound anew, but
    /// not with the name of one of those.
    fn top_level(&mut self) {
        let mut declared = Declared::default();
        let mut variables: Vec<&Ident> = Vec::new();
        for &id in &self.ast.body {
            match &self.ast.stmt(id).kind {
                StmtKind::Const { name, .. } => self.declare(&mut declared, name, "a constant"),
                StmtKind::Fn(decl) => self.declare(&mut declared, &decl.name, "a function"),
                StmtKind::Step(decl) => self.declare(&mut declared, &decl.name, "a step"),
                StmtKind::Model(decl) => self.declare(&mut declared, &decl.name, "a model"),
                StmtKind::Optimizer(decl) => self.declare(&mut declared, &decl.name, "an optimizer"),
                StmtKind::Hook(decl) => self.declare(&mut declared, &decl.name, "a hook"),
                StmtKind::Let { names, .. } => variables.extend(names),
                _ => {}
            }
        }
        for name in variables {
            let Some((first, what)) = declared.names.get(&name.name) else { continue };
            let message = format!("`{}` is declared twice: as {what} and as a variable", name.name);
            self.found.push(
                Diagnostic::error(codes::DUPLICATE_NAME, name.span, message)
                    .label("bound here")
                    .secondary(*first, format!("{what} of that name is declared here")),
            );
        }
    }

    fn stmt(&mut self, stmt: &StmtKind) {
        match stmt {
            StmtKind::Let { names, .. } | StmtKind::For { names, .. } => self.names(names),
            StmtKind::Fn(decl) => {
                self.params(&decl.params, "a parameter");
                self.functions(&decl.body.stmts);
            }
            StmtKind::Step(decl) => {
                self.params(&decl.params, "a parameter");
                self.functions(&decl.body.stmts);
            }
            StmtKind::Model(decl) => self.model(decl),
            StmtKind::Optimizer(decl) => self.optimizer(decl),
            StmtKind::Hook(decl) => {
                let mut declared = self.params(&decl.params, "a parameter");
                for (name, _) in &decl.states {
                    self.declare(&mut declared, name, "a `state`");
                }
            }
            _ => {}
        }
    }

    /// Functions inside a body may use each other in any order, so a second one hides the first
    /// everywhere.
    fn functions(&mut self, stmts: &[StmtId]) {
        let mut declared = Declared::default();
        for &id in stmts {
            if let StmtKind::Fn(decl) = &self.ast.stmt(id).kind {
                self.declare(&mut declared, &decl.name, "a function");
            }
        }
    }

    fn params(&mut self, params: &[ParamDecl], what: &'static str) -> Declared {
        let mut declared = Declared::default();
        for param in params {
            self.declare(&mut declared, &param.name, what);
        }
        self.dimensions(params, &declared);
        declared
    }

    /// A dimension of a parameter is known from its argument, so no parameter says it once more, and
    /// one default is enough.
    fn dimensions(&mut self, params: &[ParamDecl], declared: &Declared) {
        let mut defaults = Declared::default();
        let mut reported: Vec<Name> = Vec::new();
        let dims = params.iter().flat_map(|p| p.ty.iter()).flat_map(|t| t.dims.iter().flatten());
        for dim in dims {
            if let DimExpr::Default { name, .. } = dim {
                self.declare(&mut defaults, name, "a size with a default");
            }
            let Some((name, span)) = variable(self.ast, dim) else { continue };
            let Some((param, _)) = declared.names.get(name) else { continue };
            if reported.contains(name) {
                continue;
            }
            reported.push(name.clone());
            self.found.push(
                Diagnostic::error(
                    codes::DUPLICATE_NAME,
                    span,
                    format!("`{name}` is a dimension and a parameter"),
                )
                .label("a dimension, known from the argument's shape")
                .secondary(*param, "a parameter")
                .help("leave the parameter out: the body sees the dimension"),
            );
        }
    }

    /// Everything in a model's body is a field, its parameters too. What stands in branches is judged
    /// when an instance is made.
    fn model(&mut self, decl: &ModelDecl) {
        let mut declared = self.params(&decl.params, "a parameter");
        for &id in &decl.body {
            match &self.ast.stmt(id).kind {
                StmtKind::Param(field) => self.declare(&mut declared, &field.name, "a `param`"),
                StmtKind::State(field) => self.declare(&mut declared, &field.name, "a `state`"),
                StmtKind::Const { name, .. } => self.declare(&mut declared, name, "a constant"),
                StmtKind::Let { names, .. } => {
                    for name in names {
                        self.declare(&mut declared, name, "a field");
                    }
                }
                StmtKind::Fn(function) => self.declare(&mut declared, &function.name, "a function"),
                _ => {}
            }
        }
    }

    fn optimizer(&mut self, decl: &OptimizerDecl) {
        let mut declared = self.params(&decl.params, "a parameter");
        for (name, _) in &decl.states {
            self.declare(&mut declared, name, "a `state`");
        }
        let own = decl.params.iter().map(|p| &p.name).chain(decl.states.iter().map(|(name, _)| name));
        for name in own.filter(|n| OF_AN_UPDATE.contains(&&*n.name)) {
            self.found.push(
                Diagnostic::error(
                    codes::DUPLICATE_NAME,
                    name.span,
                    format!("`{}` has a meaning in an optimizer", name.name),
                )
                .note("`p` is the parameter, `g` its gradient, `t` the number of the update")
                .help("choose another name"),
            );
        }
        let ast = self.ast;
        walk::walk_block(ast, &decl.body, &mut |item| {
            if let walk::Item::Stmt(id) = item
                && let StmtKind::Return(_) = ast.stmt(id).kind
            {
                self.found.push(
                    Diagnostic::error(codes::MISPLACED, ast.stmt(id).span, "`return` in an optimizer")
                        .help("an optimizer has no result: its body writes, `p := p - lr * g`"),
                );
            }
        });
    }
}
