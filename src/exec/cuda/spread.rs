//! Other places for workspaces: the plan puts many of them at one address, and then each op waits for the one
//! before. What lies there does not outlive its op, so any bytes of the arena will do that nothing alive has.

use std::collections::BTreeMap;

use crate::{
    plan::{ALIGNMENT, Home, Instruction, Plan},
    schedule::BufferId,
};

/// The plan with its workspaces beside each other where the arena has room; no higher than before.
pub(super) fn spread(plan: &Plan) -> Plan {
    let mut spread = plan.clone();
    let graph = &plan.schedule_graph;
    let mut alive = Alive::default();
    for (k, buffer) in plan.buffers.iter().enumerate() {
        if matches!(buffer.home, Home::Input(_)) {
            alive.add(plan, BufferId(k as u32));
        }
    }
    // Behind the workspace before.
    let mut next = 0;
    for instruction in &plan.instructions {
        match *instruction {
            Instruction::Free(buffer) => alive.remove(plan, buffer),
            Instruction::Exec(op) => {
                for &made in graph.makes(op) {
                    if let Some(old) = plan.schedule.overwrites.get(made.0 as usize).copied().flatten() {
                        alive.remove(plan, old);
                    }
                    alive.add(plan, made);
                }
                let bytes = graph.workspace(op);
                let place = spread.schedule.workspace_offsets.get_mut(op.0 as usize);
                if let Some(place) = place.filter(|place| bytes > 0 && place.is_some())
                    && let Some(start) = alive.gap(bytes, next, plan.schedule.arena_bytes)
                {
                    *place = Some(start);
                    next = start + bytes;
                }
            }
        }
    }
    spread
}

/// What of the arena is in use: the end of each piece, by start and buffer.
#[derive(Default)]
struct Alive(BTreeMap<(u64, u32), u64>);

impl Alive {
    fn key(plan: &Plan, buffer: BufferId) -> Option<(u64, u32)> {
        let start = plan.schedule.offsets.get(buffer.0 as usize).copied().flatten()?;
        Some((start, buffer.0))
    }

    fn add(&mut self, plan: &Plan, buffer: BufferId) {
        let bytes = plan.schedule_graph.arena_bytes(buffer);
        if let Some(key) = Self::key(plan, buffer).filter(|_| bytes > 0) {
            self.0.insert(key, key.0.saturating_add(bytes));
        }
    }

    fn remove(&mut self, plan: &Plan, buffer: BufferId) {
        if let Some(key) = Self::key(plan, buffer) {
            self.0.remove(&key);
        }
    }

    /// The first place for so many bytes from `next` on; else from the start of the arena on.
    fn gap(&self, bytes: u64, next: u64, end: u64) -> Option<u64> {
        let from = |least: u64| {
            let mut start = least.next_multiple_of(ALIGNMENT);
            for (&(begin, _), &piece_end) in &self.0 {
                if begin >= start.saturating_add(bytes) {
                    break;
                }
                start = start.max(piece_end.next_multiple_of(ALIGNMENT));
            }
            start.checked_add(bytes).is_some_and(|last| last <= end).then_some(start)
        };
        from(next).or_else(|| from(0))
    }
}
