//! The gradient of attention: tiles of probabilities are computed again from the saved log-sum-exp.

use super::{
    attention::{Heads, KEYS, QUERIES, cut},
    product::{Matrix, product},
    real::{Accumulator, Real, for_float, vectorised},
    rows::{BLOCK, Rows, Shared, blocks, dot, for_units, lanes},
};
use crate::{exec::cpu::Call, ops::OpError};

impl Heads {
    /// Scratch memory of a lane of the gradient, in elements: tiles of q, k, v and g, probabilities
    /// and their gradients, Σ g·o of every query; and where results are summed in another type, dq
    /// of the head and tiles of dk and dv.
    fn grad_lane(&self, exact: bool) -> [usize; 10] {
        let (queries, keys) = self.tile();
        let sums = usize::from(!exact);
        [
            queries.saturating_mul(self.depth),
            keys.saturating_mul(self.depth),
            keys.saturating_mul(self.values),
            queries.saturating_mul(self.values),
            queries * keys,
            queries * keys,
            self.queries,
            sums * self.queries.saturating_mul(self.depth),
            sums * keys.saturating_mul(self.depth),
            sums * keys.saturating_mul(self.values),
        ]
    }

    /// Elements of workspace, in the accumulator's type, for [`attention_grad`]. `exact`: the element
    /// type is its own accumulator.
    pub fn grad_workspace(&self, exact: bool) -> usize {
        let lane = self.grad_lane(exact).iter().fold(0, |a: usize, &b| a.saturating_add(b));
        lanes(self.heads).saturating_mul(lane)
    }
}

/// Operands (q, k, v, o, lse, g) → (dq, dk, dv).
pub fn attention_grad(call: &Call<'_>, heads: Heads) -> Result<(), OpError> {
    for_float!(call.arg_operand(0)?.ty.dtype(), grad_of((call, heads)))
}

