//! Little-endian loads from bytes that came from disk, and small files read with a limit.

use crate::{Error, ErrorKind, Result};
use std::{
    fs::File,
    io::{self, Read},
    path::Path,
};

/// `N` bytes at `at`, if they are there.
pub(super) fn array_at<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    array_at(bytes, at).map(u32::from_le_bytes)
}

pub(super) fn i32_at(bytes: &[u8], at: usize) -> Option<i32> {
    array_at(bytes, at).map(i32::from_le_bytes)
}

pub(super) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    array_at(bytes, at).map(u64::from_le_bytes)
}

/// Reads the first `limit` bytes of a regular file; `None` if there is no such file. A file of another kind (a pipe
/// would block for ever) is an error.
pub(super) fn read_small_file(path: &Path, limit: u64) -> Result<Option<Vec<u8>>> {
    match path.metadata() {
        Ok(meta) if meta.is_file() => {}
        Ok(_) => return Err(Error::new(ErrorKind::Corrupt, "is not a regular file").with_path(path)),
        Err(e) if is_missing(&e) => return Ok(None),
        Err(e) => return Err(Error::os(path, "stat", &e)),
    }
    let mut bytes = Vec::new();
    let file =
        crate::OpenFiles::of_process().make_room_for(|| File::open(path)).map_err(|e| Error::os(path, "open", &e))?;
    file.take(limit).read_to_end(&mut bytes).map_err(|e| Error::os(path, "read", &e))?;
    Ok(Some(bytes))
}

/// Whether the path, or a folder on the way to it, does not exist.
pub(super) fn is_missing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}
