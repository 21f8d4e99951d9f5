//! The canonical fusion: element-wise nodes join the group of their single consumer.
//!
//! A group has one shape, lies on one side of the line between forward, backward and update, and
//! belongs to one recompute. A node joins only if every use of its result is inside the group (a
//! commit to a persistent tensor counts as a store of the group), so no group depends on itself. A
//! node with several operands does not join one that waits for something made later: no fusion
//! makes more live longer. On a GPU, where each op is a launch, an update also takes what only it reads of the
//! passes before, sums of single numbers are joined however long they wait, and all numbers that are made of
//! scalars and constants alone are one group.

use rustc_hash::FxHashMap;

use super::layout::Laid;
use crate::{
    ir::{Graph, Node, NodeId, Role, SlotId, ValueId},
    ops::{Alias, Op},
    plan::Target,
};

/// More instructions than this are split: their registers would not stay in the cache.
const GROUP_LIMIT: u32 = 128;

/// Operands looked at to find out what a group reads.
const READS: usize = 32;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct GroupId(pub u32);

/// Ops that a fused program can hold. Scalars and constants are not among them: every program that
/// uses one reads it itself.
pub(super) fn is_elementwise(op: &Op) -> bool {
    op.is_elementwise() || matches!(op, Op::Iota(_) | Op::Random(_))
}

/// The group of each node; `None` for nodes that are not element-wise.
pub(super) fn groups(laid: &Laid, target: Target) -> Vec<Option<GroupId>> {
    let graph = &laid.graph;
    let mut fusion = Fusion {
        graph,
        launches: target == Target::Cuda,
        group_of: vec![None; graph.len()],
        sizes: Vec::new(),
        uses: vec![Use::Nothing; graph.value_count()],
        updates: FxHashMap::default(),
        of_scalars: if target == Target::Cuda { of_scalars(graph) } else { vec![false; graph.len()] },
        scalars: None,
    };
    for output in &graph.outputs {
        fusion.note(output.value.0, Use::Memory);
    }
    // What others wait for is complete on its own: they may stand before the rest of a group. A commit
    // is complete when its value is.
    for awaited in graph.nodes().flat_map(|n| n.after().iter().copied()) {
        let awaited = graph.node(awaited);
        let committed = awaited.args().iter().copied().filter(|_| matches!(awaited.op(), Op::Write(_)));
        for value in awaited.results().chain(committed) {
            fusion.note(value.0, Use::Memory);
        }
    }
    for node in graph.nodes().rev() {
        fusion.visit(&node);
    }
    fusion.group_of
}

/// Who uses a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Use {
    Nothing,
    /// Only nodes of this group.
    Group(GroupId),
    /// Somebody who needs it in memory.
    Memory,
}

struct Fusion<'g> {
    graph: &'g Graph,
    /// Each op is a launch.
    launches: bool,
    group_of: Vec<Option<GroupId>>,
    sizes: Vec<u32>,
    /// Of each value; commits are left out.
    uses: Vec<Use>,
    /// The group of a parameter's update, by shape: its states are written in one go.
    updates: FxHashMap<(SlotId, Box<[usize]>), GroupId>,
    /// Nodes that need nothing but scalars and constants, and the group of those that others have to find in
    /// memory. It waits for nothing, so it never waits for itself.
    of_scalars: Vec<bool>,
    scalars: Option<GroupId>,
}

/// The element-wise nodes with one element whose operands are scalars, constants, or such nodes.
fn of_scalars(graph: &Graph) -> Vec<bool> {
    let mut of_scalars = vec![false; graph.len()];
    for node in graph.nodes() {
        let is_free = |arg: &ValueId| {
            let (maker, _) = graph.producer(*arg);
            matches!(maker.op(), Op::Const(_) | Op::Scalar(_))
                || of_scalars.get(maker.id.0 as usize).copied().unwrap_or(false)
        };
        let is_number = node.op().is_elementwise()
            && graph.ty(node.result(0)).shape().is_empty()
            && node.instance() == 0
            && node.after().is_empty();
        let is_one = is_number && node.args().iter().all(is_free);
        if let Some(entry) = of_scalars.get_mut(node.id.0 as usize) {
            *entry = is_one;
        }
    }
    of_scalars
}

