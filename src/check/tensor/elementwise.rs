//! Functions that act element by element. On numbers alone they give numbers; on run-time scalars
//! alone (a learning-rate schedule) the result stays weak.

use super::{
    Arg, Function, Kind, Number, Operand, Param, Results,
    arithmetic::{elementwise, not_for_bools, power},
    broadcast::{common_shape, together},
    function::Args,
    number::fold_binary,
    promote::{common, constant, with_dtype},
};
use crate::{
    ir::{DType, Graph},
    ops::{Binary, OpError, Select, Unary, expect_float},
    syntax::ast::BinaryOp,
};

const X: &[Param] = &[Param::new("x", Kind::Tensor)];
const A_B: &[Param] = &[Param::new("a", Kind::Tensor), Param::new("b", Kind::Tensor)];

/// A function of one operand. `fold` is the same on a number; without one, a number becomes a
/// constant of the graph.
macro_rules! unary {
    ($name:literal, $op:ident, $fold:expr, $docs:literal) => {
        Function {
            name: $name,
            params: X,
            results: Results::One,
            random: false,
            docs: $docs,
            call: |graph, args| unary_call(graph, $name, args, Unary::$op, $fold),
        }
    };
}

macro_rules! function {
    ($name:literal, $params:expr, $docs:literal, $call:expr) => {
        Function {
            name: $name,
            params: $params,
            results: Results::One,
            random: false,
            docs: $docs,
            call: $call,
        }
    };
}

pub(super) const FUNCTIONS: &[Function] = &[
    unary!("abs", Abs, Some(f64::abs), "|x|"),
    unary!("sign", Sign, Some(sign), "-1, 0 or 1; NaN stays NaN. Lets no gradient pass."),
    unary!("exp", Exp, Some(f64::exp), "eˣ"),
    unary!("log", Log, Some(f64::ln), "The natural logarithm."),
    unary!("log1p", Log1p, Some(f64::ln_1p), "log(1 + x), exact near 0."),
    unary!("expm1", Expm1, Some(f64::exp_m1), "exp(x) - 1, exact near 0."),
    unary!(
        "sqrt",
        Sqrt,
        Some(f64::sqrt),
        "√x. Its gradient at 0 is infinite; `norm` and `std` have one that is 0 there."
    ),
    unary!("rsqrt", Rsqrt, Some(|x| 1.0 / x.sqrt()), "1 / √x"),
    unary!("recip", Recip, Some(f64::recip), "1 / x"),
    unary!("sin", Sin, Some(f64::sin), "The sine; x in radians."),
    unary!("cos", Cos, Some(f64::cos), "The cosine; x in radians."),
    unary!("tanh", Tanh, Some(f64::tanh), "The hyperbolic tangent."),
    unary!("sigmoid", Sigmoid, Some(|x| 1.0 / (1.0 + (-x).exp())), "1 / (1 + exp(-x))"),
    unary!(
        "relu",
        Relu,
        Some(|x| if x <= 0.0 { 0.0 } else { x }),
        "max(x, 0). NaN stays NaN; the gradient at 0 is 0."
    ),
    unary!("gelu", Gelu, None, "x·Φ(x), in the tanh form."),
    unary!("silu", Silu, Some(|x| x / (1.0 + (-x).exp())), "x·sigmoid(x)"),
    unary!("erf", Erf, None, "The error function."),
    unary!("floor", Floor, Some(f64::floor), "The largest whole number ≤ x."),
    unary!("ceil", Ceil, Some(f64::ceil), "The smallest whole number ≥ x."),
    unary!(
        "round",
        Round,
        Some(f64::round_ties_even),
        "The nearest whole number; halves go to the even one."
    ),
    function!("isnan", X, "Whether x is NaN: bool.", isnan),
    function!("square", X, "x·x", |graph, args| {
        let x = Args::new("square", args).operand(0)?;
        Ok(vec![if let Operand::Number(x) = x {
            Operand::Number(fold_binary(BinaryOp::Mul, x, x)?)
        } else {
            elementwise(graph, "square", Binary::Mul, x, x)?
        }])
    }),
    function!(
        "maximum",
        A_B,
        "The larger of a and b, broadcast; NaN if either is. At ties the gradient is halved between them.",
        |graph, args| extreme(graph, "maximum", args, Binary::Max)
    ),
    function!(
        "minimum",
        A_B,
        "The smaller of a and b, broadcast; NaN if either is. At ties the gradient is halved between them.",
        |graph, args| extreme(graph, "minimum", args, Binary::Min)
    ),
    function!("pow", A_B, "a to the power b, broadcast: the same as `a ** b`.", |graph, args| {
        let args = Args::new("pow", args);
        let (a, b) = (args.operand(0)?, args.operand(1)?);
        Ok(vec![if let (Operand::Number(a), Operand::Number(b)) = (a, b) {
            Operand::Number(fold_binary(BinaryOp::Pow, a, b)?)
        } else {
            power(graph, "pow", a, b)?
        }])
    }),
    function!(
        "clip",
        &[Param::new("x", Kind::Tensor), Param::new("low", Kind::Tensor), Param::new("high", Kind::Tensor)],
        "x, but at least `low` and at most `high`, broadcast. NaN if any of them is; the gradient is 1 on the bounds and 0 outside.",
        clip
    ),
    function!(
        "where",
        &[
            Param::new("condition", Kind::Tensor),
            Param::new("a", Kind::Tensor),
            Param::new("b", Kind::Tensor)
        ],
        "a where `condition` (bool) is true and b elsewhere, all broadcast.",
        select
    ),
];

