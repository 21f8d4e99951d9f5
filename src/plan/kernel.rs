//! What one op of the schedule graph does, independent of the device.

use crate::{
    ir::{DType, NodeId, Type},
    ops::{Binary, Distribution, Layout, Number, Unary},
    schedule::BufferId,
};

/// A tensor in a buffer.
#[derive(Debug, Clone, PartialEq)]
pub struct Access {
    pub buffer: BufferId,
    pub ty: Type,
    pub layout: Layout,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Kernel {
    /// The kernel of one IR node.
    Node { node: NodeId, args: Vec<Access>, results: Vec<Access> },
    /// A fused group of element-wise nodes.
    Elementwise(Elementwise),
    /// Commits a new value to a persistent tensor (both dense).
    Copy { from: Access, to: Access },
    /// Waits for a collective: what it reads and makes is alive until here.
    Wait { operands: Vec<Access> },
    /// A barrier: order only.
    Nothing,
}

/// Index of an [`Instr`] in its program.
pub type Reg = u32;

/// A program run for every index of `shape`. Each instruction defines the register of its own
/// position; operands are earlier ones. Every instruction rounds to its dtype.
#[derive(Debug, Clone, PartialEq)]
pub struct Elementwise {
    pub shape: Box<[usize]>,
    pub instrs: Vec<Instr>,
    /// Dtype of each register.
    pub dtypes: Vec<DType>,
    /// Layouts have the rank of `shape` (strides of 0 where they repeat).
    pub inputs: Vec<Access>,
    /// What is stored where: dense, each in a buffer of its own. An output may lie exactly over an
    /// input with the same layout; it is stored only after that element was loaded.
    pub outputs: Vec<(Reg, Access)>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Instr {
    /// An element of `inputs[k]`.
    Load(u32),
    Const(Number),
    /// An entry of the scalar page, converted to the register's dtype.
    Scalar(u32),
    /// The index along this axis of `shape`, plus `start`, times `step`.
    Iota {
        axis: u32,
        start: u64,
        step: u64,
    },
    /// See [`crate::ops::Random`]; the element's index is the linear one in `shape`.
    Random {
        distribution: Distribution,
        key: u64,
        per_step: bool,
    },
    Unary(Unary, Reg),
    Binary(Binary, Reg, Reg),
    /// condition, if true, if false
    Select(Reg, Reg, Reg),
    Cast(Reg),
}
