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

#[test]
fn every_statement_has_its_tree() {
    assert_trees(&[
        ("use nn.layers as l", "(use nn layers as l)"),
        ("const N = 4", "(const N 4)"),
        ("let a, b = f(x)", "(let a b (call f x))"),
        ("let (a, b) = f(x)", "(let a b (call f x))"),
        ("let e: f32[B = 64, 4 * d, ...] = h", "(let e: f32[B = 64, (* 4 d), ...] h)"),
        ("a, b = b, a", "(= a b (tuple b a))"),
        ("m.x[i] = 3", "(= (index (. m x) i) 3)"),
        ("a += 1; b //= 2; c **= 3; d @= e", "(+= a 1)\n(//= b 2)\n(**= c 3)\n(@= d e)"),
        ("mean := 0.9 * mean", "(:= mean (* 0.9 mean))"),
        ("for a, b in zip(xs, ys) { f(a) }", "(for a b (call zip xs ys) {(call f a)})"),
        ("for i in 0.. { i }", "(for i (.. 0 _) {i})"),
        ("return", "(return)"),
        ("return a, b", "(return a b)"),
        (
            "fn f(x: f32[n], p: float = 0.1) -> f32[n] { x }",
            "(fn f (x: f32[n], p: float = 0.1) -> f32[n] {x})",
        ),
        ("fn f(x) = x + 1", "(fn f (x) {(+ x 1)})"),
        ("step s(x) { return x }", "(step s (x) {(return x);})"),
        ("model M { let a = 1 }", "(model M () (let a 1))"),
        (
            "model M(b: bool) { if b { param w: f32[3] = 0.0 } else { state s: i32[] } }",
            "(model M (b: bool) (if b {(param w: f32[3] 0.0);} {(state s: i32[]);}))",
        ),
        (
            "model M() { param frozen w: f32[2]; param frozen: f32 }",
            "(model M () (param frozen w: f32[2]) (param frozen: f32))",
        ),
        (
            "optimizer o(lr, m: float = 0.0) { state v = zeros_like(p)\n v := m * v + g; p := p - lr * v }",
            "(optimizer o (lr, m: float = 0.0) (state v (call zeros_like p)) {(:= v (+ (* m v) g)); (:= p (- p (* lr v)));})",
        ),
        ("minimize l over a, b with o(lr: 0.1)", "(minimize l over a b with (call o lr: 0.1))"),
        ("minimize l\n  over net\n  with o", "(minimize l over net with o)"),
        ("update net with o, g", "(update net o g)"),
        (
            "hook h(bucket, k: int = 4) { state e = zeros_like(bucket)\n e := bucket; bucket }",
            "(hook h (bucket, k: int = 4) (state e (call zeros_like bucket)) {(:= e bucket); bucket})",
        ),
        ("sync g over world", "(sync g over world)"),
        (
            "sync g over 4 with h(k: 2), bucket: 25 MiB",
            "(sync g over 4 with (call h k: 2) bucket: 26214400B)",
        ),
        // A `with` of the next line is a statement of its own.
        ("sync g\n  over world", "(sync g over world)"),
        (
            "{ sync g over world\n with training: false { f(x) } }",
            "{(sync g over world); (with training: false {(call f x)});}",
        ),
        ("ensure peak <= 4 GiB", "(ensure 4294967296B)"),
        ("ensure peak <= a + b in every schedule", "(ensure-every (+ a b))"),
        ("release x, y", "(release x y)"),
        ("shard flat net by Layer over world", "(shard-flat net Layer over world)"),
        ("shard flat by Layer, prefetch: 1", "(shard flat Layer prefetch: 1)"),
        (
            "shard net\n  by [nn.Linear, M]\n  over 4, reduce: sum\nwith compute: bf16 { f(x) }",
            "(shard net (list (. nn Linear) M) over 4 reduce: sum)\n(with compute: bf16 {(call f x)})",
        ),
        ("with training: false, compute: bf16 { f(x) }", "(with training: false compute: bf16 {(call f x)})"),
        ("allow(TG0305, TG0302)", "(allow TG0305 TG0302)"),
    ]);
}

