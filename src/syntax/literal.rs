//! Numbers, sizes and strings.

use super::{
    ast::{ExprId, ExprKind, StrPart},
    builder::Builder,
    lexer::{self, crop},
};
use crate::{codes, diagnostic::Diagnostic};

impl<'s> Builder<'s> {
    pub(crate) fn number(&mut self, text: &str, start: u32, end: u32) -> ExprId {
        let digits = text.replace('_', "");
        let kind = if digits.contains(['.', 'e', 'E']) {
            match digits.parse::<f64>() {
                Ok(value) if value.is_finite() => ExprKind::Float(value),
                _ => return self.bad_number(text, "does not fit in 64 bits", start, end),
            }
        } else {
            match digits.parse::<i64>() {
                Ok(value) => ExprKind::Int(value),
                Err(_) => return self.bad_number(text, "does not fit in 64 bits", start, end),
            }
        };
        self.expr(kind, start, end)
    }

    pub(crate) fn size(&mut self, text: &str, start: u32, end: u32) -> ExprId {
        match size(text) {
            Some(size) => self.expr(ExprKind::Size(size), start, end),
            None => self.bad_number(text, "is more bytes than 64 bits can count", start, end),
        }
    }

    fn bad_number(&mut self, text: &str, why: &str, start: u32, end: u32) -> ExprId {
        let message = format!("`{}` {why}", crop(text));
        self.report(Diagnostic::error(codes::BAD_NUMBER, self.span(start, end), message));
        self.expr(ExprKind::Error, start, end)
    }

    /// A string with its quotes; the expressions in its holes are parsed with their own spans.
    pub(crate) fn string(&mut self, text: &'s str, start: u32, end: u32) -> ExprId {
        let body = text.strip_prefix('"').and_then(|t| t.strip_suffix('"')).unwrap_or_default();
        let base = start + 1;
        let mut parts = Vec::new();
        let mut literal = String::new();
        let mut at = 0;
        let sound = self.unreported();
        while let Some(c) = body.get(at..).and_then(|rest| rest.chars().next()) {
            let rest = body.get(at..).unwrap_or_default();
            let here = base + at as u32;
            match c {
                '\\' => at += self.escape(rest, here, &mut literal),
                '{' if rest.starts_with("{{") => {
                    literal.push('{');
                    at += 2;
                }
                '}' => {
                    if !rest.starts_with("}}") {
                        self.report(
                            Diagnostic::error(
                                codes::BAD_HOLE,
                                self.span(here, here + 1),
                                "`}` closes nothing",
                            )
                            .help("write `}}` for a brace in a string"),
                        );
                    }
                    literal.push('}');
                    at += if rest.starts_with("}}") { 2 } else { 1 };
                }
                '{' => {
                    let Some(length) = rest.find('}') else {
                        self.report(
                            Diagnostic::error(
                                codes::BAD_HOLE,
                                self.span(here, here + 1),
                                "`{` is not closed in this string",
                            )
                            .help("write `{{` for a brace in a string"),
                        );
                        break;
                    };
                    if !literal.is_empty() {
                        parts.push(StrPart::Text(std::mem::take(&mut literal).into()));
                    }
                    let hole = rest.get(1..length).unwrap_or_default();
                    parts.push(self.hole(hole, here + 1));
                    at += length + 1;
                }
                _ => {
                    literal.push(c);
                    at += c.len_utf8();
                }
            }
        }
        if !literal.is_empty() || parts.is_empty() {
            parts.push(StrPart::Text(literal.into()));
        }
        // A text with a mistake in it is not the one that was meant.
        let kind = if self.unreported() == sound { ExprKind::Str(parts) } else { ExprKind::Error };
        self.expr(kind, start, end)
    }

