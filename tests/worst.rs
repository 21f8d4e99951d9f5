//! The most that any legal order needs, on compiled programs: what the default binding of
//! `checkpoint` promises.

// Shared with other tests, which use the rest.
#[allow(dead_code)]
mod schedule_support;

use schedule_support::check::plain_peak;
use tg::{
    engine::{Engine, Source},
    plan::Plan,
    schedule::{
        BufferFlags, GraphBuilder, OpId, Options, ScheduleGraph, Worst, WorstOptions, repair, schedule,
        worst_order,
    },
};

const LIBRARY: &str = "use nn\nuse init\nuse loss\nuse optim\n";

/// Blocks with a residual connection, each a region; steps are added to it.
const RESIDUAL: &str = r#"
model Block(d: int) {
  let up = nn.Linear(d, 4 * d)
  let down = nn.Linear(4 * d, d)
  fn forward(x) = x + down(relu(up(x)))
}
model Net(d: int, n: int) {
  let blocks = [Block(d) for i in 0..n]
  fn forward(x) {
    let y = x
    for b in blocks { y = checkpoint < b(y) > }
    y
  }
}
let net = Net(256, 8)
"#;

const MINIMIZE: &str = r#"
step train(x: f32[4096, 256], y: f32[4096, 256]) {
  let cost = mean(square(net(x) - y))
  minimize cost over net with optim.sgd(lr: 0.1)
  return cost
}
"#;

/// State beside the parameters.
const ADAMW: &str = r#"
step train(x: f32[4096, 256], y: f32[4096, 256]) {
  let cost = mean(square(net(x) - y))
  minimize cost over net with optim.adamw(lr: 0.1)
  return cost
}
"#;

/// The norm needs all gradients at once, so they all wait for it in every order.
const CLIP: &str = r#"
step train(x: f32[4096, 256], y: f32[4096, 256]) {
  let cost = mean(square(net(x) - y))
  update net with optim.sgd(net, lr: 0.1), optim.clip(grad(cost, net), 1.0)
  return cost
}
"#;

/// Gradients are summed over parts of the batch.
const MICRO: &str = r#"
step train(x: f32[4096, 256], y: f32[4096, 256]) {
  let total = 0.0
  let g = 0.0
  for mx, my in microbatches(x, y, 4) {
    let cost = mean(square(net(mx) - my))
    total += cost / 4.0
    g += grad(cost, net) / 4.0
  }
  update net with optim.sgd(net, lr: 0.1), g
  return total
}
"#;

/// Regions within regions.
const NESTED: &str = r#"
model Block(d: int) {
  let up = nn.Linear(d, 4 * d)
  let down = nn.Linear(4 * d, d)
  fn forward(x) = down(relu(up(x)))
}
model Net(d: int, n: int) {
  let blocks = [[Block(d) for i in 0..n] for j in 0..n]
  fn run(group, x) {
    let y = x
    for b in group { y = checkpoint < b(y) > }
    y
  }
  fn forward(x) {
    let y = x
    for g in blocks { y = checkpoint < run(g, y) > }
    y
  }
}
let net = Net(256, 4)
step train(x: f32[4096, 256], y: f32[4096, 256]) {
  let cost = mean(square(net(x) - y))
  minimize cost over net with optim.sgd(lr: 0.1)
  return cost
}
"#;

/// One block, used many times.
const TIED: &str = r#"
model Net(d: int, n: int) {
  let block = nn.Linear(d, d)
  let read = nn.Linear(d, d)
  fn forward(x) {
    let y = x
    for i in 0..n { y = checkpoint < relu(block(relu(block(y)))) > }
    read(y)
  }
}
let net = Net(512, 8)
step train(x: f32[2048, 512], y: f32[2048, 512]) {
  let cost = mean(square(net(x) - y))
  minimize cost over net with optim.sgd(lr: 0.1)
  return cost
}
"#;

