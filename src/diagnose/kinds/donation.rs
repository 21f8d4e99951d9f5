//! State that is updated by way of a copy, because its old value is read too late to be written
//! over.

use super::is_large;
use crate::{
    codes,
    diagnose::{
        facts::Facts,
        finding::{Accept, Candidate, Finding},
        tree::insert,
    },
    diagnostic::Diagnostic,
    ir::{NodeId, SlotId, ValueId},
    ops::Op,
    plan::{Home, Kernel},
    report::Bytes,
    source::Span,
    syntax::ast::{StmtId, StmtKind},
};

pub fn find(facts: &Facts<'_>) -> Vec<Finding> {
    let plan = facts.plan;
    let mut all = Vec::new();
    for (op, kernel) in plan.schedule_graph.ops().zip(&plan.kernels) {
        let Kernel::Copy { from, to } = kernel else { continue };
        let Home::Slot(slot) = facts.home(to.buffer) else { continue };
        let bytes = facts.bytes(from.buffer);
        // An input or another parameter has memory of its own: it must be copied.
        let is_made = matches!(facts.home(from.buffer), Home::Arena);
        let (Some(value), Some(write)) = (facts.value(from.buffer), facts.op_node(op)) else { continue };
        if !is_made || !is_large(facts, bytes) {
            continue;
        }
        all.extend(of_commit(facts, slot, value, write.id, bytes));
    }
    all
}

fn of_commit(facts: &Facts<'_>, slot: SlotId, value: ValueId, write: NodeId, bytes: u64) -> Option<Finding> {
    let graph = &facts.plan.graph;
    let place = facts.span_of(graph.node(write))?;
    let maker = graph.producer(value).0.id;
    let name = facts.slot_name(slot);
    // Who reads the value that the state had before.
    let mut late: Vec<NodeId> = Vec::new();
    for node in graph.nodes() {
        if matches!(node.op(), Op::Read(read) if read.slot == slot) {
            late.extend(facts.users(node.result(0)).iter().filter(|&&u| u > maker && u != write));
        }
    }
    late.sort_unstable();
    late.dedup();
    let message = format!(
        "`{name}` cannot be updated in place: the new value, {}, is made elsewhere and copied",
        Bytes(bytes)
    );
    let diagnostic = Diagnostic::warning(codes::COPIED_UPDATE, place, message).label("written here");
    let mut finding = Finding::new(diagnostic, bytes, Accept::PeakFalls(super::SMALL));
    let reader = late.first().map(|&n| graph.node(n));
    let reader_span = reader.and_then(|n| facts.span_of(n))?;
    finding = finding.label(Some(reader_span), "still reads the old value");
    finding = finding.candidates(move_behind(facts, place, reader_span));
    Some(finding)
}

/// Moves the statement that writes behind the one that reads, or the reading one before it, where
/// both stand in one block.
fn move_behind(facts: &Facts<'_>, write: Span, reader: Span) -> Option<Candidate> {
    let tree = facts.tree;
    let holds = |s: StmtId, inner: Span| {
        let span = tree.ast.stmt(s).span;
        span.file == inner.file && span.start <= inner.start && inner.end <= span.end
    };
    let writing = tree
        .statements(|s| matches!(s, StmtKind::StateWrite { .. }))
        .into_iter()
        .find(|&s| holds(s, write))?;
    let parent = tree.parent(crate::syntax::children::Child::Stmt(writing));
    let reading = tree
        .statements(|s| matches!(s, StmtKind::Let { .. }))
        .into_iter()
        .find(|&s| holds(s, reader) && tree.parent(crate::syntax::children::Child::Stmt(s)) == parent)?;
    let (first, second) = (tree.ast.stmt(writing).span, tree.ast.stmt(reading).span);
    if second.start < first.end {
        return None;
    }
    let text = tree.text(first).to_owned();
    let indent = line_indent(tree.text(Span { start: 0, end: second.start, ..second }));
    let edits = vec![tree.remove_statement(writing), insert(second, second.end, format!("\n{indent}{text}"))];
    Some(Candidate::new(format!("write it after `{}`", tree.text(second).lines().next().unwrap_or_default()), edits))
}

fn line_indent(before: &str) -> &str {
    let line = before.rsplit('\n').next().unwrap_or_default();
    if line.trim().is_empty() { line } else { "" }
}
