//! A second opinion on plans: what `tg plan --json --full` prints is checked by a program that shares
//! nothing with the planner but that text.

// Buffers and ops are numbers here, which index several lists at once.
#![allow(clippy::needless_range_loop)]

#[path = "full_json/check.rs"]
mod check;
#[path = "full_json/cut.rs"]
mod cut;
#[path = "full_json/refuted.rs"]
mod refuted;
#[path = "full_json/search.rs"]
mod search;

use std::{path::PathBuf, process::Command};

use check::Step;
use serde_json::Value;

/// The steps of a program, as the command prints them.
fn steps(file: &str, arguments: &[&str]) -> Vec<Value> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(file);
    let output = Command::new(env!("CARGO_BIN_EXE_tg"))
        .args(["plan", "--json", "--full"])
        .arg(&path)
        .args(arguments)
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{file} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    let plan: Value = serde_json::from_str(&text).unwrap();
    plan["steps"].as_array().unwrap().clone()
}

/// Checks all steps of a program; there have to be some.
fn accept(file: &str, arguments: &[&str]) -> Vec<Value> {
    let steps = steps(file, arguments);
    assert!(!steps.is_empty(), "{file} has no steps");
    for step in &steps {
        let name = &step["name"];
        if let Err(fault) = Step::read(step).and_then(|s| s.check()) {
            panic!("{file} {arguments:?}, step {name}: {fault}");
        }
    }
    steps
}

