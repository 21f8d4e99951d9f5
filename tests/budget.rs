//! Recompute under a budget: the same bits, the peak that was asked for, and the least work.

use std::{path::Path, sync::Arc};

use tg::{
    budget::{Assignment, Curve, Point, replay},
    diagnostic::Severity,
    engine::{Checked, CompileOptions, Engine, Planning, Source},
    ir::{Role, text},
    lower,
    ops::{Op, Unary},
    plan::{Plan, Target},
};

const MIB: u64 = 1 << 20;

fn checked(text: &str, planning: Planning) -> Checked {
    let options = CompileOptions { planning, ..CompileOptions::default() };
    Engine::new().check(Source::text("test.tg", text), &options)
}

/// The elaborated graph of the only step.
fn written(text: &str) -> tg::ir::Graph {
    let checked = checked(text, Planning::Nothing);
    assert!(checked.is_sound(), "{:?}", checked.diagnostics);
    let [step] = checked.written.as_slice() else { panic!("one step, got {}", checked.written.len()) };
    step.graph.as_ref().clone()
}

fn plan(text: &str) -> Arc<Plan> {
    let checked = checked(text, Planning::Quick);
    assert!(checked.is_sound(), "{:?}", checked.diagnostics);
    Arc::clone(checked.plans.first().expect("one plan"))
}

/// `line: CODE message` of each error and warning, with its notes and helps.
fn messages(text: &str) -> String {
    let checked = checked(text, Planning::Quick);
    let lines = checked.diagnostics.iter().filter(|d| d.severity != Severity::Note).map(|d| {
        let line = checked.sources.start(d.primary.span).line;
        let more: Vec<String> = d.notes.iter().chain(&d.help).map(|n| format!(" | {n}")).collect();
        format!("{line}: {} {}{}", d.code.0, d.message, more.concat())
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Programs that touch all that a replay must get right.
fn programs() -> Vec<(&'static str, String)> {
    let with = |body: &str| {
        format!(
            "use nn
use loss
use optim
model Block(d: int) {{
  let a = nn.Linear(d, 2 * d)
  let b = nn.Linear(2 * d, d)
  let norm = nn.LayerNorm(d)
  fn forward(x) = x + b(gelu(a(norm(x))))
}}
model Net(d: int, n: int) {{
  let blocks = [Block(d) for i in 0..n]
  fn forward(x) {{
    let y = x
    for b in blocks {{ y = b(y) }}
    y
  }}
}}
let net = Net(8, 6)
{body}
"
        )
    };
    let with_norm = |step: &str| {
        with(&format!(
            "model Norm() {{
  state running: f32[8] = zeros()
  fn forward(x) {{
    let m = mean(x, axis: 0)
    running := 0.9 * running + 0.1 * m
    x - running
  }}
}}
let norm = Norm()
{step}"
        ))
    };
    vec![
        (
            "plain",
            with(
                "step train(x: f32[128, 8]) {
  let l = mean(square(net(x)))
  minimize l over net with optim.adamw(lr: 0.01)
  return l
}",
            ),
        ),
        (
            "regions of the program, dropout, clipping",
            with(
                "step train(x: f32[128, 8]) {
  let y = x
  for b in net.blocks[0..2] { y = b(y) }
  y = checkpoint < {
    let z = net.blocks[2](y)
    checkpoint < net.blocks[3](nn.dropout(z, 0.5)) >
  } >
  y = checkpoint(policy: dots) < net.blocks[4](y) >
  let l = mean(square(net.blocks[5](nn.dropout(y, 0.1))))
  let g = grad(l, net)
  update net with optim.sgd(lr: 0.1, momentum: 0.9), optim.clip(g, 1.0)
  return l
}",
            ),
        ),
        (
            "micro-batches",
            with(
                "step train(x: f32[128, 8]) {
  let g = 0.0
  let total = 0.0
  for part in microbatches(x, 4) {
    let l = mean(square(net(part)))
    g += grad(l, net)
    total += l
  }
  update net with optim.sgd(lr: 0.1), g
  return total
}",
            ),
        ),
        (
            "state, release, barrier, second gradient",
            with_norm(
                "step train(x: f32[128, 8]) {
  let h = 0.1 * net(norm(x))
  let s = sum(h)
  release h
  let a, b = barrier(s, x)
  let l = a + mean(square(net.blocks[0](b)))
  let first = grad(mean(square(tanh(tanh(x)))), x)
  let second = grad(sum(square(first)), x)
  minimize l over net with optim.sgd(lr: 0.001)
  return l, second
}",
            ),
        ),
        (
            "one region of the program around dropout, state and another region",
            with_norm(
                "step train(x: f32[128, 8]) {
  let y = checkpoint < {
    let h = norm(x)
    for b in net.blocks[0..3] { h = b(nn.dropout(h, 0.2)) }
    h = checkpoint < { let z = net.blocks[3](h); net.blocks[4](nn.dropout(z, 0.2)) } >
    net.blocks[5](h)
  } >
  let l = mean(square(y))
  minimize l over net with optim.sgd(lr: 0.1, momentum: 0.9)
  return l
}",
            ),
        ),
        (
            "two losses",
            with(
                "step train(x: f32[128, 8]) {
  let h = net.blocks[0](x)
  let l = mean(square(net.blocks[1](h)))
  minimize l over net.blocks[1] with optim.sgd(lr: 0.1)
  let m = mean(square(net.blocks[2](net.blocks[1](h))))
  minimize m over net with optim.sgd(lr: 0.1)
  return l + m
}",
            ),
        ),
    ]
}

