//! Two-dimensional convolution (cross-correlation, as everywhere in the field).

use super::{
    GradNode, Gradient, OpError, Operation, ReduceKind, Slice, SliceRange, expect_args,
    network::{expect_type, fault, same_float, wanted, window_count},
};
use crate::{
    exec::cpu::{
        Call,
        nn::{self, conv_tiles::Conv},
    },
    ir::{Graph, Type, ValueId},
};

/// Geometry of a convolution. Pairs are (height, width).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ConvShape {
    pub stride: (usize, usize),
    /// Zeros added on both sides.
    pub padding: (usize, usize),
    pub dilation: (usize, usize),
    pub groups: usize,
}

/// Operands (x: [n, c, h, w], weight: [o, c / groups, kh, kw]) → [n, o, h', w'], with an optional
/// third operand bias: [o].
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Conv2d {
    pub shape: ConvShape,
}

/// Operands (weight, g) → dx of size [n, c, height, width].
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Conv2dGradInput {
    pub shape: ConvShape,
    /// (h, w) of x.
    pub input: (usize, usize),
}

/// Operands (x, g) → dweight.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Conv2dGradWeight {
    pub shape: ConvShape,
    /// (kh, kw)
    pub kernel: (usize, usize),
}

/// The last two sizes.
fn size(ty: &Type) -> (usize, usize) {
    match *ty.shape() {
        [.., height, width] => (height, width),
        _ => (0, 0),
    }
}

impl ConvShape {
    /// The type of the output.
    fn output(&self, name: &str, x: &Type, weight: &Type, args: &[&Type]) -> Result<Type, OpError> {
        let (&[n, c, h, w], &[o, per_group, kh, kw]) = (x.shape(), weight.shape()) else {
            return Err(fault(
                name,
                args,
                "the input must have the axes [n, channels, height, width], \
                 the weight [outputs, channels / groups, height, width]",
            ));
        };
        let groups = self.groups;
        if groups == 0 || c % groups != 0 || o % groups != 0 {
            return Err(fault(
                name,
                args,
                format!("{c} input and {o} output channels cannot be divided into {groups} groups"),
            ));
        }
        if c / groups != per_group {
            let mut error = fault(
                name,
                args,
                format!(
                    "the input has {c} channels, {} in a group, but the weight takes {per_group}",
                    c / groups
                ),
            );
            if groups == 1 && c == o {
                error =
                    error.help("are the first two axes of the weight swapped? They are [outputs, inputs]");
            }
            return Err(error);
        }
        let count = |axis, size, kernel, stride, padding, dilation| {
            window_count(axis, size, kernel, stride, padding, dilation).map_err(|why| fault(name, args, why))
        };
        let height = count("height", h, kh, self.stride.0, self.padding.0, self.dilation.0)?;
        let width = count("width", w, kw, self.stride.1, self.padding.1, self.dilation.1)?;
        Ok(x.with_shape([n, o, height, width])?)
    }

    fn attributes(&self) -> String {
        let pair = |(a, b): (usize, usize)| format!("[{a}, {b}]");
        format!(
            "stride={}, padding={}, dilation={}, groups={}",
            pair(self.stride),
            pair(self.padding),
            pair(self.dilation),
            self.groups
        )
    }

    /// For each tap of the filter: its place in the filter, and the places of the padded input that
    /// it sees.
    fn taps(
        &self,
        kernel: (usize, usize),
        output: (usize, usize),
    ) -> impl Iterator<Item = ([usize; 2], SliceRange, SliceRange)> + use<> {
        let ConvShape { stride, dilation, .. } = *self;
        (0..kernel.0).flat_map(move |i| {
            (0..kernel.1).map(move |j| {
                (
                    [i, j],
                    SliceRange { start: i * dilation.0, step: stride.0, size: output.0 },
                    SliceRange { start: j * dilation.1, step: stride.1, size: output.1 },
                )
            })
        })
    }

    /// Composed: the weights of one tap for every image, [n, groups, outputs, inputs] per group.
    fn tap_weights(
        &self,
        graph: &mut Graph,
        weight: ValueId,
        [i, j]: [usize; 2],
        images: usize,
    ) -> Result<ValueId, OpError> {
        let &[o, inputs, ..] = graph.ty(weight).shape() else {
            return Err(OpError::new("internal: the weight of a convolution has four axes"));
        };
        let at = |start, size| SliceRange { start, step: 1, size };
        let ranges = Box::new([at(0, o), at(0, inputs), at(i, 1), at(j, 1)]);
        let tap = graph.value(Slice { ranges }, &[weight])?;
        let outputs = o / self.groups.max(1);
        let tap = graph.reshape(tap, &[1, self.groups, outputs, inputs])?;
        graph.broadcast(tap, &[images, self.groups, outputs, inputs])
    }

