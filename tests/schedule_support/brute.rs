//! The lowest live peak of a small graph, found by looking at everything.

use tg::schedule::{BufferFlags, BufferId, CopyableView, GraphBuilder, OpId, ScheduleGraph};

/// All orders with all choices of overwrites, bytes counted by lifetimes. Up to 8 ops.
pub fn by_permutations(graph: &ScheduleGraph) -> u64 {
    if graph.op_count() == 0 {
        return inputs(graph);
    }
    let mut best = u64::MAX;
    let mut order = Vec::new();
    permute(graph, &mut order, &mut best);
    best
}

fn inputs(graph: &ScheduleGraph) -> u64 {
    graph.buffer_ids().filter(|&b| graph.buffer(b).flags.input).map(|b| graph.arena_bytes(b)).sum()
}

fn permute(graph: &ScheduleGraph, order: &mut Vec<OpId>, best: &mut u64) {
    if order.len() == graph.op_count() {
        *best = (*best).min(peak(graph, order));
        return;
    }
    for op in graph.ops() {
        let ready = !order.contains(&op)
            && graph.after(op).iter().all(|p| order.contains(p))
            && graph.reads(op).iter().all(|&b| graph.maker(b).is_none_or(|p| order.contains(&p)));
        if ready {
            order.push(op);
            permute(graph, order, best);
            order.pop();
        }
    }
}

fn peak(graph: &ScheduleGraph, order: &[OpId]) -> u64 {
    let at = |op: OpId| order.iter().position(|&o| o == op).unwrap();
    let end = order.len() - 1;
    let span = |b: BufferId| -> (usize, usize) {
        let first = graph.maker(b).map_or(0, at);
        let last = graph.ops().filter(|&op| graph.reads(op).contains(&b)).map(at).max().unwrap_or(first);
        (first, if graph.buffer(b).flags.output { end } else { last })
    };
    let mut most = 0;
    for (position, &op) in order.iter().enumerate() {
        let alive: u64 = graph
            .buffer_ids()
            .filter(|&b| {
                let (first, last) = span(b);
                first <= position && position <= last
            })
            .map(|b| graph.arena_bytes(b))
            .sum();
        let dies = |r: BufferId| !graph.buffer(r).flags.output && span(r).1 == position;
        most = most.max(alive + graph.workspace(op) - best_saving(graph, op, &dies));
    }
    most
}

/// The most bytes that overwriting can save: every subset of the pairs is tried.
fn best_saving(graph: &ScheduleGraph, op: OpId, dies: &dyn Fn(BufferId) -> bool) -> u64 {
    let pairs: Vec<_> = graph
        .may_overwrite(op)
        .iter()
        .filter(|&&(m, r)| {
            dies(r)
                && !graph.buffer(r).flags.persistent
                && !graph.buffer(r).flags.output
                && graph.buffer(m).bytes == graph.buffer(r).bytes
        })
        .collect();
    let mut best = 0;
    for subset in 0u32..1 << pairs.len() {
        let chosen: Vec<_> = (0..pairs.len()).filter(|i| subset >> i & 1 == 1).map(|i| pairs[i]).collect();
        let matching =
            chosen.iter().enumerate().all(|(i, a)| chosen[..i].iter().all(|b| a.0 != b.0 && a.1 != b.1));
        if matching {
            best = best.max(chosen.iter().map(|(m, _)| graph.buffer(*m).bytes).sum());
        }
    }
    best
}

/// The lowest peak over all orders and overwrites, by dynamic programming over the sets of ops that
/// can be done. Up to about 20 ops.
pub fn by_down_sets(graph: &ScheduleGraph) -> u64 {
    down_sets(graph, true).0
}

/// The highest peak of any order without overwrites.
pub fn worst_by_down_sets(graph: &ScheduleGraph) -> u64 {
    down_sets(graph, false).1
}

