//! The syntax tree of the program and of its own modules, asked by place: what stands where, inside of
//! what, and the edits that wrap it or unwrap it.

use rustc_hash::FxHashMap;

use crate::{
    diagnostic::Edit,
    source::{FileId, SourceMap, Span},
    syntax::{
        ast::{Ast, Block, ExprId, ExprKind, FnDecl, StmtId, StmtKind},
        children::Child,
    },
};

/// A tree with the parent of every node.
pub struct Tree<'a> {
    pub ast: &'a Ast,
    sources: &'a SourceMap,
    expr_parents: Vec<Option<Child>>,
    stmt_parents: Vec<Option<Child>>,
    /// The innermost expression of exactly this range.
    by_range: FxHashMap<Span, ExprId>,
    /// The files that the tree is of: those of the program, which may be edited.
    own: Vec<FileId>,
}

impl<'a> Tree<'a> {
    /// `sources` hold the texts that `ast` was parsed from.
    pub fn new(ast: &'a Ast, sources: &'a SourceMap) -> Tree<'a> {
        let mut tree = Tree {
            ast,
            sources,
            expr_parents: vec![None; ast.exprs.len()],
            stmt_parents: vec![None; ast.stmts.len()],
            by_range: FxHashMap::default(),
            own: vec![ast.file],
        };
        for &stmt in &ast.body {
            let file = ast.stmt(stmt).span.file;
            if !tree.own.contains(&file) {
                tree.own.push(file);
            }
        }
        let mut todo: Vec<(Child, Option<Child>)> =
            ast.body.iter().rev().map(|&s| (Child::Stmt(s), None)).collect();
        while let Some((child, parent)) = todo.pop() {
            let mut push = |below: Child| todo.push((below, Some(child)));
            match child {
                Child::Expr(id) => {
                    if let Some(entry) = tree.expr_parents.get_mut(id.0 as usize) {
                        *entry = parent;
                    }
                    let span = ast.expr(id).span;
                    tree.by_range.insert(span, id);
                    ast.expr(id).kind.for_each_child(&mut push);
                }
                Child::Stmt(id) => {
                    if let Some(entry) = tree.stmt_parents.get_mut(id.0 as usize) {
                        *entry = parent;
                    }
                    ast.stmt(id).kind.for_each_child(&mut push);
                }
            }
        }
        tree
    }

    /// The text of a span.
    pub fn text(&self, span: Span) -> &'a str {
        self.sources.text(span)
    }

    /// Whether a place is in a file of the program: not in the library.
    pub fn is_own(&self, span: Span) -> bool {
        self.own.contains(&span.file)
    }

    /// The text of the file of a span.
    fn whole_text(&self, span: Span) -> &'a str {
        self.sources.get(span.file).map_or("", |f| &*f.text)
    }

    /// The expression of exactly this span; `None` in files of the library.
    pub fn expr_at(&self, span: Span) -> Option<ExprId> {
        self.by_range.get(&span).copied()
    }

    pub fn parent(&self, child: Child) -> Option<Child> {
        match child {
            Child::Expr(id) => self.expr_parents.get(id.0 as usize).copied().flatten(),
            Child::Stmt(id) => self.stmt_parents.get(id.0 as usize).copied().flatten(),
        }
    }

    /// What a node stands in, from the inside to the outside; not itself.
    pub fn around(&self, child: Child) -> impl Iterator<Item = Child> + '_ {
        std::iter::successors(self.parent(child), move |&c| self.parent(c))
    }

    /// The expression and those around it, up to its statement.
    pub fn expressions_around(&self, expr: ExprId) -> Vec<ExprId> {
        let mut all = vec![expr];
        for around in self.around(Child::Expr(expr)) {
            match around {
                Child::Expr(id) => all.push(id),
                Child::Stmt(_) => break,
            }
        }
        all
    }

    /// The function or step whose body holds a node.
    pub fn function_of(&self, child: Child) -> Option<&'a FnDecl> {
        self.around(child).find_map(|c| match c {
            Child::Stmt(id) => match &self.ast.stmt(id).kind {
                StmtKind::Fn(decl) | StmtKind::Step(decl) => Some(&**decl),
                _ => None,
            },
            Child::Expr(_) => None,
        })
    }

    /// The statement that an expression stands in.
    pub fn statement_of(&self, expr: ExprId) -> Option<Child> {
        self.around(Child::Expr(expr)).find(|c| matches!(c, Child::Stmt(_)))
    }

    /// The last `let` of a name before an expression.
    pub fn binding_of(&self, at: ExprId, name: &str) -> Option<StmtId> {
        let at = self.ast.expr(at).span;
        let lets = self.statements(
            |s| matches!(s, StmtKind::Let { names, .. } if names.iter().any(|n| &*n.name == name)),
        );
        let is_before = |s: Span| s.file == at.file && s.end <= at.start;
        lets.into_iter().rev().find(|&s| is_before(self.ast.stmt(s).span))
    }

    /// The blanks that the line of a place starts with.
    pub fn indent(&self, at: Span) -> &'a str {
        let before = self.whole_text(at).get(..at.start as usize).unwrap_or_default();
        let line = before.rsplit('\n').next().unwrap_or_default();
        line.get(..line.len() - line.trim_start().len()).unwrap_or_default()
    }

    /// Every expression that `wanted` accepts, in the order of the text.
    pub fn expressions(&self, wanted: impl Fn(&ExprKind) -> bool) -> Vec<ExprId> {
        let mut found: Vec<ExprId> = (0..self.ast.exprs.len() as u32)
            .map(ExprId)
            .filter(|&id| self.expr_parents.get(id.0 as usize).is_some_and(Option::is_some))
            .filter(|&id| wanted(&self.ast.expr(id).kind))
            .collect();
        found.sort_by_key(|&id| self.ast.expr(id).span);
        found
    }

    /// Every statement that `wanted` accepts, in the order of the text.
    pub fn statements(&self, wanted: impl Fn(&StmtKind) -> bool) -> Vec<StmtId> {
        let mut found: Vec<StmtId> = (0..self.ast.stmts.len() as u32)
            .map(StmtId)
            .filter(|&id| wanted(&self.ast.stmt(id).kind))
            .collect();
        found.sort_by_key(|&id| self.ast.stmt(id).span);
        found
    }

    /// Puts an expression between two texts.
    pub fn wrap(&self, expr: ExprId, open: &str, close: &str) -> Vec<Edit> {
        let (before, after) = match self.ast.expr(expr).kind {
            // Between `<` and `>` these need brackets.
            ExprKind::Binary { .. } | ExprKind::Unary(..) | ExprKind::Range { .. } | ExprKind::In { .. }
                if !self.text(self.ast.expr(expr).span).starts_with('(') =>
            {
                ("(", ")")
            }
            _ => ("", ""),
        };
        let span = self.ast.expr(expr).span;
        vec![
            insert(span, span.start, format!("{open}{before}")),
            insert(span, span.end, format!("{after}{close}")),
        ]
    }

    /// Puts the body of a function into one region.
    pub fn wrap_body(&self, decl: &FnDecl, open: &str, close: &str) -> Option<Vec<Edit>> {
        let span = decl.body.span;
        if self.text(span).starts_with('{') {
            let returns = self.holds_return(&decl.body);
            (!returns && decl.body.tail.is_some()).then(|| {
                vec![
                    insert(span, span.start, format!("{{ {open}")),
                    insert(span, span.end, format!("{close} }}")),
                ]
            })
        } else {
            decl.body.tail.map(|tail| self.wrap(tail, open, close))
        }
    }

    fn holds_return(&self, block: &Block) -> bool {
        let mut todo: Vec<Child> = block.stmts.iter().map(|&s| Child::Stmt(s)).collect();
        todo.extend(block.tail.map(Child::Expr));
        while let Some(child) = todo.pop() {
            match child {
                Child::Expr(id) => self.ast.expr(id).kind.for_each_child(&mut |c| todo.push(c)),
                Child::Stmt(id) => {
                    if matches!(self.ast.stmt(id).kind, StmtKind::Return(_)) {
                        return true;
                    }
                    self.ast.stmt(id).kind.for_each_child(&mut |c| todo.push(c));
                }
            }
        }
        false
    }

    /// Takes `checkpoint(…) <` and `>` away from a region.
    pub fn unwrap_region(&self, expr: ExprId, body: &Block) -> Vec<Edit> {
        let whole = self.ast.expr(expr).span;
        let is_block = self.text(body.span).starts_with('{');
        let is_simple = body.tail.is_some_and(|t| {
            matches!(
                self.ast.expr(t).kind,
                ExprKind::Call { .. } | ExprKind::Name(_) | ExprKind::Field(..) | ExprKind::Index(..)
            )
        });
        let (open, close) = if is_block || is_simple { ("", "") } else { ("(", ")") };
        vec![
            Edit { span: Span { end: body.span.start, ..whole }, text: open.to_owned() },
            Edit { span: Span { start: body.span.end, ..whole }, text: close.to_owned() },
        ]
    }

    /// Takes a whole statement away, with its line where it has one for itself.
    pub fn remove_statement(&self, stmt: StmtId) -> Edit {
        let span = self.ast.stmt(stmt).span;
        let text = self.whole_text(span);
        let before = text.get(..span.start as usize).unwrap_or_default();
        let after = text.get(span.end as usize..).unwrap_or_default();
        let indent = before.len() - before.trim_end_matches([' ', '\t']).len();
        let is_first = before.trim_end_matches([' ', '\t']).ends_with('\n');
        let rest = after.find('\n').map_or(after, |end| after.get(..=end).unwrap_or(after));
        if is_first && rest.trim().is_empty() {
            let (start, end) = (span.start - indent as u32, span.end + rest.len() as u32);
            return Edit { span: Span { start, end, ..span }, text: String::new() };
        }
        // A comment stays, where the statement began.
        let comment = rest.trim_start_matches([' ', '\t']);
        let gap = if is_first && comment.starts_with('#') { rest.len() - comment.len() } else { 0 };
        Edit { span: Span { end: span.end + gap as u32, ..span }, text: String::new() }
    }

    /// Takes a statement away as [`Tree::remove_statement`] does, but with the comment behind it; gives
    /// the text of both.
    pub fn take_statement(&self, stmt: StmtId) -> (String, Edit) {
        let span = self.ast.stmt(stmt).span;
        let mut edit = self.remove_statement(stmt);
        let text = self.whole_text(span);
        let behind = text.get(edit.span.end as usize..).unwrap_or_default();
        if edit.span.end == span.end || !behind.starts_with('#') {
            return (self.text(span).to_owned(), edit);
        }
        let line = behind.find('\n').map_or(behind, |end| behind.get(..=end).unwrap_or(behind));
        let end = edit.span.end + line.len() as u32;
        let taken = text.get(span.start as usize..end as usize).unwrap_or_default().trim_end().to_owned();
        let before = text.get(..span.start as usize).unwrap_or_default();
        let indent = before.len() - before.trim_end_matches([' ', '\t']).len();
        edit.span = Span { start: span.start - indent as u32, end, ..span };
        (taken, edit)
    }
}

/// Adds text at a place.
pub fn insert(file_of: Span, at: u32, text: String) -> Edit {
    Edit { span: Span { start: at, end: at, ..file_of }, text }
}
