//! Reductions.

use super::{
    Binary, Concat, GradNode, Gradient, Memory, OpError, Operation, Slice, SliceRange, Unary, expect_args,
};
use crate::{
    exec::cpu::{Call, reduce},
    ir::{DType, Graph, ShapeText, Type, ValueId},
};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ReduceKind {
    Sum,
    /// Accumulated wide, so that the mean of f16 values is finite where it fits.
    Mean,
    Max,
    Min,
    Prod,
}

/// Reduces the listed axes (ascending, without repeats) and drops them. Accumulates f16 and bf16
/// in f32. `Max` and `Min` give NaN where any element is NaN; their gradient is split evenly among
/// ties. Over no elements: sum 0, product 1, mean NaN, `Max` −∞, `Min` +∞ (integers: the least and
/// largest value of the type).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Reduce {
    pub kind: ReduceKind,
    pub axes: Box<[usize]>,
}

/// The index (i32) of the first largest (or smallest) element along an axis, which is dropped. NaN
/// counts as largest (and as smallest).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ArgReduce {
    pub largest: bool,
    pub axis: usize,
}

impl Operation for Reduce {
    fn name(&self) -> &'static str {
        match self.kind {
            ReduceKind::Sum => "sum",
            ReduceKind::Mean => "mean",
            ReduceKind::Max => "max",
            ReduceKind::Min => "min",
            ReduceKind::Prod => "prod",
        }
    }

    fn infer(&self, _graph: &Graph, args: &[&Type]) -> Result<Vec<Type>, OpError> {
        let [x] = expect_args(self.name(), args)?;
        let name = self.name();
        let ascending = self.axes.windows(2).all(|pair| matches!(pair, [a, b] if a < b));
        if !ascending || self.axes.last().is_some_and(|&last| last >= x.rank()) {
            return Err(OpError::new(format!(
                "`{name}` of {x} over the axes {}: each must be below {} and named once",
                ShapeText(&self.axes),
                x.rank()
            )));
        }
        let fault = match self.kind {
            ReduceKind::Mean if !x.dtype().is_float() => Some("needs floating-point values"),
            ReduceKind::Sum | ReduceKind::Prod if x.dtype() == DType::Bool => Some("needs numbers"),
            _ => None,
        };
        if let Some(fault) = fault {
            let to = if self.kind == ReduceKind::Mean { DType::F32 } else { DType::I32 };
            return Err(OpError::new(format!("`{name}` {fault}, got {x}"))
                .help(format!("convert it first: `{to}(x)` makes {}", x.with_dtype(to)?)));
        }
        let shape: Vec<usize> = x
            .shape()
            .iter()
            .enumerate()
            .filter(|(i, _)| !self.axes.contains(i))
            .map(|(_, &dim)| dim)
            .collect();
        Ok(vec![x.with_shape(shape)?])
    }

    fn grad(&self, graph: &mut Graph, at: &GradNode<'_>) -> Result<Gradient, OpError> {
        let x = at.arg(0)?;
        let ty = graph.ty(x).clone();
        if !ty.dtype().is_float() {
            return Ok(Gradient::Zero);
        }
        let Some(g) = at.cotangent(0) else { return Ok(Gradient::Args(vec![None])) };
        let dx = match self.kind {
            ReduceKind::Sum => self.spread(graph, g, &ty)?,
            ReduceKind::Mean => {
                // In the wide type: neither the count nor its reciprocal need fit into f16.
                let count: f64 =
                    self.axes.iter().filter_map(|&a| ty.shape().get(a)).map(|&dim| dim as f64).product();
                let wide = graph.cast(g, ty.dtype().accumulator())?;
                let count = graph.splat_like(wide, count)?;
                let share = graph.div(wide, count)?;
                let share = graph.cast(share, ty.dtype())?;
                self.spread(graph, share, &ty)?
            }
            ReduceKind::Max | ReduceKind::Min => {
                let wide = ty.dtype().accumulator();
                let extreme = self.spread(graph, at.result(0)?, &ty)?;
                let equal = graph.binary(Binary::Eq, x, extreme)?;
                // Where the result is NaN, the NaN elements are the ones that made it.
                let nan = graph.unary(Unary::IsNan, x)?;
                let chosen = graph.binary(Binary::Or, equal, nan)?;
                let ones = graph.cast(chosen, wide)?;
                let count = graph.reduce(ReduceKind::Sum, ones, &self.axes)?;
                let share = graph.cast(g, wide)?;
                let share = graph.div(share, count)?;
                let share = graph.cast(share, ty.dtype())?;
                let share = self.spread(graph, share, &ty)?;
                let zero = graph.splat_like(x, 0.0)?;
                graph.select(chosen, share, zero)?
            }
            ReduceKind::Prod => return Ok(Gradient::Decompose),
        };
        Ok(Gradient::Args(vec![Some(dx)]))
    }

    /// A product as a tree of products of halves. Its gradient is right where elements are 0, to
    /// any order, which no division by the elements gives.
    fn decompose(&self, graph: &mut Graph, args: &[ValueId]) -> Result<Vec<ValueId>, OpError> {
        let (ReduceKind::Prod, &[x]) = (self.kind, args) else {
            return Err(OpError::new(format!("internal: `{}` has no composed form", self.name())));
        };
        let ty = graph.ty(x).clone();
        let kept: Vec<usize> = (0..ty.rank()).filter(|axis| !self.axes.contains(axis)).collect();
        let order: Vec<usize> = kept.iter().chain(self.axes.iter()).copied().collect();
        let mut shape: Vec<usize> = kept.iter().filter_map(|&a| ty.shape().get(a).copied()).collect();
        let rows = shape.clone();
        let mut length: usize = self.axes.iter().filter_map(|&a| ty.shape().get(a)).product();
        shape.push(length);
        let moved = graph.transpose(x, &order)?;
        let mut value = graph.reshape(moved, &shape)?;
        if length == 0 {
            let one = graph.constant(ty.dtype(), 1.0)?;
            return Ok(vec![graph.broadcast(one, &rows)?]);
        }
        let part = |graph: &mut Graph, value: ValueId, start: usize, size: usize| {
            let mut ranges: Vec<SliceRange> =
                rows.iter().map(|&size| SliceRange { start: 0, step: 1, size }).collect();
            ranges.push(SliceRange { start, step: 1, size });
            graph.value(Slice { ranges: ranges.into() }, &[value])
        };
        while length > 1 {
            let half = length / 2;
            let (a, b) = (part(graph, value, 0, half)?, part(graph, value, half, half)?);
            let product = graph.mul(a, b)?;
            value = if length % 2 == 1 {
                let rest = part(graph, value, length - 1, 1)?;
                graph.value(Concat { axis: rows.len() }, &[product, rest])?
            } else {
                product
            };
            length = length.div_ceil(2);
        }
        Ok(vec![graph.reshape(value, &rows)?])
    }

    fn memory(&self) -> Memory {
        Memory { strided: true, ..Memory::FRESH }
    }

    fn flops(&self, args: &[&Type], _results: &[&Type]) -> f64 {
        args.iter().map(|t| t.elements() as f64).sum()
    }

    fn cpu(&self, call: &Call<'_>) -> Result<(), OpError> {
        reduce::run(call, self.kind, &self.axes)
    }

    fn attributes(&self) -> String {
        format!("axes={:?}", self.axes)
    }
}

