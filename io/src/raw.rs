//! The bare kernel interface without pool, pages or this crate's methods: the ceiling that methods are measured against.
//!
//! One thread, one ring of its own, the simplest loop that keeps so many direct reads in flight.

use crate::{DataFile, IoError, OpenFileOptions};
use heapscan_placement::memory::{MapOptions, Mapping};
use io_uring::{IoUring, opcode, squeue, types};
use serde::Serialize;
use std::{
    io,
    path::PathBuf,
    time::{Duration, Instant},
};

/// What to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct RawPoint {
    /// Bytes a read; a power of two from 4 kB on.
    pub read_bytes: usize,
    /// Reads in flight, 1 to 1024.
    pub depth: u32,
    /// Register the memory with the ring, where that can be had.
    pub registered: bool,
    /// At random places by this seed, instead of from front to back.
    pub random: Option<u64>,
    /// Stop after so many bytes; the files are read once at most when reading from front to back.
    pub bytes: u64,
}

/// What came of it.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct RawResult {
    /// Bytes that were read.
    pub bytes: u64,
    /// Reads.
    pub reads: u64,
    /// From the first submission to the last completion.
    pub elapsed: Duration,
    /// Whether the memory was registered.
    pub registered: bool,
    /// Whether all reads went past the page cache.
    pub direct: bool,
}

/// The reads of a point, one after the other.
struct Places {
    /// Whole reads of each file.
    counts: Vec<u64>,
    total: u64,
    next: u64,
    state: Option<u64>,
}

impl Places {
    /// File and index of the next read in it.
    fn next(&mut self) -> (usize, u64) {
        let mut at = match &mut self.state {
            Some(state) => {
                // xorshift64
                *state ^= *state << 13;
                *state ^= *state >> 7;
                *state ^= *state << 17;
                *state % self.total
            }
            None => {
                self.next += 1;
                (self.next - 1) % self.total
            }
        };
        for (file, &count) in self.counts.iter().enumerate() {
            if at < count {
                return (file, at);
            }
            at -= count;
        }
        (0, 0)
    }
}

/// Reads the files directly, one after the other as if they were one, as `point` says. Ends of files that are no whole
/// read are left out.
///
/// # Errors
/// Those of opening; [`IoError::Setting`] if there is no ring, nothing to read, or a read fails or is short.
pub fn raw_read(paths: &[PathBuf], point: RawPoint) -> Result<RawResult, IoError> {
    let wrong = |what: &str, error: io::Error| IoError::Setting(format!("raw read: {what}: {error}"));
    let RawPoint { read_bytes, depth, random, .. } = point;
    if !read_bytes.is_power_of_two() || !(4096..=1 << 30).contains(&read_bytes) || !(1..=1024).contains(&depth) {
        return Err(IoError::Setting(format!("raw read: {depth} reads of {read_bytes} bytes in flight")));
    }
    let options = OpenFileOptions { direct: true, ..OpenFileOptions::default() };
    let files = paths.iter().map(|path| DataFile::open(path, options)).collect::<Result<Vec<_>, _>>()?;
    let counts: Vec<u64> = files.iter().map(|file| file.size() / read_bytes as u64).collect();
    let total: u64 = counts.iter().sum();
    let wanted = point.bytes / read_bytes as u64;
    let reads = if random.is_some() { wanted } else { wanted.min(total) };
    if total == 0 || reads == 0 {
        return Err(IoError::Setting(format!("raw read: the files hold no read of {read_bytes} bytes")));
    }
    let memory = Mapping::new(read_bytes * depth as usize, MapOptions::default())
        .and_then(|mut memory| memory.populate_all().map(|()| memory))
        .map_err(|error| IoError::Setting(error.to_string()))?;
    let mut ring = IoUring::new(depth.next_power_of_two()).map_err(|e| wrong("io_uring_setup", e))?;
    let registered = point.registered && fence::register(&ring, &memory).is_ok();
    let mut places = Places { counts, total, next: 0, state: random.map(|seed| seed | 1) };
    let mut run = Run { files: &files, memory: &memory, read_bytes, registered };
    let began = Instant::now();
    let result = run.all(&mut ring, &mut places, depth, reads).map_err(|e| wrong("read", e));
    let elapsed = began.elapsed();
    if result.is_err() {
        // The kernel may still write: the memory stays.
        std::mem::forget((memory, ring));
        return Err(result.err().unwrap_or_else(|| IoError::Setting("raw read".to_owned())));
    }
    let direct = files.iter().all(DataFile::is_direct);
    Ok(RawResult { bytes: reads * read_bytes as u64, reads, elapsed, registered, direct })
}

