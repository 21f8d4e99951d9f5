//! The built-in tensor functions and operators: from operands to nodes of a graph.
//!
//! What [`crate::ops`] asks for is strict (one dtype, one shape); what users write is not. This
//! module lies in between: it settles dtypes ([`promote`]), makes broadcasting explicit, counts
//! axes from the end, and writes the errors of both. It knows graphs and numbers, and nothing of
//! the evaluator's values.

mod arithmetic;
mod axes;
mod broadcast;
mod cast;
mod collective;
mod create;
mod elementwise;
mod function;
mod index;
mod matmul;
mod network;
mod number;
mod pool;
mod promote;
mod reduce;
mod rows;
mod shape;

use std::fmt;

pub use arithmetic::{binary, unary};
pub use collective::is_collective;
pub use function::{Arg, Default, Function, Kind, Nested, Param, Results, find, functions};
pub use index::{Index, index};
pub use number::fold_binary;
pub use promote::{constant, promote};
pub(super) use reduce::root;

use crate::ir::{Graph, ValueId};

/// A number that is known while the script is read.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Number {
    Int(i64),
    Float(f64),
    Bool(bool),
}

impl Number {
    /// The value as a float; booleans are 0 and 1.
    pub fn as_f64(self) -> f64 {
        match self {
            Number::Int(value) => value as f64,
            Number::Float(value) => value,
            Number::Bool(value) => f64::from(u8::from(value)),
        }
    }
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Number::Int(value) => write!(f, "{value}"),
            Number::Float(value) => write!(f, "{value:?}"),
            Number::Bool(value) => write!(f, "{value}"),
        }
    }
}

/// What an operator or a function is applied to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Operand {
    /// A value of the graph. A *weak* one is a scalar known only at run time (a learning rate, a
    /// step counter): `f64` or `bool`, it takes the dtype of the tensor it meets.
    Tensor { value: ValueId, weak: bool },
    /// A literal or another compile-time number; weak too.
    Number(Number),
}

impl Operand {
    /// A tensor with a dtype of its own.
    pub fn tensor(value: ValueId) -> Self {
        Operand::Tensor { value, weak: false }
    }

    pub fn int(value: i64) -> Self {
        Operand::Number(Number::Int(value))
    }

    pub fn float(value: f64) -> Self {
        Operand::Number(Number::Float(value))
    }

    pub fn bool(value: bool) -> Self {
        Operand::Number(Number::Bool(value))
    }

    /// The sizes of its axes; none for numbers.
    pub fn shape(self, graph: &Graph) -> &[usize] {
        match self {
            Operand::Tensor { value, .. } => graph.ty(value).shape(),
            Operand::Number(_) => &[],
        }
    }

    /// As messages name it: `f32[2, 3]`, `0.5`, `f64 (a run-time number)`.
    pub fn describe(self, graph: &Graph) -> String {
        match self {
            Operand::Tensor { value, weak: false } => graph.ty(value).to_string(),
            Operand::Tensor { value, weak: true } => format!("{} (a run-time number)", graph.ty(value)),
            Operand::Number(number) => format!("`{number}`"),
        }
    }
}
