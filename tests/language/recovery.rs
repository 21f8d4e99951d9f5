//! Syntax errors and what is judged beside them.

use crate::support::{check, checked};

#[test]
fn names_and_types_are_judged_beside_syntax_errors() {
    let cases = [
        // What was cut off has no value, and the rest is judged.
        (
            "let a = (1 +\nlet b = missing\nlet c = a + [1][4]\nlet d = [1][4]",
            "1: TG0102 `(` is not closed\n2: TG0201 unknown name `missing`\n\
             3: TG0215 index 4 is out of range for 1 item\n4: TG0215 index 4 is out of range for 1 item",
        ),
        (
            "let a = 3 +* 4\nprint(a, a[0], a.x)\nlet b = a @ 2\nfn f(x) = x + a + other",
            "1: TG0101 expected an expression, found `*`\n4: TG0201 unknown name `other`",
        ),
        // The name had another value before: that one is not meant.
        ("let a = 1\nlet a = [3 +* ]\nlet b = a[0]", "2: TG0101 expected an expression, found `*`"),
        // Heads of declarations.
        (
            "fn f(x {\n  return x + 1\n}\nprint(f(2))\nprint(zork)",
            "1: TG0102 `(` is not closed\n5: TG0201 unknown name `zork`",
        ),
        (
            "fn f(x, [3], z) = x + z\nprint(f(1, 2, 3))\nlet c = [1][1]",
            "1: TG0101 expected a name or `)` to close the `(` on line 1, found `[`\n3: TG0215 index 1 is out of range for 1 item",
        ),
        (
            "fn 3f(x) {\n  let y = x\n  return y\n}\nlet a = [1][2]",
            "1: TG0106 `3f` is not a number\n5: TG0215 index 2 is out of range for 1 item",
        ),
        (
            "const = 3\nprint(SIZE)\nlet a = [1][2]",
            "1: TG0101 expected a name, found `=`\n3: TG0215 index 2 is out of range for 1 item",
        ),
        (
            "fn f(a: int b: int) = a + b + zork\nprint(f(1, 2))",
            "1: TG0101 expected `=`, `,`, `.` or `)` to close the `(` on line 1, found `b`\n1: TG0201 unknown name `zork`",
        ),
        ("fn f( (a: int) = a\nprint(f(1))", "1: TG0102 `(` is not closed"),
        // A closer that does not fit shifts those behind it.
        (
            "let a = abs(exp(sqrt(1]))\nlet b = [1][2]",
            "1: TG0103 `]` does not close `(`\n2: TG0215 index 2 is out of range for 1 item",
        ),
        (
            "let a = ((1, 2)\nprint(a)\nprint(3)\nlet b = [1][2]",
            "1: TG0102 `(` is not closed\n4: TG0215 index 2 is out of range for 1 item",
        ),
        ("model M(n: int, : int) {\n  let a = n + k\n}\nlet m = M(1, 2)", "1: TG0101 unexpected `:`"),
        ("let a, = (1, 2)\nprint(share)", "1: TG0101 expected a name, found `=`"),
        (
            "train = 1\nprint(train)\nlet b = [1][train]\nlet c = [1][1]",
            "1: TG0201 unknown name `train`\n4: TG0215 index 1 is out of range for 1 item",
        ),
        (
            "model M(n: int) {\n  fn forward(x) = relu(x:)\n}\nlet m = M(1)\nprint(m(ones([1])))\nlet c = [1][1]",
            "2: TG0101 expected an expression, found `)`\n6: TG0215 index 1 is out of range for 1 item",
        ),
        // A block that ends too early, or never.
        (
            "fn f(x) {\n  let y = x }\n  return y\n}\nprint(f(1) + 1)\nprint(zork)",
            "4: TG0103 `}` closes nothing that is open\n6: TG0201 unknown name `zork`",
        ),
        (
            "let a = [1][4]\nstep s(x: f32[2]) {\n  let y = x\n  return y\nprint(s(ones([2])))",
            "1: TG0215 index 4 is out of range for 1 item\n2: TG0102 `{` is not closed",
        ),
        // Strings, numbers and operators that are not what was meant.
        ("let f = \"abc\nprint(f)\nlet d = data.load(f)", "1: TG0105 this string is not closed on its line"),
        (
            "print(\"abc)\nlet d = [1][1]",
            "1: TG0105 this string is not closed on its line\n2: TG0215 index 1 is out of range for 1 item",
        ),
        ("let x = zeros([0x10, 3])\nlet y = x @ x", "1: TG0106 `0x10` is not a number"),
        ("let x = 1 < 2 < 3\nif x { print(1) }\nlet y = x + 1", "1: TG0110 comparisons cannot be chained"),
        (
            "let x = ones([2])\nx + 1 = 3\nlet y = x @ ones([3])",
            "2: TG0113 cannot assign to this expression\n3: TG0221 `@` of f32[2] and f32[3]: axis 0 on the left is 2, axis 0 on the right is 3",
        ),
        // A field that was lost.
        (
            "model M(n: int) {\n  param w: f32[n] = +* 3\n  fn forward(x) = x * w\n}\nlet m = M(2)\nprint(m.w, m.v)",
            "2: TG0101 expected an expression, found `+`\n6: TG0202 a model `M` has no field `v`",
        ),
        // A function without its result.
        (
            "fn f(x) {\n  let y = x\n  return y +* 2\n}\nlet z = f(1) + 1\nlet a, b = f(2)",
            "3: TG0101 expected an expression, found `*`",
        ),
        // Types of parameters, also of functions that nothing calls.
        ("fn f(x: f23[2]) = x", "1: TG0201 unknown type `f23`"),
    ];
    let found: Vec<_> = cases.iter().map(|(text, _)| (*text, check(text))).collect();
    let expected: Vec<_> = cases.iter().map(|(text, expected)| (*text, expected.to_string())).collect();
    let differing: Vec<_> = found.iter().zip(&expected).filter(|(a, b)| a != b).collect();
    assert!(differing.is_empty(), "{differing:#?}");
}

