//! For which device a step is planned.

use crate::{exec::cuda, ir::Type, ops::Op};

/// The kind of device that a plan is made for. What kernels need beside
/// their operands differs, and on a GPU a few more element-wise ops are computed together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Target {
    #[default]
    Cpu,
    Cuda,
}

impl Target {
    /// As the command line and the JSON form have it.
    pub fn name(self) -> &'static str {
        match self {
            Target::Cpu => "cpu",
            Target::Cuda => "cuda",
        }
    }

    /// Bytes of the arena that an op needs while it runs, for operands of these types.
    pub(crate) fn workspace(self, op: &Op, args: &[&Type], results: &[&Type]) -> u64 {
        match self {
            Target::Cpu => op.workspace(args, results),
            Target::Cuda => cuda::workspace(op, args, results),
        }
    }
}
