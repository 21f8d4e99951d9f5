//! Offsets in the arena for the buffers and workspaces of an order.

use super::{
    BufferId, OpId, ScheduleGraph,
    index::Index,
    pack::{Block, PackOptions, pack},
    profile::lifetimes,
};

/// Where everything lies in the arena.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Places {
    /// For each buffer; `None` for persistent ones.
    pub offsets: Vec<Option<u64>>,
    /// For each op that has a workspace.
    pub workspace_offsets: Vec<Option<u64>>,
    /// Height of the arena.
    pub arena_bytes: u64,
}

/// Places the buffers of an order. A buffer that overwrites another has its offset; the two are one
/// block, as long as both together.
pub fn place(
    graph: &ScheduleGraph,
    order: &[OpId],
    overwrites: &[Option<BufferId>],
    options: &PackOptions,
) -> Places {
    let ix = Index::new(graph);
    let order: Vec<u32> = order.iter().map(|op| op.0).filter(|&op| (op as usize) < ix.ops).collect();
    place_indexed(graph, &ix, &order, overwrites, options)
}

pub(super) fn place_indexed(
    graph: &ScheduleGraph,
    ix: &Index,
    order: &[u32],
    overwrites: &[Option<BufferId>],
    options: &PackOptions,
) -> Places {
    let times = lifetimes(ix, order);
    let root = roots(ix, order, overwrites);
    let mut block_of = vec![usize::MAX; ix.buffers];
    let mut blocks: Vec<Block> = Vec::new();
    for (b, span) in times.iter().enumerate() {
        let Some((first, last)) = *span else { continue };
        let (lower, upper) = (u64::from(first), u64::from(last) + 1);
        let owner = root[b] as usize;
        match blocks.get_mut(block_of[owner]) {
            Some(block) => {
                block.lower = block.lower.min(lower);
                block.upper = block.upper.max(upper);
            }
            None => {
                block_of[owner] = blocks.len();
                blocks.push(Block { lower, upper, bytes: graph.arena_bytes(BufferId(b as u32)) });
            }
        }
    }
    let buffers = blocks.len();
    let mut workers = Vec::new();
    for (at, &op) in order.iter().enumerate() {
        let bytes = graph.workspace(OpId(op));
        if bytes > 0 {
            workers.push(op);
            blocks.push(Block { lower: at as u64, upper: at as u64 + 1, bytes });
        }
    }
    let packing = pack(&blocks, options);
    let offsets = graph
        .buffer_ids()
        .map(|b| {
            let block = block_of[root[b.0 as usize] as usize];
            let offset = packing.offsets.get(block).copied().unwrap_or(0);
            (!graph.buffer(b).flags.persistent).then_some(offset)
        })
        .collect();
    let mut workspace_offsets = vec![None; ix.ops];
    for (&op, &offset) in workers.iter().zip(&packing.offsets[buffers..]) {
        workspace_offsets[op as usize] = Some(offset);
    }
    Places { offsets, workspace_offsets, arena_bytes: packing.height }
}

/// The first buffer of each chain of overwrites. What is overwritten was made earlier in the order.
fn roots(ix: &Index, order: &[u32], overwrites: &[Option<BufferId>]) -> Vec<u32> {
    let mut root: Vec<u32> = (0..ix.buffers as u32).collect();
    for &op in order {
        for &m in ix.makes.get(op as usize) {
            if let Some(BufferId(r)) = overwrites.get(m as usize).copied().flatten()
                && let Some(&known) = root.get(r as usize)
            {
                root[m as usize] = known;
            }
        }
    }
    root
}
