//! Faults of a device: a launch that fails, memory that runs out, a device that is lost. Each is an error
//! that says what happened; nothing hangs, and files that were written by then are whole.

#[path = "support/folder.rs"]
mod folder;
#[path = "support/softdevice.rs"]
mod softdevice;

use std::{
    process::Stdio,
    time::{Duration, Instant},
};

use folder::Folder;

/// More than any of these runs takes.
const PATIENCE: Duration = Duration::from_secs(120);

/// Behind [`softdevice::NET`].
const CALLS: &str = "\
for i in 0..12 {
  let cost = train(x)
  print(\"step {i}: {cost}\")
  save(\"net.safetensors\", net)
}
print(\"done\")
";

struct Failed {
    out: String,
    err: String,
    folder: Folder,
}

/// A run that must end in time, with an error in words.
fn fails(variables: &[(&str, &str)]) -> Option<Failed> {
    let folder = Folder::new("cuda-faults");
    folder.file("net.tg", format!("{}{CALLS}", softdevice::NET));
    let mut command = softdevice::command()?;
    command
        .current_dir(&folder.0)
        .args(["run", "--device", "cuda", "net.tg"])
        .envs(variables.iter().copied());
    let mut child =
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the command starts");
    let start = Instant::now();
    while child.try_wait().expect("a child").is_none() {
        if start.elapsed() > PATIENCE {
            child.kill().expect("a child");
            panic!("{variables:?} hangs");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let output = child.wait_with_output().expect("output");
    let (out, err) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert_eq!(output.status.code(), Some(1), "{variables:?}:\n{out}{err}");
    assert!(err.contains("error["), "{variables:?}: {err}");
    assert!(!err.contains("panicked") && !err.contains("internal") && !out.contains("done"), "{err}");
    Some(Failed { out, err, folder })
}

impl Failed {
    /// The file that was saved last can be read, and nothing lies beside it.
    fn files_are_whole(&self) {
        let steps = self.out.lines().filter(|line| line.starts_with("step ")).count();
        let mut found = self.folder.names();
        // The fault may come while the parameters of a step come back that has printed its cost: then the
        // file is that of the step before, or not there yet.
        if steps > 1 || found.contains(&"net.safetensors".to_owned()) {
            let bytes = std::fs::read(self.folder.path("net.safetensors")).expect("a file");
            let tensors = safetensors::SafeTensors::deserialize(&bytes).expect("a whole file");
            assert_eq!(tensors.len(), 4);
        }
        found.retain(|name| name != "net.safetensors");
        assert_eq!(found, ["net.tg"], "{}", self.err);
    }
}

#[test]
fn a_launch_that_fails() {
    // The first one runs alone, the later ones are part of a recorded step.
    for launch in ["1", "3", "40"] {
        let Some(failed) = fails(&[("SOFTDEVICE_FAULT", &format!("launch:{launch}"))]) else { return };
        assert!(
            failed.err.contains("CUDA_ERROR_LAUNCH_FAILED") || failed.err.contains("launch failure"),
            "{}",
            failed.err
        );
        failed.files_are_whole();
        if launch == "40" {
            assert!(failed.out.contains("step 0"), "{}", failed.out);
        }
    }
}

#[test]
fn a_device_that_is_lost() {
    let mut printed = 0;
    for call in [1u32, 5, 30, 60, 100, 150, 200, 250] {
        let fault = format!("lost:{call}");
        let Some(failed) = fails(&[("SOFTDEVICE_FAULT", &fault)]) else { return };
        failed.files_are_whole();
        printed += usize::from(failed.out.contains("step 0"));
    }
    assert!(printed > 0, "the device was never lost in the middle of a run");
}

#[test]
fn calls_that_fail_once() {
    for call in ["cuMemAlloc_v2", "cuStreamCreate", "cuMemHostAlloc", "cublasLtCreate"] {
        let Some(failed) = fails(&[("SOFTDEVICE_FAULT", &format!("{call}:1"))]) else { return };
        assert!(!failed.out.contains("step"), "{call}: {}", failed.out);
        if call.starts_with("cuMem") {
            let words: Vec<&str> = failed.err.split_whitespace().collect();
            assert!(words.join(" ").contains("failed while taking memory for"), "{call}: {}", failed.err);
        }
        failed.files_are_whole();
    }
    let Some(failed) = fails(&[("SOFTDEVICE_FAULT", "cuGraphLaunch:4")]) else { return };
    assert!(failed.out.contains("step 3"), "{}", failed.out);
    failed.files_are_whole();
}

#[test]
fn memory_that_is_too_small_is_an_error_before_the_first_step() {
    let Some(failed) = fails(&[("SOFTDEVICE_MEMORY", "2000")]) else { return };
    assert!(!failed.out.contains("step"), "{}", failed.out);
    for part in ["`train` needs", "of arena", "are free", "alive at the peak"] {
        assert!(failed.err.contains(part), "no `{part}` in {}", failed.err);
    }
    // A device that says it has room and then has not.
    let failed = fails(&[("SOFTDEVICE_FAULT", "memory:1")]).expect("a device");
    assert!(
        !failed.out.contains("step") && failed.err.contains("alive at the peak"),
        "{}{}",
        failed.out,
        failed.err
    );
}

#[test]
fn inputs_on_their_way_are_waited_for_where_their_step_does_not_start() {
    let folder = Folder::new("cuda-faults-report");
    let report = folder.path("calls");
    // After the memory for inputs and scalars, the arena finds no room.
    let variables =
        [("SOFTDEVICE_FAULT", "memory:3"), ("SOFTDEVICE_REPORT", report.to_str().expect("UTF-8"))];
    let Some(failed) = fails(&variables) else { return };
    assert!(failed.err.contains("`train` needs"), "{}", failed.err);
    let calls = folder.text("calls");
    assert!(calls.contains("cuMemcpyHtoDAsync_v2 ") && calls.contains("cuMemFree_v2 "), "{calls}");
    assert!(!calls.contains("frees_of_a_busy_device"), "{calls}");
}
