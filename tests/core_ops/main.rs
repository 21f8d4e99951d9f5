//! The core ops by their values: kernels against closed forms and f64 references, gradients
//! against finite differences, plans against the reference interpreter.

mod arena;
#[path = "../support/device.rs"]
mod device;
mod elementwise;
mod errors;
mod gradients;
mod harness;
mod matmul;
mod movement;
mod planned;
mod random;
mod reduce;
mod updates;
