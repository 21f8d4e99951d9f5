//! The schedule graph: ops that read and make buffers. Peak, bound and legal orders are defined on
//! it. It knows nothing of tensors; views and barriers have become buffers and edges.

/// A place in the order. Ids follow the source order, which is a legal order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OpId(pub u32);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BufferId(pub u32);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct BufferFlags {
    /// Lives outside the arena (parameters, state): counted by the caller, never here.
    pub persistent: bool,
    /// Filled before the first op. Free for others after its last use.
    pub input: bool,
    /// Alive to the end of the step.
    pub output: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Buffer {
    /// A multiple of the target's alignment.
    pub bytes: u64,
    pub flags: BufferFlags,
}

/// A part of a buffer that some ops read, and that may be copied out of it: then they read the copy,
/// and the buffer can die without them. In the graph itself it is a view, and its readers are
/// readers of the whole buffer.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CopyableView {
    /// Of the copy: a multiple of the target's alignment, less than the whole buffer has.
    pub bytes: u64,
    /// The step returns it.
    pub output: bool,
    /// Ops that read the buffer through this view, each once.
    pub readers: Vec<OpId>,
    /// Ops that wait for the view without reading it: barriers that it passes.
    pub waits: Vec<OpId>,
    /// What has to be complete before the copy, beside the buffer: barriers that the view is behind.
    /// Whoever reads the view or waits for it waits for them too.
    pub after: Vec<OpId>,
    /// Pairs (op, made): if this is a copy, the made buffer may take its place.
    pub overwriters: Vec<(OpId, BufferId)>,
}

/// A buffer with copyable views. The step does not return it as a whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ViewedBuffer {
    pub buffer: BufferId,
    /// Ops that read it otherwise than through the views, each once.
    pub readers: Vec<OpId>,
    /// Pairs (op, made): the made buffer may take the place of this one if every view of it that the
    /// op reads is a copy.
    pub overwriters: Vec<(OpId, BufferId)>,
    pub views: Vec<CopyableView>,
}

/// A view by its buffer's place in [`ScheduleGraph::viewed`] and its own place there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ViewId {
    pub viewed: u32,
    pub view: u32,
}

/// Ops in CSR form. An op's `makes` become alive when it starts; its `reads` die after their last
/// reader; its workspace lives while it runs.
#[derive(Debug, Clone, Default)]
pub struct ScheduleGraph {
    buffers: Vec<Buffer>,
    workspaces: Vec<u64>,
    reads: Lists<BufferId>,
    makes: Lists<BufferId>,
    after: Lists<OpId>,
    may_overwrite: Lists<(BufferId, BufferId)>,
    /// The op that makes a buffer; `None` for inputs and persistent ones.
    makers: Vec<Option<OpId>>,
    viewed: Vec<ViewedBuffer>,
    /// Stands for all choices of views at once, for a bound: overwrites may be of unequal sizes, and
    /// save the smaller one.
    pub(super) is_relaxed: bool,
}

#[derive(Debug, Clone)]
struct Lists<T> {
    starts: Vec<u32>,
    items: Vec<T>,
}

impl<T> Default for Lists<T> {
    fn default() -> Self {
        Lists { starts: vec![0], items: Vec::new() }
    }
}

impl<T: Clone> Lists<T> {
    fn push(&mut self, items: &[T]) {
        self.items.extend_from_slice(items);
        self.starts.push(self.items.len() as u32);
    }

    fn get(&self, i: usize) -> &[T] {
        match (self.starts.get(i), self.starts.get(i + 1)) {
            (Some(&a), Some(&b)) => self.items.get(a as usize..b as usize).unwrap_or_default(),
            _ => &[],
        }
    }
}

/// Builds a [`ScheduleGraph`] in source order.
#[derive(Debug, Clone, Default)]
pub struct GraphBuilder {
    graph: ScheduleGraph,
}

impl GraphBuilder {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn buffer(&mut self, bytes: u64, flags: BufferFlags) -> BufferId {
        self.graph.buffers.push(Buffer { bytes, flags });
        self.graph.makers.push(None);
        BufferId(self.graph.buffers.len() as u32 - 1)
    }

    /// The id that the next op gets.
    pub fn next_op(&self) -> OpId {
        OpId(self.graph.workspaces.len() as u32)
    }

