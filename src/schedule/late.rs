//! Ops that only wait, as late as the places of a schedule allow: what is waited for goes on beside
//! the ops before them. Order and lifetimes change, places and the peak do not.

use std::ops::Range;

use super::{BufferId, OpId, Schedule, ScheduleGraph, index::Index, profile};

/// Positions that all searches of one schedule may look at.
const WALK_STEPS: usize = 100_000_000;

/// Moves every op that `waits` before the first op that needs it to be over: one that follows it in
/// the graph, or takes memory of what it reads. No place is changed, and nothing is alive longer at the
/// cost of the peak.
pub fn wait_late(graph: &ScheduleGraph, schedule: &mut Schedule, waits: &dyn Fn(OpId) -> bool) {
    if !schedule.order.iter().any(|&op| waits(op)) {
        return;
    }
    let ix = Index::new(graph);
    let is_known = schedule.order.len() == ix.ops && schedule.order.iter().all(|op| (op.0 as usize) < ix.ops);
    // Rounded sizes would not say what the peak is.
    if !ix.exact || !is_known {
        return;
    }
    let mut order: Vec<u32> = schedule.order.iter().map(|op| op.0).collect();
    let mut left = WALK_STEPS;
    // The last one first: those before it may pass it.
    for at in (0..order.len()).rev() {
        if !waits(OpId(order[at])) {
            continue;
        }
        if left < order.len() {
            break;
        }
        left -= order.len();
        let to = latest(graph, &ix, schedule, &order, at);
        order[at..=to].rotate_left(1);
    }
    let (peak, position) = profile::exact_peak(graph, &ix, &order);
    if peak == schedule.live_peak_bytes && profile::overwrites(&ix, &order) == schedule.overwrites {
        schedule.order = order.into_iter().map(OpId).collect();
        schedule.peak_position = position;
    }
}

/// The last position to which the op at `at` may move.
fn latest(graph: &ScheduleGraph, ix: &Index, schedule: &Schedule, order: &[u32], at: usize) -> usize {
    let op = order[at] as usize;
    let live = profile::profile(ix, order).live;
    let peak = live.iter().copied().max().unwrap_or(0);
    let mut position = vec![0; ix.ops];
    for (at, &op) in order.iter().enumerate() {
        position[op as usize] = at;
    }
    // What it reads: places, sizes, and where the others have read it for the last time.
    let held: Vec<(Range<u64>, i64, usize)> = ix
        .reads
        .get(op)
        .iter()
        .map(|&b| {
            let others = ix.users.get(b as usize).iter().filter(|&&user| user as usize != op);
            let last = others.map(|&user| position[user as usize]).max().unwrap_or(0);
            let last = if ix.output[b as usize] { order.len() } else { last };
            (place(graph, schedule, BufferId(b)), ix.size[b as usize], last)
        })
        .collect();
    let passes = |next: usize| {
        let other = order[next];
        let longer: i64 = held.iter().filter(|(.., last)| *last < next).map(|(_, size, _)| size).sum();
        let workspace = schedule.workspace_offsets.get(other as usize).copied().flatten();
        let workspace = workspace.map_or(0..0, |start| start..start + graph.workspace(OpId(other)));
        let makes = graph.makes(OpId(other)).iter().map(|&made| place(graph, schedule, made));
        let mut taken = makes.chain([workspace]);
        !ix.succs.get(op).contains(&other)
            && live[next] + longer <= peak
            && !taken.any(|taken| held.iter().any(|(held, ..)| overlap(held, &taken)))
    };
    (at + 1..order.len()).take_while(|&next| passes(next)).last().unwrap_or(at)
}

/// The bytes of the arena that a buffer takes.
fn place(graph: &ScheduleGraph, schedule: &Schedule, buffer: BufferId) -> Range<u64> {
    let offset = schedule.offsets.get(buffer.0 as usize).copied().flatten();
    offset.map_or(0..0, |start| start..start + graph.arena_bytes(buffer))
}

fn overlap(a: &Range<u64>, b: &Range<u64>) -> bool {
    !a.is_empty() && !b.is_empty() && a.start < b.end && b.start < a.end
}

#[cfg(test)]
mod tests {
    use super::super::{BufferFlags, GraphBuilder, Options, schedule};
    use super::*;

    /// A collective's start and wait, three ops beside it, and a reader of its result; the second of the
    /// three makes as much as the operand has, at `place`. The arena has `room`, for the op at the end.
    fn waits_at(room: u64, place: Option<u64>) -> usize {
        let mut b = GraphBuilder::new();
        let flags = BufferFlags::default();
        let persistent = b.buffer(256, BufferFlags { persistent: true, ..flags });
        let [operand, result, x, y, z] = [512, 256, 256, 512, 256].map(|bytes| b.buffer(bytes, flags));
        let end = b.buffer(256, BufferFlags { output: true, ..flags });
        let top = b.buffer(room, flags);
        b.op(&[persistent], &[operand], &[], &[], 0);
        let start = b.op(&[operand], &[result], &[], &[], 0);
        let wait = b.op(&[result, operand], &[], &[start], &[], 0);
        b.op(&[persistent], &[x], &[start], &[], 0);
        b.op(&[x], &[y], &[OpId(3)], &[], 0);
        b.op(&[y], &[z], &[OpId(4)], &[], 0);
        b.op(&[result, z], &[end], &[wait, OpId(5)], &[], 0);
        b.op(&[persistent], &[top], &[OpId(6)], &[], 0);
        let graph = b.finish();
        let mut schedule = schedule(&graph, &Options::default());
        if place.is_some() {
            schedule.offsets[y.0 as usize] = place;
        }
        let before = schedule.clone();
        wait_late(&graph, &mut schedule, &|op| op == wait);
        assert_eq!(schedule.live_peak_bytes, before.live_peak_bytes);
        assert_eq!((&schedule.offsets, &schedule.overwrites), (&before.offsets, &before.overwrites));
        schedule.order.iter().position(|&op| op == wait).expect("it runs")
    }

    #[test]
    fn a_wait_stands_before_what_needs_it() {
        // Up to the reader of the result.
        assert_eq!(waits_at(4096, Some(2048)), 5);
        // Up to what takes the memory of the operand.
        assert_eq!(waits_at(4096, None), 3);
        // The same where more would be alive than at the peak.
        assert_eq!(waits_at(256, Some(2048)), 3);
    }
}
