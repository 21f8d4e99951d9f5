//! What a kind hands over: a diagnostic without fixes, and changes that may help.

use crate::{
    diagnostic::{Code, Diagnostic, Edit, Results},
    source::Span,
};

/// A change of the program that has not been tried yet.
#[derive(Debug, Clone)]
pub struct Candidate {
    /// In the imperative: "return a copy".
    pub title: String,
    pub edits: Vec<Edit>,
    pub results: Results,
    /// Of a change that readers think of first: what to say of it where it lowers nothing.
    pub in_vain: Option<InVain>,
}

/// What is said of a change that was planned and lowers nothing: `WHAT lowers nothing (the peak stays at
/// 5.8 MiB): WHY`.
#[derive(Debug, Clone)]
pub struct InVain {
    pub what: String,
    pub why: Option<String>,
}

impl Candidate {
    pub fn new(title: impl Into<String>, edits: Vec<Edit>) -> Candidate {
        Candidate { title: title.into(), edits, results: Results::Same, in_vain: None }
    }

    /// Says why it is not offered where it lowers nothing.
    pub fn or_in_vain(mut self, what: impl Into<String>, why: Option<String>) -> Candidate {
        self.in_vain = Some(InVain { what: what.into(), why });
        self
    }

    /// A change after which the program computes something else, offered for the reader to judge.
    pub fn by_hand(mut self) -> Candidate {
        self.results = Results::Others;
        self
    }

    /// A change after which results are rounded differently.
    pub fn rounded(mut self) -> Candidate {
        self.results = Results::Rounded;
        self
    }
}

/// When a finding is worth showing.
#[derive(Debug, Clone)]
pub enum Accept {
    /// It holds whatever a change would save.
    Always,
    /// Some candidate lowers the peak by this share of it at least.
    PeakFalls(f64),
    /// Some candidate lowers the peak, or the worst legal order, by this share at least.
    AnyFalls(f64),
    /// Its construct is of no use: taking it away, which the first candidate does, raises neither
    /// the peak nor the worst legal order. Where the peak falls without it, the other code and
    /// message are the right ones.
    Useless { raises: Option<(Code, String)> },
}

/// Something that a kind has found.
#[derive(Debug, Clone)]
pub struct Finding {
    pub diagnostic: Diagnostic,
    /// Bytes that it is about: what is tried first where not everything can be.
    pub held: u64,
    pub candidates: Vec<Candidate>,
    pub accept: Accept,
}

impl Finding {
    pub fn new(diagnostic: Diagnostic, held: u64, accept: Accept) -> Finding {
        Finding { diagnostic, held, candidates: Vec::new(), accept }
    }

    pub fn candidate(mut self, candidate: Candidate) -> Finding {
        let is_known = self.candidates.iter().any(|c| c.edits == candidate.edits);
        if !is_known && !candidate.edits.is_empty() {
            self.candidates.push(candidate);
        }
        self
    }

    pub fn candidates(mut self, all: impl IntoIterator<Item = Candidate>) -> Finding {
        for candidate in all {
            self = self.candidate(candidate);
        }
        self
    }

    /// A further label, unless one stands at that place.
    pub fn label(mut self, span: Option<Span>, text: impl Into<String>) -> Finding {
        if let Some(span) = span {
            let d = &mut self.diagnostic;
            let text = text.into();
            let all = std::iter::once(&mut d.primary).chain(&mut d.secondary);
            match all.into_iter().find(|l| l.span == span) {
                // Beside another text there is room for the main thing only.
                Some(label) => {
                    let short = text.split(':').next().unwrap_or_default();
                    label.text = format!("{}; {short}", label.text);
                }
                None => d.secondary.push(crate::diagnostic::Label { span, text }),
            }
        }
        self
    }
}
