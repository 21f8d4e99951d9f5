//! Contracts that do not hold: an `ensure` says what is alive at the peak, why, and which changes
//! would make it hold.

use super::{blame, facts::Facts, fix, kinds, recompute, trial::Trials};
use crate::{
    codes,
    diagnostic::{Diagnostic, Fix, Savings},
    report::{Bytes, parts},
    source::Span,
    syntax::ast::StmtKind,
};

/// Buffers that are explained.
const BLAMED: usize = 3;

/// Explains the errors on the peak of a step, and adds fixes to them where changes may be tried.
pub fn explain(all: &mut [Diagnostic], facts: &Facts<'_>, step: usize, trials: Option<&mut Trials<'_>>) {
    let Some(place) = place_of(facts) else { return };
    let is_here = |d: &&mut Diagnostic| {
        let at = d.primary.span;
        d.code == codes::OVER_PEAK && place.file == at.file && place.start <= at.start && at.end <= place.end
    };
    let mut errors: Vec<&mut Diagnostic> = all.iter_mut().filter(is_here).collect();
    if errors.is_empty() {
        return;
    }
    let holdings = kinds::holdings(facts);
    let mut notes: Vec<String> = Vec::new();
    for holding in holdings.iter().take(BLAMED) {
        let text = holding.blame.sentence(facts, holding.buffers.len(), holding.bytes);
        notes.push(format!("alive at the peak: {text}"));
    }
    let named = holdings.iter().take(BLAMED).map(|h| h.bytes);
    let rest = parts::rest(facts.peak_bytes(), named);
    if rest > 0 {
        notes.push(format!("alive at the peak: all else, {}", Bytes(rest)));
    }
    let peak = blame::Peak::of(facts);
    let fixes = trials.map(|t| fixes(facts, step, t)).unwrap_or_default();
    for error in &mut errors {
        error.notes.extend(notes.iter().cloned());
        let label = peak.and_then(|p| p.label()).filter(|l| error.primary.span != l.span);
        error.notes.extend(peak.map(|p| p.note(facts, label.is_none())));
        error.secondary.extend(label);
        error.fixes.extend(fixes.iter().cloned());
    }
}

/// The declaration of the step.
fn place_of(facts: &Facts<'_>) -> Option<Span> {
    let tree = facts.tree;
    let stmt = tree
        .statements(|s| matches!(s, StmtKind::Step(decl) if *decl.name.name == *facts.plan.name))
        .into_iter()
        .next()?;
    Some(tree.ast.stmt(stmt).span)
}

/// Regions in loops of the model, and losses worked out in parts, best first.
fn fixes(facts: &Facts<'_>, step: usize, trials: &mut Trials<'_>) -> Vec<Fix> {
    let mut found: Vec<(Fix, Savings)> = Vec::new();
    for candidate in recompute::of_loops(facts.tree).into_iter().chain(kinds::in_parts(facts)) {
        let Some(outcome) = trials.run(&candidate.edits, step) else { continue };
        let Some(savings) = trials.savings(&outcome, step) else { continue };
        if savings.peak_after < savings.peak_before {
            found.push((fix(&candidate, savings), savings));
        }
    }
    found.sort_by_key(|(f, s)| (!f.keeps_results(), s.peak_after));
    found.into_iter().take(2).map(|(f, _)| f).collect()
}