impl Reduce {
    /// A value of the result's shape repeated along the reduced axes: a view.
    fn spread(&self, graph: &mut Graph, g: ValueId, to: &Type) -> Result<ValueId, OpError> {
        let kept: Vec<usize> = to
            .shape()
            .iter()
            .enumerate()
            .map(|(i, &dim)| if self.axes.contains(&i) { 1 } else { dim })
            .collect();
        let kept = graph.reshape(g, &kept)?;
        graph.broadcast(kept, to.shape())
    }
}

impl Operation for ArgReduce {
    fn name(&self) -> &'static str {
        if self.largest { "argmax" } else { "argmin" }
    }

    fn infer(&self, _graph: &Graph, args: &[&Type]) -> Result<Vec<Type>, OpError> {
        let [x] = expect_args(self.name(), args)?;
        let fault =
            |why: &str| OpError::new(format!("`{}` of {x} along axis {}: {why}", self.name(), self.axis));
        match x.shape().get(self.axis) {
            None => Err(fault("no such axis")),
            Some(0) => Err(fault("the axis has no elements")),
            Some(&size) if size > i32::MAX as usize => Err(fault("its indices do not fit into i32")),
            Some(_) => {
                let mut shape = x.shape().to_vec();
                shape.remove(self.axis);
                Ok(vec![Type::new(DType::I32, shape)?])
            }
        }
    }

    fn grad(&self, _graph: &mut Graph, _at: &GradNode<'_>) -> Result<Gradient, OpError> {
        Ok(Gradient::Zero)
    }

    fn memory(&self) -> Memory {
        Memory { strided: true, ..Memory::FRESH }
    }

    fn flops(&self, args: &[&Type], _results: &[&Type]) -> f64 {
        args.iter().map(|t| t.elements() as f64).sum()
    }

    fn cpu(&self, call: &Call<'_>) -> Result<(), OpError> {
        reduce::run_arg(call, self.largest, self.axis)
    }

    fn attributes(&self) -> String {
        format!("axis={}", self.axis)
    }
}
