//! Programs and files that are cut off, damaged or absurd: always an error with a code and a line,
//! never a fault of `tg` itself, and no file left behind.

#[path = "support/folder.rs"]
mod folder;

use std::{
    fs,
    path::{Path, PathBuf},
};

use folder::Folder;
use tg::engine::{CompileOptions, Engine, Source};

const EXAMPLES: [&str; 6] =
    ["blocks.tg", "blocks_manual.tg", "blocks_plain.tg", "convnet.tg", "digits.tg", "gpt.tg"];

fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples")
}

/// Checks a text in the library: whatever is found, it is no fault of `tg`.
fn check(text: &str, what: &str) {
    let source = Source::text("bad.tg", text).in_directory(examples());
    let checked = Engine::new().check(source, &CompileOptions::default());
    for diagnostic in &checked.diagnostics {
        assert!(!diagnostic.code.0.starts_with("TG09"), "{what}: {}", diagnostic.message);
    }
}

/// A folder of its own for a test, removed at the end.
impl Folder {
    /// Runs `tg COMMAND bad.tg` on a text: the exit code and all that was printed.
    fn judge(&self, command: &str, text: impl AsRef<[u8]>) -> (Option<i32>, String) {
        let ran = self.file("bad.tg", text).tg(&[command, "bad.tg"]);
        let printed = ran.out + &ran.err;
        assert!(!printed.contains("panicked") && !printed.contains("TG09"), "{printed:.2000}");
        (ran.code, printed)
    }

    /// Asserts that a text fails with a code on a line.
    fn fails(&self, command: &str, text: impl AsRef<[u8]>, code: &str, line: u32) {
        let (status, printed) = self.judge(command, text);
        assert_eq!(status, Some(1), "{printed:.2000}");
        assert!(printed.contains(&format!("error[{code}]")), "{code} is missing: {printed:.2000}");
        assert!(printed.contains(&format!("bad.tg:{line}:")), "line {line} is missing: {printed:.2000}");
    }
}

#[test]
fn examples_cut_off_after_a_line() {
    for name in EXAMPLES {
        let text = fs::read_to_string(examples().join(name)).unwrap();
        for (line, (end, _)) in text.match_indices('\n').enumerate() {
            check(&text[..=end], &format!("{name} to line {}", line + 1));
        }
    }
}

#[test]
fn examples_cut_off_within_a_line() {
    // A prime, so that cuts fall on all kinds of places.
    const STEP: usize = 53;
    for name in EXAMPLES {
        let text = fs::read_to_string(examples().join(name)).unwrap();
        for end in (0..text.len()).step_by(STEP).filter(|&end| text.is_char_boundary(end)) {
            check(&text[..end], &format!("{name} to byte {end}"));
        }
    }
}

#[test]
fn characters_of_all_kinds() {
    let folder = Folder::new("characters");
    folder.fails("check", "let x = 1\nlet y = x § 2\n", "TG0104", 2);
    folder.fails("check", "let x = 1\r\nlet y = 1 +\r\n", "TG0101", 2);
    folder.fails("check", "print(\"日本語 שלום\")\nlet é = 日 +\n", "TG0101", 2);
    folder.fails("check", "if true {\n\tprint(1) §\n}\n", "TG0104", 2);
    for right in ["let x = 1\r\nprint(x)\r\n", "\u{feff}print(1)\n", "if true {\n\tprint(1)\n}\n"] {
        let (status, printed) = folder.judge("run", right);
        assert_eq!((status, printed.trim()), (Some(0), "1"), "{right:?}");
    }
    // Not UTF-8 at all.
    let (status, printed) = folder.judge("check", b"let x = \xff\xfe\n");
    assert!(status == Some(1) && printed.contains("TG0404") && printed.contains("UTF-8"), "{printed}");
}

#[test]
fn brackets_and_depth() {
    let folder = Folder::new("depth");
    folder.fails("check", "print(1)\nlet y = checkpoint <\nprint(1)\n", "TG0102", 2);
    folder.fails("check", "print(1)\nlet y = (1 + [2\n", "TG0102", 2);
    let many = 100_000;
    let nested = format!("print(1)\nlet x = {}1{}\n", "(".repeat(many), ")".repeat(many));
    folder.fails("check", nested, "TG0108", 2);
    folder.fails("check", format!("let x = {}\n", "(".repeat(many)), "TG0108", 1);
    folder.fails("check", format!("let x = {}1\n", "-".repeat(many)), "TG0108", 1);
    folder.fails("check", format!("let x = {}1\n", "1 + ".repeat(1 << 18)), "TG0108", 1);
    folder.fails("check", "fn f(x) = f(x)\nlet y = f(1)\n", "TG0234", 2);
    for long in
        [format!("print(\"{}\")\n", "x".repeat(1 << 20)), format!("let x = [{}0]\n", "1, ".repeat(1 << 18))]
    {
        assert_eq!(folder.judge("check", long).0, Some(0));
    }
}

