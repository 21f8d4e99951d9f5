//! Gradients of the element-wise ops.
//!
//! A factor that is infinite at the edge of a domain (1/(2√x) at 0) times a cotangent of exactly 0
//! would be NaN, although nothing depends on it: the dead branch of a `where`. There the gradient
//! is 0. The test is on the singular point *and* the cotangent, so that second derivatives at
//! ordinary points, where a cotangent may well be 0, stay right.

use super::{Binary, GradNode, Gradient, OpError, Unary};
use crate::ir::{Graph, ValueId};

type Built = Result<ValueId, OpError>;

/// 0 where `g` is 0 and `singular` holds, else `value`.
fn unless_dead(graph: &mut Graph, g: ValueId, singular: ValueId, value: ValueId) -> Built {
    let zero = graph.splat_like(g, 0.0)?;
    let no_cotangent = graph.binary(Binary::Eq, g, zero)?;
    let dead = graph.binary(Binary::And, no_cotangent, singular)?;
    graph.select(dead, zero, value)
}

fn equals(graph: &mut Graph, x: ValueId, value: f64) -> Built {
    let value = graph.splat_like(x, value)?;
    graph.binary(Binary::Eq, x, value)
}

/// `x · factor`
fn scale(graph: &mut Graph, x: ValueId, factor: f64) -> Built {
    let factor = graph.splat_like(x, factor)?;
    graph.mul(x, factor)
}

/// `x + term`
fn shift(graph: &mut Graph, x: ValueId, term: f64) -> Built {
    let term = graph.splat_like(x, term)?;
    graph.add(x, term)
}

/// `1 − x`
fn one_minus(graph: &mut Graph, x: ValueId) -> Built {
    let one = graph.splat_like(x, 1.0)?;
    graph.sub(one, x)
}

pub(super) fn unary(op: Unary, graph: &mut Graph, at: &GradNode<'_>) -> Result<Gradient, OpError> {
    let (x, y) = (at.arg(0)?, at.result(0)?);
    if !graph.ty(x).dtype().is_float() {
        return Ok(Gradient::Zero);
    }
    let Some(g) = at.cotangent(0) else { return Ok(Gradient::Args(vec![None])) };
    let dx = match op {
        Unary::Sign | Unary::Floor | Unary::Ceil | Unary::Round | Unary::Not | Unary::IsNan => {
            return Ok(Gradient::Zero);
        }
        Unary::Neg => graph.neg(g)?,
        Unary::Abs => {
            let sign = graph.unary(Unary::Sign, x)?;
            let product = graph.mul(g, sign)?;
            let at_zero = equals(graph, x, 0.0)?;
            let zero = graph.splat_like(g, 0.0)?;
            graph.select(at_zero, zero, product)?
        }
        Unary::Exp => {
            let product = graph.mul(g, y)?;
            let overflow = equals(graph, y, f64::INFINITY)?;
            unless_dead(graph, g, overflow, product)?
        }
        Unary::Expm1 => {
            let slope = shift(graph, y, 1.0)?;
            let product = graph.mul(g, slope)?;
            let overflow = equals(graph, y, f64::INFINITY)?;
            unless_dead(graph, g, overflow, product)?
        }
        Unary::Log => {
            let quotient = graph.div(g, x)?;
            let singular = equals(graph, x, 0.0)?;
            unless_dead(graph, g, singular, quotient)?
        }
        Unary::Log1p => {
            let shifted = shift(graph, x, 1.0)?;
            let quotient = graph.div(g, shifted)?;
            let singular = equals(graph, x, -1.0)?;
            unless_dead(graph, g, singular, quotient)?
        }
        Unary::Sqrt => {
            let double = scale(graph, y, 2.0)?;
            let quotient = graph.div(g, double)?;
            let singular = equals(graph, y, 0.0)?;
            unless_dead(graph, g, singular, quotient)?
        }
        Unary::Rsqrt => {
            // −y³/2, multiplied from the side of g so that a large y³ does not overflow first.
            let half = scale(graph, g, -0.5)?;
            let once = graph.mul(half, y)?;
            let twice = graph.mul(once, y)?;
            let thrice = graph.mul(twice, y)?;
            let size = graph.unary(Unary::Abs, y)?;
            let singular = equals(graph, size, f64::INFINITY)?;
            unless_dead(graph, g, singular, thrice)?
        }
        Unary::Recip => {
            let negative = graph.neg(g)?;
            let once = graph.mul(negative, y)?;
            let twice = graph.mul(once, y)?;
            let size = graph.unary(Unary::Abs, y)?;
            let singular = equals(graph, size, f64::INFINITY)?;
            unless_dead(graph, g, singular, twice)?
        }
        Unary::Sin => {
            let slope = graph.unary(Unary::Cos, x)?;
            graph.mul(g, slope)?
        }
        Unary::Cos => {
            let slope = graph.unary(Unary::Sin, x)?;
            let product = graph.mul(g, slope)?;
            graph.neg(product)?
        }
        Unary::Tanh => {
            let square = graph.mul(y, y)?;
            let slope = one_minus(graph, square)?;
            graph.mul(g, slope)?
        }
        Unary::Sigmoid => {
            let rest = one_minus(graph, y)?;
            let slope = graph.mul(y, rest)?;
            graph.mul(g, slope)?
        }
        Unary::Relu => {
            // By the output; a NaN is not 0, so it hides nothing.
            let off = equals(graph, y, 0.0)?;
            let zero = graph.splat_like(g, 0.0)?;
            graph.select(off, zero, g)?
        }
        Unary::Gelu => {
            let slope = gelu_slope(graph, x)?;
            graph.mul(g, slope)?
        }
        Unary::Silu => {
            // s·(1 + x·(1 − s)), s = σ(x)
            let s = graph.unary(Unary::Sigmoid, x)?;
            let rest = one_minus(graph, s)?;
            let bent = graph.mul(x, rest)?;
            let bent = shift(graph, bent, 1.0)?;
            let slope = graph.mul(s, bent)?;
            graph.mul(g, slope)?
        }
        Unary::Erf => {
            let square = graph.mul(x, x)?;
            let negative = graph.neg(square)?;
            let bell = graph.unary(Unary::Exp, negative)?;
            let slope = scale(graph, bell, std::f64::consts::FRAC_2_SQRT_PI)?;
            graph.mul(g, slope)?
        }
    };
    Ok(Gradient::Args(vec![Some(dx)]))
}

