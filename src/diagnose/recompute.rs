//! Changes that compute a value again instead of keeping it: regions around the expression that
//! makes it, or around what it is part of.

use super::{finding::Candidate, tree::Tree};
use crate::{
    diagnostic::Edit,
    source::Span,
    syntax::{
        ast::{ExprId, ExprKind, StmtKind},
        children::Child,
    },
};

/// Keeps products and convolutions, and computes only what is cheap again.
const CHEAP: &str = "checkpoint(policy: dots) < ";
const PLAIN: &str = "checkpoint < ";

/// Regions that compute what is made at `span` again, but no product or convolution: around the
/// expression, what it is an argument of, its statement, its function.
pub fn cheap(tree: &Tree<'_>, span: Span) -> Vec<Candidate> {
    let Some(expr) = tree.expr_at(span) else { return Vec::new() };
    let around = tree.expressions_around(expr);
    let inner = around.iter().copied().skip(1).find(|&e| is_call(tree, e));
    let outermost = around.last().copied().filter(|&e| is_graph_value(tree, e));
    let mut all = Vec::new();
    for expr in [inner, outermost].into_iter().flatten() {
        all.push(Candidate::new(title(CHEAP), tree.wrap(expr, CHEAP, " >")));
    }
    if let Some(decl) = tree.function_of(Child::Expr(expr))
        && !is_step(tree, expr)
        && let Some(edits) = tree.wrap_body(decl, CHEAP, " >")
    {
        all.push(Candidate::new(
            format!(
                "compute the body of `{}` again in the backward pass, but keep matrix products",
                decl.name.name
            ),
            edits,
        ));
    }
    all
}

/// A plain region around the expression at `span`.
pub fn plain(tree: &Tree<'_>, span: Span) -> Option<Candidate> {
    let expr = tree.expr_at(span)?;
    Some(Candidate::new(title(PLAIN), tree.wrap(expr, PLAIN, " >")))
}

/// A plain region around a call, with its first argument computed before it and kept:
/// `{ let input = relu(l(x)); checkpoint < dropout(input, 0.1) > }`.
pub fn behind_argument(tree: &Tree<'_>, span: Span) -> Option<Candidate> {
    let expr = tree.expr_at(span)?;
    let ExprKind::Call { args, .. } = &tree.ast.expr(expr).kind else { return None };
    let first = args.first()?.value;
    let argument = tree.ast.expr(first).span;
    if !is_call(tree, first) && !matches!(tree.ast.expr(first).kind, ExprKind::Binary { .. }) {
        return None;
    }
    let (start, end) = (span.start, span.end);
    let head = tree.text(Span { end: argument.start, ..span });
    let tail = tree.text(Span { start: argument.end, ..span });
    let region = format!("{PLAIN}{head}input{tail} >");
    let text = format!("{{ let input = {}; {region} }}", tree.text(argument));
    Some(Candidate::new(
        "draw them again in the backward pass",
        vec![Edit { span: Span { start, end, ..span }, text }],
    ))
}

/// Plain regions that cut a whole step into parts: around the body of each loop that carries a
/// value through calls (`h = b(h)`), and around each call in it.
pub fn of_loops(tree: &Tree<'_>) -> Vec<Candidate> {
    let loops = tree.statements(|s| matches!(s, StmtKind::For { .. }));
    let mut all = Vec::new();
    for stmt in loops {
        let StmtKind::For { body, .. } = &tree.ast.stmt(stmt).kind else { continue };
        if tree.function_of(Child::Stmt(stmt)).is_none() {
            continue;
        }
        for &inner in &body.stmts {
            let StmtKind::Assign { targets, op: None, value } = &tree.ast.stmt(inner).kind else { continue };
            let is_plain = targets.len() == 1 && is_call(tree, *value) && !is_region(tree, *value);
            if is_plain {
                all.push(Candidate::new(title(PLAIN), tree.wrap(*value, PLAIN, " >")));
            }
        }
    }
    all
}

fn title(open: &str) -> &'static str {
    match open {
        CHEAP => "compute it again in the backward pass, but keep matrix products",
        _ => "compute it again in the backward pass",
    }
}

fn is_call(tree: &Tree<'_>, expr: ExprId) -> bool {
    matches!(tree.ast.expr(expr).kind, ExprKind::Call { .. })
}

fn is_region(tree: &Tree<'_>, expr: ExprId) -> bool {
    matches!(tree.ast.expr(expr).kind, ExprKind::Checkpoint { .. })
}

/// Whether an expression may be a region: what a statement of graph code computes.
fn is_graph_value(tree: &Tree<'_>, expr: ExprId) -> bool {
    !matches!(
        tree.ast.expr(expr).kind,
        ExprKind::List(_)
            | ExprKind::Tuple(_)
            | ExprKind::Block(_)
            | ExprKind::If { .. }
            | ExprKind::Checkpoint { .. }
    )
}

fn is_step(tree: &Tree<'_>, expr: ExprId) -> bool {
    tree.around(Child::Expr(expr)).any(|c| match c {
        Child::Stmt(s) => matches!(tree.ast.stmt(s).kind, StmtKind::Step(_)),
        Child::Expr(_) => false,
    })
}
