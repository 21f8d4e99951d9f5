//! One line for each thing that is wrong.

use crate::support::{check, checked, run};

/// What is wrong with a program, and the first help.
fn wrong(text: &str) -> (String, String) {
    let found = checked(text);
    let help = found.diagnostics.first().and_then(|d| d.help.first().cloned());
    (check(text), help.unwrap_or_default())
}

#[test]
fn unknown_names_suggest() {
    let cases = [
        ("lenn([1])", "1: TG0201 unknown name `lenn`", "did you mean `len`?"),
        ("softmx(ones([2]))", "1: TG0201 unknown name `softmx`", "did you mean `softmax`?"),
        (
            "let a = None",
            "1: TG0201 unknown name `None`",
            "there is no null value: leave the argument out, or use `if`; `x[:, new]` adds an axis",
        ),
        ("ones([2])[:, none]", "1: TG0201 unknown name `none`", "`x[:, new]` adds an axis"),
        (
            "fn f(c: bool) {\n  if c { let x = 1 } else { let y = 2 }\n  y\n}\nf(false)",
            "3: TG0201 unknown name `y`",
            "bind it by the choice itself: `let y = if condition { … } else { … }`",
        ),
        // What another function binds is not what is missing here.
        (
            "fn f(c: bool) { if c { let yy = 1; yy } else { 0 } }\nfn g() = yy\ng()",
            "2: TG0201 unknown name `yy`",
            "",
        ),
        (
            "use nn\nnn.LeakyReLU()",
            "2: TG0202 the module `nn` has no `LeakyReLU`",
            "a function, not a layer: `nn.leaky_relu(x)`, `nn.softplus(x)`, `nn.upsample(x)`, `nn.conv_transpose2d(x, w)`",
        ),
        ("clamp(ones([2]))", "1: TG0201 unknown name `clamp`", "write `clip(x, low, high)`"),
        ("nn.Linear(1, 2)", "1: TG0201 unknown name `nn`", "write `use nn` at the top of the file"),
        ("use nn\nnn.Liner(1, 2)", "2: TG0202 the module `nn` has no `Liner`", "did you mean `Linear`?"),
        ("use nn\nnn.LSTM(1, 2)", "2: TG0202 the module `nn` has no `LSTM`", "did you mean `LSTMCell`?"),
        ("let x = ones([2])\nx.item()", "2: TG0202 a tensor f32[2] has no field `item`", "write `float(x)`"),
        ("use optmi", "1: TG0203 unknown module `optmi`", "did you mean `optim`?"),
        ("fn f(x: flot) = x\nf(1)", "1: TG0201 unknown type `flot`", "did you mean `float`?"),
        ("sum(ones([2]), dim: 0)", "1: TG0212 `sum` has no parameter `dim`", "it is called `axis` here"),
    ];
    for (text, message, help) in cases {
        assert_eq!(wrong(text), (message.to_string(), help.to_string()), "{text}");
    }
}

#[test]
fn losses_need_targets_of_one_shape() {
    let shapes = [
        (
            "loss.mse(ones([4, 1]), ones([4]))",
            "mse needs a target of the shape of the prediction, [4, 1], got [4]",
        ),
        (
            "loss.l1(ones([4, 1]), ones([3]))",
            "l1 needs a target of the shape of the prediction, [4, 1], got [3]",
        ),
        (
            "loss.bce_with_logits(ones([2]), ones([2, 2]))",
            "bce_with_logits needs a target of the shape of the prediction, [2], got [2, 2]",
        ),
        (
            "loss.cross_entropy(ones([4, 4]), zeros([2, 2], dtype: i32))",
            "cross_entropy needs a label for each row of logits: logits [4, 4] go with labels [4], got [2, 2]",
        ),
        (
            "metrics.accuracy(ones([4, 4]), zeros([4, 1], dtype: i32))",
            "accuracy needs a label for each row of logits: logits [4, 4] go with labels [4], got [4, 1]",
        ),
    ];
    for (call, message) in shapes {
        assert_eq!(
            check(&format!("use loss\nuse metrics\n{call}")),
            format!("3: TG0406 {message}"),
            "{call}"
        );
    }
    // A number stands for all of them.
    assert_eq!(
        run("use loss\nprint(loss.mse(ones([4, 1]), 0.5), loss.huber(ones([2]), sum(ones([1]))))"),
        "0.25 0.0"
    );
}

