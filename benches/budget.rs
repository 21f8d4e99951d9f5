//! Recompute under a budget: a sweep in 20 steps over a 24-layer transformer and over a chain of 64
//! blocks. `cargo bench --bench budget` prints peak and work of each budget, and the times.

use std::time::Instant;

use tg::{
    budget::{Curve, Point},
    engine::{CompileOptions, Engine, Planning, Source},
    plan::Target,
};

const MIB: f64 = (1 << 20) as f64;
const STEPS: u64 = 20;

const TRANSFORMER: &str = "use nn
use init
use loss
use optim
model Block(d: int, heads: int) {
  let norm1 = nn.LayerNorm(d)
  let attn = nn.MultiHeadAttention(d, heads, causal: true)
  let norm2 = nn.LayerNorm(d)
  let up = nn.Linear(d, 4 * d)
  let down = nn.Linear(4 * d, d)
  fn forward(x) {
    let h = x + attn(norm1(x))
    h + down(gelu(up(norm2(h))))
  }
}
model Gpt(vocabulary: int, context: int, d: int, heads: int, layers: int) {
  param token: f32[vocabulary, d] = init.normal(std: 0.1)
  param position: f32[context, d] = init.normal(std: 0.1)
  let blocks = [Block(d, heads) for i in 0..layers]
  let norm = nn.LayerNorm(d)
  fn forward(ids) {
    let h = gather(token, ids) + position
    for b in blocks { h = b(h) }
    norm(h) @ token.T
  }
}
let net = Gpt(8192, 512, 1024, 16, 24)
let opt = optim.adamw(net, lr: 0.001)
step train(x: i32[8, 512], y: i32[8, 512]) {
  let cost = loss.cross_entropy(net(x), y)
  minimize cost over net with opt
  return cost
}
";

fn main() {
    sweep("transformer of 24 layers", Source::text("transformer.tg", TRANSFORMER));
    let blocks = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/blocks_plain.tg");
    match Source::file(blocks) {
        Ok(source) => sweep("chain of 64 blocks", source),
        Err(error) => panic!("{error}"),
    }
}

fn sweep(what: &str, source: Source) {
    let options = CompileOptions { planning: Planning::Nothing, ..CompileOptions::default() };
    let checked = Engine::new().check(source, &options);
    let Some(step) = checked.written.first() else { panic!("{what}: {:?}", checked.diagnostics) };
    let start = Instant::now();
    let mut curve = Curve::new(&step.graph, Target::Cpu);
    let candidates = start.elapsed();
    let smallest = curve.smallest().expect("plans");
    let list = start.elapsed();
    let plain = curve.plain().expect("a plan");
    println!("{what}: {} nodes; candidates {candidates:.2?}, list {list:.2?}", step.graph.len());
    println!("{:>12} {:>10} {:>7} {:>9}", "budget MiB", "peak MiB", "work", "time");
    let mut last: Option<Point> = None;
    for k in 0..STEPS {
        let budget = plain.peak_bytes - (plain.peak_bytes - smallest.peak_bytes) * k / (STEPS - 1);
        let start = Instant::now();
        let point = curve.fit(budget).expect("plans").expect("one fits");
        let time = start.elapsed();
        assert!(point.peak_bytes <= budget);
        if let Some(last) = last {
            assert!(point.peak_bytes <= last.peak_bytes && point.flops >= last.flops, "not monotone");
        }
        last = Some(point);
        let (peak, work) = (point.peak_bytes as f64 / MIB, point.flops / plain.flops);
        println!("{:>12.1} {peak:>10.1} {work:>7.3} {time:>9.2?}", budget as f64 / MIB);
    }
}
