//! Calls: what the callee is decides.

use std::sync::Arc;

use super::{
    Evaluator,
    args::{Args, ParamName},
    errors::{Eval, Halt},
    operator::{number, unknown_like},
    tensor::{self, Arg as TensorArg, Kind, Nested, Number, Operand, Results},
    value::{Cx, Unknown, Value},
};
use crate::{
    codes,
    diagnostic::Diagnostic,
    source::Span,
    syntax::ast::{Arg, ExprId, ExprKind},
};

impl Evaluator {
    pub(super) fn call_expr(&mut self, cx: &Cx, callee: ExprId, args: &[Arg], span: Span) -> Eval {
        let function = self.expr(cx, callee);
        // Arguments are looked at even where the callee is unknown: both may be wrong.
        let args = self.args(cx, args);
        let (function, args) = (function?, args?);
        if args.has_failed() && !judges_arguments(&function) {
            return Err(Halt::Reported);
        }
        if let (Value::Int(_), ExprKind::Field(_, field)) = (&function, &cx.ast.expr(callee).kind)
            && &*field.name == "size"
        {
            return Err(self.report(
                Diagnostic::error(codes::NOT_CALLABLE, span, "`size` is a number, and cannot be called")
                    .help("`x.shape[0]` is the size of an axis, `x.size` the number of elements"),
            ));
        }
        self.call_value(&function, args, span)
    }

    pub(super) fn call_value(&mut self, callee: &Value, args: Args, span: Span) -> Eval {
        match callee {
            Value::Function(function) => self.call_function(function, args, span),
            Value::Builtin(builtin) => (builtin.call)(self, args, span),
            Value::Method(method) => {
                let mut args = args;
                args.positional.insert(0, (method.receiver.clone(), span));
                (method.builtin.call)(self, args, span)
            }
            Value::TensorFunction(function) => self.call_tensor_function(function, args, span),
            Value::DType(dtype) => match tensor::find(dtype.name()) {
                Some(function) => self.call_tensor_function(function, args, span),
                None => {
                    let cast = |value| Args {
                        positional: vec![value, (Value::DType(*dtype), span)],
                        named: Vec::new(),
                    };
                    match (args.positional.into_iter().next(), tensor::find("cast")) {
                        (Some(value), Some(function)) => {
                            self.call_tensor_function(function, cast(value), span)
                        }
                        _ => Err(self.error(
                            codes::ARGUMENTS,
                            span,
                            format!("`{dtype}` converts one value: `{dtype}(x)`"),
                        )),
                    }
                }
            },
            Value::Model(model) => {
                let forward = model.scope.get("forward").map(|b| b.value);
                match forward {
                    Some(Value::Function(forward)) => self.call_function(&forward, args, span),
                    Some(Value::Poison) => Err(Halt::Reported),
                    None if self.is_lost("forward") => Err(Halt::Reported),
                    _ => Err(self.report(
                        Diagnostic::error(
                            codes::NOT_CALLABLE,
                            span,
                            format!("the model `{}` has no `forward`", model.def.decl.name.name),
                        )
                        .secondary(model.def.decl.name.span, "declared here")
                        .help("add `fn forward(x) = …` to it, or call one of its functions by name"),
                    )),
                }
            }
            Value::ModelDef(def) => self.make_model(def, args, span),
            Value::OptimizerDef(def) => self.make_optimizer(def, args, span),
            Value::Hook(hook) => self.call_hook(hook, args, span),
            Value::Step(step) => self.call_step(step, args, span),
            Value::HostFunction(function) => self.call_host_function(function, args, span),
            Value::HostOp(op) => self.call_host_op(op, args, span),
            Value::Unknown(Unknown::Any) => Ok(Value::Unknown(Unknown::Any)),
            other => {
                let kind = other.kind();
                let mut diagnostic =
                    Diagnostic::error(codes::NOT_CALLABLE, span, format!("{kind} cannot be called"));
                if matches!(other, Value::Int(_) | Value::Float(_)) || other.is_tensor() {
                    diagnostic.help.push("write `*` to multiply, `x[i]` to index".into());
                }
                Err(self.report(diagnostic))
            }
        }
    }

