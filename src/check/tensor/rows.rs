//! Rows picked by index: `gather`, `take`, `one_hot`.

use super::{
    Arg, Default, Function, Kind, Operand, Param, Results,
    axes::axis,
    function::{Args, tensor},
    promote::value,
};
use crate::{
    ir::{DType, Graph, Type, ValueId},
    ops::{Binary, Gather, Iota, OpError},
};

pub(super) const FUNCTIONS: &[Function] = &[
    Function {
        name: "gather",
        params: &[Param::new("table", Kind::Tensor), Param::new("ids", Kind::Tensor)],
        results: Results::One,
        random: false,
        docs: "Rows of `table: [v, …]` by `ids: int [i…]`: the result is [i…, …]. An id outside 0 … v - 1 is an error when it runs.",
        call: |graph, args| take_call(graph, "gather", args, 0),
    },
    Function {
        name: "take",
        params: &[
            Param::new("x", Kind::Tensor),
            Param::new("ids", Kind::Tensor),
            Param::with("axis", Kind::Int, Default::Int(0)),
        ],
        results: Results::One,
        random: false,
        docs: "Elements of `x` along `axis` by `ids: int [i…]`: the axis becomes [i…]. An id out of range is an error when it runs.",
        call: |graph, args| {
            let axis = Args::new("take", args).int(2)?;
            take_call(graph, "take", args, axis)
        },
    },
    Function {
        name: "one_hot",
        params: &[
            Param::new("ids", Kind::Tensor),
            Param::new("n", Kind::Int),
            Param::with("dtype", Kind::DType, Default::DType(DType::F32)),
        ],
        results: Results::One,
        random: false,
        docs: "1 at each of `ids: int [i…]` along a new last axis of size `n`, 0 elsewhere: [i…, n]. An id out of range gives a row of zeros.",
        call: one_hot,
    },
];

/// Elements of `x` along `axis`, which becomes the axes of `ids`.
pub(super) fn take(graph: &mut Graph, x: ValueId, ids: ValueId, axis: usize) -> Result<ValueId, OpError> {
    if axis == 0 {
        return graph.value(Gather, &[x, ids]);
    }
    // The axis goes to the front, and what it becomes goes back.
    let rank = graph.ty(x).rank();
    let front: Vec<usize> = std::iter::once(axis).chain((0..rank).filter(|&a| a != axis)).collect();
    let moved = graph.transpose(x, &front)?;
    let picked = graph.value(Gather, &[moved, ids])?;
    let added = graph.ty(ids).rank();
    let back: Vec<usize> =
        (added..added + axis).chain(0..added).chain(added + axis..added + rank - 1).collect();
    graph.transpose(picked, &back)
}

fn take_call(
    graph: &mut Graph,
    name: &'static str,
    args: &[Arg],
    along: i64,
) -> Result<Vec<Operand>, OpError> {
    let args = Args::new(name, args);
    let x = args.value(graph, 0)?;
    let ids = indices(graph, name, args.operand(1)?)?;
    let axis = axis(name, along, graph.ty(x))?;
    tensor(take(graph, x, ids, axis)?)
}

/// Whole numbers, as a value.
fn indices(graph: &mut Graph, name: &str, ids: Operand) -> Result<ValueId, OpError> {
    let value = value(graph, name, ids)?;
    if graph.ty(value).dtype().is_int() {
        Ok(value)
    } else {
        Err(OpError::new(format!("`{name}`: the ids are {}", ids.describe(graph)))
            .help("ids are whole numbers: `i32(x)`"))
    }
}

fn one_hot(graph: &mut Graph, args: &[Arg]) -> Result<Vec<Operand>, OpError> {
    let args = Args::new("one_hot", args);
    let ids = indices(graph, "one_hot", args.operand(0)?)?;
    let n = args.size(1, "n")?;
    let dtype = args.dtype(2)?;
    // The class numbers must fit in the dtype of the ids.
    let ids = if graph.ty(ids).dtype() == DType::U8 { graph.cast(ids, DType::I32)? } else { ids };
    let ty = graph.ty(ids).clone();
    let mut shape = ty.shape().to_vec();
    shape.push(1);
    let column = graph.reshape(ids, &shape)?;
    let axis = ty.rank();
    if let Some(last) = shape.last_mut() {
        *last = n;
    }
    let column = graph.broadcast(column, &shape)?;
    let classes = graph.value(Iota { ty: Type::new(ty.dtype(), shape)?, axis }, &[])?;
    let hot = graph.binary(Binary::Eq, column, classes)?;
    tensor(graph.cast(hot, dtype)?)
}
