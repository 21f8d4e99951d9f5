//! Renderings of diagnostics, exactly as they are printed, for every text that has broken a
//! renderer before.
//!
//! The expected output is in `tests/snapshots/report/`. After a change on purpose, run the tests
//! with `UPDATE_SNAPSHOTS=1` and read the difference.

use std::{fs, path::Path};

use tg::{
    diagnostic::{Code, Diagnostic, Edit, Savings, Severity},
    engine::{CompileOptions, Engine, Source},
    report::{self, Bytes, Format, Style},
    source::{FileId, SourceMap, Span},
};

const SHAPE: Code = Code("TG0211");
const KEPT: Code = Code("TG0302");
const COLOR: Style = Style { color: true, unicode: true };

fn snapshot(name: &str, actual: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/snapshots/report").join(name);
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
        fs::write(&path, actual).unwrap();
    }
    let expected = fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(actual, expected, "the output differs from {}", path.display());
}

/// The place of the first `needle` in the file.
fn find(sources: &SourceMap, file: FileId, needle: &str) -> Span {
    let start = sources.get(file).unwrap().text.find(needle).unwrap();
    Span::new(file, start..start + needle.len())
}

fn one_file(text: &str) -> (SourceMap, FileId) {
    let mut sources = SourceMap::new();
    let file = sources.add("a.tg", text);
    (sources, file)
}

fn human(d: &Diagnostic, sources: &SourceMap) -> String {
    report::diagnostic(d, sources, Format::Human, Style::PLAIN)
}

/// Two shapes that clash, with a note of two lines and help.
fn shapes() -> (SourceMap, Diagnostic) {
    let (s, f) = one_file("let a = zeros([2, 3])\nlet b = zeros([4, 5])\n# apart\nlet c = a @ b\n");
    let d = Diagnostic::error(SHAPE, find(&s, f, "a @ b"), "`@` cannot multiply f32[2, 3] by f32[4, 5]")
        .label("3 does not match 4")
        .secondary(find(&s, f, "zeros([2, 3])"), "f32[2, 3]")
        .secondary(find(&s, f, "zeros([4, 5])"), "f32[4, 5]")
        .note("the last size of the left operand must be\nthe second last of the right one")
        .help("transpose it: `b.T`");
    (s, d)
}

#[test]
fn several_labels() {
    let (s, d) = shapes();
    snapshot("several_labels.txt", &human(&d, &s));
    snapshot("several_labels_ascii.txt", &report::diagnostic(&d, &s, Format::Human, Style::ASCII));
}

#[test]
fn colours() {
    let (s, d) = shapes();
    let text = report::diagnostic(&d, &s, Format::Human, COLOR);
    snapshot("colours.txt", &text.replace('\x1b', "ESC"));
    for severity in [Severity::Error, Severity::Warning, Severity::Note] {
        let d = Diagnostic { severity, ..d.clone() };
        assert!(!human(&d, &s).contains('\x1b'));
        // The coloured form is the plain one with colours.
        let mut plain = report::diagnostic(&d, &s, Format::Human, COLOR);
        while let Some(start) = plain.find('\x1b') {
            let end = start + plain[start..].find('m').unwrap() + 1;
            plain.replace_range(start..end, "");
        }
        let trimmed: Vec<&str> = plain.lines().map(str::trim_end).collect();
        assert_eq!(trimmed.join("\n") + "\n", human(&d, &s));
    }
}

#[test]
fn short_and_json() {
    let (s, d) = shapes();
    snapshot("short.txt", &report::diagnostic(&d, &s, Format::Short, COLOR));
    snapshot("json.txt", &report::diagnostic(&d, &s, Format::Json, COLOR));
}

#[test]
fn a_fix_that_was_planned_again() {
    let (s, f) = one_file("step train(x: f32[2]) {\n  let q = x[0..1]\n  return q\n}\n");
    let at = find(&s, f, "return q");
    let q = Span { start: at.end - 1, ..at };
    let mut d = Diagnostic::warning(KEPT, q, "`q` is kept alive to the end of the step")
        .label("returned here: keeps all 50.0 MiB of `x`")
        .secondary(find(&s, f, "x[0..1]"), "a view of `x` (f32[2], 50.0 MiB)")
        .fix("return a copy", vec![Edit { span: q, text: "copy(q)".into() }]);
    d.fixes[0].savings = Some(Savings {
        peak_before: 244_108_493,
        peak_after: 198_285_722,
        worst_before: 300_000_000,
        worst_after: 300_000_000,
        work_before: 1_000_000,
        work_after: 1_010_000,
    });
    snapshot("fix.txt", &human(&d, &s));
    snapshot("fix.json", &report::diagnostic(&d, &s, Format::Json, Style::PLAIN));
}

