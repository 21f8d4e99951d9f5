//! The instructions, as loops over registers.

use super::{
    BLOCK, Bound,
    compile::{Class, Place, Step, StepOp},
    load::{address, load},
};
use crate::{
    exec::cpu::{convert, math::Real, random::Stream},
    ir::DType,
    ops::{Binary, Distribution, Number, Unary},
};

/// The registers of one step in one block.
struct Registers<'a> {
    step: &'a Step,
    bound: &'a Bound<'a>,
    base: *mut u8,
    start: usize,
    len: usize,
}

impl<'a> Registers<'a> {
    /// # Safety
    /// The destination is of this class.
    #[inline(always)]
    unsafe fn dest<T>(&self) -> &'a mut [T] {
        // SAFETY: `compile` gave it BLOCK elements of the scratch, apart from every operand.
        unsafe {
            std::slice::from_raw_parts_mut(self.base.wrapping_add(self.step.dest).cast::<T>(), self.len)
        }
    }

    /// # Safety
    /// Operand `k` is of this class.
    #[inline(always)]
    unsafe fn arg<T>(&self, k: usize) -> &'a [T] {
        let place = self.step.args.get(k).copied().unwrap_or(Place::Scratch(0));
        // SAFETY: the operand's register is BLOCK elements of the scratch, or a dense input with
        // `len` elements from `start` on, which nobody writes before the end of the block.
        unsafe {
            std::slice::from_raw_parts(address::<T>(place, self.bound, self.base, self.start), self.len)
        }
    }

    #[inline(always)]
    unsafe fn map1<A: Copy, D>(&self, f: impl Fn(A) -> D) {
        // SAFETY: the caller names the classes of this step.
        let (dest, a) = unsafe { (self.dest::<D>(), self.arg::<A>(0)) };
        for (dest, &a) in dest.iter_mut().zip(a) {
            *dest = f(a);
        }
    }

    #[inline(always)]
    unsafe fn map2<A: Copy, D>(&self, f: impl Fn(A, A) -> D) {
        // SAFETY: the caller names the classes of this step.
        let (dest, a, b) = unsafe { (self.dest::<D>(), self.arg::<A>(0), self.arg::<A>(1)) };
        for ((dest, &a), &b) in dest.iter_mut().zip(a).zip(b) {
            *dest = f(a, b);
        }
    }
}

/// Runs one step on elements `start..start + len`.
///
/// # Safety
/// The step belongs to the bound program, `base` is a scratch memory of its size, and its operands
/// were set for the same elements; `len` is at most [`BLOCK`].
#[inline(always)]
pub(super) unsafe fn execute(step: &Step, bound: &Bound<'_>, base: *mut u8, start: usize, len: usize) {
    debug_assert!(len <= BLOCK);
    let at = Registers { step, bound, base, start, len };
    // SAFETY (all below): as for this function; `compile` checked the dtypes of the operands.
    unsafe {
        match step.op {
            StepOp::Load(k) => load(k, bound, base.wrapping_add(step.dest), start, len),
            // Its strides are 0: every element is the first.
            StepOp::Splat(k) => load(k, bound, base.wrapping_add(step.dest), 0, len),
            StepOp::Const(value) => constant(&at, value),
            StepOp::Scalar(k) => {
                constant(&at, Number::float(bound.page.values.get(k).copied().unwrap_or(f64::NAN)));
            }
            StepOp::Iota { inner, size, start, step } => iota(&at, inner, size, start, step),
            StepOp::Random { distribution, key, per_step } => {
                random(&at, distribution, Stream::new(bound.page.seed, key, per_step, bound.page.step));
            }
            StepOp::Unary(op, class) => match class {
                Class::F32 => unary_real::<f32>(&at, op),
                Class::F64 => unary_real::<f64>(&at, op),
                Class::I32 => unary_whole::<i32>(&at, op),
                Class::I64 => unary_whole::<i64>(&at, op),
                Class::U8 => unary_whole::<u8>(&at, op),
            },
            StepOp::Binary(op, class) => match class {
                Class::F32 => binary_real::<f32>(&at, op),
                Class::F64 => binary_real::<f64>(&at, op),
                Class::I32 => binary_whole::<i32>(&at, op),
                Class::I64 => binary_whole::<i64>(&at, op),
                Class::U8 => binary_whole::<u8>(&at, op),
            },
            StepOp::Select => match Class::of(step.dtype) {
                Class::F32 | Class::I32 => select::<u32>(&at),
                Class::F64 | Class::I64 => select::<u64>(&at),
                Class::U8 => select::<u8>(&at),
            },
            StepOp::Cast(from) => cast(&at, from),
        }
        if step.rounds {
            let dest = at.dest::<f32>();
            if step.dtype == DType::F16 {
                dest.iter_mut().for_each(|x| *x = convert::f16_to_f32(convert::f32_to_f16(*x)));
            } else {
                dest.iter_mut().for_each(|x| *x = convert::bf16_to_f32(convert::f32_to_bf16(*x)));
            }
        }
    }
}