#[test]
fn all_errors_of_a_run_are_found_and_none_twice() {
    let text = r#"
let a = lenn([1])
let b = a + 1
let c = 1 / 2
fn f(x) = x + undefined
f(1)
f(2)
let d = [1][3]
"#;
    let expected = "2: TG0201 unknown name `lenn`\n\
                    4: TG0217 `/` of the whole numbers `1` and `2`\n\
                    5: TG0201 unknown name `undefined`\n\
                    8: TG0215 index 3 is out of range for 1 item";
    assert_eq!(check(text), expected);
}

#[test]
fn bodies_that_nothing_calls_are_judged() {
    let text = r#"
fn f(x) {
  let y = x
  for i in 0..3 { y = y + i + missing }
  yy
}
model M(n: int) {
  param w: f32[n, H] = init_it()
  fn forward(x) = x * w + other(x)
  fn other(x) = [a + 1 for a in x]
}
"#;
    let expected =
        "4: TG0201 unknown name `missing`\n5: TG0201 unknown name `yy`\n8: TG0201 unknown name `init_it`";
    assert_eq!(check(text), expected);
}

#[test]
fn outer_names_are_not_rebound() {
    let text = "let x = 1\nfn f() { x = 2 }\nf()\nstep s(a: f32[2]) { let y = a\n  let z = checkpoint < { y = a; y } >\n  return z }";
    assert_eq!(
        check(text),
        "2: TG0204 `x` is bound outside of this body\n5: TG0204 `y` is bound outside of this body"
    );
    let labels = &checked(text).diagnostics[0].secondary;
    assert_eq!(labels[0].text, "`x` is bound here, outside");
}

#[test]
fn shapes_and_dtypes() {
    let cases = [
        (
            "zeros([2, 3]) + ones([4])",
            "1: TG0221 `+` cannot broadcast f32[2, 3] with f32[4]: axis 1 on the left is 3, axis 0 on the right is 4",
        ),
        ("zeros([2]) + f16(ones([2]))", "1: TG0222 `+` of f32[2] and f16[2] mixes the dtypes f32 and f16"),
        ("let x: f32[3] = zeros([2])", "1: TG0220 the value is `f32[3]`, got f32[2]"),
        ("fn f(x: f32[2, 2]) = x\nf(zeros([2]))", "2: TG0220 `x` of `f` is `f32[2, 2]`, got f32[2]"),
        ("fn f(x: int) = x\nf(1.5)", "2: TG0210 `x` of `f` is `int`, got a number"),
        ("fn f(x) -> f32[2] = x\nf(zeros([3]))", "1: TG0220 the result of `f` is `f32[2]`, got f32[3]"),
        ("zeros([-1])", "1: TG0221 `zeros`: size -1 is negative"),
    ];
    for (text, message) in cases {
        assert_eq!(check(text), message, "{text}");
    }
}

#[test]
fn calls() {
    let cases = [
        ("fn f(x) = x\nf()", "2: TG0212 `f` needs `x`"),
        ("fn f(x) = x\nf(1, 2)", "2: TG0212 `f` takes 1 argument, got 2"),
        ("fn f(x) = x\nf(1, x: 2)", "2: TG0212 `f` got `x` twice"),
        ("fn f(value) = value\nf(valu: 1)", "2: TG0212 `f` has no parameter `valu`"),
        ("3(4)", "1: TG0211 a whole number cannot be called"),
        ("let a, b = 3", "1: TG0219 2 names for a whole number, which has no parts"),
        ("let a, b = [1, 2, 3]", "1: TG0219 2 names for 3 values"),
        ("if 3 { print(1) }", "1: TG0210 a condition is a bool, got a whole number"),
        ("for i in 5 { print(i) }", "1: TG0210 `for` cannot go through a whole number"),
        ("error(\"stop at {1 + 1}\")", "1: TG0406 stop at 2"),
        ("assert(1 == 2)", "1: TG0401 the assertion `1 == 2` does not hold"),
    ];
    for (text, message) in cases {
        assert_eq!(check(text), message, "{text}");
    }
}

#[test]
fn recursion_without_end() {
    assert_eq!(
        check("fn f(x) = f(x) + 1\nf(1)"),
        "2: TG0234 calls and expressions are nested more than 4000 deep (`max_depth` of this engine)"
    );
}

