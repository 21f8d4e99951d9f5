//! Several ranks: collectives in regions, gathers, accumulated gradients, parameters without elements.

use tg::{
    engine::{Engine, Source},
    ops::{CollectiveKind, Op},
    plan::{BufferKind, Plan},
};

use super::support::*;

#[test]
fn what_a_collective_in_a_region_keeps_is_said() {
    let text = "model M { param w: f32[64] = ones() }
let m = M()
step f(x: f32[16, 64]) {
  let y = checkpoint < { let s = all_reduce(mean(x * m.w, axis: 0)); tanh(tanh(x * m.w - s)) } >
  let g = grad(sum(y), m)
  return g.w
}
";
    let checked = check_text(text, Some(2));
    let d = find(&checked, "TG0336");
    let expected = "`all_reduce` in a region is sent once per step: its result, f32[64], 256 B, is kept for the backward pass";
    assert_eq!(d.message, expected);
    assert!(places(&checked, d).iter().any(|p| p.starts_with("checkpoint <")), "{:?}", places(&checked, d));
    // One rank sends nothing.
    assert!(!codes(&check_text(text, Some(1))).contains(&"TG0336"));
}

/// How many bytes of gathered weights are alive together, at most.
fn gathered(plan: &Plan) -> u64 {
    plan.peak_bytes() - plan.persistent_bytes - 64 * 1024 * 4 * 2
}

#[test]
fn gathers_that_run_ahead() {
    let checked = check_text(&text("gathers"), Some(4));
    let weight = 1024 * 1024 * 4;
    // However early they are written: each is gathered where it is used, and free behind that.
    for step in ["used", "early"] {
        let plan = plan(&checked, step);
        assert_eq!(gathered(plan), weight, "{step}");
        // But all 24 may be gathered before the first is used.
        assert!(worst(plan) - plan.peak_bytes() >= 22 * weight, "{step}: {}", worst(plan));
    }
    // What waits for the value before the last is at most one ahead.
    let ahead = plan(&checked, "ahead");
    assert_eq!(gathered(ahead), weight);
    assert!(worst(ahead) - ahead.peak_bytes() <= weight, "{}", worst(ahead));
    let d = find(&checked, "TG0321");
    assert_eq!(at(&checked, d.primary.span), "barrier(all, x)");
    assert_eq!(savings(d).saves_bytes(), 23 * weight);
}

/// The sizes of https://github.com/meta-pytorch/tnt/pull/1057: 52 GB on every rank, or 3.25 GB.
#[test]
fn gradients_of_micro_batches_are_whole_on_every_rank_or_parts() {
    let checked = check_text(&text("micro_batches"), Some(16));
    let d = find(&checked, "TG0241");
    // 52.0 and 3.25 times 10^9 bytes.
    let expected = "`g` is whole on every rank up to here: 49591.1 MiB, of which the parts are 3099.4 MiB";
    assert_eq!(d.message, expected);
    assert!(d.help.iter().any(|h| h.contains("without `local: true`")), "{:?}", d.help);
    let sums = |plan: &Plan| {
        let is_sum =
            |op: &Op| matches!(op, Op::CollectiveStart(s) if s.kind == CollectiveKind::ReduceScatter);
        plan.graph.nodes().filter(|node| is_sum(node.op())).count()
    };
    let (whole, parts) = (plan(&checked, "whole"), plan(&checked, "parts"));
    assert_eq!((sums(whole), sums(parts)), (26, 4 * 26));
    let unit = 2_000_000_000;
    // All gradients, a sixteenth of the weights, and what one unit needs at a time.
    assert!(whole.peak_bytes() <= 26 * unit + 26 * unit / 16 + 4 * unit, "{}", whole.peak_bytes());
    assert!(whole.peak_bytes() >= 26 * unit + 26 * unit / 16);
    assert!(parts.peak_bytes() <= 2 * 26 * unit / 16 + 4 * unit, "{}", parts.peak_bytes());
    let kept: u64 = buffers_of(parts, BufferKind::Params).iter().sum();
    assert_eq!(kept, 26 * unit / 16);
}

