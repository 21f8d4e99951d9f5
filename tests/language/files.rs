//! Saving, loading, resuming, data.

use std::sync::{Arc, Mutex};

use tg::engine::{CompileOptions, Engine, Source};

use crate::support::{errors_of, folder, run_with};

fn run_in(directory: &std::path::Path, text: &str, resume: bool) -> String {
    let options = CompileOptions { resume, ..CompileOptions::default() };
    run_with(Source::text("test.tg", text).in_directory(directory), &options)
}

const TRAINED: &str = r#"
use nn
use optim
const EPOCHS = 6
let net = nn.Linear(4, 2)
let opt = optim.adam(net, lr: optim.cosine(0.1, 10))
step train(x: f32[8, 4]) {
  let cost = mean(square(net(nn.dropout(x, 0.25)) - 1.0))
  minimize cost over net with opt
  return cost
}
let total = 0.0
for i in 0..EPOCHS {
  let c = train(normal([8, 4]))
  total += float(c)
  print("{i} {c} {total}")
  STOP
  save("run.safetensors", net, opt)
}
print(net.w)
"#;

#[test]
fn a_resumed_run_continues_bit_for_bit() {
    let whole = run_in(&folder("resume_whole"), &TRAINED.replace("STOP", ""), false);
    let directory = folder("resume_parts");
    let first = run_in(&directory, &TRAINED.replace("STOP", "assert(i < 3, \"stopped\")"), false);
    assert!(first.ends_with("TG0401 stopped"), "{first}");
    let second = run_in(&directory, &TRAINED.replace("STOP", ""), true);
    let lines: Vec<&str> = whole.lines().collect();
    // The pass that failed was not saved, so it runs again.
    assert_eq!(second, lines[3..].join("\n"));
}

fn notices(directory: &std::path::Path, text: &str) -> (String, String) {
    let notes = Arc::new(Mutex::new(Vec::new()));
    let lines = Arc::new(Mutex::new(Vec::new()));
    let options = CompileOptions { resume: true, ..CompileOptions::default() };
    let source = Source::text("test.tg", text).in_directory(directory);
    let program = Engine::new().compile_with(source, &options).expect("a sound program");
    let mut session = program.session().expect("a session");
    let (seen, printed) = (Arc::clone(&notes), Arc::clone(&lines));
    session.on_notice(move |line| seen.lock().expect("notes").push(line.to_string()));
    session.on_print(move |line| printed.lock().expect("lines").push(line.to_string()));
    if let Err(error) = session.run() {
        lines.lock().expect("lines").push(errors_of(&error));
    }
    (notes.lock().expect("notes").join("\n"), lines.lock().expect("lines").join("\n"))
}

#[test]
fn loops_are_found_again_where_lines_moved() {
    let whole = run_in(&folder("moved_whole"), &TRAINED.replace("STOP", ""), false);
    let directory = folder("moved");
    let (note, _) = notices(&directory, &TRAINED.replace("STOP", "assert(i < 3, \"stopped\")"));
    assert_eq!(note, "no saved file found: starting from the beginning");
    let more = TRAINED.replace("STOP", "").replace("let total", "# a comment\nlet total");
    let (note, lines) = notices(&directory, &more);
    assert_eq!(note, "resumed from run.safetensors: loop at line 14 after pass 3");
    let rest: Vec<&str> = whole.lines().skip(3).collect();
    assert_eq!(lines, rest.join("\n"));
}

#[test]
fn a_position_that_is_gone_is_an_error() {
    let directory = folder("gone");
    run_in(&directory, &TRAINED.replace("STOP", ""), false);
    let text = TRAINED.replace("STOP", "");
    let changed = "the script changed before the loop since `run.safetensors` was written";
    for other in
        [text.replace("in 0..EPOCHS", "in 0..7"), text.replace("let total", "for k in 0..2 { }\nlet total")]
    {
        let found = run_in(&directory, &other, true);
        assert!(found.contains(changed), "{found}");
    }
    let found = run_in(&directory, &text.replace("total", "sum_of_all"), true);
    assert!(found.ends_with("`total` cannot be restored from `run.safetensors`"), "{found}");
}

