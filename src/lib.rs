//! `tg`: a small language for neural-network training graphs, with a memory-ordered schedule.
//!
//! Hosts use [`Engine`], [`Source`] and [`Session`]; the example is in [`engine`]. The other modules
//! are the phases of the compiler, described in `ARCHITECTURE.md`.

pub mod check;
pub mod cli;
pub mod codes;
pub mod diagnose;
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

pub use diagnostic::Error;
pub use engine::{CompileOptions, Device, Engine, Limits, Program, Session, Source};
pub use exec::Tensor;