#[test]
fn a_replay_with_the_same_regions_gives_the_same_graph() {
    let mut compared = 0;
    let mut compare = |what: &str, graph: &tg::ir::Graph| {
        let again = replay(graph, &Assignment::original(graph)).expect(what);
        assert_eq!(text::print(&again, None), text::print(graph, None), "{what}");
        assert_eq!(again.names.len(), graph.names.len(), "{what}");
        assert_eq!(again.releases, graph.releases, "{what}");
        assert_eq!(again.gradients.len(), graph.gradients.len(), "{what}");
        compared += 1;
    };
    for (what, text) in programs() {
        compare(what, &written(&text));
    }
    for entry in std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("examples")).expect("examples")
    {
        let path = entry.expect("an entry").path();
        if path.extension().is_some_and(|e| e == "tg") {
            let options = CompileOptions {
                planning: Planning::Nothing,
                sets: vec![("LAYERS".into(), "2".into()), ("DEPTH".into(), "4".into())],
                ..CompileOptions::default()
            };
            let checked = Engine::new().check(Source::file(&path).expect("an example"), &options);
            for step in &checked.written {
                compare(&path.display().to_string(), &step.graph);
            }
        }
    }
    assert!(compared > 8, "{compared}");
}

/// Losses and results of a few steps, as printed with all digits.
fn run(text: &str) -> Vec<tg::Tensor> {
    let program = Engine::new().compile(Source::text("test.tg", text)).unwrap_or_else(|e| panic!("{e}"));
    let mut session = program.session().expect("a session");
    let values: Vec<f32> = (0..1024).map(|k| ((k * 37 % 100) as f32 - 50.0) / 40.0).collect();
    let x = tg::Tensor::from_slice(&[128, 8], &values).expect("it fits");
    (0..3)
        .flat_map(|_| {
            let results = session.call("train", &[(&x).into()]).unwrap_or_else(|e| panic!("{e}"));
            results.tensors().into_iter().cloned().collect::<Vec<_>>()
        })
        .collect()
}

#[test]
fn every_budget_gives_the_same_bits_and_keeps_its_promise() {
    for (what, text) in programs() {
        let expected = run(&text);
        let graph = written(&text);
        let mut curve = Curve::new(&graph, Target::Cpu);
        let (plain, smallest) = (curve.plain().expect(what), curve.smallest().expect(what));
        assert!(smallest.peak_bytes < plain.peak_bytes, "{what}: nothing is gained");
        for part in 0..4 {
            let budget = smallest.peak_bytes + (plain.peak_bytes - smallest.peak_bytes) * part / 4;
            let at =
                text.find("step train").and_then(|s| Some(s + text[s..].find('{')? + 1)).expect("a step");
            let text = format!("{} budget {budget}\n{}", &text[..at], &text[at..]);
            let plan = plan(&text);
            assert!(plan.peak_bytes() <= budget, "{what}: {} in {budget}", plan.peak_bytes());
            assert!(plan.recomputed_flops > 0.0, "{what}: nothing is recomputed in {budget}");
            let found = run(&text);
            assert_eq!(found.len(), expected.len());
            assert!(found == expected, "{what}, budget {budget}: other bits");
        }
    }
}

