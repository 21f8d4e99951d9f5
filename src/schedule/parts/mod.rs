//! Wide graphs: sections that fall apart into parts without edges between them.
//!
//! An op that every other op precedes or follows divides an order in all orders, so what lies
//! between two such dividers is a section of its own. Within a section, ops that are not connected
//! are parts whose orders can be merged at will, and each part may have dividers and sections again.
//!
//! **Order.** Each part's order is cut at its hills and valleys (Liu 1987): from its lowest valley
//! on, up to the highest hill and down to the lowest valley behind it, and so on; mirrored before it.
//! Such segments of all parts, taken by falling (hill − valley behind it), or by rising (hill −
//! valley before it) on the way down, have the lowest peak of all merges. For trees and for
//! series-parallel graphs without shared buffers that is the optimum.
//!
//! **Bound.** A late item `(L, V)` of a part says: in every order there is a moment at which at least
//! `L` is alive in it, and from then on at least `V`. One op is such a moment: `L` is what is alive
//! while it runs, `V` the lowest valley behind it. Take one item of each of several parts, all with
//! `L − V ≥ t`, and look at the last of their moments in an order: there one part has `L`, the others
//! at least `V`, so at least `t + ΣV` is alive, and `ΣV` from then on. Parts without an item count
//! with their lowest valley. That is a late item of the section, and with what the later sections
//! have at least, one of the whole. Early items `(L, W)`, at least `W` up to the moment, are the same
//! in the mirror, by the first of the moments. The highest `L` of all items is a bound on every order.
//!
//! A buffer that dies in a section and is read in several of its parts belongs to none of them: the
//! bound counts it only while an op that reads it runs or is still to come in the same part.

use rustc_hash::FxHashMap;

mod moments;
mod prime;
mod runs;

use super::{
    index::{Index, NONE},
    refute::{End, Refutation},
};
use moments::Moment;
use runs::{prune, runs, sweep};

/// Parts in parts, so deep.
const DEPTH: usize = 48;
/// Shared buffers of a part that are followed to their last reader.
const SHARED: usize = 8;

/// A merged order and a bound on all orders.
pub(super) struct Merged {
    pub(super) order: Vec<u32>,
    pub(super) units: i64,
    /// Why: the moments of the bound as one set of ops, of which one is the last to run, or the first.
    pub(super) proof: Refutation,
}

/// Merges the parts of a legal order; `None` where there is nothing to merge at the top.
pub(super) fn merge(ix: &Index, order: &[u32], work: u64) -> Option<Merged> {
    let mut classes = FxHashMap::default();
    for b in 0..ix.buffers {
        if ix.maker[b] == NONE {
            classes.insert(b as u32, if ix.output[b] { Class::Kept } else { Class::Owned });
        }
    }
    let mut merger = Merger {
        ix,
        place: vec![NONE; ix.ops],
        root: vec![0; ix.ops],
        left: vec![0; ix.buffers],
        work,
        wide: false,
        moments: Vec::new(),
    };
    if merger.sections(order).len() < 2 && merger.groups(order).len() < 2 {
        return None;
    }
    let whole = merger.part(order.to_vec(), &classes, DEPTH);
    let inputs: i64 = ix.inputs.iter().map(|&b| ix.size[b as usize]).sum();
    let highest = |items: &[Item]| items.iter().copied().max_by_key(|item| item.steep + item.valley);
    let units = |item: &Option<Item>| item.map_or(0, |item| item.steep + item.valley);
    let (late, early) = (highest(&whole.late), highest(&whole.early));
    let is_late = units(&late) >= units(&early);
    let best = if is_late { late } else { early };
    let ops = best.map_or_else(Vec::new, |item| moments::ops(&merger.moments, item.moment));
    let end = if is_late { End::Last(ops) } else { End::First(ops) };
    let proof = Refutation { edges: Vec::new(), end };
    merger.wide.then_some(Merged { order: whole.order, units: inputs + units(&best).max(0), proof })
}

type Classes = FxHashMap<u32, Class>;

/// A section on its way to a part.
enum Split {
    Done(Part),
    /// Groups of connected ops, and the units that they share.
    Groups(Vec<(Vec<u32>, Classes)>, i64),
}

/// What is known of a buffer that a part reads and does not make.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    /// It dies in the part, with its last reader there.
    Owned,
    /// Alive throughout.
    Kept,
    /// Ops that may run before or after those of the part read it too.
    Shared,
}

/// A moment of the bound: `steep` is L − V, `valley` is V (or W).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Item {
    steep: i64,
    valley: i64,
    /// Which moment, in the list of all.
    moment: u32,
}

