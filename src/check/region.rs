//! `checkpoint < … >`, `barrier(…)` and micro-batches.

use std::sync::Arc;

use super::{
    Evaluator,
    errors::{Eval, Halt},
    run::{collect_tensors, map_tensors},
    scope::ScopeKind,
    tensor::{Index, Operand},
    value::{Cx, Record, Value},
    walk,
};
use crate::{
    codes,
    diagnostic::Diagnostic,
    ir::{Bind, Policy, Region, RegionId, ValueId},
    ops::{Barrier, BarrierKind},
    source::Span,
    syntax::ast::{Arg, Block, ExprId, ExprKind, Ident, Name, StrPart},
};

#[derive(Default)]
struct Options {
    bind: Bind,
    policy: Policy,
    /// Evaluated after the body, whose names it may use.
    keep: Option<ExprId>,
}

impl Evaluator {
    pub(super) fn checkpoint(&mut self, cx: &Cx, options: &[Arg], body: &Block, span: Span) -> Eval {
        let options = self.checkpoint_options(cx, options)?;
        self.scripted(span, |ev| ev.region(cx, options, body, span))
    }

    fn region(&mut self, cx: &Cx, options: Options, body: &Block, span: Span) -> Eval {
        let frame = self.frame_at(span)?;
        frame.end_gather();
        let graph = &mut frame.graph;
        let id = RegionId(graph.regions.len() as u32);
        let (start, first_value) = (graph.len() as u32, graph.value_count() as u32);
        let outer = graph.cursor.region.replace(id);
        graph.regions.push(Region {
            parent: outer,
            bind: options.bind,
            policy: options.policy,
            keep: Vec::new(),
            outputs: Vec::new(),
            origin: graph.cursor.origin,
            nodes: start..start,
        });
        let set_before = frame.set.len();
        let inner = cx.in_scope(cx.scope.child(ScopeKind::Body));
        let result = match self.block(&inner, body) {
            Err(Halt::Return(_)) => Err(self.report(
                Diagnostic::error(codes::NOT_IN_GRAPH, span, "`return` inside of `checkpoint < … >`")
                    .help("the last expression of the region is its value"),
            )),
            other => other,
        };
        let result = result.and_then(|value| self.lift(&value, span));
        let kept = match (&result, options.keep) {
            (Ok(_), Some(keep)) => self.kept_values(&inner, keep),
            _ => Ok(Vec::new()),
        };
        let frame = self.frame(span)?;
        frame.end_gather();
        let mut outputs: Vec<ValueId> = Vec::new();
        if let Ok(value) = &result {
            collect_tensors(value, &mut |t| outputs.push(t.value));
        }
        // What the region writes to state leaves it too.
        let mut set = frame.set.get(set_before..).unwrap_or_default().to_vec();
        set.sort_by_key(|(slot, _)| *slot);
        outputs.extend(set.into_iter().map(|(_, value)| value));
        let graph = &mut frame.graph;
        outputs.retain(|v| v.0 >= first_value && graph.producer(*v).0.region().is_some());
        let mut seen = rustc_hash::FxHashSet::default();
        outputs.retain(|v| seen.insert(*v));
        graph.cursor.region = outer;
        let end = graph.len() as u32;
        if let Some(region) = graph.regions.get_mut(id.0 as usize) {
            region.nodes = start..end;
            region.outputs = outputs;
            region.keep = kept?;
        }
        result
    }

    fn kept_values(&mut self, cx: &Cx, keep: ExprId) -> Eval<Vec<ValueId>> {
        let span = cx.ast.expr(keep).span;
        let value = self.expr(cx, keep)?;
        let mut values = Vec::new();
        collect_tensors(&value, &mut |t| values.push(t.value));
        if values.is_empty() {
            let kind = value.kind();
            return Err(self.error(
                codes::BAD_OPTION,
                span,
                format!("`keep` takes a list of values made in the region, got {kind}"),
            ));
        }
        Ok(values)
    }

