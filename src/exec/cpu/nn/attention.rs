//! Scaled dot-product attention over tiles of queries and keys, with a running softmax: Milakov and
//! Gimelshein, "Online normalizer calculation for softmax" (2018); Dao et al., "FlashAttention"
//! (2022).

use super::{
    product::{Matrix, product},
    real::{Accumulator, Real, for_float, vectorised},
    rows::{Rows, for_units, lanes, largest, sum},
};
use crate::{exec::cpu::Call, ir::Type, ops::OpError};

/// Queries of a tile.
pub const QUERIES: usize = 64;
/// Keys of a tile.
pub const KEYS: usize = 128;

/// The sizes of an attention.
#[derive(Clone, Copy)]
pub struct Heads {
    /// b · h
    pub heads: usize,
    /// t
    pub queries: usize,
    /// s
    pub keys: usize,
    /// d
    pub depth: usize,
    /// e
    pub values: usize,
    pub causal: bool,
    pub scale: f64,
}

impl Heads {
    /// For the types of q, k and v.
    pub fn new(q: &Type, k: &Type, v: &Type, causal: bool, scale: f64) -> Heads {
        let at = |ty: &Type, axis: usize| ty.shape().get(axis).copied().unwrap_or(0);
        Heads {
            heads: at(q, 0) * at(q, 1),
            queries: at(q, 2),
            keys: at(k, 2),
            depth: at(q, 3),
            values: at(v, 3),
            causal,
            scale,
        }
    }

    /// How many keys, from the first on, query `index` sees.
    #[inline(always)]
    pub fn visible(&self, index: usize) -> usize {
        if self.causal {
            (index + 1 + self.keys).saturating_sub(self.queries).min(self.keys)
        } else {
            self.keys
        }
    }

    /// Queries and keys of a tile.
    pub fn tile(&self) -> (usize, usize) {
        (QUERIES.min(self.queries), KEYS.min(self.keys))
    }

    fn query_tiles(&self) -> usize {
        self.queries.div_ceil(QUERIES)
    }

    /// Scratch memory of a lane, in elements: q, k, v, scores, sums, and two statistics a query.
    fn lane(&self) -> [usize; 6] {
        let (queries, keys) = self.tile();
        [
            queries.saturating_mul(self.depth),
            keys.saturating_mul(self.depth),
            keys.saturating_mul(self.values),
            queries * keys,
            queries.saturating_mul(self.values),
            2 * queries,
        ]
    }

    /// Elements of workspace, in the accumulator's type, for [`attention`].
    pub fn workspace(&self) -> usize {
        let units = self.heads * self.query_tiles();
        lanes(units).saturating_mul(self.lane().iter().fold(0, |a, &b| a.saturating_add(b)))
    }

    /// Pairs of a query and a key that it sees.
    pub fn pairs(&self) -> f64 {
        let (t, s) = (self.queries as f64, self.keys as f64);
        let seen = if !self.causal {
            t * s
        } else if s >= t {
            t * (s - t) + t * (t + 1.0) / 2.0
        } else {
            s * (s + 1.0) / 2.0
        };
        self.heads as f64 * seen
    }
}

/// Cuts the parts of a lane, of these lengths.
pub fn cut<A, const N: usize>(mut scratch: &mut [A], lengths: [usize; N]) -> [&mut [A]; N] {
    lengths.map(|len| {
        let (part, rest) = std::mem::take(&mut scratch).split_at_mut(len);
        scratch = rest;
        part
    })
}

/// Operands (q, k, v) → (o, lse).
pub fn attention(call: &Call<'_>, heads: Heads) -> Result<(), OpError> {
    for_float!(call.arg_operand(0)?.ty.dtype(), attention_of((call, heads)))
}

