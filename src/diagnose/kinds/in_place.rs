//! Kept by a later read: a result that could be made in the place of an operand, were it not for a
//! line that reads the operand afterwards and could stand before.

use super::{is_large, with_peak};
use crate::{
    codes,
    diagnose::{
        blame,
        facts::Facts,
        finding::{Accept, Candidate, Finding},
        tree::insert,
    },
    diagnostic::{Diagnostic, Edit},
    ir::{Phase, Role},
    ops::Op,
    plan::{Refusal, RefusalReason},
    source::Span,
    syntax::{
        ast::{StmtId, StmtKind},
        children::Child,
    },
};

/// Refusals that are looked at: those of the largest operands.
const LOOKED_AT: usize = 8;

pub fn find(facts: &Facts<'_>) -> Vec<Finding> {
    let is_alive = |b| facts.is_alive(b, facts.peak) && is_large(facts, facts.bytes(b));
    let mut refused: Vec<Refusal> =
        facts.plan.refused().into_iter().filter(|r| is_alive(r.made) && is_alive(r.operand)).collect();
    refused.sort_by_key(|r| std::cmp::Reverse(facts.bytes(r.operand)));
    refused.iter().take(LOOKED_AT).filter_map(|r| of_refusal(facts, r)).collect()
}

fn of_refusal(facts: &Facts<'_>, refusal: &Refusal) -> Option<Finding> {
    let RefusalReason::ReadLater(reader) = refusal.reason else { return None };
    let (op, reader) = (facts.op_node(refusal.op)?, facts.op_node(reader)?);
    let is_forward = |role: Role| role.phase() == Phase::Forward;
    if !is_forward(op.role()) || !is_forward(reader.role()) {
        return None;
    }
    let (made, read) = (facts.span_of(op)?, facts.span_of(reader)?);
    let (first, second) = (statement(facts, made)?, statement(facts, read)?);
    let edits = move_up(facts, second, first)?;
    let line = facts.sources.start(read).line;
    let operand = blame::name(facts, refusal.operand);
    let message = format!(
        "{} needs a buffer of its own beside {operand}, {}: line {line} reads {operand} afterwards",
        blame::name(facts, refusal.made),
        blame::size(facts, refusal.operand)
    );
    let diagnostic = Diagnostic::warning(codes::COPIED_UPDATE, made, message)
        .label(format!("could be made in the place of {operand}"));
    let title = format!("move line {line} above line {}", facts.sources.start(made).line);
    let finding = Finding::new(diagnostic, facts.bytes(refusal.operand), Accept::PeakFalls(super::SMALL))
        .label(Some(read), format!("reads {operand} later"))
        .candidate(Candidate::new(title, edits));
    Some(with_peak(facts, finding))
}

/// The statement that an expression of the program stands in.
fn statement(facts: &Facts<'_>, span: Span) -> Option<StmtId> {
    let expr = facts.tree.expr_at(span)?;
    match facts.tree.statement_of(expr)? {
        Child::Stmt(stmt) => Some(stmt),
        Child::Expr(_) => None,
    }
}

/// Moves a `let` before another statement of its block, where what stands between changes no state,
/// draws no random numbers and prints nothing: then the order of the lines is nobody's business.
fn move_up(facts: &Facts<'_>, stmt: StmtId, before: StmtId) -> Option<Vec<Edit>> {
    let tree = facts.tree;
    let (span, target) = (tree.ast.stmt(stmt).span, tree.ast.stmt(before).span);
    let is_let = matches!(tree.ast.stmt(stmt).kind, StmtKind::Let { .. });
    let is_sibling = tree.parent(Child::Stmt(stmt)) == tree.parent(Child::Stmt(before));
    if !is_let || !is_sibling || span.start <= target.start {
        return None;
    }
    let assigned = tree.statements(|s| matches!(s, StmtKind::Assign { .. })).into_iter();
    let is_between = |s: Span| s.file == span.file && target.start <= s.start && s.end <= span.end;
    if assigned.map(|s| tree.ast.stmt(s).span).any(is_between) {
        return None;
    }
    let has_effect = facts.written.nodes().any(|n| {
        matches!(n.op(), Op::Write(_) | Op::Random(_) | Op::Print(_))
            && facts.written.origins.chain(n.origin()).any(|o| is_between(o.span))
    });
    let (line, removal) = tree.take_statement(stmt);
    let text = format!("{line}\n{}", tree.indent(target));
    (!has_effect).then(|| vec![insert(target, target.start, text), removal])
}
