//! Memory for finding faults: every buffer and workspace has an allocation of its own between guard
//! zones, filled with NaN at first and when it is freed. Places of the plan are not used, so nothing
//! can hide by lying beside something else.

use std::{ops::Range, sync::Arc};

use cudarc::driver::{result, sys::CUdeviceptr};
use rustc_hash::FxHashMap;

use super::{
    bind::Memory,
    error::While,
    executable::{Executable, OnTheWay, bind_all, change, fault},
    host::{Call, Host},
    memory::{Block, Stream},
    prepare::Action,
    session::Cuda,
    staging::{Constants, Words},
    work::Address,
};
use crate::{
    exec::{
        Persistent,
        cpu::RunError,
        place::{self, Root},
        run::Progress,
    },
    ops::OpError,
    plan::{Instruction, Kernel, Plan},
    schedule::{BufferId, OpId},
};

/// Bytes before and after each buffer.
const ZONE: u64 = 256;
const ZONE_BYTE: u8 = 0xa5;
/// NaN in every floating-point type.
const POISON: u8 = 0xff;

impl Executable {
    /// One by one, in memory between guard zones. Ends when all is done.
    pub(super) fn run_checked(
        &mut self,
        cuda: &mut Cuda,
        addresses: Vec<CUdeviceptr>,
        slots: &mut [Persistent],
        mut call: Call<'_, '_>,
    ) -> Result<OnTheWay, RunError> {
        let plan = Arc::clone(&self.plan);
        let context = Arc::clone(&self.context);
        let fail = RunError::of_no_op;
        let words = self.staging.words();
        let mut memory = Guarded::new(&plan, &cuda.compute, addresses, words, &self.constants);
        let buffers: Vec<BufferId> = self.staging.input_buffers().collect();
        buffers.into_iter().try_for_each(|buffer| memory.make(buffer)).map_err(fail)?;
        self.staging.take(&|buffer, _| memory.buffer(buffer)).map_err(fail)?;
        let mut host = Host::new(&plan);
        let mut progress = Progress::default();
        let mut steps = self.steps.iter().zip(&self.functions);
        for instruction in &plan.instructions {
            if let Instruction::Free(buffer) = *instruction {
                memory.free(buffer).map_err(fail)?;
                continue;
            }
            let Some((step, functions)) = steps.next() else { break };
            let node = place::node_of(&plan, step.op);
            let changes = || change(&self.written, slots);
            let gone_on = progress.go_on(step.writes, call.cancel, changes);
            gone_on.map_err(|error| RunError { node, error })?;
            let fail = |error| RunError { node, error: progress.error(error) };
            memory.begin(step.op).map_err(fail)?;
            match &step.action {
                Action::Device(works) => {
                    let works = works.iter().map(|work| (step.op, work));
                    let bound = bind_all(&context, works, functions, &memory).map_err(fail)?;
                    bound
                        .iter()
                        .try_for_each(|bound| bound.enqueue(&context, cuda.compute.raw()))
                        .map_err(fail)?;
                }
                Action::Host(action) => {
                    cuda.compute.wait("running a step").map_err(fail)?;
                    host.act(step.op, action, &memory, &mut call, &mut self.printer).map_err(fail)?;
                }
            }
            memory.end(step.op, &title(&plan, step.op)).map_err(fail)?;
            let told = self.staging.fault_by_now().map_err(fail)?;
            fault(&plan, told, progress)?;
        }
        let place = |k: usize, root: Root| match root {
            Root::Slot(slot) => memory.slot(slot),
            Root::Arena(_) => {
                let access = plan.outputs.get(k);
                memory.buffer(access.ok_or_else(|| OpError::new("internal: a missing output"))?.buffer)
            }
        };
        let downloaded = self.staging.download(&place);
        let outputs = downloaded
            .and_then(|()| cuda.compute.wait("running a step"))
            .and_then(|()| self.staging.outputs(call.page));
        outputs.map(OnTheWay::Done).map_err(|error| fail(progress.error(error)))
    }
}