/// A part of the graph. Units are relative to those before its first op.
struct Part {
    order: Vec<u32>,
    late: Vec<Item>,
    early: Vec<Item>,
    /// At least so much is alive in it at any time between its ops.
    lowest: i64,
}

struct Merger<'a> {
    ix: &'a Index,
    /// Place of an op in the part at hand; `NONE` outside.
    place: Vec<u32>,
    /// Forest of connected ops.
    root: Vec<u32>,
    /// Readers of a buffer in the part that are still to come.
    left: Vec<u32>,
    work: u64,
    /// Some section has several parts.
    wide: bool,
    moments: Vec<Moment>,
}

/// The ops of a part that read a buffer.
struct Readers {
    count: usize,
    /// The place of the last of them.
    last: usize,
}

/// What is alive in a part while each op runs, and after it, without shared buffers.
struct Trace {
    live: Vec<i64>,
    after: Vec<i64>,
}

impl Merger<'_> {
    fn part(&mut self, mut order: Vec<u32>, classes: &Classes, depth: usize) -> Part {
        if depth == 0 {
            return self.prime(order, classes);
        }
        let sections = self.sections(&order);
        // Where each section starts, in any order, is what its predecessors make and free.
        let trace = self.trace(&order, classes);
        let shared = self.last_shared_reads(&order, classes);
        // Parts first, with what they know of their buffers: recursion reuses the places.
        let readers = self.readers(&order);
        let split: Vec<Split> =
            sections.iter().map(|&span| self.split(&order, span, classes, &readers)).collect();
        let mut done: Vec<(i64, Part)> = Vec::with_capacity(sections.len());
        for (&(start, end), split) in sections.iter().zip(split) {
            let base = if start == 0 { 0 } else { trace.after[start - 1] };
            let mut section = match split {
                Split::Done(part) => part,
                Split::Groups(groups, _) if groups.len() == 1 && end - start == order.len() => {
                    return self.prime(order, classes);
                }
                Split::Groups(groups, apart) => self.section(groups, apart, depth),
            };
            // Shared buffers that only later sections read are there too.
            let waiting = shared.iter().filter(|&&(b, last)| {
                last >= end
                    && !order[start..end].iter().any(|&op| self.ix.reads.get(op as usize).contains(&b))
            });
            let waiting: i64 = waiting.map(|&(b, _)| self.ix.size[b as usize]).sum();
            for item in section.late.iter_mut().chain(&mut section.early) {
                item.steep += waiting;
            }
            order[start..end].copy_from_slice(&section.order);
            section.order = Vec::new();
            done.push((base, section));
        }
        let end = trace.after.last().copied().unwrap_or(0);
        let mut part = Part { order, late: Vec::new(), early: Vec::new(), lowest: 0 };
        let mut floor = end;
        for (base, section) in done.iter().rev() {
            part.late.extend(section.late.iter().map(|item| item.lift(*base, floor)));
            floor = floor.min(base + section.lowest);
        }
        let mut floor = 0;
        for (base, section) in &done {
            part.early.extend(section.early.iter().map(|item| item.lift(*base, floor)));
            floor = floor.min(base + section.lowest);
        }
        part.lowest = floor.min(end);
        prune(&mut part.late);
        prune(&mut part.early);
        part
    }

    /// One op: what is alive while it runs is known but for shared buffers, which it may overwrite.
    fn single(&mut self, op: u32, classes: &Classes) -> Part {
        let ix = self.ix;
        let v = op as usize;
        let class = |r: usize| classes.get(&(r as u32)).copied().unwrap_or(Class::Kept);
        let reads = ix.reads.get(v).iter().map(|&r| r as usize);
        let shared: i64 = reads.clone().filter(|&r| class(r) == Class::Shared).map(|r| ix.size[r]).sum();
        let freed: i64 = reads.filter(|&r| class(r) == Class::Owned).map(|r| ix.size[r]).sum();
        let live = ix.made[v] + ix.workspace[v] - ix.saved(v, |r| class(r) != Class::Kept) + shared;
        let after = ix.made[v] - ix.dead[v] - freed;
        let moment = moments::add(&mut self.moments, Moment::Op(op));
        Part {
            order: vec![op],
            late: vec![Item { steep: live - after, valley: after, moment }],
            early: vec![Item { steep: live, valley: 0, moment }],
            lowest: after.min(0),
        }
    }

    /// Ranges between dividers, and the dividers.
    fn sections(&mut self, order: &[u32]) -> Vec<(usize, usize)> {
        let n = order.len();
        for (at, &op) in order.iter().enumerate() {
            self.place[op as usize] = at as u32;
        }
        let inside = |op: u32| {
            let at = self.place[op as usize];
            (at != NONE && order.get(at as usize) == Some(&op)).then_some(at as usize)
        };
        // The first op that waits for each, and the last that each waits for.
        let first = |op: u32| {
            self.ix.succs.get(op as usize).iter().filter_map(|&s| inside(s)).min().unwrap_or(usize::MAX)
        };
        let last =
            |op: u32| self.ix.preds.get(op as usize).iter().filter_map(|&p| inside(p).map(|p| p + 1)).max();
        // For each place: all ops behind it wait for something from it on.
        let mut follows = vec![true; n];
        let mut least = usize::MAX;
        for at in (0..n).rev() {
            follows[at] = least > at;
            least = least.min(last(order[at]).unwrap_or(0));
        }
        let mut sections = Vec::new();
        let (mut start, mut most) = (0, 0);
        for at in 0..n {
            if most <= at && follows[at] {
                if start < at {
                    sections.push((start, at));
                }
                sections.push((at, at + 1));
                start = at + 1;
            }
            most = most.max(first(order[at]));
        }
        if start < n {
            sections.push((start, n));
        }
        sections
    }

    /// The connected ops among these, each group in the order given, the first op's group first.
    fn groups(&mut self, ops: &[u32]) -> Vec<Vec<u32>> {
        if ops.len() == 1 {
            return vec![ops.to_vec()];
        }
        let mut member: FxHashMap<u32, u32> = FxHashMap::default();
        for (i, &op) in ops.iter().enumerate() {
            member.insert(op, i as u32);
            self.root[op as usize] = op;
        }
        for &op in ops {
            for &p in self.ix.preds.get(op as usize) {
                if member.contains_key(&p) {
                    let (a, b) = (self.find(op), self.find(p));
                    self.root[a as usize] = b;
                }
            }
        }
        let mut number: FxHashMap<u32, usize> = FxHashMap::default();
        let mut groups: Vec<Vec<u32>> = Vec::new();
        for &op in ops {
            let next = groups.len();
            let at = *number.entry(self.find(op)).or_insert(next);
            if at == next {
                groups.push(Vec::new());
            }
            groups[at].push(op);
        }
        groups
    }

    fn find(&mut self, mut op: u32) -> u32 {
        while self.root[op as usize] != op {
            let up = self.root[op as usize];
            self.root[op as usize] = self.root[up as usize];
            op = up;
        }
        op
    }

    /// Who of a part reads each buffer.
    fn readers(&self, order: &[u32]) -> FxHashMap<u32, Readers> {
        let mut readers: FxHashMap<u32, Readers> = FxHashMap::default();
        for (last, &op) in order.iter().enumerate() {
            for &b in self.ix.reads.get(op as usize) {
                let of = readers.entry(b).or_insert(Readers { count: 0, last });
                of.count += 1;
                of.last = last;
            }
        }
        readers
    }

    /// The groups of a section, with the classes of what they read, and the units of buffers that
    /// several of them share. Each takes the time of its reads, however many others read the same.
    fn split(
        &mut self,
        order: &[u32],
        (start, end): (usize, usize),
        classes: &Classes,
        readers: &FxHashMap<u32, Readers>,
    ) -> Split {
        let ix = self.ix;
        let groups = self.groups(&order[start..end]);
        // What each group reads and does not make; `NONE` is the group of what several of them read.
        let mut group_of: FxHashMap<u32, u32> = FxHashMap::default();
        let mut read_by: FxHashMap<u32, u32> = FxHashMap::default();
        for (ops, i) in groups.iter().zip(0u32..) {
            for &op in ops {
                group_of.insert(op, i);
                for &b in ix.reads.get(op as usize) {
                    let group = read_by.entry(b).or_insert(i);
                    *group = if *group == i { i } else { NONE };
                }
            }
        }
        let mut known = Classes::default();
        let mut apart = 0;
        let mut split: Vec<(Vec<u32>, Classes)> = Vec::with_capacity(groups.len());
        for (ops, i) in groups.into_iter().zip(0u32..) {
            let mut own = Classes::default();
            for &b in ops.iter().flat_map(|&op| ix.reads.get(op as usize)) {
                let maker = ix.maker[b as usize];
                if own.contains_key(&b) || maker != NONE && group_of.get(&maker) == Some(&i) {
                    continue;
                }
                let class = *known.entry(b).or_insert_with(|| {
                    let inside = readers.get(&b);
                    let outside = inside.is_none_or(|of| of.count < ix.users.count(b as usize));
                    let later = inside.is_some_and(|of| of.last >= end);
                    let beside = read_by.get(&b) == Some(&NONE);
                    // Made in an earlier section, or known from outside of the part.
                    let known = if ix.output[b as usize] || outside { Class::Kept } else { Class::Owned };
                    match classes.get(&b).copied().unwrap_or(known) {
                        Class::Owned | Class::Shared if later => Class::Kept,
                        Class::Owned if beside => {
                            apart += ix.size[b as usize];
                            Class::Shared
                        }
                        class => class,
                    }
                });
                own.insert(b, class);
            }
            if end - start == 1 {
                return Split::Done(self.single(order[start], &own));
            }
            split.push((ops, own));
        }
        Split::Groups(split, apart)
    }

    /// Merges the groups of a section, above what they share.
    fn section(&mut self, groups: Vec<(Vec<u32>, Classes)>, apart: i64, depth: usize) -> Part {
        self.wide |= groups.len() > 1;
        let mut parts: Vec<Part> = Vec::with_capacity(groups.len());
        let (mut down, mut up) = (Vec::new(), Vec::new());
        for (i, (ops, own)) in groups.into_iter().enumerate() {
            let part = match ops.as_slice() {
                &[op] => self.single(op, &own),
                _ => self.part(ops, &own, depth - 1),
            };
            let trace = self.trace(&part.order, &own);
            runs(&trace, i as u32, &mut down, &mut up);
            parts.push(part);
        }
        // Sorting is stable: runs of one part with equal keys keep their order.
        down.sort_by_key(|run| run.key);
        up.sort_by_key(|run| std::cmp::Reverse(run.key));
        let mut order = Vec::new();
        for run in down.iter().chain(&up) {
            order.extend_from_slice(&parts[run.part as usize].order[run.start..run.end]);
        }
        let lowest: i64 = parts.iter().map(|part| part.lowest).sum();
        Part {
            order,
            late: sweep(parts.iter().map(|part| part.late.as_slice()), &parts, -apart, &mut self.moments),
            early: sweep(parts.iter().map(|part| part.early.as_slice()), &parts, -apart, &mut self.moments),
            lowest: lowest - apart,
        }
    }

    /// What a part has alive, from its own buffers alone.
    fn trace(&mut self, order: &[u32], classes: &Classes) -> Trace {
        let ix = self.ix;
        for (at, &op) in order.iter().enumerate() {
            self.place[op as usize] = at as u32;
            for &r in ix.reads.get(op as usize) {
                self.left[r as usize] = 0;
            }
        }
        for &r in order.iter().flat_map(|&op| ix.reads.get(op as usize)) {
            self.left[r as usize] += 1;
        }
        // A buffer of an op outside is in `classes`; one made here dies if all its readers are here.
        let mut dies: FxHashMap<u32, bool> = FxHashMap::default();
        let mut now = 0;
        let mut trace =
            Trace { live: Vec::with_capacity(order.len()), after: Vec::with_capacity(order.len()) };
        let mut dying: Vec<u32> = Vec::new();
        for &op in order {
            let v = op as usize;
            dying.clear();
            for &r in ix.reads.get(v) {
                let left = &mut self.left[r as usize];
                let mine = || match classes.get(&r) {
                    Some(&class) => class == Class::Owned,
                    None => *left as usize == ix.users.count(r as usize) && !ix.output[r as usize],
                };
                let mine = if *left == 1 {
                    dies.get(&r).copied().unwrap_or_else(mine)
                } else {
                    *dies.entry(r).or_insert_with(mine)
                };
                *left -= 1;
                if *left == 0 && mine {
                    dying.push(r);
                }
            }
            trace
                .live
                .push(now + ix.made[v] + ix.workspace[v] - ix.saved(v, |r| dying.contains(&(r as u32))));
            now += ix.made[v] - ix.dead[v] - dying.iter().map(|&r| ix.size[r as usize]).sum::<i64>();
            trace.after.push(now);
        }
        trace
    }

    /// Shared buffers with the place of their last reader in the part. `place` has its places. Those
    /// of a part that has many are not worth the time.
    fn last_shared_reads(&self, order: &[u32], classes: &Classes) -> Vec<(u32, usize)> {
        let mut shared: Vec<u32> =
            classes.iter().filter(|&(_, &class)| class == Class::Shared).map(|(&b, _)| b).collect();
        if shared.is_empty() || shared.len() > SHARED {
            return Vec::new();
        }
        shared.sort_unstable();
        let last = |b: u32| order.iter().rposition(|&op| self.ix.reads.get(op as usize).contains(&b));
        shared.into_iter().filter_map(|b| last(b).map(|at| (b, at))).collect()
    }
}
