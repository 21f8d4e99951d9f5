//! Orders, bounds and places of schedule graphs, checked by code of its own.

mod schedule_support;

use std::time::{Duration, Instant};

use schedule_support::{
    brute::{by_choices, by_down_sets, by_permutations, worst_by_down_sets},
    case1::{Binding, Block64, MIB, case1},
    check::{check, plain_peak},
    random::{Random, Shape, graph, graph_of_parts, graph_with_views},
};
use tg::{
    plan::Instruction,
    schedule::{
        BufferFlags, BufferId, GraphBuilder, OpId, Options, OrderKind, ScheduleGraph, WorstOptions,
        instructions, lower_bound,
        pack::{Block, PackOptions, pack},
        schedule, schedule_with_copies, worst_order,
    },
};

const PLAIN: BufferFlags = BufferFlags { persistent: false, input: false, output: false };
const INPUT: BufferFlags = BufferFlags { persistent: false, input: true, output: false };
const OUTPUT: BufferFlags = BufferFlags { persistent: false, input: false, output: true };

fn plan(graph: &ScheduleGraph) -> tg::plan::Schedule {
    let plan = schedule(graph, &Options::default());
    check(graph, &plan);
    plan
}

#[test]
fn the_two_exact_searches_agree() {
    for seed in 0..400 {
        let graph = graph(&mut Random::new(seed), Shape { ops: 1 + seed as usize % 7, dense: seed % 3 == 0 });
        assert_eq!(by_permutations(&graph), by_down_sets(&graph), "seed {seed}");
    }
}

#[test]
fn small_random_graphs_lie_between_bound_and_peak() {
    let (mut sum, mut count, mut tight) = (0.0, 0, 0);
    for seed in 0..4000u64 {
        let shape = Shape { ops: 1 + seed as usize % 10, dense: seed % 2 == 0 };
        let graph = graph(&mut Random::new(seed), shape);
        let plan = plan(&graph);
        let optimum = by_down_sets(&graph);
        assert!(plan.lower_bound_bytes <= optimum, "seed {seed}: bound above the optimum");
        assert!(optimum <= plan.live_peak_bytes, "seed {seed}: peak below the optimum");
        sum += plan.live_peak_bytes.max(1) as f64 / optimum.max(1) as f64 - 1.0;
        count += 1;
        tight += usize::from(plan.lower_bound_bytes == optimum);
    }
    let excess = 100.0 * sum / f64::from(count);
    println!("up to 10 ops: mean excess {excess:.4} %, bound tight in {tight} of {count}");
    assert!(excess < 1.0, "mean excess of {excess} %");
}

#[test]
fn with_views_the_bound_holds_for_all_choices_of_copies() {
    let (mut sum, mut count, mut tight, mut copied, mut gained) = (0.0, 0, 0, 0, 0);
    for seed in 0..4000u64 {
        let shape = Shape { ops: 1 + seed as usize % 8, dense: seed % 2 == 0 };
        let graph = graph_with_views(&mut Random::new(seed), shape, 4);
        let optimum = by_choices(&graph);
        let plain = schedule(&graph, &Options::default());
        check(&graph, &plain);
        assert!(plain.lower_bound_bytes <= optimum, "seed {seed}: bound above the optimum {optimum}");
        let bound = lower_bound(&graph, &plain.order);
        assert!(bound.bytes <= optimum, "seed {seed}: {} is above the optimum {optimum}", bound.bytes);
        let planned = schedule_with_copies(&graph, &Options::default());
        let resolved = &planned.resolved;
        check(&resolved.graph, &planned.schedule);
        let (low, peak) = (planned.schedule.lower_bound_bytes, planned.schedule.live_peak_bytes);
        assert!(low <= optimum && optimum <= peak, "seed {seed}: {low} ≤ {optimum} ≤ {peak}");
        assert!(planned.schedule.arena_bytes <= plain.arena_bytes, "seed {seed}");
        let improves = planned.schedule.arena_bytes < plain.arena_bytes || peak < plain.live_peak_bytes;
        assert_eq!(improves, !resolved.copies.is_empty(), "seed {seed}");
        assert_eq!(planned.arena_bytes_without_copies.is_some(), improves, "seed {seed}");
        copied += resolved.copies.len();
        gained += usize::from(optimum < by_down_sets(&graph));
        sum += peak.max(1) as f64 / optimum.max(1) as f64 - 1.0;
        count += usize::from(!graph.viewed().is_empty());
        tight += usize::from(!graph.viewed().is_empty() && low == optimum);
    }
    let excess = 100.0 * sum / f64::from(count as u32);
    println!(
        "{count} graphs with views, copies help {gained}: {copied} made; mean excess {excess:.4} %, bound tight in {tight}"
    );
    assert!(copied > 0);
}

