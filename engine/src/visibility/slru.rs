//! The files of an SLRU (`pg_xact`, `pg_subtrans`, `pg_multixact/*`): 32 pages a segment, named by number.

use crate::{Error, ErrorKind, Result};
use rustc_hash::FxHashMap;
use std::{
    io::ErrorKind as IoErrorKind,
    io::Read,
    path::{Path, PathBuf},
    sync::OnceLock,
};

/// `SLRU_PAGES_PER_SEGMENT`.
const PAGES_PER_SEGMENT: u64 = 32;

/// One SLRU. The directory is read once, a segment (256 kB) when it is first asked for.
#[derive(Debug)]
pub(super) struct Slru {
    directory: PathBuf,
    block_size: u64,
    segments: FxHashMap<u64, OnceLock<Box<[u8]>>>,
}

impl Slru {
    /// Lists the segments. A directory that is not there holds none: what needs one says so then.
    pub(super) fn open(directory: PathBuf, block_size: u32) -> Result<Self> {
        let mut segments = FxHashMap::default();
        match std::fs::read_dir(&directory) {
            Ok(entries) => {
                for entry in entries {
                    let entry = entry.map_err(|e| Error::os(&directory, "list directory", &e))?;
                    if let Some(number) = entry.file_name().to_str().and_then(segment_number) {
                        segments.insert(number, OnceLock::new());
                    }
                }
            }
            Err(e) if e.kind() == IoErrorKind::NotFound => {}
            Err(e) => return Err(Error::os(&directory, "list directory", &e)),
        }
        Ok(Self { directory, block_size: u64::from(block_size), segments })
    }

    /// `N` bytes at `offset` of page `page`; `what` needs them.
    ///
    /// # Errors
    /// `Visibility` naming `what` and the segment if that is missing or too short; `Io` if it cannot be read.
    #[inline]
    pub(super) fn read<const N: usize>(&self, page: u64, offset: u64, what: &dyn Fn() -> String) -> Result<[u8; N]> {
        let number = page / PAGES_PER_SEGMENT;
        let at = page % PAGES_PER_SEGMENT * self.block_size + offset;
        let Some(segment) = self.segments.get(&number) else {
            return Err(self.missing(number, what()));
        };
        let bytes = match segment.get() {
            Some(bytes) => bytes,
            None => self.load(number, segment)?,
        };
        match bytes.get(at as usize..).and_then(|rest| rest.first_chunk()) {
            Some(found) => Ok(*found),
            None => Err(self.short(number, bytes.len(), what())),
        }
    }

    fn load<'s>(&self, number: u64, segment: &'s OnceLock<Box<[u8]>>) -> Result<&'s [u8]> {
        let path = self.segment_path(number);
        let most = PAGES_PER_SEGMENT * self.block_size;
        let meta = std::fs::metadata(&path).map_err(|e| Error::os(&path, "examine segment", &e))?;
        // A pipe would block for ever, a device never end.
        if !meta.is_file() {
            return Err(Error::new(ErrorKind::Corrupt, "is not a regular file").with_path(path));
        }
        let size = meta.len();
        if size > most {
            return Err(
                Error::new(ErrorKind::Corrupt, format!("segment has {size} bytes, more than {most}")).with_path(path)
            );
        }
        let mut bytes = Vec::with_capacity(size as usize);
        crate::OpenFiles::of_process()
            .make_room_for(|| std::fs::File::open(&path))
            .and_then(|file| file.take(most).read_to_end(&mut bytes))
            .map_err(|e| Error::os(&path, "read segment", &e))?;
        Ok(segment.get_or_init(|| bytes.into_boxed_slice()))
    }

    fn segment_path(&self, number: u64) -> PathBuf {
        self.directory.join(format!("{number:04X}"))
    }

    #[cold]
    fn missing(&self, number: u64, what: String) -> Error {
        Error::new(ErrorKind::Visibility, format!("{what}: this segment is missing"))
            .with_path(self.segment_path(number))
            .with_hint("the copy of the cluster is incomplete, or the row is damaged")
    }

    #[cold]
    fn short(&self, number: u64, size: usize, what: String) -> Error {
        Error::new(ErrorKind::Visibility, format!("{what}: this segment ends at byte {size}, before it"))
            .with_path(self.segment_path(number))
            .with_hint("the copy of the cluster is incomplete, or the row is damaged")
    }

    /// The directory.
    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }
}

/// Segment names are hexadecimal, four digits or as many more as it takes, upper case.
fn segment_number(name: &str) -> Option<u64> {
    let digits = name.bytes().all(|b| b.is_ascii_digit() || (b'A'..=b'F').contains(&b));
    let number = (digits && (4..=15).contains(&name.len())).then(|| u64::from_str_radix(name, 16).ok()).flatten()?;
    (format!("{number:04X}") == name).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_segment_names_are_segments() {
        assert_eq!(segment_number("0000"), Some(0));
        assert_eq!(segment_number("0FFF"), Some(4095));
        assert_eq!(segment_number("14078"), Some(0x14078));
        for other in ["", "000", "00000", "0fff", "00G0", "+123", "0000.tmp", "archive_status"] {
            assert_eq!(segment_number(other), None, "{other}");
        }
    }
}
