//! Random schedule graphs.

use tg::schedule::{BufferFlags, BufferId, CopyableView, GraphBuilder, OpId, ScheduleGraph, ViewedBuffer};

/// SplitMix64.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5151)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }

    pub fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }
}

#[derive(Debug, Clone, Copy)]
pub struct Shape {
    pub ops: usize,
    pub dense: bool,
}

/// Inputs, persistent buffers, outputs, workspaces, overwrites, buffers without readers and edges
/// without data all occur.
pub fn graph(random: &mut Random, shape: Shape) -> ScheduleGraph {
    let mut builder = GraphBuilder::new();
    let mut buffers: Vec<(BufferId, u64, BufferFlags)> = Vec::new();
    let size = |random: &mut Random| {
        let most = if random.chance(50) { 4 } else { 20 };
        256 * (1 + random.below(most) as u64)
    };
    for _ in 0..random.below(3) {
        let flags = BufferFlags { persistent: random.chance(20), input: true, output: random.chance(15) };
        let flags =
            BufferFlags { input: !flags.persistent, output: flags.output && !flags.persistent, ..flags };
        let bytes = size(random);
        buffers.push((builder.buffer(bytes, flags), bytes, flags));
    }
    for op in 0..shape.ops {
        let mut reads: Vec<BufferId> = Vec::new();
        let most = if shape.dense { 4 } else { 2 };
        for _ in 0..random.below(most + 1) {
            if !buffers.is_empty() {
                // Mostly recent ones, so that graphs are neither flat nor chains.
                let back = if random.chance(60) { 6 } else { buffers.len() };
                let at = buffers.len() - 1 - random.below(back.min(buffers.len()));
                if !reads.contains(&buffers[at].0) {
                    reads.push(buffers[at].0);
                }
            }
        }
        let mut makes = Vec::new();
        let mut pairs = Vec::new();
        let count = match random.below(10) {
            0 => 0,
            1 => 2,
            _ => 1,
        };
        let mut fresh = Vec::new();
        for _ in 0..count {
            let partner = if reads.is_empty() || random.chance(40) {
                None
            } else {
                let read = reads[random.below(reads.len())];
                buffers.iter().find(|(b, _, _)| *b == read).copied()
            };
            let bytes = match partner {
                Some((_, bytes, _)) => bytes,
                None => size(random),
            };
            let flags = BufferFlags { persistent: false, input: false, output: random.chance(10) };
            let made = builder.buffer(bytes, flags);
            makes.push(made);
            fresh.push((made, bytes, flags));
            for &read in &reads {
                let (_, other, old) = buffers.iter().find(|(b, _, _)| *b == read).copied().unwrap();
                if other == bytes && !old.persistent && random.chance(70) {
                    pairs.push((made, read));
                }
            }
        }
        let mut after = Vec::new();
        if op > 0 && random.chance(15) {
            after.push(OpId(random.below(op) as u32));
        }
        let workspace = if random.chance(15) { size(random) } else { 0 };
        builder.op(&reads, &makes, &after, &pairs, workspace);
        buffers.extend(fresh);
    }
    builder.finish()
}

