//! Fuses parameter updates into the backward pass.
//!
//! An update can run as soon as its gradient is complete and the old value has been read for the
//! last time, unless it needs all gradients together (clipping). Here updates move to that place in
//! the source order, and barriers that wait for a parameter's gradient wait for its update instead:
//! then the gradient itself is gone too.

use std::{cmp::Reverse, collections::BinaryHeap};

use crate::{
    ir::{Graph, Node, NodeId, Output, Role, SlotId, ValueId},
    ops::{Alias, Barrier, BarrierKind, Binary, Op, OpError},
};

/// How many nodes of an update are looked at for one gradient.
const SEARCH_LIMIT: usize = 256;

pub(super) fn bind_updates(mut graph: Graph) -> Result<Graph, OpError> {
    let plan = Readiness::of(&graph);
    let mut changes = Vec::new();
    for node in graph.nodes() {
        let Op::Barrier(Barrier { kind: BarrierKind::Recompute | BarrierKind::StepBack }) = node.op() else {
            continue;
        };
        let mut after = Vec::new();
        for &contribution in node.after() {
            match plan.updates_with(&graph, contribution, node.id) {
                Some(writes) => after.extend(writes),
                None => after.push(contribution),
            }
        }
        after.sort_unstable();
        after.dedup();
        if after != node.after() {
            changes.push((node.id, after));
        }
    }
    for (node, after) in changes {
        graph.set_after(node, &after);
    }
    reorder(&graph, &plan.ready)
}

/// When the nodes of updates can run.
struct Readiness {
    /// Of each node, the position in source order from which it can run: its own for nodes that
    /// are not part of an update.
    ready: Vec<u32>,
    /// Users of each value, in CSR form.
    user_starts: Vec<u32>,
    users: Vec<NodeId>,
}

impl Readiness {
    fn of(graph: &Graph) -> Self {
        let (user_starts, users) = users(graph);
        let mut readiness = Readiness { ready: (0..graph.len() as u32).collect(), user_starts, users };
        let mut last_reader = vec![0; graph.slots.len()];
        for node in graph.nodes() {
            if let Op::Read(read) = node.op() {
                let reader = readiness.last_reader(graph, node.result(0));
                if let Some(entry) = last_reader.get_mut(read.slot.0 as usize) {
                    *entry = reader.max(*entry);
                }
            }
        }
        for node in graph.nodes().filter(is_update) {
            let operands = node.args().iter().map(|&a| graph.producer(a).0.id);
            let mut ready =
                operands.chain(node.after().iter().copied()).map(|n| readiness.at(n)).max().unwrap_or(0);
            if let Some(slot) = written_slot(&node) {
                ready = ready.max(last_reader.get(slot.0 as usize).copied().unwrap_or(0));
            }
            if let Some(entry) = readiness.ready.get_mut(node.id.0 as usize) {
                *entry = ready;
            }
        }
        readiness.join_updates(graph);
        readiness
    }

    /// Lets all nodes of a parameter's update run when the last of them can: they become one kernel,
    /// which writes in place. Nodes that other updates use too (a learning rate) stay where they are.
    fn join_updates(&mut self, graph: &Graph) {
        let mut whole = vec![0; graph.slots.len()];
        let slot_of = |node: &Node<'_>| match node.role() {
            Role::Update { slot } => Some(slot),
            _ => None,
        };
        for node in graph.nodes().filter(|n| written_slot(n).is_some()) {
            if let Some(entry) = slot_of(&node).and_then(|s| whole.get_mut(s.0 as usize)) {
                *entry = self.at(node.id).max(*entry);
            }
        }
        let mut is_own = vec![false; graph.len()];
        for node in graph.nodes().rev() {
            let Some(slot) = slot_of(&node) else { continue };
            let mut users = node.results().flat_map(|r| self.users(r)).map(|&user| (user, graph.node(user)));
            let own = written_slot(&node).is_some()
                || users.all(|(id, user)| slot_of(&user) == Some(slot) && is_own[id.0 as usize]);
            is_own[node.id.0 as usize] = own;
        }
        for node in graph.nodes() {
            if let (Some(slot), true) = (slot_of(&node), is_own[node.id.0 as usize]) {
                self.ready[node.id.0 as usize] = whole[slot.0 as usize];
            }
        }
    }

    fn at(&self, node: NodeId) -> u32 {
        self.ready.get(node.0 as usize).copied().unwrap_or(u32::MAX)
    }

    fn users(&self, value: ValueId) -> &[NodeId] {
        let index = value.0 as usize;
        match (self.user_starts.get(index), self.user_starts.get(index + 1)) {
            (Some(&a), Some(&b)) => self.users.get(a as usize..b as usize).unwrap_or_default(),
            _ => &[],
        }
    }

    /// The last node, outside of updates, that reads the memory of `value`, directly or through
    /// views and barriers.
    fn last_reader(&self, graph: &Graph, value: ValueId) -> u32 {
        let mut last = 0;
        let mut work = vec![value];
        while let Some(value) = work.pop() {
            for &user in self.users(value) {
                let node = graph.node(user);
                if is_update(&node) {
                    continue;
                }
                last = last.max(user.0);
                if node.op().memory().alias != Alias::Fresh {
                    work.extend(node.results());
                }
            }
        }
        last
    }

    /// The writes that use up the result of `contribution`, if all its uses are updates that can run
    /// before `barrier`.
    fn updates_with(&self, graph: &Graph, contribution: NodeId, barrier: NodeId) -> Option<Vec<NodeId>> {
        let mut writes = Vec::new();
        let mut work: Vec<NodeId> = vec![contribution];
        let mut seen: Vec<NodeId> = vec![contribution];
        while let Some(id) = work.pop() {
            for result in graph.node(id).results() {
                for &user in self.users(result) {
                    let node = graph.node(user);
                    if written_slot(&node).is_some() {
                        if self.at(user) >= barrier.0 {
                            return None;
                        }
                        if !writes.contains(&user) {
                            writes.push(user);
                        }
                    } else if is_update(&node) || (user < barrier && passes_gradient(&node)) {
                        if !seen.contains(&user) {
                            if seen.len() == SEARCH_LIMIT {
                                return None;
                            }
                            seen.push(user);
                            work.push(user);
                        }
                    } else {
                        return None;
                    }
                }
            }
        }
        (!writes.is_empty()).then_some(writes)
    }
}

