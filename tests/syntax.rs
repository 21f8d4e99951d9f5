//! The parser: trees, precedence, recovery, and texts made to break it.

use std::time::{Duration, Instant};

use tg::{
    diagnostic::Diagnostic,
    source::FileId,
    syntax::{
        self,
        ast::{Ast, ExprKind, StmtKind},
    },
};

fn parse(text: &str) -> (Ast, Vec<Diagnostic>) {
    syntax::parse(FileId(0), text)
}

/// The tree of a text without errors, without the last newline.
#[track_caller]
fn tree(text: &str) -> String {
    let (ast, errors) = parse(text);
    assert!(errors.is_empty(), "{text}\n{errors:#?}");
    syntax::s_expression(&ast).trim_end().to_owned()
}

/// The messages of a text.
fn messages(text: &str) -> Vec<String> {
    parse(text).1.into_iter().map(|d| format!("{}: {}", d.code.0, d.message)).collect()
}

#[track_caller]
fn assert_trees(cases: &[(&str, &str)]) {
    for (text, expected) in cases {
        assert_eq!(tree(text), *expected, "{text}");
    }
}

#[test]
fn operators_bind_as_in_python() {
    assert_trees(&[
        ("a + b * c", "(+ a (* b c))"),
        ("a - b - c", "(- (- a b) c)"),
        ("a ** b ** c", "(** a (** b c))"),
        ("-a ** 2", "(neg (** a 2))"),
        ("2 ** -1", "(** 2 (neg 1))"),
        ("a @ b / c // d % e", "(% (// (/ (@ a b) c) d) e)"),
        ("not a == b and c or d", "(or (and (not (== a b)) c) d)"),
        ("a + 1 < b * 2", "(< (+ a 1) (* b 2))"),
        ("(a < b) == c", "(== (< a b) c)"),
        ("0..n + 1", "(.. 0 (+ n 1))"),
        ("x.T @ w[0](y).z", "(@ (. x T) (. (call (index w 0) y) z))"),
        ("a - -b", "(- a (neg b))"),
    ]);
}

/// The programs of the design, and one of each form.
const CASE_1: &str = r#"# blocks.tg
use nn
use optim

model Block(c: int) {
  let conv1 = nn.Conv2d(c, c, kernel: 1)
  let conv2 = nn.Conv2d(c, c, kernel: 1)
  fn forward(x) = relu(conv2(relu(conv1(x))))
}

model Net(depth: int, c: int) {
  let blocks = [Block(c) for i in 0..depth]
  fn forward(x) {
    let y = blocks[0](x)
    for b in blocks[1..] {
      y = checkpoint < b(y) >
    }
    y
  }
}

let net = Net(64, 1024)

step train(x: f32[64, 1024, 14, 14]) {
  let loss = sum(net(x))
  minimize loss over net with optim.sgd(lr: 0.0)
  ensure peak <= 3850 MiB
  ensure peak <= 3850 MiB in every schedule
  return loss
}

for i in progress(0..200) {
  let loss = train(zeros([64, 1024, 14, 14]))
  print("step {i}: loss {loss}")
}
"#;

#[test]
fn case_1_parses() {
    let expected = r#"(use nn)
(use optim)
(model Block (c: int) (let conv1 (call (. nn Conv2d) c c kernel: 1)) (let conv2 (call (. nn Conv2d) c c kernel: 1)) (fn forward (x) {(call relu (call conv2 (call relu (call conv1 x))))}))
(model Net (depth: int, c: int) (let blocks (list-for (call Block c) i (.. 0 depth))) (fn forward (x) {(let y (call (index blocks 0) x)); (for b (index blocks (slice 1 _ _)) {(= y (checkpoint {(call b y)}));}); y}))
(let net (call Net 64 1024))
(step train (x: f32[64, 1024, 14, 14]) {(let loss (call sum (call net x))); (minimize loss over net with (call (. optim sgd) lr: 0.0)); (ensure 4037017600B); (ensure-every 4037017600B); (return loss);})
(for i (call progress (.. 0 200)) {(let loss (call train (call zeros (list 64 1024 14 14)))); (call print (str "step " i ": loss " loss))})"#;
    assert_eq!(tree(CASE_1), expected);
}
