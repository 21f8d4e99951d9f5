//! Models that are spread over the ranks: training gives what one rank gives with the whole batch and
//! the whole model, whatever the number of ranks and however the parameters are shaped.

use tg::{Session, Tensor};

use super::support::{
    compile, distance, failed, flat, loss, messages, noise, numbers, on_ranks, parameters, rows, try_compile,
};

/// Divides into the rows of 1, 2, 3, 4 and 7 ranks.
const ROWS: usize = 168;
const STEPS: usize = 20;
const WORLDS: [u32; 5] = [1, 2, 3, 4, 7];

/// A program: its models, the line that spreads them, and the body of its step.
struct Case {
    models: &'static str,
    shard: &'static str,
    body: &'static str,
    /// Widths of the rows of `x` and `y`; the second may be whole numbers.
    widths: (usize, usize),
    ids: bool,
}

const USES: &str = "use nn\nuse loss\nuse init\nuse optim\n";

impl Case {
    fn text(&self, dtype: &str, shard: bool) -> String {
        let (x, y) = self.widths;
        let types = if self.ids {
            format!("x: i32[B, {x}], y: i32[B, {y}]")
        } else {
            format!("x: {dtype}[B, {x}], y: {dtype}[B, {y}]")
        };
        let shard = if shard { self.shard } else { "" };
        format!(
            "{USES}{}\nlet net = Net() in {dtype}\n{shard}\nlet opt = optim.adamw(net, lr: 0.01, weight_decay: 0.05)\n\
             step train({types}) {{\n{}\n  return all_reduce(l, mean: true)\n}}",
            self.models, self.body
        )
    }
}

fn part(case: &Case, dtype: &str, step: usize, width: usize, low: usize, count: usize) -> tg::Value {
    let values = noise(step, ROWS * width);
    let mine = &values[low * width..(low + count) * width];
    if case.ids {
        let ids: Vec<f64> = mine.iter().map(|v| ((v + 1.0) * 5.4).trunc()).collect();
        rows(&ids, "i32", width)
    } else {
        rows(mine, dtype, width)
    }
}

type Trained = (Vec<f64>, Vec<(String, Vec<f64>)>);

/// Losses and parameters after the last step, on every rank.
fn train(case: &Case, dtype: &str, world: u32, shard: bool, steps: usize) -> Vec<Trained> {
    let program = compile(world, &case.text(dtype, shard));
    let each = ROWS / world as usize;
    on_ranks(&program, |session: &mut Session, rank| {
        let low = rank as usize * each;
        let losses = (0..steps).map(|step| {
            let args = [
                part(case, dtype, step, case.widths.0, low, each),
                part(case, dtype, step + 100, case.widths.1, low, each),
            ];
            loss(session, &args)
        });
        let losses: Vec<f64> = losses.collect();
        (losses, parameters(session))
    })
}

/// Spread over any number of ranks, a program trains as it does whole on one. Sessions of debug builds
/// hold that the high-water mark of each rank is its plan's.
fn trains_alike(case: &Case) {
    let changed = {
        let first = train(case, "f64", 1, false, 0).remove(0).1;
        let one = train(case, "f64", 1, false, 1).remove(0).1;
        // Some gradients are zero but for their rounding.
        let moves = |(x, y): (&f64, &f64)| (x - y).abs() > 1e-12;
        let moved = first.iter().zip(&one).map(|((_, a), (_, b))| a.iter().zip(b).map(moves).collect());
        moved.collect::<Vec<Vec<bool>>>()
    };
    for dtype in ["f64", "f32"] {
        let whole = train(case, dtype, 1, false, STEPS).remove(0);
        assert!(whole.0.iter().all(|loss| loss.is_finite()), "{:?}", whole.0);
        for world in WORLDS {
            let ranks = train(case, dtype, world, true, STEPS);
            assert!(ranks.windows(2).all(|pair| pair[0] == pair[1]), "ranks differ in their bits");
            let (losses, parameters) = &ranks[0];
            for (loss, expected) in losses.iter().zip(&whole.0) {
                assert!((loss - expected).abs() <= 1e-5 * expected.abs(), "{world} ranks: {loss} {expected}");
            }
            let off = distance(&flat(parameters), &flat(&whole.1));
            let allowed = if dtype == "f64" { 1e-9 } else { 1e-2 };
            assert!(off <= allowed, "{world} ranks in {dtype}: parameters are {off:e} off");
        }
    }
    // Every element that one step of the whole program changes is changed by one of the spread one.
    for world in WORLDS {
        let before = train(case, "f64", world, true, 0).remove(0).1;
        let after = train(case, "f64", world, true, 1).remove(0).1;
        for ((name, a), ((_, b), moved)) in before.iter().zip(after.iter().zip(&changed)) {
            for (k, (x, y)) in a.iter().zip(b).enumerate() {
                assert!(x != y || !moved[k], "{world} ranks: element {k} of `{name}` stays as it is");
            }
        }
    }
}

