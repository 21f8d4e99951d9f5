//! Files, data, logs, plots and printed numbers: what scripts read and write.

#[path = "support/folder.rs"]
mod folder;

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use folder::Folder;
use tg::{
    exec::Tensor,
    ir::{DType, Type},
    script::{
        self, Error,
        batches::{self, Batches, Windows},
        format::{self, Format},
        log::{Log, Value},
        npy,
        plot::{self, Series},
        print,
        random::Random,
        safetensors::{self, Notes, Reader},
        sample::{self, Weights},
        svg, text,
    },
};

impl Folder {
    /// The path of a new file.
    fn with(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        self.file(name, bytes).path(name)
    }
}

/// Any bits at all, NaNs with payloads included.
fn noise(dtype: DType, shape: &[usize], seed: u64) -> Tensor {
    let ty = Type::new(dtype, shape).expect("a type");
    let mut random = Random::new(seed, 99);
    let mask = if dtype == DType::Bool { 1 } else { 255 };
    let bytes: Vec<u8> = (0..ty.bytes()).map(|_| random.next_u64() as u8 & mask).collect();
    Tensor::from_bytes(ty, &bytes).expect("as many bytes as the type has")
}

fn ints(shape: &[usize], values: &[i32]) -> Tensor {
    Tensor::from_slice(shape, values).expect("as many values as the shape has")
}

fn floats(shape: &[usize], values: &[f32]) -> Tensor {
    Tensor::from_slice(shape, values).expect("as many values as the shape has")
}

/// The message, without the folder, and the help on a second line.
fn message<T: std::fmt::Debug>(result: Result<T, Error>, folder: &Folder) -> String {
    let error = result.expect_err("it is an error");
    let text = match error.help {
        Some(help) => format!("{}\nhelp: {help}", error.message),
        None => error.message,
    };
    text.replace(&format!("{}/", folder.0.display()), "")
}

const SHAPES: [&[usize]; 7] = [&[], &[0], &[1], &[5], &[2, 3], &[3, 0, 2], &[2, 3, 1, 4]];

#[test]
fn npy_gives_back_the_same_bits() {
    let folder = Folder::new("script");
    let path = folder.path("x.npy");
    for (i, dtype) in DType::ALL.into_iter().enumerate() {
        for (j, shape) in SHAPES.into_iter().enumerate() {
            let tensor = noise(dtype, shape, (10 * i + j) as u64);
            npy::write(&path, &tensor).unwrap();
            assert_eq!(npy::read(&path).unwrap(), tensor, "{dtype} {shape:?}");
            assert_eq!(npy::read_type(&path).unwrap(), *tensor.ty());
            let bytes = fs::read(&path).unwrap();
            assert!((bytes.len() - tensor.bytes().len()).is_multiple_of(64), "the data is aligned");
        }
    }
    assert_eq!(folder.names(), ["x.npy"], "no temporary file is left");
}

/// A file as NumPy writes it, by its format description.
fn numpy(version: u8, header: &str, data: &[u8]) -> Vec<u8> {
    let mut bytes = b"\x93NUMPY".to_vec();
    bytes.extend([version, 0]);
    match version {
        1 => bytes.extend((header.len() as u16).to_le_bytes()),
        _ => bytes.extend((header.len() as u32).to_le_bytes()),
    }
    bytes.extend(header.as_bytes());
    bytes.extend(data);
    bytes
}

#[test]
fn npy_reads_every_version_and_order() {
    let folder = Folder::new("script");
    let data: Vec<u8> = (0..6i32).flat_map(i32::to_le_bytes).collect();
    for version in 1..=3 {
        let header = "{'descr': '<i4', 'fortran_order': False, 'shape': (2, 3), }   \n";
        let path = folder.with("c.npy", numpy(version, header, &data));
        assert_eq!(npy::read(&path).unwrap(), ints(&[2, 3], &[0, 1, 2, 3, 4, 5]));
        let header = "{'shape': (2, 3), 'fortran_order': True, 'descr': '<i4'}\n";
        let path = folder.with("f.npy", numpy(version, header, &data));
        assert_eq!(npy::read(&path).unwrap(), ints(&[2, 3], &[0, 2, 4, 1, 3, 5]));
    }
    let header = "{\"descr\": \"<i4\", \"fortran_order\": True, \"shape\": (1L, 2, 3,), }";
    let path = folder.with("q.npy", numpy(1, header, &data));
    assert_eq!(npy::read(&path).unwrap(), ints(&[1, 2, 3], &[0, 2, 4, 1, 3, 5]));
    let path =
        folder.with("b.npy", numpy(1, "{'descr': '|b1', 'fortran_order': False, 'shape': (2,)}", &[0, 255]));
    assert_eq!(npy::read(&path).unwrap(), Tensor::from_slice(&[2], &[false, true]).unwrap());
}

#[test]
fn npy_in_column_major_order_of_every_dtype() {
    let folder = Folder::new("script");
    let shape = [2usize, 3, 4];
    for dtype in DType::ALL {
        let expected = noise(dtype, &shape, 3);
        let size = dtype.size();
        let mut data = Vec::new();
        for k in 0..4 {
            for j in 0..3 {
                for i in 0..2 {
                    let at = (i * 12 + j * 4 + k) * size;
                    data.extend(&expected.bytes()[at..at + size]);
                }
            }
        }
        npy::write(&folder.path("x.npy"), &expected).unwrap();
        let written = fs::read(folder.path("x.npy")).unwrap();
        let header_end = written.len() - data.len();
        let header = String::from_utf8_lossy(&written[10..header_end]).replace("False", "True ");
        let path = folder.with("f.npy", numpy(1, &header, &data));
        assert_eq!(npy::read(&path).unwrap(), expected, "{dtype}");
    }
}

