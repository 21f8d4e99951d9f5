//! `allow(TG0305)`: leaves warnings out, on the next statement, or on the file where it stands
//! first.

use crate::{
    check::closest,
    codes,
    diagnostic::{Diagnostic, Severity},
    source::Span,
    syntax::ast::{Ast, Stmt, StmtKind},
};

/// Removes the warnings and notes that the program and its modules allow. Errors stay.
pub fn filter(ast: &Ast, diagnostics: &mut Vec<Diagnostic>) {
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
    let unknown: Vec<Diagnostic> = unknown_codes(ast);
    diagnostics.retain(|d| {
        let at = d.primary.span;
        let is_here = |s: &Span| s.file == at.file && s.start <= at.start && at.end <= s.end;
        d.severity == Severity::Error || !allowed.iter().any(|(code, s)| code == d.code.0 && is_here(s))
    });
    diagnostics.extend(unknown);
}

/// A code, and the text in which it is allowed.
type Allowed = (String, Span);

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

/// What each `allow` covers: the statement or the result that follows it.
fn next_of_each(ast: &Ast) -> Vec<Allowed> {
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
