//! The texts of a plan's kernels, for looking at them and for compiling them where there is no device.

use std::sync::Arc;

use rustc_hash::FxHashSet;

use super::{
    kernels::{PRELUDE, merged},
    prepare::{self, Step},
    spread::spread,
    work::Work,
};
use crate::{ops::OpError, plan::Plan};

/// How kernels are compiled, beside the architecture: every operation rounds by itself, as on the CPU.
pub const COMPILE_OPTIONS: [&str; 2] = ["--std=c++17", "--fmad=false"];

/// The text of a kernel.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Source {
    /// An `extern "C"` function of it.
    pub function: Arc<str>,
    /// All of it, in CUDA C that needs no header.
    pub text: String,
    /// The text in which its kernels run for several sets of arguments at once.
    pub merged: String,
}

/// The kernels of a plan that is made for [`crate::plan::Target::Cuda`], each once: those that run op by op in
/// checked memory, and those of the step as it is replayed.
pub fn sources(plan: &Plan) -> Result<Vec<Source>, OpError> {
    let mut seen = FxHashSet::default();
    let mut sources = Vec::new();
    let steps = prepare::steps(plan)?;
    let spread = spread(plan);
    let stretches = prepare::stretches(&spread, &prepare::steps(&spread)?)?;
    let alone = steps.iter().flat_map(Step::works);
    let together = stretches.iter().flat_map(|stretch| stretch.works.iter().map(|(_, work)| work));
    for work in alone.chain(together) {
        if let Work::Launch(launch) = work
            && seen.insert(Arc::clone(&launch.source))
        {
            let text = format!("{PRELUDE}\n{}", launch.source);
            let merged = format!("{PRELUDE}\n{}", merged::source(&launch.source));
            sources.push(Source { function: Arc::clone(&launch.function), text, merged });
        }
    }
    Ok(sources)
}