fn attention_of<T: Real>((call, heads): (&Call<'_>, Heads)) -> Result<(), OpError> {
    let q = Rows::<T>::new(&call.arg_operand(0)?)?;
    let k = Rows::<T>::new(&call.arg_operand(1)?)?;
    let v = Rows::<T>::new(&call.arg_operand(2)?)?;
    let o = Rows::<T>::new(&call.result_operand(0)?)?;
    let lse = Rows::<T::Acc>::elements(&call.result_operand(1)?)?;
    let tiles = heads.query_tiles();
    let lane = heads.lane();
    for_units(heads.heads * tiles, call.workspace(), lane.iter().sum(), |unit, scratch| {
        let (head, first) = (unit / tiles, unit % tiles * QUERIES);
        let count = QUERIES.min(heads.queries - first);
        let row = head * heads.queries + first;
        let [q_tile, k_tile, v_tile, scores, sums, statistics] = cut(scratch, lane);
        let (top, total) = statistics.split_at_mut(count);
        top.fill(T::Acc::NEG_INFINITY);
        total.fill(T::Acc::ZERO);
        let sums = &mut sums[..count * heads.values];
        sums.fill(T::Acc::ZERO);
        let seen = heads.visible(first + count - 1);
        // SAFETY: rows and tiles are inside the operands, which are only read; the scratch memory is
        // this lane's, of the sizes that `lane` counts; this unit alone writes its rows of o and lse.
        unsafe {
            let q = q.tile(row, count, q_tile);
            let to = Matrix::new(sums.as_mut_ptr(), heads.values, 1);
            for key in (0..seen).step_by(KEYS) {
                let keys = KEYS.min(seen - key);
                let k = k.tile(head * heads.keys + key, keys, k_tile);
                let v = v.tile(head * heads.keys + key, keys, v_tile);
                let scores = &mut scores[..count * keys];
                let tile = Matrix::new(scores.as_mut_ptr(), keys, 1);
                let scale = T::Acc::from_f64(heads.scale);
                product([count, heads.depth, keys], tile, false, scale, q, k.transposed());
                let visible = |query: usize| heads.visible(first + query).saturating_sub(key).min(keys);
                let mut limits = [0; QUERIES];
                for (query, limit) in limits.iter_mut().enumerate().take(count) {
                    *limit = visible(query);
                }
                online_softmax(scores, keys, &limits[..count], top, total, sums);
                product([count, keys, heads.values], to, true, T::Acc::ONE, tile, v);
            }
            for (query, (&top, &total)) in top.iter().zip(total.iter()).enumerate() {
                let masked = total == T::Acc::ZERO;
                let scale = if masked { T::Acc::ZERO } else { T::Acc::ONE / total };
                let sums = &mut sums[query * heads.values..(query + 1) * heads.values];
                sums.iter_mut().for_each(|sum| *sum *= scale);
                o.row(row + query).store(0, sums);
                let value = if masked { T::Acc::NEG_INFINITY } else { top + total.ln() };
                lse.row(row + query).set(0, value);
            }
        }
    })
}

vectorised! {
    /// Turns a tile of scores into unnormalised probabilities against the largest score so far, and
    /// scales what was summed before to it. Row r has `limits[r]` visible keys.
    fn online_softmax<A: Accumulator>(
        scores: &mut [A],
        keys: usize,
        limits: &[usize],
        top: &mut [A],
        total: &mut [A],
        sums: &mut [A],
    ) {
        let values = sums.len() / limits.len().max(1);
        for (row, &limit) in limits.iter().enumerate() {
            let (seen, hidden) = scores[row * keys..(row + 1) * keys].split_at_mut(limit);
            hidden.fill(A::ZERO);
            let here = largest(seen);
            let before = top[row];
            let now = if here > before { here } else { before };
            // Where everything so far is −∞, differences stay defined.
            let shift = if now == A::NEG_INFINITY { A::ZERO } else { now };
            for score in seen.iter_mut() {
                *score = (*score - shift).exp();
            }
            let fade = (before - shift).exp();
            total[row] = total[row] * fade + sum(seen);
            top[row] = now;
            if fade != A::ONE {
                for value in &mut sums[row * values..(row + 1) * values] {
                    *value *= fade;
                }
            }
        }
    }
}
