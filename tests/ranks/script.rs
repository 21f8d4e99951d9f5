//! What scripts see of ranks: numbers, random numbers, data, printing, files, the command line.

use std::{
    fs,
    sync::{Arc, Mutex},
};

use super::{
    folder::{Folder, Ran},
    support::{compile, numbers, on_ranks},
};

#[test]
fn rank_and_world_are_numbers() {
    let text = "
let here = rank * 10 + world
let t = all_gather(tensor([here]))
fn scaled(x) = x * rank
let u = scaled(ones([2]))
step f(x: f32[2]) { return where(rank == 1, x, 0.0 - x) + world }
let v = f(ones([2]))";
    let program = compile(3, text);
    on_ranks(&program, |session, rank| {
        session.run().unwrap_or_else(|error| panic!("{error}"));
        let get = |session: &mut tg::Session, name: &str| {
            let value = session.get(name).unwrap_or_else(|error| panic!("{error}"));
            numbers(value.as_tensor().expect("a tensor"))
        };
        assert_eq!(session.get("here").unwrap().as_i64(), Some(i64::from(rank) * 10 + 3));
        assert_eq!(get(session, "t"), [3.0, 13.0, 23.0]);
        assert_eq!(get(session, "u"), [f64::from(rank); 2]);
        assert_eq!(get(session, "v"), [if rank == 1 { 4.0 } else { 2.0 }; 2]);
    });
}

#[test]
fn random_numbers_of_steps_differ_and_others_do_not() {
    let text = "
use nn
let net = nn.Linear(4, 4)
let data = normal([8])
step noise() { return uniform([8]) }
let a = noise()
let b = noise()
let w = net.w + 0.0";
    let run = |world| {
        on_ranks(&compile(world, text), |session, _| {
            session.run().unwrap_or_else(|error| panic!("{error}"));
            ["data", "w", "a", "b"].map(|name| numbers(session.get(name).unwrap().as_tensor().unwrap()))
        })
    };
    let (one, many) = (run(1), run(3));
    assert_eq!(many[0], one[0], "rank 0 has the numbers of a run alone");
    assert!(many.iter().all(|r| r[0] == one[0][0] && r[1] == one[0][1]));
    let [a, b, c] = [&many[0], &many[1], &many[2]];
    assert!(a[2] != b[2] && b[2] != c[2] && a[2] != c[2] && b[2] != b[3]);
}

