//! Where pages are, by asking the kernel: of memory, and of a file's page cache.

use crate::{memory::Mapping, sys};
use serde::Serialize;
use std::{
    collections::BTreeMap,
    fs::File,
    io,
    ops::Range,
    os::unix::fs::{FileTypeExt, MetadataExt},
    path::{Path, PathBuf},
};

/// The kernel is asked about so many pages at a time; more would keep the process from being interrupted for long.
const CHUNK: usize = 1024;

/// Bytes of a file that are mapped at a time.
const WINDOW: u64 = 64 << 20;

/// Pages by node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PageCounts {
    /// Bytes a page.
    pub page_size: u64,
    /// Node id to pages.
    pub nodes: BTreeMap<u32, u64>,
    /// Pages that the kernel gave no node for: never touched, swapped out, not mapped.
    pub unknown: u64,
}

impl PageCounts {
    /// All pages.
    pub fn total(&self) -> u64 {
        self.unknown + self.nodes.values().sum::<u64>()
    }

    /// Pages on a node.
    pub fn on(&self, node: u32) -> u64 {
        self.nodes.get(&node).copied().unwrap_or(0)
    }

    fn add(&mut self, status: &[i32]) {
        for &status in status {
            // -ENOENT (-2) for pages that are not there, -EFAULT (-14) for unmapped ones: no node numbers.
            match u32::try_from(status) {
                Ok(node) => *self.nodes.entry(node).or_default() += 1,
                Err(_) => self.unknown += 1,
            }
        }
    }
}

/// Where the pages of memory that begins at `start` are. Nothing is touched: the kernel only looks the addresses up, so
/// they need not even be mapped. Costs about 100 ns a page.
///
/// # Errors
/// When the kernel or a container refuses (EPERM, ENOSYS).
pub fn where_is(start: *const u8, len: usize) -> io::Result<PageCounts> {
    let page = page_size();
    let first = start as usize / page * page;
    // A length beyond the address space is the end of it.
    let end = if len == 0 { first } else { (start as usize).saturating_add(len) };
    let pages = end.div_ceil(page) - first / page;
    let mut counts = PageCounts { page_size: page as u64, ..PageCounts::default() };
    let addresses: Vec<usize> = (0..pages.min(CHUNK)).collect();
    let mut status = vec![0; addresses.len()];
    for chunk in (0..pages).step_by(CHUNK) {
        let count = CHUNK.min(pages - chunk);
        let addresses: Vec<usize> = addresses[..count].iter().map(|index| first + (chunk + index) * page).collect();
        sys::page_nodes(&addresses, &mut status[..count])?;
        counts.add(&status[..count]);
    }
    Ok(counts)
}

/// Where the pages of `range` (bytes) of a mapping are, in ordinary pages also where they are huge.
///
/// # Errors
/// As [`where_is`]; EINVAL for a range beyond the mapping.
pub fn where_are(mapping: &Mapping, range: Range<usize>) -> io::Result<PageCounts> {
    if range.start > range.end || range.end > mapping.len() {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    where_is(mapping.as_ptr().as_ptr().wrapping_add(range.start), range.len())
}

/// As [`where_are`] for the whole mapping, but looks at `count` pages, evenly spread.
pub(crate) fn sample(mapping: &Mapping, count: usize) -> io::Result<PageCounts> {
    let page = page_size();
    let mut counts = PageCounts { page_size: page as u64, ..PageCounts::default() };
    let step = (mapping.len() / page).div_ceil(count.clamp(1, CHUNK)).max(1) * page;
    let addresses: Vec<usize> =
        (0..mapping.len()).step_by(step).map(|at| mapping.as_ptr().as_ptr() as usize + at).collect();
    let mut status = vec![0; addresses.len()];
    sys::page_nodes(&addresses, &mut status)?;
    counts.add(&status);
    Ok(counts)
}

/// The page cache of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FilePages {
    /// The file.
    pub path: PathBuf,
    /// Its size in bytes.
    pub bytes: u64,
    /// Its pages that are in the page cache, by node.
    pub cached: PageCounts,
    /// Its pages that are not.
    pub uncached: u64,
}

