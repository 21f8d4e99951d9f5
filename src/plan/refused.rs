//! Why a result has a buffer of its own although the op that makes it could write over an operand.

use super::{Access, Home, Kernel, Plan};
use crate::schedule::{BufferId, OpId};

/// An operand that a result could not take the place of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refusal {
    pub op: OpId,
    /// The result.
    pub made: BufferId,
    pub operand: BufferId,
    pub reason: RefusalReason,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefusalReason {
    /// Needed after the op; this one reads it last.
    ReadLater(OpId),
    /// The step returns it.
    Returned,
    /// A parameter or state: only its own commit may change it.
    Persistent,
    /// The two differ in the size of their elements, or in their number.
    Size,
    /// What is read is a part of the buffer, or in another order than the result is written in.
    Part,
    /// The op reads the buffer through another operand too.
    ReadTwice,
    /// Another result of the op took its place.
    Taken(BufferId),
}

impl Plan {
    /// For each result that has a buffer of its own, the operands that its op could have written over
    /// and why it does not. In the order in which ops run.
    pub fn refused(&self) -> Vec<Refusal> {
        let graph = &self.schedule_graph;
        let mut last: Vec<Option<OpId>> = vec![None; graph.buffer_count()];
        for &op in &self.schedule.order {
            for read in graph.reads(op) {
                if let Some(entry) = last.get_mut(read.0 as usize) {
                    *entry = Some(op);
                }
            }
        }
        let taken = |made: BufferId| self.schedule.overwrites.get(made.0 as usize).copied().flatten();
        let mut refusals = Vec::new();
        for &op in &self.schedule.order {
            let Some(kernel) = self.kernels.get(op.0 as usize) else { continue };
            for (made, operands, candidates) in results(self, kernel) {
                let is_new = graph.makes(op).contains(&made.buffer) && graph.arena_bytes(made.buffer) > 0;
                if !is_new || taken(made.buffer).is_some() {
                    continue;
                }
                let mut seen: Vec<BufferId> = Vec::new();
                for read in candidates.iter().filter_map(|&k| operands.get(k)) {
                    if seen.contains(&read.buffer) {
                        continue;
                    }
                    seen.push(read.buffer);
                    let reason = self.reason(op, made, read, operands).or_else(|| {
                        let reader = last.get(read.buffer.0 as usize).copied().flatten();
                        match reader.filter(|&reader| reader != op) {
                            Some(reader) => Some(RefusalReason::ReadLater(reader)),
                            None => graph
                                .makes(op)
                                .iter()
                                .copied()
                                .find(|&other| taken(other) == Some(read.buffer))
                                .map(RefusalReason::Taken),
                        }
                    });
                    refusals.extend(reason.map(|reason| Refusal {
                        op,
                        made: made.buffer,
                        operand: read.buffer,
                        reason,
                    }));
                }
            }
        }
        refusals
    }

    /// What forbids it in every order.
    fn reason(&self, op: OpId, made: &Access, read: &Access, operands: &[Access]) -> Option<RefusalReason> {
        let buffer = self.buffers.get(read.buffer.0 as usize)?;
        if self.schedule_graph.may_overwrite(op).contains(&(made.buffer, read.buffer)) {
            let is_returned = self.schedule_graph.buffer(read.buffer).flags.output;
            return is_returned.then_some(RefusalReason::Returned);
        }
        Some(if matches!(buffer.home, Home::Slot(_)) {
            RefusalReason::Persistent
        } else if made.ty.dtype().size() != read.ty.dtype().size() || made.ty.elements() != read.ty.elements()
        {
            RefusalReason::Size
        } else if buffer.dense_bytes != read.ty.bytes() || !read.layout.is_dense(read.ty.shape()) {
            RefusalReason::Part
        } else if operands.iter().filter(|other| other.buffer == read.buffer).count() > 1 {
            RefusalReason::ReadTwice
        } else {
            RefusalReason::Size
        })
    }
}

/// The results of a kernel, its operands, and which of them each result could be written over.
fn results<'p>(plan: &Plan, kernel: &'p Kernel) -> Vec<(&'p Access, &'p [Access], Vec<usize>)> {
    match kernel {
        Kernel::Elementwise(program) => {
            let all: Vec<usize> = (0..program.inputs.len()).collect();
            program.outputs.iter().map(|(_, made)| (made, &*program.inputs, all.clone())).collect()
        }
        Kernel::Node { node, args, results } if (node.0 as usize) < plan.graph.len() => {
            let allowed = plan.graph.node(*node).op().memory().overwrites;
            let of = |k: usize| allowed.iter().filter(|pair| pair.0 == k).map(|pair| pair.1).collect();
            results.iter().enumerate().map(|(k, made)| (made, &**args, of(k))).collect()
        }
        _ => Vec::new(),
    }
}
