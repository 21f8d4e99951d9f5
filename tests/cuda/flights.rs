//! Steps that run while the script goes on: their results come when they are asked for, and what goes wrong
//! is told at the call that it belongs to.

use crate::{device::softdevice, folder::Folder};

/// Exit code, standard output and standard error of a program on a device.
fn run(text: &str, device: &str) -> Option<(Option<i32>, String, String)> {
    let folder = Folder::new("cuda-flights");
    folder.file("a.tg", text);
    let mut command = softdevice::command()?;
    let output = command.current_dir(&folder.0).args(["run", "--device", device, "a.tg"]).output();
    let output = output.expect("the command starts");
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    Some((output.status.code(), text(output.stdout), text(output.stderr)))
}

/// Whole numbers, so that every device gives the same text.
const COUNTING: &str = "\
model Counter() {
  state n: f32[2] = 0.0
  fn add(x) {
    n := n + x
    n
  }
}
let counter = Counter()
step more(x: f32[2], scale: f32) { return (counter.add(x * scale), sum(x)) }
step double(x: f32[2]) { return x * 2.0 }
";

#[test]
fn results_are_there_when_they_are_asked_for() {
    // Nothing is read between steps; a result goes into another step; a state and a scalar are read while
    // a step may run; what comes in is new every time.
    let text = format!(
        "{COUNTING}
let kept = []
for i in 0..12 {{
  let n, total = more(ones([2]) * i, 2.0)
  kept = kept + [total]
}}
print(counter.n)
print(kept)
let a, b = more(ones([2]), 3.0)
let c = double(a)
let d, e = more(c, b)
print(d, counter.n)
if e > 0.0 {{ print(\"positive\") }}
save(\"n.safetensors\", counter)
more(ones([2]), 1.0)
load(\"n.safetensors\", counter)
print(counter.n)
"
    );
    let Some(cuda) = run(&text, "cuda") else { return };
    let cpu = run(&text, "cpu").expect("it ran before");
    assert_eq!(cpu.0, Some(0), "{}", cpu.2);
    assert_eq!(cuda, cpu);
}

#[test]
fn a_fault_is_told_at_its_call() {
    let text = "\
step look(x: i32[2]) { return gather(reshape(f32(arange(6)), [3, 2]), x) }
let last = look(tensor([0, 1], dtype: i32))
last = look(tensor([0, 7], dtype: i32))
print(\"not yet known\")
print(last)
";
    let Some((code, out, err)) = run(text, "cuda") else { return };
    assert_eq!((code, out.as_str()), (Some(1), "not yet known\n"), "{err}");
    assert!(err.contains("index 7 at position 1 is outside 0 ≤ index < 3"), "{err}");
    assert!(err.contains("a.tg:3:8"), "{err}");
    // What nobody reads is told at the end.
    let (code, _, err) = run(&text.replace("print(last)\n", ""), "cuda").expect("it ran before");
    assert_eq!(code, Some(1));
    assert!(err.contains("index 7 at position 1") && err.contains("a.tg:3:8"), "{err}");
}
