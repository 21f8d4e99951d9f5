//! Ops that move elements into a buffer of their own.

use super::{
    GradNode, Gradient, Memory, OpError, Operation, Slice, SliceRange, expect_args,
    view::{ranges_fit, ranges_text, sizes_are},
};
use crate::{
    exec::cpu::{Call, movement},
    ir::{Graph, ShapeText, Type},
};

/// A dense copy.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Copy;

/// Joins one or more operands along an axis.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Concat {
    pub axis: usize,
}

/// Puts the operand into zeros of `shape`, at `ranges` (whose sizes are the operand's shape): the
/// gradient of [`Slice`].
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Pad {
    pub shape: Box<[usize]>,
    pub ranges: Box<[SliceRange]>,
}

/// Operand 0 with operand 1 written over the part at `ranges`, whose sizes are the shape of operand
/// 1; where operand 0 is a vector, operand 1 may have any shape with as many elements. Where operand 0
/// is dead afterwards, its buffer is the result's and only the part is written.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Insert {
    pub ranges: Box<[SliceRange]>,
}

impl Operation for Copy {
    fn name(&self) -> &'static str {
        "copy"
    }

    fn infer(&self, _graph: &Graph, args: &[&Type]) -> Result<Vec<Type>, OpError> {
        let [x] = expect_args(self.name(), args)?;
        Ok(vec![x.clone()])
    }

    fn grad(&self, _graph: &mut Graph, at: &GradNode<'_>) -> Result<Gradient, OpError> {
        Ok(Gradient::Args(vec![at.cotangent(0)]))
    }

    fn memory(&self) -> Memory {
        Memory { strided: true, ..Memory::FRESH }
    }

    fn flops(&self, _args: &[&Type], _results: &[&Type]) -> f64 {
        0.0
    }

    fn cpu(&self, call: &Call<'_>) -> Result<(), OpError> {
        movement::copy(call)
    }
}

impl Operation for Concat {
    fn name(&self) -> &'static str {
        "concat"
    }

    fn infer(&self, _graph: &Graph, args: &[&Type]) -> Result<Vec<Type>, OpError> {
        let Some((first, others)) = args.split_first() else {
            return Err(OpError::new("`concat` needs at least one operand"));
        };
        let mut shape = first.shape().to_vec();
        let Some(total) = shape.get_mut(self.axis) else {
            return Err(OpError::new(format!("`concat` along axis {} of {first}: no such axis", self.axis)));
        };
        for other in others {
            let same = other.dtype() == first.dtype()
                && other.rank() == first.rank()
                && other
                    .shape()
                    .iter()
                    .zip(first.shape())
                    .enumerate()
                    .all(|(i, (a, b))| i == self.axis || a == b);
            if !same {
                return Err(OpError::new(format!(
                    "`concat` of {first} and {other} along axis {}: only this axis may differ",
                    self.axis
                )));
            }
            let size = other.shape().get(self.axis).copied().unwrap_or(0);
            *total = total
                .checked_add(size)
                .ok_or_else(|| OpError::new(format!("`concat` of {first} and {other} is too large")))?;
        }
        Ok(vec![first.with_shape(shape)?])
    }

    fn grad(&self, graph: &mut Graph, at: &GradNode<'_>) -> Result<Gradient, OpError> {
        let Some(g) = at.cotangent(0) else { return Ok(Gradient::Args(vec![None; at.args.len()])) };
        let mut start = 0;
        let mut cotangents = Vec::with_capacity(at.args.len());
        for (k, &arg) in at.args.iter().enumerate() {
            let shape = graph.ty(arg).shape().to_vec();
            let ranges: Box<[SliceRange]> = shape
                .iter()
                .enumerate()
                .map(|(axis, &size)| SliceRange {
                    start: if axis == self.axis { start } else { 0 },
                    step: 1,
                    size,
                })
                .collect();
            start += shape.get(self.axis).copied().unwrap_or(0);
            cotangents.push(if at.wants(k) { Some(graph.value(Slice { ranges }, &[g])?) } else { None });
        }
        Ok(Gradient::Args(cotangents))
    }

    fn memory(&self) -> Memory {
        Memory { strided: true, ..Memory::FRESH }
    }

    fn flops(&self, _args: &[&Type], _results: &[&Type]) -> f64 {
        0.0
    }

    fn cpu(&self, call: &Call<'_>) -> Result<(), OpError> {
        movement::concat(call, self.axis)
    }

    fn attributes(&self) -> String {
        format!("axis={}", self.axis)
    }
}

