//! The examples, as a user would run them: planned at full size, run at a size that fits.

use std::{collections::BTreeSet, path::Path, process::Command};

use serde_json::Value;
use tg::{
    engine::{Engine, Source},
    ir::Node,
    ops::{Barrier, BarrierKind, Op},
    plan::{Access, Home, Instruction, Kernel},
};

/// What `tg ARGS… examples/FILE SETS…` prints; it has to succeed.
fn tg(args: &[&str], file: &str, sets: &[&str]) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples").join(file);
    let mut command = Command::new(env!("CARGO_BIN_EXE_tg"));
    command.args(args).arg(path);
    for set in sets {
        command.args(["--set", set]);
    }
    let output = command.output().expect("the command starts");
    assert!(
        output.status.success(),
        "tg {args:?} {file} {sets:?} failed:\n{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).expect("output is UTF-8")
}

/// The plan of the step `train`.
fn plan(file: &str) -> Value {
    let printed = tg(&["plan", "--json"], file, &[]);
    let plans: Value = serde_json::from_str(&printed).expect("the plan is JSON");
    let steps = plans.get("steps").and_then(Value::as_array).expect("there are steps");
    let train = steps.iter().find(|s| s.get("name").and_then(Value::as_str) == Some("train"));
    train.expect("there is a step `train`").clone()
}

fn bytes(plan: &Value, field: &str) -> u64 {
    plan.get(field).and_then(Value::as_u64).unwrap_or_else(|| panic!("`{field}` is missing"))
}

/// Asserts that the peak is at most `mib` and within 0.05 % of its lower bound.
fn assert_optimal(file: &str, mib: u64) {
    let plan = plan(file);
    let (peak, bound) = (bytes(&plan, "peak_bytes"), bytes(&plan, "lower_bound_bytes"));
    assert!(peak <= mib << 20, "{file}: the peak is {peak} bytes");
    assert!(bound <= peak && (peak - bound) * 2000 <= peak, "{file}: peak {peak}, bound {bound}");
    let by_kind = plan.get("by_kind").and_then(Value::as_object).expect("there is `by_kind`");
    let sum: u64 = by_kind.values().filter_map(Value::as_u64).sum();
    assert_eq!(sum, peak, "{file}: the kinds add up to the peak");
}

/// Asserts that the peak is at most `mib`, and that no schedule needs less.
fn assert_exact(file: &str, mib: u64) {
    assert_optimal(file, mib);
    let plan = plan(file);
    assert_eq!(bytes(&plan, "peak_bytes"), bytes(&plan, "lower_bound_bytes"), "{file}");
}

#[test]
fn blocks_reach_their_bound() {
    assert_exact("blocks.tg", 3850);
}

#[test]
fn plain_blocks_reach_their_bound() {
    assert_exact("blocks_plain.tg", 6890);
}

#[test]
fn the_plan_of_blocks_computes_63_blocks_again_and_commits_all_parameters() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/blocks.tg");
    let program = Engine::new().compile(Source::file(path).expect("it can be read")).expect("it is sound");
    let plan = program.plan("train").expect("there is a step `train`");
    let executed: Vec<usize> = plan
        .instructions
        .iter()
        .filter_map(|instruction| match instruction {
            Instruction::Exec(op) => Some(op.0 as usize),
            Instruction::Free(_) => None,
        })
        .collect();
    let distinct: BTreeSet<&usize> = executed.iter().collect();
    assert_eq!((executed.len(), distinct.len()), (plan.kernels.len(), plan.kernels.len()));

    let is_recompute =
        |node: &Node| matches!(node.op(), Op::Barrier(Barrier { kind: BarrierKind::Recompute }));
    assert_eq!(plan.graph.nodes().filter(is_recompute).count(), 63);

    // The slots that kernels write.
    let mut committed = BTreeSet::new();
    for &op in &executed {
        let written: Vec<&Access> = match &plan.kernels[op] {
            Kernel::Node { results, .. } => results.iter().collect(),
            Kernel::Elementwise(program) => program.outputs.iter().map(|(_, access)| access).collect(),
            Kernel::Copy { to, .. } => vec![to],
            Kernel::Wait { .. } | Kernel::Nothing => Vec::new(),
        };
        for access in written {
            if let Home::Slot(slot) = plan.buffers[access.buffer.0 as usize].home {
                committed.insert(slot.0);
            }
        }
    }
    assert_eq!((committed.len(), plan.graph.slots.len()), (256, 256));
}

#[test]
fn manual_blocks_need_no_more() {
    let plan = plan("blocks_manual.tg");
    assert!(bytes(&plan, "peak_bytes") <= 3850 << 20);
}

#[test]
fn blocks_give_the_same_losses_in_all_three_ways() {
    let sets = ["DEPTH=5", "C=16", "BATCH=3", "SIZE=5", "STEPS=4", "LR=1e-5"];
    let checkpointed = tg(&["run"], "blocks.tg", &sets);
    assert_eq!(checkpointed.lines().filter(|l| l.contains("loss")).count(), 4, "{checkpointed}");
    assert_eq!(checkpointed, tg(&["run"], "blocks_plain.tg", &sets));
    assert_eq!(checkpointed, tg(&["run"], "blocks_manual.tg", &sets));
    let losses: BTreeSet<&str> = checkpointed.lines().filter_map(|l| l.split("loss ").nth(1)).collect();
    assert!(losses.len() > 1, "nothing was learned:\n{checkpointed}");
}

