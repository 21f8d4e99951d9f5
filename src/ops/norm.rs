//! Normalisation over the last axis, with a gradient of its own. Statistics are f32 (f64 for f64
//! operands).

use super::{
    GradNode, Gradient, Memory, Number, OpError, Operation, ReduceKind, Unary, expect_args,
    network::{expect_type, fault, same_float, split_last, wanted},
};
use crate::{
    exec::cpu::{Call, nn},
    ir::{Graph, Type, ValueId},
};

/// Operands (x: […, d], w: [d], b: [d]) → (y, mean: […], rstd: […]).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct LayerNorm {
    pub eps: Number,
}

/// Operands (x, w, mean, rstd, g) → (dx, dw, db).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct LayerNormGrad;

/// Operands (x: […, d], w: [d]) → (y, rstd: […]).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RmsNorm {
    pub eps: Number,
}

/// Operands (x, w, rstd, g) → (dx, dw).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RmsNormGrad;

/// Checks x and its parameters; the types of the parameters and of the statistics.
fn types(name: &str, x: &Type, parameters: &[&Type], args: &[&Type]) -> Result<(Type, Type), OpError> {
    same_float(name, &[&[x], parameters].concat(), args)?;
    let (lead, last) = split_last(name, x)?;
    let parameter = x.with_shape([last])?;
    if parameters.iter().any(|&p| *p != parameter) {
        return Err(fault(name, args, format!("weight and bias must have the shape [{last}] of a row")));
    }
    let statistic = x.with_shape(lead)?.with_dtype(x.dtype().accumulator())?;
    Ok((parameter, statistic))
}

/// All axes but the last.
fn leading(graph: &Graph, x: ValueId) -> Vec<usize> {
    (0..graph.ty(x).rank().saturating_sub(1)).collect()
}

/// A parameter, widened, for every row of `like`.
fn parameter(graph: &mut Graph, w: ValueId, like: ValueId) -> Result<ValueId, OpError> {
    let w = graph.widen(w)?;
    let shape = graph.ty(like).shape().to_vec();
    graph.broadcast(w, &shape)
}

/// Composed: 1/√(mean(x²) + eps), without the last axis.
fn reciprocal_deviation(graph: &mut Graph, x: ValueId, eps: Number) -> Result<ValueId, OpError> {
    let squares = graph.mul(x, x)?;
    let mean = graph.reduce_last(ReduceKind::Mean, squares)?;
    let eps = graph.splat_like(mean, eps.as_f64())?;
    let sum = graph.add(mean, eps)?;
    graph.unary(Unary::Rsqrt, sum)
}

/// Composed gradients from x̂, rstd, w and g, all wide: (dx, dw), where `centred` takes the mean of
/// g·w out too.
fn composed_gradients(
    graph: &mut Graph,
    normal: ValueId,
    rstd: ValueId,
    w: ValueId,
    g: ValueId,
    centred: bool,
) -> Result<(ValueId, ValueId), OpError> {
    let w = parameter(graph, w, g)?;
    let gw = graph.mul(g, w)?;
    let product = graph.mul(gw, normal)?;
    let projection = graph.spread_last(ReduceKind::Mean, product)?;
    let along = graph.mul(normal, projection)?;
    let mut dx = graph.sub(gw, along)?;
    if centred {
        let average = graph.spread_last(ReduceKind::Mean, gw)?;
        dx = graph.sub(dx, average)?;
    }
    let dx = graph.mul(dx, rstd)?;
    let dw = graph.mul(g, normal)?;
    let rows = leading(graph, dw);
    let dw = graph.reduce(ReduceKind::Sum, dw, &rows)?;
    Ok((dx, dw))
}

