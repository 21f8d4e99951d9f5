//! Files of models that are spread over the ranks: one ordinary file, whatever the number of ranks that
//! writes it or reads it, and files for each rank.

use std::fs;

use super::{
    folder::Folder,
    support::{LIMIT, failed, messages, numbers, on_ranks},
};
use tg::{Engine, Program, Session, Source};

const STEPS: &str = "
use nn
use optim
model Layer(n: int) {
  let a = nn.Linear(n, n)
  param frozen c: f32[3] = ones()
  fn forward(x) = tanh(a(x)) + sum(c)
}
model Net {
  let layers = [Layer(5) for i in 0..2]
  param scale: f32[5] = ones()
  fn forward(x) {
    let y = x * scale
    for l in layers { y = l(y) }
    y
  }
}
let net = Net() in f64
shard flat net by Layer over world
let opt = optim.adamw(net, lr: 0.01)
step train(x: f64[12, 5]) {
  let l = mean(square(net(x)))
  minimize l over net with opt
  return l
}
let x = f64(normal([12, 5]))
";

fn program(folder: &Folder, world: u32, rest: &str) -> Program {
    let text = format!("{STEPS}{rest}");
    let source = Source::text("files.tg", text).in_directory(folder.0.clone());
    let engine = Engine::new().with_world(world).with_rank_limit(LIMIT);
    engine.compile(source).unwrap_or_else(|error| panic!("{error}"))
}

/// The parameters after a program has run, the same on every rank.
fn run(folder: &Folder, world: u32, rest: &str) -> Vec<f64> {
    let ranks = on_ranks(&program(folder, world, rest), |session: &mut Session, _| {
        session.run().unwrap_or_else(|error| panic!("{world} ranks: {error}"));
        let all = session.parameters("net").unwrap_or_else(|error| panic!("{error}"));
        let values = all.iter().flat_map(|p| {
            let value = session.get(&p.name).unwrap_or_else(|error| panic!("{error}"));
            numbers(value.as_tensor().expect("a tensor"))
        });
        values.collect::<Vec<f64>>()
    });
    assert!(ranks.windows(2).all(|pair| pair[0] == pair[1]));
    ranks.into_iter().next().expect("rank 0")
}

fn is_close(a: &[f64], b: &[f64]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(x, y)| (x - y).abs() <= 1e-12 * y.abs().max(1e-3))
}

const TRAIN: &str = "for i in 0..3 { train(x) }\n";

/// Six steps in one go are three steps, a file, and three more steps on another number of ranks: the
/// parameters, the states of the optimizer and its count are all there.
#[test]
fn a_file_goes_on_with_any_number_of_ranks() {
    let folder = Folder::new("shard");
    let expected = run(&folder, 1, "for i in 0..6 { train(x) }");
    for writers in [1, 2, 3, 7] {
        let save = format!("{TRAIN}save(\"net.safetensors\", net, opt, train)");
        run(&folder, writers, &save);
        assert_eq!(folder.names(), ["net.safetensors"]);
        let sizes = fs::metadata(folder.path("net.safetensors")).expect("the file").len();
        for readers in [1, 2, 4] {
            let load = format!("load(\"net.safetensors\", net, opt, train)\n{TRAIN}");
            assert!(is_close(&run(&folder, readers, &load), &expected), "{writers} wrote, {readers} read");
        }
        // With the names and shapes of the parameters, without padding.
        let whole = {
            run(&folder, 1, &save);
            fs::metadata(folder.path("net.safetensors")).expect("the file").len()
        };
        assert_eq!(sizes, whole, "{writers} ranks write what one rank writes");
    }
}

#[test]
fn loading_after_the_step_is_compiled_and_loading_a_part() {
    let folder = Folder::new("shard");
    let expected = run(&folder, 1, "for i in 0..6 { train(x) }");
    run(&folder, 3, &format!("{TRAIN}save(\"net.safetensors\", net, opt, train)"));
    let load = "train(x)\nload(\"net.safetensors\", net, opt, train)\n";
    assert!(is_close(&run(&folder, 2, &format!("{load}{TRAIN}")), &expected));
    // Only the weights of one layer: the rest starts as it does.
    let load = "load(\"net.safetensors\", net.layers[1])";
    assert!(is_close(&run(&folder, 2, load), &run(&folder, 1, load)));
}

#[test]
fn a_file_for_each_rank() {
    let folder = Folder::new("shard");
    let expected = run(&folder, 1, "for i in 0..6 { train(x) }");
    run(&folder, 3, &format!("{TRAIN}save(\"net.safetensors\", net, opt, train, per_rank: true)"));
    let names = ["net.rank0of3.safetensors", "net.rank1of3.safetensors", "net.rank2of3.safetensors"];
    assert_eq!(folder.names(), names);
    let load = format!("load(\"net.safetensors\", net, opt, train, per_rank: true)\n{TRAIN}");
    assert!(is_close(&run(&folder, 3, &load), &expected));
    // A file that was cut short is an error on its rank, and all others hear of it.
    let path = folder.path(names[1]);
    let bytes = fs::read(&path).expect("the file");
    fs::write(&path, &bytes[..bytes.len() / 2]).expect("the file");
    let errors = on_ranks(&program(&folder, 3, &load), |session, _| messages(&failed(session.run())));
    assert!(errors[1].contains(names[1]), "{errors:?}");
    assert!(errors[0].contains("rank 1"), "{errors:?}");
    // Another number of ranks has no such files.
    let errors = on_ranks(&program(&folder, 2, &load), |session, _| messages(&failed(session.run())));
    assert!(errors[0].contains("net.rank0of2.safetensors"), "{errors:?}");
}

/// A resumed run finds the files that its ranks have written, and goes on as if it had not ended.
#[test]
fn a_run_with_a_file_for_each_rank_is_resumed() {
    let folder = Folder::new("shard_resume");
    let run = |passes: usize, per_rank: &str, resume: &[&str]| {
        let rest = format!(
            "const sharded = true\nlet n = {passes}\nlet l = 0.0\nfor i in 0..n {{\n  l = float(train(x))\n  \
             save(\"c.safetensors\", net, opt, train, per_rank: {per_rank})\n}}\nprint(\"{{l}}\")\n"
        );
        folder.file("p.tg", format!("{STEPS}{rest}"));
        let ran = folder.tg(&[&["run", "--world", "2"], resume, &["p.tg"]].concat());
        assert_eq!(ran.code, Some(0), "{}", ran.err);
        (ran.out, ran.err)
    };
    for per_rank in ["true", "sharded"] {
        let (whole, _) = run(4, per_rank, &[]);
        run(2, per_rank, &[]);
        let (resumed, said) = run(4, per_rank, &["--resume"]);
        assert!(said.contains("resumed from c.safetensors"), "{said}");
        assert!(said.contains("after pass 2"), "{said}");
        assert_eq!(resumed, whole);
    }
}