const MLP: &str = "
model Layer(n: int) {
  let a = nn.Linear(n, n + 1)
  let b = nn.Linear(n + 1, n)
  fn forward(x) = x + b(tanh(a(x)))
}
model Net {
  let first = nn.Linear(6, 5)
  let layers = [Layer(5) for i in 0..3]
  let last = nn.Linear(5, 3)
  fn forward(x) {
    let y = first(x)
    for layer in layers { y = layer(y) }
    last(y)
  }
}";
const MEAN: &str = "let l = mean(square(net(x) - y))\n minimize l over net with opt";

#[test]
fn an_mlp() {
    let widths = (6, 3);
    for shard in [
        "shard flat net by Layer over world",
        "shard net by Layer over world",
        "shard flat net by nn.Linear over world, prefetch: 1",
        "shard flat net by [Layer, nn.Linear], prefetch: 2",
    ] {
        trains_alike(&Case { models: MLP, shard, body: MEAN, widths, ids: false });
    }
}

#[test]
fn a_transformer_with_a_tied_table_checkpointed_units_and_clipping() {
    let models = "
model Block(d: int) {
  let norm1 = nn.LayerNorm(d)
  let attn = nn.MultiHeadAttention(d, 2, causal: true)
  let norm2 = nn.LayerNorm(d)
  let up = nn.Linear(d, 2 * d)
  let down = nn.Linear(2 * d, d)
  fn forward(x) {
    let h = x + attn(norm1(x))
    h + down(gelu(up(norm2(h))))
  }
}
model Net {
  param token: f32[11, 4] = init.normal(std: 0.3)
  param position: f32[3, 4] = init.normal(std: 0.3)
  let blocks = [Block(4) for i in 0..2]
  let norm = nn.LayerNorm(4)
  fn forward(ids) {
    let h = gather(token, ids) + position
    for b in blocks { h = checkpoint < b(h) > }
    norm(h) @ token.T
  }
}";
    let body = "let l = loss.cross_entropy(net(x), y)\n update net with opt, optim.clip(grad(l, net), 0.4)";
    trains_alike(&Case {
        models,
        shard: "shard flat net by Block over world",
        body,
        widths: (3, 3),
        ids: true,
    });
}

/// A unit used twice, a frozen parameter, two dtypes, a parameter without elements, one with fewer
/// elements than ranks, a unit inside of a unit whose own parameters are used before and after it, and a
/// `checkpoint` inside of a unit.
#[test]
fn units_of_all_kinds() {
    let models = "
model Inner(n: int) {
  param w: f32[n, n] = init.normal(std: 0.3)
  param odd: f32[1] = ones()
  fn forward(x) = tanh(x @ w) * odd
}
model Outer(n: int) {
  param before: f32[n] = ones()
  param frozen fixed: f32[n] = full(0.5)
  param none: f32[0, n] = zeros()
  let inner = Inner(n)
  let dense = nn.Linear(n, n)
  fn forward(x) {
    let y = inner(x * before + fixed)
    let z = checkpoint < tanh(dense(y)) >
    z * before + sum(none)
  }
}
model Net {
  let outer = Outer(4)
  let twice = Inner(4)
  fn forward(x) = twice(outer(twice(x)))
}";
    for shard in ["shard flat net by [Outer, Inner] over world", "shard net by Inner over world"] {
        trains_alike(&Case { models, shard, body: MEAN, widths: (4, 4), ids: false });
    }
}

