//! `tg fix`: applies the changes that lower the memory of a program.
//!
//! One change is made at a time, the best of those that keep the results; then everything is planned
//! again, since what is left to save depends on it. What is written has been checked as it stands.
//!
//! A change that lowers the peak may raise the worst legal order. It is made last, where it lowers
//! the peak by more than next to nothing and breaks no `ensure peak … in every schedule`; what is
//! said of it names both figures.

use std::path::Path;

use super::{Exit, args, output::Output, run, source};
use crate::{
    codes, diagnose,
    diagnostic::{Diagnostic, Error, Fix},
    engine::{Checked, CompileOptions, Engine, Source},
    report::{self, Bytes, diff, style::Part},
    script::write_atomically,
    source::Span,
};

/// More rounds than any program needs: each one lowers a figure or takes a construct away.
const ROUNDS: usize = 16;
/// The share of the peak that must be saved for the worst legal order to rise.
const WORTH_A_RISE: f64 = 0.01;

pub fn run(args: &args::Fix, output: &mut Output) -> Exit {
    let source = match source::read(&args.file) {
        Ok(source) => source,
        Err(error) => return run::fail(&error, output),
    };
    let memory = diagnose::Options { fixes: true, all: true, ..Default::default() };
    let options = CompileOptions { memory: Some(memory), ..args.compile.options() };
    let engine = Engine::new();
    let first = engine.check(source.clone(), &options);
    if first.diagnostics.iter().any(|d| d.is_error() && !diagnose::is_contract(d.code)) {
        run::show(&first.diagnostics, &first.sources, output);
        return Exit::Errors;
    }
    let (text, applied, last) = improve(&engine, &source, &options, first);
    let name = report::visible::line(&source.name, 200).into_owned();
    if applied.is_empty() {
        output.out(&format!("nothing to fix: {name}\n"));
        return if last.is_sound() { Exit::Success } else { Exit::Errors };
    }
    if args.dry_run {
        output.out(&diff::unified(&source.name, &source.text, &text, output.out_style));
    } else if args.file == Path::new("-") {
        output.out(&text);
    } else if let Err(error) = write(&args.file, &source.text, &text) {
        return run::fail(&error, output);
    }
    // The text itself goes to standard output for a program from standard input.
    let mut said = String::new();
    for fix in &applied {
        let title = report::visible::line(&fix.title, 400);
        said.push_str(&format!("{}: {title}\n", output.err_style.paint(Part::Strong, "fixed")));
        if let Some(savings) = &fix.savings {
            said.push_str(&format!("  {}\n", report::human::savings_text(savings)));
        }
    }
    for plan in &last.plans {
        let step = report::visible::line(&plan.name, 80);
        said.push_str(&format!(
            "  step {step}: peak {} ({} bytes)\n",
            Bytes(plan.peak_bytes()),
            plan.peak_bytes()
        ));
    }
    output.err(&said);
    if last.is_sound() { Exit::Success } else { Exit::Errors }
}

/// The text after all changes that help, what was done, and what is known of the program then.
fn improve(
    engine: &Engine,
    source: &Source,
    options: &CompileOptions,
    first: Checked,
) -> (String, Vec<Fix>, Checked) {
    let mut text = source.text.to_string();
    let mut checked = first;
    let mut applied = Vec::new();
    for _ in 0..ROUNDS {
        let Some(fix) = best(&checked.diagnostics) else { break };
        let Some(next) = diagnose::apply(&text, &fix.edits) else { break };
        let again = engine.check(Source { text: next.as_str().into(), ..source.clone() }, options);
        // A fix was planned before it was offered; should it not keep its promise, it is not made.
        let kept = again
            .plans
            .iter()
            .zip(&checked.plans)
            .all(|(now, before)| now.peak_bytes() <= before.peak_bytes());
        let is_broken = checked.is_sound() && !again.is_sound();
        if !kept || is_broken || again.plans.len() != checked.plans.len() {
            break;
        }
        applied.push(fix);
        text = next;
        checked = again;
    }
    (text, applied, checked)
}

/// The fix that saves most, of those that `tg fix` may make: those that raise the worst legal order
/// come after all others.
fn best(diagnostics: &[Diagnostic]) -> Option<Fix> {
    let fixes = diagnostics.iter().flat_map(|d| &d.fixes).filter(|f| f.keeps_results());
    let ranked = fixes.filter_map(|f| {
        let s = f.savings?;
        let (gains, rises) = (s.saves_bytes(), s.raises_worst());
        let is_worth_it = gains as f64 >= WORTH_A_RISE * s.peak_before as f64;
        let may = s.peak_after <= s.peak_before && (!rises || is_worth_it);
        let worst = s.worst_before.saturating_sub(s.worst_after);
        may.then_some(((!rises, gains, worst), f))
    });
    ranked.max_by_key(|(key, _)| *key).map(|(_, f)| f.clone())
}

/// Replaces a file whose text is still the one that was read.
fn write(path: &Path, before: &str, after: &str) -> Result<(), Error> {
    let fault = |message: String| {
        let diagnostic = Diagnostic::error(codes::FILE, Span::default(), message);
        Error::new(vec![diagnostic], std::sync::Arc::new(crate::source::SourceMap::new()))
    };
    let name = path.display();
    let now = std::fs::read(path).map_err(|error| fault(format!("cannot read `{name}` again: {error}")))?;
    if now != before.as_bytes() {
        return Err(fault(format!("`{name}` changed while fixes were looked for: nothing was written")));
    }
    write_atomically(path, |file| file.write_all(after.as_bytes())).map_err(|error| fault(error.to_string()))
}
