//! Whether a relation's files end where they should.
//!
//! A segment that was cut at a block boundary, or a last segment that is missing, looks like a smaller relation; the
//! server itself reads it as one. Two witnesses know better: the visibility map, which is cut together with the heap and
//! so never speaks of blocks behind its end, and `relpages`, the size when the relation was last vacuumed or analysed.

use crate::{Error, RelationFork, Result};
use std::{
    fs::File,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

/// `MAXALIGN(SizeOfPageHeaderData)`: what precedes the map on its pages.
const MAP_HEADER: u64 = 24;
/// `HEAPBLOCKS_PER_BYTE`: two bits a block.
const BLOCKS_PER_BYTE: u64 = 4;
/// A map of this size speaks of more blocks than a block number counts.
const MAP_BYTES_MAX: u64 = 2 << 30;

/// The highest block behind the end of the fork that its visibility map speaks of.
///
/// # Errors
/// `Io` if the map is there and cannot be read.
pub(crate) fn mapped_behind_end(fork: &RelationFork) -> Result<Option<u64>> {
    let path = map_path(fork.path());
    // Examined before it is opened: to open a pipe would block for ever.
    let meta = match path.metadata() {
        Ok(meta) => meta,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(Error::os(path, "stat visibility map", &e)),
    };
    if !meta.is_file() || meta.len() > MAP_BYTES_MAX {
        return Ok(None);
    }
    let file = crate::OpenFiles::of_process()
        .make_room_for(|| File::open(&path))
        .map_err(|e| Error::os(&path, "open visibility map", &e))?;
    let block_size = u64::from(fork.block_size());
    let per_page = (block_size - MAP_HEADER) * BLOCKS_PER_BYTE;
    let first = u64::from(fork.blocks());
    let mut page = vec![0; block_size as usize];
    let mut highest = None;
    for number in first / per_page..meta.len() / block_size {
        file.read_exact_at(&mut page, number * block_size).map_err(|e| Error::os(&path, "read visibility map", &e))?;
        for (byte, at) in page[MAP_HEADER as usize..].iter().zip(0u64..) {
            for within in (0..BLOCKS_PER_BYTE).filter(|within| byte >> (2 * within) & 3 != 0) {
                let block = number * per_page + at * BLOCKS_PER_BYTE + within;
                if block >= first {
                    highest = Some(block);
                }
            }
        }
    }
    Ok(highest)
}

/// The visibility map of a fork, to be asked block by block.
#[derive(Debug)]
pub(crate) struct VisibilityMap {
    file: File,
    block_size: u64,
}

impl VisibilityMap {
    /// `None` if there is no map, or it cannot be opened.
    pub(crate) fn open(fork: &RelationFork) -> Option<Self> {
        let path = map_path(fork.path());
        // Examined before it is opened: to open a pipe would block for ever.
        if !path.metadata().ok()?.is_file() {
            return None;
        }
        Some(Self { file: File::open(&path).ok()?, block_size: u64::from(fork.block_size()) })
    }

    /// The two bits of a block; `None` if the map does not reach so far. Maps are looked at up to their first segment,
    /// which is enough for 32 TB.
    pub(crate) fn bits(&self, block: u32) -> Option<u8> {
        let per_page = (self.block_size - MAP_HEADER) * BLOCKS_PER_BYTE;
        let (number, within) = (u64::from(block) / per_page, u64::from(block) % per_page);
        let mut byte = [0];
        let at = number * self.block_size + MAP_HEADER + within / BLOCKS_PER_BYTE;
        self.file.read_exact_at(&mut byte, at).ok()?;
        Some(byte[0] >> (2 * (within % BLOCKS_PER_BYTE)) & 3)
    }
}

fn map_path(base: &Path) -> PathBuf {
    let mut name = base.as_os_str().to_owned();
    name.push("_vm");
    PathBuf::from(name)
}
