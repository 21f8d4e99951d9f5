//! Reporting: where a message points to, and what it suggests.

use super::{Evaluator, value::Value};
use crate::{
    codes,
    diagnostic::{Code, Diagnostic, Label, Severity},
    ops::OpError,
    source::Span,
};

/// Why evaluation of an expression or statement ended early.
#[derive(Debug)]
pub enum Halt {
    /// Something was wrong, and is already reported.
    Reported,
    /// `return`: on its way to the function's call.
    Return(Value),
    /// The host asked to stop.
    Cancelled,
    /// In mode Check: a branch that may run ends in `error` or in a failing `assert`.
    Ended,
}

pub type Eval<T = Value> = Result<T, Halt>;

/// How many callers a message shows.
const SHOWN_CALLERS: usize = 3;

impl Evaluator {
    /// Adds a diagnostic. A message in library code points at the user's line that led there.
    pub(super) fn report(&mut self, mut diagnostic: Diagnostic) -> Halt {
        self.place(&mut diagnostic);
        // More than anybody reads; what is left out is still an error.
        let is_full = self.diagnostics.len() >= crate::syntax::MAX_ERRORS && self.error_count() > 0;
        let seen = is_full
            || self.diagnostics.iter().any(|d| {
                d.code == diagnostic.code
                    && d.primary.span == diagnostic.primary.span
                    && d.message == diagnostic.message
            });
        if !seen {
            self.diagnostics.push(diagnostic);
        }
        Halt::Reported
    }

    pub(super) fn error(&mut self, code: Code, span: Span, message: impl Into<String>) -> Halt {
        self.report(Diagnostic::error(code, span, message))
    }

    /// An operation on tensors that its operands do not allow.
    pub(super) fn op_error(&mut self, span: Span, error: OpError) -> Halt {
        let internal = error.message.strip_prefix("internal: ");
        let code = match internal {
            Some(_) => codes::INTERNAL,
            None if error.message.contains("mixes the dtypes") => codes::DTYPE_MIX,
            None => codes::TENSOR_OP,
        };
        let mut diagnostic = Diagnostic::error(code, span, internal.unwrap_or(&error.message));
        diagnostic.help.extend(error.help);
        if internal.is_some() {
            diagnostic.notes.push("this is a fault of `tg`: please report it with the program".into());
        }
        self.report(diagnostic)
    }

    pub(super) fn error_count(&self) -> usize {
        self.diagnostics.iter().filter(|d| d.severity == Severity::Error).count()
    }

    fn is_library(&self, span: Span) -> bool {
        self.sources.get(span.file).is_some_and(|f| f.is_library)
    }

    /// Adds the calls that led to the place of a message. Where that is in the library, the user's
    /// own line becomes the primary place.
    fn place(&self, diagnostic: &mut Diagnostic) {
        let inner = diagnostic.primary.span;
        if self.is_library(inner) {
            let Some(caller) = self.calls.iter().rev().find(|c| !self.is_library(c.span)) else { return };
            let text = std::mem::take(&mut diagnostic.primary.text);
            diagnostic.primary =
                Label { span: caller.span, text: format!("in this call of `{}`", caller.title) };
            diagnostic.secondary.insert(0, Label { span: inner, text });
        }
        let shown = diagnostic.primary.span;
        let callers = self
            .calls
            .iter()
            .rev()
            .filter(|c| !self.is_library(c.span) && !holds(c.span, shown))
            .take(SHOWN_CALLERS);
        for caller in callers {
            let text = match &caller.iteration {
                Some(iteration) => format!("in this call of `{}` ({iteration})", caller.title),
                None => format!("in this call of `{}`", caller.title),
            };
            if !diagnostic.secondary.iter().any(|l| l.span == caller.span) {
                diagnostic.secondary.push(Label { span: caller.span, text });
            }
        }
    }

    /// An error for a name that nothing defines.
    pub(super) fn unknown_name(&mut self, name: &str, span: Span, known: &[String]) -> Halt {
        let mut diagnostic = Diagnostic::error(codes::UNKNOWN_NAME, span, format!("unknown name `{name}`"));
        if let Some(tip) = foreign_word(name) {
            diagnostic.help.push(tip.into());
        } else if super::modules::is_library_module(name) {
            diagnostic.help.push(format!("write `use {name}` at the top of the file"));
        } else if let Some(close) = closest(name, known.iter().map(String::as_str)) {
            diagnostic.help.push(format!("did you mean `{close}`?"));
        }
        self.report(diagnostic)
    }
}

