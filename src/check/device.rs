//! What runs the steps of a session, and what is told of it.

use std::sync::Arc;

use super::{Evaluator, errors::Eval, value::lock};
use crate::{
    codes,
    diagnostic::Diagnostic,
    exec::{Device, Prepared, Runner, cuda::Stats},
    plan::Plan,
    report::{self, Bytes},
    source::Span,
};

/// How many buffers an error about memory names.
const SHOWN_BUFFERS: usize = 5;

impl Evaluator {
    /// What runs steps, started where this is the first one.
    pub(super) fn take_runner(&mut self, span: Span) -> Eval<Runner> {
        if let Some(runner) = self.runner.take() {
            return Ok(runner);
        }
        let device = self.settings.device;
        Runner::open(device, self.comm.rank(), self.settings.limits.max_host_bytes).map_err(|error| {
            let mut diagnostic = Diagnostic::error(codes::DEVICE, span, error.message);
            diagnostic.help.extend(error.help);
            self.report(diagnostic)
        })
    }

    /// Steps run on another device from here on.
    pub fn set_device(&mut self, device: Device) -> Eval<()> {
        if device == self.settings.device && self.runner.is_some() {
            return Ok(());
        }
        let before = (self.settings.device, self.settings.target, self.runner.take());
        self.settings.device = device;
        self.settings.target = device.target().unwrap_or_default();
        match self.take_runner(Span::default()) {
            Ok(runner) => {
                self.runner = Some(runner);
                for step in &self.steps {
                    // What is planned and prepared is for the other one.
                    lock(&step.compiled).clear();
                }
                Ok(())
            }
            Err(halt) => {
                (self.settings.device, self.settings.target, self.runner) = before;
                Err(halt)
            }
        }
    }

    /// How much each step that has run gives a device to do.
    pub fn stats(&self) -> Vec<(Arc<str>, Arc<Plan>, Stats)> {
        let mut stats = Vec::new();
        for step in &self.steps {
            for compiled in lock(&step.compiled).iter() {
                let of_device = lock(&compiled.executable).as_ref().and_then(Prepared::stats);
                if let (Some(of_device), Some(plan)) = (of_device, lock(&compiled.plan).clone()) {
                    stats.push((Arc::clone(step.name()), plan, of_device));
                }
            }
        }
        stats
    }

    /// What is alive at the peak of a step, for an error about memory that a device does not have.
    pub(super) fn peak_notes(&self, plan: &Plan) -> Vec<String> {
        let report = report::plan::report(plan, &self.sources);
        let kinds: Vec<String> = report
            .by_kind
            .iter()
            .filter(|(_, bytes)| *bytes > 0)
            .map(|(kind, bytes)| format!("{kind} {}", Bytes(*bytes)))
            .collect();
        let largest: Vec<String> = report
            .live_at_peak
            .iter()
            .take(SHOWN_BUFFERS)
            .map(|buffer| {
                let at = match buffer.place {
                    Some(place) => format!(", line {}", place.at.line),
                    None => String::new(),
                };
                format!("`{}` ({}{at})", buffer.name, Bytes(buffer.bytes))
            })
            .collect();
        vec![
            format!("alive at the peak: {}", kinds.join(", ")),
            format!("the largest of them: {}", largest.join(", ")),
        ]
    }
}
