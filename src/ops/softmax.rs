//! Softmax over the last axis.

use super::{
    Binary, GradNode, Gradient, Memory, OpError, Operation, ReduceKind, Unary, expect_args, expect_float,
    network::{expect_type, same_float, split_last},
};
use crate::{
    exec::cpu::{Call, nn},
    ir::{Graph, Type, ValueId},
};

/// exp x / Σ exp x over the last axis. A row that is −∞ throughout gives 0s (not NaN), as does its
/// gradient; a row with +∞ or NaN gives NaN.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Softmax;

/// Operands (y, g) → y·(g − Σ g·y) over the last axis. Where y is 0 the result is, whatever g.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SoftmaxGrad;

/// x − log Σ exp x over the last axis. A row that is −∞ throughout stays so, and has no gradient.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct LogSoftmax;

impl Operation for Softmax {
    fn name(&self) -> &'static str {
        "softmax"
    }

    fn infer(&self, _graph: &Graph, args: &[&Type]) -> Result<Vec<Type>, OpError> {
        let [x] = expect_args(self.name(), args)?;
        expect_float(self.name(), x)?;
        split_last(self.name(), x)?;
        Ok(vec![x.clone()])
    }

    fn grad(&self, graph: &mut Graph, at: &GradNode<'_>) -> Result<Gradient, OpError> {
        let Some(g) = at.cotangent(0) else { return Ok(Gradient::Args(vec![None])) };
        Ok(Gradient::Args(vec![Some(graph.value(SoftmaxGrad, &[at.result(0)?, g])?)]))
    }

    fn decompose(&self, graph: &mut Graph, args: &[ValueId]) -> Result<Vec<ValueId>, OpError> {
        let &[x] = args else { return Err(OpError::new("internal: `softmax` takes 1 operand")) };
        let dtype = graph.ty(x).dtype();
        let x = graph.widen(x)?;
        let shift = graph.row_shift(x)?;
        let shift = graph.along_last(shift, x)?;
        let shifted = graph.sub(x, shift)?;
        let exp = graph.unary(Unary::Exp, shifted)?;
        let total = graph.reduce_last(ReduceKind::Sum, exp)?;
        let masked = graph.equals(total, 0.0)?;
        let total = graph.replace(masked, 1.0, total)?;
        let total = graph.along_last(total, exp)?;
        let y = graph.div(exp, total)?;
        Ok(vec![graph.cast(y, dtype)?])
    }

    fn memory(&self) -> Memory {
        Memory { overwrites: vec![(0, 0)], strided: true, ..Memory::FRESH }
    }

    fn flops(&self, _args: &[&Type], results: &[&Type]) -> f64 {
        results.iter().map(|t| 5.0 * t.elements() as f64).sum()
    }

    fn cpu(&self, call: &Call<'_>) -> Result<(), OpError> {
        nn::softmax::softmax(call)
    }
}

