//! Rows of a table by index, and sums of rows by index.

use super::{
    real::{Accumulator, Index, Real, for_float, for_float_and_index},
    rows::{BLOCK, Shared, blocks, for_rows},
};
use crate::{
    exec::{Element, cpu::Call},
    ir::DType,
    ops::OpError,
};

/// Operands (table, ids) → rows.
pub fn gather(call: &Call<'_>) -> Result<(), OpError> {
    match call.arg_operand(1)?.ty.dtype() {
        DType::I32 => gather_by::<i32>(call),
        DType::I64 => gather_by::<i64>(call),
        _ => gather_by::<u8>(call),
    }
}

fn gather_by<I: Index>(call: &Call<'_>) -> Result<(), OpError> {
    match call.arg_operand(0)?.ty.dtype() {
        DType::F32 => gather_of::<f32, I>(call),
        DType::F16 => gather_of::<half::f16, I>(call),
        DType::BF16 => gather_of::<half::bf16, I>(call),
        DType::F64 => gather_of::<f64, I>(call),
        DType::I32 => gather_of::<i32, I>(call),
        DType::I64 => gather_of::<i64, I>(call),
        DType::Bool => gather_of::<bool, I>(call),
        DType::U8 => gather_of::<u8, I>(call),
    }
}

fn gather_of<T: Element, I: Index>(call: &Call<'_>) -> Result<(), OpError> {
    let (table, ids) = (call.arg::<T>(0)?, call.arg::<I>(1)?);
    let shape = call.arg_operand(0)?.ty.shape();
    let (rows, width) = (shape.first().copied().unwrap_or(0), shape.iter().skip(1).product::<usize>());
    check_ids("gather", ids, rows)?;
    let result = Shared::of(call.result::<T>(0)?);
    for_rows(ids.len(), width, |range| {
        for index in range {
            let Some(id) = ids[index].below(rows) else { continue };
            // SAFETY: row `index` of the result is inside it and written by this task only.
            let to = unsafe { result.write(index * width, width) };
            to.copy_from_slice(&table[id * width..(id + 1) * width]);
        }
    });
    Ok(())
}

/// Checks every index: an error must not depend on which thread comes first.
fn check_ids<I: Index>(name: &str, ids: &[I], rows: usize) -> Result<(), OpError> {
    match ids.iter().enumerate().find(|(_, id)| id.below(rows).is_none()) {
        None => Ok(()),
        Some((position, id)) => Err(OpError::new(format!(
            "`{name}`: index {} at position {position} is outside 0 ≤ index < {rows}",
            id.to_i64()
        ))),
    }
}

/// Elements of i64 workspace for [`scatter_add`]: where each row's indices start, and the positions
/// of the indices, sorted by row.
pub fn scatter_workspace(rows: usize, ids: usize) -> usize {
    rows.saturating_add(ids).saturating_add(1)
}

/// Operands (ids, rows) → sums.
pub fn scatter_add(call: &Call<'_>) -> Result<(), OpError> {
    let [ids, rows] = [call.arg_operand(0)?.ty.dtype(), call.arg_operand(1)?.ty.dtype()];
    for_float_and_index!(rows, ids, scatter_of(call))
}

/// Sorts the positions by index first, keeping their order, so that every row of the result is
/// summed by one task and written once.
fn scatter_of<T: Real, I: Index>(call: &Call<'_>) -> Result<(), OpError> {
    let (ids, values) = (call.arg::<I>(0)?, call.arg::<T>(1)?);
    let shape = call.result_operand(0)?.ty.shape();
    let (rows, width) = (shape.first().copied().unwrap_or(0), shape.iter().skip(1).product::<usize>());
    check_ids("scatter_add", ids, rows)?;
    let workspace = call.workspace::<i64>();
    let Some((ends, positions)) = workspace.split_at_mut_checked(rows + 1) else {
        return Err(OpError::new("internal: `scatter_add` got less workspace than it asked for"));
    };
    let Some(positions) = positions.get_mut(..ids.len()) else {
        return Err(OpError::new("internal: `scatter_add` got less workspace than it asked for"));
    };
    // Counting sort: `ends[row + 1]` counts, then becomes where the row's next position goes, and in
    // the end where its positions end.
    ends.fill(0);
    for id in ids {
        if let Some(id) = id.below(rows) {
            ends[id + 1] += 1;
        }
    }
    let mut start = 0;
    for end in ends.iter_mut() {
        start += *end;
        *end = start - *end;
    }
    for (position, id) in ids.iter().enumerate() {
        if let Some(id) = id.below(rows) {
            let place = &mut ends[id + 1];
            positions[*place as usize] = position as i64;
            *place += 1;
        }
    }
    let (ends, positions) = (&*ends, &*positions);
    let result = Shared::of(call.result::<T>(0)?);
    for_rows(rows, width, |range| {
        let mut total = [T::Acc::ZERO; BLOCK];
        let mut term = [T::Acc::ZERO; BLOCK];
        for row in range {
            let positions = &positions[ends[row] as usize..ends[row + 1] as usize];
            for (start, len) in blocks(width) {
                let (total, term) = (&mut total[..len], &mut term[..len]);
                total.fill(T::Acc::ZERO);
                for &position in positions {
                    let from = position as usize * width + start;
                    T::widen_slice(&values[from..from + len], term);
                    for (total, &term) in total.iter_mut().zip(term.iter()) {
                        *total += term;
                    }
                }
                // SAFETY: this part of the result is inside it and written by this task only.
                T::narrow_slice(total, unsafe { result.write(row * width + start, len) });
            }
        }
    });
    Ok(())
}
