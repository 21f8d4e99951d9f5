//! Questions about code that are answered by reading it: what it assigns, what it calls.

use super::errors::holds;
use crate::{
    source::Span,
    syntax::ast::{Arg, Ast, Block, ExprId, ExprKind, IndexItem, Name, Stmt, StmtId, StmtKind, StrPart},
};

/// A statement or an expression, as a walk meets it.
#[derive(Clone, Copy)]
pub enum Item {
    Stmt(StmtId),
    Expr(ExprId),
}

/// Visits every statement and expression of a block, outer ones first; bodies of functions and
/// models declared in it are left out, since they run elsewhere.
pub fn walk_block(ast: &Ast, block: &Block, visit: &mut dyn FnMut(Item)) {
    let mut todo: Vec<Item> = Vec::new();
    push_block(block, &mut todo);
    while let Some(item) = todo.pop() {
        visit(item);
        let from = todo.len();
        match item {
            Item::Stmt(id) => push_stmt(&ast.stmt(id).kind, &mut todo),
            Item::Expr(id) => push_expr(&ast.expr(id).kind, &mut todo),
        }
        todo.get_mut(from..).unwrap_or_default().reverse();
    }
}

fn push_block(block: &Block, todo: &mut Vec<Item>) {
    todo.extend(block.stmts.iter().map(|&s| Item::Stmt(s)));
    todo.extend(block.tail.map(Item::Expr));
}

fn push_args(args: &[Arg], todo: &mut Vec<Item>) {
    todo.extend(args.iter().map(|a| Item::Expr(a.value)));
}

fn push_stmt(stmt: &StmtKind, todo: &mut Vec<Item>) {
    match stmt {
        StmtKind::Error(_)
        | StmtKind::Use { .. }
        | StmtKind::Fn(_)
        | StmtKind::Model(_)
        | StmtKind::Step(_)
        | StmtKind::Optimizer(_)
        | StmtKind::Hook(_)
        | StmtKind::Allow(_) => {}
        StmtKind::Const { value, .. } | StmtKind::Let { value, .. } | StmtKind::Expr(value) => {
            todo.push(Item::Expr(*value));
        }
        StmtKind::Assign { targets, value, .. } => {
            todo.extend(targets.iter().map(|&t| Item::Expr(t)));
            todo.push(Item::Expr(*value));
        }
        StmtKind::StateWrite { target, value } => {
            todo.extend([Item::Expr(*target), Item::Expr(*value)]);
        }
        StmtKind::For { iter, body, .. } => {
            todo.push(Item::Expr(*iter));
            push_block(body, todo);
        }
        StmtKind::Return(values) | StmtKind::Release(values) => {
            todo.extend(values.iter().map(|&v| Item::Expr(v)));
        }
        StmtKind::Minimize { loss, over, with } => {
            todo.push(Item::Expr(*loss));
            todo.extend(over.iter().map(|&o| Item::Expr(o)));
            todo.push(Item::Expr(*with));
        }
        StmtKind::Update { target, with, grads } => {
            todo.extend([Item::Expr(*target), Item::Expr(*with), Item::Expr(*grads)]);
        }
        StmtKind::Shard(decl) => {
            todo.extend([decl.target, decl.unit].into_iter().chain(decl.over).map(Item::Expr));
            push_args(&decl.options, todo);
        }
        StmtKind::Sync { target, over, with, options } => {
            todo.extend([*target, *over].into_iter().chain(*with).map(Item::Expr));
            push_args(options, todo);
        }
        StmtKind::Ensure { limit, .. } | StmtKind::Budget(limit) => todo.push(Item::Expr(*limit)),
        StmtKind::With { settings, body } => {
            push_args(settings, todo);
            push_block(body, todo);
        }
        StmtKind::Param(decl) | StmtKind::State(decl) => todo.extend(decl.init.map(Item::Expr)),
    }
}