/// A layer from eight values to none, and three numbers, over eight ranks: as on one.
#[test]
fn parameters_without_elements_train_and_keep_their_shape() {
    let text = "use nn
use optim
model Tiny() {
  param w: f32[3] = ones()
  fn forward(x) = x * w
}
model Net() {
  let empty = nn.Linear(8, 0)
  let tiny = Tiny()
  let last = nn.Linear(3, 2)
  fn forward(x) = last(tiny(x[:, 0..3] + sum(empty(x))))
}
let net = Net()
shard flat net by [nn.Linear, Tiny] over world
step train(x: f32[8, 8]) {
  let loss = sum(square(net(x)))
  minimize loss over net with optim.sgd(lr: 0.05)
  return loss
}
";
    let run = |world: u32| {
        let program = Engine::new().with_world(world).compile(Source::text("program.tg", text)).unwrap();
        let sessions = program.sessions().unwrap();
        let work = |mut session: tg::Session| {
            let numbers: Vec<f32> = (0..64).map(|k| (k as f32).sin()).collect();
            let mut losses = Vec::new();
            for _ in 0..3 {
                let x = tg::Tensor::try_from_slice(&[8, 8], &numbers).unwrap();
                losses.push(session.call("train", &[x.into()]).unwrap().as_f64().unwrap());
            }
            let shapes = ["net.empty.w", "net.empty.b", "net.tiny.w"].map(|name| {
                session.get(name).unwrap().as_tensor().map(|t| t.shape().to_vec()).expect("a tensor")
            });
            (losses, shapes)
        };
        std::thread::scope(|scope| {
            let all: Vec<_> = sessions.into_iter().map(|s| scope.spawn(|| work(s))).collect();
            all.into_iter().map(|rank| rank.join().unwrap()).collect::<Vec<_>>()
        })
    };
    let one = run(1).remove(0);
    assert_eq!(one.1, [vec![0, 8], vec![0], vec![3]]);
    assert!(one.0[2] < one.0[0], "{:?}", one.0);
    for rank in run(8) {
        assert_eq!(rank.1, one.1);
        for (a, b) in rank.0.iter().zip(&one.0) {
            assert!((a - b).abs() <= 1e-5 * b.abs(), "{:?} {:?}", rank.0, one.0);
        }
    }
}

/// A gathered weight that is read outside of its unit is an input of the region that uses it, and kept: both are
/// said, and the results are those of one rank.
#[test]
fn a_gathered_weight_that_a_region_is_given() {
    let text = |use_of: &str| {
        format!(
            "use optim\nuse init\nmodel Layer() {{\n  param w: f32[64, 64] = init.normal(std: 0.1)\n  \
             fn forward(x) = tanh(x @ w)\n}}\nlet net = [Layer() for i in 0..4]\n\
             shard flat net by Layer over world\n\
             step train(x: f32[8, 64]) {{\n  for l in net {{\n    {use_of}\n  }}\n  \
             let loss = mean(square(x))\n  minimize loss over net with optim.sgd(lr: 0.1)\n  return loss\n}}\n"
        )
    };
    let outside = check_text(&text("let w = l.w\n    x = checkpoint < tanh(tanh(x @ w)) >"), Some(4));
    let inside = check_text(&text("x = checkpoint < tanh(l(x)) >"), Some(4));
    assert!(codes(&outside).contains(&"TG0241"), "{:?}", outside.diagnostics);
    assert_eq!(at(&outside, find(&outside, "TG0315").primary.span), "checkpoint < tanh(tanh(x @ w)) >");
    assert!(inside.diagnostics.is_empty(), "{:?}", inside.diagnostics);
    // Three more weights are whole at the peak.
    assert!(peak(&outside) - peak(&inside) >= 2 * 64 * 64 * 4, "{} {}", peak(&outside), peak(&inside));
}
