//! Kernels, buffers and ops in the final source order.

use rustc_hash::{FxHashMap, FxHashSet};

use super::{
    Built, Refused, Unit, UnitId, Units,
    viewed::{Operands, Overwrites, Viewed},
};
use crate::{
    ir::{SlotId, ValueId},
    lower::{
        kinds::buffer_kind,
        program::{program, store},
        views::{InView, copy_kernel},
    },
    ops::{Op, OpError},
    plan::{ALIGNMENT, Access, CommitCopy, CommitReason, Home, Kernel, PlanBuffer, Target, ViewChoice},
    schedule::{BufferFlags, BufferId, GraphBuilder, OpId, Planned, ScheduleGraph, Source, ViewId},
};

impl Units<'_> {
    pub(super) fn emit(
        &self,
        order: &[UnitId],
        target: Target,
        schedule: &dyn Fn(&ScheduleGraph) -> Planned,
    ) -> Result<Built, OpError> {
        let mut emit = Emit {
            units: self,
            target,
            builder: GraphBuilder::new(),
            buffers: Vec::new(),
            of_value: FxHashMap::default(),
            of_slot: vec![None; self.graph.slots.len()],
            viewed: Viewed::new(self),
            copies: FxHashMap::default(),
            touched: Vec::new(),
            shared: FxHashSet::default(),
            begun: FxHashSet::default(),
        };
        emit.given();
        let mut ids: Vec<Option<OpId>> = vec![None; self.units.len()];
        let mut kernels = Vec::with_capacity(order.len());
        for &unit in order {
            let kernel = emit.kernel(&self.units[unit as usize])?;
            let after: Vec<OpId> =
                self.before[unit as usize].iter().filter_map(|&b| ids[b as usize]).collect();
            ids[unit as usize] = Some(emit.op(&kernel, &after));
            kernels.push(kernel);
        }
        let of_view = emit.views(&ids);
        let graph = std::mem::take(&mut emit.builder).finish();
        let planned = schedule(&graph);

        // Views that are copies lie elsewhere: then the kernels are made again.
        let resolved = &planned.resolved;
        let view_of = |id: ViewId| of_view.get(&id).copied();
        for &(id, copy) in &resolved.copies {
            if let Some(view) = view_of(id) {
                emit.copy(view, copy, &resolved.graph);
            }
        }
        let mut made = kernels.into_iter().filter(|_| resolved.copies.is_empty());
        let mut kernels = Vec::with_capacity(resolved.sources.len());
        let mut op_nodes = Vec::with_capacity(resolved.sources.len());
        let mut copy_of: FxHashMap<ViewId, BufferId> = resolved.copies.iter().copied().collect();
        for source in &resolved.sources {
            match *source {
                Source::Op(op) => {
                    let unit = order.get(op.0 as usize).copied().unwrap_or(0);
                    kernels.push(match made.next() {
                        Some(kernel) => kernel,
                        None => emit.kernel(&self.units[unit as usize])?,
                    });
                    op_nodes.push(self.rank[unit as usize]);
                }
                Source::Copy(id) => {
                    let view = view_of(id).and_then(|view| self.laid.views.get(view as usize));
                    let (Some(view), Some(copy)) = (view, copy_of.remove(&id)) else {
                        return Err(OpError::new("internal: a copy of no view"));
                    };
                    let base = emit.of_value.get(&view.base).copied();
                    let base = base.ok_or_else(|| OpError::new("internal: a view of nothing"))?;
                    kernels.push(copy_kernel(view, base, copy)?);
                    op_nodes.push(self.graph.producer(view.value).0.id);
                }
            }
        }
        let outputs = self.graph.outputs.iter().map(|o| emit.access(o.value)).collect::<Result<_, _>>()?;
        let persistent_bytes = emit.of_slot.iter().flatten().map(|b| emit.bytes(*b)).sum();
        let op = |unit: UnitId| {
            let id = ids[unit as usize]?;
            resolved.ops.get(id.0 as usize).copied()
        };
        let commits = self.copied.iter().filter_map(|copied| {
            let reason = match copied.reason {
                Refused::ReadLater(reader) => CommitReason::ReadLater(op(self.real(reader))?),
                Refused::OutOfStep(maker) => CommitReason::OutOfStep(op(maker)?),
                Refused::Returned => CommitReason::Returned,
                Refused::Elsewhere(slot) => CommitReason::Elsewhere(slot),
                Refused::Order => CommitReason::Order,
            };
            Some(CommitCopy { slot: copied.slot, value: copied.value, op: op(copied.commit)?, reason })
        });
        Ok(Built {
            commits: commits.collect(),
            views: emit.choices(&of_view),
            buffers: emit.buffers.into_iter().map(|b| b.0).collect(),
            planned,
            kernels,
            op_nodes,
            outputs,
            persistent_bytes,
        })
    }

    /// The unit that does the work of one.
    pub(super) fn real(&self, unit: UnitId) -> UnitId {
        self.folded[unit as usize].unwrap_or(unit)
    }
}

