//! Reporting: where a message points to, and what it suggests.

use super::{CallSite, Evaluator, frame::FrameKind, value::Value, walk};
use crate::{
    codes,
    diagnostic::{Code, Diagnostic, Label, Severity},
    ops::{Cause, OpError},
    source::Span,
    syntax::ast::{Ast, ExprKind, StmtKind},
};

/// Why evaluation of an expression or statement ended early.
#[derive(Debug)]
pub enum Halt {
    /// Something was wrong, and is already reported.
    Reported,
    /// `return`: on its way to the function's call.
    Return(Value),
    /// The host asked to stop.
    Cancelled,
    /// In mode Check: a branch that may run ends in `error` or in a failing `assert`.
    Ended,
}

pub type Eval<T = Value> = Result<T, Halt>;

/// How many callers a message shows.
const SHOWN_CALLERS: usize = 3;

impl Evaluator {
    /// Adds a diagnostic. A message in library code points at the user's line that led there.
    pub(super) fn report(&mut self, mut diagnostic: Diagnostic) -> Halt {
        self.place(&mut diagnostic);
        self.doubt(&mut diagnostic);
        // More than anybody reads; what is left out is still an error.
        let is_full = self.diagnostics.len() >= crate::syntax::MAX_ERRORS && self.error_count() > 0;
        let seen = is_full
            || self.diagnostics.iter().any(|d| {
                d.code == diagnostic.code
                    && d.primary.span == diagnostic.primary.span
                    && d.message == diagnostic.message
            });
        if !seen {
            self.diagnostics.push(diagnostic);
        }
        Halt::Reported
    }

    /// What rests on a number or a branch that only a run decides is a warning in mode Check: the run
    /// judges it with the real number.
    fn doubt(&self, diagnostic: &mut Diagnostic) {
        const RUN_DECIDES: [Code; 11] = [
            codes::BAD_INDEX,
            codes::NUMBER_RANGE,
            codes::UNPACK,
            codes::SHAPE_MISMATCH,
            codes::TENSOR_OP,
            codes::TOO_DEEP,
            codes::LIMIT,
            codes::ASSERTION,
            codes::FILE,
            codes::FILE_CONTENT,
            codes::RAISED,
        ];
        let why = if self.is_doubtful() {
            "in a branch that may run: its condition is known only when the program runs"
        } else if self.is_check() && self.guessed {
            "a number that is known only when the program runs was assumed"
        } else {
            return;
        };
        if diagnostic.is_error() && RUN_DECIDES.contains(&diagnostic.code) {
            diagnostic.severity = Severity::Warning;
            diagnostic.notes.push(why.into());
        }
    }

    /// The value of one part of a statement; `None` where it failed, and the other parts are to be
    /// judged all the same.
    pub(super) fn part<T>(&self, result: Eval<T>) -> Eval<Option<T>> {
        match result {
            Ok(value) => Ok(Some(value)),
            Err(Halt::Reported) if !self.stops_at_errors() => Ok(None),
            Err(halt) => Err(halt),
        }
    }

    pub(super) fn error(&mut self, code: Code, span: Span, message: impl Into<String>) -> Halt {
        self.report(Diagnostic::error(code, span, message))
    }

    /// An operation on tensors that its operands do not allow.
    pub(super) fn op_error(&mut self, span: Span, error: OpError) -> Halt {
        if error.cause == Cause::Cancelled {
            return Halt::Cancelled;
        }
        let internal = error.message.strip_prefix("internal: ");
        let code = match internal {
            Some(_) => codes::INTERNAL,
            None if error.cause == Cause::Limit => codes::LIMIT,
            None if error.cause == Cause::OtherRank => codes::OTHER_RANK,
            None if error.cause == Cause::RanksDisagree => codes::RANKS_DISAGREE,
            None if error.message.contains("mixes the dtypes") => codes::DTYPE_MIX,
            None => codes::TENSOR_OP,
        };
        let mut diagnostic = Diagnostic::error(code, span, internal.unwrap_or(&error.message));
        diagnostic.help.extend(error.help);
        if internal.is_some() {
            diagnostic.notes.push("this is a fault of `tg`: please report it with the program".into());
        }
        self.report(diagnostic)
    }

    pub(super) fn error_count(&self) -> usize {
        self.diagnostics.iter().filter(|d| d.severity == Severity::Error).count()
    }

