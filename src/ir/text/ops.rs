//! Each op from its name and attributes: the inverse of `name()` and `attributes()` in `ops`.

use std::sync::Arc;

use super::{
    attributes::Attributes,
    cursor::{Fault, Spanned, Value, fault},
};
use crate::{
    codes,
    ir::{RegionId, SlotId},
    ops::*,
};

/// Builds the op; an unknown name, a missing or an unknown attribute is an error.
pub(super) fn op(mut at: Attributes<'_>) -> Result<Op, Fault> {
    let op = build(&mut at)?;
    at.finish()?;
    Ok(op)
}

fn build(at: &mut Attributes<'_>) -> Result<Op, Fault> {
    let name = at.op.text;
    if let Some(&unary) = Unary::ALL.iter().find(|u| u.name() == name) {
        return Ok(unary.into());
    }
    if let Some(&binary) = Binary::ALL.iter().find(|b| b.name() == name) {
        return Ok(binary.into());
    }
    Ok(match name {
        "input" => Input { index: at.u32("index")? }.into(),
        "const" => constant(at)?.into(),
        "literal" => Literal { ty: at.ty("type")?, data: bytes(&at.take("data")?)? }.into(),
        "iota" => Iota { ty: at.ty("type")?, axis: at.usize("axis")? }.into(),
        "scalar" => Scalar { index: at.u32("index")?, dtype: at.dtype("dtype")? }.into(),
        "read" => Read { slot: SlotId(at.u32("slot")?) }.into(),
        "random" => random(at)?.into(),
        "opaque" => opaque(at)?.into(),

        "select" => Select.into(),
        "cast" => Cast { to: at.dtype("to")? }.into(),

        "reshape" => Reshape { shape: at.usizes("shape")? }.into(),
        "transpose" => Transpose { axes: at.usizes("axes")? }.into(),
        "broadcast" => Broadcast { shape: at.usizes("shape")? }.into(),
        "slice" => Slice { ranges: ranges(at)? }.into(),
        "copy" => Copy.into(),
        "concat" => Concat { axis: at.usize("axis")? }.into(),
        "pad" => Pad { shape: at.usizes("shape")?, ranges: ranges(at)? }.into(),
        "insert" => Insert { ranges: ranges(at)? }.into(),
        "gather" => Gather.into(),
        "scatter_add" => ScatterAdd { rows: at.usize("rows")? }.into(),
        "stop_grad" => StopGrad.into(),

        "sum" => Reduce { kind: ReduceKind::Sum, axes: at.usizes("axes")? }.into(),
        "mean" => Reduce { kind: ReduceKind::Mean, axes: at.usizes("axes")? }.into(),
        "max" => Reduce { kind: ReduceKind::Max, axes: at.usizes("axes")? }.into(),
        "min" => Reduce { kind: ReduceKind::Min, axes: at.usizes("axes")? }.into(),
        "prod" => Reduce { kind: ReduceKind::Prod, axes: at.usizes("axes")? }.into(),
        "argmax" => ArgReduce { largest: true, axis: at.usize("axis")? }.into(),
        "argmin" => ArgReduce { largest: false, axis: at.usize("axis")? }.into(),
        "matmul" => MatMul.into(),

        "softmax" => Softmax.into(),
        "softmax_grad" => SoftmaxGrad.into(),
        "log_softmax" => LogSoftmax.into(),
        "cross_entropy" => CrossEntropy.into(),
        "cross_entropy_grad" => CrossEntropyGrad.into(),
        "layer_norm" => LayerNorm { eps: at.float("eps")? }.into(),
        "layer_norm_grad" => LayerNormGrad.into(),
        "rms_norm" => RmsNorm { eps: at.float("eps")? }.into(),
        "rms_norm_grad" => RmsNormGrad.into(),
        "batch_norm" => BatchNorm { eps: at.float("eps")? }.into(),
        "batch_norm_grad" => BatchNormGrad { eps: at.float("eps")? }.into(),
        "conv2d" => Conv2d { shape: conv(at)? }.into(),
        "conv2d_grad_input" => Conv2dGradInput { shape: conv(at)?, input: at.pair("input")? }.into(),
        "conv2d_grad_weight" => Conv2dGradWeight { shape: conv(at)?, kernel: at.pair("kernel")? }.into(),
        "max_pool2d" => MaxPool2d { shape: pool(at)? }.into(),
        "max_pool2d_grad" => MaxPool2dGrad { shape: pool(at)? }.into(),
        "max_pool2d_gather" => MaxPool2dGather { shape: pool(at)? }.into(),
        "avg_pool2d" => AvgPool2d { shape: pool(at)? }.into(),
        "avg_pool2d_grad" => AvgPool2dGrad { shape: pool(at)?, input: at.pair("input")? }.into(),
        "attention" => Attention { causal: at.bool("causal")?, scale: at.float("scale")? }.into(),
        "attention_grad" => AttentionGrad { causal: at.bool("causal")?, scale: at.float("scale")? }.into(),

        "barrier" => Barrier { kind: barrier_kind(&at.take("kind")?)? }.into(),
        "write" => Write { slot: SlotId(at.u32("slot")?) }.into(),
        "print" => Print { label: at.string("label")?.into() }.into(),
        _ => return collective(at),
    })
}

