//! States of hooks in files: what a rank has not sent yet is there after `load` and `--resume`, on the
//! number of ranks that saved it.

use tg::{Engine, Source};

use super::{
    folder::Folder,
    support::{LIMIT, flat, on_ranks, parameters},
};

/// Each rank has rows of its own, and one column of a wide matrix is sent: much stays behind.
const STEPS: &str = "
use nn
use optim
use hooks
let net = nn.Linear(6, 7) in f64
let opt = optim.sgd(net, lr: 0.1)
let x = f64(normal([6, 6])) * (1.0 + rank)
step train(x: f64[6, 6]) {
  let l = mean(square(net(x)))
  let g = grad(l, net)
  sync g over world with hooks.low_rank(rank: 1)
  update net with opt, g
}
";
const TRAIN: &str = "for i in 0..3 { train(x) }\n";

/// The parameters after a program has run, and its warnings.
fn run(folder: &Folder, world: u32, rest: &str) -> (Vec<f64>, Vec<String>) {
    let source = Source::text("hooks.tg", format!("{STEPS}{rest}")).in_directory(folder.0.clone());
    let engine = Engine::new().with_world(world).with_rank_limit(LIMIT);
    let program = engine.compile(source).unwrap_or_else(|error| panic!("{error}"));
    let mut ranks = on_ranks(&program, |session, _| {
        session.run().unwrap_or_else(|error| panic!("{world} ranks: {error}"));
        let warnings = session.take_diagnostics().into_iter().map(|d| d.message).collect();
        (flat(&parameters(session)), warnings)
    });
    assert!(ranks.windows(2).all(|pair| pair[0].0 == pair[1].0), "ranks differ in their bits");
    ranks.swap_remove(0)
}

#[test]
fn what_was_not_sent_is_loaded() {
    let folder = Folder::new("hooks");
    let all = "save(\"net.safetensors\", net, opt, train)";
    for world in [1, 2] {
        let (expected, _) = run(&folder, world, "for i in 0..6 { train(x) }");
        // The step is named, or the optimizer with which it updates.
        for what in ["net, opt, train", "net, opt", "net, opt, train, per_rank: true"] {
            run(&folder, world, &format!("{TRAIN}save(\"net.safetensors\", {what})"));
            // Before the step is compiled, and after it.
            for before in ["", "train(x)\n"] {
                let load = format!("{before}load(\"net.safetensors\", {what})\n{TRAIN}");
                let (found, warnings) = run(&folder, world, &load);
                assert_eq!(found, expected, "{world} ranks, {what}");
                assert!(warnings.is_empty(), "{warnings:?}");
            }
        }
    }
    // The model alone brings no states, and training goes another way.
    let (expected, _) = run(&folder, 2, "for i in 0..6 { train(x) }");
    run(&folder, 2, &format!("{TRAIN}{all}"));
    let (found, _) = run(&folder, 2, &format!("load(\"net.safetensors\", net)\n{TRAIN}"));
    assert_ne!(found, expected);
}

#[test]
fn another_number_of_ranks_is_told() {
    let folder = Folder::new("hooks");
    run(&folder, 2, &format!("{TRAIN}save(\"net.safetensors\", net, opt, train)"));
    let load = "load(\"net.safetensors\", net, opt, train)\ntrain(x)";
    for world in [1, 3] {
        let (_, warnings) = run(&folder, world, load);
        let expected = format!(
            "`{}` has states of hooks of 2 ranks, and this run has {world}: they start anew",
            folder.path("net.safetensors").display()
        );
        assert_eq!(warnings, [expected]);
    }
}

/// Two `sync` with one hook in a step have states of their own in the file.
#[test]
fn states_of_one_hook_have_names() {
    let folder = Folder::new("hooks");
    let text = "
hook keeps(bucket) {
  state rest = zeros_like(bucket)
  let sent = bucket * 0.5 + rest
  rest := bucket * 0.5
  all_reduce(sent, mean: true)
}
step f(a: f32[2], b: f32[2]) {
  sync a over world with keeps
  sync b over world with keeps
  return a, b
}
let none = ones([2])
";
    let source =
        |rest: &str| Source::text("keeps.tg", format!("{text}{rest}")).in_directory(folder.0.clone());
    let engine = Engine::new().with_world(1);
    let run = |rest: &str| {
        let program = engine.compile(source(rest)).unwrap_or_else(|error| panic!("{error}"));
        let mut session = program.session().expect("a session");
        session.run().unwrap_or_else(|error| panic!("{error}"));
        let value = session.get("sum_of_both").ok();
        value.and_then(|value| value.as_f64())
    };
    run("f(none, none * 3.0)\nsave(\"f.safetensors\", f)");
    let read = run(
        "load(\"f.safetensors\", f)\nlet (a, b) = f(none * 0.0, none * 0.0)\nlet sum_of_both = float(a[0] + 10.0 * b[0])",
    );
    assert_eq!(read, Some(0.5 + 10.0 * 1.5));
}

#[test]
fn a_resumed_run_goes_on_with_them() {
    let folder = Folder::new("hooks_resume");
    let run = |passes: usize, resume: &[&str]| {
        let rest = format!(
            "let n = {passes}\nfor i in 0..n {{\n  train(x)\n  save(\"c.safetensors\", net, opt)\n}}\n\
             print(\"{{float(sum(square(net.w)))}}\")\n"
        );
        folder.file("p.tg", format!("{STEPS}{rest}"));
        let ran = folder.tg(&[&["run", "--world", "2"], resume, &["p.tg"]].concat());
        assert_eq!(ran.code, Some(0), "{}", ran.err);
        ran.out
    };
    let whole = run(6, &[]);
    run(3, &[]);
    assert_eq!(run(6, &["--resume"]), whole);
}
