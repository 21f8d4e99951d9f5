//! Arguments of calls, and how they meet parameters.

use super::{
    Evaluator,
    errors::{Eval, Halt, closest},
    value::{Cx, Value},
};
use crate::{
    codes,
    diagnostic::Diagnostic,
    source::Span,
    syntax::ast::{Arg, Ast, ExprKind, Ident, Name},
};

/// Evaluated arguments.
#[derive(Debug, Clone, Default)]
pub struct Args {
    pub positional: Vec<(Value, Span)>,
    pub named: Vec<(Ident, Value, Span)>,
}

impl Args {
    /// Whether an argument failed, and stands here as [`Value::Poison`] so that the others can be
    /// judged.
    pub fn has_failed(&self) -> bool {
        let named = self.named.iter().map(|(_, value, _)| value);
        self.positional.iter().map(|(value, _)| value).chain(named).any(|v| matches!(v, Value::Poison))
    }

    pub fn one(value: Value, span: Span) -> Args {
        Args { positional: vec![(value, span)], named: Vec::new() }
    }
}

/// The word of an option that takes words.
pub(super) fn option_word<'a>(ast: &'a Ast, arg: &Arg) -> Option<&'a Name> {
    let ExprKind::Name(word) = &ast.expr(arg.value).kind else { return None };
    let is_option = arg.name.as_ref().is_some_and(|name| &*name.name == "partial");
    (is_option && matches!(&**word, "keep" | "drop")).then_some(word)
}

/// A parameter as binding sees it.
pub struct ParamName<'a> {
    pub name: &'a str,
    pub required: bool,
    /// Where it is declared, for functions of the user.
    pub span: Option<Span>,
}

impl Evaluator {
    /// Options that are words: `partial: keep`. A variable of that name comes first.
    fn word_option(&self, cx: &Cx, arg: &Arg) -> Option<Value> {
        option_word(&cx.ast, arg).filter(|word| cx.scope.get(word).is_none()).cloned().map(Value::Str)
    }

    /// The arguments of a call. One that fails does not hide what is wrong with the others: see
    /// [`Args::has_failed`].
    pub(super) fn args(&mut self, cx: &Cx, args: &[Arg]) -> Eval<Args> {
        let mut evaluated = Args::default();
        let mut misplaced = None;
        for arg in args {
            let span = cx.ast.expr(arg.value).span;
            let value = match self.word_option(cx, arg) {
                Some(word) => Ok(word),
                None => self.expr(cx, arg.value).and_then(|v| self.read_state(v, span)),
            };
            let value = self.part(value)?.unwrap_or(Value::Poison);
            match &arg.name {
                Some(name) => evaluated.named.push((name.clone(), value, span)),
                None if !evaluated.named.is_empty() => {
                    let message = "an argument without a name after named ones";
                    misplaced = Some(self.error(codes::ARGUMENTS, span, message));
                }
                None => evaluated.positional.push((value, span)),
            }
        }
        misplaced.map_or(Ok(evaluated), Err)
    }

    /// Sorts arguments by parameter; `None` where one is left out and need not be given. All that is
    /// wrong with their names and their number is reported.
    pub(super) fn bind_args(
        &mut self,
        title: &str,
        params: &[ParamName<'_>],
        args: Args,
        span: Span,
    ) -> Eval<Vec<Option<(Value, Span)>>> {
        let mut bound: Vec<Option<(Value, Span)>> = params.iter().map(|_| None).collect();
        let mut faults: Vec<Diagnostic> = Vec::new();
        if args.positional.len() > params.len() {
            let (takes, got) = (params.len(), args.positional.len());
            let s = if takes == 1 { "" } else { "s" };
            let extra = args.positional.get(takes).map_or(span, |(_, s)| *s);
            let message = format!("`{title}` takes {takes} argument{s}, got {got}");
            faults.push(Diagnostic::error(codes::ARGUMENTS, extra, message));
        }
        for (slot, arg) in bound.iter_mut().zip(args.positional) {
            *slot = Some(arg);
        }
        for (name, value, at) in args.named {
            let position = params.iter().position(|p| p.name == &*name.name);
            match position.and_then(|p| bound.get_mut(p)) {
                Some(slot @ None) => *slot = Some((value, at)),
                // Of arguments that are too many nobody knows which was meant.
                Some(Some(_)) if !faults.is_empty() => {}
                Some(Some(_)) => {
                    let message = format!("`{title}` got `{}` twice", name.name);
                    return Err(self.error(codes::ARGUMENTS, name.span, message));
                }
                None => {
                    let message = format!("`{title}` has no parameter `{}`", name.name);
                    let mut diagnostic = Diagnostic::error(codes::ARGUMENTS, name.span, message);
                    match closest(&name.name, params.iter().map(|p| p.name)) {
                        Some(close) => diagnostic.help.push(format!("did you mean `{close}`?")),
                        None => {
                            let has = |own: &str| params.iter().any(|p| p.name == own);
                            diagnostic.help.extend(foreign_argument(&name.name, has));
                        }
                    }
                    faults.push(diagnostic);
                }
            }
        }
        // What is missing may be what has a wrong name.
        if !faults.is_empty() {
            for (k, fault) in faults.into_iter().enumerate() {
                self.report(if k == 0 { fault.note(signature(title, params)) } else { fault });
            }
            return Err(Halt::Reported);
        }
        let missing: Vec<&ParamName<'_>> =
            params.iter().zip(&bound).filter(|(p, b)| p.required && b.is_none()).map(|(p, _)| p).collect();
        if missing.is_empty() {
            return Ok(bound);
        }
        let names: Vec<&str> = missing.iter().map(|p| p.name).collect();
        let message = format!("`{title}` needs {}", super::index::listed(&names));
        let mut diagnostic =
            Diagnostic::error(codes::ARGUMENTS, span, message).note(signature(title, params));
        if let Some(declared) = missing.first().and_then(|p| p.span) {
            diagnostic = diagnostic.secondary(declared, "declared here");
        }
        Err(self.report(diagnostic))
    }
}

fn signature(title: &str, params: &[ParamName<'_>]) -> String {
    let names: Vec<String> = params
        .iter()
        .map(|p| if p.required { p.name.to_string() } else { format!("{}: …", p.name) })
        .collect();
    format!("it is called as `{title}({})`", names.join(", "))
}

/// Argument names of NumPy and PyTorch.
fn foreign_argument(name: &str, has: impl Fn(&str) -> bool) -> Option<String> {
    let other = match name {
        "dtype" => Some("casts are calls, `f32(x)`; a model's dtype stands behind it, `Net() in bf16`"),
        "device" => Some("the device is chosen with `--device`"),
        "requires_grad" => Some("every `param` is trained, `param frozen` is not"),
        "inplace" => Some("tensors are values: write `x = relu(x)`"),
        _ => None,
    };
    if let Some(text) = other {
        return Some(text.into());
    }
    let own = match name {
        "dim" | "dims" => "axis",
        "keepdim" | "keepdims" => "keep",
        "kernel_size" => "kernel",
        "learning_rate" => "lr",
        "is_causal" => "causal",
        "size" => "shape",
        "in_features" | "in_channels" => "n_in",
        "out_features" | "out_channels" => "n_out",
        "num_embeddings" => "n",
        "embedding_dim" | "normalized_shape" | "num_features" => "d",
        "batch_size" => "size",
        "unbiased" | "correction" => "ddof",
        _ => return None,
    };
    has(own).then(|| format!("it is called `{own}` here"))
}
