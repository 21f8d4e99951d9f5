//! Bytes for each parameter, moving means, and what every figure says.

use tg::{
    engine::{CompileOptions, Engine, Source},
    plan::BufferKind,
};

use super::support::*;

#[test]
fn bytes_per_parameter_add_up() {
    let checked = quiet("mixed");
    let plan = &checked.plans[0];
    let parameters = 2 * 512 * 512;
    let of = |kind| {
        let slots =
            plan.buffers.iter().filter(|b| b.kind == kind && matches!(b.home, tg::plan::Home::Slot(_)));
        slots.map(|b| b.dense_bytes).sum::<u64>()
    };
    // Two bytes for a weight; four each for the master copy and both moments.
    assert_eq!(of(BufferKind::Params), 2 * parameters);
    assert_eq!(of(BufferKind::State), 12 * parameters);
    assert_eq!(plan.persistent_bytes, 14 * parameters);
    assert_eq!(peak(&checked), plan.persistent_bytes + plan.schedule.arena_bytes);
}

#[test]
fn a_mean_of_frozen_parameters_is_another_copy_of_them() {
    let checked = check("ema");
    let d = find(&checked, "TG0340");
    let note = "alive at the peak: `net.table_mean` (f32[1024, 256], 1.0 MiB), made on line 18, there before and after the step";
    assert!(d.notes.iter().any(|n| n == note), "{:?}", d.notes);
    // Without the mean of what is frozen: its MiB, and nothing else.
    let changed: String =
        text("ema").lines().filter(|l| !l.contains("table_mean")).map(|l| l.to_owned() + "\n").collect();
    let after = Engine::new().check(Source::text("program.tg", changed), &CompileOptions::default());
    assert!(peak(&checked) - peak(&after) >= MIB, "{} {}", peak(&checked), peak(&after));
}

#[test]
fn every_figure_says_of_which_step_and_when() {
    let names = ["single_layers", "one_region", "masks", "merged", "logged", "casts"];
    for name in names {
        let checked = check(name);
        for d in checked.diagnostics.iter().filter(|d| d.savings().is_some()) {
            let note = d.notes.iter().find(|n| n.starts_with("the peak of `train`, "));
            assert!(
                note.is_some_and(|n| n.contains("is at op ") && n.ends_with("in the planned order")),
                "{d:?}"
            );
        }
    }
}

/// 14 bytes for a parameter where gradients are used up one by one, 16 where they are clipped together, 18 where
/// they are added up in f32: people count all three (https://github.com/NVIDIA/Megatron-LM/issues/654).
#[test]
fn bytes_per_parameter_depend_on_what_happens_to_gradients() {
    let checked = check("mixed_layers");
    let layer = 1024 * 1024;
    // One layer's gradients and what it works with.
    let work = 6 * layer;
    for (step, bytes) in [("one_by_one", 14), ("clipped", 16), ("sums", 18)] {
        let plan = plan(&checked, step);
        assert_eq!(plan.persistent_bytes, 14 * 16 * layer);
        let all = bytes * 16 * layer;
        let peak = plan.peak_bytes();
        assert!(all <= peak && peak <= all + work, "{step}: {peak}");
        let report = tg::report::plan::report(plan, &checked.sources);
        assert_eq!(report.by_kind.iter().map(|(_, bytes)| bytes).sum::<u64>(), peak);
        let of = |kind: &str| report.by_kind.iter().find(|(k, _)| *k == kind).map_or(0, |(_, bytes)| *bytes);
        assert_eq!((of("params"), of("state")), (2 * 16 * layer, 12 * 16 * layer), "{step}");
    }
    let d = find(&checked, "TG0308");
    assert!(d.message.contains("16 parameters, 32.0 MiB in bf16"), "{}", d.message);
}

#[test]
fn a_mean_of_frozen_parameters_is_named() {
    let checked = check_text(&text("ema").replace("  ensure peak <= 2 MiB\n", ""), None);
    let d = find(&checked, "TG0323");
    let expected = "`net.table_mean` follows `net.table`, which is frozen: f32[1024, 256], 1.0 MiB, for another copy of what never changes";
    assert_eq!(d.message, expected);
    // The mean of what is trained is not one.
    assert_eq!(checked.diagnostics.iter().filter(|d| d.code.0 == "TG0323").count(), 1);
    assert_eq!(savings(d).saves_bytes(), MIB);
}

/// What the first step makes is counted before it: the plan of every call is one.
#[test]
fn the_first_step_is_like_all_others() {
    let text = "use nn\nuse optim\nlet net = nn.Linear(256, 256, bias: false)\n\
                step train(x: f32[64, 256]) {\n  let loss = mean(square(net(x)))\n  \
                minimize loss over net with optim.adamw(lr: 0.1)\n  return loss\n}\n";
    let program = Engine::new().compile(Source::text("program.tg", text)).unwrap();
    let plan = program.plan("train").expect("it is planned").clone();
    // The weight, and two states that no step has made yet.
    assert_eq!(plan.persistent_bytes, 3 * 256 * 256 * 4);
    let report = tg::report::plan::report(&plan, program.sources());
    let of = |kind: &str| report.by_kind.iter().find(|(k, _)| *k == kind).map_or(0, |(_, bytes)| *bytes);
    assert_eq!((of("params"), of("state")), (256 * 256 * 4, 2 * 256 * 256 * 4));
}
