//! What a model that is spread over the ranks takes of each: the figures of the examples, in the planned
//! order and in every legal one.

use tg::{
    diagnose,
    engine::{Checked, CompileOptions, Engine, Source},
};

const MIB: u64 = 1 << 20;

fn example(name: &str) -> String {
    let path = format!("{}/examples/{name}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn check(world: u32, text: &str) -> Checked {
    let memory = diagnose::Options { fixes: true, all: true, library_frames: false };
    let options = CompileOptions { memory: Some(memory), world: Some(world), ..CompileOptions::default() };
    let checked = Engine::new().check(Source::text("fsdp.tg", text), &options);
    assert!(checked.is_sound(), "{:?}", checked.diagnostics);
    checked
}

/// The peak and the worst legal order of the only step.
fn figures(checked: &Checked) -> (u64, u64) {
    let plan = checked.plans.first().expect("a plan");
    let worst = tg::schedule::worst_order(&plan.schedule_graph, &Default::default()).bytes;
    (plan.peak_bytes(), plan.persistent_bytes + worst)
}

#[test]
fn the_example_on_one_rank_and_on_four() {
    let text = example("fsdp.tg");
    let (one, _) = figures(&check(1, &text));
    assert!(one <= 115 * MIB, "{one}");
    let checked = check(4, &text);
    let (four, worst) = figures(&checked);
    assert!(four <= 95 * MIB, "{four}");
    assert!(worst <= 100 * MIB, "{worst}");
    let plan = checked.plans.first().expect("a plan");
    assert_eq!(plan.peak_bytes(), plan.lower_bound_bytes(), "the peak is proved");
    let ahead = text.replace("over world", "over world, prefetch: 1");
    let ahead = ahead.replace("ensure peak <= 100 MiB in every schedule", "");
    let (peak, worst) = figures(&check(4, &ahead));
    assert!(peak <= 140 * MIB, "{peak}");
    assert!(worst > 100 * MIB, "units may be gathered ahead: {worst}");
}

/// Without `flat` the same parts are there, one vector for each parameter.
#[test]
fn parameters_by_themselves() {
    let text = example("fsdp.tg").replace("shard flat", "shard");
    let text = text.replace("ensure peak <= 100 MiB in every schedule", "");
    let (four, _) = figures(&check(4, &text));
    assert!(four <= 95 * MIB, "{four}");
}

/// Returned views keep gathered vectors: what is said about them, and what it would save.
#[test]
fn returned_views() {
    let text = example("fsdp_views.tg");
    let found = |text: &str| {
        let checked = check(4, text);
        let diagnostic = checked.diagnostics.iter().find(|d| d.code.0 == "TG0334").cloned();
        diagnostic.unwrap_or_else(|| panic!("{:?}", checked.diagnostics))
    };
    let saves = |diagnostic: &tg::diagnostic::Diagnostic| {
        let savings = diagnostic.fixes.first().and_then(|fix| fix.savings).expect("a fix");
        ((savings.peak_before - savings.peak_after) as f64 / MIB as f64).round() as u64
    };
    let both = found(&text);
    assert_eq!(saves(&both), 100, "{both:?}");
    let notes = both.notes.join("\n");
    for name in ["net.layers.0.linears.0.w", "net.layers.1.linears.0.w"] {
        assert!(notes.contains(name), "{notes}");
    }
    let one = found(&text.replace("return loss, one, other", "return loss, one"));
    assert_eq!(saves(&one), 50, "{one:?}");
    // A copy is no way out, and the program without the views has nothing to report.
    let quiet = check(4, &text.replace("return loss, one, other", "return loss"));
    assert!(quiet.diagnostics.iter().all(|d| d.code.0 != "TG0334"), "{:?}", quiet.diagnostics);
}

/// One returned view is copied by the plan itself where that is cheaper than the vector.
#[test]
fn one_returned_view_is_copied() {
    let text = example("fsdp_views.tg").replace("return loss, one, other", "return loss, one[0]");
    let (peak, _) = figures(&check(4, &text));
    assert!(peak <= 97 * MIB, "{peak}");
}

/// What the ranks send: each unit is gathered for the forward pass and again for the backward pass, the
/// last one once, and its gradients are reduced.
#[test]
fn what_the_ranks_send() {
    let checked = check(4, &example("fsdp.tg"));
    let plan = checked.plans.first().expect("a plan");
    let ranks = tg::report::plan::ranks(plan).expect("collectives");
    let part = 1280 * 1280 * 8 * 4 / 4 * 3;
    assert_eq!((ranks.world, ranks.padding_bytes), (4, 0));
    assert_eq!((ranks.all.count, ranks.all.bytes), (5, 5 * part), "three gathers and two sums");
    let odd = check(3, &example("fsdp.tg").replace("1280", "5"));
    let ranks = tg::report::plan::ranks(odd.plans.first().expect("a plan")).expect("collectives");
    // 200 elements in each of two units, on 3 ranks 201.
    assert_eq!(ranks.padding_bytes, 2 * 4 / 3);
}

/// The example with another step.
fn with_step(step: &str) -> String {
    let text = example("fsdp.tg");
    let models = text.split("step train").next().expect("the models");
    format!("{models}{step}")
}

/// Without a backward pass a unit is free after its use.
#[test]
fn a_forward_pass_frees_what_it_gathers() {
    let text = with_step("step eval(x: f32[64, 1280]) { return sum(net(x)) }");
    let (peak, worst) = figures(&check(4, &text));
    assert!(peak <= 77 * MIB, "{peak}");
    assert!(worst <= 80 * MIB, "{worst}");
}

/// Gradients of micro-batches add up in parts: a quarter of what each rank would keep of whole ones.
#[test]
fn micro_batches_add_up_parts() {
    let text = with_step(
        "step train(x: f32[128, 1280]) {
  let g = 0
  for mx in microbatches(x, 2) { g += grad(sum(net(mx)), net) }
  update net with optim.sgd(lr: 0.1), g
}",
    );
    let (peak, _) = figures(&check(4, &text));
    // The parts of the parameters and of the sums, a vector of gradients and its part, activations.
    assert!(peak <= 125 * MIB, "{peak}");
}