fn is_update(node: &Node<'_>) -> bool {
    matches!(node.role(), Role::Update { .. })
}

fn written_slot(node: &Node<'_>) -> Option<SlotId> {
    match node.op() {
        Op::Write(write) => Some(write.slot),
        _ => None,
    }
}

/// Views, casts and running sums on the way from a contribution to the whole gradient.
fn passes_gradient(node: &Node<'_>) -> bool {
    matches!(node.role(), Role::Backward { .. })
        && (node.op().memory().alias == Alias::View
            || matches!(node.op(), Op::Cast(_) | Op::Binary(Binary::Add)))
}

/// Users of each value, in CSR form: starts and items.
fn users(graph: &Graph) -> (Vec<u32>, Vec<NodeId>) {
    let mut starts = vec![0u32; graph.value_count() + 1];
    for node in graph.nodes() {
        for arg in node.args() {
            if let Some(count) = starts.get_mut(arg.0 as usize + 1) {
                *count += 1;
            }
        }
    }
    let mut total = 0;
    for start in &mut starts {
        total += *start;
        *start = total;
    }
    let mut next = starts.clone();
    let mut items = vec![NodeId(0); total as usize];
    for node in graph.nodes() {
        for arg in node.args() {
            if let Some(slot) = next.get_mut(arg.0 as usize) {
                if let Some(item) = items.get_mut(*slot as usize) {
                    *item = node.id;
                }
                *slot += 1;
            }
        }
    }
    (starts, items)
}

/// Puts the nodes into the topological order that follows `key` as closely as it can.
fn reorder(graph: &Graph, key: &[u32]) -> Result<Graph, OpError> {
    let mut waiting = vec![0u32; graph.len()];
    let mut followers: Vec<Vec<NodeId>> = vec![Vec::new(); graph.len()];
    for node in graph.nodes() {
        let before = node.args().iter().map(|&a| graph.producer(a).0.id).chain(node.after().iter().copied());
        for before in before {
            followers[before.0 as usize].push(node.id);
            waiting[node.id.0 as usize] += 1;
        }
    }
    // Among nodes with the same key, those of the update come last: they wait for the node itself.
    let rank = |n: NodeId| Reverse((key[n.0 as usize], key[n.0 as usize] != n.0, n));
    let mut ready: BinaryHeap<_> =
        graph.nodes().filter(|n| waiting[n.id.0 as usize] == 0).map(|n| rank(n.id)).collect();
    let mut new = graph.skeleton();
    new.regions = graph.regions.clone();
    let mut values = vec![ValueId(0); graph.value_count()];
    let mut nodes = vec![NodeId(0); graph.len()];
    while let Some(Reverse((_, _, id))) = ready.pop() {
        let node = graph.node(id);
        let args: Vec<ValueId> = node.args().iter().map(|a| values[a.0 as usize]).collect();
        let after: Vec<NodeId> = node.after().iter().map(|a| nodes[a.0 as usize]).collect();
        new.cursor = node.stamp();
        if let Role::Backward { of, call } = node.role() {
            new.cursor.role = Role::Backward { of: nodes[of.0 as usize], call };
        }
        let copy = new.push_copy(&node, node.op().clone(), &args, &after)?;
        nodes[id.0 as usize] = copy;
        for (old, result) in node.results().zip(new.node(copy).results()) {
            values[old.0 as usize] = result;
        }
        for &follower in &followers[id.0 as usize] {
            let count = &mut waiting[follower.0 as usize];
            *count -= 1;
            if *count == 0 {
                ready.push(rank(follower));
            }
        }
    }
    if new.len() != graph.len() {
        return Err(OpError::new("internal: the barriers of the step form a cycle"));
    }
    new.outputs =
        graph.outputs.iter().map(|o| Output { value: values[o.value.0 as usize], ..o.clone() }).collect();
    new.names = graph.names.iter().map(|(v, name)| (values[v.0 as usize], name.clone())).collect();
    Ok(new)
}
