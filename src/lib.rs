//! `tg`: a small language for neural-network training graphs, with a memory-ordered schedule.

pub mod cli;
pub mod diagnostic;
pub mod exec;
pub mod ir;
pub mod ops;
pub mod plan;
pub mod report;
pub mod schedule;
pub mod source;
pub mod syntax;