#[test]
fn labels_in_several_files() {
    let mut s = SourceMap::new();
    // The text before the label in the second file is not ASCII: ariadne counts its labels in
    // other units there.
    let library =
        s.add_library("std/nn.tg", "# größer — 層\nmodel Linear(n_in: int) {\n  param w: f32[n_in]\n}\n");
    let main = s.add("net.tg", "use nn\nlet l = nn.Linear(true)\n");
    let d = Diagnostic::error(Code("TG0205"), find(&s, main, "true"), "`n_in` must be an int, got a bool")
        .label("a bool")
        .secondary(find(&s, library, "n_in: int"), "declared here")
        .secondary(find(&s, main, "nn.Linear"), "in this call");
    snapshot("several_files.txt", &human(&d, &s));
}

#[test]
fn one_line_of_a_megabyte() {
    let text = format!("let x = {}oops + {}\n", "a + ".repeat(150_000), "b + ".repeat(100_000));
    let (s, f) = one_file(&text);
    let d = Diagnostic::error(SHAPE, find(&s, f, "oops"), "unknown name `oops`")
        .label("not found")
        .secondary(find(&s, f, "let x"), "in this statement");
    let output = human(&d, &s);
    assert!(output.len() < 2000);
    snapshot("one_line_of_a_megabyte.txt", &output);
    let whole = Diagnostic::error(SHAPE, Span::new(f, 0..text.len()), "too long").label("all of it");
    snapshot("one_line_of_a_megabyte_whole.txt", &human(&whole, &s));
}

#[test]
fn escape_codes_and_direction_marks_are_shown_not_sent() {
    let (s, f) = one_file("let \x1b[2Jx = \"\u{202e}abc\u{2069}\" + y\x07\n");
    let mut d = Diagnostic::error(SHAPE, find(&s, f, "y"), "unknown name `y\x1b[31m`\nsecond line")
        .label("not\x1b[0m found")
        .secondary(find(&s, f, "abc"), "a \u{202e}string")
        .help("write `\x1b`");
    d.primary.span.end += 1;
    let output = human(&d, &s);
    assert!(!output.contains(['\x1b', '\u{202e}', '\u{2069}', '\x07']));
    snapshot("escape_codes.txt", &output);
    let short = report::diagnostic(&d, &s, Format::Short, Style::PLAIN);
    assert_eq!(short, "a.tg:1:23: error[TG0211]: unknown name `y\\u{1b}[31m`\\nsecond line\n");
}

#[test]
fn tabs_and_wide_characters_are_underlined_where_they_are() {
    let (s, f) = one_file("fn f() {\n\tlet 層\t= größe + 名前\n}\n");
    let d = Diagnostic::error(SHAPE, find(&s, f, "名前"), "unknown name `名前`")
        .label("not found")
        .secondary(find(&s, f, "層"), "for this")
        .secondary(find(&s, f, "größe"), "and this");
    snapshot("tabs_and_wide.txt", &human(&d, &s));
}

#[test]
fn ends_of_files() {
    for (name, text) in [
        ("eof_empty.txt", ""),
        ("eof_no_newline.txt", "let x ="),
        ("eof_newline.txt", "let x =\n"),
        ("eof_crlf.txt", "let x =\r\n"),
    ] {
        let (s, f) = one_file(text);
        let end = Span::new(f, text.len()..text.len());
        let d = Diagnostic::error(Code("TG0101"), end, "expected an expression").label("the file ends here");
        snapshot(name, &human(&d, &s));
    }
}

#[test]
fn spans_past_the_end_and_inside_characters() {
    let (s, f) = one_file("let 名 = 1");
    let past = Diagnostic::error(SHAPE, Span::new(f, 4..4000), "past the end").label("from here");
    snapshot("past_the_end.txt", &human(&past, &s));
    let inside = Diagnostic::error(SHAPE, Span::new(f, 5..6), "inside a character").label("this one");
    snapshot("inside_a_character.txt", &human(&inside, &s));
}

