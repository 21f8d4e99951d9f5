//! `budget 4 GiB`: planning a step within a budget.

use std::sync::Arc;

use super::{
    Evaluator,
    contract::apart,
    errors::Eval,
    frame::Budget,
    plans::Made,
    step::Compiled,
    value::{Cx, Step, Value},
};
use crate::{
    budget::{Curve, Point},
    codes,
    diagnostic::{Code, Diagnostic},
    ir::Graph,
    lower::{self, PlanOptions},
    plan::{BufferKind, Plan},
    report::{self, Bytes, parts, plan::LiveBuffer},
    source::Span,
    syntax::ast::ExprId,
};

/// A step as it is written, and its budget in bytes.
#[derive(Debug, Clone)]
pub struct Written {
    pub name: Arc<str>,
    pub graph: Arc<Graph>,
    pub budget: Option<u64>,
}

/// Buffers that an error names.
const SHOWN: usize = 3;

impl Evaluator {
    /// `budget 4 GiB`
    pub(super) fn budget_stmt(&mut self, cx: &Cx, limit: ExprId, span: Span) -> Eval {
        self.only_in_step("budget", span)?;
        let bytes = self.bytes_expr(cx, limit, codes::TYPE_MISMATCH, "a budget", "write `budget 4 GiB`")?;
        let known = self.frame(span)?.budget;
        if let Some(first) = known {
            return Err(self.report(
                Diagnostic::error(codes::BAD_OPTION, span, "a step has one `budget`")
                    .label("the second one")
                    .secondary(first.span, "the first one")
                    .help("keep the smaller one"),
            ));
        }
        self.frame(span)?.budget = Some(Budget { bytes, span });
        Ok(Value::Unit)
    }

    /// A size in bytes. `what` is what it is for, in a message.
    pub(super) fn bytes_expr(
        &mut self,
        cx: &Cx,
        size: ExprId,
        code: Code,
        what: &str,
        help: &str,
    ) -> Eval<u64> {
        let value = self.expr(cx, size)?;
        let bytes = match value {
            Value::Int(bytes) => u64::try_from(bytes).ok(),
            Value::Float(bytes) if bytes >= 0.0 => Some(bytes as u64),
            _ => None,
        };
        if let Some(bytes) = bytes {
            return Ok(bytes);
        }
        let got = match &value {
            Value::Int(bytes) => format!("{bytes} bytes: it cannot be negative"),
            Value::Float(bytes) if bytes.is_nan() => "NaN".to_owned(),
            Value::Float(bytes) => format!("{bytes} bytes: it cannot be negative"),
            _ => value.kind(),
        };
        let message = format!("{what} is a size in bytes, got {got}");
        Err(self.report(Diagnostic::error(code, cx.ast.expr(size).span, message).help(help)))
    }

    /// The plan with the least work whose peak is within the budget of the step.
    pub(super) fn plan_within(
        &mut self,
        step: &Arc<Step>,
        compiled: &Compiled,
        budget: Budget,
        options: &PlanOptions,
    ) -> Eval<Made> {
        let name = step.name();
        let mut curve = Curve::new(&compiled.graph, options.target);
        let found = curve.fit(budget.bytes).and_then(|point| {
            let Some(point) = point else { return Ok(Err(curve.smallest()?)) };
            let graph = curve.graph_of(&point)?;
            let plan = lower::plan(&graph, name, options)?;
            // A proof can end the search for an order early, at another one of the same load.
            let plan = if plan.peak_bytes() > budget.bytes { curve.plan_of(&point, name)? } else { plan };
            Ok(Ok((graph, plan)))
        });
        match found {
            Ok(Ok((graph, plan))) => Ok(Made { plan, fitted: Some(graph) }),
            Ok(Err(smallest)) => {
                let plan = curve.plan_of(&smallest, name);
                let plan = plan.map_err(|error| self.op_error(step.decl.name.span, error))?;
                Err(self.over_budget(step, compiled, budget, &smallest, &plan))
            }
            Err(error) => Err(self.op_error(step.decl.name.span, error)),
        }
    }

    fn over_budget(
        &mut self,
        step: &Arc<Step>,
        compiled: &Compiled,
        budget: Budget,
        smallest: &Point,
        plan: &Plan,
    ) -> super::Halt {
        let size = apart(budget.bytes, &[smallest.peak_bytes]);
        let mut diagnostic = Diagnostic::error(
            codes::OVER_BUDGET,
            budget.span,
            format!(
                "no plan of `{}` found within {}: the smallest peak is {}",
                step.name(),
                size(budget.bytes),
                size(smallest.peak_bytes),
            ),
        );
        let report = report::plan::report(plan, &self.sources);
        let is_own = |b: &&LiveBuffer| !matches!(b.kind, BufferKind::Params | BufferKind::State);
        let placed = report.live_at_peak.iter().filter(is_own).filter_map(|b| Some((b, b.place?)));
        let mut named = vec![plan.persistent_bytes];
        for (buffer, place) in placed.take(SHOWN) {
            named.push(buffer.bytes);
            let size = Bytes(buffer.bytes);
            let text = format!("`{}` takes {size} at that peak, until {}", buffer.name, buffer.kept_by);
            diagnostic = diagnostic.secondary(place.span, text);
        }
        if plan.persistent_bytes > 0 {
            diagnostic =
                diagnostic.note(format!("parameters and state take {} of it", Bytes(plan.persistent_bytes)));
        }
        let rest = parts::rest(plan.peak_bytes(), named);
        if rest > 0 {
            diagnostic = diagnostic.note(format!("all else takes {} then", Bytes(rest)));
        }
        diagnostic = if compiled.graph.gradients.is_empty() {
            diagnostic.note("the step takes no gradient, so there is nothing that could be computed again")
        } else if plan.persistent_bytes > budget.bytes {
            diagnostic.help("the parameters alone are larger: make the model or its dtype smaller")
        } else {
            diagnostic.help("`tg plan --budget-curve` shows which peaks can be reached, and at what work")
        };
        self.report(diagnostic)
    }
}
