//! The command itself: what it prints where, and its exit codes.

#[path = "support/folder.rs"]
mod folder;

use std::{
    fs,
    io::{BufRead, BufReader},
    process::{Command, Stdio},
};

use folder::{Folder, Ran};
use serde_json::Value;
use tg::{
    engine::{CompileOptions, Engine, Source},
    report::explain::PAGES,
};

/// The `tg` blocks of a page.
fn programs(page: &str) -> Vec<String> {
    let mut programs = Vec::new();
    let mut current: Option<String> = None;
    for line in page.lines() {
        match (&mut current, line) {
            (None, "```tg") => current = Some(String::new()),
            (Some(_), "```") => programs.extend(current.take()),
            (Some(text), line) => *text += &format!("{line}\n"),
            _ => {}
        }
    }
    programs
}

#[test]
fn every_code_has_a_page_and_every_page_a_code() {
    let titles: Vec<_> = tg::codes::ALL.iter().collect();
    let mut codes: Vec<&str> = titles.iter().map(|(code, _)| code.0).collect();
    codes.sort_unstable();
    codes.dedup();
    let pages: Vec<&str> = PAGES.iter().map(|(code, _)| *code).collect();
    assert_eq!(pages, codes);
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/explain");
    let mut files: Vec<String> =
        std::fs::read_dir(folder).unwrap().map(|f| f.unwrap().file_name().into_string().unwrap()).collect();
    files.sort();
    assert_eq!(files, pages.iter().map(|p| format!("{p}.md")).collect::<Vec<_>>());
    for (code, title) in titles {
        let page = tg::report::explain::page(code.0).unwrap();
        assert_eq!(page.lines().next(), Some(format!("# {}: {title}", code.0).as_str()));
    }
}

/// The codes that checking a program gives, and running it where nothing is wrong before.
/// Pages about ranks are checked for several, and run on none.
fn codes_of(code: &str, program: &str) -> Vec<&'static str> {
    let world = match code {
        "TG0333" | "TG0338" => 2,
        code if code.starts_with("TG033") => 4,
        _ => 1,
    };
    let engine = Engine::new().with_world(world);
    let source = Source::text("page.tg", program);
    let memory = tg::diagnose::Options { fixes: true, all: true, library_frames: false };
    let options = CompileOptions { memory: Some(memory), ..CompileOptions::default() };
    let checked = engine.check(source.clone(), &options);
    let mut codes: Vec<&str> = checked.diagnostics.iter().map(|d| d.code.0).collect();
    if checked.is_sound() && world == 1 {
        let mut session = engine.compile(source).unwrap().session().unwrap();
        if let Err(error) = session.run() {
            codes.extend(error.diagnostics().iter().map(|d| d.code.0));
        }
    }
    codes
}

#[test]
fn pages_show_what_they_say() {
    let mut wrong_pages = Vec::new();
    for (code, page) in PAGES {
        let programs = programs(page);
        let (wrong, right) = match programs.as_slice() {
            // Nobody wants to see what is nested too deep, or too large for a machine.
            [right] if matches!(*code, "TG0108" | "TG0235") => (None, Some(right)),
            [wrong] => (Some(wrong), None),
            [wrong, right] => (Some(wrong), Some(right)),
            [] => (None, None),
            _ => panic!("{code} has {} programs", programs.len()),
        };
        if let Some(wrong) = wrong {
            let codes = codes_of(code, wrong);
            if !codes.contains(code) {
                wrong_pages.push(format!("{code}: the first program gives {codes:?}"));
            }
        }
        if let Some(right) = right {
            // Small programs on other subjects may hold regions that are too small to help.
            let is_memory = |c: &str| c.starts_with("TG03");
            let mut codes = codes_of(code, right);
            codes.retain(|c| is_memory(code) || !is_memory(c));
            if !codes.is_empty() {
                wrong_pages.push(format!("{code}: the second program gives {codes:?}"));
            }
        }
    }
    assert!(wrong_pages.is_empty(), "{wrong_pages:#?}");
}

