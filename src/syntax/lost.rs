//! What text that could not be parsed would have bound.
//!
//! The evaluator judges what was understood. So that one mistake in the text does not turn into
//! others about names, the names that the lost text would have bound are known as lost.

use logos::Logos;
use std::sync::Arc;

use super::{
    ast::{ExprKind, Ident, ParamDecl, StmtId, StmtKind},
    builder::Builder,
    errors::Recovery,
    foreign,
    token::Token,
};

impl<'s> Builder<'s> {
    /// A statement that did not parse.
    pub(crate) fn failed_stmt(&mut self, recovery: Recovery<'s>, start: u32, end: u32) -> StmtId {
        self.recovered(recovery);
        self.failed.push(self.span(start, end));
        let names = self.lose(start, end);
        self.stmt(StmtKind::Error(names), start, end)
    }

    /// Parameters that did not parse: what stands before a `:` is one. They may be left out of calls.
    pub(crate) fn failed_param(&mut self, recovery: Recovery<'s>, start: u32, end: u32) -> Vec<ParamDecl> {
        self.recovered(recovery);
        let text = self.text.get(start as usize..end as usize).unwrap_or_default();
        let tokens: Vec<_> = Token::lexer(text).spanned().collect();
        let mut params = Vec::new();
        for (at, (token, range)) in tokens.iter().enumerate() {
            let is_labelled = matches!(tokens.get(at + 1), Some((Ok(Token::Colon), _)));
            if let Ok(Token::Name(name)) = token
                && (at == 0 || is_labelled)
            {
                let place = (start + range.start as u32, start + range.end as u32);
                let default = Some(self.expr(ExprKind::Error, start, end));
                params.push(self.param(self.ident(name, place.0, place.1), None, default, start));
            }
        }
        if params.is_empty() && !text.trim().is_empty() {
            self.ast.lost_any = true;
            let default = Some(self.expr(ExprKind::Error, start, end));
            params.push(self.param(self.ident("_", start, end), None, default, start));
        }
        params
    }

    /// The statements of a model's body; where its `}` is missing nothing is known of them.
    pub(crate) fn items(&mut self, stmts: Vec<StmtId>, start: u32, end: u32, cut_off: bool) -> Vec<StmtId> {
        if !cut_off {
            return stmts;
        }
        let names = self.lose(start, end);
        vec![self.stmt(StmtKind::Error(names), start, end)]
    }

    /// The statements of a body, without those that stand deeper than a failed one before them: they
    /// belong to it, as in `def f(x):` with its body below.
    pub(crate) fn statements(&mut self, stmts: Vec<StmtId>) -> Vec<StmtId> {
        if self.failed.is_empty() {
            return stmts;
        }
        let mut kept = Vec::with_capacity(stmts.len());
        let mut failed_at = None;
        for id in stmts {
            let stmt = self.ast.stmt(id);
            let (span, failed) = (stmt.span, matches!(stmt.kind, StmtKind::Error(_)));
            let indent = self.indent(span.start);
            if let (Some(failed_at), Some(indent)) = (failed_at, indent)
                && indent > failed_at
            {
                self.lose(span.start, span.end);
                continue;
            }
            failed_at = indent.filter(|_| failed);
            kept.push(id);
        }
        kept
    }

    /// How far from the start of its line a statement stands; `None` where it is not the first there.
    fn indent(&self, start: u32) -> Option<usize> {
        let before = self.text.get(..start as usize)?;
        let line = before.rsplit('\n').next()?;
        line.trim().is_empty().then_some(line.len())
    }

    /// Notes the names that a stretch of text would have bound, and gives them.
    pub(crate) fn lose(&mut self, start: u32, end: u32) -> Vec<Ident> {
        let text = self.text.get(start as usize..end as usize).unwrap_or_default();
        let (names, nameless) = bound_names(text);
        self.ast.lost_any |= nameless;
        let names: Vec<Ident> =
            names.into_iter().map(|(name, from, to)| self.ident(name, start + from, start + to)).collect();
        self.ast.lost.extend(names.iter().map(|n| Arc::clone(&n.name)));
        names
    }