impl Operation for Pad {
    fn name(&self) -> &'static str {
        "pad"
    }

    fn infer(&self, _graph: &Graph, args: &[&Type]) -> Result<Vec<Type>, OpError> {
        let [x] = expect_args(self.name(), args)?;
        if !sizes_are(&self.ranges, x.shape()) || !ranges_fit(&self.ranges, &self.shape) {
            return Err(OpError::new(format!(
                "`pad` of {x} to {} at (start, step, size) {} does not fit",
                ShapeText(&self.shape),
                ranges_text(&self.ranges)
            )));
        }
        Ok(vec![x.with_shape(self.shape.clone())?])
    }

    fn grad(&self, graph: &mut Graph, at: &GradNode<'_>) -> Result<Gradient, OpError> {
        let Some(g) = at.cotangent(0) else { return Ok(Gradient::Args(vec![None])) };
        Ok(Gradient::Args(vec![Some(graph.value(Slice { ranges: self.ranges.clone() }, &[g])?)]))
    }

    fn memory(&self) -> Memory {
        Memory { strided: true, ..Memory::FRESH }
    }

    fn flops(&self, _args: &[&Type], _results: &[&Type]) -> f64 {
        0.0
    }

    fn cpu(&self, call: &Call<'_>) -> Result<(), OpError> {
        movement::pad(call, &self.ranges)
    }

    fn attributes(&self) -> String {
        format!("shape={:?}, ranges={}", self.shape, ranges_text(&self.ranges))
    }
}

impl Operation for Insert {
    fn name(&self) -> &'static str {
        "insert"
    }

    fn infer(&self, _graph: &Graph, args: &[&Type]) -> Result<Vec<Type>, OpError> {
        let [whole, piece] = expect_args(self.name(), args)?;
        // Into a vector, a piece of any shape goes row by row.
        let is_row = matches!(&self.ranges[..], [range] if range.step == 1 && range.size == piece.elements());
        if whole.dtype() != piece.dtype()
            || !(is_row || sizes_are(&self.ranges, piece.shape()))
            || !ranges_fit(&self.ranges, whole.shape())
        {
            return Err(OpError::new(format!(
                "`insert` of {piece} into {whole} at (start, step, size) {} does not fit",
                ranges_text(&self.ranges)
            )));
        }
        Ok(vec![whole.clone()])
    }

    fn grad(&self, graph: &mut Graph, at: &GradNode<'_>) -> Result<Gradient, OpError> {
        let Some(g) = at.cotangent(0) else { return Ok(Gradient::Args(vec![None, None])) };
        let whole = if at.wants(0) {
            let zeros = graph.splat_like(at.arg(1)?, 0.0)?;
            Some(graph.insert(g, zeros, &self.ranges)?)
        } else {
            None
        };
        let shape = graph.ty(at.arg(1)?).shape().to_vec();
        let piece = if at.wants(1) {
            let slice = graph.value(Slice { ranges: self.ranges.clone() }, &[g])?;
            Some(if graph.ty(slice).shape() == shape { slice } else { graph.reshape(slice, &shape)? })
        } else {
            None
        };
        Ok(Gradient::Args(vec![whole, piece]))
    }

    fn memory(&self) -> Memory {
        Memory { overwrites: vec![(0, 0)], strided: true, ..Memory::FRESH }
    }

    fn flops(&self, _args: &[&Type], _results: &[&Type]) -> f64 {
        0.0
    }

    fn cpu(&self, call: &Call<'_>) -> Result<(), OpError> {
        movement::insert(call, &self.ranges)
    }

    fn attributes(&self) -> String {
        format!("ranges={}", ranges_text(&self.ranges))
    }
}
