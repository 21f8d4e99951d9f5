//! Convolution and its gradients, as products of tiles whose columns are looked up where the images lie.

use std::{fmt::Write, sync::Arc};

use super::{
    Kernel, OpError, Tensor, Work,
    call::Call,
    launch::{THREADS, element, index_type, with_types},
    movement,
    product::TILE,
};
use crate::{
    ir::{DType, Type},
    ops::ConvShape,
};

const TEXT: &str = include_str!("conv.cu");

/// Tiles that keep any device busy: sums are divided only where there are fewer.
const TILES: usize = 256;

/// Sums over fewer terms than this are not divided.
const SEGMENT: usize = 1024;

/// The sizes of a convolution.
struct Sizes {
    shape: ConvShape,
    images: usize,
    /// Channels of a group.
    inputs: usize,
    outputs: usize,
    kernel: (usize, usize),
    input: (usize, usize),
    output: (usize, usize),
}

impl Sizes {
    /// Of [n, c, h, w], [o, c / groups, kh, kw] and [n, o, h', w'].
    fn new(shape: ConvShape, x: &Type, weight: &Type, y: &Type) -> Sizes {
        let at = |ty: &Type, k: usize| ty.shape().get(k).copied().unwrap_or(0);
        Sizes {
            shape,
            images: at(y, 0),
            inputs: at(weight, 1),
            outputs: at(weight, 0) / shape.groups.max(1),
            kernel: (at(weight, 2), at(weight, 3)),
            input: (at(x, 2), at(x, 3)),
            output: (at(y, 2), at(y, 3)),
        }
    }

    fn terms(&self) -> usize {
        self.inputs.saturating_mul(self.kernel.0).saturating_mul(self.kernel.1)
    }

    fn plane(&self) -> usize {
        self.input.0.saturating_mul(self.input.1)
    }

    fn pixels(&self) -> usize {
        self.output.0.saturating_mul(self.output.1)
    }

    fn weights(&self) -> usize {
        self.shape.groups.saturating_mul(self.outputs).saturating_mul(self.terms())
    }

    /// Into how many segments the pixels of all images are divided for the weights' gradient: with their
    /// sums there are no more than `TILES` tiles.
    fn segments(&self, dtype: DType) -> usize {
        let side = 16 * micro(dtype);
        let tiles = self.outputs.div_ceil(side) * self.terms().div_ceil(side);
        let wanted = TILES / tiles.saturating_mul(self.shape.groups).max(1);
        wanted.min(self.images.saturating_mul(self.pixels()) / SEGMENT).clamp(1, 64)
    }

    /// Blocks of tiles with this many rows and columns in each group.
    fn blocks(&self, dtype: DType, rows: usize, columns: usize) -> usize {
        let side = 16 * micro(dtype);
        rows.div_ceil(side).saturating_mul(columns.div_ceil(side)).saturating_mul(self.shape.groups)
    }

    fn source(&self, dtype: DType, bias: bool) -> Arc<str> {
        let mut text = format!("#define MICRO {}\n#define HAS_BIAS {bias}\n", micro(dtype));
        let pairs = [
            ("KERNEL", self.kernel),
            ("STRIDE", self.shape.stride),
            ("PADDING", self.shape.padding),
            ("DILATION", self.shape.dilation),
            ("INPUT", self.input),
            ("OUTPUT", self.output),
        ];
        for (name, (height, width)) in pairs {
            // Writing to a string cannot fail.
            let _ = write!(text, "#define {name}_H ((I){height}ull)\n#define {name}_W ((I){width}ull)\n");
        }
        for (name, size) in
            [("GROUPS", self.shape.groups), ("INPUTS", self.inputs), ("OUTPUTS", self.outputs)]
        {
            let _ = writeln!(text, "#define {name} ((I){size}ull)");
        }
        text += &TEXT.replace("TILE_TEXT\n", TILE);
        // Whatever an index may count, with room for whole tiles.
        let images = self.images.saturating_mul(self.shape.groups);
        let channels = self.inputs.max(self.outputs).max(1);
        let padded = |size: usize, padding: usize| size.saturating_add(padding).saturating_add(padding);
        let reach = images
            .saturating_mul(channels)
            .saturating_mul(self.plane().max(self.pixels()).max(1))
            .max(self.weights())
            .max(self.outputs.saturating_mul(self.terms()))
            .max(padded(self.input.0, self.shape.padding.0))
            .max(padded(self.input.1, self.shape.padding.1))
            .max(self.kernel.0.saturating_mul(self.shape.dilation.0))
            .max(self.kernel.1.saturating_mul(self.shape.dilation.1))
            .max(self.shape.stride.0)
            .max(self.shape.stride.1);
        let index = index_type(reach.saturating_add(1 << 16));
        with_types(&[("T", element(dtype)), ("I", index)], &text).into()
    }
}

