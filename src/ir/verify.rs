//! Checks that a graph is what every pass relies on.

use super::{Graph, Node, NodeId, Role, SlotId, Type, ValueId};
use crate::ops::Op;

/// Faults beyond this many say nothing new.
const MAX_FAULTS: usize = 32;

/// Checks a graph: operands precede their users, types are what the ops infer, every id is in
/// range, regions nest and are contiguous but for nodes without operands, no slot is read after it was written.
///
/// Each fault is a message for those who work on `tg`: no program may cause one. Takes time linear
/// in the graph, times the nesting of its regions.
pub fn verify(graph: &Graph) -> Result<(), Vec<String>> {
    let faults = faults(graph);
    if faults.is_empty() { Ok(()) } else { Err(faults.into_iter().map(|(_, message)| message).collect()) }
}

/// The faults of a graph, each with the node it is at.
pub(super) fn faults(graph: &Graph) -> Vec<(Option<NodeId>, String)> {
    let mut verifier = Verifier { graph, node: None, faults: Vec::new() };
    // Types are looked up by operand, so they are safe to check only if the operands are.
    if verifier.operands() {
        verifier.types();
    }
    verifier.stamps();
    verifier.slots();
    verifier.regions();
    verifier.tables();
    verifier.faults
}

struct Verifier<'g> {
    graph: &'g Graph,
    /// The node that is looked at.
    node: Option<NodeId>,
    faults: Vec<(Option<NodeId>, String)>,
}

