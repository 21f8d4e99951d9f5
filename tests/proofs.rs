//! Proofs of bounds on random graphs, followed by the checker that knows nothing but the text of a plan.

// Buffers and ops are numbers in the checker, which index several lists at once.
#![allow(clippy::needless_range_loop)]

#[path = "full_json/check.rs"]
mod check;
#[path = "full_json/cut.rs"]
mod cut;
#[path = "schedule_support/random.rs"]
mod random;
#[path = "full_json/refuted.rs"]
mod refuted;
#[path = "full_json/search.rs"]
mod search;

use std::collections::BTreeMap;

use check::Step;
use random::{Random, Shape, graph, graph_of_parts, graph_with_views};
use serde_json::{Value, json};
use tg::{
    plan::{Instruction, Schedule},
    schedule::{
        BufferId, End, OpId, Options, Refutation, ScheduleGraph, WorstOptions, instructions,
        schedule_with_copies, worst_order,
    },
};

fn ids<T: Copy>(list: &[T], id: impl Fn(T) -> u32) -> Vec<u32> {
    list.iter().map(|&x| id(x)).collect()
}

/// A plan as `tg plan --json --full` prints it.
fn text(graph: &ScheduleGraph, plan: &Schedule, relaxed: bool) -> Value {
    let buffers: Vec<Value> = graph
        .buffer_ids()
        .map(|id| {
            let b = graph.buffer(id);
            let input = !b.flags.persistent && graph.maker(id).is_none();
            json!({
                "id": id.0, "bytes": b.bytes, "alias_of": null, "persistent": b.flags.persistent,
                "input": input, "output": b.flags.output,
            })
        })
        .collect();
    let ops: Vec<Value> = graph
        .ops()
        .map(|op| {
            let pairs: Vec<[u32; 2]> = graph.may_overwrite(op).iter().map(|(m, r)| [m.0, r.0]).collect();
            json!({
                "id": op.0, "reads": ids(graph.reads(op), |b: BufferId| b.0), "writes": [],
                "makes": ids(graph.makes(op), |b: BufferId| b.0), "may_overwrite": pairs,
                "after": ids(graph.after(op), |o: OpId| o.0), "workspace_bytes": graph.workspace(op),
            })
        })
        .collect();
    let overwrites: Vec<[u32; 3]> = graph
        .buffer_ids()
        .zip(&plan.overwrites)
        .filter_map(|(made, read)| Some([graph.maker(made)?.0, made.0, (*read)?.0]))
        .collect();
    let mut ran = 0usize;
    let mut frees: Vec<[usize; 2]> = Vec::new();
    for instruction in instructions(graph, &plan.order, &plan.overwrites) {
        match instruction {
            Instruction::Exec(_) => ran += 1,
            Instruction::Free(buffer) => frees.push([ran - 1, buffer.0 as usize]),
        }
    }
    let persistent: u64 =
        graph.buffer_ids().map(|b| graph.buffer(b)).filter(|b| b.flags.persistent).map(|b| b.bytes).sum();
    let worst = worst_order(graph, &WorstOptions::default());
    json!({
        "buffers": buffers, "ops": ops, "order": ids(&plan.order, |o| o.0), "overwrites": overwrites,
        "offsets": plan.offsets, "workspace_offsets": plan.workspace_offsets, "frees": frees,
        "witness": ids(&worst.witness, |o| o.0), "witness_position": worst.witness_position,
        "worst_exact": worst.bytes == worst.witness_bytes,
        "worst_legal_bytes": persistent + worst.bytes,
        "worst_legal_witness_bytes": persistent + worst.witness_bytes,
        "peak_bytes": persistent + plan.arena_bytes, "persistent_bytes": persistent,
        "arena_bytes": plan.arena_bytes, "live_peak_bytes": plan.live_peak_bytes,
        "lower_bound_bytes": persistent + plan.lower_bound_bytes,
        "bound": {
            "live_bytes": plan.lower_bound_bytes, "op": plan.bound.op.map(|op| op.0),
            "before": ids(&plan.bound.before, |o| o.0), "branched": plan.bound.branched,
            "relaxed": relaxed, "refutation": plan.bound.refutation.as_ref().map(refutation),
        },
    })
}

