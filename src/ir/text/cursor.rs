//! Reads the words, numbers, strings and attribute values of one line.

use crate::{
    codes,
    diagnostic::{Code, Diagnostic},
    source::{FileId, Span},
};

/// A fault of the text. Boxed, since results of every small step carry it.
pub(super) type Fault = Box<Diagnostic>;

pub(super) fn fault(code: Code, span: Span, message: impl Into<String>) -> Fault {
    Box::new(Diagnostic::error(code, span, message))
}

/// Values nest no deeper than those of any op.
const MAX_NESTING: u32 = 8;

/// The value of an attribute.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Value<'s> {
    /// `dots`, `true`, `f32`.
    Word(&'s str),
    /// `-3`, `1e-5`, `0x1f`, as it is written.
    Number(&'s str),
    Str(String),
    List(Vec<Spanned<'s>>),
    Tuple(Vec<Spanned<'s>>),
    /// `region(3)`.
    Call(&'s str, Vec<Spanned<'s>>),
    /// `f32[2, 3]`.
    Indexed(&'s str, Vec<Spanned<'s>>),
    /// `%3`, without the `%`.
    Result(&'s str),
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Spanned<'s> {
    pub value: Value<'s>,
    pub span: Span,
}

/// A name and where it stands.
#[derive(Debug, Clone, Copy)]
pub(super) struct Word<'s> {
    pub text: &'s str,
    pub span: Span,
}

pub(super) struct Cursor<'s> {
    file: FileId,
    /// Where the line starts in its file.
    base: u32,
    line: &'s str,
    at: usize,
}

impl<'s> Cursor<'s> {
    pub(super) fn new(file: FileId, base: u32, line: &'s str) -> Self {
        let mut cursor = Cursor { file, base, line, at: 0 };
        cursor.skip_space();
        cursor
    }

    fn rest(&self) -> &'s str {
        self.line.get(self.at..).unwrap_or_default()
    }

    fn skip_space(&mut self) {
        self.at = self.line.len() - self.rest().trim_start().len();
        // A comment ends the line.
        if self.rest().starts_with('#') {
            self.at = self.line.len();
        }
    }

    pub(super) fn span(&self, start: usize, end: usize) -> Span {
        Span { file: self.file, start: self.base + start as u32, end: self.base + end as u32 }
    }

    /// The rest of the line, or its end.
    pub(super) fn here(&self) -> Span {
        let length = self.rest().chars().next().map_or(0, char::len_utf8);
        self.span(self.at, self.at + length)
    }

    pub(super) fn whole(&self) -> Span {
        self.span(0, self.line.trim_end().len())
    }

    pub(super) fn is_done(&self) -> bool {
        self.rest().is_empty()
    }

    pub(super) fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    pub(super) fn eat(&mut self, c: char) -> bool {
        let found = self.rest().starts_with(c);
        if found {
            self.at += c.len_utf8();
            self.skip_space();
        }
        found
    }

    pub(super) fn expect(&mut self, c: char) -> Result<(), Fault> {
        if self.eat(c) { Ok(()) } else { Err(self.expected(&format!("`{c}`"))) }
    }

    pub(super) fn expected(&self, what: &str) -> Fault {
        let message = match self.peek() {
            Some(c) => format!("expected {what}, found `{}`", c.escape_debug()),
            None => format!("expected {what}, found the end of the line"),
        };
        fault(codes::UNEXPECTED, self.here(), message)
    }

    /// The longest run of characters that are part of a name.
    fn run(&mut self) -> Option<Word<'s>> {
        let rest = self.rest();
        let length =
            rest.find(|c: char| !(c.is_alphanumeric() || c == '_' || c == '.')).unwrap_or(rest.len());
        let text = rest.get(..length).filter(|t| !t.is_empty())?;
        let span = self.span(self.at, self.at + length);
        self.at += length;
        Some(Word { text, span })
    }

    /// A word: `slot`, `n3`, `add`.
    pub(super) fn word(&mut self, what: &str) -> Result<Word<'s>, Fault> {
        if !self.peek().is_some_and(|c| c.is_alphabetic() || c == '_') {
            return Err(self.expected(what));
        }
        let word = self.run();
        self.skip_space();
        word.ok_or_else(|| self.expected(what))
    }

    /// `%3` or `%name`; the text is without the `%`.
    pub(super) fn result(&mut self) -> Result<Word<'s>, Fault> {
        if !self.rest().starts_with('%') {
            return Err(self.expected("a value such as `%3`"));
        }
        let start = self.at;
        self.at += 1;
        let word = self.run().ok_or_else(|| self.expected("the name of a value"))?;
        self.skip_space();
        Ok(Word { text: word.text, span: self.span(start, start + 1 + word.text.len()) })
    }

    /// Items with commas between them, up to the closing character, which is read.
    pub(super) fn list<T>(
        &mut self,
        close: char,
        mut item: impl FnMut(&mut Self) -> Result<T, Fault>,
    ) -> Result<Vec<T>, Fault> {
        let mut items = Vec::new();
        loop {
            if self.eat(close) {
                return Ok(items);
            }
            items.push(item(self)?);
            if !self.eat(',') {
                self.expect(close)?;
                return Ok(items);
            }
        }
    }

    pub(super) fn value(&mut self) -> Result<Spanned<'s>, Fault> {
        self.nested_value(0)
    }

    fn nested_value(&mut self, depth: u32) -> Result<Spanned<'s>, Fault> {
        if depth > MAX_NESTING {
            return Err(fault(codes::NESTED_TOO_DEEP, self.here(), "this value is nested too deep"));
        }
        let start = self.at;
        let value = match self.peek() {
            Some('"') => Value::Str(self.string()?),
            Some('%') => Value::Result(self.result()?.text),
            Some('[') => {
                self.eat('[');
                Value::List(self.list(']', |c| c.nested_value(depth + 1))?)
            }
            Some('(') => {
                self.eat('(');
                Value::Tuple(self.list(')', |c| c.nested_value(depth + 1))?)
            }
            Some(c) if c.is_ascii_digit() || c == '-' => Value::Number(self.number()),
            _ => {
                let word = self.word("a value")?;
                if self.eat('[') {
                    Value::Indexed(word.text, self.list(']', |c| c.nested_value(depth + 1))?)
                } else if self.eat('(') {
                    Value::Call(word.text, self.list(')', |c| c.nested_value(depth + 1))?)
                } else {
                    Value::Word(word.text)
                }
            }
        };
        let end = self.line.get(..self.at).unwrap_or_default().trim_end().len();
        Ok(Spanned { value, span: self.span(start, end.max(start)) })
    }

    fn number(&mut self) -> &'s str {
        let rest = self.rest();
        let hexadecimal = rest.starts_with("0x");
        let mut previous = ' ';
        let length = rest
            .find(|c: char| {
                let sign = matches!(c, '-' | '+')
                    && (previous == ' ' || (!hexadecimal && matches!(previous, 'e' | 'E')));
                previous = c;
                !(sign || c.is_ascii_alphanumeric() || c == '.')
            })
            .unwrap_or(rest.len());
        self.at += length;
        self.skip_space();
        rest.get(..length).unwrap_or_default()
    }

    /// A string in double quotes, with the escapes that Rust prints.
    pub(super) fn string(&mut self) -> Result<String, Fault> {
        let start = self.at;
        if !self.rest().starts_with('"') {
            return Err(self.expected("a string"));
        }
        let mut text = String::new();
        let mut chars = self.rest().char_indices().skip(1);
        while let Some((at, c)) = chars.next() {
            match c {
                '"' => {
                    self.at += at + 1;
                    self.skip_space();
                    return Ok(text);
                }
                '\\' => {
                    let (_, escape) = chars.next().unwrap_or((at, ' '));
                    let resolved = match escape {
                        'n' => Some('\n'),
                        't' => Some('\t'),
                        'r' => Some('\r'),
                        '0' => Some('\0'),
                        '\\' | '"' | '\'' => Some(escape),
                        'u' => {
                            let code: String = chars
                                .by_ref()
                                .map(|(_, c)| c)
                                .skip_while(|&c| c == '{')
                                .take_while(|&c| c != '}')
                                .take(8)
                                .collect();
                            u32::from_str_radix(&code, 16).ok().and_then(char::from_u32)
                        }
                        _ => None,
                    };
                    let Some(resolved) = resolved else {
                        let span = self.span(start + at, start + at + 1 + escape.len_utf8());
                        return Err(fault(codes::BAD_ESCAPE, span, format!("`\\{escape}` is not an escape")));
                    };
                    text.push(resolved);
                }
                _ => text.push(c),
            }
        }
        let span = self.span(start, self.line.len());
        Err(fault(codes::UNTERMINATED_STRING, span, "this string is not closed on its line"))
    }
}