    /// Planes [n, channels, h, w] as matrices [n, groups, channels / groups, h·w].
    fn as_matrices(&self, graph: &mut Graph, planes: ValueId) -> Result<ValueId, OpError> {
        let &[n, channels, h, w] = graph.ty(planes).shape() else {
            return Err(OpError::new("internal: the planes of a convolution have four axes"));
        };
        graph.reshape(planes, &[n, self.groups, channels / self.groups.max(1), h * w])
    }
}

impl Operation for Conv2d {
    fn name(&self) -> &'static str {
        "conv2d"
    }

    fn infer(&self, _graph: &Graph, args: &[&Type]) -> Result<Vec<Type>, OpError> {
        let &[x, weight, ref bias @ ..] = args else {
            return Err(OpError::new("internal: `conv2d` takes 2 or 3 operands"));
        };
        same_float(self.name(), args, args)?;
        let output = self.shape.output(self.name(), x, weight, args)?;
        let outputs = output.shape().get(1).copied().unwrap_or(0);
        match bias {
            [] => {}
            [bias] if bias.shape() == [outputs] => {}
            _ => return Err(fault(self.name(), args, format!("the bias must have the shape [{outputs}]"))),
        }
        Ok(vec![output])
    }

    fn grad(&self, graph: &mut Graph, at: &GradNode<'_>) -> Result<Gradient, OpError> {
        let Some(g) = at.cotangent(0) else { return Ok(Gradient::Args(vec![None; at.args.len()])) };
        let (x, weight, shape) = (at.arg(0)?, at.arg(1)?, self.shape);
        let mut cotangents = Vec::new();
        cotangents.push(if at.wants(0) {
            let input = size(graph.ty(x));
            Some(graph.value(Conv2dGradInput { shape, input }, &[weight, g])?)
        } else {
            None
        });
        cotangents.push(if at.wants(1) {
            let kernel = size(graph.ty(weight));
            Some(graph.value(Conv2dGradWeight { shape, kernel }, &[x, g])?)
        } else {
            None
        });
        if at.args.len() > 2 {
            cotangents.push(if at.wants(2) {
                Some(graph.reduce(ReduceKind::Sum, g, &[0, 2, 3])?)
            } else {
                None
            });
        }
        Ok(Gradient::Args(cotangents))
    }

    /// The sum over the filter's taps of matrix products.
    fn decompose(&self, graph: &mut Graph, args: &[ValueId]) -> Result<Vec<ValueId>, OpError> {
        let &[x, weight, ref bias @ ..] = args else {
            return Err(OpError::new("internal: `conv2d` takes 2 or 3 operands"));
        };
        let (ty, weight_type) = (graph.ty(x).clone(), graph.ty(weight).clone());
        let output = self.shape.output(self.name(), &ty, &weight_type, &[&ty, &weight_type])?;
        let images = ty.shape().first().copied().unwrap_or(0);
        let (x, weight) = (graph.widen(x)?, graph.widen(weight)?);
        let padded = graph.pad_planes(x, self.shape.padding)?;
        let mut parts = Vec::new();
        for (place, rows, columns) in self.shape.taps(size(&weight_type), size(&output)) {
            let seen = graph.tap(padded, rows, columns)?;
            let seen = self.shape.as_matrices(graph, seen)?;
            let weights = self.shape.tap_weights(graph, weight, place, images)?;
            parts.push(graph.matmul(weights, seen)?);
        }
        let total = graph.sum_of(&parts)?;
        let mut y = graph.reshape(total, output.shape())?;
        if let &[bias] = bias {
            let bias = graph.widen(bias)?;
            let outputs = graph.ty(bias).elements();
            let bias = graph.reshape(bias, &[1, outputs, 1, 1])?;
            let bias = graph.broadcast(bias, output.shape())?;
            y = graph.add(y, bias)?;
        }
        Ok(vec![graph.cast(y, ty.dtype())?])
    }

    fn flops(&self, args: &[&Type], results: &[&Type]) -> f64 {
        self.conv(args, results).map_or(0.0, |conv| conv.flops())
    }

    fn workspace(&self, args: &[&Type], results: &[&Type]) -> u64 {
        self.conv(args, results).map_or(0, |conv| bytes(conv.forward_workspace(), args))
    }

    fn cpu(&self, call: &Call<'_>) -> Result<(), OpError> {
        let (x, weight, y) = (call.arg_operand(0)?, call.arg_operand(1)?, call.result_operand(0)?);
        nn::conv::conv2d(call, &Conv::new(self.shape, size(x.ty), weight.ty, y.ty))
    }

    fn attributes(&self) -> String {
        self.shape.attributes()
    }
}

