//! The ops of the IR. Each op states in one place its shape rule, its gradient, what it does to
//! memory, its cost and its CPU kernel; [`Op`] is the closed list of them.
//!
//! To add an op: write a struct that implements [`Operation`] in the file of its family and add
//! one line to the `ops!` list below.

use std::fmt;

use crate::{
    exec::cpu::Call,
    guard::{self, OutOfMemory},
    ir::{DType, Graph, NodeId, TooLarge, Type, ValueId},
};

mod attention;
mod batch_norm;
mod build;
mod collective;
mod conv;
mod cross_entropy;
mod effect;
mod elementwise;
mod gather;
mod host;
mod leaf;
mod matmul;
mod movement;
mod network;
mod norm;
mod pool;
mod reduce;
mod softmax;
mod stop_grad;
mod view;

pub use attention::{Attention, AttentionGrad};
pub use batch_norm::{BatchNorm, BatchNormGrad};
pub use collective::{CollectiveDone, CollectiveKind, CollectiveStart};
pub use conv::{Conv2d, Conv2dGradInput, Conv2dGradWeight, ConvShape};
pub use cross_entropy::{CrossEntropy, CrossEntropyGrad};
pub use effect::{Barrier, BarrierKind, Print, Write};
pub use elementwise::{Binary, Cast, Select, Unary};
pub use gather::{Gather, ScatterAdd};
pub(crate) use host::{HostGradient, float_types, panic_text, wrong_types};
pub use host::{HostKernel, HostOp};
pub use leaf::{Const, Distribution, Input, Iota, Literal, Opaque, Random, Read, Scalar};
pub use matmul::MatMul;
pub use movement::{Concat, Copy, Insert, Pad};
pub use norm::{LayerNorm, LayerNormGrad, RmsNorm, RmsNormGrad};
pub use pool::{AvgPool2d, AvgPool2dGrad, MaxPool2d, MaxPool2dGather, MaxPool2dGrad, PoolShape};
pub use reduce::{ArgReduce, Reduce, ReduceKind};
pub use softmax::{LogSoftmax, Softmax, SoftmaxGrad};
pub use stop_grad::StopGrad;
pub use view::{Broadcast, Layout, Reshape, Slice, SliceRange, Transpose};

/// Why an op cannot be applied to its operands. The message names the op and every shape, and
/// stands alone: lower case, no full stop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpError {
    pub message: String,
    pub help: Option<String>,
    pub cause: Cause,
}

/// What an [`OpError`] is due to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Cause {
    /// The program, or a fault of `tg`.
    #[default]
    Program,
    /// A limit of the engine, or memory that the system does not have.
    Limit,
    /// The host asked to stop.
    Cancelled,
    /// Another rank failed, ended or did not come.
    OtherRank,
    /// Ranks called different collectives.
    RanksDisagree,
}

impl OpError {
    pub fn new(message: impl Into<String>) -> Self {
        OpError { message: message.into(), help: None, cause: Cause::Program }
    }

    /// The work was stopped by the host.
    pub fn cancelled() -> Self {
        OpError { cause: Cause::Cancelled, ..OpError::new("the work was stopped") }
    }

    /// An error where the host has asked this thread to stop.
    pub(crate) fn if_cancelled() -> Result<(), OpError> {
        if guard::cancelled() { Err(OpError::cancelled()) } else { Ok(()) }
    }

    pub fn help(mut self, text: impl Into<String>) -> Self {
        self.help = Some(text.into());
        self
    }
}

impl fmt::Display for OpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for OpError {}

impl From<OutOfMemory> for OpError {
    fn from(error: OutOfMemory) -> Self {
        OpError { cause: Cause::Limit, ..OpError::new(error.to_string()) }
    }
}

impl From<TooLarge> for OpError {
    fn from(error: TooLarge) -> Self {
        OpError::new(error.to_string())
    }
}

/// What a gradient rule sees of the node it differentiates.
pub struct GradNode<'a> {
    pub node: NodeId,
    pub args: &'a [ValueId],
    pub results: &'a [ValueId],
    /// The cotangent of each result; `None` where nothing depends on it. Not all are `None`.
    pub cotangents: &'a [Option<ValueId>],
    /// Whether anybody asks for the gradient of each operand: rules build no others.
    pub wanted: &'a [bool],
}

