//! Trees as s-expressions, for tests and for looking at what the parser made of a text.

use std::fmt::Write;

use super::ast::{
    Arg, Ast, Block, DimExpr, ExprId, ExprKind, Ident, IndexItem, ParamDecl, StmtId, StmtKind, StrPart,
    TypeExpr, UnaryOp,
};

/// One line for each statement of the top level.
pub fn s_expression(ast: &Ast) -> String {
    let mut printer = Printer { ast, out: String::new() };
    for &stmt in &ast.body {
        printer.stmt(stmt);
        printer.out.push('\n');
    }
    printer.out
}

struct Printer<'a> {
    ast: &'a Ast,
    out: String,
}

impl Printer<'_> {
    fn text(&mut self, text: &str) {
        self.out.push_str(text);
    }

    fn stmt(&mut self, id: StmtId) {
        match &self.ast.stmt(id).kind {
            StmtKind::Error(_) => self.text("<error>"),
            StmtKind::Use { path, alias } => {
                self.text("(use");
                self.idents(path);
                if let Some(alias) = alias {
                    let _ = write!(self.out, " as {}", alias.name);
                }
                self.text(")");
            }
            StmtKind::Const { name, value } => {
                let _ = write!(self.out, "(const {}", name.name);
                self.operands(&[*value]);
            }
            StmtKind::Let { names, ty, value } => {
                self.text("(let");
                self.idents(names);
                self.annotation(ty.as_ref());
                self.operands(&[*value]);
            }
            StmtKind::Assign { targets, op, value } => {
                let _ = write!(self.out, "({}=", op.map_or("", |o| o.symbol()));
                for &target in targets {
                    self.operand(target);
                }
                self.operands(&[*value]);
            }
            StmtKind::StateWrite { target, value } => {
                self.text("(:=");
                self.operands(&[*target, *value]);
            }
            StmtKind::Expr(value) => self.expr(*value),
            StmtKind::For { names, iter, body } => {
                self.text("(for");
                self.idents(names);
                self.operand(*iter);
                self.block(body);
                self.text(")");
            }
            StmtKind::Return(values) => {
                self.text("(return");
                self.operands(values);
            }
            StmtKind::Fn(decl) | StmtKind::Step(decl) => {
                let word = if matches!(self.ast.stmt(id).kind, StmtKind::Fn(_)) { "fn" } else { "step" };
                let _ = write!(self.out, "({word} {}", decl.name.name);
                self.params(&decl.params);
                if let Some(result) = &decl.result {
                    self.text(" -> ");
                    self.ty(result);
                }
                self.block(&decl.body);
                self.text(")");
            }
            StmtKind::Model(decl) => {
                let _ = write!(self.out, "(model {}", decl.name.name);
                self.params(&decl.params);
                for &stmt in &decl.body {
                    self.text(" ");
                    self.stmt(stmt);
                }
                self.text(")");
            }
            StmtKind::Optimizer(decl) | StmtKind::Hook(decl) => {
                let is_hook = matches!(self.ast.stmt(id).kind, StmtKind::Hook(_));
                let word = if is_hook { "hook" } else { "optimizer" };
                let _ = write!(self.out, "({word} {}", decl.name.name);
                self.params(&decl.params);
                for (name, init) in &decl.states {
                    let _ = write!(self.out, " (state {}", name.name);
                    self.operands(&[*init]);
                }
                self.block(&decl.body);
                self.text(")");
            }
            StmtKind::Param(field) | StmtKind::State(field) => {
                let word = match &self.ast.stmt(id).kind {
                    StmtKind::State(_) => "state",
                    _ if field.trainable => "param",
                    _ => "param frozen",
                };
                let _ = write!(self.out, "({word} {}", field.name.name);
                self.annotation(field.ty.as_ref());
                self.operands(field.init.as_slice());
            }
            StmtKind::Minimize { loss, over, with } => {
                self.text("(minimize");
                self.operand(*loss);
                self.text(" over");
                over.iter().for_each(|&o| self.operand(o));
                self.text(" with");
                self.operands(&[*with]);
            }
            StmtKind::Update { target, with, grads } => {
                self.text("(update");
                self.operands(&[*target, *with, *grads]);
            }
            StmtKind::Sync { target, over, with, options } => {
                self.text("(sync");
                self.operand(*target);
                self.text(" over");
                self.operand(*over);
                if let Some(with) = with {
                    self.text(" with");
                    self.operand(*with);
                }
                self.args(options);
                self.text(")");
            }
            StmtKind::Ensure { limit, every_schedule } => {
                self.text(if *every_schedule { "(ensure-every" } else { "(ensure" });
                self.operands(&[*limit]);
            }
            StmtKind::Budget(limit) => {
                self.text("(budget");
                self.operands(&[*limit]);
            }
            StmtKind::Release(values) => {
                self.text("(release");
                self.operands(values);
            }
            StmtKind::Shard(decl) => {
                self.text(if decl.flat { "(shard-flat" } else { "(shard" });
                self.operand(decl.target);
                self.operand(decl.unit);
                if let Some(over) = decl.over {
                    self.text(" over");
                    self.operand(over);
                }
                self.args(&decl.options);
                self.text(")");
            }
            StmtKind::With { settings, body } => {
                self.text("(with");
                self.args(settings);
                self.block(body);
                self.text(")");
            }
            StmtKind::Allow(codes) => {
                self.text("(allow");
                self.idents(codes);
                self.text(")");
            }
        }
    }

    fn expr(&mut self, id: ExprId) {
        match &self.ast.expr(id).kind {
            ExprKind::Error => self.text("<error>"),
            ExprKind::Int(value) => {
                let _ = write!(self.out, "{value}");
            }
            ExprKind::Float(value) => {
                let _ = write!(self.out, "{value:?}");
            }
            ExprKind::Size(bytes) => {
                let _ = write!(self.out, "{bytes}B");
            }
            ExprKind::Bool(value) => {
                let _ = write!(self.out, "{value}");
            }
            ExprKind::Str(parts) => self.string(parts),
            ExprKind::Name(name) => self.text(name),
            ExprKind::List(items) => {
                self.text("(list");
                self.operands(items);
            }
            ExprKind::ListFor { body, names, iter, condition } => {
                self.text("(list-for");
                self.operand(*body);
                self.idents(names);
                self.operand(*iter);
                self.operands(condition.as_slice());
            }
            ExprKind::Tuple(items) => {
                self.text("(tuple");
                self.operands(items);
            }
            ExprKind::Unary(op, value) => {
                self.text(match op {
                    UnaryOp::Neg => "(neg",
                    UnaryOp::Not => "(not",
                });
                self.operands(&[*value]);
            }
            ExprKind::Binary { op, left, right, .. } => {
                let _ = write!(self.out, "({}", op.symbol());
                self.operands(&[*left, *right]);
            }
            ExprKind::Range { low, high } => {
                self.text("(..");
                self.optional(*low);
                self.optional(*high);
                self.text(")");
            }
            ExprKind::Call { callee, args } => {
                self.text("(call");
                self.operand(*callee);
                self.args(args);
                self.text(")");
            }
            ExprKind::Field(value, name) => {
                self.text("(. ");
                self.expr(*value);
                let _ = write!(self.out, " {})", name.name);
            }
            ExprKind::Index(value, items) => {
                self.text("(index");
                self.operand(*value);
                items.iter().for_each(|i| self.index_item(i));
                self.text(")");
            }
            ExprKind::Block(block) => self.bare_block(block),
            ExprKind::If { condition, then, otherwise } => {
                self.text("(if");
                self.operand(*condition);
                self.block(then);
                self.operands(otherwise.as_slice());
            }
            ExprKind::Checkpoint { options, body } => {
                self.text("(checkpoint");
                self.args(options);
                self.block(body);
                self.text(")");
            }
            ExprKind::Barrier(values) => {
                self.text("(barrier");
                self.operands(values);
            }
            ExprKind::In { value, dtype } => {
                self.text("(in");
                self.operand(*value);
                let _ = write!(self.out, " {})", dtype.name);
            }
        }
    }

    fn operand(&mut self, id: ExprId) {
        self.text(" ");
        self.expr(id);
    }

    /// The last operands of a form, and its closing parenthesis.
    fn operands(&mut self, ids: &[ExprId]) {
        ids.iter().for_each(|&id| self.operand(id));
        self.text(")");
    }

    fn optional(&mut self, id: Option<ExprId>) {
        match id {
            Some(id) => self.operand(id),
            None => self.text(" _"),
        }
    }

    fn idents(&mut self, idents: &[Ident]) {
        for ident in idents {
            let _ = write!(self.out, " {}", ident.name);
        }
    }

    fn args(&mut self, args: &[Arg]) {
        for arg in args {
            self.text(" ");
            if let Some(name) = &arg.name {
                let _ = write!(self.out, "{}: ", name.name);
            }
            self.expr(arg.value);
        }
    }

    fn index_item(&mut self, item: &IndexItem) {
        match item {
            IndexItem::At(index) => self.operand(*index),
            IndexItem::Slice { low, high, step, .. } => {
                self.text(" (slice");
                for part in [low, high, step] {
                    self.optional(*part);
                }
                self.text(")");
            }
            IndexItem::Ellipsis(_) => self.text(" ..."),
            IndexItem::NewAxis(_) => self.text(" new"),
        }
    }

    fn block(&mut self, block: &Block) {
        self.text(" ");
        self.bare_block(block);
    }

    fn bare_block(&mut self, block: &Block) {
        self.text("{");
        let mut first = true;
        for &stmt in &block.stmts {
            self.text(if std::mem::take(&mut first) { "" } else { " " });
            self.stmt(stmt);
            self.text(";");
        }
        if let Some(tail) = block.tail {
            self.text(if first { "" } else { " " });
            self.expr(tail);
        }
        self.text("}");
    }

    fn string(&mut self, parts: &[StrPart]) {
        self.text("(str");
        for part in parts {
            match part {
                StrPart::Text(text) => {
                    let _ = write!(self.out, " {text:?}");
                }
                StrPart::Hole { expr, format } => {
                    self.operand(*expr);
                    if let Some(format) = format {
                        let _ = write!(self.out, ":{}", format.name);
                    }
                }
            }
        }
        self.text(")");
    }

    fn params(&mut self, params: &[ParamDecl]) {
        self.text(" (");
        for (i, param) in params.iter().enumerate() {
            self.text(if i == 0 { "" } else { ", " });
            self.text(&param.name.name);
            self.annotation(param.ty.as_ref());
            if let Some(default) = param.default {
                self.text(" =");
                self.operand(default);
            }
        }
        self.text(")");
    }

    fn annotation(&mut self, ty: Option<&TypeExpr>) {
        if let Some(ty) = ty {
            self.text(": ");
            self.ty(ty);
        }
    }

    fn ty(&mut self, ty: &TypeExpr) {
        self.text(&ty.base.name);
        let Some(dims) = &ty.dims else { return };
        self.text("[");
        for (i, dim) in dims.iter().enumerate() {
            self.text(if i == 0 { "" } else { ", " });
            match dim {
                DimExpr::Expr(size) => self.expr(*size),
                DimExpr::Default { name, value } => {
                    let _ = write!(self.out, "{} = ", name.name);
                    self.expr(*value);
                }
                DimExpr::Rest(_) => self.text("..."),
            }
        }
        self.text("]");
    }
}
