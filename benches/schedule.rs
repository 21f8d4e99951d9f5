//! From source text to a plan with its bound: time, memory and gap by size.
//!
//!     cargo bench --bench schedule             # up to 10^5 nodes
//!     cargo bench --bench schedule -- 1000000  # up to 10^6
//!
//! `front` is parsing and elaboration, `lower` is lowering up to the schedule graph and putting the
//! plan together, `schedule` is order, bound and offsets. Memory is the high-water mark of the
//! process during a case, and is read where the system has `/proc`.

use std::{fmt::Write, time::Instant};

use tg::{
    engine::{CompileOptions, Engine, Source},
    lower::{self, PlanOptions},
    schedule::{self, BufferFlags, GraphBuilder, Options, ScheduleGraph},
};

fn main() {
    let largest = std::env::args().skip(1).find_map(|a| a.parse::<usize>().ok()).unwrap_or(100_000);
    println!("source text to plan");
    println!(
        "{:<24} {:>8} {:>8} {:>8} {:>8} {:>9} {:>8} {:>8} {:>12} {:>8}  found by",
        "program", "nodes", "ops", "front s", "lower s", "schedule s", "all s", "MiB", "peak", "gap %"
    );
    program("transformer, 12 layers", &transformer(12));
    for nodes in [10_000usize, 100_000, 1_000_000].into_iter().filter(|&n| n <= largest) {
        program("checkpointed chain", &chain(nodes / CHAIN_NODES));
        program("blocks, each a region", &blocks(nodes / BLOCK_NODES));
        program("transformer", &transformer(nodes / TRANSFORMER_NODES));
        program("wide", &wide(nodes / WIDE_NODES));
    }
    println!("\nschedule graph to schedule");
    println!(
        "{:<24} {:>8} {:>9} {:>8} {:>12} {:>8}  found by",
        "graph", "ops", "seconds", "MiB", "peak", "gap %"
    );
    for ops in [10_000usize, 100_000, 1_000_000].into_iter().filter(|&n| n <= largest) {
        graph("independent ops", &independent(ops));
        graph("independent chains", &chains(ops, 10));
        graph("fork and join", &fork_join(ops, 8));
    }
}

/// Nodes of the graph for each layer, about.
const CHAIN_NODES: usize = 24;
const BLOCK_NODES: usize = 50;
const TRANSFORMER_NODES: usize = 930;
const WIDE_NODES: usize = 7;

/// Equal layers in regions of about the root of their number.
fn chain(layers: usize) -> String {
    let layers = layers.max(2);
    let segments = (layers as f64).sqrt() as usize;
    format!(
        "use nn\nuse loss\nuse optim\n\
         let net = nn.Sequential([nn.Linear(64, 64) for i in 0..{layers}])\n\
         let opt = optim.sgd(net, lr: 0.1)\n\
         step train(x: f32[512, 64], y: f32[512, 64]) {{\n  \
         let cost = loss.mse(nn.checkpoint_sequential(net.layers, {segments}, x), y)\n  \
         update net with opt, grad(cost, net)\n  return cost\n}}\n"
    )
}

/// The example with so many blocks, without what it promises of 64.
fn blocks(depth: usize) -> String {
    let text =
        include_str!("../examples/blocks.tg").replace("const DEPTH = 64", &format!("const DEPTH = {depth}"));
    text.lines().filter(|line| !line.contains("ensure peak")).flat_map(|line| [line, "\n"]).collect()
}

fn transformer(layers: usize) -> String {
    let layers = layers.max(1);
    format!(
        "use nn\nuse loss\nuse optim\n\
         model Block(d: int) {{\n  let norm1 = nn.LayerNorm(d)\n  \
         let attn = nn.MultiHeadAttention(d, 4, causal: true)\n  let norm2 = nn.LayerNorm(d)\n  \
         let up = nn.Linear(d, 4 * d)\n  let down = nn.Linear(4 * d, d)\n  \
         fn forward(x) {{\n    let h = x + attn(norm1(x))\n    h + down(gelu(up(norm2(h))))\n  }}\n}}\n\
         model Gpt(layers: int, d: int) {{\n  let e = nn.Embedding(1000, d)\n  \
         let blocks = [Block(d) for i in 0..layers]\n  let out = nn.Linear(d, 1000)\n  \
         fn forward(ids) {{\n    let h = e(ids)\n    for b in blocks {{\n      h = b(h)\n    }}\n    out(h)\n  }}\n}}\n\
         let net = Gpt({layers}, 128)\nlet opt = optim.adamw(net, lr: 1e-3)\n\
         step train(x: i32[8, 64], y: i32[8, 64]) {{\n  let cost = loss.cross_entropy(net(x), y)\n  \
         update net with opt, grad(cost, net)\n  return cost\n}}\n"
    )
}

/// Many branches of one input whose results are added up.
fn wide(branches: usize) -> String {
    let mut text = String::from("step branches(x: f32[64, 64]) {\n  let total = 0.0\n");
    for i in 0..branches.max(1) {
        // Writing to a string does not fail.
        let _ = writeln!(text, "  total += mean(tanh((x * {i}.5) @ x))");
    }
    text.push_str("  return total\n}\n");
    text
}

