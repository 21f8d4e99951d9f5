//! Runs a plan on a device: eagerly the first time, then as a recorded graph that is replayed.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use cudarc::driver::sys::CUdeviceptr;

use super::{
    bind::{Bound, Memory, bind, launches},
    context::Context,
    guarded::Guarded,
    host::Host,
    kernels,
    memory::{Captured, Stream},
    module::Function,
    prepare::{self, Action, Step, Stretch},
    session::Cuda,
    staging::{Constants, Fault, Staging, Words},
    work::{Address, Work},
};
use crate::{
    exec::{
        Persistent, Tensor,
        comm::Link,
        cpu::{RunError, ScalarPage},
        place::Root,
        run::{Printer, Run, check_arguments, half_written},
    },
    ops::OpError,
    plan::{Instruction, Kernel, Plan},
    schedule::{BufferId, OpId},
};

/// A plan with everything prepared that a run on a device needs.
pub struct Executable {
    plan: Arc<Plan>,
    context: Arc<Context>,
    steps: Vec<Step>,
    /// What runs in the places of the plan; `None` where each op runs by itself in checked memory.
    stretches: Option<Vec<Stretch>>,
    /// Those of the launches of each stretch, or else of each step.
    functions: Vec<Vec<Function>>,
    staging: Staging,
    constants: Constants,
    binding: Option<Binding>,
    /// The slots that a run writes.
    written: Vec<bool>,
    high_water: u64,
    /// Off where the driver refused to record the step.
    records: bool,
    /// As in [`Stats::taken_bytes`].
    taken: u64,
    printer: Option<Printer>,
    is_uploaded: bool,
    on_the_way: Option<OnTheWay>,
    /// Those that its work is in.
    streams: [Arc<Stream>; 2],
}

/// The work with the addresses of one arena and of the persistent tensors.
struct Binding {
    arena: CUdeviceptr,
    slots: Vec<CUdeviceptr>,
    parts: Vec<Part>,
    /// It has run once: all is loaded that is loaded late.
    is_warm: bool,
}

/// A run that was started.
enum OnTheWay {
    Started { has_written: bool },
    Done(Vec<Tensor>),
}

/// Work that the device does without the host, and what the host does then.
struct Part {
    bound: Vec<Bound>,
    captured: Option<Captured>,
    host: Option<OpId>,
    /// Whether the work, or what the host does, writes persistent tensors.
    writes: bool,
}

/// How much a step gives the device to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stats {
    /// Kernels of this crate.
    pub kernels: usize,
    /// Matrix products of cublasLt.
    pub products: usize,
    /// Copies, fills and uploads of constants.
    pub copies: usize,
    /// Parts between which the host has something to do; each is one recorded graph.
    pub parts: usize,
    /// Whether the parts are recorded by now.
    pub is_recorded: bool,
    /// Bytes on the device that are not part of the plan: the scalars of the step, and a place for the
    /// inputs of the next one.
    pub beside_bytes: u64,
    /// How many bytes less the device has free than before the session took memory, after this step took
    /// its own: what the driver says, of all processes on the device.
    pub taken_bytes: u64,
}

impl Stats {
    /// All that a step starts one by one where it is not recorded.
    pub fn launches(&self) -> usize {
        self.kernels + self.products + self.copies
    }
}

/// The places of the plan.
struct Planned<'a> {
    arena: CUdeviceptr,
    slots: &'a [CUdeviceptr],
    words: Words,
    constants: &'a Constants,
}

impl Planned<'_> {
    fn root(&self, root: Root) -> Result<CUdeviceptr, OpError> {
        root_address(self.arena, self.slots, root)
    }
}

fn root_address(arena: CUdeviceptr, slots: &[CUdeviceptr], root: Root) -> Result<CUdeviceptr, OpError> {
    match root {
        Root::Arena(offset) => Ok(arena + offset as u64),
        Root::Slot(slot) => {
            let missing = || OpError::new("internal: a missing persistent tensor");
            slots.get(slot).copied().ok_or_else(missing)
        }
    }
}

impl Memory for Planned<'_> {
    fn address(&self, _op: OpId, at: Address) -> Result<CUdeviceptr, OpError> {
        Ok(self.root(at.root)? + at.offset)
    }

    fn words(&self) -> Words {
        self.words
    }

    fn constant(&self, bytes: &Arc<[u8]>) -> Result<*const u8, OpError> {
        self.constants.get(bytes)
    }
}