/// How messages name an op.
fn title(plan: &Plan, op: OpId) -> String {
    let node = plan.op_nodes.get(op.0 as usize).filter(|node| (node.0 as usize) < plan.graph.len());
    let name = node.map_or("op", |&node| plan.graph.node(node).op().name());
    match plan.kernels.get(op.0 as usize) {
        Some(Kernel::Elementwise(group)) => {
            format!("`{name}` (a group of {} element-wise ops)", group.instrs.len())
        }
        _ => format!("`{name}`"),
    }
}

/// A buffer between two zones.
struct Guard {
    block: Block,
    bytes: u64,
}

impl Guard {
    fn new(bytes: u64, stream: &Arc<Stream>) -> Result<Guard, OpError> {
        let block = Block::new(stream, bytes.saturating_add(2 * ZONE), "a buffer of the step")?;
        let guard = Guard { block, bytes };
        let start = guard.block.address();
        fill(stream, start, ZONE_BYTE, ZONE)?;
        fill(stream, start + ZONE, POISON, bytes)?;
        fill(stream, start + ZONE + bytes, ZONE_BYTE, ZONE)?;
        Ok(guard)
    }

    fn start(&self) -> CUdeviceptr {
        self.block.address() + ZONE
    }

    /// Whether both zones are as they were. The stream was waited for.
    fn is_whole(&self) -> Result<bool, OpError> {
        let mut zone = [0; ZONE as usize];
        for start in [self.block.address(), self.start() + self.bytes] {
            // SAFETY: inside the block, which nothing uses now.
            unsafe { result::memcpy_dtoh_sync(&mut zone, start) }.during("reading a guard zone")?;
            if zone.iter().any(|&byte| byte != ZONE_BYTE) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

fn fill(stream: &Stream, start: CUdeviceptr, byte: u8, bytes: u64) -> Result<(), OpError> {
    if bytes == 0 {
        return Ok(());
    }
    // SAFETY: the bytes are those of a block that is alive until the stream was waited for.
    unsafe { result::memset_d8_async(start, byte, bytes as usize, stream.raw()) }.during("filling a buffer")
}

/// The memory of one run.
pub(super) struct Guarded<'a> {
    plan: &'a Plan,
    stream: &'a Arc<Stream>,
    /// By the first buffer of those that take over each other's place.
    alive: FxHashMap<BufferId, Guard>,
    /// Freed, and kept so that nobody else gets the addresses.
    freed: Vec<Guard>,
    workspace: Option<(Range<usize>, Guard)>,
    /// Buffers whose place another takes over.
    taken_over: Vec<bool>,
    slots: Vec<CUdeviceptr>,
    words: Words,
    constants: &'a Constants,
}

impl<'a> Guarded<'a> {
    pub fn new(
        plan: &'a Plan,
        stream: &'a Arc<Stream>,
        slots: Vec<CUdeviceptr>,
        words: Words,
        constants: &'a Constants,
    ) -> Guarded<'a> {
        let mut taken_over = vec![false; plan.buffers.len()];
        for old in plan.schedule.overwrites.iter().flatten() {
            if let Some(taken) = taken_over.get_mut(old.0 as usize) {
                *taken = true;
            }
        }
        Guarded {
            plan,
            stream,
            alive: FxHashMap::default(),
            freed: Vec::new(),
            workspace: None,
            taken_over,
            slots,
            words,
            constants,
        }
    }

    /// The first buffer of those that take over each other's place up to this one.
    fn first(&self, mut buffer: BufferId) -> BufferId {
        while let Some(old) = self.plan.schedule.overwrites.get(buffer.0 as usize).copied().flatten() {
            buffer = old;
        }
        buffer
    }

    /// Memory for a buffer, unless it takes over that of another.
    pub fn make(&mut self, buffer: BufferId) -> Result<(), OpError> {
        let bytes = self.plan.schedule_graph.arena_bytes(buffer);
        let first = self.first(buffer);
        if bytes > 0 && !self.alive.contains_key(&first) {
            let guard = Guard::new(bytes, self.stream)?;
            self.alive.insert(first, guard);
        }
        Ok(())
    }

    /// Memory for what an op makes, and for its workspace.
    pub fn begin(&mut self, op: OpId) -> Result<(), OpError> {
        for &made in self.plan.schedule_graph.makes(op) {
            self.make(made)?;
        }
        let workspace = place::workspace(self.plan, op)?;
        if !workspace.is_empty() {
            let guard = Guard::new(workspace.len() as u64, self.stream)?;
            self.workspace = Some((workspace, guard));
        }
        Ok(())
    }

    /// Waits for an op, and looks whether it wrote beside its buffers.
    pub fn end(&mut self, op: OpId, what: &str) -> Result<(), OpError> {
        self.stream.wait(&format!("running {what}"))?;
        let graph = &self.plan.schedule_graph;
        let beside = |part: &str| OpError::new(format!("internal: {what} wrote beside {part}"));
        for &buffer in graph.makes(op).iter().chain(graph.reads(op)) {
            if let Some(guard) = self.alive.get(&self.first(buffer))
                && !guard.is_whole()?
            {
                return Err(beside("a buffer"));
            }
        }
        match self.workspace.take() {
            Some((_, guard)) if !guard.is_whole()? => Err(beside("its workspace")),
            _ => Ok(()),
        }
    }

    /// A buffer that the plan frees.
    pub fn free(&mut self, buffer: BufferId) -> Result<(), OpError> {
        if self.taken_over.get(buffer.0 as usize).copied().unwrap_or(true) {
            return Ok(());
        }
        if let Some(guard) = self.alive.remove(&self.first(buffer)) {
            fill(self.stream, guard.start(), POISON, guard.bytes)?;
            self.freed.push(guard);
        }
        Ok(())
    }

    /// The address of a buffer that is alive.
    pub fn buffer(&self, buffer: BufferId) -> Result<CUdeviceptr, OpError> {
        if self.plan.schedule_graph.arena_bytes(buffer) == 0 {
            return Ok(0);
        }
        let guard = self.alive.get(&self.first(buffer));
        guard.map(Guard::start).ok_or_else(|| OpError::new("internal: a buffer is used that is not alive"))
    }

    /// The address of a persistent tensor.
    pub fn slot(&self, slot: usize) -> Result<CUdeviceptr, OpError> {
        self.slots.get(slot).copied().ok_or_else(|| OpError::new("internal: a missing persistent tensor"))
    }
}

impl Memory for Guarded<'_> {
    fn address(&self, op: OpId, at: Address) -> Result<CUdeviceptr, OpError> {
        let start = match at.root {
            Root::Slot(slot) => return Ok(self.slot(slot)? + at.offset),
            Root::Arena(start) => start,
        };
        if let Some((range, guard)) = &self.workspace
            && range.contains(&start)
        {
            return Ok(guard.start() + (start - range.start) as u64 + at.offset);
        }
        let graph = &self.plan.schedule_graph;
        let is_here = |buffer: &&BufferId| {
            let offset = self.plan.schedule.offsets.get(buffer.0 as usize).copied().flatten();
            graph.arena_bytes(**buffer) > 0 && offset == Some(start as u64)
        };
        match graph.makes(op).iter().chain(graph.reads(op)).find(is_here) {
            Some(&buffer) => Ok(self.buffer(buffer)? + at.offset),
            // What has no bytes is nowhere.
            None => Ok(0),
        }
    }

    fn words(&self) -> Words {
        self.words
    }

    fn constant(&self, bytes: &Arc<[u8]>) -> Result<*const u8, OpError> {
        self.constants.get(bytes)
    }
}