/// Makes kernels, buffers and ops in the final source order.
pub(super) struct Emit<'u, 'a> {
    pub(super) units: &'u Units<'a>,
    target: Target,
    builder: GraphBuilder,
    pub(super) buffers: Vec<(PlanBuffer, u64)>,
    pub(super) of_value: FxHashMap<ValueId, BufferId>,
    of_slot: Vec<Option<BufferId>>,
    pub(super) viewed: Viewed,
    /// The buffers of views that are copies.
    pub(super) copies: FxHashMap<u32, BufferId>,
    /// For each access of the kernel that was made last, the view that it goes through.
    touched: Vec<Option<InView>>,
    /// Buffers of inserts, and those among them that an op has begun to write.
    shared: FxHashSet<BufferId>,
    begun: FxHashSet<BufferId>,
}

impl Emit<'_, '_> {
    /// Buffers that no op makes: persistent ones, inputs, and values that lie in persistent ones.
    fn given(&mut self) {
        let units = self.units;
        for node in units.graph.nodes() {
            match node.op() {
                Op::Read(read) => {
                    let buffer = self.slot(read.slot, node.result(0));
                    self.of_value.insert(node.result(0), buffer);
                }
                Op::Input(input) => {
                    let value = node.result(0);
                    let flags = BufferFlags {
                        persistent: false,
                        input: true,
                        output: units.is_output[value.0 as usize],
                    };
                    let buffer = self.buffer(value, Home::Input(input.index), flags);
                    self.of_value.insert(value, buffer);
                }
                _ => {}
            }
        }
        for (&value, &slot) in &units.in_slot {
            let buffer = self.slot(slot, value);
            self.of_value.insert(value, buffer);
        }
    }

    fn kernel(&mut self, unit: &Unit) -> Result<Kernel, OpError> {
        self.touched.clear();
        let graph = self.units.graph;
        match unit {
            Unit::Group(group) => {
                let members = &self.units.members[group.0 as usize];
                let stored: Vec<ValueId> = members
                    .iter()
                    .map(|&n| graph.node(n).result(0))
                    .filter(|&v| self.units.is_stored(v))
                    .collect();
                for &value in &stored {
                    self.make(value);
                }
                let program =
                    program(self.units.laid, self.units.groups, members, &stored, &mut |v| self.access(v))?;
                Ok(Kernel::Elementwise(program))
            }
            Unit::Store(value) => {
                self.make(*value);
                let access = self.access(*value)?;
                Ok(Kernel::Elementwise(store(graph, *value, access)?))
            }
            Unit::Node(id) => {
                let node = graph.node(*id);
                let args = node.args().iter().map(|&a| self.access(a)).collect::<Result<_, _>>()?;
                if matches!(node.op(), Op::Print(_)) {
                    return Ok(Kernel::Node { node: *id, args, results: Vec::new() });
                }
                for result in node.results() {
                    self.make(result);
                }
                let results = node.results().map(|r| self.access(r)).collect::<Result<_, _>>()?;
                Ok(Kernel::Node { node: *id, args, results })
            }
            Unit::Barrier => Ok(Kernel::Nothing),
            Unit::Wait(id) => {
                let args = graph.node(*id).args();
                Ok(Kernel::Wait { operands: args.iter().map(|&a| self.access(a)).collect::<Result<_, _>>()? })
            }
            Unit::Commit(id) => {
                let node = graph.node(*id);
                let (Op::Write(write), Some(&value)) = (node.op(), node.args().first()) else {
                    return Err(OpError::new("internal: a commit without a value"));
                };
                let from = self.access(value)?;
                let buffer = self.slot(write.slot, value);
                Ok(Kernel::Copy { to: Access { buffer, ..from.clone() }, from })
            }
        }
    }

    /// The buffer of a value that an op makes.
    fn make(&mut self, value: ValueId) {
        let root = self.units.inserts.root(value);
        let buffer = match self.of_value.get(&root) {
            Some(&buffer) => buffer,
            None => {
                let output = self.units.is_output[root.0 as usize];
                let flags = BufferFlags { persistent: false, input: false, output };
                self.buffer(root, Home::Arena, flags)
            }
        };
        if root != value {
            self.shared.insert(buffer);
        }
        self.of_value.insert(root, buffer);
        self.of_value.insert(value, buffer);
    }

