//! Programs from files and from standard input.

use std::{
    io::Read,
    path::{Path, PathBuf},
    sync::Arc,
};

use crate::{
    codes,
    diagnostic::{Diagnostic, Error},
    engine::Source,
    source::{SourceMap, Span},
};

/// The name of standard input in reports.
const STDIN: &str = "<stdin>";

/// Reads a program; `-` is standard input, whose paths start from the current folder.
pub fn read(path: &Path) -> Result<Source, Error> {
    if path != Path::new("-") {
        return read_file(path);
    }
    let mut bytes = Vec::new();
    match std::io::stdin().lock().read_to_end(&mut bytes) {
        Ok(_) => decode(STDIN, bytes, PathBuf::from(".")),
        Err(error) => Err(about_no_place(Diagnostic::error(
            codes::FILE,
            Span::default(),
            format!("cannot read standard input: {error}"),
        ))),
    }
}

fn read_file(path: &Path) -> Result<Source, Error> {
    let name = path.display().to_string();
    let bytes = std::fs::read(path).map_err(|error| {
        let why = match error.kind() {
            std::io::ErrorKind::NotFound => "there is no such file".to_owned(),
            std::io::ErrorKind::IsADirectory => "it is a folder".to_owned(),
            std::io::ErrorKind::PermissionDenied => "permission denied".to_owned(),
            _ => error.to_string(),
        };
        let mut diagnostic =
            Diagnostic::error(codes::FILE, Span::default(), format!("cannot read `{name}`: {why}"));
        if let Some(other) = similar(path) {
            diagnostic = diagnostic.help(format!("did you mean `{}`?", other.display()));
        }
        let mut sources = SourceMap::new();
        sources.add(name.as_str(), "");
        Error::new(vec![diagnostic], Arc::new(sources))
    })?;
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_path_buf(),
        _ => PathBuf::from("."),
    };
    decode(&name, bytes, directory)
}

fn about_no_place(diagnostic: Diagnostic) -> Error {
    Error::new(vec![diagnostic], Arc::new(SourceMap::new()))
}

/// Programs are UTF-8. The error shows the line on which they are not.
fn decode(name: &str, bytes: Vec<u8>, directory: PathBuf) -> Result<Source, Error> {
    let text = match String::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => {
            let valid = error.utf8_error().valid_up_to();
            let byte = error.as_bytes().get(valid).copied().unwrap_or(0);
            let mut sources = SourceMap::new();
            let lossy = String::from_utf8_lossy(error.as_bytes()).into_owned();
            let file = sources.add(name, lossy);
            // Text before the first bad byte is the same in both; the bad part became one character.
            let span = Span::new(file, valid..valid + char::REPLACEMENT_CHARACTER.len_utf8());
            let diagnostic =
                Diagnostic::error(codes::FILE_CONTENT, span, format!("`{name}` is not UTF-8 text"))
                    .label(format!("the byte {byte:#04x}"));
            return Err(Error::new(vec![diagnostic], Arc::new(sources)));
        }
    };
    Ok(Source::text(name, text).in_directory(directory))
}

/// A program beside a missing one: with the ending added, or spelled almost like it.
fn similar(path: &Path) -> Option<PathBuf> {
    let with_ending = PathBuf::from(format!("{}.tg", path.display()));
    if with_ending.is_file() {
        return Some(with_ending);
    }
    if path.is_dir() {
        return None;
    }
    let wanted = path.file_name()?.to_str()?.to_lowercase();
    // One letter in three may be wrong, two at most.
    let stem = wanted.trim_end_matches(".tg").chars().count();
    let allowed = (stem / 3).clamp(1, 2);
    let parent = path.parent()?;
    let folder = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
    let mut best: Option<(usize, String)> = None;
    // A folder of data may be huge: the first thousand names will do.
    for entry in std::fs::read_dir(folder).ok()?.take(1000).flatten() {
        let name = entry.file_name();
        let Some(name) = name.to_str().filter(|n| n.ends_with(".tg")) else { continue };
        let distance = crate::report::explain::distance(&wanted, &name.to_lowercase());
        let is_better = best.as_ref().is_none_or(|(d, n)| (distance, name) < (*d, n.as_str()));
        if distance <= allowed && is_better {
            best = Some((distance, name.to_owned()));
        }
    }
    best.map(|(_, name)| parent.join(name))
}