#[test]
fn no_label_text_no_file() {
    let (s, f) = one_file("let x = y\n");
    snapshot(
        "no_label_text.txt",
        &human(&Diagnostic::error(SHAPE, find(&s, f, "y"), "unknown name `y`"), &s),
    );
    let nowhere =
        Diagnostic::error(Code("TG0401"), Span::new(FileId(9), 0..5), "cannot read `b.tg`: no such file")
            .note("looked in the working directory")
            .help("did you mean `a.tg`?");
    snapshot("no_file.txt", &human(&nowhere, &s));
    assert_eq!(
        report::diagnostic(&nowhere, &s, Format::Short, Style::PLAIN),
        "error[TG0401]: cannot read `b.tg`: no such file\n"
    );
    assert!(
        report::diagnostic(&nowhere, &s, Format::Json, Style::PLAIN).contains("\"file\":null,\"line\":null")
    );
}

#[test]
fn spans_over_several_lines() {
    let (s, f) = one_file("step train() {\n  let a = checkpoint < f(\n    x,\n    y\n  return a\n}\n");
    let opener = find(&s, f, "<");
    let d =
        Diagnostic::error(Code("TG0104"), find(&s, f, "checkpoint < f(\n    x,\n    y\n"), "unclosed `<`")
            .label("expected `>` before the end of this")
            .secondary(opener, "opened here")
            .secondary(find(&s, f, "return"), "a statement starts here");
    snapshot("several_lines.txt", &human(&d, &s));
}

#[test]
fn errors_come_first_and_are_counted() {
    let (s, f) = one_file("a\nb\nc\n");
    let all = [
        Diagnostic::warning(KEPT, find(&s, f, "a"), "first"),
        Diagnostic::error(SHAPE, find(&s, f, "c"), "second"),
        Diagnostic::error(SHAPE, find(&s, f, "b"), "third"),
    ];
    assert_eq!(
        report::diagnostics(&all, &s, Format::Short, Style::PLAIN),
        "a.tg:2:1: error[TG0211]: third\na.tg:3:1: error[TG0211]: second\na.tg:1:1: warning[TG0302]: first\n"
    );
    assert_eq!(report::summary(&all).as_deref(), Some("2 errors, 1 warning"));
    assert_eq!(report::summary(&[]), None);
}

/// Every pair of spans, valid or not, in texts made of what breaks renderers: no panic, the same
/// number of frames, and nothing raw in the output.
#[test]
fn no_span_breaks_a_rendering() {
    let texts = [
        "",
        "\n",
        "\n\n\n",
        "a\r\nb\r\r\n",
        "\u{feff}x\ty\n",
        "名\u{301}e\n\u{200b}\u{202e}z",
        "a\x0bb\x0cc\u{85}d\u{2028}e\u{2029}f\ng",
        "👨\u{200d}👩\u{e000}1\u{e001}:2:3 ]\n  \t \n",
    ];
    for text in texts {
        for other in texts {
            let mut s = SourceMap::new();
            let (f, g) = (s.add("f.tg", text), s.add("\x1b\u{e000}0\u{e001}.tg", other));
            for start in 0..text.len() + 2 {
                for end in (start..text.len() + 3).step_by(2) {
                    let d = Diagnostic::error(SHAPE, Span::new(f, start..end), "m")
                        .label("one")
                        .secondary(Span::new(g, end..start + 4), "two")
                        .secondary(Span::new(f, end..end + 1), "three");
                    for style in [Style::PLAIN, Style::ASCII] {
                        let output = report::diagnostic(&d, &s, Format::Human, style);
                        assert!(
                            output.contains("one") && output.contains("two") && output.contains("three"),
                            "{output}"
                        );
                        assert!(output.contains("f.tg:") && output.contains("\\u{e001}.tg:"), "{output}");
                        assert!(!output.contains(['\x1b', '\u{202e}', '\u{85}', '\u{2028}', '\r', '\t']));
                    }
                    let json = report::diagnostic(&d, &s, Format::Json, Style::PLAIN);
                    assert!(serde_json::from_str::<serde_json::Value>(&json).is_ok());
                }
            }
        }
    }
}

