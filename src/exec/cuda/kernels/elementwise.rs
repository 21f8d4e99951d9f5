//! Fused groups of element-wise ops: one kernel for each, generated.
//!
//! A thread computes one element, or four that lie beside each other where every operand allows it.
//! Registers are what the CPU's engine has, and every instruction rounds to its dtype.

use std::fmt::Write;

use super::{
    Arg, Kernel, OpError, Tensor, Work,
    call::Call,
    internal,
    launch::{THREADS, element, index_type},
};
use crate::{
    exec::cpu::convert,
    ir::DType,
    ops::{Binary, Distribution, Number, Unary},
    plan::{Elementwise, Instr, Plan},
    schedule::OpId,
};

const WHOLE: &str = include_str!("whole.cu");
const RANDOM: &str = include_str!("random.cu");

/// Elements of a thread where operands are loaded four at a time.
const PACK: usize = 4;

pub(super) fn works(plan: &Plan, id: OpId, group: &Elementwise) -> Result<Vec<Work>, OpError> {
    let outputs: Vec<_> = group.outputs.iter().map(|(_, access)| access.clone()).collect();
    let call = Call::new(plan, id, &group.inputs, &outputs)?;
    check(group)?;
    let elements = group.shape.iter().product::<usize>();
    if elements == 0 {
        return Ok(Vec::new());
    }
    if let ([Instr::Load(0)], [from], [to]) = (&*group.instrs, &*call.args, &*call.results)
        && from.dtype() == to.dtype()
    {
        return super::movement::copy(from, to);
    }
    let mut generator = Generator::new(group, &call);
    generator.body()?;
    let source = generator.source();
    let kernel = Kernel::new(source, "elementwise")
        .args(&call.args)
        .args(&call.results)
        .args(generator.keys.iter().map(|&key| Arg::I64(key as i64)))
        .arg(Arg::Page)
        .size(elements);
    let threads = if generator.packed { elements / PACK } else { elements };
    Ok(vec![kernel.for_each(threads, THREADS)?])
}

/// What the generator relies on.
fn check(group: &Elementwise) -> Result<(), OpError> {
    let fits = |access: &crate::plan::Access| {
        access.ty.shape() == &*group.shape && access.layout.strides.len() == group.shape.len()
    };
    let outputs = || group.outputs.iter();
    if group.instrs.len() != group.dtypes.len()
        || !group.inputs.iter().chain(outputs().map(|(_, access)| access)).all(fits)
        || !outputs().all(|(reg, access)| {
            group.dtypes.get(*reg as usize) == Some(&access.ty.dtype())
                && access.layout.is_dense(&group.shape)
        })
    {
        return Err(internal("a fused program with operands of another form"));
    }
    Ok(())
}

/// The type that a register has in the kernel.
fn register(dtype: DType) -> &'static str {
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

struct Generator<'a> {
    group: &'a Elementwise,
    call: &'a Call,
    /// The axes of all inputs walked together: one stride per input.
    axes: Vec<(usize, Vec<usize>)>,
    packed: bool,
    /// Before the loop over the elements of a thread, and in it.
    before: String,
    inside: String,
    /// Keys of random instructions: arguments, so that equal groups have equal sources.
    keys: Vec<u64>,
    uses_whole: bool,
}

impl<'a> Generator<'a> {
    fn new(group: &'a Elementwise, call: &'a Call) -> Self {
        let axes = merged(group, &call.args);
        let packed = is_packed(group, call, &axes);
        Generator {
            group,
            call,
            axes,
            packed,
            before: String::new(),
            inside: String::new(),
            keys: Vec::new(),
            uses_whole: false,
        }
    }

    fn source(&self) -> String {
        let mut source = String::new();
        if self.uses_whole {
            source.push_str(WHOLE);
        }
        if !self.keys.is_empty() {
            source.push_str(RANDOM);
        }
        let elements = self.group.shape.iter().product();
        let reach = self.call.args.iter().map(Tensor::reach).max().unwrap_or(0).max(elements);
        let mut text = format!("typedef {} I;\n", index_type(reach));
        text.push_str("extern \"C\" __global__ void elementwise(");
        for (k, input) in self.call.args.iter().enumerate() {
            let _ = write!(text, "const {}* i{k}, ", element(input.dtype()));
        }
        for (k, output) in self.call.results.iter().enumerate() {
            let _ = write!(text, "{}* o{k}, ", element(output.dtype()));
        }
        for k in 0..self.keys.len() {
            let _ = write!(text, "i64 key{k}, ");
        }
        text.push_str("const double* page, i64 count) {\n");
        text.push_str("    I e0 = (I)blockIdx.x * blockDim.x + threadIdx.x;\n");
        if self.packed {
            text.push_str("    if (e0 >= (I)(count / 4)) return;\n    e0 *= 4;\n");
        } else {
            text.push_str("    if (e0 >= (I)count) return;\n");
        }
        text.push_str(&self.before);
        if self.packed {
            text.push_str("    #pragma unroll\n    for (I v = 0; v < 4; ++v) {\n");
            text.push_str(&self.inside);
            text.push_str("    }\n");
            for (k, output) in self.call.results.iter().enumerate() {
                let ty = element(output.dtype());
                let _ = writeln!(text, "    *(Pack<{ty}>*)(o{k} + e0) = s{k};");
            }
        } else {
            text.push_str(&self.inside);
            for k in 0..self.call.results.len() {
                let _ = writeln!(text, "    o{k}[e0] = s{k};");
            }
        }
        text.push_str("}\n");
        source + &text
    }