#[test]
fn damaged_npy_files() {
    let folder = Folder::new("script");
    let ok = "{'descr': '<f4', 'fortran_order': False, 'shape': (2,)}";
    let cases: Vec<(Vec<u8>, &str)> = vec![
        (b"".to_vec(), "`x.npy`: not a .npy file: it ends after 0 bytes, in its header"),
        (b"hello world".to_vec(), "`x.npy`: not a .npy file: it does not start with `\\x93NUMPY`"),
        (
            b"PK\x03\x04 and more".to_vec(),
            "`x.npy`: not a .npy file: it does not start with `\\x93NUMPY`\n\
             help: it looks like .npz: load it in Python and save each array as .npy or .safetensors",
        ),
        (numpy(9, ok, &[0; 8]), "`x.npy`: not a .npy file: version 9 is not known"),
        (
            numpy(1, ok, &[0; 7]),
            "`x.npy`: its header describes f32[2] (8 bytes), the file has 7 bytes of data",
        ),
        (
            numpy(1, ok, &[0; 9]),
            "`x.npy`: its header describes f32[2] (8 bytes), the file has 9 bytes of data",
        ),
        (
            [b"\x93NUMPY\x02\0".as_slice(), &u32::MAX.to_le_bytes(), b"{}"].concat(),
            "`x.npy`: not a .npy file: header length 4.0 GiB exceeds the file, 14 B",
        ),
        (numpy(1, "{'descr': '<f4'}", &[]), "`x.npy`: not a .npy file: bad header `{'descr': '<f4'}`"),
        (numpy(1, "nonsense\x1b", &[]), "`x.npy`: not a .npy file: bad header `nonsense\\u{1b}`"),
        (
            numpy(1, "{'descr': '>f4', 'fortran_order': False, 'shape': (2,)}", &[0; 8]),
            "`x.npy`: element type `>f4` is big-endian\n\
             help: convert it in NumPy first: `a.astype(a.dtype.newbyteorder(\"<\"))`",
        ),
        (
            numpy(1, "{'descr': '<i2', 'fortran_order': False, 'shape': (2,)}", &[0; 4]),
            "`x.npy`: element type `<i2` is not supported\n\
             help: convert it in NumPy first, such as `a.astype(\"float32\")` or `a.astype(\"int32\")`",
        ),
        (
            numpy(1, "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (2,)}", &[0; 8]),
            "`x.npy`: records with named fields are not supported\nhelp: save each field as an array of its own",
        ),
        (
            numpy(1, "{'descr': '<f4', 'fortran_order': False, 'shape': (4294967296, 4294967296)}", &[]),
            "`x.npy`: f32[4294967296, 4294967296] is too large: its size in bytes does not fit in 62 bits",
        ),
        (
            numpy(1, "{'descr': '<f4', 'fortran_order': False, 'shape': (1099511627776,)}", &[0; 8]),
            "`x.npy`: its header describes f32[1099511627776] (4398046511104 bytes), the file has 8 bytes of data",
        ),
    ];
    for (bytes, expected) in cases {
        let path = folder.with("x.npy", bytes);
        assert_eq!(message(npy::read(&path), &folder), expected);
    }
    assert_eq!(
        message(npy::read(&folder.path("no.npy")), &folder),
        "cannot read `no.npy`: there is no such file"
    );
    fs::create_dir(folder.path("sub.npy")).unwrap();
    assert_eq!(message(npy::read(&folder.path("sub.npy")), &folder), "cannot read `sub.npy`: it is a folder");
    assert_eq!(
        message(npy::write(&folder.path("sub.npy"), &ints(&[1], &[1])), &folder),
        "cannot write `sub.npy`: it is a folder"
    );
    assert_eq!(
        message(npy::write(&folder.path("none/x.npy"), &ints(&[1], &[1])), &folder),
        "cannot write `none/x.npy`: the folder `none` does not exist\nhelp: create the folder, or name another"
    );
}

#[test]
fn every_prefix_and_every_changed_byte_of_a_file() {
    let folder = Folder::new("script");
    let tensor = noise(DType::F32, &[2, 3], 1);
    npy::write(&folder.path("x.npy"), &tensor).unwrap();
    let notes = Notes::from([("step".to_owned(), "7".to_owned())]);
    let pair = [("a", noise(DType::I64, &[2], 2)), ("b", tensor)];
    safetensors::write(&folder.path("x.safetensors"), &pair, &notes).unwrap();
    type Reads = fn(&Path) -> bool;
    let read: [(&str, Reads); 2] = [
        ("x.npy", |path| npy::read(path).is_ok()),
        ("x.safetensors", |path| safetensors::read(path).is_ok()),
    ];
    for (name, read) in read {
        let bytes = fs::read(folder.path(name)).unwrap();
        assert!(read(&folder.path(name)));
        for length in 0..bytes.len() {
            let path = folder.with("cut", &bytes[..length]);
            assert!(!read(&path), "{name} cut after {length} bytes");
        }
        let longer = folder.with("cut", [bytes.as_slice(), &[0]].concat());
        assert!(!read(&longer));
        // A changed byte gives other data, or an error; never a panic.
        let mut errors = 0;
        for at in 0..bytes.len() {
            for change in [1, 0xff] {
                let mut bytes = bytes.clone();
                bytes[at] ^= change;
                errors += usize::from(!read(&folder.with("changed", bytes)));
            }
        }
        assert!(errors > 0, "{name}");
    }
}

