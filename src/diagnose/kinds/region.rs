//! Regions that are not pure: state that is written inside.

use crate::{
    codes,
    diagnose::{
        facts::Facts,
        finding::{Accept, Finding},
    },
    diagnostic::{Diagnostic, Severity},
    ir::{Policy, RegionId},
    ops::Op,
    source::Span,
};

pub fn find(facts: &Facts<'_>) -> Vec<Finding> {
    let written = facts.written;
    let mut seen: Vec<Span> = Vec::new();
    let mut all = Vec::new();
    for node in written.nodes() {
        // The unit of a sharded model is no region that computes anything again.
        let around = written.region_chain(node.region());
        let policy = |r: RegionId| written.regions.get(r.0 as usize).map(|r| &r.policy);
        let region = around.iter().rev().find(|&&r| policy(r) != Some(&Policy::Gathers));
        let (Op::Write(write), Some(region)) = (node.op(), region) else { continue };
        // What the library writes (the running statistics of a norm) is as it must be.
        let place = written.origins.get(node.origin()).span;
        let is_own = facts.sources.get(place.file).is_some_and(|f| !f.is_library);
        if !is_own || seen.contains(&place) {
            continue;
        }
        seen.push(place);
        let name = facts.slot_name(write.slot);
        let message = format!(
            "`{name}` is written inside a region: once per step, in the forward pass; computing the region again in the backward pass does not write again"
        );
        let diagnostic = Diagnostic::new(Severity::Note, codes::STATE_IN_REGION, place, message)
            .label("written once per step")
            .note("nothing to change for running statistics: this is what they need");
        let region = written.regions.get(region.0 as usize).and_then(|r| facts.user_span(r.origin));
        all.push(
            Finding::new(diagnostic, 0, Accept::Always).label(region, "computed again in the backward pass"),
        );
    }
    all
}