/// The same for a program written down here.
fn accept_text(name: &str, text: &str) -> Vec<Value> {
    let folder = std::env::temp_dir().join(format!("tg-full-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join(format!("{name}.tg"));
    std::fs::write(&path, text).unwrap();
    let steps = accept(path.to_str().unwrap(), &[]);
    std::fs::remove_dir_all(folder).unwrap();
    steps
}

#[test]
fn examples_at_their_full_sizes() {
    for file in ["blocks.tg", "blocks_plain.tg", "blocks_manual.tg"] {
        accept(&format!("examples/{file}"), &["--set", "DEPTH=16"]);
    }
    for file in ["digits.tg", "convnet.tg", "gpt.tg"] {
        accept(&format!("examples/{file}"), &[]);
    }
}

#[test]
fn every_order() {
    for order in ["source", "list", "lpmf", "dfs", "witness"] {
        let arguments = ["--set", "LAYERS=2", "--order", order];
        for step in accept("examples/gpt.tg", &arguments) {
            let worst = step["worst_legal_witness_bytes"].as_u64().unwrap();
            let live = step["persistent_bytes"].as_u64().unwrap() + step["live_peak_bytes"].as_u64().unwrap();
            match order {
                "witness" => assert_eq!((live, &step["found_by"]), (worst, &Value::from("witness"))),
                _ => assert!(live <= step["worst_legal_bytes"].as_u64().unwrap()),
            }
        }
    }
}

#[test]
fn programs_of_library_models() {
    for file in ["mlp.tg", "convnet.tg", "gpt.tg", "regions.tg", "library.tg"] {
        accept(&format!("tests/goldens/{file}"), &[]);
    }
}

/// Recurrent cells, tied weights, nested regions, frozen parameters, clipping, views, barriers, state.
#[test]
fn programs_of_many_kinds() {
    accept_text(
        "tied",
        "use nn\nuse optim\nmodel Net() {\n  let a = nn.Linear(64, 64)\n  let norm = nn.LayerNorm(64)\n  fn forward(x) {\n    let h = checkpoint < { let u = checkpoint < relu(a(x)) >; relu(a(u)) } >\n    let h = checkpoint(bind: grad) < relu(norm(a(h))) >\n    a(h)\n  }\n}\nlet net = Net()\nlet opt = optim.adamw(net, lr: 1e-3)\nstep train(x: f32[32, 64]) {\n  let cost = mean(net(x) ** 2.0)\n  let grads = grad(cost, net)\n  update net with opt, optim.clip(grads, 1.0)\n  return cost, x[0..2]\n}\n",
    );
    accept_text(
        "order",
        "step f(x: f32[256, 256]) {\n  let a = exp(x)\n  let b = log(x)\n  let c, d = barrier(a @ a, b)\n  let e = c @ d\n  return sum(e), transpose(e, [1, 0]), a\n}\nstep nothing(x: f32[4], y: f32[8]) { return x }\nstep two(x: f32[1024, 64]) {\n  let a = sum(exp(x))\n  let b = sum(exp(-x))\n  return a + b\n}\n",
    );
    accept_text(
        "cells",
        "use nn\nuse loss\nuse optim\nmodel Net() {\n  let cell = nn.LSTMCell(8, 16)\n  let gru = nn.GRUCell(16, 16)\n  let attn = nn.MultiHeadAttention(16, 4, causal: true)\n  let norm = nn.RMSNorm(16)\n  let head = nn.Linear(16, 4)\n  fn forward(x) {\n    let h = zeros([2, 16])\n    let c = zeros([2, 16])\n    let g = zeros([2, 16])\n    let all = []\n    for t in 0..6 {\n      h, c = cell(x[:, t], h, c)\n      g = gru(h, g)\n      all = all + [g]\n    }\n    let s = stack(all, axis: 1)\n    let s = s + attn(norm(nn.dropout(s, 0.1)))\n    head(mean(s, axis: 1))\n  }\n}\nlet net = Net()\nstep train(x: f32[2, 6, 8], y: i32[2]) {\n  let cost = loss.cross_entropy(net(x), y)\n  minimize cost over net with optim.lion(lr: 1e-3)\n  return cost\n}\n",
    );
    accept_text(
        "state",
        "use optim\nmodel Count() {\n  state n: f32[512] = zeros()\n  param w: f32[512] = ones()\n  param frozen u: f32[512] = ones()\n  fn forward(x) {\n    n := n + x\n    n * w * u\n  }\n}\nlet c = Count()\nstep f(x: f32[512]) {\n  let y = c(x)\n  let z = c(y)\n  minimize sum(z * z) over c with optim.sgd(lr: 0.1, momentum: 0.9)\n  return y\n}\n",
    );
}

/// Where one cut is not enough, the proof of the bound is printed.
#[test]
fn a_proof_of_more_than_one_cut_can_be_followed() {
    let steps = accept("examples/blocks.tg", &["--set", "DEPTH=16"]);
    let step = steps.iter().find(|step| !step["bound"]["refutation"].is_null()).expect("one is proved so");
    for end in [serde_json::json!({ "cut": 0 }), serde_json::json!({ "last": [0, 1] })] {
        let mut broken = step.clone();
        broken["bound"]["refutation"] = serde_json::json!({ "edges": [], "end": end });
        let fault = Step::read(&broken).and_then(|step| step.check()).unwrap_err();
        assert!(fault.contains("refutation"), "{fault}");
    }
}

/// What is changed, and how.
type Mutation<'a> = (&'a str, &'a dyn Fn(&mut Value));

/// The checker finds what is wrong: each change to a right plan is refused.
#[test]
fn a_wrong_plan_is_refused() {
    let steps = accept_text(
        "refused",
        "use nn\nuse optim\nlet net = nn.Linear(64, 64)\nstep train(x: f32[32, 64]) {\n  let a = sum(exp(net(x)))\n  let b = sum(exp(-net(x)))\n  minimize a + b over net with optim.sgd(lr: 0.1)\n  return a + b\n}\n",
    );
    let right = &steps[0];
    let broken = |change: &dyn Fn(&mut Value)| {
        let mut step = right.clone();
        change(&mut step);
        assert_ne!(&step, right, "the change changes something");
        Step::read(&step).and_then(|s| s.check()).unwrap_err()
    };
    let add = |value: &mut Value, by: i64| *value = (value.as_i64().unwrap() + by).into();
    let cases: [Mutation; 13] = [
        ("before", &|s| s["order"].as_array_mut().unwrap().reverse()),
        ("witness", &|s| s["witness"].as_array_mut().unwrap().reverse()),
        ("permutation", &|s| s["order"][0] = s["order"][1].clone()),
        ("live peak", &|s| add(&mut s["live_peak_bytes"], -256)),
        ("persistent", &|s| add(&mut s["persistent_bytes"], 256)),
        ("height", &|s| add(&mut s["arena_bytes"], 256)),
        ("worst", &|s| add(&mut s["worst_legal_witness_bytes"], 256)),
        ("bound", &|s| add(&mut s["lower_bound_bytes"], 256)),
        ("above the live peak", &|s| {
            add(&mut s["lower_bound_bytes"], 1 << 20);
            add(&mut s["bound"]["live_bytes"], 1 << 20);
        }),
        ("cut", &|s| s["bound"]["before"].as_array_mut().unwrap().clear()),
        ("overlap", &|s| {
            // Everything at the same place.
            for offset in s["offsets"].as_array_mut().unwrap().iter_mut().filter(|o| !o.is_null()) {
                *offset = 0.into();
            }
        }),
        ("free", &|s| s["frees"][0][0] = 0.into()),
        ("free", &|s| drop(s["frees"].as_array_mut().unwrap().pop())),
    ];
    for (word, change) in cases {
        let fault = broken(change);
        assert!(fault.contains(word), "{word}: {fault}");
    }
}
