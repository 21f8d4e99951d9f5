//! The safetensors format: named tensors, and strings about them.
//!
//! Files are read with plain reads and not mapped into memory, so that one which shrinks while it
//! is read gives an error and not a crash. The header is checked against the length of the file
//! before anything of its size is allocated.

use std::{
    collections::{BTreeMap, HashMap},
    fs::File,
    io::{Read, Seek, SeekFrom},
    path::{Path, PathBuf},
};

use safetensors::{Dtype, tensor::Metadata};
use serde_json::{Map, Value, json};

use super::{Error, allocate, byte_size, write_atomically};
use crate::{
    exec::Tensor,
    ir::{DType, ShapeText, Type},
};

/// The largest header that the format allows.
const MAX_HEADER: u64 = 100_000_000;

/// An open file whose header has been read and checked.
#[derive(Debug)]
pub struct Reader {
    path: PathBuf,
    file: File,
    data_start: u64,
    entries: BTreeMap<String, Entry>,
    metadata: BTreeMap<String, String>,
}

#[derive(Debug)]
struct Entry {
    dtype: Dtype,
    shape: Vec<usize>,
    offset: u64,
}

/// Strings about the tensors: the format's `__metadata__`.
pub type Notes = HashMap<String, String>;

impl Reader {
    /// Reads the header, and nothing else: enough for `check`.
    pub fn open(path: &Path) -> Result<Reader, Error> {
        let io = |error: std::io::Error| Error::io(path, "read", &error);
        let mut file = File::open(path).map_err(io)?;
        let information = file.metadata().map_err(io)?;
        if information.is_dir() {
            return Err(Error::io(path, "read", &std::io::ErrorKind::IsADirectory.into()));
        }
        let length = information.len();
        let broken = |why: String| Error::file(path, format!("not a safetensors file: {why}"));
        let mut start = [0; 8];
        if length < 8 {
            return Err(broken(format!("it has {length} bytes, fewer than the 8 of a header length")));
        }
        file.read_exact(&mut start).map_err(io)?;
        let header_length = u64::from_le_bytes(start);
        if header_length > length - 8 {
            return Err(broken(format!(
                "header length {} exceeds the file, {}",
                byte_size(header_length as f64),
                byte_size(length as f64)
            )));
        }
        if header_length > MAX_HEADER {
            return Err(broken(format!("header length {} is too large", byte_size(header_length as f64))));
        }
        let mut header = vec![0; header_length as usize];
        file.read_exact(&mut header).map_err(io)?;
        let header = std::str::from_utf8(&header)
            .map_err(|e| broken(format!("its header is not UTF-8 at byte {}", 8 + e.valid_up_to())))?;
        let parsed: Metadata =
            serde_json::from_str(header).map_err(|e| broken(format!("bad header: {e}")))?;
        let data_start = 8 + header_length;
        let (expected, found) = (parsed.data_len() as u64, length - data_start);
        if expected != found {
            return Err(broken(format!(
                "its header describes {expected} bytes of data, the file has {found}"
            )));
        }
        let entries = parsed
            .tensors()
            .into_iter()
            .map(|(name, info)| {
                let offset = data_start + info.data_offsets.0 as u64;
                (name, Entry { dtype: info.dtype, shape: info.shape.clone(), offset })
            })
            .collect();
        let metadata = parsed.metadata().clone().unwrap_or_default().into_iter().collect();
        Ok(Reader { path: path.to_owned(), file, data_start, entries, metadata })
    }

    /// Names, in alphabetical order.
    pub fn names(&self) -> impl ExactSizeIterator<Item = &str> {
        self.entries.keys().map(String::as_str)
    }

    pub fn contains(&self, name: &str) -> bool {
        self.entries.contains_key(name)
    }

    /// The strings stored beside the tensors.
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.metadata
    }

    /// Where the data begins, in bytes.
    pub fn data_start(&self) -> u64 {
        self.data_start
    }

    /// The type of one tensor; an error where there is none of this name, or where its element
    /// type is none of the language's.
    pub fn ty(&self, name: &str) -> Result<Type, Error> {
        let entry = self.entry(name)?;
        let dtype = from_format(entry.dtype).ok_or_else(|| {
            Error::file(&self.path, format!("tensor `{name}` has element type {}", entry.dtype))
                .help("the language has f32, f16, bf16, f64, i32, i64, bool and u8")
        })?;
        Type::new(dtype, entry.shape.as_slice())
            .map_err(|e| Error::file(&self.path, format!("tensor `{name}`: {e}")))
    }

    /// All types, in alphabetical order.
    pub fn types(&self) -> Result<Vec<(String, Type)>, Error> {
        self.entries.keys().map(|name| Ok((name.clone(), self.ty(name)?))).collect()
    }

    /// Reads one tensor.
    pub fn read(&mut self, name: &str) -> Result<Tensor, Error> {
        // The header was checked against the length of the file, so the bytes to allocate are
        // bytes that the file has.
        let ty = self.ty(name)?;
        let offset = self.entry(name)?.offset;
        let is_bool = ty.dtype() == DType::Bool;
        let mut tensor = allocate(&self.path, &ty)?;
        let bytes = tensor.bytes_mut().map_err(|e| Error::memory(&self.path, &e))?;
        let read = self.file.seek(SeekFrom::Start(offset)).and_then(|_| self.file.read_exact(bytes));
        if is_bool {
            // Before anything may fail: a tensor never holds other bytes than 0 and 1.
            bytes.iter_mut().for_each(|b| *b = u8::from(*b != 0));
        }
        read.map_err(|e| Error::io(&self.path, "read", &e))?;
        Ok(tensor)
    }

    /// Reads one tensor that must have this type.
    pub fn read_as(&mut self, name: &str, expected: &Type) -> Result<Tensor, Error> {
        let found = self.ty(name)?;
        if found != *expected {
            return Err(Error::file(&self.path, format!("tensor `{name}` is {found}, expected {expected}")));
        }
        self.read(name)
    }

    fn entry(&self, name: &str) -> Result<&Entry, Error> {
        self.entries.get(name).ok_or_else(|| {
            let error = Error::file(&self.path, format!("there is no tensor `{name}`"));
            let names: Vec<&str> = self.names().take(8).collect();
            match names.as_slice() {
                [] => error.help("the file has no tensors"),
                names => {
                    let more = if self.entries.len() > names.len() { ", …" } else { "" };
                    error.help(format!("it has {}{more}", names.join(", ")))
                }
            }
        })
    }
}