#[test]
fn safetensors_give_back_the_same_bits() {
    let folder = Folder::new("script");
    let path = folder.path("x.safetensors");
    let mut tensors = Vec::new();
    for (i, dtype) in DType::ALL.into_iter().enumerate() {
        for (j, shape) in SHAPES.into_iter().enumerate() {
            tensors.push((format!("net.{dtype}.{j}"), noise(dtype, shape, (10 * i + j) as u64)));
        }
    }
    let notes: Notes = (0..20).map(|i| (format!("key {i}"), format!("\"{i}\" \n é"))).collect();
    safetensors::write(&path, &tensors, &notes).unwrap();
    let first = fs::read(&path).unwrap();
    let mut read = safetensors::read(&path).unwrap();
    tensors.sort_by(|a, b| a.0.cmp(&b.0));
    read.sort_by(|a, b| a.0.cmp(&b.0));
    assert_eq!(read, tensors);
    let reader = Reader::open(&path).unwrap();
    assert_eq!(reader.metadata().clone().into_iter().collect::<Notes>(), notes);
    assert_eq!(reader.types().unwrap().len(), tensors.len());

    // The order of the arguments does not change the file, and the crate's own reader takes it.
    tensors.reverse();
    safetensors::write(&path, &tensors, &notes.clone()).unwrap();
    assert_eq!(fs::read(&path).unwrap(), first);
    let parsed = ::safetensors::SafeTensors::deserialize(&first).unwrap();
    assert_eq!(parsed.len(), tensors.len());
    for (name, tensor) in &tensors {
        assert_eq!(parsed.tensor(name).unwrap().data(), tensor.bytes(), "{name}");
    }
    safetensors::write::<&str>(&path, &[], &Notes::new()).unwrap();
    assert_eq!(safetensors::read(&path).unwrap(), []);
    assert_eq!(folder.names(), ["x.safetensors"]);
}

fn header(text: &str, data: usize) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text.as_bytes(), &vec![0; data]].concat()
}

