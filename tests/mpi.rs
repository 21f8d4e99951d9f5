//! Ranks as processes under Open MPI: the bits of the threads engine, and errors instead of hangs. Where
//! there is no `mpirun`, each test prints a line and passes.

#[path = "support/folder.rs"]
mod folder;
#[path = "support/softdevice.rs"]
mod softdevice;

use std::{
    fs,
    process::{Child, Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

use folder::Folder;

/// More than any of these programs takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// Whether there is Open MPI; says so once per test where there is not.
fn has_mpi() -> bool {
    let found = Command::new("mpirun").arg("--version").output();
    let is_open_mpi = found.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains("Open MPI"));
    if !is_open_mpi {
        println!("skipped: Open MPI's `mpirun` is not installed");
    }
    is_open_mpi
}

impl Folder {
    fn of(name: &str, text: &str) -> Folder {
        let folder = Folder::new(name);
        folder.file("p.tg", text);
        folder
    }

    /// `tg run ARGS… p.tg` on `ranks` processes.
    fn start(&self, ranks: u32, options: &[&str], args: &[&str]) -> Child {
        Command::new("mpirun")
            .args(["--allow-run-as-root", "--oversubscribe", "-n", &ranks.to_string()])
            .args(options)
            .arg(env!("CARGO_BIN_EXE_tg"))
            .args(["run", "--engine", "mpi"])
            .args(args)
            .arg("p.tg")
            .current_dir(&self.0)
            .env("RAYON_NUM_THREADS", "1")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("mpirun starts")
    }

    fn run(&self, ranks: u32, args: &[&str]) -> (Option<i32>, String, String) {
        texts(finish(self.start(ranks, &[], args)))
    }

    fn threads(&self, ranks: u32) -> (Option<i32>, String, String) {
        let ran = self.tg(&["run", "--world", &ranks.to_string(), "p.tg"]);
        (ran.code, ran.out, ran.err)
    }
}

fn texts(output: Output) -> (Option<i32>, String, String) {
    let text = |bytes| String::from_utf8(bytes).expect("output is UTF-8");
    (output.status.code(), text(output.stdout), text(output.stderr))
}

/// Waits for the end of a job, which must come.
fn finish(mut child: Child) -> Output {
    let begin = Instant::now();
    while child.try_wait().expect("the job can be waited for").is_none() {
        if begin.elapsed() > PATIENCE {
            let _ = child.kill();
            panic!("the job hangs");
        }
        thread::sleep(Duration::from_millis(20));
    }
    child.wait_with_output().expect("the output can be read")
}

/// Training with every collective, gradients, dropout and a file; prints and saves all bits.
const TRAINING: &str = "
use nn
use optim
model Net {
  let a = nn.Linear(6, 16)
  let b = nn.Linear(16, 4)
  fn forward(x) = b(nn.dropout(tanh(a(x)), 0.2))
}
let net = Net()
let opt = optim.adamw(net, lr: 0.01)
step train(x: f32[12, 6], y: f32[12, 4]) {
  let h = net(x)
  let everywhere = all_gather(h)
  let part = reduce_scatter(h, mean: true)
  let l = mean(square(h - y)) + mean(square(everywhere)) + 0.1 * mean(square(part)) + mean(broadcast(h)) * rank
  update net with opt, all_reduce(grad(l, net), mean: true)
  return all_reduce(l, mean: true)
}
let losses = []
for i in 0..10 {
  losses += [float(train(normal([12, 6]) * (rank + 1), normal([12, 4])))]
}
print(losses)
save(\"net.safetensors\", net, opt)
load(\"net.safetensors\", net, opt)
print(\"{float(sum(net.a.w)):.9e} {float(all_reduce(sum(net.b.w))):.9e}\")
";

#[test]
fn bits_equal_those_of_threads() {
    if !has_mpi() {
        return;
    }
    for ranks in [1, 2, 3, 4] {
        same_bits(&format!("bits{ranks}"), TRAINING, ranks);
    }
}

/// The same for a model that is spread over the ranks.
#[test]
fn bits_of_a_sharded_model_equal_those_of_threads() {
    if !has_mpi() {
        return;
    }
    let sharded = TRAINING
        .replace("let opt =", "shard flat net by nn.Linear over world\nlet opt =")
        .replace("all_reduce(grad(l, net), mean: true)", "optim.clip(grad(l, net), 0.5)");
    for ranks in [2, 3] {
        same_bits(&format!("sharded{ranks}"), &sharded, ranks);
    }
}

/// Processes and threads print and save the same.
fn same_bits(name: &str, text: &str, ranks: u32) {
    let folder = Folder::of(name, text);
    let (code, out, err) = folder.run(ranks, &[]);
    assert_eq!(code, Some(0), "{out}{err}");
    let saved = fs::read(folder.0.join("net.safetensors")).unwrap();
    fs::remove_file(folder.0.join("net.safetensors")).unwrap();
    let (code, expected, err) = folder.threads(ranks);
    assert_eq!(code, Some(0), "{err}");
    assert_eq!(out, expected, "{ranks} ranks print the same");
    assert!(saved == fs::read(folder.0.join("net.safetensors")).unwrap(), "{ranks} ranks save the same");
}

/// Several messages for each pair of ranks, and lengths that no number of ranks divides.
#[test]
fn large_tensors() {
    if !has_mpi() {
        return;
    }
    let text = "
step f(x: f32[600011]) { return all_reduce(x), all_gather(x[0..300007]) }
let (a, b) = f(normal([600011]) * (rank + 1) * 0.37)
print(\"{float(sum(a)):.9e} {float(sum(b)):.9e} {float(a[600010]):.9e} {float(b[-1]):.9e}\")";
    let folder = Folder::of("large", text);
    let (code, out, err) = folder.run(3, &[]);
    assert_eq!((code, out.lines().count()), (Some(0), 1), "{err}");
    assert_eq!(folder.threads(3).1, out);
}

#[test]
fn errors_are_reported_once() {
    if !has_mpi() {
        return;
    }
    for (name, end, code, message) in [
        ("fails", "assert(rank != 2, \"two is bad\")\nf(ones([4]))", "TG0401", "two is bad"),
        (
            "disagree",
            "if rank == 1 { g(ones([4])) } else { f(ones([4])) }",
            "TG0409",
            "ranks 0 and 1 disagree",
        ),
        ("check", "let x = ones([2]) @ ones([3])", "TG0221", "ones([2]) @ ones([3])"),
    ] {
        let text = format!(
            "step f(x: f32[4]) {{ return all_reduce(x) }}\nstep g(x: f32[4]) {{ return all_gather(x) }}\nf(ones([4]))\n{end}"
        );
        let folder = Folder::of(name, &text);
        let begin = Instant::now();
        let (exit, _, err) = folder.run(3, &[]);
        assert!(begin.elapsed() < Duration::from_secs(30));
        assert!(exit.is_some_and(|code| code != 0), "{err}");
        assert_eq!(err.matches(&format!("error[{code}]")).count(), 1, "{name}: {err}");
        assert!(err.contains(message), "{name}: {err}");
    }
}

#[test]
fn a_rank_that_ends_early_is_named() {
    if !has_mpi() {
        return;
    }
    let text = "step f(x: f32[4]) { return all_reduce(x) }\nif rank != 1 { f(ones([4])) }";
    let (exit, _, err) = Folder::of("ends", text).run(2, &[]);
    assert!(exit.is_some_and(|code| code != 0) && err.contains("rank 1 has ended, and rank 0"), "{err}");
}

/// A rank that has ended does not wait for ever for one that goes on by itself.
#[test]
fn a_rank_that_does_not_end_is_named() {
    if !has_mpi() {
        return;
    }
    let text = "let n = 1\nif rank == 1 { n = 1000000000 }\nlet k = 0\nfor i in 0..n { k = k + 1 }";
    let begin = Instant::now();
    let (exit, _, err) = Folder::of("late_end", text).run(2, &["--comm-timeout", "1"]);
    assert!(begin.elapsed() < PATIENCE, "{:?}", begin.elapsed());
    assert!(exit.is_some_and(|code| code != 0), "{err}");
    assert!(err.contains("rank 1 did not come to its end within 1 s"), "{err}");
}

#[test]
fn the_number_of_ranks_is_that_of_mpirun() {
    if !has_mpi() {
        return;
    }
    let folder = Folder::of("world", "print(world)");
    assert_eq!(folder.run(2, &["--world", "2"]).1, "2\n");
    let (exit, _, err) = folder.run(2, &["--world", "3"]);
    assert!(exit.is_some_and(|code| code != 0), "{err}");
    assert!(err.contains("`--world 3`, and `mpirun` has started 2 ranks"), "{err}");
}

/// A rank that finds no device says so at once, while the other one is on its way into a collective.
#[test]
fn a_rank_without_a_device_ends_the_others() {
    let Some(libraries) = softdevice::folder().filter(|_| has_mpi()) else { return };
    let text = "step f(x: f32[4]) { return all_reduce(x) }\nf(ones([4]))";
    let folder = Folder::of("device", text);
    let command = "[ $OMPI_COMM_WORLD_RANK = 0 ] || export SOFTDEVICE_COUNT=0; exec \"$0\" \"$@\"";
    let begin = Instant::now();
    let job = Command::new("mpirun")
        .args(["--allow-run-as-root", "--oversubscribe", "-n", "2", "sh", "-c", command])
        .arg(env!("CARGO_BIN_EXE_tg"))
        .args(["run", "--engine", "mpi", "--device", "cuda", "--comm-timeout", "30", "p.tg"])
        .current_dir(&folder.0)
        .envs([("TG_CUDA_LIBRARIES", libraries.to_path_buf()), ("TG_CACHE_DIR", libraries.join("cache"))])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("mpirun starts");
    let (exit, _, err) = texts(finish(job));
    assert!(begin.elapsed() < Duration::from_secs(25), "{:?}", begin.elapsed());
    assert!(exit.is_some_and(|code| code != 0), "{err}");
    let flat = err.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(flat.contains("no device that it can use") && flat.contains("on rank 1"), "{err}");
    assert!(!err.contains("on rank 0"), "{err}");
}

/// The process of a rank among the children of `mpirun`.
#[cfg(target_os = "linux")]
fn process_of(mpirun: u32, rank: u32) -> Option<u32> {
    let wanted = format!("OMPI_COMM_WORLD_RANK={rank}");
    fs::read_dir("/proc").ok()?.flatten().find_map(|entry| {
        let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
        let status = fs::read_to_string(entry.path().join("status")).ok()?;
        let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim();
        let environment = fs::read(entry.path().join("environ")).ok()?;
        let is_rank = environment.split(|byte| *byte == 0).any(|variable| variable == wanted.as_bytes());
        (parent == mpirun.to_string() && is_rank).then_some(pid)
    })
}

/// A rank is killed in the middle of its steps. By itself `mpirun` ends the others; with
/// `--enable-recovery` it leaves them alone, and they find out by the time limit.
#[test]
#[cfg(target_os = "linux")]
fn a_killed_rank_ends_the_others() {
    if !has_mpi() {
        return;
    }
    let text = "step f(x: f32[64]) { return all_reduce(x) }\nlet n = 0\nfor i in 0..100000000 {\n  f(ones([64]))\n  if i == 20 { save(\"running.safetensors\", x: ones([1])) }\n}";
    for recovery in [false, true] {
        let folder = Folder::of(&format!("killed{recovery}"), text);
        let options: &[&str] = if recovery { &["--enable-recovery"] } else { &[] };
        let child = folder.start(3, options, &["--comm-timeout", "2"]);
        let begin = Instant::now();
        while !folder.0.join("running.safetensors").exists() {
            assert!(begin.elapsed() < PATIENCE, "the ranks do not start");
            thread::sleep(Duration::from_millis(20));
        }
        let victim = process_of(child.id(), 2).expect("rank 2 runs");
        let killed = Instant::now();
        assert!(Command::new("kill").args(["-9", &victim.to_string()]).status().unwrap().success());
        let (exit, _, err) = texts(finish(child));
        assert!(killed.elapsed() < Duration::from_secs(20), "{:?}", killed.elapsed());
        if !recovery {
            assert!(exit.is_some_and(|code| code != 0), "{err}");
        } else {
            // The exit code of `mpirun` says nothing about recovered jobs.
            assert!(err.contains("on rank 0") && err.contains("on rank 1"), "{err}");
            let late = "rank 2 did not come to `all_reduce` of f32[64]";
            let flat: String = err.split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(flat.contains(late) && flat.contains("within 2 s"), "{err}");
        }
    }
}
