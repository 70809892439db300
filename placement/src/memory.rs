//! Anonymous memory: mapping, huge pages, populating.

use std::{fmt, io, ops::Range, ptr::NonNull, str::FromStr};

/// Alignment of large mappings, so that transparent huge pages can begin at their start.
const LARGE: usize = 2 << 20;

/// PostgreSQL's `huge_pages`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HugePages {
    /// Small pages only, not even transparent huge ones.
    Off,
    /// Explicit huge pages if enough are reserved, else transparent ones where the kernel has them, else small ones.
    #[default]
    Try,
    /// Explicit huge pages or an error.
    On,
}

impl fmt::Display for HugePages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Off => "off",
            Self::Try => "try",
            Self::On => "on",
        })
    }
}

impl FromStr for HugePages {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "off" => Ok(Self::Off),
            "try" => Ok(Self::Try),
            "on" => Ok(Self::On),
            _ => Err(format!("unknown huge_pages {text:?}: use off, try or on")),
        }
    }
}

/// How to map.
#[derive(Clone, Copy, Debug, Default)]
pub struct MapOptions {
    /// Whether to use huge pages.
    pub huge_pages: HugePages,
    /// Size of explicit huge pages in bytes; default: the kernel's (`Hugepagesize` in /proc/meminfo).
    pub huge_page_size: Option<usize>,
}

/// The pages that a mapping consists of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageKind {
    /// Ordinary pages of this size in bytes.
    Small(usize),
    /// Ordinary pages that the kernel may join to huge ones.
    Transparent,
    /// Explicit huge pages (hugetlb) of this size in bytes.
    Huge(usize),
}

impl fmt::Display for PageKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Small(size) => write!(f, "{} kB", size / 1024),
            Self::Transparent => f.write_str("transparent huge pages"),
            Self::Huge(size) => write!(f, "huge pages of {} kB", size / 1024),
        }
    }
}

/// What was asked for and what was had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapReport {
    /// The setting.
    pub asked: HugePages,
    /// What is used.
    pub used: PageKind,
    /// Why it is not more.
    pub notes: Vec<String>,
}

/// Memory could not be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MapError {
    /// No memory of any kind.
    #[error("cannot map {len} bytes of memory: {source}")]
    Map {
        /// Bytes.
        len: usize,
        /// The kernel's answer.
        source: io::Error,
    },
    /// `huge_pages = on` and they cannot be had.
    #[error(
        "huge_pages = on, but {needed} huge pages of {} kB cannot be had: {source}; reserve them \
         (echo {needed} > /sys/kernel/mm/hugepages/hugepages-{}kB/nr_hugepages, or sysctl vm.nr_hugepages for the \
         default size), or use huge_pages = try", page_size / 1024, page_size / 1024
    )]
    HugePages {
        /// Pages needed for this mapping.
        needed: usize,
        /// Their size in bytes.
        page_size: usize,
        /// The kernel's answer.
        source: io::Error,
    },
    /// Pages were promised and are not there. Touching them would have ended the process with SIGBUS.
    #[error("cannot populate bytes {}..{} of a mapping: {source} (out of memory, or over a cgroup limit?)", range.start, range.end)]
    Populate {
        /// Bytes within the mapping.
        range: Range<usize>,
        /// The kernel's answer.
        source: io::Error,
    },
    /// A range beyond the mapping, or a page size that is none.
    #[error("{0}")]
    Setting(String),
}

/// Private anonymous memory, zeroed, writable, unmapped on drop. Begins on a page boundary, on a 2 MiB boundary if it is
/// that large.
///
/// Populate before use: a huge page that cannot be had after all is an error then, and a SIGBUS later.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    len: usize,
    report: MapReport,
}

fn page_size() -> usize {
    nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE)
        .ok()
        .flatten()
        .and_then(|size| usize::try_from(size).ok())
        .unwrap_or(4096)
}

