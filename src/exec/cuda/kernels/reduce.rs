//! Reductions, and the place of the largest element.

use std::sync::Arc;

use super::{
    Kernel, OpError, Tensor, Work,
    call::Call,
    elementwise::Reader,
    launch::{THREADS, element, index_type, locate, with_types},
};
use crate::{
    exec::cpu::strided::{Axis, Walk, axes},
    ir::{DType, Type},
    ops::{ArgReduce, Reduce, ReduceKind},
};

const TEXT: &str = include_str!("reduce.cu");
const ARG_TEXT: &str = include_str!("arg_reduce.cu");
const WHOLE: &str = include_str!("whole.cu");

/// Elements of a chunk, the unit of the tree.
const CHUNK: usize = 1024;

/// Blocks that are enough for any device.
const BLOCKS: usize = 1024;

/// Up to so many parts of an output are joined by one thread.
const FEW_PARTS: usize = 16;

/// How the chunks of each output are divided among blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Cut {
    /// Outputs lie beside each other, the elements of one do not.
    columns: bool,
    /// Chunks of a block.
    span: usize,
    parts: usize,
}

impl Cut {
    fn new(columns: bool, outputs: usize, n: usize) -> Cut {
        let chunks = n.div_ceil(CHUNK).max(1);
        let groups = if columns { outputs.div_ceil(32) } else { outputs };
        let (least, most) = if columns { (1, 16) } else { (16, 4096) };
        let wanted = chunks.saturating_mul(groups) / BLOCKS;
        let span = wanted.max(1).next_power_of_two().clamp(least, most);
        Cut { columns, span, parts: chunks.div_ceil(span) }
    }

    fn partial_bytes(self, outputs: usize, dtype: DType) -> u64 {
        if self.parts == 1 {
            return 0;
        }
        (self.parts as u64).saturating_mul(outputs as u64).saturating_mul(wide(dtype).size() as u64)
    }
}

/// The type in which elements are folded, for its size.
fn wide(dtype: DType) -> DType {
    match dtype {
        DType::Bool => DType::U8,
        dtype => dtype.accumulator(),
    }
}

/// Bytes of partial sums, at most: the layout is not known when a step is planned.
pub(super) fn workspace(args: &[&Type], results: &[&Type]) -> u64 {
    let (&[x], &[y]) = (args, results) else { return 0 };
    let outputs = y.elements();
    let n = x.elements().checked_div(outputs).unwrap_or(0);
    let of = |columns| Cut::new(columns, outputs, n).partial_bytes(outputs, x.dtype());
    of(true).max(of(false))
}

/// The works; with a `reader`, operand 0 is not in memory, but computed as it is read.
pub(super) fn works(call: &Call, reduce: &Reduce, reader: Option<&Reader>) -> Result<Vec<Work>, OpError> {
    let (x, y) = (call.arg(0)?, call.result(0)?);
    let outputs = y.elements();
    if outputs == 0 {
        return Ok(Vec::new());
    }
    let (kept, over) = (walk(x, &reduce.axes, false), walk(x, &reduce.axes, true));
    let n = over.count();
    let source = source(x, reduce, &kept, &over, reader);
    let operand = match reader {
        Some(reader) => reader.args.clone(),
        None => vec![x.into()],
    };
    let in_rows = over.axes.last().is_none_or(|axis| axis.strides == [1]);
    let columns = kept.axes.last().is_some_and(|axis| axis.strides == [1] && axis.size >= 8) && !in_rows;
    // Of nothing, the other kernels have no chunk to begin with.
    if n == 0 || n <= CHUNK && !columns {
        let kernel = Kernel::new(source, "reduce_short").args(operand).arg(y).sizes([outputs, n]);
        return Ok(vec![kernel.blocks(outputs.div_ceil(16), 1, 1, THREADS)?]);
    }
    let cut = Cut::new(columns, outputs, n);
    // Without parts, a place that is not used: others need not wait for the workspace then.
    let partial = match cut.parts {
        1 => y.address(),
        _ => call.workspace(cut.partial_bytes(outputs, x.dtype()))?,
    };
    let (function, blocks, threads) = if columns {
        ("reduce_columns", outputs.div_ceil(32).saturating_mul(cut.parts), 512)
    } else {
        ("reduce_rows", outputs.saturating_mul(cut.parts), THREADS)
    };
    let source: Arc<str> = source.into();
    let mut works = vec![
        Kernel::new(source.clone(), function)
            .args(operand)
            .arg(y)
            .arg(partial)
            .sizes([outputs, n, cut.parts, cut.span])
            .blocks(blocks, 1, 1, threads)?,
    ];
    let parts = |function| Kernel::new(source, function).arg(partial).arg(y).sizes([outputs, cut.parts]);
    match cut.parts {
        1 => {}
        2..=FEW_PARTS => works.push(parts("reduce_parts").for_each(outputs, THREADS)?),
        _ => works.push(parts("reduce_many_parts").blocks(outputs, 1, 1, THREADS)?),
    }
    Ok(works)
}

