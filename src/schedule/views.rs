//! Views that may be copied: a choice of copies turned into a plain graph, and one graph that
//! stands for all choices, for bounds.

use super::{BufferFlags, BufferId, GraphBuilder, OpId, ScheduleGraph, ViewId, graph::ViewedBuffer};

/// Where an op of a graph that was made from another comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Source {
    /// An op of the other graph.
    Op(OpId),
    /// The copy of a view.
    Copy(ViewId),
}

/// A graph in which some views are copies.
#[derive(Debug, Clone)]
pub struct Resolved {
    /// Buffers keep their ids, and the copies follow them. The other views may still be copied.
    pub graph: ScheduleGraph,
    /// Where each op comes from.
    pub sources: Vec<Source>,
    /// The new id of each op of the other graph.
    pub ops: Vec<OpId>,
    /// The views that are copies, with their buffers.
    pub copies: Vec<(ViewId, BufferId)>,
}

/// All copyable views of a graph.
pub(super) fn view_ids(graph: &ScheduleGraph) -> impl Iterator<Item = ViewId> + '_ {
    graph.viewed().iter().enumerate().flat_map(|(viewed, buffer)| {
        (0..buffer.views.len()).map(move |view| ViewId { viewed: viewed as u32, view: view as u32 })
    })
}

/// Turns views into copies. Each copy is an op of its own, in source order right behind what it
/// needs; the readers of the view read the copy and no longer its base.
pub fn resolve(graph: &ScheduleGraph, is_copied: impl Fn(ViewId) -> bool) -> Resolved {
    let copied: Vec<ViewId> = view_ids(graph).filter(|&id| is_copied(id)).collect();
    if copied.is_empty() {
        return Resolved {
            graph: graph.clone(),
            sources: graph.ops().map(Source::Op).collect(),
            ops: graph.ops().collect(),
            copies: Vec::new(),
        };
    }
    let mut rewrite = Rewrite::new(graph);
    let buffers = graph.buffer_count() as u32;
    let copies: Vec<(ViewId, BufferId)> =
        copied.iter().enumerate().map(|(k, &id)| (id, BufferId(buffers + k as u32))).collect();
    let copy_of = |viewed: usize, view: usize| {
        let id = ViewId { viewed: viewed as u32, view: view as u32 };
        copies.binary_search_by_key(&id, |c| c.0).ok().map(|k| copies[k].1)
    };
    for (viewed, base) in graph.viewed().iter().enumerate() {
        let copy = |view| copy_of(viewed, view);
        if (0..base.views.len()).all(|view| copy(view).is_none()) {
            continue;
        }
        rewrite.flags[base.buffer.0 as usize].output =
            base.views.iter().enumerate().any(|(k, view)| view.output && copy(k).is_none());
        let reads_base = readers_of_base(base, |view| copy(view).is_none());
        for (k, view) in base.views.iter().enumerate() {
            let Some(copy) = copy(k) else { continue };
            let id = ViewId { viewed: viewed as u32, view: k as u32 };
            rewrite.insert(Inserted {
                at: rewrite.anchor(base.buffer, &view.after),
                source: Some(Source::Copy(id)),
                reads: vec![base.buffer],
                makes: vec![copy],
                after: view.after.clone(),
            });
            for &op in &view.readers {
                if reads_base.binary_search(&op).is_err() {
                    rewrite.drop_read(op, base.buffer);
                }
                rewrite.read(op, copy);
            }
            for &op in &view.waits {
                rewrite.wait_for_maker(op, copy);
            }
            for &(op, made) in &view.overwriters {
                rewrite.pair(op, made, copy);
            }
        }
        for &(op, made) in &base.overwriters {
            let reads = |view: &super::CopyableView| view.readers.contains(&op);
            if base.views.iter().enumerate().all(|(k, view)| copy(k).is_some() || !reads(view)) {
                rewrite.pair(op, made, base.buffer);
            }
        }
    }
    let added: Vec<(u64, BufferFlags)> = copied
        .iter()
        .filter_map(|&id| graph.view(id))
        .map(|view| (view.bytes, BufferFlags { output: view.output, ..BufferFlags::default() }))
        .collect();
    let sizes: Vec<u64> = graph.buffer_ids().map(|b| graph.buffer(b).bytes).collect();
    let built = rewrite.build(&sizes, &added);
    let mut builder = built.builder;
    let op = |id: &OpId| built.ops.get(id.0 as usize).copied().unwrap_or(*id);
    let ops = |list: &[OpId]| list.iter().map(op).collect::<Vec<OpId>>();
    let pairs = |list: &[(OpId, BufferId)]| list.iter().map(|(o, b)| (op(o), *b)).collect::<Vec<_>>();
    for (viewed, base) in graph.viewed().iter().enumerate() {
        let mut readers = ops(&base.readers);
        let mut views = Vec::new();
        for (k, view) in base.views.iter().enumerate() {
            match copy_of(viewed, k) {
                Some(copy) => readers.extend(builder.maker(copy)),
                None => views.push(super::CopyableView {
                    bytes: view.bytes,
                    output: view.output,
                    readers: ops(&view.readers),
                    waits: ops(&view.waits),
                    after: ops(&view.after),
                    overwriters: pairs(&view.overwriters),
                }),
            }
        }
        readers.sort_unstable();
        builder.viewed(ViewedBuffer {
            buffer: base.buffer,
            readers,
            overwriters: pairs(&base.overwriters),
            views,
        });
    }
    let sources = built.sources.into_iter().flatten().collect();
    Resolved { graph: builder.finish(), sources, ops: built.ops, copies }
}

