//! Functions of the language that are no tensor functions.

use std::sync::Arc;

use super::{
    Evaluator,
    args::{Args, ParamName},
    data,
    errors::{Eval, Halt},
    frame::FrameKind,
    strings::type_name,
    value::{Range, Stream, StreamKind, Unknown, Value},
};
use crate::{codes, diagnostic::Diagnostic, ops, source::Span};

/// A function that Rust implements.
pub struct Builtin {
    pub name: &'static str,
    /// How it is called.
    pub signature: &'static str,
    /// What it does; Markdown.
    pub docs: &'static str,
    pub call: fn(&mut Evaluator, Args, Span) -> Eval,
}

macro_rules! builtins {
    ($($name:literal, $signature:literal, $docs:literal, $call:expr;)*) => {
        &[$(Builtin { name: $name, signature: $signature, docs: $docs, call: $call }),*]
    };
}
pub(super) use builtins;

/// Functions that are there without a module.
pub static BUILTINS: &[Builtin] = builtins! {
    "len", "len(x)", "The number of items, or of rows of a tensor.", |ev, args, span| {
        let [x] = ev.take_args("len", ["x"], args, span)?;
        ev.len(&x.0, x.1)
    };
    "range", "range(n), range(low, high, step)", "Whole numbers, as `0..n`.", range;
    "enumerate", "enumerate(xs)", "Pairs (number, item).", |ev, args, span| {
        let [xs] = ev.take_args("enumerate", ["xs"], args, span)?;
        let items = ev.items(&xs.0, xs.1)?;
        Ok(ev.pairs(items.into_iter().enumerate().map(|(k, v)| (Value::Int(k as i64), v)).collect()))
    };
    "zip", "zip(xs, ys)", "Pairs of items; both have the same number.", |ev, args, span| {
        let [xs, ys] = ev.take_args("zip", ["xs", "ys"], args, span)?;
        let (a, b) = (ev.items(&xs.0, xs.1)?, ev.items(&ys.0, ys.1)?);
        if a.len() != b.len() {
            let (x, y) = (a.len(), b.len());
            return Err(ev.error(codes::ARGUMENTS, span, format!("`zip` of {x} and {y} items")));
        }
        Ok(ev.pairs(a.into_iter().zip(b).collect()))
    };
    "map", "map(f, xs)", "f of each item, or of each gradient of a tree.", |ev, args, span| {
        let [f, xs] = ev.take_args("map", ["f", "xs"], args, span)?;
        if let Value::Tree(tree) = &xs.0 {
            let tree = Arc::clone(tree);
            return ev.scripted(span, |ev| {
                ev.map_tree(&tree, &mut |ev, value| ev.call_value(&f.0, Args::one(value.clone(), span), span))
            });
        }
        let items = ev.items(&xs.0, xs.1)?;
        let mut results = Vec::with_capacity(items.len());
        for item in items {
            results.push(ev.call_value(&f.0, Args::one(item, xs.1), span)?);
        }
        Ok(Value::list(results))
    };
    "int", "int(x)", "A whole number: of a float (towards 0), a bool, a text, a tensor of one element.", int;
    "float", "float(x)", "A number: of an int, a text, a tensor of one element.", float;
    "str", "str(x)", "A value as text.", |ev, args, span| {
        let [x] = ev.take_args("str", ["x"], args, span)?;
        Ok(ev.text(&x.0, x.1)?.map_or(Value::Unknown(Unknown::Str), |t| Value::Str(t.into())))
    };
    "type", "type(x)", "The kind of a value: \"int\", \"list\", \"tensor\", …", |ev, args, span| {
        let [x] = ev.take_args("type", ["x"], args, span)?;
        Ok(Value::Str(type_name(&x.0)))
    };
    "assert", "assert(condition, \"text\")", "Stops with the text where the condition is false.", assert;
    "error", "error(\"text\")", "Stops with the text.", |ev, args, span| {
        let [text] = ev.take_args("error", ["text"], args, span)?;
        if ev.is_doubtful() {
            return Err(Halt::Ended);
        }
        let message = ev.text(&text.0, text.1)?.unwrap_or_else(|| "an error raised by the program".into());
        Err(ev.error(codes::RAISED, span, message))
    };
    "print", "print(…)", "Shows values on a line.", |ev, args, span| ev.print(args, span);
    "progress", "progress(xs)", "Goes through xs with a progress bar.", |ev, args, span| ev.progress(args, span);
    "plot", "plot(ys), plot(loss: ys)", "Draws lists of numbers.", |ev, args, span| ev.plot(args, span);
    "log", "log(\"file.csv\", step: i, loss: x)", "Appends a record of metrics to a file; of one number or tensor, the natural logarithm.", |ev, args, span| ev.log(args, span);
    "save", "save(\"x.safetensors\", net, opt)", "Writes parameters, state and optimizers.", |ev, args, span| ev.save(args, span);
    "load", "load(\"x.safetensors\", net, opt)", "Reads them back.", |ev, args, span| ev.load(args, span);
    "grad", "grad(loss, net)", "The gradients of a scalar.", |ev, args, span| ev.grad_builtin(args, span);
    "value_and_grad", "value_and_grad(f, a, b)", "f(a, b), and its gradients.", |ev, args, span| ev.value_and_grad_builtin(args, span);
    "pullback", "pullback(f, x, g)", "The gradients of f's parameters, if it is a model, and of x, for the gradient g of f(x).", |ev, args, span| ev.pullback_builtin(args, span);
    "microbatches", "microbatches(x, n)", "The parts of a batch, for a `for` loop.", microbatches;
    "name", "name(x, \"label\")", "x, marked for `policy: names(…)` and named in reports.", mark;
    "debug", "debug(x)", "x, shown while the step runs.", debug;
};