#[test]
fn damaged_safetensors() {
    let folder = Folder::new("script");
    let cases: Vec<(Vec<u8>, &str)> = vec![
        (b"abc".to_vec(), "not a safetensors file: it has 3 bytes, fewer than the 8 of a header length"),
        (
            [(8u64 << 40).to_le_bytes().as_slice(), b"{}"].concat(),
            "not a safetensors file: header length 8 TiB exceeds the file, 10 B",
        ),
        (
            [u64::MAX.to_le_bytes().as_slice(), b"{}"].concat(),
            "not a safetensors file: header length 16 EiB exceeds the file, 10 B",
        ),
        (header("{}", 5), "not a safetensors file: its header describes 0 bytes of data, the file has 5"),
        (
            [&3u64.to_le_bytes(), b"{\xff}".as_slice()].concat(),
            "not a safetensors file: its header is not UTF-8 at byte 9",
        ),
        (
            header(r#"{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#, 4),
            "not a safetensors file: its header describes 8 bytes of data, the file has 4",
        ),
        (
            header(r#"{"w":{"dtype":"I8","shape":[2],"data_offsets":[0,2]}}"#, 2),
            "tensor `w` has element type I8\nhelp: the language has f32, f16, bf16, f64, i32, i64, bool and u8",
        ),
    ];
    for (bytes, expected) in cases {
        let path = folder.with("x.safetensors", bytes);
        assert_eq!(message(safetensors::read(&path), &folder), format!("`x.safetensors`: {expected}"));
    }
    let wrong = [
        "",
        "[]",
        "{",
        r#"{"w":{}}"#,
        r#"{"w":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}}"#,
        r#"{"w":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}}"#,
        r#"{"w":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}"#,
        r#"{"w":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,8]}}"#,
        r#"{"w":{"dtype":"F32","shape":[18446744073709551615,2],"data_offsets":[0,8]}}"#,
        r#"{"w":{"dtype":"F99","shape":[2],"data_offsets":[0,8]}}"#,
    ];
    for text in wrong {
        let path = folder.with("x.safetensors", header(text, 8));
        let found = message(safetensors::read(&path), &folder);
        assert!(found.starts_with("`x.safetensors`: not a safetensors file: "), "{found}");
    }
    let deep = folder.with("x.safetensors", header(&"[".repeat(1_000_000), 0));
    assert!(safetensors::read(&deep).is_err());
}

#[test]
fn wrong_names_and_types_are_listed() {
    let folder = Folder::new("script");
    let path = folder.path("x.safetensors");
    let tensors = [("net.w", floats(&[2], &[1., 2.])), ("net.b", ints(&[1], &[3])), ("old", ints(&[], &[3]))];
    safetensors::write(&path, &tensors, &Notes::new()).unwrap();
    let mut reader = Reader::open(&path).unwrap();
    let (w, b) = (Type::new(DType::F32, [3]).unwrap(), Type::new(DType::I32, [1]).unwrap());
    assert_eq!(
        message(safetensors::expect(&reader, &[("net.w", &w), ("net.b", &b), ("net.c", &b)]), &folder),
        "`x.safetensors`: `net.w` is f32[2], expected f32[3], `net.c` (i32[1]) is missing, `old` [] is not expected"
    );
    assert_eq!(reader.read_as("net.b", &b).unwrap(), ints(&[1], &[3]));
    assert_eq!(
        message(reader.read_as("net.w", &w), &folder),
        "`x.safetensors`: tensor `net.w` is f32[2], expected f32[3]"
    );
    assert_eq!(
        message(reader.read("w"), &folder),
        "`x.safetensors`: there is no tensor `w`\nhelp: it has net.b, net.w, old"
    );
    let types: Vec<(String, Type)> = reader.types().unwrap();
    let exact: Vec<(&str, &Type)> = types.iter().map(|(n, t)| (n.as_str(), t)).collect();
    assert_eq!(safetensors::expect(&reader, &exact), Ok(()));
    let twice = [("a", ints(&[], &[1])), ("a", ints(&[], &[2]))];
    assert_eq!(
        message(safetensors::write(&path, &twice, &Notes::new()), &folder),
        "`x.safetensors`: two tensors have the name `a`"
    );
    let reserved = [("__metadata__", ints(&[], &[1]))];
    assert!(safetensors::write(&path, &reserved, &Notes::new()).is_err());
    assert_eq!(safetensors::read(&path).unwrap().len(), 3, "the old file is still there");
}

#[test]
fn a_failed_write_leaves_the_old_file() {
    let folder = Folder::new("script");
    let path = folder.with("x.txt", "old");
    let failed = script::write_atomically(&path, |file| {
        file.write_all(b"half of the new")?;
        Err(std::io::Error::other("the pen broke"))
    });
    assert_eq!(message(failed, &folder), "cannot write `x.txt`: the pen broke");
    assert_eq!(fs::read(&path).unwrap(), b"old");
    assert_eq!(folder.names(), ["x.txt"]);
    script::write_atomically(&path, |file| file.write_all(b"new")).unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"new");
}

#[test]
fn text_as_ids() {
    let folder = Folder::new("script");
    let path = folder.with("a.txt", "banané\nb");
    let (vocabulary, ids) = text::read_chars(&path).unwrap();
    assert_eq!(vocabulary.chars(), "\nabné");
    assert_eq!(ids, ints(&[8], &[2, 1, 3, 1, 3, 4, 0, 2]));
    assert_eq!(vocabulary.decode_tensor(&ids).unwrap(), "banané\nb");
    let wide = Tensor::from_slice(&[2], &[4i64, 1 << 40]).unwrap();
    assert_eq!(message(vocabulary.decode_tensor(&wide), &folder), "no character has the id -1: there are 5");
    assert_eq!(
        message(vocabulary.encode("xa\tx"), &folder),
        "unknown characters `x`, `\\t`\nhelp: the vocabulary has 5 characters"
    );
    assert_eq!(message(vocabulary.decode(&[5]), &folder), "no character has the id 5: there are 5");
    let path = folder.with("b.txt", b"ab\xffcd");
    assert_eq!(
        message(text::read_chars(&path), &folder),
        "`b.txt`: not UTF-8 text: bad byte at offset 2\nhelp: convert it: `iconv -f latin1 -t utf-8`"
    );
    let empty = folder.with("c.txt", "");
    let (vocabulary, ids) = text::read_chars(&empty).unwrap();
    assert!(vocabulary.is_empty() && ids.shape() == [0]);
}

fn config(size: usize, shuffle: Option<u64>, keep_partial: bool) -> batches::Config {
    batches::Config { size, shuffle, keep_partial, part: 0, parts: 1 }
}

#[test]
fn batches_hold_every_row_once() {
    let x = floats(&[7, 2], &(0..14).map(|i| i as f32).collect::<Vec<_>>());
    let y = ints(&[7], &[0, 1, 2, 3, 4, 5, 6]);
    let all = |config| Batches::new(vec![x.clone(), y.clone()], config).unwrap();
    let plain: Vec<_> = all(config(3, None, false)).collect();
    assert_eq!(plain.len(), 2);
    assert_eq!(plain[1], [floats(&[3, 2], &[6., 7., 8., 9., 10., 11.]), ints(&[3], &[3, 4, 5])]);
    let kept: Vec<_> = all(config(3, None, true)).collect();
    assert_eq!(kept[2], [floats(&[1, 2], &[12., 13.]), ints(&[1], &[6])]);

    let mut shuffled = all(config(2, Some(5), true));
    assert_eq!(shuffled.len(), 4);
    let mut seen = Vec::new();
    for batch in shuffled.by_ref() {
        let (x, y) = (batch[0].as_slice::<f32>().unwrap(), batch[1].as_slice::<i32>().unwrap());
        for (x, &y) in x.chunks(2).zip(y) {
            assert_eq!(x, [2. * y as f32, 2. * y as f32 + 1.], "rows stay together");
            seen.push(y);
        }
    }
    assert_eq!(shuffled.len(), 0);
    assert_ne!(seen, [0, 1, 2, 3, 4, 5, 6]);
    let again: Vec<_> =
        all(config(2, Some(5), true)).flat_map(|b| b[1].as_slice::<i32>().unwrap().to_vec()).collect();
    assert_eq!(again, seen, "the same seed gives the same order");
    let other: Vec<_> =
        all(config(2, Some(6), true)).flat_map(|b| b[1].as_slice::<i32>().unwrap().to_vec()).collect();
    assert_ne!(other, seen);
    seen.sort_unstable();
    assert_eq!(seen, [0, 1, 2, 3, 4, 5, 6]);

    for dtype in DType::ALL {
        let tensor = noise(dtype, &[5, 3], 4);
        let rows: Vec<u8> = Batches::new(vec![tensor.clone()], config(2, None, true))
            .unwrap()
            .flat_map(|b| b[0].bytes().to_vec())
            .collect();
        assert_eq!(rows, tensor.bytes());
    }
    let (types, count) = batches::batch_types(&[x.ty(), y.ty()], config(3, Some(0), false)).unwrap();
    assert_eq!((types[0].to_string(), types[1].to_string(), count), ("f32[3, 2]".into(), "i32[3]".into(), 2));
    let empty = Batches::new(vec![floats(&[0, 2], &[])], config(3, Some(1), false)).unwrap();
    assert_eq!(empty.count(), 0);
}

#[test]
fn batches_that_do_not_fit() {
    let folder = Folder::new("script");
    let (x, y) = (ints(&[3], &[1, 2, 3]), ints(&[2, 2], &[1, 2, 3, 4]));
    let error = |tensors, config| message(Batches::new(tensors, config), &folder);
    assert_eq!(
        error(vec![x.clone(), y], config(1, None, false)),
        "the tensors differ in their number of rows: i32[3] has 3, i32[2, 2] has 2"
    );
    assert_eq!(error(vec![x.clone()], config(0, None, false)), "batches of 0 rows");
    assert_eq!(error(vec![], config(1, None, false)), "batches of no tensors");
    assert_eq!(
        error(vec![ints(&[], &[1])], config(1, None, false)),
        "batches are made of rows, but i32 has no axes"
    );
    assert_eq!(
        error(vec![x], config(4, None, false)),
        "batches of 4 rows from 3 rows: there is not one\n\
         help: `partial: keep` keeps the last batch where it has fewer rows"
    );
}

#[test]
fn windows_of_a_sequence() {
    let folder = Folder::new("script");
    let sequence = ints(&[10], &(0..10).collect::<Vec<_>>());
    let windows = Windows::new(sequence.clone(), 4, 3, 1).unwrap();
    let mut starts = std::collections::BTreeSet::new();
    for step in 0..100 {
        let (x, y) = windows.at(step).unwrap();
        assert_eq!((x.shape(), y.shape()), ([3, 4].as_slice(), [3, 4].as_slice()));
        for (x, y) in x.as_slice::<i32>().unwrap().chunks(4).zip(y.as_slice::<i32>().unwrap().chunks(4)) {
            assert!(x.windows(2).all(|p| p[1] == p[0] + 1));
            assert!(x.iter().zip(y).all(|(x, y)| y - x == 1));
            starts.insert(x[0]);
        }
        assert_eq!(windows.at(step), Ok((x, y)), "a step always has the same windows");
    }
    assert_eq!(starts.into_iter().collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5], "every start comes up");
    assert_eq!(
        message(Windows::new(sequence, 10, 1, 0), &folder),
        "windows of 10 and the next one do not fit in a sequence of 10"
    );
    assert_eq!(
        message(Windows::new(ints(&[1, 2], &[1, 2]), 1, 1, 0), &folder),
        "windows are cut from a sequence [n], got [1, 2]"
    );
}

