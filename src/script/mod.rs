//! What a script reads and writes: files, data, logs, plots, printed tensors.
//!
//! Nothing here knows the evaluator: these are functions on host tensors, numbers, strings and
//! paths.

mod atomic;
pub mod batches;
pub mod format;
pub mod log;
pub mod npy;
pub mod plot;
pub mod print;
pub mod progress;
pub mod random;
pub mod safetensors;
pub mod sample;
pub mod svg;
pub mod text;

use std::{fmt, path::Path};

pub use atomic::write_atomically;

use crate::{exec::Tensor, guard::OutOfMemory, ir::Type};

/// Why something could not be read, written or shown. The message names the file and stands
/// alone: lower case, no full stop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    pub message: String,
    pub help: Option<String>,
    /// It is due to a limit on memory, not to what was read.
    pub is_limit: bool,
}

impl From<OutOfMemory> for Error {
    fn from(error: OutOfMemory) -> Self {
        Error { is_limit: true, ..Error::new(error.to_string()) }
    }
}

impl Error {
    pub fn new(message: impl Into<String>) -> Self {
        Error { message: message.into(), help: None, is_limit: false }
    }

    pub fn help(mut self, text: impl Into<String>) -> Self {
        self.help = Some(text.into());
        self
    }

    /// An error about a file.
    pub(crate) fn file(path: &Path, what: impl fmt::Display) -> Self {
        Error::new(format!("`{}`: {what}", path.display()))
    }

    /// Memory that a file's content does not get.
    pub(crate) fn memory(path: &Path, error: &OutOfMemory) -> Self {
        Error { is_limit: true, ..Error::file(path, error) }
    }

    /// An error of the operating system.
    pub(crate) fn io(path: &Path, doing: &str, error: &std::io::Error) -> Self {
        let why = match error.kind() {
            std::io::ErrorKind::NotFound => "there is no such file".to_owned(),
            std::io::ErrorKind::PermissionDenied => "permission denied".to_owned(),
            std::io::ErrorKind::IsADirectory => "it is a folder".to_owned(),
            std::io::ErrorKind::StorageFull => "the disk is full".to_owned(),
            std::io::ErrorKind::UnexpectedEof => "the file ends too early".to_owned(),
            _ => error.to_string(),
        };
        Error::new(format!("cannot {doing} `{}`: {why}", path.display()))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

/// A tensor to read a file into. The file may be larger than the memory.
fn allocate(path: &Path, ty: &Type) -> Result<Tensor, Error> {
    Tensor::try_zeros(ty.clone()).map_err(|error| Error::memory(path, &error))
}

/// Bytes in the largest unit that keeps the number at least 1: `1.5 MiB`.
pub(crate) fn byte_size(bytes: f64) -> String {
    const LARGER: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut value = bytes;
    let mut unit = "B";
    for larger in LARGER {
        if value.abs() < 1024.0 {
            break;
        }
        value /= 1024.0;
        unit = larger;
    }
    match value {
        v if v.abs() >= 1e6 => format!("{v:.1e} {unit}"),
        v if v.fract() == 0.0 => format!("{v} {unit}"),
        v => format!("{v:.1} {unit}"),
    }
}
