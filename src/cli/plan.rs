//! `tg plan`: the memory of each step.

use std::sync::Arc;

use super::{
    args, budget, picture,
    steps::{dims, no_step, title},
    why,
};
use crate::{
    codes, diagnose,
    diagnostic::{Diagnostic, Error},
    engine::{Checked, CompileOptions, Engine},
    lower::{self, PlanOptions},
    plan::Plan,
    report::{self, plan::Recompute, visible},
    schedule::{self, OrderKind},
    source::{FileId, Span},
    syntax::ast::StmtKind,
    terminal::{Exit, output::Output, source, tell},
};

pub fn run(args: &args::Plan, output: &mut Output) -> Exit {
    if args.budget_curve {
        return budget::run(args, output);
    }
    let checked = match source::read(&args.file) {
        Ok(source) => {
            // People who ask for a plan want to see that; what to change is the business of `check`.
            let memory = diagnose::Options { fixes: !args.no_fixes, ..Default::default() };
            let options = CompileOptions {
                memory: args.json.then_some(memory),
                target: args.target.into(),
                ..args.compile.options()
            };
            Engine::new().check(source, &options)
        }
        Err(error) => return tell::fail(&error, output),
    };
    let order = OrderKind::from(args.order);
    let plans = match plans(args, order, &checked) {
        Ok(plans) => plans,
        Err(error) => return tell::fail(&error, output),
    };
    let name = args.file.display().to_string();
    let text = match &args.why {
        Some(place) => match why::text(args, place, &plans, &checked, output.out_style) {
            Ok(text) => text,
            Err(error) => return tell::fail(&error, output),
        },
        None if args.json => json(&name, &plans, &checked, args.full),
        None => text(&plans, &checked, output),
    };
    output.out(&text);
    let mut exit = if checked.is_sound() { Exit::Success } else { Exit::Errors };
    let mut files = Vec::new();
    if let Some(path) = &args.trace {
        files.push((path, report::trace::trace(&plans, &checked.sources)));
    }
    if let Some(path) = &args.html {
        // An order that was asked for stands alone.
        let worst = match order {
            OrderKind::Best => self::plans(args, OrderKind::Witness, &checked),
            _ => Ok(Vec::new()),
        };
        match worst {
            Ok(worst) => files.push((path, picture::html(&name, &plans, &worst, &checked))),
            Err(error) => return tell::fail(&error, output),
        }
    }
    for (path, text) in files {
        if let Err(error) = std::fs::write(path, text) {
            output.err(&format!("error: cannot write `{}`: {error}\n", path.display()));
            exit = Exit::Errors;
        }
    }
    tell::show(&checked.diagnostics, &checked.sources, output);
    exit
}

/// The plans of the steps that were asked for.
fn plans(args: &args::Plan, order: OrderKind, checked: &Checked) -> Result<Vec<Arc<Plan>>, Error> {
    let fault = |diagnostic: Diagnostic| Error::new(vec![diagnostic], Arc::clone(&checked.sources));
    let is_wanted = |name: &str| args.step.as_deref().is_none_or(|wanted| wanted == name);
    if let Some(wanted) = &args.step
        && checked.is_sound()
        && !checked.plans.iter().any(|p| is_wanted(&p.name))
    {
        return Err(fault(no_step(wanted, checked)));
    }
    // Compiling a program plans the best order anyway.
    if order == OrderKind::Best {
        return Ok(checked.plans.iter().filter(|p| is_wanted(&p.name)).map(Arc::clone).collect());
    }
    let options = PlanOptions {
        schedule: schedule::Options { order, ..Default::default() },
        target: args.target.into(),
    };
    let again = checked.graphs.iter().filter(|(name, _)| is_wanted(name)).map(|(name, graph)| {
        let mut plan = lower::plan(graph, name, &options)
            .map_err(|error| fault(Diagnostic::error(codes::INTERNAL, Span::default(), error.message)))?;
        plan.bound_every_order();
        Ok(Arc::new(plan))
    });
    again.collect()
}

/// Why there is nothing to show of a sound program.
fn not_planned(checked: &Checked) -> String {
    let steps = checked.ast.stmts.iter().filter_map(|stmt| match &stmt.kind {
        StmtKind::Step(decl) => Some(format!("`{}`", visible::line(&decl.name.name, 40))),
        _ => None,
    });
    let steps: Vec<String> = steps.collect();
    if steps.is_empty() {
        return "the program has no steps\n".to_owned();
    }
    format!(
        "not planned: {}\n  a size is left open, and the script calls it with none that is known before the run;\n  \
         give the size a value, as in `x: f32[B = 64, 784]`\n",
        steps.join(", ")
    )
}

fn text(plans: &[Arc<Plan>], checked: &Checked, output: &Output) -> String {
    if plans.is_empty() && checked.is_sound() {
        return not_planned(checked);
    }
    let all: Vec<String> = plans
        .iter()
        .map(|plan| {
            let mut report = report::plan::report(plan, &checked.sources);
            report.name = title(plan, plans, checked).into();
            let mut text = report::plan::render(&report, Some(FileId(0)), &checked.sources, output.out_style);
            if let Some(chosen) = recompute(plan, plans, checked) {
                text.push('\n');
                text.push_str(&chosen.render(Some(FileId(0)), &checked.sources));
            }
            text
        })
        .collect();
    all.join("\n")
}

fn json(name: &str, plans: &[Arc<Plan>], checked: &Checked, full: bool) -> String {
    // Step by step, so that only one of them is there as values.
    let mut text = format!("{{\"file\":{},\"steps\":[", serde_json::Value::from(name));
    for (k, plan) in plans.iter().enumerate() {
        let report = report::plan::report(plan, &checked.sources);
        let dims = dims(plan, checked);
        let diagnostics = of_step(&plan.name, checked);
        let mut step =
            report::plan::json(&report, plan.target.name(), &dims, 0, &diagnostics, &checked.sources);
        if let (Some(chosen), serde_json::Value::Object(step)) = (recompute(plan, plans, checked), &mut step)
        {
            step.insert("budget".into(), chosen.json());
        }
        if k > 0 {
            text.push(',');
        }
        if full {
            report::plan::full(&step, plan, &checked.sources, &mut text);
        } else {
            text.push_str(&step.to_string());
        }
    }
    text.push_str("]}\n");
    text
}

/// What the budget of a step chose, where it has one. Plans of one name, for several sizes, are in the
/// order of their graphs.
fn recompute(plan: &Arc<Plan>, plans: &[Arc<Plan>], checked: &Checked) -> Option<Recompute> {
    let at = plans.iter().filter(|p| p.name == plan.name).position(|p| Arc::ptr_eq(p, plan))?;
    let pairs = checked.written.iter().zip(&checked.graphs);
    let (written, (_, fitted)) = pairs.filter(|(written, _)| written.name == plan.name).nth(at)?;
    Some(report::plan::recompute(plan, (&written.graph, fitted), written.budget?, &checked.sources))
}

/// The diagnostics that stand inside the declaration of a step.
fn of_step(name: &str, checked: &Checked) -> Vec<Diagnostic> {
    let spans: Vec<Span> = checked
        .ast
        .stmts
        .iter()
        .filter_map(|stmt| match &stmt.kind {
            StmtKind::Step(decl) if &*decl.name.name == name => Some(stmt.span),
            _ => None,
        })
        .collect();
    let is_inside = |d: &&Diagnostic| {
        let at = d.primary.span;
        spans.iter().any(|s| s.file == at.file && s.start <= at.start && at.end <= s.end)
    };
    checked.diagnostics.iter().filter(is_inside).cloned().collect()
}
