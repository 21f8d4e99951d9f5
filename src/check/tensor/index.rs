//! `x[…]`: indices, slices, new axes, and rows picked by a tensor of indices.

use super::{Operand, axes::resolve, rows::take};
use crate::{
    ir::{DType, Graph, ValueId},
    ops::{OpError, Slice, SliceRange},
};

/// One item between the brackets.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Index {
    /// One place of the axis, which is dropped; negative counts from the end.
    At(i64),
    /// `low..high..step`; bounds may be negative, and lie within the axis.
    Slice { low: Option<i64>, high: Option<i64>, step: Option<i64> },
    /// Whole numbers: the axis becomes the axes of this tensor.
    Tensor(ValueId),
    /// As many whole axes as fit.
    Ellipsis,
    /// A new axis of size 1.
    NewAxis,
}

/// What becomes of one axis of the operand (or, for `New`, of none).
enum Axis {
    Drop,
    Keep(usize),
    Pick(ValueId),
    New,
}

/// `x[items]`. Axes after the last item are whole.
///
/// Errors name the axis and its size: indices and slices out of bounds (a slice is not cut off
/// silently, as NumPy does it), negative steps, too many items, two tensors of indices.
pub fn index(graph: &mut Graph, x: Operand, items: &[Index]) -> Result<Operand, OpError> {
    let Operand::Tensor { value: x, .. } = x else {
        return Err(OpError::new(format!("{} has no axes to index", x.describe(graph))));
    };
    let shape = graph.ty(x).shape().to_vec();
    let items = expand(graph, x, items)?;
    let mut ranges = Vec::with_capacity(shape.len());
    let mut result = Vec::with_capacity(items.len());
    let mut sizes = shape.iter().enumerate();
    for item in items {
        if item == Index::NewAxis {
            result.push(Axis::New);
            continue;
        }
        let Some((axis, &size)) = sizes.next() else { break };
        let place = Place { graph, x, axis, size };
        let (range, becomes) = match item {
            Index::At(at) => (SliceRange { start: place.at(at)?, step: 1, size: 1 }, Axis::Drop),
            Index::Slice { low, high, step } => {
                let range = place.slice(low, high, step)?;
                (range, Axis::Keep(range.size))
            }
            Index::Tensor(ids) => (SliceRange { start: 0, step: 1, size }, place.pick(ids)?),
            Index::Ellipsis | Index::NewAxis => continue,
        };
        ranges.push(range);
        result.push(becomes);
    }
    if result.iter().filter(|a| matches!(a, Axis::Pick(_))).count() > 1 {
        return Err(OpError::new(format!("{} is indexed by more than one tensor", graph.ty(x)))
            .help("pick along one axis at a time, or use `one_hot` and a sum"));
    }
    let whole = ranges.iter().zip(&shape).all(|(r, &size)| r.start == 0 && r.step == 1 && r.size == size);
    let sliced = if whole { x } else { graph.value(Slice { ranges: ranges.into() }, &[x])? };
    arrange(graph, sliced, &result).map(Operand::tensor)
}

/// Drops, picks and adds axes of a value that has been sliced.
fn arrange(graph: &mut Graph, x: ValueId, axes: &[Axis]) -> Result<ValueId, OpError> {
    // Picking goes first among what is left, since it keeps the other axes as they are.
    let kept: Vec<&Axis> = axes.iter().filter(|a| matches!(a, Axis::Keep(_) | Axis::Pick(_))).collect();
    let pick = kept.iter().enumerate().find_map(|(i, a)| match a {
        Axis::Pick(ids) => Some((i, *ids)),
        _ => None,
    });
    let mut x = x;
    if let Some((position, ids)) = pick {
        let dropped: Vec<usize> = axes
            .iter()
            .filter(|a| !matches!(a, Axis::New))
            .zip(graph.ty(x).shape())
            .filter(|(a, _)| !matches!(a, Axis::Drop))
            .map(|(_, &size)| size)
            .collect();
        x = graph.reshape(x, &dropped)?;
        x = take(graph, x, ids, position)?;
    }
    let mut shape = Vec::with_capacity(axes.len());
    for axis in axes {
        match axis {
            Axis::Drop => {}
            Axis::Keep(size) => shape.push(*size),
            Axis::Pick(ids) => shape.extend_from_slice(graph.ty(*ids).shape()),
            Axis::New => shape.push(1),
        }
    }
    graph.reshape(x, &shape)
}