    fn checkpoint_options(&mut self, cx: &Cx, args: &[Arg]) -> Eval<Options> {
        let mut options = Options::default();
        for arg in args {
            let expr = cx.ast.expr(arg.value);
            let word = match &expr.kind {
                ExprKind::Name(name) => Some(&**name),
                _ => None,
            };
            match arg.name.as_ref().map(|n| &*n.name) {
                Some("bind") => {
                    options.bind = match word {
                        Some("all") => Bind::All,
                        Some("grad") => Bind::Grad,
                        Some("output") => Bind::Output,
                        Some("none") => Bind::None,
                        _ => {
                            return Err(self.error(
                                codes::BAD_OPTION,
                                expr.span,
                                "`bind` is one of `all`, `grad`, `output`, `none`",
                            ));
                        }
                    }
                }
                Some("policy") => options.policy = self.policy(cx, arg.value, word)?,
                Some("keep") => options.keep = Some(arg.value),
                name => {
                    let message = match name {
                        Some(name) => format!("`checkpoint` has no option `{name}`"),
                        None => "options of `checkpoint` have names".to_string(),
                    };
                    let at = arg.name.as_ref().map_or(expr.span, |n| n.span);
                    return Err(self.report(Diagnostic::error(codes::BAD_OPTION, at, message).help(
                        "options are `keep: [h]`, `policy: dots`, `policy: names(\"…\")`, `bind: all`",
                    )));
                }
            }
        }
        Ok(options)
    }

    fn policy(&mut self, cx: &Cx, id: ExprId, word: Option<&str>) -> Eval<Policy> {
        let expr = cx.ast.expr(id);
        match (word, &expr.kind) {
            (Some("nothing"), _) => return Ok(Policy::Nothing),
            (Some("dots"), _) => return Ok(Policy::Dots),
            (_, ExprKind::Call { callee, args }) if matches!(&cx.ast.expr(*callee).kind, ExprKind::Name(n) if &**n == "names") =>
            {
                let mut names = Vec::with_capacity(args.len());
                for arg in args {
                    match &cx.ast.expr(arg.value).kind {
                        ExprKind::Str(parts) => match parts.as_slice() {
                            [StrPart::Text(text)] => names.push(Arc::clone(text)),
                            _ => break,
                        },
                        _ => break,
                    }
                }
                if names.len() == args.len() && !names.is_empty() {
                    return Ok(Policy::Names(names));
                }
            }
            _ => {}
        }
        Err(self.error(codes::BAD_OPTION, expr.span, "`policy` is `nothing`, `dots` or `names(\"…\")`"))
    }

    /// The value with every tensor of the script and every parameter in it as a value of the graph.
    pub(super) fn lift(&mut self, value: &Value, span: Span) -> Eval {
        Ok(match value {
            Value::Stored(_) | Value::Param(_) | Value::Tensor(_) => {
                let (id, weak) = self.tensor_value(value, span)?;
                self.graph_value(id, weak)
            }
            Value::List(items) => {
                Value::list(items.iter().map(|v| self.lift(v, span)).collect::<Eval<Vec<_>>>()?)
            }
            Value::Tuple(items) => {
                Value::tuple(items.iter().map(|v| self.lift(v, span)).collect::<Eval<Vec<_>>>()?)
            }
            Value::Record(record) => {
                let mut fields = Vec::with_capacity(record.fields.len());
                for (name, value) in &record.fields {
                    fields.push((Arc::clone(name), self.lift(value, span)?));
                }
                Value::Record(Arc::new(Record { what: record.what, fields }))
            }
            Value::Tree(tree) => {
                let mut entries = Vec::with_capacity(tree.entries.len());
                for (cell, value) in &tree.entries {
                    let value = value.as_ref().map(|v| self.lift(v, span)).transpose()?;
                    entries.push((Arc::clone(cell), value));
                }
                tree.with(entries)
            }
            other => other.clone(),
        })
    }

    pub(super) fn barrier_expr(&mut self, cx: &Cx, operands: &[ExprId], span: Span) -> Eval {
        let spans = operands.iter().map(|&operand| cx.ast.expr(operand).span);
        let values: Vec<(Value, Span)> = self.exprs(cx, operands)?.into_iter().zip(spans).collect();
        self.scripted(span, |ev| {
            let mut lifted = Vec::with_capacity(values.len());
            for (value, at) in &values {
                let value = ev.lift(value, *at)?;
                let mut tensors = 0;
                collect_tensors(&value, &mut |_| tensors += 1);
                let empty = matches!(&value, Value::List(items) if items.is_empty());
                if tensors == 0 && !empty {
                    let kind = value.kind();
                    return Err(ev.error(
                        codes::TYPE_MISMATCH,
                        *at,
                        format!("`barrier` holds tensors, got {kind}"),
                    ));
                }
                lifted.push(value);
            }
            let mut results = ev.barrier(&lifted, span)?;
            Ok(if results.len() == 1 { results.remove(0) } else { Value::tuple(results) })
        })
    }

