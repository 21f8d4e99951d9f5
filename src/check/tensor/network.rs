//! Functions of networks that are ops with gradients of their own.

use super::{
    Arg, Default, Function, Kind, Operand, Param, Results,
    axes::axis,
    broadcast::broadcast_shapes,
    function::{Args, tensor},
    promote::{common, with_dtype},
};
use crate::{
    ir::{Graph, ShapeText, ValueId},
    ops::{
        Attention, BatchNorm, CrossEntropy, LayerNorm, LogSoftmax, Number, Op, OpError, RmsNorm, Softmax,
        expect_float,
    },
};

const X: Param = Param::new("x", Kind::Tensor);
const LAST: Param = Param::with("axis", Kind::Int, Default::Int(-1));
const W: Param = Param::with("w", Kind::OptionalTensor, Default::None);
const B: Param = Param::with("b", Kind::OptionalTensor, Default::None);

macro_rules! function {
    ($name:literal, [$($param:expr),*], $results:ident, $docs:literal, $call:expr) => {
        Function {
            name: $name,
            params: &[$($param),*],
            results: Results::$results,
            random: false,
            docs: $docs,
            call: $call,
        }
    };
}

pub(super) const FUNCTIONS: &[Function] = &[
    function!(
        "softmax",
        [X, LAST],
        One,
        "exp(x) / Σ exp(x) along `axis`, without overflow. Where every element is -inf it is 0, and so is its gradient.",
        |graph, args| along_axis(graph, "softmax", args, Softmax.into())
    ),
    function!("log_softmax", [X, LAST], One, "x - log Σ exp(x) along `axis`.", |graph, args| {
        along_axis(graph, "log_softmax", args, LogSoftmax.into())
    }),
    function!(
        "cross_entropy",
        [Param::new("logits", Kind::Tensor), Param::new("labels", Kind::Tensor)],
        One,
        "log Σ exp(logits) - logits[label] for each row: `logits: [.., classes]` and `labels: int [..]` give [..]. A label outside the classes is an error when it runs.",
        cross_entropy
    ),
    function!(
        "layer_norm",
        [X, W, B, Param::with("eps", Kind::Number, Default::Float(1e-5))],
        One,
        "(x - mean) / √(var + eps)·w + b over the last axis: `x: [.., d]`, `w: [d]` and `b: [d]` (1 and 0 where left out). Statistics in f32 at least.",
        layer_norm
    ),
    function!(
        "rms_norm",
        [X, W, Param::with("eps", Kind::Number, Default::Float(1e-6))],
        One,
        "x / √(mean(x²) + eps)·w over the last axis: `x: [.., d]`, `w: [d]` (1 where left out).",
        rms_norm
    ),
    function!(
        "batch_norm",
        [X, W, B, Param::with("eps", Kind::Number, Default::Float(1e-5))],
        Tuple,
        "Normalises over all axes but 1: `x: [n, c, ..]`, `w: [c]`, `b: [c]` (1 and 0 where left out) give (y, mean: [c], var: [c]); the variance is the biased one.",
        batch_norm
    ),
    function!(
        "attention",
        [
            Param::new("q", Kind::Tensor),
            Param::new("k", Kind::Tensor),
            Param::new("v", Kind::Tensor),
            Param::with("causal", Kind::Bool, Default::Bool(false)),
            Param::with("scale", Kind::Number, Default::None)
        ],
        One,
        "softmax(q @ k.T·scale) @ v without storing the scores: `q: [.., t, d]`, `k: [.., s, d]` and `v: [.., s, e]` give [.., t, e]. `scale` is 1 / √d where it is left out. `causal: true` lets query i see keys up to i + (s - t).",
        attention
    ),
];

