//! Names that are declared twice, and writes to what is not written.

use crate::support::{check, checked};

/// The texts of the first diagnostic's labels, with their lines.
fn labels(text: &str) -> Vec<String> {
    let found = checked(text);
    let first = found.diagnostics.first().expect("something is wrong");
    std::iter::once(&first.primary)
        .chain(&first.secondary)
        .map(|l| format!("{}: {}", found.sources.start(l.span).line, l.text))
        .collect()
}

#[test]
fn names_are_declared_once() {
    let cases = [
        ("const A = 1\nconst A = 2", "2: TG0207 `A` is declared twice"),
        ("const A = 1\nfn A(x) = x", "2: TG0207 `A` is declared twice: as a constant and as a function"),
        ("const A = 1\nlet A = 2", "2: TG0207 `A` is declared twice: as a constant and as a variable"),
        ("let f = 1\nfn f(x) = x", "1: TG0207 `f` is declared twice: as a function and as a variable"),
        ("const M = 1\nmodel M() { }", "2: TG0207 `M` is declared twice: as a constant and as a model"),
        ("fn f(x, x) = x", "1: TG0207 `x` is declared twice"),
        ("step s(x: f32[2], x: f32[2]) { return x }", "1: TG0207 `x` is declared twice"),
        ("model M(n: int, n: int) { }", "1: TG0207 `n` is declared twice"),
        ("optimizer o(lr, lr) { p := p - lr * g }", "1: TG0207 `lr` is declared twice"),
        ("let a, a = (1, 2)", "1: TG0207 `a` is declared twice"),
        ("for i, i in [(1, 2)] { print(i) }", "1: TG0207 `i` is declared twice"),
        ("let x = [a for a, a in [(1, 2)]]", "1: TG0207 `a` is declared twice"),
        ("let _, a, _ = (1, 2, 3)\nlet a = 2", ""),
        ("fn f(x) {\n  fn g(x) = x\n  fn g(x) = x + 1\n  g(x)\n}", "3: TG0207 `g` is declared twice"),
        (
            "optimizer o(lr) {\n  state v = zeros_like(p)\n  state v = zeros_like(p)\n  p := p - lr * v\n}",
            "3: TG0207 `v` is declared twice",
        ),
        (
            "optimizer o(lr) {\n  state lr = zeros_like(p)\n  p := p - lr * g\n}",
            "2: TG0207 `lr` is declared twice: as a parameter and as a `state`",
        ),
        ("optimizer o(g) { p := p - g }", "1: TG0207 `g` has a meaning in an optimizer"),
        (
            "model M(n: int) {\n  param w: f32[n] = zeros()\n  state w: f32[n] = zeros()\n  fn forward(x) = x * w\n}\nlet m = M(2)",
            "3: TG0207 `w` is declared twice: as a `param` and as a `state`",
        ),
        (
            "model M(n: int) {\n  param n: f32[3] = zeros()\n}\nlet m = M(2)",
            "2: TG0207 `n` is declared twice: as a parameter and as a `param`",
        ),
        (
            "model M() {\n  let k = 1\n  let k = 2\n  fn k(x) = x\n}",
            "3: TG0207 `k` is declared twice\n4: TG0207 `k` is declared twice: as a field and as a function",
        ),
        // Branches exclude each other.
        (
            "model M(b: bool) {\n  if b { param w: f32[2] = zeros() } else { param w: f32[3] = zeros() }\n}\nlet m = M(true)",
            "",
        ),
        ("fn f(x: f32[B], B: int) = x * B", "1: TG0207 `B` is a dimension and a parameter"),
        ("step s(x: f32[B = 3], y: f32[B = 4]) { return x }", "1: TG0207 `B` is declared twice"),
        ("step s(x: f32[B = 3], y: f32[B]) { return x + y }", ""),
    ];
    for (text, expected) in cases {
        assert_eq!(check(text), expected, "{text}");
    }
    assert_eq!(labels("const A = 1\nfn A(x) = x"), ["2: declared again here", "1: first declared here"]);
    assert_eq!(
        labels("fn f(\n  x: f32[B],\n  B: int,\n) = x * B"),
        ["2: a dimension, known from the argument's shape", "3: a parameter"]
    );
}

#[test]
fn parameters_change_by_updates_only() {
    let model = |word: &str| {
        format!(
            "model M(n: int) {{\n  {word} w: f32[n] = zeros()\n  fn forward(x) {{\n    w := w + 1.0\n    x * w\n  }}\n}}\nlet m = M(2)\nstep s(x: f32[2]) {{ return m(x) }}\ns(ones([2]))"
        )
    };
    assert_eq!(check(&model("param")), "4: TG0237 `:=` writes a state, and `m.w` is a parameter");
    assert_eq!(
        check(&model("param frozen")),
        "4: TG0237 `:=` writes a state, and `m.w` is a frozen parameter"
    );
    assert_eq!(check(&model("state")), "");
    assert_eq!(labels(&model("param"))[1], "2: declared here");
    let found = checked(&model("param"));
    assert!(found.diagnostics[0].help[0].contains("`minimize loss over net with opt`"));
    let optimizer = "optimizer o(lr) {\n  p := p - lr * g\n  return p\n}";
    assert_eq!(check(optimizer), "3: TG0114 `return` in an optimizer");
}

#[test]
fn an_optimizer_trains_the_model_it_is_made_for() {
    let text = |over: &str| {
        format!(
            "use nn\nuse optim\nlet a = nn.Linear(2, 2)\nlet b = nn.Linear(2, 2)\nlet opt = optim.adamw(a, lr: 1e-3)\n\
             step s(x: f32[2, 2]) {{\n  let l = mean(b(a(x)))\n  minimize l over {over} with opt\n  return l\n}}\ns(ones([2, 2]))"
        )
    };
    assert_eq!(check(&text("a")), "");
    assert_eq!(check(&text("a.w")), "");
    for over in ["b", "a, b"] {
        assert_eq!(check(&text(over)), "8: TG0236 `opt` is made for the model `a`, and does not train `b.w`");
    }
    assert_eq!(labels(&text("b"))[..2], ["8: ", "5: made for this"]);
}
