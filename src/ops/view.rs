//! Views: the elements of an operand under another shape, in its buffer.

use super::{GradNode, Gradient, Memory, OpError, Operation, Pad, expect_args};
use crate::ir::{Graph, ShapeText, Type};

/// Where the elements of a value lie in its buffer, counted in elements.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Layout {
    pub offset: usize,
    /// One stride per axis; 0 along a broadcast axis.
    pub strides: Box<[usize]>,
}

impl Layout {
    /// Row-major, without gaps.
    pub fn dense(shape: &[usize]) -> Layout {
        let mut strides = vec![0; shape.len()].into_boxed_slice();
        let mut next = 1usize;
        for (stride, &dim) in strides.iter_mut().zip(shape).rev() {
            *stride = next;
            next = next.saturating_mul(dim.max(1));
        }
        Layout { offset: 0, strides }
    }

    /// Row-major without gaps, from wherever it starts. Axes of size 1 do not matter.
    pub fn is_dense(&self, shape: &[usize]) -> bool {
        if shape.contains(&0) {
            return true;
        }
        let dense = Layout::dense(shape);
        self.strides.iter().zip(&dense.strides).zip(shape).all(|((a, b), &dim)| dim == 1 || a == b)
    }

    /// The layout of the same elements in the order of `to`, or `None` where no strides give it:
    /// each run of axes of `to` must fall on a run of axes of `from` without gaps inside.
    pub fn reshaped(&self, from: &[usize], to: &[usize]) -> Option<Layout> {
        if from.contains(&0) || self.is_dense(from) {
            return Some(Layout { offset: self.offset, strides: Layout::dense(to).strides });
        }
        // Axes of size 1 carry no information; the others are matched in groups of equal size.
        let old: Vec<(usize, usize)> =
            from.iter().copied().zip(self.strides.iter().copied()).filter(|&(dim, _)| dim != 1).collect();
        let mut strides = vec![0usize; to.len()].into_boxed_slice();
        let (mut next_old, mut next_new) = (0, 0);
        while next_old < old.len() {
            let (first, mut product_old, mut product_new) = (next_old, 1usize, 1usize);
            let first_new = next_new;
            loop {
                if product_old != 1 && product_old == product_new {
                    break;
                }
                if product_old <= product_new {
                    product_old = product_old.checked_mul(old.get(next_old)?.0)?;
                    next_old += 1;
                } else {
                    product_new = product_new.checked_mul(*to.get(next_new)?)?;
                    next_new += 1;
                }
            }
            let group = old.get(first..next_old)?;
            for pair in group.windows(2) {
                if let [(_, outer), (dim, inner)] = pair
                    && *outer != dim.checked_mul(*inner)?
                {
                    return None;
                }
            }
            let mut stride = group.last()?.1;
            for axis in (first_new..next_new).rev() {
                *strides.get_mut(axis)? = stride;
                stride = stride.checked_mul(*to.get(axis)?)?;
            }
        }
        Some(Layout { offset: self.offset, strides })
    }
}

/// The parts that are the same for every view: no bytes, no arithmetic.
macro_rules! view {
    () => {
        fn memory(&self) -> Memory {
            Memory::VIEW
        }

        fn flops(&self, _args: &[&Type], _results: &[&Type]) -> f64 {
            0.0
        }
    };
}

/// The same elements in another shape.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Reshape {
    pub shape: Box<[usize]>,
}

/// Axis `k` of the result is axis `axes[k]` of the operand.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Transpose {
    pub axes: Box<[usize]>,
}

/// NumPy's broadcasting: axes are aligned at the end, sizes of 1 repeat.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Broadcast {
    pub shape: Box<[usize]>,
}

/// `start, start + step, …`, `size` elements of one axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SliceRange {
    pub start: usize,
    pub step: usize,
    pub size: usize,
}

/// A part of every axis; `ranges` has one entry per axis. In bounds, `step` at least 1.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Slice {
    pub ranges: Box<[SliceRange]>,
}

