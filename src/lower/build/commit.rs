//! Commits to persistent tensors: in place, where the op that makes the value can write it there.

use super::{Copied, InPlace, Refused, Unit, UnitId, Units};
use crate::{
    ir::{Node, NodeId, SlotId, ValueId},
    ops::Op,
};

impl<'a> Units<'a> {
    /// Decides for every commit whether the op that makes the value can put it into the slot, and
    /// puts it behind every reader of the old value.
    pub(super) fn commit(&mut self, in_place: InPlace) {
        self.walk.seen = vec![0; self.units.len()];
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
            let refused = match maker {
                _ if in_place == InPlace::Never => Some(Refused::Order),
                _ if !stays => Some(Refused::Returned),
                Some(maker) => match self.in_slot.get(&value) {
                    Some(&other) => Some(Refused::Elsewhere(other)),
                    None => self.refuses(maker, value, write.slot, &old_readers, in_place),
                },
                None => Some(Refused::Order),
            };
            let unit = match (maker, refused) {
                (Some(maker), None) => {
                    self.in_slot.insert(value, write.slot);
                    self.fold(node.id, commit, maker);
                    readers[slot] =
                        self.readers[value.0 as usize].iter().copied().filter(|&r| r != commit).collect();
                    maker
                }
                (_, refused) => {
                    let reason = refused.unwrap_or(Refused::Order);
                    self.copied.push(Copied { commit, slot: write.slot, value, reason });
                    commit
                }
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

    /// Why `maker` may not write `value` where the old value lies that `old_readers` use.
    fn refuses(
        &mut self,
        maker: UnitId,
        value: ValueId,
        slot: SlotId,
        old_readers: &[UnitId],
        in_place: InPlace,
    ) -> Option<Refused> {
        let first_output = match &self.units[maker as usize] {
            Unit::Group(group) => self.members[group.0 as usize]
                .iter()
                .find(|&&n| self.is_stored(self.graph.node(n).result(0)))
                .copied(),
            Unit::Node(node) => Some(*node),
            _ => None,
        };
        let Some(first_output) = first_output else { return Some(Refused::Order) };
        // The one that comes last is named.
        let mut others: Vec<UnitId> = old_readers.iter().copied().filter(|&r| r != maker).collect();
        others.sort_by_key(|&r| std::cmp::Reverse(self.rank[r as usize]));
        others.dedup();
        for reader in others {
            let is_before = in_place == InPlace::BySource && self.rank[reader as usize] < first_output;
            if !is_before && self.may_wait_for(reader, maker) {
                return Some(Refused::ReadLater(reader));
            }
        }
        let is_safe = !old_readers.contains(&maker) || self.overwrites_in_place(maker, value, slot);
        (!is_safe).then_some(Refused::OutOfStep(maker))
    }

    /// Whether a unit waits for another, directly or not; yes if that takes too long to find out.
    fn may_wait_for(&mut self, unit: UnitId, target: UnitId) -> bool {
        self.walk.clock += 1;
        let mut stack = vec![unit];
        while let Some(unit) = stack.pop() {
            for &before in &self.before[unit as usize] {
                let before = self.folded[before as usize].unwrap_or(before);
                if before == target || self.walk.steps == 0 {
                    return true;
                }
                self.walk.steps -= 1;
                let seen = &mut self.walk.seen[before as usize];
                if std::mem::replace(seen, self.walk.clock) != self.walk.clock {
                    stack.push(before);
                }
            }
        }
        false
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
