//! Ops over rows along the last axis, a block of threads for each row: softmax, losses, norms; and batch
//! norm, whose rows are channels.

use std::fmt::Write;

use super::{
    Arg, Kernel, OpError, Tensor, Work,
    call::Call,
    check,
    launch::{element, index_type, locate, with_types},
};
use crate::ir::{DType, Type};

const ROWS: &str = include_str!("rows.cu");
const SOFTMAX: &str = include_str!("softmax.cu");
const CROSS_ENTROPY: &str = include_str!("cross_entropy.cu");
const NORM: &str = include_str!("norm.cu");
const BATCH_NORM: &str = include_str!("batch_norm.cu");

/// Elements that eight threads sum at a time.
const BLOCK: usize = 256;

/// Threads for rows of this length: eight for each block, whole warps.
fn threads(columns: usize) -> u32 {
    (columns.div_ceil(BLOCK).clamp(1, 32) * 8).next_multiple_of(32) as u32
}

/// Rows and columns; a scalar is one row of one element.
fn size(tensor: &Tensor) -> (usize, usize) {
    tensor.shape().split_last().map_or((1, 1), |(&last, lead)| (lead.iter().product(), last))
}

/// The text of a kernel with what it needs to know of its operands.
struct Source<'a> {
    definitions: String,
    types: Vec<(&'a str, &'a str)>,
    /// The largest number of elements that any index reaches.
    reach: usize,
}

impl<'a> Source<'a> {
    fn new(dtype: DType) -> Source<'a> {
        Source { definitions: String::new(), types: vec![("T", element(dtype))], reach: 0 }
    }

    /// `name_at(row, columns)` and `NAME_STRIDE` for rows along the last axis.
    fn rows(mut self, name: &str, tensor: &Tensor) -> Self {
        self.reach = self.reach.max(tensor.reach()).max(tensor.elements());
        let stride = if tensor.is_dense() {
            let _ = writeln!(
                self.definitions,
                "__device__ inline I {name}_at(I row, I columns) {{ return row * columns; }}"
            );
            1
        } else {
            let split = |all: &[usize]| {
                all.split_last().map_or((1, Vec::new()), |(&last, lead)| (last, lead.to_vec()))
            };
            let ((_, sizes), (stride, strides)) = (split(tensor.shape()), split(tensor.strides()));
            self.definitions += &locate(&format!("{name}_row"), &sizes, &strides);
            let _ = writeln!(
                self.definitions,
                "__device__ inline I {name}_at(I row, I) {{ return {name}_row(row); }}"
            );
            stride
        };
        self.stride(name, stride)
    }

    /// `name_at(row)` for one element a row.
    fn elements(mut self, name: &str, tensor: &Tensor) -> Self {
        self.reach = self.reach.max(tensor.reach()).max(tensor.elements());
        self.definitions += &locate(&format!("{name}_at"), tensor.shape(), tensor.strides());
        self
    }

    /// `NAME_STRIDE` for a parameter along the columns.
    fn parameter(self, name: &str, tensor: &Tensor) -> Self {
        let stride = if tensor.is_dense() { 1 } else { tensor.stride(0) };
        self.stride(name, stride)
    }

    fn stride(mut self, name: &str, stride: usize) -> Self {
        let _ = writeln!(self.definitions, "#define {}_STRIDE {stride}", name.to_uppercase());
        self
    }

    fn define(mut self, name: &str, value: &str) -> Self {
        let _ = writeln!(self.definitions, "#define {name} {value}");
        self
    }

    fn ty(mut self, name: &'a str, ty: &'a str) -> Self {
        self.types.push((name, ty));
        self
    }

    fn text(mut self, text: &str) -> String {
        // Loops count in steps of at most this many elements.
        self.types.push(("I", index_type(self.reach.saturating_add(32 * BLOCK))));
        with_types(&self.types, &(self.definitions + ROWS + text))
    }
}

#[derive(Clone, Copy)]
pub(super) enum Softmax {
    Plain,
    Log,
}

