//! What `ensure peak` says of a plan: for the order that runs, and for every legal one.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::{
    Evaluator,
    errors::{Eval, Halt},
    frame::Ensure,
    step::Compiled,
    step_plan::mebibytes,
    value::Step,
};
use crate::{
    codes,
    diagnostic::Diagnostic,
    ir::Bind,
    plan::{Excess, Moved, Plan},
    report::plan::{Deed, Place, View},
    schedule::OrderKind,
    source::Span,
};

/// Groups of moved ops that a message tells of: the rest is small beside them.
const MOVES_SHOWN: usize = 3;

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
                false if ensure.every_schedule => self.over_in_some_order(plan, ensure),
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
                    "the peak of `{}` is {}; the limit of this engine is {}",
                    step.name(),
                    mebibytes(peak),
                    mebibytes(limit)
                ),
            ));
        }
        if fits { Ok(()) } else { Err(Halt::Reported) }
    }

    /// What is wrong with a promise for every legal order; `None` where it is kept, or was not
    /// worked out.
    fn over_in_some_order(&self, plan: &Plan, ensure: &Ensure) -> Option<Diagnostic> {
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
        let view = View::new(plan, &self.sources);
        let diagnostic = match plan.excess() {
            Some(excess) => moved(diagnostic, &view, &excess, witness),
            None => diagnostic,
        };
        Some(with_help(diagnostic, plan, &view))
    }
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
    .note(format!("no schedule of this step needs less than {}", mebibytes(plan.lower_bound_bytes())))
    .help("`tg plan` shows what is alive at the peak; `checkpoint < … >` recomputes instead of keeping")
}

/// How to write sizes that are compared with a limit: in bytes where one would look like it though it
/// differs.
fn apart(limit: u64, others: &[u64]) -> impl Fn(u64) -> String + use<> {
    let text = mebibytes(limit);
    let alike = others.iter().any(|&b| b != limit && mebibytes(b) == text);
    move |bytes| if alike { format!("{bytes} bytes") } else { mebibytes(bytes) }
}

/// Ops that moved in the same direction, do the same, and stand on the same line.
struct Group {
    deed: Deed,
    place: Option<Place>,
    moved: Moved,
    ops: Vec<crate::schedule::OpId>,
    bytes: u64,
    /// Bytes of what they keep, by name.
    kept: Vec<(String, usize, u64)>,
}

/// Tells what the worst order does differently at its worst moment.
fn moved(mut diagnostic: Diagnostic, view: &View<'_>, excess: &Excess, witness: u64) -> Diagnostic {
    let plan = view.plan;
    let mut groups: Vec<Group> = Vec::new();
    let mut index: FxHashMap<(Deed, Option<(u32, usize)>, Moved), usize> = FxHashMap::default();
    for one in &excess.moves {
        let (deed, place) = (view.deed(one.op), view.op_place(one.op));
        let key = (deed.clone(), place.map(|p| (p.file.0, p.at.line)), one.moved);
        let at = *index.entry(key).or_insert(groups.len());
        if at == groups.len() {
            groups.push(Group { deed, place, moved: one.moved, ops: Vec::new(), bytes: 0, kept: Vec::new() });
        }
        let Some(group) = groups.get_mut(at) else { continue };
        let bytes = plan.schedule_graph.arena_bytes(one.buffer);
        group.bytes = group.bytes.saturating_add(bytes);
        group.ops.push(one.op);
        let name = crate::report::plan::generalize(&view.name(one.buffer, view.maker_node(one.buffer)));
        match group.kept.iter_mut().find(|(known, ..)| *known == name) {
            Some((_, count, sum)) => (*count, *sum) = (*count + 1, sum.saturating_add(bytes)),
            None => group.kept.push((name, 1, bytes)),
        }
    }
    groups.sort_by_key(|g| std::cmp::Reverse(g.bytes));
    let worst_op = view.deed(excess.op).phrase(1);
    let line = |place: Option<Place>| match place {
        Some(p) => format!(" of {}", view.line(p)),
        None => String::new(),
    };
    let here = line(view.op_place(excess.op));
    diagnostic = diagnostic.note(format!(
        "that order has {} alive when {worst_op}{here} runs; the planned order has {} alive then",
        mebibytes(witness),
        mebibytes(plan.persistent_bytes.saturating_add(excess.planned_bytes)),
    ));
    if excess.overwritten_bytes > 0 {
        diagnostic = diagnostic.note(format!(
            "the planned order saves {} there by writing over an operand; a promise for every schedule does not count on that",
            mebibytes(excess.overwritten_bytes)
        ));
    }
    for group in groups.iter_mut().take(MOVES_SHOWN) {
        group.ops.sort_unstable();
        group.ops.dedup();
        group.kept.sort_by_key(|(_, _, bytes)| std::cmp::Reverse(*bytes));
        let kept: Vec<String> = group
            .kept
            .iter()
            .take(2)
            .map(|(name, count, _)| match count {
                1 => format!("`{name}`"),
                n => format!("{n} x `{name}`"),
            })
            .collect();
        let rest = group.kept.len().saturating_sub(2);
        let rest = if rest > 0 { " and others".to_owned() } else { String::new() };
        let who = group.deed.phrase(group.ops.len());
        let what = match group.moved {
            Moved::Later => "may be put off until after that",
            Moved::Earlier => "may run before that, though nothing needs the result yet",
        };
        let keeps = match group.moved {
            Moved::Later => "what waits for them",
            Moved::Earlier => "what they make",
        };
        diagnostic = diagnostic.note(format!(
            "{who}{} {what}: {keeps} takes {} ({}{rest})",
            line(group.place),
            mebibytes(group.bytes),
            kept.join(", "),
        ));
        if let Some(place) = group.place
            && diagnostic.secondary.len() < MOVES_SHOWN
            && diagnostic.secondary.iter().all(|l| l.span != place.span)
        {
            let text = match group.moved {
                Moved::Later => format!("{who} may wait"),
                Moved::Earlier => format!("{who} may run early"),
            };
            diagnostic = diagnostic.secondary(place.span, text);
        }
    }
    diagnostic
}

/// What prevents such orders.
fn with_help(mut diagnostic: Diagnostic, plan: &Plan, view: &View<'_>) -> Diagnostic {
    let weak = plan.graph.regions.iter().find(|r| !matches!(r.bind, Bind::All));
    if let Some(region) = weak {
        let name = match region.bind {
            Bind::Grad => "grad",
            Bind::Output => "output",
            Bind::None => "none",
            Bind::All => "all",
        };
        let span = plan.graph.origins.chain(region.origin).map(|o| o.span).find(|s| *s != Span::default());
        let line = span.map_or(String::new(), |s| format!(" of {}", view.line(view.at(s))));
        diagnostic = diagnostic.help(format!(
            "leave out `bind: {name}` in the `checkpoint`{line}: by default the way back waits for the parameter gradients behind it"
        ));
    }
    diagnostic
        .help("`tg plan --order witness` shows that order; `barrier(a, b)` makes what uses `a` wait for `b`")
}
