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

/// A job whose ranks have a software GPU each, and NCCL between them. `faults` are those of the last rank.
struct Gpus<'a> {
    ranks: u32,
    options: &'a [&'a str],
    args: &'a [&'a str],
    nccl: bool,
    faults: &'a str,
}

impl Gpus<'_> {
    /// `None` where there is no compiler for the device.
    fn start(&self, folder: &Folder) -> Option<Child> {
        let libraries = softdevice::folder()?;
        let both = [libraries.to_path_buf(), libraries.join("nccl")];
        let chosen = std::env::join_paths(both.iter().take(if self.nccl { 2 } else { 1 })).expect("paths");
        let last = self.ranks - 1;
        let command = format!(
            "[ $OMPI_COMM_WORLD_RANK != {last} ] || export SOFTDEVICE_FAULT={}; exec \"$0\" \"$@\"",
            self.faults
        );
        let job = Command::new("mpirun")
            .args(["--allow-run-as-root", "--oversubscribe", "-n", &self.ranks.to_string()])
            .args(self.options)
            .args(["sh", "-c", &command, env!("CARGO_BIN_EXE_tg")])
            .args(["run", "--engine", "mpi", "--device", "cuda", "--stats"])
            .args(self.args)
            .arg("p.tg")
            .current_dir(&folder.0)
            .env("TG_CUDA_LIBRARIES", chosen)
            .env("TG_CACHE_DIR", libraries.join("cache"))
            .env("SOFTDEVICE_COUNT", "4")
            .env("SOFTDEVICE_MEET", &folder.0)
            .env("RAYON_NUM_THREADS", "1")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        Some(job.expect("mpirun starts"))
    }

    fn run(&self, folder: &Folder) -> Option<(Option<i32>, String, String)> {
        Some(texts(finish(self.start(folder)?)))
    }
}

const GPUS: Gpus = Gpus { ranks: 2, options: &[], args: &[], nccl: true, faults: "" };