#[test]
fn every_expression_has_its_tree() {
    assert_trees(&[
        ("[]; [1, 2,]; (); (a,); (a, b); (a)", "(list)\n(list 1 2)\n(tuple)\n(tuple a)\n(tuple a b)\na"),
        ("[f(i) for i in 0..n if i > 2]", "(list-for (call f i) i (.. 0 n) (> i 2))"),
        ("[i for i in 0.. if c]", "(list-for i i (.. 0 _) c)"),
        ("if a { b } else if c { d } else { e }", "(if a {b} (if c {d} {e}))"),
        ("if a { b }\nelse { c }", "(if a {b} {c})"),
        ("x + if a { b } else { c } - y", "(- (+ x (if a {b} {c})) y)"),
        ("x * if a { b } else { c } + y", "(+ (* x (if a {b} {c})) y)"),
        ("{ let a = 1; a }", "{(let a 1); a}"),
        ("barrier(a, b)", "(barrier a b)"),
        ("let n = GPT(1) in bf16", "(let n (in (call GPT 1) bf16))"),
        ("m.x[i](y).T", "(. (call (index (. m x) i) y) T)"),
        ("f(x, axis: 0, step: 1, model: m, in: 2)", "(call f x axis: 0 step: 1 model: m in: 2)"),
        (
            "true; false; 1_000; 2.5e-3; 25 MiB; 1.5 GB; 3kB; 0.1 KiB",
            "true\nfalse\n1000\n0.0025\n26214400B\n1500000000B\n3000B\n102B",
        ),
        (
            "x[:, 0..5, ..., new, ::2, a:b:c, 0..10..2, .., 1.., ..2, i, -1]",
            "(index x (slice _ _ _) (slice 0 5 _) ... new (slice _ _ 2) (slice a b c) (slice 0 10 2) (slice _ _ _) \
             (slice 1 _ _) (slice _ 2 _) i (neg 1))",
        ),
    ]);
}

#[test]
fn regions_nest_and_take_options() {
    assert_trees(&[
        (
            "checkpoint(keep: [h], policy: dots) < { let h = f(x); g(h) } > + 1",
            "(+ (checkpoint keep: (list h) policy: dots {(let h (call f x)); (call g h)}) 1)",
        ),
        ("checkpoint<checkpoint<a>>", "(checkpoint {(checkpoint {a})})"),
        ("checkpoint < (a > b) >", "(checkpoint {(> a b)})"),
        ("checkpoint<a>==b", "(== (checkpoint {a}) b)"),
        ("f(checkpoint < a >, checkpoint < b >)", "(call f (checkpoint {a}) (checkpoint {b}))"),
        ("checkpoint(bind: output)\n  < f(\n  x\n ) >", "(checkpoint bind: output {(call f x)})"),
        ("checkpoint < {\n  let h = a\n  h\n} >\nb", "(checkpoint {(let h a); h})\nb"),
    ]);
    for text in
        ["checkpoint < a > b >", "checkpoint < a < b >", "checkpoint < a >= b >", "checkpoint < a == b >"]
    {
        assert_eq!(
            messages(&format!("let y = {text}\nlet z = 1")),
            ["TG0109: a comparison directly inside `checkpoint < … >` needs parentheses"],
            "{text}"
        );
    }
}

