//! Functions that make tensors from shapes and numbers.

use super::{
    Arg, Default, Function, Kind, Nested, Number, Operand, Param, Results,
    broadcast::common_shape,
    function::{Args, tensor},
    promote::{constant, whole, with_dtype},
};
use crate::{
    ir::{DType, Graph, Type, ValueId},
    ops::{Binary, Distribution, Iota, Literal, OpError, Random},
};
use half::{bf16, f16};

const SHAPE: Param = Param::with("shape", Kind::Shape, Default::None);
const DTYPE: Param = Param::with("dtype", Kind::DType, Default::DType(DType::F32));

pub(super) const FUNCTIONS: &[Function] = &[
    Function {
        name: "zeros",
        params: &[SHAPE, DTYPE],
        results: Results::One,
        random: false,
        docs: "A tensor of zeros of `shape`.",
        call: |graph, args| filled(graph, "zeros", args, Number::Int(0)),
    },
    Function {
        name: "ones",
        params: &[SHAPE, DTYPE],
        results: Results::One,
        random: false,
        docs: "A tensor of ones of `shape`.",
        call: |graph, args| filled(graph, "ones", args, Number::Int(1)),
    },
    Function {
        name: "full",
        params: &[Param::new("shape", Kind::Shape), Param::new("value", Kind::Tensor), DTYPE],
        results: Results::One,
        random: false,
        docs: "A tensor of `shape` with `value`, a scalar, in every element.",
        call: full,
    },
    Function {
        name: "zeros_like",
        params: &[Param::new("x", Kind::Tensor)],
        results: Results::One,
        random: false,
        docs: "Zeros with the shape and dtype of `x`.",
        call: |graph, args| like(graph, "zeros_like", args, 0.0),
    },
    Function {
        name: "ones_like",
        params: &[Param::new("x", Kind::Tensor)],
        results: Results::One,
        random: false,
        docs: "Ones with the shape and dtype of `x`.",
        call: |graph, args| like(graph, "ones_like", args, 1.0),
    },
    Function {
        name: "arange",
        params: &[
            Param::new("low", Kind::Int),
            Param::with("high", Kind::Int, Default::None),
            Param::with("step", Kind::Int, Default::Int(1)),
        ],
        results: Results::One,
        random: false,
        docs: "`arange(n)` is 0, 1, … n - 1 and `arange(low, high, step: 1)` is low, low + step, … before `high`: i32 [n].",
        call: arange,
    },
    Function {
        name: "eye",
        params: &[Param::new("n", Kind::Int), DTYPE],
        results: Results::One,
        random: false,
        docs: "The identity matrix: [n, n].",
        call: eye,
    },
    Function {
        name: "uniform",
        params: &[
            Param::new("shape", Kind::Shape),
            Param::with("low", Kind::Tensor, Default::Int(0)),
            Param::with("high", Kind::Tensor, Default::Int(1)),
            DTYPE,
        ],
        results: Results::One,
        random: true,
        docs: "Random numbers of `shape`, uniform in low ≤ x < high (rounding may reach `high`).",
        call: uniform,
    },
    Function {
        name: "normal",
        params: &[
            Param::new("shape", Kind::Shape),
            Param::with("mean", Kind::Tensor, Default::Int(0)),
            Param::with("std", Kind::Tensor, Default::Int(1)),
            DTYPE,
        ],
        results: Results::One,
        random: true,
        docs: "Random numbers of `shape` from the normal distribution with this mean and standard deviation.",
        call: normal,
    },
    Function {
        name: "tensor",
        params: &[Param::new("list", Kind::Nested), Param::with("dtype", Kind::DType, Default::None)],
        results: Results::One,
        random: false,
        docs: "A tensor from nested lists of numbers. Without `dtype`: f32 if any of them is a float, i32 for whole numbers, bool for booleans.",
        call: literal,
    },
];

fn filled(
    graph: &mut Graph,
    name: &'static str,
    args: &[Arg],
    value: Number,
) -> Result<Vec<Operand>, OpError> {
    let args = Args::new(name, args);
    let shape = args.shape(0)?;
    let dtype = args.dtype(1)?;
    let scalar = constant(graph, name, value, dtype)?;
    tensor(graph.broadcast(scalar, &shape)?)
}

fn full(graph: &mut Graph, args: &[Arg]) -> Result<Vec<Operand>, OpError> {
    let args = Args::new("full", args);
    let shape = args.shape(0)?;
    let dtype = args.dtype(2)?;
    let value = scalar(graph, &args, 1, "value", dtype)?;
    tensor(graph.broadcast(value, &shape)?)
}