/// Fills the destination with a number, converted as by a cast (whole numbers exactly).
#[inline(always)]
unsafe fn constant(at: &Registers<'_>, value: Number) {
    let float = value.as_f64();
    // SAFETY: the class of the destination.
    unsafe {
        match at.step.dtype {
            DType::F32 => at.dest::<f32>().fill(float as f32),
            // Rounded after the step, once.
            DType::F16 | DType::BF16 => at.dest::<f32>().fill(convert::f64_to_f32_odd(float)),
            DType::F64 => at.dest::<f64>().fill(float),
            DType::I32 => at.dest::<i32>().fill(match value {
                Number::Int(whole) => whole as i32,
                Number::Float(_) => float as i32,
            }),
            DType::I64 => at.dest::<i64>().fill(value.as_i64()),
            DType::U8 => at.dest::<u8>().fill(match value {
                Number::Int(whole) => whole as u8,
                Number::Float(_) => float as u8,
            }),
            DType::Bool => at.dest::<u8>().fill(u8::from(float != 0.0)),
        }
    }
}

#[inline(always)]
unsafe fn iota(at: &Registers<'_>, inner: usize, size: usize, first: u64, step: u64) {
    #[inline(always)]
    fn count<T>(dest: &mut [T], at: usize, (inner, size): (usize, usize), value: impl Fn(u64) -> T) {
        let (mut place, mut index) = (at % inner, at / inner % size);
        for x in dest {
            *x = value(index as u64);
            place += 1;
            if place == inner {
                place = 0;
                index += 1;
                if index == size {
                    index = 0;
                }
            }
        }
    }
    let axis = (inner.max(1), size.max(1));
    let value = |index: u64| index.wrapping_add(first).wrapping_mul(step);
    // SAFETY: the class of the destination.
    unsafe {
        match Class::of(at.step.dtype) {
            Class::F32 => count(at.dest::<f32>(), at.start, axis, |i| value(i) as f32),
            Class::F64 => count(at.dest::<f64>(), at.start, axis, |i| value(i) as f64),
            Class::I32 => count(at.dest::<i32>(), at.start, axis, |i| value(i) as i32),
            Class::I64 => count(at.dest::<i64>(), at.start, axis, |i| value(i) as i64),
            Class::U8 if at.step.dtype == DType::Bool => {
                count(at.dest::<u8>(), at.start, axis, |i| u8::from(value(i) != 0));
            }
            Class::U8 => count(at.dest::<u8>(), at.start, axis, |i| value(i) as u8),
        }
    }
}