/// A unit that has nothing but a parameter without elements, and three elements over more ranks.
#[test]
fn empty_and_tiny_units() {
    let models = "
model Empty {
  param w: f32[0, 3] = zeros()
  fn forward(x) = x + sum(w)
}
model Tiny {
  param w: f32[3] = init.normal(std: 0.3)
  fn forward(x) = tanh(x * w)
}
model Net {
  let empty = Empty()
  let tiny = Tiny()
  let last = nn.Linear(3, 2)
  fn forward(x) = last(tiny(empty(x)))
}";
    for shard in ["shard flat net by [Empty, Tiny]", "shard net by [Empty, Tiny]"] {
        trains_alike(&Case { models, shard, body: MEAN, widths: (3, 2), ids: false });
    }
}

/// Adapters in checkpointed units behind a frozen table: nothing that a region is given needs a
/// gradient, and the adapters inside of it are trained. `trains_alike` looks at each element.
#[test]
fn adapters_behind_a_frozen_table() {
    let models = "
model Block(d: int) {
  param frozen w: f32[d, d] = init.normal(std: 0.4)
  param down: f32[d, 2] = init.normal(std: 0.4)
  param up: f32[2, d] = init.normal(std: 0.4)
  fn forward(x) = x + tanh(x @ w + x @ down @ up)
}
model Net {
  param frozen table: f32[11, 4] = init.normal(std: 0.5)
  let blocks = [Block(4) for i in 0..2]
  fn forward(ids) {
    let h = gather(table, ids)
    for b in blocks { h = checkpoint < b(h) > }
    h @ table.T
  }
}";
    let body = "let l = loss.cross_entropy(net(x), y)\n minimize l over net with opt";
    trains_alike(&Case { models, shard: "shard flat net by Block", body, widths: (3, 3), ids: true });
}

#[test]
fn gradients_are_accumulated_in_parts() {
    let body = "
  let l = 0.0
  let g = zeros_like(net)
  for mx, my in microbatches(x, y, 2) {
    let part = mean(square(net(mx) - my)) / 2.0
    g += grad(part, net)
    l += part
  }
  update net with opt, g";
    let case =
        Case { models: MLP, shard: "shard flat net by Layer over world", body, widths: (6, 3), ids: false };
    trains_alike(&case);
}

/// Gradients that each rank adds up by itself are reduced once, at the end.
#[test]
fn gradients_are_accumulated_whole() {
    let body = "
  let l = 0.0
  let g = 0
  for mx, my in microbatches(x, y, 2) {
    let part = mean(square(net(mx) - my)) / 2.0
    g += grad(part, net, local: true)
    l += part
  }
  sync g over world
  update net with opt, optim.clip(g, 0.4)";
    for shard in ["shard flat net by Layer over world", "shard net by nn.Linear over world, prefetch: 1"] {
        trains_alike(&Case { models: MLP, shard, body, widths: (6, 3), ids: false });
    }
    // A unit that is gathered twice has a gradient of each use, and one parameter is in no vector.
    let models = "
model Twice(n: int) {
  param w: f32[n, n] = init.normal(std: 0.3)
  param none: f32[0, n] = zeros()
  let inner = nn.Linear(n, n)
  fn forward(x) {
    let h = checkpoint < inner(x @ w) >
    tanh(h @ w) + sum(none)
  }
}
model Net {
  let twice = Twice(3)
  let last = nn.Linear(3, 3)
  fn forward(x) = twice(last(twice(x)))
}";
    let shard = "shard flat net by [Twice, nn.Linear]";
    trains_alike(&Case { models, shard, body, widths: (3, 3), ids: false });
}

