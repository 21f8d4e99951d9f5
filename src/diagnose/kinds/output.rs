//! Kept by an output: a returned value, or the base of a returned view, that is alive at the peak
//! for no other reason.

use std::fmt::Write;

use super::{is_large, with_peak};
use crate::{
    codes,
    diagnose::{
        blame,
        facts::{Facts, is_barrier},
        finding::{Accept, Candidate, Finding},
        tree::Tree,
    },
    diagnostic::{Diagnostic, Edit},
    ir::ValueId,
    ops::Op,
    report::Bytes,
    schedule::BufferId,
    source::Span,
    syntax::ast::{ExprId, ExprKind, StmtKind},
};

pub fn find(facts: &Facts<'_>) -> Vec<Finding> {
    let mut all = Vec::new();
    // A step that changes nothing is there for its results.
    let has_effects = facts.plan.graph.nodes().any(|n| matches!(n.op(), Op::Write(_)));
    for &buffer in &facts.at_peak {
        let reader = facts.last_reader(buffer);
        let is_idle = reader.map_or(has_effects, |op| facts.position(op) < facts.peak);
        // What a view keeps may be read in part only.
        let is_viewed = facts.plan.graph.outputs.iter().all(|o| Some(o.value) != facts.value(buffer));
        if facts.is_output(buffer)
            && !facts.is_gathered(buffer)
            && (is_idle || is_viewed)
            && is_large(facts, facts.bytes(buffer))
        {
            all.extend(of_buffer(facts, buffer));
        }
    }
    all
}

fn of_buffer(facts: &Facts<'_>, buffer: BufferId) -> Option<Finding> {
    let base = facts.value(buffer)?;
    let graph = &facts.plan.graph;
    let held: Vec<usize> = (0..graph.outputs.len())
        .filter(|&k| graph.outputs.get(k).is_some_and(|o| facts.base(o.value) == base))
        .collect();
    let first = graph.outputs.get(*held.first()?)?;
    let place = facts.user_span(first.origin)?;
    let values = returned(facts.tree, place);
    let returned = Some(values).filter(|v| v.len() == graph.outputs.len());
    let expr_of = |k: usize| returned.as_ref().and_then(|r| r.get(k)).copied();
    let primary = expr_of(*held.first()?).map_or(place, |e| facts.tree.ast.expr(e).span);
    let bytes = Bytes(facts.bytes(buffer));
    let dense = |v: ValueId| graph.ty(v).bytes();
    let views: u64 = held.iter().filter_map(|&k| graph.outputs.get(k)).map(|o| dense(o.value)).sum();
    let is_view = held.iter().all(|&k| graph.outputs.get(k).is_some_and(|o| o.value != base))
        && views < facts.bytes(buffer);
    let name = blame::name(facts, buffer);
    let (born, phase) = (blame::blame(facts, buffer).born, facts.phase(buffer));
    let when = match phase {
        Some(crate::ir::Phase::Forward) => "from the forward pass",
        Some(crate::ir::Phase::Backward) => "from the backward pass",
        _ => "from where it is made",
    };
    let mut finding = if is_view {
        let ty = graph.ty(first.value);
        let what = match held.len() {
            1 => format!("a returned view of {ty} ({})", Bytes(ty.bytes())),
            n => format!("{n} returned views ({})", Bytes(views)),
        };
        let message = format!("{what} keeps all of {name}, {bytes}, {when} to the end of the step");
        let message = if held.len() > 1 { message.replacen(" keeps ", " keep ", 1) } else { message };
        let diagnostic = Diagnostic::warning(codes::KEPT_BY_RETURNED_VIEW, primary, message)
            .label(format!("returned here: keeps {bytes}"));
        let mut finding = Finding::new(diagnostic, facts.bytes(buffer), Accept::PeakFalls(super::SMALL));
        let wrap = |k: usize| expr_of(k).map(|e| facts.tree.wrap(e, "copy(", ")"));
        let at_slices: Vec<Edit> = super::view::slices(facts, base)
            .into_iter()
            .filter_map(|span| facts.tree.expr_at(span))
            .flat_map(|e| facts.tree.wrap(e, "copy(", ")"))
            .collect();
        // What keeps the whole base must be copied whole.
        let mut together: Vec<Edit> = Vec::new();
        let mut texts = String::new();
        for edits in held.iter().filter_map(|&k| wrap(k)) {
            together.extend(edits);
        }
        for &k in &held {
            if let Some(expr) = expr_of(k) {
                let text = facts.tree.text(facts.tree.ast.expr(expr).span);
                let _ = write!(texts, "{}`copy({text})`", if texts.is_empty() { "" } else { ", " });
            }
        }
        let title = match held.len() {
            1 => "return a copy".to_owned(),
            n => format!("return copies of the {n} views"),
        };
        let what = match held.len() {
            1 => format!("returning a copy, {texts},"),
            _ => "returning copies".to_owned(),
        };
        let copies =
            Candidate::new(title, together).or_in_vain(what, held_until(facts, base, first.value, &name));
        finding =
            finding.candidate(copies).candidate(Candidate::new("copy where the view is taken", at_slices));
        finding.label(born, format!("the base of the view: {}", blame::size(facts, buffer)))
    } else {
        let message = format!("{name} is kept {when} to the end of the step only to be returned");
        let diagnostic = Diagnostic::warning(codes::KEPT_BY_OUTPUT, primary, message)
            .label(format!("returned here: keeps {bytes}"));
        Finding::new(diagnostic, facts.bytes(buffer), Accept::PeakFalls(super::SMALL))
            .label(born, format!("made here: {}", blame::size(facts, buffer)))
    };
    if let Some(returned) = &returned
        && returned.len() > held.len()
    {
        let names: Vec<String> = held
            .iter()
            .filter_map(|&k| expr_of(k))
            .map(|e| format!("`{}`", facts.tree.text(facts.tree.ast.expr(e).span)))
            .collect();
        let edits = leave_out(facts.tree, returned, &held);
        finding =
            finding.candidate(Candidate::new(format!("do not return {}", names.join(", ")), edits).by_hand());
    }
    Some(with_peak(facts, finding))
}

