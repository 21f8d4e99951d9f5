//! The steps of a program as commands name them.

use std::sync::Arc;

use crate::{
    codes,
    diagnostic::Diagnostic,
    engine::Checked,
    plan::Plan,
    report::visible,
    source::Span,
    syntax::ast::{DimExpr, ExprKind, StmtKind},
};

/// That a program has no step of this name, and which it has.
pub fn no_step(wanted: &str, checked: &Checked) -> Diagnostic {
    let shown = visible::line(wanted, 80);
    let names: Vec<String> = checked.graphs.iter().map(|(name, _)| format!("`{name}`")).collect();
    let diagnostic =
        Diagnostic::error(codes::UNKNOWN_NAME, Span::default(), format!("there is no step `{shown}`"));
    if names.is_empty() {
        diagnostic.note("the program has no steps")
    } else {
        diagnostic.help(format!("the steps are {}", names.join(", ")))
    }
}

/// The name of a step. One that is planned for several sizes says which.
pub fn title(plan: &Plan, plans: &[Arc<Plan>], checked: &Checked) -> String {
    let dims = match plans.iter().filter(|p| p.name == plan.name).count() {
        0 | 1 => Vec::new(),
        _ => dims(plan, checked),
    };
    if dims.is_empty() {
        return plan.name.to_string();
    }
    let dims: Vec<String> = dims.iter().map(|(name, size)| format!("{name} = {size}")).collect();
    format!("{} ({})", plan.name, dims.join(", "))
}

/// The sizes that the dimension variables of a step have in a plan: names in the shapes of its
/// parameters that no constant has.
pub fn dims(plan: &Plan, checked: &Checked) -> Vec<(String, u64)> {
    let ast = &checked.ast;
    let is_constant = |name: &str| {
        ast.body.iter().any(|&id| match &ast.stmt(id).kind {
            StmtKind::Const { name: constant, .. } => &*constant.name == name,
            StmtKind::Let { names, .. } => names.iter().any(|n| &*n.name == name),
            _ => false,
        })
    };
    let step = ast.stmts.iter().find_map(|stmt| match &stmt.kind {
        StmtKind::Step(decl) if decl.name.name == plan.name => Some(decl),
        _ => None,
    });
    let mut dims: Vec<(String, u64)> = Vec::new();
    for param in step.iter().flat_map(|decl| &decl.params) {
        let Some(shape) = param.ty.as_ref().and_then(|ty| ty.dims.as_ref()) else { continue };
        let Some(input) = plan.graph.inputs.iter().find(|i| i.name == param.name.name) else { continue };
        if shape.len() != input.ty.rank() {
            continue;
        }
        for (dim, &size) in shape.iter().zip(input.ty.shape()) {
            let name = match dim {
                DimExpr::Default { name, .. } => &name.name,
                DimExpr::Expr(id) => match &ast.expr(*id).kind {
                    ExprKind::Name(name) if !is_constant(name) => name,
                    _ => continue,
                },
                DimExpr::Rest(_) => continue,
            };
            if !dims.iter().any(|(known, _)| **known == **name) {
                dims.push((name.to_string(), size as u64));
            }
        }
    }
    dims
}
