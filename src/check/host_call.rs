//! Calls of what the host registered, and values on their way to it and back.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::{
    Evaluator, Mode,
    args::Args,
    errors::{Eval, Halt},
    frame::{Frame, FrameKind, InputSource, stable_hash},
    tensor::Operand,
    value::{Stored, Unknown, Value},
};
use crate::{
    codes,
    diagnostic::Diagnostic,
    engine::{self, HostFunction, Object},
    ir::{Graph, Output, Type, ValueId},
    ops::{HostGradient, HostOp, Opaque, float_types, wrong_types},
    source::Span,
};

/// By op, gradient function and types of the operands.
pub(super) type Templates = FxHashMap<(usize, u64, Vec<Type>), Arc<Graph>>;

/// How deep the lists of a host may be nested.
const MAX_NESTING: usize = 100;

impl Evaluator {
    pub(super) fn call_host_function(
        &mut self,
        function: &Arc<HostFunction>,
        args: Args,
        span: Span,
    ) -> Eval {
        let name = function.name();
        if self.in_graph() {
            return Err(self.report(
                Diagnostic::error(
                    codes::NOT_IN_GRAPH,
                    span,
                    format!("the host function `{name}` is called from graph code"),
                )
                .help(
                    "call it in the script and pass the result to the step, or let the host register an op",
                ),
            ));
        }
        if let Some((named, _, _)) = args.named.first() {
            let message = format!("the host function `{name}` has no parameter `{}`", named.name);
            return Err(self.error(codes::ARGUMENTS, named.span, message));
        }
        if self.mode == Mode::Check {
            return Ok(match function.result() {
                Some(ty) => Value::Stored(Stored::new(ty.clone(), None)),
                None => Value::Unknown(Unknown::Any),
            });
        }
        let mut values = Vec::with_capacity(args.positional.len());
        for (value, at) in &args.positional {
            values.push(self.value_for_host(value, *at)?);
        }
        let result = match function.call(&values) {
            Ok(result) => result,
            Err(why) => {
                let message = format!("the host function `{name}` failed: {why}");
                return Err(self.error(codes::HOST, span, message));
            }
        };
        if let Some(expected) = function.result()
            && result.as_tensor().map(|t| t.ty()) != Some(expected)
        {
            let message =
                format!("the host function `{name}` gave {}, and promised {expected}", result.kind());
            return Err(self.error(codes::HOST, span, message));
        }
        self.host_value(&result, span)
    }

    /// Applies an op of the host, in the graph that is open or in one that is run at once.
    pub(super) fn call_host_op(&mut self, op: &Arc<HostOp>, args: Args, span: Span) -> Eval {
        if let Some((named, _, _)) = args.named.first() {
            let message = format!("the host op `{}` has no parameter `{}`", op.name(), named.name);
            return Err(self.error(codes::ARGUMENTS, named.span, message));
        }
        self.scripted(span, |ev| {
            let mut values = Vec::with_capacity(args.positional.len());
            for (value, at) in &args.positional {
                match ev.operand(value, *at)? {
                    Some(Operand::Tensor { value, .. }) => values.push(value),
                    _ => {
                        let kind = value.kind();
                        return Err(ev.report(
                            Diagnostic::error(
                                codes::TYPE_MISMATCH,
                                *at,
                                format!("the host op `{}` takes tensors, got {kind}", op.name()),
                            )
                            .help("`f32(x)` makes a tensor of a number"),
                        ));
                    }
                }
            }
            let graph = &ev.frame(span)?.graph;
            let types: Vec<Type> = values.iter().map(|&v| graph.ty(v).clone()).collect();
            let node = match Opaque::host(op, None, &types) {
                Ok(node) => node,
                Err(error) => return Err(ev.op_error(span, error)),
            };
            for ty in &node.results {
                ev.checked_type(ty.dtype(), ty.shape(), span)?;
            }
            let gradient = ev.gradient_template(op, &types, &node.results, span)?;
            let node =
                Opaque { host: node.host.map(|host| crate::ops::HostKernel { gradient, ..host }), ..node };
            let made = ev.build(span, |f| {
                let made = f.graph.push(node, &values)?;
                Ok(f.graph.node(made).results().collect::<Vec<ValueId>>())
            })?;
            let mut results = Vec::with_capacity(made.len());
            for value in made {
                results.push(ev.graph_value(value, false));
            }
            Ok(if results.len() == 1 { results.remove(0) } else { Value::tuple(results) })
        })
    }

