//! Text as characters and their ids: `data.chars`.

use std::{fs, io::Read, path::Path, sync::Arc};

use rustc_hash::FxHashMap;

use super::Error;
use crate::{
    exec::{Tensor, TensorError},
    guard::{self, OutOfMemory},
};

/// The characters of a text, sorted by code point; the id of each is its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Vocabulary {
    chars: Arc<[char]>,
    ids: FxHashMap<char, i32>,
}

impl Vocabulary {
    /// The characters that occur in `text`.
    pub fn of(text: &str) -> Vocabulary {
        let mut chars: Vec<char> = text.chars().collect();
        chars.sort_unstable();
        chars.dedup();
        let ids = chars.iter().zip(0..).map(|(&c, id)| (c, id)).collect();
        Vocabulary { chars: chars.into(), ids }
    }

    /// How many characters there are.
    pub fn len(&self) -> usize {
        self.chars.len()
    }

    pub fn is_empty(&self) -> bool {
        self.chars.is_empty()
    }

    /// All of them in one string, by id.
    pub fn chars(&self) -> String {
        self.chars.iter().collect()
    }

    /// The ids of a text; the error lists the characters that have none.
    pub fn encode(&self, text: &str) -> Result<Vec<i32>, Error> {
        const SHOWN: usize = 8;
        let mut ids = Vec::new();
        if ids.try_reserve_exact(text.len()).is_err() {
            let bytes = (text.len() as u64).saturating_mul(4);
            return Err(OutOfMemory::system(&"the ids of the text", bytes).into());
        }
        let mut unknown: Vec<char> = Vec::new();
        for c in text.chars() {
            match self.ids.get(&c) {
                Some(&id) => ids.push(id),
                None if unknown.len() <= SHOWN && !unknown.contains(&c) => unknown.push(c),
                None => {}
            }
        }
        if unknown.is_empty() {
            return Ok(ids);
        }
        let more = if unknown.len() > SHOWN { ", …" } else { "" };
        let listed: Vec<String> =
            unknown.iter().take(SHOWN).map(|c| format!("`{}`", c.escape_debug())).collect();
        let noun = if unknown.len() == 1 { "character" } else { "characters" };
        Err(Error::new(format!("unknown {noun} {}{more}", listed.join(", ")))
            .help(format!("the vocabulary has {} characters", self.len())))
    }

    /// The text of ids; an error for one that no character has.
    pub fn decode(&self, ids: &[i32]) -> Result<String, Error> {
        ids.iter()
            .map(|&id| {
                usize::try_from(id).ok().and_then(|i| self.chars.get(i)).copied().ok_or_else(|| {
                    Error::new(format!("no character has the id {id}: there are {}", self.len()))
                })
            })
            .collect()
    }

    /// The text of an i32 or i64 tensor of any shape, in row-major order.
    pub fn decode_tensor(&self, ids: &Tensor) -> Result<String, Error> {
        if let Some(ids) = ids.as_slice::<i32>() {
            return self.decode(ids);
        }
        let Some(wide) = ids.as_slice::<i64>() else {
            return Err(Error::new(format!("ids are i32 or i64, got {}", ids.ty())));
        };
        // Ids beyond i32 are in no vocabulary either; -1 stands for them in the error.
        let ids: Vec<i32> = wide.iter().map(|&id| i32::try_from(id).unwrap_or(-1)).collect();
        self.decode(&ids)
    }
}

/// A whole text file. The error says where it is not UTF-8.
pub fn read(path: &Path) -> Result<String, Error> {
    let failed = |e: std::io::Error| Error::io(path, "read", &e);
    let mut file = fs::File::open(path).map_err(failed)?;
    let size = file.metadata().map_err(failed)?.len();
    let _charge = guard::charge(size, &"the text").map_err(|e| Error::memory(path, &e))?;
    let mut bytes = Vec::new();
    let room = usize::try_from(size).is_ok_and(|size| bytes.try_reserve_exact(size).is_ok());
    if !room {
        return Err(Error::memory(path, &OutOfMemory::system(&"the text", size)));
    }
    file.read_to_end(&mut bytes).map_err(failed)?;
    String::from_utf8(bytes).map_err(|e| {
        Error::file(path, format!("not UTF-8 text: bad byte at offset {}", e.utf8_error().valid_up_to()))
            .help("convert it: `iconv -f latin1 -t utf-8`")
    })
}

/// The vocabulary of a text file, and the file as ids: i32 `[n]`.
pub fn read_chars(path: &Path) -> Result<(Vocabulary, Tensor), Error> {
    let text = read(path)?;
    let vocabulary = Vocabulary::of(&text);
    // The ids stand in a list first, with room for one per byte.
    let list = (text.len() as u64).saturating_mul(4);
    let _charge = guard::charge(list, &"the ids of the text").map_err(|e| Error::memory(path, &e))?;
    let ids = vocabulary.encode(&text)?;
    let tensor = Tensor::try_from_slice(&[ids.len()], &ids).map_err(|error| match error {
        TensorError::Memory(error) => Error::memory(path, &error),
        other => Error::file(path, other),
    })?;
    Ok((vocabulary, tensor))
}
