//! `tg run`: runs a program.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use super::{Exit, args, interrupt, output::Output, source};
use crate::{
    codes,
    diagnostic::{Diagnostic, Error},
    engine::{Engine, Session},
    report::{self, Format},
    script::progress::print_line,
    source::SourceMap,
};

pub fn run(args: &args::Run, output: &mut Output) -> Exit {
    let mut options = args.compile.options();
    options.resume = args.resume;
    let engine = match args.device {
        args::DeviceName::Cpu => Engine::new().with_device(crate::engine::Device::Cpu),
    };
    let compiled = source::read(&args.file)
        .and_then(|source| engine.compile_with(source, &options))
        .and_then(|program| Ok((program.session()?, program)));
    let (mut session, program) = match compiled {
        Ok(pair) => pair,
        Err(error) => return fail(&error, output),
    };
    show(program.diagnostics(), program.sources(), output);
    let printer = Printer::attach(&mut session);
    let cancel = session.cancel_handle();
    let (result, interrupted) =
        interrupt::on(move || cancel.store(true, Ordering::Relaxed), || session.run());
    let later = session.take_diagnostics();
    show(&later, session.sources(), output);
    if printer.is_closed() {
        return Exit::Closed;
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
    closed: Arc<AtomicBool>,
}

impl Printer {
    /// A session whose output nobody reads any more stops, as a process does that SIGPIPE ends.
    pub fn attach(session: &mut Session) -> Printer {
        let closed = Arc::new(AtomicBool::new(false));
        let (flag, cancel) = (Arc::clone(&closed), session.cancel_handle());
        session.on_print(move |line| {
            if print_line(&mut io::stdout().lock(), line).is_err() {
                flag.store(true, Ordering::Relaxed);
                cancel.store(true, Ordering::Relaxed);
            }
        });
        Printer { closed }
    }

    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }
}
