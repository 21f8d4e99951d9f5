//! `tg plan --budget-curve`: peak against extra work.

use std::sync::Arc;

use super::{args, steps::no_step};
use crate::{
    budget::Curve,
    check::Written,
    codes,
    diagnostic::{Diagnostic, Error},
    engine::{CompileOptions, Engine, Planning},
    ops::OpError,
    plan::Target,
    report::{
        self,
        budget::{BudgetCurve, CurvePoint},
    },
    source::Span,
    terminal::{Exit, output::Output, source, tell},
};

pub fn run(args: &args::Plan, output: &mut Output) -> Exit {
    // The curve makes the plans that it needs.
    let options =
        CompileOptions { planning: Planning::Nothing, target: args.target.into(), ..args.compile.options() };
    let checked = match source::read(&args.file) {
        Ok(source) => Engine::new().check(source, &options),
        Err(error) => return tell::fail(&error, output),
    };
    let fault = |diagnostic: Diagnostic| Error::new(vec![diagnostic], Arc::clone(&checked.sources));
    if !checked.is_sound() {
        tell::show(&checked.diagnostics, &checked.sources, output);
        return Exit::Errors;
    }
    let is_wanted = |name: &str| args.step.as_deref().is_none_or(|wanted| wanted == name);
    let steps: Vec<&Written> = checked.written.iter().filter(|w| is_wanted(&w.name)).collect();
    if let (Some(wanted), true) = (&args.step, steps.is_empty()) {
        return tell::fail(&fault(no_step(wanted, &checked)), output);
    }
    let mut curves = Vec::new();
    for step in steps {
        match curve(step, args.target.into()) {
            Ok(curve) => curves.push(curve),
            Err(error) => {
                let diagnostic = Diagnostic::error(codes::INTERNAL, Span::default(), error.message);
                return tell::fail(&fault(diagnostic), output);
            }
        }
    }
    if args.json {
        let steps = curves.iter().map(report::budget::json).collect();
        let name = args.file.display().to_string();
        output.out(&format!("{}\n", report::plan::json_file(&name, steps)));
    } else if curves.is_empty() {
        output.out("the program has no steps\n");
    } else {
        let all: Vec<String> = curves.iter().map(|c| report::budget::render(c, output.out_style)).collect();
        output.out(&all.join("\n"));
    }
    tell::show(&checked.diagnostics, &checked.sources, output);
    Exit::Success
}

fn curve(step: &Written, target: Target) -> Result<BudgetCurve, OpError> {
    let mut curve = Curve::new(&step.graph, target);
    let plain = curve.plain()?;
    let chosen = step.budget.map(|b| curve.fit(b)).transpose()?.flatten();
    let points = curve.points(step.budget)?;
    let points = points
        .into_iter()
        .map(|point| CurvePoint {
            peak_bytes: point.peak_bytes,
            flops: point.flops,
            work: if plain.flops > 0.0 { point.flops / plain.flops } else { 1.0 },
            regions: point.regions,
            chosen: Some(point) == chosen,
            as_written: point == plain,
        })
        .collect();
    Ok(BudgetCurve { step: step.name.to_string(), budget_bytes: step.budget, points })
}
