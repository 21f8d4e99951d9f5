//! Live ranges of a plan's buffers, and the memory curve over its order.

use std::ops::RangeInclusive;

use crate::{
    plan::{Instruction, Plan},
    schedule::OpId,
};

pub(super) struct Live {
    /// For each buffer, the positions in the order at which it counts. A buffer whose place is
    /// taken over ends one position before the op that overwrites it, so that sums count the place
    /// once; it then has no range at all if it was made by the op before.
    pub ranges: Vec<Option<RangeInclusive<usize>>>,
    /// For each buffer, the op that reads it last.
    pub last_readers: Vec<Option<OpId>>,
    /// For each position, the bytes alive in the arena while that op runs, workspace included.
    pub arena: Vec<u64>,
    /// For each position, the index of its instruction.
    instructions: Vec<usize>,
}

impl Live {
    pub fn new(plan: &Plan) -> Live {
        let graph = &plan.schedule_graph;
        let order = &plan.schedule.order;
        let count = graph.buffer_count();
        let end = order.len().saturating_sub(1);
        let mut first = vec![None; count];
        let mut last = vec![None; count];
        let mut last_readers = vec![None; count];
        for (position, &op) in order.iter().enumerate() {
            for made in graph.makes(op) {
                set(&mut first, made.0, position);
                set(&mut last, made.0, position);
            }
            for read in graph.reads(op) {
                set(&mut last, read.0, position);
                set(&mut last_readers, read.0, op);
            }
        }
        // Whose place is taken over, and when.
        let mut taken = vec![None; count];
        for (made, replaced) in plan.schedule.overwrites.iter().enumerate() {
            if let (Some(replaced), Some(at)) = (replaced, first.get(made).copied().flatten()) {
                set(&mut taken, replaced.0, at);
            }
        }
        let ranges: Vec<Option<RangeInclusive<usize>>> = graph
            .buffer_ids()
            .map(|id| {
                let index = id.0 as usize;
                let flags = graph.buffer(id).flags;
                if flags.persistent {
                    return Some(0..=end);
                }
                let from: usize = first.get(index).copied().flatten().unwrap_or(0);
                let to = match taken.get(index).copied().flatten() {
                    Some(at) => usize::checked_sub(at, 1)?,
                    None if flags.output => end,
                    None => last.get(index).copied().flatten().unwrap_or(from),
                };
                (from <= to).then_some(from..=to)
            })
            .collect();
        Live {
            arena: arena(plan, &ranges),
            ranges,
            last_readers,
            instructions: plan
                .instructions
                .iter()
                .enumerate()
                .filter(|(_, i)| matches!(i, Instruction::Exec(_)))
                .map(|(index, _)| index)
                .collect(),
        }
    }

    /// The instruction that runs the op at a position of the order.
    pub fn instruction(&self, position: usize) -> usize {
        self.instructions.get(position).copied().unwrap_or(position)
    }
}

fn set<T>(list: &mut [Option<T>], index: u32, value: T) {
    if let Some(entry) = list.get_mut(index as usize) {
        *entry = Some(value);
    }
}

fn arena(plan: &Plan, ranges: &[Option<RangeInclusive<usize>>]) -> Vec<u64> {
    let graph = &plan.schedule_graph;
    let order = &plan.schedule.order;
    // Sums of sizes that fit in 64 bits one by one may not.
    let mut change = vec![0i128; order.len() + 1];
    for (id, range) in graph.buffer_ids().zip(ranges) {
        let bytes = i128::from(graph.arena_bytes(id));
        if let Some(range) = range {
            if let Some(c) = change.get_mut(*range.start()) {
                *c += bytes;
            }
            if let Some(c) = change.get_mut(*range.end() + 1) {
                *c -= bytes;
            }
        }
    }
    let mut now = 0i128;
    order
        .iter()
        .zip(change)
        .map(|(&op, change)| {
            now += change;
            u64::try_from(now + i128::from(graph.workspace(op))).unwrap_or(u64::MAX)
        })
        .collect()
}
