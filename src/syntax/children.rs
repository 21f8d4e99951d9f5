//! The nodes directly below a node.

use super::ast::{
    Arg, Block, DimExpr, ExprId, ExprKind, IndexItem, ParamDecl, StmtId, StmtKind, StrPart, TypeExpr,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Child {
    Expr(ExprId),
    Stmt(StmtId),
}

impl ExprKind {
    /// Calls `visit` with each node directly below, in the order of the text.
    pub fn for_each_child(&self, visit: &mut dyn FnMut(Child)) {
        match self {
            ExprKind::Error
            | ExprKind::Int(_)
            | ExprKind::Float(_)
            | ExprKind::Size(_)
            | ExprKind::Bool(_)
            | ExprKind::Name(_) => {}
            ExprKind::Str(parts) => {
                for part in parts {
                    if let StrPart::Hole { expr, .. } = part {
                        visit(Child::Expr(*expr));
                    }
                }
            }
            ExprKind::List(items) | ExprKind::Tuple(items) | ExprKind::Barrier(items) => exprs(items, visit),
            ExprKind::ListFor { body, iter, condition, .. } => {
                visit(Child::Expr(*body));
                visit(Child::Expr(*iter));
                exprs(condition, visit);
            }
            ExprKind::Unary(_, value) | ExprKind::Field(value, _) | ExprKind::In { value, .. } => {
                visit(Child::Expr(*value));
            }
            ExprKind::Binary { left, right, .. } => {
                visit(Child::Expr(*left));
                visit(Child::Expr(*right));
            }
            ExprKind::Range { low, high } => {
                exprs(low, visit);
                exprs(high, visit);
            }
            ExprKind::Call { callee, args } => {
                visit(Child::Expr(*callee));
                arguments(args, visit);
            }
            ExprKind::Index(value, items) => {
                visit(Child::Expr(*value));
                for item in items {
                    match item {
                        IndexItem::At(index) => visit(Child::Expr(*index)),
                        IndexItem::Slice { low, high, step, .. } => {
                            exprs(low, visit);
                            exprs(high, visit);
                            exprs(step, visit);
                        }
                        IndexItem::Ellipsis(_) | IndexItem::NewAxis(_) => {}
                    }
                }
            }
            ExprKind::Block(body) => block(body, visit),
            ExprKind::If { condition, then, otherwise } => {
                visit(Child::Expr(*condition));
                block(then, visit);
                exprs(otherwise, visit);
            }
            ExprKind::Checkpoint { options, body } => {
                arguments(options, visit);
                block(body, visit);
            }
        }
    }
}

impl StmtKind {
    /// Calls `visit` with each node directly below, in the order of the text.
    pub fn for_each_child(&self, visit: &mut dyn FnMut(Child)) {
        match self {
            StmtKind::Error(_) | StmtKind::Use { .. } | StmtKind::Allow(_) => {}
            StmtKind::Const { value, .. } => visit(Child::Expr(*value)),
            StmtKind::Let { ty, value, .. } => {
                type_expr(ty.as_ref(), visit);
                visit(Child::Expr(*value));
            }
            StmtKind::Assign { targets, value, .. } => {
                exprs(targets, visit);
                visit(Child::Expr(*value));
            }
            StmtKind::StateWrite { target, value } => {
                visit(Child::Expr(*target));
                visit(Child::Expr(*value));
            }
            StmtKind::Expr(value) => visit(Child::Expr(*value)),
            StmtKind::For { iter, body, .. } => {
                visit(Child::Expr(*iter));
                block(body, visit);
            }
            StmtKind::Return(values) | StmtKind::Release(values) => exprs(values, visit),
            StmtKind::Fn(decl) | StmtKind::Step(decl) => {
                params(&decl.params, visit);
                type_expr(decl.result.as_ref(), visit);
                block(&decl.body, visit);
            }
            StmtKind::Model(decl) => {
                params(&decl.params, visit);
                decl.body.iter().for_each(|&s| visit(Child::Stmt(s)));
            }
            StmtKind::Optimizer(decl) | StmtKind::Hook(decl) => {
                params(&decl.params, visit);
                decl.states.iter().for_each(|(_, init)| visit(Child::Expr(*init)));
                block(&decl.body, visit);
            }
            StmtKind::Param(field) | StmtKind::State(field) => {
                type_expr(field.ty.as_ref(), visit);
                exprs(&field.init, visit);
            }
            StmtKind::Minimize { loss, over, with } => {
                visit(Child::Expr(*loss));
                exprs(over, visit);
                visit(Child::Expr(*with));
            }
            StmtKind::Update { target, with, grads } => {
                exprs(&[*target, *with, *grads], visit);
            }
            StmtKind::Shard(decl) => {
                exprs(&[decl.target, decl.unit], visit);
                exprs(&decl.over, visit);
                arguments(&decl.options, visit);
            }
            StmtKind::Sync { target, over, with, options } => {
                exprs(&[*target, *over], visit);
                exprs(with, visit);
                arguments(options, visit);
            }
            StmtKind::Ensure { limit, .. } | StmtKind::Budget(limit) => visit(Child::Expr(*limit)),
            StmtKind::With { settings, body } => {
                arguments(settings, visit);
                block(body, visit);
            }
        }
    }
}

fn exprs<'a>(ids: impl IntoIterator<Item = &'a ExprId>, visit: &mut dyn FnMut(Child)) {
    for &id in ids {
        visit(Child::Expr(id));
    }
}

fn arguments(args: &[Arg], visit: &mut dyn FnMut(Child)) {
    for arg in args {
        visit(Child::Expr(arg.value));
    }
}

fn block(block: &Block, visit: &mut dyn FnMut(Child)) {
    block.stmts.iter().for_each(|&s| visit(Child::Stmt(s)));
    exprs(&block.tail, visit);
}

fn params(params: &[ParamDecl], visit: &mut dyn FnMut(Child)) {
    for param in params {
        type_expr(param.ty.as_ref(), visit);
        exprs(&param.default, visit);
    }
}

fn type_expr(ty: Option<&TypeExpr>, visit: &mut dyn FnMut(Child)) {
    for dim in ty.and_then(|t| t.dims.as_deref()).unwrap_or_default() {
        match dim {
            DimExpr::Expr(size) | DimExpr::Default { value: size, .. } => visit(Child::Expr(*size)),
            DimExpr::Rest(_) => {}
        }
    }
}
