//! The table of blocks that `tg pack` reads: CSV with the columns `id`, `lower`, `upper` and `size`,
//! in this order or named by a header. Other columns are kept.

use std::{
    io::{self, Read},
    ops::Range,
    path::Path,
    sync::Arc,
};

use rustc_hash::FxHashMap;

use crate::{
    codes,
    diagnostic::{Diagnostic, Error},
    report::visible,
    schedule::pack::Block,
    source::{FileId, SourceMap, Span},
};

/// Times, sizes and heights are at most this: 2^63 − 1.
pub(super) const MOST: u64 = i64::MAX as u64;

/// A larger table is refused: its figures and texts would not fit the memory of small machines.
const MOST_BYTES: u64 = 1 << 28;

/// After so many errors, the rest of the table is not looked at.
const MOST_ERRORS: usize = 10;

/// The columns that every table has.
const COLUMNS: [&str; 4] = ["id", "lower", "upper", "size"];
const OFFSET: &str = "offset";

/// A table without faults.
#[derive(Debug)]
pub(super) struct Table {
    text: Arc<str>,
    /// Line of the header.
    header: Option<Range<usize>>,
    /// Lines of the blocks.
    rows: Vec<Range<usize>>,
    pub(super) blocks: Vec<Block>,
    /// The column that already holds offsets; they are replaced.
    offset: Option<usize>,
}

/// Reads a table from a file; `-` is standard input.
pub(super) fn read(path: &Path) -> Result<Table, Error> {
    let is_stdin = path == Path::new("-");
    let name = if is_stdin { "<stdin>".to_owned() } else { path.display().to_string() };
    let mut bytes = Vec::new();
    let outcome = if is_stdin {
        io::stdin().lock().take(MOST_BYTES + 1).read_to_end(&mut bytes)
    } else {
        std::fs::File::open(path).and_then(|file| file.take(MOST_BYTES + 1).read_to_end(&mut bytes))
    };
    let no_place = |diagnostic: Diagnostic| Err(Error::new(vec![diagnostic], Arc::new(SourceMap::new())));
    if let Err(error) = outcome {
        let why = match error.kind() {
            io::ErrorKind::NotFound => "there is no such file".to_owned(),
            io::ErrorKind::IsADirectory => "it is a folder".to_owned(),
            io::ErrorKind::PermissionDenied => "permission denied".to_owned(),
            _ => error.to_string(),
        };
        let message = format!("cannot read `{name}`: {why}");
        return no_place(Diagnostic::error(codes::FILE, Span::default(), message));
    }
    if bytes.len() as u64 > MOST_BYTES {
        let message = format!("`{name}` is larger than {} MiB", MOST_BYTES >> 20);
        return no_place(Diagnostic::error(codes::FILE_CONTENT, Span::default(), message));
    }
    let (text, is_utf8) = match String::from_utf8(bytes) {
        Ok(text) => (text, None),
        Err(error) => {
            let at = error.utf8_error().valid_up_to();
            (String::from_utf8_lossy(error.as_bytes()).into_owned(), Some(at))
        }
    };
    let text: Arc<str> = text.into();
    let mut sources = SourceMap::new();
    let file = sources.add(name.clone(), Arc::clone(&text));
    let faults = match is_utf8 {
        None => match parse(&text, file) {
            Ok(table) => return Ok(table),
            Err(faults) => faults,
        },
        Some(at) => {
            let span = Span::new(file, at..at + char::REPLACEMENT_CHARACTER.len_utf8());
            vec![Diagnostic::error(codes::FILE_CONTENT, span, format!("`{name}` is not UTF-8 text"))]
        }
    };
    Err(Error::new(faults, Arc::new(sources)))
}

impl Table {
    /// The rows as they came, with a column of offsets.
    pub(super) fn with_offsets(&self, offsets: &[u64]) -> String {
        let mut out = String::with_capacity(self.text.len() + offsets.len() * 12);
        if let Some(header) = &self.header {
            out.push_str(&self.text[header.clone()]);
            out.push_str(if self.offset.is_none() { ",offset\n" } else { "\n" });
        }
        for (row, offset) in self.rows.iter().zip(offsets) {
            let line = &self.text[row.clone()];
            match self.offset.and_then(|column| fields(line).nth(column)) {
                Some(old) => {
                    out.push_str(&line[..old.start]);
                    out.push_str(&offset.to_string());
                    out.push_str(&line[old.end..]);
                }
                None => {
                    out.push_str(line);
                    out.push(',');
                    out.push_str(&offset.to_string());
                }
            }
            out.push('\n');
        }
        out
    }
}

