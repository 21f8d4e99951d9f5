//! Pooling over windows of the last two axes of [n, c, h, w].

use super::{
    Binary, GradNode, Gradient, OpError, Operation, SliceRange, Unary, expect_args, expect_float,
    network::{expect_type, fault, same_float, window_count},
};
use crate::{
    exec::cpu::{
        Call,
        nn::{self, pool::Pool},
    },
    ir::{Graph, Type, ValueId},
};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PoolShape {
    pub kernel: (usize, usize),
    pub stride: (usize, usize),
    /// Less than the kernel, so that every window has an element.
    pub padding: (usize, usize),
}

/// The largest element of each window; padding never wins; NaN does.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct MaxPool2d {
    pub shape: PoolShape,
}

/// Operands (x, g) → dx: each window's gradient goes to its first largest element.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct MaxPool2dGrad {
    pub shape: PoolShape,
}

/// Operands (x, t: like x) → like the pooled x: the elements of t where x is largest in its window.
/// The transpose of [`MaxPool2dGrad`] in its second operand.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct MaxPool2dGather {
    pub shape: PoolShape,
}

/// The mean of each window; padding counts as zeros.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct AvgPool2d {
    pub shape: PoolShape,
}

/// Operand (g) → dx of size [n, c, height, width].
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct AvgPool2dGrad {
    pub shape: PoolShape,
    /// (h, w) of x.
    pub input: (usize, usize),
}

impl PoolShape {
    /// The type of the pooled `x`.
    fn pooled(&self, name: &str, x: &Type, args: &[&Type]) -> Result<Type, OpError> {
        expect_float(name, x)?;
        let &[n, c, h, w] = x.shape() else {
            return Err(fault(name, args, "the input must have the axes [n, channels, height, width]"));
        };
        if self.padding.0 >= self.kernel.0.max(1) || self.padding.1 >= self.kernel.1.max(1) {
            let PoolShape { padding, kernel, .. } = self;
            return Err(fault(
                name,
                args,
                format!("the padding {padding:?} must be less than the kernel {kernel:?}"),
            ));
        }
        let count = |axis, size, kernel, stride, padding| {
            window_count(axis, size, kernel, stride, padding, 1).map_err(|why| fault(name, args, why))
        };
        let height = count("height", h, self.kernel.0, self.stride.0, self.padding.0)?;
        let width = count("width", w, self.kernel.1, self.stride.1, self.padding.1)?;
        Ok(x.with_shape([n, c, height, width])?)
    }

    fn attributes(&self) -> String {
        let pair = |(a, b): (usize, usize)| format!("[{a}, {b}]");
        format!("kernel={}, stride={}, padding={}", pair(self.kernel), pair(self.stride), pair(self.padding))
    }

    /// The places in a window, in the order in which ties are decided, as ranges of the padded axes.
    fn taps(&self, output: (usize, usize)) -> impl Iterator<Item = (SliceRange, SliceRange)> + use<> {
        let PoolShape { kernel, stride, .. } = *self;
        (0..kernel.0).flat_map(move |i| {
            (0..kernel.1).map(move |j| {
                (
                    SliceRange { start: i, step: stride.0, size: output.0 },
                    SliceRange { start: j, step: stride.1, size: output.1 },
                )
            })
        })
    }

    /// Multiplications and additions, or comparisons: one per element of each window.
    fn flops(&self, pooled: &Type) -> f64 {
        pooled.elements() as f64 * self.kernel.0 as f64 * self.kernel.1 as f64
    }

    /// x with −∞ around it.
    fn pad_with_least(&self, graph: &mut Graph, x: ValueId) -> Result<ValueId, OpError> {
        if self.padding == (0, 0) {
            return Ok(x);
        }
        let ones = graph.splat_like(x, 1.0)?;
        let inside = graph.pad_planes(ones, self.padding)?;
        let outside = graph.equals(inside, 0.0)?;
        let x = graph.pad_planes(x, self.padding)?;
        graph.replace(outside, f64::NEG_INFINITY, x)
    }

