//! Removes what nobody uses and merges what is computed twice. Regions stay, with what is left of them.
//!
//! Nothing is merged across a barrier (what comes out of one is another value), between a recompute
//! and its original (their instances differ), nor between forward and backward pass, where it would
//! keep a value alive to save a cheap op.

use std::hash::{Hash, Hasher};

use rustc_hash::{FxHashMap, FxHasher};

use crate::{
    ir::{Graph, Node, NodeId, Output, RegionId, Role, ValueId},
    ops::{Alias, OpError},
};

/// The nodes of the new graph by what they compute. Their keys stay in the graph.
struct Known {
    /// Of each hash, the node that came last.
    last: FxHashMap<u64, NodeId>,
    /// Of each node, the one before it with the same hash.
    previous: Vec<Option<NodeId>>,
}

impl Known {
    fn of(graph: &Graph) -> Known {
        let mut last = FxHashMap::default();
        last.reserve(graph.len());
        Known { last, previous: Vec::with_capacity(graph.len()) }
    }

    fn hash(node: &Node<'_>, args: &[ValueId], after: &[NodeId]) -> u64 {
        let mut hasher = FxHasher::default();
        (node.op(), args, after, node.region(), node.instance()).hash(&mut hasher);
        hasher.finish()
    }

    /// A node of `new` that computes the same as `node` of the old graph with these operands.
    fn find(
        &self,
        new: &Graph,
        hash: u64,
        node: &Node<'_>,
        args: &[ValueId],
        after: &[NodeId],
    ) -> Option<NodeId> {
        let first = self.last.get(&hash).copied();
        let mut same = std::iter::successors(first, |n| self.previous.get(n.0 as usize).copied().flatten());
        same.find(|&known| {
            let known = new.node(known);
            known.op() == node.op()
                && known.args() == args
                && known.after() == after
                && known.region() == node.region()
                && known.instance() == node.instance()
                && known.role().phase() == node.role().phase()
        })
    }

    fn insert(&mut self, hash: u64, node: NodeId) {
        let previous = self.last.insert(hash, node);
        self.previous.resize(node.0 as usize, None);
        self.previous.push(previous);
    }
}

pub(super) fn simplify(graph: &Graph) -> Result<Graph, OpError> {
    let live = live_values(graph);
    let mut new = graph.skeleton();
    for region in &mut new.regions {
        region.nodes = 0..0;
    }
    let mut values: Vec<Option<ValueId>> = vec![None; graph.value_count()];
    let mut nodes: Vec<Option<NodeId>> = vec![None; graph.len()];
    let mut known = Known::of(graph);
    let mut after: Vec<NodeId> = Vec::new();
    let mut args: Vec<ValueId> = Vec::new();
    // Who serves a node that is gone serves the one before it in its region.
    let mut served: Vec<Option<NodeId>> = vec![None; graph.len()];
    let mut last_in: FxHashMap<Option<RegionId>, NodeId> = FxHashMap::default();
    for node in graph.nodes() {
        if !live.nodes[node.id.0 as usize] {
            served[node.id.0 as usize] = last_in.get(&node.region()).copied();
            continue;
        }
        // A barrier gives up operands whose result nobody uses, but still waits for them.
        let memory = node.op().memory();
        let is_used = |k: usize| memory.alias != Alias::Each || live.values[node.result(k).0 as usize];
        after.clear();
        after.extend(node.after().iter().filter_map(|a| nodes[a.0 as usize]));
        args.clear();
        for (k, arg) in node.args().iter().enumerate() {
            if is_used(k) {
                args.push(values[arg.0 as usize].ok_or_else(missing)?);
            } else {
                after.extend(nodes[graph.producer(*arg).0.id.0 as usize]);
            }
        }
        after.sort_unstable();
        after.dedup();
        let mergeable = !memory.effect && memory.alias != Alias::Each;
        let hash = mergeable.then(|| Known::hash(&node, &args, &after));
        let id = match hash.and_then(|hash| known.find(&new, hash, &node, &args, &after)) {
            Some(same) => same,
            None => {
                new.cursor = node.stamp();
                if let Role::Backward { of, call } = node.role() {
                    let of = served[of.0 as usize].unwrap_or(NodeId(new.len() as u32));
                    new.cursor.role = Role::Backward { of, call };
                }
                let id = if args.len() == node.args().len() {
                    new.push_copy(&node, node.op().clone(), &args, &after)?
                } else {
                    new.push_after(node.op().clone(), &args, &after)?
                };
                new.extend_regions(id);
                if let Some(hash) = hash {
                    known.insert(hash, id);
                }
                id
            }
        };
        nodes[node.id.0 as usize] = Some(id);
        served[node.id.0 as usize] = Some(id);
        last_in.insert(node.region(), id);
        let mut results = new.node(id).results();
        for (k, old) in node.results().enumerate() {
            if is_used(k) {
                values[old.0 as usize] = results.next();
            }
        }
    }
    let outputs = graph
        .outputs
        .iter()
        .map(|o| Ok(Output { value: values[o.value.0 as usize].ok_or_else(missing)?, ..o.clone() }));
    new.outputs = outputs.collect::<Result<_, OpError>>()?;
    for (old, name) in &graph.names {
        if let Some(value) = values[old.0 as usize] {
            new.names.entry(value).or_insert_with(|| name.clone());
        }
    }
    for (old, mark) in &graph.marks {
        if let Some(value) = values[old.0 as usize] {
            new.marks.insert(value, mark.clone());
        }
    }
    for (old, region) in graph.regions.iter().zip(&mut new.regions) {
        let map = |list: &[ValueId]| list.iter().filter_map(|v| values[v.0 as usize]).collect();
        region.keep = map(&old.keep);
        region.outputs = map(&old.outputs);
    }
    Ok(new)
}

fn missing() -> OpError {
    OpError::new("internal: a removed value is used")
}

struct Live {
    values: Vec<bool>,
    nodes: Vec<bool>,
}

/// What outputs and effects need.
fn live_values(graph: &Graph) -> Live {
    let mut live = Live { values: vec![false; graph.value_count()], nodes: vec![false; graph.len()] };
    for output in &graph.outputs {
        live.values[output.value.0 as usize] = true;
    }
    for node in graph.nodes().rev() {
        let memory = node.op().memory();
        if !memory.effect && !node.results().any(|r| live.values[r.0 as usize]) {
            continue;
        }
        live.nodes[node.id.0 as usize] = true;
        for (k, arg) in node.args().iter().enumerate() {
            if memory.alias != Alias::Each || live.values[node.result(k).0 as usize] {
                live.values[arg.0 as usize] = true;
            }
        }
    }
    live
}