#[test]
fn contextual_words_stay_names() {
    let words = "param state optimizer over with minimize update ensure release every allow bf16 frozen as peak \
                 schedule training compute by hook shard flat sync budget new";
    for word in words.split_whitespace() {
        for text in [
            format!("let {word} = {word}({word}: {word}) + {word}[{word}].{word}"),
            format!("{word} = 3\n{word} += {word}\n{word}({word})\n{word}.x\nreturn {word}"),
            format!("fn {word}({word}: int = 3) = {word}\nfor {word} in {word} {{ {word} }}"),
            format!("minimize {word} over {word} with {word}\nupdate {word} with {word}, {word}"),
            format!("model M {{ param {word}: f32[{word}] = {word}; state {word}: f32 = {word} }}"),
            format!("{word}\n{word} - {word}\n\"{{{word}}}\""),
        ] {
            assert_eq!(messages(&text), [""; 0], "{text}");
        }
    }
    // Reserved words are labels and fields all the same.
    let reserved =
        "let fn model step if else for in return use const checkpoint barrier true false and or not";
    for word in reserved.split_whitespace() {
        let text = format!("f({word}: 1, {word}: 2)\nf(\n  {word}: 1,\n  {word}: 2)\nx.{word}");
        assert_eq!(messages(&text), [""; 0], "{text}");
        assert_ne!(messages(&format!("let {word} = 1")), [""; 0], "{word}");
    }
}

#[test]
fn newlines_end_statements_only_where_one_can_end() {
    assert_trees(&[
        ("let a = f(\n  b,\n  c\n)\nd", "(let a (call f b c))\nd"),
        ("let a =\n  b +\n  c *\n  d", "(let a (+ b (* c d)))"),
        ("a\n- b", "a\n(neg b)"),
        ("\n\n;;a;\n;b\n\n", "a\nb"),
        ("f({\n a\n b\n}, c)", "(call f {a; b} c)"),
    ]);
    assert_eq!(
        tree("let a = 1\r\nlet b = 2\rlet c = 3\x0c\n\tlet d = 4"),
        "(let a 1)\n(let b 2)\n(let c 3)\n(let d 4)"
    );
    assert_eq!(tree("\u{feff}let a = 1"), "(let a 1)");
}

