//! Builds the schedule graph: one op per kernel, one buffer per tensor that is stored.

use rustc_hash::FxHashMap;

use super::{
    fuse::{GroupId, is_elementwise},
    kinds::buffer_kind,
    layout::Laid,
    program::program,
};
use crate::{
    ir::{Graph, Node, NodeId, SlotId, ValueId},
    ops::{Alias, Op, OpError},
    plan::{ALIGNMENT, Access, Home, Kernel, PlanBuffer},
    schedule::{BufferFlags, BufferId, GraphBuilder, OpId, ScheduleGraph},
};

/// The schedule graph with what its ops and buffers are.
pub(super) struct Built {
    pub schedule_graph: ScheduleGraph,
    pub kernels: Vec<Kernel>,
    pub op_nodes: Vec<NodeId>,
    pub buffers: Vec<PlanBuffer>,
    pub outputs: Vec<Access>,
    pub persistent_bytes: u64,
}

/// What becomes one op.
#[derive(Debug, Clone)]
enum Unit {
    Group(GroupId),
    Node(NodeId),
    /// Stores a constant or scalar that some kernel wants in memory.
    Store(ValueId),
    Barrier,
    /// The end of a collective.
    Wait(NodeId),
    /// A commit that could not be made by the op whose value it commits.
    Commit(NodeId),
}

type UnitId = u32;

pub(super) fn build(
    laid: &Laid,
    groups: &[Option<GroupId>],
    members: &[Vec<NodeId>],
) -> Result<Built, OpError> {
    // Commits in place put an op after every reader of the old value. That is decided by positions
    // in the source order, which suffices except where a later node waits for such a reader in a
    // roundabout way; then commits are copies.
    for in_place in [true, false] {
        let mut units = Units::new(laid, groups, members);
        units.collect();
        units.commit(in_place);
        if let Some(order) = units.order() {
            return units.emit(&order);
        }
    }
    Err(OpError::new("internal: the barriers of the step form a cycle"))
}

struct Units<'a> {
    laid: &'a Laid,
    graph: &'a Graph,
    groups: &'a [Option<GroupId>],
    members: &'a [Vec<NodeId>],
    units: Vec<Unit>,
    /// The last node of each unit: its place in the source order.
    rank: Vec<NodeId>,
    of_group: Vec<Option<UnitId>>,
    of_node: Vec<Option<UnitId>>,
    stores: FxHashMap<ValueId, UnitId>,
    /// Units that read each value's memory (by base).
    readers: Vec<Vec<UnitId>>,
    /// What a unit waits for: data, barriers, commits.
    before: Vec<Vec<UnitId>>,
    /// Values that lie in a persistent tensor because their maker commits them.
    in_slot: FxHashMap<ValueId, SlotId>,
    /// Commits that are made by another unit.
    folded: Vec<Option<UnitId>>,
    /// Of each value: it is the base of an output of the step.
    is_output: Vec<bool>,
}

impl<'a> Units<'a> {
    fn new(laid: &'a Laid, groups: &'a [Option<GroupId>], members: &'a [Vec<NodeId>]) -> Self {
        let graph = &laid.graph;
        let mut is_output = vec![false; graph.value_count()];
        for output in &graph.outputs {
            is_output[laid.places[output.value.0 as usize].base.0 as usize] = true;
        }
        Units {
            laid,
            graph,
            groups,
            members,
            units: Vec::new(),
            rank: Vec::new(),
            of_group: vec![None; members.len()],
            of_node: vec![None; graph.len()],
            stores: FxHashMap::default(),
            readers: vec![Vec::new(); graph.value_count()],
            before: Vec::new(),
            in_slot: FxHashMap::default(),
            folded: Vec::new(),
            is_output,
        }
    }

    fn add(&mut self, unit: Unit, rank: NodeId) -> UnitId {
        self.units.push(unit);
        self.rank.push(rank);
        self.before.push(Vec::new());
        self.folded.push(None);
        self.units.len() as UnitId - 1
    }

    /// Makes the units and their data edges.
    fn collect(&mut self) {
        let mut last_print = None;
        for node in self.graph.nodes() {
            let unit = match (self.groups[node.id.0 as usize], node.op()) {
                (Some(group), _) => match self.of_group[group.0 as usize] {
                    Some(unit) => {
                        self.rank[unit as usize] = node.id;
                        unit
                    }
                    None => {
                        let unit = self.add(Unit::Group(group), node.id);
                        self.of_group[group.0 as usize] = Some(unit);
                        unit
                    }
                },
                (None, Op::Barrier(_)) => self.add(Unit::Barrier, node.id),
                (None, Op::Write(_)) => self.add(Unit::Commit(node.id), node.id),
                (None, Op::CollectiveDone(_)) => self.add(Unit::Wait(node.id), node.id),
                (None, Op::Const(_) | Op::Scalar(_) | Op::Read(_) | Op::Input(_)) => continue,
                // A view that is looked at on the way; in source order.
                (None, Op::Print(_)) => {
                    let unit = self.add(Unit::Node(node.id), node.id);
                    if let Some(before) = last_print.replace(unit) {
                        self.wait(unit, before);
                    }
                    unit
                }
                (None, op) if op.memory().alias == Alias::View => continue,
                (None, _) => self.add(Unit::Node(node.id), node.id),
            };
            self.of_node[node.id.0 as usize] = Some(unit);
        }
        for node in self.graph.nodes() {
            let Some(unit) = self.of_node[node.id.0 as usize] else { continue };
            for &arg in node.args() {
                self.read(unit, arg, &node);
            }
            for &after in node.after() {
                self.wait_for_node(unit, after);
            }
        }
        for output in &self.graph.outputs {
            let base = self.laid.places[output.value.0 as usize].base;
            self.store_constant(base);
        }
    }

