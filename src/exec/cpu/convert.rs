//! Half-precision numbers as bits. Without branches and calls, so that loops over them vectorise;
//! the results are those of the `half` crate.

/// The value of an f16, exactly.
#[inline(always)]
pub(crate) fn f16_to_f32(h: u16) -> f32 {
    let magnitude = u32::from(h & 0x7fff);
    let sign = u32::from(h & 0x8000) << 16;
    // The exponent is 112 too small; the multiplication also makes denormals normal.
    let scaled = (f32::from_bits(magnitude << 13) * f32::from_bits((127 + 112) << 23)).to_bits();
    let special = 0x7f80_0000 | (magnitude << 13);
    // Signalling NaNs become quiet, as by the conversion instruction.
    let special = if magnitude > 0x7c00 { special | 0x0040_0000 } else { special };
    f32::from_bits(sign | if magnitude >= 0x7c00 { special } else { scaled })
}

/// To the nearest f16, ties to even.
#[inline(always)]
pub(crate) fn f32_to_f16(x: f32) -> u16 {
    let bits = x.to_bits();
    let sign = (bits >> 16) & 0x8000;
    let magnitude = bits & 0x7fff_ffff;
    let normal = magnitude.wrapping_add(0xfff + ((magnitude >> 13) & 1)).wrapping_sub(112 << 23) >> 13;
    // Adding 1/2 moves the last bit of an f16 denormal to the last bit of the sum.
    let denormal = (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(0.5f32.to_bits());
    let nan = 0x7e00 | ((magnitude >> 13) & 0x3ff);
    let mut half = if magnitude < 0x3880_0000 { denormal } else { normal };
    half = if magnitude >= 0x477f_f000 { 0x7c00 } else { half };
    half = if magnitude > 0x7f80_0000 { nan } else { half };
    (sign | half) as u16
}

/// The value of a bf16, exactly.
#[inline(always)]
pub(crate) fn bf16_to_f32(h: u16) -> f32 {
    f32::from_bits(u32::from(h) << 16)
}

/// To the nearest bf16, ties to even.
#[inline(always)]
pub(crate) fn f32_to_bf16(x: f32) -> u16 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
    let nan = (bits >> 16) | 0x40;
    (if bits & 0x7fff_ffff > 0x7f80_0000 { nan } else { rounded }) as u16
}

/// To an f32 from which rounding to f16 or bf16 gives what rounding `x` itself would: cut off, with
/// the last bit set where anything was lost (rounding to odd; Boldo and Melquiond, 2008).
#[inline(always)]
pub(crate) fn f64_to_f32_odd(x: f64) -> f32 {
    let nearest = x as f32;
    let back = f64::from(nearest);
    let bits = nearest.to_bits();
    let cut = if back.abs() > x.abs() { bits.wrapping_sub(1) } else { bits };
    if back == x || x.is_nan() { nearest } else { f32::from_bits(cut | 1) }
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};

    use super::*;

    #[test]
    fn every_half_converts_as_in_the_half_crate() {
        for bits in 0..=u16::MAX {
            assert_eq!(f16_to_f32(bits).to_bits(), f16::from_bits(bits).to_f32().to_bits(), "{bits:#x}");
            if !bf16::from_bits(bits).is_nan() {
                assert_eq!(
                    bf16_to_f32(bits).to_bits(),
                    bf16::from_bits(bits).to_f32().to_bits(),
                    "{bits:#x}"
                );
            }
        }
    }

    #[test]
    fn rounding_is_that_of_the_half_crate() {
        let mut bits = 0u32;
        loop {
            // Every exponent with ties, their neighbours, and a spread of other mantissas.
            for delta in [0u32, 1, 0xfff, 0x1000, 0x1001, 0x7fff, 0x8000, 0x8001, 0x1fff] {
                let x = f32::from_bits(bits.wrapping_add(delta));
                assert_eq!(f32_to_f16(x), f16::from_f32(x).to_bits(), "{x:e} {:#x}", x.to_bits());
                assert_eq!(f32_to_bf16(x), bf16::from_f32(x).to_bits(), "{x:e} {:#x}", x.to_bits());
            }
            bits = match bits.checked_add(0x2_6000) {
                Some(next) => next,
                None => break,
            };
        }
    }

    #[test]
    fn f64_is_rounded_once() {
        // Just above, at and just below the middle between two neighbours, in every binade.
        for exponent in -40..40 {
            let scale = 2f64.powi(exponent);
            for (bits, to_half) in [(11, f32_to_f16 as fn(f32) -> u16), (8, f32_to_bf16)] {
                let step = 2f64.powi(1 - bits);
                let middle = 1.0 + step / 2.0;
                let at = |x: f64| to_half(f64_to_f32_odd(x * scale));
                if bits == 8 || (-14..15).contains(&exponent) {
                    assert_eq!(at(middle + 2f64.powi(-45)), to_half(((1.0 + step) * scale) as f32));
                    assert_eq!(at(middle - 2f64.powi(-45)), to_half(scale as f32));
                    assert_eq!(at(middle), to_half(scale as f32));
                    assert_eq!(at(-middle - 2f64.powi(-45)), to_half((-(1.0 + step) * scale) as f32));
                }
            }
        }
        assert_eq!(f32_to_f16(f64_to_f32_odd(1e300)), f16::INFINITY.to_bits());
        assert_eq!(f32_to_bf16(f64_to_f32_odd(-1e300)), bf16::NEG_INFINITY.to_bits());
        assert_eq!(f64_to_f32_odd(f64::INFINITY), f32::INFINITY);
        assert_eq!(f64_to_f32_odd(0.0).to_bits(), 0);
        assert!(f64_to_f32_odd(f64::NAN).is_nan());
    }
}
