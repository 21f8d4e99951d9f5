//! Elementary functions of the element-wise engine.
//!
//! For f32, short polynomials (Cody–Waite reduction, coefficients of the Cephes library) without
//! branches, so that loops over them vectorise; the relative error is a few 10⁻⁷ at most. For f64,
//! the standard library's. One element always gives the same bits, wherever it stands.

use std::f64::consts::FRAC_2_PI;

/// What the engine needs of a floating-point type.
pub(super) trait Real: crate::exec::Element + PartialOrd {
    const ZERO: Self;
    const ONE: Self;

    fn neg(self) -> Self;
    fn abs(self) -> Self;
    fn exp(self) -> Self;
    fn log(self) -> Self;
    fn log1p(self) -> Self;
    fn expm1(self) -> Self;
    fn sqrt(self) -> Self;
    fn rsqrt(self) -> Self;
    fn recip(self) -> Self;
    fn sin(self) -> Self;
    fn cos(self) -> Self;
    /// Whether `sin` and `cos` reduce the argument exactly enough; `far_sin` and `far_cos` do for
    /// all others.
    fn is_near(self) -> bool;
    fn far_sin(self) -> Self;
    fn far_cos(self) -> Self;
    fn tanh(self) -> Self;
    fn sigmoid(self) -> Self;
    fn gelu(self) -> Self;
    fn silu(self) -> Self;
    fn erf(self) -> Self;
    fn floor(self) -> Self;
    fn ceil(self) -> Self;
    fn round(self) -> Self;
    fn add(self, b: Self) -> Self;
    fn sub(self, b: Self) -> Self;
    fn mul(self, b: Self) -> Self;
    fn div(self, b: Self) -> Self;
    fn rem(self, b: Self) -> Self;
    fn pow(self, b: Self) -> Self;

    /// 1, −1, or the operand where it is 0 or NaN.
    #[inline(always)]
    fn sign(self) -> Self {
        if self > Self::ZERO {
            Self::ONE
        } else if self < Self::ZERO {
            Self::ONE.neg()
        } else {
            self
        }
    }

    #[inline(always)]
    #[allow(clippy::eq_op)]
    fn is_nan(self) -> bool {
        self != self
    }

    #[inline(always)]
    fn relu(self) -> Self {
        if self > Self::ZERO || self.is_nan() { self } else { Self::ZERO }
    }

    #[inline(always)]
    fn max(self, b: Self) -> Self {
        if self > b || self.is_nan() { self } else { b }
    }

    #[inline(always)]
    fn min(self, b: Self) -> Self {
        if self < b || self.is_nan() { self } else { b }
    }

    /// The remainder with the sign of `b`.
    #[inline(always)]
    fn floor_rem(self, b: Self) -> Self {
        let rest = self.rem(b);
        if rest != Self::ZERO && (rest < Self::ZERO) != (b < Self::ZERO) { rest.add(b) } else { rest }
    }

    /// The quotient that belongs to `floor_rem`; of a division by 0, what `/` gives.
    #[inline(always)]
    fn floor_div(self, b: Self) -> Self {
        let is_finite = |x: Self| x.sub(x) == Self::ZERO;
        if b == Self::ZERO {
            self.div(b)
        } else if is_finite(self) && !is_finite(b) && !b.is_nan() {
            // What is left of an infinite divisor is infinite too, so the difference says nothing.
            if self.sign().mul(b.sign()) < Self::ZERO { Self::ONE.neg() } else { Self::ZERO }
        } else {
            self.sub(self.floor_rem(b)).div(b).round()
        }
    }
}

/// `a // b` of numbers: what tensors of f64 give.
pub(crate) fn floor_div(a: f64, b: f64) -> f64 {
    Real::floor_div(a, b)
}

/// `a % b` of numbers: what tensors of f64 give.
pub(crate) fn floor_rem(a: f64, b: f64) -> f64 {
    Real::floor_rem(a, b)
}

/// `c[0]·xⁿ + c[1]·xⁿ⁻¹ + …`
#[inline(always)]
fn polynomial<const N: usize>(x: f32, c: [f32; N]) -> f32 {
    let mut sum = 0.0f32;
    for c in c {
        sum = sum.mul_add(x, c);
    }
    sum
}

