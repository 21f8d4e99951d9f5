//! Puts what the grammar did not expect into words.

use lalrpop_util::{ErrorRecovery, ParseError};
use rustc_hash::FxHashSet;

use super::{
    foreign,
    layout::{Bracket, Laid},
    lexer::crop,
    token::{Spanned, Token},
};
use crate::{
    codes,
    diagnostic::Diagnostic,
    ir::DType,
    source::{FileId, Span},
};

pub(crate) type Recovery<'s> = ErrorRecovery<u32, Token<'s>, ()>;
pub(crate) type Failure<'s> = ParseError<u32, Token<'s>, ()>;

/// Where an error of the grammar is, among the tokens it read.
pub(crate) struct Context<'s, 'l> {
    pub file: FileId,
    /// The whole file.
    pub text: &'s str,
    /// Where its lines start.
    pub lines: &'l [u32],
    pub laid: &'l Laid<'s>,
    /// What the tokens come to an end with: "the end of the text".
    pub end: &'static str,
    /// The lines on which an earlier pass reported something: what the grammar says about these
    /// is a consequence.
    pub explained: FxHashSet<usize>,
}

impl<'s> Context<'s, '_> {
    /// The diagnostic of an error, or `None` where its cause was reported by an earlier pass.
    pub(crate) fn describe(&self, error: &Failure<'s>) -> Option<Diagnostic> {
        let (found, expected) = match error {
            ParseError::UnrecognizedToken { token, expected } => (Some(*token), expected.as_slice()),
            ParseError::ExtraToken { token } => (Some(*token), [].as_slice()),
            ParseError::UnrecognizedEof { expected, .. } => (None, expected.as_slice()),
            ParseError::InvalidToken { location } => {
                (Some((*location, Token::Invalid, *location)), [].as_slice())
            }
            ParseError::User { .. } => return None,
        };
        let index = match found {
            Some((start, _, end)) => {
                self.laid.tokens.partition_point(|t| (t.0, t.2) < (start, end)).min(self.laid.tokens.len())
            }
            None => self.laid.tokens.len(),
        };
        let before = index.checked_sub(1).and_then(|i| self.laid.tokens.get(i)).copied();
        let span = self.place(found, before);
        let closes_nothing = found.is_some_and(|(start, _, end)| start == end);
        if closes_nothing
            || self.closes_reported_region(found, before)
            || found.is_some_and(|t| t.1 == Token::Invalid)
            || self.explained.contains(&line_of(self.lines, span.start))
            // A bracket that is not closed went on until here.
            || self.laid.unclosed.iter().any(|&(from, to)| from <= span.start && span.start <= to)
        {
            return None;
        }
        let what = self.found(found);
        if let Some(tip) = self.tip(found, before, index, expected) {
            let message = match &tip.word {
                _ if tip.message.is_some() => tip.message.unwrap_or_default().to_owned(),
                Some(word) => format!("`{word}` is not a word of this language"),
                None => format!("unexpected {}", what.trim_start_matches("the ")),
            };
            let code = if tip.word.is_some() { codes::FOREIGN } else { codes::UNEXPECTED };
            return Some(Diagnostic::error(code, tip.span.unwrap_or(span), message).help(tip.text));
        }
        let enclosing = self.enclosing(index);
        let expected = self.expected(expected, enclosing);
        let message = if expected.is_empty() {
            format!("unexpected {}", what.trim_start_matches("the "))
        } else {
            format!("expected {}, found {what}", list(&expected))
        };
        let mut diagnostic = Diagnostic::error(codes::UNEXPECTED, span, message);
        // A bracket to close stands in the message, with its line.
        if let ([_] | [_, _], Some(first)) = (expected.as_slice(), expected.first()) {
            let both = expected.iter().all(|e| !e.contains(" to close "));
            let text = if both { list(&expected) } else { first.clone() };
            diagnostic = diagnostic.label(format!("expected {text}"));
        }
        if let Some(word) = found.and_then(|t| t.1.word())
            && expected.iter().any(|e| e == "a name")
        {
            diagnostic = diagnostic.help(format!("`{word}` is reserved: choose another name"));
        }
        if let Some((start, bracket)) = enclosing
            && bracket != Bracket::Brace
        {
            let end = start + if bracket == Bracket::Region { 1 } else { bracket.opener().len() as u32 };
            let opener = Span { file: self.file, start, end };
            diagnostic = diagnostic.secondary(opener, format!("inside this `{}`", bracket.opener()));
        }
        Some(diagnostic)
    }

    /// Whether a `>` at the start of a line would have closed a region of which is said that it is not
    /// closed.
    fn closes_reported_region(&self, found: Option<Spanned<'s>>, before: Option<Spanned<'s>>) -> bool {
        let is_first = before.is_none_or(|b| matches!(b.1, Token::Separator | Token::OpenBrace));
        let is_region =
            |&(from, _): &(u32, u32)| self.text.get(from as usize..).is_some_and(|t| t.starts_with('<'));
        found.is_some_and(|f| {
            f.1 == Token::Greater && self.laid.unclosed.iter().any(|u| u.0 < f.0 && is_region(u))
        }) && is_first
    }

    /// The place to show: a line end is shown behind the last thing on its line.
    fn place(&self, found: Option<Spanned<'s>>, before: Option<Spanned<'s>>) -> Span {
        match (found, before) {
            (Some((start, token, end)), _) if token != Token::Separator => {
                Span { file: self.file, start, end }
            }
            (_, Some((_, _, end))) => Span { file: self.file, start: end, end },
            (Some((start, _, _)), None) => Span { file: self.file, start, end: start },
            (None, None) => Span { file: self.file, start: 0, end: 0 },
        }
    }

    fn found(&self, found: Option<Spanned<'s>>) -> String {
        match found {
            None => self.end.into(),
            Some((_, Token::Separator, end)) => {
                let text = self.text.get(..end as usize).unwrap_or_default();
                if text.ends_with(';') { "`;`".into() } else { "the end of the line".into() }
            }
            Some((start, _, end)) => {
                format!("`{}`", crop(self.text.get(start as usize..end as usize).unwrap_or_default()))
            }
        }
    }

    fn enclosing(&self, index: usize) -> Option<(u32, Bracket)> {
        match self.laid.enclosing.get(index) {
            Some(&enclosing) => enclosing,
            None => None,
        }
    }

    fn expected(&self, raw: &[String], enclosing: Option<(u32, Bracket)>) -> Vec<String> {
        // The parser quotes its terminals.
        let raw: Vec<&str> = raw.iter().map(|s| s.trim_matches('"')).collect();
        let has = |name: &str| raw.contains(&name);
        let mut words = Vec::new();
        let statement = has("let") && has("return");
        let expression = has("number") && has("name");
        // After an operand any operator may follow, which would be a long list to say.
        let operator = has("+") && has("**");
        if statement {
            words.push("a statement".to_owned());
        } else if expression {
            words.push("an expression".to_owned());
        } else if has("name") {
            words.push("a name".to_owned());
        }
        if operator && !expression {
            words.push("an operator".to_owned());
        }
        for name in raw {
            let covered = (statement || expression)
                && (starts_expression(name) || (statement && starts_statement(name)));
            let labels = operator && matches!(name, ":" | "=");
            if covered || labels || name == "name" || name == "invalid" || (operator && follows_operand(name))
            {
                continue;
            }
            words.push(match (name, enclosing) {
                ("separator", _) if statement => continue,
                ("separator", _) => "a new line".to_owned(),
                ("number", _) => "a number".to_owned(),
                ("string", _) => "a string".to_owned(),
                ("size", _) => "a size".to_owned(),
                ("region <", _) => "`<`".to_owned(),
                ("region >" | ")" | "]" | "}", Some((start, bracket))) => {
                    format!(
                        "`{}` to close the `{}` on line {}",
                        bracket.closer(),
                        bracket.opener(),
                        line_of(self.lines, start)
                    )
                }
                // Nothing is open: only a leftover could be closed.
                ("region >" | "}", None) => continue,
                (other, _) => format!("`{other}`"),
            });
        }
        words.dedup();
        words
    }

    /// Looks for the habits of other languages around an error.
    fn tip(
        &self,
        found: Option<Spanned<'s>>,
        before: Option<Spanned<'s>>,
        index: usize,
        expected: &[String],
    ) -> Option<Tip> {
        // `3 // the value`
        if found.is_some_and(|t| matches!(t.1, Token::Name(_)))
            && before.is_some_and(|t| matches!(t.1, Token::Name(_)))
            && let Some((start, end)) = self.slashes(index)
        {
            let span = Some(Span { file: self.file, start, end });
            return Some(Tip {
                word: Some("//".to_owned()),
                message: Some("`//` starts no comment"),
                span,
                text: "comments start with `#`".into(),
            });
        }
        // `assert x`, `print x`
        if let Some((start, Token::Name(word @ ("assert" | "print")), end)) = before
            && found.is_some_and(|t| t.1.starts_operand())
        {
            let text = match word {
                "assert" => "`assert` is a function: write `assert(condition, \"message\")`",
                _ => "`print` is a function: write `print(x)`",
            };
            let span = Some(Span { file: self.file, start, end });
            return Some(Tip { word: None, message: None, span, text: text.into() });
        }
        // The word before an unexpected one: `def f`, `while x`, `elif y`.
        let words = [before, found.filter(|_| !before.is_some_and(|b| matches!(b.1, Token::Name(_))))];
        for (start, token, end) in words.into_iter().flatten() {
            if let Token::Name(word) = token
                && let Some(text) = foreign::word_tip(word)
            {
                let span = Some(Span { file: self.file, start, end });
                return Some(Tip { word: Some(word.to_owned()), message: None, span, text: text.into() });
            }
        }
        // `with torch.no_grad():`
        if let Some((start, Token::Name(word), _)) = found
            && foreign::module_tip(word).is_some()
            && let Some((end, text)) = self.behind_dots(index)
        {
            let span = Some(Span { file: self.file, start, end });
            let word = self.text.get(start as usize..end as usize).unwrap_or_default().to_owned();
            return Some(Tip { word: Some(word), message: None, span, text: text.into() });
        }
        let token = found.map_or(Token::Separator, |t| t.1);
        let first = self.first_of_statement(index);
        let plain = |text: &str| Some(Tip { word: None, message: None, span: None, text: text.into() });
        let wants = |name: &str| expected.iter().any(|e| e.trim_matches('"') == name);
        let at = |back: usize| index.checked_sub(back).and_then(|i| self.laid.tokens.get(i)).map(|t| t.1);
        match token {
            Token::Str(_) if matches!(before, Some((_, Token::Name("f"), end)) if found.is_some_and(|t| t.0 == end)) => {
                plain("every string takes values in braces: write `\"…{x}…\"` without the `f`")
            }
            Token::Equal if matches!(at(2), Some(Token::Param | Token::Frozen | Token::State)) => {
                let name = match before {
                    Some((_, Token::Name(name), _)) => name,
                    _ => "w",
                };
                let word = if at(2) == Some(Token::State) { "state" } else { "param" };
                plain(&format!("a type comes first: write `{word} {name}: f32[3] = …`"))
            }
            Token::OpenBrace if wants("region <") => Some(Tip {
                word: None,
                message: Some("a `checkpoint` without its region"),
                span: None,
                text: "write `checkpoint < e >`, or `checkpoint < { … } >` around statements".into(),
            }),
            Token::OpenBrace
                if before.is_some_and(|b| b.1 == Token::CloseParen) && self.is_headless_function(index) =>
            {
                plain("functions are written `fn name(x) { … }`")
            }
            Token::Separator
                if wants("{") && self.laid.tokens.get(index + 1).is_some_and(|t| t.1 == Token::OpenBrace) =>
            {
                plain("the `{` stands on the same line")
            }
            _ if wants("over") && self.starts_with(index, Token::Minimize) => {
                let end = before.map_or(0, |b| b.2);
                Some(Tip {
                    word: None,
                    message: Some("`minimize` without `over`"),
                    span: Some(Span { file: self.file, start: end, end }),
                    text: "say what learns: `minimize loss over net with optim.sgd(lr: 0.1)`".into(),
                })
            }
            _ if wants("with") && self.starts_with(index, Token::Minimize) => {
                // Shown behind what is there: a `}` may be lines below.
                let end = before.map_or(0, |b| b.2);
                Some(Tip {
                    word: None,
                    message: Some("`minimize` without `with`"),
                    span: Some(Span { file: self.file, start: end, end }),
                    text: "say with which optimizer: `minimize loss over net with optim.sgd(lr: 0.1)`".into(),
                })
            }
            _ if wants("region <") && before.is_some_and(|b| b.1 == Token::CloseParen) => {
                let call = self.parenthesised(index).unwrap_or_else(|| "…".to_owned());
                Some(Tip {
                    word: None,
                    message: Some("a `checkpoint` without its region"),
                    span: before.map(|b| Span { file: self.file, start: b.2, end: b.2 }),
                    text: format!("write `checkpoint < {call} >`"),
                })
            }
            Token::Equal if self.laid.tokens.get(index + 1).is_some_and(|t| t.1 == Token::Greater) => {
                plain("a short function is written `fn name(x) = …`")
            }
            Token::Equal if matches!(first, Some(Token::For)) => {
                plain("loops are written `for i in 0..n { … }`")
            }
            Token::Plus if at(1) == Some(Token::Plus) => plain("write `i += 1`"),
            Token::Name("as") if before.is_some_and(|b| b.1.ends_operand()) => {
                plain("casts are calls: `f32(x)`")
            }
            Token::Star | Token::StarStar
                if matches!(self.enclosing(index), Some((_, Bracket::Paren)))
                    && matches!(at(1), Some(Token::OpenParen | Token::Comma)) =>
            {
                plain(
                    "there is no `*args` or `**kwargs`: parameters and arguments are written out; a list is one argument",
                )
            }
            Token::Colon
                if matches!(self.enclosing(index), Some((_, Bracket::Brace)))
                    && matches!(at(1), Some(Token::Str(_))) =>
            {
                plain("braces hold statements: there are no dictionaries; use a list, or a model with fields")
            }
            Token::Equal if matches!(first, Some(Token::If)) => plain("`=` assigns; `==` compares"),
            Token::Equal if !matches!(self.enclosing(index), None | Some((_, Bracket::Brace))) => {
                plain("`==` compares; named arguments are written `name: value`")
            }
            Token::OpenParen
                if at(2) == Some(Token::Colon)
                    && matches!(at(1), Some(Token::Name(name)) if DType::parse(name).is_some()) =>
            {
                let name = match at(1) {
                    Some(Token::Name(name)) => name,
                    _ => "f32",
                };
                plain(&format!("sizes stand in square brackets: `{name}[2, 3]`"))
            }
            Token::Colon
                if matches!(before, Some((_, Token::Name(_), _)))
                    && matches!(at(2), None | Some(Token::Separator | Token::OpenBrace)) =>
            {
                plain("names are bound by `let x = …`, and given another value by `x = …`")
            }
            Token::Colon
                if matches!(first, Some(Token::If | Token::For | Token::Fn | Token::Step | Token::Model)) =>
            {
                plain("a body stands in braces: `{ … }`")
            }
            Token::If if before.is_some_and(|b| b.1.ends_operand()) => {
                plain("a choice is written `if condition { a } else { b }`")
            }
            Token::SlashSlash
                if before.is_none_or(|b| matches!(b.1, Token::Separator | Token::OpenBrace)) =>
            {
                plain("comments start with `#`")
            }
            Token::Greater if before.is_some_and(|b| b.1 == Token::Equal) => {
                plain("a short function is written `fn name(x) = …`")
            }
            _ if before.is_some_and(|b| b.1 == Token::Dot)
                && index
                    .checked_sub(2)
                    .and_then(|i| self.laid.tokens.get(i))
                    .is_some_and(|t| matches!(t.1, Token::Number(_))) =>
            {
                plain("a number needs a digit after its point: `1.0`")
            }
            Token::Dot if self.starts_with_point(found) => {
                plain("a number needs a digit before its point: `0.5`")
            }
            _ => None,
        }
    }

    /// Of `a.b.c`, which starts at a token, where the last word ends and what to write instead of it.
    fn behind_dots(&self, index: usize) -> Option<(u32, &'static str)> {
        let mut tokens = self.laid.tokens.get(index + 1..)?.chunks_exact(2);
        let mut last = None;
        while let Some([(_, Token::Dot, _), (_, Token::Name(word), end)]) = tokens.next() {
            last = Some((*end, foreign::word_tip(word)?));
        }
        last
    }

    /// The tokens of a statement before one of them.
    fn statement_before(&self, index: usize) -> &[Spanned<'s>] {
        let tokens = self.laid.tokens.get(index.saturating_sub(FARTHEST)..index).unwrap_or_default();
        let start = tokens
            .iter()
            .rposition(|t| matches!(t.1, Token::Separator | Token::OpenBrace | Token::CloseBrace))
            .map_or(0, |i| i + 1);
        tokens.get(start..).unwrap_or_default()
    }

    /// Whether a statement is `name( … )` up to a token.
    fn is_headless_function(&self, index: usize) -> bool {
        let head = self.statement_before(index);
        let closes = head.iter().filter(|t| t.1 == Token::CloseParen).count();
        matches!(head, [(_, Token::Name(_), _), (_, Token::OpenParen, _), ..]) && closes == 1
    }

    /// The `//` before a token, in its statement.
    fn slashes(&self, index: usize) -> Option<(u32, u32)> {
        let tokens = self.laid.tokens.get(index.saturating_sub(FARTHEST)..index)?;
        let line = tokens.iter().rev().take_while(|t| t.1 != Token::Separator);
        line.filter(|t| t.1 == Token::SlashSlash).last().map(|t| (t.0, t.2))
    }

    /// Whether the statement around a token starts with a keyword.
    fn starts_with(&self, index: usize, keyword: Token<'s>) -> bool {
        let tokens = self.laid.tokens.get(index.saturating_sub(FARTHEST)..index).unwrap_or_default();
        let mut line =
            tokens.iter().rev().take_while(|t| !matches!(t.1, Token::Separator | Token::OpenBrace));
        line.any(|t| t.1 == keyword)
    }

    /// The text in the parentheses that end before a token.
    fn parenthesised(&self, index: usize) -> Option<String> {
        let close = index.checked_sub(1)?;
        let mut depth = 0usize;
        for at in (close.saturating_sub(FARTHEST)..=close).rev() {
            match self.laid.tokens.get(at)?.1 {
                Token::CloseParen => depth += 1,
                Token::OpenParen => depth = depth.checked_sub(1)?,
                _ => {}
            }
            if depth == 0 {
                let (start, end) = (self.laid.tokens.get(at)?.2, self.laid.tokens.get(close)?.0);
                return Some(crop(self.text.get(start as usize..end as usize)?.trim()));
            }
        }
        None
    }

    fn starts_with_point(&self, found: Option<Spanned<'s>>) -> bool {
        let after = found.and_then(|t| self.text.get(t.2 as usize..));
        after.and_then(|t| t.chars().next()).is_some_and(|c| c.is_ascii_digit())
    }

    fn first_of_statement(&self, index: usize) -> Option<Token<'s>> {
        // `let x = if …` is a choice as well.
        self.statement_before(index)
            .iter()
            .map(|t| t.1)
            .find(|t| matches!(t, Token::If | Token::For | Token::Fn | Token::Step | Token::Model))
    }
}