    /// Calls a built-in tensor function by its name.
    pub(super) fn call_tensor_function_named(&mut self, name: &str, args: Args, span: Span) -> Eval {
        match tensor::find(name) {
            Some(function) => self.call_tensor_function(function, args, span),
            None => Err(self.error(codes::INTERNAL, span, format!("there is no tensor function `{name}`"))),
        }
    }

    pub(super) fn call_tensor_function(
        &mut self,
        function: &'static tensor::Function,
        mut args: Args,
        span: Span,
    ) -> Eval {
        let values = args.positional.iter().map(|(v, _)| v).chain(args.named.iter().map(|(_, v, _)| v));
        if self.is_check() && !self.in_graph() && values.into_iter().any(is_open) {
            // A list that grew in a loop, say: only the run knows what is in it.
            return Ok(Value::Unknown(Unknown::Any));
        }
        if let Some((first, _)) = args.positional.first() {
            if let Value::Tree(tree) = first {
                if function.name == "clip" && args.positional.len() + args.named.len() == 2 {
                    return Err(self.report(
                        Diagnostic::error(codes::ARGUMENTS, span, "`clip` needs `high`")
                            .help("write `optim.clip(g, 1.0)` to limit the norm of gradients"),
                    ));
                }
                let tree = Arc::clone(tree);
                return self.tree_function(function, &tree, args, span);
            }
            if let Value::List(items) = first
                && args.positional.len() == 1
                && args.named.is_empty()
                && let Some(folded) = self.fold_list(function.name, items, span)?
            {
                return Ok(folded);
            }
            if function.name == "zeros_like" && matches!(first, Value::Model(_)) {
                let root = first.clone();
                return self.zero_tree(&root, span);
            }
        }
        // `zeros(2, 3)`: sizes one by one, where the shape is one argument.
        let sizes: Option<Vec<String>> = args
            .positional
            .iter()
            .map(|(value, _)| match value {
                Value::Int(size) => Some(size.to_string()),
                _ => None,
            })
            .collect();
        if let (Some(sizes), "zeros" | "ones") = (sizes, function.name)
            && sizes.len() >= 2
        {
            let name = function.name;
            return Err(self.report(
                Diagnostic::error(
                    codes::ARGUMENTS,
                    span,
                    format!("`{name}` takes one shape, got {} numbers", sizes.len()),
                )
                .help(format!("sizes are one list: `{name}([{}])`", sizes.join(", "))),
            ));
        }
        let declared = self.declared.clone();
        if declared.is_some() && function.name == "full" && args.positional.len() == 1 {
            // `full(v)` for a declared parameter: the shape is that of the declaration.
            if let (Some(shape), Some(ty)) = (args.positional.first_mut(), &declared) {
                let value = std::mem::replace(&mut shape.0, shape_value(ty.shape()));
                let at = shape.1;
                args.positional.push((value, at));
            }
        }
        let names: Vec<ParamName<'_>> = function
            .params
            .iter()
            .map(|p| ParamName { name: p.name, required: p.default.is_none(), span: None })
            .collect();
        let bound = self.bind_args(function.name, &names, args, span)?;
        // What is computed from samples is a sample.
        let sampled = bound.iter().flatten().any(|(value, _)| matches!(value, Value::Unknown(_)));
        self.scripted(span, |ev| {
            let mut values = Vec::with_capacity(function.params.len() + 1);
            if function.random {
                let frame = ev.frame(span)?;
                let key = frame.next_key(function.name);
                let per_step = !matches!(frame.kind, super::frame::FrameKind::Init);
                values.push(TensorArg::Key { key, per_step });
            }
            let mut failed = false;
            for (param, bound) in function.params.iter().zip(bound) {
                values.push(match bound {
                    Some((value, at)) => {
                        let arg = ev.tensor_arg(function, param, &value, at);
                        ev.part(arg)?.unwrap_or_else(|| {
                            failed = true;
                            TensorArg::None
                        })
                    }
                    None => match (param.name, &declared, param.default) {
                        ("shape", Some(ty), _) => {
                            TensorArg::Ints(ty.shape().iter().map(|&d| d as i64).collect())
                        }
                        ("dtype", Some(ty), _) => TensorArg::DType(ty.dtype()),
                        (_, _, Some(default)) => default.arg(param.kind),
                        _ => TensorArg::None,
                    },
                });
            }
            if failed {
                return Err(Halt::Reported);
            }
            if tensor::is_collective(function) {
                values.push(TensorArg::World(ev.settings.world));
            }
            let results = ev.build_any(span, |graph| (function.call)(graph, &values))?;
            let mut results: Vec<Value> = results.into_iter().map(|r| ev.operand_value(r)).collect();
            if sampled {
                for result in results.iter_mut().filter(|r| number(r).is_some()) {
                    *result = unknown_like(result);
                }
            }
            Ok(match function.results {
                Results::One if results.len() == 1 => results.remove(0),
                Results::One | Results::Tuple => Value::tuple(results),
                Results::List => Value::list(results),
            })
        })
    }

