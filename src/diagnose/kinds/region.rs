//! Regions that are not pure: state that is written inside, collectives.

use crate::{
    codes,
    diagnose::{
        facts::Facts,
        finding::{Accept, Finding},
    },
    diagnostic::{Diagnostic, Severity},
    ir::{Node, Phase, Policy, RegionId},
    ops::Op,
    report::Bytes,
    source::Span,
};

pub fn find(facts: &Facts<'_>) -> Vec<Finding> {
    let mut all = states(facts);
    all.extend(collectives(facts));
    all
}

/// The innermost region that computes a node again.
fn region_of(facts: &Facts<'_>, node: &Node<'_>) -> Option<RegionId> {
    let written = facts.written;
    // The unit of a sharded model is no region that computes anything again.
    let policy = |r: RegionId| written.regions.get(r.0 as usize).map(|r| &r.policy);
    written.region_chain(node.region()).iter().rev().copied().find(|&r| policy(r) != Some(&Policy::Gathers))
}

fn place_of(facts: &Facts<'_>, region: RegionId) -> Option<Span> {
    facts.written.regions.get(region.0 as usize).and_then(|r| facts.user_span(r.origin))
}

fn states(facts: &Facts<'_>) -> Vec<Finding> {
    let written = facts.written;
    let mut seen: Vec<Span> = Vec::new();
    let mut all = Vec::new();
    for node in written.nodes() {
        let (Op::Write(write), Some(region)) = (node.op(), region_of(facts, &node)) else { continue };
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
        let region = place_of(facts, region);
        all.push(
            Finding::new(diagnostic, 0, Accept::Always).label(region, "computed again in the backward pass"),
        );
    }
    all
}

/// Collectives of the program: sent once, so their results are kept.
fn collectives(facts: &Facts<'_>) -> Vec<Finding> {
    let written = facts.written;
    if written.nodes().all(|n| n.role().phase() != Phase::Backward) {
        return Vec::new();
    }
    let mut found: Vec<(Span, Vec<Node<'_>>)> = Vec::new();
    for node in written.nodes() {
        let is_sent = matches!(node.op(), Op::CollectiveDone(done) if done.world > 1);
        // Units of a sharded model are gathered again.
        let start = node.args().first().map(|&started| written.producer(started).0);
        let is_unit = start.is_some_and(|start| written.gathers(&start).is_some());
        let is_own = node.role().phase() == Phase::Forward && !is_unit;
        let Some(place) = facts.span_of(node).filter(|_| is_sent && is_own) else { continue };
        if region_of(facts, &node).is_none() {
            continue;
        }
        match found.iter_mut().find(|(span, _)| *span == place) {
            Some((_, nodes)) => nodes.push(node),
            None => found.push((place, vec![node])),
        }
    }
    found.iter().filter_map(|(place, nodes)| kept(facts, *place, nodes)).collect()
}

fn kept(facts: &Facts<'_>, place: Span, nodes: &[Node<'_>]) -> Option<Finding> {
    let node = nodes.first()?;
    let Op::CollectiveDone(done) = node.op() else { return None };
    let ty = |n: &Node<'_>| facts.written.ty(n.result(0));
    let bytes: u64 = nodes.iter().map(|n| ty(n).bytes()).sum();
    let (name, size) = (done.kind.name(), ty(node));
    let one = Bytes(size.bytes());
    let results = match nodes.len() {
        1 => format!("its result, {size}, {one}, is"),
        n => format!("its {n} results, {size}, {one} each, are"),
    };
    let message = format!("`{name}` in a region is sent once per step: {results} kept for the backward pass");
    let diagnostic = Diagnostic::new(Severity::Note, codes::COLLECTIVE_IN_REGION, place, message)
        .label("kept, and not sent again")
        .note("to compute it again, all ranks would have to send it again");
    let region = region_of(facts, node).and_then(|r| place_of(facts, r));
    let finding = Finding::new(diagnostic, bytes, Accept::Always);
    Some(finding.label(region, "computed again in the backward pass"))
}
