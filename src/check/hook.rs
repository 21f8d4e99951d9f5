//! Hooks: what `sync` does with a bucket, written in the language, with state for each bucket.

use std::sync::Arc;

use super::{
    Evaluator,
    args::Args,
    errors::{Eval, Halt},
    frame::FrameKind,
    scope::{Scope, ScopeKind},
    sync::StateKey,
    value::{Cell, Cx, Hook, Init, OptimizerDef, Value, fresh_id, lock},
};
use crate::{
    codes,
    diagnostic::Diagnostic,
    ir::{DType, Graph, NodeId, SlotKind, Type, ValueId},
    ops::{Binary, CollectiveKind, Op, ReduceKind},
    source::Span,
    syntax::ast::{ExprId, Name},
};

impl Evaluator {
    /// `hooks.low_rank(rank: 2)` is a hook with settings; called with a tensor, a hook is a function.
    pub(super) fn call_hook(&mut self, hook: &Arc<Hook>, args: Args, span: Span) -> Eval {
        let decl = Arc::clone(&hook.def.decl);
        let title = Arc::clone(&decl.name.name);
        if args.positional.first().is_some_and(|(value, _)| value.is_tensor()) {
            if let Some((state, _)) = decl.states.first() {
                return Err(self.report(
                    Diagnostic::error(
                        codes::BAD_OPTION,
                        span,
                        format!("the hook `{title}` is called outside of `sync`"),
                    )
                    .secondary(state.span, "it keeps this for each bucket of a `sync`")
                    .help(format!("write `sync g over world with {title}`")),
                ));
            }
            return self.scripted(span, |ev| {
                ev.enter_call(&title, span, |ev| {
                    let cx = hook.def.cx.in_scope(hook.def.cx.scope.child(ScopeKind::Body));
                    let mut all = args;
                    all.named.extend(hook.settings.named.iter().cloned());
                    ev.bind_params(&cx, &title, &decl.params, all, span)?;
                    ev.hook_body(&cx, &hook.def)
                })
            });
        }
        // The settings are judged where they are written.
        let cx = hook.def.cx.in_scope(hook.def.cx.scope.child(ScopeKind::Body));
        let settings = decl.params.get(1..).unwrap_or_default();
        let mut all = args;
        all.named.extend(hook.settings.named.iter().cloned());
        self.bind_params(&cx, &title, settings, all, span)?;
        let mut bound = Args::default();
        for param in settings {
            if let Some(binding) = cx.scope.get(&param.name.name) {
                bound.named.push((param.name.clone(), binding.value, span));
            }
        }
        let def = OptimizerDef { id: fresh_id(), decl, cx: hook.def.cx.clone() };
        Ok(Value::Hook(Arc::new(Hook { id: fresh_id(), def, settings: bound })))
    }

    fn hook_body(&mut self, cx: &Cx, def: &OptimizerDef) -> Eval {
        match self.block(cx, &def.decl.body) {
            Err(Halt::Return(value)) => Ok(value),
            other => other,
        }
    }

    /// The body for the bucket with this number.
    pub(super) fn run_hook(&mut self, hook: &Arc<Hook>, bucket: Value, number: usize, span: Span) -> Eval {
        let decl = &hook.def.decl;
        let title = Arc::clone(&decl.name.name);
        let ty = self.tensor_type(&bucket).ok_or(Halt::Reported)?;
        let mut args = hook.settings.clone();
        args.positional.push((bucket, span));
        let scope = hook.def.cx.scope.child(ScopeKind::Body);
        let cx = hook.def.cx.in_scope(Arc::clone(&scope));
        let first = self.frame(span)?.graph.len();
        let result = self.enter_call(&title, span, |ev| {
            ev.bind_params(&cx, &title, &decl.params, args, span)?;
            for (name, init) in &decl.states {
                let state =
                    ev.hook_state(hook, (&name.name, *init, name.span), (&scope, &ty), number, span)?;
                scope.declare(&name.name, Value::Param(state), name.span);
            }
            ev.hook_body(&cx, &hook.def)
        })?;
        self.warn_of_overflow(&title, first, span)?;
        Ok(result)
    }