#[inline(always)]
unsafe fn random(at: &Registers<'_>, distribution: Distribution, stream: Stream) {
    let start = at.start as u64;
    // SAFETY: the class of the destination.
    unsafe {
        match at.step.dtype {
            DType::F32 | DType::F16 | DType::BF16 => {
                let dest = at.dest::<f32>();
                stream.fill_f32(distribution, start, dest);
                // Rounding to nearest could reach 1: leave off the bits that do not fit instead.
                let dropped = match at.step.dtype {
                    DType::F16 => 13,
                    DType::BF16 => 16,
                    _ => 0,
                };
                if dropped > 0 && distribution == Distribution::Uniform {
                    dest.iter_mut().for_each(|x| *x = f32::from_bits(x.to_bits() >> dropped << dropped));
                }
            }
            DType::F64 => stream.fill_f64(distribution, start, at.dest::<f64>()),
            DType::I32 => stream.fill_i32(start, at.dest::<i32>()),
            DType::I64 => stream.fill_i64(start, at.dest::<i64>()),
            DType::U8 => stream.fill_u8(start, at.dest::<u8>(), u8::MAX),
            DType::Bool => stream.fill_u8(start, at.dest::<u8>(), 1),
        }
    }
}

#[inline(always)]
unsafe fn select<T: Copy>(at: &Registers<'_>) {
    // SAFETY: the condition is bool, the others and the destination have elements of this size.
    let (dest, c, a, b) = unsafe { (at.dest::<T>(), at.arg::<u8>(0), at.arg::<T>(1), at.arg::<T>(2)) };
    for (((dest, &c), &a), &b) in dest.iter_mut().zip(c).zip(a).zip(b) {
        *dest = if c != 0 { a } else { b };
    }
}

#[inline(always)]
unsafe fn unary_real<T: Real>(at: &Registers<'_>, op: Unary) {
    // SAFETY: the operand is of this class, and so is the destination where it is not bool.
    unsafe {
        match op {
            Unary::Neg => at.map1(T::neg),
            Unary::Abs => at.map1(T::abs),
            Unary::Sign => at.map1(T::sign),
            Unary::Exp => at.map1(T::exp),
            Unary::Log => at.map1(T::log),
            Unary::Log1p => at.map1(T::log1p),
            Unary::Expm1 => at.map1(T::expm1),
            Unary::Sqrt => at.map1(T::sqrt),
            Unary::Rsqrt => at.map1(T::rsqrt),
            Unary::Recip => at.map1(T::recip),
            Unary::Sin => {
                at.map1(T::sin);
                far(at, T::far_sin);
            }
            Unary::Cos => {
                at.map1(T::cos);
                far(at, T::far_cos);
            }
            Unary::Tanh => at.map1(T::tanh),
            Unary::Sigmoid => at.map1(T::sigmoid),
            Unary::Relu => at.map1(T::relu),
            Unary::Gelu => at.map1(T::gelu),
            Unary::Silu => at.map1(T::silu),
            Unary::Erf => at.map1(T::erf),
            Unary::Floor => at.map1(T::floor),
            Unary::Ceil => at.map1(T::ceil),
            Unary::Round => at.map1(T::round),
            Unary::IsNan | Unary::Not => at.map1(|x: T| u8::from(x.is_nan())),
        }
    }
}

/// Replaces the lanes whose argument is too large for the short reduction.
#[inline(always)]
unsafe fn far<T: Real>(at: &Registers<'_>, f: impl Fn(T) -> T) {
    // SAFETY: as for `unary_real`.
    let (dest, x) = unsafe { (at.dest::<T>(), at.arg::<T>(0)) };
    for (dest, &x) in dest.iter_mut().zip(x) {
        if !x.is_near() {
            *dest = f(x);
        }
    }
}

