//! Every `.tg` file of the library, the examples and the goldens parses without a diagnostic.

use std::{fs, path::Path};

use tg::{source::FileId, syntax::parse};

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
        let (ast, diagnostics) = parse(FileId(0), &text);
        let messages: Vec<String> = diagnostics
            .iter()
            .map(|d| {
                let start = d.primary.span.start as usize;
                let line = text.get(..start).map_or(0, |before| before.lines().count());
                format!("line {line}: {}", d.message)
            })
            .collect();
        assert!(messages.is_empty(), "{}:\n{}", path.display(), messages.join("\n"));
        assert!(!ast.body.is_empty(), "{} is empty", path.display());
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