/// What a command left behind.
/// A folder of its own for a test, removed at the end.
const TRAIN: &str = "\
use nn
use optim
const WIDTH = 8
let net = nn.Linear(4, WIDTH)
step train(x: f32[B = 16, 4]) {
  let cost = mean(square(net(x)))
  minimize cost over net with optim.sgd(lr: 0.1)
  return cost
}
let first = float(train(ones([16, 4])))
let last = first
for i in 0..3 {
  last = float(train(ones([16, 4])))
}
assert(last < first, \"the loss falls\")
print(\"done\")
";

#[test]
fn run_prints_what_the_program_prints() {
    let folder = Folder::new("run");
    folder.file("train.tg", TRAIN);
    let ran = folder.tg(&["run", "train.tg"]);
    assert_eq!((ran.code, ran.out.as_str(), ran.err.as_str()), (Some(0), "done\n", ""));
    let ran = folder.tg_with_input(&["run", "-"], "print(1 + 2, \"ä\")");
    assert_eq!((ran.code, ran.out.as_str(), ran.err.as_str()), (Some(0), "3 ä\n", ""));
}

#[test]
fn run_reports_errors_before_anything_runs() {
    let folder = Folder::new("run-errors");
    folder.file("a.tg", "print(\"started\")\nlet a = zeros([2, 3]) @ zeros([4, 5])\nprint(nope)\n");
    let ran = folder.tg(&["run", "a.tg"]);
    assert_eq!((ran.code, ran.out.as_str()), (Some(1), ""));
    assert!(ran.err.contains("a.tg:2:") && ran.err.contains("a.tg:3:7"), "{}", ran.err);
}

#[test]
fn run_reports_errors_of_the_run() {
    let folder = Folder::new("run-time");
    let text = "print(\"started\")\nlet x = float(sum(ones([3])))\nassert(x > 5.0, \"too small\")\nprint(\"never\")\n";
    folder.file("a.tg", text);
    let ran = folder.tg(&["run", "a.tg"]);
    assert_eq!((ran.code, ran.out.as_str()), (Some(1), "started\n"));
    assert!(ran.err.contains("error[TG0401]: too small") && ran.err.contains("a.tg:3:1"), "{}", ran.err);
}

#[test]
fn the_seed_decides_random_numbers() {
    let folder = Folder::new("seed");
    folder.file("a.tg", "print(\"{float(sum(uniform([8])))}\")\n");
    let run = |seed: &str| folder.tg(&["run", "a.tg", "--seed", seed]).out;
    assert_eq!(run("1"), run("1"));
    assert_ne!(run("1"), run("2"));
    assert!(run("1").trim().parse::<f64>().is_ok());
}

#[test]
fn set_replaces_constants_and_sizes() {
    let folder = Folder::new("set");
    folder.file("a.tg", "const N = 3\nprint(\"{N * 2}\")\nstep f(x: f32[B = 4, N]) {\n  return sum(x)\n}\n");
    assert_eq!(folder.tg(&["run", "a.tg"]).out, "6\n");
    assert_eq!(folder.tg(&["run", "a.tg", "--set", "N=5"]).out, "10\n");
    assert_eq!(folder.tg(&["run", "a.tg", "--set", "N=1.5 KiB"]).out, "3072\n");
    let planned = folder.tg(&["plan", "a.tg", "--json", "--set", "B=1024", "--set", "N=64"]);
    let value: Value = serde_json::from_str(&planned.out).unwrap();
    assert_eq!(value["steps"][0]["by_kind"]["inputs"], 1024 * 64 * 4);
    assert_eq!(value["steps"][0]["dims"], serde_json::json!({ "B": 1024 }));

    let unknown = folder.tg(&["check", "a.tg", "--set", "M=1"]);
    assert_eq!(unknown.code, Some(1));
    assert!(unknown.out.contains("error[TG0239]"), "{}", unknown.out);
    let of_another_type = folder.tg(&["check", "a.tg", "--set", "N=many"]);
    assert_eq!(of_another_type.code, Some(1), "{}", of_another_type.out);
    for wrong in ["N", "=1", "N="] {
        let ran = folder.tg(&["run", "a.tg", "--set", wrong]);
        assert_eq!((ran.code, ran.out.as_str()), (Some(2), ""), "{wrong}");
        assert!(ran.err.contains("NAME=VALUE"), "{}", ran.err);
    }
}

#[test]
fn check_writes_diagnostics_to_standard_output() {
    let folder = Folder::new("check");
    folder.file("good.tg", TRAIN).file("bad.tg", "let x = y\n");
    let good = folder.tg(&["check", "good.tg"]);
    assert_eq!((good.code, good.err.as_str()), (Some(0), ""));
    assert!(good.out.starts_with("no errors: good.tg\n  step train: peak "), "{}", good.out);
    let bad = folder.tg(&["check", "good.tg", "bad.tg"]);
    assert_eq!((bad.code, bad.err.as_str()), (Some(1), ""));
    assert!(bad.out.contains("error[TG0201]: unknown name `y`"), "{}", bad.out);
    assert!(bad.out.ends_with("\n1 error: bad.tg\n"), "{}", bad.out);
    let short = folder.tg(&["check", "bad.tg", "--message-format", "short"]);
    assert_eq!(short.out, "bad.tg:1:9: error[TG0201]: unknown name `y`\n");
    let json = folder.tg(&["check", "bad.tg", "--message-format", "json"]);
    let value: Value = serde_json::from_str(json.out.trim_end()).unwrap();
    assert_eq!((&value["code"], &value["line"], &value["column"]), (&"TG0201".into(), &1.into(), &9.into()));
}

#[test]
fn denied_warnings_fail() {
    let folder = Folder::new("deny");
    folder.file(
        "a.tg",
        "use nn\nuse optim\nlet a = nn.Linear(4, 1)\nlet b = nn.Linear(4, 1)\nstep f(x: f32[2, 4]) {\n  \
         minimize sum(a(x)) over [a, b] with optim.sgd(lr: 0.1)\n}\n",
    );
    let allowed = folder.tg(&["check", "a.tg"]);
    assert_eq!(allowed.code, Some(0), "{}{}", allowed.out, allowed.err);
    assert!(allowed.out.contains("warning[TG0341]"), "{}", allowed.out);
    assert!(allowed.out.contains("\nno errors, 1 warning: a.tg\n"), "{}", allowed.out);
    assert_eq!(folder.tg(&["check", "a.tg", "--deny", "warnings"]).code, Some(1));
}

#[test]
fn what_was_told_or_allowed_is_not_told_again() {
    let folder = Folder::new("told");
    let text = "use nn\nuse optim\nlet a = nn.Linear(4, 1)\nlet b = nn.Linear(4, 1)\nstep f(x: f32[2, 4]) {\n  \
                minimize sum(a(x)) over [a, b] with optim.sgd(lr: 0.1)\n}\nf(ones([2, 4]))\n";
    folder.file("a.tg", text);
    folder.file("b.tg", format!("allow(TG0341)\n{text}"));
    let told = folder.tg(&["run", "a.tg"]);
    assert_eq!((told.code, told.err.matches("TG0341").count()), (Some(0), 1), "{}", told.err);
    let allowed = folder.tg(&["run", "b.tg"]);
    assert_eq!((allowed.code, allowed.err.as_str()), (Some(0), ""));
}

#[test]
fn colours_only_when_asked_for_off_a_terminal() {
    let folder = Folder::new("color");
    folder.file("bad.tg", "let x = y\n");
    assert!(!folder.tg(&["check", "bad.tg"]).out.contains('\x1b'));
    assert!(!folder.tg(&["check", "bad.tg", "--color", "never"]).out.contains('\x1b'));
    assert!(folder.tg(&["check", "bad.tg", "--color", "always"]).out.contains("\x1b[1;31merror[TG0201]"));
    let ascii = folder.tg(&["check", "bad.tg", "--ascii"]).out;
    assert!(ascii.is_ascii() && ascii.contains(",-["), "{ascii}");
    let locale = folder.command(&["check", "bad.tg"]).env("LC_ALL", "C").output().unwrap();
    assert!(locale.stdout.is_ascii());
}

#[test]
fn plan_in_both_forms() {
    let folder = Folder::new("plan");
    folder.file("train.tg", TRAIN);
    let text = folder.tg(&["plan", "train.tg"]);
    assert_eq!((text.code, text.err.as_str()), (Some(0), ""));
    for part in ["step train: peak ", "lower bound", "worst legal order", "▲", "net.w", "alive at the peak"]
    {
        assert!(text.out.contains(part), "{part}: {}", text.out);
    }
    let json = folder.tg(&["plan", "train.tg", "--json", "--step", "train"]);
    let value: Value = serde_json::from_str(&json.out).unwrap();
    assert_eq!(value["file"], "train.tg");
    let step = &value["steps"][0];
    let names = [
        "name",
        "nodes",
        "instructions",
        "dims",
        "target",
        "peak_bytes",
        "persistent_bytes",
        "arena_bytes",
        "live_peak_bytes",
        "elsewhere_bytes",
        "lower_bound_bytes",
        "worst_legal_bytes",
        "worst_legal_witness_bytes",
        "worst_exact",
        "peak_at",
        "by_kind",
        "live_at_peak",
        "diagnostics",
    ];
    for name in names {
        assert!(step.get(name).is_some(), "{name}: {step}");
    }
    let number = |value: &Value| value.as_u64().unwrap();
    let sum: u64 = step["by_kind"].as_object().unwrap().values().map(number).sum();
    assert_eq!(sum, number(&step["peak_bytes"]));
    assert_eq!(number(&step["persistent_bytes"]) + number(&step["arena_bytes"]), sum);
    let live: u64 = step["live_at_peak"].as_array().unwrap().iter().map(|b| number(&b["bytes"])).sum();
    assert_eq!(live + number(&step["by_kind"]["fragmentation"]), sum);
    assert!(number(&step["lower_bound_bytes"]) <= sum);
    let (worst, witness) = (number(&step["worst_legal_bytes"]), number(&step["worst_legal_witness_bytes"]));
    assert!(number(&step["lower_bound_bytes"]) <= witness && witness <= worst);
    assert_eq!(step["worst_exact"], witness == worst);
}

#[test]
fn plan_for_another_device() {
    let folder = Folder::new("plan-target");
    folder.file("product.tg", "step f(x: f16[64, 64], w: f16[64, 64]) = x @ w\n");
    let plan = |target: &[&str]| {
        let ran = folder.tg(&[&["plan", "product.tg", "--json"][..], target].concat());
        assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""));
        let value: Value = serde_json::from_str(&ran.out).unwrap();
        let step = &value["steps"][0];
        (step["target"].as_str().unwrap().to_owned(), step["peak_bytes"].as_u64().unwrap())
    };
    // The CPU computes halves in f32, in memory of their own; a GPU needs the three matrices.
    let (cpu, cuda) = (plan(&[]), plan(&["--target", "cuda"]));
    assert_eq!(cuda, ("cuda".to_owned(), 3 * 64 * 64 * 2));
    assert_eq!(cpu.0, "cpu");
    assert!(cpu.1 > cuda.1, "{cpu:?}");
    assert_eq!(folder.tg(&["check", "product.tg", "--target", "cuda"]).code, Some(0));
    assert_eq!(folder.tg(&["plan", "product.tg", "--target", "tpu"]).code, Some(2));
}

