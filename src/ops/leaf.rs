//! Ops without operands: inputs, constants, state, random numbers.

use std::sync::Arc;

use super::Number;
use crate::ir::{DType, SlotId, Type};

/// The step's tensor argument `index` (see [`crate::ir::Graph::inputs`]).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Input {
    pub index: u32,
}

/// A scalar constant. Larger constants are broadcasts of one, or a [`Literal`].
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Const {
    pub dtype: DType,
    pub value: Number,
}

/// A small tensor written out in the source, as little-endian bytes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Literal {
    pub ty: Type,
    pub data: Arc<[u8]>,
}

/// 0, 1, 2, … along `axis`, the same along the others. Fuses with element-wise ops.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Iota {
    pub ty: Type,
    pub axis: usize,
}

/// The entry `index` of the scalar page, as a 0-d value of this type (see
/// [`crate::ir::Graph::scalars`]).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Scalar {
    pub index: u32,
    pub dtype: DType,
}

/// The value that a persistent tensor has at the start of the step.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Read {
    pub slot: SlotId,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Distribution {
    /// In [0, 1), 24 random bits (53 for f64).
    Uniform,
    /// Mean 0, standard deviation 1 (Box–Muller).
    Normal,
    /// Random whole numbers, all values of the type alike.
    Bits,
}

/// Random numbers from a counter-based generator (Philox 4×32-10: Salmon et al., SC 2011), keyed by
/// the session's seed, `key` (a hash of the path of calls, with ordinals and iterations), the
/// number of the step and the element's index. A recompute has its original's key, so it gets the
/// same bits. Fuses with element-wise ops.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Random {
    pub ty: Type,
    pub distribution: Distribution,
    pub key: u64,
    /// False for values that must not change from step to step (initialisation).
    pub per_step: bool,
}

/// An op known by its memory only: it cannot run. For graphs from elsewhere.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Opaque {
    pub name: Arc<str>,
    pub results: Vec<Type>,
    /// Pairs (result, operand) that may share memory.
    pub overwrites: Vec<(usize, usize)>,
    pub workspace: u64,
}

crate::ops::scaffold!(Input, Const, Literal, Iota, Scalar, Read, Random, Opaque);
