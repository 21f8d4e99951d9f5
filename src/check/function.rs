//! Calls of functions that are written in the language.

use std::sync::Arc;

use super::{
    CallSite, Evaluator,
    args::{Args, ParamName},
    errors::{Eval, Halt},
    frame::stable_hash,
    scope::ScopeKind,
    value::{Cx, Function, Value},
};
use crate::{
    ir::Origin,
    source::Span,
    syntax::ast::{FnDecl, Name, ParamDecl},
};

impl Evaluator {
    /// Calls a function. From the script, its body becomes a graph that is run at once.
    pub(super) fn call_function(&mut self, function: &Arc<Function>, args: Args, span: Span) -> Eval {
        let title: Name = function.title().into();
        self.scripted(span, |ev| {
            ev.enter_call(&title, span, |ev| {
                let cx = function.cx.in_scope(function.cx.scope.child(ScopeKind::Body));
                ev.bind_params(&cx, &title, &function.decl.params, args, span)?;
                ev.in_unit(&function.cx.scope, |ev| ev.function_body(&cx, &title, &function.decl))
            })
        })
    }

    /// Evaluates a body whose parameters are bound, and checks the declared result.
    pub(super) fn function_body(&mut self, cx: &Cx, title: &str, decl: &FnDecl) -> Eval {
        let result = match self.block(cx, &decl.body) {
            Err(Halt::Return(value)) => value,
            other => other?,
        };
        let span = decl.body.tail.map_or(decl.name.span, |t| cx.ast.expr(t).span);
        match &decl.result {
            None => Ok(result),
            Some(ty) => {
                self.bind_dims(&cx.scope, &cx.ast, ty, &result);
                self.check_type(cx, ty, result, &format!("the result of `{title}`"), span)
            }
        }
    }

    /// Runs `body` as a call: one level deeper, with the call in messages, in origins and in the
    /// keys of random numbers.
    pub(super) fn enter_call(
        &mut self,
        title: &Name,
        span: Span,
        body: impl FnOnce(&mut Self) -> Eval,
    ) -> Eval {
        let declared = self.declared.take();
        let site = match self.frames.last_mut() {
            Some(frame) => {
                let iteration = frame.iteration.take();
                let origin = Origin { span, parent: frame.parent, iteration: iteration.clone() };
                let site = CallSite { span, title: Arc::clone(title), iteration, parent: frame.parent };
                frame.parent = Some(frame.graph.origins.intern(origin));
                site
            }
            None => CallSite { span, title: Arc::clone(title), iteration: None, parent: None },
        };
        let path = self.frames.last_mut().map(|frame| {
            let key = frame.next_key("call") ^ stable_hash(title);
            std::mem::replace(&mut frame.path, (key, 0))
        });
        let depth = self.frames.len();
        self.calls.push(site);
        let result = self.deeper(span, body);
        let site = self.calls.pop();
        self.too_deep &= !self.calls.is_empty();
        if self.frames.len() == depth
            && let (Some(frame), Some(site)) = (self.frames.last_mut(), site)
        {
            frame.parent = site.parent;
            frame.iteration = site.iteration;
            if let Some(path) = path {
                frame.path = path;
            }
        }
        self.declared = declared;
        result
    }

    /// Binds arguments to declared parameters, in the scope of `cx`: defaults, dimension variables,
    /// checks.
    pub(super) fn bind_params(
        &mut self,
        cx: &Cx,
        title: &str,
        params: &[ParamDecl],
        args: Args,
        span: Span,
    ) -> Eval<()> {
        let names: Vec<ParamName<'_>> = params
            .iter()
            .map(|p| ParamName { name: &p.name.name, required: p.default.is_none(), span: Some(p.name.span) })
            .collect();
        let bound = self.bind_args(title, &names, args, span)?;
        let mut failed = false;
        for (param, bound) in params.iter().zip(&bound) {
            if let (Some(ty), Some((value, _))) = (&param.ty, bound) {
                self.bind_dims(&cx.scope, &cx.ast, ty, value);
            }
        }
        for (param, bound) in params.iter().zip(bound) {
            let (value, at) = match (bound, param.default) {
                (Some(bound), _) => bound,
                (None, Some(default)) => (self.expr(cx, default)?, cx.ast.expr(default).span),
                (None, None) => continue,
            };
            let value = match &param.ty {
                Some(ty) if !matches!(value, Value::Poison) => {
                    let what = format!("`{}` of `{title}`", param.name.name);
                    let checked = self.check_type(cx, ty, value, &what, at);
                    self.part(checked)?.unwrap_or(Value::Poison)
                }
                _ => value,
            };
            failed |= matches!(value, Value::Poison);
            cx.scope.declare(&param.name.name, value, param.name.span);
        }
        if failed { Err(Halt::Reported) } else { Ok(()) }
    }
}
