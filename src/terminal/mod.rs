//! What commands and the interactive session have in common: the terminal, the files that they are
//! given, Ctrl-C, and how they end.

pub mod interrupt;
pub mod output;
pub mod source;
pub mod tell;

use std::process::ExitCode;

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    Success,
    Errors,
    Interrupted,
    /// Nobody reads what a run prints: as if SIGPIPE had ended it.
    Closed,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(match exit {
            Exit::Success => 0,
            Exit::Errors => 1,
            Exit::Interrupted => interrupt::EXIT_CODE,
            Exit::Closed => 141,
        })
    }
}
