//! The network ops: values against plain loops in f64, gradients against finite differences, the
//! conventions for masked rows, ties, NaN, repeated and wrong indices, and empty tensors.

#[path = "cases.rs"]
mod cases;
#[path = "../support/device.rs"]
mod device;
