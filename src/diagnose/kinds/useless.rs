//! Constructs that buy nothing: regions that free nothing or raise the peak, releases without
//! effect.

use super::{order::is_in_step, with_peak};
use crate::{
    codes,
    diagnose::{
        facts::Facts,
        finding::{Accept, Candidate, Finding},
        recompute,
    },
    diagnostic::{Diagnostic, Edit, Severity},
    ir::Phase,
    report::{self, parts},
    syntax::{
        ast::{ExprKind, StmtKind},
        children::Child,
    },
};

/// Of the nodes of the forward pass, those in one region that make it "the whole model".
const WHOLE: f64 = 0.8;

/// Kinds of buffers that are named of a peak.
const KINDS: usize = 4;

pub fn find(facts: &Facts<'_>) -> Vec<Finding> {
    let mut all = regions(facts);
    all.extend(releases(facts));
    all
}

fn regions(facts: &Facts<'_>) -> Vec<Finding> {
    let tree = facts.tree;
    let written = facts.written;
    let forward = written.nodes().filter(|n| n.role().phase() == Phase::Forward).count().max(1);
    let mut all = Vec::new();
    let mut alive_at_peak: Option<String> = None;
    for expr in tree.expressions(|e| matches!(e, ExprKind::Checkpoint { .. })) {
        let span = tree.ast.expr(expr).span;
        let ExprKind::Checkpoint { body, .. } = &tree.ast.expr(expr).kind else { continue };
        let mut here =
            written.regions.iter().filter(|r| written.origins.get(r.origin).span == span).peekable();
        if here.peek().is_none() {
            continue;
        }
        let regions: Vec<_> = here.collect();
        let largest = regions.iter().map(|r| r.nodes.len()).max().unwrap_or(0);
        let is_whole = regions.len() == 1 && largest as f64 >= WHOLE * forward as f64;
        let remove = Candidate::new("take the region away", tree.unwrap_region(expr, body));
        let (code, message) = if is_whole {
            (
                codes::WHOLE_MODEL_REGION,
                "this region is around the whole forward pass and saves nothing: all activations are computed again before the backward pass can begin, and are alive together then",
            )
        } else {
            (
                codes::USELESS_REGION,
                "this region computes everything twice and frees nothing: the peak is no higher without it",
            )
        };
        let raises = (
            codes::REGION_RAISES_PEAK,
            "this region raises the peak: what it needs to compute again takes more than what it frees"
                .to_owned(),
        );
        let diagnostic = Diagnostic::warning(code, span, message)
            .label("computed twice")
            .note(alive_at_peak.get_or_insert_with(|| alive(facts)).clone());
        let mut finding =
            Finding::new(diagnostic, facts.peak_bytes() / 3, Accept::Useless { raises: Some(raises) })
                .candidate(remove.clone());
        if is_whole {
            for one in recompute::of_loops(tree) {
                let edits = remove.edits.iter().cloned().chain(one.edits).collect();
                let title = "make each pass of the loop a region instead of all of them together";
                finding = finding.candidate(Candidate::new(title, edits));
            }
        }
        all.push(with_peak(facts, finding));
    }
    all
}

/// What is alive at the peak, by kind: what a region cannot change is seen at a glance.
fn alive(facts: &Facts<'_>) -> String {
    let mut kinds = report::plan::report(facts.plan, facts.sources).by_kind;
    kinds.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
    let parts = kinds.into_iter().map(|(kind, bytes)| (kind.to_owned(), bytes));
    format!("alive at the peak: {}", parts::of(facts.peak_bytes(), parts, KINDS))
}

fn releases(facts: &Facts<'_>) -> Vec<Finding> {
    let tree = facts.tree;
    let mut all = Vec::new();
    for stmt in tree.statements(|s| matches!(s, StmtKind::Release(_))) {
        let StmtKind::Release(values) = &tree.ast.stmt(stmt).kind else { continue };
        let Some(&first) = values.first() else { continue };
        if !is_in_step(facts, first) || !runs_here(facts, stmt) {
            continue;
        }
        let span = tree.ast.stmt(stmt).span;
        let names: Vec<String> =
            values.iter().map(|&v| format!("`{}`", tree.text(tree.ast.expr(v).span))).collect();
        let message = format!(
            "this `release` of {} lowers nothing: without it, the peak and the worst legal order are no higher",
            names.join(", ")
        );
        let diagnostic = Diagnostic::new(Severity::Note, codes::USELESS_RELEASE, span, message)
            .label("true, but no figure is lower for it")
            .note("it may stay: as a remark, it is checked whenever the program is compiled");
        let edits: Vec<Edit> = vec![tree.remove_statement(stmt)];
        all.push(
            Finding::new(diagnostic, 0, Accept::Useless { raises: None })
                .candidate(Candidate::new("take the `release` away", edits)),
        );
    }
    all
}

/// Whether the step has code of the function that a statement is in.
fn runs_here(facts: &Facts<'_>, stmt: crate::syntax::ast::StmtId) -> bool {
    let Some(decl) = facts.tree.function_of(Child::Stmt(stmt)) else { return false };
    let body = decl.body.span;
    facts.written.nodes().any(|n| {
        facts
            .written
            .origins
            .chain(n.origin())
            .any(|o| o.span.file == body.file && body.start <= o.span.start && o.span.end <= body.end)
    })
}
