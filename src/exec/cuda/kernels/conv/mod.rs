//! Convolution and its gradients, in one of three forms: a matrix product of the library where nothing but the
//! channels is summed over; products of tiles by tensor cores for half types; products of tiles in portable CUDA C.

mod plain;
mod pointwise;
mod warps;

use std::{fmt::Write, sync::Arc};

use self::warps::Tile;
use super::{
    Address, Kernel, OpError, Tensor, Work,
    call::Call,
    launch::{THREADS, element, index_type, with_types},
    movement,
    product::{self, TILE},
};
use crate::{
    ir::{DType, Type},
    ops::ConvShape,
};

/// The last pass over a gradient of weights that was summed in segments.
const SEGMENTS: &str = include_str!("segments.cu");

/// Sums over fewer terms than this are not divided.
const SEGMENT: usize = 1024;

/// Of a half type, at least so many channels on one side of a group: with fewer, there is nothing to share among
/// the results of a tile.
const LEAST_CHANNELS: usize = 8;

/// One of the ops of a convolution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    Forward,
    GradInput,
    GradWeight,
}

/// How an op is done. It depends on sizes and dtype only, so a plan knows the workspace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Product,
    Warps(Tile),
    Plain,
}

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

    /// The form of an op, for tensors that have elements.
    fn form(&self, part: Part, dtype: DType) -> Form {
        let is_half = matches!(dtype, DType::F16 | DType::BF16);
        if pointwise::takes(self, part, is_half) {
            Form::Product
        } else if is_half && self.inputs.max(self.outputs) >= LEAST_CHANNELS && self.terms() > 0 {
            Form::Warps(Tile::new(self, part))
        } else {
            Form::Plain
        }
    }

    fn taps(&self) -> usize {
        self.kernel.0.saturating_mul(self.kernel.1)
    }

    fn terms(&self) -> usize {
        self.inputs.saturating_mul(self.taps())
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
    /// sums there are no more than `most` of these tiles.
    fn segments(&self, tiles: usize, most: usize) -> usize {
        (most / tiles.max(1)).min(self.images.saturating_mul(self.pixels()) / SEGMENT).clamp(1, 64)
    }

    /// Bytes of the sums of segments, if there are several.
    fn segment_bytes(&self, segments: usize, dtype: DType) -> u64 {
        match segments {
            1 => 0,
            _ => {
                let elements = (segments as u64).saturating_mul(self.weights() as u64);
                elements.saturating_mul(dtype.accumulator().size() as u64)
            }
        }
    }

    /// One past what any index counts, apart from what a form counts beside.
    fn reach(&self) -> usize {
        let images = self.images.saturating_mul(self.shape.groups);
        let channels = self.inputs.max(self.outputs).max(1);
        let padded = |size: usize, padding: usize| size.saturating_add(padding).saturating_add(padding);
        images
            .saturating_mul(channels)
            .saturating_mul(self.plane().max(self.pixels()).max(1))
            .max(self.weights())
            .max(self.outputs.saturating_mul(self.terms()))
            .max(padded(self.input.0, self.shape.padding.0))
            .max(padded(self.input.1, self.shape.padding.1))
            .max(self.kernel.0.saturating_mul(self.shape.dilation.0))
            .max(self.kernel.1.saturating_mul(self.shape.dilation.1))
            .max(self.shape.stride.0)
            .max(self.shape.stride.1)
    }

    /// A text behind the sizes that it is for; indices reach to `reach`, and beyond by whole tiles.
    fn source(&self, dtype: DType, reach: usize, text: &str) -> Arc<str> {
        let mut sizes = String::new();
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
            let _ = write!(sizes, "#define {name}_H ((I){height}ull)\n#define {name}_W ((I){width}ull)\n");
        }
        for (name, size) in
            [("GROUPS", self.shape.groups), ("INPUTS", self.inputs), ("OUTPUTS", self.outputs)]
        {
            let _ = writeln!(sizes, "#define {name} ((I){size}ull)");
        }
        let index = index_type(reach.saturating_add(1 << 16));
        with_types(&[("T", element(dtype)), ("I", index)], &(sizes + text)).into()
    }
}

