//! Kept by a cast: copies of parameters in another dtype that live from the forward to the backward
//! pass.

use super::{Holding, held, is_large};
use crate::{
    codes,
    diagnose::{
        blame::Keeper,
        facts::Facts,
        finding::{Accept, Candidate, Finding},
        recompute,
        tree::{Tree, insert},
    },
    diagnostic::{Edit, Severity},
    ir::{Node, Phase, ValueId},
    ops::Op,
    report::Bytes,
    source::Span,
    syntax::ast::{BinaryOp, ExprId, ExprKind},
};

pub fn find(facts: &Facts<'_>, holdings: &[Holding]) -> Vec<Finding> {
    holdings.iter().filter_map(|h| of_holding(facts, h)).collect()
}

fn of_holding(facts: &Facts<'_>, holding: &Holding) -> Option<Finding> {
    let buffer = holding.blame.buffer;
    let is_kept = matches!(holding.blame.keeper, Keeper::Gradient | Keeper::Recompute);
    if !is_kept || !is_large(facts, holding.bytes) || facts.phase(buffer) != Some(Phase::Forward) {
        return None;
    }
    let (parameter, to) = cast_of(facts, facts.value(buffer)?)?;
    let what = match holding.buffers.len() {
        1 => format!("a {to} copy of `{parameter}` is"),
        n => format!("{to} copies of {n} parameters are"),
    };
    let message = format!(
        "{what} kept from the forward to the backward pass, {}; casting again costs little",
        Bytes(holding.bytes)
    );
    let finding =
        held(facts, holding, codes::KEPT_CAST, Severity::Warning, message, Accept::PeakFalls(super::SMALL))?;
    let mut all = recompute::cheap(facts.tree, holding.blame.born?);
    // The cast may stand in a line of its own: then the line that uses it must be in the region.
    for &user in facts.users(facts.value(buffer)?) {
        let user = facts.plan.graph.node(user);
        if user.role().phase() == Phase::Forward
            && let Some(span) = facts.span_of(user)
        {
            all.extend(recompute::cheap(facts.tree, span));
        }
    }
    all.extend(at_uses(facts, holding));
    Some(finding.candidates(all))
}

/// A cast that stands before its uses, made at each of them instead, in a region: taken away where it is,
/// written around the operands of the products that use it.
fn at_uses(facts: &Facts<'_>, holding: &Holding) -> Vec<Candidate> {
    let tree = facts.tree;
    let Some((cast, inner)) = holding.blame.born.and_then(|born| called(tree, born)) else {
        return Vec::new();
    };
    let mut operands: Vec<(Span, ExprId)> = Vec::new();
    for value in holding.buffers.iter().filter_map(|&b| facts.value(b)) {
        for &user in facts.users(value) {
            let user = facts.plan.graph.node(user);
            if user.role().phase() != Phase::Forward {
                continue;
            }
            let Some((place, operand)) = operand_of(facts, user, value) else { return Vec::new() };
            // The cast may stand in the product itself: then a region around that does it.
            if tree.expressions_around(cast).contains(&operand) {
                return Vec::new();
            }
            if !operands.contains(&(place, operand)) {
                operands.push((place, operand));
            }
        }
    }
    let Some(&(first, _)) = operands.first() else { return Vec::new() };
    let of_cast = tree.ast.expr(cast).span;
    let head = tree.text(Span { end: inner.start, ..of_cast });
    let taken = Edit { span: of_cast, text: tree.text(inner).to_owned() };
    let around = |place: Span, way: usize| recompute::cheap(tree, place).into_iter().nth(way);
    let mut all = Vec::new();
    for way in 0..recompute::cheap(tree, first).len() {
        let mut edits = vec![taken.clone()];
        for &(place, operand) in &operands {
            let Some(region) = around(place, way).or_else(|| around(place, 0)) else { break };
            let [open, close] = region.edits.as_slice() else { break };
            let span = tree.ast.expr(operand).span;
            let (start, end) =
                (insert(span, span.start, head.to_owned()), insert(span, span.end, ")".into()));
            edits.extend([open.clone(), start, end, close.clone()]);
        }
        if edits.len() == 1 + 4 * operands.len() {
            all.push(Candidate::new("cast at each use, and again in the backward pass", edits));
        }
    }
    all
}

/// A call with one argument: the call, and the place of the argument.
fn called(tree: &Tree<'_>, span: Span) -> Option<(ExprId, Span)> {
    let call = tree.expr_at(span)?;
    let ExprKind::Call { args, .. } = &tree.ast.expr(call).kind else { return None };
    let [arg] = args.as_slice() else { return None };
    arg.name.is_none().then(|| (call, tree.ast.expr(arg.value).span))
}

/// Where a product stands, and its operand that is a value.
fn operand_of(facts: &Facts<'_>, user: Node<'_>, value: ValueId) -> Option<(Span, ExprId)> {
    let tree = facts.tree;
    let place = facts.span_of(user)?;
    let ExprKind::Binary { op: BinaryOp::MatMul, left, right, .. } = tree.ast.expr(tree.expr_at(place)?).kind
    else {
        return None;
    };
    let is_it = |k: usize| user.args().get(k).is_some_and(|&a| facts.base(a) == facts.base(value));
    match (matches!(user.op(), Op::MatMul(_)), is_it(0), is_it(1)) {
        (true, true, false) => Some((place, left)),
        (true, false, true) => Some((place, right)),
        _ => None,
    }
}

/// The parameter that a value is a cast of, and the dtype that it was cast to.
fn cast_of(facts: &Facts<'_>, value: ValueId) -> Option<(String, crate::ir::DType)> {
    let graph = &facts.plan.graph;
    let maker = graph.producer(value).0;
    let (Op::Cast(_), Some(&arg)) = (maker.op(), maker.args().first()) else { return None };
    let Op::Read(read) = graph.producer(facts.base(arg)).0.op() else { return None };
    Some((facts.slot_name(read.slot), graph.ty(value).dtype()))
}
