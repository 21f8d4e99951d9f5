//! A checker of plans: everything is worked out again from the graph.

use std::collections::{BTreeMap, HashMap};

use tg::{
    plan::{Instruction, Schedule},
    schedule::{BufferId, OpId, ScheduleGraph, instructions},
};

/// Asserts that a plan is legal, that its figures are true, and that bound ≤ live peak ≤ arena.
pub fn check(graph: &ScheduleGraph, plan: &Schedule) {
    let ops = graph.op_count();
    assert_eq!(plan.order.len(), ops, "every op once");
    let mut at = vec![usize::MAX; ops];
    for (position, op) in plan.order.iter().enumerate() {
        assert_eq!(at[op.0 as usize], usize::MAX, "{op:?} twice");
        at[op.0 as usize] = position;
    }
    for op in graph.ops() {
        let here = at[op.0 as usize];
        for p in graph.after(op) {
            assert!(at[p.0 as usize] < here, "{op:?} before {p:?}");
        }
        for &b in graph.reads(op) {
            if let Some(maker) = graph.maker(b) {
                assert!(at[maker.0 as usize] < here, "{op:?} reads {b:?} before it is made");
            }
        }
    }

    let mut spans: Vec<Option<(usize, usize)>> = vec![None; graph.buffer_count()];
    let last_position = ops.saturating_sub(1);
    for b in graph.buffer_ids() {
        let flags = graph.buffer(b).flags;
        if !flags.persistent {
            let first = graph.maker(b).map_or(0, |op| at[op.0 as usize]);
            spans[b.0 as usize] = Some((first, if flags.output { last_position } else { first }));
        }
    }
    for op in graph.ops() {
        for &b in graph.reads(op) {
            if let Some((_, last)) = &mut spans[b.0 as usize] {
                *last = (*last).max(at[op.0 as usize]);
            }
        }
    }

    let mut replaced: HashMap<BufferId, BufferId> = HashMap::new();
    for (m, r) in plan.overwrites.iter().enumerate() {
        let m = BufferId(m as u32);
        let Some(r) = *r else { continue };
        let op = graph.maker(m).expect("only made buffers overwrite");
        assert!(graph.may_overwrite(op).contains(&(m, r)), "{m:?} may not overwrite {r:?}");
        let flags = graph.buffer(r).flags;
        assert!(!flags.persistent && !flags.output);
        assert_eq!(graph.buffer(m).bytes, graph.buffer(r).bytes);
        assert_eq!(
            spans[r.0 as usize].unwrap().1,
            at[op.0 as usize],
            "{r:?} is read after it is overwritten"
        );
        assert!(replaced.insert(r, m).is_none(), "{r:?} overwritten twice");
    }

    figures(graph, plan, &spans);
    places(graph, plan, &spans);
    frees(graph, plan, &spans, &replaced);
    assert!(plan.lower_bound_bytes <= plan.live_peak_bytes, "bound above the peak");
    assert!(plan.live_peak_bytes <= plan.arena_bytes, "arena lower than what is alive");
    proof(graph, plan);
}

/// The peak of an order without overwrites; asserts that the order is legal.
pub fn plain_peak(graph: &ScheduleGraph, order: &[OpId]) -> u64 {
    assert_eq!(order.len(), graph.op_count());
    let mut done = vec![false; order.len()];
    let mut readers: Vec<usize> = vec![0; graph.buffer_count()];
    for op in graph.ops() {
        graph.reads(op).iter().for_each(|b| readers[b.0 as usize] += 1);
    }
    let starts = |b: &BufferId| graph.maker(*b).is_none();
    let mut now: u64 = graph.buffer_ids().filter(starts).map(|b| graph.arena_bytes(b)).sum();
    let mut unread: u64 = graph
        .buffer_ids()
        .filter(starts)
        .filter(|b| readers[b.0 as usize] == 0 && !graph.buffer(*b).flags.output)
        .map(|b| graph.arena_bytes(b))
        .sum();
    let mut peak = 0;
    for &op in order {
        assert!(graph.after(op).iter().all(|p| done[p.0 as usize]));
        assert!(graph.reads(op).iter().all(|&b| graph.maker(b).is_none_or(|p| done[p.0 as usize])));
        assert!(!std::mem::replace(&mut done[op.0 as usize], true));
        now += graph.makes(op).iter().map(|&b| graph.arena_bytes(b)).sum::<u64>();
        peak = peak.max(now + graph.workspace(op));
        now -= std::mem::take(&mut unread);
        for &b in graph.reads(op) {
            readers[b.0 as usize] -= 1;
            if readers[b.0 as usize] == 0 && !graph.buffer(b).flags.output {
                now -= graph.arena_bytes(b);
            }
        }
        for &b in graph.makes(op) {
            if readers[b.0 as usize] == 0 && !graph.buffer(b).flags.output {
                now -= graph.arena_bytes(b);
            }
        }
    }
    peak
}