fn grad_of<T: Real>((call, heads): (&Call<'_>, Heads)) -> Result<(), OpError> {
    let q = Rows::<T>::new(&call.arg_operand(0)?)?;
    let k = Rows::<T>::new(&call.arg_operand(1)?)?;
    let v = Rows::<T>::new(&call.arg_operand(2)?)?;
    let o = Rows::<T>::new(&call.arg_operand(3)?)?;
    let lse = Rows::<T::Acc>::elements(&call.arg_operand(4)?)?;
    let g = Rows::<T>::new(&call.arg_operand(5)?)?;
    let dq = Shared::of(call.result::<T>(0)?);
    let dk = Shared::of(call.result::<T>(1)?);
    let dv = Shared::of(call.result::<T>(2)?);
    let lane = heads.grad_lane(T::EXACT);
    let Heads { queries, keys, depth, values, .. } = heads;
    let scale = T::Acc::from_f64(heads.scale);
    for_units(heads.heads, call.workspace(), lane.iter().sum(), |head, scratch| {
        let [q_tile, k_tile, v_tile, g_tile, p, dp, delta, dq_sums, dk_sums, dv_sums] = cut(scratch, lane);
        // SAFETY: rows and tiles are inside the operands, which are only read; the scratch memory is
        // this lane's, of the sizes that `grad_lane` counts; this unit alone writes its head of the
        // results.
        unsafe {
            row_dots::<T>(g, o, head * queries, delta);
            let dq = dq.write(head * queries * depth, queries * depth);
            let dq_sums = sums::<T>(dq, dq_sums);
            dq_sums.fill(T::Acc::ZERO);
            let dq_start = dq_sums.as_mut_ptr();
            for key in (0..keys).step_by(KEYS) {
                let width = KEYS.min(keys - key);
                let k = k.tile(head * keys + key, width, k_tile);
                let v = v.tile(head * keys + key, width, v_tile);
                let dk = dk.write((head * keys + key) * depth, width * depth);
                let dv = dv.write((head * keys + key) * values, width * values);
                let dk_sums = sums::<T>(dk, dk_sums);
                let dv_sums = sums::<T>(dv, dv_sums);
                dk_sums.fill(T::Acc::ZERO);
                dv_sums.fill(T::Acc::ZERO);
                let dk_to = Matrix::new(dk_sums.as_mut_ptr(), depth, 1);
                let dv_to = Matrix::new(dv_sums.as_mut_ptr(), values, 1);
                // The first query that sees a key of the tile.
                let first = if heads.causal { (key + queries).saturating_sub(keys) } else { 0 };
                for query in (first / QUERIES * QUERIES..queries).step_by(QUERIES) {
                    let count = QUERIES.min(queries - query);
                    let row = head * queries + query;
                    let q = q.tile(row, count, q_tile);
                    let g = g.tile(row, count, g_tile);
                    let (p, dp) = (&mut p[..count * width], &mut dp[..count * width]);
                    let p_tile = Matrix::new(p.as_mut_ptr(), width, 1);
                    let dp_tile = Matrix::new(dp.as_mut_ptr(), width, 1);
                    product([count, depth, width], p_tile, false, scale, q, k.transposed());
                    product([count, values, width], dp_tile, false, T::Acc::ONE, g, v.transposed());
                    for r in 0..count {
                        let limit = heads.visible(query + r).saturating_sub(key).min(width);
                        score_gradients(
                            &mut p[r * width..(r + 1) * width],
                            &mut dp[r * width..(r + 1) * width],
                            limit,
                            lse.row(row + r).get(0),
                            delta[query + r],
                        );
                    }
                    let dq_to = Matrix::new(dq_start.wrapping_add(query * depth), depth, 1);
                    product([width, count, values], dv_to, true, T::Acc::ONE, p_tile.transposed(), g);
                    product([count, width, depth], dq_to, true, scale, dp_tile, k);
                    product([width, count, depth], dk_to, true, scale, dp_tile.transposed(), q);
                }
                if !T::EXACT {
                    T::narrow_slice(dk_sums, dk);
                    T::narrow_slice(dv_sums, dv);
                }
            }
            if !T::EXACT {
                T::narrow_slice(dq_sums, dq);
            }
        }
    })
}

/// Where a result is summed: in place, or in scratch memory of the accumulator's type.
///
/// # Safety
/// The result in place is not used while the sums are.
unsafe fn sums<'a, T: Real>(result: &mut [T], scratch: &'a mut [T::Acc]) -> &'a mut [T::Acc] {
    if T::EXACT {
        // SAFETY: the type is its own accumulator; the memory is the result's, which outlives the
        // call and is not used at the same time (the caller's promise).
        unsafe { std::slice::from_raw_parts_mut(result.as_mut_ptr().cast::<T::Acc>(), result.len()) }
    } else {
        &mut scratch[..result.len()]
    }
}

vectorised! {
    /// `delta[r]` = Σ g·o of row `first + r`.
    fn row_dots<T: Real>(g: Rows<'_, T>, o: Rows<'_, T>, first: usize, delta: &mut [T::Acc]) {
        let mut g_buffer = [T::Acc::ZERO; BLOCK];
        let mut o_buffer = [T::Acc::ZERO; BLOCK];
        let columns = o.columns;
        for (index, delta) in delta.iter_mut().enumerate() {
            let (g, o) = (g.row(first + index), o.row(first + index));
            *delta = T::Acc::ZERO;
            for (start, len) in blocks(columns) {
                let (g_block, o_block) = (&mut g_buffer[..len], &mut o_buffer[..len]);
                // SAFETY: the block is inside the rows, which nobody writes.
                unsafe {
                    g.load(start, g_block);
                    o.load(start, o_block);
                }
                *delta += dot(g_block, o_block);
            }
        }
    }
}

vectorised! {
    /// A row of scores becomes the probabilities p (0 beyond `limit`), and dp their gradients
    /// p·(dp − delta).
    fn score_gradients<A: Accumulator>(p: &mut [A], dp: &mut [A], limit: usize, lse: A, delta: A) {
        // A query that sees nothing, or −∞ only, has no gradient.
        let limit = if lse == A::NEG_INFINITY { 0 } else { limit };
        let (seen, hidden) = p.split_at_mut(limit);
        hidden.fill(A::ZERO);
        for score in seen.iter_mut() {
            *score = (*score - lse).exp();
        }
        let (seen_dp, hidden_dp) = dp.split_at_mut(limit);
        hidden_dp.fill(A::ZERO);
        for (dp, &p) in seen_dp.iter_mut().zip(seen.iter()) {
            *dp = p * (*dp - delta);
        }
    }
}