pub fn find(name: &str) -> Option<&'static Builtin> {
    BUILTINS.iter().find(|b| b.name == name)
}

/// All names that are there without a module, except tensor functions.
pub fn names() -> impl Iterator<Item = &'static str> {
    BUILTINS
        .iter()
        .map(|b| b.name)
        .chain(["training", "inf", "nan", "pi", "world", "rank", "data", "random"])
        .chain(crate::ir::DType::ALL.map(|d| d.name()))
}

/// A method of a native value.
pub(super) fn method(value: &Value, name: &str) -> Option<&'static Builtin> {
    match value {
        Value::Vocabulary(_) => data::VOCABULARY.iter().find(|b| b.name == name),
        _ => None,
    }
}

impl Evaluator {
    /// Exactly these arguments, by position or name.
    pub(super) fn take_args<const N: usize>(
        &mut self,
        title: &str,
        names: [&str; N],
        args: Args,
        span: Span,
    ) -> Eval<[(Value, Span); N]> {
        let params = names.map(|name| ParamName { name, required: true, span: None });
        let bound = self.bind_args(title, &params, args, span)?;
        let values: Vec<(Value, Span)> = bound.into_iter().flatten().collect();
        values.try_into().map_err(|_| super::Halt::Reported)
    }

    /// These arguments, of which the first `required` must be given.
    pub(super) fn take_some<const N: usize>(
        &mut self,
        title: &str,
        names: [&str; N],
        required: usize,
        args: Args,
        span: Span,
    ) -> Eval<[Option<(Value, Span)>; N]> {
        let mut k = 0;
        let params = names.map(|name| {
            k += 1;
            ParamName { name, required: k <= required, span: None }
        });
        let bound = self.bind_args(title, &params, args, span)?;
        bound.try_into().map_err(|_| super::Halt::Reported)
    }

    fn len(&mut self, value: &Value, span: Span) -> Eval {
        if let Some(count) = self.count(value) {
            return Ok(Value::Int(i64::try_from(count).unwrap_or(i64::MAX)));
        }
        match value {
            Value::Range(range) => {
                Ok(Value::Unknown(Unknown::Int(i64::try_from(range.len()).unwrap_or(i64::MAX))))
            }
            Value::Unknown(_) | Value::Stream(_) => {
                self.guessed = true;
                Ok(Value::Unknown(Unknown::Int(1)))
            }
            other => {
                let kind = other.kind();
                Err(self.error(codes::TYPE_MISMATCH, span, format!("{kind} has no length")))
            }
        }
    }

