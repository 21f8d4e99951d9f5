//! Removes what nobody uses and merges what is computed twice. Regions stay, with what is left of them.
//!
//! Nothing is merged across a barrier (what comes out of one is another value), between a recompute
//! and its original (their instances differ), nor between forward and backward pass, where it would
//! keep a value alive to save a cheap op.

use rustc_hash::FxHashMap;

use crate::{
    ir::{Graph, NodeId, Output, Phase, RegionId, Role, ValueId},
    ops::{Alias, Op, OpError},
};

/// Two nodes with the same key compute the same.
#[derive(PartialEq, Eq, Hash)]
struct Key {
    op: Op,
    args: Vec<ValueId>,
    after: Vec<NodeId>,
    region: Option<RegionId>,
    instance: u32,
    phase: Phase,
}

pub(super) fn simplify(graph: &Graph) -> Result<Graph, OpError> {
    let live = live_values(graph);
    let mut new = graph.skeleton();
    for region in &mut new.regions {
        region.nodes = 0..0;
    }
    let mut values: Vec<Option<ValueId>> = vec![None; graph.value_count()];
    let mut nodes: Vec<Option<NodeId>> = vec![None; graph.len()];
    let mut known: FxHashMap<Key, NodeId> = FxHashMap::default();
    // Who serves a node that is gone serves the one before it in its region.
    let mut served: Vec<Option<NodeId>> = vec![None; graph.len()];
    let mut last_in: FxHashMap<Option<RegionId>, NodeId> = FxHashMap::default();
    for node in graph.nodes() {
        if !live.nodes[node.id.0 as usize] {
            served[node.id.0 as usize] = last_in.get(&node.region()).copied();
            continue;
        }
        // A barrier gives up operands whose result nobody uses, but still waits for them.
        let is_used =
            |k: usize| node.op().memory().alias != Alias::Each || live.values[node.result(k).0 as usize];
        let mut after: Vec<NodeId> = node.after().iter().filter_map(|a| nodes[a.0 as usize]).collect();
        let mut args = Vec::with_capacity(node.args().len());
        for (k, arg) in node.args().iter().enumerate() {
            if is_used(k) {
                args.push(values[arg.0 as usize].ok_or_else(missing)?);
            } else {
                after.extend(nodes[graph.producer(*arg).0.id.0 as usize]);
            }
        }
        after.sort_unstable();
        after.dedup();
        let memory = node.op().memory();
        let mergeable = !memory.effect && memory.alias != Alias::Each;
        let key = mergeable.then(|| Key {
            op: node.op().clone(),
            args: args.clone(),
            after: after.clone(),
            region: node.region(),
            instance: node.instance(),
            phase: node.role().phase(),
        });
        let id = match key.as_ref().and_then(|key| known.get(key)) {
            Some(&same) => same,
            None => {
                new.cursor = node.stamp();
                if let Role::Backward { of, call } = node.role() {
                    let of = served[of.0 as usize].unwrap_or(NodeId(new.len() as u32));
                    new.cursor.role = Role::Backward { of, call };
                }
                let id = new.push_after(node.op().clone(), &args, &after)?;
                new.extend_regions(id);
                id
            }
        };
        nodes[node.id.0 as usize] = Some(id);
        served[node.id.0 as usize] = Some(id);
        last_in.insert(node.region(), id);
        if let Some(key) = key {
            known.insert(key, id);
        }
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
