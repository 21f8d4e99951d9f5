//! Where results are put: updates in place, views, refusals, releases.

use tg::plan::{BufferKind, Kernel, RefusalReason};

use super::support::*;

#[test]
fn reading_before_an_update_costs_no_copy() {
    let checked = quiet("read_then_update");
    let plan = &checked.plans[0];
    assert!(plan.kernels.iter().all(|k| !matches!(k, Kernel::Copy { .. })));
    // The matrix, and next to nothing beside it.
    assert!(peak(&checked) < 4_000_000 + 4096, "{}", peak(&checked));
}

#[test]
fn a_release_that_is_not_true_is_an_error() {
    let checked = check("release");
    let d = find(&checked, "TG0206");
    let lines: Vec<usize> =
        std::iter::once(&d.primary).chain(&d.secondary).map(|l| checked.sources.start(l.span).line).collect();
    assert_eq!(lines[..2], [6, 5]);
}

#[test]
fn carried_state_has_one_buffer() {
    let checked = quiet("carry");
    let plan = &checked.plans[0];
    assert!(plan.kernels.iter().all(|k| !matches!(k, Kernel::Copy { .. })));
    // Two states and one input of a MiB each.
    assert_eq!(peak(&checked), 3 * MIB);
}

#[test]
fn a_broadcast_has_the_bytes_of_its_base() {
    let checked = check("broadcast");
    assert!(checked.is_sound(), "{:?}", checked.diagnostics);
    let plan = &checked.plans[0];
    // Nothing of the repeated row's 4 MiB: what is kept for the backward pass are the row and, of the
    // step's own shape, one value of the forward pass.
    let row = plan.schedule_graph.buffer_ids().filter(|b| {
        let value = plan.buffers[b.0 as usize].value;
        plan.graph.ty(value).shape() == [1024]
    });
    let sizes: Vec<u64> = row.map(|b| plan.schedule_graph.buffer(b).bytes).collect();
    assert!(!sizes.is_empty() && sizes.iter().all(|&bytes| bytes == 4096), "{sizes:?}");
    assert!(peak(&checked) < 12 * MIB + 64 * 1024, "{}", peak(&checked));
    assert!(codes(&checked).is_empty(), "{:?}", checked.diagnostics);
}

#[test]
fn relu_keeps_one_value() {
    let checked = quiet("relu");
    let plan = &checked.plans[0];
    // Four outputs of a MiB: not the values before the relu, and not those between two of them.
    let kept: u64 = plan
        .schedule_graph
        .buffer_ids()
        .filter(|b| plan.buffers[b.0 as usize].kind == BufferKind::Activations)
        .map(|b| plan.schedule_graph.buffer(b).bytes)
        .sum();
    assert!(kept <= 8 * MIB, "{kept}");
}

#[test]
fn why_state_cannot_be_updated_in_place() {
    let checked = check("donation");
    let d = find(&checked, "TG0313");
    assert_eq!(at(&checked, d.primary.span), "net.w := 0.9 * old + 0.1 * x");
    assert!(places(&checked, d).iter().any(|p| p == "net.w @ old"), "{:?}", places(&checked, d));
    assert!(d.primary.text.contains("f32[1024, 1024], 4.0 MiB"), "{}", d.primary.text);
    // No change of the text could save it, so none is offered.
    assert!(d.fixes.is_empty());
}

/// The matrix of https://github.com/jax-ml/jax/issues/25399, 381.5 MiB, of which one element is read: before the
/// update, after it, and where the update is of that element only.
#[test]
fn reading_an_element_costs_no_copy_in_any_order() {
    let checked = check_text(
        "model Net() { state m: f32[10000, 10000] = zeros() }
let net = Net()
step before() {
  let y = net.m[0, 0]
  net.m := net.m + (y + 1.0)
  return y
}
step after() {
  let old = net.m
  net.m := net.m + 1.0
  return old[0, 0]
}
step one() {
  let y = net.m[0, 0]
  let is_first = reshape(arange(10000), [10000, 1]) + arange(10000) == 0
  net.m := where(is_first, y + 1.0, net.m)
  return y
}
",
        None,
    );
    assert!(checked.diagnostics.is_empty(), "{:?}", checked.diagnostics);
    for step in ["before", "after", "one"] {
        let plan = plan(&checked, step);
        assert!(plan.peak_bytes() < 400_000_000 + 100_000, "{step}: {}", plan.peak_bytes());
        assert!(worst(plan) < 400_000_000 + 100_000, "{step}");
    }
    // What is read is the old value all the same.
    let text = "model Net() { state m: f32[10, 10] = full(3.0)\n  state seen: f32[1] = zeros() }
let net = Net()
step after() {
  let old = net.m
  net.m := net.m + 1.0
  net.seen := reshape(old[0, 0], [1])
}
after()
after()
";
    assert_eq!(values_after(text, &["net.seen", "net.m"]), [vec![4.0], vec![5.0; 100]]);
}