/// gelu(x) = x·σ(2u) with u = √(2/π)·(x + 0.044715·x³), so its slope is s + x·s·(1 − s)·2u′. Beyond
/// ±10 the slope is 1 or 0 to every digit; clipping x there keeps x³ finite in every dtype.
fn gelu_slope(graph: &mut Graph, x: ValueId) -> Built {
    const CUBIC: f64 = 0.044715;
    let double_root = 2.0 * std::f64::consts::FRAC_2_PI.sqrt();
    let (low, high) = (graph.splat_like(x, -10.0)?, graph.splat_like(x, 10.0)?);
    let x = graph.binary(Binary::Max, x, low)?;
    let x = graph.binary(Binary::Min, x, high)?;
    let square = graph.mul(x, x)?;
    let bent = scale(graph, square, CUBIC)?;
    let bent = shift(graph, bent, 1.0)?;
    let bent = graph.mul(x, bent)?;
    let double_u = scale(graph, bent, double_root)?;
    let s = graph.unary(Unary::Sigmoid, double_u)?;
    // 1 − σ(2u) as σ(−2u) keeps its digits where σ is near 1.
    let opposite = graph.neg(double_u)?;
    let rest = graph.unary(Unary::Sigmoid, opposite)?;
    let bell = graph.mul(s, rest)?;
    let bell = graph.mul(x, bell)?;
    let slope = scale(graph, square, 3.0 * CUBIC)?;
    let slope = shift(graph, slope, 1.0)?;
    let slope = scale(graph, slope, double_root)?;
    let product = graph.mul(bell, slope)?;
    graph.add(s, product)
}

