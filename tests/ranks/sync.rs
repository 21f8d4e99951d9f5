//! `sync`: data-parallel training with buckets and hooks gives on any number of ranks what one rank
//! gives with the whole batch; what hooks may and may not do.

use tg::{
    Tensor, codes,
    engine::{CompileOptions, Engine, Source},
    ir::ValueId,
    ops::{CollectiveKind, CollectiveStart, Op},
    plan::{Home, Plan},
};

use super::{
    folder::Folder,
    support::{compile, distance, messages, numbers, on_ranks, try_compile},
    training::{STEPS, program, train},
};

/// How far the parameters of `world` ranks are from those of one rank that trains without `sync`.
fn off(world: u32, dtype: &str, grads: &str) -> (f64, f64) {
    let plain = &train(1, dtype, "let g = grad(l, net)")[0];
    let ranks = train(world, dtype, grads);
    assert!(ranks.windows(2).all(|pair| pair[0] == pair[1]), "ranks differ in their bits");
    let loss = plain.0.iter().zip(&ranks[0].0).map(|(a, b)| ((a - b) / a).abs()).fold(0.0, f64::max);
    (loss, distance(&ranks[0].1, &plain.1))
}

/// Both, and each parameter in a bucket of its own: biases are 64 and 12 bytes.
const BUCKETS: [&str; 3] = ["", ", bucket: 600", ", bucket: 1"];

#[test]
fn losses_and_parameters_are_those_of_one_rank() {
    for bucket in BUCKETS {
        let grads = format!("let g = grad(l, net)\n sync g over world{bucket}");
        for world in [1, 2, 3, 4] {
            let (loss, parameters) = off(world, "f64", &grads);
            assert!(loss <= 1e-9 && parameters <= 1e-9, "{world} ranks{bucket}: {loss:e} {parameters:e}");
        }
        let (loss, parameters) = off(3, "f32", &grads);
        assert!(loss <= 1e-5 && parameters <= 1e-4, "3 ranks in f32{bucket}: {loss:e} {parameters:e}");
    }
}

/// The sum of the gradients of parts of the batch, made equal once or each by itself.
#[test]
fn accumulated_gradients_are_those_of_the_whole_batch() {
    let once = "let g = 0
           for xs, ys in microbatches(x, y, 3) {
             g += grad(mean(square(net(xs) - ys)), net) / 3
           }
           sync g over world";
    let each = "let g = 0
           for xs, ys in microbatches(x, y, 3) {
             let part = grad(mean(square(net(xs) - ys)), net) / 3
             sync part over world
             g += part
           }";
    for (grads, collectives) in [(once, 1), (each, 3)] {
        for world in [2, 4] {
            let (loss, parameters) = off(world, "f64", grads);
            assert!(loss <= 1e-9 && parameters <= 1e-9, "{world} ranks: {loss:e} {parameters:e}");
        }
        // One more for the loss.
        assert_eq!(sent(&plan(2, &with_sizes(grads))).len(), collectives + 1);
    }
}

#[test]
fn compressed_gradients_are_near_and_the_same_on_all_ranks() {
    let with = |hook: &str| format!("let g = grad(l, net)\n sync g over world with {hook}, bucket: 300");
    for (hook, most) in [("hooks.fp16_compress", 0.01), ("hooks.bf16_compress", 0.05)] {
        let (_, parameters) = off(3, "f32", &with(hook));
        assert!(parameters > 0.0 && parameters < most, "{hook}: {parameters:e}");
    }
    // As many columns as the matrix has: nothing is lost but rounding.
    let (loss, parameters) = off(2, "f64", &with("hooks.low_rank(rank: 16)"));
    assert!(loss <= 0.02 && parameters <= 0.02, "{loss:e} {parameters:e}");
    // With one column much is late, and nothing is lost: the loss falls all the same.
    let ranks = train(2, "f64", &with("hooks.low_rank(rank: 1)"));
    let losses = &ranks[0].0;
    assert!(ranks[0] == ranks[1] && losses[STEPS - 1] < losses[0], "{losses:?}");
}