/// Case 1 without regions; `step` is what its step holds beside the loss and the update.
fn blocks(forward: &str, step: &str) -> String {
    format!(
        "use nn
use optim
model Block(c: int) {{
  let conv1 = nn.Conv2d(c, c, kernel: 1)
  let conv2 = nn.Conv2d(c, c, kernel: 1)
  fn forward(x) = relu(conv2(relu(conv1(x))))
}}
model Net(depth: int, c: int) {{
  let blocks = [Block(c) for i in 0..depth]
  fn forward(x) {{
    let y = x
    {forward}
    y
  }}
}}
let net = Net(64, 1024)
step train(x: f32[64, 1024, 14, 14]) {{
  let loss = sum(net(x))
  minimize loss over net with optim.sgd(lr: 0.0)
  {step}
  return loss
}}
"
    )
}

const PLAIN: &str = "for b in blocks { y = b(y) }";

/// Convolutions that are computed again.
fn recomputed(plan: &Plan) -> usize {
    plan.graph.nodes().filter(|n| n.instance() != 0 && matches!(n.op(), Op::Conv2d(_))).count()
}

/// A step of case 1 holds 128 convolutions and two gradients of each.
fn convolution_work(plan: &Plan) -> f64 {
    1.0 + recomputed(plan) as f64 / 384.0
}

#[test]
fn case_one_in_1400_mebibytes() {
    let plan = plan(&blocks(PLAIN, "budget 1400 MiB"));
    assert!(plan.peak_bytes() <= 1400 * MIB, "{}", plan.peak_bytes());
    assert!(convolution_work(&plan) <= 1.30, "{}", convolution_work(&plan));
}

#[test]
fn case_one_in_nested_groups_by_hand() {
    let groups = "let first = 0
    for n in [11, 10, 9, 8, 7, 6, 5, 4, 3, 1] {
      let group = blocks[first..first + n]
      y = checkpoint < {
        let z = y
        for b in group { z = checkpoint < b(z) > }
        z
      } >
      first += n
    }";
    let plan = plan(&blocks(groups, ""));
    assert!(plan.peak_bytes() <= 1203 * MIB, "{}", plan.peak_bytes() as f64 / MIB as f64);
    assert!(convolution_work(&plan) <= 1.62, "{}", convolution_work(&plan));
}

/// A region of the program makes all its values again at once. A budget puts regions inside of it.
#[test]
fn case_one_inside_of_one_written_region() {
    let one = "y = checkpoint < { let z = y; for b in blocks { z = b(z) }; z } >";
    let written = plan(&blocks(one, ""));
    assert!(written.peak_bytes() > 6000 * MIB, "{}", written.peak_bytes());
    let nested = plan(&blocks(one, "budget 1800 MiB"));
    assert!(nested.peak_bytes() <= 1800 * MIB, "{}", nested.peak_bytes());
    let (all, again) = (convolution_work(&written), convolution_work(&nested));
    println!("one written region {all:.3}, nested in 1800 MiB {again:.3}");
    assert!(again - all <= 0.34, "{all} and {again}");
}

/// The fewest convolutions to compute again on a chain of `n` layers with room for `m` activations
/// beside the input of the chain and the two gradients of a layer. A relu's gradient needs its result,
/// a convolution's its input. Either the first result stays, or that of layer `k` does, and the layers
/// before it are gone through later, the last of which has its result already.
fn optimum(layers: usize, room: usize) -> Vec<Vec<f64>> {
    let mut cost = vec![vec![f64::INFINITY; room + 1]; layers + 1];
    cost[0] = vec![0.0; room + 1];
    cost[1] = vec![0.0; room + 1];
    for n in 2..=layers {
        for m in 1..=room {
            let mut best = f64::INFINITY;
            for k in 1..n {
                best = best.min(cost[n - k][m - 1] + (k - 1) as f64 + cost[k][m]);
            }
            cost[n][m] = best;
        }
    }
    cost
}