pub(super) fn binary(op: Binary, graph: &mut Graph, at: &GradNode<'_>) -> Result<Gradient, OpError> {
    let (a, b) = (at.arg(0)?, at.arg(1)?);
    let no_slope = matches!(
        op,
        Binary::FloorDiv
            | Binary::Eq
            | Binary::Ne
            | Binary::Lt
            | Binary::Le
            | Binary::Gt
            | Binary::Ge
            | Binary::And
            | Binary::Or
    );
    if no_slope || !graph.ty(a).dtype().is_float() {
        return Ok(Gradient::Zero);
    }
    let Some(g) = at.cotangent(0) else { return Ok(Gradient::Args(vec![None, None])) };
    let da = if at.wants(0) { first_operand(op, graph, at, g)? } else { None };
    let db = match (at.wants(1), op) {
        (false, _) => None,
        (true, Binary::Add) => Some(g),
        (true, Binary::Sub) => Some(graph.neg(g)?),
        (true, Binary::Mul) => Some(graph.mul(g, a)?),
        (true, Binary::Div) => {
            let share = graph.div(g, b)?;
            let product = graph.mul(share, at.result(0)?)?;
            let negative = graph.neg(product)?;
            let singular = equals(graph, b, 0.0)?;
            Some(unless_dead(graph, g, singular, negative)?)
        }
        (true, Binary::Rem) => {
            let quotient = graph.binary(Binary::FloorDiv, a, b)?;
            let product = graph.mul(g, quotient)?;
            Some(graph.neg(product)?)
        }
        (true, Binary::Pow) => {
            // g·aᵇ·log a; 0 at a = 0 for b ≥ 0, where the power does not move with its exponent. For
            // b < 0 it does, without bound.
            let log = graph.unary(Unary::Log, a)?;
            let product = graph.mul(g, at.result(0)?)?;
            let product = graph.mul(product, log)?;
            let at_zero = equals(graph, a, 0.0)?;
            let zero = graph.splat_like(g, 0.0)?;
            let flat = graph.binary(Binary::Ge, b, zero)?;
            let flat = graph.binary(Binary::And, at_zero, flat)?;
            let product = graph.select(flat, zero, product)?;
            Some(unless_dead(graph, g, at_zero, product)?)
        }
        (true, Binary::Max) => Some(winner(graph, g, a, b, Binary::Lt)?),
        (true, Binary::Min) => Some(winner(graph, g, a, b, Binary::Gt)?),
        (true, _) => None,
    };
    Ok(Gradient::Args(vec![da, db]))
}

fn first_operand(
    op: Binary,
    graph: &mut Graph,
    at: &GradNode<'_>,
    g: ValueId,
) -> Result<Option<ValueId>, OpError> {
    let (a, b) = (at.arg(0)?, at.arg(1)?);
    Ok(Some(match op {
        Binary::Add | Binary::Sub | Binary::Rem => g,
        Binary::Mul => graph.mul(g, b)?,
        Binary::Div => {
            let quotient = graph.div(g, b)?;
            let singular = equals(graph, b, 0.0)?;
            unless_dead(graph, g, singular, quotient)?
        }
        Binary::Pow => {
            // g·b·aᵇ⁻¹; 0 for b = 0 even where a is 0.
            let lower = shift(graph, b, -1.0)?;
            let power = graph.binary(Binary::Pow, a, lower)?;
            let slope = graph.mul(b, power)?;
            let product = graph.mul(g, slope)?;
            let constant = equals(graph, b, 0.0)?;
            let zero = graph.splat_like(g, 0.0)?;
            let product = graph.select(constant, zero, product)?;
            let singular = equals(graph, a, 0.0)?;
            unless_dead(graph, g, singular, product)?
        }
        Binary::Max => winner(graph, g, b, a, Binary::Lt)?,
        Binary::Min => winner(graph, g, b, a, Binary::Gt)?,
        _ => return Ok(None),
    }))
}

/// The share of `g` that `mine` gets from max (`beaten` is `Lt`) or min (`Gt`) of `other` and
/// `mine`: all where it wins or where either is NaN, half at ties, else nothing.
fn winner(graph: &mut Graph, g: ValueId, other: ValueId, mine: ValueId, beaten: Binary) -> Built {
    let half = scale(graph, g, 0.5)?;
    let tie = graph.binary(Binary::Eq, mine, other)?;
    let share = graph.select(tie, half, g)?;
    let lost = graph.binary(beaten, mine, other)?;
    let zero = graph.splat_like(g, 0.0)?;
    graph.select(lost, zero, share)
}

pub(super) fn select(graph: &mut Graph, at: &GradNode<'_>) -> Result<Gradient, OpError> {
    let (condition, a) = (at.arg(0)?, at.arg(1)?);
    if !graph.ty(a).dtype().is_float() {
        return Ok(Gradient::Zero);
    }
    let Some(g) = at.cotangent(0) else { return Ok(Gradient::Args(vec![None, None, None])) };
    let zero = graph.splat_like(g, 0.0)?;
    let da = if at.wants(1) { Some(graph.select(condition, g, zero)?) } else { None };
    let db = if at.wants(2) { Some(graph.select(condition, zero, g)?) } else { None };
    Ok(Gradient::Args(vec![None, da, db]))
}
