//! Branches that only may run, and what check says about contracts and misplaced words.

use crate::support::{check, run};

#[test]
fn errors_in_branches_that_may_run_are_silent() {
    let text = r#"
fn t(x) = x * 2.0
let c = float(sum(t(ones([2]))))
let state = "fine"
let n = 1
if c > 1e6 { n = 2; error("diverged") }
if c > 2e6 { state = "bad" } else { assert(n == 1) }
if c > 1e6 { assert(false, "not a number") }
if state == "bad" { error("bad") }
if n == 2 { error("what the ended branch assigned is forgotten") }
for e in 0..3 {
  print(e)
  if e == 99 { error("crash") }
}
fn guard(x) = if x > 1e6 { error("large") } else { x }
print(guard(c))
"#;
    assert_eq!(check(text), "");
    assert_eq!(run(text), "0\n1\n2\n4.0");
    assert_eq!(check("error(\"now\")"), "1: TG0406 now");
    assert_eq!(check("if true { assert(1 > 2) }"), "1: TG0401 the assertion `1 > 2` does not hold");
    assert_eq!(run(&text.replace("c > 1e6", "c > 1.0")), "6: TG0406 diverged");
}

#[test]
fn contracts_of_unplanned_steps_are_reported() {
    let step = "step a(x: f32[B, 4]) {\n  ensure peak <= 1 MiB\n  return x * 2.0\n}\n";
    assert_eq!(check(step), "2: TG0342 step `a` is not planned: no call gives `B`");
    assert_eq!(check(&step.replace("[B,", "[B = 32,")), "");
    assert_eq!(check(&format!("{step}a(ones([3, 4]))")), "");
    assert_eq!(
        check(&step.replace("x: f32[B, 4]", "x")),
        "2: TG0342 step `a` is not planned: no call gives `x`"
    );
}

#[test]
fn a_shuffle_is_a_seed() {
    let text = "for b in data.batches(arange(4), size: 2, shuffle: true) { print(b) }";
    assert_eq!(check(text), "1: TG0233 `shuffle` is a seed");
    assert_eq!(check(&text.replace("true", "3")), "");
}

#[test]
fn allowed_codes_exist() {
    assert_eq!(check("allow(TG9999)\nlet x = 1"), "1: TG0233 no diagnostic has the code `TG9999`");
    assert_eq!(check("allow(TG0341)\nlet x = 1"), "");
}

#[test]
fn top_level_words_stand_at_the_top_level() {
    let bodies = ["fn f() { WORD }", "for i in 0..2 { WORD }", "if true { WORD }", "step s() { WORD }"];
    let words = [
        ("use", "use nn"),
        ("const", "const K = 1"),
        ("step", "step s(x: f32[2]) { return x }"),
        ("model", "model M() { fn forward(x) = x }"),
        ("optimizer", "optimizer o(lr) { p := p - lr * g }"),
    ];
    for body in bodies {
        for (word, text) in words {
            let found = check(&body.replace("WORD", text));
            assert_eq!(found, format!("1: TG0114 `{word}` does not belong here"), "{body} {text}");
        }
    }
}

/// A `let` in a loop that is made of the name it hides loses what the pass before it made.
#[test]
fn values_that_no_pass_carries_on() {
    let hides = "2: TG0242 this `let` makes a new `h` in every pass, from the one outside of the loop";
    for (body, found) in [
        ("let h = h + i", hides),
        ("let s, h = (i, h + i)", hides),
        ("h = h + i", ""),
        ("let n = h + i", ""),
        ("let h = i; let h = h + 1", ""),
    ] {
        assert_eq!(check(&format!("let h = 0\nfor i in 0..3 {{ {body} }}")), found, "{body}");
    }
    // A parameter is bound outside, too; what another function binds is not.
    assert_eq!(check("fn f(h) {\nfor i in 0..3 { let h = h + i }\nh }\nf(1)"), hides);
    assert_eq!(check("fn f() { let h = 1; h }\nfor i in 0..3 { let h = f() }"), "");
}
