//! `tg fix`: what it writes, what it refuses, and that the promised peak is there afterwards.

#[path = "support/folder.rs"]
mod folder;

use std::{fs, path::Path};

use folder::Folder;

fn example(code: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/diagnose/{code}.tg"));
    fs::read_to_string(path).unwrap()
}

fn peak(folder: &Folder, name: &str) -> u64 {
    let plan = folder.tg(&["plan", "--json", name]);
    let value: serde_json::Value = serde_json::from_str(&plan.out).unwrap();
    value["steps"][0]["peak_bytes"].as_u64().unwrap()
}

#[test]
fn fixes_are_written_and_the_peak_is_the_one_that_was_promised() {
    let folder = Folder::new("written");
    for code in ["TG0303", "TG0304", "TG0309", "TG0315", "TG0316"] {
        let name = format!("{code}.tg");
        folder.file(&name, example(code));
        let before = peak(&folder, &name);
        let fixed = folder.tg(&["fix", &name]);
        assert_eq!(fixed.code, Some(0), "{code}: {}", fixed.err);
        let after = peak(&folder, &name);
        assert!(after < before, "{code}: {before} to {after}");
        assert!(fixed.err.contains(&format!("({after} bytes)")), "{code}: {}", fixed.err);
        assert!(fixed.err.starts_with("fixed: "), "{code}: {}", fixed.err);
        let check = folder.tg(&["check", "--no-fixes", &name]);
        assert_eq!(check.code, Some(0), "{code}: {}", check.out);
        // Nothing is left to do.
        let again = folder.tg(&["fix", &name]);
        assert_eq!(again.out, format!("nothing to fix: {name}\n"), "{}", folder.text(&name));
    }
}

