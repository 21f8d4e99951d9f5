//! Reductions. `axis:` is one axis, several, or by default all; `keep: true` leaves them with
//! size 1.

use super::{
    Arg, Default, Function, Kind, Operand, Param, Results,
    arithmetic::not_for_bools,
    axes::axes,
    function::{Args, tensor},
};
use crate::{
    ir::{DType, Graph, ValueId},
    ops::{ArgReduce, Binary, OpError, ReduceKind, StopGrad, Unary},
};

const X: Param = Param::new("x", Kind::Tensor);
const AXIS: Param = Param::with("axis", Kind::Axis, Default::None);
const KEEP: Param = Param::with("keep", Kind::Bool, Default::Bool(false));

macro_rules! reduction {
    ($name:literal, $docs:literal, $reduce:expr) => {
        Function {
            name: $name,
            params: &[X, AXIS, KEEP],
            results: Results::One,
            random: false,
            docs: $docs,
            call: |graph, args| reduction(graph, $name, args, 2, $reduce),
        }
    };
}

pub(super) const FUNCTIONS: &[Function] = &[
    reduction!(
        "sum",
        "The sum over `axis`. f16 and bf16 are accumulated in f32; bool and u8 are counted in i32. Over nothing: 0.",
        |g, r| {
            let x = counted(g, r.x)?;
            g.reduce(ReduceKind::Sum, x, &r.axes)
        }
    ),
    reduction!(
        "mean",
        "The mean over `axis`; of whole numbers and bools it is f32. Over nothing: NaN.",
        |g, r| {
            let x = floating(g, r.x)?;
            g.reduce(ReduceKind::Mean, x, &r.axes)
        }
    ),
    reduction!("prod", "The product over `axis`. Over nothing: 1.", |g, r| {
        let x = counted(g, r.x)?;
        g.reduce(ReduceKind::Prod, x, &r.axes)
    }),
    reduction!(
        "max",
        "The largest element over `axis`; NaN if any is. The gradient is split evenly among ties. Over nothing: -inf, or the least value of the dtype.",
        |g, r| extreme(g, r, ReduceKind::Max)
    ),
    reduction!(
        "min",
        "The smallest element over `axis`; NaN if any is. The gradient is split evenly among ties. Over nothing: inf, or the largest value of the dtype.",
        |g, r| extreme(g, r, ReduceKind::Min)
    ),
    reduction!(
        "all",
        "Whether every element over `axis` is true (or not 0): bool. Over nothing: true.",
        |g, r| { truth(g, r, ReduceKind::Min) }
    ),
    reduction!(
        "any",
        "Whether any element over `axis` is true (or not 0): bool. Over nothing: false.",
        |g, r| { truth(g, r, ReduceKind::Max) }
    ),
    reduction!(
        "norm",
        "√(Σ x²) over `axis`, computed in f32 for f16 and bf16. Its gradient at 0 is 0.",
        |g, r| {
            let dtype = g.ty(r.x).dtype();
            let x = wide(g, r.x)?;
            let squares = g.mul(x, x)?;
            let sum = g.reduce(ReduceKind::Sum, squares, &r.axes)?;
            let root = root(g, sum)?;
            back(g, root, dtype)
        }
    ),
    reduction!(
        "logsumexp",
        "log(Σ exp x) over `axis`, without overflow. Where every element is -inf it is -inf, with gradient 0.",
        logsumexp
    ),
    Function {
        name: "var",
        params: &[X, AXIS, Param::with("ddof", Kind::Int, Default::Int(0)), KEEP],
        results: Results::One,
        random: false,
        docs: "The variance over `axis`: Σ (x - mean)² / (n - ddof), computed in f32 for f16 and bf16. NaN where n ≤ ddof.",
        call: |graph, args| {
            let ddof = Args::new("var", args).size(2, "ddof")?;
            reduction(graph, "var", args, 3, |g, r| {
                let dtype = g.ty(r.x).dtype();
                let variance = variance(g, r, ddof)?;
                back(g, variance, dtype)
            })
        },
    },
    Function {
        name: "std",
        params: &[X, AXIS, Param::with("ddof", Kind::Int, Default::Int(0)), KEEP],
        results: Results::One,
        random: false,
        docs: "The standard deviation over `axis`: the root of `var`. Its gradient where all elements are equal is 0.",
        call: |graph, args| {
            let ddof = Args::new("std", args).size(2, "ddof")?;
            reduction(graph, "std", args, 3, |g, r| {
                let dtype = g.ty(r.x).dtype();
                let variance = variance(g, r, ddof)?;
                let root = root(g, variance)?;
                back(g, root, dtype)
            })
        },
    },
    Function {
        name: "argmax",
        params: &[X, AXIS, KEEP],
        results: Results::One,
        random: false,
        docs: "The index (i32) of the first largest element along `axis`, or in the flattened x. NaN counts as largest.",
        call: |graph, args| arg_reduce(graph, "argmax", args, true),
    },
    Function {
        name: "argmin",
        params: &[X, AXIS, KEEP],
        results: Results::One,
        random: false,
        docs: "The index (i32) of the first smallest element along `axis`, or in the flattened x. NaN counts as smallest.",
        call: |graph, args| arg_reduce(graph, "argmin", args, false),
    },
];