/// A 0-d operand in this dtype.
fn scalar(
    graph: &mut Graph,
    args: &Args<'_>,
    k: usize,
    what: &str,
    dtype: DType,
) -> Result<ValueId, OpError> {
    let operand = args.operand(k)?;
    if !operand.shape(graph).is_empty() {
        return Err(OpError::new(format!(
            "`{}`: `{what}` is a scalar, got {}",
            args.name,
            operand.describe(graph)
        )));
    }
    with_dtype(graph, args.name, operand, dtype)
}

fn like(graph: &mut Graph, name: &'static str, args: &[Arg], value: f64) -> Result<Vec<Operand>, OpError> {
    let x = Args::new(name, args).value(graph, 0)?;
    tensor(graph.splat_like(x, value)?)
}

fn arange(graph: &mut Graph, args: &[Arg]) -> Result<Vec<Operand>, OpError> {
    let args = Args::new("arange", args);
    let (low, high) = match args.get(1) {
        Arg::None => (0, args.int(0)?),
        _ => (args.int(0)?, args.int(1)?),
    };
    let step = args.int(2)?;
    if step == 0 {
        return Err(OpError::new("`arange`: the step is 0"));
    }
    // 128 bits hold every difference of two 64-bit numbers.
    let (low, high, step) = (i128::from(low), i128::from(high), i128::from(step));
    let distance = if step > 0 { high - low } else { low - high };
    let count = if distance <= 0 { 0 } else { (distance + step.abs() - 1) / step.abs() };
    let last = low + step * (count - 1).max(0);
    let fits = |v: i128| i32::try_from(v).is_ok();
    let count = usize::try_from(count).ok().filter(|_| fits(low) && fits(last) && fits(step) && fits(count));
    let Some(count) = count else {
        return Err(OpError::new(format!("`arange`: {low} … {last} does not fit in i32")));
    };
    let mut value = graph.value(Iota { ty: Type::new(DType::I32, [count])?, axis: 0 }, &[])?;
    for (op, number, identity) in [(Binary::Mul, step, 1), (Binary::Add, low, 0)] {
        if number != identity {
            let number = graph.splat_like(value, number as f64)?;
            value = graph.binary(op, value, number)?;
        }
    }
    tensor(value)
}

fn eye(graph: &mut Graph, args: &[Arg]) -> Result<Vec<Operand>, OpError> {
    let args = Args::new("eye", args);
    let n = args.size(0, "n")?;
    let ty = Type::new(DType::I64, [n, n])?;
    let row = graph.value(Iota { ty: ty.clone(), axis: 0 }, &[])?;
    let column = graph.value(Iota { ty, axis: 1 }, &[])?;
    let diagonal = graph.binary(Binary::Eq, row, column)?;
    tensor(graph.cast(diagonal, args.dtype(1)?)?)
}

/// Random numbers in [0, 1) or from N(0, 1), and the shape and dtype asked for.
fn draw(graph: &mut Graph, args: &Args<'_>, distribution: Distribution) -> Result<(ValueId, DType), OpError> {
    let (key, per_step) = args.key()?;
    let dtype = args.dtype(4)?;
    if !dtype.is_float() {
        return Err(OpError::new(format!("`{}` makes floating-point numbers, not {dtype}", args.name))
            .help(format!("convert them: `{dtype}({}(…))`", args.name)));
    }
    let ty = Type::new(dtype, args.shape(1)?)?;
    Ok((graph.value(Random { ty, distribution, key, per_step }, &[])?, dtype))
}

fn uniform(graph: &mut Graph, args: &[Arg]) -> Result<Vec<Operand>, OpError> {
    let args = Args::new("uniform", args);
    let (random, dtype) = draw(graph, &args, Distribution::Uniform)?;
    let (low, high) = (args.operand(2)?, args.operand(3)?);
    if is_number(low, 0.0) && is_number(high, 1.0) {
        return tensor(random);
    }
    let low_value = spread(graph, &args, low, dtype, random)?;
    let width = match (low, high) {
        // The width is rounded once, from the exact numbers.
        (Operand::Number(low), Operand::Number(high)) => Operand::float(high.as_f64() - low.as_f64()),
        _ => {
            let high = spread(graph, &args, high, dtype, random)?;
            Operand::tensor(graph.sub(high, low_value)?)
        }
    };
    let width = spread(graph, &args, width, dtype, random)?;
    let scaled = graph.mul(random, width)?;
    tensor(if is_number(low, 0.0) { scaled } else { graph.add(scaled, low_value)? })
}

fn normal(graph: &mut Graph, args: &[Arg]) -> Result<Vec<Operand>, OpError> {
    let args = Args::new("normal", args);
    let (mut value, dtype) = draw(graph, &args, Distribution::Normal)?;
    let (mean, std) = (args.operand(2)?, args.operand(3)?);
    if !is_number(std, 1.0) {
        let std = spread(graph, &args, std, dtype, value)?;
        value = graph.mul(value, std)?;
    }
    if !is_number(mean, 0.0) {
        let mean = spread(graph, &args, mean, dtype, value)?;
        value = graph.add(value, mean)?;
    }
    tensor(value)
}

