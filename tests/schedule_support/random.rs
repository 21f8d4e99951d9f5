//! Random schedule graphs.

use tg::schedule::{BufferFlags, BufferId, GraphBuilder, OpId, ScheduleGraph};

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