impl Fusion<'_> {
    fn visit(&mut self, node: &Node<'_>) {
        if !is_elementwise(node.op()) {
            let is_commit = matches!(node.op(), Op::Write(_));
            for arg in node.args().iter().filter(|_| !is_commit) {
                self.note(arg.0, Use::Memory);
            }
            return;
        }
        let group = self.choose(node);
        if let Some(entry) = self.group_of.get_mut(node.id.0 as usize) {
            *entry = Some(group);
        }
        if let Some(size) = self.sizes.get_mut(group.0 as usize) {
            *size += 1;
        }
        for &arg in node.args() {
            // Only an operand that is read as it was made can stay in a register.
            let (producer, _) = self.graph.producer(arg);
            let used = if is_elementwise(producer.op())
                && self.same_domain(node, &producer)
                && !self.would_hold(node, &producer)
            {
                Use::Group(group)
            } else {
                Use::Memory
            };
            self.note(arg.0, used);
        }
    }

    fn choose(&mut self, node: &Node<'_>) -> GroupId {
        let used = self.uses.get(node.result(0).0 as usize).copied().unwrap_or(Use::Memory);
        let has_room = |sizes: &[u32], g: GroupId| sizes.get(g.0 as usize).is_some_and(|&s| s < GROUP_LIMIT);
        if let Use::Group(group) = used
            && has_room(&self.sizes, group)
        {
            return group;
        }
        let is_scalar = self.of_scalars.get(node.id.0 as usize) == Some(&true) && used == Use::Memory;
        if is_scalar && let Some(group) = self.scalars.filter(|&group| has_room(&self.sizes, group)) {
            return group;
        }
        let key = match (node.role(), used) {
            (Role::Update { slot }, Use::Nothing) => {
                Some((slot, Box::from(self.graph.ty(node.result(0)).shape())))
            }
            _ => None,
        };
        if let Some(&group) = key.as_ref().and_then(|k| self.updates.get(k))
            && has_room(&self.sizes, group)
        {
            return group;
        }
        let group = GroupId(self.sizes.len() as u32);
        self.sizes.push(0);
        if let Some(key) = key {
            self.updates.insert(key, group);
        }
        if is_scalar {
            self.scalars = Some(group);
        }
        group
    }

    fn same_domain(&self, a: &Node<'_>, b: &Node<'_>) -> bool {
        let shape = |n: &Node<'_>| self.graph.ty(n.result(0)).shape();
        let takes = self.launches && matches!(a.role(), Role::Update { .. });
        (a.role().phase() == b.role().phase() || takes)
            && a.instance() == b.instance()
            && shape(a) == shape(b)
    }

    /// In the group of `node`, `producer` would wait for an operand of `node` that is made later,
    /// and keep two values until then instead of its own one: as in a sum of gradients that come one
    /// after another. What only is viewed later is there already.
    fn would_hold(&self, node: &Node<'_>, producer: &Node<'_>) -> bool {
        let is_number = self.graph.ty(producer.result(0)).elements() == 1;
        if self.launches && is_number {
            return false;
        }
        !matches!(producer.role(), Role::Update { .. })
            && self.reads_several(producer)
            && self.waits(node, producer)
    }

    /// Whether an operand of a node is made later than `producer`: by an op that is not element-wise, or of what
    /// such an op makes, as a cast of it is.
    fn waits(&self, node: &Node<'_>, producer: &Node<'_>) -> bool {
        let mut todo: Vec<ValueId> = node.args().to_vec();
        for _ in 0..READS {
            let Some(arg) = todo.pop() else { return false };
            let (maker, _) = self.viewed(arg);
            // What is made of nothing is there whenever it is needed.
            let is_there = maker.args().is_empty();
            if maker.id <= producer.id || is_there {
                continue;
            }
            if !is_elementwise(maker.op()) {
                return true;
            }
            todo.extend_from_slice(maker.args());
        }
        true
    }

    /// Whether a node and the element-wise ones that may join it read more than one value as large as
    /// its result.
    fn reads_several(&self, node: &Node<'_>) -> bool {
        let size = self.graph.ty(node.result(0)).elements();
        let mut first = None;
        let mut todo: Vec<ValueId> = node.args().to_vec();
        for _ in 0..READS {
            let Some(arg) = todo.pop() else { return false };
            let (maker, result) = self.viewed(arg);
            let value = maker.result(result);
            let is_stored =
                !matches!(maker.op(), Op::Read(_) | Op::Const(_) | Op::Literal(_) | Op::Scalar(_));
            // What is broadcast is smaller than the result.
            if !is_stored || self.graph.ty(value).elements() < size || first == Some(value) {
                continue;
            }
            if is_elementwise(maker.op()) && self.same_domain(node, &maker) {
                todo.extend_from_slice(maker.args());
            } else if first.replace(value).is_some() {
                return true;
            }
        }
        true
    }

    /// The node that makes what `value` is a view of, and as which of its results.
    fn viewed(&self, value: ValueId) -> (Node<'_>, usize) {
        let mut made = self.graph.producer(value);
        while made.0.op().memory().alias == Alias::View
            && let Some(&operand) = made.0.args().first()
        {
            made = self.graph.producer(operand);
        }
        made
    }

    fn note(&mut self, value: u32, used: Use) {
        if let Some(entry) = self.uses.get_mut(value as usize) {
            *entry = match *entry {
                Use::Nothing => used,
                same if same == used => used,
                _ => Use::Memory,
            };
        }
    }
}

/// The nodes of each group, in order.
pub(super) fn members(group_of: &[Option<GroupId>]) -> Vec<Vec<NodeId>> {
    let count = group_of.iter().flatten().map(|g| g.0 as usize + 1).max().unwrap_or(0);
    let mut members = vec![Vec::new(); count];
    for (i, group) in group_of.iter().enumerate() {
        if let Some(list) = group.and_then(|g| members.get_mut(g.0 as usize)) {
            list.push(NodeId(i as u32));
        }
    }
    members
}
