//! `for` loops.

use std::sync::Arc;

use super::{
    Evaluator,
    errors::Eval,
    resume::RunningLoop,
    scope::{Scope, ScopeKind},
    value::{Cx, StreamKind, Value},
    walk,
};
use crate::syntax::ast::{Block, ExprId, ExprKind, Ident, Name};

/// Passes of a script loop that mode Check follows one by one.
const FOLLOWED_PASSES: u64 = 1024;

impl Evaluator {
    pub(super) fn for_stmt(&mut self, cx: &Cx, names: &[Ident], iter: ExprId, body: &Block) -> Eval {
        let iterable = self.expr(cx, iter)?;
        let of_rank = self.follows_rank(cx, iter);
        let span = cx.ast.expr(iter).span;
        if let Value::Stream(stream) = &iterable
            && let StreamKind::Microbatches { items, parts } = &stream.kind
        {
            return self.microbatch_loop(cx, names, items, *parts, body, span);
        }
        self.resume(&cx.scope, span)?;
        let place = if self.in_graph() || self.is_check() { None } else { self.loop_place(cx, body) };
        let done = match place {
            Some(place) => self.passes_done(place, &cx.scope, span)?,
            None => 0,
        };
        let mut passes = 0;
        let once = self.is_check() && !self.follows_every_pass(cx, &iterable, body);
        let before: Vec<_> = if once { self.assigned_values(cx, body) } else { Vec::new() };
        let label = names.first().map(|n| Arc::clone(&n.name));
        let outer = self.frames.last().and_then(|f| f.iteration.clone());
        let result = self.each(&iterable, span, once, &mut |ev, k, item| {
            passes = k + 1;
            if k < done {
                return Ok(());
            }
            if let Some(place) = place {
                ev.loops.push(RunningLoop { place, pass: k, around: Arc::clone(&cx.scope) });
            }
            if let (Some(frame), Some(label)) = (ev.frames.last_mut(), &label) {
                frame.iteration = Some(format!("{label} {k}").into());
            }
            let inner = cx.in_scope(cx.scope.child(ScopeKind::Block));
            ev.bind_names(&inner, names, item, span)?;
            if of_rank {
                names.iter().for_each(|n| inner.scope.mark_of_rank(&n.name));
            }
            let result = ev.block(&inner, body).map(|_| ());
            if place.is_some() {
                ev.loops.pop();
            }
            result
        });
        if let Some(frame) = self.frames.last_mut() {
            frame.iteration = outer;
        }
        result?;
        if let Some(place) = place.filter(|_| self.loops.is_empty()) {
            self.loop_finished(place, passes, &cx.scope);
        }
        for (name, scope, old) in before {
            // The loop may run any number of times: what it changes is not known after it.
            if let Some(now) = scope.get(&name) {
                // A sum of tensors often starts from the number 0.
                let starts_as_number = super::operator::number(&old).is_some() && now.value.is_tensor();
                let joined = if starts_as_number { now.value } else { super::expr::join(old, now.value) };
                scope.set_value(&name, joined, now.span);
            }
        }
        Ok(Value::Unit)
    }

    /// The variables that a loop's body assigns to, with their values.
    pub(super) fn assigned_values(&mut self, cx: &Cx, body: &Block) -> Vec<(Name, Arc<Scope>, Value)> {
        walk::assigned_names(&cx.ast, body)
            .into_iter()
            .filter_map(|name| {
                let (scope, binding) = cx.scope.lookup(&name)?;
                Some((Arc::clone(&name), Arc::clone(scope), binding.value))
            })
            .collect()
    }

    /// In mode Check, loops that only build values are followed pass by pass; those that train or
    /// print are visited once.
    fn follows_every_pass(&mut self, cx: &Cx, iterable: &Value, body: &Block) -> bool {
        let passes = match iterable {
            Value::Range(range) if !range.known => return false,
            Value::Range(range) => range.len(),
            Value::List(items) | Value::Tuple(items) => items.len() as u64,
            _ => return false,
        };
        if self.in_graph() {
            return true;
        }
        let mut builds = passes <= FOLLOWED_PASSES;
        walk::walk_block(&cx.ast, body, &mut |item| {
            if let walk::Item::Expr(id) = item
                && let ExprKind::Call { callee, .. } = &cx.ast.expr(id).kind
            {
                builds &= match &cx.ast.expr(*callee).kind {
                    ExprKind::Name(name) if matches!(&**name, "print" | "plot" | "log" | "save") => false,
                    ExprKind::Name(name) => !cx
                        .scope
                        .lookup(name)
                        .is_some_and(|(_, b)| matches!(b.value, Value::Step(_) | Value::Model(_))),
                    _ => true,
                };
            }
        });
        builds
    }
}
