//! Programs on several ranks.

use std::{thread, time::Duration};

use tg::{Engine, Error, Program, Session, Source, Tensor};

/// More than any test needs, and less than anybody waits for.
pub const LIMIT: Duration = Duration::from_secs(20);

pub fn compile(world: u32, text: &str) -> Program {
    try_compile(world, text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

pub fn try_compile(world: u32, text: &str) -> Result<Program, Error> {
    Engine::new().with_world(world).with_rank_limit(LIMIT).compile(Source::text("ranks.tg", text))
}

/// What `work` gives on every rank of a program, each on a thread of its own.
pub fn on_ranks<T: Send>(program: &Program, work: impl Fn(&mut Session, u32) -> T + Sync) -> Vec<T> {
    let sessions = program.sessions().expect("the ranks start");
    thread::scope(|scope| {
        let work = &work;
        let start = |mut session: Session| {
            scope.spawn(move || {
                let rank = session.rank();
                work(&mut session, rank)
            })
        };
        let handles: Vec<_> = sessions.into_iter().map(start).collect();
        handles.into_iter().map(|handle| handle.join().expect("the rank ends")).collect()
    })
}

/// The messages of an error, one a line.
pub fn messages(error: &Error) -> String {
    let lines: Vec<&str> =
        error.diagnostics().iter().filter(|d| d.is_error()).map(|d| d.message.as_str()).collect();
    lines.join("\n")
}

/// The error of a rank that must have one.
pub fn failed<T>(result: Result<T, Error>) -> Error {
    match result {
        Ok(_) => panic!("the rank has no error"),
        Err(error) => error,
    }
}

pub fn numbers(tensor: &Tensor) -> Vec<f64> {
    (0..tensor.ty().elements()).map(|k| tensor.get_f64(k).expect("an element")).collect()
}
