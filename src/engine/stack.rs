//! A thread with room for deep programs: the evaluator recurses as the program does.

use std::{panic::AssertUnwindSafe, thread};

use crate::ops::panic_text;

/// Virtual memory: pages that are never touched cost nothing.
const STACK_BYTES: usize = if cfg!(target_pointer_width = "64") { 512 << 20 } else { 64 << 20 };

/// Runs `work` on a thread with a large stack. The error says what went wrong: a fault of `tg`, or
/// a thread that the system did not give.
pub fn on_big_stack<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T, String> {
    thread::scope(|scope| {
        let guarded = move || std::panic::catch_unwind(AssertUnwindSafe(work));
        let handle = thread::Builder::new()
            .name("tg".into())
            .stack_size(STACK_BYTES)
            .spawn_scoped(scope, guarded)
            .map_err(|error| format!("no thread could be started: {error}"))?;
        match handle.join() {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(panic)) | Err(panic) => Err(panic_text(&*panic)),
        }
    })
}

/// Runs `work`, which does not recurse, on this thread. The error is a fault of `tg`.
pub fn on_this_stack<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    std::panic::catch_unwind(AssertUnwindSafe(work)).map_err(|panic| panic_text(&*panic))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_come_back() {
        assert_eq!(on_big_stack(|| 7), Ok(7));
    }

    #[test]
    fn deep_recursion_fits() {
        fn depth(n: u64) -> u64 {
            if n == 0 { 0 } else { std::hint::black_box(depth(n - 1)) + 1 }
        }
        assert_eq!(on_big_stack(|| depth(1_000_000)), Ok(1_000_000));
    }
}
