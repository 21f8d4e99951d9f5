//! How far the peaks of the examples and of the library's models are from their lower bounds.

use std::path::Path;

use tg::engine::{CompileOptions, Engine, Source};

const HEAD: &str = "use nn\nuse loss\nuse optim\nuse init\n";

/// A cell with one state, over so many steps.
macro_rules! recurrent {
    ($cell:literal, $steps:literal) => {
        concat!(
            "model Net() {\n  let cell = nn.",
            $cell,
            "(16, 32)\n  let out = nn.Linear(32, 4)\n  fn forward(x) {\n    let h = zeros([8, 32])\n    for t in 0..",
            $steps,
            " {\n      h = cell(x[t], h)\n    }\n    out(h)\n  }\n}\nlet net = Net()"
        )
    };
}

/// A model, a training step around it, and an optimizer.
struct Case {
    name: &'static str,
    /// Declares `net`.
    model: &'static str,
    /// Parameters of the step.
    data: &'static str,
    /// Makes `cost`.
    cost: &'static str,
}

const MODELS: &[Case] = &[
    Case {
        name: "linear",
        model: "let net = nn.Linear(64, 10)",
        data: "x: f32[32, 64], y: i32[32]",
        cost: "let cost = loss.cross_entropy(net(x), y)",
    },
    Case {
        name: "mlp",
        model: "let net = nn.Sequential([nn.Linear(64, 256), relu, nn.Linear(256, 256), relu, nn.Linear(256, 10)])",
        data: "x: f32[32, 64], y: i32[32]",
        cost: "let cost = loss.cross_entropy(net(x), y)",
    },
    Case {
        name: "dropout",
        model: "let net = nn.Sequential([nn.Linear(64, 256), gelu, nn.Dropout(0.1), nn.Linear(256, 10)])",
        data: "x: f32[32, 64], y: i32[32]",
        cost: "let cost = loss.smooth_cross_entropy(net(x), y)",
    },
    Case {
        name: "convolution",
        model: "model Net() {
  let a = nn.Conv2d(3, 16, 3, padding: 1)
  let n = nn.BatchNorm2d(16)
  let b = nn.Conv2d(16, 32, 3, stride: 2, padding: 1)
  let m = nn.BatchNorm2d(32)
  let p = nn.MaxPool2d(2)
  let out = nn.Linear(32, 10)
  fn forward(x) = out(nn.global_avg_pool(p(relu(m(b(relu(n(a(x)))))))))
}
let net = Net()",
        data: "x: f32[8, 3, 32, 32], y: i32[8]",
        cost: "let cost = loss.cross_entropy(net(x), y)",
    },
    Case {
        name: "average pool",
        model: "model Net() {
  let a = nn.Conv2d(3, 16, 3)
  let p = nn.AvgPool2d(2)
  let out = nn.Linear(16, 10)
  fn forward(x) = out(nn.global_avg_pool(p(silu(a(x)))))
}
let net = Net()",
        data: "x: f32[8, 3, 32, 32], y: i32[8]",
        cost: "let cost = loss.cross_entropy(net(x), y)",
    },
    Case {
        name: "embedding",
        model: "model Net() {
  let e = nn.Embedding(100, 32)
  let out = nn.Linear(32, 100)
  fn forward(ids) = out(e(ids))
}
let net = Net()",
        data: "x: i32[64], y: i32[64]",
        cost: "let cost = loss.cross_entropy(net(x), y)",
    },
    Case {
        name: "layer norm",
        model: "let net = nn.Sequential([nn.Linear(64, 256), nn.LayerNorm(256), gelu, nn.Linear(256, 64), nn.LayerNorm(64)])",
        data: "x: f32[32, 64], y: f32[32, 64]",
        cost: "let cost = loss.mse(net(x), y)",
    },
    Case {
        name: "rms norm",
        model: "let net = nn.Sequential([nn.Linear(64, 256), nn.RMSNorm(256), silu, nn.Linear(256, 64)])",
        data: "x: f32[32, 64], y: f32[32, 64]",
        cost: "let cost = loss.huber(net(x), y)",
    },
    Case {
        name: "attention",
        model: "let net = nn.MultiHeadAttention(64, 4, causal: true)",
        data: "x: f32[4, 32, 64], y: f32[4, 32, 64]",
        cost: "let cost = loss.l1(net(x), y)",
    },
    Case {
        name: "transformer",
        model: "model Block(d: int) {
  let norm1 = nn.LayerNorm(d)
  let attn = nn.MultiHeadAttention(d, 4, causal: true)
  let norm2 = nn.LayerNorm(d)
  let up = nn.Linear(d, 4 * d)
  let down = nn.Linear(4 * d, d)
  fn forward(x) {
    let h = x + attn(norm1(x))
    h + down(gelu(up(norm2(h))))
  }
}
model Net() {
  let e = nn.Embedding(100, 64)
  let blocks = [Block(64) for i in 0..4]
  let out = nn.Linear(64, 100)
  fn forward(ids) {
    let h = e(ids)
    for b in blocks {
      h = b(h)
    }
    out(h)
  }
}
let net = Net()",
        data: "x: i32[4, 32], y: i32[4, 32]",
        cost: "let cost = loss.cross_entropy(net(x), y)",
    },
    Case {
        name: "rnn",
        model: recurrent!("RNNCell", 12),
        data: "x: f32[12, 8, 16], y: i32[8]",
        cost: "let cost = loss.cross_entropy(net(x), y)",
    },
    Case {
        name: "lstm",
        model: "model Net() {
  let cell = nn.LSTMCell(16, 32)
  let out = nn.Linear(32, 4)
  fn forward(x) {
    let h = zeros([8, 32])
    let c = zeros([8, 32])
    for t in 0..12 {
      h, c = cell(x[t], h, c)
    }
    out(h)
  }
}
let net = Net()",
        data: "x: f32[12, 8, 16], y: i32[8]",
        cost: "let cost = loss.cross_entropy(net(x), y)",
    },
    Case {
        name: "gru",
        model: recurrent!("GRUCell", 12),
        data: "x: f32[12, 8, 16], y: i32[8]",
        cost: "let cost = loss.cross_entropy(net(x), y)",
    },
    Case {
        name: "gru, 16 steps",
        model: recurrent!("GRUCell", 16),
        data: "x: f32[16, 8, 16], y: i32[8]",
        cost: "let cost = loss.cross_entropy(net(x), y)",
    },
    Case {
        name: "checkpointed",
        model: "let net = nn.Sequential([nn.Linear(64, 64) for i in 0..12])",
        data: "x: f32[256, 64], y: f32[256, 64]",
        cost: "let cost = loss.mse(nn.checkpoint_sequential(net.layers, 4, x), y)",
    },
];