    fn is_library(&self, span: Span) -> bool {
        self.sources.get(span.file).is_some_and(|f| f.is_library)
    }

    /// Adds the calls that led to the place of a message. Where that is in the library, the user's
    /// own line becomes the primary place.
    fn place(&self, diagnostic: &mut Diagnostic) {
        let inner = diagnostic.primary.span;
        if self.is_library(inner) {
            let Some(caller) = self.calls.iter().rev().find(|c| !self.is_library(c.span)) else { return };
            let text = std::mem::take(&mut diagnostic.primary.text);
            diagnostic.primary =
                Label { span: caller.span, text: format!("in this call of `{}`", caller.title) };
            diagnostic.secondary.insert(0, Label { span: inner, text });
        }
        let shown = diagnostic.primary.span;
        let callers = self
            .calls
            .iter()
            .rev()
            .filter(|c| !self.is_library(c.span) && !holds(c.span, shown))
            .filter(|c| !self.is_inside(c, shown))
            .take(SHOWN_CALLERS);
        for caller in callers {
            // A step that nothing calls is judged where it is declared.
            let what = if self.declares(caller) { "in the step" } else { "in this call of" };
            let text = match &caller.iteration {
                Some(iteration) => format!("{what} `{}` ({iteration})", caller.title),
                None => format!("{what} `{}`", caller.title),
            };
            if !diagnostic.secondary.iter().any(|l| l.span == caller.span) {
                diagnostic.secondary.push(Label { span: caller.span, text });
            }
        }
    }

    /// Whether a call is the declaration of a step that nothing calls.
    fn declares(&self, caller: &CallSite) -> bool {
        self.sources.text(caller.span) == &*caller.title
    }

    /// Whether a place is in the body of a step that is judged where it is declared: then nobody has
    /// to be told which step.
    fn is_inside(&self, caller: &CallSite, place: Span) -> bool {
        let step = self.frames.iter().find_map(|f| match &f.kind {
            FrameKind::Step(step) => Some(&step.decl),
            _ => None,
        });
        self.declares(caller)
            && step.is_some_and(|d| d.name.span == caller.span && holds(d.name.span.to(d.body.span), place))
    }

    /// Whether text that did not parse may have bound a name: then its uses are not judged.
    pub(super) fn is_lost(&self, name: &str) -> bool {
        self.lost_any || self.lost.contains(name)
    }

    /// Whether `//` stands before a name and nothing behind it: `let x = 3 // count`.
    fn ends_in_slashes(&self, span: Span) -> bool {
        let Some(file) = self.sources.get(span.file) else { return false };
        let before = file.text.get(..span.start as usize).unwrap_or_default();
        let behind = file.text.get(span.end as usize..).unwrap_or_default();
        let rest = behind.lines().next().unwrap_or_default();
        before.trim_end_matches([' ', '\t']).ends_with("//") && rest.trim().is_empty()
    }

    /// What to write for `torch.cat` and the like, where the function behind the prefix is known.
    fn prefixed(&self, name: &str, span: Span) -> Option<String> {
        if !matches!(name, "torch" | "np" | "numpy" | "jnp" | "jax" | "tf" | "F") {
            return None;
        }
        let file = self.sources.get(span.file)?;
        let behind = file.text.get(span.end as usize..)?;
        let path = behind.split(|c: char| !(c.is_alphanumeric() || c == '_' || c == '.')).next()?;
        let member = path.rsplit('.').next().filter(|m| !m.is_empty())?;
        if super::tensor::find(member).is_some() {
            return Some(format!("tensor functions have no prefix: write `{member}(…)`"));
        }
        foreign_word(member).or_else(|| foreign_field(member)).map(String::from)
    }

    /// An error for a name that an earlier input of the session would have bound, had it not failed.
    pub(super) fn not_made(&mut self, name: &str, span: Span) -> Option<Halt> {
        let &failed = self.unmade.get(name)?;
        let message = format!("`{name}` has no value: the input that binds it failed");
        let diagnostic = Diagnostic::error(codes::NOT_MADE, span, message);
        Some(self.report(diagnostic.label("needed here").secondary(failed, "not bound, since this failed")))
    }

