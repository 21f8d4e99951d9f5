//! What runs when: recomputes that merge or run early, gradients that wait, barriers.

use super::support::*;

#[test]
fn a_recompute_that_merges_with_the_forward_pass() {
    let checked = check("merged");
    let d = find(&checked, "TG0310");
    assert_eq!(at(&checked, d.primary.span), "none");
    let s = savings(d);
    assert!(s.peak_after * 3 < s.peak_before * 2, "{s:?}");
    fixed("merged", &[], d);
}

#[test]
fn a_recompute_that_may_run_too_early() {
    let checked = check("too_early");
    let d = find(&checked, "TG0310");
    let s = savings(d);
    // The chosen order is good; what is legal is not.
    assert!(s.peak_after.abs_diff(s.peak_before) * 1000 <= s.peak_before, "{s:?}");
    assert!(s.worst_after * 2 < s.worst_before, "{s:?}");
}

#[test]
fn weight_gradients_that_may_be_deferred() {
    let checked = check("deferred");
    let d = find(&checked, "TG0311");
    let s = savings(d);
    assert!(s.peak_after.abs_diff(s.peak_before) * 1000 <= s.peak_before, "{s:?}");
    assert!(s.worst_after * 2 < s.worst_before, "{s:?}");
}

#[test]
fn a_barrier_at_the_end_orders_nothing() {
    let checked = check("barrier_at_the_end");
    let d = find(&checked, "TG0317");
    assert_eq!(at(&checked, d.primary.span), "barrier(x)");
    let s = savings(d);
    assert_eq!((s.peak_before, s.worst_before), (s.peak_after, s.worst_after));
}

#[test]
fn gradients_pass_barriers() {
    let checked = check("barrier_gradient");
    assert!(!codes(&checked).contains(&"TG0341"), "{:?}", checked.diagnostics);
}

/// The blocks of https://github.com/pytorch/xla/issues/3638: one value is 49 MiB.
#[test]
fn a_recompute_that_merges_keeps_all_of_64_blocks() {
    let with = |region: &str| {
        let text = text("merged").replace("Conv2d(64, 64", "Conv2d(1024, 1024").replace("0..16", "0..64");
        let text = text.replace("f32[8, 64, 14, 14]", "f32[64, 1024, 14, 14]");
        check_text(&text.replace("checkpoint(bind: none) < b(x) >", region), None)
    };
    let plain = with("b(x)");
    let merged = with("checkpoint(bind: none) < b(x) >");
    let tied = with("checkpoint < b(x) >");
    // 6886.5 MiB, with and without: the recompute is not there.
    let number = 256;
    assert_eq!((peak(&plain), peak(&merged)), (13773 * MIB / 2 + number, 13773 * MIB / 2 + number));
    assert!(plan(&merged, "train").graph.nodes().all(|n| n.instance() == 0));
    // The input of each block in place of both of its values.
    assert_eq!(peak(&tied), peak(&plain) - 63 * 49 * MIB + number);
    let d = find(&merged, "TG0310");
    assert_eq!((savings(d).peak_before, savings(d).peak_after), (peak(&merged), peak(&tied)));
    assert!(worst(plan(&tied, "train")) <= peak(&tied) + MIB);
}

#[test]
fn a_barrier_that_holds_the_input_only_and_one_that_holds_the_gradient_too() {
    let with = |bound: &str| check_text(&text("by_hand").replace("(inputs[i], g)", bound), None);
    let none = with("(inputs[i], g)");
    assert!(none.diagnostics.is_empty(), "{:?}", none.diagnostics);
    // A value of a MiB for each block is made again, but nothing makes that wait for the gradient.
    let alone = check_text(
        &text("by_hand")
            .replace("let input, here = (inputs[i], g)", "let input = barrier(inputs[i])")
            .replace("input, here)", "input, g)"),
        None,
    );
    assert_eq!(peak(&none) - peak(&alone), 7 * MIB);
    assert_eq!(worst(plan(&alone, "train")), worst(plan(&none, "train")));
    let s = savings(find(&alone, "TG0312"));
    assert!(s.worst_after * 2 < s.worst_before, "{s:?}");
    let both = with("barrier(inputs[i], g)");
    assert!(both.diagnostics.is_empty(), "{:?}", both.diagnostics);
    assert_eq!(peak(&both), peak(&alone));
    // At the end it orders nothing, wherever in an expression it stands.
    let end = text("by_hand").replace("square(inputs[-1])", "square(barrier(inputs[-1]))");
    let end = check_text(&end, None);
    assert_eq!(at(&end, find(&end, "TG0317").primary.span), "barrier(inputs[-1])");
    assert_eq!(peak(&end), peak(&none));
}

