//! Devices: what runs a plan.

pub mod comm;
pub mod cpu;
pub mod cuda;
mod place;
mod tensor;

pub use tensor::{Element, Tensor, TensorError};
