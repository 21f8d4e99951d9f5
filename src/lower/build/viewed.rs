//! Who reads which view that may be copied, and what that does to overwrites.

use rustc_hash::FxHashMap;

use super::Units;
use crate::{
    ir::ValueId,
    lower::views::InView,
    ops::Op,
    plan::{ALIGNMENT, Access},
    schedule::{BufferId, CopyableView, OpId, ViewId, ViewedBuffer},
};

/// The operands of a kernel, each with the view it is read through.
pub(super) struct Operands<'k> {
    accesses: &'k [Access],
    views: &'k [Option<InView>],
}

impl<'k> Operands<'k> {
    /// `touched` has one entry for each access of the kernel, operands first.
    pub(super) fn new(accesses: &'k [Access], touched: &'k [Option<InView>]) -> Self {
        Operands { accesses, views: touched.get(..accesses.len()).unwrap_or_default() }
    }

    pub(super) fn get(&self, k: usize) -> Option<(&'k Access, Option<&'k InView>)> {
        Some((self.accesses.get(k)?, self.views.get(k)?.as_ref()))
    }

    fn all(&self) -> impl Iterator<Item = (&'k Access, Option<&'k InView>)> {
        self.accesses.iter().zip(self.views.iter().map(Option::as_ref))
    }

    /// How many lie in a buffer, through views or not.
    pub(super) fn in_buffer(&self, buffer: BufferId) -> usize {
        self.all().filter(|(access, _)| access.buffer == buffer).count()
    }

    /// How many lie in a buffer and in no view of it.
    pub(super) fn directly_in(&self, buffer: BufferId) -> usize {
        self.all().filter(|(access, within)| access.buffer == buffer && within.is_none()).count()
    }

    pub(super) fn in_view(&self, view: u32) -> usize {
        self.all().filter(|(_, within)| within.is_some_and(|within| within.view == view)).count()
    }
}

/// What an op can overwrite.
#[derive(Default)]
pub(super) struct Overwrites {
    /// (made, read), whatever is copied.
    pub pairs: Vec<(BufferId, BufferId)>,
    /// (view, made), if the view is a copy.
    pub views: Vec<(u32, BufferId)>,
    /// (base, made), if all its views that the op reads are copies.
    pub bases: Vec<(BufferId, BufferId)>,
}

/// A base with views: who reads it otherwise, and who can overwrite it.
#[derive(Default)]
struct Base {
    readers: Vec<OpId>,
    overwriters: Vec<(OpId, BufferId)>,
}

/// The views of a step while its ops are made.
pub(super) struct Viewed {
    /// Of each view that was laid out; its readers are filled in as ops are made.
    views: Vec<Option<CopyableView>>,
    /// Bases of views, by buffer.
    bases: FxHashMap<BufferId, Base>,
}

impl Viewed {
    /// The views that can be copies: their base lies in the arena, and the step does not return it as
    /// a whole.
    pub(super) fn new(units: &Units<'_>) -> Self {
        let mut returned: Vec<ValueId> = Vec::new();
        let mut is_returned = vec![false; units.laid.views.len()];
        for output in &units.graph.outputs {
            let place = &units.laid.places[output.value.0 as usize];
            match place.view.as_ref().filter(|w| units.laid.views[w.view as usize].is_copyable) {
                Some(within) => is_returned[within.view as usize] = true,
                None => returned.push(place.base),
            }
        }
        returned.sort_unstable();
        let views = units.laid.views.iter().zip(is_returned).map(|(view, output)| {
            let stays = !view.is_copyable
                || units.in_slot.contains_key(&view.base)
                || returned.binary_search(&view.base).is_ok();
            let bytes = view.ty.bytes().next_multiple_of(ALIGNMENT);
            (!stays).then(|| CopyableView { bytes, output, ..CopyableView::default() })
        });
        Viewed { views: views.collect(), bases: FxHashMap::default() }
    }

