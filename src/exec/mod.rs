//! Devices: what runs a plan.

pub mod cpu;
mod tensor;

pub use tensor::{Element, Tensor, TensorError};