#[test]
fn parts_of_batches_make_the_whole_batch() {
    let text = "
let x = arange(26)
let seen = []
for b in data.batches(x, size: 12 // world, shuffle: 5, part: rank, of: world) { seen += [b] }";
    let rows = |world: u32| -> Vec<Vec<f64>> {
        let ranks = on_ranks(&compile(world, text), |session, _| {
            session.run().unwrap_or_else(|error| panic!("{error}"));
            let seen = session.get("seen").unwrap();
            seen.tensors().into_iter().map(numbers).collect::<Vec<_>>()
        });
        (0..ranks[0].len()).map(|k| ranks.iter().flat_map(|batches| batches[k].clone()).collect()).collect()
    };
    let whole = rows(1);
    assert_eq!(whole.iter().map(Vec::len).collect::<Vec<_>>(), [12, 12]);
    for world in [2, 3, 4] {
        assert_eq!(rows(world), whole, "{world} ranks");
    }
}

/// A folder with a program.
fn with(name: &str, text: &str) -> Folder {
    let folder = Folder::new(name);
    folder.file("p.tg", text);
    folder
}

const FILES: &str = "
use nn
use optim
let net = nn.Linear(2, 1)
step train(x: f32[4, 2]) {
  let l = mean(square(net(x) - 1.0))
  update net with optim.sgd(lr: 0.1), all_reduce(grad(l, net), mean: true)
  return all_reduce(l, mean: true)
}
let losses = []
for i in progress(0..3) {
  let l = float(train(ones([4, 2]) * (rank + 1)))
  losses += [l]
  log(\"metrics.csv\", step: i, loss: l)
}
print(\"rank {rank} of {world}\")
plot(losses, file: \"losses.svg\")
let saved = float(sum(net.w))
save(\"net.safetensors\", net)
train(ones([4, 2]))
assert(float(sum(net.w)) != saved)
load(\"net.safetensors\", net)
assert(float(sum(net.w)) == saved)
let total = float(all_reduce(sum(net.w)))
assert(total != 0.0)
print(\"{total == float(sum(net.w)) * world}\")
";

#[test]
fn only_rank_0_prints_and_writes() {
    let folder = with("files", FILES);
    let Ran { code, out, err } = folder.tg(&["run", "--world", "4", "p.tg"]);
    assert_eq!((code, out.as_str()), (Some(0), "rank 0 of 4\ntrue\n"), "{err}");
    let log = fs::read_to_string(folder.0.join("metrics.csv")).unwrap();
    assert_eq!(log.lines().count(), 4, "{log}");
    assert!(folder.0.join("losses.svg").exists() && folder.0.join("net.safetensors").exists());
    assert!(!err.contains("error"), "{err}");
}

#[test]
fn hosts_hear_of_rank_0_only() {
    let program =
        compile(3, "print(\"rank {rank}\")\nstep f(x: f32[2]) { return debug(x) * 2.0 }\nf(ones([2]))");
    let heard = Arc::new(Mutex::new(Vec::new()));
    on_ranks(&program, |session, rank| {
        let heard = Arc::clone(&heard);
        session.on_print(move |line| heard.lock().unwrap().push(format!("{rank}: {line}")));
        session.run().unwrap_or_else(|error| panic!("{error}"));
    });
    assert_eq!(*heard.lock().unwrap(), ["0: rank 0", "0: x: f32[2]\n[1. 1.]"]);
}

#[test]
fn errors_are_reported_once_with_their_ranks() {
    let text = "step f(x: f32[4]) { return all_reduce(x) }\nf(ones([4]))\nassert(rank % 2 == 0, \"odd\")\nf(ones([4]))";
    let folder = with("errors", text);
    let Ran { code, out, err } = folder.tg(&["run", "--world", "4", "p.tg"]);
    assert_eq!((code, out.as_str()), (Some(1), ""));
    assert_eq!(err.matches("error[").count(), 1, "{err}");
    assert!(err.contains("error[TG0401]: odd"), "{err}");
    // Ranks 1 and 3 fail by themselves; the first one that does may keep the other from it.
    assert!(
        err.contains("on ranks 1 and 3") || err.contains("on rank 1") || err.contains("on rank 3"),
        "{err}"
    );
    let text = "assert(1 > world, \"many\")";
    let folder = with("all", text);
    let Ran { code, out: _, err } = folder.tg(&["run", "--world", "3", "p.tg"]);
    assert!(code == Some(1) && err.contains("many") && err.matches("error[").count() == 1, "{err}");
}

#[test]
fn disagreement_is_one_error_with_both_lines() {
    let text = "step f(x: f32[4]) {\n  return all_reduce(x)\n}\nif rank == 1 {\n  f(ones([4]))\n}\nf(ones([4]))\nlet g = all_gather(ones([2]))";
    let folder = with("disagree", text);
    let Ran { code, out: _, err } = folder.tg(&["run", "--world", "2", "p.tg"]);
    assert_eq!((code, err.matches("error[TG0409]").count()), (Some(1), 1), "{err}");
    let flat: String = err.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        flat.contains(
            "rank 0 calls `all_gather` of f32[2] (p.tg:8), rank 1 calls `all_reduce` of f32[4] (p.tg:2)"
        ),
        "{err}"
    );
    assert!(err.contains("rank 1 is here"), "{err}");
}

#[test]
fn plans_and_checks_do_not_run() {
    let text = "step f(x: f32[1024]) { return all_gather(x) }\nprint(\"no\")";
    let folder = with("plan", text);
    for args in [&["check", "--world", "8", "p.tg"][..], &["plan", "--world", "8", "p.tg"]] {
        let Ran { code, out, err } = folder.tg(args);
        assert_eq!(code, Some(0), "{out}{err}");
        assert!(!out.lines().any(|line| line == "no"), "{out}{err}");
    }
    let text = "step f(x: f32[1024]) { return all_gather(x) }";
    let folder = with("bytes", text);
    let peak = |world: &str| -> u64 {
        let Ran { code, out, err } = folder.tg(&["plan", "--json", "--world", world, "p.tg"]);
        assert_eq!(code, Some(0), "{err}");
        let json: serde_json::Value = serde_json::from_str(&out).unwrap();
        json["steps"][0]["peak_bytes"].as_u64().unwrap()
    };
    assert_eq!((peak("2"), peak("8")), (3 * 4096, 9 * 4096));
    let Ran { code, out: _, err } = folder.tg(&["run", "--world", "0", "p.tg"]);
    assert!(code == Some(2) && err.contains("--world"), "{err}");
    let Ran { code, out: _, err } = folder.tg(&["run", "--comm-timeout", "0", "p.tg"]);
    assert!(code == Some(2) && err.contains("--comm-timeout"), "{err}");
}
