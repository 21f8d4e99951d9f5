//! Gradients, optimizers, regions: what training does.

use crate::support::{check, run};

const MLP: &str = r#"
use nn
use optim
model Block(d: int) {
  let fc = nn.Linear(d, d)
  state calls: f32[] = 0.0
  fn forward(x) {
    calls := calls + 1.0
    nn.dropout(relu(fc(x)), 0.2)
  }
}
model Net(d: int) {
  let blocks = [Block(d) for i in 0..3]
  fn forward(x) {
    let y = x
    for b in blocks { y = REGION }
    y
  }
}
let net = Net(8)
step train(x: f32[16, 8]) {
  let cost = mean(square(net(x) - 1.0))
  minimize cost over net with optim.adamw(lr: optim.cosine(0.05, 10))
  return cost
}
let x = normal([16, 8])
for i in 0..8 { print(train(x)) }
print(net.blocks[1].fc.w, net.blocks[2].calls)
"#;

fn losses(printed: &str) -> Vec<f64> {
    printed.lines().map_while(|l| l.parse().ok()).collect()
}

#[test]
fn an_mlp_learns() {
    let losses = losses(&run(&MLP.replace("REGION", "b(y)")));
    assert_eq!(losses.len(), 8);
    assert!(losses[7] < 0.8 * losses[0], "{losses:?}");
}

#[test]
fn checkpointed_and_plain_runs_agree_bit_for_bit() {
    let plain = run(&MLP.replace("REGION", "b(y)"));
    assert!(plain.ends_with("8.0"), "each state is written once a step: {plain}");
    for region in
        ["checkpoint < b(y) >", "checkpoint(bind: none) < b(y) >", "checkpoint(policy: dots) < b(y) >"]
    {
        assert_eq!(run(&MLP.replace("REGION", region)), plain, "{region}");
    }
}

#[test]
fn gradients_of_values() {
    let text = r#"
fn f(a, b) = sum(a * a * b)
let v, gs = value_and_grad(f, tensor([1.0, 2.0]), tensor([3.0, 4.0]))
print(v, gs[0], gs[1])
step second(x: f32[2]) {
  let y = sum(x * x * x)
  let g = grad(y, x)
  return grad(sum(g), x)
}
print(second(tensor([1.0, 2.0])))
step several(x: f32[2], y: f32[2]) {
  let g = grad(sum(x * y), [x, y])
  return g[0], g[1]
}
print(several(ones([2]), tensor([5.0, 6.0])))
"#;
    let printed =
        "19.0 f32[2]\n[ 6. 16.] f32[2]\n[1. 4.]\nf32[2]\n[ 6. 12.]\n(f32[2]\n[5. 6.], f32[2]\n[1. 1.])";
    assert_eq!(run(text), printed);
}

#[test]
fn pullback_gives_parameter_and_input_gradients() {
    let text = r#"
model Scale() {
  param w: f32[2] = full(3.0)
  fn forward(x) = x * w
}
let m = Scale()
fn twice(x) = 2.0 * x
step f(x: f32[2]) {
  let grads, back = pullback(m, x, tensor([1.0, 10.0]))
  return grads.w, back, pullback(twice, x, ones([2]))
}
let w, back, t = f(tensor([5.0, 6.0]))
print(w, back, t)
"#;
    assert_eq!(run(text), "f32[2]\n[ 5. 60.] f32[2]\n[ 3. 30.] f32[2]\n[2. 2.]");
}

#[test]
fn trees_of_gradients() {
    let text = r#"
use nn
use optim
let net = nn.Linear(2, 1)
step f(x: f32[4, 2]) {
  let g = grad(sum(net(x)), net)
  let doubled = g * 2.0 - g
  let n = norm(g)
  let clipped = optim.clip(g, 1.0)
  return norm(doubled) - n, norm(clipped), g.b, map(half, g).b
}
fn half(x) = x / 2.0
let same, clipped, b, h = f(ones([4, 2]))
print("{same:.3f} {clipped:.3f}", b, h)
"#;
    assert_eq!(run(text), "0.000 1.000 f32[1]\n[4.] f32[1]\n[2.]");
}

#[test]
fn microbatches_add_up_to_the_batch() {
    let text = r#"
use nn
use optim
let net = nn.Linear(3, 1)
step parts(x: f32[8, 3]) {
  let g = 0
  for part in microbatches(x, 4) { g += grad(sum(square(net(part))), net) }
  return g.w
}
step whole(x: f32[8, 3]) { return grad(sum(square(net(x))), net).w }
let x = normal([8, 3])
print(max(abs(parts(x) - whole(x))) < 1e-4)
step pairs(x: f32[4, 2], y: f32[4]) {
  let total = 0.0
  for a, b in microbatches(x, y, 2) { total += sum(a) * sum(b) }
  return total
}
print(pairs(ones([4, 2]), ones([4])))
"#;
    assert_eq!(run(text), "true\n16.0");
}

