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
    assert!(launches < EAGER_LAUNCHES / 4, "{launches} launches");
}

/// Operators other than views that PyTorch 2.15 runs for this step, counted with a `TorchDispatchMode`, with the
/// optimizer's loop over parameters (`foreach=False`) and without its reads of step counters. With the multi-tensor
/// optimizer, which is PyTorch's choice on a GPU, there are 187 in all.
const EAGER_LAUNCHES: usize = 925;

/// What the command prints, and how often each function of the libraries was called.
fn session(input: &str) -> Option<(String, HashMap<String, u64>)> {
    use std::io::Write;
    let folder = Folder::new("cuda-session");
    let mut command = softdevice::command()?;
    // Kernels that others compiled are not looked at.
    command.env("TG_CACHE_DIR", folder.path("cache")).env("SOFTDEVICE_REPORT", folder.path("calls"));
    command.args(["repl", "--device", "cuda"]).stdin(std::process::Stdio::piped());
    let mut child = command.stdout(std::process::Stdio::piped()).spawn().expect("the command starts");
    child.stdin.take().expect("its input").write_all(input.as_bytes()).expect("it reads");
    let output = child.wait_with_output().expect("it ends");
    // Of a session that never asks the device for anything there is none.
    let report = std::fs::read_to_string(folder.path("calls")).unwrap_or_default();
    let pairs = report.lines().filter_map(|line| line.split_once(' '));
    let calls = pairs.filter_map(|(name, n)| Some((name.to_owned(), n.parse().ok()?))).collect();
    Some((String::from_utf8_lossy(&output.stdout).into_owned(), calls))
}

#[test]
fn one_line_of_a_session_compiles_nothing() {
    let lines = "let x = arange(6)\nlet y = f32(x) * 2.0\nprint(\"{sum(exp(y) - sigmoid(y))}\")\n";
    let step = "step twice(a: f32[6]) { return a + a }\nprint(\"{sum(twice(y))}\")\n";
    let Some((printed, calls)) = session(lines) else { return };
    assert!(printed.contains("25468"), "{printed}");
    assert_eq!(calls.get("nvrtcCompileProgram").unwrap_or(&0), &0, "{calls:?}");
    let (printed, calls) = session(&format!("{lines}{step}")).expect("a device");
    assert!(printed.contains("60"), "{printed}");
    assert_eq!(calls.get("nvrtcCompileProgram").unwrap_or(&0), &1, "a step: {calls:?}");
}

/// Kernels and products of a step that returns a product with this bias, and whether the result is right.
fn with_bias(dtype: &str, bias: &str) -> Option<(usize, usize)> {
    let folder = Folder::new("cuda-bias");
    let text = format!(
        "step f(x: {dtype}[8, 16], w: {dtype}[24, 16], b: {dtype}[25]) {{ return linear(x, w, {bias}) }}\n\
         let x, w, b = ({dtype}(normal([8, 16])), {dtype}(normal([24, 16])), {dtype}(normal([25])))\n\
         let sum = f32(x) @ f32(w).T + f32({bias})\n\
         print(\"{{max(abs(f32(f(x, w, b)) - sum)) < 0.1}}\")\n"
    );
    folder.file("f.tg", text);
    let mut command = softdevice::command()?;
    command.current_dir(&folder.0).args(["run", "--device", "cuda", "--stats", "f.tg"]);
    let output = command.output().expect("the command starts");
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && out.contains("true"), "{out}{err}");
    let line = err.lines().find(|line| line.contains("`f`")).unwrap_or_else(|| panic!("{err}"));
    let words: Vec<&str> = line.split([' ', ',', '(']).filter(|word| !word.is_empty()).collect();
    let count = |name: &str| {
        let at = words.iter().position(|word| *word == name).unwrap_or_else(|| panic!("{line}"));
        words[at - 1].parse().expect("a number")
    };
    Some((count("kernels"), count("products")))
}

#[test]
fn a_product_takes_its_bias_along_where_the_library_can() {
    for dtype in ["f32", "f16", "bf16", "f64"] {
        let Some(aligned) = with_bias(dtype, "b[..24]") else { return };
        // Where it cannot, the product is added to rows of the bias: the stand-in takes none in f64.
        assert_eq!(aligned, (usize::from(dtype == "f64"), 1), "{dtype}");
        assert_eq!(with_bias(dtype, "b[1..]"), Some((1, 1)), "{dtype}");
    }
}

#[test]
fn tf32_is_used_where_it_is_asked_for() {
    let folder = Folder::new("cuda-tf32");
    // 1 + 2^-12 has no place in 10 bits of fraction.
    let text = "step f(a: f32[4, 4], b: f32[4, 4]) { return a @ b }\n\
                let x = full([4, 4], 1.0 + 1.0 / 4096.0)\n\
                print(\"{sum(f(x, eye(4)))}\")\n";
    folder.file("f.tg", text);
    let run = |flags: &[&str]| {
        let mut command = softdevice::command()?;
        command.current_dir(&folder.0).args(["run", "--device", "cuda", "f.tg"]).args(flags);
        let output = command.output().expect("the command starts");
        Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let Some(exact) = run(&[]) else { return };
    assert_eq!(exact, "16.003906");
    assert_eq!(run(&["--tf32"]).as_deref(), Some("16.0"));
}
