//! The core ops by their values: kernels against closed forms and f64 references, gradients
//! against finite differences, plans against the reference interpreter.

mod arena;
#[path = "cases.rs"]
mod cases;
#[path = "../support/device.rs"]
mod device;
mod errors;