#[test]
fn errors_in_the_library_point_at_the_users_line() {
    let text = "use nn\nlet net = nn.Linear(3, 2)\nnet(ones([1, 4]))";
    let found = checked(text);
    assert_eq!(found.diagnostics.len(), 1);
    let first = &found.diagnostics[0];
    assert_eq!(found.sources.start(first.primary.span).line, 3);
    assert_eq!(first.primary.text, "in this call of `Linear.forward`");
    let inner = first.secondary[0].span;
    assert_eq!(found.sources.get(inner.file).map(|f| f.name.as_str()), Some("std/nn.tg"));
}

#[test]
fn graph_code() {
    let cases = [
        (
            "step f(x: f32[2]) { print(x) }",
            "1: TG0230 a tensor has no value yet when its graph is built: it cannot be shown as text",
        ),
        (
            "step f(x: f32[2]) { if sum(x) > 0.0 { return x } }",
            "1: TG0214 a condition must be known when the graph is built, got a tensor",
        ),
        (
            "step f(x: f32[2]) { return float(sum(x)) }",
            "1: TG0214 `float` of a tensor in graph code: its value is not known when the graph is built",
        ),
        ("step f() { print(\"hello\") }", "1: TG0230 `print` in a step"),
        (
            "step f() { return 1 }\nstep g() { return f() }",
            "2: TG0230 the step `f` is called from graph code",
        ),
        (
            "let x = ones([2])\nlet y = sum(x)\nstep f() { return grad(y, x) }",
            "3: TG0232 this loss is already computed: nothing is known of how",
        ),
        (
            "model M() { param w: f32[2] = ones()\n fn forward(x) = x * w }\nlet m = M()\nstep f(x: f32[2]) { minimize sum(m(x)) over m with 3 }",
            "4: TG0236 expected an optimizer, got a whole number",
        ),
    ];
    for (text, message) in cases {
        assert_eq!(check(text), message, "{text}");
    }
}

#[test]
fn contracts_on_the_peak() {
    let text = "step f(x: f32[1024, 1024]) {\n  ensure peak <= 3 MiB\n  return exp(x)\n}";
    assert_eq!(check(text), "2: TG0340 the peak of `f` is 4.0 MiB, over the 3.0 MiB that are ensured");
    assert_eq!(check(&text.replace("3 MiB", "4 MiB")), "");
    // A promise for every schedule does not count on writing the result over the argument.
    assert_eq!(
        check(&text.replace("3 MiB", "4 MiB in every schedule")),
        "2: TG0344 a legal order of `f` needs 8.0 MiB, over the 4.0 MiB that are ensured in every schedule"
    );
    assert_eq!(check(&text.replace("3 MiB", "8 MiB in every schedule")), "");
    // Where the planned order is over already, that is what is said.
    assert_eq!(
        check(&text.replace("3 MiB", "3 MiB in every schedule")),
        "2: TG0340 the peak of `f` is 4.0 MiB, over the 3.0 MiB that are ensured"
    );
}

#[test]
fn parameters_without_a_gradient() {
    let text = r#"
use nn
use optim
model Net() {
  let used = nn.Linear(2, 2)
  let unused = nn.Linear(2, 2)
  fn forward(x) = used(x)
}
let net = Net()
step train(x: f32[4, 2]) {
  minimize mean(net(x)) over net with optim.sgd(lr: 0.1)
}
"#;
    assert_eq!(check(text), "11: TG0341 2 of 4 parameters get no gradient: `net.unused.w`, `net.unused.b`");
    assert!(checked(text).is_sound(), "it is a warning");
}

#[test]
fn errors_at_run_time_stop_the_script() {
    let text = "print(1)\nlet xs = [1, 2]\nlet n = int(sum(tensor([5.0])))\nprint(xs[n])\nprint(2)";
    assert_eq!(run(text), "1\n4: TG0215 index 5 is out of range for 2 items");
}

