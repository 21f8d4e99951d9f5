//! Kept by a cast: copies of parameters in another dtype that live from the forward to the backward
//! pass.

use super::{Holding, held, is_large};
use crate::{
    codes,
    diagnose::{
        blame::Keeper,
        facts::Facts,
        finding::{Accept, Finding},
        recompute,
    },
    diagnostic::Severity,
    ir::{Phase, ValueId},
    ops::Op,
    report::Bytes,
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
    Some(finding.candidates(all))
}

/// The parameter that a value is a cast of, and the dtype that it was cast to.
fn cast_of(facts: &Facts<'_>, value: ValueId) -> Option<(String, crate::ir::DType)> {
    let graph = &facts.plan.graph;
    let maker = graph.producer(value).0;
    let (Op::Cast(_), Some(&arg)) = (maker.op(), maker.args().first()) else { return None };
    let Op::Read(read) = graph.producer(facts.base(arg)).0.op() else { return None };
    Some((facts.slot_name(read.slot), graph.ty(value).dtype()))
}