/// Which nodes the cached pages of a file are on. Pages that are not cached are not read, apart from those that the
/// kernel drops while it is being asked.
///
/// # Errors
/// When the file cannot be opened or mapped, is no regular file, or belongs to somebody else and cannot be written: the
/// kernel then says that everything is cached (since Linux 5.2), and asking further would read the whole file.
pub fn file_pages(path: &Path) -> io::Result<FilePages> {
    let file = File::open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        let kind = metadata.file_type();
        let what = if kind.is_dir() {
            "a folder"
        } else if kind.is_block_device() {
            "a block device"
        } else {
            "no regular file"
        };
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{what} has no page cache to ask about")));
    }
    let me = nix::unistd::geteuid();
    if !me.is_root()
        && metadata.uid() != me.as_raw()
        && nix::unistd::access(path, nix::unistd::AccessFlags::W_OK).is_err()
    {
        return Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            "the kernel tells about the page cache of files only to their owner and to who may write them",
        ));
    }
    let page = page_size();
    let mut result = FilePages {
        path: path.to_owned(),
        bytes: metadata.len(),
        cached: PageCounts { page_size: page as u64, ..PageCounts::default() },
        uncached: 0,
    };
    for offset in (0..metadata.len()).step_by(WINDOW as usize) {
        let len = WINDOW.min(metadata.len() - offset) as usize;
        add_window(&file, offset, len, page, &mut result)?;
    }
    Ok(result)
}

fn add_window(file: &File, offset: u64, len: usize, page: usize, result: &mut FilePages) -> io::Result<()> {
    let window = sys::FileWindow::new(file, offset, len)?;
    let resident = window.resident(page)?;
    let mut index = 0;
    while index < resident.len() {
        let run = resident[index..].iter().take_while(|&&flag| flag == resident[index]).count().min(CHUNK);
        if resident[index] {
            // The kernel knows the node of pages in our page table only. When they cannot be put there (a kernel before
            // 5.14, a file that shrank), they are counted as unknown.
            let _ = window.populate(index * page..((index + run) * page).min(len));
            let addresses: Vec<usize> = (index..index + run).map(|i| window.address() + i * page).collect();
            let mut status = vec![0; run];
            sys::page_nodes(&addresses, &mut status)?;
            result.cached.add(&status);
        } else {
            result.uncached += run as u64;
        }
        index += run;
    }
    Ok(())
}

pub(crate) fn page_size() -> usize {
    let size = nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE).ok().flatten();
    size.and_then(|size| usize::try_from(size).ok()).unwrap_or(4096)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{HugePages, MapOptions};
    use std::io::Write;

    /// Whether the kernel lets us ask at all.
    fn may_ask() -> bool {
        match where_is(std::ptr::null(), 1) {
            Ok(_) => true,
            Err(error) => {
                eprintln!("SKIPPED: move_pages: {error}");
                false
            }
        }
    }

    #[test]
    fn untouched_and_unmapped_pages_are_unknown() {
        if !may_ask() {
            return;
        }
        let options = MapOptions { huge_pages: HugePages::Off, huge_page_size: None };
        let pages = 3000;
        let mapping = Mapping::new(pages * page_size(), options).unwrap();
        mapping.populate(0..1500 * page_size()).unwrap();
        let counts = where_are(&mapping, 0..mapping.len()).unwrap();
        assert_eq!(counts.unknown, 1500);
        assert_eq!(counts.total(), 3000);
        assert_eq!(counts.nodes.values().sum::<u64>(), 1500);
        // Half a page each is two pages.
        let half = page_size() / 2;
        assert_eq!(where_are(&mapping, half..half + page_size()).unwrap().total(), 2);
        assert!(where_are(&mapping, 0..mapping.len() + 1).is_err());
        assert_eq!(where_is(std::ptr::without_provenance(page_size()), 1).unwrap().unknown, 1);
        assert_eq!(where_are(&mapping, 5..5).unwrap().total(), 0);
    }

    #[test]
    fn the_page_cache_of_a_file_is_counted_without_reading_it() {
        if !may_ask() {
            return;
        }
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let pages = 2500;
        file.write_all(&vec![7; pages * page_size() - 100]).unwrap();
        let found = file_pages(file.path()).unwrap();
        assert_eq!(found.cached.total() + found.uncached, pages as u64);
        // Just written, so in the page cache, unless the machine is very short of memory.
        assert!(found.cached.nodes.values().sum::<u64>() > 0, "{found:?}");
        // A hole that nobody ever read is nowhere.
        let hole = tempfile::NamedTempFile::new().unwrap();
        hole.as_file().set_len(200 << 20).unwrap();
        let found = file_pages(hole.path()).unwrap();
        assert_eq!((found.cached.total(), found.uncached), (0, (200 << 20) / page_size() as u64));
        assert!(file_pages(Path::new("/")).is_err());
    }
}
