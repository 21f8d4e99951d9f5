//! Tensors in the script, functions and models of tensors, steps.

use crate::support::{check, checked, run};

#[test]
fn tensors_of_the_script() {
    let text = r#"
let t = tensor([[1.0, 2.0], [3.0, 4.0]])
print(t @ t)
print(sum(t), float(sum(t)), t.shape, t.dtype, t.T.shape, t.rank, t.size)
print(t[0], t[:, 1], t[-1, 0..1])
"#;
    let printed = "f32[2, 2]\n[[ 7. 10.]\n [15. 22.]]\n10.0 10.0 [2, 2] f32 [2, 2] 2 4\n\
                   f32[2]\n[1. 2.] f32[2]\n[2. 4.] f32[1]\n[3.]";
    assert_eq!(run(text), printed);
}

#[test]
fn dimension_variables() {
    let text = r#"
fn rows(x: f32[N, M], w: f32[M]) -> f32[N] = sum(x * w, axis: 1) * float(N)
print(rows(ones([2, 3]), ones([3])))
fn tail(x: f32[..., 2 * K], k: f32[K]) = x.shape
print(tail(ones([5, 4, 6]), ones([3])))
"#;
    assert_eq!(run(text), "f32[2]\n[6. 6.]\n[5, 4, 6]");
}

#[test]
fn a_mismatch_shows_call_and_body() {
    let text = "fn f(x: f32[N], y: f32[N]) = x + y\nf(ones([2]), ones([3]))";
    let found = checked(text);
    assert_eq!(check(text), "2: TG0220 `y` of `f` is `f32[N]`, got f32[3]");
    let labels: Vec<&str> = found.diagnostics[0].secondary.iter().map(|l| l.text.as_str()).collect();
    assert_eq!(labels, ["declared here", "`N` is 2 from here"]);
    assert_eq!(found.diagnostics[0].primary.text, "axis 0 is 3, not 2");
}

#[test]
fn models_have_identity() {
    let text = r#"
model Scale(n: int) {
  param w: f32[n] = ones()
  fn forward(x) = x * w
  fn twice(x) = forward(forward(x))
}
model Pair() {
  let a = Scale(2)
  let b = a
  fn forward(x) = b(a(x))
}
let p = Pair()
print(p.a.w, p(tensor([1.0, 2.0])), p.a.twice(ones([2])))
step halve() {
  minimize sum(p.a.w) over p with half()
}
optimizer half() { p := p * 0.5 }
halve()
print(p.b.w, p(ones([2])))
"#;
    let printed = "f32[2]\n[1. 1.] f32[2]\n[1. 2.] f32[2]\n[1. 1.]\nf32[2]\n[0.5 0.5] f32[2]\n[0.25 0.25]";
    assert_eq!(run(text), printed);
}

#[test]
fn parameters_depend_on_seed_and_name_only() {
    let text = r#"
use nn
let a = nn.Linear(3, 2)
let first = copy(a.w)
let noise = normal([4])
"#;
    let again = r#"
use nn
let noise = normal([9])
let other = nn.Linear(3, 2)
print(all(other.w == other.w))
let a = nn.Linear(3, 2)
print(a.w)
"#;
    let one = run(&format!("{text}print(a.w)"));
    let two = run(again);
    assert_eq!(two, format!("true\n{one}"));
}

#[test]
fn conditional_parameters() {
    let text = r#"
model M(bias: bool) {
  param w: f32[2] = ones()
  if bias { param b: f32[2] = full(3.0) }
  fn forward(x) = if bias { x * w + b } else { x * w }
}
let with_bias = M(true)
let without = M(false)
print(with_bias(ones([2])), without(ones([2])))
"#;
    assert_eq!(run(text), "f32[2]\n[4. 4.] f32[2]\n[1. 1.]");
}

#[test]
fn steps_are_compiled_for_each_shape() {
    let text = r#"
step double(x: f32[N]) { return x * 2.0 }
print(double(ones([2])), double(ones([3])), double(ones([2])))
"#;
    assert_eq!(run(text), "f32[2]\n[2. 2.] f32[3]\n[2. 2. 2.] f32[2]\n[2. 2.]");
}

#[test]
fn scalars_of_steps() {
    let text = r#"
step f(x: f32[2], lr: f32, k: int, flag: bool = false) {
  return if flag { x } else { x * lr * float(k) }
}
print(f(ones([2]), 0.5, 3), f(ones([2]), 0.25, k: 2), f(ones([2]), 1, 1, flag: true))
"#;
    assert_eq!(run(text), "f32[2]\n[1.5 1.5] f32[2]\n[0.5 0.5] f32[2]\n[1. 1.]");
}

#[test]
fn steps_see_script_names_at_each_call() {
    let text = r#"
let scale = tensor([1.0, 2.0])
let k = 1
step f(x: f32[2]) { return x * scale * float(k) }
print(f(ones([2])))
scale = tensor([5.0, 5.0])
print(f(ones([2])))
k = 2
print(f(ones([2])))
"#;
    assert_eq!(run(text), "f32[2]\n[1. 2.]\nf32[2]\n[5. 5.]\nf32[2]\n[10. 10.]");
}