    /// Resolves the escape that `rest` starts with; returns its length.
    fn escape(&mut self, rest: &str, start: u32, into: &mut String) -> usize {
        let Some(c) = rest.chars().nth(1) else { return 1 };
        let length = 1 + c.len_utf8();
        let resolved = match c {
            'n' => '\n',
            't' => '\t',
            'r' => '\r',
            '0' => '\0',
            '\\' | '"' | '{' | '}' => c,
            'u' => {
                // Six hexadecimal digits are the most that a character has.
                let braces: String = rest.chars().skip(2).take(8).collect();
                let digits = braces.strip_prefix('{').and_then(|r| r.split_once('}'));
                let value =
                    digits.and_then(|(d, _)| u32::from_str_radix(d, 16).ok()).and_then(char::from_u32);
                if let (Some((digits, _)), Some(value)) = (digits, value) {
                    into.push(value);
                    return 4 + digits.len();
                }
                self.bad_escape("u", start, length);
                return length;
            }
            _ => {
                self.bad_escape(&c.to_string(), start, length);
                c
            }
        };
        into.push(resolved);
        length
    }

    fn bad_escape(&mut self, c: &str, start: u32, length: usize) {
        let span = self.span(start, start + length as u32);
        let error = Diagnostic::error(codes::BAD_ESCAPE, span, format!("`\\{c}` is not an escape"));
        self.report(match c {
            "u" => error.help("a character by its number is written `\\u{1f600}`"),
            _ => error.help("the escapes are `\\n \\t \\r \\0 \\\\ \\\" \\{ \\} \\u{…}`"),
        });
    }

    /// `expr` or `expr:format`, without the braces.
    fn hole(&mut self, text: &'s str, start: u32) -> StrPart {
        let (code, format) = split_format(text);
        let end = start + code.len() as u32;
        let format = format.map(|f| {
            let trimmed = f.trim();
            let lead = (f.len() - f.trim_start().len()) as u32;
            let at = end + 1 + lead;
            self.ident(trimmed, at, at + trimmed.len() as u32)
        });
        if code.trim().is_empty() {
            self.report(
                Diagnostic::error(
                    codes::BAD_HOLE,
                    self.span(start.saturating_sub(1), end + 1),
                    "this `{ }` is empty",
                )
                .help("put an expression into it, or write `{{` and `}}` for braces"),
            );
            return StrPart::Hole { expr: self.expr(ExprKind::Error, start, end), format };
        }
        let lexed = lexer::lex(self.ast.file, code, start);
        let expr = self.parse_hole(lexed).unwrap_or_else(|| self.expr(ExprKind::Error, start, end));
        StrPart::Hole { expr, format }
    }
}

/// A size such as `1.5 GiB`, in bytes; `None` for other texts and beyond 64 bits.
pub fn size(text: &str) -> Option<u64> {
    let unit_at = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let (number, unit) = text.split_at(unit_at);
    bytes(&number.trim_end().replace('_', ""), unit)
}

/// Cuts at the last `:` outside of brackets, if there is one.
fn split_format(text: &str) -> (&str, Option<&str>) {
    let mut depth = 0i32;
    let mut cut = None;
    for (at, c) in text.char_indices() {
        match c {
            '(' | '[' => depth += 1,
            ')' | ']' => depth -= 1,
            ':' if depth <= 0 => cut = Some(at),
            _ => {}
        }
    }
    match cut {
        Some(at) => (text.get(..at).unwrap_or_default(), text.get(at + 1..)),
        None => (text, None),
    }
}

/// A decimal number of units in bytes, rounded to the nearest byte; `None` beyond 64 bits.
fn bytes(number: &str, unit: &str) -> Option<u64> {
    let (kind, binary) = match unit.strip_suffix("iB") {
        Some(prefix) => (prefix, true),
        None => (unit.strip_suffix('B')?, false),
    };
    let power = match kind {
        "k" | "K" => 1,
        "M" => 2,
        "G" => 3,
        "T" => 4,
        _ => return None,
    };
    let unit: u128 = if binary { 1 << (10 * power) } else { 10u128.pow(3 * power) };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let whole = whole.parse::<u64>().ok()? as u128;
    // More digits than these cannot change the byte.
    let fraction = fraction.get(..fraction.len().min(20)).unwrap_or_default();
    let scale = 10u128.pow(fraction.len() as u32);
    let part = match fraction {
        "" => 0,
        digits => (digits.parse::<u128>().ok()?.checked_mul(unit)? + scale / 2) / scale,
    };
    u64::try_from(whole.checked_mul(unit)?.checked_add(part)?).ok()
}
