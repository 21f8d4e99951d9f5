//! Slots that hold one rank's part of a vector, and the values that are made of the whole one.

use rustc_hash::FxHashMap;

use super::{Graph, Node, NodeId, RegionId, SlotId, ValueId};
use crate::ops::{Alias, CollectiveKind, Op};

/// What the slot of a rank's part is a part of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shard {
    /// How many ranks hold a part.
    pub world: u32,
    /// Elements of the whole vector without the padding that makes the parts equal.
    pub elements: usize,
    /// How many units more may be gathered at a time.
    pub prefetch: u32,
    /// The gradients of the ranks are averaged, not summed.
    pub mean: bool,
}

impl Graph {
    /// What a value is a part of, if it is the value of such a slot.
    pub fn shard_of(&self, value: ValueId) -> Option<(SlotId, Shard)> {
        if self.shards.is_empty() {
            return None;
        }
        let slot = match self.producer(value).0.op() {
            Op::Read(read) => read.slot,
            Op::Write(write) => write.slot,
            _ => return None,
        };
        Some((slot, *self.shards.get(&slot)?))
    }

    /// What a node gathers, if it starts the gathering of a slot's whole vector.
    pub fn gathers(&self, node: &Node<'_>) -> Option<(SlotId, Shard)> {
        match (node.op(), node.args()) {
            (Op::CollectiveStart(start), &[part]) if start.kind == CollectiveKind::AllGather => {
                self.shard_of(part)
            }
            _ => None,
        }
    }
}

/// The values that are made of gathered vectors and constants alone: the vectors, their views, casts
/// of them. Each with the node that starts the gathering.
#[derive(Debug, Default)]
pub struct Gathered {
    of: FxHashMap<ValueId, NodeId>,
    seen: u32,
}

impl Gathered {
    /// The values of a graph.
    pub fn new(graph: &Graph) -> Gathered {
        let mut gathered = Gathered::default();
        gathered.extend(graph);
        gathered
    }

    /// Looks at the nodes that were appended since the last call.
    pub fn extend(&mut self, graph: &Graph) {
        if graph.shards.is_empty() {
            self.seen = graph.len() as u32;
            return;
        }
        for node in graph.nodes_from(NodeId(self.seen)) {
            let start = match node.op() {
                Op::CollectiveStart(_) => graph.gathers(&node).map(|_| node.id),
                Op::CollectiveDone(_) => node.args().first().and_then(|&started| self.of(started)),
                op if op.memory().effect || op.memory().alias == Alias::Each => None,
                _ => {
                    let is_constant = |v: ValueId| is_constant(graph, v);
                    let all = node.args().iter().all(|&a| self.of(a).is_some() || is_constant(a));
                    node.args().iter().find_map(|&a| self.of(a)).filter(|_| all)
                }
            };
            if let Some(start) = start {
                self.of.extend(node.results().map(|result| (result, start)));
            }
        }
        self.seen = graph.len() as u32;
    }

    /// The start of the gathering that a value is made of.
    pub fn of(&self, value: ValueId) -> Option<NodeId> {
        if self.of.is_empty() { None } else { self.of.get(&value).copied() }
    }

    /// The nodes of a range that use gathered vectors, by the region in which a vector is gathered, in
    /// the order of their first use. Waiting for the nodes of a list is waiting for the last use. An
    /// element-wise chain stands for its first node: waiting for the middle of one would put it into
    /// memory.
    pub fn last_uses(&self, graph: &Graph, range: std::ops::Range<u32>) -> Vec<(RegionId, Vec<NodeId>)> {
        let mut uses: Vec<(RegionId, Vec<NodeId>)> = Vec::new();
        // Values of chains, with the region whose vector they use.
        let mut chains: FxHashMap<ValueId, RegionId> = FxHashMap::default();
        for node in graph.nodes_from(NodeId(range.start)).take_while(|n| n.id.0 < range.end) {
            let mut regions: Vec<RegionId> = Vec::new();
            let is_made_of_it = node.results().next().is_some_and(|r| self.of(r).is_some());
            for &arg in node.args() {
                let start = self.of(arg);
                let region = start.and_then(|s| graph.node(s).region());
                let used = match region.filter(|_| !is_made_of_it) {
                    Some(region) => Some(region),
                    None => chains.get(&arg).copied(),
                };
                if let Some(region) = used
                    && !regions.contains(&region)
                {
                    regions.push(region);
                }
            }
            let is_view = node.op().memory().alias != Alias::Fresh;
            if is_made_of_it {
                // Views run nowhere; what is made anew reads the vector when it runs.
                let start = node.results().find_map(|r| self.of(r));
                let region = start.and_then(|s| graph.node(s).region());
                if let Some(region) = region.filter(|_| !is_view && start != Some(node.id)) {
                    note(&mut uses, region, node.id, &[], graph);
                    chains.extend(node.results().map(|r| (r, region)));
                }
                continue;
            }
            let is_chain = is_view || node.op().is_elementwise();
            for region in regions {
                note(&mut uses, region, node.id, node.args(), graph);
                if is_chain {
                    chains.extend(node.results().map(|r| (r, region)));
                }
            }
        }
        uses
    }
}

/// Adds a node to the uses of a region, in place of those whose results it takes.
fn note(
    uses: &mut Vec<(RegionId, Vec<NodeId>)>,
    region: RegionId,
    node: NodeId,
    args: &[ValueId],
    graph: &Graph,
) {
    let position = uses.iter().position(|(r, _)| *r == region);
    let list = match position.and_then(|p| uses.get_mut(p)) {
        Some((_, list)) => list,
        None => {
            uses.push((region, vec![node]));
            return;
        }
    };
    list.retain(|&earlier| !args.iter().any(|&a| graph.producer(a).0.id == earlier));
    list.push(node);
}

fn is_constant(graph: &Graph, value: ValueId) -> bool {
    matches!(graph.producer(value).0.op(), Op::Const(_) | Op::Literal(_) | Op::Iota(_) | Op::Scalar(_))
}
