//! How much of a file is in the page cache, and getting it out of there: what a measurement must know and do first.

use crate::{pages::page_size, sys};
use serde::Serialize;
use std::{fs::File, io, os::unix::fs::MetadataExt, path::Path};

/// Bytes of a file that are mapped at a time, where the kernel has no cachestat(2).
const WINDOW: u64 = 64 << 20;

/// Pages of files in the page cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Cached {
    /// Pages of the files.
    pub pages: u64,
    /// How many of them are in the page cache.
    pub resident: u64,
    /// How many of those are not on disk yet; 0 where the kernel does not tell.
    pub dirty: u64,
}

impl Cached {
    /// Resident pages of all, 0 to 1; 0 for empty files.
    pub fn share(&self) -> f64 {
        if self.pages == 0 { 0.0 } else { self.resident as f64 / self.pages as f64 }
    }
}

/// How much of the files together is in the page cache, by cachestat(2) (Linux 6.5), else by mincore(2). Reads nothing.
///
/// # Errors
/// When a file cannot be opened or is no regular file; when the kernel tells neither (mincore tells about files of other
/// users only to root).
pub fn cached<P: AsRef<Path>>(paths: &[P]) -> io::Result<Cached> {
    let mut sum = Cached::default();
    for path in paths {
        let file = File::open(path)?;
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        let bytes = metadata.len();
        sum.pages += bytes.div_ceil(page_size() as u64);
        if bytes == 0 {
            continue;
        }
        match sys::cachestat(&file, bytes) {
            Ok((resident, dirty)) => {
                sum.resident += resident;
                sum.dirty += dirty;
            }
            Err(_) => sum.resident += by_mincore(&file, bytes, metadata.uid())?,
        }
    }
    Ok(sum)
}

fn by_mincore(file: &File, bytes: u64, owner: u32) -> io::Result<u64> {
    let me = nix::unistd::geteuid();
    if !me.is_root() && owner != me.as_raw() {
        let text = "the kernel tells about the page cache of files only to their owner";
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
    }
    let mut resident = 0;
    for offset in (0..bytes).step_by(WINDOW as usize) {
        let window = sys::FileWindow::new(file, offset, WINDOW.min(bytes - offset) as usize)?;
        resident += window.resident(page_size())?.iter().filter(|&&flag| flag).count() as u64;
    }
    Ok(resident)
}

/// Asks the kernel to forget what it has of the files (posix_fadvise(2), POSIX_FADV_DONTNEED), after what is dirty was
/// written. It is advice: pages that others map or read stay. See what [`cached`] says afterwards.
///
/// # Errors
/// When a file cannot be opened, written out or advised about.
pub fn forget<P: AsRef<Path>>(paths: &[P]) -> io::Result<()> {
    for path in paths {
        let file = File::open(path)?;
        // Dirty pages would stay.
        file.sync_data()?;
        nix::fcntl::posix_fadvise(&file, 0, 0, nix::fcntl::PosixFadviseAdvice::POSIX_FADV_DONTNEED)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn what_was_written_is_cached_until_it_is_forgotten() {
        // Not /tmp, which can be a tmpfs: its files are nowhere else.
        let mut file = tempfile::Builder::new().tempfile_in("/var/tmp").unwrap();
        file.write_all(&vec![1u8; (3 << 20) + 100]).unwrap();
        let pages = ((3 << 20) + 100u64).div_ceil(page_size() as u64);
        let before = cached(&[file.path()]).unwrap();
        assert_eq!(before.pages, pages);
        assert!(before.share() > 0.9, "{before:?}");
        let metadata = file.as_file().metadata().unwrap();
        let other_way = by_mincore(file.as_file(), metadata.len(), metadata.uid()).unwrap();
        assert!(other_way.abs_diff(before.resident) * 10 <= pages, "{other_way} and {before:?}");
        forget(&[file.path()]).unwrap();
        let after = cached(&[file.path(), file.path()]).unwrap();
        assert_eq!(after.pages, 2 * pages);
        assert!(after.share() < 0.1, "{after:?}");
        assert_eq!(Cached::default().share(), 0.0);
        assert!(cached(&["/var/tmp"]).is_err() && cached(&["/no/such/file"]).is_err());
    }
}
