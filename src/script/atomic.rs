//! Files that are written whole or not at all.

use std::{
    ffi::OsString,
    fs::{self, File, OpenOptions},
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};

use super::Error;

/// Writes a file by way of a temporary one in the same folder, which replaces it when its bytes
/// are on the disk. After an error, or a crash at any moment, the old file is still there.
pub fn write_atomically(
    path: &Path,
    write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<(), Error> {
    let failed = |error: io::Error| Error::io(path, "write", &error);
    // A link that leads to a file stays a link: what it leads to is replaced.
    let target = fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
    let permissions = fs::metadata(&target).ok().map(|found| found.permissions());
    if permissions.as_ref().is_some_and(fs::Permissions::readonly) {
        return Err(failed(io::ErrorKind::PermissionDenied.into()));
    }
    if target.is_dir() {
        return Err(failed(io::ErrorKind::IsADirectory.into()));
    }
    let folder = folder_of(&target);
    if !folder.is_dir() {
        let why = if folder.exists() { "is no folder" } else { "does not exist" };
        let message = format!("cannot write `{}`: the folder `{}` {why}", path.display(), folder.display());
        return Err(Error::new(message).help("create the folder, or name another"));
    }
    let (temporary, file) = create_beside(&target).map_err(failed)?;
    let result = fill(file, write)
        .and_then(|()| permissions.map_or(Ok(()), |as_before| fs::set_permissions(&temporary, as_before)))
        .and_then(|()| fs::rename(&temporary, &target));
    if let Err(error) = result {
        // The first error is the one to report.
        let _ = fs::remove_file(&temporary);
        return Err(failed(error));
    }
    // The rename itself reaches the disk with its folder; a file system that cannot sync folders
    // still has a whole file.
    if let Ok(folder) = File::open(folder) {
        let _ = folder.sync_all();
    }
    Ok(())
}

fn fill(file: File, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    let mut writer = BufWriter::with_capacity(1 << 20, file);
    write(&mut writer)?;
    writer.flush()?;
    writer.get_ref().sync_all()
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// A new file whose name no other process or thread uses.
fn create_beside(path: &Path) -> io::Result<(PathBuf, File)> {
    static COUNTER: AtomicU64 = AtomicU64::new(0);
    let name = path.file_name().ok_or(io::ErrorKind::InvalidFilename)?;
    loop {
        let mut temporary = OsString::from(".");
        temporary.push(name);
        temporary.push(format!(".{}.{}.tmp", std::process::id(), COUNTER.fetch_add(1, Ordering::Relaxed)));
        let temporary = folder_of(path).join(temporary);
        match OpenOptions::new().write(true).create_new(true).open(&temporary) {
            Ok(file) => return Ok((temporary, file)),
            // Left over from a crash of an earlier process with the same number.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
}
