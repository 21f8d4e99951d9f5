//! Several launches of one kernel as one: blocks are numbered through all of them, and a table says which of
//! them a block belongs to, and with which arguments.

use std::{fmt::Write, sync::Arc};

use super::{Arg, Launch};

/// Words of a table: with its length, the 4 KiB that the arguments of a launch may have on every device.
pub(in crate::exec::cuda) const TABLE_WORDS: usize = 500;

/// How a kernel begins.
const KERNEL: &str = "extern \"C\" __global__ void ";

/// What the kernels below know of their block, and how a word of the table becomes an argument.
const TEXT: &str = include_str!("merged.cu");

/// Whether a launch can be one of several.
pub(in crate::exec::cuda) fn can_merge(launch: &Launch) -> bool {
    let [x, y, z] = launch.grid;
    x > 0 && y > 0 && z == 1 && launch.source.contains(KERNEL) && words(launch) <= TABLE_WORDS
}

/// Words of a table for one launch.
pub(in crate::exec::cuda) fn words(launch: &Launch) -> usize {
    // The first says where its blocks begin, and how many of them are in a row.
    1 + launch.args.len()
}

/// Blocks of a launch.
pub(in crate::exec::cuda) fn blocks(launch: &Launch) -> u64 {
    launch.grid.iter().map(|&size| u64::from(size)).product()
}

/// The text in which each kernel of `source` runs for a table: `NAME_merged` for `NAME`.
pub(in crate::exec::cuda) fn source(source: &str) -> Arc<str> {
    let mut pieces = source.split(KERNEL);
    let mut text = TEXT.replace("TABLE_WORDS", &TABLE_WORDS.to_string());
    text.push_str(pieces.next().unwrap_or_default());
    let mut kernels = String::new();
    for piece in pieces {
        let (name, rest) = piece.split_once('(').unwrap_or((piece, ""));
        let parameters = rest.split_once(") {").map_or("", |(parameters, _)| parameters);
        let count = parameters.split(',').filter(|parameter| !parameter.trim().is_empty()).count();
        // Writing to a string cannot fail.
        let _ = write!(text, "static __device__ inline void {name}(const MergedBlock& merged_block, {rest}");
        let arguments: Vec<String> =
            (1..=count).map(|k| format!("MergedWord{{table.words[at + {k}]}}")).collect();
        let _ = write!(
            kernels,
            "\n{KERNEL}{name}_merged(const __grid_constant__ MergedTable table, i64 count) {{\n    \
             MERGED_PLACE(blockIdx.x, {})\n    {name}(block, {});\n}}\n",
            count + 1,
            arguments.join(", ")
        );
    }
    (text.replace("blockIdx", "merged_block") + &kernels).into()
}

/// The one launch that is all of these, which have one kernel and as many threads a block. Of all words and
/// blocks there are no more than fit.
pub(in crate::exec::cuda) fn launch(source: Arc<str>, launches: &[&Launch]) -> Option<Launch> {
    let first = *launches.first()?;
    let mut table = Vec::new();
    let mut next = 0u64;
    for launch in launches {
        let [across, ..] = launch.grid;
        table.push(Arg::I64((u64::from(across) << 32 | next) as i64));
        table.extend(launch.args.iter().cloned());
        next += blocks(launch);
    }
    Some(Launch {
        source,
        function: format!("{}_merged", first.function).into(),
        grid: [u32::try_from(next).ok()?, 1, 1],
        block: first.block,
        args: vec![Arg::Table(table.into()), Arg::I64(launches.len() as i64)],
    })
}
