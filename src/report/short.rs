//! One line a diagnostic, in the form that editors and `grep` know:
//! `file:line:column: warning[TG0302]: message`.

use super::{has_place, severity_name, visible};
use crate::{diagnostic::Diagnostic, source::SourceMap};

/// Longer messages are cut: a line of output stays a line.
const MESSAGE_LIMIT: usize = 1000;

pub fn render(diagnostic: &Diagnostic, sources: &SourceMap) -> String {
    let span = diagnostic.primary.span;
    let place = match sources.get(span.file).filter(|_| has_place(diagnostic, sources)) {
        Some(file) => {
            let at = sources.start(span);
            format!("{}:{}:{}: ", visible::line(&file.name, MESSAGE_LIMIT), at.line, at.column)
        }
        None => String::new(),
    };
    format!(
        "{place}{}[{}]: {}\n",
        severity_name(diagnostic.severity),
        diagnostic.code.0,
        visible::line(&diagnostic.message, MESSAGE_LIMIT)
    )
}