    fn slot(&mut self, slot: SlotId, value: ValueId) -> BufferId {
        if let Some(Some(buffer)) = self.of_slot.get(slot.0 as usize) {
            return *buffer;
        }
        let flags = BufferFlags { persistent: true, input: false, output: false };
        let buffer = self.buffer(value, Home::Slot(slot), flags);
        if let Some(entry) = self.of_slot.get_mut(slot.0 as usize) {
            *entry = Some(buffer);
        }
        buffer
    }

    fn buffer(&mut self, value: ValueId, home: Home, flags: BufferFlags) -> BufferId {
        let graph = self.units.graph;
        let dense_bytes = graph.ty(value).bytes();
        let bytes = dense_bytes.next_multiple_of(ALIGNMENT);
        let buffer = self.builder.buffer(bytes, flags);
        let kind = buffer_kind(graph, value, home, flags.output);
        self.buffers.push((PlanBuffer { home, kind, dense_bytes, value }, bytes));
        buffer
    }

    pub(super) fn bytes(&self, buffer: BufferId) -> u64 {
        self.buffers.get(buffer.0 as usize).map_or(0, |b| b.1)
    }

    fn access(&mut self, value: ValueId) -> Result<Access, OpError> {
        let place = &self.units.laid.places[value.0 as usize];
        let ty = self.units.graph.ty(value).clone();
        let within = place.view.as_ref().filter(|within| self.viewed.is_copyable(within.view));
        self.touched.push(within.cloned());
        if let Some(within) = within
            && let Some(&buffer) = self.copies.get(&within.view)
        {
            return Ok(Access { buffer, ty, layout: within.layout.clone() });
        }
        let buffer = self.of_value.get(&self.units.inserts.root(place.base)).copied();
        let buffer = buffer.ok_or_else(|| OpError::new("internal: a value that is read lies nowhere"))?;
        let mut layout = place.layout.clone();
        layout.offset = layout.offset.saturating_add(self.units.inserts.offset(place.base));
        Ok(Access { buffer, ty, layout })
    }

    fn op(&mut self, kernel: &Kernel, after: &[OpId]) -> OpId {
        let graph = self.units.graph;
        let mut reads: Vec<BufferId> = Vec::new();
        let mut makes: Vec<BufferId> = Vec::new();
        let mut overwrites = Overwrites::default();
        let mut workspace = 0;
        let id = self.builder.next_op();
        let touched = std::mem::take(&mut self.touched);
        match kernel {
            Kernel::Elementwise(program) => {
                let operands = Operands::new(&program.inputs, &touched);
                self.viewed.read(id, &operands);
                reads.extend(program.inputs.iter().map(|i| i.buffer));
                for (_, made) in &program.outputs {
                    if makes.contains(&made.buffer) {
                        continue;
                    }
                    if self.is_there(made.buffer) {
                        self.viewed.read_directly(id, made.buffer);
                        reads.push(made.buffer);
                        continue;
                    }
                    makes.push(made.buffer);
                    for k in 0..program.inputs.len() {
                        self.overwrite(made, &operands, k, &mut overwrites);
                    }
                }
            }
            Kernel::Node { node, args, results } => {
                let node = graph.node(*node);
                let memory = node.op().memory();
                let operands = Operands::new(args, &touched);
                self.viewed.read(id, &operands);
                reads.extend(args.iter().map(|a| a.buffer));
                for (k, made) in results.iter().enumerate() {
                    if makes.contains(&made.buffer) {
                        continue;
                    }
                    if self.is_there(made.buffer) {
                        self.viewed.read_directly(id, made.buffer);
                        reads.push(made.buffer);
                        continue;
                    }
                    makes.push(made.buffer);
                    for &(_, arg) in memory.overwrites.iter().filter(|&&(result, _)| result == k) {
                        self.overwrite(made, &operands, arg, &mut overwrites);
                    }
                }
                let arg_types: Vec<_> = args.iter().map(|a| &a.ty).collect();
                let result_types: Vec<_> = results.iter().map(|r| &r.ty).collect();
                let needed = self.target.workspace(node.op(), &arg_types, &result_types);
                workspace = needed.next_multiple_of(ALIGNMENT);
            }
            Kernel::Copy { from, to } => {
                self.viewed.read(id, &Operands::new(std::slice::from_ref(from), &touched));
                reads.extend([from.buffer, to.buffer]);
            }
            Kernel::Wait { operands } => {
                self.viewed.read(id, &Operands::new(operands, &touched));
                reads.extend(operands.iter().map(|o| o.buffer));
            }
            Kernel::Nothing => {}
        }
        reads.sort_unstable();
        reads.dedup();
        self.viewed.overwritten(id, &overwrites);
        self.builder.op(&reads, &makes, after, &overwrites.pairs, workspace)
    }

