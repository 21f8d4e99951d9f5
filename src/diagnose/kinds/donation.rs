//! State that is updated by way of a copy: the new value cannot be made where the old one is, and
//! takes a buffer of its own.

use super::{is_large, with_peak};
use crate::{
    codes,
    diagnose::{
        blame,
        facts::Facts,
        finding::{Accept, Finding},
    },
    diagnostic::{Diagnostic, Severity},
    plan::{CommitCopy, CommitReason},
    schedule::BufferId,
    source::Span,
};

pub fn find(facts: &Facts<'_>) -> Vec<Finding> {
    facts.plan.commits.iter().filter_map(|commit| of_commit(facts, commit)).collect()
}

fn of_commit(facts: &Facts<'_>, commit: &CommitCopy) -> Option<Finding> {
    // Only what takes part in the peak is worth a word.
    let buffer: BufferId =
        facts.at_peak.iter().copied().find(|&b| facts.value(b) == Some(facts.base(commit.value)))?;
    if facts.is_persistent(buffer) || !is_large(facts, facts.bytes(buffer)) {
        return None;
    }
    let write = facts.op_node(commit.op)?;
    let place = facts.span_of(write).filter(|s| facts.tree.is_own(*s))?;
    let name = facts.slot_name(commit.slot);
    let span_of = |op| facts.op_node(op).and_then(|n| facts.span_of(facts.forward_of(n)));
    let (why, label): (String, (Option<Span>, &str)) = match commit.reason {
        CommitReason::ReadLater(op) => (
            "its old value is read when the new one is there already".into(),
            (span_of(op), "needs both the old value and the new one"),
        ),
        CommitReason::OutOfStep(op) => (
            "elements of the old value are read after others have been written".into(),
            (span_of(op), "reads them in another order than it writes"),
        ),
        CommitReason::Returned => {
            ("the step returns this value, and writes another one later".into(), (None, ""))
        }
        CommitReason::Elsewhere(slot) => (
            format!("the value is that of `{}`, and two cannot share memory", facts.slot_name(slot)),
            (None, ""),
        ),
        CommitReason::Order => {
            ("no order of the step has all readers of the old value first".into(), (None, ""))
        }
    };
    let message = format!("`{name}` is not updated in place: {why}");
    let help = match commit.reason {
        CommitReason::ReadLater(_) => {
            "what needs the old value alone is best computed above the line that writes; where both are needed at once, both have to be there"
        }
        CommitReason::OutOfStep(_) => "write what is rearranged to another state, in turns",
        CommitReason::Returned => "return the value that is written last, or `copy` this one",
        CommitReason::Elsewhere(_) => "give one of the two a value of its own",
        CommitReason::Order => "read the old value only in what the new one is made of",
    };
    let diagnostic = Diagnostic::new(Severity::Note, codes::COPIED_UPDATE, place, message)
        .help(help)
        .label(format!("a buffer of its own: {}", blame::size(facts, buffer)));
    let finding = Finding::new(diagnostic, facts.bytes(buffer), Accept::Always);
    Some(with_peak(facts, finding.label(label.0, label.1)))
}