    /// An error for a name that nothing defines.
    pub(super) fn unknown_name(
        &mut self,
        ast: Option<&Ast>,
        name: &str,
        span: Span,
        known: &[String],
    ) -> Halt {
        if self.is_lost(name) {
            return Halt::Reported;
        }
        if let Some(halt) = self.not_made(name, span) {
            return halt;
        }
        let mut diagnostic = Diagnostic::error(codes::UNKNOWN_NAME, span, format!("unknown name `{name}`"));
        if self.ends_in_slashes(span) {
            diagnostic.help.push("comments start with `#`; `//` divides and rounds down".into());
        } else if let Some(place) = ast.and_then(|ast| bound_in_branch(ast, name, span)) {
            diagnostic = diagnostic.secondary(place, "bound in this branch, and ends with it").help(format!(
                "bind it by the choice itself: `let {name} = if condition {{ … }} else {{ … }}`"
            ));
        } else if let Some(tip) = self.prefixed(name, span).or_else(|| foreign_word(name).map(String::from)) {
            diagnostic.help.push(tip);
        } else if super::modules::is_library_module(name) {
            diagnostic.help.push(format!("write `use {name}` at the top of the file"));
        } else if let Some(close) = closest(name, known.iter().map(String::as_str)) {
            diagnostic.help.push(format!("did you mean `{close}`?"));
        } else if let Some((module, member)) = super::modules::near_member(name) {
            let path = format!("{module}.{member}");
            diagnostic.help.push(match known.iter().any(|known| known == module) {
                true => format!("did you mean `{path}`?"),
                false => format!("did you mean `{path}`? write `use {module}` at the top of the file"),
            });
        }
        self.report(diagnostic)
    }
}

/// Where a branch of an `if` that ends before a place binds a name.
fn bound_in_branch(ast: &Ast, name: &str, place: Span) -> Option<Span> {
    // What another function or model binds is nobody else's.
    let is_seen = |branch: Span| walk::declaration_around(ast, branch).is_none_or(|d| holds(d.span, place));
    let branches = ast.exprs.iter().filter(|e| e.span.file == place.file && e.span.end <= place.start);
    let blocks = branches.flat_map(|expr| match &expr.kind {
        ExprKind::If { then, otherwise, .. } => {
            let otherwise = otherwise.and_then(|e| match &ast.expr(e).kind {
                ExprKind::Block(block) => Some(block),
                _ => None,
            });
            [Some(then), otherwise]
        }
        _ => [None, None],
    });
    let names = blocks.flatten().flat_map(|block| &block.stmts).filter_map(|&id| match &ast.stmt(id).kind {
        StmtKind::Let { names, .. } => Some(names),
        _ => None,
    });
    let places = names.flatten().filter(|n| &*n.name == name).map(|n| n.span);
    places.filter(|&place| is_seen(place)).max_by_key(|span| span.start)
}

/// Whether a place lies inside another.
pub(super) fn holds(outer: Span, inner: Span) -> bool {
    outer.file == inner.file && outer.start <= inner.start && inner.end <= outer.end
}

/// The candidate that a misspelt word most likely stands for.
pub fn closest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // One slip in three letters is still recognisable, more is a guess; in a short word two slips
    // make another word.
    let limit = match word.chars().count() {
        0..=5 => 1,
        n => n / 3,
    };
    let found = candidates.into_iter().filter(|c| *c != word).filter_map(|c| {
        let distance = if c.eq_ignore_ascii_case(word) { 0 } else { edit_distance(word, c) };
        let is_slip =
            distance <= limit && (distance == 0 || c.chars().count().min(word.chars().count()) >= 2);
        (is_slip || completes(word, c)).then_some((
            !is_slip,
            distance,
            c.chars().next() != word.chars().next(),
            c,
        ))
    });
    found.min().map(|(.., c)| c)
}

/// Whether a candidate is the word with a few letters more: `LSTMCell` for `LSTM`.
fn completes(word: &str, candidate: &str) -> bool {
    const LEAST: usize = 4;
    const MORE: usize = 4;
    let rest = candidate.get(word.len()..).filter(|rest| rest.chars().count() <= MORE);
    word.chars().count() >= LEAST
        && rest.is_some()
        && candidate.get(..word.len()).is_some_and(|start| start.eq_ignore_ascii_case(word))
}

