//! The texts of a plan's kernels, for looking at them and for compiling them where there is no device.

use std::sync::Arc;

use rustc_hash::FxHashSet;

use super::{
    kernels::{PRELUDE, works},
    work::Work,
};
use crate::{
    ops::OpError,
    plan::{Instruction, Plan},
};

/// How kernels are compiled, beside the architecture: every operation rounds by itself, as on the CPU.
pub const COMPILE_OPTIONS: [&str; 2] = ["--std=c++17", "--fmad=false"];

/// The text of a kernel.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Source {
    /// An `extern "C"` function of it.
    pub function: Arc<str>,
    /// All of it, in CUDA C that needs no header.
    pub text: String,
}

/// The kernels of a plan that is made for [`crate::plan::Target::Cuda`], each once.
pub fn sources(plan: &Plan) -> Result<Vec<Source>, OpError> {
    let mut seen = FxHashSet::default();
    let mut sources = Vec::new();
    for instruction in &plan.instructions {
        let Instruction::Exec(op) = *instruction else { continue };
        for work in works(plan, op)? {
            if let Work::Launch(launch) = work
                && seen.insert(Arc::clone(&launch.source))
            {
                let text = format!("{PRELUDE}\n{}", launch.source);
                sources.push(Source { function: launch.function, text });
            }
        }
    }
    Ok(sources)
}