#[test]
fn plan_with_an_order_and_with_errors() {
    let folder = Folder::new("plan-order");
    folder.file("train.tg", TRAIN);
    for order in ["source", "list", "lpmf", "dfs", "witness"] {
        let ran = folder.tg(&["plan", "train.tg", "--order", order]);
        assert_eq!(ran.code, Some(0));
        assert!(ran.out.contains(&format!("order `{order}`")), "{}", ran.out);
    }
    assert_eq!(folder.tg(&["plan", "train.tg", "--order", "worst"]).code, Some(2));
    let missing = folder.tg(&["plan", "train.tg", "--step", "test"]);
    assert_eq!((missing.code, missing.out.as_str()), (Some(1), ""));
    assert!(
        missing.err.contains("there is no step `test`") && missing.err.contains("`train`"),
        "{}",
        missing.err
    );
    // A contract that does not hold: the plan shows why.
    folder.file("over.tg", "step f(x: f32[1024, 1024]) {\n  ensure peak <= 1 MiB\n  return sum(exp(x))\n}\n");
    let over = folder.tg(&["plan", "over.tg"]);
    assert_eq!(over.code, Some(1));
    assert!(over.out.contains("step f: peak 4.0 MiB"), "{}", over.out);
    assert!(over.err.contains("error[TG0340]"), "{}", over.err);
    let json = folder.tg(&["plan", "over.tg", "--json"]);
    let value: Value = serde_json::from_str(&json.out).unwrap();
    assert_eq!(value["steps"][0]["diagnostics"][0]["code"], "TG0340");
}