/// Reads all tensors of a file, in alphabetical order.
pub fn read(path: &Path) -> Result<Vec<(String, Tensor)>, Error> {
    let mut reader = Reader::open(path)?;
    let names: Vec<String> = reader.names().map(str::to_owned).collect();
    names
        .into_iter()
        .map(|name| {
            let tensor = reader.read(&name)?;
            Ok((name, tensor))
        })
        .collect()
}

/// Writes tensors and notes, whole or not at all. The bytes depend on the content only, not on
/// the order of the arguments.
pub fn write<N: AsRef<str>>(path: &Path, tensors: &[(N, Tensor)], notes: &Notes) -> Result<(), Error> {
    let mut sorted: Vec<(&str, &Tensor)> = tensors.iter().map(|(n, t)| (n.as_ref(), t)).collect();
    // Larger elements first keeps every tensor aligned without gaps.
    sorted.sort_by(|(a, x), (b, y)| y.dtype().size().cmp(&x.dtype().size()).then(a.cmp(b)));
    let mut header = Map::new();
    if !notes.is_empty() {
        let notes: BTreeMap<&String, &String> = notes.iter().collect();
        header.insert("__metadata__".into(), json!(notes));
    }
    let mut offset = 0u64;
    for (name, tensor) in &sorted {
        if *name == "__metadata__" {
            return Err(Error::file(path, "a tensor cannot have the name `__metadata__`"));
        }
        let end = offset
            .checked_add(tensor.ty().bytes())
            .ok_or_else(|| Error::file(path, "the tensors are too large together"))?;
        let entry = json!({
            "dtype": to_format(tensor.dtype()),
            "shape": tensor.shape(),
            "data_offsets": [offset, end],
        });
        if header.insert((*name).to_owned(), entry).is_some() {
            return Err(Error::file(path, format!("two tensors have the name `{name}`")));
        }
        offset = end;
    }
    let mut header = Value::Object(header).to_string().into_bytes();
    header.resize(header.len().next_multiple_of(8), b' ');
    if header.len() as u64 > MAX_HEADER {
        return Err(Error::file(path, "there are too many tensors for one safetensors file"));
    }
    write_atomically(path, |file| {
        file.write_all(&(header.len() as u64).to_le_bytes())?;
        file.write_all(&header)?;
        sorted.iter().try_for_each(|(_, tensor)| file.write_all(tensor.bytes()))
    })
}

/// Checks that a file has exactly these tensors; the error lists what is missing, unknown or of
/// another type.
pub fn expect(reader: &Reader, expected: &[(&str, &Type)]) -> Result<(), Error> {
    let mut problems = Vec::new();
    for (name, ty) in expected {
        if !reader.contains(name) {
            problems.push(format!("`{name}` ({ty}) is missing"));
        } else {
            let found = reader.ty(name)?;
            if found != **ty {
                problems.push(format!("`{name}` is {found}, expected {ty}"));
            }
        }
    }
    for name in reader.names() {
        if !expected.iter().any(|(n, _)| *n == name) {
            let shape = reader.entries.get(name).map(|e| ShapeText(&e.shape).to_string()).unwrap_or_default();
            problems.push(format!("`{name}` {shape} is not expected"));
        }
    }
    if problems.is_empty() {
        return Ok(());
    }
    const SHOWN: usize = 6;
    let more = problems.len().saturating_sub(SHOWN);
    problems.truncate(SHOWN);
    let mut text = problems.join(", ");
    if more > 0 {
        text += &format!(", and {more} more");
    }
    Err(Error::file(&reader.path, text))
}

fn to_format(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "F32",
        DType::F16 => "F16",
        DType::BF16 => "BF16",
        DType::F64 => "F64",
        DType::I32 => "I32",
        DType::I64 => "I64",
        DType::Bool => "BOOL",
        DType::U8 => "U8",
    }
}

fn from_format(dtype: Dtype) -> Option<DType> {
    Some(match dtype {
        Dtype::F32 => DType::F32,
        Dtype::F16 => DType::F16,
        Dtype::BF16 => DType::BF16,
        Dtype::F64 => DType::F64,
        Dtype::I32 => DType::I32,
        Dtype::I64 => DType::I64,
        Dtype::BOOL => DType::Bool,
        Dtype::U8 => DType::U8,
        _ => return None,
    })
}
