//! The order: regions that are not tied to the gradient, barriers that leave it out, barriers that
//! hold too much together.

use super::with_peak;
use crate::{
    codes,
    diagnose::{
        blame,
        facts::Facts,
        finding::{Accept, Candidate, Finding},
        tree::{Tree, insert},
    },
    diagnostic::{Diagnostic, Edit},
    ir::Role,
    ops::{BarrierKind, Op},
    report::Bytes,
    syntax::{
        ast::{Arg, ExprId, ExprKind, StmtKind},
        children::Child,
    },
};

/// What a fix has to move to be worth a message.
const SHARE: f64 = 0.01;
/// The part of the peak that values of an update must have for a barrier to be about them.
const PER_PARAMETER: f64 = 0.1;

pub fn find(facts: &Facts<'_>) -> Vec<Finding> {
    let mut all = Vec::new();
    all.extend(bindings(facts));
    let by_hand = by_hand(facts);
    let taken: Vec<_> = by_hand.iter().map(|f| f.diagnostic.primary.span).collect();
    all.extend(by_hand);
    all.extend(barriers(facts, &taken));
    all
}

/// Regions with `bind: output`, `grad` or `none`.
fn bindings(facts: &Facts<'_>) -> Vec<Finding> {
    let tree = facts.tree;
    let mut all = Vec::new();
    for expr in tree.expressions(|e| matches!(e, ExprKind::Checkpoint { .. })) {
        let span = tree.ast.expr(expr).span;
        let is_here = facts.written.regions.iter().any(|r| facts.written.origins.get(r.origin).span == span);
        let ExprKind::Checkpoint { options, body } = &tree.ast.expr(expr).kind else { continue };
        let bind = options.iter().find(|a| a.name.as_ref().is_some_and(|n| &*n.name == "bind"));
        let Some(bind) = bind.filter(|_| is_here) else { continue };
        let at = tree.ast.expr(bind.value).span;
        let (code, message, label) = match tree.text(at) {
            "output" => (
                codes::UNTIED_RECOMPUTE,
                "`bind: output` lets this region be computed again before the backward pass has come to it: an order that does so right after the forward pass is legal, and keeps every activation, as if there were no region",
                "waits for the result of the region, which is there too early",
            ),
            "none" => (
                codes::UNTIED_RECOMPUTE,
                "`bind: none` holds the second computation of this region back by nothing: it merges with the first, and every activation is kept, as if there were no region",
                "waits for nothing",
            ),
            "grad" => (
                codes::DEFERRED_GRADIENTS,
                "`bind: grad` lets the weight gradients of this region wait to the end of the step: an order that puts them off is legal, and keeps every activation that they need until then",
                "waits for the gradient that comes in, not for the weight gradients behind it",
            ),
            _ => continue,
        };
        let others: Vec<&str> =
            options.iter().filter(|a| !std::ptr::eq(*a, bind)).map(|a| text_of(tree, a)).collect();
        let options_text = if others.is_empty() { String::new() } else { format!("({})", others.join(", ")) };
        let head = span.start + "checkpoint".len() as u32;
        let edit = Edit {
            span: crate::source::Span { start: head, end: body.span.start, ..span },
            text: format!("{options_text} < "),
        };
        let finding = Finding::new(
            Diagnostic::warning(code, at, message).label(label),
            facts.peak_bytes() / 2,
            Accept::AnyFalls(SHARE),
        )
        .candidate(Candidate::new("leave `bind` out: by default a region waits for the gradient that comes in and for the weight gradients of the regions after it", vec![edit]));
        all.push(with_peak(facts, finding));
    }
    all
}

/// `name: value` as written.
fn text_of<'a>(tree: &Tree<'a>, arg: &Arg) -> &'a str {
    let value = tree.ast.expr(arg.value).span;
    let start = arg.name.as_ref().map_or(value.start, |n| n.span.start);
    tree.text(crate::source::Span { start, ..value })
}