fn figures(graph: &ScheduleGraph, plan: &Schedule, spans: &[Option<(usize, usize)>]) {
    let mut live = vec![0i128; plan.order.len() + 1];
    for b in graph.buffer_ids() {
        if let Some((first, last)) = spans[b.0 as usize]
            && !plan.order.is_empty()
        {
            live[first] += i128::from(graph.arena_bytes(b));
            live[last + 1] -= i128::from(graph.arena_bytes(b));
        }
    }
    let mut now = 0;
    let mut peaks = Vec::new();
    for (position, &op) in plan.order.iter().enumerate() {
        now += live[position];
        let shared: i128 = graph
            .makes(op)
            .iter()
            .filter(|m| plan.overwrites[m.0 as usize].is_some())
            .map(|&m| i128::from(graph.arena_bytes(m)))
            .sum();
        peaks.push(now - shared + i128::from(graph.workspace(op)));
    }
    if let Some(&peak) = peaks.iter().max() {
        assert_eq!(peak, i128::from(plan.live_peak_bytes), "the peak is not as stated");
        let first = peaks.iter().position(|&p| p == peak).unwrap();
        assert_eq!(plan.peak_position, first);
    }
}

/// A sweep over time with the live address ranges in a tree.
fn places(graph: &ScheduleGraph, plan: &Schedule, spans: &[Option<(usize, usize)>]) {
    let mut starts: Vec<Vec<BufferId>> = vec![Vec::new(); plan.order.len()];
    let mut ends: Vec<Vec<BufferId>> = vec![Vec::new(); plan.order.len()];
    for b in graph.buffer_ids() {
        let offset = plan.offsets[b.0 as usize];
        let Some((first, last)) = spans[b.0 as usize] else {
            assert_eq!(offset, None, "{b:?} is persistent");
            continue;
        };
        let offset = offset.expect("a place for every buffer of the arena");
        assert!(offset + graph.arena_bytes(b) <= plan.arena_bytes, "{b:?} ends above the arena");
        if graph.arena_bytes(b) > 0 && !plan.order.is_empty() {
            starts[first].push(b);
            ends[last].push(b);
        }
    }
    let mut live: BTreeMap<u64, (u64, String)> = BTreeMap::new();
    let insert = |live: &mut BTreeMap<u64, (u64, String)>, from: u64, bytes: u64, what: String| {
        if let Some((_, (end, other))) = live.range(..from + bytes).next_back() {
            assert!(*end <= from, "{what} overlaps {other}");
        }
        live.insert(from, (from + bytes, what));
    };
    for (position, &op) in plan.order.iter().enumerate() {
        for &b in &starts[position] {
            let offset = plan.offsets[b.0 as usize].unwrap();
            if let Some(r) = plan.overwrites[b.0 as usize] {
                assert_eq!(Some(offset), plan.offsets[r.0 as usize], "{b:?} lies elsewhere than {r:?}");
                live.remove(&offset);
            }
            insert(&mut live, offset, graph.arena_bytes(b), format!("{b:?}"));
        }
        let bytes = graph.workspace(op);
        if bytes > 0 {
            let offset = plan.workspace_offsets[op.0 as usize].expect("a place for every workspace");
            assert!(offset + bytes <= plan.arena_bytes);
            insert(&mut live, offset, bytes, format!("workspace of {op:?}"));
            live.remove(&offset);
        }
        for &b in &ends[position] {
            // The place of an overwritten one is its successor's by now.
            if !starts[position].iter().any(|m| plan.overwrites[m.0 as usize] == Some(b)) {
                live.remove(&plan.offsets[b.0 as usize].unwrap());
            }
        }
    }
}

fn frees(
    graph: &ScheduleGraph,
    plan: &Schedule,
    spans: &[Option<(usize, usize)>],
    replaced: &HashMap<BufferId, BufferId>,
) {
    let mut position = 0;
    let mut freed = vec![None; graph.buffer_count()];
    for instruction in instructions(graph, &plan.order, &plan.overwrites) {
        match instruction {
            Instruction::Exec(op) => {
                assert_eq!(plan.order[position], op);
                position += 1;
            }
            Instruction::Free(b) => {
                assert_eq!(freed[b.0 as usize].replace(position - 1), None, "{b:?} freed twice");
            }
        }
    }
    assert_eq!(position, plan.order.len());
    for b in graph.buffer_ids() {
        let expected = match spans[b.0 as usize] {
            Some((_, last)) if graph.arena_bytes(b) > 0 && !plan.order.is_empty() => Some(last),
            _ => None,
        };
        let expected = expected.filter(|_| !graph.buffer(b).flags.output && !replaced.contains_key(&b));
        assert_eq!(freed[b.0 as usize], expected, "{b:?}");
    }
}

/// The set that proves the bound is one that can be done before its op. Without branching, what is
/// alive there is the bound.
fn proof(graph: &ScheduleGraph, plan: &Schedule) {
    let bound = &plan.bound;
    assert_eq!(bound.bytes, plan.lower_bound_bytes);
    let Some(op) = bound.op else { return };
    let mut done = vec![false; graph.op_count()];
    for OpId(before) in &bound.before {
        done[*before as usize] = true;
    }
    assert!(!done[op.0 as usize]);
    let ready = |op: OpId| {
        graph.after(op).iter().all(|p| done[p.0 as usize])
            && graph.reads(op).iter().all(|&b| graph.maker(b).is_none_or(|p| done[p.0 as usize]))
    };
    assert!(ready(op) && bound.before.iter().all(|&p| ready(p)), "the cut is no set of done ops");
}