#[test]
fn a_step_with_a_lost_statement_is_not_planned() {
    let found = checked(
        "step s(x: f32[2]) {\n  let y = x +* 2\n  let z = x @ ones([3])\n  return y\n}\nprint(s(ones([2])))",
    );
    assert!(found.plans.is_empty());
    assert_eq!(
        check(
            "step s(x: f32[2]) {\n  let y = x +* 2\n  let z = x @ ones([3])\n  return y\n}\nprint(s(ones([2])))"
        ),
        "2: TG0101 expected an expression, found `*`\n3: TG0221 `@` of f32[2] and f32[3]: axis 0 on the left is 2, axis 0 on the right is 3"
    );
}

#[test]
fn a_loop_that_fails_is_reported_once() {
    let cases = [
        (
            "let t = 0.0\nfor i in 0..5 { t += sum(ones([i]) @ ones([i + 1])) }\nprint(t + 1, t.x)",
            "2: TG0221 `@` of f32[0] and f32[1]: axis 0 on the left is 0, axis 0 on the right is 1",
        ),
        (
            "step s(x: f32[4]) {\n  let y = x\n  for i in 0..5 { y = y + ones([i + 7]) }\n  return y @ ones([33])\n}\ns(ones([4]))",
            "3: TG0221 `+` cannot broadcast f32[4] with f32[7]: axis 0 is 4 on the left and 7 on the right",
        ),
        (
            "step s(x: f32[4]) {\n  let y = x\n  for i in 0..5 { y = y[0..4 + i] }\n  return y\n}\ns(ones([4]))",
            "3: TG0221 slice `0..5` of axis 0 is out of bounds: f32[4] has 4 there",
        ),
    ];
    for (text, expected) in cases {
        assert_eq!(check(text), expected, "{text}");
    }
}

#[test]
fn names_in_branches_that_are_not_taken() {
    let cases = [
        (
            "if false {\n  typo(1)\n  for i in 0..3 { zap(i) }\n}\nlet q = if true { 1 } else { unknwn }\nlet l = [a for a in [] if zork]",
            "2: TG0201 unknown name `typo`\n3: TG0201 unknown name `zap`\n5: TG0201 unknown name `unknwn`\n6: TG0201 unknown name `zork`",
        ),
        // Types are not judged there, and what is bound in the branch is known in it.
        ("if false {\n  let y = ones([2]) @ ones([3])\n  fn f(x) = x + y\n  print(f(y))\n}", ""),
        (
            "step s(x: f32[2]) { if false { let y = 1\n return y + zork }\n return x }",
            "2: TG0201 unknown name `zork`",
        ),
    ];
    for (text, expected) in cases {
        assert_eq!(check(text), expected, "{text}");
    }
}

#[test]
fn recursion_that_branches_ends_at_the_limit() {
    let cases = [
        (
            "fn f(n: int) {\n  let a = f(n + 1)\n  let b = f(n + 2)\n  a + b\n}\nprint(f(0))\nlet c = [1][2]",
            6,
        ),
        ("fn f(n: int) = maximum(f(n + 1), f(n + 2)) + f(n + 3)\nprint(f(0))\nlet c = [1][2]", 2),
        ("model M(n: int) {\n  let a = M(n + 1)\n  let b = M(n + 2)\n}\nlet m = M(1)\nlet c = [1][2]", 5),
    ];
    for (text, line) in cases {
        let expected = format!(
            "{line}: TG0234 calls and expressions are nested more than 4000 deep\n{}: TG0215 index 2 is out of range for 1 item",
            line + 1
        );
        assert_eq!(check(text), expected, "{text}");
    }
}