/// `pullback(f, x, g)` where x went through a barrier that g did not.
fn by_hand(facts: &Facts<'_>) -> Vec<Finding> {
    let tree = facts.tree;
    let mut all = Vec::new();
    for call in tree.expressions(|e| matches!(e, ExprKind::Call { .. })) {
        let ExprKind::Call { callee, args } = &tree.ast.expr(call).kind else { continue };
        let [_, x, g] = args.as_slice() else { continue };
        if tree.text(tree.ast.expr(*callee).span) != "pullback" || !is_in_step(facts, call) {
            continue;
        }
        let (ExprKind::Name(x_name), ExprKind::Name(g_name)) =
            (&tree.ast.expr(x.value).kind, &tree.ast.expr(g.value).kind)
        else {
            continue;
        };
        let Some(barrier) = tree.binding_of(call, x_name) else { continue };
        let StmtKind::Let { names, value, .. } = &tree.ast.stmt(barrier).kind else { continue };
        let (ExprKind::Barrier(operands), [bound]) = (&tree.ast.expr(*value).kind, names.as_slice()) else {
            continue;
        };
        let whole = tree.ast.expr(*value).span;
        if operands.iter().any(|o| tree.text(tree.ast.expr(*o).span) == &**g_name) {
            continue;
        }
        let later = format!("{g_name}_here");
        let edits = vec![
            insert(bound.span, bound.span.end, format!(", {later}")),
            insert(whole, whole.end - 1, format!(", {g_name}")),
            Edit { span: tree.ast.expr(g.value).span, text: later.clone() },
        ];
        let message = format!(
            "this barrier does not wait for the incoming gradient `{g_name}`: the recompute that uses its result may run long before `{g_name}` is there, and is kept until then"
        );
        let finding = Finding::new(
            Diagnostic::warning(codes::BARRIER_WITHOUT_GRADIENT, whole, message)
                .label("holds back the input only")
                .secondary(tree.ast.expr(g.value).span, format!("`{g_name}` is first needed here")),
            facts.peak_bytes() / 2,
            Accept::AnyFalls(SHARE),
        );
        let both = format!("let `{g_name}` go through the barrier, too, and use what comes out");
        let mut finding = finding.candidate(Candidate::new(&both, edits.clone()));
        // Weight gradients that may wait keep as much: the gradient goes on together with them.
        if let Some(more) = passed_together(tree, call) {
            let all = edits.into_iter().chain(more).collect();
            let title = format!("{both}; hold what `pullback` gives together");
            finding = finding.candidate(Candidate::new(title, all));
        }
        all.push(with_peak(facts, finding));
    }
    all
}

/// `let grads, back = pullback(…)` in two statements, with a barrier between them: what comes back
/// waits for the weight gradients.
fn passed_together(tree: &Tree<'_>, call: ExprId) -> Option<Vec<Edit>> {
    let Child::Stmt(stmt) = tree.statement_of(call)? else { return None };
    let StmtKind::Let { names, value, .. } = &tree.ast.stmt(stmt).kind else { return None };
    let [grads, back] = names.as_slice() else { return None };
    if *value != call {
        return None;
    }
    let span = tree.ast.stmt(stmt).span;
    let (grads_made, back_made) = (format!("{}_made", grads.name), format!("{}_made", back.name));
    let statement = format!("let {}, {} = barrier({grads_made}, {back_made})", grads.name, back.name);
    Some(vec![
        Edit { span: grads.span, text: grads_made },
        Edit { span: back.span, text: back_made },
        insert(span, span.end, format!("\n{}{statement}", tree.indent(span))),
    ])
}

/// Whether an expression is in the body of the step that is looked at.
pub(super) fn is_in_step(facts: &Facts<'_>, expr: ExprId) -> bool {
    facts.tree.around(Child::Expr(expr)).any(|c| match c {
        Child::Stmt(id) => match &facts.tree.ast.stmt(id).kind {
            StmtKind::Step(decl) => *decl.name.name == *facts.plan.name,
            StmtKind::Fn(_) | StmtKind::Model(_) => true,
            _ => false,
        },
        Child::Expr(_) => false,
    })
}

