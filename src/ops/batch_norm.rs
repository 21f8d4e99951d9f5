//! Batch normalisation.

use super::{
    GradNode, Gradient, Memory, Number, OpError, Operation, ReduceKind, Unary, expect_args,
    network::{expect_type, fault, same_float, wanted},
};
use crate::{
    exec::cpu::{Call, nn},
    ir::{Graph, Type, ValueId},
};

/// Over all axes but 1. Operands (x: [n, c, …], w: [c], b: [c]) → (y, mean: [c], variance: [c]); the
/// variance is the biased one. The gradients of `mean` and `variance` as results are supported
/// through the composed form. Statistics are f32 (f64 for f64 operands), NaN over no elements.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct BatchNorm {
    pub eps: Number,
}

/// Operands (x, w, mean, variance, g) → (dx, dw, db).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct BatchNormGrad {
    pub eps: Number,
}

/// Checks x and its parameters; the types of the parameters and of the statistics.
fn types(name: &str, x: &Type, parameters: &[&Type], args: &[&Type]) -> Result<(Type, Type), OpError> {
    same_float(name, &[&[x], parameters].concat(), args)?;
    let &[_, channels, ..] = x.shape() else {
        return Err(fault(name, args, "the input needs at least two axes, [n, channels, …]"));
    };
    let parameter = x.with_shape([channels])?;
    if parameters.iter().any(|&p| *p != parameter) {
        return Err(fault(name, args, format!("weight and bias must have the shape [{channels}]")));
    }
    let statistic = parameter.with_dtype(x.dtype().accumulator())?;
    Ok((parameter, statistic))
}

/// All axes but 1.
fn batch_axes(graph: &Graph, x: ValueId) -> Vec<usize> {
    (0..graph.ty(x).rank()).filter(|&axis| axis != 1).collect()
}

/// One value a channel, widened, for every element of `like`.
fn along_channels(graph: &mut Graph, x: ValueId, like: ValueId) -> Result<ValueId, OpError> {
    let x = graph.widen(x)?;
    let shape = graph.ty(like).shape().to_vec();
    let column: Vec<usize> =
        shape.iter().enumerate().map(|(axis, &dim)| if axis == 1 { dim } else { 1 }).collect();
    let x = graph.reshape(x, &column)?;
    graph.broadcast(x, &shape)
}

fn reciprocal_deviation(graph: &mut Graph, variance: ValueId, eps: Number) -> Result<ValueId, OpError> {
    let eps = graph.splat_like(variance, eps.as_f64())?;
    let sum = graph.add(variance, eps)?;
    graph.unary(Unary::Rsqrt, sum)
}

impl Operation for BatchNorm {
    fn name(&self) -> &'static str {
        "batch_norm"
    }

    fn infer(&self, _graph: &Graph, args: &[&Type]) -> Result<Vec<Type>, OpError> {
        let [x, w, b] = expect_args(self.name(), args)?;
        let (_, statistic) = types(self.name(), x, &[w, b], args)?;
        Ok(vec![x.clone(), statistic.clone(), statistic])
    }

    fn grad(&self, graph: &mut Graph, at: &GradNode<'_>) -> Result<Gradient, OpError> {
        let (Some(g), None, None) = (at.cotangent(0), at.cotangent(1), at.cotangent(2)) else {
            return Ok(Gradient::Decompose);
        };
        let args = [at.arg(0)?, at.arg(1)?, at.result(1)?, at.result(2)?, g];
        let node = graph.push(BatchNormGrad { eps: self.eps }, &args)?;
        let cotangents: Vec<_> = graph.node(node).results().map(Some).collect();
        Ok(Gradient::Args(wanted(at, &cotangents)))
    }

    fn decompose(&self, graph: &mut Graph, args: &[ValueId]) -> Result<Vec<ValueId>, OpError> {
        let &[x, w, b] = args else { return Err(OpError::new("internal: `batch_norm` takes 3 operands")) };
        let dtype = graph.ty(x).dtype();
        let x = graph.widen(x)?;
        let axes = batch_axes(graph, x);
        let mean = graph.reduce(ReduceKind::Mean, x, &axes)?;
        let centre = along_channels(graph, mean, x)?;
        let centred = graph.sub(x, centre)?;
        let squares = graph.mul(centred, centred)?;
        let variance = graph.reduce(ReduceKind::Mean, squares, &axes)?;
        let rstd = reciprocal_deviation(graph, variance, self.eps)?;
        let rstd = along_channels(graph, rstd, x)?;
        let normal = graph.mul(centred, rstd)?;
        let (w, b) = (along_channels(graph, w, x)?, along_channels(graph, b, x)?);
        let y = graph.mul(normal, w)?;
        let y = graph.add(y, b)?;
        Ok(vec![graph.cast(y, dtype)?, mean, variance])
    }

    fn memory(&self) -> Memory {
        Memory { overwrites: vec![(0, 0)], ..Memory::FRESH }
    }

    fn flops(&self, args: &[&Type], _results: &[&Type]) -> f64 {
        args.first().map_or(0.0, |x| 7.0 * x.elements() as f64)
    }

    fn cpu(&self, call: &Call<'_>) -> Result<(), OpError> {
        nn::batch_norm::batch_norm(call, self.eps.as_f64())
    }

    fn attributes(&self) -> String {
        format!("eps={}", self.eps)
    }
}