#[test]
fn logs_as_csv_and_json() {
    let folder = Folder::new("script");
    let record = |step, loss| vec![("step", Value::Int(step)), ("loss", Value::Float(loss))];
    let path = folder.path("m.csv");
    let mut log = Log::open(&path, false).unwrap();
    log.write(&record(1, 0.5)).unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), "step,loss\n1,0.5\n", "on disk at once");
    log.write(&[("loss", Value::Float(f64::NAN)), ("step", Value::Int(2))]).unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), "step,loss\n1,0.5\n2,NaN\n");
    assert_eq!(
        message(log.write(&[("step", Value::Int(3)), ("acc", Value::Float(1.0))]), &folder),
        "`m.csv`: the metrics differ from those of the first record: `loss` missing, `acc` new\n\
         help: every record of a log has the same metrics; use a second file for others"
    );
    assert_eq!(
        message(log.write(&[("step", Value::Int(3)), ("step", Value::Int(3))]), &folder),
        "`m.csv`: the metric `step` is given twice"
    );
    drop(log);
    // A crash in the middle of a line, then a resumed run.
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text + "3,0.").unwrap();
    let mut log = Log::open(&path, true).unwrap();
    log.write(&record(3, 0.25)).unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), "step,loss\n1,0.5\n2,NaN\n3,0.25\n");
    assert!(Log::open(&path, true).unwrap().write(&[("other", Value::Int(1))]).is_err());

    let path = folder.path("m.jsonl");
    let mut log = Log::open(&path, false).unwrap();
    let name = "a \"b\",\n".to_owned();
    log.write(&[
        ("n", Value::Int(1)),
        ("x", Value::Float(f64::INFINITY)),
        ("s", Value::Str(name)),
        ("b", Value::Bool(true)),
    ])
    .unwrap();
    assert_eq!(
        fs::read_to_string(&path).unwrap(),
        "{\"n\":1,\"x\":null,\"s\":\"a \\\"b\\\",\\n\",\"b\":true}\n"
    );
    drop(log);
    assert!(Log::open(&path, true).unwrap().write(&[("n", Value::Int(1))]).is_err());

    let path = folder.path("q.csv");
    let mut log = Log::open(&path, false).unwrap();
    log.write(&[("a,b", Value::Str("x \"y\"".into())), ("c", Value::Bool(false))]).unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), "\"a,b\",c\n\"x \"\"y\"\"\",false\n");
    drop(log);
    Log::open(&path, true)
        .unwrap()
        .write(&[("c", Value::Bool(true)), ("a,b", Value::Str(String::new()))])
        .unwrap();
    assert_eq!(
        message(Log::open(&folder.path("m.txt"), false), &folder),
        "`m.txt`: a log ends in `.csv` or `.jsonl`"
    );
}

