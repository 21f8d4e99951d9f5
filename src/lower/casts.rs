//! Casts to a wider type that only element-wise ops read: each of them makes the cast itself, in its own
//! group, so that the narrow value waits for the later ones and not a wide copy of it. Without, the norm of
//! gradients in bf16 and their clipping would share a copy of all gradients in f32.

use rustc_hash::FxHashMap;

use super::fuse::is_elementwise;
use crate::{
    ir::{Graph, Node, NodeId, Phase, ValueId},
    ops::Op,
};

/// The results of such casts that have several users, with the first of them: it reads the cast that is
/// there.
pub(super) fn made_at_uses(graph: &Graph) -> FxHashMap<ValueId, NodeId> {
    let widening = graph.nodes().filter(|node| widens(graph, node)).map(|node| node.result(0));
    let mut users: FxHashMap<ValueId, Users> = widening.map(|value| (value, Users::default())).collect();
    if users.is_empty() {
        return FxHashMap::default();
    }
    for node in graph.nodes() {
        for arg in node.args() {
            let Some(users) = users.get_mut(arg) else { continue };
            let first = *users.first.get_or_insert(node.id);
            users.are_several |= first != node.id;
            users.is_stored |= !joins(graph, &node, &graph.producer(*arg).0);
        }
    }
    for output in &graph.outputs {
        users.remove(&output.value);
    }
    let apart = users.into_iter().filter(|(_, users)| users.are_several && !users.is_stored);
    apart.filter_map(|(value, users)| Some((value, users.first?))).collect()
}

/// Who reads a cast.
#[derive(Default)]
struct Users {
    first: Option<NodeId>,
    are_several: bool,
    /// One of them needs it in memory.
    is_stored: bool,
}

fn widens(graph: &Graph, node: &Node<'_>) -> bool {
    let (Op::Cast(cast), Some(from)) = (node.op(), node.arg_types().next()) else { return false };
    let is_wider = from.dtype().is_float() && cast.to.is_float() && from.dtype().size() < cast.to.size();
    // The states of an update are written in one go: its ops are in one group anyway.
    let is_apart = node.role().phase() != Phase::Update && node.after().is_empty();
    is_wider && is_apart && graph.ty(node.result(0)).elements() > 1
}

/// Whether a user of a cast can have it in its group.
fn joins(graph: &Graph, user: &Node<'_>, cast: &Node<'_>) -> bool {
    let shape = |n: &Node<'_>| graph.ty(n.result(0)).shape();
    is_elementwise(user.op())
        && user.role().phase() == cast.role().phase()
        && user.instance() == cast.instance()
        && shape(user) == shape(cast)
}