/// The same with views that may be copied: of inputs and of what ops make, returned, behind
/// barriers, read beside the base, larger together than the base, overwritten. At most `most` views.
pub fn graph_with_views(random: &mut Random, shape: Shape, most: usize) -> ScheduleGraph {
    let plain = graph(random, shape);
    let mut viewed: Vec<ViewedBuffer> = Vec::new();
    // What readers of a view wait for because the view does.
    let mut after: Vec<Vec<OpId>> = plain.ops().map(|op| plain.after(op).to_vec()).collect();
    let mut left = most;
    for base in plain.buffer_ids() {
        let bytes = plain.buffer(base).bytes;
        if left == 0 || plain.buffer(base).flags.persistent || bytes < 512 || random.chance(30) {
            continue;
        }
        let readers: Vec<OpId> = plain.ops().filter(|&op| plain.reads(op).contains(&base)).collect();
        let is_paired = |op: OpId| plain.may_overwrite(op).iter().any(|&(_, read)| read == base);
        let mut views: Vec<CopyableView> = Vec::new();
        for _ in 0..1 + random.below(3) {
            let units = (bytes / 256) as usize;
            views.push(CopyableView {
                bytes: 256 * (1 + random.below(units - 1) as u64),
                ..Default::default()
            });
        }
        let mut direct = Vec::new();
        let mut overwriters = Vec::new();
        for &op in &readers {
            let through: Vec<usize> = (0..views.len()).filter(|_| random.chance(45)).collect();
            if is_paired(op) || through.is_empty() || random.chance(15) {
                direct.push(op);
                if !is_paired(op) && !through.is_empty() {
                    let fits = plain.makes(op).iter().filter(|&&m| plain.buffer(m).bytes == bytes);
                    overwriters.extend(fits.map(|&m| (op, m)));
                }
            }
            if is_paired(op) {
                continue;
            }
            for k in through {
                views[k].readers.push(op);
                for &made in plain.makes(op) {
                    if plain.buffer(made).bytes == views[k].bytes && random.chance(70) {
                        views[k].overwriters.push((op, made));
                    }
                }
            }
        }
        // A returned base is returned through a view, or has none.
        if plain.buffer(base).flags.output {
            let k = random.below(views.len());
            views[k].output = true;
        }
        views.retain(|view| view.output || !view.readers.is_empty());
        let maker = plain.maker(base).map_or(0, |op| op.0 as usize + 1);
        for view in &mut views {
            let first = view.readers.first().map_or(plain.op_count(), |op| op.0 as usize);
            if first > maker && random.chance(25) {
                view.after.push(OpId((maker + random.below(first - maker)) as u32));
            }
            let anchor = view.after.first().map_or(maker, |op| op.0 as usize + 1);
            if anchor < plain.op_count() && random.chance(25) {
                let wait = OpId((anchor + random.below(plain.op_count() - anchor)) as u32);
                if !view.readers.contains(&wait) {
                    view.waits.push(wait);
                }
            }
        }
        views.truncate(left);
        // Readers of views that were cut off read the base.
        for &op in &readers {
            if !direct.contains(&op) && !views.iter().any(|view| view.readers.contains(&op)) {
                direct.push(op);
            }
        }
        direct.sort_unstable();
        let is_returned = plain.buffer(base).flags.output && !views.iter().any(|view| view.output);
        if !views.is_empty() && !is_returned {
            for view in &views {
                for op in view.readers.iter().chain(&view.waits) {
                    let more = view.after.iter().copied().chain(plain.maker(base));
                    after[op.0 as usize].extend(more);
                }
            }
            left -= views.len();
            viewed.push(ViewedBuffer { buffer: base, readers: direct, overwriters, views });
        }
    }
    let mut builder = GraphBuilder::new();
    for b in plain.buffer_ids() {
        builder.buffer(plain.buffer(b).bytes, plain.buffer(b).flags);
    }
    for op in plain.ops() {
        builder.op(
            plain.reads(op),
            plain.makes(op),
            &after[op.0 as usize],
            plain.may_overwrite(op),
            plain.workspace(op),
        );
    }
    viewed.into_iter().for_each(|v| builder.viewed(v));
    builder.finish()
}

/// Random graphs side by side, between an op that some of them wait for and one that reads a result
/// of each, with an input that several read: parts that can be merged, once more in parts.
pub fn graph_of_parts(random: &mut Random, ops: usize) -> ScheduleGraph {
    let mut builder = GraphBuilder::new();
    let plain = BufferFlags::default();
    let input = BufferFlags { input: true, ..plain };
    let size = |random: &mut Random| {
        let most = if random.chance(50) { 4 } else { 20 };
        256 * (1 + random.below(most) as u64)
    };
    let bytes = size(random);
    let shared = builder.buffer(bytes, input);
    let head = builder.buffer(bytes, plain);
    builder.op(&[], &[head], &[], &[], 0);
    let mut ends: Vec<BufferId> = Vec::new();
    let mut left = ops.saturating_sub(2);
    while left > 0 {
        let count = (1 + random.below(4)).min(left);
        left -= count;
        let mut open: Vec<(BufferId, u64)> = Vec::new();
        let mut last: Option<OpId> = None;
        for _ in 0..count {
            let mut reads: Vec<(BufferId, u64)> = Vec::new();
            if random.chance(60) && !open.is_empty() {
                let at = random.below(open.len());
                reads.push(if random.chance(70) { open.swap_remove(at) } else { open[at] });
            }
            for other in [shared, head] {
                if random.chance(25) {
                    reads.push((other, bytes));
                }
            }
            let bytes = size(random);
            let partner = reads.first().copied().filter(|_| random.chance(40));
            let bytes = partner.map_or(bytes, |(_, bytes)| bytes);
            let flags = BufferFlags { output: random.chance(10), ..plain };
            let made = builder.buffer(bytes, flags);
            let pairs: Vec<_> = partner.iter().map(|&(read, _)| (made, read)).collect();
            let after: Vec<OpId> = last.filter(|_| random.chance(50)).into_iter().collect();
            let workspace = if random.chance(20) { size(random) } else { 0 };
            let reads: Vec<BufferId> = reads.iter().map(|&(b, _)| b).collect();
            last = Some(builder.op(&reads, &[made], &after, &pairs, workspace));
            open.push((made, bytes));
        }
        if random.chance(80) {
            ends.extend(open.pop().map(|(b, _)| b));
        }
    }
    if random.chance(70) {
        let bytes = size(random);
        let end = builder.buffer(bytes, plain);
        builder.op(&ends, &[end], &[], &[], 0);
    }
    builder.finish()
}