impl Operation for BatchNormGrad {
    fn name(&self) -> &'static str {
        "batch_norm_grad"
    }

    fn infer(&self, _graph: &Graph, args: &[&Type]) -> Result<Vec<Type>, OpError> {
        let [x, w, mean, variance, g] = expect_args(self.name(), args)?;
        let (parameter, statistic) = types(self.name(), x, &[w], args)?;
        expect_type(self.name(), args, mean, &statistic)?;
        expect_type(self.name(), args, variance, &statistic)?;
        expect_type(self.name(), args, g, x)?;
        Ok(vec![x.clone(), parameter.clone(), parameter])
    }

    fn grad(&self, _graph: &mut Graph, _at: &GradNode<'_>) -> Result<Gradient, OpError> {
        Ok(Gradient::Decompose)
    }

    fn decompose(&self, graph: &mut Graph, args: &[ValueId]) -> Result<Vec<ValueId>, OpError> {
        let &[x, w, mean, variance, g] = args else {
            return Err(OpError::new("internal: `batch_norm_grad` takes 5 operands"));
        };
        let dtype = graph.ty(x).dtype();
        let (x, g) = (graph.widen(x)?, graph.widen(g)?);
        let axes = batch_axes(graph, x);
        let centre = along_channels(graph, mean, x)?;
        let centred = graph.sub(x, centre)?;
        let rstd = reciprocal_deviation(graph, variance, self.eps)?;
        let rstd = along_channels(graph, rstd, x)?;
        let normal = graph.mul(centred, rstd)?;
        let product = graph.mul(g, normal)?;
        let dw = graph.reduce(ReduceKind::Sum, product, &axes)?;
        let db = graph.reduce(ReduceKind::Sum, g, &axes)?;
        let slope = graph.reduce(ReduceKind::Mean, product, &axes)?;
        let slope = along_channels(graph, slope, x)?;
        let average = graph.reduce(ReduceKind::Mean, g, &axes)?;
        let average = along_channels(graph, average, x)?;
        let along = graph.mul(normal, slope)?;
        let dx = graph.sub(g, average)?;
        let dx = graph.sub(dx, along)?;
        let w = along_channels(graph, w, x)?;
        let scale = graph.mul(w, rstd)?;
        let dx = graph.mul(dx, scale)?;
        Ok(vec![graph.cast(dx, dtype)?, graph.cast(dw, dtype)?, graph.cast(db, dtype)?])
    }

    fn memory(&self) -> Memory {
        Memory { overwrites: vec![(0, 0), (0, 4)], ..Memory::FRESH }
    }

    fn flops(&self, args: &[&Type], _results: &[&Type]) -> f64 {
        args.first().map_or(0.0, |x| 11.0 * x.elements() as f64)
    }

    fn cpu(&self, call: &Call<'_>) -> Result<(), OpError> {
        nn::batch_norm::batch_norm_grad(call, self.eps.as_f64())
    }

    fn attributes(&self) -> String {
        format!("eps={}", self.eps)
    }
}
