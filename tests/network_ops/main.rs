//! The network ops: values against plain loops in f64, gradients against finite differences, the
//! conventions for masked rows, ties, NaN, repeated and wrong indices, and empty tensors.

mod attention;
mod bits;
mod conv;
#[path = "../support/device.rs"]
mod device;
mod empty;
mod gather;
mod losses;
mod norms;
mod pool;
mod refused;
mod softmax;
mod support;
