//! What becomes an op, what it waits for, and who reads what.

use super::{Unit, UnitId, Units};
use crate::{
    ir::{Node, NodeId, ValueId},
    lower::fuse::is_elementwise,
    ops::{Alias, Op},
};

impl Units<'_> {
    /// Makes the units and their data edges.
    pub(super) fn collect(&mut self) {
        let mut last_print = None;
        for node in self.graph.nodes() {
            let unit = match (self.groups[node.id.0 as usize], node.op()) {
                (Some(group), _) => match self.of_group[group.0 as usize] {
                    Some(unit) => {
                        self.rank[unit as usize] = node.id;
                        unit
                    }
                    None => {
                        let unit = self.add(Unit::Group(group), node.id);
                        self.of_group[group.0 as usize] = Some(unit);
                        unit
                    }
                },
                (None, Op::Insert(_)) if self.inserts.is_idle(node.id) => self.add(Unit::Barrier, node.id),
                (None, Op::Barrier(_)) => self.add(Unit::Barrier, node.id),
                (None, Op::Write(_)) => self.add(Unit::Commit(node.id), node.id),
                (None, Op::CollectiveDone(_)) => self.add(Unit::Wait(node.id), node.id),
                (None, Op::Const(_) | Op::Scalar(_) | Op::Read(_) | Op::Input(_)) => continue,
                // A view that is looked at on the way; in source order.
                (None, Op::Print(_)) => {
                    let unit = self.add(Unit::Node(node.id), node.id);
                    if let Some(before) = last_print.replace(unit) {
                        self.wait(unit, before);
                    }
                    unit
                }
                (None, op) if op.memory().alias == Alias::View => continue,
                (None, _) => self.add(Unit::Node(node.id), node.id),
            };
            self.of_node[node.id.0 as usize] = Some(unit);
        }
        for node in self.graph.nodes() {
            let Some(unit) = self.of_node[node.id.0 as usize] else { continue };
            for (k, &arg) in node.args().iter().enumerate() {
                // An insert that has nothing to do needs nothing of what it writes into.
                if k > 0 || !self.inserts.starts_idle(&node) {
                    self.read(unit, arg, &node);
                }
            }
            for &after in node.after() {
                self.wait_for_node(unit, after);
            }
        }
        for output in &self.graph.outputs {
            let base = self.laid.places[output.value.0 as usize].base;
            self.store_constant(base);
        }
    }

    /// `unit` uses the memory of `value`, or its register if both are in one group.
    pub(super) fn read(&mut self, unit: UnitId, value: ValueId, user: &Node<'_>) {
        let place = &self.laid.places[value.0 as usize];
        let (producer, _) = self.graph.producer(place.base);
        if let Some(gate) = place.gate {
            self.wait_for_node(unit, gate);
        }
        let is_barrier = matches!(user.op(), Op::Barrier(_));
        if is_barrier && let Some(within) = &place.view {
            self.view_waits[within.view as usize].push(unit);
        }
        match producer.op() {
            Op::Const(_) | Op::Scalar(_) => {
                // Programs read constants and scalars themselves.
                if !is_elementwise(user.op())
                    && !is_barrier
                    && let Some(store) = self.store_constant(place.base)
                {
                    self.wait(unit, store);
                    self.readers[place.base.0 as usize].push(unit);
                }
            }
            // A barrier waits for its operands and reads nothing.
            Op::Read(_) | Op::Input(_) if is_barrier => {}
            Op::Read(_) | Op::Input(_) => self.readers[place.base.0 as usize].push(unit),
            _ => {
                let maker = self.of_node[producer.id.0 as usize];
                if let Some(maker) = maker.filter(|&m| m != unit) {
                    self.wait(unit, maker);
                    if !is_barrier {
                        self.readers[place.base.0 as usize].push(unit);
                    }
                }
            }
        }
    }

    /// The unit that puts a constant or scalar into memory.
    pub(super) fn store_constant(&mut self, base: ValueId) -> Option<UnitId> {
        let (producer, _) = self.graph.producer(base);
        if !matches!(producer.op(), Op::Const(_) | Op::Scalar(_)) {
            return None;
        }
        if let Some(&unit) = self.stores.get(&base) {
            return Some(unit);
        }
        let unit = self.add(Unit::Store(base), producer.id);
        self.stores.insert(base, unit);
        Some(unit)
    }

    pub(super) fn wait_for_node(&mut self, unit: UnitId, node: NodeId) {
        let target = match self.of_node[node.0 as usize] {
            Some(target) => Some(target),
            // A view is complete when what it views is.
            None => self.graph.node(node).results().next().and_then(|result| {
                let place = &self.laid.places[result.0 as usize];
                if let Some(within) = &place.view {
                    self.view_waits[within.view as usize].push(unit);
                }
                if let Some(gate) = place.gate {
                    self.wait_for_node(unit, gate);
                }
                self.of_node[self.graph.producer(place.base).0.id.0 as usize]
            }),
        };
        if let Some(target) = target {
            self.wait(unit, target);
        }
    }

    pub(super) fn wait(&mut self, unit: UnitId, target: UnitId) {
        if unit != target {
            self.before[unit as usize].push(target);
        }
    }
}
