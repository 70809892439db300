//! The system calls: memory policies, where pages are, residency of files; and the loops of the measurements.
#![allow(unsafe_code, reason = "system calls about memory that a Mapping or FileWindow owns")]

use crate::{
    memory::Mapping,
    topology::{Policy, PolicyMode},
};
use std::{
    fs::File,
    hint::black_box,
    io,
    ops::Range,
    os::fd::AsRawFd,
    ptr::{NonNull, null, null_mut},
    sync::atomic::{AtomicU64, Ordering},
};

// include/uapi/linux/mempolicy.h
pub(crate) const MPOL_BIND: i32 = 2;
pub(crate) const MPOL_INTERLEAVE: i32 = 3;
/// Flags that share the word with the mode (MPOL_F_NUMA_BALANCING, _RELATIVE_NODES, _STATIC_NODES).
const MPOL_MODE_FLAGS: i32 = 0xe000;

/// Words of a mask that holds every node that a kernel can have (`MAX_NUMNODES` is 1024 at most).
const MASK_WORDS: usize = 16;

/// A node mask and the `maxnode` to pass with it: the kernel decrements that value before it uses it, so the exact number
/// of bits would drop the top node.
pub(crate) fn node_mask(nodes: &[u32]) -> io::Result<(Vec<u64>, libc::c_ulong)> {
    let mut mask = vec![0u64; MASK_WORDS];
    for &node in nodes {
        let word = mask.get_mut(node as usize / 64).ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))?;
        *word |= 1 << (node % 64);
    }
    Ok((mask, max_node(MASK_WORDS)))
}

/// For a mask of so many words of 64 bits.
fn max_node(words: usize) -> libc::c_ulong {
    words as libc::c_ulong * 64 + 1
}