#[inline(always)]
unsafe fn binary_real<T: Real>(at: &Registers<'_>, op: Binary) {
    // SAFETY: the operands are of this class, and so is the destination where it is not bool.
    unsafe {
        match op {
            Binary::Add => at.map2(T::add),
            Binary::Sub => at.map2(T::sub),
            Binary::Mul => at.map2(T::mul),
            Binary::Div => at.map2(T::div),
            Binary::FloorDiv => at.map2(T::floor_div),
            Binary::Rem => at.map2(T::floor_rem),
            Binary::Pow => at.map2(T::pow),
            Binary::Max => at.map2(T::max),
            Binary::Min => at.map2(T::min),
            Binary::Eq => at.map2(|a: T, b: T| u8::from(a == b)),
            Binary::Ne => at.map2(|a: T, b: T| u8::from(a != b)),
            Binary::Lt => at.map2(|a: T, b: T| u8::from(a < b)),
            Binary::Le => at.map2(|a: T, b: T| u8::from(a <= b)),
            Binary::Gt => at.map2(|a: T, b: T| u8::from(a > b)),
            Binary::Ge => at.map2(|a: T, b: T| u8::from(a >= b)),
            Binary::And => at.map2(|a: T, b: T| u8::from(a != T::ZERO && b != T::ZERO)),
            Binary::Or => at.map2(|a: T, b: T| u8::from(a != T::ZERO || b != T::ZERO)),
        }
    }
}

/// Whole numbers wrap; `//` and `%` round down, and have answers for every pair of operands.
trait Whole: Copy + Ord {
    fn add(self, b: Self) -> Self;
    fn sub(self, b: Self) -> Self;
    fn mul(self, b: Self) -> Self;
    fn neg(self) -> Self;
    fn abs(self) -> Self;
    fn sign(self) -> Self;
    fn relu(self) -> Self;
    fn floor_div(self, b: Self) -> Self;
    fn floor_rem(self, b: Self) -> Self;
    fn pow(self, b: Self) -> Self;
    fn is_true(self) -> bool;
}

macro_rules! whole {
    ($($ty:ty: $signed:expr),*) => {$(
        #[allow(unused_comparisons)]
        impl Whole for $ty {
            #[inline(always)]
            fn add(self, b: Self) -> Self {
                self.wrapping_add(b)
            }

            #[inline(always)]
            fn sub(self, b: Self) -> Self {
                self.wrapping_sub(b)
            }

            #[inline(always)]
            fn mul(self, b: Self) -> Self {
                self.wrapping_mul(b)
            }

            #[inline(always)]
            fn neg(self) -> Self {
                (0 as $ty).wrapping_sub(self)
            }

            #[inline(always)]
            fn abs(self) -> Self {
                if self < 0 { self.neg() } else { self }
            }

            #[inline(always)]
            fn sign(self) -> Self {
                if self > 0 {
                    1
                } else if self < 0 {
                    (0 as $ty).wrapping_sub(1)
                } else {
                    0
                }
            }

            #[inline(always)]
            fn relu(self) -> Self {
                if self < 0 { 0 } else { self }
            }

            #[inline(always)]
            fn floor_div(self, b: Self) -> Self {
                if b == 0 {
                    return 0;
                }
                let quotient = self.wrapping_div(b);
                let rest = self.wrapping_rem(b);
                if rest != 0 && (rest < 0) != (b < 0) { quotient.wrapping_sub(1) } else { quotient }
            }

            #[inline(always)]
            fn floor_rem(self, b: Self) -> Self {
                if b == 0 {
                    return self;
                }
                let rest = self.wrapping_rem(b);
                if rest != 0 && (rest < 0) != (b < 0) { rest.wrapping_add(b) } else { rest }
            }

            /// Wraps; with a negative exponent, 1/xⁿ rounded towards 0 (and 0 for x = 0).
            #[inline(always)]
            fn pow(self, b: Self) -> Self {
                if $signed && b < 0 {
                    let minus_one = (0 as $ty).wrapping_sub(1);
                    return match self {
                        1 => 1,
                        x if $signed && x == minus_one => if b % 2 == 0 { 1 } else { minus_one },
                        _ => 0,
                    };
                }
                let (mut base, mut exponent, mut product) = (self, b, 1 as $ty);
                while exponent != 0 {
                    if exponent % 2 != 0 {
                        product = product.wrapping_mul(base);
                    }
                    base = base.wrapping_mul(base);
                    exponent /= 2;
                }
                product
            }

            #[inline(always)]
            fn is_true(self) -> bool {
                self != 0
            }
        }
    )*};
}
whole!(i32: true, i64: true, u8: false);