fn is_number(operand: Operand, value: f64) -> bool {
    matches!(operand, Operand::Number(number) if number.as_f64() == value)
}

/// A parameter of a distribution, in the type of the random numbers.
fn spread(
    graph: &mut Graph,
    args: &Args<'_>,
    operand: Operand,
    dtype: DType,
    random: ValueId,
) -> Result<ValueId, OpError> {
    let shape = graph.ty(random).shape().to_vec();
    if common_shape(graph, args.name, &[Operand::tensor(random), operand])? != shape {
        return Err(OpError::new(format!(
            "`{}`: {} does not broadcast to {}",
            args.name,
            operand.describe(graph),
            graph.ty(random)
        )));
    }
    let value = with_dtype(graph, args.name, operand, dtype)?;
    graph.broadcast(value, &shape)
}

/// Deeper lists are refused, so that walking them cannot exhaust the stack.
const MAX_RANK: usize = 64;

fn literal(graph: &mut Graph, args: &[Arg]) -> Result<Vec<Operand>, OpError> {
    let args = Args::new("tensor", args);
    let Arg::Nested(list) = args.get(0) else {
        return Err(OpError::new("internal: `tensor` got no list"));
    };
    let mut shape = Vec::new();
    let mut numbers = Vec::new();
    flatten(list, 0, &mut shape, &mut numbers)?;
    let dtype = match args.optional_dtype(1)? {
        Some(dtype) => dtype,
        None => literal_dtype(&numbers)?,
    };
    let ty = Type::new(dtype, shape)?;
    if ty.rank() == 0
        && let [number] = numbers.as_slice()
    {
        return tensor(constant(graph, "tensor", *number, dtype)?);
    }
    let mut data = Vec::with_capacity(numbers.len().saturating_mul(dtype.size()));
    for &number in &numbers {
        match dtype {
            DType::F32 => data.extend((number.as_f64() as f32).to_le_bytes()),
            DType::F64 => data.extend(number.as_f64().to_le_bytes()),
            DType::F16 => data.extend(f16::from_f64(number.as_f64()).to_le_bytes()),
            DType::BF16 => data.extend(bf16::from_f64(number.as_f64()).to_le_bytes()),
            DType::I32 => data.extend((whole("tensor", number, dtype)? as i32).to_le_bytes()),
            DType::I64 => data.extend(whole("tensor", number, dtype)?.to_le_bytes()),
            DType::U8 | DType::Bool => data.push(whole("tensor", number, dtype)? as u8),
        }
    }
    tensor(graph.value(Literal { ty, data: data.into() }, &[])?)
}

/// Appends the numbers of a nested list; its shape is that of its first entries.
fn flatten(
    list: &Nested,
    depth: usize,
    shape: &mut Vec<usize>,
    numbers: &mut Vec<Number>,
) -> Result<(), OpError> {
    let first = numbers.is_empty();
    match list {
        Nested::List(_) if depth >= MAX_RANK => {
            Err(OpError::new(format!("`tensor`: lists are nested deeper than {MAX_RANK}")))
        }
        Nested::List(items) => {
            match shape.get(depth) {
                None if first => shape.push(items.len()),
                Some(&size) if size == items.len() => {}
                Some(&size) => {
                    return Err(OpError::new(format!(
                        "`tensor`: the lists on level {} differ in length, {size} and {}",
                        depth + 1,
                        items.len()
                    )));
                }
                None => return Err(uneven(depth)),
            }
            items.iter().try_for_each(|item| flatten(item, depth + 1, shape, numbers))
        }
        Nested::Number(_) if depth < shape.len() => Err(uneven(depth)),
        Nested::Number(number) => {
            numbers.push(*number);
            Ok(())
        }
    }
}

fn uneven(depth: usize) -> OpError {
    OpError::new(format!("`tensor`: level {depth} has both numbers and lists"))
}

fn literal_dtype(numbers: &[Number]) -> Result<DType, OpError> {
    let floats = numbers.iter().any(|n| matches!(n, Number::Float(_)));
    let bools = numbers.iter().filter(|n| matches!(n, Number::Bool(_))).count();
    if bools > 0 && bools < numbers.len() {
        return Err(OpError::new("`tensor`: the list has both booleans and numbers")
            .help("name the dtype: `tensor(list, dtype: f32)`"));
    }
    Ok(match () {
        _ if numbers.is_empty() || floats => DType::F32,
        _ if bools > 0 => DType::Bool,
        _ => {
            for &number in numbers {
                whole("tensor", number, DType::I32)
                    .map_err(|e| e.help("name the dtype: `tensor(list, dtype: i64)`"))?;
            }
            DType::I32
        }
    })
}