/// Barriers of the program that are in this step.
fn barriers(facts: &Facts<'_>, taken: &[crate::source::Span]) -> Vec<Finding> {
    let tree = facts.tree;
    let written: Vec<_> = facts
        .written
        .nodes()
        .filter(|n| matches!(n.op(), Op::Barrier(b) if b.kind == BarrierKind::User))
        .map(|n| facts.written.origins.get(n.origin()).span)
        .collect();
    let together: Vec<_> = facts
        .at_peak
        .iter()
        .filter(|&&b| blame::gradient_of(facts, b).is_some() || is_update(facts, b))
        .map(|&b| facts.bytes(b))
        .collect();
    let bound_bytes: u64 = together.iter().sum();
    let mut all = Vec::new();
    for expr in tree.expressions(|e| matches!(e, ExprKind::Barrier(_))) {
        let span = tree.ast.expr(expr).span;
        if taken.contains(&span) {
            continue;
        }
        let ExprKind::Barrier(operands) = &tree.ast.expr(expr).kind else { continue };
        if !written.contains(&span) {
            continue;
        }
        let texts: Vec<&str> = operands.iter().map(|&o| tree.text(tree.ast.expr(o).span)).collect();
        let is_simple = operands.first().is_some_and(|&o| {
            matches!(
                tree.ast.expr(o).kind,
                ExprKind::Name(_) | ExprKind::Call { .. } | ExprKind::Field(..) | ExprKind::Index(..)
            )
        });
        let text = match texts.as_slice() {
            [one] if is_simple => (*one).to_owned(),
            all => format!("({})", all.join(", ")),
        };
        let remove = Candidate::new("take the barrier away", vec![Edit { span, text }]);
        let single = operands.len() == 1 && widest(facts, span) == 1;
        let held = facts.peak_bytes() / 4;
        let finding = if single {
            let message =
                "this barrier orders nothing: what uses its result waits for its only operand anyway";
            let diagnostic = Diagnostic::warning(codes::USELESS_BARRIER, span, message)
                .label("one value goes in, the same comes out");
            let mut finding = Finding::new(diagnostic, held, Accept::Useless { raises: None });
            finding.diagnostic.help.push(
                "a barrier holds back what goes through it: name what must wait, too, `barrier(x, g)`".into(),
            );
            finding
        } else if together.len() >= 2 && bound_bytes as f64 >= PER_PARAMETER * facts.peak_bytes() as f64 {
            let message = format!(
                "this barrier keeps one value for each of {} parameters alive at once, {}: no update starts before all are there",
                together.len(),
                Bytes(bound_bytes)
            );
            let diagnostic = Diagnostic::warning(codes::ALL_UPDATES, span, message)
                .label("nothing comes out before all is in");
            Finding::new(diagnostic, held, Accept::PeakFalls(SHARE))
        } else {
            let message =
                "this barrier raises the peak: all its values must be there before any of them is used";
            let diagnostic = Diagnostic::warning(codes::BARRIER_RAISES_PEAK, span, message)
                .label("nothing comes out before all is in");
            Finding::new(diagnostic, held, Accept::PeakFalls(SHARE))
        };
        all.push(with_peak(facts, finding.candidate(remove)));
    }
    all
}

/// Whether a buffer holds an intermediate value of an update.
fn is_update(facts: &Facts<'_>, buffer: crate::schedule::BufferId) -> bool {
    let is_made_by_update = facts.maker(buffer).is_some_and(|n| matches!(n.role(), Role::Update { .. }));
    is_made_by_update && !facts.is_persistent(buffer)
}

/// The most operands that a barrier at a place has: lists are flattened.
fn widest(facts: &Facts<'_>, span: crate::source::Span) -> usize {
    facts
        .written
        .nodes()
        .filter(|n| matches!(n.op(), Op::Barrier(b) if b.kind == BarrierKind::User))
        .filter(|n| facts.written.origins.get(n.origin()).span == span)
        .map(|n| n.args().len())
        .max()
        .unwrap_or(0)
}
