//! The CUDA device: interprets a plan over one device allocation.

mod kernels;
mod work;

pub(crate) use kernels::workspace;