impl Verifier<'_> {
    fn fault(&mut self, message: String) {
        if self.faults.len() < MAX_FAULTS {
            self.faults.push((self.node, message));
        }
    }

    /// Every operand and every `after` node precedes its user. True if all do.
    fn operands(&mut self) -> bool {
        for node in self.graph.nodes() {
            self.node = Some(node.id);
            // Results are numbered in the order of the nodes.
            let first = node.result(0);
            for &arg in node.args().iter().filter(|&&a| a >= first) {
                self.fault(format!("{} uses {arg}, which is not made before it", describe(&node)));
            }
            for &after in node.after().iter().filter(|&&a| a >= node.id) {
                self.fault(format!("{} waits for {after}, which does not precede it", describe(&node)));
            }
        }
        self.faults.is_empty()
    }

    fn types(&mut self) {
        for node in self.graph.nodes() {
            self.node = Some(node.id);
            let args: Vec<&Type> = node.arg_types().collect();
            match node.op().infer(self.graph, &args) {
                Err(error) => self.fault(format!("{} is ill-typed: {error}", describe(&node))),
                Ok(types) => {
                    let same = types.len() == node.result_count()
                        && node.results().zip(&types).all(|(r, ty)| self.graph.ty(r) == ty);
                    if !same {
                        let stored: Vec<&Type> = node.results().map(|r| self.graph.ty(r)).collect();
                        self.fault(format!(
                            "{} has results of types {stored:?}, its operands give {types:?}",
                            describe(&node)
                        ));
                    }
                }
            }
        }
    }

    fn stamps(&mut self) {
        let graph = self.graph;
        for node in graph.nodes() {
            self.node = Some(node.id);
            match node.role() {
                Role::Forward => {}
                Role::Backward { of, call } => {
                    if of.0 as usize >= graph.len() {
                        self.fault(format!(
                            "{} is the gradient of {of}, which does not exist",
                            describe(&node)
                        ));
                    }
                    if call.0 >= graph.grad_calls {
                        let calls = graph.grad_calls;
                        self.fault(format!("{} is of gradient call {} of {calls}", describe(&node), call.0));
                    }
                }
                Role::Update { slot } => {
                    if slot.0 as usize >= graph.slots.len() {
                        self.fault(format!(
                            "{} updates slot {} that does not exist",
                            describe(&node),
                            slot.0
                        ));
                    }
                }
            }
        }
    }

    /// A read gives the value from before the step, so it comes before the writes. A recompute may
    /// read again: the order of the schedule graph keeps that read before the write.
    fn slots(&mut self) {
        let slots = self.graph.slots.len();
        for slot in self.graph.shards.keys().filter(|slot| slot.0 as usize >= slots) {
            self.faults
                .push((None, format!("a part is said to be in slot {}, which does not exist", slot.0)));
        }
        let mut written = vec![false; self.graph.slots.len()];
        for node in self.graph.nodes() {
            self.node = Some(node.id);
            let (slot, is_write) = match node.op() {
                Op::Read(read) if node.instance() == 0 => (read.slot, false),
                Op::Write(write) => (write.slot, true),
                _ => continue,
            };
            match written.get_mut(slot.0 as usize) {
                Some(written) if is_write => *written = true,
                Some(true) => {
                    self.fault(format!("{} reads {} after it was written", describe(&node), self.slot(slot)))
                }
                Some(false) => {}
                None => {
                    self.fault(format!("{} uses {} that does not exist", describe(&node), self.slot(slot)))
                }
            }
        }
    }

    fn slot(&self, slot: SlotId) -> String {
        match self.graph.slots.get(slot.0 as usize) {
            Some(known) => format!("slot {} (`{}`)", slot.0, known.name),
            None => format!("slot {}", slot.0),
        }
    }

    fn regions(&mut self) {
        let graph = self.graph;
        self.node = None;
        let mut well_formed = true;
        for (index, region) in graph.regions.iter().enumerate() {
            let range = &region.nodes;
            if range.start > range.end || range.end as usize > graph.len() {
                self.fault(format!("region {index} has nodes {range:?} of {}", graph.len()));
                well_formed = false;
            }
            let Some(parent) = region.parent else { continue };
            // A parent is opened before its children, which also rules out cycles.
            if parent.0 as usize >= index {
                self.fault(format!(
                    "region {index} is inside region {}, which is not opened before it",
                    parent.0
                ));
                well_formed = false;
            } else if let Some(outer) = graph.regions.get(parent.0 as usize)
                && !range.is_empty()
                && (range.start < outer.nodes.start || range.end > outer.nodes.end)
            {
                self.fault(format!("region {index} reaches out of region {}", parent.0));
            }
        }
        if !well_formed {
            return;
        }
        // Nodes of each region, and those among them that have no operands.
        let mut sizes = vec![(0u32, 0u32); graph.regions.len()];
        // How many nodes without operands precede each node.
        let mut leaves = vec![0u32; graph.len() + 1];
        for node in graph.nodes() {
            self.node = Some(node.id);
            let is_leaf = u32::from(node.args().is_empty());
            let before = leaves.get(node.id.0 as usize).copied().unwrap_or(0);
            if let Some(next) = leaves.get_mut(node.id.0 as usize + 1) {
                *next = before + is_leaf;
            }
            let mut inside = node.region();
            while let Some(id) = inside {
                let (Some(region), Some(size)) =
                    (graph.regions.get(id.0 as usize), sizes.get_mut(id.0 as usize))
                else {
                    self.fault(format!("{} is in region {} that does not exist", describe(&node), id.0));
                    break;
                };
                size.0 += 1;
                size.1 += is_leaf;
                if !region.nodes.contains(&node.id.0) {
                    let range = &region.nodes;
                    self.fault(format!(
                        "{} is outside of the nodes {range:?} of its region {}",
                        describe(&node),
                        id.0
                    ));
                }
                inside = region.parent;
            }
        }
        self.node = None;
        for (index, (region, (size, own_leaves))) in graph.regions.iter().zip(sizes).enumerate() {
            let range = &region.nodes;
            let count = |at: u32| leaves.get(at as usize).copied().unwrap_or(0);
            // Reads and constants first used inside a region may be outside of it: they are there
            // for the whole step.
            let others = (count(range.end) - count(range.start)).saturating_sub(own_leaves);
            if range.len() as u32 != size + others {
                self.fault(format!("region {index} is not contiguous: {size} nodes in {range:?}"));
            }
        }
    }

    fn tables(&mut self) {
        let graph = self.graph;
        let values = graph.value_count() as u32;
        let missing = |value: ValueId| value.0 >= values;
        for output in graph.outputs.iter().filter(|o| missing(o.value)) {
            self.fault(format!("output `{}` is {}, which does not exist", output.name, output.value));
        }
        for (index, region) in graph.regions.iter().enumerate() {
            for &value in region.keep.iter().chain(&region.outputs).filter(|&&v| missing(v)) {
                self.fault(format!("region {index} names {value}, which does not exist"));
            }
        }
        let mut named: Vec<ValueId> =
            graph.names.keys().chain(graph.marks.keys()).copied().filter(|&v| missing(v)).collect();
        named.sort_unstable();
        for value in named {
            self.fault(format!("{value} has a name and does not exist"));
        }
    }
}

fn describe(node: &Node<'_>) -> String {
    format!("{} (`{}`)", node.id, node.op().name())
}