/// A model that is spread over ranks with each unit gathered where it is used, and gradients that a hook
/// makes smaller on their way; each prints and saves all bits.
fn gpu_programs() -> [(&'static str, String); 2] {
    let sharded = TRAINING
        .replace("let opt =", "shard flat net by nn.Linear over world\nlet opt =")
        .replace("all_reduce(grad(l, net), mean: true)", "optim.clip(grad(l, net), 0.5)");
    let hooked = TRAINING.replace("use optim", "use optim\nuse hooks").replace(
        "update net with opt, all_reduce(grad(l, net), mean: true)",
        "let g = grad(l, net)\n  sync g over world with hooks.bf16_compress, bucket: 300\n  update net with opt, g",
    );
    [("sharded", sharded), ("hooked", hooked)]
}

/// Ranks as processes with NCCL between their GPUs, without it, and as threads.
#[test]
fn gpus_of_processes_give_the_bits_of_threads() {
    if !has_mpi() {
        return;
    }
    let Some(libraries) = softdevice::folder() else { return };
    for (name, text) in gpu_programs() {
        for ranks in [2, 3] {
            let folder = Folder::of(&format!("gpu-{name}{ranks}"), &text);
            let saved = || fs::read(folder.0.join("net.safetensors")).expect("a saved model");
            let job = Gpus { ranks, ..GPUS };
            let (code, out, err) = job.run(&folder).expect("a device");
            assert_eq!(code, Some(0), "{name}, {ranks} ranks: {out}{err}");
            assert!(err.contains("collectives by NCCL"), "{err}");
            let first = (out, saved());
            let (code, out, err) = Gpus { nccl: false, ..job }.run(&folder).expect("a device");
            assert_eq!(code, Some(0), "{err}");
            assert!(err.contains("through the host"), "{err}");
            assert!(first == (out, saved()), "{name}, {ranks} ranks: NCCL and the host differ");
            let threads = folder
                .command(&["run", "--world", &ranks.to_string(), "--device", "cuda", "p.tg"])
                .env("TG_CUDA_LIBRARIES", std::env::join_paths([libraries, &libraries.join("nccl")]).unwrap())
                .env("TG_CACHE_DIR", libraries.join("cache"))
                .env("SOFTDEVICE_COUNT", "4")
                .env("RAYON_NUM_THREADS", "1")
                .output()
                .expect("the command runs");
            let (code, out, err) = texts(threads);
            assert_eq!(code, Some(0), "{err}");
            assert!(first == (out, saved()), "{name}, {ranks} ranks: processes and threads differ");
        }
    }
}

fn flat(text: &str) -> String {
    text.split_whitespace().filter(|word| *word != "│").collect::<Vec<_>>().join(" ")
}

/// Rank 2 is lost in the middle of a step, or before the GPUs are connected; by a signal that ends it, or
/// as a process that does nothing any more. Each other rank names it.
#[test]
#[cfg(target_os = "linux")]
fn a_rank_that_is_lost_between_gpus_is_named_by_all_others() {
    if !has_mpi() {
        return;
    }
    let text = "step f(x: f32[66]) {\n  let a = all_reduce(x)\n  return sum(all_gather(a * 2.0)) + sum(reduce_scatter(a))\n}\nfor i in 0..6 { f(normal([66])) }\n";
    let recovery: &[&str] = &["--enable-recovery"];
    // The stand-in runs nothing before somebody waits, so rank 2 has come to none of the collectives of its step.
    for (faults, options, why) in [
        ("stop_ncclAllGather:3", &[][..], "rank 2 did not come to `all_reduce` of f32[66] within 3 s"),
        ("stop_ncclCommInitRankConfig:1", &[], "rank 2 did not come to connecting the ranks within 3 s"),
        ("kill_ncclAllReduce:4", recovery, "rank 2 does not answer any more: NCCL failed on rank"),
        ("kill_ncclCommInitRankConfig:1", recovery, "rank 2 did not come to connecting the ranks within 3 s"),
    ] {
        let folder = Folder::of("gpu-lost", text);
        let job = Gpus { ranks: 3, options, faults, args: &["--comm-timeout", "3"], ..GPUS };
        let Some(child) = job.start(&folder) else { return };
        let mpirun = child.id();
        let begin = Instant::now();
        let (exit, _, err) = texts(finish(child));
        assert!(begin.elapsed() < Duration::from_secs(25), "{faults}: {:?}", begin.elapsed());
        let said = flat(&err);
        assert!(said.matches(why).count() >= 2, "{faults}: {err}");
        assert!(said.contains("on rank 0") && said.contains("on rank 1"), "{faults}: {err}");
        if options.is_empty() {
            assert!(exit.is_some_and(|code| code != 0), "{faults}: {err}");
        }
        for rank in 0..3 {
            assert_eq!(process_of(mpirun, rank), None, "{faults}: rank {rank} is still there");
        }
    }
}

/// A process that never starts MPI keeps the others from starting it.
#[test]
#[cfg(target_os = "linux")]
fn a_rank_that_never_joins_is_named() {
    if !has_mpi() {
        return;
    }
    let folder = Folder::of("joins", "print(world)");
    let child = Command::new("mpirun")
        .args(["--allow-run-as-root", "--oversubscribe", "-n", "2", env!("CARGO_BIN_EXE_tg")])
        .args(["run", "--engine", "mpi", "--comm-timeout", "2", "p.tg", ":", "-n", "1", "sleep", "1000"])
        .current_dir(&folder.0)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("mpirun starts");
    let begin = Instant::now();
    let (exit, out, err) = texts(finish(child));
    assert!(begin.elapsed() < Duration::from_secs(25), "{:?}", begin.elapsed());
    assert!(exit.is_some_and(|code| code != 0) && out.is_empty(), "{out}{err}");
    assert!(err.contains("rank 2 has not joined within 2 s"), "{err}");
}
