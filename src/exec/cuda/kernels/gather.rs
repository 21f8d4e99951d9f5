//! Rows of a table by index, and sums of rows by index.

use std::sync::Arc;

use super::{
    Address, Kernel, OpError, Work,
    call::Call,
    check,
    launch::{THREADS, bits, element, index_type, with_types},
};
use crate::ir::Type;

const GATHER: &str = include_str!("gather.cu");
const SCATTER: &str = include_str!("scatter.cu");

/// With at most so many indices, every element of the result looks at all of them.
const FEW: usize = 128;

/// Operands (table, ids) → rows.
pub(super) fn gather(call: &Call) -> Result<Vec<Work>, OpError> {
    let (table, ids, to) = (call.arg(0)?, call.arg(1)?, call.result(0)?);
    let rows = table.dim(0);
    let mut works = check::indices(call, ids, rows)?;
    if to.elements() == 0 {
        return Ok(works);
    }
    // Rows are moved in units of up to eight bytes.
    let bytes = table.shape().iter().skip(1).product::<usize>() * table.dtype().size();
    let unit = [8, 4, 2, 1]
        .into_iter()
        .find(|&unit| bytes.is_multiple_of(unit) && table.is_aligned(unit) && to.is_aligned(unit));
    let unit = unit.unwrap_or(1);
    let width = bytes / unit;
    let count = to.bytes() as usize / unit;
    let index = index_type(count.max(table.bytes() as usize / unit));
    let types = [("M", bits(unit)), ("L", element(ids.dtype())), ("I", index)];
    let kernel =
        Kernel::new(with_types(&types, GATHER), "gather").args([table, ids, to]).sizes([count, width, rows]);
    works.push(kernel.for_each(count, THREADS)?);
    Ok(works)
}

/// Bytes for the positions of indices by row: counts, starts, and two lists of positions.
pub(super) fn scatter_workspace(rows: usize, args: &[&Type]) -> u64 {
    let ids = args.first().map_or(0, |ids| ids.elements());
    let words: u64 = lists(rows, ids).iter().fold(0, |sum: u64, &list| sum.saturating_add(list));
    if ids <= FEW { 0 } else { words.saturating_mul(4) }
}

/// The lengths of the four lists, each a multiple of 64.
fn lists(rows: usize, ids: usize) -> [u64; 4] {
    [rows, rows.saturating_add(1), ids, ids].map(|length| (length as u64).next_multiple_of(64))
}

/// Operands (ids, rows) → sums.
pub(super) fn scatter_add(call: &Call, rows: usize) -> Result<Vec<Work>, OpError> {
    let (ids, values, sums) = (call.arg(0)?, call.arg(1)?, call.result(0)?);
    let count = sums.elements();
    let ids_count = ids.elements();
    let mut works = check::indices(call, ids, rows)?;
    if count == 0 {
        return Ok(works);
    }
    if u32::try_from(ids_count).is_err() {
        return Err(OpError::new(format!(
            "`scatter_add` of {ids_count} indices: a device takes at most {}",
            u32::MAX
        )));
    }
    let width = sums.shape().iter().skip(1).product::<usize>();
    let index = index_type(count.max(values.elements()).max(ids_count));
    let types = [("T", element(sums.dtype())), ("L", element(ids.dtype())), ("I", index)];
    let source: Arc<str> = with_types(&types, SCATTER).into();
    let kernel = |function| Kernel::new(source.clone(), function);
    if ids_count <= FEW {
        let kernel = kernel("scatter_few").args([ids, values, sums]).sizes([count, width, ids_count]);
        works.push(kernel.for_each(count, THREADS)?);
        return Ok(works);
    }
    let lengths = lists(rows, ids_count);
    let base = call.workspace(lengths.iter().sum::<u64>() * 4)?;
    let list = |k: usize| Address { offset: base.offset + lengths.iter().take(k).sum::<u64>() * 4, ..base };
    let [counts, starts, places, sorted] = [0, 1, 2, 3].map(list);
    works.push(Work::Zero { at: counts, bytes: rows as u64 * 4 });
    works.push(
        kernel("scatter_count").arg(ids).arg(counts).sizes([ids_count, rows]).for_each(ids_count, THREADS)?,
    );
    works.push(kernel("scatter_starts").args([counts, starts]).size(rows).blocks(1, 1, 1, 512)?);
    works.push(
        kernel("scatter_place")
            .arg(ids)
            .args([counts, places])
            .sizes([ids_count, rows])
            .for_each(ids_count, THREADS)?,
    );
    works.push(
        kernel("scatter_sort")
            .arg(ids)
            .args([starts, places, sorted])
            .sizes([ids_count, rows])
            .for_each(ids_count, THREADS)?,
    );
    works.push(
        kernel("scatter_sum")
            .args([starts, sorted])
            .args([values, sums])
            .sizes([count, width])
            .for_each(count, THREADS)?,
    );
    Ok(works)
}
