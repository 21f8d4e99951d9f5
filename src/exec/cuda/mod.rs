//! The CUDA device: interprets a plan over one device allocation.

mod work;
