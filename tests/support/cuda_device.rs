//! The device of the conformance tests: CUDA, by default in software. What `tests/support/device.rs` is for
//! the CPU.
//!
//! Every graph runs twice when it is first seen: in the places of its plan, and with every buffer between
//! guard zones in memory of its own that is poisoned when it is freed. Both must give the same bits. From
//! then on a recorded step is replayed.

// Every test file uses a part of it.
#![allow(dead_code)]

use std::{
    cell::RefCell,
    sync::{Arc, Mutex, atomic::AtomicBool},
};

pub use tg::exec::cpu::eval as reference;
use tg::{
    exec::{
        Call, Device, Persistent, Prepared, Runner, Tensor,
        comm::{Alone, Link},
        cpu::{Printer, Run, RunError, ScalarPage},
    },
    ir::{DType, Graph, NodeId},
    lower::PlanOptions,
    ops::OpError,
    plan::{Plan, Target},
};

#[path = "softdevice.rs"]
pub mod softdevice;

/// Set to 1, the tests run on the first real device.
pub const REAL_VARIABLE: &str = "TG_TEST_REAL_GPU";

/// Whether there is a device to test; says so where there is none. Without one, tests run on the CPU: they
/// hold there, too.
pub fn present() -> bool {
    static FOUND: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
    *FOUND.get_or_init(|| {
        if std::env::var_os(REAL_VARIABLE).is_some_and(|value| value == "1") {
            return true;
        }
        softdevice::load()
    })
}

/// What one thread of the tests uses of the device.
struct Bench {
    planned: Runner,
    checked: Runner,
    /// The graph that ran last: differences evaluate one graph many times.
    last: Option<(Graph, Arc<Plan>, Resident)>,
}

fn open() -> Runner {
    let device = if present() { Device::Cuda(0) } else { Device::Cpu };
    Runner::open(device, 0, u64::MAX).expect("the device opens")
}

impl Bench {
    fn new() -> Bench {
        let mut checked = open();
        if let Runner::Cuda(cuda) = &mut checked {
            cuda.set_checks(true);
        }
        Bench { planned: open(), checked, last: None }
    }
}

thread_local! {
    static BENCH: RefCell<Option<Bench>> = const { RefCell::new(None) };
}

fn with_bench<T>(work: impl FnOnce(&mut Bench) -> T) -> T {
    BENCH.with(|bench| {
        // Not held while something panics: another test of this thread starts afresh.
        let mut own = bench.take().unwrap_or_else(Bench::new);
        let result = work(&mut own);
        bench.replace(Some(own));
        result
    })
}

/// The plan of a graph for the device.
pub fn planned(graph: &Graph) -> Result<Arc<Plan>, OpError> {
    let target = if present() { Target::Cuda } else { Target::Cpu };
    let options = PlanOptions { target, ..PlanOptions::default() };
    Ok(Arc::new(tg::lower::plan(graph, "test", &options)?))
}

/// The persistent tensors of a step between its runs. A recorded step has their addresses, so it is
/// replayed only where they stay.
#[derive(Default)]
struct Kept(Vec<Persistent>);

impl Kept {
    /// Those that hold the caller's values; what the caller left alone stays where it is.
    fn with(&mut self, slots: &[Tensor]) -> &mut [Persistent] {
        if self.0.len() != slots.len() {
            self.0 = slots.iter().cloned().map(Persistent::from).collect();
        }
        for (kept, slot) in self.0.iter_mut().zip(slots) {
            if !kept.host().is_ok_and(|value| value == *slot) {
                kept.set(slot.clone());
            }
        }
        &mut self.0
    }
}

/// A step that is prepared for a device, and what it keeps there.
struct Resident {
    prepared: Prepared,
    kept: Kept,
}

impl Resident {
    fn new(runner: &mut Runner, plan: &Arc<Plan>) -> Result<Resident, OpError> {
        Ok(Resident { prepared: runner.prepare(Arc::clone(plan))?, kept: Kept::default() })
    }

    fn run(
        &mut self,
        runner: &mut Runner,
        slots: &mut [Tensor],
        inputs: &[Tensor],
        page: &ScalarPage,
        cancel: &AtomicBool,
        printer: Printer,
    ) -> Result<Run, RunError> {
        let persistent = self.kept.with(slots);
        let link = &mut Link { comm: &mut Alone, place: &|_, _| String::new() };
        let run = runner.run(&mut self.prepared, persistent, Call { inputs, page, cancel, link, printer });
        for (slot, persistent) in slots.iter_mut().zip(persistent) {
            *slot = persistent.host().expect("a persistent tensor comes back");
        }
        run
    }
}

