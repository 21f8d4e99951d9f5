//! Short forms for building graphs, used by gradient rules, decompositions and elaboration.
//!
//! Operands must have the types that the op asks for; nothing is broadcast or cast silently.

use super::*;

impl Graph {
    pub fn unary(&mut self, op: Unary, x: ValueId) -> Result<ValueId, OpError> {
        self.value(op, &[x])
    }

    pub fn binary(&mut self, op: Binary, a: ValueId, b: ValueId) -> Result<ValueId, OpError> {
        self.value(op, &[a, b])
    }

    pub fn add(&mut self, a: ValueId, b: ValueId) -> Result<ValueId, OpError> {
        self.binary(Binary::Add, a, b)
    }

    pub fn sub(&mut self, a: ValueId, b: ValueId) -> Result<ValueId, OpError> {
        self.binary(Binary::Sub, a, b)
    }

    pub fn mul(&mut self, a: ValueId, b: ValueId) -> Result<ValueId, OpError> {
        self.binary(Binary::Mul, a, b)
    }

    pub fn div(&mut self, a: ValueId, b: ValueId) -> Result<ValueId, OpError> {
        self.binary(Binary::Div, a, b)
    }

    pub fn neg(&mut self, x: ValueId) -> Result<ValueId, OpError> {
        self.unary(Unary::Neg, x)
    }

    pub fn select(&mut self, condition: ValueId, a: ValueId, b: ValueId) -> Result<ValueId, OpError> {
        self.value(Select, &[condition, a, b])
    }

    /// `x` in another element type; `x` itself where it has that type.
    pub fn cast(&mut self, x: ValueId, to: DType) -> Result<ValueId, OpError> {
        if self.ty(x).dtype() == to { Ok(x) } else { self.value(Cast { to }, &[x]) }
    }

    /// A scalar constant of this element type.
    pub fn constant(&mut self, dtype: DType, value: f64) -> Result<ValueId, OpError> {
        let value = if dtype.is_float() { Number::float(value) } else { Number::Int(value as i64) };
        self.value(Const { dtype, value }, &[])
    }

    /// `value` in every element, with the type of `like`: a broadcast, never stored.
    pub fn splat_like(&mut self, like: ValueId, value: f64) -> Result<ValueId, OpError> {
        let ty = self.ty(like).clone();
        let scalar = self.constant(ty.dtype(), value)?;
        self.broadcast(scalar, ty.shape())
    }

    /// `x` broadcast to `shape`; `x` itself where it has that shape.
    pub fn broadcast(&mut self, x: ValueId, shape: &[usize]) -> Result<ValueId, OpError> {
        if self.ty(x).shape() == shape { Ok(x) } else { self.value(Broadcast { shape: shape.into() }, &[x]) }
    }

    /// `x` in another shape; `x` itself where it has that shape.
    pub fn reshape(&mut self, x: ValueId, shape: &[usize]) -> Result<ValueId, OpError> {
        if self.ty(x).shape() == shape { Ok(x) } else { self.value(Reshape { shape: shape.into() }, &[x]) }
    }

    pub fn transpose(&mut self, x: ValueId, axes: &[usize]) -> Result<ValueId, OpError> {
        if axes.iter().enumerate().all(|(i, &a)| i == a) {
            Ok(x)
        } else {
            self.value(Transpose { axes: axes.into() }, &[x])
        }
    }

    /// Swaps the last two axes.
    pub fn transpose_last(&mut self, x: ValueId) -> Result<ValueId, OpError> {
        let rank = self.ty(x).rank();
        let mut axes: Vec<usize> = (0..rank).collect();
        if rank >= 2 {
            axes.swap(rank - 2, rank - 1);
        }
        self.transpose(x, &axes)
    }

    /// Reduces `axes` and drops them; `x` itself for no axes.
    pub fn reduce(&mut self, kind: ReduceKind, x: ValueId, axes: &[usize]) -> Result<ValueId, OpError> {
        if axes.is_empty() { Ok(x) } else { self.value(Reduce { kind, axes: axes.into() }, &[x]) }
    }

    /// Reduces `axes` and keeps them with size 1.
    pub fn reduce_keep(&mut self, kind: ReduceKind, x: ValueId, axes: &[usize]) -> Result<ValueId, OpError> {
        let mut shape = self.ty(x).shape().to_vec();
        for &axis in axes {
            if let Some(dim) = shape.get_mut(axis) {
                *dim = 1;
            }
        }
        let reduced = self.reduce(kind, x, axes)?;
        self.reshape(reduced, &shape)
    }

    /// Sums away what broadcasting to the shape of `x` added, down to `shape`.
    pub fn sum_to(&mut self, x: ValueId, shape: &[usize]) -> Result<ValueId, OpError> {
        let from = self.ty(x).shape().to_vec();
        let lead = from.len().saturating_sub(shape.len());
        let axes: Vec<usize> = from
            .iter()
            .enumerate()
            .filter(|&(i, &dim)| i < lead || shape.get(i - lead).is_some_and(|&s| s == 1 && dim != 1))
            .map(|(i, _)| i)
            .collect();
        let summed = self.reduce(ReduceKind::Sum, x, &axes)?;
        self.reshape(summed, shape)
    }

    /// `whole` with `piece` written over the part at `ranges`.
    pub fn insert(
        &mut self,
        whole: ValueId,
        piece: ValueId,
        ranges: &[SliceRange],
    ) -> Result<ValueId, OpError> {
        self.value(Insert { ranges: ranges.into() }, &[whole, piece])
    }

    pub fn matmul(&mut self, a: ValueId, b: ValueId) -> Result<ValueId, OpError> {
        self.value(MatMul, &[a, b])
    }

    /// `x @ w.T + b` as one op, for x: [m, k], w: [n, k] and b: [n].
    pub fn linear(&mut self, x: ValueId, w: ValueId, b: ValueId) -> Result<ValueId, OpError> {
        let w = self.transpose_last(w)?;
        self.value(MatMul, &[x, w, b])
    }
}
