//! Runs a plan on a device: eagerly the first time, then as a recorded graph that is replayed.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use cudarc::driver::sys::CUdeviceptr;
use rustc_hash::FxHashMap;

use super::{
    bind::{Bound, Memory, bind, launches},
    collectives::{Binder, agree},
    context::Context,
    host::{Call, Host},
    kernels,
    memory::Captured,
    module::Function,
    nccl::{Group, Path},
    prepare::{self, Action, Step, Stretch},
    session::Cuda,
    spread::spread,
    staging::{Constants, Fault, Staging, Words},
    work::{Address, Work},
};
use crate::{
    exec::{
        Persistent, Tensor,
        comm::Link,
        cpu::{RunError, ScalarPage},
        place::{Root, node_of},
        run::{Printer, Progress, Run, check_inputs, check_slots},
    },
    ops::OpError,
    plan::Plan,
    schedule::OpId,
};

/// A plan with everything prepared that a run on a device needs.
pub struct Executable {
    pub(super) plan: Arc<Plan>,
    pub(super) context: Arc<Context>,
    pub(super) steps: Vec<Step>,
    /// What runs in the places of the plan; `None` where each op runs by itself in checked memory.
    pub(super) stretches: Option<Vec<Stretch>>,
    /// Those of the launches of each stretch, or else of each step.
    pub(super) functions: Vec<Vec<Function>>,
    /// Goes before the constants and what is recorded: it waits for the work that uses them.
    pub(super) staging: Staging,
    pub(super) constants: Constants,
    pub(super) binding: Option<Binding>,
    /// The slots that a run writes.
    pub(super) written: Vec<bool>,
    high_water: u64,
    /// Off where the driver refused to record the step.
    records: bool,
    /// As in [`Stats::taken_bytes`].
    pub(super) taken: u64,
    /// How its collectives went to other ranks.
    pub(super) path: Path,
    pub(super) printer: Option<Printer>,
    is_uploaded: bool,
    on_the_way: Option<OnTheWay>,
}

/// The work with the addresses of one arena and of the persistent tensors.
pub(super) struct Binding {
    arena: CUdeviceptr,
    slots: Vec<CUdeviceptr>,
    pub(super) parts: Vec<Part>,
    /// It has run once: all is loaded that is loaded late.
    is_warm: bool,
}

/// A run that was started.
pub(super) enum OnTheWay {
    Started(Progress),
    Done(Vec<Tensor>),
}

