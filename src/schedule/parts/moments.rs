//! Which ops the items of the bound are about: the last (or first) of the moments of several parts is
//! the last of all ops that those are about.

use rustc_hash::FxHashSet;

use crate::schedule::OpId;

/// A moment of an item.
#[derive(Debug, Clone, Copy)]
pub(super) enum Moment {
    /// While an op runs.
    Op(u32),
    /// The last (or first) of `moment`, which is in `part`, and of those of `before` in the other parts.
    Beside { before: Option<u32>, part: u32, moment: u32 },
}

pub(super) fn add(moments: &mut Vec<Moment>, moment: Moment) -> u32 {
    moments.push(moment);
    moments.len() as u32 - 1
}

/// The ops of a moment, sorted.
pub(super) fn ops(moments: &[Moment], moment: u32) -> Vec<OpId> {
    let mut ops = Vec::new();
    let mut stack = vec![moment];
    while let Some(at) = stack.pop() {
        let mut known: FxHashSet<u32> = FxHashSet::default();
        let mut next = Some(at);
        while let Some(moment) = next.and_then(|at| moments.get(at as usize)) {
            next = match *moment {
                Moment::Op(op) => {
                    ops.push(OpId(op));
                    None
                }
                // What comes later in the sweep replaces what the part had before.
                Moment::Beside { before, part, moment } => {
                    if known.insert(part) {
                        stack.push(moment);
                    }
                    before
                }
            };
        }
    }
    ops.sort_unstable();
    ops
}
