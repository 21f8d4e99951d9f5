//! Ctrl-C: the first one stops what runs, the second one the process.

use std::sync::{
    Mutex, PoisonError,
    atomic::{AtomicBool, Ordering},
};

type Cancel = Box<dyn Fn() + Send>;

static CANCEL: Mutex<Option<Cancel>> = Mutex::new(None);
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// The exit code of a process that SIGINT ended, by convention of shells.
pub const EXIT_CODE: u8 = 130;

/// From here on Ctrl-C calls what [`on`] gave, or ends the process where there is nothing to
/// cancel. Failing to install that leaves the system's default, which ends the process.
pub fn install() {
    let _ = ctrlc::set_handler(|| {
        let cancel = CANCEL.lock().unwrap_or_else(PoisonError::into_inner);
        match cancel.as_ref() {
            Some(cancel) if !INTERRUPTED.swap(true, Ordering::SeqCst) => cancel(),
            _ => std::process::exit(EXIT_CODE.into()),
        }
    });
}

/// Runs `work`; a first Ctrl-C during it calls `cancel`. Returns what it gave, and whether that
/// happened.
pub fn on<T>(cancel: impl Fn() + Send + 'static, work: impl FnOnce() -> T) -> (T, bool) {
    INTERRUPTED.store(false, Ordering::SeqCst);
    set(Some(Box::new(cancel)));
    let result = work();
    set(None);
    (result, INTERRUPTED.swap(false, Ordering::SeqCst))
}

fn set(cancel: Option<Cancel>) {
    *CANCEL.lock().unwrap_or_else(PoisonError::into_inner) = cancel;
}
