//! `tg fix`: applies the changes that lower the memory of a program.
//!
//! One change is made at a time, the best of those that keep the results; then everything is planned
//! again, since what is left to save depends on it. What is written has been checked as it stands.
//!
//! A change that lowers the peak may raise the worst legal order. It is made last, where it lowers
//! the peak by more than next to nothing and breaks no `ensure peak … in every schedule`; what is
//! said of it names both figures.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
};

use super::args;
use crate::{
    codes, diagnose,
    diagnostic::{Diagnostic, Error, Fix},
    edits,
    engine::{Checked, CompileOptions, Engine, Source, module_name},
    report::{self, Bytes, Style, diff, style::Part, visible},
    script::write_atomically,
    source::{SourceMap, Span},
    terminal::{Exit, output::Output, source, tell},
};

/// More rounds than any program needs: each one lowers a figure or takes a construct away.
const ROUNDS: usize = 16;
/// The share of the peak that must be saved for the worst legal order to rise.
const WORTH_A_RISE: f64 = 0.01;

pub fn run(args: &args::Fix, output: &mut Output) -> Exit {
    let source = match source::read(&args.file) {
        Ok(source) => source,
        Err(error) => return tell::fail(&error, output),
    };
    let memory = diagnose::Options { fixes: true, all: true, ..Default::default() };
    let options = CompileOptions { memory: Some(memory), ..args.compile.options() };
    let engine = Engine::new();
    let first = engine.check(source.clone(), &options);
    if first.diagnostics.iter().any(|d| d.is_error() && !diagnose::is_contract(d.code)) {
        tell::show(&first.diagnostics, &first.sources, output);
        return Exit::Errors;
    }
    // A text from standard input has no file to go back to, and goes alone.
    let is_stdin = args.file == Path::new("-");
    let before = Texts::of(&first, &source, &args.file);
    let Improved { source: after, applied, last } = improve(&engine, &source, &options, first, is_stdin);
    if applied.is_empty() {
        output.out(&format!("nothing to fix: {}\n", visible::line(&source.name, 200)));
        return if last.is_sound() { Exit::Success } else { Exit::Errors };
    }
    let changes = before.changes(&after);
    if args.dry_run {
        for change in &changes {
            output.out(&diff::unified(&change.name, &change.before, &change.after, output.out_style));
        }
    } else if is_stdin {
        output.out(&after.text);
    } else if let Err(error) = write_all(&changes) {
        return tell::fail(&error, output);
    }
    // The text itself goes to standard output for a program from standard input.
    let mut said = told(&applied, &last.sources, args.dry_run, output.err_style);
    for plan in &last.plans {
        let step = visible::line(&plan.name, 80);
        said.push_str(&format!(
            "  step {step}: peak {} ({} bytes)\n",
            Bytes(plan.peak_bytes()),
            plan.peak_bytes()
        ));
    }
    output.err(&said);
    if last.is_sound() { Exit::Success } else { Exit::Errors }
}

/// What was done, or would be: each change with its lines, which are those of the texts as they are now,
/// and what became of both figures.
fn told(applied: &[Applied], last: &SourceMap, is_dry: bool, style: Style) -> String {
    let text = |sources: &SourceMap, name: &str| {
        sources.files().filter(|(_, f)| f.name == name).map(|(_, f)| Arc::clone(&f.text)).last()
    };
    let verb = if is_dry { "would fix" } else { "fixed" };
    let mut said = String::new();
    for (k, Applied { fix, before }) in applied.iter().enumerate() {
        let title = visible::line(&fix.title, 400);
        said.push_str(&format!("{}: {title}\n", style.paint(Part::Strong, verb)));
        let after = applied.get(k + 1).map_or(last, |next| &next.before);
        let first = applied.first().map_or(last, |a| &a.before);
        // By how many lines the changes further up have moved those below.
        let mut moved = (None, 0isize);
        for change in report::change::changes(&fix.edits, before).unwrap_or_default() {
            let Some(file) = before.get(change.file) else { continue };
            if moved.0 != Some(change.file) {
                moved = (Some(change.file), 0);
            }
            let line = if is_dry {
                text(first, &file.name).map_or(change.line, |to| diff::line_in(&file.text, change.line, &to))
            } else {
                let line = change.line.saturating_add_signed(moved.1);
                let texts = text(after, &file.name).zip(text(last, &file.name));
                texts.map_or(line, |(from, to)| diff::line_in(&from, line, &to))
            };
            moved.1 += change.after.len() as isize - change.before.len() as isize;
            let goes = if change.after.is_empty() { ", taken away" } else { "" };
            said.push_str(&format!("  {}:{line}{goes}:\n", visible::line(&file.name, 200)));
            for line in report::fix::marked(&change, style) {
                said.push_str(&format!("    {line}\n"));
            }
        }
        if let Some(savings) = &fix.savings {
            for line in report::fix::figures(savings).into_iter().chain(report::fix::remarks(fix, savings)) {
                said.push_str(&format!("  {line}\n"));
            }
        }
    }
    said
}

