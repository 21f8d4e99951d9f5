//! Running programs in tests.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use tg::{
    diagnostic::{Diagnostic, Error},
    engine::{Checked, CompileOptions, Engine, Source},
    source::SourceMap,
};

/// What a run prints, line by line, or the lines of its errors.
pub fn run(text: &str) -> String {
    run_with(Source::text("test.tg", text), &CompileOptions::default())
}

pub fn run_with(source: Source, options: &CompileOptions) -> String {
    let lines = Arc::new(Mutex::new(Vec::new()));
    let result = Engine::new().compile_with(source, options).and_then(|program| {
        let mut session = program.session()?;
        let sink = Arc::clone(&lines);
        session.on_print(move |line| sink.lock().expect("lines").push(line.to_string()));
        session.run()
    });
    if let Err(error) = result {
        lines.lock().expect("lines").push(errors_of(&error));
    }
    let lines = lines.lock().expect("lines");
    lines.join("\n")
}

/// `line: CODE message` for each diagnostic.
pub fn check(text: &str) -> String {
    let checked = Engine::new().check(Source::text("test.tg", text), &CompileOptions::default());
    listed(&checked.diagnostics, &checked.sources)
}

pub fn checked(text: &str) -> Checked {
    Engine::new().check(Source::text("test.tg", text), &CompileOptions::default())
}

pub fn errors_of(error: &Error) -> String {
    listed(error.diagnostics(), error.sources())
}

pub fn listed(diagnostics: &[Diagnostic], sources: &SourceMap) -> String {
    diagnostics
        .iter()
        .map(|d| format!("{}: {} {}", sources.start(d.primary.span).line, d.code.0, d.message))
        .collect::<Vec<_>>()
        .join("\n")
}

/// A folder of its own for a test, empty.
pub fn folder(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&path);
    std::fs::create_dir_all(&path).expect("a folder for the test");
    path
}