#[test]
fn two_updates_in_one_step_run_in_order() {
    let text = r#"
model M() { param w: f32[1] = ones()
  fn forward() = w }
let m = M()
optimizer plain(lr) { p := p - lr * g }
optimizer counted() { p := p * 0.0 + t }
step two() {
  let before = m.w
  minimize sum(m.w * 2.0) over m with plain(lr: 0.25)
  let between = m.w
  minimize sum(m.w * m.w) over m with plain(lr: 0.5)
  return before, between, m.w
}
let a, b, c = two()
print(float(a), float(b), float(c), float(m.w))
let opt = counted()
step twice() {
  minimize sum(m.w) over m with opt
  minimize sum(m.w) over m with opt
  return m.w
}
print(float(twice()), float(twice()))
"#;
    assert_eq!(run(text), "1.0 0.5 0.0 0.0\n2.0 4.0");
}

#[test]
fn hyper_parameters_change_without_a_new_plan() {
    let text = r#"
model M() { param w: f32[1] = ones()
  fn forward() = w }
let m = M()
optimizer plain(lr) { p := p - lr * g }
let opt = plain(m, lr: 0.0)
step train() { minimize sum(m.w) over m with opt }
train()
print(float(m.w))
opt.lr = 0.25
train()
print(float(m.w), opt.lr)
"#;
    assert_eq!(run(text), "1.0\n0.75 0.25");
}

#[test]
fn learning_rates_may_be_functions_of_the_update_count() {
    let text = r#"
model M() { param w: f32[1] = zeros()
  fn forward() = w }
let m = M()
fn rate(t) = t * 10.0
optimizer plain(lr) { p := p - lr * g }
step train() { minimize sum(m.w) over m with plain(lr: rate) }
train()
train()
print(float(m.w))
"#;
    assert_eq!(run(text), "-30.0");
}

#[test]
fn frozen_parameters_stay() {
    let text = r#"
use optim
model M() {
  param a: f32[1] = ones()
  param frozen b: f32[1] = ones()
  fn forward() = a * b
}
let m = M()
step train() { minimize sum(m()) over m with optim.sgd(lr: 0.5) }
train()
print(float(m.a), float(m.b))
"#;
    assert_eq!(run(text), "0.5 1.0");
}

#[test]
fn training_is_known_in_the_graph() {
    let text = r#"
use optim
model M() { param w: f32[1] = ones()
  fn forward() = if training { w * 2.0 } else { w } }
let m = M()
step train() {
  let inner = 0.0
  with training: false { inner = sum(m()) }
  let loss = sum(m())
  minimize loss over m with optim.sgd(lr: 0.0)
  return loss, inner
}
step test() { return sum(m()) }
let a, b = train()
print(float(a), float(b), float(test()), float(m()))
"#;
    assert_eq!(run(text), "2.0 1.0 1.0 1.0");
}

#[test]
fn region_options_are_checked() {
    let step = |options: &str| format!("step f(x: f32[2]) {{ return checkpoint({options}) < exp(x) > }}");
    assert_eq!(check(&step("bind: some")), "1: TG0233 `bind` is one of `all`, `grad`, `output`, `none`");
    assert_eq!(check(&step("keeps: [x]")), "1: TG0233 `checkpoint` has no option `keeps`");
    assert_eq!(check(&step("policy: all")), "1: TG0233 `policy` is `nothing`, `dots` or `names(\"…\")`");
    assert_eq!(check(&step("policy: names(\"a\"), bind: grad")), "");
    let keep =
        "step f(x: f32[2]) { return checkpoint(keep: [h]) < { let h = exp(x); name(h, \"h\") * 2.0 } > }";
    assert_eq!(check(keep), "");
}

