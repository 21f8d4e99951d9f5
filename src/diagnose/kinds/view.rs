//! Kept by a view: a small slice whose large base is needed for nothing else.

use rustc_hash::FxHashSet;

use super::{is_large, with_peak};
use crate::{
    codes,
    diagnose::{
        blame,
        facts::Facts,
        finding::{Accept, Candidate, Finding},
    },
    diagnostic::Diagnostic,
    ir::{Phase, ValueId},
    ops::Op,
    plan::{Access, Kernel},
    report::Bytes,
    schedule::{BufferId, OpId},
    source::Span,
};

pub fn find(facts: &Facts<'_>) -> Vec<Finding> {
    let mut all = Vec::new();
    for &buffer in &facts.at_peak {
        if facts.is_persistent(buffer) || facts.is_output(buffer) || !is_large(facts, facts.bytes(buffer)) {
            continue;
        }
        all.extend(of_buffer(facts, buffer));
    }
    all
}

fn of_buffer(facts: &Facts<'_>, buffer: BufferId) -> Option<Finding> {
    let late = late_readers(facts, buffer);
    if late.is_empty() {
        return None;
    }
    // The parts of the buffer that are still read, each once.
    let mut parts: FxHashSet<(usize, u64)> = FxHashSet::default();
    for &op in &late {
        for access in accesses(facts, op).into_iter().filter(|a| a.buffer == buffer) {
            parts.insert((access.layout.offset, touched(access)));
        }
    }
    let needed: u64 = parts.iter().map(|(_, bytes)| bytes).sum();
    let bytes = facts.bytes(buffer);
    if needed > bytes / 2 {
        return None;
    }
    let slices = slices(facts, facts.value(buffer)?);
    let first = *slices.first()?;
    let name = blame::name(facts, buffer);
    let blame = blame::blame(facts, buffer);
    let message =
        format!("a view of {} keeps all of {name}, {}, alive at the peak", Bytes(needed), Bytes(bytes));
    let diagnostic = Diagnostic::warning(codes::KEPT_BY_VIEW, first, message)
        .label("at the peak only this part is needed");
    let mut finding = Finding::new(diagnostic, bytes, Accept::PeakFalls(super::SMALL))
        .label(blame.born, format!("the whole is made here: {}", blame::size(facts, buffer)))
        .label(blame.kept, blame.why(facts));
    let mut together = Vec::new();
    for &span in &slices {
        if let Some(expr) = facts.tree.expr_at(span) {
            together.extend(facts.tree.wrap(expr, "copy(", ")"));
        }
    }
    let title = match slices.len() {
        1 => "copy the part".to_owned(),
        n => format!("copy the {n} parts"),
    };
    finding = finding.candidate(Candidate::new(title, together));
    Some(with_peak(facts, finding))
}

/// The ops that read a buffer at the peak or after it, in the order of the schedule.
fn late_readers(facts: &Facts<'_>, buffer: BufferId) -> Vec<OpId> {
    let Some((_, last)) = facts.range(buffer) else { return Vec::new() };
    let order = facts.plan.schedule.order.get(facts.peak..=last).unwrap_or_default();
    order.iter().copied().filter(|&op| facts.plan.schedule_graph.reads(op).contains(&buffer)).collect()
}

fn accesses<'a>(facts: &Facts<'a>, op: OpId) -> Vec<&'a Access> {
    match facts.plan.kernels.get(op.0 as usize) {
        Some(Kernel::Node { args, .. }) => args.iter().collect(),
        Some(Kernel::Elementwise(program)) => program.inputs.iter().collect(),
        Some(Kernel::Copy { from, .. }) => vec![from],
        Some(Kernel::Wait { operands }) => operands.iter().collect(),
        Some(Kernel::Nothing) | None => Vec::new(),
    }
}

/// Bytes of the buffer that an access reads: what is repeated along an axis counts once.
fn touched(access: &Access) -> u64 {
    let axes = access.ty.shape().iter().zip(access.layout.strides.iter());
    let elements = axes.filter(|(_, stride)| **stride != 0).map(|(&size, _)| size as u64);
    elements.fold(access.ty.dtype().size() as u64, u64::saturating_mul)
}

/// Where the program takes slices of a value in its forward pass.
pub(super) fn slices(facts: &Facts<'_>, base: ValueId) -> Vec<Span> {
    let graph = &facts.plan.graph;
    let mut spans: Vec<Span> = Vec::new();
    for &user in facts.users(base) {
        for &arg in graph.node(user).args() {
            let mut value = arg;
            while value != base && facts.base(value) == base {
                let (node, k) = graph.producer(value);
                if matches!(node.op(), Op::Slice(_)) && node.role().phase() == Phase::Forward {
                    let span = facts.user_span(node.origin()).filter(|s| facts.tree.expr_at(*s).is_some());
                    spans.extend(span.filter(|s| !spans.contains(s)));
                    break;
                }
                let Some(&next) = node.args().get(k).or(node.args().first()) else { break };
                value = next;
            }
        }
    }
    spans.sort_unstable();
    spans
}
