//! The number types of the network kernels: what is stored, and what is computed in.

use std::ops::{Add, AddAssign, Div, DivAssign, Mul, MulAssign, Neg, Sub, SubAssign};

use half::{bf16, f16};

use crate::exec::{
    Element,
    cpu::{
        convert::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16},
        math,
    },
};

/// A type in which kernels compute: `f32` or `f64`.
pub trait Accumulator:
    Real<Acc = Self>
    + PartialOrd
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Neg<Output = Self>
    + AddAssign
    + SubAssign
    + MulAssign
    + DivAssign
{
    const ZERO: Self;
    const ONE: Self;
    const NEG_INFINITY: Self;
    const INFINITY: Self;

    fn from_f64(value: f64) -> Self;
    fn to_f64(self) -> f64;
    fn is_nan(self) -> bool;
    fn exp(self) -> Self;
    fn ln(self) -> Self;
}

/// A floating-point element type.
pub trait Real: Element {
    type Acc: Accumulator;
    /// The type is its own accumulator, so products may read and write it directly.
    const EXACT: bool;

    fn widen(self) -> Self::Acc;
    fn narrow(value: Self::Acc) -> Self;
    /// Converts a slice; both have the same length.
    fn widen_slice(from: &[Self], to: &mut [Self::Acc]);
    /// Converts a slice; both have the same length.
    fn narrow_slice(from: &[Self::Acc], to: &mut [Self]);
}

macro_rules! accumulator {
    ($ty:ty) => {
        impl Accumulator for $ty {
            const ZERO: Self = 0.0;
            const ONE: Self = 1.0;
            const NEG_INFINITY: Self = <$ty>::NEG_INFINITY;
            const INFINITY: Self = <$ty>::INFINITY;

            #[inline(always)]
            fn from_f64(value: f64) -> Self {
                value as $ty
            }
            #[inline(always)]
            fn to_f64(self) -> f64 {
                self.into()
            }
            #[inline(always)]
            fn is_nan(self) -> bool {
                <$ty>::is_nan(self)
            }
            #[inline(always)]
            fn exp(self) -> Self {
                math::Real::exp(self)
            }
            #[inline(always)]
            fn ln(self) -> Self {
                <$ty>::ln(self)
            }
        }

        impl Real for $ty {
            type Acc = $ty;
            const EXACT: bool = true;

            #[inline(always)]
            fn widen(self) -> Self {
                self
            }
            #[inline(always)]
            fn narrow(value: Self) -> Self {
                value
            }
            #[inline(always)]
            fn widen_slice(from: &[Self], to: &mut [Self]) {
                to.copy_from_slice(from);
            }
            #[inline(always)]
            fn narrow_slice(from: &[Self], to: &mut [Self]) {
                to.copy_from_slice(from);
            }
        }
    };
}
accumulator!(f32);
accumulator!(f64);

macro_rules! half_type {
    ($ty:ty, $widen:path, $narrow:path) => {
        impl Real for $ty {
            type Acc = f32;
            const EXACT: bool = false;

            #[inline(always)]
            fn widen(self) -> f32 {
                $widen(self.to_bits())
            }
            #[inline(always)]
            fn narrow(value: f32) -> Self {
                <$ty>::from_bits($narrow(value))
            }
            #[inline(always)]
            fn widen_slice(from: &[Self], to: &mut [f32]) {
                for (from, to) in from.iter().zip(to) {
                    *to = from.widen();
                }
            }
            #[inline(always)]
            fn narrow_slice(from: &[f32], to: &mut [Self]) {
                for (&from, to) in from.iter().zip(to) {
                    *to = Self::narrow(from);
                }
            }
        }
    };
}
half_type!(f16, f16_to_f32, f32_to_f16);
half_type!(bf16, bf16_to_f32, f32_to_bf16);

/// A type of labels and row numbers.
pub trait Index: Element {
    /// The index, if it lies in `0..limit`.
    fn below(self, limit: usize) -> Option<usize>;
    fn to_i64(self) -> i64;
}

macro_rules! index {
    ($($ty:ty),*) => {
        $(impl Index for $ty {
            #[inline(always)]
            fn below(self, limit: usize) -> Option<usize> {
                usize::try_from(self).ok().filter(|&i| i < limit)
            }
            fn to_i64(self) -> i64 {
                self.into()
            }
        })*
    };
}
index!(i32, i64, u8);

/// Calls `$function::<T>($args)` for the floating-point type `T` of `$dtype`; with `, $index` at the
/// end, `$function::<T, $index>($args)`.
macro_rules! for_float {
    ($dtype:expr, $function:ident($arg:expr) $(, $index:ty)?) => {
        match $dtype {
            crate::ir::DType::F32 => $function::<f32 $(, $index)?>($arg),
            crate::ir::DType::F64 => $function::<f64 $(, $index)?>($arg),
            crate::ir::DType::F16 => $function::<half::f16 $(, $index)?>($arg),
            crate::ir::DType::BF16 => $function::<half::bf16 $(, $index)?>($arg),
            other => Err(crate::ops::OpError::new(format!("internal: a floating-point kernel got {other}"))),
        }
    };
}
pub(crate) use for_float;

/// Calls `$function::<T, I>($args)` for the floating-point type `T` of `$dtype` and the integer type
/// `I` of `$index`.
macro_rules! for_float_and_index {
    ($dtype:expr, $index:expr, $function:ident($arg:expr)) => {
        match $index {
            crate::ir::DType::I32 => for_float!($dtype, $function($arg), i32),
            crate::ir::DType::I64 => for_float!($dtype, $function($arg), i64),
            crate::ir::DType::U8 => for_float!($dtype, $function($arg), u8),
            other => Err(crate::ops::OpError::new(format!("internal: a kernel got indices in {other}"))),
        }
    };
}
pub(crate) use for_float_and_index;

/// Defines a function whose loops are compiled twice: for any processor, and for those with wide
/// vectors. Both round alike: nothing is contracted, and `mul_add` is exact in both.
macro_rules! vectorised {
    ($(#[$meta:meta])* $vis:vis fn $name:ident<$t:ident: $bound:path>(
        $($arg:ident: $ty:ty),* $(,)?
    ) $(-> $ret:ty)? $body:block) => {
        $(#[$meta])*
        #[allow(clippy::too_many_arguments)]
        $vis fn $name<$t: $bound>($($arg: $ty),*) $(-> $ret)? {
            #[inline(always)]
            fn generic<$t: $bound>($($arg: $ty),*) $(-> $ret)? $body
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2,fma")]
                fn wide<$t: $bound>($($arg: $ty),*) $(-> $ret)? {
                    generic::<$t>($($arg),*)
                }
                if std::arch::is_x86_feature_detected!("avx2")
                    && std::arch::is_x86_feature_detected!("fma")
                {
                    // SAFETY: the processor has the features.
                    return unsafe { wide::<$t>($($arg),*) };
                }
            }
            generic::<$t>($($arg),*)
        }
    };
}
pub(crate) use vectorised;
