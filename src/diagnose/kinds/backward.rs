//! Kept by the backward pass, though it could be had again for next to nothing: random masks, wider
//! copies, results of norms and element-wise functions whose input is kept, too.

use super::{Holding, held, is_large};
use crate::{
    codes,
    diagnose::{
        blame::{self, Keeper},
        facts::Facts,
        finding::{Accept, Finding},
        recompute,
    },
    diagnostic::Severity,
    ir::{Graph, Node, Phase, ValueId},
    ops::{Alias, Op},
    report::Bytes,
    schedule::BufferId,
};

/// Nodes looked at to find out what a value depends on.
const STEPS: usize = 64;
/// Advice on how to spend time for memory is only given where it buys something.
const ADVICE: f64 = 0.05;

pub fn find(facts: &Facts<'_>, holdings: &[Holding]) -> Vec<Finding> {
    holdings.iter().filter_map(|h| of_holding(facts, h)).collect()
}

fn of_holding(facts: &Facts<'_>, holding: &Holding) -> Option<Finding> {
    let buffer = holding.blame.buffer;
    let is_kept = matches!(holding.blame.keeper, Keeper::Gradient | Keeper::Recompute);
    if !is_kept || !is_large(facts, holding.bytes) || facts.phase(buffer) != Some(Phase::Forward) {
        return None;
    }
    let maker = facts.maker(buffer)?;
    if maker.instance() != 0 {
        return None;
    }
    let name = format!("`{}`", blame::code(facts, holding.blame.born?));
    let total = Bytes(holding.bytes);
    let many = holding.buffers.len() > 1;
    let is_are = if many { "are" } else { "is" };
    let (code, severity, message, share) = if is_random(&facts.plan.graph, facts.value(buffer)?) {
        let message = format!(
            "the random numbers of {name}, {total}, are kept from the forward to the backward pass, which could draw the same ones again"
        );
        (codes::KEPT_MASK, Severity::Warning, message, super::SMALL)
    } else if let Some(from) = widened_from(facts, maker) {
        let to = facts.ty(buffer)?.dtype();
        let what = if many { "copies" } else { "a copy" };
        let message = format!(
            "{what} of {from} values in {to}, {total}, {is_are} kept from the forward to the backward pass, which could cast the {from} values again"
        );
        (codes::KEPT_UPCAST, Severity::Warning, message, super::SMALL)
    } else if is_cheap(maker) && input_is_kept(facts, maker, buffer) {
        let both = if is_norm(maker.op()) { "a norm" } else { "an element-wise op" };
        let message = format!(
            "the input and the output of {both} are both kept for the backward pass: the output, {name}, {total}, could be computed again"
        );
        (codes::KEPT_TWICE, Severity::Note, message, ADVICE)
    } else {
        return None;
    };
    let accept = Accept::PeakFalls(share);
    let finding = held(facts, holding, code, severity, message, accept)?;
    let born = holding.blame.born?;
    let plain = (code == codes::KEPT_MASK).then(|| recompute::plain(facts.tree, born)).flatten();
    let hoisted = (code == codes::KEPT_MASK).then(|| recompute::behind_argument(facts.tree, born)).flatten();
    Some(finding.candidates(hoisted).candidates(plain).candidates(recompute::cheap(facts.tree, born)))
}

/// Whether a value depends on nothing but random numbers and constants.
fn is_random(graph: &Graph, value: ValueId) -> bool {
    let mut todo = vec![value];
    let mut steps = 0;
    let mut found = false;
    while let Some(value) = todo.pop() {
        steps += 1;
        let node = graph.producer(value).0;
        match node.op() {
            Op::Random(_) => found = true,
            Op::Const(_) | Op::Literal(_) | Op::Iota(_) | Op::Scalar(_) => {}
            Op::Unary(_) | Op::Binary(_) | Op::Select(_) | Op::Cast(_) => todo.extend(node.args()),
            op if op.memory().alias == Alias::View => todo.extend(node.args()),
            _ => return false,
        }
        if steps > STEPS {
            return false;
        }
    }
    found
}

/// The dtype of what a value was cast from, where that is narrower and no parameter.
fn widened_from(facts: &Facts<'_>, maker: Node<'_>) -> Option<crate::ir::DType> {
    let (Op::Cast(_), Some(&arg)) = (maker.op(), maker.args().first()) else { return None };
    let graph = &facts.plan.graph;
    let (from, to) = (graph.ty(arg).dtype(), graph.ty(maker.result(0)).dtype());
    let is_parameter = matches!(graph.producer(facts.base(arg)).0.op(), Op::Read(_));
    (from.is_float() && to.is_float() && from.size() < to.size() && !is_parameter).then_some(from)
}

fn is_norm(op: &Op) -> bool {
    matches!(op, Op::LayerNorm(_) | Op::RmsNorm(_) | Op::BatchNorm(_))
}

fn is_cheap(maker: Node<'_>) -> bool {
    is_norm(maker.op()) || matches!(maker.op(), Op::Unary(_) | Op::Binary(_) | Op::Select(_) | Op::Softmax(_))
}

/// Whether a large input of a node is alive at the peak beside its result.
fn input_is_kept(facts: &Facts<'_>, maker: Node<'_>, made: BufferId) -> bool {
    let bytes = facts.bytes(made);
    let inputs: Vec<ValueId> = maker.args().iter().map(|&a| facts.base(a)).collect();
    facts
        .at_peak
        .iter()
        .any(|&b| b != made && facts.bytes(b) >= bytes && facts.value(b).is_some_and(|v| inputs.contains(&v)))
}