/// The files of a program as they were read.
struct Texts {
    program: (PathBuf, String, Arc<str>),
    /// By the name of the module: path and text.
    modules: BTreeMap<String, (PathBuf, String, Arc<str>)>,
}

/// A file before and after all fixes.
struct Change {
    path: PathBuf,
    name: String,
    before: Arc<str>,
    after: Arc<str>,
}

impl Texts {
    fn of(checked: &Checked, source: &Source, path: &Path) -> Texts {
        let modules = checked.own_modules().map(|(_, file)| {
            (module_name(file), (PathBuf::from(&file.name), file.name.clone(), Arc::clone(&file.text)))
        });
        let program = (path.to_path_buf(), source.name.clone(), Arc::clone(&source.text));
        Texts { program, modules: modules.collect() }
    }

    fn changes(self, after: &Source) -> Vec<Change> {
        let modules = self.modules.into_iter().filter_map(|(name, file)| {
            let now = after.modules.get(&name)?;
            Some((file, Arc::clone(now)))
        });
        let all = std::iter::once((self.program, Arc::clone(&after.text))).chain(modules);
        all.filter(|((_, _, before), after)| before != after)
            .map(|((path, name, before), after)| Change { path, name, before, after })
            .collect()
    }
}

/// A fix that was made, and the texts that it was made to.
struct Applied {
    fix: Fix,
    before: Arc<SourceMap>,
}

/// A program after all changes that help, what was done, and what is known of it then.
struct Improved {
    source: Source,
    applied: Vec<Applied>,
    last: Checked,
}

fn improve(
    engine: &Engine,
    source: &Source,
    options: &CompileOptions,
    first: Checked,
    only_program: bool,
) -> Improved {
    let mut source = source.clone();
    let mut checked = first;
    let mut applied = Vec::new();
    for _ in 0..ROUNDS {
        let program = checked.ast.file;
        let may = |fix: &Fix| !only_program || fix.edits.iter().all(|e| e.span.file == program);
        let Some(fix) = best(&checked.diagnostics, may) else { break };
        let Some(texts) = edits::apply_all(&checked.sources, &fix.edits) else { break };
        let mut next = source.clone();
        for (id, text) in texts {
            match checked.sources.get(id) {
                Some(file) if id != program => {
                    next.modules.insert(module_name(file), text.into());
                }
                _ => next.text = text.into(),
            }
        }
        let again = engine.check(next.clone(), options);
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
        applied.push(Applied { fix, before: Arc::clone(&checked.sources) });
        source = next;
        checked = again;
    }
    Improved { source, applied, last: checked }
}

/// The fix that saves most, of those that `tg fix` may make: those that raise the worst legal order
/// come after all others.
fn best(diagnostics: &[Diagnostic], may: impl Fn(&Fix) -> bool) -> Option<Fix> {
    let fixes = diagnostics.iter().flat_map(|d| &d.fixes).filter(|f| f.keeps_results() && may(f));
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

/// Replaces files whose texts are still those that were read: all of them, or none where one cannot be
/// written.
fn write_all(changes: &[Change]) -> Result<(), Error> {
    let fault = |message: String| {
        let diagnostic = Diagnostic::error(codes::FILE, Span::default(), message);
        Error::new(vec![diagnostic], Arc::new(SourceMap::new()))
    };
    for change in changes {
        let name = &change.name;
        let now = std::fs::read(&change.path)
            .map_err(|error| fault(format!("cannot read `{name}` again: {error}")))?;
        if now != change.before.as_bytes() {
            return Err(fault(format!("`{name}` changed while fixes were looked for: nothing was written")));
        }
    }
    let write = |path: &Path, text: &str| write_atomically(path, |file| file.write_all(text.as_bytes()));
    for (k, change) in changes.iter().enumerate() {
        if let Err(error) = write(&change.path, &change.after) {
            let mut message = error.to_string();
            for done in changes.iter().take(k) {
                if write(&done.path, &done.before).is_err() {
                    message.push_str(&format!("; `{}` is changed already", done.name));
                }
            }
            return Err(fault(message));
        }
    }
    Ok(())
}