/// The kernel's default size of huge pages.
pub(crate) fn default_huge_page_size() -> Option<usize> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("Hugepagesize:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<usize>().ok()?.checked_mul(1024)
}

/// Whether transparent huge pages are switched off for everybody.
fn transparent_never() -> bool {
    let setting = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
    setting.map_or(true, |text| text.contains("[never]"))
}

impl Mapping {
    /// Maps at least `len` bytes (rounded up to whole pages). Nothing is populated yet.
    ///
    /// # Errors
    /// [`MapError`]; because of huge pages only when they are [`HugePages::On`].
    pub fn new(len: usize, options: MapOptions) -> Result<Self, MapError> {
        let asked = options.huge_pages;
        let mut notes = Vec::new();
        if asked != HugePages::Off {
            match Self::try_huge(len, options) {
                Ok(mapping) => return Ok(mapping),
                Err(error) if asked == HugePages::On => return Err(error),
                Err(error @ MapError::Setting(_)) => return Err(error),
                Err(MapError::HugePages { needed, page_size, source }) => {
                    notes.push(format!("{needed} explicit huge pages of {} kB: {source}", page_size / 1024))
                }
                Err(error) => notes.push(error.to_string()),
            }
        }
        Self::ordinary(len, asked, notes)
    }

    /// Maps ordinary pages, which the kernel may join to huge ones unless huge pages are off.
    pub(crate) fn ordinary(len: usize, asked: HugePages, mut notes: Vec<String>) -> Result<Self, MapError> {
        let page = page_size();
        let len = round_up(len.max(1), page)?;
        let base =
            sys::map(len, if len >= LARGE { LARGE } else { page }).map_err(|source| MapError::Map { len, source })?;
        let used = advise(base, len, asked, page, &mut notes);
        Ok(Self { base, len, report: MapReport { asked, used, notes } })
    }

    fn try_huge(len: usize, options: MapOptions) -> Result<Self, MapError> {
        let none = || io::Error::from_raw_os_error(libc::EOPNOTSUPP);
        let Some(page_size) = options.huge_page_size.or_else(default_huge_page_size) else {
            // A kernel without hugetlb.
            return Err(MapError::HugePages { needed: len.div_ceil(LARGE), page_size: LARGE, source: none() });
        };
        if !page_size.is_power_of_two() || page_size < 4096 {
            return Err(MapError::Setting(format!("huge_page_size = {page_size} is not a page size")));
        }
        let len = round_up(len.max(1), page_size)?;
        let needed = len / page_size;
        let base = sys::map_huge(len, page_size).map_err(|source| MapError::HugePages { needed, page_size, source })?;
        let report = MapReport { asked: options.huge_pages, used: PageKind::Huge(page_size), notes: Vec::new() };
        Ok(Self { base, len, report })
    }

    /// First byte.
    pub fn as_ptr(&self) -> NonNull<u8> {
        self.base
    }

    /// Length in bytes; whole pages.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Never: there is at least one page.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// What was asked for and what is used.
    pub fn report(&self) -> &MapReport {
        &self.report
    }

    fn page(&self) -> usize {
        match self.report.used {
            PageKind::Huge(size) | PageKind::Small(size) => size,
            PageKind::Transparent => page_size(),
        }
    }

    fn check(&self, range: &Range<usize>) -> Result<(), MapError> {
        if range.start <= range.end && range.end <= self.len {
            return Ok(());
        }
        Err(MapError::Setting(format!("bytes {}..{} of a mapping of {} bytes", range.start, range.end, self.len)))
    }