#[test]
fn strings_hold_expressions() {
    assert_trees(&[
        (
            r#""a {x:.3f} {{b}} {f(a: 1):e}{y[1:2]}""#,
            r#"(str "a " x:.3f " {b} " (call f a: 1):e (index y (slice 1 2 _)))"#,
        ),
        (r#""\n\t\\\"\{\u{e9}""#, r#"(str "\n\t\\\"{é")"#),
        (r#""""#, r#"(str "")"#),
    ]);
    let (ast, errors) = parse("é = \"日本 {größe + 1:x}\"");
    assert!(errors.is_empty(), "{errors:?}");
    let name = ast.exprs.iter().find(|e| matches!(&e.kind, ExprKind::Name(n) if &**n == "größe"));
    assert_eq!(name.map(|e| (e.span.start, e.span.end)), Some((14, 21)));
    for (text, expected) in [
        (r#""{}""#, "TG0112: this `{ }` is empty"),
        (r#""{a""#, "TG0112: `{` is not closed in this string"),
        (r#""a}""#, "TG0112: `}` closes nothing"),
        (r#""\q""#, "TG0107: `\\q` is not an escape"),
        (r#""{a b}""#, "TG0101: expected an operator, found `b`"),
        (r#""{1 +}""#, "TG0101: expected an expression, found the end of the `{ }`"),
        (r#""abc"#, "TG0105: this string is not closed on its line"),
    ] {
        assert_eq!(messages(text), [expected], "{text}");
    }
}

#[test]
fn documentation_belongs_to_what_follows() {
    let text = "## One\n## more\nfn f(\n  ## the input\n  x) = x\n\n## lost\n\nmodel M {\n  ## weight\n  param w: f32\n}\n### line\nlet a = 1 ## not this\nlet b = 2\n";
    let (ast, errors) = parse(text);
    assert!(errors.is_empty(), "{errors:?}");
    let docs: Vec<_> = ast.body.iter().map(|&s| ast.stmt(s).docs.as_deref()).collect();
    assert_eq!(docs, [Some("One\nmore"), None, None, None]);
    let StmtKind::Fn(f) = &ast.stmt(ast.body[0]).kind else { panic!("a function") };
    assert_eq!(f.docs.as_deref(), Some("One\nmore"));
    assert_eq!(f.params[0].docs.as_deref(), Some("the input"));
    let StmtKind::Model(m) = &ast.stmt(ast.body[1]).kind else { panic!("a model") };
    let StmtKind::Param(w) = &ast.stmt(m.body[0]).kind else { panic!("a parameter") };
    assert_eq!(w.docs.as_deref(), Some("weight"));
}

#[test]
fn spans_are_those_of_the_text() {
    let text = "# ünïcödé\r\nlet größe = (a + b) * f(x, y: 日本)[0]\n";
    let (ast, errors) = parse(text);
    assert!(errors.is_empty(), "{errors:?}");
    let slices: Vec<&str> =
        ast.exprs.iter().map(|e| &text[e.span.start as usize..e.span.end as usize]).collect();
    assert_eq!(
        slices,
        [
            "a",
            "b",
            "a + b",
            "f",
            "x",
            "日本",
            "f(x, y: 日本)",
            "0",
            "f(x, y: 日本)[0]",
            "(a + b) * f(x, y: 日本)[0]"
        ]
    );
    let stmt = ast.stmt(ast.body[0]);
    assert_eq!(
        &text[stmt.span.start as usize..stmt.span.end as usize],
        "let größe = (a + b) * f(x, y: 日本)[0]"
    );
    let StmtKind::Let { names, .. } = &stmt.kind else { panic!("a let") };
    assert_eq!(&text[names[0].span.start as usize..names[0].span.end as usize], "größe");
    let ops = ast.exprs.iter().filter_map(|e| match e.kind {
        ExprKind::Binary { op_span, .. } => Some(&text[op_span.start as usize..op_span.end as usize]),
        _ => None,
    });
    assert_eq!(ops.collect::<Vec<_>>(), ["+", "*"]);
}

#[test]
fn all_errors_of_a_file_are_found() {
    let text = "let x = f(a b, c)\nlet y = +\nlet z = 2 3\nlet w = 1)\nfn f(x y) { let a = = 1\n  return a }\nlet v = 1\n";
    let (ast, errors) = parse(text);
    let lines: Vec<usize> =
        errors.iter().map(|e| text[..e.primary.span.start as usize].matches('\n').count() + 1).collect();
    assert_eq!(lines, [1, 2, 3, 4, 5, 5], "{errors:#?}");
    assert_eq!(
        syntax::s_expression(&ast),
        "(let x (call f <error> c))\n<error>\n<error>\n(let w 1)\n(fn f (x = <error>) {<error>; (return a);})\n(let v 1)\n"
    );
}

#[test]
fn unclosed_brackets_do_not_swallow_the_file() {
    let text = "let x = checkpoint < a\nlet y = f(a,\n  b\nlet z = [1, 2\nfn f(x) { let a = (1\n  return a\n}\nlet q = 3";
    let (ast, errors) = parse(text);
    assert_eq!(
        syntax::s_expression(&ast),
        "(let x (checkpoint {<error>}))\n(let y (call f a <error>))\n(let z (list 1 <error>))\n(fn f (x) {(let a <error>); (return a);})\n(let q 3)\n"
    );
    let found: Vec<_> = errors.iter().map(|e| e.message.as_str()).collect();
    assert_eq!(
        found,
        ["`checkpoint <` is not closed", "`(` is not closed", "`[` is not closed", "`(` is not closed"]
    );
    let first = &errors[0];
    assert_eq!((first.primary.span.start, first.primary.span.end), (19, 20));
    assert_eq!(first.secondary[0].text, "`>` expected before this");
    assert_eq!(first.secondary[0].span.start, 23);
    assert_eq!(messages("fn f() {\n  a(1, 2\n"), ["TG0102: `(` and `{` are not closed"]);
    assert_eq!(messages("let a = (1]\nlet b = 2"), ["TG0103: `]` does not close `(`"]);
    assert_eq!(messages("}\nlet b = 2"), ["TG0103: `}` closes nothing that is open"]);
}

#[test]
fn messages_say_what_was_expected() {
    for (text, expected) in [
        ("let = 3", "TG0101: expected a name or `(`, found `=`"),
        ("let x", "TG0101: expected `=`, `:` or `,`, found the end of the text"),
        ("f(a b)", "TG0101: expected an operator, `,` or `)` to close the `(` on line 1, found `b`"),
        (
            "\n\nlet a = checkpoint < x y >",
            "TG0101: expected an operator or `>` to close the `checkpoint <` on line 3, found `y`",
        ),
        ("a < b < c", "TG0110: comparisons cannot be chained"),
        ("a + b = c", "TG0113: cannot assign to this expression"),
        ("param w: f32", "TG0114: `param` does not belong here"),
        ("fn f() { state s = 3 }", "TG0114: `state` does not belong here"),
        ("model M { state s = 3 }", "TG0101: the state `s` of a model needs a type"),
        ("ensure peek <= 3 GiB", "TG0101: `peek` cannot be ensured"),
        ("ensure peak <= 3 GiB in each order", "TG0101: expected `every schedule`, found `each order`"),
        ("99999999999999999999", "TG0106: `99999999999999999999` does not fit in 64 bits"),
        ("1e999", "TG0106: `1e999` does not fit in 64 bits"),
        ("99999999 TB", "TG0106: `99999999 TB` is more bytes than 64 bits can count"),
        ("12abc", "TG0106: `12abc` is not a number"),
        ("a $$ b", "TG0104: `$$` has no meaning here"),
        ("a \0", "TG0104: `\\u{0}` has no meaning here"),
        ("def f(x):", "TG0111: `def` is not a word of this language"),
        ("class A", "TG0111: `class` is not a word of this language"),
        ("if a { b }\nelif c { d }", "TG0111: `elif` is not a word of this language"),
        ("while x { y }", "TG0111: `while` is not a word of this language"),
        ("import nn", "TG0111: `import` is not a word of this language"),
        ("var x = 3", "TG0111: `var` is not a word of this language"),
        ("lambda x: x", "TG0111: `lambda` is not a word of this language"),
        ("a && b", "TG0111: `&&` is not an operator"),
        ("!a", "TG0111: `!` is not an operator"),
        ("'abc'", "TG0111: strings stand in double quotes"),
        ("f(axis=0)", "TG0111: named arguments are written with `:`"),
        ("if x = 3 { y }", "TG0101: unexpected `=`"),
        ("for i in 0..3:", "TG0101: unexpected `:`"),
        ("// note", "TG0101: unexpected `//`"),
        ("let a = .5", "TG0101: unexpected `.`"),
        ("let a = 1.", "TG0101: unexpected end of the text"),
    ] {
        assert_eq!(messages(text), [expected], "{text}");
    }
    for word in ["None", "True", "self", "no_grad", "Sequential", "null"] {
        assert!(syntax::word_tip(word).is_some(), "{word}");
    }
    assert_eq!(syntax::word_tip("relu"), None);
}

#[test]
fn a_repl_knows_when_input_is_complete() {
    for text in [
        "a",
        "f(x)",
        "let a = 1",
        "fn f() { a }",
        "if a { b }",
        "checkpoint < a >",
        "\"a\"",
        "",
        "x[1..]",
        "f(a))",
    ] {
        assert!(syntax::is_complete(text), "{text}");
    }
    for text in [
        "f(",
        "f(a,\n",
        "[1, 2",
        "fn f() {",
        "fn f() {\n  a\n",
        "checkpoint <",
        "checkpoint < a",
        "checkpoint",
        "checkpoint(keep: [a])",
        "a +",
        "a +\n",
        "let a =",
        "a and",
        "not",
        "\"abc",
        "minimize loss over net",
        "minimize loss",
        "if a { b } else",
        "a.",
        "f(a, # note",
    ] {
        assert!(!syntax::is_complete(text), "{text}");
    }
    // Nothing that follows can complete these, so they are run and reported.
    assert!(syntax::is_complete("\"abc\ndef\""));
    assert!(syntax::is_complete("let a = f(\nlet b = 1"));
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

/// Programs with many forms, cut everywhere below.
const RICH: &str = r#"## Documentation
optimizer sgd(lr, momentum: float = 0.0) {
  state v = zeros_like(p)
  if momentum != 0.0 { v := momentum * v + g; p := p - lr * v } else { p := p - lr * g }
}
model Größe(n: int, bias: bool = true) {
  param frozen w: f32[n, 4 * n] = init.kaiming()
  if bias { param b: f32[n] } # comment
  state mean: f32[...] = 0.0
  fn forward(x) = if bias { x @ w.T + b } else { -x ** 2 }
}
step train(x: f32[B = 64, 784], y: i32[B]) -> f32[] {
  let h, z = checkpoint(keep: [h], policy: dots) < { let h = f(x); checkpoint<g(h, axis: 0)> } >
  minimize loss over net, head
    with optim.sgd(lr: 1e-3)
  update net with opt, grads
  with training: false { release h, z }
  ensure peak <= 1.5 GiB in every schedule
  allow(TG0305)
  a, b = barrier(x[:, 0..5, ..., -1], [i for i in 0.. if i >= 3])
  print("日本 {x[1:2]:.3f} {{}} \u{e9}", (a, b), ())
  return a, b
}
use nn.layers as l
"#;

#[test]
fn every_prefix_parses() {
    for program in [RICH, CASE_1] {
        assert_eq!(messages(program), [""; 0]);
        for (at, _) in program.char_indices() {
            let prefix = &program[..at];
            let (ast, errors) = parse(prefix);
            assert!(errors.iter().all(|e| e.primary.span.end as usize <= at), "{prefix}");
            assert!(errors.len() < 12, "{prefix}\n{errors:#?}");
            // Whatever is left is a tree that can be walked.
            syntax::s_expression(&ast);
            syntax::is_complete(prefix);
        }
    }
}

#[test]
fn a_missing_token_never_panics() {
    let cuts: Vec<usize> = RICH.char_indices().map(|(at, _)| at).collect();
    for pair in cuts.windows(3) {
        let text = format!("{}{}", &RICH[..pair[0]], &RICH[pair[2]..]);
        let (_, errors) = parse(&text);
        assert!(errors.len() < 20, "{text}\n{errors:#?}");
    }
}

#[test]
fn texts_made_to_break_parsers_are_read_fast() {
    let n = 100_000;
    let cases = [
        ("(".repeat(n), 1),
        (")".repeat(n), 1),
        ("-".repeat(n), 1),
        ("not ".repeat(n) + "a", 1),
        ("(".repeat(n) + "a" + &")".repeat(n), 1),
        ("[".repeat(n) + &"]".repeat(n), 1),
        ("{".repeat(n), 1),
        ("checkpoint<".repeat(n) + "a" + &">".repeat(n), 1),
        ("if a {".repeat(n), 1),
        ("if ".repeat(n), 1),
        ("if a { b } else ".repeat(n), 1),
        ("f(".repeat(n), 1),
        ("a ** ".repeat(n) + "a", 1),
        ("a + ".repeat(2 * n) + "a", 1),
        ("a.".repeat(n) + "b", 1),
        ("a".to_owned() + &"(b)".repeat(n), 1),
        ("1 ".repeat(2 * n), 1),
        ("1 2\n".repeat(n), 1),
        ("(1 2) ".repeat(n), 1),
        ("minimize (".repeat(n), 1),
        ("a < ".repeat(n) + "a", 1),
        ("\"{a b}\" ".repeat(n), 1),
        ("\"".to_owned() + &"{a b}".repeat(n) + "\"", 1),
        ("\"".to_owned() + &"\\u{".repeat(n) + "\"", 1),
        ("'\\".repeat(n), 1),
        ("$ ".repeat(n), 1),
        ("a, ".repeat(n), 1),
        ("a\n".repeat(2 * n), 0),
        ("a; ".repeat(2 * n), 0),
        ("[".to_owned() + &"1, ".repeat(2 * n) + "]", 0),
        ("a".repeat(10 * n), 0),
        (" ".repeat(10 * n), 0),
        ("\n".repeat(10 * n), 0),
        ("#".repeat(10 * n), 0),
        ("let a = -a + -b ** -c * -d\n".repeat(n), 0),
        ("let a = ".to_owned() + &"-b + ".repeat(900) + "c", 0),
    ];
    for (text, least) in cases {
        let shown: String = text.chars().take(24).collect();
        let start = Instant::now();
        let (ast, errors) = parse(&text);
        syntax::s_expression(&ast);
        drop(ast);
        assert!(errors.len() >= least && errors.len() <= 200, "{shown}: {}", errors.len());
        assert!(least > 0 || errors.is_empty(), "{shown}: {errors:?}");
        assert!(start.elapsed() < Duration::from_secs(10), "{shown}: {:?}", start.elapsed());
    }
}

#[test]
fn bytes_without_sense_are_reported() {
    // A fixed sequence of pseudo-random words made of what the language is made of.
    let words = [
        "let ",
        "fn ",
        "(",
        ")",
        "[",
        "]",
        "{",
        "}",
        "<",
        ">",
        "checkpoint",
        "=",
        ":=",
        "..",
        ",",
        "\n",
        "a",
        "1",
        "\"",
        "if ",
        "else ",
        "minimize ",
        "over ",
        "with ",
        ":",
        "in ",
        "for ",
        ";",
        "é",
        "\0",
        "4 GiB",
        "-",
        "**",
        "\\",
        "## d\n",
        "\r",
        ".",
        "@",
        "model ",
    ];
    let mut seed = 1u64;
    for _ in 0..3000 {
        let mut text = String::new();
        for _ in 0..40 {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            text.push_str(words[(seed >> 33) as usize % words.len()]);
        }
        let (ast, errors) = parse(&text);
        syntax::s_expression(&ast);
        syntax::is_complete(&text);
        for error in errors {
            assert!(error.primary.span.end as usize <= text.len(), "{text:?}");
            assert!(text.is_char_boundary(error.primary.span.start as usize), "{text:?}");
        }
    }
}

#[test]
fn habits_get_a_tip() {
    for (text, message, help) in [
        (
            "fn forward(self, x) = x",
            "TG0111: functions of a model have no `self`",
            "leave it out: the fields of a model are used by their bare names",
        ),
        ("let x = 3 // the value", "TG0111: `//` starts no comment", "comments start with `#`"),
        (
            "let s = f\"x {1}\"",
            "TG0101: unexpected `\"x {1}\"`",
            "every string takes values in braces: write `\"…{x}…\"` without the `f`",
        ),
        (
            "model M() {\n  param v = ones()\n}",
            "TG0101: unexpected `=`",
            "a type comes first: write `param v: f32[3] = …`",
        ),
        ("fn f(x)\n{\n  x\n}", "TG0101: unexpected end of the line", "the `{` stands on the same line"),
        ("if a\n{\n  x\n}", "TG0101: unexpected end of the line", "the `{` stands on the same line"),
        (
            "step t() {\n  minimize c over net\n}",
            "TG0101: `minimize` without `with`",
            "say with which optimizer: `minimize loss over net with optim.sgd(lr: 0.1)`",
        ),
        (
            "let y = checkpoint(net(x))\nlet z = 1",
            "TG0101: a `checkpoint` without its region",
            "write `checkpoint < net(x) >`",
        ),
        (
            "def f(x):\n  return x",
            "TG0111: `def` is not a word of this language",
            "functions are written `fn name(x) { … }`",
        ),
        (
            "import numpy as np",
            "TG0111: `import` is not a word of this language",
            "modules are bound by `use nn`",
        ),
        (
            "while a { f() }",
            "TG0111: `while` is not a word of this language",
            "loops are written `for i in 0..n { … }`",
        ),
        ("if a { 1 } elif b { 2 }", "TG0111: `elif` is not a word of this language", "write `else if`"),
        (
            "let mut q = 3",
            "TG0111: `mut` is not a word of this language",
            "names are bound by `let x = …`, and given another value by `x = …`",
        ),
        ("let f = x => x", "TG0101: unexpected `=`", "a short function is written `fn name(x) = …`"),
        ("i++", "TG0101: unexpected `+`", "write `i += 1`"),
        ("let a = b && c", "TG0111: `&&` is not an operator", "write `and`"),
        ("let a = b || c", "TG0111: `||` is not an operator", "write `or`"),
        ("let a = !c", "TG0111: `!` is not an operator", "write `not`"),
        ("let s = 'abc'", "TG0111: strings stand in double quotes", "write `\"…\"` instead of `'…'`"),
        ("let a = 1 /* one */", "TG0111: `/*` starts no comment", "comments start with `#`, on each line"),
        ("// a comment\nlet a = 1", "TG0101: unexpected `//`", "comments start with `#`"),
        (
            "fn f(x, **options) = x",
            "TG0101: unexpected `**`",
            "there is no `*args` or `**kwargs`: parameters and arguments are written out; a list is one argument",
        ),
        (
            "f(*xs)",
            "TG0101: unexpected `*`",
            "there is no `*args` or `**kwargs`: parameters and arguments are written out; a list is one argument",
        ),
        (
            "let d = {\"a\": 1}",
            "TG0101: unexpected `:`",
            "braces hold statements: there are no dictionaries; use a list, or a model with fields",
        ),
        ("for (i = 0; i < 3) { f(i) }", "TG0101: unexpected `=`", "loops are written `for i in 0..n { … }`"),
        ("let y = x as f32", "TG0101: unexpected `as`", "casts are calls: `f32(x)`"),
        (
            "assert a == 1",
            "TG0101: unexpected `a`",
            "`assert` is a function: write `assert(condition, \"message\")`",
        ),
        ("print x", "TG0101: unexpected `x`", "`print` is a function: write `print(x)`"),
        (
            "let a = b if c else d",
            "TG0101: unexpected `if`",
            "a choice is written `if condition { a } else { b }`",
        ),
        (
            "let a = lambda x: x",
            "TG0111: `lambda` is not a word of this language",
            "there are no nameless functions: write `fn name(x) = …` above and pass `name`",
        ),
    ] {
        let (_, diagnostics) = syntax::parse(FileId(0), text);
        let first = diagnostics.first().unwrap();
        assert_eq!(format!("{}: {}", first.code.0, first.message), message, "{text}");
        assert_eq!(first.help, [help], "{text}");
    }
    // What stands below a `def` belongs to it, and a comment is passed over, however long it is.
    let text = "def f(x):\n  y = x + )\n  return y\n/* let a = (\n */\nlet b = 1";
    let (ast, diagnostics) = syntax::parse(FileId(0), text);
    let found: Vec<_> = diagnostics.iter().map(|d| d.message.as_str()).collect();
    assert_eq!(
        found,
        ["`def` is not a word of this language", "`)` closes nothing that is open", "`/*` starts no comment"]
    );
    assert_eq!(ast.body.len(), 2, "{}", syntax::s_expression(&ast));
    let (_, diagnostics) = syntax::parse(FileId(0), "f(kernel=3)");
    assert!(diagnostics[0].help.is_empty());
    assert_eq!(diagnostics[0].fixes[0].title, "write `kernel: …`");
}