fn result(code: libc::c_long) -> io::Result<()> {
    if code < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// The memory policy of this thread (get_mempolicy(2)).
pub(crate) fn inherited_policy() -> io::Result<Policy> {
    let mut mode: libc::c_int = 0;
    let mut mask = [0u64; MASK_WORDS];
    let no_address: *const libc::c_void = null();
    // SAFETY: `mode` is an int; the kernel writes (maxnode - 1) bits of the mask at most, which is all of it.
    result(unsafe {
        libc::syscall(libc::SYS_get_mempolicy, &raw mut mode, mask.as_mut_ptr(), max_node(MASK_WORDS), no_address, 0)
    })?;
    let nodes = (0..MASK_WORDS as u32 * 64).filter(|&node| mask[node as usize / 64] >> (node % 64) & 1 == 1).collect();
    let mode = match mode & !MPOL_MODE_FLAGS {
        0 => PolicyMode::Default,
        1 => PolicyMode::Preferred,
        2 => PolicyMode::Bind,
        3 => PolicyMode::Interleave,
        4 => PolicyMode::Local,
        5 => PolicyMode::PreferredMany,
        6 => PolicyMode::WeightedInterleave,
        _ => PolicyMode::Unknown,
    };
    Ok(Policy { mode, nodes })
}

/// Sets the policy of a whole mapping (mbind(2)); of pages that are not there yet, so nothing moves.
pub(crate) fn bind(mapping: &Mapping, mode: i32, nodes: &[u32]) -> io::Result<()> {
    let (mask, max_node) = node_mask(nodes)?;
    // SAFETY: the range is one mapping, page-aligned by its construction; a policy changes no content. The mask has
    // (max_node - 1) bits.
    result(unsafe {
        libc::syscall(
            libc::SYS_mbind,
            mapping.as_ptr().as_ptr(),
            mapping.len(),
            libc::c_long::from(mode),
            mask.as_ptr(),
            max_node,
            0 as libc::c_uint,
        )
    })
}

/// Asks for the node of the page at each address (move_pages(2) without nodes moves nothing). Negative status: an errno,
/// the page is not there.
pub(crate) fn page_nodes(addresses: &[usize], status: &mut [i32]) -> io::Result<()> {
    assert_eq!(addresses.len(), status.len());
    let (me, no_nodes): (libc::c_int, *const libc::c_int) = (0, null());
    // SAFETY: both arrays have as many entries as the call is told. The kernel looks the addresses up and never
    // follows them, so they may be anything.
    result(unsafe {
        libc::syscall(libc::SYS_move_pages, me, addresses.len(), addresses.as_ptr(), no_nodes, status.as_mut_ptr(), 0)
    })
}

/// A read-only mapping of a piece of a file. Its bytes are never read through it: the file could shrink.
#[derive(Debug)]
pub(crate) struct FileWindow {
    base: NonNull<u8>,
    len: usize,
}

impl FileWindow {
    pub(crate) fn new(file: &File, offset: u64, len: usize) -> io::Result<Self> {
        let offset = libc::off_t::try_from(offset).map_err(io::Error::other)?;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base = unsafe { libc::mmap(null_mut(), len, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), offset) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))?;
        let window = Self { base, len };
        // No reading ahead around the pages that are asked about.
        window.advise(0..len, libc::MADV_RANDOM)?;
        Ok(window)
    }

    pub(crate) fn address(&self) -> usize {
        self.base.as_ptr() as usize
    }

    /// One flag a page: whether it is in the page cache (mincore(2)).
    pub(crate) fn resident(&self, page: usize) -> io::Result<Vec<bool>> {
        let mut flags = vec![0u8; self.len.div_ceil(page)];
        // SAFETY: the range is this mapping; one byte a page is what the kernel writes.
        result(unsafe { libc::mincore(self.base.as_ptr().cast(), self.len, flags.as_mut_ptr()) }.into())?;
        Ok(flags.into_iter().map(|flag| flag & 1 == 1).collect())
    }

    /// Has the kernel map pages, so that it can be asked about them. Fails, where touching them would be a SIGBUS.
    pub(crate) fn populate(&self, range: Range<usize>) -> io::Result<()> {
        self.advise(range, libc::MADV_POPULATE_READ)
    }

    fn advise(&self, range: Range<usize>, advice: i32) -> io::Result<()> {
        assert!(range.start <= range.end && range.end <= self.len);
        // SAFETY: within this mapping; both advices used (MADV_RANDOM, MADV_POPULATE_READ) change no content.
        let code = unsafe { libc::madvise(self.base.as_ptr().add(range.start).cast(), range.len(), advice) };
        result(code.into())
    }
}