/// What a hook cannot send goes into the next bucket: the sum of what it gave comes to the sum of the
/// gradients.
#[test]
fn what_a_hook_keeps_is_sent_later() {
    let text = "hook half(bucket) {
           state rest = zeros_like(bucket)
           let whole = bucket + rest
           let sent = where(arange(4) < 2, whole, 0.0) + where(arange(4) >= 2, whole * 0.5, 0.0)
           rest := whole - sent
           all_reduce(sent, mean: true)
         }
         hook sent(bucket) {
           let h = bucket * 1.0
           release bucket
           all_reduce(h, mean: true)
         }
         step f(g: f32[4]) {
           sync g over world with half
           return g
         }
         step given(g: f32[4]) {
           sync g over world with sent
           return g
         }";
    let program = compile(2, text);
    let sums = on_ranks(&program, |session, rank| {
        let mut sum = [0.0; 4];
        for _ in 0..30 {
            let own = Tensor::try_from_slice(&[4], &[1.0f32 + rank as f32; 4]).expect("a gradient");
            let given = session.call("f", &[own.into()]).unwrap_or_else(|error| panic!("{error}"));
            sum.iter_mut().zip(numbers(given.as_tensor().expect("one"))).for_each(|(s, x)| *s += x);
        }
        // What is given to the step is no bucket: the hook may release that.
        let own = Tensor::try_from_slice(&[4], &[rank as f32; 4]).expect("a gradient");
        let given = session.call("given", &[own.into()]).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(numbers(given.as_tensor().expect("one")), [0.5; 4]);
        sum
    });
    // Half of a gradient is always late: 1.5 of what has come to 45.
    assert_eq!(sums[0], sums[1]);
    assert_eq!(sums[0][..2], [45.0, 45.0]);
    assert!(sums[0][2..].iter().all(|s| (s - 43.5).abs() < 1e-5), "{:?}", sums[0]);
}

/// With the sizes that `plan` needs.
fn with_sizes(grads: &str) -> String {
    program("f32", grads).replace("[B, 6]", "[B = 12, 6]")
}

fn plan(world: u32, text: &str) -> Plan {
    let options = CompileOptions { world: Some(world), ..CompileOptions::default() };
    let checked = Engine::new().check(Source::text("sync.tg", text), &options);
    assert!(checked.is_sound(), "{:?}", checked.diagnostics);
    (*checked.plans[0]).clone()
}

/// The collectives of a plan with the elements that each rank gives.
fn sent(plan: &Plan) -> Vec<(CollectiveKind, usize)> {
    let start = |n: tg::ir::Node<'_>| match n.op() {
        Op::CollectiveStart(CollectiveStart { kind, .. }) => {
            Some((*kind, plan.graph.ty(n.args()[0]).elements()))
        }
        _ => None,
    };
    plan.graph.nodes().filter_map(start).collect()
}

#[test]
fn buckets_are_filled_as_gradients_become_ready() {
    let grads = "let g = grad(l, net)\n sync g over world, bucket: 250";
    let plan = plan(2, &with_sizes(grads));
    let sizes: Vec<usize> = sent(&plan).into_iter().map(|(_, n)| n).filter(|&n| n > 1).collect();
    // The last layer comes first: its weight with its bias, then those of the other one.
    assert_eq!(sizes.iter().sum::<usize>(), 16 * 3 + 3 + 6 * 16 + 16);
    assert_eq!(sizes[0], 16 * 3 + 3, "{sizes:?}");
}

