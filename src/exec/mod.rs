//! Devices: what runs a plan.

pub mod comm;
pub mod cpu;
pub mod cuda;
mod device;
mod persistent;
mod place;
mod run;
mod runner;
mod tensor;

pub use device::{Device, Missing, UnknownDevice};
pub use persistent::{Persistent, on_host};
pub use runner::{Call, Prepared, Runner};
pub use tensor::{Element, Tensor, TensorError};