    pub(super) fn is_copyable(&self, view: u32) -> bool {
        self.views.get(view as usize).is_some_and(Option::is_some)
    }

    /// Of a copy.
    pub(super) fn bytes(&self, view: u32) -> u64 {
        self.views.get(view as usize).and_then(Option::as_ref).map_or(0, |view| view.bytes)
    }

    /// Notes what an op reads.
    pub(super) fn read(&mut self, op: OpId, operands: &Operands<'_>) {
        if self.views.is_empty() {
            return;
        }
        for (access, within) in operands.all() {
            let view = within.and_then(|within| self.views.get_mut(within.view as usize)?.as_mut());
            let readers = match view {
                Some(view) => &mut view.readers,
                None => &mut self.bases.entry(access.buffer).or_default().readers,
            };
            if readers.last() != Some(&op) {
                readers.push(op);
            }
        }
    }

    /// Notes that an op needs a buffer whatever becomes of its views: it writes a part of it.
    pub(super) fn read_directly(&mut self, op: OpId, buffer: BufferId) {
        if self.views.is_empty() {
            return;
        }
        let readers = &mut self.bases.entry(buffer).or_default().readers;
        if readers.last() != Some(&op) {
            readers.push(op);
        }
    }

    /// Notes what an op could overwrite if some views were copies.
    pub(super) fn overwritten(&mut self, op: OpId, overwrites: &Overwrites) {
        for &(view, made) in &overwrites.views {
            if let Some(view) = self.views.get_mut(view as usize).and_then(Option::as_mut) {
                view.overwriters.push((op, made));
            }
        }
        for &(base, made) in &overwrites.bases {
            self.bases.entry(base).or_default().overwriters.push((op, made));
        }
    }

    /// The bases with their views, now that all ops are made (`ids` are those of units), and the
    /// number of each view as it was laid out.
    pub(super) fn finish(
        &mut self,
        units: &Units<'_>,
        buffers: &FxHashMap<ValueId, BufferId>,
        ids: &[Option<OpId>],
    ) -> (Vec<ViewedBuffer>, FxHashMap<ViewId, u32>) {
        let op = |unit: u32| ids.get(units.real(unit) as usize).copied().flatten();
        let mut by_base: Vec<(BufferId, u32)> = Vec::new();
        for (k, view) in self.views.iter().enumerate() {
            let is_used = view.as_ref().is_some_and(|view| view.output || !view.readers.is_empty());
            if let (true, Some(&base)) = (is_used, buffers.get(&units.laid.views[k].base)) {
                by_base.push((base, k as u32));
            }
        }
        by_base.sort_unstable();
        let mut list: Vec<ViewedBuffer> = Vec::new();
        let mut of_view = FxHashMap::default();
        for (buffer, k) in by_base {
            let Some(mut view) = self.views[k as usize].clone() else { continue };
            let laid = &units.laid.views[k as usize];
            // Who made a part of a value has not made all of it.
            let whole = units.graph.producer(laid.base).0;
            let whole = matches!(whole.op(), Op::Insert(_)).then_some(whole.id);
            let gates = [laid.gate, whole].into_iter().flatten();
            view.after = gates.filter_map(|gate| op(units.of_node[gate.0 as usize]?)).collect();
            view.waits = units.view_waits[k as usize].iter().filter_map(|&unit| op(unit)).collect();
            view.waits.sort_unstable();
            view.waits.dedup();
            if list.last().is_none_or(|last| last.buffer != buffer) {
                let Base { readers, overwriters } = self.bases.remove(&buffer).unwrap_or_default();
                list.push(ViewedBuffer { buffer, readers, overwriters, views: Vec::new() });
            }
            let viewed = list.len() as u32 - 1;
            if let Some(last) = list.last_mut() {
                of_view.insert(ViewId { viewed, view: last.views.len() as u32 }, k);
                last.views.push(view);
            }
        }
        (list, of_view)
    }
}