impl Conv2d {
    fn conv(&self, args: &[&Type], results: &[&Type]) -> Option<Conv> {
        let (&[x, weight, ..], &[y]) = (args, results) else { return None };
        Some(Conv::new(self.shape, size(x), weight, y))
    }
}

/// Bytes of workspace in the accumulator's type.
fn bytes(elements: usize, args: &[&Type]) -> u64 {
    let size = args.first().map_or(0, |ty| ty.dtype().accumulator().size());
    (elements as u64).saturating_mul(size as u64)
}

impl Operation for Conv2dGradInput {
    fn name(&self) -> &'static str {
        "conv2d_grad_input"
    }

    fn infer(&self, _graph: &Graph, args: &[&Type]) -> Result<Vec<Type>, OpError> {
        let [weight, g] = expect_args(self.name(), args)?;
        same_float(self.name(), args, args)?;
        let (&[_, inputs, ..], &[n, ..]) = (weight.shape(), g.shape()) else {
            return Err(fault(self.name(), args, "the weight and the gradient must have four axes"));
        };
        let channels = inputs.checked_mul(self.shape.groups);
        let channels = channels.ok_or_else(|| fault(self.name(), args, "too many groups"))?;
        let x = weight.with_shape([n, channels, self.input.0, self.input.1])?;
        expect_type(self.name(), args, g, &self.shape.output(self.name(), &x, weight, args)?)?;
        Ok(vec![x])
    }

    /// Linear in both operands: with a cotangent h, a convolution of h, and its weight gradient.
    fn grad(&self, graph: &mut Graph, at: &GradNode<'_>) -> Result<Gradient, OpError> {
        let Some(h) = at.cotangent(0) else { return Ok(Gradient::Args(vec![None, None])) };
        let (weight, g, shape) = (at.arg(0)?, at.arg(1)?, self.shape);
        let kernel = size(graph.ty(weight));
        let dw =
            if at.wants(0) { Some(graph.value(Conv2dGradWeight { shape, kernel }, &[h, g])?) } else { None };
        let dg = if at.wants(1) { Some(graph.value(Conv2d { shape }, &[h, weight])?) } else { None };
        Ok(Gradient::Args(wanted(at, &[dw, dg])))
    }

    fn decompose(&self, graph: &mut Graph, args: &[ValueId]) -> Result<Vec<ValueId>, OpError> {
        let &[weight, g] = args else {
            return Err(OpError::new("internal: `conv2d_grad_input` takes 2 operands"));
        };
        let dtype = graph.ty(g).dtype();
        let kernel = size(graph.ty(weight));
        let output = size(graph.ty(g));
        let (weight, g) = (graph.widen(weight)?, graph.widen(g)?);
        let images = graph.ty(g).shape().first().copied().unwrap_or(0);
        let channels = graph.ty(weight).shape().get(1).copied().unwrap_or(0) * self.shape.groups;
        let padding = self.shape.padding;
        let padded = (self.input.0 + 2 * padding.0, self.input.1 + 2 * padding.1);
        let matrices = self.shape.as_matrices(graph, g)?;
        let mut parts = Vec::new();
        for (place, rows, columns) in self.shape.taps(kernel, output) {
            let weights = self.shape.tap_weights(graph, weight, place, images)?;
            let weights = graph.transpose_last(weights)?;
            let part = graph.matmul(weights, matrices)?;
            let part = graph.reshape(part, &[images, channels, output.0, output.1])?;
            parts.push(graph.untap(part, padded, rows, columns)?);
        }
        let total = graph.sum_of(&parts)?;
        let dx = graph.unpad_planes(total, padding)?;
        Ok(vec![graph.cast(dx, dtype)?])
    }

    fn flops(&self, args: &[&Type], _results: &[&Type]) -> f64 {
        self.conv(args).map_or(0.0, |conv| conv.flops())
    }

    fn workspace(&self, args: &[&Type], _results: &[&Type]) -> u64 {
        self.conv(args).map_or(0, |conv| bytes(conv.input_workspace(), args))
    }

    fn cpu(&self, call: &Call<'_>) -> Result<(), OpError> {
        let (weight, g) = (call.arg_operand(0)?, call.arg_operand(1)?);
        nn::conv::conv2d_grad_input(call, &Conv::new(self.shape, self.input, weight.ty, g.ty))
    }

    fn attributes(&self) -> String {
        format!("{}, input=[{}, {}]", self.shape.attributes(), self.input.0, self.input.1)
    }
}