#[test]
fn constants_come_from_the_source() {
    let directory = folder("constants");
    run_in(&directory, &TRAINED.replace("STOP", ""), false);
    let longer = TRAINED.replace("STOP", "").replace("EPOCHS = 6", "EPOCHS = 8");
    let whole = run_in(&folder("constants_whole"), &longer, false);
    let rest: Vec<&str> = whole.lines().skip(6).collect();
    assert_eq!(run_in(&directory, &longer, true), rest.join("\n"));
}

/// Two loops, the second nested; variables and tensors at the top and between the loops; the
/// optimizer is written in the step.
const NESTED: &str = r#"
use nn
use optim
let net = nn.Linear(4, 2)
step train(x: f32[8, 4]) {
  let cost = mean(square(net(x) - 1.0))
  minimize cost over net with optim.adam(lr: optim.cosine(0.1, 20))
  return cost
}
let mean_cost = tensor(0.0)
let costs = []
for i in 0..2 { train(normal([8, 4])) }
let start = float(train(normal([8, 4])))
for e in 0..3 {
  let in_epoch = 0.0
  for k in 0..4 {
    let c = train(normal([8, 4]))
    mean_cost = mean_cost * 0.5 + c
    in_epoch += float(c)
    costs += [c]
    print("{e} {k} {c} {mean_cost} {in_epoch} {start}")
    STOP
    save("run.safetensors", net)
  }
}
print(len(costs), costs)
"#;

#[test]
fn nested_loops_and_their_variables_are_resumed() {
    let whole = run_in(&folder("nested_whole"), &NESTED.replace("STOP", ""), false);
    let directory = folder("nested");
    run_in(&directory, &NESTED.replace("STOP", "assert(e * 4 + k < 6, \"stopped\")"), false);
    let (note, lines) = notices(&directory, &NESTED.replace("STOP", ""));
    assert_eq!(note, "resumed from run.safetensors: loop at line 14 in pass 2, loop at line 16 after pass 2");
    let rest: Vec<&str> = whole.lines().skip(6).collect();
    assert_eq!(lines, rest.join("\n"));
}

#[test]
fn optimizers_in_steps_are_saved_with_their_parameters() {
    let directory = folder("inline");
    let text = r#"
use nn
use optim
let net = nn.Linear(2, 2)
step train(x: f32[4, 2]) { minimize sum(square(net(x))) over net with optim.adam(lr: 0.01) }
FIRST
train(ones([4, 2]) * 2.0)
print(net.w)
"#;
    let first = "train(ones([4, 2]))\nsave(\"a.safetensors\", net)\n\
                 print(data.load(\"a.safetensors\")[\"train.adam.m.net.w\"].shape)";
    let one = run_in(&directory, &text.replace("FIRST", first), false);
    let other = run_in(&directory, &text.replace("FIRST", "load(\"a.safetensors\", net)"), false);
    assert_eq!(one, format!("[2, 2]\n{other}"));
    assert!(other.starts_with("f32[2, 2]"), "{other}");
}