    /// Appends an op.
    ///
    /// - `reads`: buffers whose content it needs (each once); each made by an earlier op, an input
    ///   or persistent.
    /// - `makes`: buffers it fills; each has one maker.
    /// - `after`: earlier ops that must be complete, for any reason that is not data (barriers,
    ///   write-after-read, release).
    /// - `may_overwrite`: pairs (made, read): the made buffer may take the place of the read one if
    ///   that dies here. Both have the same size.
    pub fn op(
        &mut self,
        reads: &[BufferId],
        makes: &[BufferId],
        after: &[OpId],
        may_overwrite: &[(BufferId, BufferId)],
        workspace: u64,
    ) -> OpId {
        let id = OpId(self.graph.workspaces.len() as u32);
        self.graph.workspaces.push(workspace);
        self.graph.reads.push(reads);
        self.graph.makes.push(makes);
        self.graph.after.push(after);
        self.graph.may_overwrite.push(may_overwrite);
        for made in makes {
            if let Some(maker) = self.graph.makers.get_mut(made.0 as usize) {
                *maker = Some(id);
            }
        }
        id
    }

    /// The op so far that makes a buffer.
    pub(super) fn maker(&self, buffer: BufferId) -> Option<OpId> {
        self.graph.maker(buffer)
    }

    /// Marks a graph that stands for several.
    pub(super) fn relax(&mut self) {
        self.graph.is_relaxed = true;
    }

    /// Says which parts of a buffer may be copied out of it. Persistent buffers take no room in the
    /// arena, and buffers without views none that could be saved: both are ignored.
    pub fn viewed(&mut self, viewed: ViewedBuffer) {
        let is_persistent =
            self.graph.buffers.get(viewed.buffer.0 as usize).is_none_or(|b| b.flags.persistent);
        if !is_persistent && !viewed.views.is_empty() {
            self.graph.viewed.push(viewed);
        }
    }

    pub fn finish(self) -> ScheduleGraph {
        self.graph
    }
}

impl ScheduleGraph {
    pub fn op_count(&self) -> usize {
        self.workspaces.len()
    }

    pub fn buffer_count(&self) -> usize {
        self.buffers.len()
    }

    pub fn ops(&self) -> impl DoubleEndedIterator<Item = OpId> + ExactSizeIterator + use<> {
        (0..self.workspaces.len()).map(|i| OpId(i as u32))
    }

    pub fn buffer_ids(&self) -> impl DoubleEndedIterator<Item = BufferId> + ExactSizeIterator + use<> {
        (0..self.buffers.len()).map(|i| BufferId(i as u32))
    }

    /// The buffer of an id that this graph gave out; panics on others (a fault of a pass).
    #[allow(clippy::indexing_slicing)]
    pub fn buffer(&self, id: BufferId) -> Buffer {
        self.buffers[id.0 as usize]
    }

    /// Bytes it takes in the arena: 0 for persistent buffers.
    pub fn arena_bytes(&self, id: BufferId) -> u64 {
        let buffer = self.buffer(id);
        if buffer.flags.persistent { 0 } else { buffer.bytes }
    }

    pub fn reads(&self, op: OpId) -> &[BufferId] {
        self.reads.get(op.0 as usize)
    }

    pub fn makes(&self, op: OpId) -> &[BufferId] {
        self.makes.get(op.0 as usize)
    }

    pub fn after(&self, op: OpId) -> &[OpId] {
        self.after.get(op.0 as usize)
    }

    pub fn may_overwrite(&self, op: OpId) -> &[(BufferId, BufferId)] {
        self.may_overwrite.get(op.0 as usize)
    }

    pub fn workspace(&self, op: OpId) -> u64 {
        self.workspaces.get(op.0 as usize).copied().unwrap_or(0)
    }

    /// The buffers with views that may be copied.
    pub fn viewed(&self) -> &[ViewedBuffer] {
        &self.viewed
    }

    pub fn view(&self, id: ViewId) -> Option<&CopyableView> {
        self.viewed.get(id.viewed as usize)?.views.get(id.view as usize)
    }

    /// The op that makes a buffer; `None` for inputs and persistent ones.
    pub fn maker(&self, buffer: BufferId) -> Option<OpId> {
        self.makers.get(buffer.0 as usize).copied().flatten()
    }
}
