//! Kept by the script: lists that collect a tensor in every pass of a loop.

use super::super::tree::Tree;
use crate::{
    codes,
    diagnose::finding::{Accept, Finding},
    diagnostic::Diagnostic,
    plan::Plan,
    report::Bytes,
    syntax::{
        ast::{BinaryOp, Block, ExprId, ExprKind, StmtKind},
        children::Child,
    },
};
use std::sync::Arc;

/// A list of smaller tensors than this is nobody's problem.
const SMALLEST: u64 = 1024;

/// Statements such as `history += [out]` in loops of the script, where `out` is what a step gave.
pub fn of_script(tree: &Tree<'_>, plans: &[Arc<Plan>]) -> Vec<Finding> {
    let mut all = Vec::new();
    for stmt in tree.statements(|s| matches!(s, StmtKind::For { .. })) {
        let StmtKind::For { body, .. } = &tree.ast.stmt(stmt).kind else { continue };
        if tree.function_of(Child::Stmt(stmt)).is_some() || is_in_model(tree, stmt) {
            continue;
        }
        let results = results_of_steps(tree, body, plans);
        for &inner in &body.stmts {
            let StmtKind::Assign { targets, op: Some(BinaryOp::Add), value } = &tree.ast.stmt(inner).kind
            else {
                continue;
            };
            let (ExprKind::List(items), [target]) = (&tree.ast.expr(*value).kind, targets.as_slice()) else {
                continue;
            };
            for &item in items {
                let Some((step, bytes, what)) = kept(tree, item, &results, plans) else { continue };
                let list = tree.text(tree.ast.expr(*target).span);
                let span = tree.ast.expr(item).span;
                let text = tree.text(span);
                let message = format!(
                    "`{list}` keeps a result of `{step}` in every pass of the loop: {} more each time",
                    Bytes(bytes)
                );
                let diagnostic = Diagnostic::warning(codes::KEPT_BY_SCRIPT, span, message)
                    .label(format!("{what}, kept as long as `{list}` lives"))
                    .secondary(
                        tree.ast.stmt(stmt).span.to(tree.ast.stmt(stmt).span),
                        "in every pass of this loop",
                    )
                    .help(format!("keep one number instead, `float(mean({text}))`, or save it to a file"));
                all.push(Finding::new(first_line_only(tree, diagnostic, stmt), bytes, Accept::Always));
            }
        }
    }
    all
}

/// The label of a loop is at its first line.
fn first_line_only(
    tree: &Tree<'_>,
    mut diagnostic: Diagnostic,
    stmt: crate::syntax::ast::StmtId,
) -> Diagnostic {
    let span = tree.ast.stmt(stmt).span;
    let line = tree.text(span).lines().next().unwrap_or_default().trim_end_matches(['{', ' ']).len() as u32;
    if let Some(label) = diagnostic.secondary.last_mut() {
        label.span.end = span.start + line;
    }
    diagnostic
}

fn is_in_model(tree: &Tree<'_>, stmt: crate::syntax::ast::StmtId) -> bool {
    tree.around(Child::Stmt(stmt)).any(|c| match c {
        Child::Stmt(s) => {
            matches!(tree.ast.stmt(s).kind, StmtKind::Model(_) | StmtKind::Optimizer(_) | StmtKind::Hook(_))
        }
        Child::Expr(_) => false,
    })
}

/// A name, the step that gave it, and which of its results it is.
type Given<'a> = (&'a str, &'a str, usize);

/// Names that are bound in a block to results of steps.
fn results_of_steps<'a>(tree: &Tree<'a>, body: &Block, plans: &[Arc<Plan>]) -> Vec<Given<'a>> {
    let mut all = Vec::new();
    for &stmt in &body.stmts {
        let StmtKind::Let { names, value, .. } = &tree.ast.stmt(stmt).kind else { continue };
        if let Some(step) = called_step(tree, *value, plans) {
            all.extend(names.iter().enumerate().map(|(k, n)| (&*n.name, step, k)));
        }
    }
    all
}

fn called_step<'a>(tree: &Tree<'a>, expr: ExprId, plans: &[Arc<Plan>]) -> Option<&'a str> {
    let ExprKind::Call { callee, .. } = &tree.ast.expr(expr).kind else { return None };
    let ExprKind::Name(name) = &tree.ast.expr(*callee).kind else { return None };
    plans.iter().any(|p| *p.name == **name).then_some(&**name)
}

/// Which step's result an item of a list is, its size, and its type in words.
fn kept<'a>(
    tree: &Tree<'a>,
    item: ExprId,
    results: &[Given<'a>],
    plans: &[Arc<Plan>],
) -> Option<(&'a str, u64, String)> {
    let (step, k) = match &tree.ast.expr(item).kind {
        ExprKind::Name(name) => results.iter().find(|r| *r.0 == **name).map(|r| (r.1, r.2))?,
        _ => (called_step(tree, item, plans)?, 0),
    };
    let plan = plans.iter().find(|p| *p.name == *step)?;
    let ty = plan.graph.outputs.get(k).map(|o| plan.graph.ty(o.value))?;
    (ty.bytes() >= SMALLEST).then(|| (step, ty.bytes(), format!("{ty}, {}", Bytes(ty.bytes()))))
}
