//! `let h = f(h)` in a loop: a new `h` in every pass, where the one outside was meant to change.

use super::{Evaluator, value::Cx, walk};
use crate::{
    codes,
    diagnostic::Diagnostic,
    source::Span,
    syntax::ast::{Ast, Block, ExprKind, Ident, StmtKind},
};

impl Evaluator {
    /// Warns of each `let` in the body of a loop that hides the name which it is made of.
    pub(super) fn warn_of_carried(&mut self, cx: &Cx) {
        for (name, outer, all) in carried(&cx.ast) {
            let help = match all.as_slice() {
                [_] => format!(
                    "to carry it from pass to pass: `{} = …`; what is of one pass needs another name",
                    name.name
                ),
                names => {
                    let others: Vec<&str> = names.iter().copied().filter(|n| *n != &*name.name).collect();
                    format!(
                        "to carry it from pass to pass, bind {} before the loop and assign: `{} = …`",
                        super::index::listed(&others),
                        names.join(", ")
                    )
                }
            };
            let message = format!(
                "this `let` makes a new `{}` in every pass, from the one outside of the loop",
                name.name
            );
            self.report(
                Diagnostic::warning(codes::CARRIED, name.span, message)
                    .label("ends with the pass")
                    .secondary(outer, "every pass starts from this one")
                    .help(help),
            );
        }
    }
}

/// The name, where the other one is bound, and all names of the `let`.
fn carried(ast: &Ast) -> Vec<(Ident, Span, Vec<&str>)> {
    let mut found = Vec::new();
    for looped in &ast.stmts {
        let StmtKind::For { names: own, body, .. } = &looped.kind else { continue };
        let mut inside: Vec<&str> = own.iter().map(|n| &*n.name).collect();
        for &id in &body.stmts {
            let StmtKind::Let { names, value, .. } = &ast.stmt(id).kind else { continue };
            for name in names.iter().filter(|n| !inside.contains(&&*n.name)) {
                let read = Block { stmts: Vec::new(), tail: Some(*value), span: ast.expr(*value).span };
                let mut is_read = false;
                walk::walk_block(ast, &read, &mut |item| {
                    if let walk::Item::Expr(id) = item {
                        is_read |= matches!(&ast.expr(id).kind, ExprKind::Name(n) if *n == name.name);
                    }
                });
                if is_read && let Some(outer) = bound_before(ast, name, looped.span) {
                    found.push((name.clone(), outer, names.iter().map(|n| &*n.name).collect()));
                }
            }
            inside.extend(names.iter().map(|n| &*n.name));
        }
    }
    found
}

/// Where the function around a loop, or the script, binds a name before it.
fn bound_before(ast: &Ast, name: &Ident, looped: Span) -> Option<Span> {
    let around = |place: Span| walk::declaration_around(ast, place);
    let home = around(looped);
    let is_at_home = |place: Span| around(place).map(|d| d.span) == home.map(|d| d.span);
    let before = ast.stmts.iter().filter(|s| s.span.file == looped.file && s.span.end <= looped.start);
    let bound = before.flat_map(|s| match &s.kind {
        StmtKind::Let { names, .. } => names.as_slice(),
        _ => &[],
    });
    let bound = bound.filter(|n| n.name == name.name).map(|n| n.span).filter(|&place| is_at_home(place));
    let params = match home.map(|d| &d.kind) {
        Some(StmtKind::Fn(decl) | StmtKind::Step(decl)) => decl.params.as_slice(),
        _ => &[],
    };
    let param = params.iter().find(|p| p.name.name == name.name);
    bound.max_by_key(|span| span.start).or(param.map(|p| p.name.span))
}
