//! The command `tg`: a thin user of the library.
//!
//! Exit codes: 0 success; 1 errors in the program, or in a file that it or the command names (one
//! that does not exist included); 2 wrong usage; 130 stopped by Ctrl-C; 141 a run that stopped
//! because nobody reads its output any more. For other commands a pipe that closes early changes
//! nothing.

mod args;
mod budget;
mod check;
mod devices;
mod explain;
mod fix;
mod ir;
mod pack;
mod picture;
mod plan;
mod ranks;
mod run;
mod steps;
mod why;

use std::{io::Write, process::ExitCode};

use clap::{
    Parser,
    error::{ContextKind, ContextValue, ErrorKind},
};

use crate::{
    engine::Device,
    terminal::{Exit, interrupt, output::Output},
};
use args::{Cli, Command};

/// The file in `tg FILE`, where a command is missing.
fn program_without_command(error: &clap::Error) -> Option<String> {
    let word = match (error.kind(), error.get(ContextKind::InvalidSubcommand)) {
        (ErrorKind::InvalidSubcommand, Some(ContextValue::String(word))) => word,
        _ => return None,
    };
    word.ends_with(".tg").then(|| word.clone())
}

/// Runs the command that the process was started as.
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        // clap writes usage errors to standard error and help to standard output; either may be
        // closed.
        Err(error) => {
            let _ = error.print();
            if let Some(file) = program_without_command(&error) {
                let file = crate::report::visible::line(&file, 80);
                let _ = writeln!(std::io::stderr(), "\nhelp: did you mean `tg run {file}`?");
            }
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
        }
    };
    let mut output = Output::new(cli.color.into(), cli.ascii);
    interrupt::install();
    let exit = match &cli.command {
        Some(Command::Run(args)) => run::run(args, &mut output),
        Some(Command::Check(args)) => check::run(args, &mut output),
        Some(Command::Fix(args)) => fix::run(args, &mut output),
        Some(Command::Plan(args)) => plan::run(args, &mut output),
        Some(Command::Ir(args)) => ir::run(args, &mut output),
        Some(Command::Repl(args)) => crate::repl::run(args.file.as_deref(), args.device, &mut output),
        None => crate::repl::run(None, Device::default(), &mut output),
        Some(Command::Pack(args)) => pack::run(args, &mut output),
        Some(Command::Explain(args)) => explain::run(args, &mut output),
        Some(Command::Devices) => devices::run(&mut output),
    };
    if output.failed() { Exit::Errors.into() } else { exit.into() }
}
