//! Ranks with a GPU each: what they give each other through NCCL is what ranks of the CPU give each other,
//! and a rank that is lost is an error on the others.

use std::{
    path::Path,
    process::Stdio,
    time::{Duration, Instant},
};

use crate::{device::softdevice, folder::Folder};

/// More than any of these runs takes.
const PATIENCE: Duration = Duration::from_secs(120);

/// Every collective, with gradients, in some dtypes; prints what each step gives.
const TRAINING: &str = "\
use nn
use optim
model Net {
  let a = nn.Linear(6, 12)
  let b = nn.Linear(12, 4)
  fn forward(x) = b(tanh(a(x)))
}
let net = Net()
SHARD
let opt = optim.adamw(net, lr: 0.01)
step train(x: f32[12, 6], y: f32[12, 4]) {
  let h = net(x)
  let everywhere = all_gather(h)
  let part = reduce_scatter(h, mean: true)
  let l = mean(square(h - y)) + mean(square(everywhere)) + 0.1 * mean(square(part)) + mean(broadcast(h)) * rank
  UPDATE
  return (all_reduce(l, mean: true), all_reduce(tensor([3, 4]) * i32(rank + 1)), all_reduce(sum(bf16(h))))
}
for i in 0..5 {
  let l, n, half = train(normal([12, 6]) * (rank + 1), normal([12, 4]))
  print(\"{float(l):.5e} {n} {float(half):.2e}\")
}
";

/// The kinds of training: gradients summed at once, bucket by bucket, and a model that is spread over ranks.
fn programs() -> [String; 3] {
    let of = |shard, update| TRAINING.replace("SHARD", shard).replace("UPDATE", update);
    [
        of("", "update net with opt, all_reduce(grad(l, net), mean: true)"),
        of("", "let g = grad(l, net)\n  sync g over world, bucket: 300\n  update net with opt, g"),
        of("shard flat net by nn.Linear over world", "minimize l over net with opt"),
    ]
}

struct Ran {
    code: Option<i32>,
    out: String,
    err: String,
    took: Duration,
}

/// A run on as many ranks, with NCCL where that is asked for. It must end.
fn run(text: &str, world: u32, args: &[&str], has_nccl: bool, variables: &[(&str, &str)]) -> Option<Ran> {
    let folder = Folder::new("cuda-collectives");
    folder.file("p.tg", text);
    let mut command = softdevice::command()?;
    let libraries = softdevice::folder()?;
    let both = [libraries, &libraries.join("nccl")].map(Path::to_path_buf);
    let chosen = std::env::join_paths(both.iter().take(if has_nccl { 2 } else { 1 })).expect("paths");
    command
        .current_dir(&folder.0)
        .args(["run", "--world", &world.to_string()])
        .args(args)
        .arg("p.tg")
        .env("TG_CUDA_LIBRARIES", chosen)
        .env("SOFTDEVICE_COUNT", "4")
        .env("RAYON_NUM_THREADS", "1")
        .envs(variables.iter().copied());
    let begin = Instant::now();
    let mut child =
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the command starts");
    while child.try_wait().expect("a child").is_none() {
        if begin.elapsed() > PATIENCE {
            child.kill().expect("a child");
            panic!("{world} ranks with {variables:?} hang");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let took = begin.elapsed();
    let output = child.wait_with_output().expect("output");
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    Some(Ran { code: output.status.code(), out: text(output.stdout), err: text(output.stderr), took })
}

/// Numbers agree to a ten-thousandth, those of two digits nearly as far as they are printed, other words
/// exactly.
fn assert_near(what: &str, a: &str, b: &str) {
    let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let (x, y) = (words(a), words(b));
    assert_eq!(x.len(), y.len(), "{what}:\n{a}\n{b}");
    for (x, y) in x.iter().zip(&y) {
        let has_two_digits = x.split('e').next().is_some_and(|digits| digits.trim_matches('-').len() == 4);
        let tolerance = if has_two_digits { 2e-2 } else { 1e-4 };
        let near = match (x.parse::<f64>(), y.parse::<f64>()) {
            (Ok(x), Ok(y)) => (x - y).abs() <= tolerance * x.abs().max(y.abs()),
            _ => x == y,
        };
        assert!(near, "{what}: {x}, {y}\n{a}\n{b}");
    }
}

#[test]
fn ranks_with_a_gpu_each_train_as_ranks_of_the_cpu_do() {
    for text in programs() {
        for world in 1..=4 {
            let Some(cpu) = run(&text, world, &["--device", "cpu"], true, &[]) else { return };
            assert_eq!(cpu.code, Some(0), "{}", cpu.err);
            for order in ["0", "2"] {
                let orders = [("SOFTDEVICE_ORDER", order)];
                let gpu =
                    run(&text, world, &["--device", "cuda", "--stats"], true, &orders).expect("a device");
                assert_eq!(gpu.code, Some(0), "{}", gpu.err);
                assert_near(&format!("{world} ranks, order {order}"), &cpu.out, &gpu.out);
                assert_eq!(gpu.err.contains("collectives by NCCL"), world > 1, "{}", gpu.err);
            }
        }
    }
}

#[test]
fn without_nccl_or_with_a_gpu_for_two_ranks_collectives_go_through_the_host() {
    let text = &programs()[0];
    let args = ["--device", "cuda", "--stats"];
    let Some(with) = run(text, 2, &args, true, &[]) else { return };
    let without = run(text, 2, &args, false, &[]).expect("a device");
    assert_eq!((without.code, &without.out), (Some(0), &with.out), "{}", without.err);
    assert!(without.err.contains("through the host, as not every rank uses NCCL"), "{}", without.err);
    let off = run(text, 2, &args, true, &[("TG_CUDA_NCCL", "0")]).expect("a device");
    assert_eq!((off.code, &off.out), (Some(0), &with.out), "{}", off.err);
    assert!(off.err.contains("through the host, as not every rank uses NCCL"), "{}", off.err);
    let shared = run(text, 2, &args, true, &[("SOFTDEVICE_COUNT", "1")]).expect("a device");
    assert_eq!((shared.code, &shared.out), (Some(0), &with.out), "{}", shared.err);
    assert!(shared.err.contains("through the host, as ranks share a GPU"), "{}", shared.err);
}

/// A step of one collective, run again and again.
const SUMS: &str =
    "step f(x: f32[8]) { return sum(all_reduce(x)) }\nfor i in 0..6 { print(float(f(ones([8])))) }\n";

fn flat(text: &str) -> String {
    text.split_whitespace().filter(|word| *word != "=").collect::<Vec<_>>().join(" ")
}

#[test]
fn a_rank_that_fails_or_ends_is_an_error_with_its_number() {
    let args = ["--device", "cuda", "--comm-timeout", "30"];
    // The call of one rank fails; the others are in the collective by then, or on their way.
    let Some(failed) = run(SUMS, 3, &args, true, &[("SOFTDEVICE_FAULT", "ncclAllReduce:5")]) else { return };
    assert_eq!(failed.code, Some(1), "{}", failed.err);
    assert!(flat(&failed.err).contains("NCCL failed on rank"), "{}", failed.err);
    assert!(failed.took < Duration::from_secs(25), "{:?}", failed.took);
    // A rank that does not come is found before the step, and so is one that does something else.
    let ends = SUMS.replace("for i", "if rank == 1 { error(\"enough\") }\nfor i");
    let ended = run(&ends, 3, &args, true, &[]).expect("a device");
    assert_eq!(ended.code, Some(1));
    assert!(flat(&ended.err).contains("enough") && ended.err.contains("on rank 1"), "{}", ended.err);
    let other = "step f(x: f32[8]) { return sum(all_reduce(x)) }\nstep g(x: f32[4]) { return sum(all_reduce(x)) }\nif rank == 1 { g(ones([4])) } else { f(ones([8])) }";
    let differ = run(other, 2, &args, true, &[]).expect("a device");
    assert_eq!(differ.code, Some(1));
    let err = flat(&differ.err);
    assert!(
        err.contains("ranks 0 and 1 disagree") && err.contains("of f32[8]") && err.contains("of f32[4]"),
        "{err}"
    );
}

#[test]
fn a_collective_that_does_not_end_is_an_error_within_the_limit() {
    let args = ["--device", "cuda", "--comm-timeout", "1"];
    let Some(hangs) = run(SUMS, 2, &args, true, &[("SOFTDEVICE_FAULT", "hang:7")]) else { return };
    assert_eq!(hangs.code, Some(1), "{}", hangs.err);
    let why = "NCCL is not done with `all_reduce` of f32[8] after 1 s, and all ranks have come to it";
    assert!(flat(&hangs.err).contains(why), "{}", hangs.err);
    assert!(hangs.took < Duration::from_secs(20), "{:?}", hangs.took);
}
