//! Messages as people and editors get them: one fault is one message, faults in modules carry the
//! module's name and are mended there, and every format is what it says.

#[path = "support/folder.rs"]
mod folder;

use folder::Folder;
use serde_json::Value;
use tg::{
    diagnose,
    diagnostic::Diagnostic,
    edits,
    engine::{Checked, CompileOptions, Engine, Source},
    report::{self, Format, Style},
};

fn check(text: &str) -> Checked {
    Engine::new().check(Source::text("a.tg", text), &CompileOptions::default())
}

fn messages(checked: &Checked) -> Vec<String> {
    checked.diagnostics.iter().map(|d| format!("{} {}", d.code.0, d.message)).collect()
}

fn human(text: &str) -> String {
    let checked = check(text);
    report::diagnostics(&checked.diagnostics, &checked.sources, Format::Human, Style::PLAIN)
}

/// The only message about a program.
fn only(text: &str) -> Diagnostic {
    let checked = check(text);
    let [only] = checked.diagnostics.as_slice() else { panic!("{text}\n{:#?}", messages(&checked)) };
    only.clone()
}

// ---- One fault, one message

#[test]
fn a_wrong_name_in_twenty_lines_is_one_message() {
    let mut text = "step f(x: f32[4]) {\n".to_owned();
    for k in 0..20 {
        text += &format!("  let y{k} = exp(xx) + {k}.0\n");
    }
    text += "  return y0\n}\n";
    let error = only(&text);
    assert_eq!(error.message, "unknown name `xx`");
    // Editors get all places, people the first few.
    assert_eq!(error.secondary.iter().filter(|l| l.is_again()).count(), 19);
    let human = human(&text);
    assert_eq!(human.matches("and here").count(), 3, "{human}");
    assert!(human.contains("note: the same on 16 more lines, the first of them 6"), "{human}");
}

#[test]
fn a_missing_use_is_one_message() {
    let error = only(
        "use optim\nmodel Net() {\n  let a = nn.Linear(4, 4)\n  let b = nn.Linear(4, 4)\n  fn forward(x) = nn.relu(b(a(x)))\n}\nlet net = Net()\nstep f(x: f32[2, 4]) {\n  let l = mean(net(x))\n  minimize l over net with optim.sgd(lr: 0.1)\n  return l\n}\n",
    );
    assert_eq!(
        (error.message.as_str(), error.help.as_slice()),
        ("unknown name `nn`", ["write `use nn` at the top of the file".to_owned()].as_slice())
    );
}

/// A name of the library without its module, or nearly one.
#[test]
fn names_of_the_library_are_told_with_their_module() {
    let step =
        "step f(x: f32[4]) {\n  let g = [x]\n  sync g over world with fp16_compres\n  return g[0]\n}\n";
    let name = "unknown name `fp16_compres`";
    let error = only(step);
    let help = "did you mean `hooks.fp16_compress`? write `use hooks` at the top of the file".to_owned();
    assert_eq!((error.message.as_str(), error.help.as_slice()), (name, [help].as_slice()));
    let error = only(&format!("use hooks\n{step}"));
    let help = "did you mean `hooks.fp16_compress`?".to_owned();
    assert_eq!((error.message.as_str(), error.help.as_slice()), (name, [help].as_slice()));
    // A short word that is nearly a name of the library is something else.
    assert!(only("let x = ones([2]) + sdg\n").help.is_empty());
}

#[test]
fn brackets_that_are_open_together_are_one_message() {
    let error =
        only("step f(x: f32[4]) {\n  let h = checkpoint < tanh(exp(x\n  let g = h + 1\n  return g\n}\n");
    assert_eq!(error.message, "`(`, `(` and `checkpoint <` are not closed");
    assert_eq!(error.secondary.last().map(|l| l.text.as_str()), Some("`) ) >` expected before this"));
    let error = only("let w = [1, 2\nprint(w)\n");
    assert_eq!(error.message, "`[` is not closed");
    assert_eq!(error.secondary[0].text, "`]` is missing when the text ends");
}