/// What a reduction works on.
struct Reduction {
    name: &'static str,
    x: ValueId,
    /// Ascending.
    axes: Vec<usize>,
}

/// Binds `x`, `axis` (argument 1) and `keep`, reduces, and puts kept axes back.
fn reduction(
    graph: &mut Graph,
    name: &'static str,
    args: &[Arg],
    keep: usize,
    reduce: impl FnOnce(&mut Graph, &Reduction) -> Result<ValueId, OpError>,
) -> Result<Vec<Operand>, OpError> {
    let args = Args::new(name, args);
    let x = args.value(graph, 0)?;
    let axes = axes(name, args.get(1), graph.ty(x))?;
    let kept = args.bool(keep)?.then(|| kept_shape(graph, x, &axes));
    let mut result = reduce(graph, &Reduction { name, x, axes })?;
    if let Some(shape) = kept {
        result = graph.reshape(result, &shape)?;
    }
    tensor(result)
}

/// The shape of `x` with size 1 at `axes`.
fn kept_shape(graph: &Graph, x: ValueId, axes: &[usize]) -> Vec<usize> {
    let shape = graph.ty(x).shape().iter().enumerate();
    shape.map(|(i, &size)| if axes.contains(&i) { 1 } else { size }).collect()
}

/// Whole numbers and bools as f32.
fn floating(graph: &mut Graph, x: ValueId) -> Result<ValueId, OpError> {
    if graph.ty(x).dtype().is_float() { Ok(x) } else { graph.cast(x, DType::F32) }
}

/// In the dtype that squares are summed in: f16 would overflow from 256 on.
fn wide(graph: &mut Graph, x: ValueId) -> Result<ValueId, OpError> {
    let x = floating(graph, x)?;
    let to = graph.ty(x).dtype().accumulator();
    graph.cast(x, to)
}

/// From the wide dtype back to that of the operand; to f32 for whole numbers.
fn back(graph: &mut Graph, x: ValueId, dtype: DType) -> Result<ValueId, OpError> {
    graph.cast(x, if dtype.is_float() { dtype } else { DType::F32 })
}

/// Bools and bytes in a dtype that counts further.
fn counted(graph: &mut Graph, x: ValueId) -> Result<ValueId, OpError> {
    match graph.ty(x).dtype() {
        DType::Bool | DType::U8 => graph.cast(x, DType::I32),
        _ => Ok(x),
    }
}

fn extreme(graph: &mut Graph, r: &Reduction, kind: ReduceKind) -> Result<ValueId, OpError> {
    let ty = graph.ty(r.x);
    if ty.dtype() == DType::Bool {
        return Err(not_for_bools(r.name, &ty.to_string()).help("use `any` or `all`"));
    }
    graph.reduce(kind, r.x, &r.axes)
}

/// `all` is the least and `any` the largest of 0s and 1s; u8 gives both their value over nothing.
fn truth(graph: &mut Graph, r: &Reduction, kind: ReduceKind) -> Result<ValueId, OpError> {
    let truth = nonzero(graph, r.x)?;
    let bytes = graph.cast(truth, DType::U8)?;
    let reduced = graph.reduce(kind, bytes, &r.axes)?;
    nonzero(graph, reduced)
}

/// `x != 0` as bool; `x` itself where it is bool.
pub(super) fn nonzero(graph: &mut Graph, x: ValueId) -> Result<ValueId, OpError> {
    if graph.ty(x).dtype() == DType::Bool {
        return Ok(x);
    }
    let zero = graph.splat_like(x, 0.0)?;
    graph.binary(Binary::Ne, x, zero)
}

/// In the wide dtype.
fn variance(graph: &mut Graph, r: &Reduction, ddof: usize) -> Result<ValueId, OpError> {
    let x = wide(graph, r.x)?;
    let shape = graph.ty(x).shape().to_vec();
    let mean = graph.reduce_keep(ReduceKind::Mean, x, &r.axes)?;
    let mean = graph.broadcast(mean, &shape)?;
    let centred = graph.sub(x, mean)?;
    let squares = graph.mul(centred, centred)?;
    let biased = graph.reduce(ReduceKind::Mean, squares, &r.axes)?;
    if ddof == 0 {
        return Ok(biased);
    }
    // Over no degree of freedom the variance is not a number, and neither is its gradient, which
    // has the shape of x all the same.
    let n: usize = r.axes.iter().filter_map(|&a| shape.get(a)).product();
    let factor = if n > ddof { n as f64 / (n - ddof) as f64 } else { f64::NAN };
    let factor = graph.splat_like(biased, factor)?;
    graph.mul(biased, factor)
}

