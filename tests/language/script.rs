//! Numbers, strings, lists, functions, loops.

use crate::support::run;

#[test]
fn arithmetic() {
    let text = r#"
print(1 + 2 * 3, 7 // 2, -7 // 2, -7 % 3, 2 ** 10, 2 ** -1)
print(1.5 + 2, 7.0 / 2, 1e-5, 0.1)
print(3 < 4, 3 == 3.0, not true, 1 < 2 and 2 < 1)
"#;
    assert_eq!(run(text), "7 3 -4 2 1024 0.5\n3.5 3.5 1e-5 0.1\ntrue true false false");
}

#[test]
fn short_circuit() {
    // The right side would be an error.
    assert_eq!(run("print(false and [1][5] == 1, true or [1][5] == 1)"), "false true");
}

#[test]
fn lists() {
    let text = r#"
let xs = [i * i for i in 0..6 if i != 2]
print(xs, xs[-1], xs[1..3], xs[..2], len(xs))
xs[0] = 7
xs += [8]
print(xs, [1, 2] + [3], [0] * 3, [1, 2] == [1, 2])
let ys = xs
ys[1] = 100
print(xs[1], ys[1])
print(sum(xs), max(xs), min(xs), mean([1, 2]))
"#;
    let printed = "[0, 1, 9, 16, 25] 25 [1, 9] [0, 1] 5\n\
                   [7, 1, 9, 16, 25, 8] [1, 2, 3] [0, 0, 0] true\n\
                   1 100\n\
                   66 25 1 1.5";
    assert_eq!(run(text), printed);
}

#[test]
fn tuples_and_several_names() {
    let text = r#"
fn pair(a, b) = (b, a)
let x, y = pair(1, 2)
x, y = (y, x)
print(x, y, (1, "a"), ())
for i, v in enumerate(["a", "b"]) { print(i, v) }
for a, b in zip([1, 2], [3, 4]) { print(a + b) }
"#;
    assert_eq!(run(text), "1 2 (1, \"a\") ()\n0 a\n1 b\n4\n6");
}

#[test]
fn strings() {
    let text = r#"
let loss = 0.123456
print("loss {loss:.3f}, {100.0 * loss:.1f} %, {{}}, {5:03}")
print("a" + "b", "abc"[1], len("abc"), str(3) + "!")
"#;
    assert_eq!(run(text), "loss 0.123, 12.3 %, {}, 005\nab b 3 3!");
}

#[test]
fn loops_and_conditions() {
    let text = r#"
let s = 0
for i in 0..10 {
  if i % 2 == 0 { s += i } else { s -= 1 }
}
let kind = if s > 10 { "large" } else { "small" }
print(s, kind)
for c in "ab" { print(c) }
for i in range(10, 0, -4) { print(i) }
"#;
    assert_eq!(run(text), "15 large\na\nb\n10\n6\n2");
}

#[test]
fn functions() {
    let text = r#"
fn f(x, y = 2, z: float = 1) = x * y + z
print(f(3), f(3, 4), f(3, z: 0.5), f(y: 1, x: 1))
fn fact(n: int) = if n < 2 { 1 } else { n * fact(n - 1) }
print(fact(20))
fn adder(n) {
  fn add(x) = x + n
  add
}
print(adder(3)(4), map(adder(1), [1, 2]))
fn early(x) {
  for i in 0..10 {
    if i == x { return "found {i}" }
  }
  "none"
}
print(early(3), early(30))
"#;
    assert_eq!(run(text), "7.0 13.0 6.5 2.0\n2432902008176640000\n7 [2, 3]\nfound 3 none");
}

#[test]
fn functions_may_be_declared_later() {
    assert_eq!(run("print(double(2))\nfn double(x) = twice(x)\nfn twice(x) = 2 * x"), "4");
}

#[test]
fn shadowing_and_blocks() {
    let text = r#"
let x = 1
let y = { let x = 2; x + 1 }
if true { let x = 5 }
if true { x = 9 }
print(x, y)
"#;
    assert_eq!(run(text), "9 3");
}

#[test]
fn types_of_values() {
    let text = "print(type(1), type(1.0), type([]), type(\"\"), type(zeros([2])), type(true), type(print))";
    assert_eq!(run(text), "int float list str tensor bool function");
}

#[test]
fn numbers_and_texts() {
    assert_eq!(
        run("print(int(2.9), int(\"12\"), float(3), float(\"1e3\"), int(true), int(tensor(4)))"),
        "2 12 3.0 1000.0 1 4"
    );
}

#[test]
fn sizes_are_bytes() {
    assert_eq!(run("print(4 MiB, 1.5 KiB)"), "4194304 1536");
}
