//! Functions that move elements and rename axes.

use super::{
    Arg, Default, Function, Kind, Operand, Param, Results,
    axes::{axes, axis, new_axis},
    broadcast::broadcast_shapes,
    collective,
    function::{Args, size, tensor},
    promote::{constant, promote},
};
use crate::{
    ir::{DType, Graph, ShapeText, Type, ValueId},
    ops::{self, Concat, Const, OpError, Pad, Slice, SliceRange},
};

const X: Param = Param::new("x", Kind::Tensor);

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
        "reshape",
        [X, Param::new("shape", Kind::Shape)],
        One,
        "The elements of `x` in row-major order in another shape; one size may be -1.",
        reshape
    ),
    function!(
        "flatten",
        [X, Param::with("from", Kind::Int, Default::Int(0))],
        One,
        "Joins the axes from `from` on into one: [a, b, c] with `from: 1` is [a, b·c].",
        flatten
    ),
    function!(
        "transpose",
        [X, Param::new("axes", Kind::Ints)],
        One,
        "Axis k of the result is axis `axes[k]` of `x`. `x.T` swaps the last two.",
        transpose
    ),
    function!(
        "squeeze",
        [X, Param::with("axis", Kind::Axis, Default::None)],
        One,
        "Drops axes of size 1: those listed, or all of them.",
        squeeze
    ),
    function!(
        "unsqueeze",
        [X, Param::new("axis", Kind::Int)],
        One,
        "A new axis of size 1 in front of `axis`; -1 puts it last.",
        unsqueeze
    ),
    function!(
        "broadcast",
        [X, Param::with("shape", Kind::Shape, Default::None)],
        One,
        "`x` repeated to `shape`, as NumPy broadcasts: axes aligned at the end, sizes of 1 repeat. A view: nothing is copied. Without `shape`, the value that `x` has on rank 0, on every rank.",
        broadcast
    ),
    function!(
        "concat",
        [Param::new("list", Kind::Tensors), Param::with("axis", Kind::Int, Default::Int(0))],
        One,
        "Joins tensors along `axis`; their other sizes are equal.",
        concat
    ),
    function!(
        "stack",
        [Param::new("list", Kind::Tensors), Param::with("axis", Kind::Int, Default::Int(0))],
        One,
        "Joins tensors of one shape along a new axis.",
        stack
    ),
    function!(
        "split",
        [X, Param::new("n", Kind::Ints), Param::with("axis", Kind::Int, Default::Int(0))],
        List,
        "Cuts `axis` into `n` equal parts, or into parts of the sizes listed. Views.",
        split
    ),
    function!(
        "pad",
        [
            X,
            Param::new("before", Kind::Ints),
            Param::with("after", Kind::Ints, Default::None),
            Param::with("value", Kind::Number, Default::Int(0))
        ],
        One,
        "Puts `before[k]` elements of `value` in front of axis k and `after[k]` behind it (as many as in front where it is left out).",
        pad
    ),
    function!("copy", [X], One, "A copy of `x` with memory of its own.", |graph, args| {
        let x = Args::new("copy", args).value(graph, 0)?;
        tensor(graph.value(ops::Copy, &[x])?)
    }),
];

fn reshape(graph: &mut Graph, args: &[Arg]) -> Result<Vec<Operand>, OpError> {
    let args = Args::new("reshape", args);
    let x = args.value(graph, 0)?;
    let ty = graph.ty(x).clone();
    let asked = args.ints(1)?.unwrap_or_default();
    let error = |why: &str| OpError::new(format!("`reshape` of {ty} to {}: {why}", signed(asked)));
    if asked.iter().filter(|&&s| s == -1).count() > 1 {
        return Err(error("more than one size is -1"));
    }
    let known = asked.iter().filter(|&&s| s != -1).try_fold(1u128, |product, &size| {
        let size = u128::try_from(size).map_err(|_| error(&format!("size {size} is negative")))?;
        product.checked_mul(size).ok_or_else(|| error("it is too large"))
    })?;
    let elements = ty.elements() as u128;
    let mut shape = Vec::with_capacity(asked.len());
    for &size in asked {
        shape.push(if size != -1 {
            usize::try_from(size).map_err(|_| error("it is too large"))?
        } else if known == 0 {
            return Err(error("the size for -1 could be any, since another is 0"));
        } else if !elements.is_multiple_of(known) {
            return Err(error(&format!("{elements} elements do not divide by {known}")));
        } else {
            usize::try_from(elements / known).map_err(|_| error("it is too large"))?
        });
    }
    // The type is checked first: its sizes may be too large for their product to be counted.
    if ty.with_shape(shape.as_slice())?.elements() as u128 != elements {
        return Err(error(&format!("{elements} elements do not make {known}")));
    }
    tensor(graph.reshape(x, &shape)?)
}

/// A shape with entries that may be negative.
fn signed(shape: &[i64]) -> String {
    let sizes: Vec<String> = shape.iter().map(i64::to_string).collect();
    format!("[{}]", sizes.join(", "))
}

