//! Which work of a step has to follow which: by the bytes that it reads and writes.

use std::{collections::BTreeMap, ops::Range};

use rustc_hash::FxHashMap;

use super::work::{Address, Arg, Work};
use crate::{
    exec::place::{self, Place, Root, reach},
    ops::OpError,
    plan::{Access, Kernel, Plan},
    schedule::OpId,
};

/// Memory whose addresses have nothing to do with those of another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Space {
    Arena,
    Slot(usize),
    /// The words for faults: the first fault stays there, so those who look for one keep their order.
    Faults,
}

/// Bytes that work reads, and writes where `writes` is set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Touch {
    pub space: Space,
    pub bytes: Range<u64>,
    pub writes: bool,
}

impl Touch {
    pub fn new(at: Address, bytes: u64, writes: bool) -> Touch {
        let (space, start) = located(at);
        Touch { space, bytes: start..start.saturating_add(bytes), writes }
    }

    /// Whether both touch some byte.
    pub fn overlaps(&self, other: &Touch) -> bool {
        self.space == other.space
            && self.bytes.start.max(other.bytes.start) < self.bytes.end.min(other.bytes.end)
    }

    /// Whether one of both has to wait for the other.
    #[cfg(test)]
    pub fn conflicts(&self, other: &Touch) -> bool {
        (self.writes || other.writes) && self.overlaps(other)
    }
}

fn located(at: Address) -> (Space, u64) {
    match at.root {
        Root::Arena(start) => (Space::Arena, (start as u64).saturating_add(at.offset)),
        Root::Slot(slot) => (Space::Slot(slot), at.offset),
    }
}

/// What an op of the plan reads and writes, its workspace included.
pub(super) fn touches(plan: &Plan, op: OpId) -> Result<Vec<Touch>, OpError> {
    let mut all = Vec::new();
    let mut add = |accesses: &mut dyn Iterator<Item = &Access>, writes: bool| -> Result<(), OpError> {
        for access in accesses {
            let place = Place::new(plan, access)?;
            let end = reach(&place.ty, &place.layout)
                .ok_or_else(|| OpError::new("internal: a layout of the plan is too large"))?;
            let start = (place.layout.offset as u64).saturating_mul(place.ty.dtype().size() as u64);
            if start < end {
                all.push(Touch::new(Address { root: place.root, offset: start }, end - start, writes));
            }
        }
        Ok(())
    };
    match plan.kernels.get(op.0 as usize) {
        Some(Kernel::Node { args, results, .. }) => {
            add(&mut args.iter(), false)?;
            add(&mut results.iter(), true)?;
        }
        Some(Kernel::Elementwise(group)) => {
            add(&mut group.inputs.iter(), false)?;
            add(&mut group.outputs.iter().map(|(_, access)| access), true)?;
        }
        Some(Kernel::Copy { from, to }) => {
            add(&mut std::iter::once(from), false)?;
            add(&mut std::iter::once(to), true)?;
        }
        Some(Kernel::Wait { .. } | Kernel::Nothing) | None => {}
    }
    let workspace = place::workspace(plan, op)?;
    if !workspace.is_empty() {
        let at = Address { root: Root::Arena(workspace.start), offset: 0 };
        all.push(Touch::new(at, workspace.len() as u64, true));
    }
    Ok(all)
}

/// The part of what an op touches that one piece of its work touches: the tensors whose places it is given.
pub(super) fn of_work(work: &Work, op: &[Touch]) -> Vec<Touch> {
    let mut touched = Vec::new();
    let tensors = |at: Address| {
        let (space, byte) = located(at);
        let known: Vec<Touch> =
            op.iter().filter(|t| t.space == space && t.bytes.contains(&byte)).cloned().collect();
        // Of a place that nothing is known of: all.
        if known.is_empty() { op.to_vec() } else { known }
    };
    match work {
        Work::Launch(launch) => {
            let mut tells = false;
            for arg in &launch.args {
                match arg {
                    Arg::Address(at) => touched.extend(tensors(*at)),
                    Arg::Fault => tells = true,
                    Arg::Page | Arg::I64(_) | Arg::F64(_) => {}
                    Arg::Table(_) => touched.extend_from_slice(op),
                }
            }
            if tells {
                touched.push(Touch { space: Space::Faults, bytes: 0..1, writes: true });
            }
        }
        Work::Product(product) => {
            touched.extend([product.a.at, product.b.at, product.c.at].into_iter().flat_map(tensors));
            touched.extend(product.plus.into_iter().flat_map(tensors));
            touched.extend(product.bias.iter().flat_map(|bias| tensors(bias.at)));
            if product.workspace_bytes > 0 {
                touched.push(Touch::new(product.workspace, product.workspace_bytes, true));
            }
        }
        Work::Copy { from, to, bytes } => {
            touched.extend([Touch::new(*from, *bytes, false), Touch::new(*to, *bytes, true)]);
        }
        Work::Zero { at, bytes } => touched.push(Touch::new(*at, *bytes, true)),
        Work::Upload { bytes, to } => touched.push(Touch::new(*to, bytes.len() as u64, true)),
        Work::Host => touched.extend_from_slice(op),
    }
    touched
}

