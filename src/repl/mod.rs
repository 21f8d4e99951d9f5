//! The interactive session.

mod command;
mod input;