fn walk(x: &Tensor, reduced: &[usize], wanted: bool) -> Walk<1> {
    let part = axes(x.shape(), x.strides()).enumerate().filter(|(k, _)| reduced.contains(k) == wanted);
    Walk::new(part.map(|(_, axis)| axis))
}

fn located(name: &str, walk: &Walk<1>) -> String {
    let sizes: Vec<usize> = walk.axes.iter().map(|axis| axis.size).collect();
    let strides: Vec<usize> = walk.axes.iter().map(|&Axis { strides: [stride], .. }| stride).collect();
    locate(name, &sizes, &strides)
}

fn source(x: &Tensor, reduce: &Reduce, kept: &Walk<1>, over: &Walk<1>, reader: Option<&Reader>) -> String {
    let dtype = x.dtype();
    let is_float = dtype.is_float();
    let (fold, neutral) = match (reduce.kind, is_float) {
        (ReduceKind::Sum | ReduceKind::Mean, true) => ("((a) + (b))", "(A)0".to_owned()),
        (ReduceKind::Sum | ReduceKind::Mean, false) => ("whole_add<A>(a, b)", "(A)0".to_owned()),
        (ReduceKind::Prod, true) => ("((a) * (b))", "(A)1".to_owned()),
        (ReduceKind::Prod, false) => ("whole_mul<A>(a, b)", "(A)1".to_owned()),
        (ReduceKind::Max, true) => ("max_of<A>(a, b)", "(-infinity((A)0))".to_owned()),
        (ReduceKind::Min, true) => ("min_of<A>(a, b)", "infinity((A)0)".to_owned()),
        (ReduceKind::Max, false) => ("max_of<A>(a, b)", whole_limit(dtype, false)),
        (ReduceKind::Min, false) => ("min_of<A>(a, b)", whole_limit(dtype, true)),
    };
    let finish = match reduce.kind {
        ReduceKind::Mean if dtype == DType::F64 => "((a) / (double)n_of_mean)",
        ReduceKind::Mean => "((a) / (float)n_of_mean)",
        ReduceKind::Sum | ReduceKind::Max | ReduceKind::Min | ReduceKind::Prod => "(a)",
    };
    let n = over.count();
    let read = reader.map_or(0, |reader| reader.reach);
    let index = index_type(x.reach().max(x.elements()).max(n.saturating_add(CHUNK)).max(read));
    let uses_whole = !is_float || reader.is_some_and(|reader| reader.uses_whole);
    let mut text = if uses_whole { WHOLE.to_owned() } else { String::new() };
    text += &format!("#define FOLD(a, b) {fold}\n#define NEUTRAL {neutral}\n#define FINISH(a) {finish}\n");
    if reduce.kind == ReduceKind::Mean {
        text += &format!("#define n_of_mean {n}ull\n");
    }
    text += &located("kept_at", kept);
    text += &located("over_at", over);
    match reader {
        Some(reader) => {
            text += &reader.text;
            text += &format!("#define FROM {}\n", reader.made);
            text += &TEXT.replace("const T* x, ", &reader.parameters);
        }
        None => {
            text += "#define FROM\n";
            text += TEXT;
        }
    }
    with_types(&[("T", element(dtype)), ("I", index)], &text)
}

/// The least or largest whole number of a type, as a constant of its accumulator.
fn whole_limit(dtype: DType, largest: bool) -> String {
    match (dtype, largest) {
        (DType::I32, true) => "(int)2147483647".to_owned(),
        (DType::I32, false) => "(int)(-2147483647 - 1)".to_owned(),
        (DType::I64, true) => "(i64)9223372036854775807ll".to_owned(),
        (DType::I64, false) => "(i64)(-9223372036854775807ll - 1)".to_owned(),
        (_, true) => "(u8)255".to_owned(),
        (_, false) => "(u8)0".to_owned(),
    }
}

pub(super) fn arg_works(call: &Call, op: &ArgReduce) -> Result<Vec<Work>, OpError> {
    let (x, y) = (call.arg(0)?, call.result(0)?);
    let outputs = y.elements();
    if outputs == 0 {
        return Ok(Vec::new());
    }
    let size = x.dim(op.axis);
    let kept = walk(x, &[op.axis], false);
    let team = if size > 64 { 128 } else { 1 };
    let better = if op.largest { "((a) > (b))" } else { "((a) < (b))" };
    let index =
        index_type(x.reach().max(x.elements()).saturating_add(team).max(outputs.saturating_mul(team)));
    let text = format!("#define TEAM {team}\n#define BETTER(a, b) {better}\n")
        + &located("kept_at", &kept)
        + ARG_TEXT;
    let source = with_types(&[("T", element(x.dtype())), ("I", index)], &text);
    let kernel = Kernel::new(source, "arg_reduce").arg(x).arg(y).sizes([outputs, size, x.stride(op.axis)]);
    Ok(vec![kernel.blocks(outputs.saturating_mul(team).div_ceil(128), 1, 1, 128)?])
}
