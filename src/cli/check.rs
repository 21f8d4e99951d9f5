//! `tg check`: what is wrong with programs.
//!
//! The diagnostics are what the command is for, so they go to standard output in every format.

use std::sync::Arc;

use super::args;
use crate::{
    diagnose,
    diagnostic::{Diagnostic, Severity},
    engine::{CompileOptions, Engine, Planning},
    plan::Plan,
    report::{self, Bytes, Format, style::Part},
    source::SourceMap,
    terminal::{Exit, output::Output, source},
};

pub fn run(args: &args::Check, output: &mut Output) -> Exit {
    let engine = Engine::new();
    let planning = if args.no_fixes { Planning::Quick } else { Planning::Proved };
    let memory =
        diagnose::Options { fixes: !args.no_fixes, all: args.all, library_frames: args.library_frames };
    let options = CompileOptions {
        planning,
        memory: Some(memory),
        target: args.target.into(),
        ..args.compile.options()
    };
    let format = format_of(args);
    let mut failed = false;
    for (k, path) in args.files.iter().enumerate() {
        if k > 0 && format == Format::Human {
            output.out("\n");
        }
        let name = path.display().to_string();
        failed |= match source::read(path) {
            Ok(source) => {
                let checked = engine.check(source, &options);
                show(
                    &name,
                    &checked.diagnostics,
                    &checked.sources,
                    &checked.plans,
                    checked.hidden,
                    args,
                    output,
                )
            }
            Err(error) => show(&name, error.diagnostics(), error.sources(), &[], 0, args, output),
        };
    }
    if failed { Exit::Errors } else { Exit::Success }
}

fn format_of(args: &args::Check) -> Format {
    if args.json { Format::Json } else { Format::from(args.message_format) }
}

/// The two words of savings that are not the field's own.
const WORDS: &str = "figures of a change: it was made, compiled and planned to measure them\nworst legal order: of all that the program allows, the one with the most alive\n";

/// Writes what there is to say of one file; whether that makes the command fail.
fn show(
    name: &str,
    all: &[Diagnostic],
    sources: &SourceMap,
    plans: &[Arc<Plan>],
    hidden: usize,
    args: &args::Check,
    output: &mut Output,
) -> bool {
    let denied = |d: &Diagnostic| match args.deny {
        Some(args::Deny::Warnings) => d.severity <= Severity::Warning,
        None => d.is_error(),
    };
    let failed = all.iter().any(denied);
    let format = format_of(args);
    let mut text = report::diagnostics(all, sources, format, output.out_style);
    if format == Format::Human {
        if !all.is_empty() {
            text.push('\n');
        }
        if all.iter().any(|d| d.savings().is_some()) {
            text.push_str(WORDS);
        }
        if hidden > 0 {
            let s = if hidden == 1 { "" } else { "s" };
            text.push_str(&format!("{hidden} more finding{s} about memory: `tg check --all` shows all\n"));
        }
        text.push_str(&verdict(name, all, plans, failed, output));
    }
    output.out(&text);
    failed
}

/// How many diagnostics of which kind there are; for a program that is right its steps with their
/// peaks.
fn verdict(name: &str, all: &[Diagnostic], plans: &[Arc<Plan>], failed: bool, output: &Output) -> String {
    let style = output.out_style;
    let summary = report::summary(all);
    let name = report::visible::line(name, 200);
    if failed {
        return format!("{}: {name}\n", style.paint(Part::Error, &summary.unwrap_or_default()));
    }
    let rest = summary.map(|s| format!(", {s}")).unwrap_or_default();
    let mut text = format!("{}{rest}: {name}\n", style.paint(Part::Strong, "no errors"));
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
