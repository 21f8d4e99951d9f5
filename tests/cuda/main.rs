//! Conformance of the CUDA device: the cases that hold on the CPU, on the software device of
//! `tests/softdevice`, or on a real one with `TG_TEST_REAL_GPU=1`.
//!
//! The tests of ops, of gradients and of built-in functions are those of the CPU: the same files, with
//! another `device`.

mod collectives;
#[path = "../core_ops/cases.rs"]
mod core_ops;
#[path = "../support/cuda_device.rs"]
mod device;
mod devices;
mod examples;
mod flights;
#[path = "../support/folder.rs"]
mod folder;
mod launches;
#[path = "../network_ops/cases.rs"]
mod network_ops;
#[path = "../support/programs.rs"]
mod programs;
mod script;
mod sizes;
#[path = "../tensor_functions.rs"]
mod tensor_functions;
mod training;
