//! What `tg` says about a program: one owned type, rendered elsewhere (`report`).

use std::{fmt, sync::Arc};

use crate::source::{SourceMap, Span};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Severity {
    Error,
    Warning,
    /// Something worth knowing that asks for no change.
    Note,
}

/// Text tied to a place. It says why *this place* matters; what to do belongs into `help`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Label {
    pub span: Span,
    pub text: String,
}

impl Label {
    /// What a label says at a further place of the same fault.
    const AGAIN: &'static str = "and here";

    /// A further place of the same fault.
    pub fn again(span: Span) -> Label {
        Label { span, text: Self::AGAIN.into() }
    }

    /// Whether this is a further place of the same fault, of which a reader needs to see a few only.
    pub fn is_again(&self) -> bool {
        self.text == Self::AGAIN
    }
}

/// Replaces the text of `span` by `text`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Edit {
    pub span: Span,
    pub text: String,
}

/// A change that is offered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fix {
    pub title: String,
    pub edits: Vec<Edit>,
    /// What the change does to memory, found by planning the changed program. `None` for changes
    /// that are not about memory.
    pub savings: Option<Savings>,
    /// What the program computes after it.
    pub results: Results,
}

/// What a change does to the results of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Results {
    Same,
    /// The same up to rounding.
    Rounded,
    /// Others, for the reader to judge.
    Others,
}

impl Fix {
    /// Whether results are the same after it, to the bit: `tg fix` applies no others.
    pub fn keeps_results(&self) -> bool {
        self.results == Results::Same
    }
}

/// Peak and worst legal order of a step before and after a fix, in bytes. All four were planned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Savings {
    pub peak_before: u64,
    pub peak_after: u64,
    /// What no legal order exceeds.
    pub worst_before: u64,
    pub worst_after: u64,
    /// Floating-point operations of the step.
    pub work_before: u64,
    pub work_after: u64,
}

impl Savings {
    /// By how much the peak falls.
    pub fn saves_bytes(&self) -> u64 {
        self.peak_before.saturating_sub(self.peak_after)
    }

    /// Whether the worst legal order gets worse.
    pub fn raises_worst(&self) -> bool {
        self.worst_after > self.worst_before
    }

    /// How much more work the step is, in per cent of what it was.
    pub fn more_work(&self) -> f64 {
        (self.work_after as f64 - self.work_before as f64) / (self.work_before as f64).max(1.0) * 100.0
    }
}

/// A stable identifier, `TG0203`. Ranges: 01xx syntax, 02xx names, types and shapes,
/// 03xx memory, 04xx run time, 09xx faults of `tg` itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Code(pub &'static str);

/// One message about a program. The message stands alone: lower case, no full stop, names and
/// code in backticks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Diagnostic {
    pub severity: Severity,
    pub code: Code,
    pub message: String,
    pub primary: Label,
    pub secondary: Vec<Label>,
    pub notes: Vec<String>,
    pub help: Vec<String>,
    /// The best one first. They are alternatives: each was tried by itself.
    pub fixes: Vec<Fix>,
}

impl Diagnostic {
    pub fn error(code: Code, span: Span, message: impl Into<String>) -> Self {
        Self::new(Severity::Error, code, span, message)
    }

    pub fn warning(code: Code, span: Span, message: impl Into<String>) -> Self {
        Self::new(Severity::Warning, code, span, message)
    }

    pub fn new(severity: Severity, code: Code, span: Span, message: impl Into<String>) -> Self {
        Diagnostic {
            severity,
            code,
            message: message.into(),
            primary: Label { span, text: String::new() },
            secondary: Vec::new(),
            notes: Vec::new(),
            help: Vec::new(),
            fixes: Vec::new(),
        }
    }

    /// The text at the primary span.
    pub fn label(mut self, text: impl Into<String>) -> Self {
        self.primary.text = text.into();
        self
    }

    pub fn secondary(mut self, span: Span, text: impl Into<String>) -> Self {
        self.secondary.push(Label { span, text: text.into() });
        self
    }

    pub fn note(mut self, text: impl Into<String>) -> Self {
        self.notes.push(text.into());
        self
    }

    pub fn help(mut self, text: impl Into<String>) -> Self {
        self.help.push(text.into());
        self
    }