#[test]
fn a_sweep_over_the_chain_is_monotone_and_near_the_optimum() {
    let graph = written(&blocks(PLAIN, ""));
    let mut curve = Curve::new(&graph, Target::Cpu);
    let plain = curve.plain().expect("a plan");
    let costs = optimum(128, 130);
    let unit = 49 * MIB;
    // Weights and biases, one gradient of a weight, the loss, the input and two gradients.
    let fixed = 128 * (4 * MIB + 4096) + 4 * MIB + 3 * unit + 256;
    assert_eq!(plain.peak_bytes, fixed + 127 * unit, "the model of the optimum");
    let lowest = 900 * MIB;
    // Of one convolution; element-wise ops that are computed again count as a part of one.
    let convolution = 2.0 * 64.0 * 196.0 * 1024.0 * 1024.0;
    let mut last: Option<Point> = None;
    for part in 0..20 {
        let budget = plain.peak_bytes - (plain.peak_bytes - lowest) * part / 19;
        let point = curve.fit(budget).expect("plans").expect("one fits");
        assert!(point.peak_bytes <= budget);
        if let Some(last) = last {
            assert!(point.peak_bytes <= last.peak_bytes && point.flops >= last.flops);
        }
        last = Some(point);
        let room = ((budget - fixed) / unit) as usize;
        let (found, best) = ((point.flops - plain.flops) / convolution, costs[128][room]);
        assert!(found <= best * 1.05 + 0.5, "{budget}: {found} convolutions, the optimum is {best}");
    }
}

#[test]
fn lower_peaks_of_the_same_graph_are_really_planned() {
    let graph = written(&programs()[0].1);
    let mut curve = Curve::new(&graph, Target::Cpu);
    let points = curve.points(None).expect("points");
    assert!(points.len() > 3);
    for pair in points.windows(2) {
        assert!(pair[0].peak_bytes > pair[1].peak_bytes && pair[0].flops <= pair[1].flops);
    }
    for point in points {
        let again = curve.graph_of(&point).expect("a graph");
        assert_eq!(again.regions.len(), point.regions);
        let plan = lower::plan(&again, "train", &tg::budget::quick(Target::Cpu)).expect("a plan");
        assert_eq!((plan.peak_bytes(), plan.flops), (point.peak_bytes, point.flops));
    }
}

fn small(statements: &str) -> String {
    format!(
        "use nn
use optim
let net = [nn.Linear(64, 64) for i in 0..6]
step train(x: f32[256, 64]) {{
  {statements}
  let y = x
  for l in net {{ y = relu(l(y)) }}
  let l = sum(y)
  minimize l over net with optim.sgd(lr: 0.1)
  return l
}}
"
    )
}

#[test]
fn budgets_that_cannot_be_met() {
    assert_eq!(
        messages(&small("budget 0")),
        "5: TG0347 no plan of `train` found within 0 B: the smallest peak is 370.0 KiB \
         | parameters and state take 97.5 KiB of it | all else takes 80.5 KiB then \
         | the parameters alone are larger: make the model or its dtype smaller"
    );
    let text = messages(&small("budget 300 kB"));
    assert!(text.contains("no plan of `train` found within 293.0 KiB"), "{text}");
    assert!(text.contains("`tg plan --budget-curve`"), "{text}");
    let forward = "step f(x: f32[1024, 1024]) {
  budget 1 MiB
  return sum(exp(x))
}";
    let text = messages(forward);
    assert!(text.contains("the step takes no gradient, so there is nothing"), "{text}");
    // Without gradients, a budget that fits is simply met.
    assert_eq!(messages(&forward.replace("1 MiB", "16 MiB")), "");
}

#[test]
fn budgets_that_are_written_wrong() {
    let cases = [
        ("budget 1 MiB\n  budget 2 MiB", "6: TG0233 a step has one `budget` | keep the smaller one"),
        ("budget net", "5: TG0210 a budget is a size in bytes, got a list | write `budget 4 GiB`"),
        (
            "budget -1",
            "5: TG0210 a budget is a size in bytes, got -1 bytes: it cannot be negative | write `budget 4 GiB`",
        ),
    ];
    for (statements, message) in cases {
        assert_eq!(messages(&small(statements)), message);
    }
    assert_eq!(
        messages(&small("ensure peak <= -1")),
        "5: TG0210 a peak is a size in bytes, got -1 bytes: it cannot be negative | write `ensure peak <= 4 GiB`"
    );
    let text = messages("budget 4 GiB");
    assert!(text.contains("`budget` outside of a step"), "{text}");
    let text = messages("step f(x: f32[4]) {\n  return checkpoint < { budget 1 MiB; x } >\n}");
    assert!(text.contains("`budget` inside of `checkpoint"), "{text}");
    // Elsewhere it is a name like others.
    assert_eq!(
        messages(
            "let budget = 3\nbudget = budget + 1\nprint(budget)\nfn f(budget) = budget\nprint(f(budget: 1))"
        ),
        ""
    );
}

