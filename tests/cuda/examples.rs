//! The examples, shortened: what they print on the device is what they print on the CPU, but for the last
//! digits; and on the device it is the same whatever order blocks and streams run in.

use std::path::Path;

use crate::{device::softdevice, folder::Folder};

/// An example in a folder of its own: without what it asserts of a full run, and with parts of its text
/// replaced.
fn shortened(file: &str, changes: &[(&str, &str)]) -> Folder {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    let mut text = std::fs::read_to_string(examples.join(file)).expect("an example");
    for (from, to) in changes {
        assert!(text.contains(from), "{file} has no `{from}`");
        text = text.replace(from, to);
    }
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim_start().starts_with("assert(")).collect();
    let folder = Folder::new("cuda-example");
    folder.file(file, lines.join("\n") + "\n");
    std::os::unix::fs::symlink(examples.join("data"), folder.path("data")).expect("a link");
    folder
}

/// What the command prints; it has to succeed.
fn run(folder: &Folder, file: &str, sets: &[&str], device: &str, variables: &[(&str, &str)]) -> String {
    let mut command = softdevice::command().expect("a device");
    command.current_dir(&folder.0).args(["run", "--device", device, file]).envs(variables.iter().copied());
    for set in sets {
        command.args(["--set", set]);
    }
    let output = command.output().expect("the command starts");
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{file} on {device} {variables:?} failed:\n{out}{err}");
    out.into_owned()
}

/// Numbers agree to a thousandth of the larger one, other words exactly.
fn assert_near(file: &str, cpu: &str, cuda: &str) {
    let words =
        |text: &str| text.split([' ', ':', ';', ',', '%', '\n']).map(str::to_owned).collect::<Vec<_>>();
    let (a, b) = (words(cpu), words(cuda));
    assert_eq!(a.len(), b.len(), "{file}:\n{cpu}\n{cuda}");
    for (a, b) in a.iter().zip(&b) {
        let near = match (a.parse::<f64>(), b.parse::<f64>()) {
            (Ok(x), Ok(y)) => (x - y).abs() <= 1e-3 * x.abs().max(y.abs()) + 1e-6,
            _ => a == b,
        };
        assert!(near, "{file}: `{a}` on the CPU, `{b}` on the device\n{cpu}\n{cuda}");
    }
}

fn conforms(file: &str, changes: &[(&str, &str)], sets: &[&str]) {
    if softdevice::folder().is_none() {
        return;
    }
    let folder = shortened(file, changes);
    let cpu = run(&folder, file, sets, "cpu", &[]);
    let cuda = run(&folder, file, sets, "cuda", &[]);
    assert!(cpu.lines().count() > 1, "{file} prints too little:\n{cpu}");
    assert_near(file, &cpu, &cuda);
    for order in ["1", "2"] {
        let other = run(&folder, file, sets, "cuda", &[("SOFTDEVICE_ORDER", order)]);
        assert_eq!(cuda, other, "{file}: blocks and streams in another order");
    }
    let checked = run(&folder, file, sets, "cuda", &[("TG_CUDA_CHECK", "1")]);
    assert_eq!(cuda, checked, "{file}: every buffer in memory of its own");
}

#[test]
fn gpt() {
    let changes = [
        ("let train_ids = ids[..cut]", "let train_ids = ids[..6000]"),
        ("let test_ids = ids[cut..]", "let test_ids = ids[cut..cut + 1000]"),
        ("if done % 50 == 0", "if done % 5 == 0"),
        // A sample would amplify the last digit into another text.
        ("print(\"{vocabulary.decode(test_ids[0..CONTEXT])}|{written}\")", ""),
    ];
    conforms("gpt.tg", &changes, &["LAYERS=2", "D=32", "HEADS=2", "CONTEXT=16", "BATCH=16", "SAMPLE=3"]);
}

#[test]
fn digits() {
    let changes = [("if i % 5 != 4", "if i % 5 == 1")];
    conforms("digits.tg", &changes, &["EPOCHS=2", "HIDDEN=32"]);
}

#[test]
fn convnet() {
    let changes = [("if i % 5 != 4", "if i % 20 == 1"), ("if i % 5 == 4", "if i % 20 == 4")];
    conforms("convnet.tg", &changes, &["EPOCHS=2", "C=4"]);
}

#[test]
fn blocks() {
    let sets = ["DEPTH=5", "C=16", "BATCH=3", "SIZE=5", "STEPS=4", "LR=1e-5"];
    for file in ["blocks.tg", "blocks_plain.tg", "blocks_manual.tg"] {
        conforms(file, &[], &sets);
    }
    if softdevice::folder().is_some() {
        let printed = |file| run(&shortened(file, &[]), file, &sets, "cuda", &[]);
        let checkpointed = printed("blocks.tg");
        assert_eq!(checkpointed, printed("blocks_plain.tg"));
        assert_eq!(checkpointed, printed("blocks_manual.tg"));
    }
}

#[test]
fn budget() {
    let changes = [
        ("images[0..1408]", "images[0..64]"),
        ("labels[0..1408]", "labels[0..64]"),
        ("images[1408..]", "images[1408..1440]"),
        ("labels[1408..]", "labels[1408..1440]"),
    ];
    // Small enough that some layers are computed again.
    conforms("budget.tg", &changes, &["DEPTH=6", "C=4", "BATCH=16", "BUDGET=250000"]);
}

/// Layers of convolutions with strides, groups and one channel; `$OPEN` and `$CLOSE` stand around each.
const LAYERS: &str = "\
use nn
use optim
model Layer(c_in: int, c_out: int, kernel: int, stride: int, groups: int) {
  let conv = nn.Conv2d(c_in, c_out, kernel: kernel, stride: stride, padding: kernel // 2, groups: groups)
  fn forward(x) = relu(conv(x))
}
model Net() {
  let layers = [Layer(1, 24, 5, 1, 1), Layer(24, 40, 3, 2, 2), Layer(40, 40, 1, 1, 1), Layer(40, 18, 3, 1, 1)]
  fn forward(x) {
    let h = x
    for layer in layers {
      h = $OPEN layer(h) $CLOSE
    }
    h
  }
}
let net = Net() in DTYPE
let opt = optim.sgd(net, lr: 1e-2)
step train(x: DTYPE[2, 1, 16, 16]) {
  let cost = mean(square(f32(net(x)) - 1.0))
  minimize cost over net with opt
  return cost
}
let x = DTYPE(normal([2, 1, 16, 16]))
for i in 0..4 { print(\"step {i}: {train(x)}\") }
let total = 0.0
for layer in net.layers { total = total + float(sum(abs(f32(layer.conv.w)))) }
print(\"weights {total}\")
";

#[test]
fn convolutions_in_halves() {
    if softdevice::folder().is_none() {
        return;
    }
    for dtype in ["bf16", "f16"] {
        let folder = Folder::new("cuda-halves");
        let text = LAYERS.replace("DTYPE", dtype);
        folder.file("plain.tg", text.replace("$OPEN", "").replace("$CLOSE", ""));
        folder.file("checkpoint.tg", text.replace("$OPEN", "checkpoint <").replace("$CLOSE", ">"));
        let plain = run(&folder, "plain.tg", &[], "cuda", &[]);
        assert_eq!(plain.lines().count(), 5, "{plain}");
        for variable in [("SOFTDEVICE_ORDER", "1"), ("SOFTDEVICE_ORDER", "2"), ("TG_CUDA_CHECK", "1")] {
            let other = run(&folder, "checkpoint.tg", &[], "cuda", &[variable]);
            assert_eq!(plain, other, "{dtype}, {variable:?}");
        }
    }
}