#[test]
fn a_wrong_shape_in_a_model_used_ten_times_is_one_message() {
    let model = "use nn\nmodel Block(d: int) {\n  let fc = nn.Linear(d, d)\n  param w: f32[d, d + 1]\n  fn forward(x) = fc(x) @ w + x\n}\nlet net = Block(8)\n";
    let mut text = model.to_owned();
    for k in 1..11 {
        text += &format!("step f{k}(x: f32[{k}, 8]) {{ return net(x) }}\n");
    }
    let error = only(&text);
    assert_eq!(
        error.message,
        "`+` cannot broadcast f32[1, 9] with f32[1, 8]: axis 1 is 9 on the left and 8 on the right"
    );
    assert_eq!(error.notes, ["9 more calls lead to the same, from lines 9, 10, 11, 12, 13, 14, 15, 16, 17"]);
}

#[test]
fn what_follows_from_a_reported_fault_is_not_reported() {
    // The names of functions and classes of another language are known to be lost.
    assert_eq!(only("def f(x):\n  return x + 1\n\nprint(f(2))\n").code.0, "TG0111");
    assert_eq!(only("class Net(Module):\n    pass\nlet net = Net()\n").code.0, "TG0111");
    // A model that is made in a step is reported once, and not each of its parameters.
    let error = only("use nn\nstep f(x: f32[4, 8]) {\n  let net = nn.Linear(8, 8)\n  return net(x)\n}\n");
    assert_eq!(error.message, "a model with parameters is made inside a step");
    // Of the errors on one line of text, the first.
    let error = only("step f(x: f32(3, 4), y: f32[2]) {\n  return x\n}\n");
    assert_eq!(error.help, ["sizes stand in square brackets: `f32[2, 3]`"]);
}