    /// Has the kernel provide the pages that `range` (bytes) touches, now, without changing what is in them. Several
    /// threads may populate different ranges at a time.
    ///
    /// # Errors
    /// [`MapError::Populate`] when they cannot be had.
    pub fn populate(&self, range: Range<usize>) -> Result<(), MapError> {
        self.check(&range)?;
        let page = self.page();
        let start = range.start / page * page;
        let end = range.end.next_multiple_of(page).min(self.len);
        if start >= end {
            return Ok(());
        }
        match sys::advise(self.base, start, end - start, libc::MADV_POPULATE_WRITE) {
            Ok(()) => Ok(()),
            // Linux before 5.14. Touching an explicit huge page that is not there would be a SIGBUS; others are there
            // or the process is out of memory in the ordinary way.
            Err(error)
                if error.raw_os_error() == Some(libc::EINVAL) && !matches!(self.report.used, PageKind::Huge(_)) =>
            {
                (start..end).step_by(page).for_each(|at| sys::touch(self.base, at));
                Ok(())
            }
            Err(source) => Err(MapError::Populate { range, source }),
        }
    }

    /// Populates everything. With [`HugePages::Try`], explicit huge pages that were promised and cannot be had (a cgroup
    /// limit, the wrong node) are replaced by ordinary ones; whatever was in the mapping is lost then.
    ///
    /// # Errors
    /// [`MapError::Populate`] when the pages cannot be had.
    pub fn populate_all(&mut self) -> Result<(), MapError> {
        let error = match self.populate(0..self.len) {
            Ok(()) => return Ok(()),
            Err(error) => error,
        };
        if self.report.asked != HugePages::Try || !matches!(self.report.used, PageKind::Huge(_)) {
            return Err(error);
        }
        sys::replace(self.base, self.len).map_err(|source| MapError::Map { len: self.len, source })?;
        self.report.notes.push(format!("explicit huge pages given up: {error}"));
        self.report.used = advise(self.base, self.len, HugePages::Try, page_size(), &mut self.report.notes);
        self.populate(0..self.len)
    }

    /// Gives the whole pages within `range` (bytes) back to the kernel; they read as zero afterwards.
    ///
    /// # Errors
    /// [`MapError::Setting`] for a range beyond the mapping, [`MapError::Map`] when the kernel refuses.
    pub fn release(&mut self, range: Range<usize>) -> Result<(), MapError> {
        self.check(&range)?;
        let page = self.page();
        let start = range.start.next_multiple_of(page);
        let end = range.end / page * page;
        if start >= end {
            return Ok(());
        }
        sys::advise(self.base, start, end - start, libc::MADV_DONTNEED)
            .map_err(|source| MapError::Map { len: end - start, source })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        sys::unmap(self.base, self.len);
    }
}

fn round_up(len: usize, page: usize) -> Result<usize, MapError> {
    len.checked_next_multiple_of(page)
        .filter(|&len| isize::try_from(len).is_ok())
        .ok_or_else(|| MapError::Map { len, source: io::Error::from_raw_os_error(libc::ENOMEM) })
}

/// Tells the kernel whether ordinary pages may be joined to transparent huge ones.
fn advise(base: NonNull<u8>, len: usize, asked: HugePages, page: usize, notes: &mut Vec<String>) -> PageKind {
    if asked == HugePages::Off {
        // EINVAL: a kernel without transparent huge pages, which is what was asked for.
        let _ = sys::advise(base, 0, len, libc::MADV_NOHUGEPAGE);
        return PageKind::Small(page);
    }
    if len < LARGE {
        return PageKind::Small(page);
    }
    if transparent_never() {
        notes.push("transparent huge pages are off (/sys/kernel/mm/transparent_hugepage/enabled)".to_owned());
        return PageKind::Small(page);
    }
    match sys::advise(base, 0, len, libc::MADV_HUGEPAGE) {
        Ok(()) => PageKind::Transparent,
        Err(error) => {
            notes.push(format!("transparent huge pages: {error}"));
            PageKind::Small(page)
        }
    }
}

#[allow(unsafe_code, reason = "mmap and madvise on memory that a Mapping owns")]
mod sys {
    use super::Mapping;
    use std::{
        io,
        ptr::{NonNull, null_mut},
        sync::atomic::{AtomicU8, Ordering},
    };

    const FLAGS: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    const PROTECTION: i32 = libc::PROT_READ | libc::PROT_WRITE;