    /// Whether a result lies in memory that is there before its op: a persistent tensor, or a buffer
    /// into which others have written their parts.
    fn is_there(&mut self, buffer: BufferId) -> bool {
        let is_shared = self.shared.contains(&buffer);
        self.is_persistent(buffer) || is_shared && !self.begun.insert(buffer)
    }

    fn is_persistent(&self, buffer: BufferId) -> bool {
        self.buffers.get(buffer.0 as usize).is_some_and(|b| matches!(b.0.home, Home::Slot(_)))
    }

    /// Notes whether `made` can overwrite an operand: one that fills its buffer, while no other
    /// operand is in it. That may depend on which views are copies.
    fn overwrite(&self, made: &Access, operands: &Operands<'_>, k: usize, overwrites: &mut Overwrites) {
        let Some((read, within)) = operands.get(k) else { return };
        let is_alike = made.ty.dtype().size() == read.ty.dtype().size()
            && made.ty.elements() == read.ty.elements()
            && self.buffers[made.buffer.0 as usize].0.dense_bytes == made.ty.bytes()
            && !self.is_persistent(read.buffer);
        if !is_alike {
            return;
        }
        let bytes = self.bytes(made.buffer);
        if let Some(within) = within {
            let is_whole = self.units.laid.views[within.view as usize].ty.bytes() == read.ty.bytes()
                && within.layout.is_dense(read.ty.shape());
            if is_whole && self.viewed.bytes(within.view) == bytes && operands.in_view(within.view) == 1 {
                overwrites.views.push((within.view, made.buffer));
            }
            return;
        }
        let is_whole = self.bytes(read.buffer) == bytes
            && self.buffers[read.buffer.0 as usize].0.dense_bytes == read.ty.bytes()
            && read.layout.is_dense(read.ty.shape());
        if is_whole && operands.in_buffer(read.buffer) == 1 {
            overwrites.pairs.push((made.buffer, read.buffer));
        } else if is_whole && operands.directly_in(read.buffer) == 1 {
            overwrites.bases.push((read.buffer, made.buffer));
        }
    }

    /// Makes the buffer of a view that is a copy. Its base may no longer be an output.
    fn copy(&mut self, view: u32, copy: BufferId, graph: &ScheduleGraph) {
        let units = self.units;
        let laid = &units.laid.views[view as usize];
        let output = graph.buffer(copy).flags.output;
        let dense_bytes = laid.ty.bytes();
        let kind = buffer_kind(units.graph, laid.value, Home::Arena, output);
        // Copies come in the order of their buffers.
        self.buffers.push((
            PlanBuffer { home: Home::Arena, kind, dense_bytes, value: laid.value },
            graph.buffer(copy).bytes,
        ));
        self.copies.insert(view, copy);
        if let Some(&base) = self.of_value.get(&laid.base)
            && let Some((buffer, _)) = self.buffers.get_mut(base.0 as usize)
        {
            buffer.kind = buffer_kind(units.graph, laid.base, buffer.home, graph.buffer(base).flags.output);
        }
    }

    /// The slices that could be copied, and what became of them.
    fn choices(&self, of_view: &FxHashMap<ViewId, u32>) -> Vec<ViewChoice> {
        let mut views: Vec<u32> = of_view.values().copied().collect();
        views.sort_unstable();
        let choice = |view: u32| {
            let laid = self.units.laid.views.get(view as usize)?;
            let base = *self.of_value.get(&laid.base)?;
            let copy = self.copies.get(&view).copied();
            Some(ViewChoice { value: laid.value, base, bytes: self.viewed.bytes(view), copy })
        };
        views.into_iter().filter_map(choice).collect()
    }

    /// Says which views of which buffers may be copied; the laid-out view of each.
    fn views(&mut self, ids: &[Option<OpId>]) -> FxHashMap<ViewId, u32> {
        let (list, of_view) = self.viewed.finish(self.units, &self.of_value, ids);
        list.into_iter().for_each(|viewed| self.builder.viewed(viewed));
        of_view
    }
}
