//! Tiny limits: every path that takes memory ends in an error that names the limit and the sizes.

use tg::{Engine, Source, Tensor, engine::Limits};

use super::support::{TRAIN, first, limited, ones};

const MIB: u64 = 1 << 20;

fn bytes(max_host_bytes: u64) -> Limits {
    Limits { max_host_bytes, ..Limits::default() }
}

/// What running the text under the limit says; it must be a limit on memory.
fn refused(limits: Limits, text: &str) -> String {
    let mut session = limited(limits, text).unwrap_or_else(|e| panic!("{e:#?}"));
    let error = session.run().expect_err("it takes too much");
    let message = first(&error);
    assert!(message.starts_with("TG0235 ") && message.contains("`max_host_bytes`"), "{message}");
    // Nothing is held for what failed, and the session goes on.
    assert_eq!(session.eval("1 + 1").expect("it goes on").value.as_deref(), Some("2"));
    message
}

#[test]
fn tensors_of_the_script_add_up() {
    let text = "let keep = []\nfor i in 0..100 { keep = keep + [ones([1000, 100]) * 2.0] }";
    let message = refused(bytes(4 * MIB), text);
    assert!(message.contains("of which"), "{message}");
}

#[test]
fn parameters_and_states_are_counted() {
    let text = "model Net() { param w: f32[1000, 1000] = zeros()\n fn forward(x) = x @ w }\nlet a = Net()\nlet b = Net()\nprint(a(ones([1, 1000])))\nprint(b(ones([1, 1000])))";
    refused(bytes(10 * MIB), text);
    let text = "use nn\nuse optim\nlet net = nn.Linear(500, 500)\nlet opt = optim.adam(lr: 0.1)\nstep f(x: f32[1, 500]) { let l = mean(net(x))\n minimize l over net with opt\n return l }\nf(ones([1, 500]))";
    refused(bytes(2 * MIB), text);
}

#[test]
fn arenas_and_outputs_are_counted() {
    let text =
        "step f(x: f32[100, 100]) { return exp(x @ x) @ x }\nlet big = ones([400, 500])\nf(ones([100, 100]))";
    refused(bytes(870_000), text);
    let text = "step f(x: f32[4]) { return ones([400, 400]) * sum(x) }\nlet xs = []\nfor i in 0..50 { xs = xs + [f(ones([4]))] }";
    refused(bytes(4 * MIB), text);
}