pub(super) fn softmax(call: &Call, kind: Softmax) -> Result<Vec<Work>, OpError> {
    let (x, y) = (call.arg(0)?, call.result(0)?);
    let (rows, columns) = size(y);
    if y.elements() == 0 {
        return Ok(Vec::new());
    }
    // The gradient in the same text has a second operand.
    let source = Source::new(y.dtype()).rows("x", x).rows("g", x).rows("y", y).text(SOFTMAX);
    let function = match kind {
        Softmax::Plain => "softmax",
        Softmax::Log => "log_softmax",
    };
    let kernel = Kernel::new(source, function).arg(x).arg(y).size(columns);
    Ok(vec![kernel.blocks(rows, 1, 1, threads(columns))?])
}

pub(super) fn softmax_grad(call: &Call) -> Result<Vec<Work>, OpError> {
    let (y, g, dx) = (call.arg(0)?, call.arg(1)?, call.result(0)?);
    let (rows, columns) = size(dx);
    if dx.elements() == 0 {
        return Ok(Vec::new());
    }
    let source = Source::new(dx.dtype()).rows("x", y).rows("g", g).rows("y", dx).text(SOFTMAX);
    let kernel = Kernel::new(source, "softmax_grad").arg(y).arg(g).arg(dx).size(columns);
    Ok(vec![kernel.blocks(rows, 1, 1, threads(columns))?])
}

pub(super) fn cross_entropy(call: &Call) -> Result<Vec<Work>, OpError> {
    let (x, labels, loss, logs) = (call.arg(0)?, call.arg(1)?, call.result(0)?, call.result(1)?);
    let (rows, columns) = size(x);
    if rows == 0 {
        return Ok(Vec::new());
    }
    // What only the gradient in the same text has is named after something of the same form.
    let source = Source::new(x.dtype())
        .ty("L", element(labels.dtype()))
        .rows("x", x)
        .rows("y", x)
        .elements("label", labels)
        .elements("logs", logs)
        .elements("g", loss)
        .text(CROSS_ENTROPY);
    let mut works = check::indices(call, labels, columns)?;
    let kernel = Kernel::new(source, "cross_entropy").arg(x).arg(labels).arg(loss).arg(logs).size(columns);
    works.push(kernel.blocks(rows, 1, 1, threads(columns))?);
    Ok(works)
}

pub(super) fn cross_entropy_grad(call: &Call) -> Result<Vec<Work>, OpError> {
    let (x, labels, logs, g) = (call.arg(0)?, call.arg(1)?, call.arg(2)?, call.arg(3)?);
    let dx = call.result(0)?;
    let (rows, columns) = size(x);
    if rows == 0 {
        return Ok(Vec::new());
    }
    let mut works = check::indices(call, labels, columns)?;
    if columns == 0 {
        return Ok(works);
    }
    let source = Source::new(x.dtype())
        .ty("L", element(labels.dtype()))
        .rows("x", x)
        .rows("y", dx)
        .elements("label", labels)
        .elements("logs", logs)
        .elements("g", g)
        .text(CROSS_ENTROPY);
    let kernel =
        Kernel::new(source, "cross_entropy_grad").arg(x).arg(labels).arg(logs).arg(g).arg(dx).size(columns);
    works.push(kernel.blocks(rows, 1, 1, threads(columns))?);
    Ok(works)
}

/// Layer norm, or RMS norm, which has neither shift nor mean.
pub(super) fn norm(call: &Call, centred: bool, eps: f64) -> Result<Vec<Work>, OpError> {
    let (x, w, y) = (call.arg(0)?, call.arg(1)?, call.result(0)?);
    let b = if centred { call.arg(2)? } else { w };
    let (mean, rstd) =
        if centred { (call.result(1)?, call.result(2)?) } else { (call.result(1)?, call.result(1)?) };
    let (rows, columns) = size(y);
    if rows == 0 {
        return Ok(Vec::new());
    }
    let source = Source::new(y.dtype())
        .define("CENTRED", if centred { "1" } else { "0" })
        .define("PLUS", "0")
        .rows("x", x)
        .rows("y", y)
        .rows("g", y)
        .rows("dx", y)
        .parameter("w", w)
        .parameter("b", b)
        .elements("mean", mean)
        .elements("rstd", rstd)
        .text(NORM);
    let kernel =
        Kernel::new(source, "norm_rows").args([x, w, b, y, mean, rstd]).size(columns).arg(Arg::F64(eps));
    Ok(vec![kernel.blocks(rows, 1, 1, threads(columns))?])
}

/// Into how many parts the rows are divided for the sums over them, by shape only.
fn parts(rows: usize) -> usize {
    (rows / 32).clamp(1, 128)
}

