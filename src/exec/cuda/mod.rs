//! The CUDA device: interprets a plan over one device allocation.

mod kernels;
mod sources;
mod work;

pub(crate) use kernels::workspace;
pub use sources::{COMPILE_OPTIONS, Source, sources};
