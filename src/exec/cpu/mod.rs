//! The CPU interpreter.

mod call;

pub use call::{Call, Operand, ScalarPage};
