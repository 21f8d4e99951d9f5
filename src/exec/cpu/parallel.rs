//! Work on several threads.
//!
//! The only place that instantiates rayon: tasks are trait objects, so that the crate has one copy
//! of its machinery instead of one per kernel and element type. Which task runs where does not show
//! in results: every task owns what it writes.

use rayon::prelude::*;

use super::Shared;

/// Calls `task` with 0, 1, …, `count` − 1, on all threads.
pub(crate) fn for_each(count: usize, task: &(dyn Fn(usize) + Sync)) {
    if count <= 1 || rayon::current_num_threads() == 1 {
        (0..count).for_each(task);
    } else {
        (0..count).into_par_iter().for_each(task);
    }
}

/// As [`for_each`] if `parallel`, else one after the other on this thread.
pub(crate) fn tasks(count: usize, parallel: bool, task: &(dyn Fn(usize) + Sync)) {
    if parallel {
        for_each(count, task);
    } else {
        (0..count).for_each(task);
    }
}

/// Calls both; at the same time if `parallel` and a thread is free.
pub(crate) fn both(parallel: bool, a: &mut (dyn FnMut() + Send), b: &mut (dyn FnMut() + Send)) {
    if parallel {
        rayon::join(a, b);
    } else {
        a();
        b();
    }
}

/// Calls `task` with the number and the elements of every chunk of `len` elements; the last may be
/// shorter.
pub(crate) fn for_chunks<T: Send>(data: &mut [T], len: usize, task: &(dyn Fn(usize, &mut [T]) + Sync)) {
    let (total, len) = (data.len(), len.max(1));
    let start = Shared::new(data.as_mut_ptr());
    for_each(total.div_ceil(len), &|chunk| {
        let first = chunk * len;
        // SAFETY: chunks are inside `data`, which is borrowed for the call, and do not overlap.
        let part = unsafe { std::slice::from_raw_parts_mut(start.get().add(first), len.min(total - first)) };
        task(chunk, part);
    });
}