    fn body(&mut self) -> Result<(), OpError> {
        self.offsets();
        for (k, output) in self.call.results.iter().enumerate() {
            let ty = element(output.dtype());
            let _ = if self.packed {
                writeln!(self.before, "    Pack<{ty}> s{k};")
            } else {
                writeln!(self.before, "    {ty} s{k};")
            };
        }
        for (i, (instr, &dtype)) in self.group.instrs.iter().zip(&self.group.dtypes).enumerate() {
            let value = self.value(i, instr, dtype)?;
            let _ = writeln!(self.inside, "    {} r{i} = {value};", register(dtype));
        }
        for (k, (reg, access)) in self.group.outputs.iter().enumerate() {
            let place = if self.packed { format!("s{k}.v[v]") } else { format!("s{k}") };
            let _ = writeln!(self.inside, "    {place} = narrow<{}>(r{reg});", element(access.ty.dtype()));
        }
        Ok(())
    }

    /// Where the thread's elements lie in each input.
    fn offsets(&mut self) {
        let used: Vec<bool> =
            self.axes.iter().map(|(_, strides)| strides.iter().any(|&stride| stride != 0)).collect();
        let is_linear =
            |k: usize| matches!(self.axes.as_slice(), [(_, strides)] if strides.get(k) == Some(&1));
        if !(0..self.call.args.len()).all(is_linear) && used.iter().any(|&used| used) {
            let _ = writeln!(self.before, "    I rest = e0;");
            for (a, ((size, _), &used)) in self.axes.iter().zip(&used).enumerate().rev() {
                let _ = match (a, used) {
                    (0, true) => writeln!(self.before, "    I c0 = rest;"),
                    (0, false) => Ok(()),
                    (_, true) => writeln!(self.before, "    I c{a} = rest % (I){size}; rest /= (I){size};"),
                    (_, false) => writeln!(self.before, "    rest /= (I){size};"),
                };
            }
        }
        for (k, input) in self.call.args.iter().enumerate() {
            let terms: Vec<String> = self
                .axes
                .iter()
                .enumerate()
                .filter_map(|(a, (_, strides))| match strides.get(k).copied().unwrap_or(0) {
                    0 => None,
                    1 => Some(format!("c{a}")),
                    stride => Some(format!("c{a} * (I){stride}")),
                })
                .collect();
            let at = match terms.as_slice() {
                [] => "0".to_owned(),
                _ if is_linear(k) => "e0".to_owned(),
                terms => terms.join(" + "),
            };
            let _ = writeln!(self.before, "    I at{k} = {at};");
            let ty = element(input.dtype());
            let _ = match (self.packed, self.inner_stride(k)) {
                (true, 1) => {
                    writeln!(self.before, "    Pack<{ty}> a{k} = *(const Pack<{ty}>*)(i{k} + at{k});")
                }
                (true, _) => writeln!(self.before, "    {ty} a{k} = i{k}[at{k}];"),
                (false, _) => Ok(()),
            };
        }
    }

    /// The number of the element, as an expression.
    fn index(&self) -> &'static str {
        if self.packed { "(e0 + v)" } else { "e0" }
    }

    fn inner_stride(&self, input: usize) -> usize {
        self.axes.last().and_then(|(_, strides)| strides.get(input)).copied().unwrap_or(0)
    }

    fn dtype(&self, reg: u32) -> DType {
        self.group.dtypes.get(reg as usize).copied().unwrap_or(DType::F32)
    }

    fn value(&mut self, i: usize, instr: &Instr, dtype: DType) -> Result<String, OpError> {
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
                    (false, _) => format!("widen(i{k}[at{k}])"),
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

/// The axes of the inputs, outermost first, without those of size 1; neighbours that all walk without
/// a gap are one. Outputs are dense and never in the way.
fn merged(group: &Elementwise, inputs: &[Tensor]) -> Vec<(usize, Vec<usize>)> {
    let mut axes: Vec<(usize, Vec<usize>)> = Vec::new();
    for (axis, &size) in group.shape.iter().enumerate().filter(|&(_, &size)| size != 1) {
        let strides: Vec<usize> = inputs.iter().map(|input| input.stride(axis)).collect();
        match axes.last_mut() {
            Some((outer, outer_strides))
                if outer_strides.iter().zip(&strides).all(|(&o, &i)| i.checked_mul(size) == Some(o)) =>
            {
                *outer *= size;
                *outer_strides = strides;
            }
            _ => axes.push((size, strides)),
        }
    }
    axes
}

/// Whether threads can take four elements beside each other: of the output, and of each input, where
/// they are beside each other too or one and the same.
fn is_packed(group: &Elementwise, call: &Call, axes: &[(usize, Vec<usize>)]) -> bool {
    let elements: usize = group.shape.iter().product();
    let Some((inner, inner_strides)) = axes.last() else { return false };
    let fits = |tensor: &Tensor| tensor.is_aligned((PACK * tensor.dtype().size()).min(16));
    let input_fits = |(k, input): (usize, &Tensor)| match inner_strides.get(k) {
        Some(0) => true,
        Some(1) => {
            let outer = axes.iter().rev().skip(1);
            fits(input) && outer.flat_map(|(_, strides)| strides.get(k)).all(|stride| stride % PACK == 0)
        }
        _ => false,
    };
    elements.is_multiple_of(PACK)
        && inner.is_multiple_of(PACK)
        && call.results.iter().all(fits)
        && call.args.iter().enumerate().all(input_fits)
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