#[test]
fn loading_restores_parameters_and_optimizers() {
    let directory = folder("load");
    let text = r#"
use nn
use optim
let net = nn.Linear(2, 2)
let opt = optim.sgd(net, lr: 0.1, momentum: 0.9)
step train(x: f32[4, 2]) { minimize sum(net(x)) over net with opt }
train(ones([4, 2]))
save("a.safetensors", net, opt)
let saved = copy(net.w)
train(ones([4, 2]))
let later = copy(net.w)
load("a.safetensors", net, opt)
print(all(net.w == saved))
train(ones([4, 2]))
print(all(net.w == later))
let file = data.load("a.safetensors")
print(file["opt.v.net.w"].shape)
"#;
    assert_eq!(run_in(&directory, text, false), "true\ntrue\n[2, 2]");
    let other = "use nn\nlet net = nn.Linear(3, 2)\nload(\"a.safetensors\", net)";
    let wrong = run_in(&directory, other, false);
    assert!(wrong.starts_with("3: TG0404 `"), "{wrong}");
    assert!(wrong.contains("net.w") && wrong.contains("f32[2, 3]"), "{wrong}");
    // What does not agree decides what helps.
    let help = |text: &str| {
        let source = Source::text("test.tg", text).in_directory(&directory);
        let found = Engine::new().check(source, &CompileOptions::default());
        found.diagnostics.first().and_then(|d| d.help.first().cloned()).unwrap_or_default()
    };
    assert_eq!(
        help(other),
        "the model that was saved had other sizes: make this one with the same, also with the same `--set`"
    );
    assert_eq!(
        help("use nn\nlet net = nn.Linear(2, 2) in bf16\nload(\"a.safetensors\", net)"),
        "it was saved as f32: make the model with that dtype, `… in f32`"
    );
    assert!(
        help("use nn\nlet other = nn.Linear(2, 2)\nload(\"a.safetensors\", other)")
            .contains("`load(…, net: other)`")
    );
    // A tensor is a value, which `load` cannot change.
    let tensor = "let y = ones([2])\nload(\"a.safetensors\", y: y)";
    assert_eq!(
        run_in(&directory, tensor, false),
        "2: TG0212 `load` fills models and optimizers, and `y` is a tensor"
    );
    assert_eq!(
        help(tensor),
        "a tensor is a value: bind what the file holds, `let y = load(\"file.safetensors\").y`"
    );
}

#[test]
fn a_model_is_loaded_into_a_variable_of_another_name() {
    let directory = folder("names");
    let text = r#"
use nn
use optim
model Pair() {
  let a = nn.Linear(2, 2)
  let b = nn.Linear(2, 2)
  fn forward(x) = b(a(x))
}
let NAME = Pair()
let opt = optim.sgd(NAME, lr: 0.1, momentum: 0.9)
step train(x: f32[4, 2]) { minimize sum(square(NAME(x))) over NAME with opt }
"#;
    let program = |name: &str, rest: &str| run_in(&directory, &(text.replace("NAME", name) + rest), false);
    let saves = "train(ones([4, 2]))\nsave(\"a.safetensors\", net, opt)\n\
                 save(\"b.safetensors\", teacher: net.a, sgd: opt)\n";
    let after = "train(ones([4, 2]))\nprint(NAME.a.w)\nprint(NAME.b.b)";
    let whole = program("net", &(saves.to_string() + &after.replace("NAME", "net")));
    let loads = "load(\"a.safetensors\", opt, net: other)\n".to_string();
    assert_eq!(program("other", &(loads + &after.replace("NAME", "other"))), whole);
    // Optimizers too: their states are those of the parameters, under both names.
    let names = program(
        "net",
        "for name in [\"teacher.w\", \"sgd.v.teacher.w\", \"sgd.v.net.b.w\"] {\n  \
                                print(data.load(\"b.safetensors\")[name].shape)\n}",
    );
    assert_eq!(names, "[2, 2]\n[2, 2]\n[2, 2]");
    let parts = "load(\"a.safetensors\", opt, net: other)\nlet w = copy(other.a.w)\n\
                 load(\"b.safetensors\", teacher: other.b)\nprint(all(other.b.w == w))";
    assert_eq!(program("other", parts), "true");
    // In a list, models have numbers.
    let list = "let one = [nn.Linear(2, 2), nn.Linear(2, 2)]\nsave(\"l.safetensors\", layers: one)\n\
                let two = [nn.Linear(2, 2), nn.Linear(2, 2)]\nload(\"l.safetensors\", layers: two)\n\
                print(all(two[1].w == one[1].w))";
    assert_eq!(program("net", list), "true");
    // The message says how.
    let source =
        |rest: &str| Source::text("test.tg", text.replace("NAME", "other") + rest).in_directory(&directory);
    let found = Engine::new().check(source("load(\"a.safetensors\", other)"), &CompileOptions::default());
    let help = found.diagnostics.first().and_then(|d| d.help.first().cloned()).unwrap_or_default();
    assert_eq!(help, "`net` in the file has the form of `other`: `load(…, net: other)` reads it");
}