impl Conv2dGradInput {
    fn conv(&self, args: &[&Type]) -> Option<Conv> {
        let &[weight, g] = args else { return None };
        Some(Conv::new(self.shape, self.input, weight, g))
    }
}

impl Operation for Conv2dGradWeight {
    fn name(&self) -> &'static str {
        "conv2d_grad_weight"
    }

    fn infer(&self, _graph: &Graph, args: &[&Type]) -> Result<Vec<Type>, OpError> {
        let [x, g] = expect_args(self.name(), args)?;
        same_float(self.name(), args, args)?;
        let (&[_, c, ..], &[_, o, ..]) = (x.shape(), g.shape()) else {
            return Err(fault(self.name(), args, "the input and the gradient must have four axes"));
        };
        let Some(inputs) = c.checked_div(self.shape.groups) else {
            return Err(fault(self.name(), args, "there must be at least one group"));
        };
        let weight = x.with_shape([o, inputs, self.kernel.0, self.kernel.1])?;
        expect_type(self.name(), args, g, &self.shape.output(self.name(), x, &weight, args)?)?;
        Ok(vec![weight])
    }

    /// Linear in both operands: with a cotangent h, the input gradient by h, and a convolution by h.
    fn grad(&self, graph: &mut Graph, at: &GradNode<'_>) -> Result<Gradient, OpError> {
        let Some(h) = at.cotangent(0) else { return Ok(Gradient::Args(vec![None, None])) };
        let (x, g, shape) = (at.arg(0)?, at.arg(1)?, self.shape);
        let input = size(graph.ty(x));
        let dx =
            if at.wants(0) { Some(graph.value(Conv2dGradInput { shape, input }, &[h, g])?) } else { None };
        let dg = if at.wants(1) { Some(graph.value(Conv2d { shape }, &[x, h])?) } else { None };
        Ok(Gradient::Args(wanted(at, &[dx, dg])))
    }

    fn decompose(&self, graph: &mut Graph, args: &[ValueId]) -> Result<Vec<ValueId>, OpError> {
        let &[x, g] = args else {
            return Err(OpError::new("internal: `conv2d_grad_weight` takes 2 operands"));
        };
        let dtype = graph.ty(g).dtype();
        let output = size(graph.ty(g));
        let outputs = graph.ty(g).shape().get(1).copied().unwrap_or(0);
        let inputs = graph.ty(x).shape().get(1).copied().unwrap_or(0) / self.shape.groups.max(1);
        let (x, g) = (graph.widen(x)?, graph.widen(g)?);
        let padded = graph.pad_planes(x, self.shape.padding)?;
        let matrices = self.shape.as_matrices(graph, g)?;
        let mut parts = Vec::new();
        for ([i, j], rows, columns) in self.shape.taps(self.kernel, output) {
            let seen = graph.tap(padded, rows, columns)?;
            let seen = self.shape.as_matrices(graph, seen)?;
            let seen = graph.transpose_last(seen)?;
            let part = graph.matmul(matrices, seen)?;
            let part = graph.reduce(ReduceKind::Sum, part, &[0])?;
            let part = graph.reshape(part, &[outputs, inputs, 1, 1])?;
            let at = |start| SliceRange { start, step: 1, size: 1 };
            parts.push(graph.untap(part, self.kernel, at(i), at(j))?);
        }
        let dw = graph.sum_of(&parts)?;
        Ok(vec![graph.cast(dw, dtype)?])
    }

    fn flops(&self, args: &[&Type], results: &[&Type]) -> f64 {
        self.conv(args, results).map_or(0.0, |conv| conv.flops())
    }

    fn workspace(&self, args: &[&Type], results: &[&Type]) -> u64 {
        self.conv(args, results).map_or(0, |conv| bytes(conv.weight_workspace(), args))
    }

    fn cpu(&self, call: &Call<'_>) -> Result<(), OpError> {
        let (x, g, weight) = (call.arg_operand(0)?, call.arg_operand(1)?, call.result_operand(0)?);
        nn::conv::conv2d_grad_weight(call, &Conv::new(self.shape, size(x.ty), weight.ty, g.ty))
    }

    fn attributes(&self) -> String {
        format!("{}, kernel=[{}, {}]", self.shape.attributes(), self.kernel.0, self.kernel.1)
    }
}

impl Conv2dGradWeight {
    fn conv(&self, args: &[&Type], results: &[&Type]) -> Option<Conv> {
        let (&[x, g], &[weight]) = (args, results) else { return None };
        Some(Conv::new(self.shape, size(x), weight, g))
    }
}