/// The lowest and the highest peak.
fn down_sets(graph: &ScheduleGraph, overwrite: bool) -> (u64, u64) {
    let n = graph.op_count();
    if n == 0 {
        return (inputs(graph), inputs(graph));
    }
    let mut highest = 0;
    let mut need = vec![0u32; n];
    for op in graph.ops() {
        for p in graph.after(op) {
            need[op.0 as usize] |= 1 << p.0;
        }
        for &b in graph.reads(op) {
            if let Some(p) = graph.maker(b) {
                need[op.0 as usize] |= 1 << p.0;
            }
        }
    }
    let readers: Vec<u32> = graph
        .buffer_ids()
        .map(|b| graph.ops().filter(|&op| graph.reads(op).contains(&b)).map(|op| 1 << op.0).sum())
        .collect();
    let mut best = vec![u64::MAX; 1 << n];
    best[0] = 0;
    for set in 0u32..1 << n {
        let so_far = best[set as usize];
        if so_far == u64::MAX {
            continue;
        }
        let alive: u64 = graph
            .buffer_ids()
            .filter(|&b| {
                let there = graph.maker(b).is_none_or(|op| set >> op.0 & 1 == 1);
                let wanted = graph.buffer(b).flags.output || readers[b.0 as usize] & !set != 0;
                let unread = readers[b.0 as usize] == 0 && graph.maker(b).is_none();
                there && (wanted || unread && set == 0)
            })
            .map(|b| graph.arena_bytes(b))
            .sum();
        for op in graph.ops() {
            let bit = 1 << op.0;
            if set & bit != 0 || need[op.0 as usize] & !set != 0 {
                continue;
            }
            let dies = |r: BufferId| readers[r.0 as usize] & !set & !bit == 0;
            let made: u64 = graph.makes(op).iter().map(|&b| graph.arena_bytes(b)).sum();
            let saved = if overwrite { best_saving(graph, op, &dies) } else { 0 };
            let here = alive + made + graph.workspace(op) - saved;
            highest = highest.max(here);
            let next = &mut best[(set | bit) as usize];
            *next = (*next).min(so_far.max(here));
        }
    }
    (best[(1 << n) - 1], highest)
}

/// The lowest peak over all orders, overwrites and choices of copies.
pub fn by_choices(graph: &ScheduleGraph) -> u64 {
    let views: usize = graph.viewed().iter().map(|base| base.views.len()).sum();
    (0u32..1 << views).map(|choice| by_down_sets(&with_copies(graph, choice))).min().unwrap_or(u64::MAX)
}

/// The graph in which the views of a set are copies. The copies follow the other ops, which is no
/// legal order: what walks this graph must not rely on the order of ids.
fn with_copies(graph: &ScheduleGraph, choice: u32) -> ScheduleGraph {
    let flat: Vec<(BufferId, usize, &CopyableView)> = graph
        .viewed()
        .iter()
        .flat_map(|base| base.views.iter().enumerate().map(move |(k, view)| (base.buffer, k, view)))
        .collect();
    let is_copy = |index: usize| choice >> index & 1 == 1;
    let n = graph.op_count() as u32;
    let m = graph.buffer_count() as u32;
    let copies: Vec<usize> = (0..flat.len()).filter(|&i| is_copy(i)).collect();
    let buffer_of =
        |index: usize| BufferId(m + copies.iter().position(|&c| c == index).expect("it is a copy") as u32);
    let op_of = |index: usize| OpId(buffer_of(index).0 - m + n);
    let mut builder = GraphBuilder::new();
    for b in graph.buffer_ids() {
        let mut flags = graph.buffer(b).flags;
        let returned: Vec<usize> = (0..flat.len()).filter(|&i| flat[i].0 == b && flat[i].2.output).collect();
        if !returned.is_empty() {
            flags.output = returned.iter().any(|&i| !is_copy(i));
        }
        builder.buffer(graph.buffer(b).bytes, flags);
    }
    for &i in &copies {
        builder.buffer(flat[i].2.bytes, BufferFlags { output: flat[i].2.output, ..Default::default() });
    }
    for op in graph.ops() {
        let mut reads = Vec::new();
        let mut after = graph.after(op).to_vec();
        let mut pairs = graph.may_overwrite(op).to_vec();
        for &b in graph.reads(op) {
            let Some(base) = graph.viewed().iter().find(|v| v.buffer == b) else {
                reads.push(b);
                continue;
            };
            let through: Vec<usize> =
                (0..flat.len()).filter(|&i| flat[i].0 == b && flat[i].2.readers.contains(&op)).collect();
            if base.readers.contains(&op) || through.iter().any(|&i| !is_copy(i)) {
                reads.push(b);
            }
            if through.iter().all(|&i| is_copy(i)) {
                pairs.extend(base.overwriters.iter().filter(|p| p.0 == op).map(|p| (p.1, b)));
            }
            reads.extend(through.into_iter().filter(|&i| is_copy(i)).map(buffer_of));
        }
        for &i in &copies {
            if flat[i].2.waits.contains(&op) {
                after.push(op_of(i));
            }
            let mine = flat[i].2.overwriters.iter().filter(|p| p.0 == op);
            pairs.extend(mine.map(|p| (p.1, buffer_of(i))));
        }
        builder.op(&reads, graph.makes(op), &after, &pairs, graph.workspace(op));
    }
    for &i in &copies {
        builder.op(&[flat[i].0], &[buffer_of(i)], &flat[i].2.after, &[], 0);
    }
    builder.finish()
}
