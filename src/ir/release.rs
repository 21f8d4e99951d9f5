//! The edges of a `release`.

use std::ops::Range;

use rustc_hash::FxHashSet;

use super::{Graph, NodeId, ValueId};
use crate::ops::{Alias, Op};

impl Graph {
    /// Lets the nodes of a range wait for the users of a released value.
    pub fn order_release(&mut self, users: &[NodeId], nodes: Range<u32>) {
        // Only the first op of each chain needs the edge: what uses its result follows it. Views and
        // leaves take no time of their own, so an edge on them would order nothing.
        let mut ordered: FxHashSet<ValueId> = FxHashSet::default();
        let mut late: Vec<NodeId> = Vec::new();
        for node in self.nodes_from(NodeId(nodes.start)).take_while(|n| n.id.0 < nodes.end) {
            let follows = node.args().iter().any(|a| ordered.contains(a));
            let is_leaf = matches!(
                node.op(),
                Op::Read(_) | Op::Input(_) | Op::Const(_) | Op::Scalar(_) | Op::Literal(_)
            );
            if !follows && (is_leaf || node.op().memory().alias == Alias::View) {
                continue;
            }
            if !follows {
                late.push(node.id);
            }
            ordered.extend(node.results());
        }
        for node in late {
            let mut after = self.node(node).after().to_vec();
            after.extend(users);
            after.sort_unstable();
            after.dedup();
            self.set_after(node, &after);
        }
    }
}