/// The ops that read a base although the views that are not `kept` are copies; sorted.
fn readers_of_base(base: &ViewedBuffer, kept: impl Fn(usize) -> bool) -> Vec<OpId> {
    let kept = base.views.iter().enumerate().filter(|(k, _)| kept(*k)).flat_map(|(_, v)| &v.readers);
    let mut readers: Vec<OpId> = base.readers.iter().chain(kept).copied().collect();
    readers.sort_unstable();
    readers.dedup();
    readers
}

/// One graph whose every bound is a bound for all orders, overwrites and choices of copies.
pub(super) struct Relaxed {
    pub(super) graph: ScheduleGraph,
    /// The op that each op stands for; `None` for one that stands for no op.
    sources: Vec<Option<OpId>>,
    /// The op here of each op of the graph itself.
    ops: Vec<OpId>,
}

impl Relaxed {
    /// An order of the graph as one of this.
    pub(super) fn order(&self, order: &[u32]) -> Vec<u32> {
        let mut all = Vec::with_capacity(self.sources.len());
        for &op in order {
            let here = self.ops[op as usize].0;
            all.push(here);
            let behind = self.sources.iter().skip(here as usize + 1).take_while(|s| s.is_none()).count();
            all.extend((0..behind as u32).map(|k| here + 1 + k));
        }
        all
    }

    /// An op of this as one of the graph itself.
    pub(super) fn source(&self, op: OpId) -> Option<OpId> {
        self.sources.get(op.0 as usize).copied().flatten()
    }
}