#[test]
fn gradients_of_one_rank_are_not_those_of_all() {
    let step = |body: &str| {
        format!(
            "shard flat net by Layer\nstep f(x: f32[4, 6]) {{\n let l = sum(net(x))\n {body}\n return l }}"
        )
    };
    for world in [1, 2] {
        assert_eq!(
            error(world, &step("update net with optim.sgd(lr: 0.1), grad(l, net, local: true)")),
            "these gradients are of this rank alone"
        );
        assert_eq!(
            error(world, &step("let g = zeros_like(net) + grad(l, net, local: true)")),
            "`+` of gradients of this rank and of parts of those of all ranks"
        );
        assert_eq!(
            error(
                world,
                &format!(
                    "fn same(b) = b\n{}",
                    step("let g = grad(l, net, local: true)\n sync g over world with same")
                )
            ),
            "a hook for gradients of `net`, which is spread over the ranks"
        );
        assert_eq!(
            error(world, &step("let g = grad(l, net, local: 3)")),
            "`local` is `true` or `false`, got a whole number"
        );
        // Once is enough.
        assert_eq!(
            error(world, &step("let g = grad(l, net, local: true)\n sync g over world\n sync g over world")),
            "`sync` of gradients of `net`, which is spread over the ranks"
        );
    }
    // `reduce: sum` holds for them as well, and their norm is that of the rank.
    let text = |reduce: &str| {
        format!(
            "{USES}{MLP}\nlet net = Net() in f64\nshard flat net by Layer over world{reduce}\n\
             step train(x: f64[B, 6]) {{\n let l = sum(square(net(x)))\n let g = grad(l, net, local: true)\n\
             let own = norm(g)\n sync g over world\n let all = norm(g)\n return all / own }}"
        )
    };
    for (reduce, ratio) in [("", 1.0), (", reduce: sum", 3.0)] {
        let ratios = on_ranks(&compile(3, &text(reduce)), |session, _| {
            // All ranks have the same rows.
            let x = Tensor::try_from_slice(&[4, 6], &noise(3, 24)).expect("rows");
            session.call("train", &[x.into()]).unwrap_or_else(|e| panic!("{e}")).as_f64().expect("a ratio")
        });
        assert!(ratios.iter().all(|r| (r - ratio).abs() < 1e-12), "{ratios:?}");
    }
}

#[test]
fn sums_of_gradients() {
    let text = |reduce: &str, scale: &str| {
        format!(
            "{USES}{MLP}\nlet net = Net() in f64\nshard flat net by Layer over world{reduce}\n\
             step train(x: f64[B, 6]) {{\n let l = sum(net(x)){scale}\n\
             minimize l over net with optim.sgd(lr: 0.01)\n return norm(grad(l, net)) }}"
        )
    };
    let run = |world: u32, text: &str| {
        let each = ROWS / world as usize;
        let ranks = on_ranks(&compile(world, text), |session, rank| {
            let values = noise(3, ROWS * 6);
            let low = rank as usize * each * 6;
            let x = Tensor::try_from_slice(&[each, 6], &values[low..low + each * 6]).expect("rows");
            let norm = session.call("train", &[x.into()]).unwrap_or_else(|e| panic!("{e}"));
            (norm.as_f64().expect("a norm"), parameters(session))
        });
        ranks.into_iter().next().expect("rank 0")
    };
    let whole = run(1, &text("", ""));
    for (reduce, scale) in [(", reduce: sum", ""), ("", " * 4.0")] {
        let spread = run(4, &text(reduce, scale));
        assert!((spread.0 - whole.0).abs() <= 1e-9 * whole.0, "{} {}", spread.0, whole.0);
        assert!(distance(&flat(&spread.1), &flat(&whole.1)) <= 1e-9, "parameters");
    }
}

fn error(world: u32, text: &str) -> String {
    messages(&failed(try_compile(world, &format!("{USES}{MLP}\nlet net = Net()\n{text}"))))
}

