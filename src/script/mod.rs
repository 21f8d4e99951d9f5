
//! What a script reads and writes: files, data, logs, plots, printed tensors.
//!
//! Nothing here knows the evaluator: these are functions on host tensors, numbers, strings and
//! paths.