fn parse(text: &Arc<str>, file: FileId) -> Result<Table, Vec<Diagnostic>> {
    let fault = |range: Range<usize>, message: String| {
        Diagnostic::error(codes::FILE_CONTENT, Span::new(file, range), message)
    };
    let mut lines = lines(text).peekable();
    let Some(first) = lines.peek().cloned() else {
        return Err(vec![fault(0..0, "the table is empty".to_owned()).help(EXPECTED)]);
    };
    let mut columns = [0, 1, 2, 3];
    let mut header = None;
    let mut offset = None;
    let names: Vec<String> = fields(&text[first.clone()])
        .map(|f| text[first.start + f.start..first.start + f.end].trim().to_ascii_lowercase())
        .collect();
    if names.iter().any(|name| COLUMNS[1..].contains(&name.as_str())) {
        for (column, wanted) in columns.iter_mut().zip(COLUMNS) {
            match names.iter().position(|name| name == wanted) {
                Some(at) => *column = at,
                None => {
                    let message = format!("the header has no column `{wanted}`");
                    return Err(vec![fault(first, message).help(EXPECTED)]);
                }
            }
        }
        for (at, name) in names.iter().enumerate() {
            let is_ours = COLUMNS.contains(&name.as_str()) || name == OFFSET;
            if is_ours && names.iter().take(at).any(|other| other == name) {
                return Err(vec![fault(first, format!("the header has two columns `{name}`"))]);
            }
        }
        offset = names.iter().position(|name| name == OFFSET);
        header = lines.next();
    }
    let mut rows: Vec<Range<usize>> = Vec::new();
    let mut blocks = Vec::new();
    let mut ids: FxHashMap<&str, usize> = FxHashMap::default();
    let mut faults: Vec<Diagnostic> = Vec::new();
    for line in lines {
        if faults.len() >= MOST_ERRORS {
            break;
        }
        let row = match parse_row(text, line.clone(), columns, file) {
            Ok(row) => row,
            Err(diagnostic) => {
                faults.push(*diagnostic);
                continue;
            }
        };
        if let Some(&earlier) = ids.get(&text[row.id.clone()]) {
            let shown = visible::line(&text[row.id.clone()], 40).into_owned();
            let there: Range<usize> = rows.get(earlier).cloned().unwrap_or(0..0);
            faults.push(
                fault(row.id, format!("two blocks have the id `{shown}`"))
                    .secondary(Span::new(file, there), "the first one"),
            );
            continue;
        }
        ids.insert(&text[row.id], rows.len());
        // A column would be read as another one.
        let count = fields(&text[line.clone()]).count();
        if header.is_some() && count > names.len() {
            let message = format!("this row has {count} fields, the header names {}", names.len());
            faults.push(fault(line, message));
            continue;
        }
        rows.push(line);
        blocks.push(row.block);
    }
    if faults.is_empty()
        && let Some(at) = overflow(&blocks)
    {
        let message = format!("the blocks alive at {} add up to 2^63 bytes or more", blocks[at].lower);
        faults.push(fault(rows[at].clone(), message).label("with this one"));
    }
    if !faults.is_empty() {
        return Err(faults);
    }
    Ok(Table { text: Arc::clone(text), header, rows, blocks, offset })
}

const EXPECTED: &str = "the columns are `id,lower,upper,size`; a block is alive from `lower` up to, not \
    including, `upper`";

struct Row {
    id: Range<usize>,
    block: Block,
}

