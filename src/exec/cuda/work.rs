//! What one op of a plan does on the device: launches, products, copies, in this order on one stream.

use std::sync::Arc;

use crate::{exec::place::Root, ir::DType};

/// Bytes of the arena or of a persistent tensor. The root is that of the operand's `Place`; for a
/// workspace it is `Root::Arena` of the first byte of `place::workspace`: each root stands for one
/// buffer, which a debug mode puts elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Address {
    pub root: Root,
    /// From the start of the root's bytes.
    pub offset: u64,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Work {
    Launch(Launch),
    Product(Product),
    /// Bytes that do not overlap.
    Copy {
        from: Address,
        to: Address,
        bytes: u64,
    },
    /// Bytes set to zero.
    Zero {
        at: Address,
        bytes: u64,
    },
    /// Bytes of the host, which live as long as the plan.
    Upload {
        bytes: Arc<[u8]>,
        to: Address,
    },
    /// The runtime does this op itself, with the host: a print, a host op, the start or the end of a
    /// collective of several ranks.
    Host,
}

/// The launch of a kernel. Equal sources are compiled once. The runtime compiles `kernels::PRELUDE`
/// followed by the source, with `--fmad=false`.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Launch {
    /// CUDA C, without the prelude that every source begins with.
    pub source: Arc<str>,
    /// An `extern "C"` function of it.
    pub function: Arc<str>,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub args: Vec<Arg>,
}

/// An argument of a kernel.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Arg {
    Address(Address),
    /// A pointer to the scalar page on the device: the seed and the number of the step (`u64` each),
    /// then the values (`double` each).
    Page,
    /// A pointer to four words (`u64`) on the device that are 0 when a step begins: kernels that
    /// meet data they cannot go on with describe the first such case here (see `kernels::fault`).
    Fault,
    I64(i64),
    F64(f64),
    /// A structure of `kernels::TABLE_WORDS` words that begins with these; none is a table.
    Table(Arc<[Arg]>),
}

/// `c = a · b` per matrix of a batch, with a bias and what is added to it, accumulated in f32 (f64 for f64).
/// Matrices are row-major with a leading dimension; a transposed one is stored column-major.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Product {
    pub dtype: DType,
    pub rows: u64,
    pub columns: u64,
    /// The length of the sums.
    pub inner: u64,
    pub batch: u32,
    pub a: Matrix,
    pub b: Matrix,
    pub c: Matrix,
    /// The first element of what is added to the sums, stored as `c` is; it may be `c` itself.
    pub plus: Option<Address>,
    /// What is added to each row of the sums before they are rounded; there is no batch then.
    pub bias: Option<Bias>,
    /// Whether f32 operands may be rounded to TF32.
    pub tf32: bool,
    /// What the product may use of the arena beside its operands.
    pub workspace: Address,
    pub workspace_bytes: u64,
}

impl Product {
    /// The same without a bias: the sums are added to it.
    pub fn spread(mut self) -> Vec<Work> {
        let Some(Bias { mut spread, .. }) = self.bias.take() else { return vec![Work::Product(self)] };
        self.plus = Some(self.c.at);
        spread.push(Work::Product(self));
        spread
    }
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Bias {
    /// Its first element; the others lie behind it without gaps.
    pub at: Address,
    /// Puts the bias into every row of `c`, for a library that does not take it as one.
    pub spread: Vec<Work>,
}

/// A batch of matrices in memory.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Matrix {
    pub at: Address,
    /// Elements from one row (column, if transposed) to the next.
    pub leading: u64,
    pub transposed: bool,
    /// Elements from one matrix of the batch to the next.
    pub stride: u64,
}