#[test]
fn what_cannot_be_spread() {
    assert_eq!(error(2, "shard flat net by Layer over 0"), "`over 0`: there is at least one rank");
    assert_eq!(error(2, "shard flat net by Layer over 3"), "`over 3` in a program of 2 ranks");
    assert_eq!(error(1, "shard flat net by Layer over 4"), "`over 4` in a program of 1 rank");
    assert_eq!(error(2, "shard flat net by nn.Conv2d"), "there is no `nn.Conv2d` in a model `Net` `net`");
    assert_eq!(error(2, "shard flat net by 3"), "a unit is a model that is declared, got a whole number");
    assert_eq!(
        error(2, "shard flat net by [Layer, 3]"),
        "a unit is a model that is declared, got a whole number"
    );
    assert_eq!(
        error(2, "shard flat net by [Layer, nn.Conv2d]"),
        "there is no `nn.Conv2d` in a model `Net` `net`"
    );
    assert_eq!(
        error(2, "shard flat net by Layer, prefetch: -1"),
        "`prefetch` is a number of units, 0 or more, got -1"
    );
    assert_eq!(error(2, "shard flat net by Layer, ahead: 1"), "`shard` has no option `ahead`");
    assert_eq!(
        error(2, "shard flat net by Layer\nshard flat net by Layer"),
        "`net.first.w` is spread over the ranks already"
    );
    assert_eq!(
        error(
            2,
            "model Two(l) { let mine = l\n fn forward(x) = mine(x) }\nlet shared = nn.Linear(2, 2)\n\
             let pair = [Two(shared), Two(shared)]\nshard flat pair by Two"
        ),
        "`shared.w` belongs to two units, `pair.0` and `pair.1`"
    );
    let step = |body: &str| {
        format!(
            "shard flat net by Layer\nstep f(x: f32[4, 6]) {{\n let l = sum(net(x))\n {body}\n return l }}"
        )
    };
    // With one rank, too: a program is for any number of them.
    for world in [1, 2] {
        assert_eq!(
            error(world, &step("let g = grad(l, net.first.w)")),
            "the gradient of `net.first.w` alone: each rank has a part of the gradient of its unit"
        );
        assert_eq!(
            error(
                world,
                &format!(
                    "optimizer lars(lr) {{ p := p - lr * g / norm(g) }}\n{}",
                    step("minimize l over net with lars(lr: 0.1)")
                )
            ),
            "`f.lars` takes the `sum` of a parameter, and `net` is one vector of several"
        );
        for of in ["p", "g", "m"] {
            let optimizer = format!(
                "optimizer own(lr) {{ state m = zeros_like(p)\n m := m + g\n let n = {of}.shape[0]\n p := p - lr * m / n }}\n"
            );
            assert_eq!(
                error(world, &format!("{optimizer}{}", step("minimize l over net with own(lr: 0.1)"))),
                "`.shape` of a parameter of `net`, which is spread over the ranks"
            );
        }
        assert_eq!(
            error(world, &step("let g = grad(l, net)\n update net with optim.sgd(lr: 0.1), [net.first.w]")),
            "the gradient of `net.first.w` alone: each rank has a part of the gradient of its unit"
        );
        assert_eq!(
            error(world, &step("let g = grad(l, net).first")),
            "`net.first.w` and `net.last.w` are parts of one vector, and only the first is among the parameters here"
        );
        assert_eq!(
            error(world, &step("let g = grad(l, net)\n sync g over world")),
            "`sync` of gradients of `net`, which is spread over the ranks"
        );
        assert_eq!(
            error(world, &step("minimize l over net.first with optim.sgd(lr: 0.1)")),
            "`net.first.w` and `net.last.w` are parts of one vector, and only the first is among the parameters here"
        );
    }
}

/// A number that only the run knows is judged there.
#[test]
fn ranks_that_the_run_counts() {
    let text = |count: &str| {
        format!(
            "{USES}{MLP}\nlet net = Net()\nlet n = int(sum(ones([{count}])))\nshard flat net by Layer over n"
        )
    };
    for (count, expected) in [("2", None), ("3", Some("`over 3` in a program of 2 ranks"))] {
        let found = on_ranks(&compile(2, &text(count)), |session, _| {
            session.run().map(|_| ()).map_err(|error| messages(&error)).err()
        });
        assert!(found.iter().any(|message| message.as_deref() == expected), "{count}: {found:?}");
    }
}

/// What a unit has gathered stays for a statement that only asks about the step.
#[test]
fn a_contract_in_a_unit_changes_nothing() {
    let text = |statement: &str| {
        let models = MLP.replace(
            "= x + b(tanh(a(x)))",
            &format!("{{\n    let y = a(x)\n    {statement}\n    x + b(tanh(y))\n  }}"),
        );
        format!(
            "{USES}{models}\nlet net = Net()\nshard flat net by Layer over world\n\
             step train(x: f32[8, 6]) {{\n let l = mean(square(net(x)))\n minimize l over net with optim.sgd(lr: 0.1)\n return l }}"
        )
    };
    let plan = |statement: &str| compile(2, &text(statement)).plan("train").expect("it is planned").clone();
    let (plain, with) = (plan(""), plan("ensure peak <= 1 GiB"));
    let starts = |plan: &tg::plan::Plan| {
        plan.graph.nodes().filter(|n| matches!(n.op(), tg::ops::Op::CollectiveStart(_))).count()
    };
    assert_eq!(starts(&with), starts(&plain));
    assert_eq!(with.peak_bytes(), plain.peak_bytes());
    assert_eq!(with.graph.len(), plain.graph.len());
    let in_region = "let z = checkpoint < { ensure peak <= 1 GiB; y } >";
    let refused = messages(&failed(try_compile(2, &text(in_region))));
    assert!(refused.lines().all(|line| line == "`ensure` inside of `checkpoint < … >`"), "{refused}");
}

