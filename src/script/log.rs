//! Metrics in a file, one record a line: `log`.

use std::{
    fs::{File, OpenOptions},
    io::{BufRead, BufReader, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
};

use serde_json::{Map, Value as Json};

use super::Error;

/// One metric.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    Int(i64),
    Float(f64),
    Bool(bool),
    Str(String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    Csv,
    JsonLines,
}

/// A log that is being written. Each record is on its way to the disk when [`Log::write`] returns,
/// so a run that is stopped leaves whole lines.
#[derive(Debug)]
pub struct Log {
    path: PathBuf,
    file: File,
    format: Format,
    /// Of the first record.
    keys: Option<Vec<String>>,
}

impl Log {
    /// The format is that of the extension: `.csv`, or `.jsonl` (`.ndjson`, `.json`) for one JSON
    /// object a line. `append` goes on with a file that is there, as a resumed run does: its keys
    /// must be those of the records to come, and a last line that a crash cut off is dropped.
    pub fn open(path: &Path, append: bool) -> Result<Log, Error> {
        let extension = path.extension().and_then(|e| e.to_str()).unwrap_or_default().to_ascii_lowercase();
        let format = match extension.as_str() {
            "csv" => Format::Csv,
            "jsonl" | "ndjson" | "json" => Format::JsonLines,
            _ => {
                return Err(Error::file(path, "a log ends in `.csv` or `.jsonl`"));
            }
        };
        let io = |error: std::io::Error| Error::io(path, "write", &error);
        let mut keys = None;
        let file = if append && path.exists() {
            let mut file = OpenOptions::new().read(true).write(true).open(path).map_err(io)?;
            keys = first_keys(&file, format).map_err(io)?;
            let end = whole_lines(&mut file).map_err(io)?;
            file.set_len(end).and_then(|()| file.seek(SeekFrom::Start(end))).map_err(io)?;
            file
        } else {
            File::create(path).map_err(io)?
        };
        Ok(Log { path: path.to_owned(), file, format, keys })
    }

    /// Appends one record. Every record has the keys of the first, in any order.
    pub fn write(&mut self, record: &[(&str, Value)]) -> Result<(), Error> {
        for (i, (key, _)) in record.iter().enumerate() {
            if record.iter().take(i).any(|(other, _)| other == key) {
                return Err(Error::file(&self.path, format!("the metric `{key}` is given twice")));
            }
        }
        let mut text = String::new();
        let keys = match &self.keys {
            Some(keys) => keys.clone(),
            None => {
                let keys: Vec<String> = record.iter().map(|(key, _)| (*key).to_owned()).collect();
                if self.format == Format::Csv {
                    let names: Vec<String> = keys.iter().map(|k| csv_field(k)).collect();
                    text = names.join(",") + "\n";
                }
                keys
            }
        };
        let mut values = Vec::with_capacity(keys.len());
        for key in &keys {
            let value = record.iter().find(|(k, _)| k == key).map(|(_, value)| value);
            values.push(value.ok_or_else(|| self.changed(&keys, record))?);
        }
        if record.len() != keys.len() {
            return Err(self.changed(&keys, record));
        }
        match self.format {
            Format::Csv => {
                let fields: Vec<String> = values.into_iter().map(csv_value).collect();
                text += &fields.join(",");
            }
            Format::JsonLines => {
                let object: Map<String, Json> =
                    keys.iter().cloned().zip(values.into_iter().map(json_value)).collect();
                text += &Json::Object(object).to_string();
            }
        }
        text.push('\n');
        // One write a record, so that no reader sees half a line.
        self.file.write_all(text.as_bytes()).map_err(|e| Error::io(&self.path, "write", &e))?;
        self.keys = Some(keys);
        Ok(())
    }

    fn changed(&self, keys: &[String], record: &[(&str, Value)]) -> Error {
        let list = |names: Vec<&str>| names.iter().map(|n| format!("`{n}`")).collect::<Vec<_>>().join(", ");
        let missing: Vec<&str> =
            keys.iter().map(String::as_str).filter(|k| !record.iter().any(|(r, _)| r == k)).collect();
        let added: Vec<&str> =
            record.iter().map(|(k, _)| *k).filter(|k| !keys.iter().any(|r| r == k)).collect();
        let mut parts = Vec::new();
        if !missing.is_empty() {
            parts.push(format!("{} missing", list(missing)));
        }
        if !added.is_empty() {
            parts.push(format!("{} new", list(added)));
        }
        Error::file(
            &self.path,
            format!("the metrics differ from those of the first record: {}", parts.join(", ")),
        )
        .help("every record of a log has the same metrics; use a second file for others")
    }
}

/// The keys of the first record of a file, `None` where it has none.
fn first_keys(file: &File, format: Format) -> std::io::Result<Option<Vec<String>>> {
    let mut line = String::new();
    BufReader::new(file).read_line(&mut line)?;
    let Some(line) = line.strip_suffix('\n') else { return Ok(None) };
    Ok(match format {
        Format::Csv => Some(csv_fields(line.trim_end_matches('\r'))),
        Format::JsonLines => match serde_json::from_str::<Json>(line) {
            Ok(Json::Object(object)) => Some(object.into_iter().map(|(key, _)| key).collect()),
            _ => return Err(std::io::Error::other("its first line is not a JSON object")),
        },
    })
}

/// The offset after the last line end.
fn whole_lines(file: &mut File) -> std::io::Result<u64> {
    file.seek(SeekFrom::Start(0))?;
    let mut reader = BufReader::new(file);
    let (mut end, mut offset) = (0, 0);
    let mut line = Vec::new();
    loop {
        line.clear();
        offset += reader.read_until(b'\n', &mut line)? as u64;
        if !line.ends_with(b"\n") {
            return Ok(end);
        }
        end = offset;
    }
}

fn csv_value(value: &Value) -> String {
    match value {
        Value::Int(value) => value.to_string(),
        Value::Float(value) => value.to_string(),
        Value::Bool(value) => value.to_string(),
        Value::Str(text) => csv_field(text),
    }
}

/// Quoted where it has to be (RFC 4180).
fn csv_field(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) || text.trim() != text {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}

/// The fields of one line.
fn csv_fields(line: &str) -> Vec<String> {
    let mut fields = vec![String::new()];
    let mut quoted = false;
    let mut chars = line.chars().peekable();
    while let Some(c) = chars.next() {
        let Some(field) = fields.last_mut() else { break };
        match c {
            '"' if quoted && chars.peek() == Some(&'"') => {
                chars.next();
                field.push('"');
            }
            '"' => quoted = !quoted,
            ',' if !quoted => fields.push(String::new()),
            _ => field.push(c),
        }
    }
    fields
}

/// JSON has no NaN and no infinity: they are `null`.
fn json_value(value: &Value) -> Json {
    match value {
        Value::Int(value) => Json::from(*value),
        Value::Float(value) => serde_json::Number::from_f64(*value).map_or(Json::Null, Json::Number),
        Value::Bool(value) => Json::from(*value),
        Value::Str(text) => Json::from(text.as_str()),
    }
}