fn flatten(graph: &mut Graph, args: &[Arg]) -> Result<Vec<Operand>, OpError> {
    let args = Args::new("flatten", args);
    let x = args.value(graph, 0)?;
    let ty = graph.ty(x).clone();
    if ty.rank() == 0 {
        return tensor(graph.reshape(x, &[1])?);
    }
    let from = axis("flatten", args.int(1)?, &ty)?;
    let (kept, joined) = ty.shape().split_at(from.min(ty.rank()));
    let mut shape = kept.to_vec();
    shape.push(joined.iter().product());
    tensor(graph.reshape(x, &shape)?)
}

fn transpose(graph: &mut Graph, args: &[Arg]) -> Result<Vec<Operand>, OpError> {
    let args = Args::new("transpose", args);
    let x = args.value(graph, 0)?;
    let ty = graph.ty(x).clone();
    let asked = args.ints(1)?.unwrap_or_default();
    let order = asked.iter().map(|&a| axis("transpose", a, &ty)).collect::<Result<Vec<_>, _>>()?;
    let mut sorted = order.clone();
    sorted.sort_unstable();
    if !sorted.into_iter().eq(0..ty.rank()) {
        return Err(OpError::new(format!(
            "`transpose` of {ty} with axes {}: every axis is listed once",
            signed(asked)
        ))
        .help("`x.T` swaps the last two axes"));
    }
    tensor(graph.transpose(x, &order)?)
}

fn squeeze(graph: &mut Graph, args: &[Arg]) -> Result<Vec<Operand>, OpError> {
    let args = Args::new("squeeze", args);
    let x = args.value(graph, 0)?;
    let ty = graph.ty(x).clone();
    let all = matches!(args.get(1), Arg::None);
    let listed = axes("squeeze", args.get(1), &ty)?;
    let mut shape = Vec::with_capacity(ty.rank());
    for (i, &size) in ty.shape().iter().enumerate() {
        if !listed.contains(&i) || (all && size != 1) {
            shape.push(size);
        } else if size != 1 {
            return Err(OpError::new(format!("`squeeze`: axis {i} of {ty} has size {size}, not 1")));
        }
    }
    tensor(graph.reshape(x, &shape)?)
}

fn unsqueeze(graph: &mut Graph, args: &[Arg]) -> Result<Vec<Operand>, OpError> {
    let args = Args::new("unsqueeze", args);
    let x = args.value(graph, 0)?;
    let at = new_axis("unsqueeze", args.int(1)?, graph.ty(x))?;
    let mut shape = graph.ty(x).shape().to_vec();
    shape.insert(at.min(shape.len()), 1);
    tensor(graph.reshape(x, &shape)?)
}

fn broadcast(graph: &mut Graph, args: &[Arg]) -> Result<Vec<Operand>, OpError> {
    if collective::world(args).is_some() && matches!(args.get(1), Some(Arg::None)) {
        return collective::from_rank_0(graph, args);
    }
    let args = Args::new("broadcast", args);
    let x = args.value(graph, 0)?;
    let shape = args.shape(1)?;
    if broadcast_shapes(graph.ty(x).shape(), &shape).as_deref() != Some(shape.as_slice()) {
        return Err(OpError::new(format!(
            "`broadcast`: {} cannot become {}",
            graph.ty(x),
            ShapeText(&shape)
        ))
        .help("axes are aligned at the end, and only sizes of 1 repeat"));
    }
    tensor(graph.broadcast(x, &shape)?)
}

/// The operands of a joining function in one dtype; at least one.
fn list(graph: &mut Graph, args: &Args<'_>) -> Result<Vec<ValueId>, OpError> {
    let operands = args.operands(0)?;
    if operands.is_empty() {
        return Err(OpError::new(format!("`{}` of an empty list", args.name)));
    }
    // Run-time scalars alone become an f32 tensor: only scalars are weak.
    let (mut values, weak) = promote(graph, args.name, operands)?;
    if weak {
        for value in &mut values {
            if graph.ty(*value).dtype() == DType::F64 {
                *value = graph.cast(*value, DType::F32)?;
            }
        }
    }
    Ok(values)
}

fn concat(graph: &mut Graph, args: &[Arg]) -> Result<Vec<Operand>, OpError> {
    let args = Args::new("concat", args);
    let values = list(graph, &args)?;
    let Some(first) = values.first().map(|&v| graph.ty(v).clone()) else {
        return Err(OpError::new("internal: `concat` lost its operands"));
    };
    if first.rank() == 0 {
        return Err(OpError::new("`concat` of scalars: they have no axes")
            .help("`stack` joins them along a new axis"));
    }
    let along = axis("concat", args.int(1)?, &first)?;
    for &value in values.iter().skip(1) {
        let other = graph.ty(value);
        let fits = other.rank() == first.rank()
            && other.shape().iter().zip(first.shape()).enumerate().all(|(i, (a, b))| i == along || a == b);
        if !fits {
            return Err(OpError::new(format!(
                "`concat` of {first} and {other} along axis {along}: the other sizes differ"
            )));
        }
    }
    tensor(joined(graph, values, along)?)
}

