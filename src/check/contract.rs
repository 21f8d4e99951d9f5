//! What `ensure peak` says of a plan: for the order that runs, and for every legal one.

use std::sync::Arc;

use super::{
    Evaluator,
    errors::{Eval, Halt},
    frame::Ensure,
    step::Compiled,
    value::Step,
    witness,
};
use crate::{
    codes,
    diagnostic::Diagnostic,
    ir::Graph,
    plan::Plan,
    report::Bytes,
    schedule::OrderKind,
    source::{SourceMap, Span},
};

impl Evaluator {
    /// Checks a plan against the `ensure` statements of its step and the limit of the engine.
    pub(super) fn check_peak(
        &mut self,
        step: &Arc<Step>,
        compiled: &Compiled,
        plan: &Plan,
        span: Span,
    ) -> Eval<()> {
        let mut fits = true;
        // Another order was asked for to see what it is like.
        let ensures = match self.settings.order {
            OrderKind::Best => compiled.ensures.as_slice(),
            _ => &[],
        };
        for ensure in ensures {
            let broken = match plan.peak_bytes() > ensure.limit {
                true => Some(over_peak(plan, ensure)),
                false if ensure.every_schedule => {
                    over_in_some_order(plan, &compiled.graph, &self.sources, ensure)
                }
                false => None,
            };
            if let Some(mut diagnostic) = broken {
                fits = false;
                if span != step.decl.name.span {
                    diagnostic = diagnostic.secondary(span, "for this call");
                }
                self.report(diagnostic);
            }
        }
        let (peak, limit) = (plan.peak_bytes(), self.settings.limits.max_bytes);
        if peak > limit {
            return Err(self.error(
                codes::LIMIT,
                step.decl.name.span,
                format!(
                    "the peak of `{}` is {}; the limit of this engine is {} (`max_bytes`)",
                    step.name(),
                    Bytes(peak),
                    Bytes(limit)
                ),
            ));
        }
        if fits { Ok(()) } else { Err(Halt::Reported) }
    }
}

/// What is wrong with a promise for every legal order; `None` where it is kept, or was not
/// worked out.
fn over_in_some_order(
    plan: &Plan,
    elaborated: &Graph,
    sources: &SourceMap,
    ensure: &Ensure,
) -> Option<Diagnostic> {
    let (bound, witness) = (plan.worst_legal_bytes()?, plan.worst_legal_witness_bytes()?);
    if bound <= ensure.limit {
        return None;
    }
    let size = apart(ensure.limit, &[bound, witness, plan.peak_bytes()]);
    if witness <= ensure.limit {
        let diagnostic = Diagnostic::error(
            codes::OVER_PEAK_IN_SOME_ORDER,
            ensure.span,
            format!(
                "it is not proved that every legal order of `{}` stays within {}",
                plan.name,
                size(ensure.limit)
            ),
        )
        .label(format!("the proof gets as far as {}", size(bound)))
        .note(format!(
            "the worst order that was found needs {}; the true worst lies between the two",
            size(witness)
        ))
        .help(format!("`ensure peak <= {} MiB in every schedule` is proved", bound.div_ceil(1 << 20)));
        return Some(diagnostic);
    }
    let diagnostic = Diagnostic::error(
        codes::OVER_PEAK_IN_SOME_ORDER,
        ensure.span,
        format!(
            "a legal order of `{}` needs {}, over the {} that are ensured in every schedule",
            plan.name,
            size(witness),
            size(ensure.limit)
        ),
    )
    .label(format!("the planned order needs {}", size(plan.peak_bytes())));
    Some(witness::tell(diagnostic, plan, ensure.limit, elaborated, sources))
}

/// The planned order itself needs too much.
fn over_peak(plan: &Plan, ensure: &Ensure) -> Diagnostic {
    let size = apart(ensure.limit, &[plan.peak_bytes()]);
    Diagnostic::error(
        codes::OVER_PEAK,
        ensure.span,
        format!(
            "the peak of `{}` is {}, over the {} that are ensured",
            plan.name,
            size(plan.peak_bytes()),
            size(ensure.limit)
        ),
    )
    .note(format!(
        "as it is written, no schedule of this step needs less than {}",
        Bytes(plan.lower_bound_bytes())
    ))
    .help("`tg plan` shows what is alive at the peak; `checkpoint < … >` recomputes instead of keeping")
}

/// How to write sizes that are compared with a limit: in bytes where one would look like it though it
/// differs.
pub(super) fn apart(limit: u64, others: &[u64]) -> impl Fn(u64) -> String + use<> {
    let text = Bytes(limit).to_string();
    let alike = others.iter().any(|&b| b != limit && Bytes(b).to_string() == text);
    move |bytes| if alike { format!("{bytes} bytes") } else { Bytes(bytes).to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{CompileOptions, Engine, Source};

    /// Between the worst order that is known and the bound, nothing is known.
    #[test]
    fn a_promise_that_is_not_proved() {
        let text = "step f(x: f32[1024, 1024]) { return exp(x) }";
        let checked = Engine::new().check(Source::text("a.tg", text), &CompileOptions::default());
        let (sources, graph) = (&checked.sources, &checked.graphs[0].1);
        let mut plan = Plan::clone(&checked.plans[0]);
        if let Some(worst) = &mut plan.worst {
            worst.bytes += 1 << 20;
        }
        let judge = |mib: u64| {
            let ensure = Ensure { limit: mib << 20, every_schedule: true, span: Span::default() };
            over_in_some_order(&plan, graph, sources, &ensure)
        };
        assert_eq!(judge(9), None);
        let open = judge(8).unwrap();
        assert_eq!(open.message, "it is not proved that every legal order of `f` stays within 8.0 MiB");
        assert_eq!(open.primary.text, "the proof gets as far as 9.0 MiB");
        assert_eq!(
            open.notes,
            ["the worst order that was found needs 8.0 MiB; the true worst lies between the two"]
        );
        assert_eq!(open.help, ["`ensure peak <= 9 MiB in every schedule` is proved"]);
        let broken = judge(7).unwrap();
        assert!(broken.message.starts_with("a legal order of `f` needs 8.0 MiB"), "{}", broken.message);
        plan.worst = None;
        assert_eq!(
            over_in_some_order(
                &plan,
                graph,
                sources,
                &Ensure { limit: 0, every_schedule: true, span: Span::default() }
            ),
            None
        );
    }

    #[test]
    fn sizes_that_look_alike_are_told_apart() {
        assert_eq!(apart(1 << 20, &[(1 << 20) + 256])(1 << 20), "1048576 bytes");
        assert_eq!(apart(1 << 20, &[1 << 20, 2 << 20])(2 << 20), "2.0 MiB");
    }
}