#[test]
fn cuts_and_case_distinctions_prove_nothing_false() {
    // Without the exhaustive search, starting from a good order and from any.
    let (mut tight, mut count) = (0, 0);
    for seed in 0..1500u64 {
        let shape = Shape { ops: 3 + seed as usize % 10, dense: seed % 2 == 0 };
        let graph = graph(&mut Random::new(seed), shape);
        let optimum = by_down_sets(&graph);
        let source: Vec<OpId> = graph.ops().collect();
        for order in [schedule(&graph, &Options::default()).order, source] {
            let bound = lower_bound(&graph, &order);
            assert!(bound.bytes <= optimum, "seed {seed}: {} is above the optimum {optimum}", bound.bytes);
            tight += usize::from(bound.bytes == optimum);
            count += 1;
        }
    }
    println!("cuts and case distinctions tight in {tight} of {count}");
    assert!(tight * 10 > count * 9);
}

#[test]
fn merged_parts_prove_nothing_false() {
    // The bound without the exhaustive search, from a good order and from any.
    let (mut tight, mut count) = (0, 0);
    for seed in 0..3000u64 {
        let graph = graph_of_parts(&mut Random::new(seed), 3 + seed as usize % 11);
        let optimum = by_down_sets(&graph);
        let plan = plan(&graph);
        assert!(plan.lower_bound_bytes <= optimum && optimum <= plan.live_peak_bytes, "seed {seed}");
        let source: Vec<OpId> = graph.ops().collect();
        for order in [plan.order, source] {
            let bound = lower_bound(&graph, &order);
            assert!(bound.bytes <= optimum, "seed {seed}: {} is above the optimum {optimum}", bound.bytes);
            tight += usize::from(bound.bytes == optimum);
            count += 1;
        }
    }
    println!("bounds of merged parts tight in {tight} of {count}");
    assert!(tight * 10 > count * 9);
}

/// Chains whose ends are read together, written link by link.
fn chains(count: usize, length: usize, last: impl Fn(usize) -> u64) -> ScheduleGraph {
    let mut builder = GraphBuilder::new();
    let mut ends: Vec<BufferId> = Vec::new();
    for link in 0..length {
        for i in 0..count {
            let bytes = 256 * (1 + ((i * length + link) * 7919 % 61) as u64);
            let made = builder.buffer(if link + 1 == length { last(i) } else { bytes }, PLAIN);
            if link == 0 {
                builder.op(&[], &[made], &[], &[], 0);
                ends.push(made);
            } else {
                let read = std::mem::replace(&mut ends[i], made);
                builder.op(&[read], &[made], &[], &[], 0);
            }
        }
    }
    let sum = builder.buffer(256, OUTPUT);
    builder.op(&ends, &[sum], &[], &[], 0);
    builder.finish()
}

#[test]
fn independent_chains_are_planned_at_their_bound() {
    for (count, length) in [(3, 4), (40, 10), (300, 10), (1000, 7)] {
        for ends in [1, 61] {
            let graph = chains(count, length, |i| 256 * (1 + (i % ends) as u64));
            let plan = plan(&graph);
            assert_eq!(plan.live_peak_bytes, plan.lower_bound_bytes, "{count} chains of {length}");
        }
    }
}