struct Run<'a> {
    files: &'a [DataFile],
    memory: &'a Mapping,
    read_bytes: usize,
    registered: bool,
}

impl Run<'_> {
    fn all(&mut self, ring: &mut IoUring, places: &mut Places, depth: u32, reads: u64) -> io::Result<()> {
        let mut free: Vec<u32> = (0..depth).rev().collect();
        let (mut asked, mut ended) = (0u64, 0u64);
        // So many completions are waited for that submissions go out together, and the device never runs dry.
        let batch = (depth as usize / 4).max(1);
        while ended < reads {
            while asked < reads
                && let Some(slot) = free.pop()
            {
                let (file, index) = places.next();
                fence::push(ring, &self.entry(file, index, slot))?;
                asked += 1;
            }
            let in_flight = depth as usize - free.len();
            match ring.submit_and_wait(batch.min(in_flight)) {
                Ok(_) => {}
                Err(error) if error.raw_os_error() == Some(libc::EINTR) => continue,
                Err(error) => return Err(error),
            }
            for completion in ring.completion() {
                match completion.result() {
                    n if n < 0 => return Err(io::Error::from_raw_os_error(-n)),
                    n if n as usize != self.read_bytes => return Err(io::Error::other(format!("{n} bytes only"))),
                    _ => {}
                }
                free.push(completion.user_data() as u32);
                ended += 1;
            }
        }
        Ok(())
    }

    fn entry(&self, file: usize, index: u64, slot: u32) -> squeue::Entry {
        let fd = types::Fd(self.files[file].fd());
        let memory = self.memory.as_ptr().as_ptr().wrapping_add(slot as usize * self.read_bytes);
        let (len, offset) = (self.read_bytes as u32, index * self.read_bytes as u64);
        let entry = match self.registered {
            true => opcode::ReadFixed::new(fd, memory, len, 0).offset(offset).build(),
            false => opcode::Read::new(fd, memory, len).offset(offset).build(),
        };
        entry.user_data(u64::from(slot))
    }
}

#[allow(unsafe_code, reason = "raw entries of a ring that nobody else has")]
mod fence {
    use super::*;

    pub(super) fn register(ring: &IoUring, memory: &Mapping) -> io::Result<()> {
        let iovec = libc::iovec { iov_base: memory.as_ptr().as_ptr().cast(), iov_len: memory.len() };
        // SAFETY: the mapping outlives the ring: `raw_read` drops the ring first, or leaks both.
        unsafe { ring.submitter().register_buffers(&[iovec]) }
    }

    pub(super) fn push(ring: &mut IoUring, entry: &squeue::Entry) -> io::Result<()> {
        // SAFETY: the file and the memory of the entry live until its completion was seen, or `raw_read` leaks memory and
        // ring; a slot of the memory is in one entry at a time, and nobody reads it.
        unsafe { ring.submission().push(entry) }.map_err(|_| io::Error::other("the ring is full"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_read_to_their_ends_and_at_random() {
        let folder = tempfile::tempdir_in("/var/tmp").expect("a folder");
        let paths = [folder.path().join("a"), folder.path().join("b")];
        std::fs::write(&paths[0], vec![1; 1 << 20]).expect("write");
        std::fs::write(&paths[1], vec![2; (1 << 20) + 8192]).expect("write");
        let point = RawPoint { read_bytes: 128 << 10, depth: 4, registered: true, random: None, bytes: u64::MAX };
        let result = match raw_read(&paths, point) {
            Ok(result) => result,
            Err(error) if crate::probe_all().iter().any(|m| m.name == "io_uring" && !m.usable) => {
                return eprintln!("SKIP (io_uring): {error}");
            }
            Err(error) => panic!("{error}"),
        };
        assert_eq!((result.reads, result.bytes), (16, 2 << 20));
        let point = RawPoint { read_bytes: 8192, random: Some(7), bytes: 1000 * 8192, depth: 33, registered: false };
        assert_eq!(raw_read(&paths, point).expect("reads").reads, 1000);
        assert!(raw_read(&paths, RawPoint { read_bytes: 5000, ..point }).is_err());
        assert!(raw_read(&paths, RawPoint { bytes: 0, ..point }).is_err());
        let mut places = Places { counts: vec![0, 2, 1], total: 3, next: 0, state: None };
        assert_eq!([places.next(), places.next(), places.next(), places.next()], [(1, 0), (1, 1), (2, 0), (1, 0)]);
    }
}