    /// Elaborates the gradient function of a host op into a graph of its own, where it has one. The
    /// backward pass appends that graph's nodes.
    fn gradient_template(
        &mut self,
        op: &Arc<HostOp>,
        args: &[Type],
        results: &[Type],
        span: Span,
    ) -> Eval<Option<Arc<Graph>>> {
        let HostGradient::Function(name) = op.gradient() else { return Ok(None) };
        // A gradient function may use the op itself: that use has no gradient of its own.
        if self.in_template {
            return Ok(None);
        }
        let Some(binding) = self.script.get(name) else {
            let known: Vec<String> = self.script.bindings().into_iter().map(|(n, _)| n.to_string()).collect();
            let mut diagnostic = Diagnostic::error(
                codes::GRADIENT,
                span,
                format!(
                    "the gradient of the host op `{}` is `{name}`, which the script does not define",
                    op.name()
                ),
            );
            if let Some(close) = super::closest(name, known.iter().map(String::as_str)) {
                diagnostic.help.push(format!("did you mean `{close}`?"));
            }
            return Err(self.report(diagnostic));
        };
        let key = (Arc::as_ptr(op).addr(), binding.value.identity().unwrap_or(0), args.to_vec());
        if let Some(template) = self.templates.get(&key) {
            return Ok(Some(Arc::clone(template)));
        }
        let depth = self.frames.len();
        let mut frame = Frame::new(FrameKind::Init);
        frame.path = (stable_hash(name), 0);
        self.frames.push(frame);
        self.in_template = true;
        let elaborated = self.elaborate_gradient(op, name, &binding.value, args, results, span);
        self.in_template = false;
        self.frames.truncate(depth + 1);
        let frame = self.frames.pop();
        let (outputs, Some(mut frame)) = (elaborated?, frame) else { return Err(Halt::Reported) };
        let given = args.len() + results.len() + results.iter().filter(|t| t.dtype().is_float()).count();
        let graph = &frame.graph;
        if graph.inputs.len() != given
            || !graph.slots.is_empty()
            || !graph.scalars.is_empty()
            || !graph.regions.is_empty()
        {
            let message =
                format!("the gradient `{name}` of the host op `{}` uses more than its arguments", op.name());
            return Err(self.report(
                Diagnostic::error(codes::GRADIENT, span, message)
                    .secondary(binding.span, "declared here")
                    .help("parameters, tensors of the script and `checkpoint` regions have no place in it"),
            ));
        }
        let origin = graph.cursor.origin;
        frame.graph.outputs =
            outputs.into_iter().map(|value| Output { name: Arc::clone(name), value, origin }).collect();
        let template = Arc::new(frame.graph);
        self.templates.insert(key, Arc::clone(&template));
        Ok(Some(template))
    }

    /// The results of a gradient function, in the graph that was opened for it.
    fn elaborate_gradient(
        &mut self,
        op: &HostOp,
        name: &Arc<str>,
        function: &Value,
        args: &[Type],
        results: &[Type],
        span: Span,
    ) -> Eval<Vec<ValueId>> {
        let cotangents = results.iter().filter(|ty| ty.dtype().is_float());
        let mut inputs = Vec::new();
        for (k, ty) in args.iter().chain(results).chain(cotangents).enumerate() {
            let title = format!("{name}.{k}").into();
            let value = self.build(span, |f| f.add_input(title, ty, InputSource::Argument(k)))?;
            inputs.push(value);
        }
        let positional: Vec<(Value, Span)> =
            inputs.iter().map(|&value| (self.graph_value(value, false), span)).collect();
        let result = self.call_value(function, Args { positional, named: Vec::new() }, span)?;
        let items = match &result {
            Value::Tuple(items) | Value::List(items) => items.as_ref().clone(),
            other => vec![other.clone()],
        };
        let mut values = Vec::with_capacity(items.len());
        for item in &items {
            values.push(self.tensor_value(item, span)?.0);
        }
        let graph = &self.frame(span)?.graph;
        let (got, wanted) = (
            values.iter().map(|&v| graph.ty(v).clone()).collect::<Vec<Type>>(),
            float_types(graph, inputs.get(..args.len()).unwrap_or_default()),
        );
        if got != wanted {
            return Err(self.op_error(span, wrong_types(op.name(), name, &got, &wanted)));
        }
        Ok(values)
    }

