//! What the rules of the network ops share: checks of operands and pieces of composed forms.

use super::{Binary, GradNode, Iota, OpError, Pad, ReduceKind, Slice, SliceRange, StopGrad, Unary};
use crate::ir::{DType, Graph, Type, ValueId};

/// "`name` of f32[2, 3] and i32[4]: why".
pub(super) fn fault(name: &str, args: &[&Type], why: impl std::fmt::Display) -> OpError {
    let mut text = format!("`{name}`");
    for (k, ty) in args.iter().enumerate() {
        text += match k {
            0 => " of ",
            _ if k + 1 == args.len() => " and ",
            _ => ", ",
        };
        text += &ty.to_string();
    }
    OpError::new(format!("{text}: {why}"))
}

/// Requires that all operands have the element type of the first, a floating-point one.
pub(super) fn same_float(name: &str, args: &[&Type], all: &[&Type]) -> Result<(), OpError> {
    let Some((first, rest)) = args.split_first() else { return Ok(()) };
    super::expect_float(name, first)?;
    if rest.iter().any(|ty| ty.dtype() != first.dtype()) {
        return Err(fault(name, all, "the element types differ")
            .help(format!("convert the others: `{}(x)`", first.dtype())));
    }
    Ok(())
}

/// Requires whole numbers that can be row or class numbers.
pub(super) fn expect_index(name: &str, what: &str, ty: &Type, all: &[&Type]) -> Result<(), OpError> {
    if ty.dtype().is_int() {
        return Ok(());
    }
    Err(fault(name, all, format!("{what} must be whole numbers, not {}", ty.dtype()))
        .help("convert them first: `i32(x)`"))
}

/// Requires an operand of an internal op to have the type that its forward op gives it.
pub(super) fn expect_type(name: &str, all: &[&Type], got: &Type, expected: &Type) -> Result<(), OpError> {
    if got == expected { Ok(()) } else { Err(fault(name, all, format!("{got} where {expected} belongs"))) }
}

/// The axes before the last, and the size of the last.
pub(super) fn split_last<'a>(name: &str, ty: &'a Type) -> Result<(&'a [usize], usize), OpError> {
    match ty.shape().split_last() {
        Some((&last, lead)) => Ok((lead, last)),
        None => Err(OpError::new(format!("`{name}` needs at least one axis, got the scalar {ty}"))),
    }
}

/// How often a window fits along a padded axis: the size of the output of a convolution or a pooling.
pub(super) fn window_count(
    axis: &str,
    size: usize,
    kernel: usize,
    stride: usize,
    padding: usize,
    dilation: usize,
) -> Result<usize, String> {
    for (what, value) in [("kernel", kernel), ("stride", stride), ("dilation", dilation)] {
        if value == 0 {
            return Err(format!("the {what}'s {axis} must be at least 1"));
        }
    }
    // Kernels compute positions in the padded axis, so these sizes must fit whatever the result.
    let limit = |value: Option<usize>| value.filter(|&v| v <= isize::MAX as usize / 4);
    let padded = limit(padding.checked_mul(2).and_then(|p| p.checked_add(size)));
    let span = limit((kernel - 1).checked_mul(dilation).and_then(|s| s.checked_add(1)));
    let (Some(padded), Some(span), true) = (padded, span, stride <= isize::MAX as usize / 4) else {
        return Err(format!("the padded {axis} is too large"));
    };
    if span > padded {
        return Err(format!("a window of {axis} {span} does not fit into the padded {axis} {padded}"));
    }
    Ok((padded - span) / stride + 1)
}

/// The cotangents that are wanted; the others are dropped.
pub(super) fn wanted(at: &GradNode<'_>, cotangents: &[Option<ValueId>]) -> Vec<Option<ValueId>> {
    cotangents.iter().enumerate().map(|(k, &c)| c.filter(|_| at.wants(k))).collect()
}

impl Graph {
    /// `x` in the type in which its sums are accumulated.
    pub(super) fn widen(&mut self, x: ValueId) -> Result<ValueId, OpError> {
        let to = self.ty(x).dtype().accumulator();
        self.cast(x, to)
    }

    /// One value a row, repeated along a new last axis, as `like`.
    pub(super) fn along_last(&mut self, x: ValueId, like: ValueId) -> Result<ValueId, OpError> {
        let shape = self.ty(like).shape().to_vec();
        let mut column = shape.clone();
        if let Some(last) = column.last_mut() {
            *last = 1;
        }
        let column = self.reshape(x, &column)?;
        self.broadcast(column, &shape)
    }

    /// Reduces the last axis and drops it.
    pub(super) fn reduce_last(&mut self, kind: ReduceKind, x: ValueId) -> Result<ValueId, OpError> {
        let last = self.ty(x).rank().saturating_sub(1);
        self.reduce(kind, x, &[last])
    }

    /// Reduces the last axis and repeats the result along it.
    pub(super) fn spread_last(&mut self, kind: ReduceKind, x: ValueId) -> Result<ValueId, OpError> {
        let reduced = self.reduce_last(kind, x)?;
        self.along_last(reduced, x)
    }

    /// `x` times a constant.
    pub(super) fn scaled(&mut self, x: ValueId, factor: f64) -> Result<ValueId, OpError> {
        let factor = self.splat_like(x, factor)?;
        self.mul(x, factor)
    }

    /// The sum of one or more values of one type, in order.
    pub(super) fn sum_of(&mut self, parts: &[ValueId]) -> Result<ValueId, OpError> {
        let mut parts = parts.iter();
        let first = parts.next().copied();
        let mut total = first.ok_or_else(|| OpError::new("internal: a sum of no values"))?;
        for &part in parts {
            total = self.add(total, part)?;
        }
        Ok(total)
    }

