//! State that follows a frozen parameter: a mean of what never changes is another copy of it.

use super::{is_large, with_peak};
use crate::{
    codes,
    diagnose::{
        facts::Facts,
        finding::{Accept, Candidate, Finding},
    },
    diagnostic::Diagnostic,
    ir::{Node, SlotId, SlotKind},
    ops::{Alias, Op},
    report::Bytes,
    syntax::ast::StmtKind,
};

/// Nodes looked at to find out what a state is made of.
const STEPS: usize = 64;

pub fn find(facts: &Facts<'_>) -> Vec<Finding> {
    facts.written.nodes().filter_map(|node| of_write(facts, node)).collect()
}

fn of_write(facts: &Facts<'_>, node: Node<'_>) -> Option<Finding> {
    let Op::Write(write) = node.op() else { return None };
    let slot = facts.written.slots.get(write.slot.0 as usize)?;
    let bytes = slot.ty.bytes();
    if slot.kind != SlotKind::State || !is_large(facts, bytes) {
        return None;
    }
    let frozen = followed(facts, node, write.slot)?;
    let place = facts.span_of(node)?;
    let is_it = |kind: &StmtKind| matches!(kind, StmtKind::StateWrite { .. });
    let stmt = facts.tree.statements(is_it).into_iter().find(|&s| facts.tree.ast.stmt(s).span == place)?;
    let (name, of) = (&slot.name, facts.slot_name(frozen));
    let message = format!(
        "`{name}` follows `{of}`, which is frozen: {}, {}, for another copy of what never changes",
        slot.ty,
        Bytes(bytes)
    );
    let diagnostic = Diagnostic::warning(codes::FOLLOWS_FROZEN, place, message)
        .label("made of the state itself and of the frozen parameter only")
        .note(format!("`{of}` can be read wherever `{name}` is"));
    let edits = vec![facts.tree.remove_statement(stmt)];
    let candidate = Candidate::new(format!("delete the statement that writes `{name}`"), edits).by_hand();
    let finding = Finding::new(diagnostic, bytes, Accept::PeakFalls(super::SMALL)).candidate(candidate);
    Some(with_peak(facts, finding))
}

/// The frozen parameter that a written value is made of, if it is made of nothing else but the old value of
/// its state and numbers.
fn followed(facts: &Facts<'_>, node: Node<'_>, own: SlotId) -> Option<SlotId> {
    let graph = facts.written;
    let mut todo = node.args().to_vec();
    let mut frozen = None;
    let mut reads_itself = false;
    for _ in 0..STEPS {
        let Some(value) = todo.pop() else { return frozen.filter(|_| reads_itself) };
        let (maker, _) = graph.producer(value);
        match maker.op() {
            Op::Read(read) if read.slot == own => reads_itself = true,
            Op::Read(read) => {
                let kind = graph.slots.get(read.slot.0 as usize)?.kind;
                let is_frozen = kind == SlotKind::Param { trainable: false };
                if !is_frozen || frozen.is_some_and(|known| known != read.slot) {
                    return None;
                }
                frozen = Some(read.slot);
            }
            Op::Const(_) | Op::Literal(_) | Op::Scalar(_) | Op::Iota(_) => {}
            Op::Unary(_) | Op::Binary(_) | Op::Select(_) | Op::Cast(_) => todo.extend(maker.args()),
            op if op.memory().alias == Alias::View => todo.extend(maker.args()),
            _ => return None,
        }
    }
    None
}