fn refutation(proof: &Refutation) -> Value {
    let edges: Vec<[u32; 3]> = proof.edges.iter().map(|e| [e.op.0, e.first.0, e.second.0]).collect();
    let end = match &proof.end {
        End::Cut(op) => json!({ "cut": op.0 }),
        End::Both { op, other } => json!({ "both": [op.0, other.0] }),
        End::Last(ops) => json!({ "last": ids(ops, |o| o.0) }),
        End::First(ops) => json!({ "first": ids(ops, |o| o.0) }),
        End::Search => json!({ "search": true }),
        End::Fork { ops: [a, b], cases } => {
            json!({ "fork": [a.0, b.0], "cases": cases.iter().map(refutation).collect::<Vec<Value>>() })
        }
    };
    json!({ "edges": edges, "end": end })
}

/// Plans and checks; counts the kinds of proofs.
fn accept(what: &str, graph: &ScheduleGraph, kinds: &mut BTreeMap<&'static str, usize>) {
    let planned = schedule_with_copies(graph, &Options::default());
    let (plan, resolved) = (&planned.schedule, &planned.resolved.graph);
    let step = text(resolved, plan, !graph.viewed().is_empty());
    if let Err(fault) = Step::read(&step).and_then(|step| step.check()) {
        panic!("{what}: {fault}");
    }
    let kind = match &plan.bound.refutation {
        None => "one cut",
        Some(proof) => match proof.end {
            End::Cut(_) | End::Both { .. } => "edges",
            End::Last(_) => "last",
            End::First(_) => "first",
            End::Search => "search",
            End::Fork { .. } => "fork",
        },
    };
    *kinds.entry(kind).or_default() += 1;
}

#[test]
fn every_bound_can_be_followed() {
    let mut kinds = BTreeMap::new();
    for seed in 0..2000u64 {
        let small = Shape { ops: 1 + seed as usize % 10, dense: seed % 2 == 0 };
        accept(&format!("small {seed}"), &graph(&mut Random::new(seed), small), &mut kinds);
        let parts = graph_of_parts(&mut Random::new(seed), 3 + seed as usize % 11);
        accept(&format!("parts {seed}"), &parts, &mut kinds);
        let viewed = Shape { ops: 1 + seed as usize % 8, ..small };
        accept(&format!("views {seed}"), &graph_with_views(&mut Random::new(seed), viewed, 4), &mut kinds);
    }
    println!("{kinds:?}");
    for kind in ["one cut", "edges", "last", "first", "search"] {
        assert!(kinds.contains_key(kind), "{kind}: {kinds:?}");
    }
}

#[test]
fn every_bound_of_larger_graphs_can_be_followed() {
    let mut kinds = BTreeMap::new();
    for seed in 0..24u64 {
        let shape = Shape { ops: 16 + (seed as usize * 13) % 64, dense: seed % 2 == 0 };
        accept(&format!("graph {seed}"), &graph(&mut Random::new(seed), shape), &mut kinds);
        let views = graph_with_views(&mut Random::new(seed), shape, 12);
        accept(&format!("views {seed}"), &views, &mut kinds);
        let parts = graph_of_parts(&mut Random::new(seed), 16 + (seed as usize * 13) % 64);
        accept(&format!("parts {seed}"), &parts, &mut kinds);
    }
    println!("{kinds:?}");
}

/// Graphs whose bound takes a case distinction. Each case needs its proof, and an edge that is assumed the
/// wrong way round is not proved.
#[test]
fn a_fork_can_be_followed_and_a_wrong_one_is_refused() {
    let mut swapped = 0;
    for (seed, dense) in [(1004, true), (1018, true), (1033, false)] {
        let mut kinds = BTreeMap::new();
        let graph = graph(&mut Random::new(seed), Shape { ops: 80, dense });
        accept(&format!("fork {seed}"), &graph, &mut kinds);
        assert_eq!(kinds.into_iter().collect::<Vec<_>>(), [("fork", 1)], "{seed}");
        let planned = schedule_with_copies(&graph, &Options::default());
        let right = text(&planned.resolved.graph, &planned.schedule, false);
        let fault = |change: &dyn Fn(&mut Value)| {
            let mut wrong = right.clone();
            change(&mut wrong["bound"]["refutation"]);
            Step::read(&wrong).and_then(|step| step.check()).unwrap_err()
        };
        for case in 0..2 {
            let wrong = json!({ "edges": [], "end": { "cut": 0 } });
            let end = fault(&|proof| proof["end"]["cases"][case] = wrong.clone());
            assert!(end.contains("refutation"), "{end}");
        }
        for k in 0..right["bound"]["refutation"]["edges"].as_array().map_or(0, Vec::len) {
            let edge = fault(&|proof| proof["edges"][k].as_array_mut().expect("an edge").swap(1, 2));
            assert!(edge.contains("refutation"), "{edge}");
            swapped += 1;
        }
    }
    assert!(swapped > 0, "a proof has edges");
}
