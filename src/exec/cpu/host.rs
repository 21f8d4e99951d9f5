//! What a host's own kernel sees of its operands: dense tensors in the memory of the step.

use std::marker::PhantomData;

use super::{Call, Operand};
use crate::{
    exec::Element,
    ir::{DType, Type},
    ops::OpError,
};

/// An operand of a host op: dense, row-major, read only.
pub struct TensorRef<'a>(Operand<'a>);

/// A result of a host op: dense, row-major. What it holds before it is written is left over.
pub struct TensorMut<'a> {
    operand: Operand<'a>,
    /// Only one of them refers to the memory.
    _unique: PhantomData<&'a mut [u8]>,
}

impl TensorRef<'_> {
    /// Its dtype and shape.
    pub fn ty(&self) -> &Type {
        self.0.ty
    }

    /// The elements, where `T` is their type.
    pub fn as_slice<T: Element>(&self) -> Option<&[T]> {
        if T::DTYPE != self.0.ty.dtype() {
            return None;
        }
        // SAFETY: `views` checked that the operand is dense, so all its elements lie there
        // (`Operand::new`), and no result overlaps it (`Call`).
        Some(unsafe { std::slice::from_raw_parts(self.0.as_ptr::<T>(), self.0.ty.elements()) })
    }
}

impl TensorMut<'_> {
    /// Its dtype and shape.
    pub fn ty(&self) -> &Type {
        self.operand.ty
    }

    /// The elements, where `T` is their type.
    pub fn as_mut_slice<T: Element>(&mut self) -> Option<&mut [T]> {
        if T::DTYPE != self.operand.ty.dtype() {
            return None;
        }
        // SAFETY: as in `TensorRef::as_slice`; results overlap nothing else (`Call`), and this view
        // is the only one (`views` makes one for each result).
        Some(unsafe {
            std::slice::from_raw_parts_mut(self.operand.as_ptr::<T>(), self.operand.ty.elements())
        })
    }
}

/// Safe views of a call's operands and results. For ops that overwrite none of their operands.
pub(crate) fn views<'a>(call: &Call<'a>) -> Result<(Vec<TensorRef<'a>>, Vec<TensorMut<'a>>), OpError> {
    let is_dense = |operand: &Operand<'_>| operand.layout.is_dense(operand.ty.shape());
    if !call.args.iter().chain(call.results).all(is_dense) {
        return Err(OpError::new("internal: a host op got a tensor that is not dense"));
    }
    let args = call.args.iter().map(|&operand| TensorRef(operand)).collect();
    let results = call
        .results
        .iter()
        .map(|&operand| {
            if operand.ty.dtype() == DType::Bool {
                // Left-over bytes may be no `bool`, and a host may read before it writes.
                // SAFETY: a dense result of this many bytes (`Operand::new`).
                unsafe { operand.start().write_bytes(0, operand.ty.elements()) };
            }
            TensorMut { operand, _unique: PhantomData }
        })
        .collect();
    Ok((args, results))
}
