//! The device whose kernels the tests of ops run on: the CPU. `tests/cuda/main.rs` runs the same tests on
//! another one, with the same names.

// Every test file uses a part of it.
#![allow(dead_code, unused_imports)]

pub use tg::exec::cpu::{Arena, Executable, eval};
use tg::exec::{Tensor, cpu};
use tg::ir::Graph;

/// The plan of a graph, prepared for the device.
pub fn executable(graph: &Graph) -> Executable {
    let plan =
        tg::lower::plan(graph, "test", &tg::lower::PlanOptions::default()).expect("the graph can be planned");
    let mut executable = Executable::new(std::sync::Arc::new(plan)).expect("the plan is sound");
    executable.set_poison(true);
    executable
}

/// Whether a result is what the reference interpreter gives: here, the same bits.
pub fn agrees(expected: &Tensor, found: &Tensor) -> bool {
    expected == found
}

/// The reference interpreter.
pub use cpu::eval as reference;
