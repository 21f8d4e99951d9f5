//! Small programs with what they print or what is wrong with them.

use std::sync::{Arc, Mutex};

use tg::engine::{Engine, Source};

/// Runs a program and gives what it printed; panics with the diagnostics where it has errors.
fn run(text: &str) -> String {
    let program = match Engine::new().compile(Source::text("test.tg", text)) {
        Ok(program) => program,
        Err(error) => panic!("{:#?}", error.diagnostics()),
    };
    let mut session = program.session().expect("a session");
    let lines = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&lines);
    session.on_print(move |line| sink.lock().expect("lines").push(line.to_string()));
    if let Err(error) = session.run() {
        panic!("{:#?}", error.diagnostics());
    }
    let lines = lines.lock().expect("lines");
    lines.join("\n")
}

#[test]
fn scratch() {
    let text = std::fs::read_to_string("/tmp/e/a.tg").unwrap();
    println!("{}", run(&text));
}
