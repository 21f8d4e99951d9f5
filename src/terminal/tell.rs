//! What commands tell of programs and of runs: diagnostics, notices, what a session prints.

use std::{
    io::{self, Write},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use super::{Exit, output::Output};
use crate::{
    codes,
    diagnostic::{Diagnostic, Error},
    engine::Session,
    report::{self, Format},
    script::progress::print_line,
    source::SourceMap,
};

/// Writes lines about the run itself to standard error.
pub fn show_notices(session: &mut Session) {
    session.on_notice(|line| {
        let _ = writeln!(io::stderr().lock(), "{line}");
    });
}

/// Writes diagnostics about a program to standard error, where they do not mix with what it prints.
pub fn show(diagnostics: &[Diagnostic], sources: &SourceMap, output: &mut Output) {
    let text = report::diagnostics(diagnostics, sources, Format::Human, output.err_style);
    output.err(&text);
}

pub fn fail(error: &Error, output: &mut Output) -> Exit {
    show(error.diagnostics(), error.sources(), output);
    Exit::Errors
}

pub fn is_cancelled(error: &Error) -> bool {
    error.diagnostics().iter().any(|d| d.code == codes::CANCELLED)
}

/// Writes what a session prints to standard output.
pub struct Printer {
    failure: Arc<Mutex<Option<io::Error>>>,
}

impl Printer {
    /// A session whose output is lost stops, as a process does that SIGPIPE ends.
    pub fn attach(session: &mut Session) -> Printer {
        let failure = Arc::new(Mutex::new(None));
        let (slot, cancel) = (Arc::clone(&failure), session.cancel_token());
        session.on_print(move |line| {
            let mut slot = lock(&slot);
            if slot.is_none()
                && let Err(error) = print_line(&mut io::stdout().lock(), line)
            {
                *slot = Some(error);
                cancel.cancel();
            }
        });
        Printer { failure }
    }

    /// How the command ends if output was lost; says why where nobody did it on purpose.
    pub fn failed(&self, output: &mut Output) -> Option<Exit> {
        let failure = lock(&self.failure);
        let error = failure.as_ref()?;
        if error.kind() == io::ErrorKind::BrokenPipe {
            return Some(Exit::Closed);
        }
        output.err(&format!("error: cannot write the output: {error}\n"));
        Some(Exit::Errors)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
