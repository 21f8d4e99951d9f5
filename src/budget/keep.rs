//! What a recomputed stage keeps: for a price of an operation in bytes, a minimum cut finds the set
//! with the least bytes kept plus price of the operations made again.

use std::ops::Range;

use rustc_hash::FxHashMap;

use super::facts::Facts;
use crate::{
    guard,
    ir::{Graph, NodeId, ValueId},
    ops::Op,
    schedule::flow::{INFINITE, Network},
};

/// Bytes that one floating-point operation is worth. An element-wise op makes about four bytes with
/// one to ten operations, a product over 1000 terms with 2000.
const PRICES: [f64; 6] = [0.25, 0.03, 0.004, 0.0005, 0.00006, 0.0];

/// A product of nodes and prices that cuts may look at, in arcs.
const CUT_WORK: u64 = 4_000_000;

pub(super) struct Kept {
    pub values: Vec<ValueId>,
    pub bytes: u64,
    pub flops: f64,
}

/// Sets worth keeping of what `nodes` make, so that `targets` can be made from them, from what is
/// made before and from what `is_there` anyway.
pub(super) fn choices(
    graph: &Graph,
    facts: &Facts,
    nodes: &Range<u32>,
    targets: &[ValueId],
    is_there: impl Fn(ValueId) -> bool,
) -> Vec<Kept> {
    if targets.is_empty() {
        return Vec::new();
    }
    let problem = Problem::new(graph, facts, nodes, targets, is_there);
    let mut work = CUT_WORK;
    let each = PRICES.iter().take_while(|_| !guard::cancelled());
    each.filter_map(|&price| problem.solve(facts, price, &mut work)).collect()
}

/// The nodes that may have to run again.
struct Problem {
    nodes: Vec<Again>,
    targets: Vec<usize>,
}

struct Again {
    id: NodeId,
    /// Results that somebody may need.
    values: Vec<ValueId>,
    operands: Vec<usize>,
    /// An effect or a collective does not run twice.
    once: bool,
}

impl Problem {
    fn new(
        graph: &Graph,
        facts: &Facts,
        nodes: &Range<u32>,
        targets: &[ValueId],
        is_there: impl Fn(ValueId) -> bool,
    ) -> Problem {
        let mut problem = Problem { nodes: Vec::new(), targets: Vec::new() };
        let mut known: FxHashMap<NodeId, usize> = FxHashMap::default();
        let mut todo: Vec<(Option<usize>, ValueId)> = targets.iter().map(|&t| (None, t)).collect();
        todo.reverse();
        while let Some((user, base)) = todo.pop() {
            let maker = facts.maker[base.0 as usize];
            if !nodes.contains(&maker.0) || is_there(base) {
                continue;
            }
            let index = *known.entry(maker).or_insert_with(|| {
                let once = matches!(
                    graph.node(maker).op(),
                    Op::CollectiveDone(_) | Op::CollectiveStart(_) | Op::Write(_) | Op::Print(_)
                );
                problem.nodes.push(Again { id: maker, values: Vec::new(), operands: Vec::new(), once });
                todo.extend(
                    facts.operands(graph, maker).into_iter().map(|b| (Some(problem.nodes.len() - 1), b)),
                );
                problem.nodes.len() - 1
            });
            let node = &mut problem.nodes[index];
            if !node.values.contains(&base) {
                node.values.push(base);
            }
            let users = match user {
                Some(user) => &mut problem.nodes[user].operands,
                None => &mut problem.targets,
            };
            users.push(index);
        }
        problem
    }

    /// Of node `k`, unknown `2k`: a result must be there; unknown `2k + 1`: it runs again.
    fn solve(&self, facts: &Facts, price: f64, work: &mut u64) -> Option<Kept> {
        let (source, sink) = (2 * self.nodes.len() as u32, 2 * self.nodes.len() as u32 + 1);
        let mut network = Network::default();
        network.reset(2 * self.nodes.len() + 2);
        for (k, node) in self.nodes.iter().enumerate() {
            let (there, again) = (2 * k as u32, 2 * k as u32 + 1);
            let bytes = self.bytes(facts, node);
            network.arc(there, again, i64::try_from(bytes).unwrap_or(INFINITE).min(INFINITE / 4));
            let flops = facts.flops[node.id.0 as usize];
            let cost = if node.once { INFINITE } else { (price * flops).min(1e15) as i64 };
            network.arc(again, sink, cost);
            for &operand in &node.operands {
                network.arc(again, 2 * operand as u32, INFINITE);
            }
        }
        for &target in &self.targets {
            network.arc(source, 2 * target as u32, INFINITE);
        }
        if !network.push(source, sink, INFINITE, work).maximum {
            return None;
        }
        // Of the cuts of equal cost the one that runs less again.
        let side = network.source_side(source);
        let mut kept = Kept { values: Vec::new(), bytes: 0, flops: 0.0 };
        for (k, node) in self.nodes.iter().enumerate() {
            match (side[2 * k], side[2 * k + 1]) {
                (true, false) => {
                    kept.values.extend(&node.values);
                    kept.bytes += self.bytes(facts, node);
                }
                (_, true) => kept.flops += facts.flops[node.id.0 as usize],
                _ => {}
            }
        }
        kept.values.sort_unstable();
        Some(kept)
    }

    fn bytes(&self, facts: &Facts, node: &Again) -> u64 {
        // What the program releases is not kept.
        let bytes = |v: ValueId| if facts.released[v.0 as usize] { u64::MAX } else { facts.bytes(v) };
        node.values.iter().map(|&v| bytes(v)).fold(0, u64::saturating_add)
    }
}
