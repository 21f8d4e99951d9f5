//! `tg check`: what is wrong with programs.
//!
//! The diagnostics are what the command is for, so they go to standard output in every format.

use super::{Exit, args, output::Output, source};
use crate::{
    diagnostic::{Diagnostic, Severity},
    engine::Engine,
    report::{self, Bytes, Format, style::Part},
    source::SourceMap,
};

pub fn run(args: &args::Check, output: &mut Output) -> Exit {
    let engine = Engine::new();
    let options = args.compile.options();
    let format = Format::from(args.message_format);
    let mut failed = false;
    for (k, path) in args.files.iter().enumerate() {
        if k > 0 && format == Format::Human {
            output.out("\n");
        }
        let name = path.display().to_string();
        match source::read(path) {
            Ok(source) => {
                let mut checked = engine.check(source, &options);
                if args.no_fixes {
                    leave_out_fixes(&mut checked.diagnostics);
                }
                failed |= show(&name, &checked.diagnostics, &checked.sources, args, output);
                if format == Format::Human && checked.is_sound() {
                    output.out(&sound(&name, &checked.plans, output));
                }
            }
            Err(error) => failed |= show(&name, error.diagnostics(), error.sources(), args, output),
        }
    }
    if failed { Exit::Errors } else { Exit::Success }
}

/// Fixes whose saving is known from planning again are the slow part of a check.
fn leave_out_fixes(diagnostics: &mut [Diagnostic]) {
    for diagnostic in diagnostics.iter_mut().filter(|d| d.saving.is_some()) {
        diagnostic.fixes.clear();
        diagnostic.saving = None;
    }
}

/// Writes the diagnostics of one file; whether they make the command fail.
fn show(
    name: &str,
    all: &[Diagnostic],
    sources: &SourceMap,
    args: &args::Check,
    output: &mut Output,
) -> bool {
    let format = Format::from(args.message_format);
    let style = output.out_style;
    output.out(&report::diagnostics(all, sources, format, style));
    let denied = |d: &Diagnostic| match args.deny {
        Some(args::Deny::Warnings) => d.severity <= Severity::Warning,
        None => d.is_error(),
    };
    let failed = all.iter().any(denied);
    if format == Format::Human
        && let Some(summary) = report::summary(all)
    {
        let part = if failed { Part::Error } else { Part::Warning };
        output.out(&format!("\n{}: {name}\n", style.paint(part, &summary)));
    }
    failed
}

/// What a program without errors gets: its steps with their peaks.
fn sound(name: &str, plans: &[std::sync::Arc<crate::plan::Plan>], output: &Output) -> String {
    let mut text = format!("{}: {name}\n", output.out_style.paint(Part::Strong, "no errors"));
    for plan in plans {
        text.push_str(&format!(
            "  step {}: peak {}, lower bound {}\n",
            report::visible::line(&plan.name, 80),
            Bytes(plan.peak_bytes()),
            Bytes(plan.lower_bound_bytes())
        ));
    }
    text
}