/// The line of an offset, from 1.
pub(crate) fn line_of(lines: &[u32], offset: u32) -> usize {
    lines.partition_point(|&start| start <= offset).max(1)
}

/// Statements are short; a long one gets no tip.
const FARTHEST: usize = 200;

struct Tip {
    /// A word that the language does not have.
    word: Option<String>,
    /// What to say instead of "unexpected …".
    message: Option<&'static str>,
    span: Option<Span>,
    text: String,
}

fn starts_expression(name: &str) -> bool {
    matches!(
        name,
        "number"
            | "size"
            | "string"
            | "true"
            | "false"
            | "("
            | "["
            | "{"
            | "-"
            | "not"
            | "if"
            | "checkpoint"
            | "barrier"
            | ".."
    )
}

fn starts_statement(name: &str) -> bool {
    matches!(
        name,
        "use"
            | "const"
            | "let"
            | "for"
            | "return"
            | "fn"
            | "step"
            | "model"
            | "optimizer"
            | "hook"
            | "param"
            | "state"
            | "minimize"
            | "sync"
            | "update"
            | "ensure"
            | "budget"
            | "release"
            | "shard"
            | "with"
            | "allow"
    )
}

fn follows_operand(name: &str) -> bool {
    matches!(
        name,
        "+" | "-"
            | "*"
            | "/"
            | "//"
            | "%"
            | "**"
            | "@"
            | "=="
            | "!="
            | "<"
            | "<="
            | ">"
            | ">="
            | "and"
            | "or"
            | "in"
            | ".."
            | "."
            | "("
            | "["
            | "="
            | "+="
            | "-="
            | "*="
            | "/="
            | "//="
            | "%="
            | "**="
            | "@="
            | ":="
    )
}

/// `a`, `a or b`, `a, b or c`; the rest of a long list is left out.
fn list(words: &[String]) -> String {
    const LONGEST: usize = 4;
    let shown = words.get(..words.len().min(LONGEST)).unwrap_or_default();
    match shown {
        [] => String::new(),
        [only] => only.clone(),
        [first @ .., last] => format!("{} or {last}", first.join(", ")),
    }
}