/// Insertions, deletions, replacements and swaps of neighbours.
fn edit_distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut before: Vec<usize> = Vec::new();
    let mut above: Vec<usize> = (0..=b.len()).collect();
    for (i, &x) in a.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, &y) in b.iter().enumerate() {
            let at = |r: &[usize], k: usize| r.get(k).copied().unwrap_or(usize::MAX / 2);
            let replace = at(&above, j) + usize::from(x != y);
            let mut best = replace.min(at(&above, j + 1) + 1).min(at(&row, j) + 1);
            let swapped = i > 0
                && j > 0
                && a.get(i - 1).copied() == Some(y)
                && b.get(j - 1).copied() == Some(x)
                && x != y;
            if swapped {
                best = best.min(at(&before, j - 1) + 1);
            }
            row.push(best);
        }
        before = std::mem::replace(&mut above, row);
    }
    above.last().copied().unwrap_or(0)
}

/// Words of Python and its libraries, and what `tg` has for them.
pub fn foreign_word(name: &str) -> Option<&'static str> {
    Some(match name {
        "append" => "lists are values: write `xs += [x]`",
        "float32" => "the dtype is `f32`",
        "float64" | "double" => "the dtype is `f64`",
        "float16" | "half" => "the dtype is `f16`",
        "bfloat16" => "the dtype is `bf16`",
        "int32" => "the dtype is `i32`",
        "int64" | "long" => "the dtype is `i64`",
        "uint8" => "the dtype is `u8`",
        "randn" => "write `normal(shape)`",
        "rand" => "write `uniform(shape)`",
        "randn_like" => "write `normal(x.shape)`",
        "rand_like" => "write `uniform(x.shape)`",
        "clamp" => "write `clip(x, low, high)`",
        "leaky_relu" => "`use nn` has `nn.leaky_relu(x, slope: 0.01)`",
        "softplus" => "`use nn` has `nn.softplus(x)`",
        "interpolate" => "`use nn` has `nn.upsample(x, factor: 2)`",
        "conv_transpose2d" => "`use nn` has `nn.conv_transpose2d(x, w, stride: 2)`",
        "repeat" | "tile" | "expand" => "write `broadcast(x, shape)`, with sizes of 1 where it repeats",
        "multinomial" => "write `random.categorical(logits)`",
        "logsigmoid" => "write `-nn.softplus(-x)`, with `use nn`",
        "bernoulli" => "write `uniform(shape) < p`",
        "none" | "newaxis" => "`x[:, new]` adds an axis",
        "cat" | "concatenate" => "write `concat([a, b], axis: 0)`",
        "view" => "write `reshape(x, shape)`",
        "permute" => "write `transpose(x, axes)`",
        "amax" => "write `max(x, axis: …)`",
        "linspace" => "write `low + arange(n) * ((high - low) / (n - 1))`",
        "cumsum" => "write `x @ f32(unsqueeze(arange(n), 1) <= arange(n))` for the last axis of size n",
        "tril" => "write `where(unsqueeze(arange(n), 1) >= arange(n), x, 0.0)`",
        "triu" => "write `where(unsqueeze(arange(n), 1) <= arange(n), x, 0.0)`",
        "bmm" => "write `a @ b`: leading axes are a batch",
        "sort" | "argsort" | "sorted" | "topk" => "nothing sorts yet: `max` and `argmax` find the largest",
        "detach" => "write `stop_grad(x)`",
        "Tensor" | "tensor" | "ndarray" => "the type of a tensor is its dtype and shape: `f32[n, m]`",
        "masked_fill" => "write `where(mask, value, x)`",
        "randint" => "write `i32(floor(uniform(shape, low: a, high: b)))`",
        "randperm" | "shuffle" => {
            "`data.batches(x, y, size: 32, shuffle: seed)` goes through rows in random order"
        }
        "manual_seed" => "the seed of all random numbers is given with `--seed`",
        "clip_grad_norm_" | "clip_grad_norm" => "write `optim.clip(g, 1.0)`",
        "einsum" => "write it with `@`, `transpose` and `sum`",
        _ => return crate::syntax::word_tip(name),
    })
}