    /// Takes a statement out of the tree: it is reported.
    pub(crate) fn forget(&mut self, id: StmtId) {
        let span = self.ast.stmt(id).span;
        let names = self.lose(span.start, span.end);
        if let Some(stmt) = self.ast.stmts.get_mut(id.0 as usize) {
            stmt.kind = StmtKind::Error(names);
        }
    }

    /// At a `}` of the top level: what stands before it belongs to a block whose head did not parse.
    pub(crate) fn drop_leftover(&mut self, body: &mut Vec<StmtId>, brace: u32) {
        let is_broken = |b: &Self, id: StmtId| {
            let span = b.ast.stmt(id).span;
            b.failed.iter().any(|f| span.start <= f.start && f.end <= span.end)
        };
        let Some(at) = body.iter().rposition(|&id| is_broken(self, id)) else { return };
        let Some(&first) = body.get(at) else { return };
        let start = self.ast.stmt(first).span.start;
        body.truncate(at);
        let names = self.lose(start, brace);
        body.push(self.stmt(StmtKind::Error(names), start, brace));
    }

    /// A `}` that closes nothing: the block before it ended too early, and what stands between is
    /// taken out of the tree.
    pub(crate) fn drop_cut_off(&mut self, strays: &[u32]) {
        for &brace in strays {
            let until = self.ast.body.partition_point(|&id| self.ast.stmt(id).span.start < brace);
            let is_block = |id: &StmtId| {
                let text = self.ast.stmt(*id).span;
                self.text.get(..text.end as usize).is_some_and(|t| t.ends_with('}'))
            };
            let before = self.ast.body.get(..until).unwrap_or_default();
            let Some(first) = before.iter().rposition(is_block) else { continue };
            let Some(&block) = before.get(first) else { continue };
            let start = self.ast.stmt(block).span.start;
            self.ast.body.drain(first..until);
            let names = self.lose(start, brace);
            let id = self.stmt(StmtKind::Error(names), start, brace);
            self.ast.body.insert(first, id);
        }
    }
}