#[test]
fn random_graphs_of_up_to_18_ops_are_near_the_optimum() {
    let (mut sum, mut count, mut worst) = (0.0, 0, 0.0f64);
    for seed in 10_000..10_300u64 {
        let shape = Shape { ops: 11 + seed as usize % 8, dense: seed % 2 == 0 };
        let graph = graph(&mut Random::new(seed), shape);
        let plan = plan(&graph);
        let optimum = by_down_sets(&graph);
        assert!(plan.lower_bound_bytes <= optimum && optimum <= plan.live_peak_bytes, "seed {seed}");
        let excess = plan.live_peak_bytes.max(1) as f64 / optimum.max(1) as f64 - 1.0;
        worst = worst.max(excess);
        sum += excess;
        count += 1;
    }
    let excess = 100.0 * sum / f64::from(count);
    println!("11 to 18 ops: mean excess {excess:.4} %, worst {:.2} %", 100.0 * worst);
    assert!(excess < 1.0, "mean excess of {excess} %");
}

#[test]
fn random_graphs_of_20_to_200_ops_are_near_their_bound() {
    let (mut sum, mut worst, mut tight) = (0.0, 0.0f64, 0);
    const COUNT: u64 = 40;
    for seed in 0..COUNT {
        let shape = Shape { ops: 20 + (seed as usize * 37) % 181, dense: seed % 2 == 0 };
        let graph = graph(&mut Random::new(seed), shape);
        let plan = plan(&graph);
        let (peak, bound) = (plan.live_peak_bytes, plan.lower_bound_bytes);
        assert!(bound <= peak, "seed {seed}");
        let gap = peak.max(1) as f64 / bound.max(1) as f64 - 1.0;
        worst = worst.max(gap);
        sum += gap;
        tight += u64::from(bound == peak);
    }
    let mean = 100.0 * sum / COUNT as f64;
    println!(
        "20 to 200 ops: mean gap {mean:.3} %, worst {:.2} %, tight in {tight} of {COUNT}",
        100.0 * worst
    );
    assert!(mean < 1.5 && tight * 10 >= COUNT * 7, "mean gap {mean} %, tight in {tight} of {COUNT}");
}

#[test]
fn larger_random_graphs_are_legal_in_every_kind_of_order() {
    for seed in 0..16u64 {
        let shape = Shape { ops: 20 + (seed as usize * 23) % 160, dense: seed % 2 == 0 };
        let graph = graph(&mut Random::new(seed), shape);
        let mut lowest = u64::MAX;
        for order in [OrderKind::Source, OrderKind::List, OrderKind::Lpmf, OrderKind::Dfs] {
            let plan = schedule(&graph, &Options { order, ..Options::default() });
            check(&graph, &plan);
            lowest = lowest.min(plan.live_peak_bytes);
        }
        let best = plan(&graph);
        assert!(best.live_peak_bytes <= lowest, "seed {seed}: best is not the best");
    }
}

#[test]
fn plans_do_not_depend_on_the_run() {
    for seed in 0..4 {
        let graph = graph(&mut Random::new(seed), Shape { ops: 60, dense: true });
        assert_eq!(plan(&graph), plan(&graph), "seed {seed}");
    }
}

#[test]
fn the_worst_order_lies_between_witness_and_bound() {
    let (mut exact, mut count) = (0, 0);
    for seed in 0..2000u64 {
        let shape = Shape { ops: 1 + seed as usize % 11, dense: seed % 2 == 0 };
        let graph = graph(&mut Random::new(seed), shape);
        let worst = worst_order(&graph, &WorstOptions::default());
        let truth = worst_by_down_sets(&graph);
        assert_eq!(plain_peak(&graph, &worst.witness), worst.witness_bytes, "seed {seed}");
        assert!(worst.witness_bytes <= truth, "seed {seed}: the witness is worse than the worst order");
        assert!(truth <= worst.bytes, "seed {seed}: an order is worse than the bound");
        exact += usize::from(worst.is_exact());
        count += 1;
    }
    println!("worst order exact in {exact} of {count}");
    assert!(exact * 100 >= count * 99);
}

#[test]
fn the_worst_order_of_larger_graphs_is_known_almost_exactly() {
    let (mut sum, mut exact, mut count) = (0.0, 0, 0);
    for seed in 0..60u64 {
        let shape = Shape { ops: 20 + (seed as usize * 37) % 181, dense: seed % 2 == 0 };
        let graph = graph(&mut Random::new(seed + 77_000), shape);
        let worst = worst_order(&graph, &WorstOptions::default());
        assert_eq!(plain_peak(&graph, &worst.witness), worst.witness_bytes, "seed {seed}");
        let at = worst.witness.get(worst.witness_position).copied();
        assert!(at.is_some() && worst == worst_order(&graph, &WorstOptions::default()), "seed {seed}");
        sum += worst.bytes as f64 / worst.witness_bytes as f64 - 1.0;
        exact += usize::from(worst.is_exact());
        count += 1;
    }
    let interval = 100.0 * sum / f64::from(count);
    println!("20 to 200 ops: mean interval {interval:.4} %, exact in {exact} of {count}");
    assert!(interval < 0.1, "mean interval of {interval} %");
}

