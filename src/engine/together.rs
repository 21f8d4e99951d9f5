//! One fault, one message: what several messages say of one slip is said once, with all its places.

use crate::{
    codes,
    diagnostic::{Code, Diagnostic, Label},
    source::{SourceMap, Span},
};

/// Faults that one slip repeats wherever it was made: a misspelt name, a missing `use`, a habit of
/// another language.
const REPEATED: [Code; 6] = [
    codes::UNKNOWN_NAME,
    codes::UNKNOWN_FIELD,
    codes::UNKNOWN_MODULE,
    codes::FOREIGN,
    codes::UNKNOWN_CHARACTER,
    codes::ARGUMENTS,
];
/// More places of one fault than anybody will go through.
const PLACES: usize = 200;
/// Lines that are listed.
const LISTED: usize = 12;

/// Joins messages about one fault: those that say the same of several places, and those that say the
/// same of one place which several calls lead to. The first one stays, with the places of the others.
pub fn join(diagnostics: &mut Vec<Diagnostic>, sources: &SourceMap) {
    let mut kept: Vec<Diagnostic> = Vec::with_capacity(diagnostics.len());
    let mut places: Vec<Places> = Vec::with_capacity(diagnostics.len());
    for diagnostic in diagnostics.drain(..) {
        let same = kept.iter().position(|k| says_the_same(k, &diagnostic));
        let called = || kept.iter().position(|k| is_called_again(k, &diagnostic));
        match (same, same.is_none().then(called).flatten()) {
            (Some(k), _) => {
                if let (Some(places), Some(first)) = (places.get_mut(k), kept.get_mut(k)) {
                    places.spans.push(diagnostic.primary.span);
                    // One change then mends all places.
                    for (fix, other) in first.fixes.iter_mut().zip(diagnostic.fixes) {
                        fix.edits.extend(other.edits);
                    }
                }
            }
            (None, Some(k)) => {
                if let (Some(places), Some(first)) = (places.get_mut(k), kept.get(k)) {
                    places.calls.extend(other_call(first, &diagnostic));
                    places.repeats += 1;
                }
            }
            (None, None) => {
                kept.push(diagnostic);
                places.push(Places::default());
            }
        }
    }
    for (diagnostic, places) in kept.iter_mut().zip(places) {
        places.add_to(diagnostic, sources);
    }
    *diagnostics = kept;
}

/// Where else a fault was found.
#[derive(Default)]
struct Places {
    spans: Vec<Span>,
    /// Other calls that lead to the same place.
    calls: Vec<Span>,
    repeats: usize,
}

impl Places {
    fn add_to(self, diagnostic: &mut Diagnostic, sources: &SourceMap) {
        diagnostic.secondary.extend(self.spans.into_iter().take(PLACES).map(Label::again));
        if self.repeats > 0 {
            let mut lines: Vec<usize> = self.calls.iter().map(|s| sources.start(*s).line).collect();
            lines.sort_unstable();
            lines.dedup();
            let from: Vec<String> = lines.iter().take(LISTED).map(usize::to_string).collect();
            let on = match from.len() {
                0 => String::new(),
                1 => format!(", from line {}", from.join(", ")),
                _ => format!(", from lines {}", from.join(", ")),
            };
            let calls = if self.repeats == 1 { "call leads" } else { "calls lead" };
            diagnostic.notes.push(format!("{} more {calls} to the same{on}", self.repeats));
        }
    }
}

/// Whether two messages differ only in their place.
fn says_the_same(first: &Diagnostic, other: &Diagnostic) -> bool {
    REPEATED.contains(&first.code)
        && first.code == other.code
        && first.severity == other.severity
        && first.message == other.message
        && first.help == other.help
        && first.primary.text == other.primary.text
        && first.fixes.len() == other.fixes.len()
        && first.fixes.iter().zip(&other.fixes).all(|(a, b)| a.title == b.title)
}

/// Whether two messages are about one place of the text, reached by other calls with other sizes.
fn is_called_again(first: &Diagnostic, other: &Diagnostic) -> bool {
    first.code == other.code
        && first.severity == other.severity
        && first.code.0.starts_with("TG02")
        && first.primary.span == other.primary.span
        && without_numbers(&first.message) == without_numbers(&other.message)
}

/// The innermost place of a call that only the second message has.
fn other_call(first: &Diagnostic, other: &Diagnostic) -> Option<Span> {
    let is_new = |l: &&Label| first.secondary.iter().all(|known| known.span != l.span);
    other.secondary.iter().find(is_new).map(|l| l.span)
}

fn without_numbers(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '0'..='9' if out.ends_with('0') => {}
            '0'..='9' => out.push('0'),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str, what: &str, sources: &SourceMap) -> Vec<Diagnostic> {
        let file = sources.files().next().expect("one file").0;
        let places = text.match_indices(what).map(|(i, w)| Span::new(file, i..i + w.len()));
        places.map(|s| Diagnostic::error(codes::UNKNOWN_NAME, s, format!("unknown name `{what}`"))).collect()
    }

    #[test]
    fn one_name_in_many_places_is_one_message() {
        let text = "x\n".repeat(20);
        let mut sources = SourceMap::new();
        sources.add("a.tg", text.as_str());
        let mut all = at(&text, "x", &sources);
        join(&mut all, &sources);
        let [only] = all.as_slice() else { panic!("{all:?}") };
        assert_eq!(only.secondary.iter().filter(|l| l.is_again()).count(), 19);
    }

    #[test]
    fn different_names_stay_apart() {
        let text = "x y";
        let mut sources = SourceMap::new();
        sources.add("a.tg", text);
        let mut all = at(text, "x", &sources);
        all.extend(at(text, "y", &sources));
        join(&mut all, &sources);
        assert_eq!(all.len(), 2);
    }

    #[test]
    fn one_place_that_two_calls_reach_is_one_message() {
        let mut sources = SourceMap::new();
        let file = sources.add("a.tg", "a\nb\nc\n");
        let of = |size: usize, call: usize| {
            let d = Diagnostic::error(codes::TENSOR_OP, Span::new(file, 0..1), format!("got f32[{size}]"));
            d.secondary(Span::new(file, call..call + 1), "in this call of `f`")
        };
        let mut all = vec![of(16, 2), of(4, 4)];
        join(&mut all, &sources);
        let [only] = all.as_slice() else { panic!("{all:?}") };
        assert_eq!(only.message, "got f32[16]");
        assert_eq!(only.notes, ["1 more call leads to the same, from line 3"]);
    }
}