/// A parameter is read outside of the calls of its unit, after them and between them: each time its unit is
/// gathered, and the gradients add up.
#[test]
fn parameters_outside_of_their_units() {
    let body = "
  let l = mean(square(net(x) - y)) + 0.1 * mean(square(net.layers[1].a.w)) + 0.1 * mean(square(net.first.w))
  minimize l over net with opt";
    let case = Case { models: MLP, shard: "shard flat net by Layer", body, widths: (6, 3), ids: false };
    trains_alike(&case);
    let checked = tg::Engine::new().with_world(2).check(
        tg::Source::text("outside.tg", case.text("f32", true).replace("[B, ", "[B = 4, ")),
        &Default::default(),
    );
    let notes: Vec<&str> =
        checked.diagnostics.iter().filter(|d| d.code.0 == "TG0241").map(|d| d.message.as_str()).collect();
    assert_eq!(
        notes,
        [
            "`net.layers.1.a.w` is read outside of the calls of its unit: `net.layers.1` is gathered for this use",
            "`net.first.w` is read outside of the calls of its unit: `net` is gathered for this use",
        ]
    );
}

/// A parameter without a gradient beside others of its vector would be changed by weight decay.
#[test]
fn a_parameter_that_is_not_trained_is_frozen() {
    let text = |frozen: &str| {
        format!(
            "{USES}model Adapter {{\n param{frozen} w: f32[4, 4] = init.normal(std: 0.3)\n \
             param a: f32[4, 4] = zeros()\n fn forward(x) = x @ stop_grad(w) + x @ a }}\n\
             let net = [Adapter(), Adapter()]\nshard flat net by Adapter\n\
             step f(x: f32[2, 4]) {{ let l = sum(net[1](net[0](x)))\n\
             minimize l over net with optim.adamw(lr: 0.1)\n return l }}"
        )
    };
    let text_of = messages(&failed(try_compile(2, &text(""))));
    assert_eq!(text_of, "`net.0.w` gets no gradient, and is in one flat group with `net.0.a`, which does");
    compile(2, &text(" frozen"));
}

/// A moving mean of a model that is spread over the ranks, which is spread in the same units.
#[test]
fn a_model_follows_another_one() {
    let text = |shard: &str| {
        format!(
            "{USES}
model Net() {{
  let a = nn.Linear(5, 7)
  let b = nn.Linear(7, 3)
  fn forward(x) = b(relu(a(x)))
}}
let net = Net() in f64
let mean = Net() in f64
{shard}
step train(x: f64[6, 5]) {{
  minimize sum(square(net(x))) over net with optim.sgd(lr: 0.01)
  update mean with optim.ema(0.9), net
  return sum(net(x))
}}"
        )
    };
    let both = "shard flat net by nn.Linear over world\nshard flat mean by nn.Linear over world";
    let train = |world: u32, shard: &str| {
        let program = compile(world, &text(shard));
        on_ranks(&program, |session, _| {
            for step in 0..3 {
                session.call("train", &[rows(&noise(step, 30), "f64", 5)]).unwrap_or_else(|e| panic!("{e}"));
            }
            let names = ["mean.a.w", "mean.a.b", "mean.b.w", "mean.b.b"];
            names.map(|name| {
                let value = session.get(name).unwrap_or_else(|e| panic!("{e}"));
                numbers(value.as_tensor().expect("a tensor"))
            })
        })
    };
    let alone = train(1, "").remove(0);
    for world in WORLDS {
        for own in train(world, both) {
            for (values, expected) in own.iter().zip(&alone) {
                assert!(distance(values, expected) < 1e-12, "{world} ranks");
            }
        }
    }
    let error = try_compile(2, &text("shard flat net by nn.Linear over world"));
    let text = messages(&failed(error));
    assert!(text.contains("`net` and `mean` are not spread over the ranks in the same units"), "{text}");
}