    /// A number of the script from a number, a text or a tensor of one element.
    fn number_of(&mut self, value: &Value, what: &str, span: Span) -> Eval<Option<f64>> {
        match value {
            Value::Unknown(_) => Ok(None),
            Value::Str(text) => match text.trim().parse() {
                Ok(number) => Ok(Some(number)),
                Err(_) => Err(self.error(codes::TYPE_MISMATCH, span, format!("`{text}` is not a number"))),
            },
            Value::Tensor(_) => Err(self.report(
                Diagnostic::error(
                    codes::NOT_CONSTANT,
                    span,
                    format!(
                        "`{what}` of a tensor in graph code: its value is not known when the graph is built"
                    ),
                )
                .help("use the tensor itself, or `f32(x)` and `i32(x)` to convert it"),
            )),
            v if v.is_tensor() => {
                let elements = self.tensor_type(v).map_or(0, |t| t.elements());
                if elements != 1 {
                    let kind = v.kind();
                    return Err(self.error(
                        codes::TYPE_MISMATCH,
                        span,
                        format!("`{what}` reads a tensor of one element, got {kind}"),
                    ));
                }
                let tensor = self.host_tensor(v, span)?;
                Ok(tensor.and_then(|t| t.get_f64(0)))
            }
            other => match super::operator::number(other) {
                Some((number, _)) => Ok(Some(number.as_f64())),
                None => {
                    let kind = other.kind();
                    Err(self.error(codes::TYPE_MISMATCH, span, format!("`{what}` of {kind}")))
                }
            },
        }
    }

    /// A text that is known, or `None` in mode Check.
    pub(super) fn known_text(&mut self, value: &Value, what: &str, span: Span) -> Eval<Option<Arc<str>>> {
        match value {
            Value::Str(text) => Ok(Some(Arc::clone(text))),
            Value::Unknown(Unknown::Str | Unknown::Any) => Ok(None),
            other => {
                let kind = other.kind();
                Err(self.error(codes::TYPE_MISMATCH, span, format!("{what} is a string, got {kind}")))
            }
        }
    }
}

fn range(ev: &mut Evaluator, args: Args, span: Span) -> Eval {
    let [a, b, step] = ev.take_some("range", ["low", "high", "step"], 1, args, span)?;
    let mut number = |value: Option<(Value, Span)>, default: i64| match value {
        Some((value, at)) => ev.as_int(&value, at),
        None => Ok((default, true)),
    };
    let has_low = b.is_some();
    let (first, first_known) = number(a, 0)?;
    let (second, second_known) = number(b, 0)?;
    let (step, step_known) = number(step, 1)?;
    if step == 0 {
        return Err(ev.error(codes::ARGUMENTS, span, "`range` with step 0 never ends"));
    }
    let (low, high) = if has_low { (first, second) } else { (0, first) };
    Ok(Value::Range(Range { low, high, step, known: first_known && second_known && step_known }))
}

fn int(ev: &mut Evaluator, args: Args, span: Span) -> Eval {
    let [x] = ev.take_args("int", ["x"], args, span)?;
    match &x.0 {
        Value::Int(_) | Value::Unknown(Unknown::Int(_)) => return Ok(x.0),
        Value::Bool(flag) => return Ok(Value::Int(i64::from(*flag))),
        Value::Str(text) => {
            return match text.trim().replace('_', "").parse() {
                Ok(number) => Ok(Value::Int(number)),
                Err(_) => Err(ev.error(codes::TYPE_MISMATCH, x.1, format!("`{text}` is not a whole number"))),
            };
        }
        Value::Stored(stored) => {
            // 64-bit numbers do not all fit in a float.
            if let Some(tensor) = ev.tensor_of(stored, x.1)?
                && let Some(&[number]) = tensor.as_slice::<i64>()
            {
                return Ok(Value::Int(number));
            }
        }
        _ => {}
    }
    match ev.number_of(&x.0, "int", x.1)? {
        None => {
            ev.guessed = true;
            Ok(Value::Unknown(Unknown::Int(1)))
        }
        // 2^63 itself is the first float that does not fit.
        Some(number) if number.trunc() >= -(2f64.powi(63)) && number.trunc() < 2f64.powi(63) => {
            Ok(Value::Int(number as i64))
        }
        Some(number) => Err(ev.error(
            codes::NUMBER_RANGE,
            x.1,
            format!("`int` of {}: it does not fit in 64 bits", crate::script::format::float(number)),
        )),
    }
}