    // SAFETY: a mapping is memory of the process, not of a thread; `&Mapping` only gives its address away and asks the
    // kernel for pages, which is atomic for each page.
    unsafe impl Send for Mapping {}
    // SAFETY: as above.
    unsafe impl Sync for Mapping {}

    fn map_flags(len: usize, flags: i32) -> io::Result<NonNull<u8>> {
        // SAFETY: a new anonymous mapping at an address of the kernel's choice changes nothing that exists.
        let base = unsafe { libc::mmap(null_mut(), len, PROTECTION, FLAGS | flags, -1, 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        NonNull::new(base.cast()).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))
    }

    /// Maps `len` bytes at a multiple of `align`, both multiples of the page size.
    pub(super) fn map(len: usize, align: usize) -> io::Result<NonNull<u8>> {
        let total = len.checked_add(align).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))?;
        let base = map_flags(total, 0)?;
        let head = base.as_ptr().align_offset(align);
        // SAFETY: `head` < `align`, so this stays within `total` bytes.
        let aligned = unsafe { base.add(head) };
        let tail = align - head;
        if head > 0 {
            unmap(base, head);
        }
        // SAFETY: head + len + tail = total.
        unmap(unsafe { aligned.add(len) }, tail);
        Ok(aligned)
    }

    /// Maps explicit huge pages. Without MAP_NORESERVE: the kernel promises the pages or refuses now.
    pub(super) fn map_huge(len: usize, page_size: usize) -> io::Result<NonNull<u8>> {
        let size = (page_size.trailing_zeros() as i32) << libc::MAP_HUGE_SHIFT;
        map_flags(len, libc::MAP_HUGETLB | size)
    }

    /// Puts ordinary pages where a whole mapping is.
    pub(super) fn replace(base: NonNull<u8>, len: usize) -> io::Result<()> {
        // SAFETY: the range is exactly one `Mapping`, borrowed mutably; its content is given up, as documented.
        let result = unsafe { libc::mmap(base.as_ptr().cast(), len, PROTECTION, FLAGS | libc::MAP_FIXED, -1, 0) };
        if result == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    pub(super) fn unmap(base: NonNull<u8>, len: usize) {
        // SAFETY: callers own the range (a mapping that ends, or the surplus of one that begins) and it has whole pages.
        // It fails only for ranges that are none.
        unsafe { libc::munmap(base.as_ptr().cast(), len) };
    }

    pub(super) fn advise(base: NonNull<u8>, start: usize, len: usize, advice: i32) -> io::Result<()> {
        // SAFETY: callers checked that the range lies within a mapping. Of the advices used only MADV_DONTNEED changes
        // content, and that needs the mapping borrowed mutably.
        match unsafe { libc::madvise(base.as_ptr().add(start).cast(), len, advice) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Writes to a page without changing it.
    pub(super) fn touch(base: NonNull<u8>, at: usize) {
        // SAFETY: within the mapping, writable, and atomic, so that it does not race with others who use atomics.
        unsafe { AtomicU8::from_ptr(base.as_ptr().add(at)) }.fetch_or(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
#[allow(unsafe_code, reason = "tests look into the memory")]
mod tests {
    use super::*;

    fn resident_pages(mapping: &Mapping) -> usize {
        let pages = mapping.len() / page_size();
        let mut flags = vec![0u8; pages];
        // SAFETY: one byte for each page of a mapping that lives.
        let result = unsafe { libc::mincore(mapping.as_ptr().as_ptr().cast(), mapping.len(), flags.as_mut_ptr()) };
        assert_eq!(result, 0);
        flags.iter().filter(|&&flag| flag & 1 == 1).count()
    }

    fn byte(mapping: &Mapping, at: usize) -> &AtomicByte {
        assert!(at < mapping.len());
        // SAFETY: within the mapping, which outlives the reference; all access is atomic.
        unsafe { AtomicByte::from_ptr(mapping.as_ptr().as_ptr().add(at)) }
    }

    use std::sync::atomic::{AtomicU8 as AtomicByte, Ordering::Relaxed};

    #[test]
    fn populating_provides_pages_and_keeps_what_is_in_them() {
        for huge_pages in [HugePages::Off, HugePages::Try] {
            let mut mapping = Mapping::new(5 << 20, MapOptions { huge_pages, huge_page_size: None }).expect("memory");
            assert!((mapping.as_ptr().as_ptr() as usize).is_multiple_of(LARGE));
            assert_eq!(mapping.report().asked, huge_pages);
            byte(&mapping, 12_345).store(7, Relaxed);
            mapping.populate(0..mapping.len()).expect("populate");
            assert_eq!(byte(&mapping, 12_345).load(Relaxed), 7);
            assert_eq!(resident_pages(&mapping), mapping.len() / page_size());
            mapping.release(0..mapping.len()).expect("release");
            assert_eq!(byte(&mapping, 12_345).load(Relaxed), 0);
            mapping.populate_all().expect("populate again");
        }
    }

    #[test]
    fn off_is_small_pages() {
        let mapping =
            Mapping::new(4 << 20, MapOptions { huge_pages: HugePages::Off, huge_page_size: None }).expect("memory");
        assert_eq!(mapping.report().used, PageKind::Small(page_size()));
        mapping.populate(page_size()..2 * page_size()).expect("populate");
        assert_eq!(resident_pages(&mapping), 1);
    }

    #[test]
    fn on_is_huge_pages_or_an_error_that_says_how_many() {
        // More than any machine has reserved.
        let options = MapOptions { huge_pages: HugePages::On, huge_page_size: Some(2 << 20) };
        match Mapping::new(64 << 40, options) {
            Err(error @ MapError::HugePages { needed, .. }) => {
                assert_eq!(needed, (64 << 40) / (2 << 20));
                assert!(
                    error.to_string().contains("33554432") && error.to_string().contains("nr_hugepages"),
                    "{error}"
                );
            }
            other => panic!("{other:?}"),
        }
        match Mapping::new(2 << 20, options) {
            Ok(mapping) => {
                mapping.populate(0..mapping.len()).expect("reserved pages");
                assert_eq!(mapping.report().used, PageKind::Huge(2 << 20));
            }
            Err(MapError::HugePages { needed: 1, .. }) => {}
            Err(other) => panic!("{other}"),
        }
    }

    #[test]
    fn try_falls_back_and_says_so() {
        let options = MapOptions { huge_pages: HugePages::Try, huge_page_size: Some(2 << 20) };
        let mut mapping = Mapping::new(512 << 20, options).expect("address space");
        let is_huge = matches!(mapping.report().used, PageKind::Huge(_));
        assert_eq!(is_huge, mapping.report().notes.is_empty(), "{:?}", mapping.report());
        // A size that this kernel does not have.
        let options = MapOptions { huge_pages: HugePages::Try, huge_page_size: Some(1 << 40) };
        mapping = Mapping::new(1 << 20, options).expect("small pages instead");
        assert_eq!(mapping.report().used, PageKind::Small(page_size()));
        assert!(mapping.report().notes[0].contains("1 explicit huge pages of 1073741824 kB"), "{:?}", mapping.report());
    }

    #[test]
    fn nonsense_is_refused() {
        let try_huge = |size| MapOptions { huge_pages: HugePages::Try, huge_page_size: Some(size) };
        assert!(matches!(Mapping::new(1 << 20, try_huge(3 << 20)), Err(MapError::Setting(_))));
        assert!(matches!(Mapping::new(usize::MAX, MapOptions::default()), Err(MapError::Map { .. })));
        let mapping = Mapping::new(1, MapOptions::default()).expect("a page");
        assert!(matches!(mapping.populate(0..mapping.len() + 1), Err(MapError::Setting(_))));
        assert_eq!("try".parse(), Ok(HugePages::Try));
        assert!("maybe".parse::<HugePages>().is_err());
    }
}