/// Work that the device does without the host, and what follows it.
#[derive(Default)]
pub(super) struct Part {
    pub(super) bound: Vec<Bound>,
    pub(super) captured: Option<Captured>,
    /// The start or the end of a collective behind it, which is never recorded.
    pub(super) collective: Option<(OpId, Bound)>,
    host: Option<OpId>,
    /// Whether the work, or what the host does, writes persistent tensors.
    writes: bool,
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
        let spread = if cuda.checks { None } else { Some(spread(&plan)) };
        let places = spread.as_ref().unwrap_or(&plan);
        let mut steps = prepare::steps(places)?;
        cuda.context.enter()?;
        for step in &mut steps {
            step.set_tf32(cuda.tf32);
            step.spread_biases(|product| cuda.context.products.takes(product));
        }
        let stretches = if cuda.checks { None } else { Some(prepare::stretches(places, &steps)?) };
        let all: Vec<Vec<&Work>> = match &stretches {
            Some(all) => {
                all.iter().map(|stretch| stretch.works.iter().map(|(_, work)| work).collect()).collect()
            }
            None => steps.iter().map(|step| step.works().iter().collect()).collect(),
        };
        let wanted: Vec<_> = all.iter().flat_map(|works| launches(works.iter().copied())).collect();
        let mut loaded = cuda.context.modules.functions(&wanted)?.into_iter();
        let functions = all.iter().map(|works| {
            let count = launches(works.iter().copied()).count();
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
            path: Path::Unknown,
            printer: None,
            is_uploaded: false,
            on_the_way: None,
        })
    }

    /// Who is shown the values of `debug(x)`.
    pub fn set_printer(&mut self, printer: Option<Printer>) {
        self.printer = printer;
    }

    /// Whether what a run is given was uploaded for it.
    pub fn is_uploaded(&self) -> bool {
        self.is_uploaded
    }

    /// Starts the upload of what a run is given. The run before may still be on its way.
    pub fn upload(&mut self, inputs: &[Tensor], page: &ScalarPage) -> Result<(), RunError> {
        let graph = &self.plan.graph;
        check_inputs(graph, inputs.iter().map(Tensor::ty)).map_err(RunError::of_no_op)?;
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
        // Also where the step does not start: what was uploaded belongs to this call of it.
        let is_uploaded = std::mem::take(&mut self.is_uploaded);
        check_slots(&plan.graph, slots.iter().map(Persistent::ty)).map_err(fail)?;
        let is_as_prepared =
            cuda.checks == self.stretches.is_none() && Arc::ptr_eq(&self.context, &cuda.context);
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
            OnTheWay::Started(progress) => {
                cuda.compute.wait("running a step").map_err(|error| fail(progress.error(error)))?;
                let words = self.staging.fault(self.is_uploaded).map_err(fail)?;
                fault(&self.plan, words, progress)?;
                self.staging.outputs(page).map_err(|error| fail(progress.error(error)))?
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
        let group = agree(&self.plan, &self.steps, cuda, call.link).map_err(fail)?;
        self.path = cuda.path;
        let mut binding = match self.binding.take() {
            Some(binding) if binding.arena == arena && binding.slots == addresses => binding,
            _ => self.bind(arena, addresses, group.as_ref()).map_err(fail)?,
        };
        let taken = self.staging.take(&|_, root| root_address(arena, &binding.slots, root));
        taken.map_err(fail)?;
        let mut progress = Progress::default();
        let mut host = Host::new(&plan);
        let words = self.staging.words();
        let is_warm = binding.is_warm;
        for part in &mut binding.parts {
            progress.go_on(part.writes, call.cancel, || change(&self.written, slots)).map_err(fail)?;
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
            started.map_err(|error| fail(progress.error(error)))?;
            if let Some((op, collective)) = &part.collective {
                let started = collective.enqueue(&self.context, cuda.compute.raw());
                started
                    .map_err(|error| RunError { node: node_of(&plan, *op), error: progress.error(error) })?;
            }
            if let Some(op) = part.host {
                let node = node_of(&plan, op);
                let fail = |error| RunError { node, error: progress.error(error) };
                cuda.compute.wait("running a step").map_err(fail)?;
                let told = self.staging.fault_by_now().map_err(fail)?;
                fault(&plan, told, progress)?;
                let action = self.steps.iter().find(|step| step.op == op).map(|step| &step.action);
                if let Some(Action::Host(action)) = action {
                    let memory = Planned { arena, slots: &binding.slots, words, constants: &self.constants };
                    host.act(op, action, &memory, &mut call, &mut self.printer).map_err(fail)?;
                }
            }
        }
        let outputs = self.staging.download(&|_, root| root_address(arena, &binding.slots, root));
        outputs.map_err(|error| fail(progress.error(error)))?;
        binding.is_warm = true;
        self.binding = Some(binding);
        Ok(OnTheWay::Started(progress))
    }

    /// Puts addresses into all work.
    fn bind(
        &self,
        arena: CUdeviceptr,
        slots: Vec<CUdeviceptr>,
        group: Option<&Arc<Group>>,
    ) -> Result<Binding, OpError> {
        let (context, steps) = (&self.context, self.steps.as_slice());
        let mut collectives =
            group.map(|group| Binder { context, group, steps, begun: FxHashMap::default() });
        let words = self.staging.words();
        let memory = Planned { arena, slots: &slots, words, constants: &self.constants };
        let mut parts = Vec::new();
        for (stretch, functions) in self.stretches.iter().flatten().zip(&self.functions) {
            let works = stretch.works.iter().map(|(op, work)| (*op, work));
            let bound = bind_all(&self.context, works, functions, &memory)?;
            let mut part = Part { bound, host: stretch.host, writes: stretch.writes, ..Part::default() };
            if let (Some(op), Some(collectives)) = (stretch.host, &mut collectives)
                && let Some(bound) = collectives.bind(op, &memory)?
            {
                part.collective = Some((op, bound));
                part.host = None;
            }
            parts.push(part);
        }
        Ok(Binding { arena, slots, parts, is_warm: false })
    }
}

pub(super) fn change(written: &[bool], slots: &mut [Persistent]) {
    for (slot, _) in slots.iter_mut().zip(written).filter(|(_, written)| **written) {
        slot.changed_on_device();
    }
}

pub(super) fn fault(plan: &Plan, words: Fault, progress: Progress) -> Result<(), RunError> {
    let Some((op, error)) = kernels::fault(plan, words) else { return Ok(()) };
    let node = node_of(plan, op);
    Err(RunError { node, error: progress.error(error) })
}

pub(super) fn bind_all<'a>(
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