#[test]
fn ir_before_and_after_lowering() {
    let folder = Folder::new("ir");
    folder.file("train.tg", TRAIN);
    for phase in ["elaborate", "lower"] {
        let ran = folder.tg(&["ir", "train.tg", "--after", phase]);
        assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""));
        let text = ran.out.strip_prefix("# step train\n").unwrap();
        assert!(text.starts_with("tgir 1\n"), "{text}");
        assert!(tg::ir::text::parse(text).is_ok(), "{text}");
    }
}

#[test]
fn explain_finds_pages() {
    let folder = Folder::new("explain");
    let list = folder.tg(&["explain"]);
    assert_eq!(list.code, Some(0));
    assert_eq!(list.out.lines().count(), PAGES.len());
    assert!(list.out.contains("TG0201  a name that nothing in scope defines\n"));
    let page = folder.tg(&["explain", "tg0201"]);
    assert_eq!((page.code, page.out.as_str()), (Some(0), tg::report::explain::page("TG0201").unwrap()));
    let unknown = folder.tg(&["explain", "TG0291"]);
    assert_eq!((unknown.code, unknown.out.as_str()), (Some(1), ""));
    assert!(unknown.err.contains("did you mean `TG0201`"), "{}", unknown.err);
}

#[test]
fn a_device_that_is_not_there_is_an_error_before_the_script_runs() {
    let folder = Folder::new("no-device");
    folder.file("a.tg", "print(\"started\")\nstep f(x: f32[2]) { return x }\nf(ones([2]))\n");
    // Whether this machine has a driver or not.
    let ran = folder.tg(&["run", "a.tg", "--device", "cuda:99"]);
    assert_eq!((ran.code, ran.out.as_str()), (Some(1), ""));
    assert!(ran.err.contains("error[TG0410]") && ran.err.contains("help"), "{}", ran.err);
    let any = folder.tg(&["run", "a.tg", "--device", "cpu", "--stats"]);
    assert_eq!((any.code, any.out.as_str()), (Some(0), "started\n"), "{}", any.err);
    assert!(any.err.contains("stats: no step ran on a device"), "{}", any.err);
    let session = folder.tg_with_input(&["repl"], ":device cuda:99\n:device\n");
    assert_eq!(session.out, "cpu\n", "{}", session.err);
    assert!(session.err.contains("programs cannot run on `cuda:99`"), "{}", session.err);
}

#[test]
fn usage() {
    let folder = Folder::new("usage");
    let version = folder.tg(&["--version"]);
    assert_eq!(version.out, format!("tg {}\n", env!("CARGO_PKG_VERSION")));
    assert_eq!(folder.tg(&["--help"]).code, Some(0));
    assert!(folder.tg(&["devices"]).out.starts_with("cpu "));
    for wrong in [
        &["frobnicate"][..],
        &["check"],
        &["run"],
        &["run", "a.tg", "--device", "tpu"],
        &["--colour"],
        &["plan", "a.tg", "--budget-curve", "--why", "1"],
        &["plan", "a.tg", "--budget-curve", "--json", "--full"],
        &["plan", "a.tg", "--budget-curve", "--html", "a.html"],
        &["plan", "a.tg", "--budget-curve", "--trace", "a.json"],
    ] {
        let ran = folder.tg(wrong);
        assert_eq!((ran.code, ran.out.as_str()), (Some(2), ""), "{wrong:?}");
        assert!(ran.err.contains("Usage") || ran.err.contains("--help"), "{}", ran.err);
    }
}

