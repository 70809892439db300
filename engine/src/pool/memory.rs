//! The anonymous mapping that frames live in.

use crate::{Error, ErrorKind, Result};
use std::{io, ops::Range, ptr::NonNull};

/// Whether frames are put on huge pages, as PostgreSQL's `huge_pages`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HugePages {
    /// Ordinary pages.
    Off,
    /// Huge pages where they can be had, else ordinary ones.
    #[default]
    Try,
    /// Huge pages or an error.
    On,
}

/// How to map.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MapOptions {
    pub(crate) huge_pages: HugePages,
}

/// Reserved hugetlb pages have this size unless the kernel was told otherwise.
const HUGE_PAGE: usize = 2 << 20;

/// A private anonymous mapping, unmapped when dropped.
#[derive(Debug)]
pub(crate) struct Mapping {
    ptr: NonNull<u8>,
    len: usize,
    mapped: usize,
    huge: bool,
}

impl Mapping {
    pub(crate) fn as_ptr(&self) -> NonNull<u8> {
        self.ptr
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn is_huge(&self) -> bool {
        self.huge
    }
}

fn page_size() -> usize {
    nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE).ok().flatten().map_or(4096, |size| size as usize)
}

fn refused(len: usize, what: &str, source: &io::Error) -> Error {
    Error::new(ErrorKind::Limit, format!("{what} of {len} bytes of frame memory: {source}"))
        .with_errno(source.raw_os_error().unwrap_or(0))
        .with_hint("lower shared_buffers, or raise the memory limit of the process or container")
}

#[allow(unsafe_code, reason = "mmap, madvise and munmap")]
mod fence {
    use super::*;

    // SAFETY: the mapping is plain memory that belongs to this value; the type itself offers no access to the bytes.
    unsafe impl Send for Mapping {}
    // SAFETY: as above; `populate` asks the kernel to fault pages in, which may be done from many threads.
    unsafe impl Sync for Mapping {}

    fn map(len: usize, flags: i32) -> io::Result<NonNull<u8>> {
        // SAFETY: an anonymous private mapping at an address that the kernel chooses touches no existing memory.
        let ptr = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | flags,
                -1,
                0,
            )
        };
        if ptr == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        NonNull::new(ptr.cast()).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))
    }

    impl Mapping {
        /// Maps `len` bytes of zeros.
        ///
        /// # Errors
        /// `Limit` if the kernel refuses.
        pub(crate) fn new(len: usize, options: &MapOptions) -> Result<Self> {
            let huge_len = len.next_multiple_of(HUGE_PAGE);
            if options.huge_pages != HugePages::Off {
                match map(huge_len, libc::MAP_HUGETLB) {
                    Ok(ptr) => return Ok(Self { ptr, len, mapped: huge_len, huge: true }),
                    Err(e) if options.huge_pages == HugePages::On => {
                        return Err(refused(huge_len, "mapping huge pages", &e));
                    }
                    Err(_) => {}
                }
            }
            let mapped = len.next_multiple_of(page_size());
            let ptr = map(mapped, 0).map_err(|e| refused(mapped, "mapping", &e))?;
            if options.huge_pages == HugePages::Try {
                // SAFETY: the range is the mapping just made; the advice changes no bytes, and a refusal is harmless.
                unsafe { libc::madvise(ptr.as_ptr().cast(), mapped, libc::MADV_HUGEPAGE) };
            }
            Ok(Self { ptr, len, mapped, huge: false })
        }

        /// Faults in the pages of `range` (bytes), so that later writes cannot fault.
        ///
        /// # Errors
        /// `Limit` if the memory cannot be had.
        pub(crate) fn populate(&self, range: Range<usize>) -> Result<()> {
            let page = page_size();
            let start = range.start / page * page;
            let end = range.end.next_multiple_of(page).min(self.mapped);
            if start >= end {
                return Ok(());
            }
            loop {
                // SAFETY: start..end lies within the mapping (start is below end, end is at most `mapped`); populating
                // changes no bytes.
                let result = unsafe {
                    libc::madvise(self.ptr.as_ptr().add(start).cast(), end - start, libc::MADV_POPULATE_WRITE)
                };
                if result == 0 {
                    return Ok(());
                }
                let error = io::Error::last_os_error();
                match error.raw_os_error() {
                    Some(libc::EINTR) => {}
                    // Before Linux 5.14: the first use faults the pages in.
                    Some(libc::EINVAL) if !self.huge => return Ok(()),
                    _ => return Err(refused(end - start, "populating", &error)),
                }
            }
        }
    }

    impl Drop for Mapping {
        fn drop(&mut self) {
            // SAFETY: the range is exactly the mapping made in `new`. The pool drops it only after the IO method, so
            // that no read into it is in flight, and pages keep the pool's shared part alive.
            unsafe { libc::munmap(self.ptr.as_ptr().cast(), self.mapped) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_populates_and_refuses_the_impossible() {
        let map = Mapping::new(3 * 4096 + 1, &MapOptions { huge_pages: HugePages::Off }).unwrap();
        assert_eq!((map.len(), map.is_huge()), (3 * 4096 + 1, false));
        map.populate(0..map.len()).unwrap();
        map.populate(4096..4097).unwrap();
        let error = Mapping::new(1 << 60, &MapOptions { huge_pages: HugePages::Try }).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Limit);
        assert_eq!(error.errno(), Some(libc::ENOMEM));
    }
}