fn float(ev: &mut Evaluator, args: Args, span: Span) -> Eval {
    let [x] = ev.take_args("float", ["x"], args, span)?;
    Ok(ev.number_of(&x.0, "float", x.1)?.map_or(Value::Unknown(Unknown::Float(0.5)), Value::Float))
}

fn assert(ev: &mut Evaluator, args: Args, span: Span) -> Eval {
    let [condition, text] = ev.take_some("assert", ["condition", "text"], 1, args, span)?;
    let Some((condition, at)) = condition else { return Ok(Value::Unit) };
    if ev.condition(&condition, at)? != Some(false) {
        return Ok(Value::Unit);
    }
    if ev.is_doubtful() {
        return Err(Halt::Ended);
    }
    let message = match text {
        Some((text, at)) => ev.text(&text, at)?,
        None => None,
    };
    let shown = ev.sources.text(at).to_string();
    let mut diagnostic = Diagnostic::error(
        codes::ASSERTION,
        span,
        message.unwrap_or_else(|| format!("the assertion `{shown}` does not hold")),
    );
    if ev.in_graph() {
        diagnostic.notes.push("checked when the graph is built".into());
    }
    Err(ev.report(diagnostic))
}

fn microbatches(ev: &mut Evaluator, mut args: Args, span: Span) -> Eval {
    let last = match args.named.iter().position(|(n, _, _)| &*n.name == "n") {
        Some(at) => {
            let (_, value, at) = args.named.remove(at);
            Some((value, at))
        }
        None => args.positional.pop(),
    };
    let (Some((parts, at)), false) = (last, args.positional.is_empty()) else {
        return Err(ev.error(
            codes::ARGUMENTS,
            span,
            "`microbatches` needs a batch and the number of parts: `microbatches(x, 4)`",
        ));
    };
    let (parts, _) = ev.as_int(&parts, at)?;
    let Some(parts) = usize::try_from(parts).ok().filter(|&p| p > 0) else {
        return Err(ev.error(
            codes::ARGUMENTS,
            at,
            format!("`microbatches` makes at least 1 part, got {parts}"),
        ));
    };
    let mut items: Vec<Value> = args.positional.into_iter().map(|(v, _)| v).collect();
    let items = if items.len() == 1 { items.remove(0) } else { Value::tuple(items) };
    Ok(Value::Stream(Arc::new(Stream { kind: StreamKind::Microbatches { items, parts }, len: Some(parts) })))
}

fn mark(ev: &mut Evaluator, args: Args, span: Span) -> Eval {
    let [x, label] = ev.take_args("name", ["x", "label"], args, span)?;
    let Some(label) = ev.known_text(&label.0, "the label of `name`", label.1)? else { return Ok(x.0) };
    if !x.0.is_tensor() {
        let kind = x.0.kind();
        return Err(ev.error(codes::TYPE_MISMATCH, x.1, format!("`name` marks a tensor, got {kind}")));
    }
    ev.scripted(span, |ev| {
        let (id, weak) = ev.tensor_value(&x.0, x.1)?;
        let frame = ev.frame(span)?;
        frame.graph.marks.insert(id, Arc::clone(&label));
        frame.graph.names.insert(id, label);
        Ok(ev.graph_value(id, weak))
    })
}

fn debug(ev: &mut Evaluator, args: Args, span: Span) -> Eval {
    let [x, label] = ev.take_some("debug", ["x", "label"], 1, args, span)?;
    let Some((x, at)) = x else { return Ok(Value::Unit) };
    let label = match label {
        Some((label, at)) => ev.known_text(&label, "the label of `debug`", at)?,
        None => None,
    };
    let label = label.unwrap_or_else(|| ev.sources.text(at).into());
    if !matches!(ev.frames.last().map(|f| &f.kind), Some(FrameKind::Step(_) | FrameKind::Script)) {
        // Nothing is hidden at the top level: show it, or pass it on while a type is worked out.
        if !ev.in_graph()
            && !ev.is_check()
            && let Some(text) = ev.text(&x, at)?
        {
            ev.write_line(&format!("{label}: {text}"));
        }
        return Ok(x);
    }
    let (id, weak) = ev.tensor_value(&x, at)?;
    let value = ev.build(span, |f| f.graph.value(ops::Print { label }, &[id]))?;
    Ok(ev.graph_value(value, weak))
}
