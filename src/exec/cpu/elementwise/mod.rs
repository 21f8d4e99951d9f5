//! The engine for fused element-wise programs.
//!
//! The index space, flattened row by row, is cut into blocks of [`BLOCK`] elements. A block's
//! registers are arrays in a scratch memory of the thread that fits into L1; each instruction is a
//! loop over one of them. Every instruction rounds to its dtype, and a lane's value depends on
//! nothing but the operands' lanes, so neither blocking nor fusion shows in the results.

mod compile;
mod instr;
mod load;
#[cfg(test)]
mod tests;

use std::cell::RefCell;

use super::{Operand, ScalarPage, Shared, parallel, simd};
use crate::ops::OpError;

pub(crate) use compile::Program;

/// Elements of a block: ten f32 registers take 20 KiB of L1.
const BLOCK: usize = 512;
/// Blocks of one task.
const TASK_BLOCKS: usize = 32;
/// Programs with fewer register elements to compute than this stay on one thread.
const PARALLEL_WORK: usize = 1 << 17;

/// The scratch memory's unit, for its alignment.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
struct Line([u8; 64]);

thread_local! {
    static SCRATCH: RefCell<Vec<Line>> = const { RefCell::new(Vec::new()) };
}

/// What a run reads and writes: addresses of first elements (layout offsets included).
struct Bound<'a> {
    program: &'a Program,
    inputs: &'a [Shared<u8>],
    outputs: &'a [Shared<u8>],
    page: &'a ScalarPage,
}

impl Program {
    /// Runs the program.
    ///
    /// # Safety
    /// Inputs and outputs are those of the program that was compiled, in order, with the same types
    /// and layouts; outputs overlap nothing, except that one may lie exactly over an input with the
    /// same layout and element size.
    pub(crate) unsafe fn run(
        &self,
        inputs: &[Operand<'_>],
        outputs: &[Operand<'_>],
        page: &ScalarPage,
    ) -> Result<(), OpError> {
        let address = |operands: &[Operand<'_>]| -> Vec<Shared<u8>> {
            operands.iter().map(|operand| Shared::new(operand.start())).collect()
        };
        let (inputs, outputs) = (address(inputs), address(outputs));
        // SAFETY: as for this function.
        unsafe { self.run_at(&inputs, &outputs, page) }
    }

    /// As `run`, from the addresses of the first elements.
    ///
    /// # Safety
    /// As for `run`.
    pub(crate) unsafe fn run_at(
        &self,
        inputs: &[Shared<u8>],
        outputs: &[Shared<u8>],
        page: &ScalarPage,
    ) -> Result<(), OpError> {
        if inputs.len() != self.inputs.len() || outputs.len() != self.outputs.len() {
            return Err(OpError::new("internal: a fused program with a wrong number of operands"));
        }
        if self.scalars > page.values.len() {
            return Err(OpError::new(format!(
                "internal: a step that reads {} scalars got {}",
                self.scalars,
                page.values.len()
            )));
        }
        if self.elements == 0 {
            return Ok(());
        }
        let bound = Bound { program: self, inputs, outputs, page };
        let task = TASK_BLOCKS * BLOCK;
        let tasks = self.elements.div_ceil(task);
        let is_large = self.elements.saturating_mul(self.steps.len().max(1)) >= PARALLEL_WORK;
        if is_large {
            parallel::tasks(tasks, true, &|k| bound.range(k * task, ((k + 1) * task).min(self.elements)));
        } else {
            bound.range(0, self.elements);
        }
        Ok(())
    }
}

impl Bound<'_> {
    /// The elements from `start` to `end`, on this thread.
    fn range(&self, start: usize, end: usize) {
        SCRATCH.with_borrow_mut(|scratch| {
            let lines = self.program.scratch_bytes.div_ceil(size_of::<Line>());
            if scratch.len() < lines {
                scratch.resize(lines, Line([0; 64]));
            }
            let base = scratch.as_mut_ptr().cast::<u8>();
            simd::dispatch1(Range { bound: self, base }, (start, end));
        });
    }
}

struct Range<'a> {
    bound: &'a Bound<'a>,
    base: *mut u8,
}

impl simd::Kernel1<(usize, usize), ()> for Range<'_> {
    #[inline(always)]
    fn run(self, (start, end): (usize, usize)) {
        let program = self.bound.program;
        // First what is the same in every block, then block by block: one loop, so that the
        // instructions are compiled into it once.
        let (mut at, mut steps, mut is_setup) = (start, &program.setup, true);
        while at < end {
            let len = BLOCK.min(end - at);
            for step in steps {
                // SAFETY: `compile` gave each register a part of the scratch of its own; the inputs hold
                // what they were compiled for (`Program::run`); indices stay below `elements`.
                unsafe { instr::execute(step, self.bound, self.base, at, len) };
            }
            if is_setup {
                (steps, is_setup) = (&program.steps, false);
                continue;
            }
            for (output, target) in program.outputs.iter().zip(self.bound.outputs) {
                // SAFETY: outputs are dense, and hold `elements` elements. Whatever this block
                // needed of an input below is in registers or was used by now: only where there is
                // one output may it be stored from the input itself (`compile`).
                unsafe { load::store(output, target.get(), self.bound, self.base, at, len) };
            }
            at += len;
        }
    }
}