    /// Composed: the pooled x, and for each tap where its element is the first largest.
    fn compose(&self, graph: &mut Graph, x: ValueId) -> Result<(ValueId, Vec<ValueId>), OpError> {
        let ty = graph.ty(x).clone();
        let output = size(&self.pooled("max_pool2d", &ty, &[&ty])?);
        let padded = self.pad_with_least(graph, x)?;
        let mut parts = Vec::new();
        for (rows, columns) in self.taps(output) {
            parts.push(graph.tap(padded, rows, columns)?);
        }
        let (&first, rest) =
            parts.split_first().ok_or_else(|| OpError::new("internal: a window without elements"))?;
        let mut top = first;
        for &part in rest {
            top = graph.binary(Binary::Max, top, part)?;
        }
        let mut hits = Vec::new();
        let mut taken = None;
        for part in parts {
            let equal = graph.binary(Binary::Eq, part, top)?;
            let nan = graph.unary(Unary::IsNan, part)?;
            let mut hit = graph.binary(Binary::Or, equal, nan)?;
            taken = Some(match taken {
                None => hit,
                Some(taken) => {
                    let free = graph.unary(Unary::Not, taken)?;
                    hit = graph.binary(Binary::And, hit, free)?;
                    graph.binary(Binary::Or, taken, hit)?
                }
            });
            hits.push(hit);
        }
        Ok((top, hits))
    }
}

/// The last two sizes.
fn size(ty: &Type) -> (usize, usize) {
    match *ty.shape() {
        [.., height, width] => (height, width),
        _ => (0, 0),
    }
}

impl Operation for MaxPool2d {
    fn name(&self) -> &'static str {
        "max_pool2d"
    }

    fn infer(&self, _graph: &Graph, args: &[&Type]) -> Result<Vec<Type>, OpError> {
        let [x] = expect_args(self.name(), args)?;
        Ok(vec![self.shape.pooled(self.name(), x, args)?])
    }

    fn grad(&self, graph: &mut Graph, at: &GradNode<'_>) -> Result<Gradient, OpError> {
        let Some(g) = at.cotangent(0) else { return Ok(Gradient::Args(vec![None])) };
        let dx = graph.value(MaxPool2dGrad { shape: self.shape }, &[at.arg(0)?, g])?;
        Ok(Gradient::Args(vec![Some(dx)]))
    }

    fn decompose(&self, graph: &mut Graph, args: &[ValueId]) -> Result<Vec<ValueId>, OpError> {
        let &[x] = args else { return Err(OpError::new("internal: `max_pool2d` takes 1 operand")) };
        Ok(vec![self.shape.compose(graph, x)?.0])
    }

    fn flops(&self, _args: &[&Type], results: &[&Type]) -> f64 {
        results.iter().map(|y| self.shape.flops(y)).sum()
    }

    fn cpu(&self, call: &Call<'_>) -> Result<(), OpError> {
        let pool = Pool::new(self.shape, call.arg_operand(0)?.ty, call.result_operand(0)?.ty);
        nn::pool::max_pool2d(call, &pool)
    }

    fn attributes(&self) -> String {
        self.shape.attributes()
    }
}