/// Bool registers come here as u8.
#[inline(always)]
unsafe fn unary_whole<T: Whole>(at: &Registers<'_>, op: Unary) {
    // SAFETY: the operand is of this class, and so is the destination where it is not bool.
    unsafe {
        match op {
            Unary::Neg => at.map1(T::neg),
            Unary::Abs => at.map1(T::abs),
            Unary::Sign => at.map1(T::sign),
            Unary::Relu => at.map1(T::relu),
            Unary::Not => at.map1(|x: T| u8::from(!x.is_true())),
            // `infer` lets no others through; the values stay what they are.
            _ => at.map1(|x: T| x),
        }
    }
}

#[inline(always)]
unsafe fn binary_whole<T: Whole>(at: &Registers<'_>, op: Binary) {
    // SAFETY: the operands are of this class, and so is the destination where it is not bool.
    unsafe {
        match op {
            Binary::Add => at.map2(T::add),
            Binary::Sub => at.map2(T::sub),
            Binary::Mul => at.map2(T::mul),
            Binary::Div | Binary::FloorDiv => at.map2(T::floor_div),
            Binary::Rem => at.map2(T::floor_rem),
            Binary::Pow => at.map2(T::pow),
            Binary::Max => at.map2(|a: T, b: T| if a > b { a } else { b }),
            Binary::Min => at.map2(|a: T, b: T| if a < b { a } else { b }),
            Binary::Eq => at.map2(|a: T, b: T| u8::from(a == b)),
            Binary::Ne => at.map2(|a: T, b: T| u8::from(a != b)),
            Binary::Lt => at.map2(|a: T, b: T| u8::from(a < b)),
            Binary::Le => at.map2(|a: T, b: T| u8::from(a <= b)),
            Binary::Gt => at.map2(|a: T, b: T| u8::from(a > b)),
            Binary::Ge => at.map2(|a: T, b: T| u8::from(a >= b)),
            Binary::And => at.map2(|a: T, b: T| u8::from(a.is_true() & b.is_true())),
            Binary::Or => at.map2(|a: T, b: T| u8::from(a.is_true() | b.is_true())),
        }
    }
}

/// Float to whole truncates and saturates, NaN gives 0; anything but 0 is `true`.
#[inline(always)]
unsafe fn cast(at: &Registers<'_>, from: DType) {
    macro_rules! cast_from {
        ($from:ty) => {
            match at.step.dtype {
                DType::F32 => at.map1(|x: $from| x as f32),
                DType::F64 => at.map1(|x: $from| x as f64),
                DType::I32 => at.map1(|x: $from| x as i32),
                DType::I64 => at.map1(|x: $from| x as i64),
                DType::U8 => at.map1(|x: $from| x as u8),
                DType::Bool => at.map1(|x: $from| u8::from(x != (0 as $from))),
                // Rounded after the step, once.
                DType::F16 | DType::BF16 => at.map1(|x: $from| convert::f64_to_f32_odd(x as f64)),
            }
        };
    }
    // SAFETY: the classes of the operand and of the destination.
    unsafe {
        match (from, at.step.dtype) {
            // Rounded after the step.
            (DType::F32 | DType::F16 | DType::BF16, DType::F16 | DType::BF16) => at.map1(|x: f32| x),
            (DType::F32 | DType::F16 | DType::BF16, _) => cast_from!(f32),
            (DType::F64, _) => cast_from!(f64),
            (DType::I32, _) => cast_from!(i32),
            (DType::I64, _) => cast_from!(i64),
            (DType::U8 | DType::Bool, _) => cast_from!(u8),
        }
    }
}
