//! The CPU interpreter.

mod arena;
mod call;
pub(crate) mod convert;
mod elementwise;
mod eval;
mod executable;
mod host;
mod math;
pub(crate) mod matmul;
pub(crate) mod movement;
pub(crate) mod nn;
mod parallel;
mod prepare;
mod random;
pub(crate) mod reduce;
mod simd;
pub(crate) mod strided;

pub use arena::Arena;
pub use call::{Call, Operand, ScalarPage};
pub(crate) use eval::call_op;
pub use eval::{RunError, eval, eval_among, eval_and_show};
pub use executable::Executable;
pub(crate) use executable::gathered;
pub(crate) use host::views;
pub use host::{TensorMut, TensorRef};
pub(crate) use math::{floor_div, floor_rem};

pub use crate::exec::run::{Printer, Run};
use crate::{exec::Tensor, ir::Type, ops::OpError};

/// Any aligned address serves for no bytes.
const NO_WORKSPACE: *mut u8 = std::ptr::without_provenance_mut(64);

/// A tensor of zeros, or an error where memory is short.
fn zeros(ty: &Type) -> Result<Tensor, OpError> {
    Ok(Tensor::try_zeros(ty.clone())?)
}

/// An address that tasks on several threads use at places of their own.
pub(crate) struct Shared<T>(*mut T);

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Shared<T> {}

// SAFETY: only an address; whoever reads or writes through it says why that is sound.
unsafe impl<T> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Shared<T> {}

impl<T> Shared<T> {
    pub fn new(address: *mut T) -> Self {
        Shared(address)
    }

    pub fn get(&self) -> *mut T {
        self.0
    }
}
