//! What is told of a step on a device: how much it gives the device to do.

use super::{
    executable::Executable,
    prepare::{Action, Step},
    work::Work,
};

/// How much a step gives the device to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stats {
    /// Kernels of this crate.
    pub kernels: usize,
    /// Matrix products of cublasLt.
    pub products: usize,
    /// Copies, fills and uploads of constants.
    pub copies: usize,
    /// Parts between which the host has something to do; each is one recorded graph.
    pub parts: usize,
    /// Whether the parts are recorded by now.
    pub is_recorded: bool,
    /// Bytes on the device that are not part of the plan: the scalars of the step, and a place for the
    /// inputs of the next one.
    pub beside_bytes: u64,
    /// How many bytes less the device has free than before the session took memory, after this step took
    /// its own: what the driver says, of all processes on the device.
    pub taken_bytes: u64,
}

impl Stats {
    /// All that a step starts one by one where it is not recorded.
    pub fn launches(&self) -> usize {
        self.kernels + self.products + self.copies
    }
}

impl Executable {
    /// How much a step gives the device to do.
    pub fn stats(&self) -> Stats {
        let mut stats =
            Stats { beside_bytes: self.staging.device_bytes(), taken_bytes: self.taken, ..Stats::default() };
        let mut count = |work: &Work| match work {
            Work::Launch(_) => stats.kernels += 1,
            Work::Product(_) => stats.products += 1,
            _ => stats.copies += 1,
        };
        match &self.stretches {
            Some(stretches) => stretches.iter().flat_map(|s| &s.works).for_each(|(_, work)| count(work)),
            None => self.steps.iter().flat_map(Step::works).for_each(count),
        }
        stats.parts = 1 + self.steps.iter().filter(|step| matches!(step.action, Action::Host(_))).count();
        let parts = self.binding.as_ref().map(|binding| &binding.parts);
        stats.is_recorded = parts.is_some_and(|parts| {
            parts.iter().any(|part| part.captured.is_some())
                && parts.iter().all(|part| part.captured.is_some() || part.bound.len() < 2)
        });
        stats
    }
}
