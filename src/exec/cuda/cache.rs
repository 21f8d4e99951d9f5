//! Compiled kernels on disk, by their content. A cache that cannot be read or written is no error:
//! kernels are compiled again then.

use std::{env, fs, path::PathBuf};

use crate::script::write_atomically;

/// The first bytes of a file.
const MAGIC: &[u8] = b"tg kernel 1\n";

/// Where kernels are kept: a folder of `TG_CACHE_DIR`, else of the user's cache.
fn folder() -> Option<PathBuf> {
    let named = |variable: &str| env::var_os(variable).filter(|v| !v.is_empty()).map(PathBuf::from);
    let root = named("TG_CACHE_DIR")
        .or_else(|| named("XDG_CACHE_HOME").filter(|p| p.is_absolute()).map(|cache| cache.join("tg")))
        .or_else(|| named("HOME").map(|home| home.join(".cache").join("tg")))
        .or_else(|| named("LOCALAPPDATA").map(|local| local.join("tg")))?;
    Some(root.join("kernels"))
}

/// The code that is kept for `key` under a name, which is a hash of it.
pub(super) fn read(name: &str, key: &str) -> Option<Vec<u8>> {
    let bytes = fs::read(folder()?.join(name)).ok()?;
    parse(&bytes, key).map(<[u8]>::to_vec)
}

/// The code in a file, where that is whole and for `key`.
fn parse<'a>(bytes: &'a [u8], key: &str) -> Option<&'a [u8]> {
    let rest = bytes.strip_prefix(MAGIC)?;
    let (key_bytes, rest) = rest.split_first_chunk::<8>()?;
    let (code_bytes, rest) = rest.split_first_chunk::<8>()?;
    let key_bytes = usize::try_from(u64::from_le_bytes(*key_bytes)).ok()?;
    let code_bytes = usize::try_from(u64::from_le_bytes(*code_bytes)).ok()?;
    let (found, code) = rest.split_at_checked(key_bytes)?;
    (found == key.as_bytes() && code.len() == code_bytes && !code.is_empty()).then_some(code)
}

/// Keeps code for `key`. Other processes see all of the file or none.
pub(super) fn write(name: &str, key: &str, code: &[u8]) {
    let Some(folder) = folder() else { return };
    if fs::create_dir_all(&folder).is_err() {
        return;
    }
    let _ = write_atomically(&folder.join(name), |file| {
        file.write_all(MAGIC)?;
        file.write_all(&(key.len() as u64).to_le_bytes())?;
        file.write_all(&(code.len() as u64).to_le_bytes())?;
        file.write_all(key.as_bytes())?;
        file.write_all(code)
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_are_cut_or_for_another_key_are_not_taken() {
        let mut file = MAGIC.to_vec();
        file.extend(3u64.to_le_bytes());
        file.extend(4u64.to_le_bytes());
        file.extend(b"keycode");
        assert_eq!(parse(&file, "key"), Some(&b"code"[..]));
        assert_eq!(parse(&file, "kez"), None);
        for end in 0..file.len() {
            assert_eq!(parse(&file[..end], "key"), None, "cut at {end}");
        }
        file.push(0);
        assert_eq!(parse(&file, "key"), None);
        file[19] = 0xff;
        assert_eq!(parse(&file, "key"), None, "a length beyond the file");
    }
}
