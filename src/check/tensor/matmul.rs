//! `@`: products of vectors, matrices and batches of matrices, from views and one [`MatMul`], to which
//! `linear` gives a bias.
//!
//! [`MatMul`]: crate::ops::MatMul

use super::{
    Arg, Default, Function, Kind, Operand, Param, Results,
    broadcast::broadcast_shapes,
    function::{Args, tensor},
    promote::{common, with_dtype},
};
use crate::{
    ir::{Graph, ValueId},
    ops::{MatMul, OpError},
};

const A_B: &[Param] = &[Param::new("a", Kind::Tensor), Param::new("b", Kind::Tensor)];

pub(super) const FUNCTIONS: &[Function] = &[
    Function {
        name: "matmul",
        params: A_B,
        results: Results::One,
        random: false,
        docs: "The matrix product: [.., m, k] and [.., k, n] give [.., m, n]; leading axes broadcast. The same as `a @ b`.",
        call: |graph, args| {
            let args = Args::new("matmul", args);
            let (a, b) = (args.operand(0)?, args.operand(1)?);
            tensor(matmul(graph, "matmul", a, b)?)
        },
    },
    Function {
        name: "linear",
        params: &[
            Param::new("x", Kind::Tensor),
            Param::new("w", Kind::Tensor),
            Param::with("b", Kind::OptionalTensor, Default::None),
        ],
        results: Results::One,
        random: false,
        docs: "x @ w.T + b as one operation: `x: [.., n_in]`, `w: [n_out, n_in]` and `b: [n_out]` give [.., n_out]. In f16 and bf16 it rounds once, after `b` is added. Without `b` it is `x @ w.T`.",
        call: linear,
    },
    Function {
        name: "dot",
        params: A_B,
        results: Results::One,
        random: false,
        docs: "The inner product of two vectors: [n] and [n] give a scalar.",
        call: |graph, args| {
            let (a, b) = vectors(graph, "dot", args)?;
            tensor(matmul(graph, "dot", a, b)?)
        },
    },
    Function {
        name: "outer",
        params: A_B,
        results: Results::One,
        random: false,
        docs: "The outer product of two vectors: [m] and [n] give [m, n].",
        call: |graph, args| {
            let (a, b) = vectors(graph, "outer", args)?;
            let (dtype, _) = common(graph, "outer", &[a, b])?;
            let shape = [a.shape(graph), b.shape(graph)].concat();
            let a = with_dtype(graph, "outer", a, dtype)?;
            let b = with_dtype(graph, "outer", b, dtype)?;
            let column = [graph.ty(a).shape(), &[1]].concat();
            let a = graph.reshape(a, &column)?;
            let a = graph.broadcast(a, &shape)?;
            let b = graph.broadcast(b, &shape)?;
            tensor(graph.mul(a, b)?)
        },
    },
];

/// The two operands of a function on vectors.
fn vectors(graph: &Graph, name: &'static str, args: &[Arg]) -> Result<(Operand, Operand), OpError> {
    let args = Args::new(name, args);
    let (a, b) = (args.operand(0)?, args.operand(1)?);
    if a.shape(graph).len() == 1 && b.shape(graph).len() == 1 {
        Ok((a, b))
    } else {
        Err(OpError::new(format!(
            "`{name}` takes two vectors, got {} and {}",
            a.describe(graph),
            b.describe(graph)
        ))
        .help("`a @ b` is the product of matrices"))
    }
}

/// A batch is one product of matrices, as in [`matmul`].
fn linear(graph: &mut Graph, args: &[Arg]) -> Result<Vec<Operand>, OpError> {
    let args = Args::new("linear", args);
    let (x, w, b) = (args.operand(0)?, args.operand(1)?, args.optional(2)?);
    let names = format!("`linear` of {} and {}", x.describe(graph), w.describe(graph));
    let (&[n_out, n_in], Some((&last, lead))) = (w.shape(graph), x.shape(graph).split_last()) else {
        return Err(OpError::new(format!("{names}: it takes x: [.., n_in] and w: [n_out, n_in]")));
    };
    if last != n_in {
        let error = OpError::new(format!("{names}: the last axis of x is {last}, that of w is {n_in}"));
        return Err(if last == n_out { error.help("`linear(x, w.T)` fits") } else { error });
    }
    if let Some(b) = b.filter(|b| b.shape(graph) != [n_out]) {
        return Err(OpError::new(format!("{names}: `b` has shape [{n_out}], got {}", b.describe(graph))));
    }
    let shape = [lead, &[n_out]].concat();
    let rows = lead.iter().fold(1, |rows: usize, &size| rows.saturating_mul(size));
    let given: Vec<Operand> = [Some(x), Some(w), b].into_iter().flatten().collect();
    let (dtype, _) = common(graph, "linear", &given)?;
    let mut values =
        given.into_iter().map(|o| with_dtype(graph, "linear", o, dtype)).collect::<Result<Vec<_>, _>>()?;
    if let [x, w, ..] = values.as_mut_slice() {
        *x = graph.reshape(*x, &[rows, n_in])?;
        *w = graph.transpose_last(*w)?;
    }
    let product = graph.value(MatMul, &values)?;
    tensor(graph.reshape(product, &shape)?)
}

