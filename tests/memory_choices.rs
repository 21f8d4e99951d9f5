//! What the planner decides beside the order: slices that are copied, results that take the place of
//! an operand, new values of parameters and state that are made in place. Values are those of the
//! reference interpreter.

use std::sync::{Arc, atomic::AtomicBool};

use tg::{
    engine::{CompileOptions, Engine, Source},
    exec::{
        Tensor,
        cpu::{Arena, Executable, ScalarPage, eval},
    },
    ir::{DType, Type},
    lower::{PlanOptions, plan},
    ops::Op,
    plan::{CommitReason, Plan, RefusalReason},
    schedule::{OpId, OrderKind},
};

const KIB: u64 = 1024;

/// Some numbers, the same at every call.
fn fill(ty: &Type, seed: u64) -> Tensor {
    let value = |k: u64| {
        let bits = (k + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(seed as u32 + 7) >> 40;
        bits as f32 / (1u64 << 24) as f32 - 0.5
    };
    let size = ty.dtype().size();
    let bytes: Vec<u8> = (0..ty.elements() as u64)
        .flat_map(|k| match ty.dtype() {
            DType::F32 => value(k).to_le_bytes().to_vec(),
            // The upper half of an f32.
            DType::BF16 => value(k).to_le_bytes()[2..].to_vec(),
            _ => vec![0; size],
        })
        .collect();
    Tensor::from_bytes(ty.clone(), &bytes).expect("the bytes fit")
}

/// Plans the step `f` of a program and runs it twice, planned and by the reference interpreter.
/// Outputs and persistent tensors must agree to the bit, and the arena must be used as planned.
fn planned(text: &str) -> Arc<Plan> {
    let checked = Engine::new().check(Source::text("test.tg", text), &CompileOptions::default());
    assert!(checked.is_sound(), "{:?}", checked.diagnostics);
    let (_, graph) = checked.graphs.iter().find(|(name, _)| &**name == "f").expect("there is a step `f`");
    let plan = Arc::new(plan(graph, "f", &PlanOptions::default()).expect("it can be planned"));
    let inputs: Vec<Tensor> =
        graph.inputs.iter().enumerate().map(|(k, input)| fill(&input.ty, k as u64)).collect();
    let slots: Vec<Tensor> =
        graph.slots.iter().enumerate().map(|(k, slot)| fill(&slot.ty, 20 + k as u64)).collect();
    let page = |step| ScalarPage { values: vec![0.25; graph.scalars.len()], seed: 3, step };
    let (mut expected, mut actual) = (slots.clone(), slots);
    let mut executable = Executable::new(Arc::clone(&plan)).expect("it can be prepared");
    executable.set_poison(true);
    let mut arena = Arena::new(u64::MAX);
    for step in 0..2 {
        let outputs = eval(graph, &mut expected, &inputs, &page(step)).expect("it runs");
        let run = executable
            .run(&mut arena, &mut actual, &inputs, &page(step), &AtomicBool::new(false))
            .expect("it runs");
        assert_eq!(run.high_water_bytes, plan.schedule.arena_bytes);
        assert!(outputs == run.outputs, "the outputs of step {step} differ");
        assert!(expected == actual, "the state after step {step} differs");
    }
    plan
}

/// The bytes of the slices that are copied, in the order of their buffers.
fn copies(plan: &Plan) -> Vec<u64> {
    plan.views.iter().filter(|view| view.copy.is_some()).map(|view| view.bytes).collect()
}

/// What the copies save.
fn saved(plan: &Plan) -> u64 {
    plan.arena_bytes_without_copies.map_or(0, |before| before - plan.schedule.arena_bytes)
}

fn is_optimal(plan: &Plan) -> bool {
    plan.schedule.lower_bound_bytes == plan.schedule.arena_bytes
}

/// `h` is large; its sum is needed early and `LATE` of it at the end, with something that is known
/// only then. In between, three matrices of its size are alive.
const LARGE: &str = "
step f(x: f32[256, 256], z: f32[256, 256]) {
  let h = x @ x
  let z1 = z + sum(h)
  let z2 = z1 @ z1
  let z3 = z2 @ z1
  let t = sum(z3 * z3)
  return sum(LATE)
}";

fn large(late: &str) -> String {
    LARGE.replace("LATE", late)
}

#[test]
fn a_small_slice_of_a_large_value_is_copied_when_that_lowers_the_peak() {
    for (late, bytes) in [
        ("h[0]", KIB),
        ("h[3..5]", 2 * KIB),
        ("h[:, 7]", KIB),
        ("h[:, 0..2].T", 2 * KIB),
        ("h[10..20, 2..4]", 256),
        ("h[0..64][2, 5..10]", 256),
        ("h.T[4]", KIB),
        ("reshape(h[1], [16, 16]).T", KIB),
        ("h[2, 3]", 256),
    ] {
        let plan = planned(&large(&format!("{late} * t")));
        assert_eq!(copies(&plan), [bytes], "{late}");
        assert_eq!(saved(&plan), 256 * KIB - bytes, "{late}");
        assert!(is_optimal(&plan), "{late}");
    }
}

#[test]
fn several_slices_are_copied_if_they_are_smaller_together() {
    let plan = planned(&large("(h[0] * h[1] + h[:, 3]) * t"));
    assert_eq!(copies(&plan), [KIB, KIB, KIB]);
    assert!(saved(&plan) == 253 * KIB && is_optimal(&plan));
    // Equal slices are one copy.
    let plan = planned(&large("h[0] * exp(h[0]) * t"));
    assert_eq!(copies(&plan), [KIB]);
    // What is needed together is all of it: nothing is gained.
    let plan = planned(&large("h[0..128] * h[128..] * t"));
    assert_eq!((copies(&plan), saved(&plan)), (vec![], 0));
    // A copy would not be smaller.
    let plan = planned(&large("h[0..] * t"));
    assert_eq!((copies(&plan), plan.views.len()), (vec![], 0));
}

#[test]
fn a_returned_slice_of_a_large_value_is_copied() {
    let text = "
step f(x: f32[256, 256], z: f32[256, 256]) {
  let h = x @ x
  let z1 = z + sum(h)
  let z2 = z1 @ z1
  return sum(z2 @ z1), h[0], h[:, 1]
}";
    let plan = planned(text);
    assert_eq!(copies(&plan), [KIB, KIB]);
    assert!(saved(&plan) > 250 * KIB && is_optimal(&plan), "{}", saved(&plan));
    // With the whole of it returned, copies are of no use.
    let plan = planned(&text.replace("h[0]", "h"));
    assert_eq!((copies(&plan), plan.views.len()), (vec![], 0));
}

#[test]
fn nothing_is_copied_where_it_would_not_lower_the_peak() {
    // The large value is needed to the end.
    let text = large("h[0] * t + h");
    assert!(copies(&planned(&text)).is_empty());
    // A parameter takes no room in the arena.
    let text = "
model M() {
  param w: f32[256, 256] = zeros()
  fn forward(x) = x @ w
}
let m = M()
step f(x: f32[256, 256]) {
  let y = m(x)
  return sum(m.w[0] * sum(y @ y))
}";
    let plan = planned(text);
    assert_eq!((copies(&plan), plan.views.len()), (vec![], 0));
    // An input does.
    let text = "
step f(x: f32[256, 256], z: f32[256, 256]) {
  let z1 = z + sum(x)
  let z2 = z1 @ z1
  return sum(x[0] * sum(z2 @ z1))
}";
    let plan = planned(text);
    assert_eq!((copies(&plan), saved(&plan)), (vec![KIB], 255 * KIB));
}

#[test]
fn the_slices_of_an_input_that_are_done_with_one_by_one_are_copied_together() {
    let text = "
use nn
use optim
use loss
model Net() {
  let cell = nn.RNNCell(16, 32)
  let out = nn.Linear(32, 4)
  fn forward(x) {
    let h = zeros([8, 32])
    for t in 0..12 {
      h = cell(x[t], h)
    }
    out(h)
  }
}
let net = Net()
let opt = optim.sgd(net, lr: 0.1)
step f(x: f32[12, 8, 16], y: i32[8]) {
  let cost = loss.cross_entropy(net(x), y)
  let grads = grad(cost, net)
  update net with opt, grads
  return cost
}";
    let plan = planned(text);
    // Copied behind the backward pass of the last ones, the others would stand beside all of `x`.
    assert!(copies(&plan).len() > 6 && copies(&plan).iter().all(|&bytes| bytes == 512));
    assert!(saved(&plan) >= KIB && is_optimal(&plan), "{}", saved(&plan));
}

#[test]
fn a_slice_keeps_the_bits_of_products() {
    // Rows keep their stride of one in a copy; a column would get one that it does not have.
    let text = |late: &str| large(late).replace("z: f32[256, 256]", "z: f32[256, 256], q: f32[8, 8]");
    assert_eq!(copies(&planned(&text("(q * t) @ h[0..8, 0..8]"))).len(), 1);
    assert_eq!(copies(&planned(&text("h[0..8, 0..8].T @ (q * t)"))).len(), 1);
    let plan = planned(&text("(q * t) @ h[0..16..2, 0..16..2]"));
    assert!(plan.views.iter().all(|view| view.copy.is_none()));
}

#[test]
fn copies_are_made_on_their_side_of_a_barrier() {
    // Before the barrier: it passes the copy, and waits for it.
    let text = large("kept * t")
        .replace("let z1 = z + sum(h)", "let kept, b = barrier(h[0], sum(h))\n  let z1 = z + b");
    let plan = planned(&text);
    assert_eq!(copies(&plan), [KIB]);
    let copy = plan.views[0].copy.expect("it is copied");
    let op = plan.schedule_graph.maker(copy).expect("an op copies it");
    let at = |op: OpId| plan.schedule.order.iter().position(|&o| o == op);
    let barriers: Vec<OpId> = plan
        .schedule_graph
        .ops()
        .filter(|o| matches!(plan.graph.node(plan.op_nodes[o.0 as usize]).op(), Op::Barrier(_)))
        .collect();
    assert!(barriers.len() == 1 && at(op) < at(barriers[0]));
    assert!(plan.schedule_graph.after(barriers[0]).contains(&op));

    // Behind it: the copy waits for the barrier too.
    let text = large("behind[0] * t")
        .replace("let z1 = z + sum(h)", "let behind, b = barrier(h, sum(h))\n  let z1 = z + b");
    let plan = planned(&text);
    assert_eq!(copies(&plan), [KIB]);
    let op = plan.schedule_graph.maker(plan.views[0].copy.expect("it is copied")).expect("an op copies it");
    let waits = plan.schedule_graph.after(op);
    assert!(waits.iter().any(|o| matches!(plan.kernels[o.0 as usize], tg::plan::Kernel::Nothing)));
}

#[test]
fn a_result_that_overwrites_nothing_has_a_reason() {
    let text = "
model M() {
  param w: f32[64, 64] = zeros()
  fn forward(x) = exp(w) @ x
}
let m = M()
step f(x: f32[64, 64], y: f32[64, 64]) {
  let a = exp(m(x))
  let b = tanh(softmax(a) + x)
  let c = f16(b) @ f16(a)
  return sum(c), sum(b, axis: 0), a, softmax(y.T)
}";
    let plan = planned(text);
    let refused = plan.refused();
    let reasons: Vec<RefusalReason> = refused.iter().map(|r| r.reason).collect();
    for wanted in
        [RefusalReason::Persistent, RefusalReason::Returned, RefusalReason::Size, RefusalReason::Part]
    {
        assert!(reasons.contains(&wanted), "{wanted:?} in {refused:?}");
    }
    let graph = &plan.schedule_graph;
    let position = |op: OpId| plan.schedule.order.iter().position(|&o| o == op);
    for refusal in &refused {
        assert!(graph.makes(refusal.op).contains(&refusal.made));
        assert!(graph.reads(refusal.op).contains(&refusal.operand));
        assert_eq!(plan.schedule.overwrites[refusal.made.0 as usize], None);
        if let RefusalReason::ReadLater(reader) = refusal.reason {
            assert!(graph.reads(reader).contains(&refusal.operand));
            assert!(position(reader) > position(refusal.op));
        }
    }
}

#[test]
fn a_later_reader_is_named() {
    let text = "
step f(x: f32[64, 64]) {
  let a = x @ x
  let b = exp(a) @ a
  return sum(b)
}";
    let plan = planned(text);
    let later: Vec<&str> = plan
        .refused()
        .iter()
        .filter_map(|r| match r.reason {
            RefusalReason::ReadLater(op) => Some(plan.graph.node(plan.op_nodes[op.0 as usize]).op().name()),
            _ => None,
        })
        .collect();
    assert_eq!(later, ["matmul"]);
}

/// A model of one parameter, state of the same shape, and a step with this body.
fn with_state(body: &str) -> String {
    format!(
        "
model M() {{
  param p: f32[64, 64] = zeros()
  state s: f32[64, 64] = zeros()
  state q: f32[64, 64] = zeros()
  fn forward(x) {{
{body}
  }}
}}
let m = M()
step f(x: f32[64, 64]) {{ return m(x) }}"
    )
}

/// The commits that are copies, by the name of the tensor.
fn commits(plan: &Plan) -> Vec<(&str, CommitReason)> {
    plan.commits.iter().map(|c| (&*plan.graph.slots[c.slot.0 as usize].name, c.reason)).collect()
}

#[test]
fn state_is_made_in_place_when_the_last_read_comes_before_the_write() {
    let tile = 16 * KIB;
    for (body, arena) in [
        // The input only.
        ("s := s * 0.5 + x\n sum(x)", tile + 256),
        // Computed before the last read of the old value, written after it.
        ("let new = s * 0.5 + x\n let y = sum(s)\n s := new\n y", tile + 256),
        // A part of the old value, read later.
        ("let old = s[0]\n s := s * 0.5 + x\n sum(old)", tile + 512),
        ("s := x\n sum(x)", tile + 256),
        ("s := full([64, 64], 2.0)\n sum(x)", tile + 256),
        ("s := broadcast(x[0], [64, 64])\n sum(x)", tile + 256),
        // Element by element, the old value is read before the new one is written.
        ("let old = s\n s := s * 0.5 + x\n old + s", 2 * tile),
        ("s := x\n q := s * 2.0\n sum(s)", tile + 256),
    ] {
        let plan = planned(&with_state(body));
        assert!(plan.commits.is_empty(), "{body}: {:?}", commits(&plan));
        assert!(plan.schedule.arena_bytes <= arena, "{body}: {}", plan.schedule.arena_bytes);
    }
}

#[test]
fn state_that_cannot_be_made_in_place_is_copied_and_says_why() {
    let reader = |plan: &Plan, op: OpId| plan.graph.node(plan.op_nodes[op.0 as usize]).op().name();
    // The old value is read together with the new one.
    let plan = planned(&with_state("let old = s\n s := exp(s @ x)\n old @ s"));
    match commits(&plan)[..] {
        [("m.s", CommitReason::ReadLater(op))] => assert_eq!(reader(&plan, op), "matmul"),
        ref other => panic!("{other:?}"),
    }
    // The copy's buffer counts: the new value, the input or the result beside it.
    assert!(plan.schedule.arena_bytes >= 2 * 16 * KIB);
    // Two states change places: one of them is copied on the way.
    let plan = planned(&with_state("let old = s\n s := q\n q := old\n sum(x)"));
    assert!(matches!(commits(&plan)[..], [(_, CommitReason::ReadLater(_))]), "{:?}", commits(&plan));
    // Written from a view of itself.
    for turned in ["s.T", "concat([s[1..], s[..1]])"] {
        let plan = planned(&with_state(&format!("s := {turned}\n sum(x)")));
        assert!(matches!(commits(&plan)[..], [("m.s", CommitReason::OutOfStep(_))]), "{:?}", commits(&plan));
    }
    // Both states get one value.
    let plan = planned(&with_state("let new = x * 2.0\n s := new\n q := new\n sum(x)"));
    assert!(matches!(commits(&plan)[..], [(_, CommitReason::Elsewhere(_))]), "{:?}", commits(&plan));
}

#[test]
fn an_update_in_place_waits_for_the_returned_old_value() {
    let text = |returned: &str| {
        format!(
            "
use optim
model M() {{
  param p: f32[64, 64] = zeros()
  fn forward(x) = x @ p
}}
let m = M()
step f(x: f32[64, 64]) {{
  let old = m.p
  let loss = sum(square(m(x)))
  minimize loss over m with optim.sgd(lr: 0.1, momentum: 0.9)
  return loss, {returned}
}}"
        )
    };
    for returned in ["old", "m.p", "sum(old)", "old[0]", "old.T", "old * 2.0", "old - m.p"] {
        let plan = planned(&text(returned));
        let expected = usize::from(returned == "old - m.p");
        assert_eq!(plan.commits.len(), expected, "{returned}: {:?}", plan.commits);
    }
}

#[test]
fn momentum_of_a_narrow_parameter_is_wide_and_in_place() {
    let text = "
optimizer wide(lr) {
  state v = zeros(p.shape)
  v := 0.9 * v + f32(g)
  p := bf16(f32(p) - lr * v)
}
model M() {
  param p: bf16[64, 64] = zeros()
  fn forward(x) = x @ p
}
let m = M()
step f(x: bf16[64, 64]) {
  let loss = sum(square(m(x)))
  minimize loss over m with wide(lr: 0.1)
  return loss
}";
    let plan = planned(text);
    assert_eq!(plan.commits.len(), 0);
    assert_eq!(plan.persistent_bytes, (8 + 16) * KIB);
}

/// The copies belong to the graph: what is promised for every order holds for those that can be asked
/// for by name.
#[test]
fn other_orders_have_the_same_copies() {
    let text = "step s(x: f32[64, 64]) {
  let h = exp(x) @ x
  let p = h[0..1]
  let a, b = barrier(p, x)
  let k = tanh(exp(b) @ b) @ b
  return sum(a + k)
}";
    let plan_in = |order| {
        let options = CompileOptions { order, ..CompileOptions::default() };
        let program = Engine::new().compile_with(Source::text("a.tg", text), &options).unwrap();
        program.plan("s").unwrap().clone()
    };
    let best = plan_in(OrderKind::Best);
    assert_eq!(copies(&best).len(), 1);
    let worst = best.worst_legal_bytes().unwrap();
    for order in [OrderKind::Source, OrderKind::List, OrderKind::Lpmf, OrderKind::Dfs, OrderKind::Witness] {
        let plan = plan_in(order);
        assert_eq!(copies(&plan), copies(&best), "{order:?}");
        assert_eq!(plan.worst_legal_bytes(), Some(worst), "{order:?}");
        assert!(plan.persistent_bytes + plan.schedule.live_peak_bytes <= worst, "{order:?}");
        assert_eq!(plan.lower_bound_bytes(), best.lower_bound_bytes(), "{order:?}");
    }
}