/// Two regions side by side in each block.
const BRANCHES: &str = r#"
model Block(d: int) {
  let a = nn.Linear(d, d)
  let b = nn.Linear(d, d)
  fn forward(x) = (checkpoint < relu(a(relu(x))) >) + (checkpoint < tanh(b(sigmoid(x))) >)
}
model Net(d: int, n: int) {
  let blocks = [Block(d) for i in 0..n]
  fn forward(x) {
    let y = x
    for b in blocks { y = b(y) }
    y
  }
}
let net = Net(256, 6)
step train(x: f32[4096, 256], y: f32[4096, 256]) {
  let cost = mean(square(net(x) - y))
  minimize cost over net with optim.sgd(lr: 0.1)
  return cost
}
"#;

/// Random numbers and running statistics.
const DROPOUT: &str = r#"
model Block(d: int) {
  let up = nn.Linear(d, 2 * d)
  let down = nn.Linear(2 * d, d)
  let norm = nn.BatchNorm2d(d)
  let drop = nn.Dropout(0.1)
  fn forward(x) = x + drop(down(relu(up(norm(x)))))
}
model Net(d: int, n: int) {
  let blocks = [Block(d) for i in 0..n]
  fn forward(x) {
    let y = x
    for b in blocks { y = checkpoint < b(y) > }
    y
  }
}
let net = Net(256, 6)
step train(x: f32[4096, 256], y: f32[4096, 256]) {
  let cost = mean(square(net(x) - y))
  minimize cost over net with optim.sgd(lr: 0.1)
  return cost
}
"#;

/// A model called on two inputs.
const TWICE: &str = r#"
model Block(d: int) {
  let up = nn.Linear(d, d)
  let down = nn.Linear(d, d)
  fn forward(x) = down(relu(up(x)))
}
model Net(d: int, n: int) {
  let blocks = [Block(d) for i in 0..n]
  fn forward(x) {
    let y = x
    for b in blocks { y = checkpoint < b(y) > }
    y
  }
}
let net = Net(512, 4)
step train(x: f32[2048, 512], y: f32[2048, 512]) {
  let cost = mean(square(net(x) - net(y)))
  minimize cost over net with optim.sgd(lr: 0.1)
  return cost
}
"#;

/// The transformer of the examples, with a region for each block.
const GPT: &str = r#"
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
    let t = ids.shape[1]
    let h = gather(token, ids) + position[0..t]
    for b in blocks { h = checkpoint < b(h) > }
    norm(h) @ token.T
  }
}
let net = Gpt(512, 128, 256, 8, 6)
step train(x: i32[64, 128], y: i32[64, 128]) {
  let cost = loss.cross_entropy(net(x), y)
  minimize cost over net with optim.adamw(lr: 0.1)
  return cost
}
"#;

/// The convolution network of the examples, with a region for each layer.
const CONVNET: &str = r#"
model Layer(c_in: int, c_out: int) {
  let conv = nn.Conv2d(c_in, c_out, kernel: 3, padding: 1, bias: false)
  let norm = nn.BatchNorm2d(c_out)
  fn forward(x) = relu(norm(conv(x)))
}
model ConvNet(c: int) {
  let layer1 = Layer(1, c)
  let layer2 = Layer(c, 2 * c)
  let layer3 = Layer(2 * c, 2 * c)
  let layer4 = Layer(2 * c, 2 * c)
  let head = nn.Linear(2 * c, 10)
  fn forward(x) {
    let h = layer1(x)
    h = checkpoint < max_pool2d(layer2(h), 2) >
    h = checkpoint < layer3(h) >
    h = checkpoint < layer4(h) >
    head(nn.global_avg_pool(h))
  }
}
let net = ConvNet(24)
step train(x: f32[64, 1, 16, 16], y: i32[64]) {
  let cost = loss.cross_entropy(net(x), y)
  minimize cost over net with optim.adamw(lr: 0.1)
  return cost
}
"#;

/// The best order may get worse by this factor: the search for it is not exact.
const NOTHING: f64 = 1.001;

fn plan(text: &str) -> Plan {
    let program = Engine::new().compile(Source::text("test.tg", format!("{LIBRARY}{text}")));
    match program {
        Ok(program) => Plan::clone(program.plan("train").expect("there is a step `train`")),
        Err(error) => panic!("{error:?}"),
    }
}

