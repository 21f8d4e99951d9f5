//! Twenty training steps, and single operations with their gradients, against PyTorch.
//!
//! The data and the scripts that made it are in `tests/goldens/`; each program there is run by the
//! `tg` command, as a user would.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use safetensors::{Dtype, SafeTensors};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/goldens")
}

/// Runs a program and returns what it printed.
fn run(program: &str, sets: &[(&str, &str)]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tg"));
    command.arg("run").arg(folder().join(program));
    for (name, value) in sets {
        command.arg("--set").arg(format!("{name}={value}"));
    }
    let output = command.output().expect("the command starts");
    assert!(
        output.status.success(),
        "{program} {sets:?} failed:\n{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).expect("output is UTF-8")
}

/// The elements of one tensor.
fn numbers(tensors: &SafeTensors<'_>, name: &str) -> Vec<f64> {
    let view = tensors.tensor(name).unwrap_or_else(|e| panic!("`{name}`: {e}"));
    let data = view.data();
    match view.dtype() {
        Dtype::F64 => {
            data.chunks_exact(8).map(|b| f64::from_le_bytes(b.try_into().expect("eight bytes"))).collect()
        }
        Dtype::F32 => data
            .chunks_exact(4)
            .map(|b| f64::from(f32::from_le_bytes(b.try_into().expect("four bytes"))))
            .collect(),
        other => panic!("`{name}` is {other:?}"),
    }
}

/// ‖a − b‖ / ‖b‖
fn distance(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    let difference: f64 = a.iter().zip(b).map(|(x, y)| (x - y) * (x - y)).sum();
    let size: f64 = b.iter().map(|y| y * y).sum();
    (difference / size).sqrt()
}

/// One run: how far losses and parameters may be from the reference, relative to it.
struct Limits<'a> {
    loss: f64,
    /// `None` where rounding is amplified without bound: Adam divides by the size of gradients.
    parameter: Option<f64>,
    /// Parameters whose true gradient is zero, so that what Adam makes of it is noise.
    without: &'a [&'a str],
}

fn training(network: &str, dtype: &str, variant: &str, limits: &Limits<'_>) {
    let out = std::env::temp_dir()
        .join(format!("tg-golden-{}-{network}-{dtype}-{variant}.safetensors", std::process::id()));
    let wide = if dtype == "f64" { "true" } else { "false" };
    let printed = run(
        &format!("{network}.tg"),
        &[("F64", wide), ("VARIANT", variant), ("OUT", &out.to_string_lossy())],
    );
    let reference = fs::read(folder().join(format!("{network}.{dtype}.{variant}.final.safetensors")))
        .expect("the reference is there");
    let reference = SafeTensors::deserialize(&reference).expect("the reference can be read");
    let saved = fs::read(&out).expect("the program saved its parameters");
    let saved = SafeTensors::deserialize(&saved).expect("what was saved can be read");

    let losses: Vec<f64> = printed.lines().filter_map(|line| line.trim().parse().ok()).collect();
    let expected = numbers(&reference, "losses");
    assert_eq!(losses.len(), expected.len(), "{printed}");
    for (step, (ours, theirs)) in losses.iter().zip(&expected).enumerate() {
        let off = ((ours - theirs) / theirs).abs();
        assert!(off <= limits.loss, "{network} {dtype} {variant}: step {step} is off by {off:e}");
    }

    if let Some(limit) = limits.parameter {
        let mut compared = 0;
        for name in reference.names() {
            if name == "losses" || limits.without.iter().any(|suffix| name.ends_with(suffix)) {
                continue;
            }
            let off = distance(&numbers(&saved, name), &numbers(&reference, name));
            assert!(off <= limit, "{network} {dtype} {variant}: `{name}` is off by {off:e}");
            compared += 1;
        }
        assert!(compared >= 6, "only {compared} parameters were compared");
    }
    fs::remove_file(&out).expect("the file can be removed");
}

const F32: Limits<'_> = Limits { loss: 1e-4, parameter: Some(1e-4), without: &[] };
const F64: Limits<'_> = Limits { loss: 1e-9, parameter: Some(1e-9), without: &[] };

#[test]
fn mlp_with_momentum() {
    training("mlp", "f32", "sgd", &F32);
    training("mlp", "f64", "sgd", &F64);
}