/// Added and subtracted, rounds to a whole number; the sum's last bits are that number.
const ROUNDING: f32 = 12_582_912.0;

/// 2ⁿ for −126 ≤ n ≤ 127.
#[inline(always)]
fn power_of_two(n: i32) -> f32 {
    f32::from_bits((n.wrapping_add(127) << 23) as u32)
}

/// (sin, cos) of the argument reduced to |r| ≤ π/4, and the quadrant.
#[inline(always)]
fn reduced_sin_cos(x: f32) -> (f32, f32, u32) {
    let sum = x.mul_add(std::f32::consts::FRAC_2_PI, ROUNDING);
    let n = sum - ROUNDING;
    // π/2 in three parts, so that n times the first two loses nothing.
    let r = n.mul_add(-std::f32::consts::FRAC_PI_2, x);
    let r = n.mul_add(4.371_139e-8, r);
    let r = n.mul_add(1.715_129e-15, r);
    let z = r * r;
    let sin = polynomial(z, [-1.951_529_6e-4, 8.332_161e-3, -1.666_665_5e-1]);
    let sin = (sin * z).mul_add(r, r);
    let cos = polynomial(z, [2.443_315_7e-5, -1.388_731_6e-3, 4.166_664_6e-2]);
    let cos = (cos * z).mul_add(z, z.mul_add(-0.5, 1.0));
    (sin, cos, sum.to_bits())
}

impl Real for f32 {
    const ZERO: f32 = 0.0;
    const ONE: f32 = 1.0;

    #[inline(always)]
    fn neg(self) -> f32 {
        -self
    }

    #[inline(always)]
    fn abs(self) -> f32 {
        f32::abs(self)
    }

    #[inline(always)]
    fn exp(self) -> f32 {
        // Beyond these the result is infinite or 0; NaN passes both comparisons.
        let x = if self > 89.0 { 89.0 } else { self };
        let x = if x < -104.0 { -104.0 } else { x };
        let sum = x.mul_add(std::f32::consts::LOG2_E, ROUNDING);
        let n = sum - ROUNDING;
        let r = n.mul_add(-0.693_359_4, x);
        let r = n.mul_add(2.121_944_4e-4, r);
        let p = polynomial(
            r,
            [1.987_569_1e-4, 1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 5.0e-1],
        );
        let y = (p * r).mul_add(r, r) + 1.0;
        // In two steps: 2ⁿ alone may be below or above the normal numbers.
        let n = (sum.to_bits() as i32).wrapping_sub(ROUNDING.to_bits() as i32);
        let half = n >> 1;
        y * power_of_two(half) * power_of_two(n.wrapping_sub(half))
    }

    #[inline(always)]
    fn log(self) -> f32 {
        let small = self < f32::MIN_POSITIVE;
        let scaled = if small { self * 8_388_608.0 } else { self };
        let bits = scaled.to_bits() as i32;
        // The mantissa in [√½, √2), the exponent to match.
        let shifted = bits.wrapping_sub(0x3f35_04f3);
        let exponent = (shifted >> 23) - if small { 23 } else { 0 };
        let m = f32::from_bits(((shifted & 0x007f_ffff).wrapping_add(0x3f35_04f3)) as u32);
        let e = exponent as f32;
        let x = m - 1.0;
        let z = x * x;
        let p = polynomial(
            x,
            [
                7.037_683_6e-2,
                -1.151_461e-1,
                1.167_699_9e-1,
                -1.242_014_1e-1,
                1.424_932_3e-1,
                -1.666_805_7e-1,
                2.000_071_4e-1,
                -2.499_999_4e-1,
                3.333_333e-1,
            ],
        );
        let y = (p * x).mul_add(z, e * -2.121_944_4e-4);
        let y = z.mul_add(-0.5, y);
        let y = e.mul_add(0.693_359_4, x + y);
        if self > 0.0 {
            if self == f32::INFINITY { self } else { y }
        } else if self == 0.0 {
            f32::NEG_INFINITY
        } else {
            f32::NAN
        }
    }