/// However the text is written: what is not changed stays as it is, byte for byte.
#[test]
fn line_ends_tabs_comments_and_the_end_of_the_file_stay() {
    type Form = (&'static str, fn(&str) -> String);
    let forms: [Form; 4] = [
        ("crlf", |text| text.replace('\n', "\r\n")),
        ("comments", |text| {
            let lines = text.lines().map(|l| l.replacen("  ", "\t", 1) + "  # größer — 層 é\n");
            lines.collect()
        }),
        ("no-end", |text| text.trim_end().to_owned()),
        ("mark", |text| format!("\u{feff}{text}")),
    ];
    let folder = Folder::new("forms");
    for code in ["TG0303", "TG0309", "TG0312", "TG0316", "TG0321", "in_place", "pair"] {
        for (form, write) in forms {
            let name = format!("{code}-{form}.tg");
            let before = write(&example(code));
            folder.file(&name, &before);
            let fixed = folder.tg(&["fix", &name]);
            assert_eq!(fixed.code, Some(0), "{name}: {}", fixed.err);
            let after = folder.text(&name);
            assert_ne!(after, before, "{name}");
            assert!(
                fixed.err.contains(&format!("({} bytes)", peak(&folder, &name))),
                "{name}: {}",
                fixed.err
            );
            let count = |text: &str, what: &str| text.matches(what).count();
            if form == "crlf" {
                assert_eq!(count(&after, "\n"), count(&after, "\r\n"), "{name}: {after:?}");
            }
            assert_eq!(count(&after, "# größer"), count(&before, "# größer"), "{name}: {after}");
            assert_eq!(after.ends_with('\n'), before.ends_with('\n'), "{name}: {after:?}");
            assert_eq!(after.starts_with('\u{feff}'), before.starts_with('\u{feff}'), "{name}");
        }
    }
}

/// A line that moves takes its comment along; the comment of a line that goes stays where that was.
#[test]
fn comments_follow_their_lines() {
    let folder = Folder::new("comments");
    let text = example("in_place").replace("release b", "release b  # one").replace("sum(a)", "sum(a) # two");
    folder.file("a.tg", &text);
    assert_eq!(folder.tg(&["fix", "a.tg"]).code, Some(0));
    let fixed = folder.text("a.tg");
    assert!(fixed.contains("  let c = sum(a) # two\n  let b = softmax(a)\n"), "{fixed}");
    assert!(fixed.contains("  let s = sum(b * x)\n  # one\n  return s + c\n"), "{fixed}");
}

/// What stands beside the text stays as it was: who may read the file, and that it is a link.
#[cfg(unix)]
#[test]
fn fixes_keep_permissions_and_links() {
    use std::os::unix::fs::PermissionsExt;
    let folder = Folder::new("fix-links");
    let text = example("TG0304");
    folder.file("real.tg", &text);
    let real = folder.0.join("real.tg");
    std::fs::set_permissions(&real, std::fs::Permissions::from_mode(0o600)).unwrap();
    std::os::unix::fs::symlink("real.tg", folder.0.join("link.tg")).unwrap();
    let fixed = folder.tg(&["fix", "link.tg"]);
    assert_eq!(fixed.code, Some(0), "{}", fixed.err);
    assert!(std::fs::symlink_metadata(folder.0.join("link.tg")).unwrap().is_symlink());
    assert_ne!(std::fs::read_to_string(&real).unwrap(), text);
    assert_eq!(std::fs::metadata(&real).unwrap().permissions().mode() & 0o777, 0o600);
    // A file that says so is not written.
    folder.file("locked.tg", &text);
    let locked = folder.0.join("locked.tg");
    std::fs::set_permissions(&locked, std::fs::Permissions::from_mode(0o444)).unwrap();
    let refused = folder.tg(&["fix", "locked.tg"]);
    assert_eq!(refused.code, Some(1));
    assert!(refused.err.contains("cannot write `locked.tg`"), "{}", refused.err);
    assert_eq!(std::fs::read_to_string(&locked).unwrap(), text);
}

#[test]
fn a_dry_run_shows_a_diff_and_writes_nothing() {
    let folder = Folder::new("dry");
    folder.file("a.tg", example("TG0303"));
    let dry = folder.tg(&["fix", "--dry-run", "a.tg"]);
    assert_eq!(dry.code, Some(0));
    let expected = "--- a.tg\n+++ a.tg\n@@ -10,7 +10,7 @@\n \n step train(x: f32[1024, 256]) {\n   let h = x @ net.a\n-  let gate = h[:, 0..1]\n+  let gate = copy(h[:, 0..1])\n   let y = tanh(h)\n   let loss = sum(tanh(y @ net.b) * sigmoid(gate @ net.row))\n   minimize loss over net with optim.sgd(lr: 0.1)\n";
    assert_eq!(dry.out, expected);
    assert_eq!(folder.text("a.tg"), example("TG0303"));
    let said = "would fix: copy the part\n  a.tg:13:\n    - let gate = h[:, 0..1]\n    + let gate = copy(h[:, 0..1])\n";
    assert!(dry.err.starts_with(said), "{}", dry.err);
}

/// Lines are those of the texts as they are in the end: of the old ones where nothing is written.
#[test]
fn every_change_that_is_made_is_named_with_its_place() {
    let folder = Folder::new("places");
    // The first fix takes a line away above the second.
    let text = example("TG0303")
        .replace("  let y = tanh(h)\n", "  let y = tanh(h)\n  let r = exp(x)\n  release r\n");
    folder.file("a.tg", &text);
    let places = |said: &str| {
        said.lines().filter(|l| l.starts_with("  a.tg:")).map(|l| l.trim().to_owned()).collect::<Vec<_>>()
    };
    let dry = folder.tg(&["fix", "--dry-run", "a.tg"]);
    assert_eq!(places(&dry.err), ["a.tg:13:", "a.tg:16, taken away:"], "{}", dry.err);
    assert!(
        dry.err.contains("would fix: take the `release` away\n  a.tg:16, taken away:\n    - release r\n")
    );
    let fixed = folder.tg(&["fix", "a.tg"]);
    let lines: Vec<usize> = places(&fixed.err)
        .iter()
        .filter_map(|p| p.trim_start_matches("a.tg:").split([',', ':']).next()?.parse().ok())
        .collect();
    assert_eq!(lines, [13, 16], "{}", fixed.err);
    let now = folder.text("a.tg");
    assert_eq!(now.lines().nth(12), Some("  let gate = copy(h[:, 0..1])"));
    assert!(!now.contains("release"), "{now}");
}

#[test]
fn changes_of_the_results_are_left_to_the_reader() {
    let folder = Folder::new("by-hand");
    for code in ["TG0301", "TG0308"] {
        folder.file("a.tg", example(code));
        let fixed = folder.tg(&["fix", "a.tg"]);
        assert_eq!((fixed.code, fixed.out.as_str()), (Some(0), "nothing to fix: a.tg\n"));
        assert_eq!(folder.text("a.tg"), example(code));
    }
}

#[test]
fn programs_with_errors_are_not_touched() {
    let folder = Folder::new("errors");
    let text = "step f(x: f32[4]) {\n  return y\n}\n";
    folder.file("a.tg", text);
    let fixed = folder.tg(&["fix", "a.tg"]);
    assert_eq!(fixed.code, Some(1));
    assert!(fixed.err.contains("TG0201"), "{}", fixed.err);
    assert_eq!(folder.text("a.tg"), text);
    assert_eq!(folder.tg(&["fix", "missing.tg"]).code, Some(1));
    assert_eq!(folder.tg(&["fix"]).code, Some(2));
}

#[test]
fn a_contract_that_a_fix_makes_hold_is_met_afterwards() {
    let folder = Folder::new("contract");
    let text = example("TG0316.quiet").replace("checkpoint < b(x) >", "b(x)");
    let text = text.replace("  return loss", "  ensure peak <= 24 MiB\n  return loss");
    folder.file("a.tg", &text);
    let before = folder.tg(&["check", "a.tg"]);
    assert_eq!(before.code, Some(1));
    assert!(before.out.contains("alive at the peak:"), "{}", before.out);
    assert!(before.out.contains("          x = checkpoint < b(x) >\n"), "{}", before.out);
    let fixed = folder.tg(&["fix", "a.tg"]);
    assert_eq!(fixed.code, Some(0), "{}", fixed.err);
    assert_eq!(folder.tg(&["check", "--no-fixes", "a.tg"]).code, Some(0));
    assert!(folder.text("a.tg").contains("x = checkpoint < b(x) >"));
}

#[test]
fn deny_warnings_fails_on_a_finding_and_not_on_a_note() {
    let folder = Folder::new("deny");
    folder.file("warning.tg", example("TG0303"));
    folder.file("note.tg", example("TG0305"));
    assert_eq!(folder.tg(&["check", "warning.tg"]).code, Some(0));
    assert_eq!(folder.tg(&["check", "--deny", "warnings", "warning.tg"]).code, Some(1));
    assert_eq!(folder.tg(&["check", "--deny", "warnings", "note.tg"]).code, Some(0));
}

#[test]
fn plan_has_the_findings_of_its_steps() {
    let folder = Folder::new("plan");
    folder.file("a.tg", example("TG0303"));
    let plan = folder.tg(&["plan", "--json", "a.tg"]);
    let value: serde_json::Value = serde_json::from_str(&plan.out).unwrap();
    let found = &value["steps"][0]["diagnostics"][0];
    assert_eq!(found["code"], "TG0303");
    assert_eq!(found["peak_before"], value["steps"][0]["peak_bytes"]);
    assert!(found["saves_bytes"].as_u64() > Some(1_000_000));
    assert_eq!(found["fixes"][0]["edits"][0]["text"], "copy(");
}

#[test]
fn library_frames_are_shown_when_asked_for() {
    let folder = Folder::new("frames");
    folder.file("a.tg", example("TG0304"));
    let plain = folder.tg(&["check", "a.tg"]).out;
    assert!(!plain.contains("std/nn.tg"), "{plain}");
    let with = folder.tg(&["check", "--library-frames", "a.tg"]).out;
    assert!(with.contains("std/nn.tg") && with.matches("by way of this").count() == 1, "{with}");
}

#[test]
fn each_fix_says_what_both_figures_do() {
    let folder = Folder::new("figures");
    folder.file("a.tg", example("TG0303"));
    let fixed = folder.tg(&["fix", "a.tg"]).err;
    let figures =
        "  peak in the planned order:     6.5 -> 5.5 MiB\n  peak in the worst legal order: 10.5 -> 9.5 MiB\n";
    assert!(fixed.contains(figures), "{fixed}");
}

#[test]
fn next_to_nothing_is_not_bought_with_a_worse_worst_order() {
    let folder = Folder::new("traded");
    // Taking the regions away saves 256 bytes, and lets the worst legal order rise by a MiB.
    folder.file("a.tg", example("TG0314"));
    let check = folder.tg(&["check", "a.tg"]).out;
    assert!(check.contains("peak in the planned order:     stays at 3.3 MiB\n"), "{check}");
    assert!(check.contains("peak in the worst legal order: 3.5 -> 4.5 MiB, more than now\n"), "{check}");
    let fixed = folder.tg(&["fix", "a.tg"]);
    assert_eq!(fixed.out, "nothing to fix: a.tg\n");
    assert_eq!(folder.text("a.tg"), example("TG0314"));
}

#[test]
fn a_promise_for_every_order_is_never_broken_by_a_fix() {
    let folder = Folder::new("promise");
    // The region keeps the worst legal order at 3.5 MiB; without it, 4.5 MiB are legal.
    let text =
        example("TG0314").replace("  return loss", "  ensure peak <= 4 MiB in every schedule\n  return loss");
    folder.file("a.tg", &text);
    let check = folder.tg(&["check", "--all", "a.tg"]);
    assert_eq!(check.code, Some(0), "{}", check.out);
    assert!(!check.out.contains("take the region away"), "{}", check.out);
}