#[test]
fn structured_arguments_and_results() {
    let text = r#"
step f(xs, n: int) {
  let total = xs[0]
  for x in xs[1..] { total = total + x }
  return total, [x * 2.0 for x in xs], n
}
let a, b, n = f([ones([1]), ones([1])], 7)
print(a, len(b), b[1], n)
"#;
    assert_eq!(run(text), "f32[1]\n[2.] 2 f32[1]\n[2.] 7");
}

#[test]
fn debug_shows_while_a_step_runs() {
    assert_eq!(run("step f(x: f32[1]) { return debug(x + 1.0) }\nf(ones([1]))"), "x + 1.0: f32[1]\n[2.]");
    // In the order of the source, between what the script prints, and once where a region is computed
    // again for the backward pass.
    let text = r#"
fn twice(x) = debug(x, label: "in a function") * 2.0
print("start")
step s(x: f32[1]) {
  let a = debug(x * 2.0, label: "a")
  let b = checkpoint < { let c = debug(exp(a) * 0.0 + 1.0, label: "c"); relu(c) * c * x } >
  let g = grad(sum(b), [x])[0]
  return debug(g, label: "g")
}
s(ones([1]))
print("between")
print(twice(ones([1])))
let d = debug(ones([1]), label: "d")
"#;
    let lines: Vec<String> =
        run(text).lines().filter(|l| !l.starts_with('[')).map(|l| l.trim_end().to_string()).collect();
    assert_eq!(
        lines,
        [
            "start",
            "a: f32[1]",
            "c: f32[1]",
            "g: f32[1]",
            "between",
            "in a function: f32[1]",
            "f32[1]",
            "d: f32[1]"
        ]
    );
}

#[test]
fn a_step_that_fails_has_shown_what_came_before() {
    let text = "step s(x: f32[2], i: i32[1]) {\n  let a = debug(x, label: \"before\")\n  let b = gather(a, i)\n  return debug(b, label: \"behind\")\n}\ns(ones([2]), tensor([5]))";
    let found = run(text);
    assert!(found.starts_with("before: f32[2]\n[1. 1.]\n"), "{found}");
    assert!(found.contains("TG0402") && !found.contains("behind"), "{found}");
}

#[test]
fn sets_of_dimensions_and_constants() {
    use tg::engine::{CompileOptions, Engine, Source};
    let text = "const N = 4\nstep f(x: f32[B = 64, N]) { return sum(x) }\nprint(N)";
    let plan = |sets: &[(&str, &str)]| {
        let sets = sets.iter().map(|(n, v)| (n.to_string(), v.to_string())).collect();
        let options = CompileOptions { sets, ..CompileOptions::default() };
        let checked = Engine::new().check(Source::text("test.tg", text), &options);
        let graph = checked.graphs.first().map(|(_, g)| g.inputs[0].ty.to_string());
        (crate::support::listed(&checked.diagnostics, &checked.sources), graph)
    };
    assert_eq!(plan(&[]), (String::new(), Some("f32[64, 4]".into())));
    assert_eq!(plan(&[("B", "8"), ("N", "2")]), (String::new(), Some("f32[8, 2]".into())));
    assert_eq!(
        plan(&[("N", "x")]).0.lines().next(),
        Some("1: TG0239 `--set N=x`: the constant is a whole number")
    );
    assert_eq!(plan(&[("Q", "1")]).0, "1: TG0239 `--set Q=…` fits no `const Q` and no dimension `Q = …`");
}

#[test]
fn release_orders_and_forbids() {
    let text = r#"
step ok(x: f32[4]) {
  let h = exp(x)
  let s = sum(h)
  release h
  return s + sum(exp(x * 2.0))
}
step late(x: f32[4]) {
  let h = exp(x)
  release h
  return sum(h)
}
"#;
    assert_eq!(check(text), "11: TG0206 `h` is used after its release");
    let graph = checked(&text[..text.find("step late").expect("it is there")]).graphs;
    let after = graph[0].1.nodes().filter(|n| !n.after().is_empty()).count();
    assert!(after > 0, "what follows a release waits for the users of the value");
}

#[test]
fn released_values_are_not_kept_for_the_backward_pass() {
    let text = r#"
use optim
model M() { param w: f32[4] = ones()
  fn forward(x) = exp(x * w) }
let net = M()
step f(x: f32[4]) {
  let h = net(x)
  let loss = sum(h)
  release h
  minimize loss over net with optim.sgd(lr: 0.1)
}
"#;
    assert_eq!(check(text), "9: TG0206 `h` is still held after its release");
}

#[test]
fn barriers_pass_values_on() {
    let text = r#"
step f(x: f32[2]) {
  let a, b = barrier(x * 2.0, [x + 1.0])
  return a, b[0]
}
print(f(ones([2])))
"#;
    assert_eq!(run(text), "(f32[2]\n[2. 2.], f32[2]\n[2. 2.])");
}

#[test]
fn mixed_precision() {
    let text = r#"
use nn
let net = nn.Linear(2, 2) in bf16
let plain = nn.Linear(2, 2)
step f(x: f32[1, 2]) {
  with compute: bf16 { let y = plain(x); return y, net(bf16(x)) }
}
let y, z = f(ones([1, 2]))
print(net.w.dtype, plain.w.dtype, y.dtype, z.dtype)
"#;
    assert_eq!(run(text), "bf16 f32 bf16 bf16");
}
