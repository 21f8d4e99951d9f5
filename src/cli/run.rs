//! `tg run`: runs a program.

use std::time::Duration;

use super::{args, ranks};
use crate::{
    engine::{Engine, Planning},
    terminal::{
        Exit, interrupt,
        output::Output,
        source,
        tell::{Printer, fail, is_cancelled, show, show_notices},
    },
};

pub fn run(args: &args::Run, output: &mut Output) -> Exit {
    let mut options = args.compile.options();
    options.resume = args.resume;
    options.order = args.order.into();
    // Nobody sees the bound.
    options.planning = Planning::Quick;
    let engine = Engine::new().with_device(args.device).with_tf32(args.tf32);
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