fn stack(graph: &mut Graph, args: &[Arg]) -> Result<Vec<Operand>, OpError> {
    let args = Args::new("stack", args);
    let values = list(graph, &args)?;
    let Some(first) = values.first().map(|&v| graph.ty(v).clone()) else {
        return Err(OpError::new("internal: `stack` lost its operands"));
    };
    let along = new_axis("stack", args.int(1)?, &first)?;
    let mut shape = first.shape().to_vec();
    shape.insert(along.min(shape.len()), 1);
    let mut rows = Vec::with_capacity(values.len());
    for value in values {
        let other = graph.ty(value);
        if *other != first {
            return Err(OpError::new(format!("`stack` of {first} and {other}: the shapes differ")));
        }
        rows.push(graph.reshape(value, &shape)?);
    }
    tensor(joined(graph, rows, along)?)
}

fn joined(graph: &mut Graph, values: Vec<ValueId>, axis: usize) -> Result<ValueId, OpError> {
    match values.as_slice() {
        [only] => Ok(*only),
        _ => graph.value(Concat { axis }, &values),
    }
}

fn split(graph: &mut Graph, args: &[Arg]) -> Result<Vec<Operand>, OpError> {
    let args = Args::new("split", args);
    let x = args.value(graph, 0)?;
    let ty = graph.ty(x).clone();
    let along = axis("split", args.int(2)?, &ty)?;
    let total = ty.shape().get(along).copied().unwrap_or_default();
    let sizes = match args.ints(1)?.unwrap_or_default() {
        &[parts] => {
            let parts = size("split", "the number of parts", parts)?;
            // More parts than elements are never meant, and could be any number on an empty axis.
            if parts == 0 || parts > total.max(1) || !total.is_multiple_of(parts) {
                return Err(OpError::new(format!(
                    "`split`: axis {along} of {ty} does not divide into {parts} equal parts"
                ))
                .help("list the sizes: `split(x, [2, 3])`"));
            }
            vec![total / parts; parts]
        }
        sizes => {
            let sizes = sizes.iter().map(|&s| size("split", "size", s)).collect::<Result<Vec<_>, _>>()?;
            if sizes.iter().map(|&s| s as u128).sum::<u128>() != total as u128 {
                return Err(OpError::new(format!(
                    "`split`: the sizes {} do not add up to axis {along} of {ty}",
                    ShapeText(&sizes)
                )));
            }
            sizes
        }
    };
    let mut start = 0;
    let mut parts = Vec::with_capacity(sizes.len());
    for size in sizes {
        let ranges = ty.shape().iter().enumerate().map(|(i, &whole)| {
            if i == along {
                SliceRange { start, step: 1, size }
            } else {
                SliceRange { start: 0, step: 1, size: whole }
            }
        });
        parts.push(Operand::tensor(graph.value(Slice { ranges: ranges.collect() }, &[x])?));
        start += size;
    }
    Ok(parts)
}

fn pad(graph: &mut Graph, args: &[Arg]) -> Result<Vec<Operand>, OpError> {
    let args = Args::new("pad", args);
    let x = args.value(graph, 0)?;
    let ty = graph.ty(x).clone();
    let amounts = |list: &[i64]| -> Result<Vec<usize>, OpError> {
        if list.len() != ty.rank() {
            return Err(OpError::new(format!(
                "`pad` of {ty} takes {} numbers, one for each axis, got {}",
                ty.rank(),
                signed(list)
            )));
        }
        list.iter().map(|&n| size("pad", "amount", n)).collect()
    };
    let before = amounts(args.ints(1)?.unwrap_or_default())?;
    let after = args.ints(2)?.map_or_else(|| Ok(before.clone()), amounts)?;
    let mut shape = Vec::with_capacity(ty.rank());
    let mut ranges = Vec::with_capacity(ty.rank());
    for ((&size, &before), &after) in ty.shape().iter().zip(&before).zip(&after) {
        let whole = before.checked_add(size).and_then(|s| s.checked_add(after));
        shape.push(whole.ok_or_else(|| OpError::new(format!("`pad` of {ty}: the result is too large")))?);
        ranges.push(SliceRange { start: before, step: 1, size });
    }
    let shape = Type::new(ty.dtype(), shape)?.shape().to_vec();
    let pad = Pad { shape: shape.as_slice().into(), ranges: ranges.into() };
    let padded = graph.value(pad.clone(), &[x])?;
    let value = args.number(3)?;
    if value.as_f64() == 0.0 {
        return tensor(padded);
    }
    let yes = graph.value(Const { dtype: DType::Bool, value: ops::Number::Int(1) }, &[])?;
    let inside = graph.broadcast(yes, ty.shape())?;
    let inside = graph.value(pad, &[inside])?;
    let value = constant(graph, "pad", value, ty.dtype())?;
    let value = graph.broadcast(value, &shape)?;
    tensor(graph.select(inside, padded, value)?)
}