#[test]
fn limits() {
    use tg::engine::{Engine, Limits, Source};
    let limits = Limits { max_nodes: 50, max_bytes: 1 << 20, max_items: 100, ..Limits::default() };
    let check = |text: &str| {
        let checked =
            Engine::new().with_limits(limits).check(Source::text("t.tg", text), &Default::default());
        crate::support::listed(&checked.diagnostics, &checked.sources)
    };
    assert_eq!(
        check("step f(x: f32[2]) { let y = x\n for i in 0..90 { y = exp(y) }\n return y }"),
        "2: TG0235 the graph has more than 50 nodes (`max_nodes` of this engine)"
    );
    assert_eq!(
        check("let xs = [0] * 1000"),
        "1: TG0235 a list of 1000 items; the limit of this engine is 100 (`max_items`)"
    );
    assert_eq!(
        check("step f(x: f32[1000, 1000]) { return x }"),
        "1: TG0235 f32[1000, 1000] takes 4000000 bytes; the limit of this engine is 1048576 (`max_bytes`)"
    );
}

#[test]
fn memory_is_charged_before_it_is_taken() {
    use tg::engine::{Engine, Limits, Source};
    let limits = Limits { max_host_bytes: 1 << 20, ..Limits::default() };
    let program = Engine::new()
        .with_limits(limits)
        .compile(Source::text("t.tg", "let x = exp(zeros([1000, 1000]))"))
        .expect("its types are fine");
    let error = program.session().expect("a session").run().expect_err("too much memory");
    assert!(crate::support::errors_of(&error).contains("TG0235 this needs"), "{error:?}");
}

#[test]
fn nested_lists_end() {
    let text = "let xs = []\nfor i in 0..1000 { xs = [xs] }";
    assert_eq!(check(text), "2: TG0235 lists are nested more than 100 deep");
}

#[test]
fn habits_of_other_languages_get_a_tip() {
    let cases = [
        ("use nn\nnn.ReLU()", "2: TG0202 the module `nn` has no `ReLU`"),
        ("let a = F", "1: TG0201 unknown name `F`"),
        ("let y = 1\nlet x = y // value", "2: TG0201 unknown name `value`"),
        ("let a = True", "1: TG0201 unknown name `True`"),
        ("max(1, 2)", "1: TG0221 `max`: axis 2 is out of range for i32"),
        ("fn f(x: Tensor) = x", "1: TG0201 unknown type `Tensor`"),
        ("for i in range(3) { i }\nfor i in range(1, 3) { i }\n[1, 2, 3][0:2]", ""),
        ("use torch", "1: TG0203 unknown module `torch`"),
        ("let x = ones([2])\nx.size(0)", "2: TG0211 `size` is a number, and cannot be called"),
        ("let a = zeros(2, 3)", "1: TG0212 `zeros` takes one shape, got 2 numbers"),
        ("clip(ones([2]), 1.0)", "1: TG0212 `clip` needs `high`"),
        ("for i in 0..3 { break }", "1: TG0201 unknown name `break`"),
        ("let xs = [1]\nlet b = 1 in xs", "2: TG0210 `in` takes a floating-point dtype, got `xs`"),
        ("fn f(x) { let y = x }\nf(2) + 1", "2: TG0213 `+` does not apply to nothing and a whole number"),
    ];
    for (text, message) in cases {
        assert_eq!(check(text), message, "{text}");
    }
    let helps = [
        (
            "use nn\nnn.ReLU()",
            "activations are functions, not layers: write `relu(x)`, `gelu(x)`, `silu(x)`, `sigmoid(x)`, `tanh(x)` or `softmax(x)`",
        ),
        ("use nn\nnn.MSELoss()", "write `use loss` and `loss.mse(prediction, target)`"),
        ("use nn\nnn.CrossEntropyLoss()", "write `use loss` and `loss.cross_entropy(logits, labels)`"),
        ("use nn\nnn.ModuleList([])", "a list will do: `let layers = [nn.Linear(d, d) for i in 0..n]`"),
        ("let y = 1\nlet x = y // value", "comments start with `#`; `//` divides and rounds down"),
        ("max(1, 2)", "`maximum(a, b)` chooses between two values; `max(x, axis: 0)` goes through one"),
        ("fn f(x: Tensor) = x", "the type of a tensor is its dtype and shape: `f32[n, m]`"),
        ("let a = super()", "a model has no base: its parameters and sub-models stand in its body"),
        ("let a = F", "tensor functions have no prefix: write `relu(x)`"),
        ("use optim\noptim.SGD(lr: 0.1)", "did you mean `sgd`?"),
        (
            "use optim\nlet o = optim.sgd(lr: 0.1)\no.step()",
            "write `minimize loss over net with opt`, or `update net with opt, grads`, in a step",
        ),
        ("data.DataLoader(3)", "write `for x, y in data.batches(x, y, size: 32, shuffle: seed) { … }`"),
        (
            "use torch",
            "tensor functions need no module; layers are in `nn`, losses in `loss`, optimizers in `optim`",
        ),
        ("let x = ones([2])\nx.to(1)", "casts are calls, `bf16(x)`; the device is chosen with `--device`"),
        ("let x = ones([2])\nx.numel()", "write `x.size`"),
        ("let x = ones([2])\nx.ndim", "write `x.rank`"),
        ("let x = ones([2])\nx.float()", "write `f32(x)`"),
        (
            "let x = ones([2])\nx.size(0)",
            "`x.shape[0]` is the size of an axis, `x.size` the number of elements",
        ),
        ("linspace(0, 1, 5)", "write `low + arange(n) * ((high - low) / (n - 1))`"),
        ("cumsum(1)", "write `x @ f32(unsqueeze(arange(n), 1) <= arange(n))` for the last axis of size n"),
        ("tril(1)", "write `where(unsqueeze(arange(n), 1) >= arange(n), x, 0.0)`"),
        ("bmm(1, 2)", "write `a @ b`: leading axes are a batch"),
        ("sort([1])", "nothing sorts yet: `max` and `argmax` find the largest"),
        ("detach(1)", "write `stop_grad(x)`"),
        ("masked_fill(1)", "write `where(mask, value, x)`"),
        ("randint(1)", "write `i32(floor(uniform(shape, low: a, high: b)))`"),
        ("randperm(1)", "`data.batches(x, y, size: 32, shuffle: seed)` goes through rows in random order"),
        ("manual_seed(1)", "the seed of all random numbers is given with `--seed`"),
        ("clip_grad_norm_(1)", "write `optim.clip(g, 1.0)`"),
        ("undefined", ""),
        (
            "for i in 0..3 { break }",
            "a loop goes through all of its items: put the rest of its body under `if`",
        ),
        ("let a = zeros(2, 3)", "sizes are one list: `zeros([2, 3])`"),
        (
            "let xs = [1]\nlet b = 1 in xs",
            "`e in bf16` gives e a dtype; whether a list has an item says `len([i for i in xs if i == x]) > 0`",
        ),
        (
            "fn f(x) { let y = x }\nf(2) + 1",
            "a body whose last line is a statement gives nothing: end it with an expression, or `return` one",
        ),
        (
            "use nn\nlet net = nn.Linear(2, 2)\nstep t(x: f32[2, 2]) { return norm(clip(grad(sum(net(x)), net), 1.0)) }",
            "write `optim.clip(g, 1.0)` to limit the norm of gradients",
        ),
    ];
    for (text, help) in helps {
        assert_eq!(wrong(text).1, help, "{text}");
    }
}

