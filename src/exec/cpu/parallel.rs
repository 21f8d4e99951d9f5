//! Work on several threads. Tasks are trait objects, so that the thread pool's code is compiled once
//! and not for every kernel and dtype. Which task runs where does not show in results: every task
//! owns what it writes.

use rayon::prelude::*;

use super::Shared;

/// Runs tasks 0 to `count` − 1: on the pool if `parallel`, in order otherwise.
pub(crate) fn tasks(count: usize, parallel: bool, task: &(dyn Fn(usize) + Sync)) {
    if parallel && count > 1 && rayon::current_num_threads() > 1 {
        (0..count).into_par_iter().for_each(task);
    } else {
        (0..count).for_each(task);
    }
}

/// Runs both, at the same time if `parallel` and a thread is free.
pub(crate) fn both(parallel: bool, a: &mut (dyn FnMut() + Send), b: &mut (dyn FnMut() + Send)) {
    if parallel {
        rayon::join(a, b);
    } else {
        a();
        b();
    }
}

/// Runs a task for every chunk of `len` elements, with its number; the last chunk may be shorter.
pub(crate) fn chunks<T: Send>(data: &mut [T], len: usize, task: &(dyn Fn(usize, &mut [T]) + Sync)) {
    let (total, len) = (data.len(), len.max(1));
    let start = Shared::new(data.as_mut_ptr());
    tasks(total.div_ceil(len), true, &|chunk| {
        let first = chunk * len;
        // SAFETY: chunks are inside `data`, which is borrowed for the call, and do not overlap.
        let part = unsafe { std::slice::from_raw_parts_mut(start.get().add(first), len.min(total - first)) };
        task(chunk, part);
    });
}