impl Operation for LayerNorm {
    fn name(&self) -> &'static str {
        "layer_norm"
    }

    fn infer(&self, _graph: &Graph, args: &[&Type]) -> Result<Vec<Type>, OpError> {
        let [x, w, b] = expect_args(self.name(), args)?;
        let (_, statistic) = types(self.name(), x, &[w, b], args)?;
        Ok(vec![x.clone(), statistic.clone(), statistic])
    }

    fn grad(&self, graph: &mut Graph, at: &GradNode<'_>) -> Result<Gradient, OpError> {
        // The statistics have cotangents only in second gradients.
        let (Some(g), None, None) = (at.cotangent(0), at.cotangent(1), at.cotangent(2)) else {
            return Ok(Gradient::Decompose);
        };
        let args = [at.arg(0)?, at.arg(1)?, at.result(1)?, at.result(2)?, g];
        let node = graph.push(LayerNormGrad, &args)?;
        let cotangents: Vec<_> = graph.node(node).results().map(Some).collect();
        Ok(Gradient::Args(wanted(at, &cotangents)))
    }

    fn decompose(&self, graph: &mut Graph, args: &[ValueId]) -> Result<Vec<ValueId>, OpError> {
        let &[x, w, b] = args else { return Err(OpError::new("internal: `layer_norm` takes 3 operands")) };
        let dtype = graph.ty(x).dtype();
        let x = graph.widen(x)?;
        let mean = graph.reduce_last(ReduceKind::Mean, x)?;
        let centre = graph.along_last(mean, x)?;
        let centred = graph.sub(x, centre)?;
        let rstd = reciprocal_deviation(graph, centred, self.eps)?;
        let scale = graph.along_last(rstd, x)?;
        let normal = graph.mul(centred, scale)?;
        let (w, b) = (parameter(graph, w, x)?, parameter(graph, b, x)?);
        let y = graph.mul(normal, w)?;
        let y = graph.add(y, b)?;
        Ok(vec![graph.cast(y, dtype)?, mean, rstd])
    }

    fn memory(&self) -> Memory {
        Memory { overwrites: vec![(0, 0)], strided: true, ..Memory::FRESH }
    }

    fn flops(&self, args: &[&Type], _results: &[&Type]) -> f64 {
        args.first().map_or(0.0, |x| 8.0 * x.elements() as f64)
    }

    fn cpu(&self, call: &Call<'_>) -> Result<(), OpError> {
        nn::norm::layer_norm(call, self.eps.as_f64())
    }

    fn attributes(&self) -> String {
        format!("eps={}", self.eps)
    }
}

impl Operation for LayerNormGrad {
    fn name(&self) -> &'static str {
        "layer_norm_grad"
    }

    fn infer(&self, _graph: &Graph, args: &[&Type]) -> Result<Vec<Type>, OpError> {
        let [x, w, mean, rstd, g] = expect_args(self.name(), args)?;
        let (parameter, statistic) = types(self.name(), x, &[w], args)?;
        expect_type(self.name(), args, mean, &statistic)?;
        expect_type(self.name(), args, rstd, &statistic)?;
        expect_type(self.name(), args, g, x)?;
        Ok(vec![x.clone(), parameter.clone(), parameter])
    }

    fn grad(&self, _graph: &mut Graph, _at: &GradNode<'_>) -> Result<Gradient, OpError> {
        Ok(Gradient::Decompose)
    }

    fn decompose(&self, graph: &mut Graph, args: &[ValueId]) -> Result<Vec<ValueId>, OpError> {
        let &[x, w, mean, rstd, g] = args else {
            return Err(OpError::new("internal: `layer_norm_grad` takes 5 operands"));
        };
        let dtype = graph.ty(x).dtype();
        let (x, g) = (graph.widen(x)?, graph.widen(g)?);
        let (mean, rstd) = (graph.along_last(mean, x)?, graph.along_last(rstd, x)?);
        let centred = graph.sub(x, mean)?;
        let normal = graph.mul(centred, rstd)?;
        let (dx, dw) = composed_gradients(graph, normal, rstd, w, g, true)?;
        let rows = leading(graph, g);
        let db = graph.reduce(ReduceKind::Sum, g, &rows)?;
        Ok(vec![graph.cast(dx, dtype)?, graph.cast(dw, dtype)?, graph.cast(db, dtype)?])
    }

    fn memory(&self) -> Memory {
        Memory { overwrites: vec![(0, 0), (0, 4)], strided: true, ..Memory::FRESH }
    }

    fn flops(&self, args: &[&Type], _results: &[&Type]) -> f64 {
        args.first().map_or(0.0, |x| 14.0 * x.elements() as f64)
    }

    fn workspace(&self, args: &[&Type], _results: &[&Type]) -> u64 {
        grad_workspace(args, 2)
    }

    fn cpu(&self, call: &Call<'_>) -> Result<(), OpError> {
        nn::norm::layer_norm_grad(call)
    }
}

