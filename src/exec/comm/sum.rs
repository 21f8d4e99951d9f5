//! Sums over ranks, in rank order: x0 + x1, then + x2, and so on. The 16-bit floats are summed in
//! f32 and rounded once; whole numbers wrap.

use half::{bf16, f16};

use crate::ir::DType;

/// The sum of `parts`, one per rank and in their order, into `sum`. All have the same number of
/// bytes. Messages have no alignment, so elements are read from bytes.
pub(super) fn in_rank_order(dtype: DType, parts: &[&[u8]], sum: &mut [u8]) {
    match dtype {
        DType::F32 => fold::<4, f32>(parts, sum, f32::from_ne_bytes, |a, b| a + b, f32::to_ne_bytes),
        DType::F64 => fold::<8, f64>(parts, sum, f64::from_ne_bytes, |a, b| a + b, f64::to_ne_bytes),
        DType::F16 => {
            let read = |bytes| f16::from_ne_bytes(bytes).to_f32();
            fold::<2, f32>(parts, sum, read, |a, b| a + b, |x| f16::from_f32(x).to_ne_bytes());
        }
        DType::BF16 => {
            let read = |bytes| bf16::from_ne_bytes(bytes).to_f32();
            fold::<2, f32>(parts, sum, read, |a, b| a + b, |x| bf16::from_f32(x).to_ne_bytes());
        }
        DType::I32 => fold::<4, i32>(parts, sum, i32::from_ne_bytes, i32::wrapping_add, i32::to_ne_bytes),
        DType::I64 => fold::<8, i64>(parts, sum, i64::from_ne_bytes, i64::wrapping_add, i64::to_ne_bytes),
        DType::U8 => fold::<1, u8>(parts, sum, u8::from_ne_bytes, u8::wrapping_add, u8::to_ne_bytes),
        // Types refuse to sum bools; "any" is what a sum of truth values would be.
        DType::Bool => fold::<1, u8>(parts, sum, u8::from_ne_bytes, |a, b| a | b, u8::to_ne_bytes),
    }
}

fn fold<const N: usize, T: Copy>(
    parts: &[&[u8]],
    sum: &mut [u8],
    read: impl Fn([u8; N]) -> T,
    add: impl Fn(T, T) -> T,
    write: impl Fn(T) -> [u8; N],
) {
    // A few hundred elements at a time, so that partial sums stay in the cache.
    const BLOCK: usize = 256;
    let mut partial: Vec<T> = Vec::with_capacity(BLOCK);
    for (block, target) in sum.chunks_mut(BLOCK * N).enumerate() {
        let start = block * BLOCK * N;
        partial.clear();
        for (k, part) in parts.iter().enumerate() {
            let (values, _) = part.get(start..start + target.len()).unwrap_or_default().as_chunks::<N>();
            if k == 0 {
                partial.extend(values.iter().map(|&value| read(value)));
            } else {
                for (sum, &value) in partial.iter_mut().zip(values) {
                    *sum = add(*sum, read(value));
                }
            }
        }
        for (bytes, &value) in target.chunks_exact_mut(N).zip(&partial) {
            bytes.copy_from_slice(&write(value));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|v| v.to_ne_bytes()).collect()
    }

    #[test]
    fn sums_are_in_rank_order() {
        // 1e8 + 1 is 1e8 in f32: the order shows.
        let (a, b, c) = (bytes(&[1e8; 300]), bytes(&[1.0; 300]), bytes(&[-1e8; 300]));
        let mut sum = vec![0; 1200];
        in_rank_order(DType::F32, &[&a, &b, &c], &mut sum);
        assert_eq!(sum, bytes(&[0.0; 300]));
        in_rank_order(DType::F32, &[&a, &c, &b], &mut sum);
        assert_eq!(sum, bytes(&[1.0; 300]));
    }

    #[test]
    fn halves_are_rounded_once_and_whole_numbers_wrap() {
        let half = |x: f32| f16::from_f32(x).to_ne_bytes();
        let mut sum = [0; 2];
        // 2048 + 1 is 2048 in f16; 2050 is exact.
        in_rank_order(DType::F16, &[&half(2048.0), &half(1.0), &half(1.0)], &mut sum);
        assert_eq!(sum, half(2050.0));
        let mut sum = [0];
        in_rank_order(DType::U8, &[&[200], &[100]], &mut sum);
        assert_eq!(sum, [44]);
    }
}