/// 1 − 0.001 rounds to 1 in bf16, so a thousand such steps go nowhere without a master copy.
#[test]
fn a_master_copy_keeps_small_steps() {
    let program = |optimizer: &str| {
        format!(
            "use optim
model M() {{
  param w: bf16[4] = 1.0
  fn forward(x) = sum(x * f32(w))
}}
let net = M()
let opt = {optimizer}
step train(x: f32[4]) {{
  let loss = net(x)
  minimize loss over net with opt
  return loss
}}
for i in 0..500 {{ train(ones([4])) }}
print(\"{{net.w.dtype}} {{float(f32(net.w)[0]):.2f}}\")"
        )
    };
    assert_eq!(run(&program("optim.sgd(net, lr: 0.001)")), "bf16 1.00");
    assert_eq!(run(&program("optim.sgd(net, lr: 0.001, master: f32)")), "bf16 0.50");
    assert_eq!(run(&program("optim.sgd(net, lr: 0.001, momentum: 0.5, master: f32)")), "bf16 0.00");
}

/// The barrier of `bind: output` waits for the commits of a region, which the next pass over the state
/// must not be fused with.
#[test]
fn state_in_regions_of_micro_batches_works_in_every_binding() {
    let program = |options: &str| {
        format!(
            "use nn
use optim
model Net() {{
  let n = nn.BatchNorm2d(8)
  fn forward(x) = checkpoint{options} < n(reshape(x, [-1, 8, 1, 1])) >
}}
let net = Net()
step train(x: f32[4, 8]) {{
  let g = 0.0
  for mx in microbatches(x, 2) {{
    g += grad(mean(net(mx) ** 2), net)
  }}
  update net with optim.sgd(lr: 0.01), g / 2
  return net.n.w, net.n.running_mean, net.n.running_var
}}
for i in 0..3 {{ print(train(reshape(arange(32), [4, 8]) * 0.37 + i)) }}"
        )
    };
    let expected = run(&program(""));
    for bind in ["all", "grad", "output", "none"] {
        assert_eq!(run(&program(&format!("(bind: {bind})"))), expected, "{bind}");
    }
}

/// A state is read where it stands, wherever that is: a later write does not change it.
#[test]
fn states_are_read_where_they_stand() {
    let text = r#"
model Net() {
  state s: f32[2, 2] = 1.0
  state t: f32[2, 2] = 2.0
  fn write() { s := s + 10.0; zeros([2, 2]) }
  fn late(a) { write(); a }
  fn swap() { let a, b = (s, t); s := b; t := a; a + 10.0 * b }
  fn item() { let all = [s, t]; write(); all[0] }
  fn each() { let r = t; for q in [s] { write(); r = q }; r }
  fn twice() = map(plus, [s, s])[1]
  fn plus(q) { write(); q * 1.0 }
  fn views() { let v = s.T; write(); v.T }
  fn forward(k: int) {
    if k == 0 { late(s) } else if k == 1 { checkpoint < late(s) > } else if k == 2 { swap() }
    else if k == 3 { item() } else if k == 4 { each() } else if k == 5 { twice() }
    else if k == 6 { s + write() } else { views() }
  }
}
step f(k: int, net) { return net(k) }
for k in 0..8 {
  let net = Net()
  print("{max(f(k, net))} {max(net.s)}")
}
"#;
    let mut expected = vec!["1.0 11.0"; 8];
    expected[2] = "21.0 2.0";
    expected[5] = "1.0 21.0";
    assert_eq!(run(text).lines().collect::<Vec<_>>(), expected);
}

/// Another model's parameters in place of gradients: moving means and target networks.
#[test]
fn a_model_follows_another_one() {
    let text = |target: &str| {
        format!(
            "use nn
use optim
model Net(h: int) {{
  let a = nn.Linear(4, h)
  let b = nn.Linear(h, 2)
  fn forward(x) = b(relu(a(x)))
}}
let net = Net(3)
let mean = Net({target})
step start() {{ update mean with optim.ema(0.0), net }}
step train(x: f32[8, 4]) {{
  minimize sum(square(net(x))) over net with optim.sgd(lr: 0.01)
  update mean with optim.ema(0.9), net
}}
start()
print(all(mean.a.w == net.a.w), all(mean.b.b == net.b.b))
let before = copy(net.a.w)
train(ones([8, 4]))
print(max(abs(mean.a.w - (0.9 * before + 0.1 * net.a.w))) < 1e-6, max(abs(before - net.a.w)) > 1e-3)"
        )
    };
    assert_eq!(run(&text("3")), "true true\ntrue true");
    assert!(run(&text("5")).contains("TG0232 `net` has other parameters than `mean`"), "{}", run(&text("5")));
}

/// Layers of the library against what they are defined by.
#[test]
fn layers_that_normalise_and_resample() {
    let text = r#"
use nn
let norm = nn.GroupNorm(2, 4) in f64
step groups(x: f64[3, 4, 5, 6]) {
  let y = reshape(norm(x), [3, 2, -1])
  return max(abs(mean(y, axis: -1))), max(abs(mean(square(y), axis: -1) - 1.0))
}
let centre, spread = groups(normal([3, 4, 5, 6], mean: 3.0, std: 2.0, dtype: f64))
print(centre < 1e-6, spread < 1e-4)
print(nn.leaky_relu(tensor([-2.0, 0.0, 3.0])) == tensor([-0.02, 0.0, 3.0]))
print(nn.softplus(tensor([-200.0, 100.0])))
print(max(abs(nn.softplus(tensor([-1.0, 0.0, 2.0])) - log(1.0 + exp(tensor([-1.0, 0.0, 2.0]))))) < 1e-6)
step slope(x: f32[1]) { return grad(sum(nn.softplus(x)), x) }
print(slope(zeros([1])))
print(reshape(nn.upsample(reshape(arange(4), [1, 1, 2, 2])), [4, 4]))
step adjoint(y: f64[2, 3, 7, 7], w: f64[4, 3, 3, 3], x: f64[2, 4, 3, 3]) {
  let z = nn.conv_transpose2d(x, w, stride: 2)
  return abs(sum(conv2d(y, w, stride: 2) * x) - sum(y * z)) < 1e-9, z.shape[2]
}
fn noise(shape) = normal(shape, dtype: f64)
print(adjoint(noise([2, 3, 7, 7]), noise([4, 3, 3, 3]), noise([2, 4, 3, 3])))
"#;
    let expected = "true true\nbool[3]\n[true true true]\nf32[2]\n[  0. 100.]\ntrue\nf32[1]\n[0.5]\n\
                    i32[4, 4]\n[[0 0 1 1]\n [0 0 1 1]\n [2 2 3 3]\n [2 2 3 3]]\n(true, 7)";
    assert_eq!(run(text), expected);
}