    #[inline(always)]
    fn log1p(self) -> f32 {
        let sum = 1.0 + self;
        // What rounding 1 + x lost, to first order.
        let lost = (self - (sum - 1.0)) / sum;
        let y = Real::log(sum) + lost;
        if sum == 1.0 {
            self
        } else if sum > 0.0 && sum < f32::INFINITY {
            y
        } else {
            Real::log(sum)
        }
    }

    #[inline(always)]
    fn expm1(self) -> f32 {
        let p = polynomial(
            self,
            [
                1.0 / 362_880.0,
                1.0 / 40_320.0,
                1.0 / 5_040.0,
                1.0 / 720.0,
                1.0 / 120.0,
                1.0 / 24.0,
                1.0 / 6.0,
                0.5,
            ],
        );
        let near = (p * self).mul_add(self, self);
        if self > -0.5 && self < 0.5 { near } else { Real::exp(self) - 1.0 }
    }

    #[inline(always)]
    fn sqrt(self) -> f32 {
        f32::sqrt(self)
    }

    #[inline(always)]
    fn rsqrt(self) -> f32 {
        1.0 / f32::sqrt(self)
    }

    #[inline(always)]
    fn recip(self) -> f32 {
        1.0 / self
    }

    #[inline(always)]
    fn sin(self) -> f32 {
        let (sin, cos, quadrant) = reduced_sin_cos(self);
        let y = if quadrant & 1 == 0 { sin } else { cos };
        f32::from_bits(y.to_bits() ^ ((quadrant & 2) << 30))
    }

    #[inline(always)]
    fn cos(self) -> f32 {
        let (sin, cos, quadrant) = reduced_sin_cos(self);
        let y = if quadrant & 1 == 0 { cos } else { sin };
        f32::from_bits(y.to_bits() ^ ((quadrant.wrapping_add(1) & 2) << 30))
    }

    #[inline(always)]
    fn is_near(self) -> bool {
        f32::abs(self) <= 8192.0
    }

    fn far_sin(self) -> f32 {
        f32::sin(self)
    }

    fn far_cos(self) -> f32 {
        f32::cos(self)
    }

    #[inline(always)]
    fn tanh(self) -> f32 {
        let z = self * self;
        let p =
            polynomial(z, [-5.704_988_7e-3, 2.063_909e-2, -5.373_971_6e-2, 1.333_144_2e-1, -3.333_328e-1]);
        let near = (p * z).mul_add(self, self);
        let far = 1.0 - 2.0 / (Real::exp(2.0 * self) + 1.0);
        if f32::abs(self) < 0.625 { near } else { far }
    }

    #[inline(always)]
    fn sigmoid(self) -> f32 {
        1.0 / (1.0 + Real::exp(-self))
    }

    #[inline(always)]
    fn gelu(self) -> f32 {
        let double_root = (2.0 * FRAC_2_PI.sqrt()) as f32;
        let u = self * (self * self).mul_add(0.044_715, 1.0) * double_root;
        self / (1.0 + Real::exp(-u))
    }

    #[inline(always)]
    fn silu(self) -> f32 {
        self / (1.0 + Real::exp(-self))
    }

    #[inline(always)]
    fn erf(self) -> f32 {
        let a = f32::abs(self);
        let z = self * self;
        let near = self
            * polynomial(
                z,
                [
                    7.853_861_4e-5,
                    -8.010_193_6e-4,
                    5.188_327_7e-3,
                    -2.685_381_2e-2,
                    1.128_358_5e-1,
                    -3.761_262_6e-1,
                    std::f32::consts::FRAC_2_SQRT_PI,
                ],
            );
        let q = 1.0 / a;
        let y = q * q;
        let middle = polynomial(
            y,
            [
                2.326_82e-2,
                -1.387_039_4e-1,
                3.687_424_7e-1,
                -5.824_733e-1,
                6.210_004_6e-1,
                -4.944_515_3e-1,
                3.404_88e-1,
                -2.741_127e-1,
                5.638_259_4e-1,
            ],
        );
        let outer = polynomial(
            y,
            [
                -1.047_766_4e1,
                1.297_72e1,
                -7.495_519,
                2.921_019,
                -1.015_265_3,
                4.218_463_4e-1,
                -2.820_767_4e-1,
                5.641_895e-1,
            ],
        );
        let rest = Real::exp(-z) * q * if a < 2.0 { middle } else { outer };
        let far = (1.0 - rest).copysign(self);
        let far = if a < 10.0 || self.is_nan() { far } else { 1.0f32.copysign(self) };
        if a < 1.0 { near } else { far }
    }

