//! `allow(TG0305)`: leaves warnings out, on the next statement, or on the file where it stands
//! first.

use crate::{
    check::closest,
    codes,
    diagnostic::{Diagnostic, Severity},
    source::Span,
    syntax::ast::{Ast, Stmt, StmtKind},
};

/// Removes the warnings and notes that the program and its modules allow. Errors stay. Words in `allow`
/// that are no codes are warnings.
pub fn filter(ast: &Ast, diagnostics: &mut Vec<Diagnostic>) {
    let allowed = allowed(ast);
    diagnostics.retain(|d| !allowed.covers(d));
    diagnostics.extend(unknown_codes(ast));
}

/// What a program and its modules allow.
#[derive(Default)]
pub struct Allowed(Vec<(String, Span)>);

impl Allowed {
    pub fn covers(&self, d: &Diagnostic) -> bool {
        let at = d.primary.span;
        let is_here = |s: &Span| s.file == at.file && s.start <= at.start && at.end <= s.end;
        d.severity != Severity::Error && self.0.iter().any(|(code, s)| code == d.code.0 && is_here(s))
    }
}

pub fn allowed(ast: &Ast) -> Allowed {
    let mut allowed = next_of_each(ast);
    let mut file = None;
    for &id in &ast.body {
        let stmt = ast.stmt(id);
        let is_first = file.replace(stmt.span.file) != Some(stmt.span.file);
        if let (true, StmtKind::Allow(codes)) = (is_first, &stmt.kind) {
            let whole = Span { file: stmt.span.file, start: 0, end: u32::MAX };
            allowed.extend(codes.iter().map(|c| (c.name.to_string(), whole)));
        }
    }
    Allowed(allowed)
}

/// Warnings for the words in `allow` that are no codes.
fn unknown_codes(ast: &Ast) -> Vec<Diagnostic> {
    let codes_of = |stmt: &Stmt| match &stmt.kind {
        StmtKind::Allow(codes) => codes.clone(),
        _ => Vec::new(),
    };
    let written = ast.stmts.iter().flat_map(codes_of);
    written
        .filter(|code| !codes::ALL.iter().any(|(known, _)| known.0 == &*code.name))
        .map(|code| {
            let message = format!("no diagnostic has the code `{}`", code.name);
            let warning = Diagnostic::new(Severity::Warning, codes::BAD_OPTION, code.span, message);
            match closest(&code.name, codes::ALL.iter().map(|(known, _)| known.0)) {
                Some(close) => warning.help(format!("did you mean `{close}`?")),
                None => warning.help("`tg explain` lists the codes"),
            }
        })
        .collect()
}

/// What each `allow` covers: the statement or the result that follows it. A code, and the text in which it is
/// allowed.
fn next_of_each(ast: &Ast) -> Vec<(String, Span)> {
    let allows = ast.stmts.iter().filter_map(|stmt| match &stmt.kind {
        StmtKind::Allow(codes) => Some((stmt.span, codes)),
        _ => None,
    });
    let mut all = Vec::new();
    for (at, codes) in allows {
        let spans = ast.stmts.iter().map(|s| s.span).chain(ast.exprs.iter().map(|e| e.span));
        let behind = spans.filter(|s| s.file == at.file && s.start >= at.end);
        // Of what starts there, the outermost.
        if let Some(next) = behind.min_by_key(|s| (s.start, std::cmp::Reverse(s.end))) {
            all.extend(codes.iter().map(|c| (c.name.to_string(), next)));
        }
    }
    all
}
