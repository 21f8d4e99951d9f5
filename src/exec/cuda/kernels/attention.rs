//! Attention and its gradient, in tiles.

use std::{fmt::Write, sync::Arc};

use super::{
    Arg, Kernel, OpError, Tensor, Work,
    call::Call,
    launch::{THREADS, element, index_type, locate, with_types},
    movement,
    product::TILE,
};
use crate::ir::{DType, Type};

const TEXT: &str = include_str!("attention.cu");

/// What distinguishes one attention from another, beside its operands.
#[derive(Clone, Copy)]
pub(super) struct Form {
    pub causal: bool,
    pub scale: f64,
}

struct Sizes {
    /// b · h
    heads: usize,
    queries: usize,
    keys: usize,
    depth: usize,
    values: usize,
}

impl Sizes {
    fn new(q: &Tensor, k: &Tensor, v: &Tensor) -> Sizes {
        Sizes {
            heads: q.dim(0).saturating_mul(q.dim(1)),
            queries: q.dim(2),
            keys: k.dim(2),
            depth: q.dim(3),
            values: v.dim(3),
        }
    }

    fn args(&self) -> [usize; 4] {
        [self.queries, self.keys, self.depth, self.values]
    }
}

/// Rows and columns of a tile that a thread computes, and columns of results.
fn micro(dtype: DType, columns: usize) -> (usize, usize) {
    match dtype {
        DType::F64 => (2, 4),
        _ if columns > 64 => (4, 8),
        _ => (4, 4),
    }
}

fn source(
    form: Form,
    dtype: DType,
    columns: usize,
    operands: &[(&str, &Tensor)],
    lse: Option<&Tensor>,
) -> Arc<str> {
    let (rows, results) = micro(dtype, columns);
    let mut text = format!(
        "#define MICRO {rows}\n#define EM {results}\n#define CAUSAL {}\n#define GRADIENT {}\n",
        u8::from(form.causal),
        u8::from(lse.is_some())
    );
    let mut reach = 0;
    for (name, tensor) in operands {
        reach = reach.max(tensor.reach()).max(tensor.elements());
        let [sizes, strides] = [tensor.shape(), tensor.strides()].map(|all| all.get(..2).unwrap_or_default());
        text += &locate(&format!("{name}_at"), sizes, strides);
        let upper = name.to_uppercase();
        // Writing to a string cannot fail.
        let _ = write!(
            text,
            "#define {upper}_ROW ((I){}ull)\n#define {upper}_COLUMN ((I){}ull)\n",
            tensor.stride(2),
            tensor.stride(3)
        );
    }
    if let Some(lse) = lse {
        reach = reach.max(lse.reach());
        text += &locate("lse_at", lse.shape(), lse.strides());
    }
    text += &TEXT.replace("TILE_TEXT\n", TILE);
    // With room for whole tiles.
    let index = index_type(reach.saturating_add(1 << 16));
    with_types(&[("T", element(dtype)), ("I", index)], &text).into()
}

/// Operands (q, k, v) → (o, lse).
pub(super) fn forward(call: &Call, form: Form) -> Result<Vec<Work>, OpError> {
    let (q, k, v) = (call.arg(0)?, call.arg(1)?, call.arg(2)?);
    let (o, lse) = (call.result(0)?, call.result(1)?);
    let sizes = Sizes::new(q, k, v);
    if lse.elements() == 0 {
        return Ok(Vec::new());
    }
    let dtype = q.dtype();
    let (rows, results) = micro(dtype, sizes.values);
    let source = source(form, dtype, sizes.values, &[("q", q), ("k", k), ("v", v)], None);
    let tiles = sizes.queries.div_ceil(16 * rows).saturating_mul(sizes.heads);
    let chunks = sizes.values.div_ceil(16 * results).max(1);
    let kernel = Kernel::new(source, "attention")
        .args([q, k, v, o, lse])
        .sizes(sizes.args())
        .arg(Arg::F64(form.scale));
    Ok(vec![kernel.blocks(tiles, chunks, 1, THREADS)?])
}

/// Bytes for Σ g·o of every query.
pub(super) fn grad_workspace(args: &[&Type]) -> u64 {
    args.get(4).map_or(0, |lse| lse.bytes())
}

/// Operands (q, k, v, o, lse, g) → (dq, dk, dv).
pub(super) fn backward(call: &Call, form: Form) -> Result<Vec<Work>, OpError> {
    let (q, k, v) = (call.arg(0)?, call.arg(1)?, call.arg(2)?);
    let (o, lse, g) = (call.arg(3)?, call.arg(4)?, call.arg(5)?);
    let (dq, dk, dv) = (call.result(0)?, call.result(1)?, call.result(2)?);
    let sizes = Sizes::new(q, k, v);
    if sizes.heads == 0 || sizes.queries == 0 || sizes.keys == 0 {
        return Ok([dq, dk, dv].into_iter().flat_map(movement::zero).collect());
    }
    let dtype = q.dtype();
    let columns = sizes.depth.max(sizes.values);
    let (rows, results) = micro(dtype, columns);
    let delta = call.workspace(lse.bytes())?;
    let operands = [("q", q), ("k", k), ("v", v), ("o", o), ("g", g)];
    let source = source(form, dtype, columns, &operands, Some(lse));
    let kernel = |function| Kernel::new(source.clone(), function);
    let count = sizes.heads.saturating_mul(sizes.queries);
    let side = 16 * rows;
    let chunks = |columns: usize| columns.div_ceil(16 * results).max(1);
    Ok(vec![
        kernel("attention_delta")
            .args([g, o])
            .arg(delta)
            .sizes([count, sizes.queries, sizes.values])
            .for_each(count.saturating_mul(8), THREADS)?,
        kernel("attention_grad_keys")
            .args([q, k, v, lse, g])
            .arg(delta)
            .args([dk, dv])
            .sizes(sizes.args())
            .arg(Arg::F64(form.scale))
            .blocks(sizes.keys.div_ceil(side).saturating_mul(sizes.heads), chunks(columns), 1, THREADS)?,
        kernel("attention_grad_queries")
            .args([q, k, v, lse, g])
            .arg(delta)
            .arg(dq)
            .sizes(sizes.args())
            .arg(Arg::F64(form.scale))
            .blocks(
                sizes.queries.div_ceil(side).saturating_mul(sizes.heads),
                chunks(sizes.depth),
                1,
                THREADS,
            )?,
    ])
}