impl Operation for SoftmaxGrad {
    fn name(&self) -> &'static str {
        "softmax_grad"
    }

    fn infer(&self, _graph: &Graph, args: &[&Type]) -> Result<Vec<Type>, OpError> {
        let [y, g] = expect_args(self.name(), args)?;
        same_float(self.name(), args, args)?;
        split_last(self.name(), y)?;
        expect_type(self.name(), args, g, y)?;
        Ok(vec![y.clone()])
    }

    /// With s = Σ g·y and a cotangent h: for y, h·(g − s) − g·Σ h·y; for g, y·(h − Σ h·y).
    fn grad(&self, graph: &mut Graph, at: &GradNode<'_>) -> Result<Gradient, OpError> {
        let Some(h) = at.cotangent(0) else { return Ok(Gradient::Args(vec![None, None])) };
        let (y, g) = (at.arg(0)?, at.arg(1)?);
        let dy = if at.wants(0) {
            let dtype = graph.ty(y).dtype();
            let (wide_y, wide_g, wide_h) = (graph.widen(y)?, graph.widen(g)?, graph.widen(h)?);
            let gy = graph.mul(wide_g, wide_y)?;
            let s = graph.spread_last(ReduceKind::Sum, gy)?;
            let hy = graph.mul(wide_h, wide_y)?;
            let r = graph.spread_last(ReduceKind::Sum, hy)?;
            let centred = graph.sub(wide_g, s)?;
            let first = graph.mul(wide_h, centred)?;
            let second = graph.mul(wide_g, r)?;
            let dy = graph.sub(first, second)?;
            Some(graph.cast(dy, dtype)?)
        } else {
            None
        };
        let dg = if at.wants(1) { Some(graph.value(SoftmaxGrad, &[y, h])?) } else { None };
        Ok(Gradient::Args(vec![dy, dg]))
    }

    fn decompose(&self, graph: &mut Graph, args: &[ValueId]) -> Result<Vec<ValueId>, OpError> {
        let &[y, g] = args else { return Err(OpError::new("internal: `softmax_grad` takes 2 operands")) };
        let dtype = graph.ty(y).dtype();
        let (y, g) = (graph.widen(y)?, graph.widen(g)?);
        let zero = graph.equals(y, 0.0)?;
        let g = graph.replace(zero, 0.0, g)?;
        let gy = graph.mul(g, y)?;
        let total = graph.spread_last(ReduceKind::Sum, gy)?;
        let centred = graph.sub(g, total)?;
        let dx = graph.mul(y, centred)?;
        Ok(vec![graph.cast(dx, dtype)?])
    }

    fn memory(&self) -> Memory {
        Memory { overwrites: vec![(0, 0), (0, 1)], strided: true, ..Memory::FRESH }
    }

    fn flops(&self, _args: &[&Type], results: &[&Type]) -> f64 {
        results.iter().map(|t| 4.0 * t.elements() as f64).sum()
    }

    fn cpu(&self, call: &Call<'_>) -> Result<(), OpError> {
        nn::softmax::softmax_grad(call)
    }
}

impl Operation for LogSoftmax {
    fn name(&self) -> &'static str {
        "log_softmax"
    }

    fn infer(&self, _graph: &Graph, args: &[&Type]) -> Result<Vec<Type>, OpError> {
        let [x] = expect_args(self.name(), args)?;
        expect_float(self.name(), x)?;
        split_last(self.name(), x)?;
        Ok(vec![x.clone()])
    }

    /// g − exp(y)·Σ g, from the result alone; 0 for rows that are masked throughout.
    fn grad(&self, graph: &mut Graph, at: &GradNode<'_>) -> Result<Gradient, OpError> {
        let Some(g) = at.cotangent(0) else { return Ok(Gradient::Args(vec![None])) };
        let y = at.result(0)?;
        let dtype = graph.ty(y).dtype();
        let (y, g) = (graph.widen(y)?, graph.widen(g)?);
        let top = graph.spread_last(ReduceKind::Max, y)?;
        let least = graph.splat_like(top, f64::NEG_INFINITY)?;
        let masked = graph.binary(Binary::Eq, top, least)?;
        let p = graph.unary(Unary::Exp, y)?;
        let total = graph.spread_last(ReduceKind::Sum, g)?;
        let share = graph.mul(p, total)?;
        let dx = graph.sub(g, share)?;
        let dx = graph.replace(masked, 0.0, dx)?;
        Ok(Gradient::Args(vec![Some(graph.cast(dx, dtype)?)]))
    }

    fn decompose(&self, graph: &mut Graph, args: &[ValueId]) -> Result<Vec<ValueId>, OpError> {
        let &[x] = args else { return Err(OpError::new("internal: `log_softmax` takes 1 operand")) };
        let dtype = graph.ty(x).dtype();
        let x = graph.widen(x)?;
        let (shift, log) = graph.log_sum_exp_parts(x)?;
        let (shift, log) = (graph.along_last(shift, x)?, graph.along_last(log, x)?);
        let masked = graph.equals(log, f64::NEG_INFINITY)?;
        let y = graph.sub(x, shift)?;
        let y = graph.sub(y, log)?;
        let y = graph.replace(masked, f64::NEG_INFINITY, y)?;
        Ok(vec![graph.cast(y, dtype)?])
    }

    fn memory(&self) -> Memory {
        Memory { overwrites: vec![(0, 0)], strided: true, ..Memory::FRESH }
    }

    fn flops(&self, _args: &[&Type], results: &[&Type]) -> f64 {
        results.iter().map(|t| 4.0 * t.elements() as f64).sum()
    }

    fn cpu(&self, call: &Call<'_>) -> Result<(), OpError> {
        nn::softmax::log_softmax(call)
    }
}