#[test]
fn digits_are_read() {
    // The program itself asserts 97 %.
    let printed = tg(&["run"], "digits.tg", &[]);
    assert!(printed.contains("accuracy on held-out digits"), "{printed}");
}

#[test]
fn digits_are_read_by_a_convnet() {
    // The program itself asserts 98 %.
    let printed = tg(&["run"], "convnet.tg", &[]);
    assert!(printed.contains("accuracy on held-out digits"), "{printed}");
}

#[test]
fn gpt_writes() {
    // Small enough for a build without optimisation. The program itself asserts that it gains half
    // a nat on the frequencies of the characters.
    let sets = ["LAYERS=1", "D=64", "HEADS=2", "CONTEXT=32", "LR=4e-3", "SAMPLE=40"];
    let printed = tg(&["run"], "gpt.tg", &sets);
    assert!(printed.contains("nats a character") && printed.contains('|'), "{printed}");
}

#[test]
fn a_deep_network_trains_within_its_budget() {
    let peak = bytes(&plan("budget.tg"), "peak_bytes");
    assert!(peak <= 4 << 20, "{peak}");
    // The program itself asserts what it learns.
    let within = tg(&["run"], "budget.tg", &[]);
    assert_eq!(
        within,
        tg(&["run"], "budget.tg", &["BUDGET=100000000"]),
        "the same losses without recomputing"
    );
    let printed = tg(&["plan", "--json", "--budget-curve", "--step", "train"], "budget.tg", &[]);
    let curve: Value = serde_json::from_str(&printed).expect("the curve is JSON");
    let step = &curve["steps"][0];
    assert_eq!((step["name"].as_str(), step["budget_bytes"].as_u64()), (Some("train"), Some(4 << 20)));
    let points = step["budget_curve"].as_array().expect("there is a curve");
    assert_eq!((points[0]["work"].as_f64(), points[0]["as_written"].as_bool()), (Some(1.0), Some(true)));
    let chosen: Vec<&Value> = points.iter().filter(|p| p["chosen"] == true).collect();
    assert_eq!(chosen.len(), 1);
    assert_eq!(chosen[0]["peak_bytes"].as_u64(), Some(peak));
    for pair in points.windows(2) {
        assert!(pair[0]["peak_bytes"].as_u64() > pair[1]["peak_bytes"].as_u64());
        assert!(pair[0]["work"].as_f64() <= pair[1]["work"].as_f64());
    }
    let drawn = tg(&["plan", "--budget-curve", "--step", "train"], "budget.tg", &[]);
    assert!(drawn.contains("as written") && drawn.contains("chosen"), "{drawn}");
    assert!(drawn.lines().all(|l| l.chars().count() <= 80), "{drawn}");

    // What the plan says of the budget agrees with the curve, and its parts with each other.
    let printed = tg(&["plan", "--json", "--step", "train"], "budget.tg", &[]);
    let plan: Value = serde_json::from_str(&printed).expect("the plan is JSON");
    let budget = &plan["steps"][0]["budget"];
    assert_eq!(budget["bytes"].as_u64(), Some(4 << 20));
    assert_eq!(budget["regions"], chosen[0]["regions"]);
    assert_eq!(budget["flops"], chosen[0]["flops"]);
    let sum = |list: &Value, field: &str| -> f64 {
        list.as_array().expect("a list").iter().filter_map(|line| line[field].as_f64()).sum()
    };
    let again = sum(&budget["made_again"], "flops");
    assert!(
        again > 0.0 && (again - budget["recomputed_flops"].as_f64().unwrap_or(0.0)).abs() < 0.5,
        "{budget}"
    );
    assert!(sum(&budget["kept"], "bytes") > 0.0, "{budget}");
    let text = tg(&["plan", "--step", "train"], "budget.tg", &[]);
    assert!(text.contains("  budget 4.0 MiB: ") && text.contains("% of the work is done again"), "{text}");
    assert!(text.contains("    made again  line ") && text.contains("    kept        line "), "{text}");
    assert!(text.lines().all(|l| l.chars().count() <= 80), "{text}");
    // With room for everything, nothing is added.
    let text = tg(&["plan", "--step", "train"], "budget.tg", &["BUDGET=100000000"]);
    assert!(text.contains("nothing added, the step fits as it is written"), "{text}");
}

#[test]
fn all_hold_their_promises_on_a_gpu() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    let mut count = 0;
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let name = entry.expect("an entry").file_name().into_string().expect("a name");
        if name.ends_with(".tg") {
            tg(&["check", "--target", "cuda"], &name, &[]);
            count += 1;
        }
    }
    assert!(count > 10, "{count} examples");
}

#[test]
fn blocks_need_no_workspace_on_a_gpu_and_a_second_slot_for_their_images() {
    let printed = tg(&["plan", "--target", "cuda"], "blocks.tg", &[]);
    assert!(printed.contains("step train: peak 3848.5 MiB"), "{printed}");
    let workspace = "  workspace 52.0 KiB at most (sum, line 21), 0 B of it at the peak\n";
    assert!(printed.contains(workspace), "{printed}");
    let slot = "  second input slot 49.0 MiB, beside the peak: 3897.5 MiB in all\n";
    assert!(printed.contains(slot), "{printed}");
}
