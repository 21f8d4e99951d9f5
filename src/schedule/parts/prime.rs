//! A part that does not fall apart: cuts of its hottest ops, on a graph of its own.

use rustc_hash::FxHashMap;

use super::{
    Class, Classes, Item, Merger, Part,
    moments::{self, Moment},
    prune,
};
use crate::schedule::{
    BufferFlags, BufferId, GraphBuilder, OpId, ScheduleGraph, cut::Cutter, flow::INFINITE, index::Index,
    profile::profile,
};

/// Ops of a part without dividers whose cuts are looked at, in parts of up to so many ops.
const CUTS: usize = 6;
const PRIME: usize = 600;

impl Merger<'_> {
    /// A part that does not fall apart: cuts of its hottest ops. Its order stays.
    pub(super) fn prime(&mut self, order: Vec<u32>, classes: &Classes) -> Part {
        let ix = self.ix;
        let mut here: FxHashMap<u32, u32> = FxHashMap::default();
        here.extend(order.iter().enumerate().map(|(i, &op)| (op, i as u32)));
        let owned: i64 = classes
            .iter()
            .filter(|&(_, &class)| class == Class::Owned)
            .map(|(&b, _)| ix.size[b as usize])
            .sum();
        let mut part = Part { order, late: Vec::new(), early: Vec::new(), lowest: -owned };
        if part.order.len() > PRIME || self.work == 0 {
            return part;
        }
        let trace = self.trace(&part.order, classes);
        let mut hot: Vec<usize> = (0..part.order.len()).collect();
        hot.sort_by_key(|&at| std::cmp::Reverse(trace.live[at]));
        hot.truncate(CUTS);
        hot.sort_unstable();
        let (graph, asked) = self.copy(&part.order, classes, &here, &hot);
        let sub = Index::new(&graph);
        let all: Vec<u32> = (0..sub.ops as u32).collect();
        let profile = profile(&sub, &all);
        let mut cutter = Cutter::new(&sub, &all);
        let mut cut = |op: OpId| -> i64 {
            let solved = cutter.solve(op.0, profile.live[op.0 as usize], INFINITE, &mut self.work);
            (solved.units << sub.shift) - owned
        };
        if let Some(&(lowest, _, _)) = asked.first() {
            part.lowest = part.lowest.max(cut(lowest));
        }
        for (&(before, op, after), &at) in asked.iter().skip(1).zip(&hot) {
            // Out of work, a cut is less than it could be, and the part still holds its lowest.
            let (live, low, high) = (cut(op), cut(before).max(part.lowest), cut(after).max(part.lowest));
            let moment = moments::add(&mut self.moments, Moment::Op(part.order[at]));
            part.early.push(Item { steep: live - low, valley: low, moment });
            part.late.push(Item { steep: live - high, valley: high, moment });
        }
        prune(&mut part.late);
        prune(&mut part.early);
        part
    }

    /// The part as a graph of its own, in units, without shared and constant buffers. An op that
    /// waits for nothing asks for the lowest valley; for each hot op, one that it waits for and one
    /// that waits for it ask for the valleys before and behind it.
    fn copy(
        &self,
        order: &[u32],
        classes: &Classes,
        here: &FxHashMap<u32, u32>,
        hot: &[usize],
    ) -> (ScheduleGraph, Vec<(OpId, OpId, OpId)>) {
        let ix = self.ix;
        let mut builder = GraphBuilder::new();
        builder.relax();
        let mut ids: FxHashMap<u32, BufferId> = FxHashMap::default();
        let mut initial: Vec<u32> =
            classes.iter().filter(|&(_, &class)| class == Class::Owned).map(|(&b, _)| b).collect();
        initial.sort_unstable();
        for b in initial {
            let flags = BufferFlags { input: true, ..BufferFlags::default() };
            ids.insert(b, builder.buffer(ix.size[b as usize].unsigned_abs(), flags));
        }
        let asks = builder.op(&[], &[], &[], &[], 0);
        let mut asked = vec![(asks, asks, asks)];
        let mut ops: Vec<OpId> = Vec::with_capacity(order.len());
        let mut hot = hot.iter().peekable();
        for (at, &op) in order.iter().enumerate() {
            let v = op as usize;
            let before = hot.next_if(|&&h| h == at).map(|_| builder.op(&[], &[], &[], &[], 0));
            let reads: Vec<BufferId> = ix.reads.get(v).iter().filter_map(|b| ids.get(b).copied()).collect();
            let mut makes = Vec::new();
            for &b in ix.makes.get(v) {
                let users = ix.users.get(b as usize);
                let output = ix.output[b as usize] || users.iter().any(|u| !here.contains_key(u));
                let flags = BufferFlags { output, ..BufferFlags::default() };
                let id = builder.buffer(ix.size[b as usize].unsigned_abs(), flags);
                ids.insert(b, id);
                makes.push(id);
            }
            let inner = ix.preds.get(v).iter().filter_map(|p| here.get(p)).map(|&p| ops[p as usize]);
            let after: Vec<OpId> = inner.chain(before).collect();
            // An overwritten shared buffer counts with neither its own bytes nor those that take its place.
            let is_shared = |r: u32| classes.get(&r) == Some(&Class::Shared);
            let granted = ix.saved(v, |r| is_shared(r as u32));
            let pairs: Vec<(BufferId, BufferId)> =
                ix.pairs(v).filter_map(|(m, r)| Some((*ids.get(&m)?, *ids.get(&r)?))).collect();
            let shared: i64 =
                ix.reads.get(v).iter().filter(|&&r| is_shared(r)).map(|&r| ix.size[r as usize]).sum();
            let extra = (ix.workspace[v] + shared - granted).max(0);
            let id = builder.op(&reads, &makes, &after, &pairs, extra.unsigned_abs());
            ops.push(id);
            if let Some(before) = before {
                asked.push((before, id, builder.op(&[], &[], &[id], &[], 0)));
            }
        }
        (builder.finish(), asked)
    }
}