    /// `unit` uses the memory of `value`, or its register if both are in one group.
    fn read(&mut self, unit: UnitId, value: ValueId, user: &Node<'_>) {
        let place = &self.laid.places[value.0 as usize];
        let (producer, _) = self.graph.producer(place.base);
        if let Some(gate) = place.gate {
            self.wait_for_node(unit, gate);
        }
        let is_barrier = matches!(user.op(), Op::Barrier(_));
        match producer.op() {
            Op::Const(_) | Op::Scalar(_) => {
                // Programs read constants and scalars themselves.
                if !is_elementwise(user.op())
                    && !is_barrier
                    && let Some(store) = self.store_constant(place.base)
                {
                    self.wait(unit, store);
                    self.readers[place.base.0 as usize].push(unit);
                }
            }
            // A barrier waits for its operands and reads nothing.
            Op::Read(_) | Op::Input(_) if is_barrier => {}
            Op::Read(_) | Op::Input(_) => self.readers[place.base.0 as usize].push(unit),
            _ => {
                let maker = self.of_node[producer.id.0 as usize];
                if let Some(maker) = maker.filter(|&m| m != unit) {
                    self.wait(unit, maker);
                    if !is_barrier {
                        self.readers[place.base.0 as usize].push(unit);
                    }
                }
            }
        }
    }

    /// The unit that puts a constant or scalar into memory.
    fn store_constant(&mut self, base: ValueId) -> Option<UnitId> {
        let (producer, _) = self.graph.producer(base);
        if !matches!(producer.op(), Op::Const(_) | Op::Scalar(_)) {
            return None;
        }
        if let Some(&unit) = self.stores.get(&base) {
            return Some(unit);
        }
        let unit = self.add(Unit::Store(base), producer.id);
        self.stores.insert(base, unit);
        Some(unit)
    }

    fn wait_for_node(&mut self, unit: UnitId, node: NodeId) {
        let target = match self.of_node[node.0 as usize] {
            Some(target) => Some(target),
            // A view is complete when what it views is.
            None => self.graph.node(node).results().next().and_then(|result| {
                let place = &self.laid.places[result.0 as usize];
                if let Some(gate) = place.gate {
                    self.wait_for_node(unit, gate);
                }
                self.of_node[self.graph.producer(place.base).0.id.0 as usize]
            }),
        };
        if let Some(target) = target {
            self.wait(unit, target);
        }
    }

    fn wait(&mut self, unit: UnitId, target: UnitId) {
        if unit != target {
            self.before[unit as usize].push(target);
        }
    }

    /// Decides for every commit whether the op that makes the value can put it into the slot, and
    /// puts it behind every reader of the old value.
    fn commit(&mut self, in_place: bool) {
        // Of each slot, the units that read the value it has now, and the unit that wrote it.
        let mut readers: Vec<Vec<UnitId>> = vec![Vec::new(); self.graph.slots.len()];
        let mut writer: Vec<Option<UnitId>> = vec![None; self.graph.slots.len()];
        let mut last_write: Vec<Option<NodeId>> = vec![None; self.graph.slots.len()];
        for node in self.graph.nodes() {
            if let Op::Read(read) = node.op() {
                readers[read.slot.0 as usize].extend(&self.readers[node.result(0).0 as usize]);
            }
            if let Op::Write(write) = node.op() {
                last_write[write.slot.0 as usize] = Some(node.id);
            }
        }
        for node in self.graph.nodes() {
            let (Op::Write(write), Some(&value)) = (node.op(), node.args().first()) else { continue };
            let Some(commit) = self.of_node[node.id.0 as usize] else { continue };
            let slot = write.slot.0 as usize;
            let old_readers = std::mem::take(&mut readers[slot]);
            let maker = self.of_node[self.graph.producer(value).0.id.0 as usize];
            // What the step returns must not be written over by a later commit.
            let stays = last_write[slot] == Some(node.id) || !self.is_output[value.0 as usize];
            let target = maker.filter(|&maker| {
                in_place
                    && stays
                    && !self.in_slot.contains_key(&value)
                    && self.can_write(maker, value, write.slot, &old_readers)
            });
            let unit = match target {
                Some(maker) => {
                    self.in_slot.insert(value, write.slot);
                    self.fold(node.id, commit, maker);
                    readers[slot] =
                        self.readers[value.0 as usize].iter().copied().filter(|&r| r != commit).collect();
                    maker
                }
                None => commit,
            };
            for reader in old_readers.into_iter().chain(writer[slot]) {
                self.wait(unit, reader);
            }
            writer[slot] = Some(unit);
        }
    }

