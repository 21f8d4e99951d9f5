//! The script for the day a GPU is at hand, on the software device at small sizes.

use std::process::Command;

use crate::{device::softdevice, folder::Folder};

#[test]
fn the_script_for_a_gpu_runs_to_its_end() {
    if softdevice::folder().is_none() {
        return;
    }
    let folder = Folder::new("gpu-script");
    let this = std::env::current_exe().expect("the test");
    for (name, file) in [("tg", env!("CARGO_BIN_EXE_tg").into()), ("cuda", this)] {
        std::os::unix::fs::symlink(file, folder.path(name)).expect("a link");
    }
    let script = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/gpu/run.sh");
    let output = Command::new("bash")
        .arg(script)
        .args(["--software", "--binaries", ".", "--log", "log"])
        .current_dir(&folder.0)
        .output()
        .expect("a shell");
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{out}{err}\n{}", folder.text("log"));
    assert!(!out.contains("FAILED") && err.is_empty(), "{out}{err}");
    let table = out.split("took ").nth(1).expect("a table");
    let row = |name: &str| {
        let row = table.lines().find(|line| line.starts_with(name));
        row.unwrap_or_else(|| panic!("no `{name}` in\n{out}"))
    };
    assert!(row("device").contains("software device"), "{out}");
    assert!(row("conformance").contains("0 failed") && !row("conformance").contains(" 0 passed"), "{out}");
    assert!(row("example blocks.tg").contains(" of 4 lines differ"), "{out}");
    for (name, how) in [
        ("gpt, replayed", "replayed as one graph"),
        ("gpt, eager", "started one by one"),
        ("blocks, replayed", "replayed as one graph"),
        ("blocks, eager", "started one by one"),
        ("convnet, bf16, replayed", "replayed as one graph"),
    ] {
        let row = row(name);
        assert!(row.contains(" ms a step") && row.contains(" launches") && row.contains(" taken"), "{row}");
        assert!(folder.text("log").contains(how), "{}", folder.text("log"));
    }
    assert!(row("blocks, plan").contains("3848.5 MiB"), "{out}");
}