/// A thread computes this many rows and columns of a tile.
fn micro(dtype: DType) -> usize {
    if dtype == DType::F64 { 2 } else { 4 }
}

/// Operands (x, weight[, bias]) → y.
pub(super) fn forward(call: &Call, shape: ConvShape) -> Result<Vec<Work>, OpError> {
    let (x, w, y) = (call.arg(0)?, call.arg(1)?, call.result(0)?);
    let bias = call.args.get(2);
    if y.elements() == 0 {
        return Ok(Vec::new());
    }
    let sizes = Sizes::new(shape, x.ty(), w.ty(), y.ty());
    let blocks = sizes.blocks(y.dtype(), sizes.outputs, sizes.images.saturating_mul(sizes.pixels()));
    let kernel = Kernel::new(sizes.source(y.dtype(), bias.is_some()), "conv")
        .args([x, w, bias.unwrap_or(w), y])
        .size(sizes.images);
    Ok(vec![kernel.blocks(blocks, 1, 1, THREADS)?])
}

/// Operands (weight, g) → dx.
pub(super) fn grad_input(call: &Call, shape: ConvShape) -> Result<Vec<Work>, OpError> {
    let (w, g, dx) = (call.arg(0)?, call.arg(1)?, call.result(0)?);
    if dx.elements() == 0 {
        return Ok(Vec::new());
    }
    let sizes = Sizes::new(shape, dx.ty(), w.ty(), g.ty());
    if g.elements() == 0 || w.elements() == 0 {
        return Ok(movement::zero(dx));
    }
    let blocks = sizes.blocks(dx.dtype(), sizes.inputs, sizes.images.saturating_mul(sizes.plane()));
    let kernel =
        Kernel::new(sizes.source(dx.dtype(), false), "conv_grad_input").args([w, g, dx]).size(sizes.images);
    Ok(vec![kernel.blocks(blocks, 1, 1, THREADS)?])
}

/// Bytes of the sums of segments.
pub(super) fn weight_workspace(shape: ConvShape, args: &[&Type], results: &[&Type]) -> u64 {
    let (&[x, g], &[dw]) = (args, results) else { return 0 };
    partial_bytes(&Sizes::new(shape, x, dw, g), dw.dtype())
}

fn partial_bytes(sizes: &Sizes, dtype: DType) -> u64 {
    match sizes.segments(dtype) {
        1 => 0,
        segments => {
            let elements = (segments as u64).saturating_mul(sizes.weights() as u64);
            elements.saturating_mul(dtype.accumulator().size() as u64)
        }
    }
}

/// Operands (x, g) → dweight.
pub(super) fn grad_weight(call: &Call, shape: ConvShape) -> Result<Vec<Work>, OpError> {
    let (x, g, dw) = (call.arg(0)?, call.arg(1)?, call.result(0)?);
    if dw.elements() == 0 {
        return Ok(Vec::new());
    }
    if is_empty(x) || is_empty(g) {
        return Ok(movement::zero(dw));
    }
    let dtype = dw.dtype();
    let sizes = Sizes::new(shape, x.ty(), dw.ty(), g.ty());
    let segments = sizes.segments(dtype);
    let partial = call.workspace(partial_bytes(&sizes, dtype))?;
    let source = sizes.source(dtype, false);
    let blocks = sizes.blocks(dtype, sizes.outputs, sizes.terms()).saturating_mul(segments);
    let mut works = vec![
        Kernel::new(source.clone(), "conv_grad_weight")
            .args([x, g, dw])
            .arg(partial)
            .sizes([sizes.images, segments])
            .blocks(blocks, 1, 1, THREADS)?,
    ];
    if segments > 1 {
        works.push(
            Kernel::new(source, "conv_grad_weight_sum")
                .arg(partial)
                .arg(dw)
                .size(segments)
                .for_each(sizes.weights(), THREADS)?,
        );
    }
    Ok(works)
}

fn is_empty(tensor: &Tensor) -> bool {
    tensor.elements() == 0
}