fn program(name: &str, text: &str) {
    reset_memory();
    let start = Instant::now();
    let checked = Engine::new().check(Source::text("bench.tg", text), &CompileOptions::default());
    let all = start.elapsed();
    let memory = memory();
    let (Some(plan), Some((step, source))) = (checked.plans.first(), checked.graphs.first()) else {
        let first = checked.diagnostics.first().map_or("no plan", |d| &d.message);
        println!("{name:<24} after {:.3} s: {first}", all.as_secs_f64());
        return;
    };
    // The phases again, each on its own.
    let again = Instant::now();
    let planned = lower::plan(source, step, &PlanOptions::default()).is_ok();
    let planning = again.elapsed();
    let again = Instant::now();
    let scheduled = schedule::schedule(&plan.schedule_graph, &Options::default());
    let scheduling = again.elapsed();
    assert!(
        planned && scheduled.arena_bytes == plan.schedule.arena_bytes,
        "the plan differs from the first one"
    );
    let (peak, bound) = (plan.peak_bytes(), plan.lower_bound_bytes());
    println!(
        "{name:<24} {:>8} {:>8} {:>8.3} {:>8.3} {:>9.3} {:>8.3} {memory:>8} {peak:>12} {:>8.3}  {}",
        source.len(),
        plan.schedule_graph.op_count(),
        all.saturating_sub(planning).as_secs_f64(),
        planning.saturating_sub(scheduling).as_secs_f64(),
        scheduling.as_secs_f64(),
        all.as_secs_f64(),
        gap(peak, bound),
        plan.schedule.found_by
    );
}

fn graph(name: &str, graph: &ScheduleGraph) {
    reset_memory();
    let start = Instant::now();
    let plan = schedule::schedule(graph, &Options::default());
    println!(
        "{name:<24} {:>8} {:>9.3} {:>8} {:>12} {:>8.3}  {}",
        graph.op_count(),
        start.elapsed().as_secs_f64(),
        memory(),
        plan.arena_bytes,
        gap(plan.arena_bytes, plan.lower_bound_bytes),
        plan.found_by
    );
}

fn gap(peak: u64, bound: u64) -> f64 {
    100.0 * (peak.saturating_sub(bound)) as f64 / bound.max(1) as f64
}

const PLAIN: BufferFlags = BufferFlags { persistent: false, input: false, output: false };
const OUTPUT: BufferFlags = BufferFlags { persistent: false, input: false, output: true };

fn bytes(i: usize) -> u64 {
    256 * (1 + (i * 7919 % 61) as u64)
}

fn independent(ops: usize) -> ScheduleGraph {
    let mut builder = GraphBuilder::new();
    for i in 0..ops {
        let made = builder.buffer(bytes(i), PLAIN);
        builder.op(&[], &[made], &[], &[], 0);
    }
    builder.finish()
}

/// Chains of one length whose ends are read together; written link by link, the worst source order.
fn chains(ops: usize, length: usize) -> ScheduleGraph {
    let mut builder = GraphBuilder::new();
    let count = (ops / length).max(1);
    let mut ends = vec![None; count];
    for link in 0..length {
        for (i, end) in ends.iter_mut().enumerate() {
            let size = if link + 1 == length { 256 } else { bytes(i * length + link) };
            let made = builder.buffer(size, PLAIN);
            let reads: Vec<_> = end.iter().copied().collect();
            builder.op(&reads, &[made], &[], &[], 0);
            *end = Some(made);
        }
    }
    let ends: Vec<_> = ends.into_iter().flatten().collect();
    let sum = builder.buffer(256, OUTPUT);
    builder.op(&ends, &[sum], &[], &[], 0);
    builder.finish()
}

/// A value that several ops read, whose results one op joins, again and again.
fn fork_join(ops: usize, width: usize) -> ScheduleGraph {
    let mut builder = GraphBuilder::new();
    let mut value = builder.buffer(256, PLAIN);
    builder.op(&[], &[value], &[], &[], 0);
    for i in 0..(ops / (2 * width + 1)).max(1) {
        let mut parts = Vec::with_capacity(width);
        for k in 0..width {
            let large = builder.buffer(bytes(i * width + k), PLAIN);
            builder.op(&[value], &[large], &[], &[], 0);
            let small = builder.buffer(256, PLAIN);
            builder.op(&[large], &[small], &[], &[], 0);
            parts.push(small);
        }
        value = builder.buffer(256, PLAIN);
        builder.op(&parts, &[value], &[], &[], 0);
    }
    builder.finish()
}

/// Starts a new high-water mark, where the system can.
fn reset_memory() {
    let _ = std::fs::write("/proc/self/clear_refs", "5");
}

/// High-water mark in MiB; `-` where the system does not tell.
fn memory() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").trim().parse::<u64>().ok());
    kib.map_or_else(|| "-".to_owned(), |kib| (kib >> 10).to_string())
}
