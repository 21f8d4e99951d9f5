//! Depth-first orders: each op right after the operands that were computed for it, so that a value
//! is made when it is wanted. They differ in which operand comes first.

use super::index::Index;

/// Which operand's subtree is computed first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operands {
    Source,
    /// The one that needs most room while it is computed, less what it leaves behind.
    Largest,
    /// The one furthest from the leaves.
    Deepest,
}

/// Post-order from the ops that nothing follows, in source order.
pub(super) fn depth_first(ix: &Index, operands: Operands) -> Vec<u32> {
    let key = keys(ix, operands);
    let mut seen = vec![false; ix.ops];
    let mut order = Vec::with_capacity(ix.ops);
    let mut stack: Vec<(u32, bool)> = Vec::new();
    let mut children: Vec<u32> = Vec::new();
    for root in (0..ix.ops as u32).filter(|&v| ix.succs.count(v as usize) == 0) {
        stack.push((root, false));
        while let Some((op, done)) = stack.pop() {
            let v = op as usize;
            if done {
                order.push(op);
                continue;
            }
            if seen[v] {
                continue;
            }
            seen[v] = true;
            stack.push((op, true));
            children.clear();
            children.extend(ix.preds.get(v).iter().copied().filter(|&p| !seen[p as usize]));
            // The last one pushed is visited first.
            children.sort_unstable_by_key(|&p| (key[p as usize], std::cmp::Reverse(p)));
            stack.extend(children.iter().map(|&p| (p, false)));
        }
    }
    order
}

/// The subtree with the larger key comes first.
fn keys(ix: &Index, operands: Operands) -> Vec<i64> {
    let mut key = vec![0i64; ix.ops];
    match operands {
        Operands::Source => {}
        Operands::Deepest => {
            for v in 0..ix.ops {
                let deepest = ix.preds.get(v).iter().map(|&p| key[p as usize] + 1).max();
                key[v] = deepest.unwrap_or(0);
            }
        }
        Operands::Largest => {
            // Ershov numbers with sizes, as if the graph were a tree: a shared operand counts for
            // each of its users.
            let mut need = vec![0i64; ix.ops];
            let mut parts: Vec<(i64, i64)> = Vec::new();
            for v in 0..ix.ops {
                parts.clear();
                parts.extend(ix.preds.get(v).iter().map(|&p| {
                    let p = p as usize;
                    (need[p], ix.made[p] - ix.dead[p])
                }));
                parts.sort_unstable_by_key(|&(need, kept)| std::cmp::Reverse(need - kept));
                let (mut held, mut most) = (0i64, 0i64);
                for &(need, kept) in &parts {
                    most = most.max(held.saturating_add(need));
                    held = held.saturating_add(kept);
                }
                let here = held + ix.made[v] + ix.workspace[v] - ix.saved(v, |_| true);
                need[v] = most.max(here);
                key[v] = need[v] - (ix.made[v] - ix.dead[v]);
            }
        }
    }
    key
}