#[test]
fn files_that_cannot_be_read() {
    let folder = Folder::new("files");
    folder.file("digits.tg", "let x = 1\n");
    folder.file("latin.tg", b"# gr\xfc\xdfe\nlet x = 1\n").file("zero.tg", b"let x = 1\0\n");
    fs::create_dir(folder.0.join("folder")).unwrap();
    for command in ["run", "check", "plan", "ir"] {
        let missing = folder.tg(&[command, "digit.tg"]);
        let text = missing.out + &missing.err;
        assert_eq!(missing.code, Some(1));
        assert!(text.contains("error[TG0403]: cannot read `digit.tg`: there is no such file"), "{text}");
        assert!(text.contains("did you mean `digits.tg`?"), "{text}");
        let directory = folder.tg(&[command, "folder"]);
        assert_eq!(directory.code, Some(1));
        assert!((directory.out + &directory.err).contains("it is a folder"));
        let latin = folder.tg(&[command, "latin.tg"]);
        let text = latin.out + &latin.err;
        assert_eq!(latin.code, Some(1));
        assert!(
            text.contains("error[TG0404]: `latin.tg` is not UTF-8 text") && text.contains("latin.tg:1:5"),
            "{text}"
        );
        let zero = folder.tg(&[command, "zero.tg"]);
        assert_eq!(zero.code, Some(1));
        assert!((zero.out + &zero.err).contains("\\u{0}"));
    }
    let stdin = folder.tg_with_input(&["check", "-"], b"\xff");
    assert_eq!(stdin.code, Some(1));
    assert!(stdin.out.contains("`<stdin>` is not UTF-8 text"), "{}", stdin.out);
}

/// Damaged programs: a report and exit code 1, or success where they happen to be right.
#[test]
fn damaged_files() {
    let folder = Folder::new("damaged");
    let mut state = 1u64;
    for round in 0..40 {
        let mut bytes = TRAIN.as_bytes().to_vec();
        for _ in 0..=round % 5 {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let at = (state >> 33) as usize % bytes.len();
            match round % 3 {
                0 => bytes[at] = b" (){}<>[]\"\n#0"[(state >> 20) as usize % 13],
                1 => bytes.truncate(at.max(1)),
                _ => bytes.insert(at, (state >> 40) as u8),
            }
        }
        folder.file("a.tg", &bytes);
        let ran = folder.tg(&["check", "a.tg"]);
        assert!(matches!(ran.code, Some(0 | 1)), "{:?}: {}", String::from_utf8_lossy(&bytes), ran.err);
        assert!(!ran.err.contains("panicked") && !ran.out.contains("TG0901"), "{}{}", ran.out, ran.err);
    }
}

#[test]
fn data_files_that_are_not_there_or_damaged() {
    let folder = Folder::new("data");
    folder.file("cut.safetensors", b"\x10\0\0\0\0\0\0\0{\"x\":").file("empty.npy", b"");
    for file in ["missing.safetensors", "cut.safetensors", "empty.npy", "."] {
        folder.file("a.tg", format!("let d = data.load(\"{file}\")\n"));
        for command in ["check", "run"] {
            let ran = folder.tg(&[command, "a.tg"]);
            let text = ran.out + &ran.err;
            assert_eq!(ran.code, Some(1), "{file}: {text}");
            assert!(text.contains("error[TG040") && text.contains(file), "{text}");
        }
    }
}

#[cfg(unix)]
#[test]
fn a_pipe_that_closes_early() {
    let folder = Folder::new("pipe");
    folder.file("a.tg", "for i in 0..1000000 {\n  print(\"line {i}\")\n}\n").file("bad.tg", "let x = y\n");
    // Closed before anything is written.
    let code = |args: &[&str]| {
        let mut child = folder.command(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        assert!(!errors.contains("panicked"), "{errors}");
        output.status.code()
    };
    assert_eq!(code(&["explain"]), Some(0));
    assert_eq!(code(&["--help"]), Some(0));
    assert_eq!(code(&["check", "bad.tg"]), Some(1));
    assert_eq!(code(&["run", "a.tg"]), Some(141));
    let mut errors_closed = folder.command(&["run", "bad.tg"]).stderr(Stdio::piped()).spawn().unwrap();
    drop(errors_closed.stderr.take());
    assert_eq!(errors_closed.wait().unwrap().code(), Some(1));
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_an_error() {
    let folder = Folder::new("full");
    folder.file("a.tg", "print(\"x\")\n");
    for args in [&["run", "a.tg"][..], &["explain"], &["check", "a.tg"]] {
        let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let output = folder
            .command(args)
            .stdout(full)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
            .wait_with_output()
            .unwrap();
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        assert!(String::from_utf8(output.stderr).unwrap().contains("cannot write the output"));
    }
}

#[cfg(unix)]
#[test]
fn interrupting_a_run() {
    let folder = Folder::new("interrupt");
    folder.file(
        "a.tg",
        "print(\"started\")\nlet n = 0\nfor i in 0..1000000000 {\n  n = n + 1\n}\nprint(\"never\")\n",
    );
    let mut child =
        folder.command(&["run", "a.tg"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "started");
    // The shell's builtin, which is everywhere.
    let sent = Command::new("sh").args(["-c", &format!("kill -INT {}", child.id())]).status().unwrap();
    assert!(sent.success());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "stopped\n");
    assert!(lines.next().is_none());
}

fn repl(name: &str, input: &str) -> Ran {
    Folder::new(name).tg_with_input(&[], input)
}

#[test]
fn interactive_session_from_a_pipe() {
    let ran = repl(
        "repl",
        "1 + 2\nans * 10\nlet x = 4;\nx + 1;\nfn f(a) {\n  a * x\n}\nf(2)\n\nfn f(a) = a\nf(2)\nprint(\"p\")\n",
    );
    assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""));
    assert_eq!(ran.out, "3\n30\n8\n2\np\n");
}

