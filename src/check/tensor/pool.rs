//! Convolution and pooling over the last two axes of [n, c, h, w].

use super::{
    Arg, Default, Function, Kind, Operand, Param, Results,
    function::{Args, size, tensor},
    promote::{common, with_dtype},
};
use crate::{
    ir::Graph,
    ops::{AvgPool2d, Conv2d, ConvShape, MaxPool2d, Op, OpError, PoolShape, expect_float},
};

const X: Param = Param::new("x", Kind::Tensor);
const PADDING: Param = Param::with("padding", Kind::Ints, Default::Int(0));
const POOL: &[Param] =
    &[X, Param::new("kernel", Kind::Ints), Param::with("stride", Kind::Ints, Default::None), PADDING];

pub(super) const FUNCTIONS: &[Function] = &[
    Function {
        name: "conv2d",
        params: &[
            X,
            Param::new("w", Kind::Tensor),
            Param::with("bias", Kind::OptionalTensor, Default::None),
            Param::with("stride", Kind::Ints, Default::Int(1)),
            PADDING,
            Param::with("dilation", Kind::Ints, Default::Int(1)),
            Param::with("groups", Kind::Int, Default::Int(1)),
        ],
        results: Results::One,
        random: false,
        docs: "Cross-correlation: `x: [n, c, h, w]`, `w: [o, c / groups, kh, kw]` and `bias: [o]` give [n, o, h', w']. `stride`, `padding` and `dilation` are one number, or (height, width).",
        call: conv2d,
    },
    Function {
        name: "max_pool2d",
        params: POOL,
        results: Results::One,
        random: false,
        docs: "The largest element of each window of `x: [n, c, h, w]`; padding never wins, NaN does. `stride` is the kernel's size where it is left out.",
        call: |graph, args| pool(graph, "max_pool2d", args, |shape| MaxPool2d { shape }.into()),
    },
    Function {
        name: "avg_pool2d",
        params: POOL,
        results: Results::One,
        random: false,
        docs: "The mean of each window of `x: [n, c, h, w]`; padding counts as zeros. `stride` is the kernel's size where it is left out.",
        call: |graph, args| pool(graph, "avg_pool2d", args, |shape| AvgPool2d { shape }.into()),
    },
];

/// One number for both axes, or (height, width), each at least `least`.
fn pair(args: &Args<'_>, k: usize, what: &str, least: usize) -> Result<Option<(usize, usize)>, OpError> {
    let name = args.name;
    let one = |value: i64| {
        let value = size(name, &format!("`{what}`"), value)?;
        if value < least {
            return Err(OpError::new(format!("`{name}`: `{what}` is {value}, less than {least}")));
        }
        Ok(value)
    };
    match args.ints(k)? {
        None => Ok(None),
        Some(&[both]) => Ok(Some((one(both)?, one(both)?))),
        Some(&[height, width]) => Ok(Some((one(height)?, one(width)?))),
        Some(list) => {
            Err(OpError::new(format!("`{name}`: `{what}` is one number or two, got {}", list.len())))
        }
    }
}

fn required(args: &Args<'_>, k: usize, what: &str, least: usize) -> Result<(usize, usize), OpError> {
    pair(args, k, what, least)?
        .ok_or_else(|| OpError::new(format!("internal: `{}` got no `{what}`", args.name)))
}

/// Four axes, or an error.
fn expect_image(graph: &Graph, name: &str, x: Operand) -> Result<(), OpError> {
    if x.shape(graph).len() == 4 {
        Ok(())
    } else {
        Err(OpError::new(format!("`{name}` takes [n, c, h, w], got {}", x.describe(graph))))
    }
}

fn conv2d(graph: &mut Graph, args: &[Arg]) -> Result<Vec<Operand>, OpError> {
    let args = Args::new("conv2d", args);
    let (x, w) = (args.operand(0)?, args.operand(1)?);
    expect_image(graph, "conv2d", x)?;
    let operands: Vec<Operand> = [Some(x), Some(w), args.optional(2)?].into_iter().flatten().collect();
    let (dtype, _) = common(graph, "conv2d", &operands)?;
    let values =
        operands.into_iter().map(|o| with_dtype(graph, "conv2d", o, dtype)).collect::<Result<Vec<_>, _>>()?;
    let groups = args.size(6, "groups")?;
    if groups == 0 {
        return Err(OpError::new("`conv2d`: `groups` is 0, less than 1"));
    }
    let shape = ConvShape {
        stride: required(&args, 3, "stride", 1)?,
        padding: required(&args, 4, "padding", 0)?,
        dilation: required(&args, 5, "dilation", 1)?,
        groups,
    };
    tensor(graph.value(Conv2d { shape }, &values)?)
}

fn pool(
    graph: &mut Graph,
    name: &'static str,
    args: &[Arg],
    op: fn(PoolShape) -> Op,
) -> Result<Vec<Operand>, OpError> {
    let args = Args::new(name, args);
    expect_image(graph, name, args.operand(0)?)?;
    let x = args.value(graph, 0)?;
    expect_float(name, graph.ty(x))?;
    let kernel = required(&args, 1, "kernel", 1)?;
    let stride = pair(&args, 2, "stride", 1)?.unwrap_or(kernel);
    let padding = required(&args, 3, "padding", 0)?;
    tensor(graph.value(op(PoolShape { kernel, stride, padding }), &[x])?)
}