/// Bytes of workspace for x, the weight and y, or their gradients.
pub(super) fn workspace(part: Part, shape: ConvShape, args: &[&Type], results: &[&Type]) -> u64 {
    let (&[first, second, ..], &[result]) = (args, results) else { return 0 };
    let [x, w, y] = match part {
        Part::Forward => [first, second, result],
        Part::GradInput => [result, first, second],
        Part::GradWeight => [first, result, second],
    };
    if [x, w, y].iter().any(|ty| ty.elements() == 0) {
        return 0;
    }
    let (sizes, dtype) = (Sizes::new(shape, x, w, y), result.dtype());
    match sizes.form(part, dtype) {
        Form::Product => pointwise::workspace(&sizes, part, dtype),
        Form::Warps(tile) => warps::workspace(&sizes, part, dtype, tile),
        Form::Plain if part == Part::GradWeight => sizes.segment_bytes(plain::segments(&sizes, dtype), dtype),
        Form::Plain => 0,
    }
}

/// Operands (x, weight[, bias]) → y.
pub(super) fn forward(call: &Call, shape: ConvShape) -> Result<Vec<Work>, OpError> {
    let (x, w, y) = (call.arg(0)?, call.arg(1)?, call.result(0)?);
    if y.elements() == 0 {
        return Ok(Vec::new());
    }
    let (bias, dtype) = (call.args.get(2), y.dtype());
    let sizes = Sizes::new(shape, x.ty(), w.ty(), y.ty());
    if is_empty(x) || is_empty(w) {
        // A sum of nothing, and the bias.
        return plain::forward(&sizes, dtype, [x, w, y], bias);
    }
    match sizes.form(Part::Forward, dtype) {
        Form::Product => pointwise::forward(call, &sizes, [x, w, y], bias),
        Form::Warps(tile) => warps::forward(call, &sizes, tile, [x, w, y], bias),
        Form::Plain => plain::forward(&sizes, dtype, [x, w, y], bias),
    }
}

/// Operands (weight, g) → dx.
pub(super) fn grad_input(call: &Call, shape: ConvShape) -> Result<Vec<Work>, OpError> {
    let (w, g, dx) = (call.arg(0)?, call.arg(1)?, call.result(0)?);
    if is_empty(dx) || is_empty(g) || is_empty(w) {
        return Ok(movement::zero(dx));
    }
    let sizes = Sizes::new(shape, dx.ty(), w.ty(), g.ty());
    match sizes.form(Part::GradInput, dx.dtype()) {
        Form::Product => pointwise::gradient(call, &sizes, Part::GradInput, [w, g, dx]),
        Form::Warps(tile) => warps::grad_input(call, &sizes, tile, [w, g, dx]),
        Form::Plain => plain::grad_input(&sizes, dx.dtype(), [w, g, dx]),
    }
}

/// Operands (x, g) → dweight.
pub(super) fn grad_weight(call: &Call, shape: ConvShape) -> Result<Vec<Work>, OpError> {
    let (x, g, dw) = (call.arg(0)?, call.arg(1)?, call.result(0)?);
    if is_empty(dw) || is_empty(x) || is_empty(g) {
        return Ok(movement::zero(dw));
    }
    let sizes = Sizes::new(shape, x.ty(), dw.ty(), g.ty());
    match sizes.form(Part::GradWeight, dw.dtype()) {
        Form::Product => pointwise::gradient(call, &sizes, Part::GradWeight, [x, g, dw]),
        Form::Warps(tile) => warps::grad_weight(call, &sizes, tile, [x, g, dw]),
        Form::Plain => plain::grad_weight(call, &sizes, dw.dtype(), [x, g, dw]),
    }
}

/// The sum of segments in order, into the gradient of the weights.
fn sum_segments(
    source: Arc<str>,
    sizes: &Sizes,
    partial: Address,
    dw: &Tensor,
    segments: usize,
) -> Result<Work, OpError> {
    Kernel::new(source, "conv_grad_weight_sum")
        .arg(partial)
        .arg(dw)
        .size(segments)
        .for_each(sizes.weights(), THREADS)
}

