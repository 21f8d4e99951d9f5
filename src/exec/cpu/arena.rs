//! The memory of all steps of a session: one allocation, as large as the largest plan so far.

use std::alloc::{Layout, alloc_zeroed, dealloc};

use crate::{
    guard::{self, Charge, OutOfMemory},
    ops::{Cause, OpError},
    plan::ALIGNMENT,
};

/// One aligned allocation that grows between runs. What it holds does not outlive a run.
#[derive(Debug)]
pub struct Arena {
    base: *mut u8,
    layout: Layout,
    limit: u64,
    /// What the session was charged for it.
    charge: Option<Charge>,
}

// SAFETY: the memory belongs to the arena alone.
unsafe impl Send for Arena {}

impl Arena {
    /// An empty arena that never grows beyond `limit` bytes.
    pub fn new(limit: u64) -> Self {
        Arena { base: std::ptr::null_mut(), layout: Layout::new::<()>(), limit, charge: None }
    }

    /// What it takes, in bytes.
    pub fn bytes(&self) -> u64 {
        self.layout.size() as u64
    }

    /// Makes room for `bytes`. Everything in the arena is lost. The limit is checked before
    /// anything is allocated, and memory that the system does not have is an error.
    pub fn reserve(&mut self, bytes: u64) -> Result<(), OpError> {
        if bytes <= self.bytes() {
            return Ok(());
        }
        if bytes > self.limit {
            let message = format!(
                "the step needs {bytes} bytes of memory, and the limit is {} bytes (`max_host_bytes`)",
                self.limit
            );
            return Err(OpError { cause: Cause::Limit, ..OpError::new(message) });
        }
        let missing = || OpError::from(OutOfMemory::system(&"the memory of the step", bytes));
        let size = usize::try_from(bytes).map_err(|_| missing())?;
        let layout = Layout::from_size_align(size, ALIGNMENT as usize).map_err(|_| missing())?;
        self.release();
        self.charge = guard::charge(bytes, &"the memory of the step")?;
        // SAFETY: the size is above 0.
        let base = unsafe { alloc_zeroed(layout) };
        if base.is_null() {
            self.charge = None;
            return Err(missing());
        }
        (self.base, self.layout) = (base, layout);
        Ok(())
    }

    /// Gives the memory back to the system.
    pub fn release(&mut self) {
        if !self.base.is_null() {
            // SAFETY: allocated in `reserve` with this layout.
            unsafe { dealloc(self.base, self.layout) };
            (self.base, self.layout) = (std::ptr::null_mut(), Layout::new::<()>());
        }
        self.charge = None;
    }

    /// The first byte; an aligned address that nothing may be read from while the arena is empty.
    pub(super) fn base(&mut self) -> *mut u8 {
        if self.base.is_null() { std::ptr::without_provenance_mut(ALIGNMENT as usize) } else { self.base }
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        self.release();
    }
}