#[test]
fn shapes_that_cannot_be() {
    let folder = Folder::new("shapes");
    let wide = "4000000000, 4000000000, 4000000000";
    folder.fails("check", format!("print(1)\nstep f(x: f32[{wide}]) {{ return x }}\n"), "TG0220", 2);
    folder.fails("check", format!("print(1)\nlet x = zeros([{wide}])\n"), "TG0221", 2);
    folder.fails("check", "const N = 0\nlet x = zeros([4 // N])\n", "TG0216", 2);
    folder.fails("check", "print(1)\nstep f(x: f32[N = 4 // 0]) { return x }\n", "TG0216", 2);
    folder.fails("check", "let n = 9223372036854775807\nlet x = zeros([n + 1])\n", "TG0216", 2);
}

/// A .npy file with a header and as many bytes after it.
fn npy(header: &str, bytes: usize) -> Vec<u8> {
    let mut file = b"\x93NUMPY\x01\x00".to_vec();
    file.extend((header.len() as u16).to_le_bytes());
    file.extend(header.as_bytes());
    file.resize(file.len() + bytes, 0);
    file
}

fn safetensors(header: &str, bytes: usize) -> Vec<u8> {
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.resize(file.len() + bytes, 0);
    file
}

#[test]
fn files_that_are_missing_or_damaged() {
    let folder = Folder::new("files");
    let read = |name: &str| format!("print(1)\nlet x = data.load(\"{name}\")\nprint(x)\n");
    let good = npy("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }\n", 24);
    folder.file("good.npy", &good);
    assert_eq!(folder.judge("run", read("good.npy")).0, Some(0));
    for command in ["check", "run"] {
        folder.fails(command, read("missing.npy"), "TG0403", 2);
        folder.fails(command, read("missing.safetensors"), "TG0403", 2);
        let cuts = (0..good.len()).step_by(9).map(|end| good[..end].to_vec());
        let others = [
            npy("{'descr': '<f4', 'fortran_order': False, 'shape': (4611686018427387904, 8), }\n", 24),
            npy("{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000,), }\n", 24),
            npy("{'descr': '|O', 'fortran_order': False, 'shape': (2, 3), }\n", 24),
        ];
        for bad in cuts.chain(others) {
            folder.file("bad.npy", bad).fails(command, read("bad.npy"), "TG0403", 2);
        }
        for bad in [
            Vec::new(),
            vec![0xff; 40],
            safetensors("{", 0),
            safetensors(r#"{"w":{"dtype":"F32","shape":[3],"data_offsets":[0,12]}}"#, 8),
            safetensors(r#"{"w":{"dtype":"F32","shape":[4],"data_offsets":[0,12]}}"#, 12),
            safetensors(r#"{"w":{"dtype":"F32","shape":[3],"data_offsets":[12,0]}}"#, 12),
        ] {
            folder.file("bad.safetensors", bad).fails(command, read("bad.safetensors"), "TG0403", 2);
        }
    }
}

#[test]
fn parameters_that_do_not_fit() {
    let folder = Folder::new("parameters");
    let net = "use nn\nlet net = nn.Linear(2, 3)\n";
    assert_eq!(folder.judge("run", format!("{net}save(\"good.safetensors\", net)\n")).0, Some(0));
    let load = |n: usize, m: usize, field: &str| {
        format!("use nn\nlet net = nn.{field}({n}, {m})\nload(\"good.safetensors\", net)\n")
    };
    assert_eq!(folder.judge("run", load(2, 3, "Linear")).0, Some(0));
    folder.fails("run", load(3, 2, "Linear"), "TG0404", 3);
    folder.fails("run", load(2, 3, "Embedding"), "TG0404", 3);
}

#[test]
fn a_save_that_fails_leaves_nothing() {
    let folder = Folder::new("save");
    let net = "use nn\nlet net = nn.Linear(2, 3)\n";
    folder.fails("run", format!("{net}save(\"nowhere/x.safetensors\", net)\n"), "TG0403", 3);
    fs::create_dir(folder.0.join("folder.safetensors")).unwrap();
    folder.fails("run", format!("{net}save(\"folder.safetensors\", net)\n"), "TG0403", 3);
    assert_eq!(folder.names(), ["bad.tg", "folder.safetensors"]);
}
