//! What holds on every device.

pub mod attention;
pub mod bits;
pub mod conv;
pub mod empty;
pub mod gather;
pub mod losses;
pub mod norms;
pub mod pool;
pub mod refused;
pub mod softmax;
pub mod support;