fn silent() -> Printer {
    Box::new(|_, _| {})
}

/// Runs a graph on the device.
pub fn eval(
    graph: &Graph,
    slots: &mut [Tensor],
    inputs: &[Tensor],
    page: &ScalarPage,
) -> Result<Vec<Tensor>, RunError> {
    with_bench(|bench| {
        let fail = |error| RunError { node: NodeId(0), error };
        let go = AtomicBool::new(false);
        let mut checked = None;
        if bench.last.as_ref().is_none_or(|(last, ..)| last != graph) {
            bench.last = None;
            let plan = planned(graph).map_err(fail)?;
            let mut guarded = Resident::new(&mut bench.checked, &plan).map_err(fail)?;
            let mut own = slots.to_vec();
            let run = guarded.run(&mut bench.checked, &mut own, inputs, page, &go, silent())?;
            checked = Some((run.outputs, own));
            let resident = Resident::new(&mut bench.planned, &plan).map_err(fail)?;
            bench.last = Some((graph.clone(), plan, resident));
        }
        let Some((_, plan, resident)) = &mut bench.last else { unreachable!("made above") };
        let run = resident.run(&mut bench.planned, slots, inputs, page, &go, silent())?;
        assert_eq!(run.high_water_bytes, plan.schedule.arena_bytes, "bytes of the arena that a run uses");
        if let Some((outputs, own)) = checked {
            assert!(outputs == run.outputs && own == slots, "guarded memory gives other bits");
        }
        Ok(run.outputs)
    })
}

/// The size of what all steps of a test share; here, each thread has its own.
pub struct Arena;

impl Arena {
    pub fn new(_limit: u64) -> Arena {
        Arena
    }

    pub fn bytes(&self) -> u64 {
        with_bench(|bench| bench.planned.arena_bytes())
    }
}

/// A plan that is prepared for the device.
pub struct Executable {
    plan: Arc<Plan>,
    resident: Resident,
    printer: Arc<Mutex<Option<Printer>>>,
}

impl Executable {
    pub fn new(plan: Arc<Plan>) -> Result<Executable, OpError> {
        let resident = with_bench(|bench| Resident::new(&mut bench.planned, &plan))?;
        Ok(Executable { plan, resident, printer: Arc::default() })
    }

    pub fn plan(&self) -> &Arc<Plan> {
        &self.plan
    }

    pub fn set_printer(&mut self, printer: Option<Printer>) {
        *self.printer.lock().unwrap() = printer;
    }

    pub fn stats(&self) -> Option<tg::exec::cuda::Stats> {
        self.resident.prepared.stats()
    }

    pub fn run(
        &mut self,
        _arena: &mut Arena,
        slots: &mut [Tensor],
        inputs: &[Tensor],
        page: &ScalarPage,
        cancel: &AtomicBool,
    ) -> Result<Run, RunError> {
        let printer = Arc::clone(&self.printer);
        let show: Printer = Box::new(move |label, value| {
            if let Some(printer) = &mut *printer.lock().unwrap() {
                printer(label, value);
            }
        });
        with_bench(|bench| self.resident.run(&mut bench.planned, slots, inputs, page, cancel, show))
    }
}

/// The plan of a graph for the device, prepared.
pub fn executable(graph: &Graph) -> Executable {
    Executable::new(planned(graph).expect("the graph can be planned")).expect("the plan is sound")
}

/// How far a result may be from that of the reference interpreter, relative to the largest element. Both
/// round after every op; what differs are the orders of sums and the functions of f64.
fn tolerance(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => 1e-12,
        DType::F32 => 2e-5,
        DType::F16 => 4e-3,
        DType::BF16 => 3.2e-2,
        _ => 0.0,
    }
}

/// Whether a result is what the reference interpreter gives: whole numbers exactly, others nearly.
pub fn agrees(expected: &Tensor, found: &Tensor) -> bool {
    if expected.ty() != found.ty() {
        return false;
    }
    let count = expected.ty().elements();
    let element = |tensor: &Tensor, k| tensor.get_f64(k).expect("an element");
    let scale = (0..count).map(|k| element(expected, k).abs()).filter(|x| x.is_finite()).fold(1e-3, f64::max);
    (0..count).all(|k| {
        let (a, b) = (element(expected, k), element(found, k));
        let equal = a == b || a.is_nan() && b.is_nan();
        equal || (a - b).abs() <= tolerance(expected.dtype()) * scale
    })
}