impl Operation for MaxPool2dGrad {
    fn name(&self) -> &'static str {
        "max_pool2d_grad"
    }

    fn infer(&self, _graph: &Graph, args: &[&Type]) -> Result<Vec<Type>, OpError> {
        let [x, g] = expect_args(self.name(), args)?;
        expect_type(self.name(), args, g, &self.shape.pooled(self.name(), x, args)?)?;
        Ok(vec![x.clone()])
    }

    /// Linear in g. Which element is largest does not change with x, so x has no gradient.
    fn grad(&self, graph: &mut Graph, at: &GradNode<'_>) -> Result<Gradient, OpError> {
        let (Some(h), true) = (at.cotangent(0), at.wants(1)) else {
            return Ok(Gradient::Args(vec![None, None]));
        };
        let dg = graph.value(MaxPool2dGather { shape: self.shape }, &[at.arg(0)?, h])?;
        Ok(Gradient::Args(vec![None, Some(dg)]))
    }

    fn decompose(&self, graph: &mut Graph, args: &[ValueId]) -> Result<Vec<ValueId>, OpError> {
        let &[x, g] = args else { return Err(OpError::new("internal: `max_pool2d_grad` takes 2 operands")) };
        let dtype = graph.ty(x).dtype();
        let (height, width) = size(graph.ty(x));
        let padded = (height + 2 * self.shape.padding.0, width + 2 * self.shape.padding.1);
        let output = size(graph.ty(g));
        let (_, hits) = self.shape.compose(graph, x)?;
        let g = graph.widen(g)?;
        let zero = graph.splat_like(g, 0.0)?;
        let mut parts = Vec::new();
        for ((rows, columns), hit) in self.shape.taps(output).zip(hits) {
            let part = graph.select(hit, g, zero)?;
            parts.push(graph.untap(part, padded, rows, columns)?);
        }
        let total = graph.sum_of(&parts)?;
        let dx = graph.unpad_planes(total, self.shape.padding)?;
        Ok(vec![graph.cast(dx, dtype)?])
    }

    fn flops(&self, args: &[&Type], _results: &[&Type]) -> f64 {
        args.get(1).map_or(0.0, |g| self.shape.flops(g))
    }

    fn workspace(&self, args: &[&Type], _results: &[&Type]) -> u64 {
        let &[x, g] = args else { return 0 };
        let wide = x.dtype().accumulator();
        if wide == x.dtype() {
            return 0;
        }
        (Pool::new(self.shape, x, g).grad_workspace() as u64).saturating_mul(wide.size() as u64)
    }

    fn cpu(&self, call: &Call<'_>) -> Result<(), OpError> {
        let pool = Pool::new(self.shape, call.arg_operand(0)?.ty, call.arg_operand(1)?.ty);
        nn::pool::max_pool2d_grad(call, &pool)
    }

    fn attributes(&self) -> String {
        self.shape.attributes()
    }
}

impl Operation for MaxPool2dGather {
    fn name(&self) -> &'static str {
        "max_pool2d_gather"
    }

    fn infer(&self, _graph: &Graph, args: &[&Type]) -> Result<Vec<Type>, OpError> {
        let [x, t] = expect_args(self.name(), args)?;
        same_float(self.name(), args, args)?;
        expect_type(self.name(), args, t, x)?;
        Ok(vec![self.shape.pooled(self.name(), x, args)?])
    }

    /// Linear in t, as [`MaxPool2dGrad`] in g.
    fn grad(&self, graph: &mut Graph, at: &GradNode<'_>) -> Result<Gradient, OpError> {
        let (Some(h), true) = (at.cotangent(0), at.wants(1)) else {
            return Ok(Gradient::Args(vec![None, None]));
        };
        let dt = graph.value(MaxPool2dGrad { shape: self.shape }, &[at.arg(0)?, h])?;
        Ok(Gradient::Args(vec![None, Some(dt)]))
    }

    fn decompose(&self, graph: &mut Graph, args: &[ValueId]) -> Result<Vec<ValueId>, OpError> {
        let &[x, t] = args else {
            return Err(OpError::new("internal: `max_pool2d_gather` takes 2 operands"));
        };
        let (top, hits) = self.shape.compose(graph, x)?;
        let output = size(graph.ty(top));
        let padded = graph.pad_planes(t, self.shape.padding)?;
        let mut y = graph.splat_like(top, 0.0)?;
        for ((rows, columns), hit) in self.shape.taps(output).zip(hits) {
            let part = graph.tap(padded, rows, columns)?;
            y = graph.select(hit, part, y)?;
        }
        Ok(vec![y])
    }

    fn flops(&self, _args: &[&Type], results: &[&Type]) -> f64 {
        results.iter().map(|y| self.shape.flops(y)).sum()
    }

    fn cpu(&self, call: &Call<'_>) -> Result<(), OpError> {
        let pool = Pool::new(self.shape, call.arg_operand(0)?.ty, call.result_operand(0)?.ty);
        nn::pool::max_pool2d_gather(call, &pool)
    }

    fn attributes(&self) -> String {
        self.shape.attributes()
    }
}

