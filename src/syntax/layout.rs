//! The pass between the lexer and the grammar: decides which newlines end a statement, which
//! words are keywords, which `<` and `>` belong to a `checkpoint`, and pairs all brackets.
//!
//! What it emits is balanced: a bracket that is never closed is reported and closed here, a
//! closer without an opener is reported and left out. So one mistake does not swallow the rest
//! of a file, and the grammar may rely on it when it recovers.

use super::{
    lexer::Lexed,
    token::{Spanned, Token},
};
use crate::{
    codes,
    diagnostic::Diagnostic,
    source::{FileId, Span},
};

/// The deepest nesting of brackets and prefix operators. The grammar's stack grows with it, and
/// its recovery walks that stack once for every token it skips.
const MAX_NESTING: u32 = 256;

/// At most this many brackets left open at one place are reported.
const MAX_UNCLOSED: usize = 4;

/// What the layout pass made of the tokens of a file.
pub(crate) struct Laid<'s> {
    pub tokens: Vec<Spanned<'s>>,
    /// For each token the opening bracket around it: its start and its kind.
    pub enclosing: Vec<Option<(u32, Bracket)>>,
    pub diagnostics: Vec<Diagnostic>,
    /// From where to where brackets go that are not closed, blocks left out.
    pub unclosed: Vec<(u32, u32)>,
    /// Where a `}` closed nothing.
    pub stray_braces: Vec<u32>,
    /// The text may go on: something is open at its end.
    pub incomplete: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bracket {
    Paren,
    Square,
    Brace,
    Region,
}

impl Bracket {
    pub(crate) fn opener(self) -> &'static str {
        match self {
            Bracket::Paren => "(",
            Bracket::Square => "[",
            Bracket::Brace => "{",
            Bracket::Region => "checkpoint <",
        }
    }

    pub(crate) fn closer(self) -> &'static str {
        match self {
            Bracket::Paren => ")",
            Bracket::Square => "]",
            Bracket::Brace => "}",
            Bracket::Region => ">",
        }
    }

    fn closing_token(self) -> Token<'static> {
        match self {
            Bracket::Paren => Token::CloseParen,
            Bracket::Square => Token::CloseBracket,
            Bracket::Brace => Token::CloseBrace,
            Bracket::Region => Token::CloseRegion,
        }
    }
}

pub(crate) fn lay_out<'s>(file: FileId, lexed: &Lexed<'s>) -> Laid<'s> {
    let mut layout = Layout {
        file,
        raw: &lexed.tokens,
        open_strings: &lexed.open_strings,
        at: 0,
        laid: Laid {
            tokens: Vec::with_capacity(lexed.tokens.len()),
            enclosing: Vec::with_capacity(lexed.tokens.len()),
            diagnostics: Vec::new(),
            unclosed: Vec::new(),
            stray_braces: Vec::new(),
            incomplete: false,
        },
        open: Vec::new(),
        level: Level::default(),
        newline: None,
        region: Region::None,
        deep_reported: false,
        mismatched: false,
    };
    layout.run();
    layout.laid
}

/// What differs from one bracket level to the next.
#[derive(Debug, Clone, Copy, Default)]
struct Level {
    /// The contextual word that the statement still waits for.
    awaits: Awaits,
    /// Nesting where this level started.
    floor: u32,
    /// Nesting that a binary operator does not resolve: branches of an `if`.
    base: u32,
    /// Nesting now.
    depth: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Awaits {
    #[default]
    Nothing,
    Over,
    With,
    As,
    /// The `by` of `shard`, and then its `over`, if it comes.
    By,
    Ranks,
    /// The `over` of `sync`, behind which `with` may come on the same line.
    SyncOver,
    SyncWith,
}

/// How much of `checkpoint(options) <` was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Region {
    None,
    /// `checkpoint`: `(` or `<` follows.
    Keyword,
    /// The options were closed: `<` follows.
    Options,
}

#[derive(Debug, Clone, Copy)]
struct Open {
    bracket: Bracket,
    start: u32,
    end: u32,
    /// The level around the bracket.
    outer: Level,
    /// The parameters of a declaration stand in it.
    head: bool,
    /// This is the option list of a `checkpoint`.
    options: bool,
    /// A comparison directly inside this region was reported.
    reported: bool,
}

