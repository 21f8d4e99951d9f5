//! The exponential function in f32, in a form that the compiler turns into vector code.

/// eˣ to about one unit in the last place. NaN stays NaN, −∞ gives 0, large values ∞; results in
/// the subnormal range are rounded once.
///
/// x = n·ln 2 + r with |r| ≤ ln 2 / 2; eʳ is a polynomial (the coefficients of the Cephes library),
/// and 2ⁿ is applied in two factors, so that neither overflows before the product does.
#[inline(always)]
pub fn exp_f32(x: f32) -> f32 {
    /// 1.5·2²³: adding it rounds to a whole number, which is then in the low bits.
    const ROUND: f32 = 12_582_912.0;
    /// ln 2 in two parts; the first has so few bits that its product with n is exact.
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;

    // Comparisons that keep NaN. e^−110 is below the smallest subnormal's half, e^90 above ∞.
    let x = if x < -110.0 { -110.0 } else { x };
    let x = if x > 90.0 { 90.0 } else { x };
    let shifted = x * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = x - n * LN2_HIGH - n * LN2_LOW;

    let mut p = 1.987_569_1e-4;
    p = p * r + 1.398_2e-3;
    p = p * r + 8.333_452e-3;
    p = p * r + 4.166_579_6e-2;
    p = p * r + 1.666_666_5e-1;
    p = p * r + 5.000_000_1e-1;
    p = p * r * r + r + 1.0;

    let n = shifted.to_bits().wrapping_sub(ROUND.to_bits()) as i32;
    let first = n >> 1;
    let second = n.wrapping_sub(first);
    p * power_of_two(first) * power_of_two(second)
}

/// 2ⁿ for −126 ≤ n ≤ 127; any bits otherwise.
#[inline(always)]
fn power_of_two(n: i32) -> f32 {
    f32::from_bits((n.wrapping_add(127) as u32) << 23)
}

#[cfg(test)]
mod tests {
    use super::exp_f32;

    #[test]
    fn agrees_with_the_exact_value() {
        let mut worst = 0.0f64;
        for i in -1_030_000..=887_000 {
            let x = i as f32 * 1e-4;
            let exact = f64::from(x).exp();
            let got = f64::from(exp_f32(x));
            // Below the smallest normal number the error is absolute.
            worst = worst.max((got - exact).abs() / exact.max(f64::from(f32::MIN_POSITIVE)));
        }
        assert!(worst < 2.5e-7, "largest relative error {worst:e}");
    }

    #[test]
    fn special_values() {
        assert_eq!(exp_f32(0.0), 1.0);
        assert_eq!(exp_f32(-0.0), 1.0);
        assert_eq!(exp_f32(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp_f32(f32::INFINITY), f32::INFINITY);
        assert_eq!(exp_f32(f32::MIN), 0.0);
        assert_eq!(exp_f32(f32::MAX), f32::INFINITY);
        assert!(exp_f32(f32::NAN).is_nan());
        assert!(exp_f32(-f32::NAN).is_nan());
    }
}