impl Executable {
    /// Checks that every operand lies inside its buffer, and compiles and loads all kernels.
    pub fn new(cuda: &Cuda, plan: Arc<Plan>) -> Result<Executable, OpError> {
        cuda.admits(&plan)?;
        let steps = prepare::steps(&plan)?;
        let stretches = if cuda.checks { None } else { Some(prepare::stretches(&plan, &steps)?) };
        let all: Vec<Vec<Work>> = match &stretches {
            Some(stretches) => {
                let works = |stretch: &Stretch| stretch.works.iter().map(|(_, work)| work.clone()).collect();
                stretches.iter().map(works).collect()
            }
            None => steps.iter().map(|step| step.works().to_vec()).collect(),
        };
        let wanted: Vec<_> = all.iter().flat_map(|works| launches(works.iter())).collect();
        let mut loaded = cuda.context.modules.functions(&wanted)?.into_iter();
        let functions = all.iter().map(|works| {
            let count = launches(works.iter()).count();
            loaded.by_ref().take(count).collect()
        });
        let functions = functions.collect();
        let staging = Staging::new(cuda, &plan)?;
        let uploaded: Vec<&Arc<[u8]>> = all
            .iter()
            .flatten()
            .filter_map(|work| if let Work::Upload { bytes, .. } = work { Some(bytes) } else { None })
            .collect();
        let constants = Constants::new(&cuda.context, &uploaded)?;
        let written = prepare::written_slots(&plan)?;
        let high_water = prepare::high_water(&plan)?;
        let context = Arc::clone(&cuda.context);
        Ok(Executable {
            plan,
            context,
            steps,
            stretches,
            functions,
            staging,
            constants,
            binding: None,
            written,
            high_water,
            records: cuda.records,
            taken: 0,
            printer: None,
            is_uploaded: false,
            on_the_way: None,
            streams: [Arc::clone(&cuda.compute), Arc::clone(&cuda.copies)],
        })
    }

    /// What it runs.
    pub fn plan(&self) -> &Arc<Plan> {
        &self.plan
    }

    /// Who is shown the values of `debug(x)`.
    pub fn set_printer(&mut self, printer: Option<Printer>) {
        self.printer = printer;
    }

    /// How much a step gives the device to do.
    pub fn stats(&self) -> Stats {
        let mut stats =
            Stats { beside_bytes: self.staging.device_bytes(), taken_bytes: self.taken, ..Stats::default() };
        let mut count = |work: &Work| match work {
            Work::Launch(_) => stats.kernels += 1,
            Work::Product(_) => stats.products += 1,
            _ => stats.copies += 1,
        };
        match &self.stretches {
            Some(stretches) => stretches.iter().flat_map(|s| &s.works).for_each(|(_, work)| count(work)),
            None => self.steps.iter().flat_map(Step::works).for_each(count),
        }
        stats.parts = 1 + self.steps.iter().filter(|step| matches!(step.action, Action::Host(_))).count();
        let parts = self.binding.as_ref().map(|binding| &binding.parts);
        stats.is_recorded = parts.is_some_and(|parts| {
            parts.iter().any(|part| part.captured.is_some())
                && parts.iter().all(|part| part.captured.is_some() || part.bound.len() < 2)
        });
        stats
    }

    /// Whether what a run is given was uploaded for it.
    pub fn is_uploaded(&self) -> bool {
        self.is_uploaded
    }

    /// Starts the upload of what a run is given. The run before may still be on its way.
    pub fn upload(&mut self, inputs: &[Tensor], page: &ScalarPage) -> Result<(), RunError> {
        let graph = &self.plan.graph;
        let types = inputs.iter().map(Tensor::ty);
        check_arguments(graph, graph.slots.iter().map(|slot| &slot.ty), types).map_err(RunError::of_no_op)?;
        self.context.enter().map_err(RunError::of_no_op)?;
        self.is_uploaded = false;
        self.staging.upload(page, inputs).map_err(RunError::of_no_op)?;
        self.is_uploaded = true;
        Ok(())
    }