/// `a @ b` as in NumPy: 1-d operands are a row on the left and a column on the right, leading axes
/// broadcast. A batch on the left with a matrix on the right is one 2-d product, so the gradient of
/// the matrix is one product too, without a sum over the batch.
pub(super) fn matmul(graph: &mut Graph, op: &str, a: Operand, b: Operand) -> Result<ValueId, OpError> {
    check(graph, op, a, b)?;
    let (dtype, _) = common(graph, op, &[a, b])?;
    let mut a = with_dtype(graph, op, a, dtype)?;
    let mut b = with_dtype(graph, op, b, dtype)?;
    let (a_shape, b_shape) = (graph.ty(a).shape().to_vec(), graph.ty(b).shape().to_vec());
    let (row, column) = (a_shape.len() == 1, b_shape.len() == 1);
    if row {
        a = graph.reshape(a, &[&[1], a_shape.as_slice()].concat())?;
    }
    if column {
        b = graph.reshape(b, &[b_shape.as_slice(), &[1]].concat())?;
    }
    let (a_lead, m, k) = split(graph, a);
    let (b_lead, _, n) = split(graph, b);

    let (product, mut shape) = if b_lead.is_empty() {
        let rows = a_lead.iter().product::<usize>().saturating_mul(m);
        let flat = graph.reshape(a, &[rows, k])?;
        (graph.matmul(flat, b)?, a_lead)
    } else {
        let lead = broadcast_shapes(&a_lead, &b_lead)
            .ok_or_else(|| OpError::new(format!("internal: `{op}` lost its leading axes")))?;
        let a = graph.broadcast(a, &[lead.as_slice(), &[m, k]].concat())?;
        let b = graph.broadcast(b, &[lead.as_slice(), &[k, n]].concat())?;
        (graph.matmul(a, b)?, lead)
    };
    if !row {
        shape.push(m);
    }
    if !column {
        shape.push(n);
    }
    graph.reshape(product, &shape)
}

/// (leading axes, rows, columns) of a value with at least two axes.
fn split(graph: &Graph, x: ValueId) -> (Vec<usize>, usize, usize) {
    match graph.ty(x).shape() {
        [lead @ .., m, n] => (lead.to_vec(), *m, *n),
        _ => (Vec::new(), 1, 1),
    }
}

fn check(graph: &Graph, op: &str, a: Operand, b: Operand) -> Result<(), OpError> {
    let names = format!("`{op}` of {} and {}", a.describe(graph), b.describe(graph));
    let (left, right) = (a.shape(graph), b.shape(graph));
    let Some(&k) = left.last() else {
        return Err(OpError::new(format!("{names}: the left is a scalar")).help("use `*`"));
    };
    let rows = match right {
        [] => return Err(OpError::new(format!("{names}: the right is a scalar")).help("use `*`")),
        [k] => *k,
        [.., k, _] => *k,
    };
    if k != rows {
        let axis = right.len().saturating_sub(2);
        let error = OpError::new(format!(
            "{names}: axis {} on the left is {k}, axis {axis} on the right is {rows}",
            left.len() - 1
        ));
        return Err(match (left, right) {
            (_, [.., _, n]) if *n == k => error.help("`a @ b.T` fits"),
            ([.., m, _], _) if *m == rows => error.help("`a.T @ b` fits"),
            _ => error,
        });
    }
    let (a_lead, b_lead) = match (left, right) {
        ([a @ .., _, _], [b @ .., _, _]) => (a, b),
        _ => return Ok(()),
    };
    if broadcast_shapes(a_lead, b_lead).is_none() {
        return Err(OpError::new(format!("{names}: the leading axes do not broadcast")));
    }
    Ok(())
}