fn without_overwrites(graph: &ScheduleGraph) -> ScheduleGraph {
    let mut builder = GraphBuilder::new();
    for buffer in graph.buffer_ids() {
        let buffer = graph.buffer(buffer);
        builder.buffer(buffer.bytes, buffer.flags);
    }
    for op in graph.ops() {
        builder.op(graph.reads(op), graph.makes(op), graph.after(op), &[], graph.workspace(op));
    }
    builder.finish()
}

fn worst(graph: &ScheduleGraph) -> Worst {
    let worst = worst_order(graph, &WorstOptions::default());
    assert_eq!(plain_peak(graph, &worst.witness), worst.witness_bytes);
    assert!(worst.witness_bytes <= worst.bytes);
    worst
}

/// Asserts that the worst legal order needs at most `factor` times what the best one needs without
/// overwrites (which the guarantee does not assume), that this is known exactly, and that the binding
/// raises the best order by no more than `cost` above the weakest binding that keeps the recompute.
fn assert_bound(name: &str, text: &str, factor: f64, cost: f64) {
    let plan_all = plan(text);
    let worst = worst(&plan_all.schedule_graph);
    let options = Options { prove: false, ..Options::default() };
    let best = schedule(&without_overwrites(&plan_all.schedule_graph), &options).live_peak_bytes;
    let total = |bytes: u64| (bytes + plan_all.persistent_bytes) as f64;
    let ratio = total(worst.bytes) / total(best);
    println!("{name}: worst / best without overwrites {ratio:.4}");
    assert!(worst.is_exact(), "{name}: {} to {}", worst.witness_bytes, worst.bytes);
    assert!(ratio <= factor, "{name}: the worst order needs {ratio:.4} of the best");
    let grad = plan(&text.replace("checkpoint <", "checkpoint(bind: grad) <"));
    let (bound, free) = (plan_all.schedule.live_peak_bytes, grad.schedule.live_peak_bytes);
    let (bound, free) = (bound as f64, free as f64);
    assert!(bound <= free * cost, "{name}: the binding raises the best peak from {free} to {bound}");
}

#[test]
fn regions_in_a_row_are_as_good_in_every_order() {
    assert_bound("residual", &format!("{RESIDUAL}{MINIMIZE}"), 1.001, NOTHING);
    assert_bound("residual, adamw", &format!("{RESIDUAL}{ADAMW}"), 1.02, NOTHING);
    assert_bound("branches", BRANCHES, 1.001, NOTHING);
}

#[test]
fn nested_tied_and_repeated_regions() {
    assert_bound("nested", NESTED, 1.001, NOTHING);
    // The loss of the head behind the last region may wait while the head's gradient is made.
    assert_bound("tied", TIED, 1.11, NOTHING);
    // Both calls give gradients to every parameter. The first call's wait for the other's, where without
    // the binding the two could go backwards side by side.
    assert_bound("twice", TWICE, 1.001, 1.07);
    assert_bound("dropout", DROPOUT, 1.001, NOTHING);
}

#[test]
fn examples_with_regions() {
    assert_bound("gpt", GPT, 1.01, NOTHING);
    assert_bound("convnet", CONVNET, 1.02, NOTHING);
}

/// Sums over micro-batches may wait to the end of a part: two sets of gradients instead of one.
/// Clipping holds one set in every order.
#[test]
fn gradients_that_wait() {
    assert_bound("clip", &format!("{RESIDUAL}{CLIP}"), 1.02, NOTHING);
    assert_bound("micro-batches", &format!("{RESIDUAL}{MICRO}"), 1.13, NOTHING);
}

const PLAIN: BufferFlags = BufferFlags { persistent: false, input: false, output: false };

