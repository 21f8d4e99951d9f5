//! Units of a sharded model whose vector is used again at once: the last one of the forward pass, and
//! the last one of a `checkpoint` region, whose recompute the backward pass follows. To gather them once
//! may cost no memory.

use rustc_hash::FxHashMap;

use crate::{
    ir::{GradCallId, Graph, Policy, RegionId, Role},
    ops::{Barrier, BarrierKind, Op},
};

/// The graph with such units kept; `None` where there are none.
pub(super) fn kept_once(graph: &Graph) -> Option<Graph> {
    let is_unit =
        |region: RegionId| graph.regions.get(region.0 as usize).is_some_and(|r| r.policy == Policy::Gathers);
    // The backward pass meets the last unit of a region first.
    let mut first: FxHashMap<(GradCallId, Option<RegionId>), RegionId> = FxHashMap::default();
    for node in graph.nodes() {
        if let (Op::Barrier(Barrier { kind: BarrierKind::Region(region) }), Role::Backward { call, .. }) =
            (node.op(), node.role())
            && is_unit(*region)
        {
            let around = graph.regions.get(region.0 as usize).and_then(|r| r.parent);
            first.entry((call, around)).or_insert(*region);
        }
    }
    if first.is_empty() {
        return None;
    }
    let mut kept = graph.clone();
    for region in first.into_values() {
        if let Some(region) = kept.regions.get_mut(region.0 as usize) {
            region.policy = Policy::Everything;
        }
    }
    Some(kept)
}
