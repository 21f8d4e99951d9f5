//! What runs the steps of a session, and what is told of it.

use std::sync::Arc;

use super::{
    Evaluator,
    errors::Eval,
    step::Compiled,
    value::{Stored, lock},
};
use crate::{
    codes,
    diagnostic::Diagnostic,
    exec::{
        Device, Prepared, Runner, Tensor,
        cpu::{RunError, ScalarPage},
        cuda::Stats,
    },
    ir::Graph,
    ops::OpError,
    plan::Plan,
    report::{self, parts},
    source::Span,
};

/// A step that was started, and whose results are on their way.
pub struct Flight {
    pub compiled: Arc<Compiled>,
    pub graph: Arc<Graph>,
    /// The height of its arena.
    pub planned: u64,
    pub page: ScalarPage,
    /// The call.
    pub span: Span,
    /// In the order of its outputs.
    pub promised: Vec<Arc<Stored>>,
}

/// How many buffers an error about memory names.
const SHOWN_BUFFERS: usize = 5;

impl Evaluator {
    /// What runs steps, started where this is the first one.
    pub(super) fn take_runner(&mut self, span: Span) -> Eval<Runner> {
        if let Some(runner) = self.runner.take() {
            return Ok(runner);
        }
        let device = self.settings.device;
        let runner = Runner::open(device, self.comm.rank(), self.settings.limits.max_host_bytes);
        runner.map(|runner| runner.with_tf32(self.settings.tf32)).map_err(|error| {
            let mut diagnostic = Diagnostic::error(codes::DEVICE, span, error.message);
            diagnostic.help.extend(error.help);
            self.report(diagnostic)
        })
    }

    /// The tensor of a script; `None` in mode Check. Waits for the step that gives it.
    pub(super) fn tensor_of(&mut self, stored: &Stored, span: Span) -> Eval<Option<Tensor>> {
        if stored.is_awaited() {
            self.land()?;
            if stored.is_awaited() {
                return Err(self.error(codes::RUN_FAILED, span, "the step that gives this value has failed"));
            }
        }
        Ok(stored.ready().cloned())
    }

    /// Waits for the step that is on its way, if there is one. What went wrong is reported at its call.
    pub fn land(&mut self) -> Eval<()> {
        let Some(flight) = self.flight.take() else { return Ok(()) };
        let taken = lock(&flight.compiled.executable).take();
        let result = match (self.runner.as_mut(), taken) {
            (Some(runner), Some(mut prepared)) => {
                let result = runner.finish(&mut prepared, &flight.page);
                *lock(&flight.compiled.executable) = Some(prepared);
                result
            }
            _ => Err(RunError::of_no_op(OpError::new("internal: a step is lost"))),
        };
        let run = result.map_err(|error| {
            self.run_error(error, &flight.graph, flight.span, Some(flight.compiled.declared))
        })?;
        debug_assert_eq!(run.high_water_bytes, flight.planned, "the plan states what a step uses");
        for (stored, tensor) in flight.promised.iter().zip(run.outputs) {
            stored.keep_promise(tensor);
        }
        Ok(())
    }

    /// Forgets the step that is on its way, because the evaluation ended early.
    pub(super) fn abandon(&mut self) {
        if self.flight.take().is_some()
            && let Some(runner) = &self.runner
        {
            // There is an error already; this one will come again.
            let _ = runner.wait();
        }
    }

    /// Starts the upload of what a step is given, while the one before it may still run.
    pub(super) fn upload_ahead(
        &mut self,
        compiled: &Compiled,
        inputs: &[Tensor],
        page: &ScalarPage,
        graph: &Graph,
        span: Span,
    ) -> Eval<()> {
        let Some(runner) = &self.runner else { return Ok(()) };
        let result = match lock(&compiled.executable).as_mut() {
            Some(prepared) => runner.upload(prepared, inputs, page),
            None => Ok(()),
        };
        result.map_err(|error| self.run_error(error, graph, span, Some(compiled.declared)))
    }

    /// Steps run on another device from here on.
    pub fn set_device(&mut self, device: Device) -> Eval<()> {
        self.land()?;
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
        let kinds = report.by_kind.iter().map(|(kind, bytes)| ((*kind).to_owned(), *bytes));
        let kinds = parts::of(report.peak_bytes, kinds, report.by_kind.len());
        let named = report.live_at_peak.iter().map(|buffer| {
            let line = buffer.place.map_or(String::new(), |place| format!(" of line {}", place.at.line));
            (format!("`{}`{line}", buffer.name), buffer.bytes)
        });
        vec![
            format!("alive at the peak: {kinds}"),
            format!("its largest buffers: {}", parts::of(report.peak_bytes, named, SHOWN_BUFFERS)),
        ]
    }
}