impl GradNode<'_> {
    /// The `k`-th operand.
    pub fn arg(&self, k: usize) -> Result<ValueId, OpError> {
        self.args
            .get(k)
            .copied()
            .ok_or_else(|| OpError::new("internal: a gradient rule asked for a missing operand"))
    }

    pub fn result(&self, k: usize) -> Result<ValueId, OpError> {
        self.results
            .get(k)
            .copied()
            .ok_or_else(|| OpError::new("internal: a gradient rule asked for a missing result"))
    }

    pub fn cotangent(&self, k: usize) -> Option<ValueId> {
        self.cotangents.get(k).copied().flatten()
    }

    pub fn wants(&self, k: usize) -> bool {
        self.wanted.get(k).copied().unwrap_or(false)
    }
}

/// The gradient of an op.
pub enum Gradient {
    /// One cotangent per operand; `None` where it is zero or not wanted.
    Args(Vec<Option<ValueId>>),
    /// Differentiate what [`Operation::decompose`] builds instead.
    Decompose,
    /// The op has no gradient and lets none pass (comparisons, `argmax`, random numbers).
    Zero,
}

/// Which results share the buffer of an operand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Alias {
    /// None: each result has a buffer of its own.
    Fresh,
    /// Result 0 is a view of operand 0, with the layout that [`Operation::view`] gives.
    View,
    /// Result `k` *is* operand `k` (a barrier).
    Each,
}

/// What an op does to memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Memory {
    pub alias: Alias,
    /// Pairs (result, operand): the kernel may write the result over the operand, where that is
    /// dense, of the same size and dead afterwards.
    pub overwrites: Vec<(usize, usize)>,
    /// The CPU kernel accepts operands with any strides. Others get dense copies.
    pub strided: bool,
    /// Has an effect beside its results, so it is never removed or merged.
    pub effect: bool,
}

impl Memory {
    pub const FRESH: Memory =
        Memory { alias: Alias::Fresh, overwrites: Vec::new(), strided: false, effect: false };
    pub const VIEW: Memory =
        Memory { alias: Alias::View, overwrites: Vec::new(), strided: true, effect: false };
}

/// An op: everything that the compiler and the CPU interpreter need to know of it.
pub trait Operation {
    /// As in the text form of the IR.
    fn name(&self) -> &'static str;

    /// The types of the results for operands of these types.
    fn infer(&self, graph: &Graph, args: &[&Type]) -> Result<Vec<Type>, OpError>;