    /// `sum`, `mean`, `max` and `min` of a list of numbers.
    fn fold_list(&mut self, name: &str, items: &[Value], span: Span) -> Eval<Option<Value>> {
        if !matches!(name, "sum" | "max" | "min" | "mean") || items.is_empty() {
            return Ok(None);
        }
        if items.iter().any(|v| number(v).is_none()) {
            return Ok(None);
        }
        use crate::syntax::ast::BinaryOp;
        let mut result = items.first().cloned().unwrap_or(Value::Int(0));
        for item in items.iter().skip(1) {
            result = match name {
                "sum" | "mean" => self.binary_values(BinaryOp::Add, &result, item, span)?,
                // Comparisons with NaN are false: the first one stays, and a later one is taken.
                _ => {
                    let op = if name == "max" { BinaryOp::Gt } else { BinaryOp::Lt };
                    match self.binary_values(op, item, &result, span)? {
                        Value::Bool(true) => item.clone(),
                        Value::Unknown(_) => unknown_like(&super::expr::join(result, item.clone())),
                        _ if matches!(item, Value::Float(x) if x.is_nan()) => item.clone(),
                        _ => result,
                    }
                }
            };
        }
        if name == "mean" {
            let count = Value::Float(items.len() as f64);
            result = self.binary_values(BinaryOp::Div, &result, &count, span)?;
        }
        Ok(Some(result))
    }

    /// An argument in the form that the parameter of a tensor function takes.
    fn tensor_arg(
        &mut self,
        function: &tensor::Function,
        param: &tensor::Param,
        value: &Value,
        span: Span,
    ) -> Eval<TensorArg> {
        if matches!(value, Value::Poison) {
            return Err(Halt::Reported);
        }
        let converted = match param.kind {
            Kind::Tensor | Kind::OptionalTensor => self.operand(value, span)?.map(TensorArg::Operand),
            Kind::Tensors => match value {
                Value::List(items) | Value::Tuple(items) => {
                    let mut operands: Vec<Operand> = Vec::with_capacity(items.len());
                    for item in items.iter() {
                        match self.operand(item, span)? {
                            Some(operand) => operands.push(operand),
                            None => return Err(self.wrong_arg(function, param, item, span)),
                        }
                    }
                    Some(TensorArg::Operands(operands))
                }
                _ => None,
            },
            Kind::Number => number(value).map(|(n, _)| TensorArg::Number(n)),
            Kind::Int => match value {
                Value::Int(_) | Value::Unknown(Unknown::Int(_) | Unknown::Any) => {
                    Some(TensorArg::Int(self.as_int(value, span)?.0))
                }
                _ => None,
            },
            Kind::Ints | Kind::Shape | Kind::Axis => match value {
                Value::Int(_) | Value::Unknown(Unknown::Int(_)) => {
                    Some(TensorArg::Ints(vec![self.as_int(value, span)?.0]))
                }
                Value::List(items) | Value::Tuple(items) => {
                    let mut numbers = Vec::with_capacity(items.len());
                    for item in items.iter() {
                        numbers.push(self.as_int(item, span)?.0);
                    }
                    Some(TensorArg::Ints(numbers))
                }
                Value::Unit => Some(TensorArg::Ints(Vec::new())),
                _ => None,
            },
            Kind::Bool => match value {
                Value::Bool(_) | Value::Unknown(Unknown::Bool(_)) => {
                    Some(TensorArg::Bool(self.condition(value, span)?.unwrap_or(true)))
                }
                _ => None,
            },
            Kind::DType => match value {
                Value::DType(dtype) => Some(TensorArg::DType(*dtype)),
                _ => None,
            },
            Kind::Str => match value {
                Value::Str(text) => Some(TensorArg::Str(Arc::clone(text))),
                _ => None,
            },
            Kind::Nested => nested(value).map(TensorArg::Nested),
        };
        match converted {
            Some(arg) => Ok(arg),
            None => Err(self.wrong_arg(function, param, value, span)),
        }
    }

