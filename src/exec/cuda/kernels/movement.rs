//! Ops that only move elements: copies, concatenations, paddings, literals.

use super::{
    Address, Kernel, OpError, Tensor, Work,
    call::Call,
    launch::{THREADS, bits, index_type, locate, with_types},
};
use crate::{
    exec::cpu::strided::{Axis, Walk},
    ops::{Layout, Literal, SliceRange},
};

const TEXT: &str = include_str!("movement.cu");

/// Where the elements of an operand go.
struct Target {
    first: Address,
    /// By the operand's axes, in elements.
    strides: Vec<usize>,
}

/// A dense copy.
pub(super) fn copy(from: &Tensor, to: &Tensor) -> Result<Vec<Work>, OpError> {
    transfer(from, &Target { first: to.address(), strides: to.strides().to_vec() })
}

/// The operands one after another along `axis`.
pub(super) fn concat(call: &Call, axis: usize) -> Result<Vec<Work>, OpError> {
    let to = call.result(0)?;
    let mut works = Vec::new();
    let mut start = 0;
    for from in &call.args {
        let skipped = start * to.stride(axis) * to.dtype().size();
        let first = Address { offset: to.address().offset + skipped as u64, ..to.address() };
        works.extend(transfer(from, &Target { first, strides: to.strides().to_vec() })?);
        start += from.dim(axis);
    }
    Ok(works)
}

/// Zeros, with the operand at `ranges`.
pub(super) fn pad(call: &Call, ranges: &[SliceRange]) -> Result<Vec<Work>, OpError> {
    let (from, to) = (call.arg(0)?, call.result(0)?);
    let mut works = zero(to);
    works.extend(transfer(from, &part(from, to, ranges))?);
    Ok(works)
}

/// Operand 0, with operand 1 at `ranges`. Nothing is copied that was planned into its place.
pub(super) fn insert(call: &Call, ranges: &[SliceRange]) -> Result<Vec<Work>, OpError> {
    let (whole, piece, to) = (call.arg(0)?, call.arg(1)?, call.result(0)?);
    let mut works = copy(whole, to)?;
    works.extend(transfer(piece, &part(piece, to, ranges))?);
    Ok(works)
}

/// Where the elements of `from` go as a part of `to`.
fn part(from: &Tensor, to: &Tensor, ranges: &[SliceRange]) -> Target {
    let strides = to.strides().iter().zip(ranges);
    let skipped: usize = strides.clone().map(|(stride, range)| range.start * stride).sum();
    let strides = match from.shape().len() == ranges.len() {
        true => strides.map(|(stride, range)| stride * range.step).collect(),
        // A tensor that goes into a vector row by row.
        false => Layout::dense(from.shape()).strides.to_vec(),
    };
    let mut first = to.address();
    if from.elements() > 0 {
        first.offset += (skipped * to.dtype().size()) as u64;
    }
    Target { first, strides }
}

pub(super) fn zero(tensor: &Tensor) -> Vec<Work> {
    match tensor.bytes() {
        0 => Vec::new(),
        bytes => vec![Work::Zero { at: tensor.address(), bytes }],
    }
}

pub(super) fn literal(call: &Call, literal: &Literal) -> Result<Vec<Work>, OpError> {
    if literal.data.is_empty() {
        return Ok(Vec::new());
    }
    Ok(vec![Work::Upload { bytes: literal.data.clone(), to: call.result(0)?.address() }])
}

fn transfer(from: &Tensor, to: &Target) -> Result<Vec<Work>, OpError> {
    if from.elements() == 0 || from.address() == to.first && from.strides() == to.strides {
        return Ok(Vec::new());
    }
    let target = Layout { offset: 0, strides: to.strides.clone().into() };
    if from.is_dense() && target.is_dense(from.shape()) {
        return Ok(vec![Work::Copy { from: from.address(), to: to.first, bytes: from.bytes() }]);
    }
    let axes = from.shape().iter().zip(from.strides()).zip(&to.strides);
    let walk = Walk::new(axes.map(|((&size, &s), &t)| Axis { size, strides: [s, t] }));
    let to_reach: usize = walk.axes.iter().map(|axis| (axis.size - 1) * axis.strides[1]).sum();
    let index = index_type(from.reach().max(to_reach).max(from.elements()));
    // The axis along which the source has its elements beside each other, if it is not the last.
    let turned = match walk.axes.split_last() {
        Some((last, outer)) if last.strides[1] == 1 && last.strides[0] > 1 && last.size >= 8 => {
            outer.iter().position(|axis| axis.strides[0] == 1 && axis.size >= 8)
        }
        _ => None,
    };
    let functions = |axes: &[Axis<2>], names: [&str; 2]| {
        let sizes: Vec<usize> = axes.iter().map(|axis| axis.size).collect();
        let strides =
            |k: usize| axes.iter().map(|axis| axis.strides.get(k).copied().unwrap_or(0)).collect::<Vec<_>>();
        let [first, second] = names;
        locate(first, &sizes, &strides(0)) + &locate(second, &sizes, &strides(1))
    };
    let types = [("T", bits(from.dtype().size())), ("I", index)];
    let (one, planes) = (["from_at", "to_at"], ["plane_from_at", "plane_to_at"]);
    if let (Some(turned), Some((columns, outer))) = (turned, walk.axes.split_last())
        && let Some(rows) = outer.get(turned)
    {
        let mut outer = outer.to_vec();
        outer.remove(turned);
        let count: usize = outer.iter().map(|axis| axis.size).product();
        let text = functions(&[], one) + &functions(&outer, planes) + TEXT;
        let squares = rows.size.div_ceil(32) * columns.size.div_ceil(32) * count;
        let work = Kernel::new(with_types(&types, &text), "turn")
            .arg(from)
            .arg(to.first)
            .sizes([rows.size, columns.size, rows.strides[1], columns.strides[0]])
            .blocks(squares, 1, 1, THREADS)?;
        return Ok(vec![work]);
    }
    let text = functions(&walk.axes, one) + &functions(&[], planes) + TEXT;
    let work = Kernel::new(with_types(&types, &text), "transfer")
        .arg(from)
        .arg(to.first)
        .size(from.elements())
        .for_each(from.elements(), THREADS)?;
    Ok(vec![work])
}