#[test]
fn a_budget_and_a_contract() {
    assert_eq!(messages(&small("budget 480 KiB\n  ensure peak <= 480 KiB")), "");
    let text = messages(&small("budget 480 KiB\n  ensure peak <= 200 KiB"));
    assert!(text.starts_with("6: TG0340 the peak of `train` is"), "{text}");
    // A step whose size is open is not planned: its budget is not met.
    let text = messages("step f(x: f32[B]) {\n  budget 1 MiB\n  return x\n}");
    assert!(text.starts_with("2: TG0342"), "{text}");
}

/// Eight layers of two products, each layer a region with `options`, in functions that the region calls.
/// A value is 1 MiB, a weight 4 MiB.
fn layers(options: &str) -> String {
    format!(
        "use optim
use init
model Layer() {{
  param a: f32[1024, 1024] = init.normal(std: 0.01)
  param b: f32[1024, 1024] = init.normal(std: 0.01)
  fn inner(x) {{
    let h = name(x @ a, \"h\")
    exp(h)
  }}
  fn outer(x) {{
    let y = inner(x)
    let z = name(y @ b, \"z\")
    square(z)
  }}
}}
let net = [Layer() for i in 0..8]
step train(x: f32[256, 1024]) {{
  let y = x
  for l in net {{ y = {options} }}
  let l = mean(y)
  minimize l over net with optim.sgd(lr: 0.0)
  return l
}}
"
    )
}

/// Products and exponentials that are computed again, and the peak in MiB without parameters.
fn again(text: &str) -> (usize, usize, f64) {
    let plan = plan(text);
    let count = |is: fn(&Op) -> bool| {
        let forward = plan.graph.nodes().filter(|n| n.instance() != 0 && n.role() == Role::Forward);
        forward.filter(|n| is(n.op())).count()
    };
    let products = count(|op| matches!(op, Op::MatMul(_)));
    let exponentials = count(|op| matches!(op, Op::Unary(Unary::Exp)));
    (products, exponentials, plan.schedule.live_peak_bytes as f64 / MIB as f64)
}

#[test]
fn policies_and_kept_values_inside_of_called_functions() {
    // Plain, each layer keeps its input, the exponential and `z`; a region keeps its input and what is
    // selected. Beside that there are the values of the last layer, a gradient and that of a weight.
    let cases = [
        ("l.outer(y)", (0, 0, 29.0)),
        ("checkpoint < l.outer(y) >", (16, 8, 15.0)),
        ("checkpoint(policy: dots) < l.outer(y) >", (0, 8, 29.0)),
        ("checkpoint(policy: names(\"h\")) < l.outer(y) >", (8, 8, 22.0)),
        ("checkpoint(policy: names(\"z\")) < l.outer(y) >", (8, 8, 22.0)),
        ("checkpoint(policy: names(\"h\", \"z\")) < l.outer(y) >", (0, 8, 29.0)),
        ("checkpoint(keep: [z]) < { let z = l.inner(y) @ l.b; square(z) } >", (8, 8, 22.0)),
        // The outer region makes all again, the inner one what it did not keep of that.
        ("checkpoint < checkpoint(policy: dots) < l.outer(y) > >", (16, 16, 15.0)),
        // A policy is for the values of its own region.
        ("checkpoint(policy: dots) < checkpoint < l.outer(y) > >", (16, 8, 15.0)),
    ];
    for (options, (products, exponentials, peak)) in cases {
        let found = again(&layers(options));
        assert_eq!((found.0, found.1), (products, exponentials), "{options}");
        assert!((found.2 - peak).abs() < 0.01, "{options}: {}", found.2);
    }
}