#[test]
fn formats() {
    let int = |format: &str, value| Format::parse(format).unwrap().int(value).unwrap();
    let float = |format: &str, value| Format::parse(format).unwrap().float(value).unwrap();
    for (format, value, expected) in [
        ("", 1234567, "1234567"),
        (",", 1234567, "1,234,567"),
        (",", -123, "-123"),
        (",", i64::MIN, "-9,223,372,036,854,775,808"),
        ("05d", -42, "-0042"),
        (">6", 42, "    42"),
        ("<6", 42, "42    "),
        ("^6", 42, "  42  "),
        ("+d", 42, "+42"),
        ("x", 255, "ff"),
        ("x", -255, "-ff"),
        ("MiB", 3 << 20, "3.0 MiB"),
        (".2GiB", 3 << 29, "1.50 GiB"),
        ("bytes", 1536, "1.5 KiB"),
        ("bytes", -5, "-5 B"),
        ("bytes", i64::MAX, "8 EiB"),
        (".1f", 3, "3.0"),
        (".0%", 1, "100%"),
    ] {
        assert_eq!(int(format, value), expected, "{format}");
    }
    for (format, value, expected) in [
        ("", 0.1, "0.1"),
        ("", 1.0, "1.0"),
        ("", 1e-7, "1e-07"),
        ("", 1.5e300, "1.5e+300"),
        ("", f64::NAN, "nan"),
        (">5", f64::NEG_INFINITY, " -inf"),
        (".3f", 2.0 / 3.0, "0.667"),
        ("8.3f", -2.0 / 3.0, "  -0.667"),
        ("08.3f", -2.0 / 3.0, "-000.667"),
        (",.2f", 1234567.891, "1,234,567.89"),
        (".2e", 12345.0, "1.23e+04"),
        ("e", 1e-10, "1.000000e-10"),
        (".3g", 0.00001234, "1.23e-05"),
        (".3g", 1234567.0, "1.23e+06"),
        (".3g", 12.30, "12.3"),
        (".4", 2.0 / 3.0, "0.6667"),
        ("g", 100000.0, "100000"),
        (".1%", 0.1234, "12.3%"),
        ("d", 3.0, "3"),
        ("bytes", 1e9, "953.7 MiB"),
        ("bytes", 1e300, "8.7e281 EiB"),
    ] {
        assert_eq!(float(format, value), expected, "{format}");
    }
    assert_eq!(Format::parse("<6").unwrap().text("ab").unwrap(), "ab    ");
    assert_eq!(Format::parse(">6").unwrap().text("añb").unwrap(), "   añb");
}

#[test]
fn formats_that_are_none() {
    let folder = Folder::new("script");
    let list = "help: formats are `.3f`, `.2e`, `.4g`, `.1%`, `d`, `x`, `,`, `MiB`, `bytes`, with a width: `>8.3f`, `06d`";
    for text in ["q", ".", ".f", "3.", "MIB", "f.3", "é", "--", ".3ff"] {
        assert_eq!(message(Format::parse(text), &folder), format!("unknown format `{text}`\n{list}"));
    }
    for text in ["1001", "99999999999999999999999", ".101f", ".99999999999999999999999f"] {
        let found = message(Format::parse(text), &folder);
        assert!(found.contains("is more than"), "{found}");
    }
    let parse = |text: &str| Format::parse(text).unwrap();
    assert_eq!(
        message(parse("d").float(0.5), &folder),
        "0.5 is not a whole number\nhelp: round it, `int(x)`, or use `f`"
    );
    assert_eq!(
        message(parse(".3f").text("a"), &folder),
        "a string has no number format\nhelp: a width fits: `{name:<12}`"
    );
}

#[test]
fn numbers_without_a_format() {
    assert_eq!(format::float(0.1), "0.1");
    assert_eq!(format::float32(0.1), "0.1");
    assert_eq!(format::float32(f32::MAX), "3.4028235e+38");
    assert_eq!(format::float(-0.0), "-0.0");
    assert_eq!(format::float32(f32::NAN), "nan");
    for value in [1.0, 123456.789, 1e15, 1e16, 1e-5, 9e-6, f64::MIN_POSITIVE, f64::MAX] {
        assert_eq!(format::float(value).parse::<f64>().unwrap(), value);
    }
}

