//! Regions: what they free, and what they must not change.

use tg::{
    diagnostic::Severity,
    engine::{Checked, CompileOptions, Engine, Source},
    ir::Phase,
    plan::{BufferKind, Plan},
};

use super::support::*;

#[test]
fn regions_of_one_layer_free_nothing() {
    // With few rows the peak is parameters and gradients, which no region changes.
    for (rows, code) in [("137", "TG0314"), ("35072", "TG0315")] {
        let checked = check_set("single_layers", &[("ROWS", rows)]);
        let d = find(&checked, code);
        assert_eq!(at(&checked, d.primary.span), "checkpoint < l(x) >");
        assert!(d.notes.iter().any(|n| n.starts_with("alive at the peak: ")), "{:?}", d.notes);
        fixed("single_layers", &[("ROWS", rows)], d);
    }
    // With many rows it is activations, and the regions add one: f32[35072, 256].
    let many = check_set("single_layers", &[("ROWS", "35072")]);
    assert!(savings(find(&many, "TG0315")).saves_bytes() >= 35072 * 256 * 4 - 256 * 256 * 4);
    let few = check_set("single_layers", &[("ROWS", "137")]);
    let s = savings(find(&few, "TG0314"));
    assert!(s.saves_bytes() * 100 < s.peak_before);
    let note = find(&few, "TG0314").notes.join("\n");
    assert!(note.contains("alive at the peak: params 2.0 MiB"), "{note}");
}

#[test]
fn one_region_around_everything_moves_the_peak() {
    let checked = check("one_region");
    let d = find(&checked, "TG0316");
    assert_eq!(at(&checked, d.primary.span), "checkpoint < net(x) >");
    // The fix: a region for each block instead.
    assert!(savings(d).peak_after * 5 < savings(d).peak_before * 3, "{:?}", savings(d));
    let after = fixed("one_region", &[], d);
    assert_eq!(after.graphs[0].1.regions.len(), 16);
}

#[test]
fn a_low_peak_because_nothing_was_computed() {
    let checked = check("cut_off");
    let d = find(&checked, "TG0341");
    assert!(d.message.contains("net.body.w"), "{}", d.message);
    let expected = "the peak of `train`, ";
    assert!(
        d.notes.iter().any(|n| n.starts_with(expected) && n.contains("without their gradients")),
        "{:?}",
        d.notes
    );
    assert!(places(&checked, d).iter().any(|p| p.contains("stop_grad")), "{:?}", places(&checked, d));
}

#[test]
fn recomputed_values_of_one_region_are_gone_before_the_next() {
    let checked = quiet("regions");
    let plan = &checked.plans[0];
    // Regions of 2, 4, 6 and 3 layers make as many activations of half a MiB; the last one is the next one's
    // input.
    let recompute: u64 = plan
        .schedule_graph
        .buffer_ids()
        .filter(|b| plan.buffers[b.0 as usize].kind == BufferKind::Recompute)
        .map(|b| plan.schedule_graph.buffer(b).bytes)
        .sum();
    assert!(recompute >= (1 + 3 + 5 + 2) * MIB / 2, "{recompute}");
    // Never more than the largest region makes.
    let live_at_once = most_alive(plan, BufferKind::Recompute);
    assert!(live_at_once <= 6 * MIB / 2, "{live_at_once}");
}

/// The most bytes of one kind that are alive together in the planned order.
fn most_alive(plan: &Plan, kind: BufferKind) -> u64 {
    use tg::plan::Instruction;
    let mut alive = std::collections::BTreeSet::new();
    let mut most = 0;
    for instruction in &plan.instructions {
        match instruction {
            Instruction::Exec(op) => {
                for made in plan.schedule_graph.makes(*op) {
                    if let Some(replaced) = plan.schedule.overwrites[made.0 as usize] {
                        alive.remove(&replaced.0);
                    }
                    alive.insert(made.0);
                }
                let of_kind = alive.iter().filter(|b| plan.buffers[**b as usize].kind == kind);
                most = most
                    .max(of_kind.map(|b| plan.schedule_graph.buffer(tg::schedule::BufferId(*b)).bytes).sum());
            }
            Instruction::Free(buffer) => {
                alive.remove(&buffer.0);
            }
        }
    }
    most
}

#[test]
fn state_in_a_region_is_written_once() {
    let checked = check("state");
    let d = find(&checked, "TG0320");
    assert_eq!(d.severity, Severity::Note);
    assert!(at(&checked, d.primary.span).starts_with("running := "), "{}", at(&checked, d.primary.span));
    assert!(places(&checked, d).iter().any(|p| p.starts_with("checkpoint <")));
    let writes = checked.plans[0].graph.nodes().filter(|n| n.op().name() == "write").count();
    // Five parameters and one state.
    assert_eq!(writes, 6);
}

