//! Source texts and positions in them.
//!
//! A [`Span`] is eight bytes of offsets and a file number, so it can be stored in every token,
//! syntax node and origin. Texts live in a [`SourceMap`], which also turns offsets into lines
//! and columns.

use std::{ops::Range, sync::Arc};

/// A file known to a [`SourceMap`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct FileId(pub u32);

/// A range of bytes in one file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Span {
    pub file: FileId,
    /// First byte.
    pub start: u32,
    /// One past the last byte.
    pub end: u32,
}

impl Span {
    pub fn new(file: FileId, range: Range<usize>) -> Self {
        // Files larger than 4 GiB are refused when they are added, so offsets fit.
        Span { file, start: range.start as u32, end: range.end as u32 }
    }

    /// The smallest span that holds both; `self` where they are in different files.
    pub fn to(self, other: Span) -> Span {
        if self.file != other.file {
            return self;
        }
        Span { file: self.file, start: self.start.min(other.start), end: self.end.max(other.end) }
    }
}

/// Line and column, both counted from 1; the column counts characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    pub line: usize,
    pub column: usize,
}

/// One text with its name and line index.
#[derive(Debug, Clone)]
pub struct SourceFile {
    /// As shown in reports: a path, `<stdin>`, `<repl:3>` or `std/nn.tg`.
    pub name: String,
    pub text: Arc<str>,
    /// Part of the library that comes with `tg`: its frames are folded in reports.
    pub is_library: bool,
    line_starts: Vec<u32>,
}

/// All texts of a session. Files are only ever added.
#[derive(Debug, Clone, Default)]
pub struct SourceMap {
    files: Vec<SourceFile>,
}

impl SourceMap {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn add(&mut self, name: impl Into<String>, text: impl Into<Arc<str>>) -> FileId {
        self.insert(name.into(), text.into(), false)
    }

    pub fn add_library(&mut self, name: impl Into<String>, text: impl Into<Arc<str>>) -> FileId {
        self.insert(name.into(), text.into(), true)
    }

    fn insert(&mut self, name: String, text: Arc<str>, is_library: bool) -> FileId {
        let line_starts = std::iter::once(0)
            .chain(text.bytes().enumerate().filter(|&(_, b)| b == b'\n').map(|(i, _)| i as u32 + 1))
            .collect();
        self.files.push(SourceFile { name, text, is_library, line_starts });
        FileId(self.files.len() as u32 - 1)
    }

    pub fn get(&self, file: FileId) -> Option<&SourceFile> {
        self.files.get(file.0 as usize)
    }

    pub fn files(&self) -> impl Iterator<Item = (FileId, &SourceFile)> {
        self.files.iter().enumerate().map(|(i, f)| (FileId(i as u32), f))
    }

    /// The text of a span, clamped to the file and to character boundaries.
    pub fn text(&self, span: Span) -> &str {
        match self.get(span.file) {
            Some(file) => file.text.get(file.clamp(span)).unwrap_or_default(),
            None => "",
        }
    }

    /// Where a span starts.
    pub fn start(&self, span: Span) -> Position {
        self.position(span.file, span.start)
    }

    /// Where a span ends (the character after its last one).
    pub fn end(&self, span: Span) -> Position {
        self.position(span.file, span.end)
    }

    fn position(&self, file: FileId, offset: u32) -> Position {
        let Some(file) = self.get(file) else { return Position { line: 1, column: 1 } };
        let offset = file.text.floor_char_boundary((offset as usize).min(file.text.len()));
        let line = file.line_starts.partition_point(|&s| s as usize <= offset);
        let start = line.checked_sub(1).and_then(|l| file.line_starts.get(l)).map_or(0, |&s| s as usize);
        let column = file.text.get(start..offset).map_or(0, |s| s.chars().count()) + 1;
        Position { line: line.max(1), column }
    }
}

impl SourceFile {
    /// A span as byte offsets that are safe to slice with.
    pub fn clamp(&self, span: Span) -> Range<usize> {
        let len = self.text.len();
        let start = self.text.floor_char_boundary((span.start as usize).min(len));
        let end = self.text.ceil_char_boundary((span.end as usize).min(len));
        start..end.max(start)
    }

    /// The text of a line (counted from 1), without its line end.
    pub fn line(&self, line: usize) -> &str {
        let Some(&start) = line.checked_sub(1).and_then(|l| self.line_starts.get(l)) else { return "" };
        let end = self.line_starts.get(line).map_or(self.text.len(), |&e| e as usize);
        self.text.get(start as usize..end).unwrap_or_default().trim_end_matches(['\n', '\r'])
    }
}
