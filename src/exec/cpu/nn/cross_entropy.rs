//! Cross-entropy of logits against class numbers, and its gradient.

use super::{
    real::{Accumulator, Index, Real, for_float, for_float_and_index, vectorised},
    rows::{BLOCK, Rows, blocks, for_rows},
    softmax::{log_sum_exp, shift},
};
use crate::{exec::cpu::Call, ops::OpError};

/// Operands (logits, labels) → (loss, log).
pub fn cross_entropy(call: &Call<'_>) -> Result<(), OpError> {
    let [dtype, labels] = [call.arg_operand(0)?.ty.dtype(), call.arg_operand(1)?.ty.dtype()];
    for_float_and_index!(dtype, labels, forward(call))
}

/// Operands (logits, labels, log, g) → dlogits, which may lie over the logits.
pub fn cross_entropy_grad(call: &Call<'_>) -> Result<(), OpError> {
    let [dtype, labels] = [call.arg_operand(0)?.ty.dtype(), call.arg_operand(1)?.ty.dtype()];
    for_float_and_index!(dtype, labels, backward(call))
}

/// Checks every label: an error must not depend on which thread comes first.
fn check_labels<I: Index>(name: &str, labels: Rows<'_, I>, classes: usize) -> Result<(), OpError> {
    let row = labels.row(0);
    for index in 0..labels.columns {
        // SAFETY: labels are never written by this call.
        let label = unsafe { row.get(index) };
        if label.below(classes).is_none() {
            return Err(OpError::new(format!(
                "`{name}`: label {} of row {index} is outside 0 ≤ label < {classes}",
                label.to_i64()
            )));
        }
    }
    Ok(())
}

fn forward<T: Real, I: Index>(call: &Call<'_>) -> Result<(), OpError> {
    let logits = Rows::<T>::new(&call.arg_operand(0)?)?;
    let labels = Rows::<I>::new(&call.arg_operand(1)?)?;
    let loss = Rows::<T>::new(&call.result_operand(0)?)?.row(0);
    let logs = Rows::<T::Acc>::new(&call.result_operand(1)?)?;
    check_labels("cross_entropy", labels, logits.columns)?;
    for_rows(logits.rows, logits.columns, |rows| {
        for index in rows {
            // SAFETY: this task alone uses these rows of the results; labels were checked.
            unsafe {
                let Some(label) = labels.row(0).get(index).below(logits.columns) else { continue };
                let (shift, log) = row_log_sum_exp(logits, index);
                logs.row(0).set(index, log);
                let picked = logits.row(index).get(label).widen();
                // An all-masked row has probability 0 everywhere.
                let masked = log == T::Acc::NEG_INFINITY;
                let value = if masked { T::Acc::INFINITY } else { shift - picked + log };
                loss.set(index, T::narrow(value));
            }
        }
    });
    Ok(())
}

vectorised! {
    fn row_log_sum_exp<T: Real>(x: Rows<'_, T>, index: usize) -> (T::Acc, T::Acc) {
        // SAFETY: nobody writes the operand.
        unsafe { log_sum_exp(x.row(index), x.columns) }
    }
}

fn backward<T: Real, I: Index>(call: &Call<'_>) -> Result<(), OpError> {
    let logits = Rows::<T>::new(&call.arg_operand(0)?)?;
    let labels = Rows::<I>::new(&call.arg_operand(1)?)?;
    let logs = Rows::<T::Acc>::new(&call.arg_operand(2)?)?;
    let g = Rows::<T>::new(&call.arg_operand(3)?)?;
    let dx = Rows::<T>::new(&call.result_operand(0)?)?;
    check_labels("cross_entropy_grad", labels, logits.columns)?;
    for_rows(dx.rows, dx.columns, |rows| {
        for index in rows {
            // SAFETY: this task alone uses these rows; labels were checked.
            unsafe {
                let Some(label) = labels.row(0).get(index).below(logits.columns) else { continue };
                let log = logs.row(0).get(index);
                let g = g.row(0).get(index).widen();
                grad_row(logits, dx, index, label, log, g);
            }
        }
    });
    Ok(())
}

vectorised! {
    /// One row: (exp(x − the largest x − log) − onehot)·g, or 0 where the whole row is masked.
    fn grad_row<T: Real>(
        x: Rows<'_, T>,
        dx: Rows<'_, T>,
        index: usize,
        label: usize,
        log: T::Acc,
        g: T::Acc,
    ) {
        let mut buffer = [T::Acc::ZERO; BLOCK];
        let columns = dx.columns;
        let (x, dx) = (x.row(index), dx.row(index));
        let masked = log == T::Acc::NEG_INFINITY;
        // SAFETY: the row is inside the operand, and this task alone uses it.
        let top = unsafe { shift(x, columns) };
        for (start, len) in blocks(columns) {
            let block = &mut buffer[..len];
            // SAFETY: the block is inside the row, which this task alone uses, and it is loaded
            // before it is stored.
            unsafe {
                x.load(start, block);
                if masked {
                    block.fill(T::Acc::ZERO);
                } else {
                    for value in block.iter_mut() {
                        *value = (*value - top - log).exp() * g;
                    }
                    if let Some(value) = label.checked_sub(start).and_then(|k| block.get_mut(k)) {
                        // Not `p·g − g`: near a probability of 1 that rounds twice.
                        *value = ((x.get(label).widen() - top - log).exp() - T::Acc::ONE) * g;
                    }
                }
                dx.store(start, block);
            }
        }
    }
}