#[test]
fn tensors_as_numpy_prints_them() {
    assert_eq!(print::tensor(&floats(&[], &[0.1])), "0.1");
    assert_eq!(print::tensor(&ints(&[0, 3], &[])), "i32[0, 3]\n[]");
    assert_eq!(
        print::tensor(&ints(&[2, 3], &[1, -20, 3, 4, 5, 6])),
        "i32[2, 3]\n[[  1 -20   3]\n [  4   5   6]]"
    );
    assert_eq!(print::tensor(&floats(&[3], &[1.0, 2.5, -3.125])), "f32[3]\n[ 1.     2.5   -3.125]");
    assert_eq!(print::tensor(&floats(&[2], &[f32::NAN, 1.0])), "f32[2]\n[nan  1.]");
    assert_eq!(
        print::tensor(&floats(&[2], &[1e-10, f32::INFINITY])),
        "f32[2]\n[1.e-10     inf]".replace("1.e-10", "1e-10").replace("     inf", "   inf")
    );
    assert_eq!(print::tensor(&floats(&[2], &[1.0, 1.5e9])), "f32[2]\n[1.0e+00 1.5e+09]");
    let bools = Tensor::from_slice(&[2], &[true, false]).unwrap();
    assert_eq!(print::tensor(&bools), "bool[2]\n[ true false]");
    let cube = ints(&[2, 2, 2], &[0, 1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(print::tensor(&cube), "i32[2, 2, 2]\n[[[0 1]\n  [2 3]]\n\n [[4 5]\n  [6 7]]]");
    let long = ints(&[2000], &(0..2000).collect::<Vec<_>>());
    assert_eq!(print::tensor(&long), "i32[2000]\n[   0    1    2 ... 1997 1998 1999]");
    let table = ints(&[100, 100], &(0..10000).collect::<Vec<_>>());
    assert_eq!(
        print::tensor(&table),
        "i32[100, 100]\n\
         [[   0    1    2 ...   97   98   99]\n \
         [ 100  101  102 ...  197  198  199]\n \
         [ 200  201  202 ...  297  298  299]\n \
         ...\n \
         [9700 9701 9702 ... 9797 9798 9799]\n \
         [9800 9801 9802 ... 9897 9898 9899]\n \
         [9900 9901 9902 ... 9997 9998 9999]]"
    );
    let row = ints(&[40], &(0..40).map(|i| i * 1000).collect::<Vec<_>>());
    let printed = print::tensor(&row);
    assert!(printed.lines().count() == 5 && printed.lines().all(|l| l.len() <= 78), "{printed}");
    for dtype in DType::ALL {
        let text = print::tensor(&noise(dtype, &[3, 4], 5));
        assert!(text.starts_with(&format!("{dtype}[3, 4]\n[[")) && text.ends_with("]]"), "{text}");
    }
}

#[test]
fn plots_in_the_terminal() {
    let line = Series::of("", (0..50).map(|i| f64::from(i) / 10.0));
    let config = plot::Config { width: 40, height: 5, ascii: true, title: "loss".into() };
    assert_eq!(
        plot::draw(std::slice::from_ref(&line), &config),
        "loss\n \
         4.9 |                             *****\n     \
         |                     ********\n\
         2.45 |             ********\n     \
         |     ********\n   \
         0 |*****\n     \
         +----------------------------------\n     \
         0                                49"
    );
    let config = plot::Config::default();
    let text = plot::draw(&[line.clone(), Series::of("flat", [1.0, 1.0, f64::NAN, 1.0])], &config);
    assert!(text.lines().all(|l| l.chars().count() <= 80), "{text}");
    assert!(text.chars().any(|c| ('\u{2801}'..='\u{28ff}').contains(&c)) && text.contains("flat"));
    assert_eq!(plot::draw(&[], &config), "(no points)");
    assert_eq!(plot::draw(&[Series::of("", [f64::NAN])], &config), "(no points)");
    for values in [vec![1.0], vec![f64::MAX, f64::MIN], vec![0.0, f64::MIN_POSITIVE], vec![1e300; 3]] {
        for ascii in [false, true] {
            let config = plot::Config { ascii, width: 0, height: 0, title: String::new() };
            let text = plot::draw(&[Series::of("", values.clone())], &config);
            assert!(text.lines().count() == 6 && !text.contains("NaN"), "{text}");
        }
    }
}

#[test]
fn plots_as_svg() {
    let folder = Folder::new("script");
    let path = folder.path("loss.svg");
    let series = [
        Series::of("train <1>", [3.0, 2.0, f64::NAN, 1.0, 0.5]),
        Series { name: "held & out".into(), points: vec![(0.0, 2.5)] },
    ];
    svg::write(&path, &series, "a \"title\" \u{1b}").unwrap();
    let text = fs::read_to_string(&path).unwrap();
    assert!(text.starts_with("<svg ") && text.ends_with("</svg>\n"));
    assert_eq!(text.matches("<polyline").count(), 2, "a NaN cuts the line");
    assert_eq!(text.matches("<circle").count(), 1, "a single point is a dot");
    assert!(
        text.contains("train &lt;1&gt;")
            && text.contains("held &amp; out")
            && text.contains("&quot;title&quot; ?")
    );
    assert!(!text.contains("NaN") && !text.contains("inf"));
    assert!(svg::draw(&[], "").contains("no points"));
    let extreme = svg::draw(&[Series::of("", [f64::MAX, f64::MIN])], "");
    assert!(!extreme.contains("NaN") && !extreme.contains("inf"), "{extreme}");
}

#[test]
fn samples() {
    let folder = Folder::new("script");
    let rows = floats(&[2, 3], &[0.0, 100.0, 0.0, f32::NEG_INFINITY, 0.0, 0.0]);
    let categorical = |rows: &Tensor, weights, temperature, seed| {
        sample::categorical(rows, weights, temperature, seed).map(|t| t.as_slice::<i32>().unwrap().to_vec())
    };
    for seed in 0..50 {
        let picked = categorical(&rows, Weights::Logits, 1.0, seed).unwrap();
        assert_eq!(picked[0], 1);
        assert!(picked[1] == 1 || picked[1] == 2);
        assert_eq!(picked, categorical(&rows, Weights::Logits, 1.0, seed).unwrap());
    }
    // 10,000 draws with probabilities 0.1, 0.2 and 0.7, and with the temperature that squares them.
    let many = Tensor::from_slice(&[10_000, 3], &[0.1, 0.2, 0.7].repeat(10_000)).unwrap();
    let logits: Vec<f64> = [0.1f64, 0.2, 0.7].iter().map(|p| p.ln() + 5.0).collect();
    let many_logits = Tensor::from_slice(&[10_000, 3], &logits.repeat(10_000)).unwrap();
    for (tensor, weights) in [(&many, Weights::Probabilities), (&many_logits, Weights::Logits)] {
        for (temperature, expected) in
            [(1.0, [0.1, 0.2, 0.7]), (0.5, [0.01 / 0.54, 0.04 / 0.54, 0.49 / 0.54])]
        {
            let picked = categorical(tensor, weights, temperature, 3).unwrap();
            for (category, expected) in (0..).zip(expected) {
                let share = picked.iter().filter(|&&p| p == category).count() as f64 / 1e4;
                assert!((share - expected).abs() < 0.02, "{category}: {share}");
            }
        }
    }
    assert_eq!(categorical(&floats(&[3], &[1., 3., 3.]), Weights::Logits, 0.0, 1), Ok(vec![1]));
    assert_eq!(categorical(&floats(&[2], &[1., f32::INFINITY]), Weights::Logits, 1.0, 1), Ok(vec![1]));
    assert_eq!(categorical(&floats(&[0, 3], &[]), Weights::Logits, 1.0, 1), Ok(vec![]));
    let error =
        |rows: Tensor, weights, temperature| message(categorical(&rows, weights, temperature, 0), &folder);
    assert_eq!(
        error(floats(&[2, 1], &[1., f32::NAN]), Weights::Logits, 1.0),
        "`random.categorical` of f32[2, 1]: there is a NaN in row 1"
    );
    assert_eq!(
        error(floats(&[1], &[f32::NEG_INFINITY]), Weights::Logits, 1.0),
        "`random.categorical` of f32[1]: no category has any weight"
    );
    assert_eq!(
        error(floats(&[2], &[0.5, -0.5]), Weights::Probabilities, 1.0),
        "`random.categorical` of f32[2]: a probability is negative"
    );
    assert_eq!(
        error(floats(&[2], &[0., 0.]), Weights::Logits, -1.0),
        "`random.categorical`: the temperature is -1, less than 0"
    );
    assert_eq!(
        error(ints(&[2], &[0, 0]), Weights::Logits, 1.0),
        "`random.categorical` needs floating-point values, got i32[2]"
    );
    assert_eq!(
        error(floats(&[], &[0.]), Weights::Logits, 1.0),
        "`random.categorical` of f32: it has no axis of categories"
    );
    assert_eq!(
        error(floats(&[1, 0], &[]), Weights::Logits, 1.0),
        "`random.categorical` of f32[1, 0]: there are no categories"
    );
}

/// NumPy itself reads and writes the same, where Python has it.
#[test]
fn numpy_agrees() {
    let folder = Folder::new("script");
    let tensor = floats(&[2, 3], &[1., 2., 3., 4., 5., 6.5]);
    npy::write(&folder.path("x.npy"), &tensor).unwrap();
    assert_eq!(npy::read(&folder.path("x.npy")).unwrap(), tensor);
    let python = |script: &str| Command::new("python3").args(["-c", script]).current_dir(&folder.0).output();
    if !python("import numpy").is_ok_and(|output| output.status.success()) {
        return;
    }
    let script = "import numpy as np\nx = np.load('x.npy')\n\
                  assert x.dtype == np.float32 and x.tolist() == [[1, 2, 3], [4, 5, 6.5]]\n\
                  np.save('y.npy', np.asfortranarray(x.astype('int64')))\n";
    let output = python(script).expect("python runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let expected = Tensor::from_slice(&[2, 3], &[1i64, 2, 3, 4, 5, 6]).unwrap();
    assert_eq!(npy::read(&folder.path("y.npy")).unwrap(), expected);
}
