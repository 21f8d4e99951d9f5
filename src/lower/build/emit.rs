//! Kernels, buffers and ops in the final source order.

use rustc_hash::FxHashMap;

use super::{Built, Unit, UnitId, Units};
use crate::{
    ir::{SlotId, ValueId},
    lower::{
        kinds::buffer_kind,
        program::{program, store},
    },
    ops::{Op, OpError},
    plan::{ALIGNMENT, Access, Home, Kernel, PlanBuffer},
    schedule::{BufferFlags, BufferId, GraphBuilder, OpId},
};

impl Units<'_> {
    pub(super) fn emit(&self, order: &[UnitId]) -> Result<Built, OpError> {
        let mut emit = Emit {
            units: self,
            builder: GraphBuilder::new(),
            buffers: Vec::new(),
            of_value: FxHashMap::default(),
            of_slot: vec![None; self.graph.slots.len()],
        };
        for node in self.graph.nodes() {
            match node.op() {
                Op::Read(read) => {
                    let buffer = emit.slot(read.slot, node.result(0));
                    emit.of_value.insert(node.result(0), buffer);
                }
                Op::Input(input) => {
                    let value = node.result(0);
                    let flags = BufferFlags {
                        persistent: false,
                        input: true,
                        output: self.is_output[value.0 as usize],
                    };
                    let buffer = emit.buffer(value, Home::Input(input.index), flags);
                    emit.of_value.insert(value, buffer);
                }
                _ => {}
            }
        }
        for (&value, &slot) in &self.in_slot {
            let buffer = emit.slot(slot, value);
            emit.of_value.insert(value, buffer);
        }
        let mut kernels = Vec::with_capacity(order.len());
        let mut op_nodes = Vec::with_capacity(order.len());
        let mut ids: Vec<Option<OpId>> = vec![None; self.units.len()];
        for &unit in order {
            let kernel = emit.kernel(&self.units[unit as usize])?;
            let after: Vec<OpId> =
                self.before[unit as usize].iter().filter_map(|&b| ids[b as usize]).collect();
            ids[unit as usize] = Some(emit.op(&kernel, &after));
            op_nodes.push(self.rank[unit as usize]);
            kernels.push(kernel);
        }
        let outputs = self.graph.outputs.iter().map(|o| emit.access(o.value)).collect::<Result<_, _>>()?;
        let persistent_bytes = emit.of_slot.iter().flatten().map(|b| emit.bytes(*b)).sum();
        Ok(Built {
            buffers: emit.buffers.into_iter().map(|b| b.0).collect(),
            schedule_graph: emit.builder.finish(),
            kernels,
            op_nodes,
            outputs,
            persistent_bytes,
        })
    }
}

/// Makes kernels, buffers and ops in the final source order.
struct Emit<'u, 'a> {
    units: &'u Units<'a>,
    builder: GraphBuilder,
    buffers: Vec<(PlanBuffer, u64)>,
    of_value: FxHashMap<ValueId, BufferId>,
    of_slot: Vec<Option<BufferId>>,
}

impl Emit<'_, '_> {
    fn kernel(&mut self, unit: &Unit) -> Result<Kernel, OpError> {
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
        if !self.of_value.contains_key(&value) {
            let output = self.units.is_output[value.0 as usize];
            let flags = BufferFlags { persistent: false, input: false, output };
            let buffer = self.buffer(value, Home::Arena, flags);
            self.of_value.insert(value, buffer);
        }
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

    fn bytes(&self, buffer: BufferId) -> u64 {
        self.buffers.get(buffer.0 as usize).map_or(0, |b| b.1)
    }

    fn access(&self, value: ValueId) -> Result<Access, OpError> {
        let place = &self.units.laid.places[value.0 as usize];
        let buffer = self.of_value.get(&place.base).copied();
        let buffer = buffer.ok_or_else(|| OpError::new("internal: a value that is read lies nowhere"))?;
        Ok(Access { buffer, ty: self.units.graph.ty(value).clone(), layout: place.layout.clone() })
    }

    fn op(&mut self, kernel: &Kernel, after: &[OpId]) -> OpId {
        let graph = self.units.graph;
        let is_persistent = |e: &Self, b: BufferId| matches!(e.buffers[b.0 as usize].0.home, Home::Slot(_));
        let mut reads: Vec<BufferId> = Vec::new();
        let mut makes: Vec<BufferId> = Vec::new();
        let mut pairs: Vec<(BufferId, BufferId)> = Vec::new();
        let mut workspace = 0;
        // An operand can be overwritten where it fills its buffer, and no other operand is in it.
        let whole = |e: &Self, made: &Access, read: &Access, others: &[Access]| {
            let bytes = |a: &Access| e.bytes(a.buffer);
            !is_persistent(e, read.buffer)
                && bytes(made) == bytes(read)
                && made.ty.dtype().size() == read.ty.dtype().size()
                && made.ty.elements() == read.ty.elements()
                && e.buffers[read.buffer.0 as usize].0.dense_bytes == read.ty.bytes()
                && read.layout.is_dense(read.ty.shape())
                && others.iter().filter(|o| o.buffer == read.buffer).count() == 1
        };
        match kernel {
            Kernel::Elementwise(program) => {
                reads.extend(program.inputs.iter().map(|i| i.buffer));
                for (_, made) in &program.outputs {
                    if is_persistent(self, made.buffer) {
                        reads.push(made.buffer);
                        continue;
                    }
                    makes.push(made.buffer);
                    for read in program.inputs.iter().filter(|r| whole(self, made, r, &program.inputs)) {
                        pairs.push((made.buffer, read.buffer));
                    }
                }
            }
            Kernel::Node { node, args, results } => {
                let node = graph.node(*node);
                let memory = node.op().memory();
                reads.extend(args.iter().map(|a| a.buffer));
                for (k, made) in results.iter().enumerate() {
                    if is_persistent(self, made.buffer) {
                        reads.push(made.buffer);
                        continue;
                    }
                    makes.push(made.buffer);
                    for &(_, arg) in memory.overwrites.iter().filter(|&&(result, _)| result == k) {
                        if let Some(read) = args.get(arg).filter(|r| whole(self, made, r, args)) {
                            pairs.push((made.buffer, read.buffer));
                        }
                    }
                }
                let arg_types: Vec<_> = args.iter().map(|a| &a.ty).collect();
                let result_types: Vec<_> = results.iter().map(|r| &r.ty).collect();
                workspace = node.op().workspace(&arg_types, &result_types).next_multiple_of(ALIGNMENT);
            }
            Kernel::Copy { from, to } => reads.extend([from.buffer, to.buffer]),
            Kernel::Wait { operands } => reads.extend(operands.iter().map(|o| o.buffer)),
            Kernel::Nothing => {}
        }
        reads.sort_unstable();
        reads.dedup();
        self.builder.op(&reads, &makes, after, &pairs, workspace)
    }
}