/// An op on the last axis, along any: the axis goes last and comes back.
fn along_axis(graph: &mut Graph, name: &'static str, args: &[Arg], op: Op) -> Result<Vec<Operand>, OpError> {
    let args = Args::new(name, args);
    let x = args.value(graph, 0)?;
    expect_float(name, graph.ty(x))?;
    let rank = graph.ty(x).rank();
    let axis = axis(name, args.int(1)?, graph.ty(x))?;
    // Swapping two axes is its own inverse.
    let mut swap: Vec<usize> = (0..rank).collect();
    swap.swap(axis, rank.saturating_sub(1));
    let moved = graph.transpose(x, &swap)?;
    let result = graph.value(op, &[moved])?;
    tensor(graph.transpose(result, &swap)?)
}

fn cross_entropy(graph: &mut Graph, args: &[Arg]) -> Result<Vec<Operand>, OpError> {
    let args = Args::new("cross_entropy", args);
    let logits = args.value(graph, 0)?;
    let labels = args.value(graph, 1)?;
    let (x, y) = (graph.ty(logits).clone(), graph.ty(labels).clone());
    expect_float("cross_entropy", &x)?;
    let pair = format!("`cross_entropy` of {x} and {y}");
    if !y.dtype().is_int() {
        let error = OpError::new(format!("{pair}: the labels are class numbers"));
        return Err(if x.shape() == y.shape() {
            error.help("for one-hot labels or probabilities: `-sum(labels * log_softmax(logits), axis: -1)`")
        } else {
            error.help("class numbers are whole: `i32(labels)`")
        });
    }
    let Some((&classes, rows)) = x.shape().split_last() else {
        return Err(OpError::new(format!("{pair}: the logits need an axis of classes")));
    };
    if rows != y.shape() {
        return Err(OpError::new(format!(
            "{pair}: logits [.., {classes}] go with labels {}",
            ShapeText(rows)
        )));
    }
    let n = y.elements();
    let logits = graph.reshape(logits, &[n, classes])?;
    let labels = graph.reshape(labels, &[n])?;
    let loss = graph.value(CrossEntropy, &[logits, labels])?;
    tensor(graph.reshape(loss, y.shape())?)
}

/// `x` and its per-channel operands (of shape [size]) in one dtype; those left out are constants.
fn normalised(
    graph: &mut Graph,
    args: &Args<'_>,
    size: usize,
    channels: &[(Option<Operand>, &str, f64)],
) -> Result<Vec<ValueId>, OpError> {
    let name = args.name;
    let x = args.operand(0)?;
    let given: Vec<Operand> =
        std::iter::once(x).chain(channels.iter().filter_map(|(operand, ..)| *operand)).collect();
    let (dtype, _) = common(graph, name, &given)?;
    let x_value = with_dtype(graph, name, x, dtype)?;
    expect_float(name, graph.ty(x_value))?;
    let mut values = vec![x_value];
    for &(operand, label, default) in channels {
        let operand = operand.unwrap_or(Operand::float(default));
        let scalar = matches!(operand, Operand::Number(_));
        if !scalar && operand.shape(graph) != [size] {
            return Err(OpError::new(format!(
                "`{name}` of {} needs `{label}` of shape [{size}], got {}",
                x.describe(graph),
                operand.describe(graph)
            )));
        }
        let value = with_dtype(graph, name, operand, dtype)?;
        values.push(graph.broadcast(value, &[size])?);
    }
    Ok(values)
}

/// `eps`, not negative.
fn eps(args: &Args<'_>, k: usize) -> Result<Number, OpError> {
    let eps = args.number(k)?.as_f64();
    if eps >= 0.0 {
        Ok(Number::float(eps))
    } else {
        Err(OpError::new(format!("`{}`: `eps` is {eps}, less than 0", args.name)))
    }
}

/// The size of the axis that is normalised.
fn channels(graph: &Graph, args: &Args<'_>, axis: Option<usize>) -> Result<usize, OpError> {
    let x = args.operand(0)?;
    let shape = x.shape(graph);
    let size = axis.map_or(shape.last(), |axis| shape.get(axis)).copied();
    size.ok_or_else(|| match axis {
        Some(axis) => {
            OpError::new(format!("`{}` of {}: there is no axis {axis}", args.name, x.describe(graph)))
                .help("it takes [n, c, ..]")
        }
        None => OpError::new(format!("`{}` of {}: there is no axis", args.name, x.describe(graph))),
    })
}