/// Who used bytes last.
#[derive(Debug, Clone, Default)]
struct Users {
    end: u64,
    writer: Option<u32>,
    /// Since then.
    readers: Vec<u32>,
}

/// For each piece of work, those before it that have to come first: who reads what another wrote, who writes
/// what another read or wrote. Of chains, the next link is enough.
pub(super) fn before(works: &[Vec<Touch>]) -> Vec<Vec<u32>> {
    let mut spaces: FxHashMap<Space, BTreeMap<u64, Users>> = FxHashMap::default();
    let mut all = Vec::with_capacity(works.len());
    for (k, touches) in works.iter().enumerate() {
        let own = k as u32;
        let mut before = Vec::new();
        for touch in touches.iter().filter(|touch| !touch.bytes.is_empty()) {
            let users = spaces.entry(touch.space).or_default();
            use_bytes(users, touch, own, &mut before);
        }
        before.sort_unstable();
        before.dedup();
        before.retain(|&earlier| earlier != own);
        all.push(before);
    }
    all
}

fn use_bytes(users: &mut BTreeMap<u64, Users>, touch: &Touch, own: u32, before: &mut Vec<u32>) {
    let Range { start, end } = touch.bytes;
    split(users, start);
    split(users, end);
    let starts: Vec<u64> = users.range(start..end).map(|(&at, _)| at).collect();
    let mut next = start;
    let mut gaps = Vec::new();
    for at in starts {
        let Some(piece) = users.get_mut(&at) else { continue };
        if next < at {
            gaps.push((next, at));
        }
        next = piece.end;
        before.extend(piece.writer);
        if touch.writes {
            before.append(&mut piece.readers);
            users.remove(&at);
        } else {
            piece.readers.push(own);
        }
    }
    if touch.writes {
        users.insert(start, Users { end, writer: Some(own), readers: Vec::new() });
        return;
    }
    if next < end {
        gaps.push((next, end));
    }
    for (from, to) in gaps {
        users.insert(from, Users { end: to, writer: None, readers: vec![own] });
    }
}

/// Makes `at` a border.
fn split(users: &mut BTreeMap<u64, Users>, at: u64) {
    let Some((_, piece)) = users.range_mut(..at).next_back() else { return };
    if piece.end > at {
        let rest = piece.clone();
        piece.end = at;
        users.insert(at, rest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_to_come_first_is_what_a_comparison_of_all_pairs_finds() {
        let mut state = 1u64;
        let mut random = move |below: u64| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) % below
        };
        for _ in 0..300 {
            let touch = |random: &mut dyn FnMut(u64) -> u64| {
                let start = random(40);
                let space = if random(4) == 0 { Space::Slot(random(2) as usize) } else { Space::Arena };
                Touch { space, bytes: start..start + random(12), writes: random(3) == 0 }
            };
            let count = 2 + random(30);
            let works: Vec<Vec<Touch>> =
                (0..count).map(|_| (0..1 + random(4)).map(|_| touch(&mut random)).collect()).collect();
            let found = before(&works);
            // Who comes first through others.
            let mut reach = vec![vec![false; works.len()]; works.len()];
            for (k, list) in found.iter().enumerate() {
                for &earlier in list {
                    let earlier = earlier as usize;
                    assert!(earlier < k);
                    let pair = works[k].iter().any(|a| works[earlier].iter().any(|b| a.conflicts(b)));
                    assert!(pair, "{k} waits for {earlier} without need: {works:?}");
                    reach[k][earlier] = true;
                    let through = reach[earlier].clone();
                    reach[k].iter_mut().zip(through).for_each(|(own, other)| *own |= other);
                }
            }
            for k in 0..works.len() {
                for earlier in 0..k {
                    let pair = works[k].iter().any(|a| works[earlier].iter().any(|b| a.conflicts(b)));
                    assert!(!pair || reach[k][earlier], "{k} does not wait for {earlier}: {works:?}");
                }
            }
        }
    }
}
