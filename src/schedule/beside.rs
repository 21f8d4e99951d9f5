//! Independent work in front of waits for collectives, so that these go on beside it. What a wait holds
//! back, such as updates, moves behind that work together with it. The peak and the height of the arena
//! stay what they are, or nothing moves.

use std::time::Duration;

use super::{OpId, PACK_WORK, Schedule, ScheduleGraph, index::Index, pack::PackOptions, place, profile};

/// Positions that all searches of one schedule may look at.
const WALK_STEPS: usize = 100_000_000;

/// Ops behind a wait that are looked at. More would not make a collective shorter.
const LONGEST_WINDOW: usize = 10_000;

/// Which ops start collectives, and which wait for them.
pub struct Collectives<'a> {
    pub starts: &'a dyn Fn(OpId) -> bool,
    pub waits: &'a dyn Fn(OpId) -> bool,
}

/// Moves work in front of waits, where that costs no memory.
pub fn work_beside(
    graph: &ScheduleGraph,
    schedule: &mut Schedule,
    collectives: &Collectives<'_>,
    time_limit: Duration,
) {
    if !schedule.order.iter().any(|&op| (collectives.waits)(op)) {
        return;
    }
    let ix = Index::new(graph);
    let is_known = schedule.order.len() == ix.ops && schedule.order.iter().all(|op| (op.0 as usize) < ix.ops);
    // Rounded sizes would not say what the peak is.
    if !ix.exact || !is_known {
        return;
    }
    let waits = |op: u32| (collectives.waits)(OpId(op));
    let ends_early = |op: u32| waits(op) || (collectives.starts)(OpId(op));
    // With less in flight at once, buffers may find places where they found none.
    for stops in [&waits as &dyn Fn(u32) -> bool, &ends_early] {
        let before: Vec<u32> = schedule.order.iter().map(|op| op.0).collect();
        let order = moved(&ix, before.clone(), &waits, stops);
        if order == before {
            return;
        }
        let overwrites = profile::overwrites(&ix, &order);
        let options = PackOptions { goal: schedule.arena_bytes, time_limit, work_limit: PACK_WORK };
        let places = place::place_indexed(graph, &ix, &order, &overwrites, &options);
        if places.arena_bytes > schedule.arena_bytes {
            continue;
        }
        (schedule.live_peak_bytes, schedule.peak_position) = profile::exact_peak(graph, &ix, &order);
        schedule.order = order.into_iter().map(OpId).collect();
        schedule.overwrites = overwrites;
        schedule.offsets = places.offsets;
        schedule.workspace_offsets = places.workspace_offsets;
        schedule.arena_bytes = places.arena_bytes;
        return;
    }
}

/// The order with as much work before each wait as the peak allows. A wait passes no op that `stops`.
fn moved(
    ix: &Index,
    mut order: Vec<u32>,
    waits: &dyn Fn(u32) -> bool,
    stops: &dyn Fn(u32) -> bool,
) -> Vec<u32> {
    let peak = profile::profile(ix, &order).peak;
    let mut left = WALK_STEPS;
    let mut held_back = vec![false; ix.ops];
    // The last one first: then there is work between those behind it.
    for at in (0..order.len()).rev() {
        if !waits(order[at]) {
            continue;
        }
        let free = independent(ix, &order, at, stops, &mut held_back);
        let mut fits = |count: usize| -> Option<Vec<u32>> {
            left = left.checked_sub(order.len())?;
            let order = with_first(&order, at, &free[..count]);
            (profile::profile(ix, &order).peak <= peak).then_some(order)
        };
        // The most that fits; more of it needs mostly more.
        let (mut low, mut high, mut best) = (0, free.len() + 1, None);
        let mut count = free.len();
        while low + 1 < high {
            match fits(count) {
                Some(order) => (low, best) = (count, Some(order)),
                None => high = count,
            }
            count = low + (high - low) / 2;
        }
        if let Some(best) = best {
            order = best;
        }
    }
    order
}