/// Whether a place lies inside another.
fn holds(outer: Span, inner: Span) -> bool {
    outer.file == inner.file && outer.start <= inner.start && inner.end <= outer.end
}

/// The candidate that a misspelt word most likely stands for.
pub fn closest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // One slip in three letters is still recognisable, more is a guess.
    let limit = match word.chars().count() {
        0..=2 => 1,
        3..=5 => 2,
        n => n / 3,
    };
    candidates
        .into_iter()
        .filter(|c| *c != word)
        .map(|c| (edit_distance(word, c), c.chars().next() != word.chars().next(), c))
        .filter(|(distance, _, c)| {
            *distance <= limit && *distance < c.chars().count().max(word.chars().count())
        })
        .min()
        .map(|(_, _, c)| c)
}

/// Insertions, deletions, replacements and swaps of neighbours.
fn edit_distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut before: Vec<usize> = Vec::new();
    let mut above: Vec<usize> = (0..=b.len()).collect();
    for (i, &x) in a.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, &y) in b.iter().enumerate() {
            let at = |r: &[usize], k: usize| r.get(k).copied().unwrap_or(usize::MAX / 2);
            let replace = at(&above, j) + usize::from(x != y);
            let mut best = replace.min(at(&above, j + 1) + 1).min(at(&row, j) + 1);
            let swapped = i > 0
                && j > 0
                && a.get(i - 1).copied() == Some(y)
                && b.get(j - 1).copied() == Some(x)
                && x != y;
            if swapped {
                best = best.min(at(&before, j - 1) + 1);
            }
            row.push(best);
        }
        before = std::mem::replace(&mut above, row);
    }
    above.last().copied().unwrap_or(0)
}

/// Words of Python and its libraries, and what `tg` has for them.
pub fn foreign_word(name: &str) -> Option<&'static str> {
    Some(match name {
        "append" => "lists are values: write `xs += [x]`",
        "float32" => "the dtype is `f32`",
        "float64" | "double" => "the dtype is `f64`",
        "float16" | "half" => "the dtype is `f16`",
        "bfloat16" => "the dtype is `bf16`",
        "int32" => "the dtype is `i32`",
        "int64" | "long" => "the dtype is `i64`",
        "uint8" => "the dtype is `u8`",
        "randn" => "write `normal(shape)`",
        "rand" => "write `uniform(shape)`",
        "cat" | "concatenate" => "write `concat([a, b], axis: 0)`",
        "view" => "write `reshape(x, shape)`",
        "permute" => "write `transpose(x, axes)`",
        "amax" => "write `max(x, axis: …)`",
        "einsum" => "write it with `@`, `transpose` and `sum`",
        _ => return crate::syntax::word_tip(name),
    })
}

/// Methods and fields of Python's tensors, lists and modules, and what `tg` has for them.
pub fn foreign_field(name: &str) -> Option<&'static str> {
    Some(match name {
        "append" | "extend" => "lists are values: write `xs += [x]`",
        "item" => "write `float(x)`",
        "backward" => "write `minimize loss over net with …`, or `grad(loss, net)`",
        "zero_grad" => "gradients are values and never accumulate by themselves: nothing to reset",
        "detach" => "write `stop_grad(x)`",
        "view" => "write `reshape(x, shape)`",
        "permute" => "write `transpose(x, axes)`",
        "cuda" | "cpu" => "the device is chosen with `--device`",
        "parameters" => "pass the model itself, as in `minimize loss over net with …`",
        "state_dict" | "load_state_dict" => {
            "write `save(\"file.safetensors\", net)` and `load(\"file.safetensors\", net)`"
        }
        "train" | "eval" => {
            "`training` is true in steps that take gradients; `with training: false { … }` overrides it"
        }
        "format" => "write the values into the text: `\"{x:.3}\"`",
        "numpy" => "tensors of the script are in host memory already",
        "weight" => "the field is `w`",
        "bias" => "the field is `b`",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suggestions_are_close() {
        assert_eq!(closest("softmx", ["softmax", "log_softmax", "sum"]), Some("softmax"));
        assert_eq!(closest("lenght", ["length", "len"]), Some("length"));
        assert_eq!(closest("a", ["b"]), None);
        assert_eq!(closest("completely", ["different"]), None);
    }

    #[test]
    fn swaps_count_once() {
        assert_eq!(edit_distance("sofmtax", "softmax"), 1);
        assert_eq!(edit_distance("", "abc"), 3);
        assert_eq!(edit_distance("abc", "abc"), 0);
    }
}
