//! Text to tree: lexer, layout pass, grammar, syntax errors.
//!
//! [`parse`] takes any text. It reports all errors it finds and returns a tree of what it
//! understood, with [`ExprKind::Error`](ast::ExprKind::Error) and
//! [`StmtKind::Error`](ast::StmtKind::Error) in the gaps.

pub mod ast;
mod builder;
pub mod children;
mod errors;
mod foreign;
mod layout;
mod lexer;
mod literal;
mod lost;
mod print;
mod token;

use lalrpop_util::lalrpop_mod;

use self::{
    ast::{Ast, ExprId},
    builder::Builder,
    errors::{Context, Failure},
    layout::Laid,
    lexer::Lexed,
    token::Spanned,
};
use crate::{
    codes,
    diagnostic::Diagnostic,
    source::{FileId, Span},
};

pub use self::{
    children::Child,
    foreign::{module_tip, word_tip},
    literal::size,
    print::s_expression,
};

lalrpop_mod!(
    #[allow(clippy::all, clippy::pedantic, unused, missing_docs)]
    #[rustfmt::skip]
    tg
);

/// Errors of one file beyond this many are not collected.
pub(crate) const MAX_ERRORS: usize = 200;

/// Parses a file. Errors are in the order of the text.
pub fn parse(file: FileId, text: &str) -> (Ast, Vec<Diagnostic>) {
    if u32::try_from(text.len()).is_err() {
        let span = Span { file, start: 0, end: 0 };
        let error = Diagnostic::error(codes::TOO_LARGE, span, "a text of 4 GiB or more cannot be read");
        return (Ast { file, ..Ast::default() }, vec![error]);
    }
    parse_onto(Ast::default(), file, text)
}

/// Parses a file into the arena of a tree of other files. The body is that of the new file alone.
fn parse_onto(ast: Ast, file: FileId, text: &str) -> (Ast, Vec<Diagnostic>) {
    let mut lexed = lexer::lex(file, text, 0);
    let laid = layout::lay_out(file, &lexed);
    let mut builder = Builder::onto(ast, file, std::mem::take(&mut lexed.docs));
    builder.text = text;
    let mut reported = lexed.diagnostics;
    reported.extend_from_slice(&laid.diagnostics);
    let parsed = tg::FileParser::new().parse(&mut builder, feed(&laid));
    let (body, failure) = split(parsed);
    builder.ast.body = body.unwrap_or_default();
    builder.drop_cut_off(&laid.stray_braces);
    builder.describe(&laid, failure, &mut reported, "the end of the text");
    if reported.is_empty() && builder.diagnostics.is_empty() {
        builder.report_misplaced();
    }
    reported.append(&mut builder.diagnostics);
    reported.sort_by_key(|d| (d.primary.span.start, d.primary.span.end));
    reported.dedup();
    reported.truncate(MAX_ERRORS);
    (builder.ast, reported)
}

/// One tree of a program and of further files. Ids of the program's tree stay as they are; the
/// statements of the other files follow its own in the body.
pub fn with_files<'t>(program: &Ast, files: impl Iterator<Item = (FileId, &'t str)>) -> Ast {
    let mut whole = program.clone();
    for (file, text) in files.filter(|(_, text)| u32::try_from(text.len()).is_ok()) {
        let mut body = std::mem::take(&mut whole.body);
        whole = parse_onto(whole, file, text).0;
        body.append(&mut whole.body);
        whole.body = body;
        whole.file = program.file;
    }
    whole
}

/// Whether a REPL may run `text`: false while a bracket, a `checkpoint <`, a string or a block is
/// open, or the last line ends with an operator.
pub fn is_complete(text: &str) -> bool {
    if u32::try_from(text.len()).is_err() {
        return true;
    }
    let lexed = lexer::lex(FileId::default(), text, 0);
    !lexed.open_string && !layout::lay_out(FileId::default(), &lexed).incomplete
}

impl<'s> Builder<'s> {
    /// Parses the expression of a string's `{ }`; `None` where there is none.
    fn parse_hole(&mut self, lexed: Lexed<'s>) -> Option<ExprId> {
        let laid = layout::lay_out(self.ast.file, &lexed);
        let mut reported = lexed.diagnostics;
        reported.extend_from_slice(&laid.diagnostics);
        let outer = std::mem::take(&mut self.recoveries);
        let parsed = tg::HoleParser::new().parse(self, feed(&laid));
        let (expr, failure) = split(parsed);
        self.describe(&laid, failure, &mut reported, "the end of the `{ }`");
        reported.into_iter().for_each(|d| self.report(d));
        self.recoveries = outer;
        expr
    }

    /// Turns what the grammar recovered from, and what it failed with, into diagnostics.
    fn describe(
        &mut self,
        laid: &Laid<'s>,
        failure: Option<Failure<'s>>,
        reported: &mut Vec<Diagnostic>,
        end: &'static str,
    ) {
        if self.recoveries.is_empty() && failure.is_none() {
            return;
        }
        let lines = self.lines.get_or_insert_with(|| {
            let starts =
                self.text.bytes().enumerate().filter(|&(_, b)| b == b'\n').map(|(i, _)| i as u32 + 1);
            std::iter::once(0).chain(starts).collect()
        });
        let explained = reported.iter().map(|d| errors::line_of(lines, d.primary.span.start)).collect();
        let context = Context { file: self.ast.file, text: self.text, lines, laid, end, explained };
        let mut described: Option<u32> = None;
        for error in self.recoveries.drain(..).map(|r| r.error).chain(failure) {
            let Some(diagnostic) = context.describe(&error) else { continue };
            // What follows on the same line, in the same statement, may well be due to it.
            let at = diagnostic.primary.span.start;
            let between = described.and_then(|from| self.text.get(from as usize..at as usize));
            let is_due = between.is_some_and(|text| !text.contains(['\n', ';', '{', '}']));
            described = Some(at);
            if !is_due {
                reported.push(diagnostic);
            }
        }
    }
}

fn feed<'l, 's>(laid: &'l Laid<'s>) -> impl Iterator<Item = Result<Spanned<'s>, ()>> + use<'l, 's> {
    laid.tokens.iter().map(|&t| Ok(t))
}

fn split<T, E>(result: Result<T, E>) -> (Option<T>, Option<E>) {
    match result {
        Ok(value) => (Some(value), None),
        Err(error) => (None, Some(error)),
    }
}
