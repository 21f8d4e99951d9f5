//! Moves reads of parameters, inputs and scalars out of the regions in which they were met first.
//!
//! What they give is there before the step starts and belongs to no region, but a graph that grows
//! only at its end puts them in the middle of one, whose nodes must be contiguous.

use std::ops::Range;

use crate::{
    ir::{Graph, Node, NodeId, Output, Role, ValueId},
    ops::OpError,
};

/// The same graph with every node that belongs to no region outside of all of them.
pub(super) fn hoist_leaves(graph: &Graph) -> Result<Option<Graph>, OpError> {
    let outermost: Vec<Range<u32>> = graph
        .regions
        .iter()
        .filter(|r| r.parent.is_none() && !r.nodes.is_empty())
        .map(|r| r.nodes.clone())
        .collect();
    let is_stray = |node: &Node<'_>| node.region().is_none() && node.args().is_empty();
    let inside = |range: &Range<u32>| graph.nodes().skip(range.start as usize).take(range.len());
    if !outermost.iter().any(|range| inside(range).any(|n| is_stray(&n))) {
        return Ok(None);
    }
    let mut order: Vec<NodeId> = Vec::with_capacity(graph.len());
    let mut next = 0u32;
    for range in &outermost {
        // Regions are in source order; what lies between two of them stays where it is.
        order.extend((next..range.start).map(NodeId));
        order.extend(inside(range).filter(is_stray).map(|n| n.id));
        order.extend(inside(range).filter(|n| !is_stray(n)).map(|n| n.id));
        next = next.max(range.end);
    }
    order.extend((next..graph.len() as u32).map(NodeId));
    rebuild(graph, &order).map(Some)
}

fn rebuild(graph: &Graph, order: &[NodeId]) -> Result<Graph, OpError> {
    let fault = || OpError::new("internal: a node is used before it is made");
    let mut nodes = vec![NodeId(0); graph.len()];
    for (new, old) in order.iter().enumerate() {
        *nodes.get_mut(old.0 as usize).ok_or_else(fault)? = NodeId(new as u32);
    }
    let node = |old: NodeId| nodes.get(old.0 as usize).copied().unwrap_or(old);
    let mut values: Vec<Option<ValueId>> = vec![None; graph.value_count()];
    let mut new = graph.skeleton();
    for &id in order {
        let old = graph.node(id);
        let args = old
            .args()
            .iter()
            .map(|a| values.get(a.0 as usize).copied().flatten().ok_or_else(fault))
            .collect::<Result<Vec<_>, _>>()?;
        let after: Vec<NodeId> = old.after().iter().map(|&a| node(a)).collect();
        new.cursor = old.stamp();
        if let Role::Backward { of, call } = new.cursor.role {
            new.cursor.role = Role::Backward { of: node(of), call };
        }
        let made = new.push_after(old.op().clone(), &args, &after)?;
        for (from, to) in old.results().zip(new.node(made).results()) {
            *values.get_mut(from.0 as usize).ok_or_else(fault)? = Some(to);
        }
    }
    let value = |old: ValueId| values.get(old.0 as usize).copied().flatten().unwrap_or(old);
    for (region, old) in new.regions.iter_mut().zip(&graph.regions) {
        region.keep = old.keep.iter().map(|&v| value(v)).collect();
        region.outputs = old.outputs.iter().map(|&v| value(v)).collect();
        let mut own = (old.nodes.start..old.nodes.end)
            .map(NodeId)
            .filter(|&id| graph.node(id).region().is_some())
            .map(|id| node(id).0);
        region.nodes = match own.next() {
            Some(first) => {
                let (low, high) = own.fold((first, first), |(low, high), id| (low.min(id), high.max(id)));
                low..high + 1
            }
            None => 0..0,
        };
    }
    new.outputs = graph
        .outputs
        .iter()
        .map(|o| Output { name: o.name.clone(), value: value(o.value), origin: o.origin })
        .collect();
    new.names = graph.names.iter().map(|(&v, name)| (value(v), name.clone())).collect();
    new.marks = graph.marks.iter().map(|(&v, name)| (value(v), name.clone())).collect();
    new.cursor = graph.cursor;
    Ok(new)
}
