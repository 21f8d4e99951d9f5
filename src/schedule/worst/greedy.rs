//! An order that lets as much as possible pile up, in near-linear time.

use std::{cmp::Reverse, collections::BinaryHeap};

use crate::schedule::index::Index;

/// Always the ready op that adds most, or takes away least, to what is alive after it. With
/// `postpone`, whatever it reads counts as taken away: readers that could free something wait, even
/// while others are to read it too.
pub(super) fn pile_up(ix: &Index, postpone: bool) -> Vec<u32> {
    let mut left: Vec<u32> = (0..ix.buffers).map(|b| ix.users.count(b) as u32).collect();
    let gain = |left: &[u32], v: usize| -> i64 {
        let last = |&&r: &&u32| (postpone || left[r as usize] == 1) && !ix.output[r as usize];
        let freed: i64 = ix.reads.get(v).iter().filter(last).map(|&r| ix.size[r as usize]).sum();
        ix.made[v] - ix.dead[v] - freed
    };
    let mut waiting: Vec<u32> = (0..ix.ops).map(|v| ix.preds.count(v) as u32).collect();
    let ready = (0..ix.ops).filter(|&v| waiting[v] == 0);
    let mut heap: BinaryHeap<(i64, Reverse<u32>)> =
        ready.map(|v| (gain(&left, v), Reverse(v as u32))).collect();
    let mut order = Vec::with_capacity(ix.ops);
    while let Some((known, Reverse(op))) = heap.pop() {
        let v = op as usize;
        // Gains only fall while an op waits.
        let now = gain(&left, v);
        if now < known {
            heap.push((now, Reverse(op)));
            continue;
        }
        order.push(op);
        for &r in ix.reads.get(v) {
            left[r as usize] -= 1;
        }
        for &s in ix.succs.get(v) {
            waiting[s as usize] -= 1;
            if waiting[s as usize] == 0 {
                heap.push((gain(&left, s as usize), Reverse(s)));
            }
        }
    }
    order
}