#[test]
fn an_error_does_not_end_the_session() {
    let ran = repl("repl-errors", "let x = 1\ny\nx +\n2\n:nope\n(1\n");
    assert_eq!((ran.code, ran.out.as_str()), (Some(1), "3\n"));
    assert!(ran.err.contains("<repl:2>:1:1"), "{}", ran.err);
    assert!(ran.err.contains("there is no command `:nope`"), "{}", ran.err);
    // What is incomplete at the end is evaluated, which says what is missing.
    assert!(ran.err.contains("error[TG0102]"), "{}", ran.err);
}

/// What needs a name whose `let` failed has no fault of its own.
#[test]
fn one_fault_in_a_pipe_is_one_message() {
    let folder = Folder::new("repl-follow-up");
    let input = "\
let a = zeros([2, 3]) @ zeros([2, 3])
let b = a + 1.0
print(sum(b))
let c = 1 + * 2
print(c)
print(3)
let a = zeros([2])
print(sum(a))
print(nowhere)
";
    let ran = folder.tg_with_input(&["repl"], input);
    assert_eq!((ran.code, ran.out.as_str()), (Some(1), "3\n0.0\n"), "{}", ran.err);
    let found: Vec<&str> =
        ran.err.lines().filter_map(|l| l.strip_prefix("error[")?.split(']').next()).collect();
    assert_eq!(found, ["TG0221", "TG0101", "TG0201"], "{}", ran.err);
}

#[test]
fn commands_of_the_session() {
    let folder = Folder::new("repl-commands");
    folder.file("lib.tg", "## Twice x.\nfn double(x) = x * 2\nprint(\"loaded\")\n");
    let input = "\
:load lib.tg
double(4)
:help double
:type zeros([2, 3]) @ zeros([3, 4])
:plan
step f(x: f32[4]) {
  return x + 1.0
}
f(zeros([4]));
:plan f
:ir f
let big = zeros([1024, 1024]);
:mem
:vars
:explain TG0201
:reset
:vars
:quit
1
";
    let ran = folder.tg_with_input(&["repl"], input);
    assert_eq!(ran.code, Some(1), "a plan was asked for before a step ran");
    assert_eq!(ran.err, "error: no step has run yet\n");
    let expected = [
        "loaded\n8\nfn double(x)\n\nTwice x.\nf32[2, 4]\n",
        "step f: peak ",
        "tgir 1\n",
        "big         4.0 MiB  f32[1024, 1024], bound at <repl:",
        "double",
        "# TG0201: a name that nothing in scope defines\n",
        "nothing is bound\n",
    ];
    let mut rest = ran.out.as_str();
    for part in expected {
        let at = rest.find(part).unwrap_or_else(|| panic!("{part:?} is not in {rest}"));
        rest = &rest[at + part.len()..];
    }
    assert_eq!(rest, "");
}

/// `:type` follows an expression without running it.
#[test]
fn asking_for_a_type_changes_nothing() {
    let text = "let n = 1\nstep f(x: f32[2]) {\n  return sum(x)\n}\n:type f(zeros([2]))\n:type n + 1\nans\nn\n:type print(\"x\")\n:type let y = 1\n";
    let ran = repl("repl-type", text);
    assert!(ran.out.starts_with("f32\na whole number\n1\n"), "{}", ran.out);
    assert!(!ran.out.contains('x'), "{}", ran.out);
    assert!(
        ran.err.contains("unknown name `ans`") && ran.err.contains("expected one expression"),
        "{}",
        ran.err
    );
}

