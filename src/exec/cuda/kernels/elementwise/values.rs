//! The value of each instruction of a fused group, as an expression.

use std::fmt::Write;

use super::Generator;
use crate::{
    exec::{
        cpu::convert,
        cuda::kernels::{OpError, call::Tensor, internal, launch::element},
    },
    ir::DType,
    ops::{Binary, Distribution, Number, Unary},
    plan::Instr,
};

/// The type that a register has in the kernel.
pub(super) fn register(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 | DType::F16 | DType::BF16 => "float",
        DType::Bool | DType::U8 => "u8",
        DType::F64 | DType::I32 | DType::I64 => element(dtype),
    }
}

/// An expression rounded to a half type that its register is wider than.
fn rounded(dtype: DType, value: String) -> String {
    match dtype {
        DType::F16 => format!("round_f16({value})"),
        DType::BF16 => format!("round_bf16({value})"),
        _ => value,
    }
}

impl Generator<'_> {
    fn dtype(&self, reg: u32) -> DType {
        self.group.dtypes.get(reg as usize).copied().unwrap_or(DType::F32)
    }

    pub(super) fn value(&mut self, i: usize, instr: &Instr, dtype: DType) -> Result<String, OpError> {
        let earlier = |reg: u32| (reg as usize) < i;
        let lost = || internal("a fused program reads a register before it is set");
        Ok(match *instr {
            Instr::Load(k) => {
                let k = k as usize;
                if self.call.args.get(k).map(Tensor::dtype) != Some(dtype) {
                    return Err(internal("a fused program loads an input of another dtype"));
                }
                match (self.packed, self.inner_stride(k)) {
                    (true, 1) => format!("widen(a{k}.v[v])"),
                    (true, _) => format!("widen(a{k})"),
                    (false, _) => format!("widen(in{k}[at{k}])"),
                }
            }
            Instr::Const(value) => constant(dtype, value),
            Instr::Scalar(k) => self.scalar(dtype, k as usize),
            Instr::Iota { axis, start, step } => self.iota(dtype, axis as usize, start, step)?,
            Instr::Random { distribution, key, per_step } => {
                self.random(i, dtype, distribution, key, per_step)
            }
            Instr::Unary(op, x) => {
                if !earlier(x) {
                    return Err(lost());
                }
                self.unary(op, dtype, x)
            }
            Instr::Binary(op, a, b) => {
                if !earlier(a) || !earlier(b) || self.dtype(a) != self.dtype(b) {
                    return Err(lost());
                }
                self.binary(op, dtype, a, b)
            }
            Instr::Select(c, a, b) => {
                if ![c, a, b].into_iter().all(earlier) {
                    return Err(lost());
                }
                format!("r{c} != 0 ? r{a} : r{b}")
            }
            Instr::Cast(x) => {
                if !earlier(x) {
                    return Err(lost());
                }
                self.cast(dtype, x)
            }
        })
    }

    /// An entry of the scalar page, converted as a constant is.
    fn scalar(&mut self, dtype: DType, k: usize) -> String {
        // Behind the seed and the number of the step.
        let value = format!("page[{}]", k + 2);
        self.uses_whole |= dtype.is_int();
        match dtype {
            DType::F32 => format!("(float){value}"),
            DType::F16 | DType::BF16 => rounded(dtype, format!("f64_to_f32_odd({value})")),
            DType::F64 => value,
            DType::I32 => format!("to_i32({value})"),
            DType::I64 => format!("to_i64({value})"),
            DType::U8 => format!("to_u8({value})"),
            DType::Bool => format!("(u8)({value} != 0.0)"),
        }
    }

    fn iota(&self, dtype: DType, axis: usize, start: u64, step: u64) -> Result<String, OpError> {
        let size = *self
            .group
            .shape
            .get(axis)
            .ok_or_else(|| internal("a fused program counts along a missing axis"))?;
        let inner: usize = self.group.shape.iter().skip(axis + 1).product();
        let outer: usize = self.group.shape.iter().take(axis).product();
        let mut index = self.index().to_owned();
        if inner != 1 {
            index = format!("{index} / (I){inner}");
        }
        if outer != 1 {
            index = format!("{index} % (I){size}");
        }
        let value = format!("((u64)({index}) + {start}ull) * {step}ull");
        Ok(match dtype {
            DType::Bool => format!("(u8)({value} != 0ull)"),
            _ => rounded(dtype, format!("({})({value})", register(dtype))),
        })
    }

    fn random(
        &mut self,
        i: usize,
        dtype: DType,
        distribution: Distribution,
        key: u64,
        per_step: bool,
    ) -> String {
        let k = self.keys.len();
        self.keys.push(key);
        // No step reaches this number.
        let step = if per_step { "((const u64*)page)[1]" } else { "0xffffffffffffffffull" };
        let per_group = if matches!(dtype, DType::F64 | DType::I64) { 2 } else { 4 };
        let group =
            |e: &str| format!("philox(((const u64*)page)[0], (u64)key{k}, {step}, (u64)({e} / {per_group}))");
        // Four elements beside each other are one group.
        let place = if self.packed && per_group == 4 {
            let _ = writeln!(self.before, "    Words w{i} = {};", group("e0"));
            "v".to_owned()
        } else {
            let _ = writeln!(self.inside, "    Words w{i} = {};", group(self.index()));
            format!("({} & {})", self.index(), per_group - 1)
        };
        let word = format!("word_at(w{i}, (u32){place})");
        let long = format!("long_at(w{i}, (u32){place})");
        match (dtype, distribution) {
            (DType::F64, Distribution::Normal) => format!("normal_f64(w{i}, (u32){place})"),
            (DType::F64, _) => format!("uniform_f64({long})"),
            (DType::F32 | DType::F16 | DType::BF16, Distribution::Normal) => {
                rounded(dtype, format!("normal_f32(w{i}, (u32){place})"))
            }
            (DType::F32, _) => format!("uniform_f32({word})"),
            // Rounding to nearest could reach 1: leave off the bits that do not fit instead.
            (DType::F16, _) => format!("bits_f32(f32_bits(uniform_f32({word})) & 0xffffe000u)"),
            (DType::BF16, _) => format!("bits_f32(f32_bits(uniform_f32({word})) & 0xffff0000u)"),
            (DType::I64, _) => format!("(i64){long}"),
            (DType::I32, _) => format!("(int){word}"),
            (DType::U8, _) => format!("(u8){word}"),
            (DType::Bool, _) => format!("(u8)({word} & 1u)"),
        }
    }

    fn unary(&mut self, op: Unary, dtype: DType, x: u32) -> String {
        let from = self.dtype(x);
        if from.is_float() {
            let name = match op {
                Unary::Neg => "neg_of",
                Unary::Abs => "abs_of",
                Unary::Sign => "sign_of",
                Unary::Exp => "exp_of",
                Unary::Log => "log_of",
                Unary::Log1p => "log1p_of",
                Unary::Expm1 => "expm1_of",
                Unary::Sqrt => "sqrt_of",
                Unary::Rsqrt => "rsqrt_of",
                Unary::Recip => "recip_of",
                Unary::Sin => "sin_of",
                Unary::Cos => "cos_of",
                Unary::Tanh => "tanh_of",
                Unary::Sigmoid => "sigmoid_of",
                Unary::Relu => "relu_of",
                Unary::Gelu => "gelu_of",
                Unary::Silu => "silu_of",
                Unary::Erf => "erf_of",
                Unary::Floor => "floor_of",
                Unary::Ceil => "ceil_of",
                Unary::Round => "round_of",
                Unary::Not | Unary::IsNan => return format!("(u8)is_nan(r{x})"),
            };
            return rounded(dtype, format!("{name}(r{x})"));
        }
        self.uses_whole = true;
        match op {
            Unary::Neg => format!("whole_neg(r{x})"),
            Unary::Abs => format!("whole_abs(r{x})"),
            Unary::Sign => format!("whole_sign(r{x})"),
            Unary::Relu => format!("whole_relu(r{x})"),
            Unary::Not => format!("(u8)(r{x} == 0)"),
            // The types of the IR let no others through; the values stay what they are.
            Unary::Exp
            | Unary::Log
            | Unary::Log1p
            | Unary::Expm1
            | Unary::Sqrt
            | Unary::Rsqrt
            | Unary::Recip
            | Unary::Sin
            | Unary::Cos
            | Unary::Tanh
            | Unary::Sigmoid
            | Unary::Gelu
            | Unary::Silu
            | Unary::Erf
            | Unary::Floor
            | Unary::Ceil
            | Unary::Round
            | Unary::IsNan => format!("r{x}"),
        }
    }

    fn binary(&mut self, op: Binary, dtype: DType, a: u32, b: u32) -> String {
        let is_float = self.dtype(a).is_float();
        self.uses_whole |= !is_float;
        let call = |float: &str, whole: &str| match is_float {
            true => rounded(dtype, format!("{float}(r{a}, r{b})")),
            false => format!("{whole}(r{a}, r{b})"),
        };
        let infix = |sign: &str, whole: &str| match is_float {
            true => rounded(dtype, format!("r{a} {sign} r{b}")),
            false => format!("{whole}(r{a}, r{b})"),
        };
        let compare = |sign: &str| format!("(u8)(r{a} {sign} r{b})");
        match op {
            Binary::Add => infix("+", "whole_add"),
            Binary::Sub => infix("-", "whole_sub"),
            Binary::Mul => infix("*", "whole_mul"),
            Binary::Div => infix("/", "whole_floor_div"),
            Binary::FloorDiv => call("floor_div", "whole_floor_div"),
            Binary::Rem => call("floor_rem", "whole_floor_rem"),
            Binary::Pow => call("pow_of", "whole_pow"),
            Binary::Max => call("max_of", "max_of"),
            Binary::Min => call("min_of", "min_of"),
            Binary::Eq => compare("=="),
            Binary::Ne => compare("!="),
            Binary::Lt => compare("<"),
            Binary::Le => compare("<="),
            Binary::Gt => compare(">"),
            Binary::Ge => compare(">="),
            Binary::And => format!("(u8)((r{a} != 0) & (r{b} != 0))"),
            Binary::Or => format!("(u8)((r{a} != 0) | (r{b} != 0))"),
        }
    }

    /// Float to whole truncates and saturates, NaN gives 0; anything but 0 is `true`.
    fn cast(&mut self, to: DType, x: u32) -> String {
        let from = self.dtype(x);
        let is_half = |dtype| matches!(dtype, DType::F16 | DType::BF16);
        self.uses_whole |= from.is_float() && to.is_int();
        match to {
            DType::F16 | DType::BF16 if from == DType::F32 || is_half(from) => rounded(to, format!("r{x}")),
            DType::F16 | DType::BF16 => rounded(to, format!("f64_to_f32_odd((double)r{x})")),
            DType::F32 => format!("(float)r{x}"),
            DType::F64 => format!("(double)r{x}"),
            DType::Bool => format!("(u8)(r{x} != 0)"),
            DType::I32 if from.is_float() => format!("to_i32(r{x})"),
            DType::I64 if from.is_float() => format!("to_i64(r{x})"),
            DType::U8 if from.is_float() => format!("to_u8(r{x})"),
            DType::I32 | DType::I64 | DType::U8 => format!("({})r{x}", register(to)),
        }
    }
}

/// A number, converted as by a cast (whole numbers exactly).
fn constant(dtype: DType, value: Number) -> String {
    let float = value.as_f64();
    let single = |value: f32| format!("bits_f32(0x{:08x}u)", value.to_bits());
    match dtype {
        DType::F32 => single(float as f32),
        DType::F16 => single(convert::f16_to_f32(convert::f32_to_f16(convert::f64_to_f32_odd(float)))),
        DType::BF16 => single(convert::bf16_to_f32(convert::f32_to_bf16(convert::f64_to_f32_odd(float)))),
        DType::F64 => format!("bits_f64(0x{:016x}ull)", float.to_bits()),
        DType::I32 => {
            let whole = match value {
                Number::Int(whole) => whole as i32,
                Number::Float(_) => float as i32,
            };
            format!("(int)0x{whole:08x}u")
        }
        DType::I64 => format!("(i64)0x{:016x}ull", value.as_i64()),
        DType::U8 => {
            let whole = match value {
                Number::Int(whole) => whole as u8,
                Number::Float(_) => float as u8,
            };
            format!("(u8){whole}")
        }
        DType::Bool => format!("(u8){}", u8::from(float != 0.0)),
    }
}
