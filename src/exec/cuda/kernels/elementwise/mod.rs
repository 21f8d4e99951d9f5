//! Fused groups of element-wise ops: one kernel for each, generated.
//!
//! A thread computes one element, or four that lie beside each other where every operand allows it.
//! Registers are what the CPU's engine has, and every instruction rounds to its dtype.

mod values;

use std::fmt::Write;

use self::values::register;
use super::{
    Arg, Kernel, OpError, Tensor, Work,
    call::Call,
    internal,
    launch::{THREADS, element, index_type},
};
use crate::{
    plan::{Access, Elementwise, Instr, Plan},
    schedule::OpId,
};

const WHOLE: &str = include_str!("../whole.cu");
const RANDOM: &str = include_str!("../random.cu");

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

/// A group whose only result is computed where it is read, for a kernel that reads each element once.
pub(super) struct Reader {
    /// The structure `Elements`, which is read like memory: `x[k]`, `x + k`.
    pub text: String,
    /// The parameters that stand for those of the memory, each with a comma behind it.
    pub parameters: String,
    pub args: Vec<Arg>,
    /// What makes an `Elements x` of them.
    pub made: String,
    /// The largest number of elements that an index of an input reaches.
    pub reach: usize,
    pub uses_whole: bool,
}

/// A group as a reader; the kernel has defined the type of indices.
pub(super) fn reader(plan: &Plan, id: OpId, group: &Elementwise) -> Result<Reader, OpError> {
    let outputs: Vec<_> = group.outputs.iter().map(|(_, access)| access.clone()).collect();
    let call = Call::new(plan, id, &group.inputs, &outputs)?;
    check(group)?;
    let mut generator = Generator::new(group, &call);
    generator.packed = false;
    generator.body()?;
    let ([output], []) = (&*call.results, &*generator.keys) else {
        return Err(internal("a group is read that is not one result"));
    };
    let (mut fields, mut parameters, mut names) = (String::new(), String::new(), String::new());
    for (k, input) in call.args.iter().enumerate() {
        let ty = element(input.dtype());
        // Writing to a string cannot fail.
        let _ = writeln!(fields, "    const {ty}* in{k};");
        let _ = write!(parameters, "const {ty}* in{k}, ");
        let _ = write!(names, "in{k}, ");
    }
    let ty = element(output.dtype());
    let text = format!(
        "struct Elements {{\n{fields}    const double* page;\n    I first;\n    \
         __device__ inline Elements operator+(I by) const {{ Elements x = *this; x.first += by; return x; }}\n    \
         __device__ inline {ty} operator[](I k) const {{\n    I e0 = first + k;\n{}{}    return s0;\n    }}\n}};\n",
        generator.before, generator.inside
    );
    parameters.push_str("const double* page, ");
    let mut args: Vec<Arg> = call.args.iter().map(Arg::from).collect();
    args.push(Arg::Page);
    Ok(Reader {
        text,
        parameters,
        args,
        made: format!("const Elements x = {{{names}page, 0}};"),
        reach: call.args.iter().map(Tensor::reach).max().unwrap_or(0),
        uses_whole: generator.uses_whole,
    })
}

/// What the generator relies on.
fn check(group: &Elementwise) -> Result<(), OpError> {
    let fits = |access: &Access| {
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
            let _ = write!(text, "const {}* in{k}, ", element(input.dtype()));
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
                    writeln!(self.before, "    Pack<{ty}> a{k} = *(const Pack<{ty}>*)(in{k} + at{k});")
                }
                (true, _) => writeln!(self.before, "    {ty} a{k} = in{k}[at{k}];"),
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