    /// The commit disappears: whoever waits for it waits for the maker.
    fn fold(&mut self, node: NodeId, commit: UnitId, maker: UnitId) {
        self.of_node[node.0 as usize] = Some(maker);
        self.before[commit as usize].clear();
        // `order` resolves what waits for it already.
        self.folded[commit as usize] = Some(maker);
    }

    /// Whether `maker` may write `value` where the old value lies that `old_readers` use.
    fn can_write(&self, maker: UnitId, value: ValueId, slot: SlotId, old_readers: &[UnitId]) -> bool {
        let first_output = match &self.units[maker as usize] {
            Unit::Group(group) => self.members[group.0 as usize]
                .iter()
                .find(|&&n| self.is_stored(self.graph.node(n).result(0)))
                .copied(),
            Unit::Node(node) => Some(*node),
            _ => None,
        };
        let Some(first_output) = first_output else { return false };
        let all_before = old_readers.iter().all(|&r| r == maker || self.rank[r as usize] < first_output);
        all_before && (!old_readers.contains(&maker) || self.overwrites_in_place(maker, value, slot))
    }

    /// Whether a unit that reads the old value of the slot reads each element before it writes it.
    fn overwrites_in_place(&self, maker: UnitId, value: ValueId, slot: SlotId) -> bool {
        let (elements, shape) = (self.graph.ty(value).elements(), self.graph.ty(value).shape());
        let is_aligned = |arg: ValueId| {
            let place = &self.laid.places[arg.0 as usize];
            place.layout.is_dense(self.graph.ty(arg).shape()) && self.graph.ty(arg).elements() == elements
        };
        let old = |node: &Node<'a>| {
            let args = node.args().iter().copied().enumerate();
            args.filter(|&(_, arg)| self.lies_in(arg, slot)).collect::<Vec<_>>()
        };
        match &self.units[maker as usize] {
            Unit::Group(group) => self.members[group.0 as usize]
                .iter()
                .all(|&n| old(&self.graph.node(n)).iter().all(|&(_, arg)| is_aligned(arg))),
            Unit::Node(node) => {
                let node = self.graph.node(*node);
                let allowed = node.op().memory().overwrites;
                let (_, result) = self.graph.producer(value);
                old(&node).iter().all(|&(k, arg)| {
                    allowed.contains(&(result, k)) && is_aligned(arg) && self.graph.ty(arg).shape() == shape
                })
            }
            _ => false,
        }
    }

    /// Whether a value lies in the memory of this persistent tensor.
    fn lies_in(&self, value: ValueId, slot: SlotId) -> bool {
        let base = self.laid.places[value.0 as usize].base;
        match self.graph.producer(base).0.op() {
            Op::Read(read) => read.slot == slot,
            _ => self.in_slot.get(&base) == Some(&slot),
        }
    }

    /// Whether a group's value is needed outside its registers.
    fn is_stored(&self, value: ValueId) -> bool {
        !self.readers[value.0 as usize].is_empty()
            || self.in_slot.contains_key(&value)
            || self.is_output[value.0 as usize]
    }

    /// A topological order that follows the source order; `None` if there is a cycle.
    fn order(&mut self) -> Option<Vec<UnitId>> {
        use std::{cmp::Reverse, collections::BinaryHeap};
        for before in &mut self.before {
            for target in before {
                *target = self.folded[*target as usize].unwrap_or(*target);
            }
        }
        for (unit, before) in self.before.iter_mut().enumerate() {
            before.sort_unstable();
            before.dedup();
            before.retain(|&b| b as usize != unit);
        }
        let mut followers: Vec<Vec<UnitId>> = vec![Vec::new(); self.units.len()];
        let mut waiting: Vec<usize> = self.before.iter().map(Vec::len).collect();
        for (unit, before) in self.before.iter().enumerate() {
            for &b in before {
                followers[b as usize].push(unit as UnitId);
            }
        }
        let rank = |u: UnitId| Reverse((self.rank[u as usize], u));
        let mut ready: BinaryHeap<_> = (0..self.units.len())
            .filter(|&u| self.folded[u].is_none() && waiting[u] == 0)
            .map(|u| rank(u as UnitId))
            .collect();
        let mut order = Vec::with_capacity(self.units.len());
        while let Some(Reverse((_, unit))) = ready.pop() {
            order.push(unit);
            for &follower in &followers[unit as usize] {
                waiting[follower as usize] -= 1;
                if waiting[follower as usize] == 0 {
                    ready.push(rank(follower));
                }
            }
        }
        let real = self.folded.iter().filter(|f| f.is_none()).count();
        (order.len() == real).then_some(order)
    }

    fn emit(&self, order: &[UnitId]) -> Result<Built, OpError> {
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
                Ok(Kernel::Elementwise(super::program::store(graph, *value, access)?))
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