#[test]
fn the_worst_order_of_a_deep_graph_takes_no_time() {
    for binding in [Binding::All, Binding::None] {
        let graph = case1(Block64 { blocks: 6000, checkpoint: true, binding });
        let start = Instant::now();
        let worst = worst_order(&graph, &WorstOptions::default());
        println!("{} ops: {:?}", graph.op_count(), start.elapsed());
        assert_eq!(worst.is_exact(), binding == Binding::All);
        assert!(worst.bytes as f64 <= 1.03 * worst.witness_bytes as f64, "{binding:?}");
        assert!(start.elapsed() < Duration::from_secs(20), "took {:?}", start.elapsed());
    }
}

#[test]
fn case_1_in_every_schedule() {
    let worst = |binding| {
        let graph = case1(Block64 { blocks: 64, checkpoint: true, binding });
        let worst = worst_order(&graph, &WorstOptions::default());
        assert_eq!(plain_peak(&graph, &worst.witness), worst.witness_bytes);
        let mib = |bytes: u64| bytes as f64 / MIB as f64 + CASE1_RESIDENT;
        (mib(worst.witness_bytes), mib(worst.bytes))
    };
    let (witness, bound) = worst(Binding::All);
    assert!(witness == bound && bound <= 3848.51, "{witness} to {bound}");
    for binding in [Binding::None, Binding::Grad] {
        let (witness, bound) = worst(binding);
        assert!(witness > 12_000.0 && bound < 13_500.0, "{binding:?}: {witness} to {bound}");
    }
}

/// `persistent + input` of case 1 in MiB: 128 weights of 4 MiB with their biases, and the input.
const CASE1_RESIDENT: f64 = 512.5;

fn case1_peak(block: Block64) -> (f64, f64) {
    let graph = case1(block);
    let plan = plan(&graph);
    let mib = |bytes: u64| bytes as f64 / MIB as f64 + CASE1_RESIDENT;
    (mib(plan.live_peak_bytes), mib(plan.lower_bound_bytes))
}

#[test]
fn case_1_without_checkpoint() {
    let (peak, bound) = case1_peak(Block64 { blocks: 64, checkpoint: false, binding: Binding::None });
    println!("peak {peak:.3} bound {bound:.3}");
    assert!(peak <= 6886.6 && bound >= 6886.4 && bound <= peak, "peak {peak}, bound {bound}");
}

#[test]
fn case_1_checkpointed() {
    for binding in [Binding::None, Binding::Grad, Binding::All] {
        let (peak, bound) = case1_peak(Block64 { blocks: 64, checkpoint: true, binding });
        println!("{binding:?}: peak {peak:.3} bound {bound:.3}");
        assert!(
            peak <= 3848.6 && bound >= 3848.4 && bound <= peak,
            "{binding:?}: peak {peak}, bound {bound}"
        );
    }
}

#[test]
fn degenerate_graphs() {
    let empty = plan(&GraphBuilder::new().finish());
    assert_eq!((empty.arena_bytes, empty.live_peak_bytes, empty.lower_bound_bytes), (0, 0, 0));
    assert!(empty.order.is_empty());

    let mut builder = GraphBuilder::new();
    let x = builder.buffer(512, INPUT);
    let y = builder.buffer(512, OUTPUT);
    builder.op(&[x], &[y], &[], &[(y, x)], 256);
    let one = plan(&builder.finish());
    assert_eq!((one.live_peak_bytes, one.lower_bound_bytes, one.arena_bytes), (768, 768, 768));
    assert_eq!(one.overwrites[y.0 as usize], Some(x));

    let mut builder = GraphBuilder::new();
    builder.buffer(1024, INPUT);
    let alone = plan(&builder.finish());
    assert!(alone.lower_bound_bytes <= alone.live_peak_bytes);

    let mut builder = GraphBuilder::new();
    builder.op(&[], &[], &[], &[], 0);
    let nothing = plan(&builder.finish());
    assert_eq!((nothing.live_peak_bytes, nothing.arena_bytes), (0, 0));
}

