//! `tg devices`: what programs can run on.

use super::{Exit, output::Output};

pub fn run(output: &mut Output) -> Exit {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let plural = if threads == 1 { "" } else { "s" };
    output.out(&format!("cpu  {}, {threads} thread{plural}\n", std::env::consts::ARCH));
    Exit::Success
}
