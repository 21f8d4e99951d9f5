//! What every phase asks before it goes on: may it still run, and may it take memory.
//!
//! Both questions come up deep inside passes that know nothing of engines: a search for an order, a
//! tensor that is made in a kernel's wrapper. So the answers belong to the thread that works for a
//! host: [`within`] sets them for the time of one call, [`cancelled`] and [`charge`] ask.

mod cancel;
mod ledger;

use std::{cell::RefCell, sync::Arc};

pub use cancel::CancelToken;
pub use ledger::{Charge, Ledger, OutOfMemory};

/// What one compilation or session may do.
#[derive(Debug, Clone, Default)]
pub struct Guard {
    /// Stops it.
    pub cancel: CancelToken,
    /// Counts the bytes that it takes.
    pub ledger: Arc<Ledger>,
}

thread_local! {
    static CURRENT: RefCell<Option<Guard>> = const { RefCell::new(None) };
}

/// Puts the guard back that was there before, also when a panic unwinds.
struct Restore(Option<Guard>);

impl Drop for Restore {
    fn drop(&mut self) {
        // The slot is gone only while the thread itself ends.
        let _ = CURRENT.try_with(|current| current.replace(self.0.take()));
    }
}

/// Does `work` under this guard, on this thread.
pub fn within<T>(guard: &Guard, work: impl FnOnce() -> T) -> T {
    let _restore = Restore(CURRENT.with(|current| current.replace(Some(guard.clone()))));
    work()
}

/// Whether the work of this thread is to stop. A few nanoseconds.
pub fn cancelled() -> bool {
    CURRENT.with(|current| current.borrow().as_ref().is_some_and(|guard| guard.cancel.is_cancelled()))
}

/// Takes `bytes` from what this thread's session may use, for as long as the charge lives. `what`
/// names them in the error. Outside of sessions nothing is counted.
pub fn charge(bytes: u64, what: &dyn std::fmt::Display) -> Result<Option<Charge>, OutOfMemory> {
    let ledger = CURRENT.with(|current| current.borrow().as_ref().map(|guard| Arc::clone(&guard.ledger)));
    ledger.map(|ledger| ledger.charge(bytes, what)).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guards_nest_and_go_back_after_a_panic() {
        let (outer, inner) = (Guard::default(), Guard::default());
        within(&outer, || {
            let result = std::panic::catch_unwind(|| {
                within(&inner, || {
                    inner.cancel.cancel();
                    assert!(cancelled());
                    std::panic::resume_unwind(Box::new("unwound"));
                })
            });
            assert!(result.is_err() && !cancelled());
        });
        assert!(!cancelled());
    }

    #[test]
    fn nothing_is_counted_outside() {
        assert!(charge(u64::MAX, &"everything").is_ok_and(|charge| charge.is_none()));
    }
}
