//! Kept by the optimizer: all gradients alive until the update.

use std::collections::BTreeSet;

use super::{is_large, with_peak};
use crate::{
    codes,
    diagnose::{
        blame,
        facts::Facts,
        finding::{Accept, Candidate, Finding},
        tree::Tree,
    },
    diagnostic::{Diagnostic, Edit, Severity},
    ir::{Role, SlotId, SlotKind},
    report::Bytes,
    schedule::BufferId,
    source::Span,
    syntax::ast::{ExprId, ExprKind, StmtKind},
};

/// Of the bytes of all gradients, those that must be alive together to say "all".
const MOST: f64 = 0.8;

pub fn find(facts: &Facts<'_>) -> Vec<Finding> {
    of_gradients(facts).into_iter().collect()
}

fn of_gradients(facts: &Facts<'_>) -> Option<Finding> {
    let gradients: Vec<(BufferId, SlotId)> =
        facts.at_peak.iter().filter_map(|&b| Some((b, blame::gradient_of(facts, b)?))).collect();
    let slots: BTreeSet<SlotId> = gradients.iter().map(|(_, slot)| *slot).collect();
    let bytes: u64 = gradients.iter().map(|(b, _)| facts.bytes(*b)).sum();
    let trainable: u64 = facts
        .plan
        .graph
        .slots
        .iter()
        .filter(|s| s.kind == SlotKind::Param { trainable: true })
        .map(|s| s.ty.bytes())
        .sum();
    if slots.len() < 2 || !is_large(facts, bytes) || (bytes as f64) < MOST * trainable as f64 {
        return None;
    }
    let update = facts.plan.graph.nodes().find(|n| matches!(n.role(), Role::Update { .. }))?;
    let place = facts.span_of(update)?;
    let dtype = facts.ty(gradients.first()?.0)?.dtype();
    let message = format!(
        "the gradients of {} parameters, {} in {dtype}, are alive together until the update",
        slots.len(),
        Bytes(bytes)
    );
    let update_stmt =
        facts.tree.statements(|s| matches!(s, StmtKind::Update { .. })).into_iter().find(|&s| {
            let span = facts.tree.ast.stmt(s).span;
            span.file == place.file && span.start <= place.start && place.end <= span.end
        })?;
    let StmtKind::Update { grads, .. } = facts.tree.ast.stmt(update_stmt).kind else { return None };
    let grads_span = facts.tree.ast.expr(grads).span;
    let diagnostic = Diagnostic::new(Severity::Note, codes::ALL_GRADIENTS, grads_span, message)
        .label(format!("waits for all {} gradients", slots.len()));
    let mut finding = Finding::new(diagnostic, bytes, Accept::PeakFalls(0.05));
    finding
        .diagnostic
        .notes
        .push("a norm over all gradients cannot be known before the last of them is there".into());
    if let Some((inner, what)) = argument(facts.tree, grads) {
        let text = facts.tree.text(inner).to_owned();
        let candidate = Candidate::new(
            format!(
                "where the step can do without {what}, update with `{text}`: each gradient is used, and freed, as soon as it is there"
            ),
            vec![Edit { span: grads_span, text }],
        );
        finding = finding.candidate(candidate.by_hand());
    }
    Some(with_peak(facts, finding))
}

/// What a function of gradients takes first, and how it is called.
fn argument(tree: &Tree<'_>, grads: ExprId) -> Option<(Span, String)> {
    match &tree.ast.expr(grads).kind {
        ExprKind::Call { callee, args } => {
            let first = args.first()?.value;
            let callee = tree.text(tree.ast.expr(*callee).span);
            Some((tree.ast.expr(first).span, format!("`{callee}`")))
        }
        ExprKind::Binary { left, .. } => Some((tree.ast.expr(*left).span, "the factor".into())),
        _ => None,
    }
}
