//! Words and signs of other languages, with what to write here.

/// What to write instead of a word of another language; `None` for every other word.
///
/// Most of these words are ordinary names, so they are looked up only after something failed:
/// a statement that does not parse, or a name that nothing defines.
pub fn word_tip(word: &str) -> Option<&'static str> {
    Some(match word {
        "def" | "func" | "function" | "fun" | "proc" => "functions are written `fn name(x) { … }`",
        "lambda" => "there are no nameless functions: write `fn name(x) = …` above and pass `name`",
        "class" | "struct" | "module" => "models are written `model Name(options) { … }`",
        "elif" | "elseif" | "elsif" => "write `else if`",
        "while" | "loop" => "loops are written `for i in 0..n { … }`",
        "break" | "continue" => "a loop goes through all of its items: put the rest of its body under `if`",
        "import" | "from" | "include" | "require" => "modules are bound by `use nn`",
        "var" | "val" | "mut" | "auto" => {
            "names are bound by `let x = …`, and given another value by `x = …`"
        }
        "None" | "null" | "nil" => {
            "there is no null value: leave the argument out, or use `if`; `x[:, new]` adds an axis"
        }
        "True" => "write `true`",
        "False" => "write `false`",
        "self" | "this" => "the fields of a model are used by their bare names",
        "and_then" | "try" | "except" | "catch" | "raise" | "throw" => {
            "there are no exceptions: `assert(condition, \"message\")` stops a program"
        }
        "is" => "write `==`",
        "del" => "write `release x` in a step",
        "super" => "a model has no base: its parameters and sub-models stand in its body",
        "async" | "await" | "yield" => "a program runs in order, statement by statement",
        "pass" => "an empty body is `{ }`",
        "print_fn" | "println" | "printf" | "echo" => "write `print(…)`",
        "no_grad" | "inference_mode" => {
            "write `stop_grad(x)`; a step without `minimize`, `update` or `grad` has no backward pass"
        }
        "Sequential" => "write a model whose `forward` applies its layers in turn",
        "backward" => "write `minimize loss over net with optim.sgd(lr: 0.1)`, or `grad(loss, net)`",
        "zero_grad" => "gradients are values: there is nothing to reset",
        "requires_grad" => "every `param` is trained; `param frozen` is not",
        "Parameter" => "write `param w: f32[n, m] = init.kaiming()` in a model",
        "register_buffer" => "write `state x: f32[n] = zeros()` in a model",
        "__init__" => "a model's options stand after its name: `model Net(width: int) { … }`",
        "range_" | "xrange" => "write `0..n`",
        "F" => "tensor functions have no prefix: write `relu(x)`",
        "torch" | "np" | "numpy" | "jnp" | "jax" | "tf" => "tensor functions have no prefix: `zeros([2, 3])`",
        _ => return None,
    })
}

/// Whether a word of another language starts a declaration of the name behind it.
pub(crate) fn declares(word: &str) -> bool {
    imports(word)
        || matches!(word, "def" | "func" | "function" | "fun" | "proc" | "class" | "struct" | "var" | "val")
}

/// Whether a word of another language binds a module.
pub(crate) fn imports(word: &str) -> bool {
    matches!(word, "import" | "from")
}

/// What to write instead of `use` of a Python library.
pub fn module_tip(name: &str) -> Option<&'static str> {
    Some(match name {
        "torch" | "np" | "numpy" | "jnp" | "jax" | "flax" | "optax" | "tf" | "tensorflow" | "keras" => {
            "tensor functions need no module; layers are in `nn`, losses in `loss`, optimizers in `optim`"
        }
        _ => return None,
    })
}

/// What to write instead of a character that is no token.
pub(crate) fn character_tip(c: char) -> Option<&'static str> {
    Some(match c {
        '“' | '”' | '„' | '«' | '»' => "strings stand in straight quotes, `\"…\"`",
        '‘' | '’' | '\'' | '`' => "strings stand in double quotes, `\"…\"`",
        '−' | '–' | '—' => "the minus sign is `-`",
        '×' | '·' | '⋅' | '∗' => "products are written `*`, matrix products `@`",
        '÷' => "division is written `/`",
        '≤' => "write `<=`",
        '≥' => "write `>=`",
        '≠' => "write `!=`",
        '→' => "write `->`",
        '…' => "write `...`",
        '^' => "powers are written `**`",
        '&' => "write `and`",
        '|' => "write `or`",
        '?' => "write `if condition { a } else { b }`",
        '\\' => "a line goes on after an operator, a comma or inside brackets",
        '\u{a0}' => "this is a no-break space: write a plain one",
        '\0' => "the file seems to be binary",
        _ => return None,
    })
}