impl Drop for FileWindow {
    fn drop(&mut self) {
        // SAFETY: the mapping ends with its owner; no reference into it was ever made.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// A mapping as words. They are atomic so that the threads of a measurement may share them.
pub(crate) fn words(mapping: &Mapping) -> &[AtomicU64] {
    // SAFETY: the mapping is page-aligned, zeroed or written by atomics only, and lives as long as the reference. Any
    // bits are a valid u64. Measurements own their mappings, so nobody else has a `&mut` to the bytes.
    unsafe { std::slice::from_raw_parts(mapping.as_ptr().as_ptr().cast(), mapping.len() / 8) }
}

/// Follows a chain of indexes from `at`: `steps` loads that each need the one before.
pub(crate) fn chase(words: &[AtomicU64], mut at: u64, steps: u64) -> u64 {
    for _ in 0..steps {
        at = words[at as usize].load(Ordering::Relaxed);
    }
    black_box(at)
}

/// Reads all words.
pub(crate) fn sum(words: &[AtomicU64]) -> u64 {
    let mut sums = [0u64; 8];
    for chunk in words.chunks_exact(8) {
        for (sum, word) in sums.iter_mut().zip(chunk) {
            *sum = sum.wrapping_add(word.load(Ordering::Relaxed));
        }
    }
    black_box(sums.iter().fold(0, |a, &b| a.wrapping_add(b)))
}

/// Pages of a file's first `bytes` that are in the page cache, and how many of them are dirty (cachestat(2), Linux 6.5).
pub(crate) fn cachestat(file: &File, bytes: u64) -> io::Result<(u64, u64)> {
    // The same number on all architectures with the common table (include/uapi/asm-generic/unistd.h).
    const SYS_CACHESTAT: libc::c_long = 451;
    // struct cachestat_range { off, len } and struct cachestat { cache, dirty, writeback, evicted, recently_evicted }
    // (include/uapi/linux/mman.h).
    let range = [0u64, bytes];
    let mut answer = [0u64; 5];
    // SAFETY: two words are read and five written, which both arrays have; the descriptor is open.
    result(unsafe {
        libc::syscall(SYS_CACHESTAT, file.as_raw_fd(), range.as_ptr(), answer.as_mut_ptr(), 0 as libc::c_uint)
    })?;
    Ok((answer[0], answer[1]))
}

/// Reads a whole mapping, in the widest registers that the processor has.
pub(crate) fn stream(mapping: &Mapping) {
    // SAFETY: the mapping is page-aligned and whole pages long, zeroed by the kernel, and lives as long as the reference;
    // any bits are a valid u64. Nobody writes meanwhile: measurements own their mappings.
    let words: &[u64] = unsafe { std::slice::from_raw_parts(mapping.as_ptr().as_ptr().cast(), mapping.len() / 8) };
    #[cfg(target_arch = "x86_64")]
    {
        if std::is_x86_feature_detected!("avx512f") {
            // SAFETY: the processor has AVX-512F.
            black_box(unsafe { sum_avx512(words) });
            return;
        }
        if std::is_x86_feature_detected!("avx2") {
            // SAFETY: the processor has AVX2.
            black_box(unsafe { sum_avx2(words) });
            return;
        }
    }
    black_box(sum_words(words));
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn sum_avx512(words: &[u64]) -> u64 {
    sum_words(words)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn sum_avx2(words: &[u64]) -> u64 {
    sum_words(words)
}

/// Eight independent cache lines at a time, so that no addition waits for another.
#[inline(always)]
fn sum_words(words: &[u64]) -> u64 {
    const WORDS: usize = 64;
    let mut sums = [0u64; WORDS];
    for chunk in words.chunks_exact(WORDS) {
        for (sum, word) in sums.iter_mut().zip(chunk) {
            *sum = sum.wrapping_add(*word);
        }
    }
    sums.iter().fold(0, |a, &b| a.wrapping_add(b))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{HugePages, MapOptions};

    fn bind_with(mapping: &Mapping, mask: u64, max_node: libc::c_ulong) -> io::Result<()> {
        // SAFETY: as in `bind`; the mask has 64 bits.
        result(unsafe {
            libc::syscall(
                libc::SYS_mbind,
                mapping.as_ptr().as_ptr(),
                mapping.len(),
                libc::c_long::from(MPOL_BIND),
                &raw const mask,
                max_node,
                0 as libc::c_uint,
            )
        })
    }

    #[test]
    fn the_kernel_drops_the_top_bit_of_an_exact_mask() {
        assert_eq!(node_mask(&[0, 65]).unwrap(), ([1, 2].into_iter().chain([0; 14]).collect(), 1025));
        assert!(node_mask(&[1024]).is_err());
        let mapping = Mapping::new(4096, MapOptions { huge_pages: HugePages::Off, huge_page_size: None }).unwrap();
        if let Err(error) = bind(&mapping, MPOL_BIND, &[0]) {
            eprintln!("SKIPPED: mbind to node 0: {error}");
            return;
        }
        assert_eq!(bind_with(&mapping, 1, 1).unwrap_err().raw_os_error(), Some(libc::EINVAL));
        bind_with(&mapping, 1, 2).unwrap();
    }
}
