//! `tg run` with several ranks: as threads of this process, or as one process of an MPI job.

use std::{sync::Arc, thread, time::Duration};

use super::{args, devices};
use crate::{
    codes,
    diagnostic::{Diagnostic, Error, Label},
    engine::{CompileOptions, Engine, Program, Session},
    exec::comm::{self, FailureKind},
    source::{SourceMap, Span},
    terminal::{
        Exit, interrupt,
        output::Output,
        source,
        tell::{Printer, fail, is_cancelled, show, show_notices},
    },
};

/// How long a rank that has nothing to say waits for the one that has: `mpirun` ends all ranks soon
/// after the first one has ended with an error.
const LAST_WORDS: Duration = Duration::from_millis(500);

pub fn run(args: &args::Run, engine: Engine, options: CompileOptions, output: &mut Output) -> Exit {
    match args.engine {
        args::RankEngine::Threads => {
            let compiled = source::read(&args.file)
                .and_then(|source| engine.compile_with(source, &options))
                .and_then(|program| Ok((program.sessions()?, program)));
            match compiled {
                Ok((sessions, program)) => run_threads(args, sessions, &program, output),
                Err(error) => fail(&error, output),
            }
        }
        args::RankEngine::Mpi => run_mpi(args, &engine, options, output),
    }
}

/// What became of a rank.
struct Ended {
    result: Result<(), Error>,
    diagnostics: Vec<Diagnostic>,
    sources: SourceMap,
    /// What its steps gave a device to do, where that is asked for.
    stats: String,
}

fn run_threads(args: &args::Run, mut sessions: Vec<Session>, program: &Program, output: &mut Output) -> Exit {
    show(program.diagnostics(), program.sources(), output);
    let tokens: Vec<_> = sessions.iter().map(Session::cancel_token).collect();
    let printer = sessions.first_mut().map(|first| {
        show_notices(first);
        Printer::attach(first)
    });
    let run_rank = |mut session: Session| {
        let result = session.run();
        let diagnostics = session.take_diagnostics();
        let sources = session.sources().clone();
        let stats = if args.stats { devices::stats(&session) } else { String::new() };
        // The others see that this rank has ended.
        drop(session);
        Ended { result, diagnostics, sources, stats }
    };
    let (ended, interrupted) = interrupt::on(
        move || tokens.iter().for_each(crate::CancelToken::cancel),
        || {
            thread::scope(|scope| {
                let start = |(rank, session)| {
                    let name = format!("rank {rank}");
                    thread::Builder::new().name(name).spawn_scoped(scope, || run_rank(session))
                };
                let handles: Vec<_> = sessions.into_iter().enumerate().map(start).collect();
                let ends = handles.into_iter().map(|handle| match handle.map(|h| h.join()) {
                    Ok(Ok(ended)) => ended,
                    Ok(Err(_)) => no_rank(codes::INTERNAL, "a rank ended without a result".into()),
                    Err(error) => no_rank(codes::LIMIT, format!("a rank could not be started: {error}")),
                });
                ends.collect::<Vec<Ended>>()
            })
        },
    );
    if let Some(first) = ended.first() {
        show(&first.diagnostics, &first.sources, output);
        output.err(&first.stats);
    }
    if let Some(exit) = printer.and_then(|printer| printer.failed(output)) {
        return exit;
    }
    let errors: Vec<(u32, &Error)> =
        (0..).zip(&ended).filter_map(|(rank, end)| Some((rank, end.result.as_ref().err()?))).collect();
    match merged(&errors, ended.len()) {
        None => Exit::Success,
        Some(error) if interrupted && is_cancelled(&error) => {
            output.err("stopped\n");
            Exit::Interrupted
        }
        Some(error) => fail(&error, output),
    }
}

fn no_rank(code: crate::diagnostic::Code, message: String) -> Ended {
    let sources = SourceMap::new();
    let diagnostic = Diagnostic::error(code, Span::default(), message);
    let error = Error::new(vec![diagnostic], Arc::new(sources.clone()));
    Ended { result: Err(error), diagnostics: Vec::new(), sources, stats: String::new() }
}

/// What is only due to another rank's error.
fn is_echo(diagnostic: &Diagnostic) -> bool {
    diagnostic.code == codes::OTHER_RANK || diagnostic.code == codes::CANCELLED
}

