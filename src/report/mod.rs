//! Renderings: diagnostics for people, for editors and for programs, and the memory of a plan.
//!
//! Everything here is a pure function from data to text. Who prints it, and where, is the business
//! of the command line.

pub mod budget;
pub mod bytes;
pub mod change;
mod code;
pub mod diff;
mod excerpt;
pub mod explain;
mod fit;
pub mod fix;
pub mod human;
pub mod json;
mod labels;
pub mod parts;
pub mod picture;
pub mod plan;
pub mod short;
pub mod style;
pub mod trace;
pub mod visible;

pub use bytes::Bytes;
pub use style::{ColorChoice, Style};

use crate::{
    diagnostic::{Diagnostic, Severity},
    source::{SourceMap, Span},
};

/// How diagnostics are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Format {
    /// With the source lines, drawn for a terminal.
    #[default]
    Human,
    /// `file:line:column: error[TG0203]: message`, one line each.
    Short,
    /// One JSON object a line.
    Json,
}

/// One diagnostic, with a line end.
pub fn diagnostic(diagnostic: &Diagnostic, sources: &SourceMap, format: Format, style: Style) -> String {
    match format {
        Format::Human => human::render(diagnostic, sources, style),
        Format::Short => short::render(diagnostic, sources),
        Format::Json => json::render(diagnostic, sources),
    }
}

/// All of them, in the order in which a reader should see them: errors first, then by place.
pub fn diagnostics(all: &[Diagnostic], sources: &SourceMap, format: Format, style: Style) -> String {
    let mut sorted: Vec<&Diagnostic> = all.iter().collect();
    sorted.sort_by_key(|d| (d.severity, d.primary.span.file, d.primary.span.start, d.code));
    let mut out = String::new();
    for (i, one) in sorted.into_iter().enumerate() {
        if i > 0 && format == Format::Human {
            out.push('\n');
        }
        out.push_str(&diagnostic(one, sources, format, style));
    }
    out
}

/// `2 errors, 1 warning`; `None` where there is nothing to count.
pub fn summary(all: &[Diagnostic]) -> Option<String> {
    let parts: Vec<String> = [Severity::Error, Severity::Warning, Severity::Note]
        .into_iter()
        .filter_map(|severity| {
            let count = all.iter().filter(|d| d.severity == severity).count();
            let plural = if count == 1 { "" } else { "s" };
            (count > 0).then(|| format!("{count} {}{plural}", severity_name(severity)))
        })
        .collect();
    (!parts.is_empty()).then(|| parts.join(", "))
}

/// Whether a diagnostic is about a place at all: one about an argument of the command, or about a
/// file that could not be read, is not. Its span is the default one, or in no known file.
fn has_place(diagnostic: &Diagnostic, sources: &SourceMap) -> bool {
    let primary = &diagnostic.primary;
    sources.get(primary.span.file).is_some()
        && (primary.span != Span::default() || !primary.text.is_empty() || !diagnostic.secondary.is_empty())
}

/// `error`, `warning` or `note`.
pub fn severity_name(severity: Severity) -> &'static str {
    match severity {
        Severity::Error => "error",
        Severity::Warning => "warning",
        Severity::Note => "note",
    }
}