impl Operation for Reshape {
    fn name(&self) -> &'static str {
        "reshape"
    }

    fn infer(&self, _graph: &Graph, args: &[&Type]) -> Result<Vec<Type>, OpError> {
        let [x] = expect_args(self.name(), args)?;
        let result = x.with_shape(self.shape.clone())?;
        if result.elements() != x.elements() {
            return Err(OpError::new(format!(
                "`reshape` of {x} to {}: {} elements do not fit {}",
                ShapeText(&self.shape),
                x.elements(),
                result.elements()
            )));
        }
        Ok(vec![result])
    }

    fn grad(&self, graph: &mut Graph, at: &GradNode<'_>) -> Result<Gradient, OpError> {
        let Some(g) = at.cotangent(0) else { return Ok(Gradient::Args(vec![None])) };
        let shape = graph.ty(at.arg(0)?).shape().to_vec();
        Ok(Gradient::Args(vec![Some(graph.reshape(g, &shape)?)]))
    }

    fn view(&self, operand: &Layout, operand_type: &Type, result_type: &Type) -> Option<Layout> {
        operand.reshaped(operand_type.shape(), result_type.shape())
    }

    fn attributes(&self) -> String {
        format!("shape={:?}", self.shape)
    }

    view!();
}

impl Operation for Transpose {
    fn name(&self) -> &'static str {
        "transpose"
    }

    fn infer(&self, _graph: &Graph, args: &[&Type]) -> Result<Vec<Type>, OpError> {
        let [x] = expect_args(self.name(), args)?;
        let mut seen = vec![false; x.rank()];
        for &axis in &self.axes {
            match seen.get_mut(axis) {
                Some(seen) if !*seen => *seen = true,
                _ => return Err(self.not_a_permutation(x)),
            }
        }
        if self.axes.len() != x.rank() {
            return Err(self.not_a_permutation(x));
        }
        let shape: Vec<usize> = self.axes.iter().filter_map(|&a| x.shape().get(a).copied()).collect();
        Ok(vec![x.with_shape(shape)?])
    }

    fn grad(&self, graph: &mut Graph, at: &GradNode<'_>) -> Result<Gradient, OpError> {
        let Some(g) = at.cotangent(0) else { return Ok(Gradient::Args(vec![None])) };
        let mut inverse = vec![0; self.axes.len()];
        for (to, &from) in self.axes.iter().enumerate() {
            if let Some(axis) = inverse.get_mut(from) {
                *axis = to;
            }
        }
        Ok(Gradient::Args(vec![Some(graph.transpose(g, &inverse)?)]))
    }

    fn view(&self, operand: &Layout, _operand_type: &Type, _result_type: &Type) -> Option<Layout> {
        let strides: Option<Box<[usize]>> =
            self.axes.iter().map(|&axis| operand.strides.get(axis).copied()).collect();
        Some(Layout { offset: operand.offset, strides: strides? })
    }

    fn attributes(&self) -> String {
        format!("axes={:?}", self.axes)
    }

    view!();
}

impl Transpose {
    fn not_a_permutation(&self, x: &Type) -> OpError {
        OpError::new(format!(
            "`transpose` of {x} by {}: the axes must be 0 to {}, each once",
            ShapeText(&self.axes),
            x.rank().saturating_sub(1)
        ))
    }
}