#[test]
fn slips_of_the_command_line() {
    let folder = Folder::new("slips");
    folder.file("a.tg", "step s(x: f32[B, 4]) { return sum(x) }\ns(ones([64, 4]))\ns(ones([16, 4]))\n");
    let ran = folder.tg(&["a.tg"]);
    assert_eq!(ran.code, Some(2));
    assert!(ran.err.ends_with("help: did you mean `tg run a.tg`?\n"), "{}", ran.err);
    assert_eq!(folder.tg(&["explain", "340"]).out, tg::report::explain::page("TG0340").unwrap());
    let plan = folder.tg(&["plan", "a.tg"]);
    let titles: Vec<&str> = plan.out.lines().filter(|l| l.starts_with("step ")).collect();
    assert_eq!(
        titles,
        [
            "step s (B = 64): peak 1.2 KiB, lower bound 1.2 KiB (gap 0.00 %)",
            "step s (B = 16): peak 512 B, lower bound 512 B (gap 0.00 %)"
        ]
    );
    let session = folder.tg_with_input(&[], "exit\nhelp\nquit()\nlet quit = 3\nquit\n");
    assert_eq!((session.code, session.out.as_str()), (Some(1), "3\n"));
    let lines: Vec<&str> = session.err.lines().filter(|l| l.starts_with("help")).collect();
    assert_eq!(lines, ["help: write `:quit`", "help: write `:help`", "help: write `:quit`"]);
}

/// Every order gives the same results, bit for bit. In builds with debug assertions the command also
/// holds that the memory a run uses is what the plan of that order says.
#[test]
fn every_order_runs_with_the_same_results() {
    let folder = Folder::new("orders");
    folder.file(
        "a.tg",
        "use nn\nuse optim\nmodel Net() {\n  let layers = [nn.Linear(32, 32) for i in 0..4]\n  fn forward(x) {\n    for l in layers { x = checkpoint(bind: grad) < relu(l(x)) > }\n    x\n  }\n}\nlet net = Net()\nstep train(x: f32[256, 32]) {\n  let h = nn.dropout(net(x), 0.5)\n  let loss = mean(h * h)\n  minimize loss over net with optim.adamw(lr: 1e-2)\n  ensure peak <= 1 MiB in every schedule\n  return loss, h\n}\nfor i in 0..5 {\n  let loss, h = train(normal([256, 32]))\n  print(loss, sum(h))\n}\n",
    );
    let best = folder.tg(&["run", "a.tg"]);
    assert_eq!((best.code, best.err.as_str()), (Some(0), ""));
    assert_eq!(best.out.lines().count(), 5);
    let arena = |order: &str| {
        let json = folder.tg(&["plan", "a.tg", "--json", "--order", order]);
        let value: Value = serde_json::from_str(&json.out).unwrap();
        (value["steps"][0]["arena_bytes"].as_u64().unwrap(), value["steps"][0]["found_by"].clone())
    };
    for order in ["source", "list", "lpmf", "dfs", "witness"] {
        let ran = folder.tg(&["run", "a.tg", "--order", order]);
        assert_eq!((ran.code, &ran.out), (Some(0), &best.out), "{order}: {}", ran.err);
        assert_eq!(arena(order).1, order);
    }
    assert!(arena("witness").0 > arena("best").0);
}

#[test]
fn why_a_line_needs_memory() {
    let folder = Folder::new("why");
    folder.file("layers.tg", "fn twice(x) {\n  exp(x) @ exp(x)\n}\n");
    folder.file(
        "a.tg",
        "use layers\nstep f(x: f32[64, 64]) {\n  let y = x @ x\n\n  return sum(layers.twice(y))\n}\n",
    );
    let ran = folder.tg(&["plan", "a.tg", "--why", "3"]);
    assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""));
    let expected = "a.tg:3  let y = x @ x\n\nstep f: 1 buffer, 16.0 KiB if all were alive at once\n\n  y  f32[64, 64], 16.0 KiB, ";
    assert!(ran.out.starts_with(expected), "{}", ran.out);
    for part in
        ["  born        at 1 of ", "by `matmul` (forward)\n", "  offset      ", "  kept by     its last use"]
    {
        assert!(ran.out.contains(part), "{part}: {}", ran.out);
    }
    // A line of a module, by the end of its path; the line of the call lists the same.
    let module = folder.tg(&["plan", "a.tg", "--why", "layers.tg:2"]);
    assert!(module.out.contains("layers.tg:2  exp(x) @ exp(x)\n"), "{}", module.out);
    let json = folder.tg(&["plan", "a.tg", "--why", "layers.tg:2", "--json"]);
    let value: Value = serde_json::from_str(&json.out).unwrap();
    let buffers = value["steps"][0]["buffers"].as_array().unwrap();
    assert!(!buffers.is_empty());
    for buffer in buffers {
        assert!(buffer["born"].as_u64() <= buffer["last_used"]["instruction"].as_u64(), "{buffer}");
        assert_eq!((&buffer["dtype"], buffer["bytes"].as_u64()), (&Value::from("f32"), Some(16384)));
    }
    // Lines that make nothing, and lines that are not there.
    let blank = folder.tg(&["plan", "a.tg", "--why", "4"]);
    assert!(
        blank.out.contains("step f: line 4 makes no buffer\n  no operation of the step comes from it\n  lines that make buffers: 2, 3, 5\n")
            || blank.out.contains("lines that make buffers: 2, 3, 5"),
        "{}",
        blank.out
    );
    let beyond = folder.tg(&["plan", "a.tg", "--why", "99"]);
    assert_eq!((beyond.code, beyond.out.as_str()), (Some(1), ""));
    assert!(beyond.err.contains("there is no line 99: `a.tg` has 6 lines"), "{}", beyond.err);
    let unknown = folder.tg(&["plan", "a.tg", "--why", "b.tg:2"]);
    assert!(
        unknown.err.contains("does not use a file `b.tg`") && unknown.err.contains("layers.tg"),
        "{}",
        unknown.err
    );
    for wrong in ["0", "x", ":3", "a.tg:", "-1"] {
        assert_eq!(folder.tg(&["plan", "a.tg", &format!("--why={wrong}")]).code, Some(2), "{wrong}");
    }
}