#[test]
fn a_cache_in_a_region_is_appended_to_once() {
    let checked = check("cache");
    let d = find(&checked, "TG0320");
    assert!(at(&checked, d.primary.span).starts_with("cache := "), "{}", at(&checked, d.primary.span));
    assert!(places(&checked, d).iter().any(|p| p == "checkpoint < net(x) >"), "{:?}", places(&checked, d));
    // Two parameters and the cache, each written once; its shape is the same in both passes.
    let writes = checked.plans[0].graph.nodes().filter(|n| n.op().name() == "write").count();
    assert_eq!(writes, 3);
}

#[test]
fn regions_of_two_convolutions_lower_the_peak() {
    let with = |region: &str| {
        let changed = text("merged").replace("checkpoint(bind: none) < b(x) >", region);
        let checked = Engine::new().check(Source::text("program.tg", changed), &CompileOptions::default());
        assert!(checked.is_sound(), "{:?}", checked.diagnostics);
        checked
    };
    let (plain, regions) = (with("b(x)"), with("checkpoint < b(x) >"));
    let kept = |c: &Checked| {
        let buffers = c.plans[0].buffers.iter().filter(|b| b.kind == BufferKind::Activations);
        buffers.map(|b| b.dense_bytes).sum::<u64>()
    };
    // f32[8, 64, 14, 14] is kept twice for each of 16 blocks, and once with regions.
    let one = 8 * 64 * 14 * 14 * 4;
    assert!(kept(&plain) >= 31 * one && kept(&regions) <= 18 * one, "{} {}", kept(&plain), kept(&regions));
    assert!(peak(&plain) - peak(&regions) >= 12 * one, "{} {}", peak(&plain), peak(&regions));
}

#[test]
fn a_length_that_segments_divide_is_no_worse_than_one_more() {
    let peak_of = |n: &str| peak(&check_set("segments", &[("N", n)]));
    let (sixteen, seventeen) = (peak_of("16"), peak_of("17"));
    assert!(sixteen <= seventeen, "{sixteen} {seventeen}");
    // Four inputs of segments and what one segment makes, not the sixteen values of a plain loop.
    assert!(sixteen < 16 * MIB, "{sixteen}");
}

#[test]
fn adapters_in_regions_train() {
    let checked = check("adapters");
    assert!(!codes(&checked).contains(&"TG0341"), "{:?}", checked.diagnostics);
    let plan = &checked.plans[0];
    let written: Vec<&str> = plan
        .graph
        .nodes()
        .filter_map(|n| match n.op() {
            tg::ops::Op::Write(w) => Some(&*plan.graph.slots[w.slot.0 as usize].name),
            _ => None,
        })
        .collect();
    assert_eq!(written.len(), 8, "{written:?}");
    // The table is frozen: nothing scatters into it.
    assert!(plan.graph.nodes().all(|n| n.op().name() != "scatter_add"));
}

#[test]
fn less_memory_is_never_promised_and_not_kept() {
    for name in ["single_layers", "one_region", "masks", "merged", "logged", "casts"] {
        let checked = check(name);
        for d in checked.diagnostics.iter().filter(|d| d.savings().is_some()) {
            fixed(name, &[], d);
        }
    }
}

/// A value of the layers, and a weight.
const ROWS: u64 = 35072 * 256 * 4;
const WEIGHT: u64 = 256 * 256 * 4;
/// A single number.
const NUMBER: u64 = 256;

#[test]
fn what_regions_of_one_layer_and_of_two_really_take() {
    let of = |region: &str| {
        let text = text("single_layers").replace("ROWS = 137", "ROWS = 35072");
        check_text(&text.replace("checkpoint < l(x) >", region), None)
    };
    // The input of each layer, the weights, one gradient.
    assert_eq!(peak(&of("l(x)")), 8 * ROWS + 9 * WEIGHT + NUMBER);
    // Each region keeps its input, and the loss waits for the result of the last one: one value more.
    let one = of("checkpoint < l(x) >");
    assert_eq!(peak(&one), 9 * ROWS + 8 * WEIGHT + NUMBER);
    assert_eq!(savings(find(&one, "TG0315")).peak_after, 8 * ROWS + 9 * WEIGHT + NUMBER);
    // With relu in the region there is as much to keep, and nothing is promised but less work.
    let relu = of("checkpoint < relu(l(x)) >");
    let s = savings(find(&relu, "TG0314"));
    assert_eq!((s.peak_before, s.saves_bytes()), (peak(&relu), 0));
    // Two layers: what lies between them is made again. That is what a region is for.
    let two = check_set("two_layers", &[("ROWS", "35072")]);
    assert!(two.diagnostics.is_empty(), "{:?}", two.diagnostics);
    assert_eq!(peak(&two), 6 * ROWS + 8 * WEIGHT);
    assert!(worst(plan(&two, "train")) <= peak(&two) + WEIGHT + 4 * NUMBER);
}