impl Operation for AvgPool2d {
    fn name(&self) -> &'static str {
        "avg_pool2d"
    }

    fn infer(&self, _graph: &Graph, args: &[&Type]) -> Result<Vec<Type>, OpError> {
        let [x] = expect_args(self.name(), args)?;
        Ok(vec![self.shape.pooled(self.name(), x, args)?])
    }

    fn grad(&self, graph: &mut Graph, at: &GradNode<'_>) -> Result<Gradient, OpError> {
        let Some(g) = at.cotangent(0) else { return Ok(Gradient::Args(vec![None])) };
        let input = size(graph.ty(at.arg(0)?));
        Ok(Gradient::Args(vec![Some(graph.value(AvgPool2dGrad { shape: self.shape, input }, &[g])?)]))
    }

    fn decompose(&self, graph: &mut Graph, args: &[ValueId]) -> Result<Vec<ValueId>, OpError> {
        let &[x] = args else { return Err(OpError::new("internal: `avg_pool2d` takes 1 operand")) };
        let ty = graph.ty(x).clone();
        let output = size(&self.shape.pooled(self.name(), &ty, &[&ty])?);
        let x = graph.widen(x)?;
        let padded = graph.pad_planes(x, self.shape.padding)?;
        let mut parts = Vec::new();
        for (rows, columns) in self.shape.taps(output) {
            parts.push(graph.tap(padded, rows, columns)?);
        }
        let total = graph.sum_of(&parts)?;
        let area = graph.splat_like(total, self.shape.kernel.0 as f64 * self.shape.kernel.1 as f64)?;
        let y = graph.div(total, area)?;
        Ok(vec![graph.cast(y, ty.dtype())?])
    }

    fn flops(&self, _args: &[&Type], results: &[&Type]) -> f64 {
        results.iter().map(|y| self.shape.flops(y)).sum()
    }

    fn cpu(&self, call: &Call<'_>) -> Result<(), OpError> {
        let pool = Pool::new(self.shape, call.arg_operand(0)?.ty, call.result_operand(0)?.ty);
        nn::pool::avg_pool2d(call, &pool)
    }

    fn attributes(&self) -> String {
        self.shape.attributes()
    }
}

impl Operation for AvgPool2dGrad {
    fn name(&self) -> &'static str {
        "avg_pool2d_grad"
    }

    fn infer(&self, _graph: &Graph, args: &[&Type]) -> Result<Vec<Type>, OpError> {
        let [g] = expect_args(self.name(), args)?;
        let &[n, c, ..] = g.shape() else {
            return Err(fault(self.name(), args, "the gradient must have four axes"));
        };
        let x = g.with_shape([n, c, self.input.0, self.input.1])?;
        expect_type(self.name(), args, g, &self.shape.pooled(self.name(), &x, args)?)?;
        Ok(vec![x])
    }

    fn grad(&self, graph: &mut Graph, at: &GradNode<'_>) -> Result<Gradient, OpError> {
        let Some(h) = at.cotangent(0) else { return Ok(Gradient::Args(vec![None])) };
        Ok(Gradient::Args(vec![Some(graph.value(AvgPool2d { shape: self.shape }, &[h])?)]))
    }

    fn decompose(&self, graph: &mut Graph, args: &[ValueId]) -> Result<Vec<ValueId>, OpError> {
        let &[g] = args else { return Err(OpError::new("internal: `avg_pool2d_grad` takes 1 operand")) };
        let dtype = graph.ty(g).dtype();
        let output = size(graph.ty(g));
        let padding = self.shape.padding;
        let padded = (self.input.0 + 2 * padding.0, self.input.1 + 2 * padding.1);
        let g = graph.widen(g)?;
        let area = graph.splat_like(g, self.shape.kernel.0 as f64 * self.shape.kernel.1 as f64)?;
        let share = graph.div(g, area)?;
        let mut parts = Vec::new();
        for (rows, columns) in self.shape.taps(output) {
            parts.push(graph.untap(share, padded, rows, columns)?);
        }
        let total = graph.sum_of(&parts)?;
        let dx = graph.unpad_planes(total, padding)?;
        Ok(vec![graph.cast(dx, dtype)?])
    }

    fn flops(&self, args: &[&Type], _results: &[&Type]) -> f64 {
        args.iter().map(|g| self.shape.flops(g)).sum()
    }

    fn cpu(&self, call: &Call<'_>) -> Result<(), OpError> {
        let pool = Pool::new(self.shape, call.result_operand(0)?.ty, call.arg_operand(0)?.ty);
        nn::pool::avg_pool2d_grad(call, &pool)
    }

    fn attributes(&self) -> String {
        format!("{}, input=[{}, {}]", self.shape.attributes(), self.input.0, self.input.1)
    }
}