    /// Starts a run, with what was uploaded. [`Executable::finish`] waits for its end. `slots` are moved to
    /// the device and stay there. `cancel` is looked at before the first part that writes one of them.
    pub fn start(
        &mut self,
        cuda: &mut Cuda,
        slots: &mut [Persistent],
        page: &ScalarPage,
        cancel: &AtomicBool,
        link: &mut Link<'_>,
    ) -> Result<(), RunError> {
        let plan = Arc::clone(&self.plan);
        let fail = RunError::of_no_op;
        let graph = &plan.graph;
        let inputs = graph.inputs.iter().map(|input| &input.ty);
        // Also where the step does not start: what was uploaded belongs to this call of it.
        let is_uploaded = std::mem::take(&mut self.is_uploaded);
        check_arguments(graph, slots.iter().map(Persistent::ty), inputs).map_err(fail)?;
        let is_as_prepared = cuda.checks == self.stretches.is_none() && Arc::ptr_eq(&self.context, &cuda.context);
        if !is_uploaded || !is_as_prepared {
            return Err(fail(OpError::new("internal: a step starts without its inputs, or elsewhere")));
        }
        if cancel.load(Ordering::Relaxed) {
            return Err(fail(OpError::cancelled()));
        }
        self.context.enter().map_err(fail)?;
        if self.on_the_way.take().is_some() {
            // Nobody has asked for the results of the run before.
            cuda.wait().map_err(fail)?;
        }
        cuda.reserve(&plan, slots).map_err(fail)?;
        self.taken = cuda.taken;
        let addresses = slots
            .iter()
            .map(|slot| slot.block(|block| block.is_on(&self.context)).map(|block| block.address()))
            .collect::<Option<Vec<CUdeviceptr>>>()
            .ok_or_else(|| fail(OpError::new("internal: a persistent tensor that is not on the device")))?;
        let call = Call { page, cancel, link };
        let result = if self.stretches.is_none() {
            self.run_checked(cuda, addresses, slots, call)
        } else {
            self.start_planned(cuda, addresses, slots, call)
        };
        match result {
            Ok(on_the_way) => self.on_the_way = Some(on_the_way),
            Err(error) => {
                // Whatever is on its way must not meet what comes next. The error is the one to report.
                let _ = cuda.wait();
                return Err(error);
            }
        }
        Ok(())
    }

    /// Waits for the end of the run that was started, and gives its results.
    pub fn finish(&mut self, cuda: &Cuda, page: &ScalarPage) -> Result<Run, RunError> {
        let fail = RunError::of_no_op;
        let missing = || fail(OpError::new("internal: a step ends that has not started"));
        let outputs = match self.on_the_way.take().ok_or_else(missing)? {
            OnTheWay::Done(outputs) => outputs,
            OnTheWay::Started { has_written } => {
                let half = |error| if has_written { half_written(error) } else { error };
                cuda.compute.wait("running a step").map_err(|error| fail(half(error)))?;
                let words = self.staging.fault(self.is_uploaded).map_err(fail)?;
                fault(&self.plan, words, has_written)?;
                self.staging.outputs(page).map_err(|error| fail(half(error)))?
            }
        };
        Ok(Run { outputs, high_water_bytes: self.high_water })
    }

    fn start_planned(
        &mut self,
        cuda: &mut Cuda,
        addresses: Vec<CUdeviceptr>,
        slots: &mut [Persistent],
        mut call: Call<'_, '_>,
    ) -> Result<OnTheWay, RunError> {
        let plan = Arc::clone(&self.plan);
        let fail = RunError::of_no_op;
        let arena = cuda.arena();
        let mut binding = match self.binding.take() {
            Some(binding) if binding.arena == arena && binding.slots == addresses => binding,
            _ => self.bind(arena, addresses).map_err(fail)?,
        };
        let taken = self.staging.take(&|_, root| root_address(arena, &binding.slots, root));
        taken.map_err(fail)?;
        let mut has_written = false;
        let mut host = Host::new(&plan);
        let words = self.staging.words();
        let is_warm = binding.is_warm;
        for part in &mut binding.parts {
            if !has_written && call.cancel.load(Ordering::Relaxed) {
                return Err(fail(OpError::cancelled()));
            }
            if part.writes && !has_written {
                has_written = true;
                change(&self.written, slots);
            }
            let half = |error| if has_written { half_written(error) } else { error };
            let enqueue = |part: &Part| {
                part.bound.iter().try_for_each(|bound| bound.enqueue(&self.context, cuda.compute.raw()))
            };
            if self.records && is_warm && part.captured.is_none() && part.bound.len() > 1 {
                match cuda.compute.capture(|| enqueue(part)) {
                    Ok(captured) => part.captured = Some(captured),
                    // Nothing of it ran: the work goes to the device one by one instead.
                    Err(_) => self.records = false,
                }
            }
            let started = match &part.captured {
                Some(captured) => cuda.compute.replay(captured),
                None => enqueue(part),
            };
            started.map_err(|error| fail(half(error)))?;
            if let Some(op) = part.host {
                let node = plan.op_nodes.get(op.0 as usize).copied().unwrap_or(RunError::NOWHERE);
                let fail = |error| RunError { node, error: half(error) };
                cuda.compute.wait("running a step").map_err(fail)?;
                let told = self.staging.fault_by_now().map_err(fail)?;
                fault(&plan, told, has_written)?;
                let action = self.steps.iter().find(|step| step.op == op).map(|step| &step.action);
                if let Some(Action::Host(action)) = action {
                    let memory = Planned { arena, slots: &binding.slots, words, constants: &self.constants };
                    host.act(op, action, &memory, &mut call, &mut self.printer).map_err(fail)?;
                }
            }
        }
        let half = |error| if has_written { half_written(error) } else { error };
        let outputs = self.staging.download(&|_, root| root_address(arena, &binding.slots, root));
        outputs.map_err(|error| fail(half(error)))?;
        binding.is_warm = true;
        self.binding = Some(binding);
        Ok(OnTheWay::Started { has_written })
    }

