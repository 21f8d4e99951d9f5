//! Text to tokens. Everything that is no token is reported here and left out.

use logos::Logos;
use rustc_hash::FxHashMap;
use std::sync::Arc;

use super::{foreign, token::Spanned, token::Token};
use crate::{
    codes,
    diagnostic::Diagnostic,
    source::{FileId, Span},
};

/// What the lexer found in a piece of text.
pub(crate) struct Lexed<'s> {
    /// Newlines included, comments not.
    pub tokens: Vec<Spanned<'s>>,
    /// Documentation, by the start of the token it stands above.
    pub docs: FxHashMap<u32, Arc<str>>,
    pub diagnostics: Vec<Diagnostic>,
    /// The text ends inside its only unterminated string.
    pub open_string: bool,
    /// Where the unterminated strings end.
    pub open_strings: Vec<u32>,
}

/// Splits `text`, which starts at byte `offset` of its file.
pub(crate) fn lex(file: FileId, text: &str, offset: u32) -> Lexed<'_> {
    let mut lexer = Lexer {
        file,
        lexed: Lexed {
            tokens: Vec::with_capacity(text.len() / 4),
            docs: FxHashMap::default(),
            diagnostics: Vec::new(),
            open_string: false,
            open_strings: Vec::new(),
        },
        doc: String::new(),
        line_is_blank: true,
    };
    // A byte order mark is no part of the program.
    let skipped = if offset == 0 && text.starts_with('\u{feff}') { '\u{feff}'.len_utf8() } else { 0 };
    let body = text.get(skipped..).unwrap_or_default();
    let base = offset + skipped as u32;
    let mut unknown: Option<(u32, u32)> = None;
    // The end of a `/* … */`, which is reported and left out.
    let mut commented = 0;
    for (token, range) in Token::lexer(body).spanned() {
        let (start, end) = (base + range.start as u32, base + range.end as u32);
        let slice = body.get(range).unwrap_or_default();
        if start < commented {
            continue;
        }
        match token {
            Ok(token) => {
                lexer.unknown(unknown.take(), text, offset);
                if let Some(length) = lexer.starts_comment(start, token, text, offset) {
                    commented = start + length;
                    continue;
                }
                lexer.push(start, token, end);
            }
            // Neighbouring bad characters are one error.
            Err(()) => match &mut unknown {
                Some((_, last)) if *last == start => *last = end,
                _ => {
                    lexer.unknown(unknown.replace((start, end)), text, offset);
                    lexer.line_is_blank &= slice.trim().is_empty();
                }
            },
        }
    }
    lexer.unknown(unknown, text, offset);
    let end = offset + text.len() as u32;
    lexer.lexed.open_string = matches!(lexer.lexed.open_strings.as_slice(), [only] if *only == end);
    lexer.lexed
}

struct Lexer<'s> {
    file: FileId,
    lexed: Lexed<'s>,
    /// The `##` lines that wait for their declaration.
    doc: String,
    /// Nothing but space so far on this line.
    line_is_blank: bool,
}

impl<'s> Lexer<'s> {
    fn push(&mut self, start: u32, token: Token<'s>, end: u32) {
        let span = self.span(start, end);
        let token = match token {
            Token::Newline => {
                // An empty line separates a text from the declaration below it.
                if self.line_is_blank {
                    self.doc.clear();
                }
                self.line_is_blank = true;
                self.lexed.tokens.push((start, token, end));
                return;
            }
            Token::Comment(text) => {
                if self.line_is_blank
                    && let Some(doc) = text.strip_prefix("##")
                    && !doc.starts_with('#')
                {
                    if !self.doc.is_empty() {
                        self.doc.push('\n');
                    }
                    self.doc.push_str(doc.strip_prefix(' ').unwrap_or(doc).trim_end());
                    self.line_is_blank = false;
                } else if self.line_is_blank {
                    self.line_is_blank = false;
                }
                return;
            }
            Token::BadNumber(text) => {
                self.bad_number(span, text);
                Token::Invalid
            }
            // Escapes and holes of a broken string are not looked at.
            Token::OpenStr(_) => {
                self.report(
                    Diagnostic::error(
                        codes::UNTERMINATED_STRING,
                        span,
                        "this string is not closed on its line",
                    )
                    .label("`\"` is missing")
                    .help("close it with `\"`; write a line break inside a string as `\\n`"),
                );
                self.lexed.open_strings.push(end);
                Token::Invalid
            }
            Token::QuotedStr(_) => {
                self.report(
                    Diagnostic::error(codes::FOREIGN, span, "strings stand in double quotes")
                        .help("write `\"…\"` instead of `'…'`"),
                );
                Token::Invalid
            }
            Token::AmpAmp => self.replace(span, "&&", "and", Token::And),
            Token::BarBar => self.replace(span, "||", "or", Token::Or),
            Token::Bang => self.replace(span, "!", "not", Token::Not),
            other => other,
        };
        self.line_is_blank = false;
        if !self.doc.is_empty() {
            let doc = std::mem::take(&mut self.doc);
            self.lexed.docs.insert(start, doc.into());
        }
        self.lexed.tokens.push((start, token, end));
    }