/// A wrong argument of the command is about no place, though there is a file.
#[test]
fn about_an_argument() {
    let (s, _) = one_file("let x = y\n");
    let d = Diagnostic::error(Code("TG0239"), Span::default(), "`--set N=…` fits nothing").help("look again");
    assert_eq!(human(&d, &s), "error[TG0239]: `--set N=…` fits nothing\n  = help: look again\n");
    let short = report::diagnostic(&d, &s, Format::Short, Style::PLAIN);
    assert_eq!(short, "error[TG0239]: `--set N=…` fits nothing\n");
    let json = report::diagnostic(&d, &s, Format::Json, Style::PLAIN);
    assert!(json.contains("\"file\":null") && json.contains("\"labels\":[]"));
}

/// What is said of a promise for every schedule that does not hold, for each way to break it.
#[test]
fn promises_for_every_schedule() {
    let blocks = |bind: &str| {
        format!(
            "use nn
use optim

model Block(c: int) {{
  let conv1 = nn.Conv2d(c, c, kernel: 1)
  let conv2 = nn.Conv2d(c, c, kernel: 1)
  fn forward(x) = relu(conv2(relu(conv1(x))))
}}

model Net(depth: int, c: int) {{
  let blocks = [Block(c) for i in 0..depth]
  fn forward(x) {{
    let y = blocks[0](x)
    for b in blocks[1..] {{
      y = checkpoint({bind}) < b(y) >
    }}
    y
  }}
}}

let net = Net(8, 1024)

step train(x: f32[64, 1024, 14, 14]) {{
  let loss = sum(net(x))
  minimize loss over net with optim.sgd(lr: 0.0)
  ensure peak <= 700 MiB in every schedule
  return loss
}}
"
        )
    };
    let branches = "step f(x: f32[1024, 1024]) {
  let a = sum(exp(x))
  let b = sum(exp(-x))
  ensure peak <= 9 MiB in every schedule
  return a + b
}
";
    let plain = "step f(x: f32[1024, 1024]) {
  ensure peak <= 4 MiB in every schedule
  return exp(x)
}
";
    let cases = [
        ("every_order_grad.txt", blocks("bind: grad")),
        ("every_order_output.txt", blocks("bind: output")),
        ("every_order_branches.txt", branches.to_owned()),
        ("every_order_overwrite.txt", plain.to_owned()),
    ];
    for (name, text) in cases {
        let checked = Engine::new().check(Source::text("a.tg", text.as_str()), &CompileOptions::default());
        let said = report::diagnostics(&checked.diagnostics, &checked.sources, Format::Human, Style::PLAIN);
        snapshot(name, &said);
        assert_eq!(checked.diagnostics.iter().map(|d| d.code.0).collect::<Vec<_>>(), ["TG0344"], "{said}");
    }
    // The default binding keeps the promise, and so does a barrier.
    let kept = [
        blocks("bind: all"),
        branches.replace("  let b = sum(exp(-x))", "  let a, y = barrier(a, x)\n  let b = sum(exp(-y))"),
    ];
    for text in kept {
        let checked = Engine::new().check(Source::text("a.tg", text.as_str()), &CompileOptions::default());
        assert_eq!(checked.diagnostics, []);
        let plan = &checked.plans[0];
        assert!(plan.worst_legal_bytes().unwrap() >= plan.worst_legal_witness_bytes().unwrap());
    }
}

/// What lines make, in words: many passes of a loop, views, fused operations, an output, a parameter.
#[test]
fn lines_explained() {
    let text = "use nn
use optim
model Net() {
  let layers = [nn.Linear(64, 64) for i in 0..4]
  fn forward(x) {
    for l in layers {
      x = relu(l(x))
    }
    x
  }
}
let net = Net()
step train(x: f32[32, 64], y: f32[32, 64]) {
  let h = net(x)
  let first = h[0..4]
  let loss = mean((h - y) ** 2.0)
  minimize loss over net with optim.sgd(lr: 0.1)
  return loss, first
}
";
    let checked = Engine::new().check(Source::text("a.tg", text), &CompileOptions::default());
    assert_eq!(checked.diagnostics, []);
    let (plan, sources, file) = (&checked.plans[0], &checked.sources, FileId(0));
    let mut all = String::new();
    for line in [7, 14, 15, 16, 17, 2] {
        let found = report::plan::why::line(plan, sources, file, line);
        assert_eq!(found.buffers.is_empty(), line == 2, "{line}");
        all += &report::plan::why::render(&[found], file, line, sources, Style::PLAIN);
        all.push('\n');
    }
    snapshot("why.txt", &all);
    assert!(all.lines().all(|l| l.chars().count() <= 80), "{all}");
    // Every buffer is made at one of the lines, or was there before.
    let mut seen: Vec<u32> = (1..=19)
        .flat_map(|l| report::plan::why::line(plan, sources, file, l).buffers)
        .map(|b| b.id.0)
        .collect();
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), plan.schedule_graph.buffer_count());
}

