//! Collectives: functions of the values that all ranks have.
//!
//! They know the number of ranks by an [`Arg::World`] behind the arguments of their parameters. With
//! one rank each of them is its operand, and nothing is added to the graph.

use super::{
    Arg, Default, Function, Kind, Number, Operand, Param, Results, arithmetic,
    function::{Args, tensor},
};
use crate::{
    ir::{Graph, ValueId},
    ops::{CollectiveKind, CollectiveStart, OpError, Operation},
    syntax::ast::BinaryOp,
};

const X: Param = Param::new("x", Kind::Tensor);
const MEAN: Param = Param::with("mean", Kind::Bool, Default::Bool(false));

macro_rules! function {
    ($name:literal, [$($param:expr),*], $docs:literal, $call:expr) => {
        Function { name: $name, params: &[$($param),*], results: Results::One, random: false, docs: $docs, call: $call }
    };
}

pub(super) const FUNCTIONS: &[Function] = &[
    function!(
        "all_reduce",
        [X, MEAN],
        "The sum of `x` over all ranks, on every rank; with `mean: true` divided by `world`. Ranks are added in their order, so the bits are the same on every rank and with every engine.",
        |graph, args| reduced(graph, CollectiveKind::AllReduce, args)
    ),
    function!(
        "all_gather",
        [X],
        "The values of all ranks one after another along axis 0, on every rank: [n, …] becomes [n·world, …].",
        |graph, args| tensor(collective(graph, CollectiveKind::AllGather, args)?)
    ),
    function!(
        "reduce_scatter",
        [X, MEAN],
        "The sum of `x` over all ranks, of which each rank keeps its part along axis 0: [n, …] becomes [n / world, …].",
        |graph, args| reduced(graph, CollectiveKind::ReduceScatter, args)
    ),
];

/// Whether a function gets an [`Arg::World`].
pub fn is_collective(function: &Function) -> bool {
    function.name == "broadcast" || FUNCTIONS.iter().any(|f| f.name == function.name)
}

/// `broadcast(x)` without a shape: the value of rank 0, on every rank.
pub(super) fn from_rank_0(graph: &mut Graph, args: &[Arg]) -> Result<Vec<Operand>, OpError> {
    tensor(collective(graph, CollectiveKind::Broadcast, args)?)
}

/// The number of ranks, where a function was told.
pub(super) fn world(args: &[Arg]) -> Option<u32> {
    match args.last() {
        Some(Arg::World(world)) => Some(*world),
        _ => None,
    }
}

fn collective(graph: &mut Graph, kind: CollectiveKind, args: &[Arg]) -> Result<ValueId, OpError> {
    // Who says nothing of ranks is alone.
    let world = world(args).unwrap_or(1);
    let x = Args::new(kind.name(), args).value(graph, 0)?;
    if world == 1 {
        // What several ranks could not do is an error with one, too.
        let ty = graph.ty(x).clone();
        CollectiveStart { kind, world }.infer(graph, &[&ty])?;
        return Ok(x);
    }
    graph.collective(kind, world, x)
}

fn reduced(graph: &mut Graph, kind: CollectiveKind, args: &[Arg]) -> Result<Vec<Operand>, OpError> {
    let mean = Args::new(kind.name(), args).bool(1)?;
    let sum = collective(graph, kind, args)?;
    let world = world(args).unwrap_or(1);
    if !mean {
        return tensor(sum);
    }
    let ty = graph.ty(sum);
    if !ty.dtype().is_float() {
        return Err(OpError::new(format!(
            "`{}` with `mean: true` needs floating-point values, got {ty}",
            kind.name()
        ))
        .help("convert it first: `f32(x)`"));
    }
    if world == 1 {
        return tensor(sum);
    }
    let ranks = Operand::Number(Number::Int(i64::from(world)));
    Ok(vec![arithmetic::binary(graph, BinaryOp::Div, Operand::tensor(sum), ranks)?])
}