impl Operation for Broadcast {
    fn name(&self) -> &'static str {
        "broadcast"
    }

    fn infer(&self, _graph: &Graph, args: &[&Type]) -> Result<Vec<Type>, OpError> {
        let [x] = expect_args(self.name(), args)?;
        let fits = x.rank() <= self.shape.len()
            && x.shape()
                .iter()
                .rev()
                .zip(self.shape.iter().rev())
                .all(|(&from, &to)| from == to || from == 1);
        if !fits {
            return Err(OpError::new(format!(
                "`broadcast` of {x} to {}: the shapes do not fit",
                ShapeText(&self.shape)
            ))
            .help("axes are aligned at the end; each must be equal, or 1 in the operand"));
        }
        Ok(vec![x.with_shape(self.shape.clone())?])
    }

    fn grad(&self, graph: &mut Graph, at: &GradNode<'_>) -> Result<Gradient, OpError> {
        let Some(g) = at.cotangent(0) else { return Ok(Gradient::Args(vec![None])) };
        let shape = graph.ty(at.arg(0)?).shape().to_vec();
        Ok(Gradient::Args(vec![Some(graph.sum_to(g, &shape)?)]))
    }

    fn view(&self, operand: &Layout, operand_type: &Type, result_type: &Type) -> Option<Layout> {
        let lead = result_type.rank().checked_sub(operand_type.rank())?;
        let kept = operand
            .strides
            .iter()
            .zip(operand_type.shape())
            .zip(result_type.shape().get(lead..)?)
            .map(|((&stride, &from), &to)| if from == 1 && to != 1 { 0 } else { stride });
        Some(Layout { offset: operand.offset, strides: std::iter::repeat_n(0, lead).chain(kept).collect() })
    }

    fn attributes(&self) -> String {
        format!("shape={:?}", self.shape)
    }

    view!();
}

/// `(start, step, size)` of every axis, for the text form and for messages.
pub(super) fn ranges_text(ranges: &[SliceRange]) -> String {
    let parts: Vec<String> =
        ranges.iter().map(|r| format!("({}, {}, {})", r.start, r.step, r.size)).collect();
    format!("[{}]", parts.join(", "))
}

/// Whether the ranges choose a part of this shape.
pub(super) fn sizes_are(ranges: &[SliceRange], shape: &[usize]) -> bool {
    ranges.len() == shape.len() && ranges.iter().zip(shape).all(|(r, &dim)| r.size == dim)
}

/// Whether every range lies inside its axis.
pub(super) fn ranges_fit(ranges: &[SliceRange], shape: &[usize]) -> bool {
    ranges.len() == shape.len()
        && ranges.iter().zip(shape).all(|(r, &dim)| {
            r.step >= 1
                && match r.size.checked_sub(1) {
                    None => r.start <= dim,
                    Some(steps) => steps
                        .checked_mul(r.step)
                        .and_then(|length| length.checked_add(r.start))
                        .is_some_and(|last| last < dim),
                }
        })
}

impl Operation for Slice {
    fn name(&self) -> &'static str {
        "slice"
    }

    fn infer(&self, _graph: &Graph, args: &[&Type]) -> Result<Vec<Type>, OpError> {
        let [x] = expect_args(self.name(), args)?;
        if !ranges_fit(&self.ranges, x.shape()) {
            return Err(OpError::new(format!(
                "`slice` of {x} by (start, step, size) {} goes out of bounds",
                ranges_text(&self.ranges)
            )));
        }
        let shape: Vec<usize> = self.ranges.iter().map(|r| r.size).collect();
        Ok(vec![x.with_shape(shape)?])
    }

    fn grad(&self, graph: &mut Graph, at: &GradNode<'_>) -> Result<Gradient, OpError> {
        let Some(g) = at.cotangent(0) else { return Ok(Gradient::Args(vec![None])) };
        let shape = graph.ty(at.arg(0)?).shape().into();
        Ok(Gradient::Args(vec![Some(graph.value(Pad { shape, ranges: self.ranges.clone() }, &[g])?)]))
    }

    fn view(&self, operand: &Layout, _operand_type: &Type, result_type: &Type) -> Option<Layout> {
        let mut offset = operand.offset;
        let mut strides = Vec::with_capacity(self.ranges.len());
        for (range, &stride) in self.ranges.iter().zip(&operand.strides) {
            // An empty result has no first element, so it must not point past the buffer.
            if !result_type.shape().contains(&0) {
                offset = offset.checked_add(range.start.checked_mul(stride)?)?;
            }
            strides.push(if range.size <= 1 { stride } else { stride.checked_mul(range.step)? });
        }
        Some(Layout { offset, strides: strides.into() })
    }

    fn attributes(&self) -> String {
        format!("ranges={}", ranges_text(&self.ranges))
    }

    view!();
}