struct Layout<'s, 'l> {
    file: FileId,
    raw: &'l [Spanned<'s>],
    /// Where strings that are not closed end.
    open_strings: &'l [u32],
    at: usize,
    laid: Laid<'s>,
    open: Vec<Open>,
    level: Level,
    /// A newline or `;` that was read and not yet judged.
    newline: Option<(u32, u32)>,
    region: Region,
    deep_reported: bool,
    /// A closer on this line did not fit: the others are shifted by it.
    mismatched: bool,
}

impl<'s> Layout<'s, '_> {
    fn run(&mut self) {
        while let Some(&(start, token, end)) = self.raw.get(self.at) {
            self.at += 1;
            if token == Token::Newline {
                self.mismatched = false;
                self.newline.get_or_insert((start, end));
                continue;
            }
            if token == Token::Semicolon && self.newlines_count() {
                self.newline = None;
                self.separate(start, end);
                continue;
            }
            self.judge_newline(start, token);
            let region = std::mem::replace(&mut self.region, Region::None);
            self.token(start, token, end, region);
        }
        let end = self.raw.last().map_or(0, |t| t.2);
        let trailing = self.last().is_some_and(|t| t.continues_line() || t == Token::Dot || t == Token::Else);
        let waits = matches!(self.level.awaits, Awaits::Over | Awaits::With | Awaits::By | Awaits::SyncOver);
        self.laid.incomplete = !self.open.is_empty() || self.region != Region::None || trailing || waits;
        self.unclosed(0, (end, end));
        // The end of the last statement is no separator.
        if self.last() == Some(Token::Separator) {
            self.laid.tokens.pop();
            self.laid.enclosing.pop();
        }
    }

    fn token(&mut self, start: u32, token: Token<'s>, end: u32, region: Region) {
        if let Some(word) = token.word()
            && self.is_label()
        {
            return self.emit(start, Token::Name(word), end);
        }
        match token {
            Token::OpenParen => self.push(Bracket::Paren, start, token, end, region == Region::Keyword),
            Token::OpenBracket => self.push(Bracket::Square, start, token, end, false),
            Token::OpenBrace => self.push(Bracket::Brace, start, token, end, false),
            Token::Less if region != Region::None => {
                self.push(Bracket::Region, start, Token::OpenRegion, end, false);
            }
            Token::CloseParen => self.close(Bracket::Paren, start, end),
            Token::CloseBracket => self.close(Bracket::Square, start, end),
            Token::CloseBrace => self.close(Bracket::Brace, start, end),
            _ if token.is_comparison() && self.top() == Some(Bracket::Region) => {
                self.comparison_in_region(start, token, end);
            }
            Token::Checkpoint => {
                self.region = Region::Keyword;
                self.emit(start, token, end);
            }
            Token::Name(name) => {
                let token = self.contextual(name).unwrap_or(token);
                self.emit(start, token, end);
            }
            Token::Minus | Token::Not if !self.last().is_some_and(Token::ends_operand) => {
                self.nest(start, token, end);
            }
            Token::StarStar => self.nest(start, token, end),
            Token::If | Token::Else => {
                self.level.base += 1;
                self.nest(start, token, end);
            }
            Token::Comma => {
                self.level.base = self.level.floor;
                self.level.depth = self.level.floor;
                self.emit(start, token, end);
            }
            // Inside brackets only: reported by the grammar.
            Token::Semicolon => self.emit(start, Token::Separator, end),
            _ => {
                if token.is_infix() {
                    self.level.depth = self.level.base;
                }
                self.emit(start, token, end);
            }
        }
    }

    /// Whether a reserved word stands where only a name can: after a dot, or as a label.
    fn is_label(&self) -> bool {
        match self.last() {
            Some(Token::Dot) => true,
            Some(Token::OpenParen | Token::Comma) => {
                self.top() == Some(Bracket::Paren) && self.peek(0) == Some(Token::Colon)
            }
            _ => false,
        }
    }

    /// The keyword that a name is where it stands.
    fn contextual(&mut self, name: &str) -> Option<Token<'s>> {
        if !self.starts_statement() {
            let after_operand = self.last().is_some_and(Token::ends_operand);
            let (token, awaits) = match (self.level.awaits, name) {
                (Awaits::Over, "over") if after_operand => (Token::Over, Awaits::With),
                (Awaits::With, "with") if after_operand => (Token::With, Awaits::Nothing),
                (Awaits::By, "by") if after_operand => (Token::By, Awaits::Ranks),
                (Awaits::Ranks, "over") if after_operand => (Token::Over, Awaits::Nothing),
                (Awaits::By, "flat")
                    if self.last() == Some(Token::Shard)
                        && self.name_follows(0)
                        && self.peek(0) != Some(Token::Name("by")) =>
                {
                    return Some(Token::Flat);
                }
                (Awaits::SyncOver, "over") if after_operand => (Token::Over, Awaits::SyncWith),
                (Awaits::SyncWith, "with") if after_operand => (Token::With, Awaits::Nothing),
                (Awaits::As, "as") if after_operand => (Token::As, Awaits::Nothing),
                _ if name == "frozen" && self.last() == Some(Token::Param) && self.name_follows(0) => {
                    return Some(Token::Frozen);
                }
                _ => return None,
            };
            self.level.awaits = awaits;
            return Some(token);
        }
        let operand_follows = self.peek(0).is_some_and(Token::starts_operand);
        let token = match name {
            "minimize" if operand_follows || self.line_holds("over") => {
                self.level.awaits = Awaits::Over;
                Token::Minimize
            }
            "sync" if operand_follows || self.line_holds("over") => {
                self.level.awaits = Awaits::SyncOver;
                Token::Sync
            }
            "update" if operand_follows || self.line_holds("with") => {
                self.level.awaits = Awaits::With;
                Token::Update
            }
            "ensure" if self.name_follows(0) => Token::Ensure,
            "budget" if matches!(self.peek(0), Some(Token::Size(_) | Token::Number(_) | Token::Name(_))) => {
                Token::Budget
            }
            // A size below zero is an error to be explained, not a difference of two names.
            "budget"
                if self.peek(0) == Some(Token::Minus)
                    && matches!(self.peek(1), Some(Token::Size(_) | Token::Number(_))) =>
            {
                Token::Budget
            }
            "release" if self.name_follows(0) => Token::Release,
            "shard" if self.name_follows(0) || self.line_holds("by") => {
                self.level.awaits = Awaits::By;
                Token::Shard
            }
            "param" if self.name_follows(0) => Token::Param,
            "state" if self.name_follows(0) => Token::State,
            "optimizer" if self.name_follows(0) => Token::Optimizer,
            "hook" if self.name_follows(0) => Token::Hook,
            "with" if self.peek(1) == Some(Token::Colon) => Token::With,
            "allow" if self.peek(0) == Some(Token::OpenParen) => match self.peek(1) {
                Some(Token::Name(code)) if code.starts_with("TG") => Token::Allow,
                _ => return None,
            },
            _ => return None,
        };
        Some(token)
    }

    /// The next statement may begin here.
    fn starts_statement(&self) -> bool {
        matches!(self.last(), None | Some(Token::Separator | Token::OpenBrace))
    }

    fn name_follows(&self, ahead: usize) -> bool {
        matches!(self.peek(ahead), Some(Token::Name(_)))
    }

    /// Whether `minimize (a + b) over …` and the like hold their second word: decides between
    /// the statement and an expression that starts with a variable of that name.
    fn line_holds(&self, word: &str) -> bool {
        if !matches!(self.peek(0), Some(Token::OpenParen | Token::OpenBracket | Token::Minus)) {
            return false;
        }
        let mut depth = 0usize;
        for &(_, token, _) in self.raw.get(self.at..).unwrap_or_default() {
            match token {
                Token::OpenParen | Token::OpenBracket => depth += 1,
                Token::CloseParen | Token::CloseBracket if depth == 0 => return false,
                Token::CloseParen | Token::CloseBracket => depth -= 1,
                // A statement inside may start the same search: stop, so that all of them
                // together stay linear.
                Token::OpenBrace | Token::CloseBrace | Token::Semicolon => return false,
                Token::Newline if depth == 0 => return false,
                Token::Name(name) if depth == 0 && name == word => return true,
                _ => {}
            }
        }
        false
    }

    /// Decides what the newline before `token` is, if there was one.
    fn judge_newline(&mut self, start: u32, token: Token<'s>) {
        let Some((newline, newline_end)) = self.newline.take() else { return };
        let starts_statement = (token.starts_statement() && self.peek(0) != Some(Token::Colon))
            || (!self.newlines_count() && self.is_statement_word(token));
        if starts_statement && !self.newlines_count() {
            let keep = self.open.iter().rposition(|o| o.bracket == Bracket::Brace).map_or(0, |i| i + 1);
            let word = match token {
                Token::Name(name) => Some(name),
                token => token.word(),
            };
            self.unclosed(keep, (start, start + word.map_or(0, |w| w.len() as u32)));
        }
        if !self.newlines_count() {
            return;
        }
        let is_keyword = starts_statement || matches!(token, Token::For | Token::Const);
        let continues = match token {
            Token::Else => true,
            Token::Less => self.region != Region::None,
            Token::Name("by") => self.level.awaits == Awaits::By,
            Token::Name("over") => {
                matches!(self.level.awaits, Awaits::Over | Awaits::Ranks | Awaits::SyncOver)
            }
            Token::Name("with") => self.level.awaits == Awaits::With,
            _ => false,
        };
        if continues || (!is_keyword && self.last().is_some_and(Token::continues_line)) {
            return;
        }
        self.separate(newline, newline_end);
    }

    /// Whether a word is that of a statement inside brackets, too: what follows it could follow no name
    /// of an expression.
    fn is_statement_word(&self, token: Token<'s>) -> bool {
        match token {
            Token::Name(
                "minimize" | "sync" | "update" | "ensure" | "release" | "param" | "state" | "optimizer"
                | "hook",
            ) => self.name_follows(0),
            Token::Name("budget") => matches!(self.peek(0), Some(Token::Size(_) | Token::Number(_))),
            _ => false,
        }
    }

    /// Ends a statement, unless none was begun.
    fn separate(&mut self, start: u32, end: u32) {
        self.level = Level {
            awaits: Awaits::Nothing,
            floor: self.level.floor,
            base: self.level.floor,
            depth: self.level.floor,
        };
        self.region = Region::None;
        if !self.starts_statement() {
            self.emit(start, Token::Separator, end);
        }
    }

    fn newlines_count(&self) -> bool {
        matches!(self.top(), None | Some(Bracket::Brace))
    }

    fn comparison_in_region(&mut self, start: u32, token: Token<'s>, end: u32) {
        let next = self.raw.get(self.at);
        match token {
            Token::Greater if !next.is_some_and(|t| t.1.starts_operand()) => {
                return self.close(Bracket::Region, start, end);
            }
            // `>==`: a region compared with something.
            Token::GreaterEqual if next.is_some_and(|t| t.1 == Token::Equal && t.0 == end) => {
                let equal_end = end + 1;
                self.at += 1;
                self.close(Bracket::Region, start, start + 1);
                return self.token(start + 1, Token::EqualEqual, equal_end, Region::None);
            }
            _ => {}
        }
        if let Some(region) = self.open.last_mut()
            && !std::mem::replace(&mut region.reported, true)
        {
            let opener = Span { file: self.file, start: region.start, end: region.end };
            self.report(
                Diagnostic::error(
                    codes::COMPARISON_IN_REGION,
                    Span { file: self.file, start, end },
                    "a comparison directly inside `checkpoint < … >` needs parentheses",
                )
                .label("read as a comparison")
                .secondary(opener, "the region starts here")
                .help("put the comparison in parentheses: `checkpoint < (a < b) >`"),
            );
        }
        self.level.depth = self.level.base;
        self.emit(start, token, end);
    }

    /// Counts one more level of nesting that no bracket shows.
    fn nest(&mut self, start: u32, token: Token<'s>, end: u32) {
        self.level.depth += 1;
        if self.level.depth > MAX_NESTING {
            self.too_deep(start, end);
        } else {
            self.emit(start, token, end);
        }
    }

    fn push(&mut self, bracket: Bracket, start: u32, token: Token<'s>, end: u32, options: bool) {
        if self.level.depth >= MAX_NESTING {
            return self.too_deep(start, end);
        }
        // A body starts: the parentheses of its head were forgotten.
        if bracket == Bracket::Brace
            && self.open.last().is_some_and(|o| o.head)
            && self.last().is_some_and(Token::ends_operand)
        {
            let keep = self.open.len() - 1;
            self.unclosed(keep, (start, end));
        }
        let declares = |t: &Spanned<'s>| matches!(t.1, Token::Fn | Token::Step | Token::Model);
        let before_name = self.laid.tokens.len().checked_sub(2).and_then(|at| self.laid.tokens.get(at));
        let head = bracket == Bracket::Paren && before_name.is_some_and(declares);
        self.emit(start, token, end);
        self.open.push(Open { bracket, start, end, outer: self.level, head, options, reported: false });
        let depth = self.level.depth + 1;
        self.level = Level { awaits: Awaits::Nothing, floor: depth, base: depth, depth };
    }

    /// Reports the token at `start` once, and leaves out what belongs to it.
    fn too_deep(&mut self, start: u32, end: u32) {
        if !std::mem::replace(&mut self.deep_reported, true) {
            self.report(
                Diagnostic::error(
                    codes::NESTED_TOO_DEEP,
                    Span { file: self.file, start, end },
                    format!("nested deeper than {MAX_NESTING} levels"),
                )
                .help("give a part of it a name with `let`"),
            );
        }
        let newline_ends = self.newlines_count();
        let mut depth = 0usize;
        self.at -= 1;
        let mut last = end;
        while let Some(&(_, token, token_end)) = self.raw.get(self.at) {
            match token {
                Token::OpenParen | Token::OpenBracket | Token::OpenBrace => depth += 1,
                Token::CloseParen | Token::CloseBracket | Token::CloseBrace if depth > 0 => depth -= 1,
                Token::CloseParen | Token::CloseBracket | Token::CloseBrace | Token::Comma if depth == 0 => {
                    break;
                }
                Token::Semicolon if depth == 0 => break,
                Token::Newline if depth == 0 && newline_ends => break,
                _ => {}
            }
            last = token_end;
            self.at += 1;
        }
        self.level.depth = self.level.base.min(MAX_NESTING);
        self.emit(start, Token::Invalid, last);
    }

    fn close(&mut self, bracket: Bracket, start: u32, end: u32) {
        // A closer looks for its opener, but not across a block.
        let found = self
            .open
            .iter()
            .rposition(|o| o.bracket == bracket || (o.bracket == Bracket::Brace && bracket != Bracket::Brace))
            .filter(|&i| self.open.get(i).is_some_and(|o| o.bracket == bracket));
        match found {
            Some(index) => {
                self.unclosed(index + 1, (start, end));
                self.pop(start, end);
            }
            None => self.unmatched(bracket, start, end),
        }
    }

    /// A closer without an opener. If another bracket is open it was probably meant.
    fn unmatched(&mut self, bracket: Bracket, start: u32, end: u32) {
        let span = Span { file: self.file, start, end };
        let closer = bracket.closer();
        let explained = std::mem::replace(&mut self.mismatched, true);
        match self.open.last().copied() {
            Some(open) if open.bracket != Bracket::Brace && bracket != Bracket::Brace => {
                self.report(
                    Diagnostic::error(
                        codes::UNMATCHED,
                        span,
                        format!("`{closer}` does not close `{}`", open.bracket.opener()),
                    )
                    .label(format!("`{}` expected", open.bracket.closer()))
                    .secondary(
                        Span { file: self.file, start: open.start, end: open.end },
                        format!("this `{}` is open", open.bracket.opener()),
                    ),
                );
                // What was meant to be in it is not known.
                self.emit(start, Token::Invalid, start);
                self.pop(start, end);
            }
            _ if explained && bracket != Bracket::Brace => {}
            _ => {
                if bracket == Bracket::Brace {
                    self.laid.stray_braces.push(start);
                }
                self.report(Diagnostic::error(
                    codes::UNMATCHED,
                    span,
                    format!("`{closer}` closes nothing that is open"),
                ));
            }
        }
    }

    /// One message for all brackets above the first `keep`, the innermost of which comes first.
    fn about_unclosed(&self, keep: usize, at: (u32, u32), here: u32) -> Diagnostic {
        let open: Vec<_> = self.open.iter().skip(keep).rev().take(MAX_UNCLOSED).collect();
        let place = |o: &Open| Span { file: self.file, start: o.start, end: o.end };
        let listed = |texts: Vec<String>| match texts.as_slice() {
            [rest @ .., last] if !rest.is_empty() => format!("{} and {last}", rest.join(", ")),
            all => all.join(""),
        };
        let openers = listed(open.iter().map(|o| format!("`{}`", o.bracket.opener())).collect());
        let is_are = if open.len() == 1 { "is" } else { "are" };
        let innermost = open.first().map_or(Span { file: self.file, start: here, end: here }, |o| place(o));
        let mut error =
            Diagnostic::error(codes::UNCLOSED, innermost, format!("{openers} {is_are} not closed"))
                .label("opened here");
        for outer in open.iter().skip(1) {
            error = error.secondary(place(outer), "opened here");
        }
        let closers = open.iter().map(|o| o.bracket.closer()).collect::<Vec<_>>().join(" ");
        // At the end of the text there is nothing that it should stand before.
        let (end, text) = match at.0 == at.1 {
            true => ((here, here), format!("`{closers}` is missing when the text ends")),
            false => (at, format!("`{closers}` expected before this")),
        };
        error = error.secondary(Span { file: self.file, start: end.0, end: end.1 }, text);
        if open.iter().any(|o| o.bracket == Bracket::Region) && at.0 != at.1 {
            error = error.help("statements inside a region stand in `checkpoint < { … } >`");
        }
        error
    }

    /// Reports and closes every bracket above the first `keep`; `at` is where closers were
    /// expected.
    fn unclosed(&mut self, keep: usize, at: (u32, u32)) {
        let count = self.open.len().saturating_sub(keep);
        // Where the text before `at` ends, which is where one would write the closer.
        let here = self.laid.tokens.last().map_or(at.0, |t| t.2);
        // The rest of the line, closers included, went into a string that is not closed.
        let explained = self.open_strings.contains(&here);
        if count > 0 && !explained {
            let error = self.about_unclosed(keep, at, here);
            self.report(error);
        }
        for _ in 0..count {
            let Some(open) = self.open.last().copied() else { return };
            // What was cut off has no value, and nothing more is said about it.
            if open.bracket != Bracket::Brace {
                self.laid.unclosed.push((open.start, here));
                self.emit(here, Token::Invalid, here);
            }
            self.pop(here, here);
        }
    }

    /// Closes the innermost bracket.
    fn pop(&mut self, start: u32, end: u32) {
        let Some(open) = self.open.last().copied() else { return };
        if open.bracket == Bracket::Brace && self.last() == Some(Token::Separator) {
            self.laid.tokens.pop();
            self.laid.enclosing.pop();
        }
        self.emit(start, open.bracket.closing_token(), end);
        self.open.pop();
        self.level = open.outer;
        if open.options {
            self.region = Region::Options;
        }
    }

    fn emit(&mut self, start: u32, token: Token<'s>, end: u32) {
        if token == Token::Use {
            self.level.awaits = Awaits::As;
        }
        self.laid.tokens.push((start, token, end));
        self.laid.enclosing.push(self.open.last().map(|o| (o.start, o.bracket)));
    }

    fn report(&mut self, diagnostic: Diagnostic) {
        if self.laid.diagnostics.len() < super::MAX_ERRORS {
            self.laid.diagnostics.push(diagnostic);
        }
    }

    fn last(&self) -> Option<Token<'s>> {
        self.laid.tokens.last().map(|t| t.1)
    }

    fn top(&self) -> Option<Bracket> {
        self.open.last().map(|o| o.bracket)
    }

    /// A token after the one that is being read, newlines counted.
    fn peek(&self, ahead: usize) -> Option<Token<'s>> {
        self.raw.get(self.at + ahead).map(|t| t.1)
    }
}