    /// One by one, in memory between guard zones. Ends when all is done.
    fn run_checked(
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
        let mut has_written = false;
        let mut steps = self.steps.iter().zip(&self.functions);
        for instruction in &plan.instructions {
            if let Instruction::Free(buffer) = *instruction {
                memory.free(buffer).map_err(fail)?;
                continue;
            }
            let Some((step, functions)) = steps.next() else { break };
            let node = plan.op_nodes.get(step.op.0 as usize).copied().unwrap_or(RunError::NOWHERE);
            if !has_written && call.cancel.load(Ordering::Relaxed) {
                return Err(RunError { node, error: OpError::cancelled() });
            }
            if step.writes && !has_written {
                has_written = true;
                change(&self.written, slots);
            }
            let fail =
                |error| RunError { node, error: if has_written { half_written(error) } else { error } };
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
            fault(&plan, told, has_written)?;
        }
        let half = |error| if has_written { half_written(error) } else { error };
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
        outputs.map(OnTheWay::Done).map_err(|error| fail(half(error)))
    }

    /// Puts addresses into all work.
    fn bind(&self, arena: CUdeviceptr, slots: Vec<CUdeviceptr>) -> Result<Binding, OpError> {
        let words = self.staging.words();
        let memory = Planned { arena, slots: &slots, words, constants: &self.constants };
        let mut parts = Vec::new();
        for (stretch, functions) in self.stretches.iter().flatten().zip(&self.functions) {
            let works = stretch.works.iter().map(|(op, work)| (*op, work));
            let bound = bind_all(&self.context, works, functions, &memory)?;
            parts.push(Part { bound, captured: None, host: stretch.host, writes: stretch.writes });
        }
        Ok(Binding { arena, slots, parts, is_warm: false })
    }
}

impl Drop for Executable {
    fn drop(&mut self) {
        // Copies to pinned memory may be on their way.
        if self.on_the_way.is_some() || self.is_uploaded {
            let _ = self.streams.iter().try_for_each(|stream| stream.wait("ending a step"));
        }
    }
}

fn change(written: &[bool], slots: &mut [Persistent]) {
    for (slot, _) in slots.iter_mut().zip(written).filter(|(_, written)| **written) {
        slot.changed_on_device();
    }
}

fn fault(plan: &Plan, words: Fault, has_written: bool) -> Result<(), RunError> {
    let Some((op, error)) = kernels::fault(plan, words) else { return Ok(()) };
    let node = plan.op_nodes.get(op.0 as usize).copied().unwrap_or(RunError::NOWHERE);
    Err(RunError { node, error: if has_written { half_written(error) } else { error } })
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

/// What the host needs of a call.
pub(super) struct Call<'a, 'l> {
    pub page: &'a ScalarPage,
    pub cancel: &'a AtomicBool,
    pub link: &'a mut Link<'l>,
}

fn bind_all<'a>(
    context: &Context,
    works: impl Iterator<Item = (OpId, &'a Work)>,
    functions: &[Function],
    memory: &dyn Memory,
) -> Result<Vec<Bound>, OpError> {
    let mut functions = functions.iter().copied();
    let mut bound = Vec::new();
    for (op, work) in works {
        let function = matches!(work, Work::Launch(_)).then(|| functions.next()).flatten();
        bound.extend(bind(context, op, work, function, memory)?);
    }
    Ok(bound)
}