fn layer_norm(graph: &mut Graph, args: &[Arg]) -> Result<Vec<Operand>, OpError> {
    let args = Args::new("layer_norm", args);
    let size = channels(graph, &args, None)?;
    let given = [(args.optional(1)?, "w", 1.0), (args.optional(2)?, "b", 0.0)];
    let values = normalised(graph, &args, size, &given)?;
    tensor(graph.value(LayerNorm { eps: eps(&args, 3)? }, &values)?)
}

fn rms_norm(graph: &mut Graph, args: &[Arg]) -> Result<Vec<Operand>, OpError> {
    let args = Args::new("rms_norm", args);
    let size = channels(graph, &args, None)?;
    let values = normalised(graph, &args, size, &[(args.optional(1)?, "w", 1.0)])?;
    tensor(graph.value(RmsNorm { eps: eps(&args, 2)? }, &values)?)
}

fn batch_norm(graph: &mut Graph, args: &[Arg]) -> Result<Vec<Operand>, OpError> {
    let args = Args::new("batch_norm", args);
    let size = channels(graph, &args, Some(1))?;
    let given = [(args.optional(1)?, "w", 1.0), (args.optional(2)?, "b", 0.0)];
    let values = normalised(graph, &args, size, &given)?;
    let node = graph.push(BatchNorm { eps: eps(&args, 3)? }, &values)?;
    Ok(graph.node(node).results().map(Operand::tensor).collect())
}

fn attention(graph: &mut Graph, args: &[Arg]) -> Result<Vec<Operand>, OpError> {
    let args = Args::new("attention", args);
    let operands = [args.operand(0)?, args.operand(1)?, args.operand(2)?];
    let (dtype, _) = common(graph, "attention", &operands)?;
    let names = operands.map(|o| o.describe(graph)).join(", ");
    let error = |why: &str| OpError::new(format!("`attention` of {names}: {why}"));
    let shapes = operands.map(|o| o.shape(graph).to_vec());
    let [q, k, v] = &shapes;
    let ([q_lead @ .., t, d], [k_lead @ .., s, k_d], [v_lead @ .., v_s, e]) =
        (q.as_slice(), k.as_slice(), v.as_slice())
    else {
        return Err(error("each needs at least two axes, [.., t, d]"));
    };
    if d != k_d {
        return Err(error(&format!("the last axis of q is {d}, that of k is {k_d}")));
    }
    if s != v_s {
        return Err(error(&format!("k has {s} positions, v has {v_s}")));
    }
    let lead = broadcast_shapes(q_lead, k_lead).and_then(|lead| broadcast_shapes(&lead, v_lead));
    let lead = lead.ok_or_else(|| error("the leading axes do not broadcast"))?;
    // The op takes [b, h, t, d].
    let heads = lead.last().copied().unwrap_or(1);
    let batch = lead.split_last().map_or(1, |(_, batch)| batch.iter().product());
    let mut values = Vec::with_capacity(3);
    for (operand, (rows, columns)) in operands.into_iter().zip([(*t, *d), (*s, *d), (*s, *e)]) {
        let value = with_dtype(graph, "attention", operand, dtype)?;
        expect_float("attention", graph.ty(value))?;
        let value = graph.broadcast(value, &[lead.as_slice(), &[rows, columns]].concat())?;
        values.push(graph.reshape(value, &[batch, heads, rows, columns])?);
    }
    let scale = match args.get(4) {
        // d = 0 gives scores of 0 whatever the scale is.
        Arg::None => 1.0 / (*d.max(&1) as f64).sqrt(),
        _ => args.number(4)?.as_f64(),
    };
    let op = Attention { causal: args.bool(3)?, scale: Number::float(scale) };
    let result = graph.value(op, &values)?;
    tensor(graph.reshape(result, &[lead.as_slice(), &[*t, *e]].concat())?)
}