/// Splits each base into the parts that its views would copy and the rest. A part is alive until
/// its view's last reader, which holds the base or the copy; the rest until the last reader that no
/// copy can serve. While the base is alive, all of it is counted once; when it is dead, the parts
/// that are still read are copies. So no plan has less alive than the same order has here. What a
/// view waits for reads all of the base: until then nothing can have been copied for that view.
///
/// Views that do not fit beside larger ones (they overlap) are left out, which only lowers the
/// figure. Where the base overwrites something when it is made, the rest does, and the parts are
/// made by an op behind it that everything else behind it waits for.
pub(super) fn relax(graph: &ScheduleGraph) -> Relaxed {
    let mut rewrite = Rewrite::new(graph);
    let mut sizes: Vec<u64> = graph.buffer_ids().map(|b| graph.buffer(b).bytes).collect();
    let mut added: Vec<(u64, BufferFlags)> = Vec::new();
    // What may overwrite something, whatever the choice.
    let mut overwrites = vec![false; graph.buffer_count()];
    let always = graph.ops().flat_map(|op| graph.may_overwrite(op).iter().map(|pair| pair.0));
    let by_choice = graph.viewed().iter().flat_map(|base| {
        base.overwriters.iter().chain(base.views.iter().flat_map(|view| &view.overwriters)).map(|pair| pair.1)
    });
    for made in always.chain(by_choice) {
        if let Some(entry) = overwrites.get_mut(made.0 as usize) {
            *entry = true;
        }
    }
    let mut search_work = HELD_WORK;
    for base in graph.viewed() {
        let index = base.buffer.0 as usize;
        let flags = rewrite.flags[index];
        rewrite.flags[index].output = false;
        let direct = readers_of_base(base, |_| false);
        for op in base.views.iter().flat_map(|view| &view.readers) {
            if direct.binary_search(op).is_err() {
                rewrite.drop_read(*op, base.buffer);
                rewrite.wait_for_maker(*op, base.buffer);
            }
        }
        for &(op, made) in &base.overwriters {
            rewrite.pair(op, made, base.buffer);
        }
        let mut by_size: Vec<usize> = (0..base.views.len()).collect();
        by_size.sort_by_key(|&k| std::cmp::Reverse(base.views[k].bytes));
        let mut parts = Vec::new();
        for view in by_size.into_iter().map(|k| &base.views[k]) {
            if view.bytes > sizes[index] {
                continue;
            }
            sizes[index] -= view.bytes;
            let part = BufferId((graph.buffer_count() + added.len()) as u32);
            added.push((view.bytes, BufferFlags { output: view.output, ..flags }));
            parts.push(part);
            for &op in &view.readers {
                rewrite.read(op, part);
            }
            for &(op, made) in &view.overwriters {
                rewrite.pair(op, made, part);
            }
        }
        for op in held_until(graph, base, &mut search_work) {
            for &buffer in parts.iter().chain(&[base.buffer]) {
                rewrite.read_once(op, buffer);
            }
        }
        let Some(maker) = graph.maker(base.buffer).filter(|_| !parts.is_empty()) else { continue };
        if overwrites[index] {
            rewrite.insert(Inserted {
                at: Some(maker),
                source: None,
                reads: Vec::new(),
                makes: parts,
                after: vec![maker],
            });
        } else {
            rewrite.make(maker, &parts);
        }
    }
    // What nobody reads is alive during the first op, and that may be the copy of a part of an input.
    if graph.viewed().iter().any(|base| graph.maker(base.buffer).is_none()) {
        let mut is_read = vec![false; graph.buffer_count()];
        for op in graph.ops() {
            let dropped = &rewrite.changes[op.0 as usize].dropped;
            graph
                .reads(op)
                .iter()
                .filter(|b| !dropped.contains(b))
                .for_each(|b| is_read[b.0 as usize] = true);
        }
        for b in graph.buffer_ids().map(|b| b.0 as usize) {
            if rewrite.flags[b].input && !rewrite.flags[b].output && !is_read[b] {
                sizes[b] = 0;
            }
        }
    }
    let mut built = rewrite.build(&sizes, &added);
    built.builder.relax();
    let sources = built
        .sources
        .into_iter()
        .map(|source| match source {
            Some(Source::Op(op)) => Some(op),
            _ => None,
        })
        .collect();
    Relaxed { graph: built.builder.finish(), sources, ops: built.ops }
}

/// Ops that searches for edges may look at, for all bases of a graph.
const HELD_WORK: usize = 1_000_000;

/// Ops during which a base is alive whatever is copied: what a view waits for has to be complete
/// before anything reads the base through it, the copy too. Those that may run before the base is made
/// say nothing.
fn held_until(graph: &ScheduleGraph, base: &ViewedBuffer, work: &mut usize) -> Vec<OpId> {
    let is_used = |view: &&super::CopyableView| view.output || !view.readers.is_empty();
    let mut ops: Vec<OpId> =
        base.views.iter().filter(is_used).flat_map(|view| view.after.iter().copied()).collect();
    ops.sort_unstable();
    ops.dedup();
    if let Some(maker) = graph.maker(base.buffer) {
        ops.retain(|&op| follows(graph, op, maker, work));
    }
    ops
}

/// Whether `op` runs after `first` in every order. False also where the work does not suffice.
fn follows(graph: &ScheduleGraph, op: OpId, first: OpId, work: &mut usize) -> bool {
    let mut seen = rustc_hash::FxHashSet::default();
    let mut stack = vec![op];
    while let Some(u) = stack.pop() {
        if *work == 0 {
            return false;
        }
        *work -= 1;
        let data = graph.reads(u).iter().filter_map(|&b| graph.maker(b));
        for p in data.chain(graph.after(u).iter().copied()) {
            if p == first {
                return true;
            }
            // Source order is a legal order.
            if p > first && seen.insert(p) {
                stack.push(p);
            }
        }
    }
    false
}

/// An op that is put behind another, or before all.
struct Inserted {
    at: Option<OpId>,
    /// `None` for one that everything behind `at` waits for.
    source: Option<Source>,
    reads: Vec<BufferId>,
    makes: Vec<BufferId>,
    after: Vec<OpId>,
}

/// A graph that is being changed.
struct Rewrite<'g> {
    graph: &'g ScheduleGraph,
    flags: Vec<BufferFlags>,
    changes: Vec<Change>,
    inserted: Vec<Inserted>,
}

/// What changes about one op.
#[derive(Debug, Clone, Default)]
struct Change {
    dropped: Vec<BufferId>,
    reads: Vec<BufferId>,
    makes: Vec<BufferId>,
    /// Buffers whose makers it waits for.
    waits: Vec<BufferId>,
    pairs: Vec<(BufferId, BufferId)>,
}