#[test]
fn sizes_near_the_limits() {
    // Three of 2^60 fit 64 bits, forty do not: figures saturate, and nothing overflows.
    for (count, odd) in [(3, 0), (3, 1), (15, 1), (40, 0), (40, 3)] {
        let mut builder = GraphBuilder::new();
        let mut made = Vec::new();
        for _ in 0..count {
            let b = builder.buffer((1 << 60) + odd, PLAIN);
            builder.op(&[], &[b], &[], &[], odd);
            made.push(b);
        }
        let last = builder.buffer(256, OUTPUT);
        builder.op(&made, &[last], &[], &[], 0);
        let graph = builder.finish();
        let plan = schedule(&graph, &Options::default());
        let expected = u128::from(count as u64) * ((1 << 60) + u128::from(odd)) + 256;
        let expected = u64::try_from(expected).unwrap_or(u64::MAX);
        assert_eq!(plan.live_peak_bytes, expected);
        assert_eq!(plan.lower_bound_bytes, expected);
        assert!(plan.arena_bytes >= expected);
        if expected < u64::MAX {
            check(&graph, &plan);
        }
    }
}

#[test]
fn a_hundred_thousand_independent_ops() {
    let mut builder = GraphBuilder::new();
    for i in 0..100_000u64 {
        let b = builder.buffer(256 * (1 + i % 7), PLAIN);
        builder.op(&[], &[b], &[], &[], 0);
        let out = builder.buffer(0, OUTPUT);
        builder.op(&[b], &[out], &[], &[], 0);
    }
    let start = Instant::now();
    let plan = plan(&builder.finish());
    assert_eq!((plan.live_peak_bytes, plan.lower_bound_bytes), (1792, 1792));
    assert!(start.elapsed() < Duration::from_secs(30), "took {:?}", start.elapsed());
}

#[test]
fn packing_extremes() {
    let options = PackOptions { time_limit: Duration::from_millis(200), ..PackOptions::default() };
    let nothing = pack(&[], &options);
    assert_eq!((nothing.height, nothing.load), (0, 0));
    // No bytes, no time, times that run backwards.
    let empty = [(0, 9, 0), (4, 4, 7), (9, 3, 7)].map(|(lower, upper, bytes)| Block { lower, upper, bytes });
    assert_eq!(pack(&empty, &options).height, 0);
    // Sums beyond 64 bits saturate.
    let huge = [Block { lower: 0, upper: u64::MAX, bytes: u64::MAX / 2 + 1 }; 3];
    let packing = pack(&huge, &options);
    assert_eq!((packing.height, packing.load), (u64::MAX, u64::MAX));
    // A staircase that stacking cannot do without gaps.
    let stairs = [(0, 2, 3), (1, 4, 1), (3, 6, 3), (0, 1, 1), (2, 3, 3), (5, 6, 1)]
        .map(|(lower, upper, bytes)| Block { lower, upper, bytes });
    let packing = pack(&stairs, &options);
    assert_eq!((packing.height, packing.load), (4, 4));
}

#[test]
fn instructions_free_right_after_the_last_reader() {
    let mut builder = GraphBuilder::new();
    let x = builder.buffer(256, INPUT);
    let a = builder.buffer(256, PLAIN);
    let b = builder.buffer(256, PLAIN);
    let c = builder.buffer(512, OUTPUT);
    let first = builder.op(&[x], &[a], &[], &[], 0);
    let second = builder.op(&[a], &[b], &[], &[(b, a)], 0);
    let third = builder.op(&[b], &[c], &[], &[], 0);
    let graph = builder.finish();
    let plan = plan(&graph);
    assert_eq!(plan.overwrites, [None, None, Some(a), None] as [Option<BufferId>; 4]);
    assert_eq!(
        instructions(&graph, &plan.order, &plan.overwrites),
        [
            Instruction::Exec(first),
            Instruction::Free(x),
            Instruction::Exec(second),
            Instruction::Exec(third),
            Instruction::Free(b),
        ]
    );
}
