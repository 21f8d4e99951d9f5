//! The CUDA device: interprets a plan over one device allocation.
//!
//! `kernels` says what each op of a plan is on the device, as a list of `work`; `executable` runs it.
//! Libraries are found at run time (`library`): a machine without CUDA runs the same binary.

mod bind;
mod cache;
mod context;
mod error;
mod executable;
mod guarded;
mod hazards;
mod host;
mod inline;
mod kernels;
mod library;
mod memory;
mod merge;
mod module;
mod prepare;
mod product;
mod session;
mod sources;
mod spread;
mod staging;
mod stats;
mod work;

pub use context::{DeviceInfo, devices, usable};
pub use executable::Executable;
pub(crate) use kernels::workspace;
pub use library::Unavailable;
pub use memory::Block;
pub use session::Cuda;
pub use sources::{COMPILE_OPTIONS, Source, sources};
pub(crate) use staging::beside_bytes;
pub use stats::Stats;