/// Why a copy of a view frees nothing: a barrier between the base and the view.
fn held_until(facts: &Facts<'_>, base: ValueId, view: ValueId, name: &str) -> Option<String> {
    let graph = &facts.plan.graph;
    let mut value = view;
    while value != base {
        let (node, k) = graph.producer(value);
        if is_barrier(&node) {
            let line = facts.sources.start(facts.span_of(node)?).line;
            return Some(format!(
                "all of {name} is held until everything is there for the barrier of line {line}; take the view before it, and keep the rest out of it"
            ));
        }
        value = node.shared_operand(k)?;
    }
    None
}

/// The expressions that are returned at a place.
pub(super) fn returned(tree: &Tree<'_>, place: Span) -> Vec<ExprId> {
    let stmt = tree
        .statements(|s| matches!(s, StmtKind::Return(_)))
        .into_iter()
        .find(|&s| tree.ast.stmt(s).span == place);
    let mut values = match stmt.map(|s| &tree.ast.stmt(s).kind) {
        Some(StmtKind::Return(values)) => values.clone(),
        _ => tree.expr_at(place).into_iter().collect(),
    };
    if let &[only] = values.as_slice()
        && let ExprKind::Tuple(items) | ExprKind::List(items) = &tree.ast.expr(only).kind
    {
        values = items.clone();
    }
    values
}

/// Takes some of several returned expressions away, with their commas.
pub(super) fn leave_out(tree: &Tree<'_>, returned: &[ExprId], held: &[usize]) -> Vec<Edit> {
    let span = |k: usize| returned.get(k).map(|&e| tree.ast.expr(e).span);
    let first_kept = (0..returned.len()).find(|k| !held.contains(k));
    let mut edits = Vec::new();
    for &k in held {
        let Some(this) = span(k) else { continue };
        // Before the first that stays, the comma behind goes; elsewhere the one in front.
        let cut = if first_kept.is_some_and(|f| k < f) {
            span(k + 1).map(|next| Span { end: next.start, ..this })
        } else {
            k.checked_sub(1).and_then(span).map(|before| Span { start: before.end, ..this })
        };
        edits.extend(cut.map(|span| Edit { span, text: String::new() }));
    }
    edits
}
