//! Every `.tg` file of the library, the examples and the goldens parses without a diagnostic.

use std::{fs, path::Path};

use tg::{source::FileId, syntax::parse};

/// What is wrong with a program, a line each.
fn complaints(text: &str) -> String {
    let (ast, diagnostics) = parse(FileId(0), text);
    assert!(!ast.body.is_empty(), "there is no statement in:\n{text}");
    let line = |start: u32| text.get(..start as usize).map_or(0, |before| before.lines().count());
    let messages =
        diagnostics.iter().map(|d| format!("line {}: {}\n", line(d.primary.span.start), d.message));
    messages.collect()
}

/// Parses every program in a folder and returns how many there were.
fn parse_all(folder: &str) -> usize {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let mut count = 0;
    for entry in fs::read_dir(&folder).expect("the folder is there") {
        let path = entry.expect("the folder can be listed").path();
        if path.extension().is_none_or(|e| e != "tg") {
            continue;
        }
        let text = fs::read_to_string(&path).expect("the file can be read");
        let wrong = complaints(&text);
        assert!(wrong.is_empty(), "{}:\n{wrong}", path.display());
        count += 1;
    }
    count
}

#[test]
fn library() {
    assert!(parse_all("stdlib") >= 6);
}

#[test]
fn examples() {
    assert!(parse_all("examples") >= 6);
}

#[test]
fn goldens() {
    assert!(parse_all("tests/goldens") >= 4);
}

/// The code between ``` lines, where it is not said to be something else.
#[test]
fn documentation() {
    let mut count = 0;
    for page in ["docs/reference.md", "docs/ten-minutes.md"] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(page);
        let text = fs::read_to_string(path).expect("the page can be read");
        for block in text.split("\n```").skip(1).step_by(2) {
            // A fence with a word after it is no program.
            if !block.starts_with('\n') {
                continue;
            }
            let wrong = complaints(block);
            assert!(wrong.is_empty(), "{page}:\n{block}\n{wrong}");
            count += 1;
        }
    }
    assert!(count >= 8);
}