/// Methods and fields of Python's tensors, lists and modules, and what `tg` has for them.
pub fn foreign_field(name: &str) -> Option<&'static str> {
    Some(match name {
        "append" | "extend" => "lists are values: write `xs += [x]`",
        "item" => "write `float(x)`",
        "backward" => "write `minimize loss over net with …`, or `grad(loss, net)`",
        "zero_grad" => "gradients are values and never accumulate by themselves: nothing to reset",
        "detach" => "write `stop_grad(x)`",
        "view" => "write `reshape(x, shape)`",
        "permute" => "write `transpose(x, axes)`",
        "cuda" | "cpu" => "the device is chosen with `--device`",
        "clone" | "contiguous" | "copy_" => {
            "tensors are values: `x` itself does; `copy(x)` gives it memory of its own"
        }
        "requires_grad_" | "requires_grad" | "retain_grad" => {
            "every `param` is trained, `param frozen` is not; `grad(loss, net)` gives gradients"
        }
        "grad" => "gradients are values: `let g = grad(loss, net)`",
        "expand" | "repeat" | "expand_as" | "broadcast_to" => "write `broadcast(x, shape)`",
        "astype" | "type" => "casts are calls: `f32(x)`",
        "add_" | "sub_" | "mul_" | "div_" | "zero_" | "fill_" => {
            "tensors are values: write the new value, `x = x + 1`; state is written by `net.m := …`"
        }
        "split" | "chunk" => "write `split(x, n, axis: 0)`",
        "parameters" => "pass the model itself, as in `minimize loss over net with …`",
        "state_dict" | "load_state_dict" => {
            "write `save(\"file.safetensors\", net)` and `load(\"file.safetensors\", net)`"
        }
        "train" | "eval" => {
            "`training` is true in steps that take gradients; `with training: false { … }` overrides it"
        }
        "format" => "write the values into the text: `\"{x:.3}\"`",
        "numpy" => "tensors of the script are in host memory already",
        "ReLU" | "GELU" | "SiLU" | "Sigmoid" | "Tanh" | "Softmax" => {
            "activations are functions, not layers: write `relu(x)`, `gelu(x)`, `silu(x)`, `sigmoid(x)`, `tanh(x)` or `softmax(x)`"
        }
        "LeakyReLU" | "Softplus" | "Upsample" | "ConvTranspose2d" => {
            "a function, not a layer: `nn.leaky_relu(x)`, `nn.softplus(x)`, `nn.upsample(x)`, `nn.conv_transpose2d(x, w)`"
        }
        "CrossEntropyLoss" => "write `use loss` and `loss.cross_entropy(logits, labels)`",
        "MSELoss" => "write `use loss` and `loss.mse(prediction, target)`",
        "ModuleList" => "a list will do: `let layers = [nn.Linear(d, d) for i in 0..n]`",
        "Sequential" => "write a model whose `forward` applies its layers in turn",
        "StepLR" | "CosineAnnealingLR" | "LambdaLR" => {
            "a learning rate may follow the update count: `lr: optim.step_decay(0.1, 1000)` or `lr: optim.cosine(0.1, 1000)`"
        }
        "clip_grad_norm_" => "write `optim.clip(g, 1.0)`",
        "pop" | "insert" | "remove" | "clear" => "lists are values: `xs[1..]` leaves the first item out",
        "keys" | "values" | "items" => "there are no dictionaries: use a list, or a model with fields",
        "step" => "write `minimize loss over net with opt`, or `update net with opt, grads`, in a step",
        "DataLoader" => "write `for x, y in data.batches(x, y, size: 32, shuffle: seed) { … }`",
        "to" => "casts are calls, `bf16(x)`; the device is chosen with `--device`",
        "float" => "write `f32(x)`",
        "half" => "write `f16(x)`",
        "double" => "write `f64(x)`",
        "long" => "write `i64(x)`",
        "int" => "write `i32(x)`",
        "numel" => "write `x.size`",
        "ndim" | "dim" => "write `x.rank`",
        "masked_fill" => "write `where(mask, value, x)`",
        "weight" => "the field is `w`",
        "bias" => "the field is `b`",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suggestions_are_close() {
        assert_eq!(closest("softmx", ["softmax", "log_softmax", "sum"]), Some("softmax"));
        assert_eq!(closest("lenght", ["length", "len"]), Some("length"));
        assert_eq!(closest("a", ["b"]), None);
        assert_eq!(closest("tril", ["ceil"]), None);
        assert_eq!(closest("bmm", ["b", "sum"]), None);
        assert_eq!(closest("SGD", ["sgd", "adam"]), Some("sgd"));
        assert_eq!(closest("completely", ["different"]), None);
    }

    #[test]
    fn swaps_count_once() {
        assert_eq!(edit_distance("sofmtax", "softmax"), 1);
        assert_eq!(edit_distance("", "abc"), 3);
        assert_eq!(edit_distance("abc", "abc"), 0);
    }
}