#[test]
fn as_many_regions_as_the_root_of_the_depth() {
    let value = 2048 * 128 * 4;
    let peak_of = |parts: u64| {
        let checked = check_set("blocks", &[("PARTS", &parts.to_string())]);
        // The input of the regions needs no gradient; the parameters in them do.
        assert!(!codes(&checked).contains(&"TG0341"), "{:?}", checked.diagnostics);
        assert_eq!(codes(&checked).contains(&"TG0316"), parts == 1, "{:?}", checked.diagnostics);
        let plan = plan(&checked, "train");
        let writes = plan.graph.nodes().filter(|n| n.op().name() == "write").count();
        assert_eq!(writes, 32 * 4);
        (plan.schedule.arena_bytes, buffers_of(plan, BufferKind::Recompute).iter().sum::<u64>())
    };
    let (plain, _) = peak_of(0);
    for parts in [1, 6, 32] {
        let blocks = 32_u64.div_ceil(parts);
        // Inputs of regions, what the largest makes again (two values a block, and its result is there), two
        // temporaries and the input of the step; beside that one gradient and the loss.
        let values = (parts - 1) + (2 * blocks - 1) + 3;
        let (arena, recomputed) = peak_of(parts);
        assert!(arena - values * value <= 66 * 1024, "{parts}: {arena}");
        assert!(recomputed > 0);
        // One region around everything makes all of it again at once.
        assert_eq!(arena >= plain, parts == 1, "{parts}: {arena} {plain}");
    }
}

/// Figures for the doubling: https://github.com/pytorch/pytorch/issues/96136
#[test]
fn running_statistics_move_once_in_a_region() {
    let with = text("batch_norm");
    let without = with.replace("checkpoint < net(x) >", "net(x)");
    let names = ["net.norm.running_mean", "net.norm.running_var", "net.calls", "net.conv.w"];
    let (a, b) = (values_after(&with, &names), values_after(&without, &names));
    assert_eq!(a, b);
    assert_eq!(a[2], [3.0]);
    assert!(a[0].iter().any(|mean| *mean != 0.0));
}

#[test]
fn a_cache_in_a_region_holds_what_it_holds_without() {
    let calls = "\nfor i in 0..3 {\n  train(sin(reshape(f32(arange(4096)), [64, 64]) * (1.0 + i)))\n}\n";
    let with = text("cache").replace("ones()", "full(0.01)") + calls;
    let without = with.replace("checkpoint < net(x) >", "net(x)");
    let names = ["net.cache", "net.q", "net.k"];
    let cache = values_after(&with, &names);
    assert_eq!(cache, values_after(&without, &names));
    assert!(cache[0].iter().all(|x| *x != 0.0), "two of three calls are in it");
}

/// A cast that the surroundings ask for is the same when the region is computed again.
#[test]
fn casts_that_the_surroundings_ask_for_are_those_of_the_forward_pass() {
    let program = |open: &str, close: &str| {
        let model = "use nn\nuse optim\nmodel Net() {\n  let a = nn.Linear(16, 16)\n  let b = nn.Linear(16, 16)\n  \
                     fn forward(x) = tanh(b(tanh(a(x))))\n}\nlet net = Net()\n";
        let step = format!(
            "step train(x: f32[32, 16]) {{\n  let y = x\n  with compute: bf16 {{ y = {open}net(x){close} }}\n  \
             let loss = mean(square(f32(y)))\n  minimize loss over net with optim.sgd(lr: 0.1)\n  return loss\n}}\n"
        );
        let calls = "for i in 0..3 { train(sin(reshape(f32(arange(512)), [32, 16]))) }\n";
        values_after(&format!("{model}{step}{calls}"), &["net.a.w", "net.b.w", "net.b.b"])
    };
    let plain = program("", "");
    assert_eq!(program("checkpoint < ", " >"), plain);
    assert_eq!(program("checkpoint(policy: dots) < ", " >"), plain);
}

#[test]
fn nothing_is_made_for_an_input_that_needs_no_gradient() {
    let checked = check("adapters");
    let graph = &plan(&checked, "train").graph;
    let products = |backward: bool| {
        let is_it = |n: &tg::ir::Node<'_>| {
            n.op().name() == "matmul" && (n.role().phase() == Phase::Backward) == backward
        };
        graph.nodes().filter(is_it).count()
    };
    // Of each of four layers: the gradient of the middle of the adapter, of both of its matrices, and, but for
    // the first layer, that of the input along both ways.
    assert_eq!(products(true), 4 * 3 + 3 * 2);
    // Three in each pass; the result of the last one in each region is not made again where nobody asks.
    assert!(products(false) <= 2 * 4 * 3, "{}", products(false));
}