#[test]
fn data_files_and_batches_are_counted() {
    let folder = std::env::temp_dir().join(format!("tg-limits-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    std::fs::write(folder.join("text.txt"), "abcd".repeat(100_000)).expect("a file");
    let write = "let x = ones([1000, 100])\nsave(\"x.safetensors\", x: x)";
    let source = |text: &str| Source::text("p.tg", text).in_directory(&folder);
    let mut writer = Engine::new().compile(source(write)).and_then(|p| p.session()).expect("sound");
    writer.run().expect("it is written");
    let cases = [
        ("let t = data.chars(\"text.txt\")", 300_000),
        ("let t = data.text(\"text.txt\")", 300_000),
        ("let x = load(\"x.safetensors\")", 300_000),
        (
            "let x = load(\"x.safetensors\")\nfor b in data.batches(x.x, size: 900) { print(b.shape) }",
            500_000,
        ),
    ];
    for (text, limit) in cases {
        let engine = Engine::new().with_limits(bytes(limit));
        let ran = engine.compile(source(text)).and_then(|p| p.session()?.run());
        let message = first(&ran.expect_err("it takes too much"));
        assert!(message.starts_with("TG0235 ") && message.contains("`max_host_bytes`"), "{text}: {message}");
    }
    std::fs::remove_dir_all(&folder).expect("it is there");
}

#[test]
fn what_is_dropped_is_given_back() {
    let mut session = limited(bytes(2 * MIB), "let x = 0").expect("sound");
    for _ in 0..100 {
        session.eval("let x = ones([300, 300]) * 2.0").expect("one at a time fits");
    }
    let used = session.host_bytes();
    assert!((360_000..1_000_000).contains(&used), "{used}");
    assert!(session.most_host_bytes() <= 2 * MIB);
    let held = session.get("x").expect("a tensor");
    session.set("x", 0.0).expect("a variable");
    session.set("ans", 0.0).ok();
    assert_eq!(session.host_bytes(), 360_000, "the host still holds it");
    drop(held);
    assert_eq!(session.host_bytes(), 0);
}

#[test]
fn a_shared_parameter_needs_room_for_its_copy() {
    // The host holds the parameters, so the step has to copy what it writes.
    let text = "use nn\nuse optim\nlet net = nn.Linear(400, 400)\nstep f(x: f32[1, 400]) { let l = mean(net(x))\n minimize l over net with optim.sgd(lr: 0.1)\n return l }";
    let limit = 4 * MIB;
    let mut session = limited(bytes(limit), text).expect("sound");
    session.call("f", &[ones(&[1, 400]).into()]).expect("it runs");
    let held = session.get("net.w").expect("a parameter");
    let rest = (limit - session.host_bytes() - 400_000) / 4;
    session.eval(&format!("let ballast = ones([{rest}])")).expect("it fits");
    let error = session.call("f", &[ones(&[1, 400]).into()]).expect_err("no room for a copy");
    assert!(first(&error).contains("f32[400, 400] needs 640000 bytes"), "{error:?}");
    drop(held);
    session.call("f", &[ones(&[1, 400]).into()]).expect("it runs again");
}

#[test]
fn counts_have_limits() {
    let check = |limits: Limits, text: &str| {
        let result = limited(limits, text).and_then(|mut s| s.run());
        first(&result.expect_err("over a limit"))
    };
    let default = Limits::default();
    assert_eq!(
        check(Limits { max_iterations: 1000, ..default }, "let n = 0\nfor i in 0..5000 { n += 1 }"),
        "TG0235 loops make more than 1000 passes (`max_iterations` of this engine)"
    );
    assert_eq!(
        check(
            Limits { max_depth: 30, ..default },
            "fn f(n) = if n == 0 { 0 } else { f(n - 1) + 1 }\nprint(f(100))"
        ),
        "TG0234 calls and expressions are nested more than 30 deep (`max_depth` of this engine)"
    );
    assert!(
        check(
            Limits { max_nodes: 20, ..default },
            "step f(x: f32[2]) { let y = x\n for i in 0..30 { y = exp(y) }\n return y }"
        )
        .ends_with("the graph has more than 20 nodes (`max_nodes` of this engine)")
    );
    assert!(check(Limits { max_items: 10, ..default }, "let x = [0] * 20").contains("`max_items`"));
    assert!(check(Limits { max_bytes: 100, ..default }, "let x = ones([100])").contains("`max_bytes`"));
    // The count starts anew with every call of the host.
    let mut session = limited(Limits { max_iterations: 1000, ..default }, "let n = 0").expect("sound");
    for _ in 0..3 {
        session.eval("for i in 0..900 { n += 1 }").expect("below the limit");
    }
}

#[test]
fn a_training_step_runs_in_what_it_says() {
    let mut probe = limited(Limits::default(), TRAIN).expect("sound");
    let args = [ones(&[4, 2]).into(), 1.0.into()];
    for _ in 0..3 {
        probe.call("train", &args).expect("it runs");
    }
    let most = probe.most_host_bytes().max(probe.plans()[0].peak_bytes());
    let mut session = limited(bytes(most), TRAIN).expect("sound");
    for _ in 0..3 {
        session.call("train", &args).expect("it fits exactly");
    }
    // Any less, and it ends in an error, wherever the limit strikes.
    for limit in (0..most).step_by(64) {
        let Ok(mut session) = limited(bytes(limit), TRAIN) else { continue };
        for _ in 0..3 {
            if let Err(error) = session.call("train", &args) {
                assert!(first(&error).starts_with("TG0235 "), "{limit}: {error:?}");
                break;
            }
        }
        assert!(session.most_host_bytes() <= limit);
    }
}

#[test]
fn sizes_that_no_machine_has_are_errors() {
    let limits = Limits { max_host_bytes: u64::MAX, max_bytes: u64::MAX, ..Limits::default() };
    let text = "step f(x: f32[4]) { return zeros([1000000, 1000000, 1000]) + sum(x) }\nf(ones([4]))";
    let mut session = limited(limits, text).unwrap_or_else(|e| panic!("{e:#?}"));
    let message = first(&session.run().expect_err("no machine has it"));
    assert!(message.starts_with("TG0235 ") && message.contains("the system does not have them"), "{message}");
    let ty = tg::ir::Type::new(tg::ir::DType::U8, [1 << 50]).expect("a type");
    assert!(Tensor::try_zeros(ty).is_err());
}
