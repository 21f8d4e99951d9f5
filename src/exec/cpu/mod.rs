//! The CPU interpreter.

mod call;
pub(crate) mod nn;

pub use call::{Call, Operand, ScalarPage};
