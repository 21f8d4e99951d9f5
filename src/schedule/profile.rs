//! What an order costs: the bytes alive while each op runs, the overwrites it allows, and the
//! instructions that carry it out.

use super::{
    BufferId, Instruction, OpId, ScheduleGraph,
    index::{Index, NONE},
};

/// Units alive while the op at each position runs.
#[derive(Debug, Clone)]
pub(super) struct Profile {
    pub(super) live: Vec<i64>,
    /// Units alive before it starts.
    pub(super) before: Vec<i64>,
    pub(super) peak: i64,
    /// Where the peak is reached first.
    pub(super) position: usize,
}

pub(super) fn profile(ix: &Index, order: &[u32]) -> Profile {
    let mut left: Vec<u32> = (0..ix.buffers).map(|b| ix.users.count(b) as u32).collect();
    let mut now: i64 = ix.inputs.iter().map(|&b| ix.size[b as usize]).sum();
    let mut live = Vec::with_capacity(order.len());
    let mut before = Vec::with_capacity(order.len());
    let (mut peak, mut position) = (0, 0);
    for (at, &op) in order.iter().enumerate() {
        let v = op as usize;
        let mut freed = 0;
        for &r in ix.reads.get(v) {
            let r = r as usize;
            left[r] -= 1;
            if left[r] == 0 && !ix.output[r] {
                freed += ix.size[r];
            }
        }
        let saved = ix.saved(v, |r| left[r] == 0);
        let mut here = now + ix.made[v] - saved + ix.workspace[v];
        if at == 0 {
            here += ix.unread;
        }
        if here > peak || at == 0 {
            (peak, position) = (here, at);
        }
        live.push(here);
        before.push(now);
        now += ix.made[v] - ix.dead[v] - freed;
    }
    Profile { live, before, peak, position }
}

/// For each buffer, the one that it overwrites in this order.
pub(super) fn overwrites(ix: &Index, order: &[u32]) -> Vec<Option<BufferId>> {
    let mut left: Vec<u32> = (0..ix.buffers).map(|b| ix.users.count(b) as u32).collect();
    let mut replaced = vec![None; ix.buffers];
    for &op in order {
        let v = op as usize;
        for &r in ix.reads.get(v) {
            left[r as usize] -= 1;
        }
        if ix.has_pairs(v) {
            for (m, r) in ix.matching(v, |r| left[r] == 0) {
                replaced[m as usize] = Some(BufferId(r));
            }
        }
    }
    replaced
}

/// First and last position of every buffer that takes room in the arena.
pub(super) fn lifetimes(ix: &Index, order: &[u32]) -> Vec<Option<(u32, u32)>> {
    let mut position = vec![0u32; ix.ops];
    for (at, &op) in order.iter().enumerate() {
        position[op as usize] = at as u32;
    }
    let end = order.len().saturating_sub(1) as u32;
    (0..ix.buffers)
        .map(|b| {
            if ix.size[b] == 0 {
                return None;
            }
            let first = if ix.maker[b] == NONE { 0 } else { position[ix.maker[b] as usize] };
            let last = ix.users.get(b).iter().map(|&u| position[u as usize]).max();
            let last = if ix.output[b] { end } else { last.unwrap_or(first) };
            Some((first, last))
        })
        .collect()
}

/// The exact live peak in bytes, for sizes whose sums do not fit the units too, and its position.
pub(super) fn exact_peak(graph: &ScheduleGraph, ix: &Index, order: &[u32]) -> (u64, usize) {
    let profile = profile(ix, order);
    if order.is_empty() {
        let inputs = graph.buffer_ids().filter(|&b| ix.maker[b.0 as usize] == NONE);
        let sum: u128 = inputs.map(|b| u128::from(graph.arena_bytes(b))).sum();
        return (u64::try_from(sum).unwrap_or(u64::MAX), 0);
    }
    if ix.exact {
        return (ix.to_bytes(profile.peak), profile.position);
    }
    let mut change = spans(graph, ix, order);
    let times = lifetimes(ix, order);
    for (b, replaced) in overwrites(ix, order).iter().enumerate() {
        if let (Some(_), Some((first, _))) = (replaced, times[b]) {
            let bytes = i128::from(graph.arena_bytes(BufferId(b as u32)));
            change[first as usize] -= bytes;
            change[first as usize + 1] += bytes;
        }
    }
    summed_peak(graph, order, &change)
}

/// For each position of an order by how many bytes what is alive changes there, if nothing is
/// overwritten.
pub(super) fn spans(graph: &ScheduleGraph, ix: &Index, order: &[u32]) -> Vec<i128> {
    let mut change = vec![0i128; order.len() + 1];
    for (b, span) in lifetimes(ix, order).into_iter().enumerate() {
        if let Some((first, last)) = span {
            let bytes = i128::from(graph.arena_bytes(BufferId(b as u32)));
            change[first as usize] += bytes;
            change[last as usize + 1] -= bytes;
        }
    }
    change
}

/// The most bytes alive, workspaces included, and the first position with so many.
pub(super) fn summed_peak(graph: &ScheduleGraph, order: &[u32], change: &[i128]) -> (u64, usize) {
    let (mut now, mut peak, mut position) = (0i128, 0i128, 0);
    for (at, &op) in order.iter().enumerate() {
        now += change[at];
        let here = now + i128::from(graph.workspace(OpId(op)));
        if here > peak {
            (peak, position) = (here, at);
        }
    }
    (u64::try_from(peak).unwrap_or(u64::MAX), position)
}

/// The instructions of an order: each op, then the buffers whose memory is free after it. A buffer
/// that is overwritten is freed with the one that took its place; outputs are not freed.
pub fn instructions(
    graph: &ScheduleGraph,
    order: &[OpId],
    overwrites: &[Option<BufferId>],
) -> Vec<Instruction> {
    let ix = Index::new(graph);
    let order: Vec<u32> = order.iter().map(|op| op.0).filter(|&op| (op as usize) < ix.ops).collect();
    let mut taken = vec![false; ix.buffers];
    for replaced in overwrites.iter().flatten() {
        if let Some(flag) = taken.get_mut(replaced.0 as usize) {
            *flag = true;
        }
    }
    let mut dying: Vec<Vec<BufferId>> = vec![Vec::new(); order.len()];
    for (b, span) in lifetimes(&ix, &order).iter().enumerate() {
        if let Some((_, last)) = *span
            && !taken[b]
            && !ix.output[b]
            && let Some(list) = dying.get_mut(last as usize)
        {
            list.push(BufferId(b as u32));
        }
    }
    let mut out = Vec::with_capacity(order.len() + ix.buffers);
    for (&op, dying) in order.iter().zip(&dying) {
        out.push(Instruction::Exec(OpId(op)));
        out.extend(dying.iter().map(|&b| Instruction::Free(b)));
    }
    out
}