fn is_empty(tensor: &Tensor) -> bool {
    tensor.elements() == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn form(part: Part, dtype: DType, x: [usize; 4], w: [usize; 4], stride: usize, groups: usize) -> Form {
        let shape =
            ConvShape { stride: (stride, stride), padding: (w[2] / 2, w[3] / 2), dilation: (1, 1), groups };
        let side = |size: usize, kernel: usize| (size + 2 * (kernel / 2) - kernel) / stride + 1;
        let y = [x[0], w[0], side(x[2], w[2]), side(x[3], w[3])];
        let [x, w, y] = [x, w, y].map(|shape| Type::new(dtype, shape).expect("a small type"));
        Sizes::new(shape, &x, &w, &y).form(part, dtype)
    }

    #[test]
    fn forms_follow_sizes_and_types() {
        let (large, pointwise) = ([64, 1024, 14, 14], [1024, 1024, 1, 1]);
        for dtype in [DType::F32, DType::BF16] {
            for part in [Part::Forward, Part::GradInput] {
                assert_eq!(form(part, dtype, large, pointwise, 1, 1), Form::Product);
                assert_eq!(form(part, dtype, [64, 1024, 1, 1], pointwise, 1, 1), Form::Product);
                assert_ne!(form(part, dtype, large, pointwise, 2, 1), Form::Product, "it skips pixels");
                assert_ne!(form(part, dtype, large, [1024, 512, 1, 1], 1, 2), Form::Product, "groups");
                assert_ne!(form(part, dtype, [64, 1024, 4, 4], pointwise, 1, 1), Form::Product);
            }
            // A sum over the pixels of all images.
            assert_ne!(form(Part::GradWeight, dtype, large, pointwise, 1, 1), Form::Product);
            assert_eq!(form(Part::GradWeight, dtype, [1, 1024, 14, 14], pointwise, 1, 1), Form::Product);
        }
        for part in [Part::Forward, Part::GradInput, Part::GradWeight] {
            assert_eq!(form(part, DType::F32, large, [512, 1024, 3, 3], 1, 1), Form::Plain);
            let tile = |x, w| match form(part, DType::F16, x, w, 1, 1) {
                Form::Warps(tile) => tile,
                other => panic!("{other:?}"),
            };
            assert_eq!(tile(large, [1024, 1024, 3, 3]), tile([64, 1024, 14, 15], [1024, 1024, 3, 3]));
            assert_ne!(tile(large, [1024, 1024, 3, 3]), tile([2, 20, 14, 14], [20, 20, 3, 3]));
            // Depth-wise: nothing is shared among the results of a tile.
            assert_eq!(form(part, DType::F16, [2, 32, 14, 14], [32, 1, 3, 3], 1, 32), Form::Plain);
        }
    }

    #[test]
    fn workspaces_hold_the_weights_with_whole_steps_of_terms() {
        let ty = |shape: [usize; 4]| Type::new(DType::BF16, shape).expect("a small type");
        let shape = ConvShape { stride: (1, 1), padding: (1, 1), dilation: (1, 1), groups: 2 };
        // 20 channels are two units for each of nine taps, and 18 units nine steps of 32 terms.
        let (x, w, y) = (ty([2, 40, 9, 9]), ty([36, 20, 3, 3]), ty([2, 36, 9, 9]));
        let forward = workspace(Part::Forward, shape, &[&x, &w], &[&y]);
        assert_eq!(forward, 36 * 9 * 32 * 2);
        assert_eq!(workspace(Part::GradInput, shape, &[&w, &y], &[&x]), 40 * 9 * 32 * 2);
        // A batch without images needs none.
        let (x, y) = (ty([0, 40, 9, 9]), ty([0, 36, 9, 9]));
        assert_eq!(workspace(Part::Forward, shape, &[&x, &w], &[&y]), 0);
    }
}
