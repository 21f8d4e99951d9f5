//! `allow(TG0305)`: leaves warnings out, on the next statement, or on the file where it stands
//! first.

use crate::{
    check::closest,
    codes,
    diagnostic::{Diagnostic, Severity},
    source::Span,
    syntax::ast::{Ast, Stmt, StmtId, StmtKind},
};

/// Removes the warnings and notes that the program allows. Errors stay.
pub fn filter(ast: &Ast, diagnostics: &mut Vec<Diagnostic>) {
    let mut allowed: Vec<(String, Option<Span>)> = Vec::new();
    collect(ast, &ast.body, &mut allowed);
    if let Some(&first) = ast.body.first()
        && let StmtKind::Allow(codes) = &ast.stmt(first).kind
    {
        allowed.extend(codes.iter().map(|c| (c.name.to_string(), None)));
    }
    let unknown: Vec<Diagnostic> = unknown_codes(ast);
    diagnostics.retain(|d| {
        d.severity == Severity::Error
            || d.primary.span.file != ast.file
            || !allowed.iter().any(|(code, span)| {
                code == d.code.0
                    && span.is_none_or(|s| s.start <= d.primary.span.start && d.primary.span.end <= s.end)
            })
    });
    diagnostics.extend(unknown);
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

fn collect(ast: &Ast, stmts: &[StmtId], into: &mut Vec<(String, Option<Span>)>) {
    for (k, &id) in stmts.iter().enumerate() {
        match &ast.stmt(id).kind {
            StmtKind::Allow(codes) => {
                if let Some(&next) = stmts.get(k + 1) {
                    let span = ast.stmt(next).span;
                    into.extend(codes.iter().map(|c| (c.name.to_string(), Some(span))));
                }
            }
            StmtKind::Fn(decl) | StmtKind::Step(decl) => collect(ast, &decl.body.stmts, into),
            StmtKind::Model(decl) => collect(ast, &decl.body, into),
            StmtKind::For { body, .. } | StmtKind::With { body, .. } => collect(ast, &body.stmts, into),
            _ => {}
        }
    }
}
