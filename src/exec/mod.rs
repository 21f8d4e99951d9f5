//! Devices: what runs a plan.

pub mod comm;
pub mod cpu;
mod place;
mod tensor;

pub use tensor::{Element, Tensor, TensorError};
