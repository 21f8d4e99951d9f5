//! Small programs with what they print, or with what is wrong in them.

#[path = "language/support.rs"]
mod support;

#[path = "language/declarations.rs"]
mod declarations;
#[path = "language/doubtful.rs"]
mod doubtful;
#[path = "language/errors.rs"]
mod errors;
#[path = "language/files.rs"]
mod files;
#[path = "language/graph.rs"]
mod graph;
#[path = "language/recovery.rs"]
mod recovery;
#[path = "language/script.rs"]
mod script;
#[path = "language/session.rs"]
mod session;
#[path = "language/training.rs"]
mod training;
