//! Parameters that get no gradient, and what cuts them off.

use std::sync::Arc;

use rustc_hash::FxHashSet;

use super::{Evaluator, frame::Frame, value::Cell};
use crate::{
    codes,
    diagnostic::Diagnostic,
    ir::{Graph, NodeId, ValueId},
    ops::{Op, Unary},
    source::Span,
};

impl Evaluator {
    /// Warns of parameters that get no gradient: a low peak may then mean that nothing was computed.
    pub(super) fn report_missing(
        &mut self,
        cells: &[Arc<Cell>],
        grads: &[Option<ValueId>],
        losses: &[ValueId],
        loss_span: Span,
        span: Span,
    ) {
        let missing: Vec<&Arc<Cell>> =
            cells.iter().zip(grads).filter(|(_, g)| g.is_none()).map(|(c, _)| c).collect();
        if missing.is_empty() {
            return;
        }
        let names: Vec<String> = missing.iter().map(|c| c.name().to_string()).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let message = if missing.len() == cells.len() {
            "none of the parameters gets a gradient".to_string()
        } else {
            let get = if missing.len() == 1 { "gets" } else { "get" };
            let names = super::index::listed(&names);
            format!("{} of {} parameters {get} no gradient: {names}", missing.len(), cells.len())
        };
        let mut diagnostic = Diagnostic::warning(codes::NO_GRADIENT, span, message).label("trained here");
        if loss_span != span {
            diagnostic = diagnostic.secondary(loss_span, "the loss does not depend on them");
        }
        let used: Vec<&Arc<Cell>> = match self.frames.last() {
            Some(frame) => missing.iter().copied().filter(|c| !versions(frame, c).is_empty()).collect(),
            None => Vec::new(),
        };
        let unused = missing.len() - used.len();
        if unused > 0 {
            diagnostic.notes.push(match (unused, used.len()) {
                (_, 0) => "nothing uses them before this line".to_string(),
                (1, _) => "one of them is not used at all before this line".to_string(),
                (n, _) => format!("{n} of them are not used at all before this line"),
            });
        }
        let cut = self.frames.last().and_then(|frame| {
            let cell = used.first()?;
            let (node, name) = cut_between(frame, cell, losses)?;
            let place = frame.graph.origins.get(frame.graph.node(node).origin()).span;
            Some((place, format!("`{name}` lets no gradient pass to `{}`", cell.name())))
        });
        match cut {
            Some((place, text)) => diagnostic = diagnostic.secondary(place, text),
            None if !used.is_empty() => {
                diagnostic.notes.push(format!(
                    "`{}` is used, but not for the loss",
                    used.first().map_or("".into(), |c| c.name())
                ));
            }
            None => {}
        }
        if let Some(first) = missing.first() {
            diagnostic = diagnostic.secondary(first.span, format!("`{}` is declared here", first.name()));
        }
        self.report(diagnostic.help(
            "parameters that are not to be trained are declared `param frozen`, or left out behind `over`: `… over head with opt` trains `head` alone",
        ));
    }
}

/// The values that a parameter has had in a graph.
fn versions(frame: &Frame, cell: &Cell) -> Vec<ValueId> {
    let slot = frame.has_slot(cell).and_then(|slot| frame.slots.get(slot.0 as usize));
    slot.map_or_else(|| frame.gathers.views_of(cell).collect(), |slot| slot.versions.clone())
}

/// The op nearest to the loss that stands between it and a parameter, and its name. `None` where
/// the loss does not depend on the parameter at all.
fn cut_between(frame: &Frame, cell: &Arc<Cell>, losses: &[ValueId]) -> Option<(NodeId, &'static str)> {
    let graph = &frame.graph;
    let mut depends: FxHashSet<ValueId> = versions(frame, cell).into_iter().collect();
    for node in graph.nodes() {
        if node.args().iter().any(|a| depends.contains(a)) {
            depends.extend(node.results());
        }
    }
    let mut seen = FxHashSet::default();
    let mut todo: Vec<ValueId> = losses.iter().copied().filter(|v| depends.contains(v)).collect();
    let mut cut = None;
    while let Some(value) = todo.pop() {
        if !seen.insert(value) {
            continue;
        }
        let (node, _) = graph.producer(value);
        if lets_nothing_pass(graph, node.id) {
            // The one made last is the nearest.
            cut = cut.max(Some(node.id));
            continue;
        }
        todo.extend(node.args().iter().copied().filter(|a| depends.contains(a)));
    }
    let node = cut?;
    Some((node, graph.node(node).op().name()))
}

fn lets_nothing_pass(graph: &Graph, node: NodeId) -> bool {
    let node = graph.node(node);
    let steps = matches!(
        node.op(),
        Op::StopGrad(_) | Op::Unary(Unary::Floor | Unary::Ceil | Unary::Round | Unary::Sign)
    );
    steps || node.results().all(|r| !graph.ty(r).dtype().is_float())
}
