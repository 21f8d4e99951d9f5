//! Conversions, and functions that mark a value.

use std::sync::Arc;

use super::{
    Arg, Default, Function, Kind, Number, Operand, Param, Results,
    function::{Args, tensor},
    promote::{constant, value},
    reduce::nonzero,
};
use crate::{
    ir::{DType, Graph},
    ops::{OpError, Print, StopGrad},
};

const X: Param = Param::new("x", Kind::Tensor);

macro_rules! cast {
    ($name:literal, $dtype:ident, $docs:literal) => {
        Function {
            name: $name,
            params: &[X],
            results: Results::One,
            random: false,
            docs: $docs,
            call: |graph, args| convert(graph, Args::new($name, args).operand(0)?, DType::$dtype),
        }
    };
}

pub(super) const FUNCTIONS: &[Function] = &[
    cast!("f32", F32, "`x` in 32-bit floating point."),
    cast!("f16", F16, "`x` in 16-bit floating point (5 bits of exponent); beyond ±65504 infinite."),
    cast!("bf16", BF16, "`x` in 16-bit floating point with the range of f32 (8 bits of exponent)."),
    cast!("f64", F64, "`x` in 64-bit floating point."),
    cast!(
        "i32",
        I32,
        "`x` in 32-bit whole numbers. Floats are cut towards 0 and kept in range; NaN gives 0."
    ),
    cast!(
        "i64",
        I64,
        "`x` in 64-bit whole numbers. Floats are cut towards 0 and kept in range; NaN gives 0."
    ),
    cast!("u8", U8, "`x` in bytes, 0 … 255. Floats are cut towards 0 and kept in range; NaN gives 0."),
    cast!("bool", Bool, "Whether `x` is not 0."),
    Function {
        name: "cast",
        params: &[X, Param::new("dtype", Kind::DType)],
        results: Results::One,
        random: false,
        docs: "`x` in another dtype: `cast(x, f16)` is `f16(x)`.",
        call: |graph, args| {
            let args = Args::new("cast", args);
            convert(graph, args.operand(0)?, args.dtype(1)?)
        },
    },
    Function {
        name: "like",
        params: &[X, Param::new("y", Kind::Tensor)],
        results: Results::One,
        random: false,
        docs: "`x` in the dtype of `y`.",
        call: |graph, args| {
            let args = Args::new("like", args);
            let y = args.value(graph, 1)?;
            let dtype = graph.ty(y).dtype();
            convert(graph, args.operand(0)?, dtype)
        },
    },
    Function {
        name: "stop_grad",
        params: &[X],
        results: Results::One,
        random: false,
        docs: "`x`; no gradient goes through it.",
        call: |graph, args| {
            Ok(vec![match Args::new("stop_grad", args).operand(0)? {
                Operand::Tensor { value, weak } => {
                    Operand::Tensor { value: graph.value(StopGrad, &[value])?, weak }
                }
                number => number,
            }])
        },
    },
    Function {
        name: "name",
        params: &[X, Param::new("label", Kind::Str)],
        results: Results::One,
        random: false,
        docs: "`x`, under a name: reports show it, and `checkpoint(policy: names(…))` keeps it.",
        call: name,
    },
    Function {
        name: "debug",
        params: &[X, Param::with("label", Kind::Str, Default::None)],
        results: Results::One,
        random: false,
        docs: "`x`, printed each time the step comes to it.",
        call: debug,
    },
];

/// An explicit conversion: the result has a dtype of its own, whatever `x` was.
fn convert(graph: &mut Graph, x: Operand, dtype: DType) -> Result<Vec<Operand>, OpError> {
    let number = match x {
        Operand::Tensor { value, .. } if dtype == DType::Bool => return tensor(nonzero(graph, value)?),
        Operand::Tensor { value, .. } => return tensor(graph.cast(value, dtype)?),
        Operand::Number(number) => number,
    };
    let number = match number {
        _ if dtype == DType::Bool => Number::Bool(number.as_f64() != 0.0),
        // As for tensors: cut towards 0 and kept in range.
        Number::Float(x) if !dtype.is_float() => {
            let x = x as i64;
            Number::Int(match dtype {
                DType::U8 => x.clamp(0, u8::MAX.into()),
                DType::I32 => x.clamp(i32::MIN.into(), i32::MAX.into()),
                _ => x,
            })
        }
        other => other,
    };
    tensor(constant(graph, dtype.name(), number, dtype)?)
}

fn name(graph: &mut Graph, args: &[Arg]) -> Result<Vec<Operand>, OpError> {
    let args = Args::new("name", args);
    let operand = args.operand(0)?;
    let label = label(&args)?;
    let Operand::Tensor { value, .. } = operand else {
        return Err(OpError::new(format!("`name`: {} is not a tensor", operand.describe(graph))));
    };
    graph.marks.insert(value, Arc::clone(&label));
    graph.names.insert(value, label);
    Ok(vec![operand])
}

fn debug(graph: &mut Graph, args: &[Arg]) -> Result<Vec<Operand>, OpError> {
    let args = Args::new("debug", args);
    let operand = args.operand(0)?;
    let weak = matches!(operand, Operand::Tensor { weak: true, .. });
    let value = value(graph, "debug", operand)?;
    let label = label(&args)?;
    Ok(vec![Operand::Tensor { value: graph.value(Print { label }, &[value])?, weak }])
}

/// Argument 1, or the name of the function.
fn label(args: &Args<'_>) -> Result<Arc<str>, OpError> {
    Ok(args.str(1)?.cloned().unwrap_or_else(|| Arc::from(args.name)))
}
