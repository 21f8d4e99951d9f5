//! Programs that grow or mean more than they seem to: clear errors, at once.

#[path = "language/support.rs"]
#[allow(dead_code)]
mod support;

use support::{check, run};

fn has(text: &str, code: &str, message: &str) {
    let found = check(text);
    assert!(found.contains(code) && found.contains(message), "{found}");
}

#[test]
fn strings_and_lists_that_double() {
    has("let l = \"a\"\nfor i in 0..60 { l = l + l }", "TG0235", "a string of more than");
    has("let l = [1]\nfor i in 0..60 { l = [l, l] }", "TG0235", "a list that holds more than");
}

#[test]
fn minimize_in_an_optimizer() {
    let text = "optimizer o(lr) { p := p - lr * g; minimize sum(p) over p with o(lr) }
model M() { param w: f32[2] = 1.0; fn forward(x) = sum(w * x) }
let m = M()
step s(x: f32[2]) { let l = m(x); minimize l over m with o(0.1); return l }
s(ones([2]))";
    has(text, "TG0231", "`minimize` in the body of an optimizer");
}

#[test]
fn a_model_that_exists_keeps_its_dtype() {
    let text = "use nn\nlet a = nn.Linear(2, 2)\nlet b = a in f64";
    has(text, "TG02", "is there already");
}

#[test]
fn partial_batches_can_be_kept() {
    let text = "let n = 0\nfor x in data.batches(ones([5, 2]), size: 3, partial: keep) { n += x.shape[0] }\nprint(n)";
    assert_eq!(run(text), "5");
}

/// What rests on a number from a tensor is judged by the run, which knows it.
#[test]
fn numbers_from_tensors_do_not_stop_a_run() {
    let text = "let labels = tensor([0, 2, 1, 2])
let classes = int(max(labels)) + 1
step s(x: f32[4, 3]) { return sum(x) }
print(s(one_hot(labels, classes)))
let n = int(sum(labels))
print(reshape(ones([5]), [n]).shape, zeros([n - 3]).shape)";
    assert_eq!(run(text), "4.0\n[5] [2]");
    has(text, "TG0220", "`x` of `s`");
}

#[test]
fn errors_in_branches_that_may_run_are_warnings() {
    let text = "step s(x: f32[2]) { return sum(x) }
let c = s(ones([2]))
if c > 5.0 { load(\"missing.safetensors\") }
print(\"ok\")";
    assert_eq!(run(text), "ok");
}

#[test]
fn declarations_of_one_name() {
    has("fn f(x) = x\nfn f(x) = 2 * x", "TG0207", "`f` is declared twice");
    has(
        "step s(x: f32[2]) { return x }\nstep s(x: f32[2]) { return x * 2 }",
        "TG0207",
        "`s` is declared twice",
    );
}

/// A list of states holds what they were, like a variable.
#[test]
fn lists_hold_the_values_of_states() {
    let text = "model M() { state c: f32[] = 0.0; fn forward(x) { c := c + 1.0; x } }
let m = M()
step s(x: f32[2]) { return m(x) }
let h = []
for i in 0..3 { s(ones([2])); h += [m.c] }
let a, b = [m.c, 7], m.c
s(ones([2]))
print(h, a, b, m.c)";
    assert_eq!(run(text), "[1.0, 2.0, 3.0] [3.0, 7] 3.0 4.0");
}