/// Positions behind a wait of what does not depend on it, up to the first of these that `stops`.
fn independent(
    ix: &Index,
    order: &[u32],
    at: usize,
    stops: &dyn Fn(u32) -> bool,
    held_back: &mut [bool],
) -> Vec<usize> {
    let mut free = Vec::new();
    let mut held = vec![order[at]];
    held_back[order[at] as usize] = true;
    for (next, &op) in order.iter().enumerate().skip(at + 1).take(LONGEST_WINDOW) {
        if ix.preds.get(op as usize).iter().any(|&before| held_back[before as usize]) {
            held_back[op as usize] = true;
            held.push(op);
        } else if stops(op) {
            break;
        } else {
            free.push(next);
        }
    }
    held.iter().for_each(|&op| held_back[op as usize] = false);
    free
}

/// The order in which the ops at some positions behind `at` come before the one there.
fn with_first(order: &[u32], at: usize, first: &[usize]) -> Vec<u32> {
    let Some(&last) = first.last() else { return order.to_vec() };
    let mut new = Vec::with_capacity(order.len());
    new.extend_from_slice(&order[..at]);
    new.extend(first.iter().map(|&k| order[k]));
    let mut moved = first.iter().copied().peekable();
    new.extend((at..=last).filter(|&k| moved.next_if_eq(&k).is_none()).map(|k| order[k]));
    new.extend_from_slice(&order[last + 1..]);
    new
}

#[cfg(test)]
mod tests {
    use super::super::{BufferFlags, GraphBuilder, Options, OrderKind, schedule};
    use super::*;

    /// Two layers of a backward pass, of which the gradients travel, and an update after each. `room` is
    /// what the first part needs, before there are gradients. The ops in the order that comes out.
    fn order(room: u64) -> Vec<u32> {
        let mut b = GraphBuilder::new();
        let flags = BufferFlags::default();
        let persistent = b.buffer(256, BufferFlags { persistent: true, ..flags });
        let mut buffer = |bytes| b.buffer(bytes, flags);
        let [top, x, y] = [room, 256, 256].map(&mut buffer);
        let [g1, s1, g2, s2] = [1024, 1024, 1024, 1024].map(&mut buffer);
        b.op(&[persistent], &[top], &[], &[], 0);
        b.op(&[top], &[x], &[], &[], 0);
        b.op(&[x], &[g1], &[], &[], 0);
        let start = b.op(&[g1], &[s1], &[], &[], 0);
        let wait = b.op(&[g1, s1], &[], &[start], &[], 0);
        b.op(&[s1, persistent], &[], &[wait], &[], 0);
        b.op(&[x], &[y], &[OpId(2)], &[], 0);
        b.op(&[y], &[g2], &[], &[], 0);
        let start = b.op(&[g2], &[s2], &[], &[], 0);
        let wait = b.op(&[g2, s2], &[], &[start], &[], 0);
        b.op(&[s2, persistent], &[], &[wait], &[], 0);
        let graph = b.finish();
        let options = Options { order: OrderKind::Source, ..Options::default() };
        let mut plan = schedule(&graph, &options);
        let (peak, height) = (plan.live_peak_bytes, plan.arena_bytes);
        let starts = |op: OpId| op.0 == 3 || op.0 == 8;
        let waits = |op: OpId| op.0 == 4 || op.0 == 9;
        let collectives = Collectives { starts: &starts, waits: &waits };
        work_beside(&graph, &mut plan, &collectives, options.time_limit);
        assert!(plan.live_peak_bytes <= peak && plan.arena_bytes <= height);
        plan.order.iter().map(|op| op.0).collect()
    }

    #[test]
    fn work_runs_beside_a_collective_where_there_is_room() {
        // Room for two gradients and what is received of both.
        assert_eq!(order(8192), [0, 1, 2, 3, 6, 7, 8, 4, 5, 9, 10]);
        // For one only: the next layer's own values fit beside it, its gradient does not.
        assert_eq!(order(2560), [0, 1, 2, 3, 6, 4, 5, 7, 8, 9, 10]);
    }

    #[test]
    fn nothing_moves_where_the_peak_would_rise() {
        assert_eq!(order(256), (0..11).collect::<Vec<u32>>());
    }
}