/// The names that a text binds, with their places: behind `let`, `fn` and the like, and those that
/// are assigned to. Also whether a declaration has no name.
fn bound_names(text: &str) -> (Vec<(&str, u32, u32)>, bool) {
    #[derive(Clone, Copy, PartialEq)]
    enum Expects {
        /// The first word of a statement.
        Statement,
        /// One name: `fn f`.
        Name,
        /// The same behind a word that may as well be a name: `def f`.
        Foreign,
        /// Names up to `=`, `:` or `in`.
        Names,
        /// The last name of the line: `use a.b as c`.
        Last,
        /// Names that `=` may follow.
        Target,
        Nothing,
    }
    let mut found: Vec<(&str, u32, u32)> = Vec::new();
    // Names whose statement is not yet known to bind them.
    let mut pending: Vec<(&str, u32, u32)> = Vec::new();
    let mut expects = Expects::Statement;
    let mut nameless = false;
    let mut after_comma = false;
    for (token, range) in Token::lexer(text).spanned() {
        let Ok(token) = token else { continue };
        let place = (range.start as u32, range.end as u32);
        nameless |= match token {
            Token::Name(_) | Token::Comment(_) => false,
            Token::OpenParen | Token::Comma => expects == Expects::Name,
            // `let a, = …`
            Token::Equal if after_comma => expects == Expects::Names,
            _ => expects == Expects::Name || (expects == Expects::Names && pending.is_empty()),
        };
        let is_next_name = std::mem::replace(&mut after_comma, token == Token::Comma);
        // `let y, use = …`: a reserved word where a name belongs.
        if is_next_name && expects == Expects::Names && token.word().is_some() {
            continue;
        }
        match token {
            Token::Comment(_) => continue,
            Token::Newline | Token::Semicolon | Token::OpenBrace | Token::CloseBrace => {
                if expects == Expects::Last {
                    found.extend(pending.last().copied());
                }
                pending.clear();
                expects = Expects::Statement;
            }
            Token::Let | Token::For => expects = Expects::Names,
            Token::Const | Token::Fn | Token::Model | Token::Step => expects = Expects::Name,
            Token::Use => expects = Expects::Last,
            Token::Equal | Token::Colon | Token::In => {
                let is_target = matches!(expects, Expects::Target | Expects::Foreign);
                if expects == Expects::Names || (is_target && token == Token::Equal) {
                    found.append(&mut pending);
                }
                expects = Expects::Nothing;
            }
            Token::Name("hook" | "optimizer" | "param" | "state") if expects == Expects::Statement => {
                expects = Expects::Name;
                pending.clear();
            }
            // Words of other languages for the same: `def f(x):`, `class Net(Module):`.
            Token::Name(word) if expects == Expects::Statement && foreign::declares(word) => {
                pending.clear();
                expects = if foreign::imports(word) {
                    Expects::Last
                } else {
                    pending.push((word, place.0, place.1));
                    Expects::Foreign
                };
            }
            Token::Name("frozen") if expects == Expects::Name => {}
            Token::Name(name) => match expects {
                Expects::Name | Expects::Foreign => {
                    found.push((name, place.0, place.1));
                    expects = Expects::Nothing;
                }
                Expects::Statement | Expects::Target => {
                    pending.push((name, place.0, place.1));
                    expects = Expects::Target;
                }
                Expects::Names | Expects::Last => pending.push((name, place.0, place.1)),
                Expects::Nothing => {}
            },
            Token::Comma | Token::OpenParen | Token::CloseParen
                if matches!(expects, Expects::Names | Expects::Target) => {}
            Token::Dot if expects == Expects::Last => {}
            // Behind a broken `let a, b` nothing says where the names end.
            _ => {
                if expects == Expects::Names {
                    found.append(&mut pending);
                }
                if expects != Expects::Last {
                    pending.clear();
                    expects = Expects::Nothing;
                }
            }
        }
    }
    if matches!(expects, Expects::Names | Expects::Last) {
        match expects {
            Expects::Last => found.extend(pending.last().copied()),
            _ => found.append(&mut pending),
        }
    }
    (found, nameless || expects == Expects::Name)
}

#[cfg(test)]
mod tests {
    use super::bound_names;

    #[test]
    fn binding_places() {
        let names = |text| bound_names(text).0.into_iter().map(|(n, _, _)| n).collect::<Vec<_>>().join(" ");
        assert_eq!(names("let a, b = c + d"), "a b");
        assert_eq!(names("let a: f32[n] = = 3"), "a");
        assert_eq!(names("let a +"), "a");
        assert_eq!(names("let a, use, b = f(x)"), "a b");
        assert_eq!(names("fn f(x, y) {\n let z = x\n q = z == y\n}"), "f z q");
        assert_eq!(names("use a.b as c\nuse d"), "c d");
        assert_eq!(names("for i, (j in k { param frozen w: f32 = 3; optimizer o }"), "i j w o");
        assert_eq!(names("f(x) + y"), "");
        assert_eq!(names("def f(x):"), "f");
        assert_eq!(names("class Net(nn.Module):"), "Net");
        assert_eq!(names("import torch.nn as nn"), "nn");
        assert_eq!(names("func = 3"), "func");
        assert!(!bound_names("def (x)").1);
        assert!(bound_names("const = 3").1 && bound_names("let = 3").1 && bound_names("fn (x) = x").1);
        assert!(bound_names("let a, = 3").1 && !bound_names("let (a, b) = 3").1 && !bound_names("f(x)").1);
    }
}