/// A trace can be read back, and its largest counter is the peak.
#[test]
fn a_trace_has_the_peak() {
    let text = "use nn
use optim
let net = nn.Linear(64, 64)
step train(x: f32[32, 64]) {
  let loss = sum(checkpoint < relu(net(x)) >)
  minimize loss over net with optim.sgd(lr: 0.1, momentum: 0.9)
  return loss
}
step other(x: f32[8]) { return x * 2.0 }
";
    let checked = Engine::new().check(Source::text("a.tg", text), &CompileOptions::default());
    assert_eq!(checked.plans.len(), 2);
    let trace: serde_json::Value =
        serde_json::from_str(&report::trace::trace(&checked.plans, &checked.sources)).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    for (k, plan) in checked.plans.iter().enumerate() {
        let of = |phase: &str| -> Vec<&serde_json::Value> {
            events.iter().filter(|e| e["pid"] == k as u64 + 1 && e["ph"] == phase).collect()
        };
        let sum = |e: &serde_json::Value| -> u64 {
            e["args"].as_object().unwrap().values().map(|v| v.as_u64().unwrap()).sum()
        };
        let counter = |name: &str| -> Vec<&serde_json::Value> {
            of("C").into_iter().filter(|e| e["name"] == name).collect()
        };
        let (counters, all) = (counter("by kind (bytes)"), counter("alive (bytes)"));
        assert_eq!(counters.len(), plan.instructions.len());
        let totals = |events: &[&serde_json::Value]| events.iter().map(|e| sum(e)).collect::<Vec<_>>();
        assert_eq!(totals(&counters), totals(&all));
        let peak = counters.iter().map(|e| sum(e)).max().unwrap();
        assert_eq!(peak, plan.persistent_bytes + plan.schedule.live_peak_bytes);
        let last = counters.last().unwrap();
        let kept = plan.persistent_bytes
            + plan
                .schedule_graph
                .buffer_ids()
                .map(|b| plan.schedule_graph.buffer(b))
                .filter(|b| b.flags.output)
                .map(|b| b.bytes)
                .sum::<u64>();
        assert_eq!(sum(last), kept, "only outputs and persistent tensors are left");
        let ops = of("X");
        assert_eq!(ops.len(), plan.schedule.order.len());
        assert!(ops.windows(2).all(|w| w[0]["ts"].as_u64() < w[1]["ts"].as_u64()));
        let (frees, marks): (Vec<_>, Vec<_>) = of("i").into_iter().partition(|e| e["cat"] == "free");
        assert_eq!(ops.len() + frees.len(), plan.instructions.len());
        let [most] = marks.as_slice() else { panic!("{marks:?}") };
        assert_eq!(most["name"], format!("most alive: {}", Bytes(peak)));
        assert_eq!(all[most["ts"].as_u64().unwrap() as usize]["args"]["all"], peak);
        // What a viewer asks of the format: one slice of a row ends before the next begins, counters and
        // marks come in the order of time, and every row has a name.
        let end = |e: &serde_json::Value| e["ts"].as_u64().unwrap() + e["dur"].as_u64().unwrap();
        assert!(ops.windows(2).all(|w| end(w[0]) <= w[1]["ts"].as_u64().unwrap()));
        for row in [&counters, &all, &frees] {
            assert!(row.windows(2).all(|w| w[0]["ts"].as_u64() <= w[1]["ts"].as_u64()));
        }
        let name = |what: &str, row: u64| {
            let found = of("M").into_iter().find(|e| e["name"] == what && e["tid"] == row);
            found.unwrap_or_else(|| panic!("{what} {row}"))["args"]["name"].clone()
        };
        assert_eq!(name("process_name", 0), format!("step {}", plan.name));
        assert_eq!((name("thread_name", 1), name("thread_name", 2)), ("ops".into(), "frees".into()));
        assert!(ops.iter().all(|e| e["tid"] == 1) && frees.iter().all(|e| e["tid"] == 2));
        assert!(events.iter().all(|e| e["name"].as_str().is_some_and(|n| !n.is_empty())));
    }
}