fn sign(x: f64) -> f64 {
    if x > 0.0 {
        1.0
    } else if x < 0.0 {
        -1.0
    } else {
        x
    }
}

fn unary_call(
    graph: &mut Graph,
    name: &'static str,
    args: &[Arg],
    op: Unary,
    fold: Option<fn(f64) -> f64>,
) -> Result<Vec<Operand>, OpError> {
    let x = Args::new(name, args).operand(0)?;
    let keeps_ints = matches!(op, Unary::Abs | Unary::Sign | Unary::Floor | Unary::Ceil | Unary::Round);
    let (value, weak) = match (x, fold) {
        (Operand::Number(Number::Bool(_)), _) => return Err(not_for_bools(name, &x.describe(graph))),
        (Operand::Number(Number::Int(x)), _) if keeps_ints => {
            let folded = match op {
                Unary::Abs => x.checked_abs(),
                Unary::Sign => Some(x.signum()),
                _ => Some(x),
            };
            let folded = folded.ok_or_else(|| {
                OpError::new(format!("`{name}` of `{x}`: the result does not fit in 64 bits"))
            })?;
            return Ok(vec![Operand::int(folded)]);
        }
        (Operand::Number(x), Some(fold)) => return Ok(vec![Operand::float(fold(x.as_f64()))]),
        (Operand::Number(x), None) => (constant(graph, name, x, DType::F64)?, true),
        (Operand::Tensor { value, weak }, _) => (value, weak),
    };
    let ty = graph.ty(value);
    if ty.dtype() == DType::Bool {
        return Err(not_for_bools(name, &x.describe(graph)));
    }
    if ty.dtype().is_int() && keeps_ints {
        // Whole numbers are their own floor, ceiling and rounding.
        if matches!(op, Unary::Floor | Unary::Ceil | Unary::Round) {
            return Ok(vec![x]);
        }
    } else {
        expect_float(name, ty)?;
    }
    Ok(vec![Operand::Tensor { value: graph.unary(op, value)?, weak }])
}

fn isnan(graph: &mut Graph, args: &[Arg]) -> Result<Vec<Operand>, OpError> {
    let (value, weak) = match Args::new("isnan", args).operand(0)? {
        Operand::Number(x) => return Ok(vec![Operand::bool(x.as_f64().is_nan())]),
        Operand::Tensor { value, weak } => (value, weak),
    };
    expect_float("isnan", graph.ty(value))?;
    Ok(vec![Operand::Tensor { value: graph.unary(Unary::IsNan, value)?, weak }])
}