    /// A value of the host as one of the script.
    pub(super) fn host_value(&mut self, value: &engine::Value, span: Span) -> Eval {
        self.host_value_at(value, span, 0)
    }

    fn host_value_at(&mut self, value: &engine::Value, span: Span, depth: usize) -> Eval {
        if depth > MAX_NESTING {
            let message = format!("lists of the host are nested more than {MAX_NESTING} deep");
            return Err(self.error(codes::LIMIT, span, message));
        }
        let items = |ev: &mut Self, items: &[engine::Value]| -> Eval<Vec<Value>> {
            let limit = ev.settings.limits.max_items;
            if items.len() > limit {
                let message = format!(
                    "a list of {} items; the limit of this engine is {limit} (`max_items`)",
                    items.len()
                );
                return Err(ev.error(codes::LIMIT, span, message));
            }
            items.iter().map(|item| ev.host_value_at(item, span, depth + 1)).collect()
        };
        Ok(match value {
            engine::Value::Unit => Value::Unit,
            engine::Value::Bool(flag) => Value::Bool(*flag),
            engine::Value::Int(number) => Value::Int(*number),
            engine::Value::Float(number) => Value::Float(*number),
            engine::Value::Str(text) => Value::Str(Arc::clone(text)),
            engine::Value::DType(dtype) => Value::DType(*dtype),
            engine::Value::Tensor(tensor) => {
                self.checked_type(tensor.dtype(), tensor.shape(), span)?;
                Value::Stored(Stored::new(tensor.ty().clone(), Some(tensor.clone())))
            }
            engine::Value::List(list) => Value::list(items(self, list)?),
            engine::Value::Tuple(tuple) => Value::tuple(items(self, tuple)?),
            engine::Value::Record(fields) => {
                let mut made = Vec::with_capacity(fields.len());
                for (name, item) in fields {
                    made.push((Arc::clone(name), self.host_value_at(item, span, depth + 1)?));
                }
                Value::Record(Arc::new(super::value::Record { what: "a record", fields: made }))
            }
            engine::Value::Object(object) if object.session == self.id => object.value.clone(),
            engine::Value::Object(object) => {
                let message = format!("{} belongs to another session", object.kind());
                return Err(self.error(codes::ARGUMENTS, span, message));
            }
        })
    }

    /// A value of the script as one of the host.
    pub(super) fn value_for_host(&mut self, value: &Value, span: Span) -> Eval<engine::Value> {
        Ok(match value {
            Value::Unit => engine::Value::Unit,
            Value::Poison => return Err(Halt::Reported),
            Value::Int(number) => engine::Value::Int(*number),
            Value::Float(number) => engine::Value::Float(*number),
            Value::Bool(flag) => engine::Value::Bool(*flag),
            Value::Str(text) => engine::Value::Str(Arc::clone(text)),
            Value::DType(dtype) => engine::Value::DType(*dtype),
            Value::List(items) => engine::Value::List(self.items_for_host(items, span)?),
            Value::Tuple(items) if items.is_empty() => engine::Value::Unit,
            Value::Tuple(items) => engine::Value::Tuple(self.items_for_host(items, span)?),
            Value::Range(_) => {
                let items = self.items(value, span)?;
                engine::Value::List(self.items_for_host(&items, span)?)
            }
            Value::Record(record) => {
                let mut fields = Vec::with_capacity(record.fields.len());
                for (name, item) in &record.fields {
                    fields.push((Arc::clone(name), self.value_for_host(item, span)?));
                }
                engine::Value::Record(fields)
            }
            Value::Tree(tree) => {
                let mut fields = Vec::with_capacity(tree.entries.len());
                for (cell, item) in &tree.entries {
                    if let Some(item) = item {
                        fields.push((cell.name(), self.value_for_host(item, span)?));
                    }
                }
                engine::Value::Record(fields)
            }
            v if v.is_tensor() => match self.host_tensor(v, span)? {
                Some(tensor) => engine::Value::Tensor(tensor),
                None => return Err(self.error(codes::INTERNAL, span, "a tensor of the script has no data")),
            },
            other => engine::Value::Object(Object::new(other.clone(), self.id)),
        })
    }

    fn items_for_host(&mut self, items: &[Value], span: Span) -> Eval<Vec<engine::Value>> {
        items.iter().map(|item| self.value_for_host(item, span)).collect()
    }
}