const UPDATES: [(&str, &str, &str); 4] = [
    ("sgd", "optim.sgd(net, lr: 0.1)", "grads"),
    ("momentum", "optim.sgd(net, lr: 0.1, momentum: 0.9)", "grads"),
    ("adamw", "optim.adamw(net, lr: 1e-3)", "grads"),
    ("adamw, clipped", "optim.adamw(net, lr: 1e-3)", "optim.clip(grads, 1.0)"),
];

/// Prints peak, bound and gap of every step; returns the gaps in per cent.
fn gaps(name: &str, source: Source) -> Vec<(String, f64)> {
    let checked = Engine::new().check(source, &CompileOptions::default());
    assert!(checked.is_sound(), "{name}: {:?}", checked.diagnostics);
    assert!(!checked.plans.is_empty(), "{name} has no step");
    let plans = checked.plans.iter();
    plans
        .map(|plan| {
            let (peak, bound) = (plan.peak_bytes(), plan.lower_bound_bytes());
            assert!(bound <= peak, "{name}: the peak is below its bound");
            let gap = 100.0 * (peak - bound) as f64 / bound.max(1) as f64;
            println!(
                "{name:32} {:10} {:5} ops {peak:>12} {bound:>12} {gap:.3} %",
                plan.name,
                plan.kernels.len()
            );
            (name.to_owned(), gap)
        })
        .collect()
}

/// Within so many per cent a peak equals its bound.
const EQUAL: f64 = 0.02;

#[test]
fn library_models_and_examples_are_planned_at_their_bounds() {
    let mut all = Vec::new();
    for case in MODELS {
        for (update, optimizer, grads) in UPDATES {
            let text = format!(
                "{HEAD}{}\nlet opt = {optimizer}\nstep train({}) {{\n  {}\n  let grads = grad(cost, net)\n  \
                 update net with opt, {grads}\n  return cost\n}}\n",
                case.model, case.data, case.cost
            );
            let name = format!("{} ({update})", case.name);
            all.extend(gaps(&name, Source::text("case.tg", text)));
        }
    }
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    let mut files: Vec<_> = std::fs::read_dir(examples).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    for file in files.into_iter().filter(|file| file.extension().is_some_and(|e| e == "tg")) {
        let name = file.file_name().unwrap().to_string_lossy().into_owned();
        all.extend(gaps(&name, Source::file(&file).unwrap()));
    }
    let tight = all.iter().filter(|(_, gap)| *gap <= EQUAL).count();
    println!("{tight} of {} steps at their bound", all.len());
    assert!(tight * 10 >= all.len() * 9, "only {tight} of {} steps are at their bound", all.len());
    for (name, gap) in &all {
        assert!(*gap < 1.0, "{name} is {gap} % above its bound");
    }
}