#[test]
fn steps_that_are_not_planned_are_named() {
    let folder = Folder::new("plan-open");
    folder.file("open.tg", "step a(x: f32[N]) { return sum(x) }\nfn f(x) = x\n");
    let open = folder.tg(&["plan", "open.tg"]);
    assert_eq!(open.code, Some(0), "{}", open.err);
    assert!(open.out.starts_with("not planned: `a`\n"), "{}", open.out);
    folder.file("none.tg", "print(1)\n");
    assert_eq!(folder.tg(&["plan", "none.tg"]).out, "the program has no steps\n");
}

/// What is promised for every order is judged by every command.
#[test]
fn promises_for_every_order_are_never_skipped() {
    let folder = Folder::new("every-order");
    let program = |limit: u64| {
        format!(
            "step s(x: f32[64, 64]) {{\n  let a = exp(x)\n  let b = x @ x\n  ensure peak <= {limit} in every schedule\n  return sum(a) + sum(b)\n}}\ns(ones([64, 64]))\n"
        )
    };
    folder.file("a.tg", program(1 << 30));
    let planned = folder.tg(&["plan", "a.tg", "--json"]);
    let value: Value = serde_json::from_str(&planned.out).unwrap();
    let worst = value["steps"][0]["worst_legal_bytes"].as_u64().unwrap();
    for (limit, code) in [(worst, Some(0)), (worst - 1, Some(1))] {
        folder.file("a.tg", program(limit));
        for command in [&["check", "a.tg"][..], &["check", "--no-fixes", "a.tg"], &["run", "a.tg"]] {
            let ran = folder.tg(command);
            assert_eq!(ran.code, code, "{command:?} {limit}: {}{}", ran.out, ran.err);
        }
    }
}

#[test]
fn plans_for_other_programs() {
    let folder = Folder::new("plan-others");
    folder.file("train.tg", TRAIN);
    assert_eq!(folder.tg(&["plan", "train.tg", "--full"]).code, Some(2), "`--full` is a form of `--json`");
    let full = folder.tg(&["plan", "train.tg", "--json", "--full"]);
    let value: Value = serde_json::from_str(&full.out).unwrap();
    let step = &value["steps"][0];
    assert_eq!(step["order"].as_array().unwrap().len(), step["ops"].as_array().unwrap().len());
    let traced = folder.tg(&["plan", "train.tg", "--trace", "out.json"]);
    assert_eq!((traced.code, traced.err.as_str()), (Some(0), ""));
    let trace: Value = serde_json::from_str(&fs::read_to_string(folder.0.join("out.json")).unwrap()).unwrap();
    assert!(trace["traceEvents"].as_array().unwrap().len() > 3);
    let drawn = folder.tg(&["plan", "train.tg", "--html", "out.html"]);
    assert_eq!((drawn.code, drawn.err.as_str()), (Some(0), ""));
    let page = fs::read_to_string(folder.0.join("out.html")).unwrap();
    let data = page.split("id=\"data\">").nth(1).unwrap().split("</script>").next().unwrap();
    let data: Value = serde_json::from_str(data).unwrap();
    let orders = data["steps"][0]["orders"].as_array().unwrap();
    assert_eq!(orders.iter().map(|o| &o["label"]).collect::<Vec<_>>(), ["chosen", "worst legal"]);
    assert!(
        orders
            .iter()
            .all(|o| o["ops"]["name"].as_array().unwrap().len() == step["ops"].as_array().unwrap().len())
    );
    let lost = folder.tg(&["plan", "train.tg", "--trace", "no/such/folder/out.json"]);
    assert_eq!(lost.code, Some(1));
    assert!(lost.err.contains("cannot write `no/such/folder/out.json`"), "{}", lost.err);
}

/// Plans of large programs stay within 80 columns, and have no colours in a pipe.
#[test]
fn plans_of_large_programs_are_readable() {
    let folder = Folder::new("wide");
    let examples = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    for (file, set) in [("blocks.tg", "DEPTH=12"), ("gpt.tg", "LAYERS=3"), ("convnet.tg", "BATCH=32")] {
        let path = examples.join(file);
        let ran = folder.tg(&["plan", path.to_str().unwrap(), "--set", set]);
        assert_eq!(ran.code, Some(0), "{file}: {}", ran.err);
        assert!(!ran.out.contains('\x1b'));
        for line in ran.out.lines() {
            assert!(line.chars().count() <= 80, "{file}: {line}");
        }
    }
}