    fn span(&self, start: u32, end: u32) -> Span {
        Span { file: self.file, start, end }
    }

    /// The rest of a comment of C whose `/` was read, from its `*`: up to `*/`, or to the end of the line.
    fn starts_comment(&mut self, start: u32, token: Token<'s>, text: &str, offset: u32) -> Option<u32> {
        let is_slash = |t: &Spanned<'s>| t.1 == Token::Slash && t.2 == start;
        if !matches!(token, Token::Star | Token::StarStar) || !self.lexed.tokens.last().is_some_and(is_slash)
        {
            return None;
        }
        self.lexed.tokens.pop();
        let rest = text.get((start - offset) as usize..)?;
        let length = match rest.get(1..).and_then(|r| r.find("*/")) {
            Some(at) => at + 3,
            None => rest.find('\n').unwrap_or(rest.len()),
        };
        self.report(
            Diagnostic::error(codes::FOREIGN, self.span(start - 1, start + 1), "`/*` starts no comment")
                .help("comments start with `#`, on each line"),
        );
        Some(length as u32)
    }

    fn report(&mut self, diagnostic: Diagnostic) {
        // Past this many, one more says nothing new.
        if self.lexed.diagnostics.len() < super::MAX_ERRORS {
            self.lexed.diagnostics.push(diagnostic);
        }
    }

    fn replace(&mut self, span: Span, found: &str, word: &str, token: Token<'s>) -> Token<'s> {
        self.report(
            Diagnostic::error(codes::FOREIGN, span, format!("`{found}` is not an operator"))
                .help(format!("write `{word}`")),
        );
        token
    }

    fn bad_number(&mut self, span: Span, text: &str) {
        let error = Diagnostic::error(codes::BAD_NUMBER, span, format!("`{}` is not a number", crop(text)));
        let lower = text.to_ascii_lowercase();
        self.report(if lower.starts_with("0x") || lower.starts_with("0b") || lower.starts_with("0o") {
            error.help("numbers are written in decimal")
        } else if lower.ends_with('b') && text.len() > 2 {
            error.help("sizes have one of the units `kB MB GB TB KiB MiB GiB TiB`")
        } else {
            error.help("a name starts with a letter; put an operator between a number and a name")
        });
    }

    fn unknown(&mut self, range: Option<(u32, u32)>, text: &str, offset: u32) {
        let Some((start, end)) = range else { return };
        let slice = text.get((start - offset) as usize..(end - offset) as usize).unwrap_or_default();
        let first = slice.chars().next().unwrap_or('\u{fffd}');
        let shown: String = crop(slice).chars().flat_map(visible).collect();
        let mut error = Diagnostic::error(
            codes::UNKNOWN_CHARACTER,
            self.span(start, end),
            format!("`{shown}` has no meaning here"),
        );
        if let Some(tip) = foreign::character_tip(first) {
            error = error.help(tip);
        }
        self.report(error);
    }
}

/// The first characters of a long text.
pub(crate) fn crop(text: &str) -> String {
    const LONGEST: usize = 32;
    match text.char_indices().nth(LONGEST) {
        Some((at, _)) => format!("{}…", text.get(..at).unwrap_or_default()),
        None => text.to_owned(),
    }
}

/// Control and invisible characters as escapes, so that a message stays readable.
fn visible(c: char) -> Vec<char> {
    let hidden = c.is_control()
        || matches!(c, '\u{a0}' | '\u{ad}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}');
    if hidden { c.escape_unicode().collect() } else { vec![c] }
}