/// Bytes for the partial sums of dw, and of db where `sums` is 2.
fn grad_workspace(args: &[&Type], sums: usize) -> u64 {
    let Some(x) = args.first() else { return 0 };
    let (columns, rows) =
        x.shape().split_last().map_or((1, 1), |(&last, lead)| (last, lead.iter().product()));
    let elements = nn::norm::grad_workspace(rows, columns, sums) as u64;
    elements.saturating_mul(x.dtype().accumulator().size() as u64)
}

impl Operation for RmsNorm {
    fn name(&self) -> &'static str {
        "rms_norm"
    }

    fn infer(&self, _graph: &Graph, args: &[&Type]) -> Result<Vec<Type>, OpError> {
        let [x, w] = expect_args(self.name(), args)?;
        let (_, statistic) = types(self.name(), x, &[w], args)?;
        Ok(vec![x.clone(), statistic])
    }

    fn grad(&self, graph: &mut Graph, at: &GradNode<'_>) -> Result<Gradient, OpError> {
        let (Some(g), None) = (at.cotangent(0), at.cotangent(1)) else {
            return Ok(Gradient::Decompose);
        };
        let node = graph.push(RmsNormGrad, &[at.arg(0)?, at.arg(1)?, at.result(1)?, g])?;
        let cotangents: Vec<_> = graph.node(node).results().map(Some).collect();
        Ok(Gradient::Args(wanted(at, &cotangents)))
    }

    fn decompose(&self, graph: &mut Graph, args: &[ValueId]) -> Result<Vec<ValueId>, OpError> {
        let &[x, w] = args else { return Err(OpError::new("internal: `rms_norm` takes 2 operands")) };
        let dtype = graph.ty(x).dtype();
        let x = graph.widen(x)?;
        let rstd = reciprocal_deviation(graph, x, self.eps)?;
        let scale = graph.along_last(rstd, x)?;
        let normal = graph.mul(x, scale)?;
        let w = parameter(graph, w, x)?;
        let y = graph.mul(normal, w)?;
        Ok(vec![graph.cast(y, dtype)?, rstd])
    }

    fn memory(&self) -> Memory {
        Memory { overwrites: vec![(0, 0)], strided: true, ..Memory::FRESH }
    }

    fn flops(&self, args: &[&Type], _results: &[&Type]) -> f64 {
        args.first().map_or(0.0, |x| 4.0 * x.elements() as f64)
    }

    fn cpu(&self, call: &Call<'_>) -> Result<(), OpError> {
        nn::norm::rms_norm(call, self.eps.as_f64())
    }

    fn attributes(&self) -> String {
        format!("eps={}", self.eps)
    }
}

impl Operation for RmsNormGrad {
    fn name(&self) -> &'static str {
        "rms_norm_grad"
    }

    fn infer(&self, _graph: &Graph, args: &[&Type]) -> Result<Vec<Type>, OpError> {
        let [x, w, rstd, g] = expect_args(self.name(), args)?;
        let (parameter, statistic) = types(self.name(), x, &[w], args)?;
        expect_type(self.name(), args, rstd, &statistic)?;
        expect_type(self.name(), args, g, x)?;
        Ok(vec![x.clone(), parameter])
    }

    fn grad(&self, _graph: &mut Graph, _at: &GradNode<'_>) -> Result<Gradient, OpError> {
        Ok(Gradient::Decompose)
    }

    fn decompose(&self, graph: &mut Graph, args: &[ValueId]) -> Result<Vec<ValueId>, OpError> {
        let &[x, w, rstd, g] = args else {
            return Err(OpError::new("internal: `rms_norm_grad` takes 4 operands"));
        };
        let dtype = graph.ty(x).dtype();
        let (x, g) = (graph.widen(x)?, graph.widen(g)?);
        let rstd = graph.along_last(rstd, x)?;
        let normal = graph.mul(x, rstd)?;
        let (dx, dw) = composed_gradients(graph, normal, rstd, w, g, false)?;
        Ok(vec![graph.cast(dx, dtype)?, graph.cast(dw, dtype)?])
    }

    fn memory(&self) -> Memory {
        Memory { overwrites: vec![(0, 0), (0, 3)], strided: true, ..Memory::FRESH }
    }

    fn flops(&self, args: &[&Type], _results: &[&Type]) -> f64 {
        args.first().map_or(0.0, |x| 9.0 * x.elements() as f64)
    }

    fn workspace(&self, args: &[&Type], _results: &[&Type]) -> u64 {
        grad_workspace(args, 1)
    }

    fn cpu(&self, call: &Call<'_>) -> Result<(), OpError> {
        nn::norm::rms_norm_grad(call)
    }
}