/// Steps of a loop in a step take turns in the same buffers, also where a flag decides whether anything changes.
#[test]
fn a_carried_value_has_one_buffer_however_often_it_is_updated() {
    for passes in 1..=3 {
        let checked = check_text(
            &format!(
                "model Net() {{
  state w: f32[1024, 1024] = ones()
  state m: f32[1024, 1024] = zeros()
  state v: f32[1024, 1024] = zeros()
}}
let net = Net()
step always(g: f32[1024, 1024]) {{
  for i in 0..{passes} {{
    net.m := 0.9 * net.m + g
    net.v := 0.99 * net.v + g * g
    net.w := net.w - 0.1 * net.m / (sqrt(net.v) + 1e-8)
  }}
}}
step sometimes(g: f32[1024, 1024], p: bool[]) {{
  for i in 0..{passes} {{
    net.m := where(p, 0.9 * net.m + g, net.m)
    net.v := where(p, 0.99 * net.v + g * g, net.v)
    net.w := where(p, net.w - 0.1 * net.m / (sqrt(net.v) + 1e-8), net.w)
  }}
}}
"
            ),
            None,
        );
        assert!(checked.diagnostics.is_empty(), "{:?}", checked.diagnostics);
        // Three states and one input.
        for step in ["always", "sometimes"] {
            let peak = plan(&checked, step).peak_bytes();
            assert!(peak <= 16 * MIB + 256, "{passes}: {peak}");
        }
    }
}

/// A value that others still read is not written over, in whichever order things are written.
#[test]
fn relu_before_and_after_a_sum_gives_what_a_condition_gives() {
    let with = |layer: &str| {
        let text = format!(
            "use nn\nuse optim\nmodel Net() {{ let layers = [nn.Linear(16, 16) for i in 0..3] }}\nlet net = Net()\n\
             step train(x: f32[8, 16]) {{\n  for l in net.layers {{ {layer} }}\n  let loss = mean(square(x))\n  \
             minimize loss over net with optim.sgd(lr: 0.1)\n  return loss\n}}\n\
             for i in 0..3 {{ train(sin(reshape(f32(arange(128)), [8, 16]))) }}\n"
        );
        values_after(&text, &["net.layers.0.w", "net.layers.2.b"])
    };
    let after = with("let r = relu(l(x)); r += x; x = r");
    assert_eq!(after, with("let y = l(x); let r = where(y > 0.0, y, 0.0); x = r + x"));
    let before = with("let r = l(x); r += x; x = relu(r)");
    assert_eq!(before, with("let y = l(x) + x; x = where(y > 0.0, y, 0.0)"));
    assert_ne!(after, before);
    let twice = with("x = relu(relu(l(x)))");
    assert_eq!(twice, with("x = relu(l(x))"));
}

/// Why a result is not where an operand was: another dtype, a later reader; states that change places.
#[test]
fn a_result_that_takes_no_place_has_a_reason() {
    let checked = check_text(
        "model Net() {
  state w: f32[1024, 1024] = ones()
  state m: f32[1024, 1024] = ones()
}
let net = Net()
step both(x: f32[1024, 1024]) {
  net.w := 0.9 * net.w + 0.1 * x
  net.m := net.m + net.w
}
step narrow(x: f32[1024, 1024]) {
  let a = exp(x)
  return bf16(a), sum(a @ a)
}
step exchange() {
  let old = net.w
  net.w := net.m
  net.m := old
}
step one_value(x: f32[1024, 1024]) {
  net.w := x
  net.m := x
}
",
        None,
    );
    // In place, both; and so is one value for two states: each takes its copy.
    for step in ["both", "one_value"] {
        assert_eq!(plan(&checked, step).peak_bytes(), 12 * MIB, "{step}");
    }
    let refused = plan(&checked, "narrow").refused();
    assert!(refused.iter().any(|r| r.reason == RefusalReason::Size), "{refused:?}");
    let d = find(&checked, "TG0313");
    let expected = "`net.m` is not updated in place: its old value is read when the new one is there already";
    assert_eq!(d.message, expected);
    assert_eq!(plan(&checked, "exchange").peak_bytes(), 12 * MIB);
}

#[test]
fn a_step_that_changes_nothing_is_there_for_its_results() {
    let text = "step f(x: f32[1024, 1024], y: f32[1024, 1024]) {\n  return 2.0 * x, bf16(y)\n}\n";
    let checked = check_text(text, None);
    assert!(checked.diagnostics.is_empty(), "{:?}", checked.diagnostics);
}
