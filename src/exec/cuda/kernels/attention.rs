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

const COMMON: &str = include_str!("attention_common.cu");
const PLAIN: &str = include_str!("attention.cu");
const MMA: &str = include_str!("mma.cu");
const WARPS: &str = include_str!("attention_mma.cu");

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

/// How the work is cut, and by which of the two texts it is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cut {
    /// A thread computes `micro` squared scores, and `columns` columns of results in as many rows.
    Plain { micro: usize, columns: usize },
    /// By warps, with tensor cores where there are some. `side` keys or queries and `part` columns at a time.
    Warps { depth: usize, values: usize, side: usize, part: usize },
}

impl Cut {
    /// For results with at most this many columns.
    fn new(dtype: DType, sizes: &Sizes, columns: usize) -> Cut {
        let (depth, values) = (sizes.depth.next_multiple_of(16), sizes.values.next_multiple_of(16));
        let is_half = matches!(dtype, DType::F16 | DType::BF16);
        if is_half && (1..=128).contains(&depth) && (1..=128).contains(&values) {
            let widest = depth.max(values);
            let side = if widest <= 64 { 64 } else { 32 };
            return Cut::Warps { depth, values, side, part: widest.min(64) };
        }
        match dtype {
            DType::F64 => Cut::Plain { micro: 2, columns: 4 },
            _ if columns > 64 => Cut::Plain { micro: 4, columns: 8 },
            _ => Cut::Plain { micro: 4, columns: 4 },
        }
    }

    /// Rows of a block.
    fn rows(self) -> usize {
        match self {
            Cut::Plain { micro, .. } => 16 * micro,
            Cut::Warps { .. } => 64,
        }
    }

    /// Blocks beside each other for results with this many columns.
    fn parts(self, columns: usize) -> usize {
        let part = match self {
            Cut::Plain { columns, .. } => 16 * columns,
            Cut::Warps { part, .. } => part,
        };
        columns.div_ceil(part).max(1)
    }

    fn threads(self) -> u32 {
        match self {
            Cut::Plain { .. } => THREADS,
            Cut::Warps { .. } => 128,
        }
    }
}

fn source(
    form: Form,
    dtype: DType,
    cut: Cut,
    operands: &[(&str, &Tensor)],
    lse: Option<&Tensor>,
) -> Arc<str> {
    let mut text =
        format!("#define CAUSAL {}\n#define GRADIENT {}\n", u8::from(form.causal), u8::from(lse.is_some()));
    let mut reach = 0;
    for (name, tensor) in operands {
        reach = reach.max(tensor.reach()).max(tensor.elements());
        let [sizes, strides] = [tensor.shape(), tensor.strides()].map(|all| all.get(..2).unwrap_or_default());
        text += &locate(&format!("{name}_at"), sizes, strides);
        let upper = name.to_uppercase();
        let (row, column) = (tensor.stride(2), tensor.stride(3));
        // Writing to a string cannot fail.
        let _ = write!(text, "#define {upper}_ROW ((I){row}ull)\n#define {upper}_COLUMN ((I){column}ull)\n");
    }
    if let Some(lse) = lse {
        reach = reach.max(lse.reach());
        text += &locate("lse_at", lse.shape(), lse.strides());
    }
    text += COMMON;
    match cut {
        Cut::Plain { micro, columns } => {
            let _ = write!(text, "#define MICRO {micro}\n#define EM {columns}\n");
            text += TILE;
            text += PLAIN;
        }
        Cut::Warps { depth, values, side, part } => {
            let is_f16 = u8::from(dtype == DType::F16);
            let vector = u8::from(operands.iter().all(|(_, tensor)| in_eights(tensor)));
            let _ = write!(
                text,
                "#define HALF_NAME \"{dtype}\"\n#define IS_F16 {is_f16}\n#define VECTOR {vector}\n\
                 #define DP {depth}\n#define EP {values}\n#define SIDE {side}\n#define PART {part}\n"
            );
            text += MMA;
            text += WARPS;
        }
    }
    // With room for whole tiles.
    let index = index_type(reach.saturating_add(1 << 16));
    with_types(&[("T", element(dtype)), ("I", index)], &text).into()
}

/// Whether eight elements of a row can be loaded at once.
fn in_eights(tensor: &Tensor) -> bool {
    let (columns, rows) = tensor.strides().split_last().map_or((0, &[][..]), |(&last, lead)| (last, lead));
    columns == 1
        && rows.iter().all(|stride| stride.is_multiple_of(8))
        && tensor.dim(3).is_multiple_of(8)
        && tensor.is_aligned(16)
}

/// Operands (q, k, v) → (o, lse).
pub(super) fn forward(call: &Call, form: Form) -> Result<Vec<Work>, OpError> {
    let (q, k, v) = (call.arg(0)?, call.arg(1)?, call.arg(2)?);
    let (o, lse) = (call.result(0)?, call.result(1)?);
    let sizes = Sizes::new(q, k, v);
    if lse.elements() == 0 {
        return Ok(Vec::new());
    }
    let cut = Cut::new(q.dtype(), &sizes, sizes.values);
    let source = source(form, q.dtype(), cut, &[("q", q), ("k", k), ("v", v)], None);
    let tiles = sizes.queries.div_ceil(cut.rows()).saturating_mul(sizes.heads);
    // All columns of the output in one block of warps.
    let parts = if matches!(cut, Cut::Warps { .. }) { 1 } else { cut.parts(sizes.values) };
    let kernel = Kernel::new(source, "attention")
        .args([q, k, v, o, lse])
        .sizes(sizes.args())
        .arg(Arg::F64(form.scale));
    Ok(vec![kernel.blocks(tiles, parts, 1, cut.threads())?])
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
    let columns = sizes.depth.max(sizes.values);
    let cut = Cut::new(q.dtype(), &sizes, columns);
    let delta = call.workspace(lse.bytes())?;
    let operands = [("q", q), ("k", k), ("v", v), ("o", o), ("g", g)];
    let source = source(form, q.dtype(), cut, &operands, Some(lse));
    let kernel = |function| Kernel::new(source.clone(), function);
    let count = sizes.heads.saturating_mul(sizes.queries);
    let tiles = |rows: usize| rows.div_ceil(cut.rows()).saturating_mul(sizes.heads);
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
            .blocks(tiles(sizes.keys), cut.parts(columns), 1, cut.threads())?,
        kernel("attention_grad_queries")
            .args([q, k, v, lse, g])
            .arg(delta)
            .arg(dq)
            .sizes(sizes.args())
            .arg(Arg::F64(form.scale))
            .blocks(tiles(sizes.queries), cut.parts(sizes.depth), 1, cut.threads())?,
    ])
}
