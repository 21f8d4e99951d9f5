//! `tg pack`: offsets for the blocks of a table, so that none overlap while they are alive.

mod table;

use std::{fmt::Write, sync::Arc, time::Duration};

use super::args;
use crate::{
    codes,
    diagnostic::{Diagnostic, Error},
    schedule::pack::{PackOptions, Packing, pack},
    source::{SourceMap, Span},
    terminal::{Exit, output::Output, tell},
};

pub fn run(args: &args::Pack, output: &mut Output) -> Exit {
    let table = match table::read(&args.file) {
        Ok(table) => table,
        Err(error) => return tell::fail(&error, output),
    };
    let options = PackOptions {
        goal: args.capacity.unwrap_or(0),
        time_limit: Duration::try_from_secs_f64(args.time).unwrap_or(Duration::MAX),
        work_limit: u64::MAX,
    };
    let packing = pack(&table.blocks, &options);
    if args.capacity.is_some_and(|capacity| packing.height > capacity) || packing.height > table::MOST {
        let capacity = args.capacity.unwrap_or(table::MOST);
        let error = Error::new(vec![does_not_fit(&packing, capacity)], Arc::new(SourceMap::new()));
        return tell::fail(&error, output);
    }
    if output.out(&table.with_offsets(&packing.offsets)) {
        output.err(&summary(&packing, table.blocks.len(), args.capacity));
    }
    Exit::Success
}

fn summary(packing: &Packing, blocks: usize, capacity: Option<u64>) -> String {
    let mut text = format!("{blocks} blocks, height {}, load {}", packing.height, packing.load);
    // Writing to a string does not fail.
    let _ = match capacity {
        Some(capacity) => write!(text, ", fits the capacity of {capacity}"),
        None if packing.height <= packing.bound => write!(text, ", no packing is lower"),
        None => write!(text, ", {:.2} % above the lower bound", above(packing)),
    };
    text.push('\n');
    text
}

fn above(packing: &Packing) -> f64 {
    (packing.height as f64 / packing.bound.max(1) as f64 - 1.0) * 100.0
}

fn does_not_fit(packing: &Packing, capacity: u64) -> Diagnostic {
    let message = format!("the blocks do not fit {capacity} bytes");
    let diagnostic = Diagnostic::error(codes::FILE_CONTENT, Span::default(), message);
    let (load, height) = (packing.load, packing.height);
    let diagnostic = diagnostic.note(format!("the lowest packing found is {height} bytes high"));
    if load > capacity {
        diagnostic.note(format!("this is impossible: blocks of {load} bytes are alive at one time"))
    } else if packing.bound > capacity {
        let bound = packing.bound;
        diagnostic
            .note(format!("at most {load} bytes are alive at one time"))
            .note(format!("this is impossible: the search went through all packings below {bound} bytes"))
    } else {
        diagnostic
            .note(format!("at most {load} bytes are alive at one time"))
            .note("this is not proved to be impossible")
            .help("`--time` gives the search more seconds")
    }
}