/// √x for x ≥ 0 whose gradient at 0 is 0: a sum of squares that is 0 has gradient 0, where the root
/// alone would give 0·∞. The root is taken of 1 in its place, and not only hidden by the outer
/// choice, or the unused branch would still contribute a NaN. NaN is not 0, so the root of NaN
/// hands NaN to every element, as the formula does.
pub(in crate::check) fn root(graph: &mut Graph, x: ValueId) -> Result<ValueId, OpError> {
    let zero = graph.splat_like(x, 0.0)?;
    let one = graph.splat_like(x, 1.0)?;
    let at_zero = graph.binary(Binary::Eq, x, zero)?;
    let safe = graph.select(at_zero, one, x)?;
    let root = graph.unary(Unary::Sqrt, safe)?;
    graph.select(at_zero, zero, root)
}

fn logsumexp(graph: &mut Graph, r: &Reduction) -> Result<ValueId, OpError> {
    let dtype = graph.ty(r.x).dtype();
    let x = wide(graph, r.x)?;
    let shape = graph.ty(x).shape().to_vec();
    // The largest element only keeps exp from overflowing: the result does not depend on it, so
    // no gradient goes through it. An infinite one would turn x - max into NaN.
    let extreme = graph.reduce_keep(ReduceKind::Max, x, &r.axes)?;
    let largest = graph.value(StopGrad, &[extreme])?;
    let magnitude = graph.unary(Unary::Abs, largest)?;
    let infinity = graph.splat_like(largest, f64::INFINITY)?;
    let infinite = graph.binary(Binary::Eq, magnitude, infinity)?;
    let zero = graph.splat_like(largest, 0.0)?;
    let shift = graph.select(infinite, zero, largest)?;
    let spread = graph.broadcast(shift, &shape)?;
    let shifted = graph.sub(x, spread)?;
    let powers = graph.unary(Unary::Exp, shifted)?;
    let sum = graph.reduce(ReduceKind::Sum, powers, &r.axes)?;
    // As in `root`: the logarithm of 0 is a constant, without a gradient of 1 / 0.
    let zero = graph.splat_like(sum, 0.0)?;
    let one = graph.splat_like(sum, 1.0)?;
    let positive = graph.binary(Binary::Gt, sum, zero)?;
    let safe = graph.select(positive, sum, one)?;
    let log = graph.unary(Unary::Log, safe)?;
    let fixed = graph.value(StopGrad, &[sum])?;
    let log_of_zero = graph.unary(Unary::Log, fixed)?;
    let log = graph.select(positive, log, log_of_zero)?;
    let result_shape = graph.ty(log).shape().to_vec();
    let shift = graph.reshape(shift, &result_shape)?;
    let result = graph.add(log, shift)?;
    let extreme = graph.reshape(extreme, &result_shape)?;
    let result = or_endless(graph, extreme, result)?;
    back(graph, result, dtype)
}

/// `result` where the largest element is not +∞, else +∞ with the gradient that the formula has there:
/// ∞/∞ for the infinite elements and 0 for the others, as in JAX and PyTorch. A loss that overflowed
/// must not look as if there were nothing to learn.
fn or_endless(graph: &mut Graph, largest: ValueId, result: ValueId) -> Result<ValueId, OpError> {
    let infinity = graph.splat_like(largest, f64::INFINITY)?;
    let endless = graph.binary(Binary::Eq, largest, infinity)?;
    let one = graph.splat_like(largest, 1.0)?;
    let safe = graph.select(endless, largest, one)?;
    // √x · √x is +∞ there, and its slope ∞ / ∞.
    let root = graph.unary(Unary::Sqrt, safe)?;
    let same = graph.mul(root, root)?;
    graph.select(endless, same, result)
}

fn arg_reduce(
    graph: &mut Graph,
    name: &'static str,
    args: &[Arg],
    largest: bool,
) -> Result<Vec<Operand>, OpError> {
    let args = Args::new(name, args);
    let x = args.value(graph, 0)?;
    let x = counted(graph, x)?;
    let ty = graph.ty(x).clone();
    let listed = axes(name, args.get(1), &ty)?;
    let all = matches!(args.get(1), Arg::None);
    if listed.len() > 1 && !all {
        return Err(OpError::new(format!("`{name}` takes one axis, got {}", listed.len()))
            .help("without `axis` it is the index in the flattened tensor"));
    }
    let (flat, axis) = match listed.first() {
        Some(&axis) if !all => (x, axis),
        _ => (graph.reshape(x, &[ty.elements()])?, 0),
    };
    if graph.ty(flat).shape().get(axis) == Some(&0) {
        return Err(OpError::new(format!("`{name}` of {ty} over nothing: there is no element to point at")));
    }
    let mut result = graph.value(ArgReduce { largest, axis }, &[flat])?;
    if args.bool(2)? {
        let shape = kept_shape(graph, x, &listed);
        result = graph.reshape(result, &shape)?;
    }
    tensor(result)
}
