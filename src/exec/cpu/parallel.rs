//! Work on several threads. Not generic, so that the thread pool's code is compiled once and not
//! for every kernel and dtype.

use rayon::prelude::*;

/// Runs tasks 0 to `count` − 1: on the pool if `parallel`, in order otherwise.
pub(crate) fn tasks(count: usize, parallel: bool, task: &(dyn Fn(usize) + Sync)) {
    if parallel && count > 1 {
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