fn constant(at: &mut Attributes<'_>) -> Result<Const, Fault> {
    let dtype = at.dtype("dtype")?;
    let value = at.take("value")?;
    let value = if dtype.is_float() { Number::Float(value.float()?) } else { Number::Int(value.i64()?) };
    Ok(Const { dtype, value })
}

/// Bytes in hexadecimal: `0x00ff`.
fn bytes(value: &Spanned<'_>) -> Result<Arc<[u8]>, Fault> {
    let wrong = || value.expected("bytes in hexadecimal, `0x00ff`");
    let Value::Number(text) = value.value else { return Err(wrong()) };
    let digits = text.strip_prefix("0x").map(str::as_bytes).ok_or_else(wrong)?;
    let digit = |d: u8| (d as char).to_digit(16).map(|v| v as u8);
    digits
        .chunks(2)
        .map(|pair| match *pair {
            [high, low] => Some(digit(high)? << 4 | digit(low)?),
            _ => None,
        })
        .collect::<Option<Arc<[u8]>>>()
        .ok_or_else(wrong)
}

fn random(at: &mut Attributes<'_>) -> Result<Random, Fault> {
    let distribution = at.take("distribution")?;
    let known = [Distribution::Uniform, Distribution::Normal, Distribution::Bits];
    let distribution = match distribution.value {
        Value::Word(name) => known.into_iter().find(|d| d.name() == name),
        _ => None,
    }
    .ok_or_else(|| distribution.expected("`uniform`, `normal` or `bits`"))?;
    Ok(Random {
        ty: at.ty("type")?,
        distribution,
        key: at.take("key")?.u64()?,
        per_step: at.bool("per_step")?,
    })
}

fn opaque(at: &mut Attributes<'_>) -> Result<Opaque, Fault> {
    let overwrites = at.take("overwrites")?;
    Ok(Opaque {
        name: at.string("name")?.into(),
        results: at.take("results")?.list()?.iter().map(Spanned::ty).collect::<Result<_, _>>()?,
        overwrites: overwrites
            .list()?
            .iter()
            .map(|pair| pair.pair(pair.tuple()?))
            .collect::<Result<_, _>>()?,
        workspace: at.take("workspace")?.u64()?,
        host: None,
    })
}

fn ranges(at: &mut Attributes<'_>) -> Result<Box<[SliceRange]>, Fault> {
    let range = |value: &Spanned<'_>| match value.tuple()? {
        [start, step, size] => {
            Ok(SliceRange { start: start.usize()?, step: step.usize()?, size: size.usize()? })
        }
        _ => Err(value.expected("a range `(start, step, size)`")),
    };
    at.take("ranges")?.list()?.iter().map(range).collect()
}

fn conv(at: &mut Attributes<'_>) -> Result<ConvShape, Fault> {
    Ok(ConvShape {
        stride: at.pair("stride")?,
        padding: at.pair("padding")?,
        dilation: at.pair("dilation")?,
        groups: at.usize("groups")?,
    })
}

fn pool(at: &mut Attributes<'_>) -> Result<PoolShape, Fault> {
    Ok(PoolShape { kernel: at.pair("kernel")?, stride: at.pair("stride")?, padding: at.pair("padding")? })
}

fn barrier_kind(value: &Spanned<'_>) -> Result<BarrierKind, Fault> {
    match &value.value {
        Value::Word("user") => Ok(BarrierKind::User),
        Value::Call("region", args) => match args.as_slice() {
            [region] => Ok(BarrierKind::Region(RegionId(region.u32()?))),
            _ => Err(value.expected("one region")),
        },
        Value::Word("step_back") => Ok(BarrierKind::StepBack),
        Value::Word("recompute") => Ok(BarrierKind::Recompute),
        _ => Err(value.expected("`user`, `region(…)`, `step_back` or `recompute`")),
    }
}

/// Collectives are found by the names of their halves.
fn collective(at: &mut Attributes<'_>) -> Result<Op, Fault> {
    let kinds = [
        CollectiveKind::AllReduce,
        CollectiveKind::AllGather,
        CollectiveKind::ReduceScatter,
        CollectiveKind::Broadcast,
        CollectiveKind::Reduce,
    ];
    for kind in kinds {
        if (CollectiveStart { kind, world: 1 }).name() == at.op.text {
            return Ok(CollectiveStart { kind, world: at.u32("world")? }.into());
        }
        if (CollectiveDone { kind, world: 1 }).name() == at.op.text {
            return Ok(CollectiveDone { kind, world: at.u32("world")? }.into());
        }
    }
    let shown: String = at.op.text.chars().take(32).collect();
    Err(fault(codes::UNKNOWN_NAME, at.op.span, format!("unknown op `{shown}`")))
}