/// Statistics of batches are written once for each part of a batch, regions with them or not.
#[test]
fn regions_around_batch_norm_in_parts_of_a_batch() {
    for bind in ["", "(bind: output)", "(bind: grad)", "(bind: none)"] {
        let plan = planned(&format!(
            "use nn
use loss
use optim
model Net() {{
  let a = nn.Conv2d(3, 8, 3, padding: 1)
  let n = nn.BatchNorm2d(8)
  let out = nn.Linear(8, 10)
  fn forward(x) {{
    let h = checkpoint{bind} < relu(n(a(x))) >
    out(nn.global_avg_pool(h))
  }}
}}
let net = Net()
let opt = optim.sgd(net, lr: 0.1)
step f(x: f32[8, 3, 8, 8], y: i32[8]) {{
  let g = 0.0
  for mx, my in microbatches(x, y, 4) {{
    g += grad(loss.cross_entropy(net(mx), my), net)
  }}
  update net with opt, g / 4
}}
"
        ));
        assert!(plan.recomputed_flops > 0.0 || bind == "(bind: none)", "{bind}");
    }
}

/// The norm of values and what it divides read them in f32: both cast, and no copy in f32 is stored.
#[test]
fn wide_casts_that_element_wise_ops_share_are_made_by_each() {
    let wide = |plan: &Plan| {
        let casts = plan.buffers.iter().filter(|b| {
            let (maker, _) = plan.graph.producer(b.value);
            matches!(maker.op(), Op::Cast(_)) && plan.graph.ty(b.value).dtype() == DType::F32
        });
        casts.map(|b| b.dense_bytes).sum::<u64>()
    };
    let norm = planned(
        "step f(x: bf16[64, 64], y: bf16[64, 64]) {
  let size = sqrt(sum(f32(x) * f32(x)) + sum(f32(y) * f32(y)))
  return bf16(f32(x) / size), bf16(f32(y) / size)
}",
    );
    assert_eq!(wide(&norm), 0);
    // Two inputs of 8 KiB, whose places the results take, and the squares of one of them.
    assert!(norm.peak_bytes() < 32 * KIB + KIB, "{}", norm.peak_bytes());
    // A product needs the copy in memory: then all read that.
    let product = planned(
        "step f(x: bf16[64, 64], w: f32[64, 64]) {
  return f32(x) @ w, f32(x) * 2.0
}",
    );
    assert_eq!(wide(&product), 16 * KIB);
}

/// A parameter that is cast at each use has a gradient of each: they are added up as they come.
#[test]
fn gradients_of_casts_are_added_up_as_they_come() {
    let text = |uses: usize| {
        format!(
            "use optim
model M() {{ param w: f32[128, 128] = ones() }}
let m = M()
step f(x: bf16[4, 128]) {{
  for i in 0..{uses} {{ x = tanh(x @ bf16(m.w)) }}
  let loss = sum(f32(x))
  minimize loss over m with optim.sgd(lr: 0.1)
  return loss
}}"
        )
    };
    let (few, many) = (planned(&text(4)), planned(&text(12)));
    // Eight more values of 1 KiB, and not eight gradients of 32 KiB.
    assert!(many.peak_bytes() - few.peak_bytes() <= 16 * KIB, "{} {}", few.peak_bytes(), many.peak_bytes());
}