/// Layers whose gradient work can be put off: each frees a large buffer and leaves a small one.
fn deferred(layers: usize) -> ScheduleGraph {
    let mut graph = GraphBuilder::new();
    let mut made = graph.buffer(4096, PLAIN);
    graph.op(&[], &[made], &[], &[], 0);
    for _ in 0..layers {
        let next = graph.buffer(4096, PLAIN);
        graph.op(&[made], &[next], &[], &[], 0);
        let small = graph.buffer(256, PLAIN);
        graph.op(&[made], &[small], &[], &[], 0);
        graph.op(&[small], &[], &[], &[], 0);
        made = next;
    }
    graph.finish()
}

fn with_edges(graph: &ScheduleGraph, order: &[OpId], edges: &[(OpId, OpId)]) -> ScheduleGraph {
    let mut builder = GraphBuilder::new();
    for buffer in graph.buffer_ids() {
        let buffer = graph.buffer(buffer);
        builder.buffer(buffer.bytes, buffer.flags);
    }
    let at = |op: OpId| OpId(order.iter().position(|&o| o == op).unwrap() as u32);
    for &op in order {
        let edges = edges.iter().filter(|edge| edge.1 == op).map(|edge| edge.0);
        let after: Vec<OpId> = graph.after(op).iter().copied().chain(edges).map(at).collect();
        builder.op(graph.reads(op), graph.makes(op), &after, &[], graph.workspace(op));
    }
    builder.finish()
}

#[test]
fn repair_brings_the_worst_order_under_a_limit() {
    let graph = deferred(12);
    let limit = 3 * 4096;
    assert!(worst(&graph).witness_bytes > 10 * 4096);
    let repair = repair(&graph, limit, &Options::default()).expect("there are such edges");
    assert!(repair.worst.bytes <= limit && repair.live_peak_bytes <= limit);
    assert!(repair.edges.len() <= 12, "{} edges", repair.edges.len());
    let barriers = repair.barriers();
    let mut waits: Vec<_> = barriers.iter().flat_map(|(all, op)| all.iter().map(|&f| (f, *op))).collect();
    let mut edges = repair.edges.clone();
    waits.sort_unstable();
    edges.sort_unstable();
    assert_eq!(waits, edges);
    // The witness is legal with the edges, and the figures hold when they are worked out again.
    let again = with_edges(&graph, &repair.worst.witness, &repair.edges);
    assert_eq!(worst(&again).bytes, repair.worst.bytes);
    // Nothing gets under the best order.
    assert_eq!(tg::schedule::repair(&graph, 4096, &Options::default()), None);
}

#[test]
fn repair_on_small_graphs_finds_what_single_edges_can_do() {
    use schedule_support::{
        brute::{by_down_sets, worst_by_down_sets},
        random::{Random, Shape, graph},
    };
    let (mut count, mut single, mut possible) = (0, 0, 0);
    for seed in 0..200u64 {
        let shape = Shape { ops: 4 + seed as usize % 5, dense: seed % 2 == 0 };
        let graph = graph(&mut Random::new(seed), shape);
        let (most, least) = (worst_by_down_sets(&graph), by_down_sets(&without_overwrites(&graph)));
        if most == least {
            continue;
        }
        count += 1;
        let limit = (most + least) / 2;
        let repair = repair(&graph, limit, &Options::default()).expect("the best order is within it");
        let again = with_edges(&graph, &repair.worst.witness, &repair.edges);
        assert!(worst_by_down_sets(&again) <= limit, "seed {seed}");
        assert!(by_down_sets(&again) <= limit, "seed {seed}");
        single += usize::from(repair.edges.len() == 1);
        let source: Vec<OpId> = graph.ops().collect();
        let pairs = source.iter().flat_map(|&a| source.iter().map(move |&b| (a, b)));
        let suffices = |&edge: &(OpId, OpId)| {
            edge.0 < edge.1 && worst_by_down_sets(&with_edges(&graph, &source, &[edge])) <= limit
        };
        possible += usize::from(pairs.into_iter().any(|edge| suffices(&edge)));
    }
    println!("{count} repaired, {single} by one edge; one edge along the source order does for {possible}");
    assert!(single * 10 >= possible * 9, "{single} of {possible}");
}