fn extreme(graph: &mut Graph, name: &'static str, args: &[Arg], op: Binary) -> Result<Vec<Operand>, OpError> {
    let args = Args::new(name, args);
    let (a, b) = (args.operand(0)?, args.operand(1)?);
    let (dtype, _) = common(graph, name, &[a, b])?;
    if dtype == DType::Bool {
        return Err(not_for_bools(name, &format!("{} and {}", a.describe(graph), b.describe(graph))));
    }
    if let (Operand::Number(x), Operand::Number(y)) = (a, b) {
        let larger = op == Binary::Max;
        return Ok(vec![match (x, y) {
            (Number::Int(x), Number::Int(y)) => Operand::int(if larger { x.max(y) } else { x.min(y) }),
            _ => {
                let (x, y) = (x.as_f64(), y.as_f64());
                // NaN if either is; the standard `max` would ignore it.
                let first = x.is_nan() || (!y.is_nan() && if larger { x >= y } else { x <= y });
                Operand::float(if first { x } else { y })
            }
        }]);
    }
    Ok(vec![elementwise(graph, name, op, a, b)?])
}

fn clip(graph: &mut Graph, args: &[Arg]) -> Result<Vec<Operand>, OpError> {
    let args = Args::new("clip", args);
    let mut x = args.operand(0)?;
    if common(graph, "clip", &[x])?.0 == DType::Bool {
        return Err(not_for_bools("clip", &x.describe(graph)));
    }
    for (limit, below) in [(args.operand(1)?, true), (args.operand(2)?, false)] {
        if let (Operand::Number(a), Operand::Number(b)) = (x, limit) {
            let (a, b) = (a.as_f64(), b.as_f64());
            let outside = if below { a < b } else { a > b };
            x = if outside || b.is_nan() { limit } else { x };
            continue;
        }
        let (values, weak) = together(graph, "clip", &[x, limit])?;
        let [value, bound] = values.as_slice() else {
            return Err(OpError::new("internal: `clip` lost an operand"));
        };
        // Not `maximum`: its gradient is halved on the bound.
        let mut outside = graph.binary(if below { Binary::Lt } else { Binary::Gt }, *value, *bound)?;
        // Comparisons with NaN are false, so that a bound of NaN would be none.
        let may_be_nan = match limit {
            Operand::Number(number) => number.as_f64().is_nan(),
            Operand::Tensor { .. } => graph.ty(*bound).dtype().is_float(),
        };
        if may_be_nan {
            let unknown = graph.unary(Unary::IsNan, *bound)?;
            outside = graph.binary(Binary::Or, outside, unknown)?;
        }
        x = Operand::Tensor { value: graph.select(outside, *bound, *value)?, weak };
    }
    Ok(vec![x])
}

fn select(graph: &mut Graph, args: &[Arg]) -> Result<Vec<Operand>, OpError> {
    let args = Args::new("where", args);
    let (condition, a, b) = (args.operand(0)?, args.operand(1)?, args.operand(2)?);
    if common(graph, "where", &[condition])?.0 != DType::Bool {
        return Err(OpError::new(format!("`where`: the condition is {}", condition.describe(graph)))
            .help("compare first: `x != 0`"));
    }
    if let (Operand::Number(condition), Operand::Number(_), Operand::Number(_)) = (condition, a, b) {
        return Ok(vec![if condition == Number::Bool(true) { a } else { b }]);
    }
    let shape = common_shape(graph, "where", &[condition, a, b])?;
    let (dtype, weak) = choice_type(graph, condition, a, b)?;
    let mut values = Vec::with_capacity(3);
    for (operand, dtype) in [(condition, DType::Bool), (a, dtype), (b, dtype)] {
        let value = with_dtype(graph, "where", operand, dtype)?;
        values.push(graph.broadcast(value, &shape)?);
    }
    Ok(vec![Operand::Tensor { value: graph.value(Select, &values)?, weak }])
}

/// The dtype of a choice and whether it is weak. Weak values are scalars made from weak ones, so
/// between weak operands the condition decides: a tensor makes an f32 tensor of them.
fn choice_type(graph: &Graph, condition: Operand, a: Operand, b: Operand) -> Result<(DType, bool), OpError> {
    let (dtype, weak) = common(graph, "where", &[a, b])?;
    let numbers = matches!((a, b), (Operand::Number(_), Operand::Number(_)));
    Ok(match condition {
        Operand::Tensor { weak: false, .. } if weak && dtype == DType::F64 => (DType::F32, false),
        Operand::Tensor { weak: false, .. } => (dtype, false),
        Operand::Tensor { weak: true, .. } if numbers && dtype != DType::Bool => (DType::F64, true),
        Operand::Tensor { weak: true, .. } => (dtype, weak || numbers),
        Operand::Number(_) => (dtype, weak),
    })
}