#[test]
fn a_folder_that_is_not_there() {
    let directory = folder("no_folder");
    let text = "save(\"nowhere/a.safetensors\", y: ones([2]))";
    let found = run_in(&directory, text, false);
    assert!(found.starts_with("1: TG0403 cannot write `"), "{found}");
    assert!(found.ends_with("nowhere` does not exist"), "{found}");
    assert!(!directory.join("nowhere").exists());
    // The check says so before anything ran.
    let source = Source::text("test.tg", text).in_directory(&directory);
    let checked = Engine::new().check(source, &CompileOptions::default());
    assert!(checked.is_sound());
    assert_eq!(
        checked.diagnostics[0].help,
        ["`save` makes no folders: create it before the run, or name another"]
    );
}

#[test]
fn missing_files_are_reported_with_their_line() {
    let directory = folder("missing");
    let found = run_in(&directory, "print(1)\nlet x = data.load(\"nothing.npy\")", false);
    assert!(found.starts_with("2: TG0403 cannot read `"), "{found}");
}

#[test]
fn batches() {
    let text = r#"
let x = arange(7)
for b in data.batches(x, size: 3) { print(b) }
for b in data.batches(x, size: 3, partial: "keep") { print(b.shape) }
let seen = 0
for a, b in data.batches(x, x * 2, size: 2, shuffle: 5) {
  assert(all(a * 2 == b))
  seen += 1
}
print(seen, len(data.batches(x, size: 2)))
"#;
    assert_eq!(
        run_in(&folder("batches"), text, false),
        "i32[3]\n[0 1 2]\ni32[3]\n[3 4 5]\n[3]\n[3]\n[1]\n3 3"
    );
}

#[test]
fn characters() {
    let directory = folder("characters");
    std::fs::write(directory.join("t.txt"), "abca").expect("a file");
    let text = r#"
let ids, vocabulary = data.chars("t.txt")
print(ids, vocabulary.size, vocabulary.decode(ids), vocabulary.encode("cab"), vocabulary.decode([1, 0]))
"#;
    assert_eq!(run_in(&directory, text, false), "i32[4]\n[0 1 2 0] 3 abca i32[3]\n[2 0 1] ba");
}

#[test]
fn modules_beside_the_script() {
    let directory = folder("modules");
    std::fs::write(
        directory.join("mine.tg"),
        "use nn\nconst K = 3\nfn f(x) = x * K\nlet net = nn.Linear(K, 1)\n",
    )
    .expect("a file");
    let text = "use mine\nuse mine.f as g\nprint(mine.f(2), g(3), mine.net(ones([1, 3])).shape)";
    assert_eq!(run_in(&directory, text, false), "6 9 [1, 1]");
    std::fs::write(directory.join("broken.tg"), "fn f(x) = \nlet y = 1 / 0\n").expect("a file");
    let found = run_in(&directory, "use broken\nprint(broken.y)", false);
    assert!(found.contains("TG01"), "{found}");
    std::fs::write(directory.join("a.tg"), "use b\n").expect("a file");
    std::fs::write(directory.join("b.tg"), "use a\n").expect("a file");
    let found = run_in(&directory, "use a", false);
    assert!(found.contains("TG0205 `a` uses itself"), "{found}");
}

#[test]
fn metrics_are_logged() {
    let directory = folder("logs");
    let text = "for i in 0..2 { log(\"m.csv\", step: i, loss: tensor(0.5)) }\nprint(log(1.0))";
    assert_eq!(run_in(&directory, text, false), "0.0");
    let written = std::fs::read_to_string(directory.join("m.csv")).expect("the log");
    assert_eq!(written, "step,loss\n0,0.5\n1,0.5\n");
}

#[test]
fn random_choices() {
    let text = r#"
let logits = tensor([[0.0, 50.0], [50.0, 0.0]])
print(random.categorical(logits), random.categorical(logits[0]))
"#;
    assert_eq!(run_in(&folder("random"), text, false), "i32[2]\n[1 0] 1");
}