/// First and second derivatives, beside an operand of whole numbers.
#[test]
fn derivatives_of_all_orders_pass_barriers() {
    let with = |bound: &str| {
        let text = format!(
            "model Net() {{\n  param w: f64[3, 3] = init_w()\n  state first: f64[3, 3] = zeros()\n  \
             state second: f64[3, 3] = zeros()\n}}\nfn init_w() = reshape(sin(f64(arange(9))), [3, 3])\n\
             let net = Net()\n\
             step both(x: f64[3, 3], k: i32[3]) {{\n  let y, z, i = {bound}\n  \
             let g = grad(sum(tanh(y) * z * f64(i)), net.w)\n  net.first := g\n  \
             net.second := grad(sum(g * g), net.w)\n}}\n\
             both(cos(reshape(f64(arange(9)), [3, 3])), tensor([1, 2, 3], dtype: i32))\n"
        );
        values_after(&text, &["net.first", "net.second"])
    };
    let bound = with("barrier(x @ net.w, x, k)");
    assert_eq!(bound, with("(x @ net.w, x, k)"));
    assert!(bound.iter().flatten().all(|d| d.is_finite() && *d != 0.0), "{bound:?}");
}

/// Each layer has a gradient that may wait with what it needs: 16 MiB, since its input is there anyway. Sizes
/// from a simulation of https://github.com/openxla/xla/pull/45753, with 32 layers.
#[test]
fn what_waits_for_weight_gradients_is_counted() {
    let text = "use nn
use optim
model Net() {
  let layers = [nn.Linear(1024, 1024, bias: false) for i in 0..32]
  fn forward(x) {
    for l in layers { x = l(x) }
    x
  }
}
let net = Net()
step train(x: f32[4096, 1024]) {
  let loss = sum(square(net(x)))
  minimize loss over net with optim.sgd(lr: 0.1)
  return loss
}
";
    let checked = check_text(text, None);
    // A plan that does it well needs no warning.
    assert!(checked.diagnostics.is_empty(), "{:?}", checked.diagnostics);
    // 32 weights, 33 values, and 16 MiB for what is worked out.
    assert_eq!(peak(&checked) / MIB, 32 * 4 + 33 * 16 + 16);
    assert_eq!(worst(plan(&checked, "train")) / MIB, 32 * 4 + 33 * 16 + 16 + 32 * 16);
    let limited = text.replace("  minimize", "  ensure peak <= 700 MiB in every schedule\n  minimize");
    let checked = tg::engine::Engine::new()
        .check(tg::engine::Source::text("program.tg", limited), &tg::engine::CompileOptions::default());
    let d = find(&checked, "TG0344");
    assert!(d.message.contains("1184.0 MiB, over the 700.0 MiB"), "{}", d.message);
    assert!(d.notes.iter().any(|n| n.contains("512.0 MiB (31 x `matmul`")), "{:?}", d.notes);
    assert!(d.help.iter().any(|h| h.contains("688.0 MiB, the best one 672.0 MiB")), "{:?}", d.help);
}

/// The same by hand: a barrier of both gradients of a layer makes the next one wait.
#[test]
fn a_barrier_of_both_gradients_of_a_layer_holds_the_next_one_back() {
    let with = |bound: &str| {
        let text =
            text("by_hand").replace("let grads, back = pullback", "let grads_made, back_made = pullback");
        check_text(&text.replace("    update", &format!("    let grads, back = {bound}\n    update")), None)
    };
    let (free, held) = (with("(grads_made, back_made)"), with("barrier(grads_made, back_made)"));
    assert_eq!(peak(&free), peak(&held));
    let (free, held) = (worst(plan(&free, "train")), worst(plan(&held, "train")));
    assert!(held - peak(&with("barrier(grads_made, back_made)")) <= 3 * MIB, "{held}");
    assert!(free - held >= 12 * MIB, "{free} {held}");
}