#[test]
fn mlp_with_nesterov_momentum() {
    training("mlp", "f32", "nesterov", &F32);
    training("mlp", "f64", "nesterov", &F64);
}

#[test]
fn mlp_with_adam() {
    training("mlp", "f32", "adam", &Limits { parameter: None, ..F32 });
    training("mlp", "f64", "adam", &F64);
}

#[test]
fn convnet_with_batch_norm() {
    // `conv2.b` is followed by a batch norm, which takes any shift out again: its gradient is zero,
    // and what is left of its first value is compared all the same.
    training("convnet", "f32", "sgd", &F32);
    training("convnet", "f64", "sgd", &F64);
}

#[test]
fn gpt_with_sgd() {
    training("gpt", "f32", "sgd", &F32);
    training("gpt", "f64", "sgd", &F64);
}

#[test]
fn gpt_with_adamw_and_clipping() {
    training("gpt", "f32", "adamw", &Limits { parameter: None, ..F32 });
    // A shift of all keys changes no softmax.
    training("gpt", "f64", "adamw", &Limits { without: &["attn.k.b"], ..F64 });
}

#[test]
fn library() {
    let printed = run("library.tg", &[]);
    assert!(printed.contains("the library keeps its promises"), "{printed}");
}

/// The losses of `regions.tg`, and all it saved.
fn regions(mode: &str, dropout: &str) -> (String, Vec<(String, Vec<u8>)>) {
    let out =
        std::env::temp_dir().join(format!("tg-regions-{}-{mode}-{dropout}.safetensors", std::process::id()));
    let losses = run("regions.tg", &[("MODE", mode), ("DROPOUT", dropout), ("OUT", &out.to_string_lossy())]);
    assert_eq!(losses.lines().count(), 20, "{losses}");
    let saved = fs::read(&out).expect("the program saved its parameters");
    let saved = SafeTensors::deserialize(&saved).expect("what was saved can be read");
    let mut tensors: Vec<(String, Vec<u8>)> =
        saved.iter().map(|(name, view)| (name.to_string(), view.data().to_vec())).collect();
    tensors.sort();
    assert!(tensors.len() > 30, "{} tensors", tensors.len());
    fs::remove_file(&out).expect("the file can be removed");
    (losses, tensors)
}

#[test]
fn checkpointed_runs_give_the_same_bits() {
    assert!(regions("plain", "0.2") == regions("regions", "0.2"));
    let plain = regions("plain", "0.0");
    assert!(plain != regions("plain", "0.2"), "dropout does nothing");
    assert!(plain == regions("even", "0.0"));
    assert!(plain == regions("decreasing", "0.0"));
}

#[test]
fn operations_and_their_gradients() {
    let printed = run("ops.tg", &[]);
    assert!(printed.contains("all operations agree with the reference"), "{printed}");
    assert!(printed.lines().count() > 80);
}

#[test]
fn values_and_gradients_at_awkward_points() {
    let printed = run("edges.tg", &[]);
    assert!(printed.contains("56 functions agree at their edges"), "{printed}");
}

/// Also gradients of gradients.
#[test]
fn random_programs() {
    let printed = run("random.tg", &[]);
    assert!(printed.contains("results of random programs agree with the reference"), "{printed}");
}

#[test]
fn fifty_updates_by_every_optimizer_and_schedule() {
    let printed = run("updates.tg", &[]);
    assert!(printed.contains("14 runs of 50 updates agree with the reference"), "{printed}");
}

#[test]
fn layers_over_several_steps() {
    let printed = run("layers.tg", &[]);
    assert!(printed.contains("34 results of layers agree with the reference"), "{printed}");
}

#[test]
fn one_thread_and_four_train_to_the_same_bits() {
    let train = |threads: &str| {
        let out =
            std::env::temp_dir().join(format!("tg-threads-{}-{threads}.safetensors", std::process::id()));
        let output = Command::new(env!("CARGO_BIN_EXE_tg"))
            .arg("run")
            .arg(folder().join("convnet.tg"))
            .args(["--set", "F64=false", "--set", "VARIANT=sgd", "--set", &format!("OUT={}", out.display())])
            .env("RAYON_NUM_THREADS", threads)
            .output()
            .expect("the command starts");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let saved = fs::read(&out).expect("the program saved its parameters");
        fs::remove_file(&out).expect("the file can be removed");
        (output.stdout, saved)
    };
    assert!(train("1") == train("4"), "the number of threads changes the bits");
}
