//! A search through all orders of a step, by the sets of ops that can be done. An op that fits and leaves no
//! more alive than before is done at once: whatever follows has as much room as without it, or more.

use std::collections::HashSet;

use crate::{check::Step, cut::own};

/// More sets than this are not looked at.
const SETS: usize = 2_000_000;

/// Whether some order has less than `target` alive throughout; `None` if that takes too long.
pub fn below(step: &Step, edges: &[(usize, usize)], target: u64) -> Option<bool> {
    let count = step.ops.len();
    let preds = step.preds(edges);
    let mut seen: HashSet<Vec<bool>> = HashSet::new();
    let mut stack = vec![vec![false; count]];
    while let Some(mut done) = stack.pop() {
        'settle: loop {
            let now = alive(step, &done);
            for op in 0..count {
                if !done[op] && preds[op].iter().all(|&p| done[p]) && fits(step, &done, op, target) {
                    done[op] = true;
                    if alive(step, &done) <= now {
                        continue 'settle;
                    }
                    done[op] = false;
                }
            }
            break;
        }
        if done.iter().all(|&d| d) {
            return Some(true);
        }
        if !seen.insert(done.clone()) {
            continue;
        }
        if seen.len() > SETS {
            return None;
        }
        for op in 0..count {
            if !done[op] && preds[op].iter().all(|&p| done[p]) && fits(step, &done, op, target) {
                let mut next = done.clone();
                next[op] = true;
                if !seen.contains(&next) {
                    stack.push(next);
                }
            }
        }
    }
    Some(false)
}

/// Bytes between two ops: what is made and will be read, or returned.
fn alive(step: &Step, done: &[bool]) -> u64 {
    let is_alive = |b: usize| {
        let buffer = &step.buffers[b];
        let made = step.maker[b].is_none_or(|m| done[m]);
        !buffer.persistent && made && (buffer.output || step.readers[b].iter().any(|&r| !done[r]))
    };
    (0..step.buffers.len()).filter(|&b| is_alive(b)).map(|b| step.buffers[b].bytes).sum()
}

/// Whether an op stays below the target after these. Inputs that nobody reads are there at the start.
fn fits(step: &Step, done: &[bool], op: usize, target: u64) -> bool {
    let dies = |b: usize| step.readers[b].iter().all(|&r| r == op || done[r]);
    let unread = |b: &usize| {
        let buffer = &step.buffers[*b];
        buffer.input && !buffer.persistent && !buffer.output && step.readers[*b].is_empty()
    };
    let start = if done.iter().any(|&d| d) {
        0
    } else {
        (0..step.buffers.len()).filter(unread).map(|b| step.buffers[b].bytes).sum()
    };
    let saved = step.most_saved(&step.ops[op], &dies);
    (alive(step, done) + start + own(step, op)).saturating_sub(saved) < target
}