fn push_expr(expr: &ExprKind, todo: &mut Vec<Item>) {
    match expr {
        ExprKind::Error
        | ExprKind::Int(_)
        | ExprKind::Float(_)
        | ExprKind::Size(_)
        | ExprKind::Bool(_)
        | ExprKind::Name(_) => {}
        ExprKind::Str(parts) => todo.extend(parts.iter().filter_map(|p| match p {
            StrPart::Hole { expr, .. } => Some(Item::Expr(*expr)),
            StrPart::Text(_) => None,
        })),
        ExprKind::List(items) | ExprKind::Tuple(items) | ExprKind::Barrier(items) => {
            todo.extend(items.iter().map(|&i| Item::Expr(i)));
        }
        ExprKind::ListFor { body, iter, condition, .. } => {
            todo.push(Item::Expr(*iter));
            todo.push(Item::Expr(*body));
            todo.extend(condition.map(Item::Expr));
        }
        ExprKind::Unary(_, operand) | ExprKind::Field(operand, _) => todo.push(Item::Expr(*operand)),
        ExprKind::Binary { left, right, .. } => todo.extend([Item::Expr(*left), Item::Expr(*right)]),
        ExprKind::Range { low, high } => todo.extend([*low, *high].into_iter().flatten().map(Item::Expr)),
        ExprKind::Call { callee, args } => {
            todo.push(Item::Expr(*callee));
            push_args(args, todo);
        }
        ExprKind::Index(base, items) => {
            todo.push(Item::Expr(*base));
            for item in items {
                match item {
                    IndexItem::At(at) => todo.push(Item::Expr(*at)),
                    IndexItem::Slice { low, high, step, .. } => {
                        todo.extend([*low, *high, *step].into_iter().flatten().map(Item::Expr));
                    }
                    IndexItem::Ellipsis(_) | IndexItem::NewAxis(_) => {}
                }
            }
        }
        ExprKind::Block(block) => push_block(block, todo),
        ExprKind::If { condition, then, otherwise } => {
            todo.push(Item::Expr(*condition));
            push_block(then, todo);
            todo.extend(otherwise.map(Item::Expr));
        }
        ExprKind::Checkpoint { options, body } => {
            push_args(options, todo);
            push_block(body, todo);
        }
        ExprKind::In { value, .. } => todo.push(Item::Expr(*value)),
    }
}

/// The variable at the root of an assignment's target: `xs` of `xs[0].y`.
pub fn root_name(ast: &Ast, target: ExprId) -> Option<&Name> {
    let mut id = target;
    loop {
        match &ast.expr(id).kind {
            ExprKind::Name(name) => return Some(name),
            ExprKind::Field(base, _) | ExprKind::Index(base, _) => id = *base,
            _ => return None,
        }
    }
}

/// The names that a block assigns to with `=` and its kin, in order, each once.
pub fn assigned_names(ast: &Ast, block: &Block) -> Vec<Name> {
    let mut names: Vec<Name> = Vec::new();
    walk_block(ast, block, &mut |item| {
        if let Item::Stmt(id) = item
            && let StmtKind::Assign { targets, .. } = &ast.stmt(id).kind
        {
            for &target in targets {
                match &ast.expr(target).kind {
                    ExprKind::Tuple(items) => {
                        names.extend(items.iter().filter_map(|&i| root_name(ast, i)).cloned());
                    }
                    _ => names.extend(root_name(ast, target).cloned()),
                }
            }
        }
    });
    let mut seen = rustc_hash::FxHashSet::default();
    names.retain(|n| seen.insert(Name::clone(n)));
    names
}

/// Whether a step trains: it holds `minimize`, `update`, `grad` or `value_and_grad`.
pub fn takes_gradients(ast: &Ast, block: &Block) -> bool {
    let mut found = false;
    walk_block(ast, block, &mut |item| match item {
        Item::Stmt(id) => {
            found |= matches!(ast.stmt(id).kind, StmtKind::Minimize { .. } | StmtKind::Update { .. });
        }
        Item::Expr(id) => {
            if let ExprKind::Call { callee, .. } = &ast.expr(id).kind
                && let ExprKind::Name(name) = &ast.expr(*callee).kind
            {
                found |= matches!(&**name, "grad" | "value_and_grad" | "pullback");
            }
        }
    });
    found
}

/// The innermost declaration of a function, step, model, optimizer or hook around a place.
pub fn declaration_around(ast: &Ast, place: Span) -> Option<&Stmt> {
    let around = ast.stmts.iter().filter(|stmt| {
        let is_declaration = matches!(
            stmt.kind,
            StmtKind::Fn(_)
                | StmtKind::Step(_)
                | StmtKind::Model(_)
                | StmtKind::Optimizer(_)
                | StmtKind::Hook(_)
        );
        is_declaration && holds(stmt.span, place)
    });
    around.min_by_key(|stmt| stmt.span.end - stmt.span.start)
}