    /// The state of a bucket, made when it is asked for first. It belongs to the step and to this rank.
    fn hook_state(
        &mut self,
        hook: &Arc<Hook>,
        (name, init, place): (&Name, ExprId, Span),
        (scope, bucket): (&Arc<Scope>, &Type),
        number: usize,
        span: Span,
    ) -> Eval<Arc<Cell>> {
        let decl = &hook.def.decl;
        // The expression sees the settings, and zeros in place of the bucket.
        let start = hook.def.cx.scope.child(ScopeKind::Body);
        let mut stand_in: Name = "bucket".into();
        for (k, param) in decl.params.iter().enumerate() {
            match scope.get(&param.name.name) {
                _ if k == 0 => stand_in = Arc::clone(&param.name.name),
                Some(binding) => start.declare(&param.name.name, binding.value, binding.span),
                None => {}
            }
        }
        let cx = hook.def.cx.in_scope(start);
        let zeros = zeros(&stand_in, bucket, place);
        let ty = self.state_type(&cx, init, (&stand_in, &zeros), place)?;
        let (step, path) = {
            let frame = self.frame(span)?;
            let FrameKind::Step(step) = &frame.kind else { return Err(Halt::Reported) };
            (Arc::clone(step), frame.path.0)
        };
        let key: StateKey = (span, path, number, Arc::clone(name));
        let mut states = lock(&step.hook_states);
        if let Some(known) = states.get(&key).filter(|known| known.ty == ty) {
            return Ok(Arc::clone(known));
        }
        let source = Init::HookState { cx, expr: init, bucket: stand_in, ty: bucket.clone() };
        let state = Cell::new(Arc::clone(name), ty, SlotKind::State, place, source);
        states.remove(&key);
        // Files have it by this name.
        let base = format!("{}.{}.{}.{name}", step.name(), decl.name.name, number + 1);
        let mut own = base.clone();
        let mut copies = 1;
        while states.values().any(|known| *known.name() == *own) {
            copies += 1;
            own = format!("{base}#{copies}");
        }
        state.name_once(&own);
        states.insert(key, Arc::clone(&state));
        Ok(state)
    }

    /// f16 ends at 65504: a sum over ranks may be larger where the mean is not.
    fn warn_of_overflow(&mut self, title: &Name, first: usize, span: Span) -> Eval<()> {
        let graph = &self.frame(span)?.graph;
        let found = (first..graph.len()).find_map(|k| {
            let id = NodeId(k as u32);
            overflowing(graph, id).map(|what| (graph.origins.get(graph.node(id).origin()).span, what))
        });
        let Some((at, what)) = found else { return Ok(()) };
        let (message, help) = match what {
            Overflow::Sum { ranks } => (
                format!("`{title}` adds the f16 values of {ranks} ranks before it divides"),
                "divide what is sent: `f16(bucket) / world`",
            ),
            Overflow::Squares => {
                (format!("`{title}` adds up in f16 what may be large"), "do it in f32, and cast what is sent")
            }
        };
        self.report(
            Diagnostic::warning(codes::HOOK_OVERFLOW, at, message)
                .label("may exceed 65504, the largest f16: then it is infinite")
                .secondary(span, "a hook of this `sync`")
                .help(help),
        );
        Ok(())
    }
}

/// Zeros of a bucket's type, under the name of the bucket.
pub(super) fn zeros(name: &Name, ty: &Type, span: Span) -> Arc<Cell> {
    Cell::new(Arc::clone(name), ty.clone(), SlotKind::State, span, Init::Zeros)
}

enum Overflow {
    /// A collective adds values that nobody has divided.
    Sum { ranks: u32 },
    /// Squares, or sums of many elements.
    Squares,
}

fn overflowing(graph: &Graph, id: NodeId) -> Option<Overflow> {
    let node = graph.node(id);
    let operand = *node.args().first()?;
    if graph.ty(operand).dtype() != DType::F16 {
        return None;
    }
    match node.op() {
        Op::CollectiveStart(start) => {
            let adds = matches!(
                start.kind,
                CollectiveKind::AllReduce | CollectiveKind::ReduceScatter | CollectiveKind::Reduce
            );
            let is_safe = start.world == 1 || is_divided(graph, operand, f64::from(start.world));
            (adds && !is_safe).then_some(Overflow::Sum { ranks: start.world })
        }
        Op::Reduce(reduce) => (reduce.kind == ReduceKind::Sum).then_some(Overflow::Squares),
        Op::Binary(Binary::Mul) => matches!(node.args(), [a, b] if a == b).then_some(Overflow::Squares),
        _ => None,
    }
}

/// Whether a value has been divided by `ranks` at least, on the way from where it was computed.
fn is_divided(graph: &Graph, value: ValueId, ranks: f64) -> bool {
    let mut value = value;
    loop {
        let node = graph.producer(value).0;
        let constant = |value: &ValueId| {
            let mut node = graph.producer(*value).0;
            while let (Op::Broadcast(_) | Op::Cast(_), Some(&arg)) = (node.op(), node.args().first()) {
                node = graph.producer(arg).0;
            }
            match node.op() {
                Op::Const(constant) => Some(constant.value.as_f64()),
                _ => None,
            }
        };
        value = match (node.op(), node.args()) {
            (Op::Binary(Binary::Div), [x, by]) => match constant(by) {
                Some(by) if by >= ranks => return true,
                _ => *x,
            },
            (Op::Binary(Binary::Mul), [a, b]) => {
                return [a, b].into_iter().filter_map(constant).any(|by| by.abs() <= 1.0 / ranks);
            }
            (Op::Cast(_) | Op::Reshape(_) | Op::Slice(_) | Op::Transpose(_) | Op::Copy(_), [x]) => *x,
            _ => return false,
        };
    }
}