fn parse_row(
    text: &str,
    line: Range<usize>,
    columns: [usize; 4],
    file: FileId,
) -> Result<Row, Box<Diagnostic>> {
    let fault = |range: Range<usize>, message: String| {
        Box::new(Diagnostic::error(codes::FILE_CONTENT, Span::new(file, range), message))
    };
    // Spans of the trimmed fields.
    let mut found: [Option<Range<usize>>; 4] = [const { None }; 4];
    let mut count = 0;
    for (at, field) in fields(&text[line.clone()]).enumerate() {
        count += 1;
        if let Some(slot) = columns.iter().position(|&column| column == at) {
            let field = line.start + field.start..line.start + field.end;
            let lead = text[field.clone()].len() - text[field.clone()].trim_start().len();
            let start = field.start + lead;
            found[slot] = Some(start..start + text[field].trim().len());
        }
    }
    let [Some(id), Some(lower), Some(upper), Some(size)] = found else {
        let needed = columns.iter().max().map_or(0, |&last| last + 1);
        let message = format!("this row has {count} fields, the columns need {needed}");
        return Err(Box::new(fault(line, message).help(EXPECTED)));
    };
    if id.is_empty() {
        return Err(fault(line, "the id of this block is empty".to_owned()));
    }
    let number = |range: &Range<usize>, name: &str| -> Result<u64, Box<Diagnostic>> {
        let word = &text[range.clone()];
        // The span of an empty field is the row.
        let place = if range.is_empty() { line.clone() } else { range.clone() };
        let shown = visible::line(word, 40);
        if word.is_empty() {
            return Err(fault(place, format!("`{name}` is empty")));
        }
        let digits = word.strip_prefix('-').unwrap_or(word);
        if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
            return Err(fault(place, format!("`{name}` is `{shown}`, which is not a whole number")));
        }
        if word.starts_with('-') {
            return Err(fault(place, format!("`{name}` is negative")));
        }
        match word.parse::<u64>() {
            Ok(value) if value <= MOST => Ok(value),
            _ => Err(fault(place, format!("`{name}` is 2^63 or more"))),
        }
    };
    let block = Block {
        lower: number(&lower, "lower")?,
        upper: number(&upper, "upper")?,
        bytes: number(&size, "size")?,
    };
    if block.lower >= block.upper {
        let span = lower.start.min(upper.start)..lower.end.max(upper.end);
        let message = format!("`lower` is {}, `upper` must be larger", block.lower);
        return Err(Box::new(fault(span, message).label("alive at no time")));
    }
    Ok(Row { id, block })
}

/// A block at whose start more than [`MOST`] bytes are alive.
fn overflow(blocks: &[Block]) -> Option<usize> {
    let mut starts: Vec<usize> = (0..blocks.len()).collect();
    starts.sort_unstable_by_key(|&i| blocks[i].lower);
    let mut ends: Vec<usize> = (0..blocks.len()).collect();
    ends.sort_unstable_by_key(|&i| blocks[i].upper);
    let mut ends = ends.into_iter().peekable();
    let mut alive: i128 = 0;
    for i in starts {
        while let Some(dead) = ends.next_if(|&d| blocks[d].upper <= blocks[i].lower) {
            alive -= i128::from(blocks[dead].bytes);
        }
        alive += i128::from(blocks[i].bytes);
        if alive > i128::from(MOST) {
            return Some(i);
        }
    }
    None
}

/// Lines that are not blank, without their ends.
fn lines(text: &str) -> impl Iterator<Item = Range<usize>> + '_ {
    let mut start = if text.starts_with('\u{feff}') { '\u{feff}'.len_utf8() } else { 0 };
    std::iter::from_fn(move || {
        while start < text.len() {
            let from = start;
            let end = text[from..].find('\n').map_or(text.len(), |at| from + at);
            start = end + 1;
            let line = text[from..end].trim_end_matches('\r');
            if !line.trim().is_empty() {
                return Some(from..from + line.len());
            }
        }
        None
    })
}

/// The fields of a line: separated by commas, except by those between quotation marks.
fn fields(line: &str) -> impl Iterator<Item = Range<usize>> + '_ {
    let mut start = Some(0);
    std::iter::from_fn(move || {
        let from = start?;
        let mut quoted = false;
        for (at, byte) in line.bytes().enumerate().skip(from) {
            match byte {
                b'"' => quoted = !quoted,
                b',' if !quoted => {
                    start = Some(at + 1);
                    return Some(from..at);
                }
                _ => {}
            }
        }
        start = None;
        Some(from..line.len())
    })
}