#[test]
fn all_that_is_wrong_with_a_statement_is_told_at_once() {
    let text = "use nn
use optim
let net = nn.Linear(4, 4)
fn two(a, b) = a + b
step a(x: f32[2, 4], y: f32[3]) {
  let l = mean(x + y) + mean(net(y)) * one
  return l, other, x @ y
}
step b(x: f32[2, 4]) {
  minimize mean(net(x)) + more over net with optim.sgd(lrr: 0.1)
  return missing(x[0..low, high], 1 / 2)
}
step c(x: f32[2, 4]) { return where(x > aa, bb, max(x, axis: 7)) }
let w = two(uu, vv) + two(1, 2, 3, d: 4)
let m = nn.Linear(4, wide, biass: true)
let o = optim.adam(nets, lr: rate)
print(\"{first} {second}\")
";
    let checked = check(text);
    let found: Vec<String> = checked
        .diagnostics
        .iter()
        .map(|d| format!("{} {}", checked.sources.start(d.primary.span).line, d.message))
        .collect();
    assert_eq!(
        found,
        [
            "6 `+` cannot broadcast f32[2, 4] with f32[3]: axis 1 on the left is 4, axis 0 on the right is 3",
            "6 `linear` of f32[3] and f32[4, 4]: the last axis of x is 3, that of w is 4",
            "6 unknown name `one`",
            "7 unknown name `other`",
            "7 `@` of f32[2, 4] and f32[3]: axis 1 on the left is 4, axis 0 on the right is 3",
            "10 unknown name `more`",
            "10 `sgd` has no parameter `lrr`",
            "11 unknown name `missing`",
            "11 unknown name `low`",
            "11 unknown name `high`",
            "11 `/` of the whole numbers `1` and `2`",
            "13 unknown name `aa`",
            "13 unknown name `bb`",
            "13 `max`: axis 7 is out of range for f32[2, 4]",
            "14 unknown name `uu`",
            "14 unknown name `vv`",
            "14 `two` takes 2 arguments, got 3",
            "14 `two` has no parameter `d`",
            "15 unknown name `wide`",
            "15 `Linear` has no parameter `biass`",
            "16 unknown name `nets`",
            "16 unknown name `rate`",
            "17 unknown name `first`",
            "17 unknown name `second`",
        ]
    );
}

#[test]
fn nothing_is_said_of_what_a_failed_value_is_used_for() {
    let error = only(
        "use nn
let x = undefined_name
let y = x + 1
let z = [x, y, 3]
fn f(a) = a * 2
print(z[0] + 1, len(z), z, f(x), f(f(y)), x.shape, x[0], \"{x} is\")
let net = nn.Linear(x, 4)
step s(v: f32[2, 4]) { return net(v) }
let r = s(ones([2, 4]))
for k in z { print(k) }
let t = (x, 1)
let q = if x > 1 { 2 } else { 3 }
let g = f32(x)
print(q, t, g, r)
",
    );
    assert_eq!(error.message, "unknown name `undefined_name`");
}

#[test]
fn a_session_joins_what_belongs_together_like_a_file() {
    let text = "step f(x: f32[4]) {\n  let a = exp(xx)\n  let b = tanh(xx) + xx\n  return a + b, yy\n}\nf(ones([4]))";
    let mut session = Engine::new().session();
    let error = session.eval(text).expect_err("unknown names");
    let found: Vec<&str> = error.diagnostics().iter().map(|d| d.message.as_str()).collect();
    assert_eq!(found, ["unknown name `xx`", "unknown name `yy`"]);
    assert_eq!(error.diagnostics()[0].secondary.iter().filter(|l| l.is_again()).count(), 2);
    assert_eq!(messages(&check(text)), ["TG0201 unknown name `xx`", "TG0201 unknown name `yy`"]);
}

#[test]
fn different_faults_stay_apart() {
    let checked = check("let a = xx + 1\nlet b = yy + 1\nlet c = (1\nlet d = 7 / 2\nlet e = 9 / 2\n");
    let found = messages(&checked);
    assert_eq!(
        found,
        [
            "TG0201 unknown name `xx`",
            "TG0201 unknown name `yy`",
            "TG0102 `(` is not closed",
            "TG0217 `/` of the whole numbers `7` and `2`",
            "TG0217 `/` of the whole numbers `9` and `2`"
        ]
    );
}

#[test]
fn habits_of_other_languages_are_met_with_what_to_write() {
    let cases = [
        (
            "step f(x: f32[4, 8]) {\n  return x.reshape([8, 4])\n}\n",
            "`reshape` is a function: write `reshape(x, …)`",
        ),
        ("step f(x: f32[4]) {\n  return x.relu_()\n}\n", "tensors are values: write `x = relu(x)`"),
        (
            "step f(x: f32[4]) {\n  return x.clone()\n}\n",
            "tensors are values: `x` itself does; `copy(x)` gives it memory of its own",
        ),
        (
            "step f(x: f32[4]) {\n  return sum(x).item()\n}\n",
            "return it: in the script a tensor has a value, `float(x)`",
        ),
        ("let v = torch.cat([ones([2]), ones([2])])\n", "write `concat([a, b], axis: 0)`"),
        ("let v = np.zeros([2])\n", "tensor functions have no prefix: write `zeros(…)`"),
        (
            "with torch.no_grad():\n  let y = 1\n",
            "write `stop_grad(x)`; a step without `minimize`, `update` or `grad` has no backward pass",
        ),
        ("print(\"%d\" % 3)\n", "write values into the text: `\"loss {loss:.3f}\"`"),
        ("x: int = 3\n", "names are bound by `let x = …`, and given another value by `x = …`"),
        (
            "use nn\nuse optim\nlet net = nn.Linear(2, 1)\nstep f(x: f32[4, 2]) {\n  let l = mean(net(x))\n  minimize l with optim.sgd(lr: 0.1)\n  return l\n}\n",
            "say what learns: `minimize loss over net with optim.sgd(lr: 0.1)`",
        ),
        ("step f(x: f32[4]) {\n  let y = checkpoint(x + 1)\n  return y\n}\n", "write `checkpoint < x + 1 >`"),
    ];
    for (text, expected) in cases {
        let checked = check(text);
        let help: Vec<&String> = checked.diagnostics.iter().flat_map(|d| &d.help).collect();
        assert!(help.iter().any(|h| *h == expected), "{text}\n{expected}\n{help:#?}");
    }
}

#[test]
fn a_step_is_not_named_to_those_who_look_at_it() {
    let error = only("step f(x: f32[4, 8]) {\n  return x @ x\n}\n");
    assert!(error.secondary.is_empty(), "{error:?}");
    let error = only("fn g(x) = x @ x\nstep f(x: f32[4, 8]) {\n  return g(x)\n}\n");
    let texts: Vec<&str> = error.secondary.iter().map(|l| l.text.as_str()).collect();
    assert_eq!(texts, ["in this call of `g`", "in the step `f`"]);
}

// ---- Modules beside the program

const LAYERS: &str = "use nn\n\nmodel Net() {\n  let layers = [nn.Linear(256, 256) for i in 0..4]\n  fn forward(x) {\n    for l in layers {\n      x = nn.dropout(relu(l(x)), 0.1)\n    }\n    x\n  }\n}\n";
const TRAIN: &str = "use layers\nuse optim\n\nlet net = layers.Net()\n\nstep train(x: f32[4096, 256]) {\n  let cost = sum(net(x))\n  minimize cost over net with optim.sgd(lr: 0.1)\n  return cost\n}\n";

fn two_files(name: &str) -> Folder {
    let folder = Folder::new(name);
    folder.file("layers.tg", LAYERS);
    folder.file("train.tg", TRAIN);
    folder
}

fn peak(folder: &Folder) -> u64 {
    let plan = folder.tg(&["plan", "--json", "--no-fixes", "train.tg"]);
    let value: Value = serde_json::from_str(&plan.out).unwrap();
    value["steps"][0]["peak_bytes"].as_u64().unwrap()
}

#[test]
fn findings_in_a_module_are_named_and_mended_there() {
    let folder = two_files("module");
    let before = peak(&folder);
    let human = folder.tg(&["check", "train.tg"]).out;
    assert!(human.contains("─[ layers.tg:7:11 ]") || human.contains("[ layers.tg:7:11 ]"), "{human}");
    let short = folder.tg(&["check", "--message-format", "short", "train.tg"]).out;
    assert!(short.lines().any(|l| l.starts_with("layers.tg:7:11: warning[TG0304]: ")), "{short}");
    let json = folder.tg(&["check", "--json", "train.tg"]).out;
    let finding: Value = serde_json::from_str(json.lines().find(|l| l.contains("TG0304")).unwrap()).unwrap();
    let edit = &finding["fixes"][0]["edits"][0];
    assert_eq!((&edit["file"], &edit["line"]), (&Value::from("layers.tg"), &Value::from(7)));
    let promised = finding["peak_after"].as_u64().unwrap();
    assert!(promised < before);
    // A dry run shows the module's difference and writes nothing.
    let dry = folder.tg(&["fix", "--dry-run", "train.tg"]);
    assert!(dry.out.starts_with("--- layers.tg\n+++ layers.tg\n"), "{}", dry.out);
    assert_eq!(folder.text("layers.tg"), LAYERS);
    let fixed = folder.tg(&["fix", "train.tg"]);
    assert_eq!(fixed.code, Some(0), "{}", fixed.err);
    assert!(fixed.err.starts_with("fixed: ") && fixed.err.contains("\n  layers.tg:7:\n"), "{}", fixed.err);
    assert_eq!(folder.text("train.tg"), TRAIN);
    assert!(folder.text("layers.tg").contains("checkpoint"), "{}", folder.text("layers.tg"));
    let after = peak(&folder);
    assert!(fixed.err.contains(&format!("({after} bytes)")) && after <= promised, "{} {promised}", fixed.err);
    assert_eq!(folder.tg(&["fix", "train.tg"]).out, "nothing to fix: train.tg\n");
}

#[test]
fn a_program_from_standard_input_changes_no_file() {
    let folder = two_files("stdin");
    let fixed = folder.tg_with_input(&["fix", "-"], TRAIN);
    assert_eq!((fixed.code, fixed.out.as_str()), (Some(0), "nothing to fix: <stdin>\n"));
    assert_eq!(folder.text("layers.tg"), LAYERS);
}

#[test]
fn a_module_that_cannot_be_written_leaves_the_program_as_it_was() {
    let folder = two_files("locked");
    let path = folder.0.join("layers.tg");
    let mut permissions = std::fs::metadata(&path).unwrap().permissions();
    permissions.set_readonly(true);
    std::fs::set_permissions(&path, permissions).unwrap();
    let fixed = folder.tg(&["fix", "train.tg"]);
    assert_eq!(fixed.code, Some(1));
    assert!(fixed.err.contains("cannot write `layers.tg`"), "{}", fixed.err);
    assert_eq!((folder.text("layers.tg").as_str(), folder.text("train.tg").as_str()), (LAYERS, TRAIN));
}

#[test]
fn texts_of_a_host_stand_for_files_of_modules() {
    let options = CompileOptions {
        memory: Some(diagnose::Options { fixes: true, all: true, library_frames: false }),
        ..CompileOptions::default()
    };
    let source = Source::text("train.tg", TRAIN).with_module("layers", LAYERS);
    let checked = Engine::new().check(source.clone(), &options);
    let found = checked.diagnostics.iter().find(|d| d.code.0 == "TG0304").expect("the masks are kept");
    let texts = edits::apply_all(&checked.sources, &found.fixes[0].edits).unwrap();
    let [(file, text)] = texts.as_slice() else { panic!("{texts:?}") };
    assert_eq!(checked.sources.get(*file).map(|f| f.name.as_str()), Some("layers.tg"));
    let after = Engine::new().check(source.with_module("layers", text.as_str()), &CompileOptions::default());
    assert_eq!(Some(after.plans[0].peak_bytes()), found.savings().map(|s| s.peak_after));
    // Sessions run the same text.
    let program = Engine::new()
        .compile(Source::text("m.tg", "use m\nprint(m.X)\n").with_module("m", "const X = 3\n"))
        .unwrap();
    let mut session = program.session().unwrap();
    session.run().unwrap();
}

// ---- allow

#[test]
fn allow_covers_what_follows_wherever_it_stands() {
    let allowed = |layers: &str| {
        let source = Source::text("train.tg", TRAIN).with_module("layers", layers);
        let options = CompileOptions {
            memory: Some(diagnose::Options { fixes: true, all: true, library_frames: false }),
            ..CompileOptions::default()
        };
        let checked = Engine::new().check(source, &options);
        !checked.diagnostics.iter().any(|d| d.code.0 == "TG0304")
    };
    assert!(!allowed(LAYERS));
    // On the statement in a loop of a module; on the whole module; on another statement.
    assert!(allowed(&LAYERS.replace("      x = nn", "      allow(TG0304)\n      x = nn")));
    assert!(allowed(&format!("allow(TG0304)\n{LAYERS}")));
    assert!(!allowed(&LAYERS.replace("  let layers", "  allow(TG0304)\n  let layers")));
    // The result of a body is no statement, and covered all the same.
    let result = "use nn\n\nmodel Net() {\n  let l = nn.Linear(256, 256)\n  fn forward(x) {\n    nn.dropout(relu(l(nn.dropout(relu(l(x)), 0.1))), 0.1)\n  }\n}\n";
    assert!(!allowed(result));
    assert!(allowed(
        &result.replace("    nn.dropout(relu(l(nn", "    allow(TG0304)\n    nn.dropout(relu(l(nn")
    ));
    // Another code covers nothing, and errors stay.
    assert!(!allowed(&LAYERS.replace("      x = nn", "      allow(TG0305)\n      x = nn")));
    assert_eq!(only("allow(TG0201)\nlet x = y\n").code.0, "TG0201");
}

// ---- Formats

#[test]
fn every_line_of_json_is_an_object_and_exit_codes_hold() {
    let folder = Folder::new("json");
    folder.file("syntax.tg", "let x = (1\nlet y = ]\nfor\n");
    folder.file("names.tg", "let a = b\n");
    folder.file("right.tg", "let a = 1\n");
    folder.file("empty.tg", "");
    std::fs::write(folder.0.join("binary.tg"), b"let a = \"\xff\"\n").unwrap();
    std::fs::create_dir(folder.0.join("folder.tg")).unwrap();
    let cases: [(&str, i32, &[&str]); 7] = [
        ("syntax.tg", 1, &["TG0102", "TG0103", "TG0101"]),
        ("names.tg", 1, &["TG0201"]),
        ("right.tg", 0, &[]),
        ("empty.tg", 0, &[]),
        ("binary.tg", 1, &["TG0404"]),
        ("folder.tg", 1, &["TG0403"]),
        ("missing.tg", 1, &["TG0403"]),
    ];
    for (file, code, expected) in cases {
        let ran = folder.tg(&["check", "--json", file]);
        assert_eq!((ran.code, ran.err.as_str()), (Some(code), ""), "{file}");
        let found: Vec<Value> = ran.out.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
        let codes: Vec<&str> = found.iter().map(|v| v["code"].as_str().unwrap()).collect();
        assert_eq!(codes, expected, "{file}");
        // Whatever it is about, the file is named, and what has a line has a column.
        for value in &found {
            assert_eq!(value["file"], file);
            assert_eq!(value["line"].is_u64(), value["column"].is_u64());
        }
        assert_eq!(ran.out, folder.tg(&["check", "--message-format", "json", file]).out);
    }
    // A warning fails where it is asked to, in every format.
    folder.file("list.tg", "step f(x: f32[64, 64]) {\n  return exp(x)\n}\nlet kept = []\nfor i in 0..9 {\n  let out = f(ones([64, 64]))\n  kept += [out]\n}\n");
    for format in [&["--json"][..], &["--message-format", "short"], &[]] {
        let run = |deny: &[&str]| folder.tg(&[&["check", "list.tg"], format, deny].concat()).code;
        assert_eq!((run(&[]), run(&["--deny", "warnings"])), (Some(0), Some(1)), "{format:?}");
    }
    // Several files: one that is wrong is enough.
    let several = folder.tg(&["check", "--json", "right.tg", "missing.tg", "names.tg"]);
    assert_eq!((several.code, several.out.lines().count()), (Some(1), 2));
    assert_eq!(folder.tg(&["check", "--json", "--message-format", "short", "right.tg"]).code, Some(2));
}

// ---- Why a result has a buffer of its own

#[test]
fn plans_say_why_a_result_overwrites_nothing() {
    let folder = Folder::new("beside");
    // The release keeps the second sum behind the first.
    let late = "step f(x: f32[256, 256]) {\n  let a = exp(x)\n  let b = softmax(a)\n  let s = sum(b * x)\n  release b\n  let c = sum(a)\n  return s + c\n}\n";
    folder.file("late.tg", late);
    let why = folder.tg(&["plan", "--why", "3", "late.tg"]).out;
    assert!(why.contains("beside      not in the place of `a`: `sum`, line 6, reads it afterwards"), "{why}");
    let narrow =
        "step g(x: f32[256, 256]) {\n  let a = exp(x)\n  let h = bf16(a)\n  return h, sum(a @ x)\n}\n";
    folder.file("narrow.tg", narrow);
    let ran = folder.tg(&["plan", "--json", "--why", "3", "narrow.tg"]);
    let json: Value = serde_json::from_str(&ran.out).unwrap();
    let reasons = &json["steps"][0]["buffers"][0]["not_in_place"];
    let expected = "not in the place of `a`: the sizes differ: bf16[256, 256] and f32[256, 256]";
    assert_eq!(reasons[0], expected, "{json}");
}
