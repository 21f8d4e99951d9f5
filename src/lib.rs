//! `tg`: a small language for neural-network training graphs, with a memory-ordered schedule.

pub mod check;
pub mod cli;
pub mod codes;
pub mod diagnostic;
pub mod engine;
pub mod exec;
pub mod grad;
pub mod ir;
pub mod lower;
pub mod ops;
pub mod plan;
pub mod repl;
pub mod report;
pub mod schedule;
pub mod script;
pub mod source;
pub mod syntax;