#[test]
fn what_the_tips_say_works() {
    let text = "let x = tensor([1.0, 2.0, 3.0])
let n = 3
print(\"{x @ f32(unsqueeze(arange(n), 1) <= arange(n))}\")
print(\"{where(unsqueeze(arange(n), 1) >= arange(n), ones([3, 3]), 0.0)}\")
print(\"{1.0 + arange(5) * ((3.0 - 1.0) / (5 - 1.0))}\")
let xs = [1, 2]
print(\"{len([i for i in xs if i == 2]) > 0} {len([i for i in xs if i == 3]) > 0}\")";
    let expected = "f32[3]\n[1. 3. 6.]\nf32[3, 3]\n[[1. 0. 0.]\n [1. 1. 0.]\n [1. 1. 1.]]\n\
                    f32[5]\n[1.  1.5 2.  2.5 3. ]\ntrue false";
    assert_eq!(run(text), expected);
}

#[test]
fn files_are_for_the_top_level() {
    assert_eq!(
        wrong("fn f(x) { save(\"a.safetensors\", a: x) }\nf(ones([2]))"),
        (
            "1: TG0230 `save` in a function".to_string(),
            "write `save` at the top level of the script".to_string()
        )
    );
}

#[test]
fn sizes_without_bound_are_readable() {
    let message = run("zeros([100000, 100000, 100000])");
    assert!(message.starts_with("1: TG0235 this needs 3.6 PiB, more than the "), "{message}");
}