    /// Builds the cotangents of the operands.
    fn grad(&self, graph: &mut Graph, at: &GradNode<'_>) -> Result<Gradient, OpError>;

    /// The same results from simpler ops, for ops whose gradient (or second gradient) is taken
    /// through them.
    fn decompose(&self, _graph: &mut Graph, _args: &[ValueId]) -> Result<Vec<ValueId>, OpError> {
        Err(OpError::new(format!("internal: `{}` has no composed form", self.name())))
    }

    fn memory(&self) -> Memory {
        Memory::FRESH
    }

    /// For views: the layout of the result, given that of the operand; `None` where no strides
    /// express it and a copy is needed.
    fn view(&self, _operand: &Layout, _operand_type: &Type, _result_type: &Type) -> Option<Layout> {
        None
    }

    /// Floating-point operations of one run.
    fn flops(&self, _args: &[&Type], results: &[&Type]) -> f64 {
        results.iter().map(|t| t.elements() as f64).sum()
    }

    /// Scratch bytes that the CPU kernel needs from the arena.
    fn workspace(&self, _args: &[&Type], _results: &[&Type]) -> u64 {
        0
    }

    /// Runs the op. Ops without a kernel (views, barriers, fused element-wise ops) are never
    /// called. Errors are for data that no check could see (an index out of range).
    fn cpu(&self, _call: &Call<'_>) -> Result<(), OpError> {
        Err(OpError::new(format!("`{}` cannot run on the CPU", self.name())))
    }

    /// The attributes as in the text form: `axes=[0, 1]`. Empty for none. [`Op::parse`] reads
    /// the same text.
    fn attributes(&self) -> String {
        String::new()
    }
}

macro_rules! ops {
    ($($op:ident),* $(,)?) => {
        /// One op with its attributes.
        #[derive(Debug, Clone, PartialEq, Eq, Hash)]
        pub enum Op {
            $($op($op)),*
        }

        impl Op {
            fn operation(&self) -> &(dyn Operation + 'static) {
                match self {
                    $(Op::$op(op) => op),*
                }
            }
        }

        $(impl From<$op> for Op {
            fn from(op: $op) -> Op {
                Op::$op(op)
            }
        })*
    };
}

ops! {
    // Leaves.
    Input, Const, Literal, Iota, Scalar, Read, Random, Opaque,
    // Element by element.
    Unary, Binary, Select, Cast,
    // Views and movement.
    Reshape, Transpose, Broadcast, Slice, Copy, Concat, Pad, Insert, Gather, ScatterAdd, StopGrad,
    // Sums and products.
    Reduce, ArgReduce, MatMul,
    // Networks.
    Softmax, SoftmaxGrad, LogSoftmax, CrossEntropy, CrossEntropyGrad,
    LayerNorm, LayerNormGrad, RmsNorm, RmsNormGrad, BatchNorm, BatchNormGrad,
    Conv2d, Conv2dGradInput, Conv2dGradWeight,
    MaxPool2d, MaxPool2dGrad, MaxPool2dGather, AvgPool2d, AvgPool2dGrad,
    Attention, AttentionGrad,
    // Order and effects.
    Barrier, Write, Print, CollectiveStart, CollectiveDone,
}

impl Op {
    /// Whether the op makes each element of its result of the elements at that place in its operands.
    pub fn is_elementwise(&self) -> bool {
        matches!(self, Op::Unary(_) | Op::Binary(_) | Op::Select(_) | Op::Cast(_) | Op::Copy(_))
    }
}

impl std::ops::Deref for Op {
    type Target = dyn Operation;

    fn deref(&self) -> &(dyn Operation + 'static) {
        self.operation()
    }
}

/// A constant's bits, so that ops can be compared and hashed. Floats are stored as `f64`, whole
/// numbers and booleans as `i64`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Number {
    Float(u64),
    Int(i64),
}

impl Number {
    pub fn float(value: f64) -> Self {
        Number::Float(value.to_bits())
    }

    pub fn as_f64(self) -> f64 {
        match self {
            Number::Float(bits) => f64::from_bits(bits),
            Number::Int(value) => value as f64,
        }
    }

    pub fn as_i64(self) -> i64 {
        match self {
            Number::Float(bits) => f64::from_bits(bits) as i64,
            Number::Int(value) => value,
        }
    }
}

/// As in the text form: floats always with a point, an exponent or as `inf`, `NaN`; a NaN with other
/// bits than the usual ones as `NaN(0x…)`.
impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Number::Int(value) => write!(f, "{value}"),
            Number::Float(bits) => {
                let value = f64::from_bits(bits);
                if value.is_nan() && bits != f64::NAN.to_bits() {
                    write!(f, "NaN(0x{bits:016x})")
                } else {
                    write!(f, "{value:?}")
                }
            }
        }
    }
}

/// Checks the number of operands; the message is for faults of `tg`, not of users.
pub(crate) fn expect_args<'a, const N: usize>(
    name: &str,
    args: &[&'a Type],
) -> Result<[&'a Type; N], OpError> {
    args.try_into()
        .map_err(|_| OpError::new(format!("internal: `{name}` takes {N} operands, got {}", args.len())))
}

/// Requires a floating-point operand.
pub(crate) fn expect_float(name: &str, ty: &Type) -> Result<DType, OpError> {
    if ty.dtype().is_float() {
        Ok(ty.dtype())
    } else {
        Err(OpError::new(format!("`{name}` needs floating-point values, got {ty}"))
            .help(format!("convert it first: `f32(x)` makes {}", ty.with_dtype(DType::F32)?)))
    }
}
