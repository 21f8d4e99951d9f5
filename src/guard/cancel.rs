//! Stopping work from another thread.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

/// A wish to stop, shared by all its clones. Whoever works looks at it often: every phase of a
/// compilation and every operation of a run up to the first write of a step.
///
/// ```
/// let token = tg::CancelToken::new();
/// let other = token.clone();
/// std::thread::spawn(move || other.cancel()).join().expect("the thread ends");
/// assert!(token.is_cancelled());
/// ```
#[derive(Debug, Clone, Default)]
pub struct CancelToken(Arc<AtomicBool>);

impl CancelToken {
    /// A token that nobody has cancelled.
    pub fn new() -> CancelToken {
        CancelToken::default()
    }

    /// Asks for a stop.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether a stop is asked for.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Takes the wish back, so that the token can be used again.
    pub fn reset(&self) {
        self.0.store(false, Ordering::Relaxed);
    }

    /// For loops that hold it for long.
    pub(crate) fn flag(&self) -> &AtomicBool {
        &self.0
    }
}