    fn wrong_arg(
        &mut self,
        function: &tensor::Function,
        param: &tensor::Param,
        value: &Value,
        span: Span,
    ) -> super::Halt {
        let wanted = match param.kind {
            Kind::Tensor | Kind::OptionalTensor => "a tensor or a number",
            Kind::Tensors => "a list of tensors",
            Kind::Number => "a number known when the graph is built",
            Kind::Int => "a whole number",
            Kind::Ints => "a whole number or a list of them",
            Kind::Shape => "a shape: a list of whole numbers",
            Kind::Axis => "an axis or a list of axes",
            Kind::Bool => "a bool",
            Kind::DType => "a dtype",
            Kind::Str => "a string",
            Kind::Nested => "a list of numbers",
        };
        let kind = value.kind();
        let mut diagnostic = Diagnostic::error(
            codes::TYPE_MISMATCH,
            span,
            format!("`{}` of `{}` is {wanted}, got {kind}", param.name, function.name),
        );
        match (param.kind, value) {
            (Kind::Tensor, Value::List(_)) => {
                diagnostic.help.push("make a tensor of it with `tensor([…])` or `stack([…])`".into());
            }
            (Kind::Tensor | Kind::OptionalTensor, Value::Unit) => {
                diagnostic.help.push(super::operator::NOTHING.into());
            }
            (Kind::Axis, _) if matches!(function.name, "max" | "min") => {
                let larger = if function.name == "max" { "maximum" } else { "minimum" };
                diagnostic.help.push(format!("of two values: `{larger}(a, b)`"));
            }
            (Kind::Tensor, Value::Model(_) | Value::Function(_)) => {
                diagnostic.help.push("call it, and pass the result".into());
            }
            _ => {}
        }
        self.report(diagnostic)
    }
}

/// Whether what is called judges its arguments one by one, so that it may be given some that failed.
fn judges_arguments(callee: &Value) -> bool {
    match callee {
        Value::Model(model) => {
            model.scope.get("forward").is_some_and(|b| matches!(b.value, Value::Function(_)))
        }
        _ => matches!(
            callee,
            Value::Function(_) | Value::TensorFunction(_) | Value::ModelDef(_) | Value::OptimizerDef(_)
        ),
    }
}

pub(super) fn shape_value(shape: &[usize]) -> Value {
    Value::list(shape.iter().map(|&d| Value::Int(d as i64)).collect())
}

fn nested(value: &Value) -> Option<Nested> {
    match value {
        Value::List(items) | Value::Tuple(items) => {
            Some(Nested::List(items.iter().map(nested).collect::<Option<Vec<_>>>()?))
        }
        Value::Range(range) => {
            let numbers = (0..range.len()).map_while(|k| range.get(k));
            Some(Nested::List(numbers.map(|n| Nested::Number(Number::Int(n))).collect()))
        }
        other => number(other).map(|(n, _)| Nested::Number(n)),
    }
}

/// Whether nothing is known of a value, or of an item of a list.
fn is_open(value: &Value) -> bool {
    match value {
        Value::Unknown(Unknown::Any) => true,
        Value::List(items) => items.iter().any(|item| matches!(item, Value::Unknown(Unknown::Any))),
        _ => false,
    }
}