/// The errors of all ranks as one: what several of them report is there once, with their numbers, and
/// what is only due to another rank's error is left out.
fn merged(errors: &[(u32, &Error)], world: usize) -> Option<Error> {
    let (_, first) = errors.first()?;
    let all = || errors.iter().flat_map(|(rank, error)| error.diagnostics().iter().map(move |d| (*rank, d)));
    let has_cause = all().any(|(_, d)| d.is_error() && !is_echo(d));
    let mut list: Vec<(Diagnostic, Vec<u32>)> = Vec::new();
    for (rank, diagnostic) in all() {
        if has_cause && is_echo(diagnostic) {
            continue;
        }
        // Each rank is at a place of its own when it hears of what went wrong between ranks.
        let is_shared = is_echo(diagnostic) || diagnostic.code == codes::RANKS_DISAGREE;
        let is_same = |known: &Diagnostic| {
            known.code == diagnostic.code
                && known.message == diagnostic.message
                && (known.primary.span == diagnostic.primary.span || is_shared)
        };
        match list.iter_mut().find(|(known, _)| is_same(known)) {
            Some((known, ranks)) => {
                ranks.push(rank);
                let here = diagnostic.primary.span;
                if known.primary.span != here && !known.secondary.iter().any(|label| label.span == here) {
                    known.secondary.push(Label { span: here, text: format!("rank {rank} is here") });
                }
            }
            None => list.push((diagnostic.clone(), vec![rank])),
        }
    }
    let diagnostics = list.into_iter().map(|(mut diagnostic, ranks)| {
        diagnostic.notes.retain(|note| !note.starts_with("on rank "));
        if diagnostic.is_error() && diagnostic.code != codes::RANKS_DISAGREE {
            diagnostic.notes.push(on_ranks(&ranks, world));
        }
        diagnostic
    });
    // The rank whose texts are shown is the first one that has an error of its own.
    let shown = errors.iter().find(|(_, e)| e.diagnostics().iter().any(|d| d.is_error() && !is_echo(d)));
    let sources = shown.map_or(first, |(_, error)| error).sources();
    Some(Error::new(diagnostics.collect(), Arc::new(sources.clone())))
}

/// `on rank 1`, `on ranks 0, 1 and 3`, `on all 4 ranks`
fn on_ranks(ranks: &[u32], world: usize) -> String {
    match ranks.len() {
        0 => String::new(),
        all if all == world && world > 1 => format!("on all {world} ranks"),
        _ => format!("on {}", comm::named(ranks)),
    }
}

fn run_mpi(args: &args::Run, engine: &Engine, mut options: CompileOptions, output: &mut Output) -> Exit {
    let mut comm = match comm::mpi(Duration::from_secs_f64(args.comm_timeout)) {
        Ok(comm) => comm,
        Err(error) => {
            let help = error.help.map(|help| format!("help: {help}\n")).unwrap_or_default();
            output.err(&format!("error: {}\n{help}", error.message));
            return Exit::Errors;
        }
    };
    let leads = comm.rank() == 0;
    if let Some(world) = options.world.filter(|&world| world != comm.world()) {
        if leads {
            let started = comm.world();
            output.err(&format!("error: `--world {world}`, and `mpirun` has started {started} ranks\n"));
        }
        comm.end();
        return Exit::Errors;
    }
    options.world = Some(comm.world());
    let program = match source::read(&args.file).and_then(|source| engine.compile_with(source, &options)) {
        Ok(program) => program,
        // Every rank finds the same.
        Err(error) => {
            if leads {
                fail(&error, output);
            }
            comm.end();
            return Exit::Errors;
        }
    };
    let mut session = match program.session_in(comm) {
        Ok(session) => session,
        Err(error) => return fail(&error, output),
    };
    if leads {
        show(program.diagnostics(), program.sources(), output);
    }
    let printer = leads.then(|| Printer::attach(&mut session));
    show_notices(&mut session);
    let cancel = session.cancel_token();
    let (result, interrupted) = interrupt::on(move || cancel.cancel(), || session.run());
    if leads {
        let later = session.take_diagnostics();
        show(&later, session.sources(), output);
        if args.stats {
            output.err(&devices::stats(&session));
        }
    }
    let failure = session.rank_failure();
    let rank = session.rank();
    let exit = match result {
        Ok(()) => {
            // Only here MPI is closed, which may fail, too.
            session.end();
            match session.rank_failure() {
                None => Exit::Success,
                Some(failure) => {
                    output.err(&format!("error: {}\n", failure.message));
                    Exit::Errors
                }
            }
        }
        Err(error) if interrupted && is_cancelled(&error) => {
            if leads {
                output.err("stopped\n");
            }
            Exit::Interrupted
        }
        Err(error) => {
            // An error of another rank is in that one's report, and what all ranks find in the first's.
            let is_reported = failure.is_some_and(|failure| match failure.kind {
                FailureKind::Failed | FailureKind::Stopped => failure.rank != rank,
                FailureKind::Disagrees => !leads,
                _ => false,
            });
            if is_reported {
                thread::sleep(LAST_WORDS);
                Exit::Errors
            } else {
                fail(&error, output)
            }
        }
    };
    session.end();
    printer.and_then(|printer| printer.failed(output)).unwrap_or(exit)
}