/// Gradients are made in their bucket, and what comes back is their only copy.
#[test]
fn gradients_are_views_of_their_bucket() {
    let text = "use nn
         use optim
         let net = nn.Linear(512, 256)
         step train(x: f32[8, 512]) {
           let g = grad(mean(square(net(x))), net)
           sync g over world
           update net with optim.sgd(lr: 0.1), g
         }";
    let plan = plan(2, text);
    let bucket = 4 * (512 * 256 + 256);
    let of_size = plan.schedule_graph.buffer_ids().filter(|b| {
        let is_in_arena = plan.buffers[b.0 as usize].home == Home::Arena;
        is_in_arena && plan.schedule_graph.buffer(*b).bytes >= bucket
    });
    // What is sent, what arrives, the mean in its place.
    assert_eq!(of_size.count(), 3);
    assert!(plan.peak_bytes() < 3 * bucket + (1 << 16), "{}", plan.peak_bytes());
    let nothing_moves = plan.graph.nodes().all(|n| n.op().name() != "copy");
    assert!(nothing_moves, "a gradient is copied into its bucket");
}

/// The gradient of a shared parameter is complete after its last use, and goes once. One that the
/// loss does not depend on stays out on every rank.
#[test]
fn shared_and_unused_parameters() {
    let grads = "let y = checkpoint < net.b(tanh(net.a(x))) >
           let z = checkpoint < net.b(tanh(net.a(x * 0.5))) >
           let g = grad(mean(square(y)) + mean(square(z)), net)
           sync g over world";
    let plain = "let y = net.b(tanh(net.a(x)))
           let z = net.b(tanh(net.a(x * 0.5)))
           let g = grad(mean(square(y)) + mean(square(z)), net)";
    let one = train(1, "f64", plain);
    let three = train(3, "f64", grads);
    assert!(distance(&three[0].1, &one[0].1) <= 1e-9);
    assert_eq!(sent(&plan(2, &with_sizes(grads))).len(), 2);

    let unused = "let g = grad(mean(square(net.a(x))), net)\n sync g over world";
    let sizes: Vec<usize> = sent(&plan(2, &with_sizes(unused))).into_iter().map(|(_, n)| n).collect();
    assert!(sizes.contains(&(6 * 16 + 16)), "{sizes:?}");
    assert!(train(2, "f32", unused).windows(2).all(|pair| pair[0] == pair[1]));
}

/// A collective in a region runs once in the forward pass; its result is kept.
#[test]
fn collectives_in_regions_run_once() {
    let text = "model M { param w: f32[64] = ones() }
         let m = M()
         step f(x: f32[16, 64]) {
           let y = checkpoint < { let s = all_reduce(mean(x * m.w, axis: 0)); tanh(x * m.w - s) } >
           let g = grad(sum(y), m)
           return g.w
         }";
    let plan = plan(2, text);
    let starts = plan.graph.nodes().filter(|n| matches!(n.op(), Op::CollectiveStart(_)));
    let again: Vec<bool> = starts.map(|n| n.instance() != 0).collect();
    // The other one is that of the gradient.
    assert_eq!(again, [false, false]);
}

