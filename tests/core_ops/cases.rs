//! What holds on every device.

pub mod elementwise;
pub mod gradients;
pub mod harness;
pub mod matmul;
pub mod movement;
pub mod planned;
pub mod random;
pub mod reduce;
pub mod updates;