    /// Puts all tensors in the values behind one barrier.
    pub(super) fn barrier(&mut self, values: &[Value], span: Span) -> Eval<Vec<Value>> {
        let mut operands: Vec<ValueId> = Vec::new();
        for value in values {
            collect_tensors(value, &mut |t| {
                if !operands.contains(&t.value) {
                    operands.push(t.value);
                }
            });
        }
        if operands.is_empty() {
            return Ok(values.to_vec());
        }
        let results: Vec<ValueId> = self.build(span, |f| {
            let node = f.graph.push(Barrier { kind: BarrierKind::User }, &operands)?;
            Ok(f.graph.node(node).results().collect())
        })?;
        let frame = self.frame(span)?;
        for (operand, result) in operands.iter().zip(&results) {
            if let Some(name) = frame.graph.names.get(operand).cloned() {
                frame.graph.names.insert(*result, name);
            }
        }
        let renamed = |tensor: super::value::GraphTensor| {
            let position = operands.iter().position(|o| *o == tensor.value);
            let value = position.and_then(|p| results.get(p)).copied().unwrap_or(tensor.value);
            Value::Tensor(super::value::GraphTensor { value, ..tensor })
        };
        Ok(values.iter().map(|v| map_tensors(v, &mut |t| renamed(t))).collect())
    }

    /// `for mb in microbatches(x, 4) { … }`: what a pass changes, and the rest of the batch, go
    /// through a barrier before the next pass, so that in every order the passes follow each other.
    pub(super) fn microbatch_loop(
        &mut self,
        cx: &Cx,
        names: &[Ident],
        items: &Value,
        parts: usize,
        body: &Block,
        span: Span,
    ) -> Eval {
        if !self.in_graph() {
            return Err(self.report(
                Diagnostic::error(codes::ONLY_IN_STEP, span, "`microbatches` outside of graph code")
                    .help("scripts go through data with `data.batches(x, size: …)`"),
            ));
        }
        let mut whole = self.lift(items, span)?;
        let outer = self.frames.last().and_then(|f| f.iteration.clone());
        let label = names.first().map_or("micro-batch".into(), |n| Name::clone(&n.name));
        for k in 0..parts {
            self.pause(span)?;
            if let Some(frame) = self.frames.last_mut() {
                frame.iteration = Some(format!("{label} {k}").into());
            }
            let part = self.micro_batch(&whole, k, parts, span)?;
            let inner = cx.in_scope(cx.scope.child(ScopeKind::Block));
            self.bind_names(&inner, names, part, span)?;
            self.block(&inner, body)?;
            if k + 1 == parts {
                break;
            }
            let mut carried = Vec::new();
            let mut values = vec![whole.clone()];
            for name in walk::assigned_names(&cx.ast, body) {
                if let Some((scope, binding)) = cx.scope.lookup(&name) {
                    let mut tensors = 0;
                    collect_tensors(&binding.value, &mut |_| tensors += 1);
                    if tensors > 0 {
                        values.push(binding.value.clone());
                        carried.push((name, Arc::clone(scope), binding.span));
                    }
                }
            }
            let mut results = self.barrier(&values, span)?.into_iter();
            whole = results.next().unwrap_or(whole);
            for ((name, scope, at), value) in carried.into_iter().zip(results) {
                scope.declare(&name, value, at);
            }
        }
        if let Some(frame) = self.frames.last_mut() {
            frame.iteration = outer;
        }
        Ok(Value::Unit)
    }

    /// Part `k` of every tensor along axis 0.
    fn micro_batch(&mut self, whole: &Value, k: usize, parts: usize, span: Span) -> Eval {
        if let Value::Tuple(items) | Value::List(items) = whole {
            let items =
                items.iter().map(|v| self.micro_batch(v, k, parts, span)).collect::<Eval<Vec<_>>>()?;
            return Ok(Value::tuple(items));
        }
        let Some(ty) = self.tensor_type(whole) else {
            let kind = whole.kind();
            return Err(self.error(
                codes::TYPE_MISMATCH,
                span,
                format!("`microbatches` cuts tensors, got {kind}"),
            ));
        };
        let rows = ty.shape().first().copied().unwrap_or(0);
        if rows == 0 || rows % parts != 0 {
            return Err(self.error(
                codes::SHAPE_MISMATCH,
                span,
                format!("`microbatches` cuts {ty} into {parts} parts: {rows} rows do not divide evenly"),
            ));
        }
        let size = rows / parts;
        let (id, _) = self.tensor_value(whole, span)?;
        let (low, high) = ((k * size) as i64, ((k + 1) * size) as i64);
        let part = self.build_any(span, |graph| {
            let slice = Index::Slice { low: Some(low), high: Some(high), step: None };
            super::tensor::index(graph, Operand::tensor(id), &[slice])
        })?;
        Ok(self.operand_value(part))
    }
}
