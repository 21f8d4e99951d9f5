//! Kept across a collective: what was cast to be sent, and is read again when the result is there.

use rustc_hash::FxHashMap;

use super::{is_large, with_peak};
use crate::{
    codes,
    diagnose::{
        blame,
        facts::Facts,
        finding::{Accept, Candidate, Finding},
    },
    diagnostic::Diagnostic,
    ir::{Node, NodeId, ValueId},
    ops::Op,
    report::Bytes,
    schedule::{BufferId, OpId},
    syntax::children::Child,
};

pub fn find(facts: &Facts<'_>) -> Vec<Finding> {
    let graph = &facts.plan.graph;
    let starts: Vec<Node<'_>> =
        graph.nodes().filter(|n| matches!(n.op(), Op::CollectiveStart(s) if s.world > 1)).collect();
    if starts.is_empty() {
        return Vec::new();
    }
    let places = Places::new(facts);
    let mut seen: Vec<BufferId> = Vec::new();
    let mut all = Vec::new();
    for start in starts {
        let Some((start_at, done_at, sources)) = places.of_collective(facts, &start) else { continue };
        for source in sources {
            let is_kept = facts.range(source).is_some_and(|(first, last)| first < start_at && done_at < last);
            let is_own = !facts.is_persistent(source) && !facts.is_output(source);
            if is_kept && is_own && is_large(facts, facts.bytes(source)) && !seen.contains(&source) {
                seen.push(source);
                all.extend(kept(facts, &start, source));
            }
        }
    }
    all
}

/// Where things are in the plan, by the node or value that they come from.
struct Places {
    of_node: FxHashMap<NodeId, OpId>,
    of_value: FxHashMap<ValueId, BufferId>,
    makers: FxHashMap<BufferId, OpId>,
    /// The end of each collective, by what its start gives.
    ends: FxHashMap<ValueId, NodeId>,
}

impl Places {
    fn new(facts: &Facts<'_>) -> Places {
        let plan = facts.plan;
        let of_node = plan.schedule_graph.ops().filter_map(|op| Some((facts.op_node(op)?.id, op))).collect();
        let buffers = plan.schedule_graph.buffer_ids();
        let of_value = buffers.filter_map(|b| Some((facts.value(b)?, b))).collect();
        let made = |op: OpId| plan.schedule_graph.makes(op).iter().map(move |&b| (b, op));
        let ends = plan.graph.nodes().filter(|n| matches!(n.op(), Op::CollectiveDone(_)));
        Places {
            of_node,
            of_value,
            makers: plan.schedule_graph.ops().flat_map(made).collect(),
            ends: ends.filter_map(|n| Some((*n.args().first()?, n.id))).collect(),
        }
    }

    /// When a collective starts and when it is over, and what its operand was made from: buffers with
    /// as many elements, which are wider, and the operand itself.
    fn of_collective(&self, facts: &Facts<'_>, start: &Node<'_>) -> Option<(usize, usize, Vec<BufferId>)> {
        let done = *self.ends.get(&start.results().next()?)?;
        let position = |node: NodeId| self.of_node.get(&node).map(|&op| facts.position(op));
        let operand = *start.args().first()?;
        let sent = *self.of_value.get(&facts.base(operand))?;
        let mut sources = vec![sent];
        if let Some(&maker) = self.makers.get(&sent) {
            let ty = facts.ty(sent)?;
            let is_wider = |b: &&BufferId| {
                facts.ty(**b).is_some_and(|t| t.elements() == ty.elements() && t.bytes() > ty.bytes())
            };
            sources.extend(facts.plan.schedule_graph.reads(maker).iter().filter(is_wider));
        }
        Some((position(start.id)?, position(done)?, sources))
    }
}

fn kept(facts: &Facts<'_>, start: &Node<'_>, source: BufferId) -> Option<Finding> {
    let Op::CollectiveStart(op) = start.op() else { return None };
    let user = facts.last_user(source)?;
    let read = facts.span_of(user)?;
    let name = blame::name(facts, source);
    let history = blame::blame(facts, source);
    let line = facts.span_of(*start).map(|s| format!(" on line {}", facts.sources.start(s).line));
    let message = format!(
        "{name}, {}, is kept across the `{}`{} only to be read again behind it",
        Bytes(facts.bytes(source)),
        op.kind.name(),
        line.unwrap_or_default(),
    );
    let diagnostic = Diagnostic::warning(codes::BUCKET_ACROSS_COLLECTIVE, read, message)
        .label("read again here")
        .help(format!("read it before, or compare with what was sent; `release` states that {name} is free"));
    let mut finding = Finding::new(diagnostic, facts.bytes(source), Accept::PeakFalls(super::SMALL))
        .label(history.born, format!("made here: {}", blame::size(facts, source)))
        .label(facts.span_of(*start), "kept across this");
    if let Some(expr) = facts.tree.expr_at(read)
        && let Some(Child::Stmt(stmt)) = facts.tree.statement_of(expr)
    {
        let edits = vec![facts.tree.remove_statement(stmt)];
        finding = finding.candidate(Candidate::new("take away what reads it again", edits).by_hand());
    }
    Some(with_peak(facts, finding))
}
