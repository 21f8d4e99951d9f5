//! The schedule graph turned into flat arrays that every pass walks: edges without duplicates,
//! readers by buffer, sizes as integers that cannot overflow when summed.

use rustc_hash::FxHashSet;

use super::{BufferId, OpId, ScheduleGraph};

/// No op: what made an input.
pub(super) const NONE: u32 = u32::MAX;

/// Sums of all sizes stay below this, so that passes may add and negate `i64` freely.
const TOTAL_LIMIT: u128 = 1 << 60;

/// An op with more usable pairs than this gets a greedy matching: the exact one takes their square.
const MATCHING_LIMIT: usize = 256;

/// Lists of `u32` in one allocation.
#[derive(Debug, Clone)]
pub(super) struct Csr {
    starts: Vec<u32>,
    items: Vec<u32>,
}

impl Csr {
    /// Groups `pairs` (row, item) by row; keeps the order of items within a row.
    pub(super) fn new(rows: usize, pairs: &[(u32, u32)]) -> Csr {
        let mut starts = vec![0u32; rows + 1];
        for &(row, _) in pairs {
            starts[row as usize + 1] += 1;
        }
        for row in 0..rows {
            starts[row + 1] += starts[row];
        }
        let mut cursor = starts.clone();
        let mut items = vec![0u32; pairs.len()];
        for &(row, item) in pairs {
            let at = &mut cursor[row as usize];
            items[*at as usize] = item;
            *at += 1;
        }
        Csr { starts, items }
    }

    pub(super) fn get(&self, row: usize) -> &[u32] {
        &self.items[self.starts[row] as usize..self.starts[row + 1] as usize]
    }

    pub(super) fn count(&self, row: usize) -> usize {
        (self.starts[row + 1] - self.starts[row]) as usize
    }

    pub(super) fn len(&self) -> usize {
        self.items.len()
    }
}

/// Sizes are in units of `1 << shift` bytes, the largest power of two that divides them all.
#[derive(Debug, Clone)]
pub(super) struct Index {
    pub(super) ops: usize,
    pub(super) buffers: usize,
    pub(super) shift: u32,
    /// The units are exact. Otherwise sizes were rounded up, which is good enough to choose an order
    /// but not to prove anything.
    pub(super) exact: bool,
    /// Units by buffer; 0 for persistent ones.
    pub(super) size: Vec<i64>,
    pub(super) output: Vec<bool>,
    pub(super) maker: Vec<u32>,
    /// Buffers with bytes in the arena that an op reads, each once.
    pub(super) reads: Csr,
    /// Buffers with bytes in the arena that an op makes.
    pub(super) makes: Csr,
    /// Readers of a buffer, in source order.
    pub(super) users: Csr,
    /// Edges between ops, data and others, each once.
    pub(super) preds: Csr,
    pub(super) succs: Csr,
    /// Units of all made buffers of an op, and of those that die with it.
    pub(super) made: Vec<i64>,
    pub(super) dead: Vec<i64>,
    pub(super) workspace: Vec<i64>,
    /// Usable (made, read) pairs of an op, made and read in turns.
    pairs: Csr,
    /// Pairs may be of unequal sizes ([`ScheduleGraph::is_relaxed`]).
    relaxed: bool,
    /// Inputs that some op reads or that are outputs: alive from the start.
    pub(super) inputs: Vec<u32>,
    /// Units of inputs that nobody reads: alive during the first op only.
    pub(super) unread: i64,
}

