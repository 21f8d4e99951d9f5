//! The .npy format of NumPy, versions 1 to 3: one tensor a file.
//!
//! bf16 has no NumPy type of its own; it is stored as the two-byte void type, as other libraries
//! do.

use std::{fs::File, io::Read, path::Path};

use super::{Error, allocate, byte_size, write_atomically};
use crate::{
    exec::Tensor,
    ir::{DType, Type},
};

const MAGIC: &[u8; 6] = b"\x93NUMPY";

/// The longest header that is read. NumPy's own limit is 10,000 characters.
const MAX_HEADER: u64 = 1 << 20;

/// The type of the tensor in a file, from its header: enough for `check`. The length of the file
/// is checked too.
pub fn read_type(path: &Path) -> Result<Type, Error> {
    Ok(open(path)?.1.ty)
}

/// Reads a file.
pub fn read(path: &Path) -> Result<Tensor, Error> {
    let (mut file, header) = open(path)?;
    // `open` has checked that the file has all these bytes.
    let mut tensor = allocate(path, &header.ty)?;
    let bytes = tensor.bytes_mut().map_err(|e| Error::memory(path, &e))?;
    let read = file.read_exact(bytes);
    if header.ty.dtype() == DType::Bool {
        // A tensor never holds other bytes than 0 and 1.
        bytes.iter_mut().for_each(|b| *b = u8::from(*b != 0));
    }
    read.map_err(|e| Error::io(path, "read", &e))?;
    if header.column_major {
        let mut rows = allocate(path, &header.ty)?;
        let target = rows.bytes_mut().map_err(|e| Error::memory(path, &e))?;
        copy_from_column_major(&tensor, target);
        return Ok(rows);
    }
    Ok(tensor)
}

/// Writes a file of version 1 in C order, whole or not at all.
pub fn write(path: &Path, tensor: &Tensor) -> Result<(), Error> {
    let mut shape = String::new();
    for size in tensor.shape() {
        shape += &format!("{size}, ");
    }
    // One axis is written `(3,)`; more have no comma at the end.
    let shape = match tensor.shape().len() {
        0 => String::new(),
        1 => shape.trim_end().to_owned(),
        _ => shape.trim_end().trim_end_matches(',').to_owned(),
    };
    let mut header = format!(
        "{{'descr': '{}', 'fortran_order': False, 'shape': ({shape}), }}",
        descriptor(tensor.dtype())
    );
    // Magic, version and header length take 10 bytes; the data starts at a multiple of 64.
    let padded = (10 + header.len() + 1).next_multiple_of(64) - 10;
    while header.len() + 1 < padded {
        header.push(' ');
    }
    header.push('\n');
    let length = u16::try_from(header.len())
        .map_err(|_| Error::file(path, "the shape has too many axes for a .npy file"))?;
    write_atomically(path, |file| {
        file.write_all(MAGIC)?;
        file.write_all(&[1, 0])?;
        file.write_all(&length.to_le_bytes())?;
        file.write_all(header.as_bytes())?;
        file.write_all(tensor.bytes())
    })
}

struct Header {
    ty: Type,
    column_major: bool,
}

