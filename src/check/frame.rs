//! The graph that is being built: what belongs to it beside its nodes.
//!
//! Frames form a stack. A step opens one, and so does each tensor operation of the script; an
//! initialiser opens one above whatever is being built.

use std::{
    hash::{Hash, Hasher},
    sync::Arc,
};

use rustc_hash::{FxHashMap, FxHashSet, FxHasher};

use super::{
    persistent::Group,
    release::Releases,
    scope::Scope,
    shard::Gathers,
    value::{Cell, Init, Optimizer, Step, Stored, Value, fresh_id},
};
use crate::{
    ir::{DType, Graph, Input, OriginId, Policy, RegionId, ScalarSource, Slot, SlotId, ValueId},
    ops::{self, OpError},
    source::Span,
    syntax::ast::Name,
};

/// What a graph is built for.
#[derive(Clone)]
pub enum FrameKind {
    Step(Arc<Step>),
    /// A tensor expression of the script.
    Script,
    /// The first value of a parameter or state; random numbers depend on its name only.
    Init,
}

/// Where an input of the graph comes from at each run.
#[derive(Clone)]
pub enum InputSource {
    /// The tensor with this position among the tensors of the arguments.
    Argument(usize),
    /// A tensor of the script that was met while the graph was built.
    Stored(Arc<Stored>),
    /// What the name stands for when the step is called.
    Captured { scope: Arc<Scope>, name: Name },
}

/// Where an entry of the scalar page comes from at each run.
#[derive(Clone)]
pub enum ScalarBinding {
    /// The scalar with this position among the run-time scalars of the arguments.
    Argument(usize),
    UpdateCount(Arc<Optimizer>),
    /// A hyper-parameter by position.
    Hyper(Arc<Optimizer>, usize),
    /// This rank's number.
    Rank,
}

/// A script name that a graph depends on, with what it stood for.
#[derive(Clone)]
pub struct Capture {
    pub scope: Arc<Scope>,
    pub name: Name,
    pub value: Value,
}

pub struct SlotState {
    pub cell: Arc<Cell>,
    /// The value that a read sees now.
    pub current: Option<ValueId>,
    /// All values that it had in this graph, the newest last.
    pub versions: Vec<ValueId>,
}

/// The mixed-precision setting `with compute: bf16`.
#[derive(Clone, Copy)]
pub struct Compute {
    pub dtype: DType,
    /// Values with smaller ids were made outside of the block: they are cast at each use.
    pub since: u32,
}

/// A limit on the peak, as written.
#[derive(Debug, Clone, Copy)]
pub struct Ensure {
    pub limit: u64,
    pub every_schedule: bool,
    pub span: Span,
}

/// What the peak may be, as written.
#[derive(Debug, Clone, Copy)]
pub struct Budget {
    pub bytes: u64,
    pub span: Span,
}

pub struct Frame {
    pub id: u64,
    pub kind: FrameKind,
    pub graph: Graph,
    pub slots: Vec<SlotState>,
    /// What slots got, in order: `versions` of all of them.
    pub set: Vec<(SlotId, ValueId)>,
    slot_ids: FxHashMap<u64, SlotId>,
    slot_names: FxHashSet<Arc<str>>,
    pub inputs: Vec<InputSource>,
    stored: FxHashMap<u64, ValueId>,
    pub scalars: Vec<ScalarBinding>,
    scalar_values: FxHashMap<(u64, usize), ValueId>,
    pub training: bool,
    pub compute: Option<Compute>,
    /// Hash of the calls that led here, and how many calls and random ops there were in this body.
    pub path: (u64, u32),
    pub parent: Option<OriginId>,
    pub iteration: Option<Arc<str>>,
    pub captures: Vec<Capture>,
    pub ensures: Vec<Ensure>,
    pub budget: Option<Budget>,
    pub releases: Releases,
    pub gathers: Gathers,
    /// Values that are a rank's part of a group.
    pub part_values: FxHashMap<ValueId, Arc<Group>>,
    /// One entry per update: the optimizer's count rises by as many after a run.
    pub updates: Vec<Arc<Optimizer>>,
}

impl Frame {
    pub fn new(kind: FrameKind) -> Frame {
        Frame {
            id: fresh_id(),
            kind,
            graph: Graph::new(),
            slots: Vec::new(),
            set: Vec::new(),
            slot_ids: FxHashMap::default(),
            slot_names: FxHashSet::default(),
            inputs: Vec::new(),
            stored: FxHashMap::default(),
            scalars: Vec::new(),
            scalar_values: FxHashMap::default(),
            training: false,
            compute: None,
            path: (0, 0),
            parent: None,
            iteration: None,
            captures: Vec::new(),
            ensures: Vec::new(),
            budget: None,
            releases: Releases::default(),
            gathers: Gathers::default(),
            part_values: FxHashMap::default(),
            updates: Vec::new(),
        }
    }

    /// Adds a node that belongs to no region: what it gives is there before the step starts.
    fn leaf(&mut self, op: impl Into<ops::Op>) -> Result<ValueId, OpError> {
        let region = self.graph.cursor.region.take();
        let value = self.graph.value(op, &[]);
        self.graph.cursor.region = region;
        value
    }

