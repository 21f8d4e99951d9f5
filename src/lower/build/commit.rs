//! Commits to persistent tensors: in place, where the op that makes the value can write it there.

use super::{Unit, UnitId, Units};
use crate::{
    ir::{Node, NodeId, SlotId, ValueId},
    ops::Op,
};

impl<'a> Units<'a> {
    /// Decides for every commit whether the op that makes the value can put it into the slot, and
    /// puts it behind every reader of the old value.
    pub(super) fn commit(&mut self, in_place: bool) {
        // Of each slot, the units that read the value it has now, and the unit that wrote it.
        let mut readers: Vec<Vec<UnitId>> = vec![Vec::new(); self.graph.slots.len()];
        let mut writer: Vec<Option<UnitId>> = vec![None; self.graph.slots.len()];
        let mut last_write: Vec<Option<NodeId>> = vec![None; self.graph.slots.len()];
        for node in self.graph.nodes() {
            if let Op::Read(read) = node.op() {
                readers[read.slot.0 as usize].extend(&self.readers[node.result(0).0 as usize]);
            }
            if let Op::Write(write) = node.op() {
                last_write[write.slot.0 as usize] = Some(node.id);
            }
        }
        for node in self.graph.nodes() {
            let (Op::Write(write), Some(&value)) = (node.op(), node.args().first()) else { continue };
            let Some(commit) = self.of_node[node.id.0 as usize] else { continue };
            let slot = write.slot.0 as usize;
            let old_readers = std::mem::take(&mut readers[slot]);
            let maker = self.of_node[self.graph.producer(value).0.id.0 as usize];
            // What the step returns must not be written over by a later commit.
            let stays = last_write[slot] == Some(node.id) || !self.is_output[value.0 as usize];
            let target = maker.filter(|&maker| {
                in_place
                    && stays
                    && !self.in_slot.contains_key(&value)
                    && self.can_write(maker, value, write.slot, &old_readers)
            });
            let unit = match target {
                Some(maker) => {
                    self.in_slot.insert(value, write.slot);
                    self.fold(node.id, commit, maker);
                    readers[slot] =
                        self.readers[value.0 as usize].iter().copied().filter(|&r| r != commit).collect();
                    maker
                }
                None => commit,
            };
            for reader in old_readers.into_iter().chain(writer[slot]) {
                self.wait(unit, reader);
            }
            writer[slot] = Some(unit);
        }
    }

    /// The commit disappears: whoever waits for it waits for the maker.
    pub(super) fn fold(&mut self, node: NodeId, commit: UnitId, maker: UnitId) {
        self.of_node[node.0 as usize] = Some(maker);
        self.before[commit as usize].clear();
        // `order` resolves what waits for it already.
        self.folded[commit as usize] = Some(maker);
    }

    /// Whether `maker` may write `value` where the old value lies that `old_readers` use.
    fn can_write(&self, maker: UnitId, value: ValueId, slot: SlotId, old_readers: &[UnitId]) -> bool {
        let first_output = match &self.units[maker as usize] {
            Unit::Group(group) => self.members[group.0 as usize]
                .iter()
                .find(|&&n| self.is_stored(self.graph.node(n).result(0)))
                .copied(),
            Unit::Node(node) => Some(*node),
            _ => None,
        };
        let Some(first_output) = first_output else { return false };
        let all_before = old_readers.iter().all(|&r| r == maker || self.rank[r as usize] < first_output);
        all_before && (!old_readers.contains(&maker) || self.overwrites_in_place(maker, value, slot))
    }

    /// Whether a unit that reads the old value of the slot reads each element before it writes it.
    fn overwrites_in_place(&self, maker: UnitId, value: ValueId, slot: SlotId) -> bool {
        let (elements, shape) = (self.graph.ty(value).elements(), self.graph.ty(value).shape());
        let is_aligned = |arg: ValueId| {
            let place = &self.laid.places[arg.0 as usize];
            place.layout.is_dense(self.graph.ty(arg).shape()) && self.graph.ty(arg).elements() == elements
        };
        let old = |node: &Node<'a>| {
            let args = node.args().iter().copied().enumerate();
            args.filter(|&(_, arg)| self.lies_in(arg, slot)).collect::<Vec<_>>()
        };
        match &self.units[maker as usize] {
            Unit::Group(group) => self.members[group.0 as usize]
                .iter()
                .all(|&n| old(&self.graph.node(n)).iter().all(|&(_, arg)| is_aligned(arg))),
            Unit::Node(node) => {
                let node = self.graph.node(*node);
                let allowed = node.op().memory().overwrites;
                let (_, result) = self.graph.producer(value);
                old(&node).iter().all(|&(k, arg)| {
                    allowed.contains(&(result, k)) && is_aligned(arg) && self.graph.ty(arg).shape() == shape
                })
            }
            _ => false,
        }
    }

    /// Whether a value lies in the memory of this persistent tensor.
    fn lies_in(&self, value: ValueId, slot: SlotId) -> bool {
        let base = self.laid.places[value.0 as usize].base;
        match self.graph.producer(base).0.op() {
            Op::Read(read) => read.slot == slot,
            _ => self.in_slot.get(&base) == Some(&slot),
        }
    }

    /// Whether a group's value is needed outside its registers.
    pub(super) fn is_stored(&self, value: ValueId) -> bool {
        !self.readers[value.0 as usize].is_empty()
            || self.in_slot.contains_key(&value)
            || self.is_output[value.0 as usize]
    }
}