fn example(name: &str) -> String {
    let path = format!("{}/examples/{name}.tg", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The bucket of a layer is on its way while the backward pass goes through the layers before it. What is
/// alive then is no more than at the peak.
#[test]
fn the_backward_pass_runs_beside_the_buckets_of_later_layers() {
    let text = |bucket: &str| {
        format!(
            "use nn\nuse optim\nmodel Net {{\n  let layers = [nn.Linear(64, 64) for i in 0..6]\n  fn forward(x) {{\n    \
             for layer in layers {{ x = tanh(layer(x)) }}\n    x\n  }}\n}}\nlet net = Net()\nlet opt = optim.sgd(net, lr: 0.1)\n\
             step train(x: f32[64, 64]) {{\n  let l = mean(square(net(x)))\n  let g = grad(l, net)\n  \
             sync g over world{bucket}\n  update net with opt, g\n  return l\n}}\n"
        )
    };
    let report = |bucket: &str| {
        let plan = plan(2, &text(bucket));
        let folder = Folder::new("beside");
        folder.file("p.tg", text(bucket));
        let out = folder.tg(&["plan", "--world", "2", "--json", "p.tg"]).out;
        let json: serde_json::Value = serde_json::from_str(&out).expect("JSON");
        let ranks = &json["steps"][0]["ranks"];
        let figure = |name: &str| ranks[name].as_u64().unwrap_or_else(|| panic!("{ranks}"));
        assert_eq!(plan.schedule.arena_bytes, plan.schedule.live_peak_bytes);
        (plan.peak_bytes(), figure("overlapped"), figure("overlapped_bytes"))
    };
    // Six buckets of about 16640 bytes, of which the first layer's may have nothing beside it.
    let (peak, overlapped, bytes) = report(", bucket: 20 KiB");
    assert!(overlapped >= 5 && bytes >= 80_000, "{overlapped} buckets, {bytes} bytes");
    assert_eq!(peak, 248_064);
}

const MIB: f64 = (1 << 20) as f64;

/// With the figures of the case. Each rank's high-water mark is its plan's: sessions hold that in
/// debug builds, as this is.
#[test]
fn a_compression_hook_needs_half_a_bucket_more() {
    let plan = plan(2, &example("compress"));
    let peak = plan.peak_bytes() as f64 / MIB;
    assert!(peak <= 21.0, "{peak} MiB");
    let comm: u64 = plan
        .schedule_graph
        .buffer_ids()
        .filter(|b| plan.buffers[b.0 as usize].kind == tg::plan::BufferKind::Comm)
        .map(|b| plan.schedule_graph.buffer(b).bytes)
        .sum();
    // The bucket in f32, what is sent and what arrives in f16.
    assert_eq!(comm, (4 + 2 + 2) * (512 * 4096 + 4096));
    let program = compile(2, &example("compress"));
    on_ranks(&program, |session, _| session.run().unwrap_or_else(|error| panic!("{error}")));
}

#[test]
fn a_bucket_that_is_read_after_its_collective_is_named() {
    let options = CompileOptions {
        world: Some(2),
        memory: Some(tg::diagnose::Options { fixes: true, all: true, library_frames: false }),
        ..CompileOptions::default()
    };
    let text = example("compress_log");
    let checked = Engine::new().check(Source::text("compress_log.tg", text.as_str()), &options);
    let found: Vec<_> =
        checked.diagnostics.iter().filter(|d| d.code == codes::BUCKET_ACROSS_COLLECTIVE).collect();
    assert_eq!(found.len(), 1, "{:?}", checked.diagnostics);
    let message = &found[0].message;
    assert!(message.starts_with("`bucket`, 8.0 MiB, is kept across the `all_reduce` on line "), "{message}");
    let saves = found[0].savings().expect("a saving").saves_bytes() as f64 / MIB;
    assert!((7.9..8.2).contains(&saves), "{saves} MiB");
    // Without ranks nothing is sent, and nothing kept.
    let alone = CompileOptions { world: None, ..options };
    let checked = Engine::new().check(Source::text("compress_log.tg", text.as_str()), &alone);
    assert!(checked.diagnostics.is_empty(), "{:?}", checked.diagnostics);

    let released = text.replace("  let near", "  release bucket\n  let near");
    let error = try_compile(2, &released).map(|_| ()).expect_err("a use after the release");
    assert_eq!(messages(&error), "`bucket` is used after its release");
    let diagnostic = &error.diagnostics()[0];
    assert_eq!(error.sources().text(diagnostic.primary.span), "bucket");
    assert_eq!(diagnostic.secondary[0].text, "released here", "{diagnostic:?}");
}

#[test]
fn what_sync_refuses() {
    let of = |body: &str| {
        format!(
            "use nn\nlet net = nn.Linear(4, 2)\nhook wide(bucket) {{ f16(bucket) }}\n\
             hook short(bucket) {{ bucket[1..] }}\nhook none(bucket) {{ release bucket }}\n\
             step f(x: f32[8, 4]) {{\n  let g = grad(mean(net(x)), net)\n  {body}\n  return g.b\n}}\n"
        )
    };
    let cases = [
        ("sync g over 0", "`sync g over 0`: there is at least one rank"),
        ("sync g over 3", "`sync g over 3` in a program of 2 ranks"),
        ("sync g over world with wide", "the hook `wide` gives f16[10] for a bucket f32[10]"),
        ("sync g over world with short", "the hook `short` gives f32[9] for a bucket f32[10]"),
        ("sync g over world with none", "the hook `none` gives nothing for a bucket f32[10]"),
        ("sync g over world with net", "expected a hook, got a model `Linear`"),
        ("sync g over world, bucket: 0", "`bucket: 0` leaves no room for a gradient"),
        ("sync g over world, bucket: -1", "`bucket` is a size in bytes, got -1 bytes: it cannot be negative"),
        ("sync g over world, bucket: [1]", "`bucket` is a size in bytes, got a list"),
        ("sync g over world, buckets: 9", "`sync` has no option `buckets`"),
        ("sync g.b over world", "`sync` changes a variable that holds gradients"),
        ("sync net over world", "`sync` makes gradients equal on all ranks, got a model `Linear`"),
        ("let y = checkpoint < { sync g over world; x } >", "`sync` inside of `checkpoint < … >`"),
    ];
    for (body, message) in cases {
        let error = try_compile(2, &of(body)).map(|_| ()).expect_err(body);
        assert_eq!(messages(&error), message, "{body}");
    }
    let outside = "let g = 3\nsync g over world";
    let error =
        try_compile(2, outside).and_then(|p| p.sessions()).map(|_| ()).expect_err("outside of a step");
    assert_eq!(messages(&error), "`sync` outside of a step");
    let stateful = "hook h(bucket) { state e = zeros_like(bucket); e := bucket; bucket }\n\
                    step f(x: f32[4]) { return h(x) }";
    let error = try_compile(2, stateful).map(|_| ()).expect_err("a state without a bucket");
    assert_eq!(messages(&error), "the hook `h` is called outside of `sync`");
}

#[test]
fn f16_sums_that_may_overflow_are_said() {
    let of = |hook: &str| {
        format!(
            "use nn\nhook h(bucket) {{ {hook} }}\nlet net = nn.Linear(4, 2)\n\
             step f(x: f32[8, 4]) {{\n  let g = grad(mean(net(x)), net)\n  sync g over world with h\n  return g.b\n}}\n"
        )
    };
    let warned = |hook: &str| {
        let options = CompileOptions { world: Some(4), ..CompileOptions::default() };
        let checked = Engine::new().check(Source::text("h.tg", of(hook)), &options);
        assert!(checked.is_sound(), "{:?}", checked.diagnostics);
        checked.diagnostics.iter().filter(|d| d.code == codes::HOOK_OVERFLOW).count()
    };
    for hook in [
        "f32(all_reduce(f16(bucket))) / world",
        "f32(all_reduce(f16(bucket / 2)) / 2)",
        "let h = f16(bucket / world); f32(all_reduce(h)) * f32(sum(h))",
    ] {
        assert_eq!(warned(hook), 1, "{hook}");
    }
    for hook in [
        "f32(all_reduce(f16(bucket / world)))",
        "f32(all_reduce(f16(bucket) / world))",
        "f32(all_reduce(f16(bucket * (1.0 / world))))",
        "f32(all_reduce(bf16(bucket))) / world",
        "all_reduce(bucket, mean: true)",
    ] {
        assert_eq!(warned(hook), 0, "{hook}");
    }
}

/// A number of the script that differs between ranks would make each rank another graph.
#[test]
fn numbers_that_depend_on_the_rank_are_refused_in_steps() {
    for (script, uses) in [
        ("let r = rank", "x * r"),
        ("let r = rank * 2 + 1\nlet s = float(r)", "x * s"),
        ("let k = 1\nif rank == 0 { k = 2 }", "x * k"),
        ("let r = [rank, 3]", "x * r[1]"),
    ] {
        for world in [1, 2] {
            let text = format!("{script}\nstep f(x: f32[4]) {{\n  return all_reduce({uses})\n}}\n");
            let error = try_compile(world, &text).map(|_| ()).expect_err(script);
            let message = messages(&error);
            assert!(
                message.ends_with("differs between ranks, and is part of a graph that they share"),
                "{message}"
            );
            assert_eq!(error.diagnostics()[0].code, codes::DEPENDS_ON_RANK);
        }
    }
    // Data may differ, and so may what the script makes of numbers.
    for text in [
        "let x = ones([4]) * (rank + 1)\nstep f() { return all_reduce(x) }\nlet y = f()\nif rank == 0 { print(y) }",
        "let r = rank\nlet mine = ones([2, 4]) * r\nstep f(x: f32[2, 4]) { return all_reduce(x * rank) }\nf(mine)",
    ] {
        let program = compile(2, text);
        on_ranks(&program, |session, _| session.run().unwrap_or_else(|error| panic!("{error}")));
    }
}

/// A name is of `rank` where it is bound to that, not wherever it is written alike.
#[test]
fn names_that_only_look_as_if_they_depended_on_the_rank() {
    let step = "step f(x: f32[4]) { return all_reduce(x * k) }\nlet y = f(ones([4]))";
    for script in [
        "let rank = 8\nlet k = rank * 2",
        "let k = 3\nif world > 1 { let k = rank\n print(k) }",
        "let k = 3\nfor k in rank..4 { print(k) }",
        "let k = 3\nif rank == 0 { let k = 4\n k = 5\n print(k) }",
        "let k = rank\nk = 3",
        "let n = rank\nlet k = 3\nfor i in 0..2 { let n = 3\n k = n }",
    ] {
        let program = compile(2, &format!("{script}\n{step}"));
        on_ranks(&program, |session, _| session.run().unwrap_or_else(|error| panic!("{script}\n{error}")));
    }
    for script in [
        "let k = 1\nfor i in 0..2 { let n = rank\n k = n }",
        "let k = [1, 2]\nk[0] = rank\nk[1] = 3",
        "let k = 1\nif rank == 7 { k = 2 } else if world == 5 { k = 3 }",
        "let k = rank\nk += 1",
        "let k = 1\nif world > 1 { k = rank }",
    ] {
        let step = if script.contains('[') { step.replace("x * k", "x * k[0]") } else { step.to_owned() };
        let error = try_compile(2, &format!("{script}\n{step}")).map(|_| ()).expect_err(script);
        assert_eq!(error.diagnostics()[0].code, codes::DEPENDS_ON_RANK, "{script}: {error}");
    }
    // A later line of a session binds the name anew.
    let mut session = compile(1, "").session().expect("a session");
    for (line, is_right) in [
        ("let k = rank", true),
        ("step f(x: f32[4]) { return x * k }", true),
        ("f(ones([4]))", false),
        ("let k = 3", true),
        ("f(ones([4]))", true),
    ] {
        let result = session.eval(line);
        assert_eq!(result.is_ok(), is_right, "{line}: {:?}", result.map(|_| ()));
    }
}

/// As reports call it.
#[test]
fn buckets_have_a_name() {
    let plan = plan(2, &with_sizes("let g = grad(l, net)\n sync g over world"));
    let named: Vec<ValueId> =
        plan.graph.names.iter().filter(|(_, name)| &***name == "bucket").map(|(&value, _)| value).collect();
    assert!(!named.is_empty());
    assert!(plan.buffers.iter().any(|b| named.contains(&b.value)), "no buffer is the bucket");
}
