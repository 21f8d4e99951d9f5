//! What a step gives the device to do, and what the host does between steps.

use std::collections::HashMap;

use crate::{device::softdevice, folder::Folder};

/// Behind [`softdevice::NET`].
const CALLS: &str = "\
const STEPS = 10
for i in 0..STEPS {
  print(\"step {i}: {train(x)}\")
}
";

/// How often each function of the driver was called.
fn calls(steps: usize) -> Option<HashMap<String, u64>> {
    let folder = Folder::new("cuda-calls");
    folder.file("net.tg", format!("{}{CALLS}", softdevice::NET));
    let mut command = softdevice::command()?;
    let set = format!("STEPS={steps}");
    command.current_dir(&folder.0).args(["run", "--device", "cuda", "--stats", "net.tg", "--set", &set]);
    let output = command.env("SOFTDEVICE_REPORT", folder.path("calls")).output().expect("the command starts");
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{out}{err}");
    assert!(err.contains("replayed as one graph"), "{err}");
    let report = folder.text("calls");
    let pairs = report.lines().filter_map(|line| line.split_once(' '));
    Some(pairs.filter_map(|(name, n)| Some((name.to_owned(), n.parse().ok()?))).collect())
}

#[test]
fn replayed_steps_allocate_nothing_and_wait_once() {
    let (Some(few), Some(many)) = (calls(10), calls(110)) else { return };
    let per_hundred = |name: &str| many.get(name).unwrap_or(&0) - few.get(name).unwrap_or(&0);
    for name in [
        "cuMemAlloc_v2",
        "cuMemHostAlloc",
        "cuMemFree_v2",
        "cuMemFreeHost",
        "cuLaunchKernel",
        "cublasLtMatmul",
        "cuMemcpyHtoD_v2",
        "cuMemcpyDtoH_v2",
        "cuCtxSynchronize",
        "cuEventSynchronize",
        "cuModuleLoadData",
        "cuEventCreate",
        "cuStreamCreate",
    ] {
        assert_eq!(per_hundred(name), 0, "{name} in 100 steps: {few:?} {many:?}");
    }
    assert_eq!(per_hundred("cuGraphLaunch"), 100);
    assert_eq!(per_hundred("cuStreamSynchronize"), 100, "the loss");
}

#[test]
fn the_gpt_example_starts_less_than_a_loop_over_parameters() {
    let Some(mut command) = softdevice::command() else { return };
    let folder = Folder::new("cuda-gpt");
    let examples = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    let text = std::fs::read_to_string(examples.join("gpt.tg")).expect("an example");
    // The step at its full depth, on less text.
    let cut = text.find("let total = 0.0").expect("the end of training");
    let text = text[..cut].replace("let train_ids = ids[..cut]", "let train_ids = ids[..400]");
    folder.file("gpt.tg", text);
    std::os::unix::fs::symlink(examples.join("data"), folder.path("data")).expect("a link");
    let sets = ["--set", "D=16", "--set", "CONTEXT=16", "--set", "BATCH=4"];
    command.current_dir(&folder.0).args(["run", "--device", "cuda", "--stats", "gpt.tg"]).args(sets);
    let output = command.output().expect("the command starts");
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{err}");
    let line = err.lines().find(|line| line.contains("`train`")).unwrap_or_else(|| panic!("{err}"));
    println!("{line}");
    let launches: usize = line
        .split_whitespace()
        .zip(line.split_whitespace().skip(1))
        .find_map(|(n, word)| if word == "launches" { n.parse().ok() } else { None })
        .expect("a number of launches");
    assert!(launches < EAGER_LAUNCHES, "{launches} launches");
}

/// Operators other than views that PyTorch 2.15 runs for this step, counted with a `TorchDispatchMode`, with the
/// optimizer's loop over parameters (`foreach=False`) and without its reads of step counters. The multi-tensor
/// optimizer, which is PyTorch's choice on a GPU, has 187 in all: this crate has no such fusion across tensors.
const EAGER_LAUNCHES: usize = 925;