    /// Whether elements of `x` equal a constant.
    pub(super) fn equals(&mut self, x: ValueId, value: f64) -> Result<ValueId, OpError> {
        let value = self.splat_like(x, value)?;
        self.binary(Binary::Eq, x, value)
    }

    /// `value` where the condition holds, else `x`.
    pub(super) fn replace(&mut self, condition: ValueId, value: f64, x: ValueId) -> Result<ValueId, OpError> {
        let value = self.splat_like(x, value)?;
        self.select(condition, value, x)
    }

    /// The largest element of each row, 0 where all are −∞; without the last axis.
    pub(super) fn row_shift(&mut self, x: ValueId) -> Result<ValueId, OpError> {
        let top = self.reduce_last(ReduceKind::Max, x)?;
        let masked = self.equals(top, f64::NEG_INFINITY)?;
        self.replace(masked, 0.0, top)
    }

    /// `row_shift` as a constant: for what does not depend on it, though it is computed with it.
    pub(super) fn fixed_row_shift(&mut self, x: ValueId) -> Result<ValueId, OpError> {
        let shift = self.row_shift(x)?;
        self.value(StopGrad, &[shift])
    }

    /// log Σ exp over the last axis, which is dropped, in two parts whose sum it is: the largest
    /// element, and the logarithm of the sum against it. The second is −∞, without a gradient, where
    /// all elements are.
    pub(super) fn log_sum_exp_parts(&mut self, x: ValueId) -> Result<(ValueId, ValueId), OpError> {
        let shift = self.fixed_row_shift(x)?;
        let spread = self.along_last(shift, x)?;
        let shifted = self.sub(x, spread)?;
        let exp = self.unary(Unary::Exp, shifted)?;
        let total = self.reduce_last(ReduceKind::Sum, exp)?;
        let empty = self.equals(total, 0.0)?;
        // Not the logarithm of 0: its gradient times 0 would be NaN.
        let total = self.replace(empty, 1.0, total)?;
        let log = self.unary(Unary::Log, total)?;
        Ok((shift, self.replace(empty, f64::NEG_INFINITY, log)?))
    }

    /// log Σ exp over the last axis, which is dropped.
    pub(super) fn log_sum_exp(&mut self, x: ValueId) -> Result<ValueId, OpError> {
        let (shift, log) = self.log_sum_exp_parts(x)?;
        self.add(shift, log)
    }

    /// Where the class of a column is the label of its row: bool, with the shape of `logits`.
    pub(super) fn is_label(&mut self, labels: ValueId, logits: ValueId) -> Result<ValueId, OpError> {
        let ty = self.ty(logits).with_dtype(DType::I64)?;
        let axis = ty.rank().saturating_sub(1);
        let classes = self.value(Iota { ty, axis }, &[])?;
        let labels = self.cast(labels, DType::I64)?;
        let labels = self.along_last(labels, classes)?;
        self.binary(Binary::Eq, classes, labels)
    }

    /// A part of the last two axes, all of those before.
    pub(super) fn tap(
        &mut self,
        x: ValueId,
        rows: SliceRange,
        columns: SliceRange,
    ) -> Result<ValueId, OpError> {
        let ranges = tap_ranges(self.ty(x).shape(), rows, columns);
        self.value(Slice { ranges: ranges.into() }, &[x])
    }

    /// `x` at these places of the last two axes, zeros elsewhere, up to these sizes.
    pub(super) fn untap(
        &mut self,
        x: ValueId,
        (height, width): (usize, usize),
        rows: SliceRange,
        columns: SliceRange,
    ) -> Result<ValueId, OpError> {
        let mut shape = self.ty(x).shape().to_vec();
        if let [.., h, w] = shape.as_mut_slice() {
            (*h, *w) = (height, width);
        }
        let ranges = tap_ranges(&shape, rows, columns);
        self.value(Pad { shape: shape.into(), ranges: ranges.into() }, &[x])
    }

    /// Zeros around the last two axes.
    pub(super) fn pad_planes(&mut self, x: ValueId, padding: (usize, usize)) -> Result<ValueId, OpError> {
        if padding == (0, 0) {
            return Ok(x);
        }
        let [.., height, width] = *self.ty(x).shape() else { return Ok(x) };
        let (rows, columns) = interior((height, width), padding);
        self.untap(x, (height + 2 * padding.0, width + 2 * padding.1), rows, columns)
    }

    /// The transpose of [`Graph::pad_planes`].
    pub(super) fn unpad_planes(&mut self, x: ValueId, padding: (usize, usize)) -> Result<ValueId, OpError> {
        if padding == (0, 0) {
            return Ok(x);
        }
        let [.., height, width] = *self.ty(x).shape() else { return Ok(x) };
        let size = (height.saturating_sub(2 * padding.0), width.saturating_sub(2 * padding.1));
        let (rows, columns) = interior(size, padding);
        self.tap(x, rows, columns)
    }
}

fn interior((height, width): (usize, usize), (top, left): (usize, usize)) -> (SliceRange, SliceRange) {
    (SliceRange { start: top, step: 1, size: height }, SliceRange { start: left, step: 1, size: width })
}

fn tap_ranges(shape: &[usize], rows: SliceRange, columns: SliceRange) -> Vec<SliceRange> {
    let lead = shape.len().saturating_sub(2);
    let mut ranges: Vec<SliceRange> =
        shape.iter().take(lead).map(|&size| SliceRange { start: 0, step: 1, size }).collect();
    ranges.extend([rows, columns]);
    ranges
}