/// Items for every axis: the ellipsis, or the end of the list, stands for whole axes.
fn expand(graph: &Graph, x: ValueId, items: &[Index]) -> Result<Vec<Index>, OpError> {
    const WHOLE: Index = Index::Slice { low: None, high: None, step: None };
    let ty = graph.ty(x);
    let used = items.iter().filter(|i| !matches!(i, Index::Ellipsis | Index::NewAxis)).count();
    let Some(rest) = ty.rank().checked_sub(used) else {
        let axes = if ty.rank() == 1 { "axis" } else { "axes" };
        return Err(OpError::new(format!("{ty} has {} {axes}, but is indexed with {used} items", ty.rank())));
    };
    let mut expanded = Vec::with_capacity(items.len() + rest);
    let mut ellipsis = false;
    for &item in items {
        if item != Index::Ellipsis {
            expanded.push(item);
        } else if ellipsis {
            return Err(OpError::new(format!("{ty} is indexed with more than one `...`")));
        } else {
            ellipsis = true;
            expanded.extend(std::iter::repeat_n(WHOLE, rest));
        }
    }
    if !ellipsis {
        expanded.extend(std::iter::repeat_n(WHOLE, rest));
    }
    Ok(expanded)
}

/// One axis, for its errors.
struct Place<'a> {
    graph: &'a Graph,
    x: ValueId,
    axis: usize,
    size: usize,
}

impl Place<'_> {
    fn error(&self, what: String) -> OpError {
        let Place { graph, x, axis, size } = self;
        OpError::new(format!("{what} of axis {axis} is out of bounds: {} has {size} there", graph.ty(*x)))
    }

    fn at(&self, index: i64) -> Result<usize, OpError> {
        resolve(index, self.size).ok_or_else(|| self.error(format!("index {index}")))
    }

    fn slice(&self, low: Option<i64>, high: Option<i64>, step: Option<i64>) -> Result<SliceRange, OpError> {
        let text = || {
            let part = |p: Option<i64>| p.map(|p| p.to_string()).unwrap_or_default();
            let step = step.map(|s| format!("..{s}")).unwrap_or_default();
            format!("slice `{}..{}{step}`", part(low), part(high))
        };
        let step = match step {
            Some(step) if step < 0 => {
                return Err(OpError::new(format!("{} has a negative step", text()))
                    .help("slices run forward; steps are at least 1"));
            }
            Some(0) => {
                return Err(OpError::new(format!("{} has step 0", text())).help("steps are at least 1"));
            }
            Some(step) => usize::try_from(step).unwrap_or(usize::MAX),
            None => 1,
        };
        // A bound may also be the size itself, one past the last element.
        let bound =
            |b: i64| if b < 0 { resolve(b, self.size) } else { resolve(b, self.size.saturating_add(1)) };
        let start = low.map_or(Some(0), bound).ok_or_else(|| self.error(text()))?;
        let end = high.map_or(Some(self.size), bound).ok_or_else(|| {
            let error = self.error(text());
            match low {
                _ if high.is_some_and(|h| h < 0) => error,
                Some(low) => error.help(format!("`{low}..` goes to the end")),
                None => error.help("`..` is the whole axis"),
            }
        })?;
        if start > end {
            return Err(OpError::new(format!(
                "{} of axis {} runs backwards: {start} is after {end}",
                text(),
                self.axis
            )));
        }
        Ok(SliceRange { start, step, size: (end - start).div_ceil(step) })
    }

    fn pick(&self, ids: ValueId) -> Result<Axis, OpError> {
        let ty = self.graph.ty(ids);
        match ty.dtype() {
            d if d.is_int() => Ok(Axis::Pick(ids)),
            DType::Bool => Err(OpError::new(format!("a mask ({ty}) cannot index {}", self.graph.ty(self.x)))
                .help("how many elements it picks is not known before it runs; use `where(mask, x, 0)`")),
            _ => Err(OpError::new(format!("{ty} cannot index {}", self.graph.ty(self.x)))
                .help("indices are whole numbers: `i32(x)`")),
        }
    }
}