    pub fn add_input(
        &mut self,
        name: Name,
        stored: &crate::ir::Type,
        source: InputSource,
    ) -> Result<ValueId, OpError> {
        let index = self.inputs.len() as u32;
        self.graph.inputs.push(Input { name, ty: stored.clone() });
        self.inputs.push(source);
        self.leaf(ops::Input { index })
    }

    /// The entry of the scalar page for a binding, as a weak f64 value.
    pub fn scalar(
        &mut self,
        key: (u64, usize),
        source: ScalarSource,
        binding: ScalarBinding,
        dtype: DType,
    ) -> Result<ValueId, OpError> {
        if let Some(&value) = self.scalar_values.get(&key) {
            return Ok(value);
        }
        let index = self.graph.scalars.len() as u32;
        self.graph.scalars.push(source);
        self.scalars.push(binding);
        let value = self.leaf(ops::Scalar { index, dtype })?;
        self.scalar_values.insert(key, value);
        Ok(value)
    }

    /// The slot of a persistent tensor, added if it is new.
    pub fn slot(&mut self, cell: &Arc<Cell>) -> SlotId {
        if let Some(&slot) = self.slot_ids.get(&cell.id) {
            return slot;
        }
        let slot = SlotId(self.slots.len() as u32);
        let mut name = cell.name();
        let mut copies = 1;
        while !self.slot_names.insert(Arc::clone(&name)) {
            // Two unnamed models, or a variable bound anew: keep the names apart.
            copies += 1;
            name = format!("{}#{copies}", cell.name()).into();
        }
        self.graph.slots.push(Slot { name, ty: cell.ty.clone(), kind: cell.kind });
        if let Init::Shard(group) = &cell.init {
            self.graph.shards.insert(slot, group.shard);
        }
        self.slots.push(SlotState { cell: Arc::clone(cell), current: None, versions: Vec::new() });
        self.slot_ids.insert(cell.id, slot);
        slot
    }

    pub fn has_slot(&self, cell: &Cell) -> Option<SlotId> {
        self.slot_ids.get(&cell.id).copied()
    }

    /// The value that a persistent tensor has at this point.
    pub fn read(&mut self, cell: &Arc<Cell>) -> Result<ValueId, OpError> {
        let slot = self.slot(cell);
        if let Some(value) = self.slots.get(slot.0 as usize).and_then(|s| s.current) {
            return Ok(value);
        }
        let value = self.leaf(ops::Read { slot })?;
        self.graph.names.insert(value, cell.name());
        self.set_current(slot, value);
        Ok(value)
    }

    pub fn set_current(&mut self, slot: SlotId, value: ValueId) {
        if let Some(state) = self.slots.get_mut(slot.0 as usize) {
            state.current = Some(value);
            state.versions.push(value);
            self.set.push((slot, value));
        }
    }

    /// Commits a new value, of the slot's type.
    pub fn write(&mut self, cell: &Arc<Cell>, value: ValueId) -> Result<ValueId, OpError> {
        let slot = self.slot(cell);
        let written = self.graph.value(ops::Write { slot }, &[value])?;
        self.set_current(slot, written);
        Ok(written)
    }

    pub fn stored_input(&mut self, stored: &Arc<Stored>) -> Result<ValueId, OpError> {
        if let Some(&value) = self.stored.get(&stored.id) {
            return Ok(value);
        }
        let name = format!("tensor{}", self.inputs.len()).into();
        let value = self.add_input(name, &stored.ty, InputSource::Stored(Arc::clone(stored)))?;
        self.stored.insert(stored.id, value);
        Ok(value)
    }

    /// Makes a tensor of the script an input that is looked up by its name at each call.
    pub fn capture_stored(
        &mut self,
        scope: &Arc<Scope>,
        name: &Name,
        stored: &Arc<Stored>,
    ) -> Result<(), OpError> {
        if !self.stored.contains_key(&stored.id) {
            let source = InputSource::Captured { scope: Arc::clone(scope), name: Arc::clone(name) };
            let value = self.add_input(Arc::clone(name), &stored.ty, source)?;
            self.stored.insert(stored.id, value);
            self.graph.names.insert(value, Arc::clone(name));
        }
        Ok(())
    }

    /// A key for the next random op, or for the next call, of this body.
    pub fn next_key(&mut self, what: &str) -> u64 {
        let mut hasher = FxHasher::default();
        (self.path, what).hash(&mut hasher);
        self.path.1 += 1;
        // FxHasher leaves patterns in the low bits of small inputs; the generator's key takes all.
        mix(hasher.finish())
    }

    /// The innermost region that the program wrote: those that gather units are none.
    pub fn written_region(&self) -> Option<RegionId> {
        let mut next = self.graph.cursor.region;
        while let Some(id) = next {
            let region = self.graph.regions.get(id.0 as usize)?;
            if region.policy != Policy::Gathers {
                break;
            }
            next = region.parent;
        }
        next
    }
}

/// The finaliser of SplitMix64 (Steele et al., 2014): every input bit changes half of the output.
pub fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// A hash that is the same on every machine and in every version.
pub fn stable_hash(text: &str) -> u64 {
    // FNV-1a, 64 bits, then mixed.
    mix(text
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0000_0100_0000_01b3)))
}