    #[inline(always)]
    fn floor(self) -> f32 {
        f32::floor(self)
    }

    #[inline(always)]
    fn ceil(self) -> f32 {
        f32::ceil(self)
    }

    #[inline(always)]
    fn round(self) -> f32 {
        f32::round_ties_even(self)
    }

    #[inline(always)]
    fn add(self, b: f32) -> f32 {
        self + b
    }

    #[inline(always)]
    fn sub(self, b: f32) -> f32 {
        self - b
    }

    #[inline(always)]
    fn mul(self, b: f32) -> f32 {
        self * b
    }

    #[inline(always)]
    fn div(self, b: f32) -> f32 {
        self / b
    }

    #[inline(always)]
    fn rem(self, b: f32) -> f32 {
        self % b
    }

    #[inline(always)]
    fn pow(self, b: f32) -> f32 {
        self.powf(b)
    }
}

impl Real for f64 {
    const ZERO: f64 = 0.0;
    const ONE: f64 = 1.0;

    #[inline(always)]
    fn neg(self) -> f64 {
        -self
    }

    #[inline(always)]
    fn abs(self) -> f64 {
        f64::abs(self)
    }

    #[inline(always)]
    fn exp(self) -> f64 {
        f64::exp(self)
    }

    #[inline(always)]
    fn log(self) -> f64 {
        f64::ln(self)
    }

    #[inline(always)]
    fn log1p(self) -> f64 {
        f64::ln_1p(self)
    }

    #[inline(always)]
    fn expm1(self) -> f64 {
        f64::exp_m1(self)
    }

    #[inline(always)]
    fn sqrt(self) -> f64 {
        f64::sqrt(self)
    }

    #[inline(always)]
    fn rsqrt(self) -> f64 {
        1.0 / f64::sqrt(self)
    }

    #[inline(always)]
    fn recip(self) -> f64 {
        1.0 / self
    }

    #[inline(always)]
    fn sin(self) -> f64 {
        f64::sin(self)
    }

    #[inline(always)]
    fn cos(self) -> f64 {
        f64::cos(self)
    }

    #[inline(always)]
    fn is_near(self) -> bool {
        true
    }

    fn far_sin(self) -> f64 {
        f64::sin(self)
    }

    fn far_cos(self) -> f64 {
        f64::cos(self)
    }

    #[inline(always)]
    fn tanh(self) -> f64 {
        f64::tanh(self)
    }

    #[inline(always)]
    fn sigmoid(self) -> f64 {
        1.0 / (1.0 + f64::exp(-self))
    }

    #[inline(always)]
    fn gelu(self) -> f64 {
        let u = 2.0 * FRAC_2_PI.sqrt() * self * (1.0 + 0.044715 * self * self);
        self / (1.0 + f64::exp(-u))
    }

    #[inline(always)]
    fn silu(self) -> f64 {
        self / (1.0 + f64::exp(-self))
    }

    #[inline(always)]
    fn erf(self) -> f64 {
        libm::erf(self)
    }

    #[inline(always)]
    fn floor(self) -> f64 {
        f64::floor(self)
    }

    #[inline(always)]
    fn ceil(self) -> f64 {
        f64::ceil(self)
    }

    #[inline(always)]
    fn round(self) -> f64 {
        f64::round_ties_even(self)
    }

    #[inline(always)]
    fn add(self, b: f64) -> f64 {
        self + b
    }

    #[inline(always)]
    fn sub(self, b: f64) -> f64 {
        self - b
    }

    #[inline(always)]
    fn mul(self, b: f64) -> f64 {
        self * b
    }

    #[inline(always)]
    fn div(self, b: f64) -> f64 {
        self / b
    }

    #[inline(always)]
    fn rem(self, b: f64) -> f64 {
        self % b
    }

    #[inline(always)]
    fn pow(self, b: f64) -> f64 {
        self.powf(b)
    }
}