impl Index {
    /// Ids that the graph does not have, and edges against the source order, are dropped: every
    /// index that this holds is valid.
    pub(super) fn new(graph: &ScheduleGraph) -> Index {
        let ops = graph.op_count();
        let buffers = graph.buffer_count();
        let raw: Vec<u64> = graph.buffer_ids().map(|b| graph.arena_bytes(b)).collect();
        let work: Vec<u64> = graph.ops().map(|op| graph.workspace(op)).collect();
        let (shift, exact) = unit(&raw, &work);
        let scale = |bytes: u64| -> i64 {
            let rounded = (u128::from(bytes) + ((1u128 << shift) - 1)) >> shift;
            i64::try_from(rounded).unwrap_or(i64::MAX)
        };
        let size: Vec<i64> = raw.iter().map(|&b| scale(b)).collect();
        let workspace: Vec<i64> = work.iter().map(|&b| scale(b)).collect();
        let output: Vec<bool> = graph.buffer_ids().map(|b| graph.buffer(b).flags.output).collect();
        let maker: Vec<u32> = graph
            .buffer_ids()
            .map(|b| {
                let flags = graph.buffer(b).flags;
                if flags.input || flags.persistent { NONE } else { graph.maker(b).map_or(NONE, |op| op.0) }
            })
            .collect();

        let mut stamp = vec![NONE; ops.max(buffers)];
        let mut reads = Vec::new();
        let mut makes = Vec::new();
        let mut users = Vec::new();
        for op in graph.ops() {
            for &BufferId(b) in graph.reads(op) {
                if (b as usize) < buffers && size[b as usize] > 0 && stamp[b as usize] != op.0 {
                    stamp[b as usize] = op.0;
                    reads.push((op.0, b));
                    users.push((b, op.0));
                }
            }
            for &BufferId(b) in graph.makes(op) {
                if (b as usize) < buffers && size[b as usize] > 0 && maker[b as usize] == op.0 {
                    makes.push((op.0, b));
                }
            }
        }
        let reads = Csr::new(ops, &reads);
        let makes = Csr::new(ops, &makes);
        let users = Csr::new(buffers, &users);

        stamp.fill(NONE);
        let mut edges = Vec::new();
        let mut backwards = Vec::new();
        for op in graph.ops() {
            let data = graph.reads(op).iter().filter_map(|&b| maker.get(b.0 as usize).copied());
            let other = graph.after(op).iter().map(|&OpId(p)| p);
            for p in data.chain(other) {
                if p < op.0 && stamp[p as usize] != op.0 {
                    stamp[p as usize] = op.0;
                    edges.push((op.0, p));
                    backwards.push((p, op.0));
                }
            }
        }
        let preds = Csr::new(ops, &edges);
        let succs = Csr::new(ops, &backwards);

        let mut pairs = Vec::new();
        let mut made = vec![0; ops];
        let mut dead = vec![0; ops];
        for op in graph.ops() {
            let v = op.0 as usize;
            for &b in makes.get(v) {
                made[v] += size[b as usize];
                if users.count(b as usize) == 0 && !output[b as usize] {
                    dead[v] += size[b as usize];
                }
            }
            for &(BufferId(m), BufferId(r)) in graph.may_overwrite(op) {
                let (mi, ri) = (m as usize, r as usize);
                let usable = makes.get(v).contains(&m)
                    && reads.get(v).contains(&r)
                    && (raw[mi] == raw[ri] || graph.is_relaxed)
                    && !output[ri]
                    && !graph.buffer(BufferId(r)).flags.persistent;
                if usable {
                    pairs.extend([(op.0, m), (op.0, r)]);
                }
            }
        }
        let pairs = Csr::new(ops, &pairs);
        let mut inputs = Vec::new();
        let mut unread = 0;
        for b in 0..buffers {
            if maker[b] == NONE && size[b] > 0 {
                if users.count(b) > 0 || output[b] {
                    inputs.push(b as u32);
                } else {
                    unread += size[b];
                }
            }
        }
        Index {
            ops,
            buffers,
            shift,
            exact,
            size,
            output,
            maker,
            reads,
            makes,
            users,
            preds,
            succs,
            made,
            dead,
            workspace,
            pairs,
            relaxed: graph.is_relaxed,
            inputs,
            unread,
        }
    }

    /// The (made, read) pairs of an op whose sizes agree and whose read buffer may be given up.
    pub(super) fn pairs(&self, op: usize) -> impl Iterator<Item = (u32, u32)> {
        self.pairs.get(op).chunks_exact(2).map(|pair| (pair[0], pair[1]))
    }

    pub(super) fn has_pairs(&self, op: usize) -> bool {
        self.pairs.count(op) > 0
    }

