//! What a kernel is called with.

use std::marker::PhantomData;

use crate::{
    exec::Element,
    ir::Type,
    ops::{Layout, OpError},
};

/// The scalars of one call of a step. Kernels read them; they are never part of a plan.
#[derive(Debug, Clone, Default)]
pub struct ScalarPage {
    /// One per [`crate::ir::Graph::scalars`].
    pub values: Vec<f64>,
    /// The session's seed.
    pub seed: u64,
    /// How often this step has run before.
    pub step: u64,
}

/// An operand or result in the arena (or in a persistent tensor).
#[derive(Clone, Copy)]
pub struct Operand<'a> {
    /// Start of the buffer; the layout's offset is added to it.
    base: *mut u8,
    pub ty: &'a Type,
    pub layout: &'a Layout,
    _memory: PhantomData<&'a mut [u8]>,
}

// SAFETY: an operand is an address with a type; what may be read and written at the same time is
// the plan's business, which the interpreter upholds (see `Call`).
unsafe impl Send for Operand<'_> {}
// SAFETY: as above.
unsafe impl Sync for Operand<'_> {}

impl<'a> Operand<'a> {
    /// # Safety
    /// `base` is aligned to 16 bytes and points to memory that holds every element that `layout`
    /// reaches for a tensor of type `ty`, valid for reads and writes during `'a`.
    pub unsafe fn new(base: *mut u8, ty: &'a Type, layout: &'a Layout) -> Self {
        Operand { base, ty, layout, _memory: PhantomData }
    }

    /// Address of the buffer, in bytes; the layout's offset is not added.
    pub(crate) fn buffer(&self) -> *mut u8 {
        self.base
    }

    /// Address of the first element, in bytes.
    pub(crate) fn start(&self) -> *mut u8 {
        self.base.wrapping_add(self.layout.offset * self.ty.dtype().size())
    }

    /// Address of the first element.
    pub fn as_ptr<T: Element>(&self) -> *mut T {
        debug_assert_eq!(T::DTYPE, self.ty.dtype());
        self.base.cast::<T>().wrapping_add(self.layout.offset)
    }
}

/// One kernel call.
///
/// The interpreter guarantees that results overlap neither each other, nor the workspace, nor any
/// operand — except a result that was planned to overwrite an operand (only pairs that the op's
/// `overwrites` lists), which then starts at the same address with the same layout.
pub struct Call<'a> {
    pub args: &'a [Operand<'a>],
    pub results: &'a [Operand<'a>],
    /// At least as long as the op's `workspace` asks, aligned to 64 bytes.
    workspace: *mut u8,
    workspace_len: usize,
    pub page: &'a ScalarPage,
}

impl<'a> Call<'a> {
    /// # Safety
    /// `workspace` points to `workspace_len` bytes aligned to 64, and the guarantee above holds.
    pub unsafe fn new(
        args: &'a [Operand<'a>],
        results: &'a [Operand<'a>],
        workspace: *mut u8,
        workspace_len: usize,
        page: &'a ScalarPage,
    ) -> Self {
        Call { args, results, workspace, workspace_len, page }
    }

    pub fn arg_operand(&self, k: usize) -> Result<Operand<'a>, OpError> {
        self.args
            .get(k)
            .copied()
            .ok_or_else(|| OpError::new("internal: a kernel asked for a missing operand"))
    }

    pub fn result_operand(&self, k: usize) -> Result<Operand<'a>, OpError> {
        self.results
            .get(k)
            .copied()
            .ok_or_else(|| OpError::new("internal: a kernel asked for a missing result"))
    }

    /// The elements of a dense operand. Not for operands that a result may overwrite.
    pub fn arg<T: Element>(&self, k: usize) -> Result<&'a [T], OpError> {
        let operand = self.arg_operand(k)?;
        check_dense::<T>(&operand)?;
        // SAFETY: dense and of this type, so `elements()` values are readable (`Operand::new`), and
        // no result overlaps it (`Call`).
        Ok(unsafe { std::slice::from_raw_parts(operand.as_ptr::<T>(), operand.ty.elements()) })
    }

    /// The elements of a result. Each result is taken at most once, and not together with an
    /// operand that it may overwrite.
    #[allow(clippy::mut_from_ref)]
    pub fn result<T: Element>(&self, k: usize) -> Result<&'a mut [T], OpError> {
        let operand = self.result_operand(k)?;
        check_dense::<T>(&operand)?;
        // SAFETY: as in `arg`; results do not overlap anything else (`Call`).
        Ok(unsafe { std::slice::from_raw_parts_mut(operand.as_ptr::<T>(), operand.ty.elements()) })
    }

    /// The scratch memory, as elements; its content is left over from before. Taken at most once.
    #[allow(clippy::mut_from_ref)]
    pub fn workspace<T: Element>(&self) -> &'a mut [T] {
        // SAFETY: the bytes belong to this call (`Call::new`), are aligned to 64 and hold only
        // numbers, every bit pattern of which is valid.
        unsafe {
            std::slice::from_raw_parts_mut(self.workspace.cast::<T>(), self.workspace_len / size_of::<T>())
        }
    }
}

fn check_dense<T: Element>(operand: &Operand<'_>) -> Result<(), OpError> {
    if operand.ty.dtype() == T::DTYPE && operand.layout.is_dense(operand.ty.shape()) {
        Ok(())
    } else {
        Err(OpError::new(format!("internal: a kernel for dense {} got {}", T::DTYPE, operand.ty)))
    }
}