/// Opens a file and leaves it at the first byte of its data.
fn open(path: &Path) -> Result<(File, Header), Error> {
    let io = |error: std::io::Error| Error::io(path, "read", &error);
    let broken = |why: String| Error::file(path, format!("not a .npy file: {why}"));
    let mut file = File::open(path).map_err(io)?;
    let information = file.metadata().map_err(io)?;
    if information.is_dir() {
        return Err(Error::io(path, "read", &std::io::ErrorKind::IsADirectory.into()));
    }
    let length = information.len();
    let short = || broken(format!("it ends after {length} bytes, in its header"));
    let mut start = [0; 8];
    if length < 10 {
        return Err(short());
    }
    file.read_exact(&mut start).map_err(io)?;
    let Some([major, _]) = start.strip_prefix(MAGIC.as_slice()) else {
        let error = broken("it does not start with `\\x93NUMPY`".into());
        return Err(if start.starts_with(b"PK") {
            error.help("it looks like .npz: load it in Python and save each array as .npy or .safetensors")
        } else {
            error
        });
    };
    let (header_length, prefix) = match major {
        1 => {
            let mut bytes = [0; 2];
            file.read_exact(&mut bytes).map_err(io)?;
            (u64::from(u16::from_le_bytes(bytes)), 10)
        }
        2 | 3 if length < 12 => return Err(short()),
        2 | 3 => {
            let mut bytes = [0; 4];
            file.read_exact(&mut bytes).map_err(io)?;
            (u64::from(u32::from_le_bytes(bytes)), 12)
        }
        _ => return Err(broken(format!("version {major} is not known"))),
    };
    let available = length - prefix;
    if header_length > available {
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
    let text = std::str::from_utf8(&header).map_err(|_| broken("its header is not text".into()))?;
    let header =
        parse(text).map_err(|e| Error { message: format!("`{}`: {}", path.display(), e.message), ..e })?;
    let (expected, found) = (header.ty.bytes(), available - header_length);
    if expected != found {
        return Err(Error::file(
            path,
            format!(
                "its header describes {} ({expected} bytes), the file has {found} bytes of data",
                header.ty
            ),
        ));
    }
    Ok((file, header))
}

/// Parses the dictionary of the header, a Python literal with three keys.
fn parse(text: &str) -> Result<Header, Error> {
    let malformed = || Error::new(format!("not a .npy file: bad header `{}`", crop(text)));
    let inside = text.trim().strip_prefix('{').and_then(|t| t.strip_suffix('}')).ok_or_else(malformed)?;
    let (mut dtype, mut order, mut shape) = (None, None, None);
    let mut rest = inside.trim_start();
    while !rest.is_empty() {
        let (key, after) = quoted(rest).ok_or_else(malformed)?;
        rest = after.trim_start().strip_prefix(':').ok_or_else(malformed)?.trim_start();
        match key {
            "descr" if rest.starts_with('[') => {
                return Err(Error::new("records with named fields are not supported")
                    .help("save each field as an array of its own"));
            }
            "descr" => {
                let (descriptor, after) = quoted(rest).ok_or_else(malformed)?;
                dtype = Some(parse_descriptor(descriptor)?);
                rest = after;
            }
            "fortran_order" => {
                let (value, after) = [("True", true), ("False", false)]
                    .into_iter()
                    .find_map(|(word, value)| Some((value, rest.strip_prefix(word)?)))
                    .ok_or_else(malformed)?;
                order = Some(value);
                rest = after;
            }
            "shape" => {
                let (list, after) =
                    rest.strip_prefix('(').and_then(|r| r.split_once(')')).ok_or_else(malformed)?;
                shape = Some(parse_shape(list).ok_or_else(malformed)?);
                rest = after;
            }
            _ => return Err(malformed()),
        }
        rest = rest.trim_start();
        match rest.strip_prefix(',') {
            Some(after) => rest = after.trim_start(),
            None if rest.is_empty() => {}
            None => return Err(malformed()),
        }
    }
    let (Some(dtype), Some(column_major), Some(shape)) = (dtype, order, shape) else {
        return Err(malformed());
    };
    let ty = Type::new(dtype, shape).map_err(|e| Error::new(e.to_string()))?;
    Ok(Header { ty, column_major })
}

/// A string in quotes, and what comes after it.
fn quoted(text: &str) -> Option<(&str, &str)> {
    let quote = text.chars().next().filter(|c| matches!(c, '\'' | '"'))?;
    text.get(1..)?.split_once(quote)
}

fn parse_shape(list: &str) -> Option<Vec<usize>> {
    let list = list.trim();
    let list = list.strip_suffix(',').unwrap_or(list);
    if list.is_empty() {
        return Some(Vec::new());
    }
    // Python 2 wrote long numbers as `3L`.
    list.split(',').map(|size| size.trim().trim_end_matches('L').parse().ok()).collect()
}

fn descriptor(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "<f4",
        DType::F16 => "<f2",
        DType::BF16 => "<V2",
        DType::F64 => "<f8",
        DType::I32 => "<i4",
        DType::I64 => "<i8",
        DType::Bool => "|b1",
        DType::U8 => "|u1",
    }
}

fn parse_descriptor(text: &str) -> Result<DType, Error> {
    let (order, kind) = match text.chars().next() {
        Some(order @ ('<' | '>' | '|' | '=')) => (order, text.get(1..).unwrap_or_default()),
        _ => ('=', text),
    };
    let dtype = match kind {
        "f4" => DType::F32,
        "f2" => DType::F16,
        "V2" => DType::BF16,
        "f8" => DType::F64,
        "i4" => DType::I32,
        "i8" => DType::I64,
        "b1" | "?" => DType::Bool,
        "u1" => DType::U8,
        _ => {
            return Err(Error::new(format!("element type `{}` is not supported", crop(text))).help(
                "convert it in NumPy first, such as `a.astype(\"float32\")` or `a.astype(\"int32\")`",
            ));
        }
    };
    if order == '>' && dtype.size() > 1 {
        return Err(Error::new(format!("element type `{}` is big-endian", crop(text)))
            .help("convert it in NumPy first: `a.astype(a.dtype.newbyteorder(\"<\"))`"));
    }
    Ok(dtype)
}

/// Text from a file, safe and short enough for a message.
fn crop(text: &str) -> String {
    const LONGEST: usize = 80;
    let mut cropped = String::new();
    for c in text.trim_end().chars().take(LONGEST) {
        // Control characters could change the terminal.
        if c.is_control() { cropped.extend(c.escape_debug()) } else { cropped.push(c) }
    }
    if text.trim_end().chars().count() > LONGEST {
        cropped.push('…');
    }
    cropped
}

/// The same elements in row-major order, into the bytes of a tensor of the same type.
fn copy_from_column_major(tensor: &Tensor, result: &mut [u8]) {
    let shape = tensor.shape().to_vec();
    let size = tensor.dtype().size();
    let source = tensor.bytes();
    let mut strides = Vec::with_capacity(shape.len());
    let mut stride = size;
    for &dim in &shape {
        strides.push(stride);
        stride = stride.saturating_mul(dim.max(1));
    }
    let mut index = vec![0usize; shape.len()];
    let mut offset = 0usize;
    for target in result.chunks_exact_mut(size) {
        if let Some(element) = source.get(offset..offset + size) {
            target.copy_from_slice(element);
        }
        // Counts up the last axis first, as row-major order does.
        for ((i, &dim), &stride) in index.iter_mut().zip(&shape).zip(&strides).rev() {
            *i += 1;
            offset += stride;
            if *i < dim {
                break;
            }
            offset -= stride * *i;
            *i = 0;
        }
    }
}