    /// The units that overwriting saves at `op` when the read buffers that satisfy `dies` die there.
    pub(super) fn saved(&self, op: usize, dies: impl Fn(usize) -> bool) -> i64 {
        match self.pairs.get(op) {
            [] => 0,
            &[m, r] => {
                if dies(r as usize) {
                    self.shared(m, r)
                } else {
                    0
                }
            }
            // Which partners are best would take more than counting; no choice saves more than this.
            _ if self.relaxed => {
                let mut most: Vec<(u32, i64)> = Vec::new();
                for (m, r) in self.pairs(op).filter(|&(_, r)| dies(r as usize)) {
                    match most.iter_mut().find(|(made, _)| *made == m) {
                        Some((_, units)) => *units = (*units).max(self.shared(m, r)),
                        None => most.push((m, self.shared(m, r))),
                    }
                }
                most.iter().map(|&(_, units)| units).sum()
            }
            _ => self.matching(op, dies).iter().map(|&(m, _)| self.size[m as usize]).sum(),
        }
    }

    /// Units saved where `made` takes the place of `read`: all of it, as their sizes agree, unless the
    /// graph is relaxed.
    pub(super) fn shared(&self, made: u32, read: u32) -> i64 {
        self.size[made as usize].min(self.size[read as usize])
    }

    /// A choice of overwrites at `op` that saves most: a maximum matching of made buffers with
    /// dying ones. Partners have the same size, so the number of pairs decides within a size.
    pub(super) fn matching(&self, op: usize, dies: impl Fn(usize) -> bool) -> Vec<(u32, u32)> {
        let usable: Vec<(u32, u32)> = self.pairs(op).filter(|&(_, r)| dies(r as usize)).collect();
        let mut chosen: Vec<(u32, u32)> = Vec::new();
        if usable.len() > MATCHING_LIMIT {
            let (mut made, mut read) = (FxHashSet::default(), FxHashSet::default());
            for &(m, r) in &usable {
                if !made.contains(&m) && read.insert(r) {
                    made.insert(m);
                    chosen.push((m, r));
                }
            }
            return chosen;
        }
        for &(made, _) in &usable {
            if chosen.iter().all(|&(m, _)| m != made) {
                augment(&usable, &mut chosen, made, &mut Vec::new());
            }
        }
        chosen
    }

    /// Back from units to bytes.
    pub(super) fn to_bytes(&self, units: i64) -> u64 {
        let bytes = u128::from(units.max(0).unsigned_abs()) << self.shift;
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }

    /// Work of one pass over the graph, in edges.
    pub(super) fn weight(&self) -> u64 {
        (self.ops + self.buffers + self.preds.len() + self.reads.len()) as u64
    }
}

/// Finds a partner for `made`, moving the partners of others where that frees one.
fn augment(usable: &[(u32, u32)], chosen: &mut Vec<(u32, u32)>, made: u32, tried: &mut Vec<u32>) -> bool {
    for &(m, read) in usable {
        if m != made || tried.contains(&read) {
            continue;
        }
        tried.push(read);
        match chosen.iter().position(|&(_, r)| r == read) {
            None => {
                chosen.push((made, read));
                return true;
            }
            Some(at) => {
                let (other, _) = chosen[at];
                if augment(usable, chosen, other, tried) {
                    // `other` now has a second entry with its new partner; this one changes hands.
                    if let Some(entry) = chosen.iter_mut().find(|e| **e == (other, read)) {
                        entry.0 = made;
                    }
                    return true;
                }
            }
        }
    }
    false
}

/// The common unit of all sizes as a power of two, and whether it is exact.
fn unit(buffers: &[u64], workspaces: &[u64]) -> (u32, bool) {
    let all = || buffers.iter().chain(workspaces);
    let total: u128 = all().map(|&b| u128::from(b)).sum();
    let common = all().filter(|&&b| b > 0).map(|b| b.trailing_zeros()).min().unwrap_or(0);
    if total >> common < TOTAL_LIMIT {
        return (common, true);
    }
    let count = (buffers.len() + workspaces.len()) as u128;
    let mut shift = common;
    while (total >> shift) + count >= TOTAL_LIMIT {
        shift += 1;
    }
    (shift, false)
}
