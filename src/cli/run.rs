//! `tg run`: runs a program.

use std::{
    io::{self, Write},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use super::{Exit, args, interrupt, output::Output, ranks, source};
use crate::{
    codes,
    diagnostic::{Diagnostic, Error},
    engine::{Engine, Planning, Session},
    report::{self, Format},
    script::progress::print_line,
    source::SourceMap,
};

pub fn run(args: &args::Run, output: &mut Output) -> Exit {
    let mut options = args.compile.options();
    options.resume = args.resume;
    options.order = args.order.into();
    // Nobody sees the bound.
    options.planning = Planning::Quick;
    let engine = Engine::new().with_device(args.device);
    let engine = engine.with_rank_limit(Duration::from_secs_f64(args.comm_timeout));
    if args.engine == args::RankEngine::Mpi || options.world.is_some_and(|world| world > 1) {
        return ranks::run(args, engine, options, output);
    }
    let compiled = source::read(&args.file)
        .and_then(|source| engine.compile_with(source, &options))
        .and_then(|program| Ok((program.session()?, program)));
    let (mut session, program) = match compiled {
        Ok(pair) => pair,
        Err(error) => return fail(&error, output),
    };
    show(program.diagnostics(), program.sources(), output);
    let printer = Printer::attach(&mut session);
    show_notices(&mut session);
    let cancel = session.cancel_token();
    let (result, interrupted) = interrupt::on(move || cancel.cancel(), || session.run());
    let later = session.take_diagnostics();
    show(&later, session.sources(), output);
    if args.stats {
        output.err(&super::devices::stats(&session));
    }
    if let Some(exit) = printer.failed(output) {
        return exit;
    }
    match result {
        Ok(()) => Exit::Success,
        Err(error) if interrupted && is_cancelled(&error) => {
            output.err("stopped\n");
            Exit::Interrupted
        }
        Err(error) => fail(&error, output),
    }
}

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
