//! `tg plan --why LINE`: what a line makes, and what keeps it.

use std::sync::Arc;

use super::args::{LineOfFile, Plan as Arguments};
use crate::{
    codes,
    diagnostic::{Diagnostic, Error},
    engine::Checked,
    plan::Plan,
    report::{Style, plan::why, visible},
    source::{FileId, SourceMap, Span},
};

pub fn text(
    args: &Arguments,
    place: &LineOfFile,
    plans: &[Arc<Plan>],
    checked: &Checked,
    style: Style,
) -> Result<String, Error> {
    let sources = &checked.sources;
    let fault = |diagnostic: Diagnostic| Error::new(vec![diagnostic], Arc::clone(sources));
    let file = match &place.file {
        None => FileId(0),
        Some(wanted) => file(wanted, sources).ok_or_else(|| fault(no_file(wanted, sources)))?,
    };
    let lines = sources.get(file).map_or(0, |f| f.text.lines().count());
    if place.line > lines {
        let name = sources.get(file).map_or("", |f| f.name.as_str());
        let message = format!(
            "there is no line {}: `{}` has {lines} line{}",
            place.line,
            visible::line(name, 80),
            if lines == 1 { "" } else { "s" }
        );
        return Err(fault(Diagnostic::error(codes::FILE, Span::default(), message)));
    }
    let reports: Vec<why::LineReport> =
        plans.iter().map(|plan| why::line(plan, sources, file, place.line)).collect();
    if args.json {
        return Ok(format!("{}\n", why::json(&reports, file, place.line, sources)));
    }
    let mut text = why::render(&reports, file, place.line, sources, style);
    if reports.is_empty() && checked.is_sound() {
        text.push_str("\nthe program has no steps\n");
    }
    Ok(text)
}

/// The file of a name: as reports write it, or by the end of its path.
fn file(wanted: &str, sources: &SourceMap) -> Option<FileId> {
    let exact = sources.files().find(|(_, file)| file.name == *wanted);
    let ending = format!("/{wanted}");
    let found = exact.or_else(|| sources.files().find(|(_, file)| file.name.ends_with(&ending)));
    found.map(|(id, _)| id)
}

fn no_file(wanted: &str, sources: &SourceMap) -> Diagnostic {
    let names: Vec<String> =
        sources.files().map(|(_, f)| format!("`{}`", visible::line(&f.name, 80))).collect();
    let message = format!("the program does not use a file `{}`", visible::line(wanted, 80));
    Diagnostic::error(codes::FILE, Span::default(), message)
        .help(format!("its files are {}", names.join(", ")))
}
