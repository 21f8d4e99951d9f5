//! Models: making instances, their parameters and state.

use std::sync::Arc;

use super::{
    Evaluator,
    args::Args,
    errors::{Eval, Halt},
    frame::FrameKind,
    scope::{Scope, ScopeKind},
    types::Meaning,
    value::{Cell, Cx, Function, Init, Model, ModelDef, Value, lock},
};
use crate::{
    codes,
    diagnostic::Diagnostic,
    ir::{DType, SlotKind},
    source::Span,
    syntax::ast::{FieldDecl, Name},
};

/// A model whose body is being evaluated.
pub(super) struct Building {
    pub scope: Arc<Scope>,
    /// Names of fields, in the order of their declaration.
    pub order: Vec<Name>,
}

impl Evaluator {
    pub(super) fn make_model(&mut self, def: &Arc<ModelDef>, args: Args, span: Span) -> Eval {
        let title = Arc::clone(&def.decl.name.name);
        self.enter_call(&title, span, |ev| {
            let scope = def.cx.scope.child(ScopeKind::Body);
            ev.remember_scope(&scope);
            let cx = def.cx.in_scope(Arc::clone(&scope));
            ev.bind_params(&cx, &title, &def.decl.params, args, span)?;
            let order = def.decl.params.iter().map(|p| Arc::clone(&p.name.name)).collect();
            ev.building.push(Building { scope: Arc::clone(&scope), order });
            let errors = ev.error_count();
            let result = ev.statements(&cx, &def.decl.body);
            let built = ev.building.pop();
            match result {
                Ok(_) | Err(Halt::Return(_)) => {}
                Err(halt) => return Err(halt),
            }
            let model = Model::new(Arc::clone(def), scope);
            if let Some(built) = built {
                *lock(&model.order) = built.order;
            }
            ev.own_methods(&model);
            // A model with a broken body is still a model: uses of its sound parts can be checked.
            if ev.error_count() > errors && ev.stops_at_errors() {
                return Err(Halt::Reported);
            }
            Ok(Value::Model(model))
        })
    }

    /// Names the functions of a model after it, for messages.
    fn own_methods(&mut self, model: &Arc<Model>) {
        for (name, binding) in model.scope.bindings() {
            if let Value::Function(function) = &binding.value
                && Arc::ptr_eq(&function.cx.scope, &model.scope)
                && function.owner.is_none()
            {
                let owned = Function {
                    id: function.id,
                    decl: Arc::clone(&function.decl),
                    cx: function.cx.clone(),
                    owner: Some(Arc::clone(&model.def.decl.name.name)),
                };
                model.scope.declare(&name, Value::Function(Arc::new(owned)), binding.span);
            }
        }
    }

    /// The fields of the model whose body `cx` stands in directly.
    pub(super) fn building_model(&mut self, cx: &Cx) -> Option<&mut Vec<Name>> {
        let building = self.building.last_mut()?;
        Arc::ptr_eq(&building.scope, &cx.scope).then_some(&mut building.order)
    }

    /// Whether code stands in the body of a model, perhaps inside an `if` or `for` of it.
    pub(super) fn is_model_body(&self, cx: &Cx) -> bool {
        let Some(building) = self.building.last() else { return false };
        let mut scope = Some(&cx.scope);
        while let Some(current) = scope {
            if Arc::ptr_eq(&building.scope, current) {
                return true;
            }
            scope = if current.kind == ScopeKind::Block { current.parent.as_ref() } else { None };
        }
        false
    }

    /// `param w: f32[n] = …` and `state mean: f32[n] = …`
    pub(super) fn param_stmt(&mut self, cx: &Cx, decl: &Arc<FieldDecl>, is_state: bool) -> Eval {
        let name = &decl.name;
        let word = if is_state { "state" } else { "param" };
        if !self.is_model_body(cx) {
            return Err(self.error(
                codes::MODEL,
                name.span,
                format!("`{word}` outside of the body of a model"),
            ));
        }
        if matches!(self.frames.last(), Some(f) if matches!(f.kind, FrameKind::Step(_))) {
            if let Some(building) = self.building.last() {
                building.scope.declare(&name.name, Value::Poison, name.span);
            }
            return Err(self.report(
                Diagnostic::error(codes::MODEL, name.span, "a model with parameters is made inside a step")
                    .label("a parameter")
                .help(
                    "make it in the script or as a field of a model: it keeps its parameters between steps",
                ),
            ));
        }
        let Some(ty) = &decl.ty else { return Err(Halt::Reported) };
        let dtype = match self.meaning(cx, ty)? {
            Meaning::Tensor(dtype) => dtype,
            _ => {
                let text = self.sources.text(ty.span).to_string();
                return Err(self.report(
                    Diagnostic::error(
                        codes::TYPE_MISMATCH,
                        ty.span,
                        format!("a {word} is a tensor, got the type `{text}`"),
                    )
                    .help("write its dtype and shape, `f32[n, m]`; plain numbers are bound with `let`"),
                ));
            }
        };
        // State is kept as declared, since running statistics lose too much in 16 bits. Only f64
        // widens it: nothing in such a model is narrower than what it is compared with.
        let dtype = match self.param_dtype {
            Some(stored) if dtype.is_float() && (!is_state || stored == DType::F64) => stored,
            _ => dtype,
        };
        if !is_state && decl.trainable && !dtype.is_float() {
            return Err(self.report(
                Diagnostic::error(codes::MODEL, ty.span, format!("a trained parameter of dtype {dtype}"))
                    .help("gradients need a floating-point dtype; write `param frozen`, or `state`"),
            ));
        }
        let ty = self.declared_type(cx, ty, dtype)?;
        let init = match decl.init {
            Some(expr) => Init::Expr { cx: cx.clone(), expr },
            None => Init::Zeros,
        };
        let kind = if is_state { SlotKind::State } else { SlotKind::Param { trainable: decl.trainable } };
        let cell = Cell::new(Arc::clone(&name.name), ty, kind, name.span, init);
        if self.is_check() {
            self.prepare_cell(&cell, name.span)?;
        }
        let Some(building) = self.building.last_mut() else { return Err(Halt::Reported) };
        let scope = Arc::clone(&building.scope);
        // Twice in one body is reported with the declarations.
        let is_reported = |d: &Diagnostic| d.code == codes::DUPLICATE_NAME && d.primary.span == name.span;
        if self.diagnostics.iter().any(is_reported) {
            return Err(Halt::Reported);
        }
        if let Some(earlier) = scope.get(&name.name).filter(|_| building.order.contains(&name.name)) {
            return Err(self.report(
                Diagnostic::error(
                    codes::DUPLICATE_NAME,
                    name.span,
                    format!("`{}` is declared twice", name.name),
                )
                .secondary(earlier.span, "first declared here"),
            ));
        }
        building.order.push(Arc::clone(&name.name));
        scope.declare(&name.name, Value::Param(cell), name.span);
        Ok(Value::Unit)
    }
}