struct BuiltGraph {
    builder: GraphBuilder,
    sources: Vec<Option<Source>>,
    ops: Vec<OpId>,
}

impl<'g> Rewrite<'g> {
    fn new(graph: &'g ScheduleGraph) -> Self {
        let flags = graph.buffer_ids().map(|b| graph.buffer(b).flags).collect();
        Rewrite { graph, flags, changes: vec![Change::default(); graph.op_count()], inserted: Vec::new() }
    }

    /// The last of the ops that a copy of a part of `base` needs.
    fn anchor(&self, base: BufferId, after: &[OpId]) -> Option<OpId> {
        self.graph.maker(base).into_iter().chain(after.iter().copied()).max()
    }

    fn change(&mut self, op: OpId, change: impl FnOnce(&mut Change)) {
        if let Some(entry) = self.changes.get_mut(op.0 as usize) {
            change(entry);
        }
    }

    fn drop_read(&mut self, op: OpId, buffer: BufferId) {
        self.change(op, |c| c.dropped.push(buffer));
    }

    fn read(&mut self, op: OpId, buffer: BufferId) {
        self.change(op, |c| c.reads.push(buffer));
    }

    /// The same where it does not read the buffer already.
    fn read_once(&mut self, op: OpId, buffer: BufferId) {
        let reads = self.graph.reads(op).contains(&buffer);
        self.change(op, |c| {
            if !c.reads.contains(&buffer) && (!reads || c.dropped.contains(&buffer)) {
                c.reads.push(buffer);
            }
        });
    }

    fn make(&mut self, op: OpId, buffers: &[BufferId]) {
        self.change(op, |c| c.makes.extend(buffers));
    }

    fn wait_for_maker(&mut self, op: OpId, buffer: BufferId) {
        self.change(op, |c| c.waits.push(buffer));
    }

    fn pair(&mut self, op: OpId, made: BufferId, read: BufferId) {
        self.change(op, |c| c.pairs.push((made, read)));
    }

    fn insert(&mut self, inserted: Inserted) {
        self.inserted.push(inserted);
    }

    fn build(mut self, sizes: &[u64], added: &[(u64, BufferFlags)]) -> BuiltGraph {
        let graph = self.graph;
        let mut builder = GraphBuilder::new();
        for (&bytes, &flags) in sizes.iter().zip(&self.flags) {
            builder.buffer(bytes, flags);
        }
        for &(bytes, flags) in added {
            builder.buffer(bytes, flags);
        }
        // Before all, then by place; the sort is stable.
        self.inserted.sort_by_key(|i| i.at);
        let mut next = self.inserted.iter().peekable();
        let mut sources: Vec<Option<Source>> = Vec::new();
        let mut ops: Vec<OpId> = Vec::new();
        // The op behind each op that stands for none.
        let mut behind: Vec<Option<OpId>> = vec![None; graph.op_count()];
        let places = std::iter::once(None).chain(graph.ops().map(Some));
        for at in places {
            if let Some(op) = at {
                let change = &self.changes[op.0 as usize];
                let mut reads: Vec<BufferId> =
                    graph.reads(op).iter().filter(|b| !change.dropped.contains(b)).copied().collect();
                reads.extend(&change.reads);
                let mut makes = graph.makes(op).to_vec();
                makes.extend(&change.makes);
                let mut after: Vec<OpId> = Vec::new();
                let makers = graph.reads(op).iter().filter_map(|&b| graph.maker(b));
                for before in graph.after(op).iter().copied().chain(makers) {
                    after.extend(behind.get(before.0 as usize).copied().flatten());
                }
                after.extend(graph.after(op).iter().filter_map(|p| ops.get(p.0 as usize)));
                after.extend(change.waits.iter().filter_map(|&b| builder.maker(b)));
                after.sort_unstable();
                after.dedup();
                let mut pairs = graph.may_overwrite(op).to_vec();
                pairs.extend(&change.pairs);
                ops.push(builder.op(&reads, &makes, &after, &pairs, graph.workspace(op)));
                sources.push(Some(Source::Op(op)));
            }
            while let Some(inserted) = next.next_if(|i| i.at == at) {
                let mut after: Vec<OpId> =
                    inserted.after.iter().filter_map(|p| ops.get(p.0 as usize)).copied().collect();
                if let (None, Some(at)) = (inserted.source, at) {
                    after.extend(behind[at.0 as usize]);
                }
                let id = builder.op(&inserted.reads, &inserted.makes, &after, &[], 0);
                sources.push(inserted.source);
                if let (None, Some(at)) = (inserted.source, at) {
                    behind[at.0 as usize] = Some(id);
                }
            }
        }
        BuiltGraph { builder, sources, ops }
    }
}