    pub fn fix(mut self, title: impl Into<String>, edits: Vec<Edit>) -> Self {
        self.fixes.push(Fix { title: title.into(), edits, savings: None, results: Results::Same });
        self
    }

    /// What the best of the fixes saves.
    pub fn savings(&self) -> Option<Savings> {
        self.fixes.iter().find_map(|f| f.savings)
    }

    pub fn is_error(&self) -> bool {
        self.severity == Severity::Error
    }
}

/// The error of the public API: everything that was found, with the texts it points into.
#[derive(Clone)]
pub struct Error {
    diagnostics: Arc<[Diagnostic]>,
    sources: Arc<SourceMap>,
    /// The rest of the diagnostics, in the form that `miette` walks.
    related: Vec<Error>,
    code: miette::NamedSource<Arc<str>>,
}

impl Error {
    /// `diagnostics` holds at least one; errors come first.
    pub fn new(mut diagnostics: Vec<Diagnostic>, sources: Arc<SourceMap>) -> Self {
        diagnostics.sort_by_key(|d| d.severity);
        let related =
            diagnostics.iter().skip(1).map(|d| Self::single(d.clone(), Arc::clone(&sources))).collect();
        let code = Self::named(diagnostics.first(), &sources);
        Error { diagnostics: diagnostics.into(), sources, related, code }
    }

    fn single(diagnostic: Diagnostic, sources: Arc<SourceMap>) -> Self {
        let code = Self::named(Some(&diagnostic), &sources);
        Error { diagnostics: Arc::new([diagnostic]), sources, related: Vec::new(), code }
    }

    fn named(diagnostic: Option<&Diagnostic>, sources: &SourceMap) -> miette::NamedSource<Arc<str>> {
        match diagnostic.and_then(|d| sources.get(d.primary.span.file)) {
            Some(file) => miette::NamedSource::new(&file.name, Arc::clone(&file.text)),
            None => miette::NamedSource::new("", Arc::from("")),
        }
    }

    /// Everything that was found; errors come first.
    pub fn diagnostics(&self) -> &[Diagnostic] {
        &self.diagnostics
    }

    /// The texts that spans point into.
    pub fn sources(&self) -> &SourceMap {
        &self.sources
    }

    fn first(&self) -> Option<&Diagnostic> {
        self.diagnostics.first()
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.diagnostics.iter()).finish()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.first().map_or("", |d| &d.message))?;
        match self.diagnostics.len() {
            0 | 1 => Ok(()),
            n => write!(f, " (and {} more)", n - 1),
        }
    }
}

impl std::error::Error for Error {}

impl miette::Diagnostic for Error {
    fn code<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        self.first().map(|d| Box::new(d.code.0) as _)
    }

    fn severity(&self) -> Option<miette::Severity> {
        self.first().map(|d| match d.severity {
            Severity::Error => miette::Severity::Error,
            Severity::Warning => miette::Severity::Warning,
            Severity::Note => miette::Severity::Advice,
        })
    }

    fn help<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        let help = &self.first()?.help;
        (!help.is_empty()).then(|| Box::new(help.join("\n")) as _)
    }

    fn source_code(&self) -> Option<&dyn miette::SourceCode> {
        Some(&self.code)
    }

    fn labels(&self) -> Option<Box<dyn Iterator<Item = miette::LabeledSpan> + '_>> {
        let first = self.first()?;
        let file = self.sources.get(first.primary.span.file)?;
        let range = move |label: &Label| {
            let range = file.clamp(label.span);
            (range.start, range.len())
        };
        let primary = miette::LabeledSpan::new_primary_with_span(
            Some(first.primary.text.clone()),
            range(&first.primary),
        );
        // miette shows one text per diagnostic: labels in other files cannot be drawn in it.
        let secondary = first
            .secondary
            .iter()
            .filter(|l| l.span.file == first.primary.span.file)
            .map(move |l| miette::LabeledSpan::new_with_span(Some(l.text.clone()), range(l)));
        Some(Box::new(std::iter::once(primary).chain(secondary)))
    }

    fn related<'a>(&'a self) -> Option<Box<dyn Iterator<Item = &'a dyn miette::Diagnostic> + 'a>> {
        if self.related.is_empty() {
            return None;
        }
        Some(Box::new(self.related.iter().map(|e| e as &dyn miette::Diagnostic)))
    }
}