/// Bytes for the partial sums of dw, and of db where `sums` is 2.
pub(super) fn norm_grad_workspace(args: &[&Type], sums: u64) -> u64 {
    let Some(x) = args.first() else { return 0 };
    let (rows, columns) =
        x.shape().split_last().map_or((1, 1), |(&last, lead)| (lead.iter().product(), last));
    let elements = (parts(rows) as u64).saturating_mul(columns as u64).saturating_mul(sums);
    elements.saturating_mul(x.dtype().accumulator().size() as u64)
}

/// What a norm's gradient does; with `sum`, dx is added to its first tensor, and only the sum is stored, in the
/// second: by the last of the works.
pub(super) fn norm_grad(
    call: &Call,
    centred: bool,
    sum: Option<(&Tensor, &Tensor)>,
) -> Result<Vec<Work>, OpError> {
    let (x, w, mean) = (call.arg(0)?, call.arg(1)?, call.arg(2)?);
    let (rstd, g) = if centred { (call.arg(3)?, call.arg(4)?) } else { (mean, call.arg(3)?) };
    let (dx, dw) = (call.result(0)?, call.result(1)?);
    let db = if centred { call.result(2)? } else { dw };
    let (rows, columns) = size(dx);
    if columns == 0 {
        return Ok(Vec::new());
    }
    let (plus, to) = sum.unwrap_or((dx, dx));
    let source = Source::new(dx.dtype())
        .define("CENTRED", if centred { "1" } else { "0" })
        .define("PLUS", if sum.is_some() { "1" } else { "0" })
        .rows("x", x)
        .rows("y", dx)
        .rows("g", g)
        .rows("dx", dx)
        .parameter("w", w)
        .parameter("b", w)
        .elements("mean", mean)
        .elements("rstd", rstd)
        .text(NORM);
    let source: std::sync::Arc<str> = source.into();
    let parts = parts(rows);
    let sums = if centred { 2 } else { 1 };
    let bytes = parts * columns * sums * dx.dtype().accumulator().size();
    let partial = call.workspace(bytes as u64)?;
    // The sums first: dx may lie over what they read.
    let mut works = vec![
        Kernel::new(source.clone(), "norm_partial")
            .args([x, mean, rstd, g])
            .arg(partial)
            .sizes([columns, rows, parts])
            .blocks(columns.div_ceil(128), parts, 1, 128)?,
        Kernel::new(source.clone(), "norm_sums")
            .arg(partial)
            .args([dw, db])
            .sizes([columns, parts])
            .for_each(columns, 128)?,
    ];
    if rows > 0 {
        let kernel = Kernel::new(source, "norm_grad").args([x, w, mean, rstd, g, plus, to]).size(columns);
        works.push(kernel.blocks(rows, 1, 1, threads(columns))?);
    }
    Ok(works)
}

/// Elements of a channel, channels, elements beside each other.
fn channels(x: &Tensor) -> [usize; 3] {
    let inner: usize = x.shape().iter().skip(2).product();
    [x.dim(0) * inner, x.dim(1), inner]
}

fn batch_norm_source(x: &Tensor) -> String {
    let mut source = Source::new(x.dtype());
    source.reach = x.elements();
    source.text(BATCH_NORM)
}

pub(super) fn batch_norm(call: &Call, eps: f64) -> Result<Vec<Work>, OpError> {
    let x = call.arg(0)?;
    let [count, channels, inner] = channels(x);
    if channels == 0 {
        return Ok(Vec::new());
    }
    let kernel = Kernel::new(batch_norm_source(x), "batch_norm")
        .args(&call.args)
        .args(&call.results)
        .sizes([count, channels, inner.max(1)])
        .arg(Arg::F64(eps));
    Ok(vec![kernel.blocks(channels, 1, 1, threads(count))?])
}

pub(super) fn batch_norm_grad(call: &Call, eps: f64) -> Result<Vec<Work>, OpError> {
    let x = call.arg(0)?;
    let [count, channels, inner] = channels(x);
    if channels == 0 {
        return Ok(Vec::new());
    }
    let kernel = Kernel::new(batch_norm_source(x), "batch_norm_grad")
        .args(&call.args)
        .args(&call.results)
        .sizes([count, channels, inner.max(1)])
        .arg(Arg::F64(eps));
    Ok(vec![kernel.blocks(channels, 1, 1, threads(count))?])
}
