//! A fork of a relation as files: segments, and which file a block lies in.

use crate::{Error, ErrorKind, Result};
use heapscan_io::{DataFile, OpenFileOptions};
use std::{
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
};

/// Where a block lies.
#[derive(Clone, Debug)]
pub struct Location {
    /// The segment's file.
    pub file: Arc<DataFile>,
    /// Byte offset of the block in that file.
    pub offset: u64,
    /// How many blocks follow in this file, this one included.
    pub blocks: u32,
}

/// One fork of a relation, with its segments (`16384`, `16384.1`, ...). Sizes are taken once, when it is opened.
#[derive(Debug)]
pub struct RelationFork {
    base: PathBuf,
    block_size: u32,
    blocks_per_segment: u32,
    blocks: u32,
    open: OpenFileOptions,
    segments: Vec<OnceLock<Arc<DataFile>>>,
}

impl RelationFork {
    /// Finds the segments of the fork whose first segment is `base`.
    ///
    /// # Errors
    /// `Io` if the first segment is missing or cannot be examined; `Corrupt` if a segment that is not the last one is
    /// short, a file does not end at a block boundary, or there are more blocks than a block number can count.
    pub fn open(base: &Path, block_size: u32, blocks_per_segment: u32, open: OpenFileOptions) -> Result<Self> {
        let segment_bytes = u64::from(block_size) * u64::from(blocks_per_segment);
        let mut total = 0u64;
        let mut segments = Vec::new();
        loop {
            let path = segment_path(base, segments.len());
            let size = match std::fs::metadata(&path) {
                Ok(meta) if meta.is_file() => meta.len(),
                Ok(_) => return Err(Error::new(ErrorKind::Corrupt, "is not a regular file").with_path(path)),
                Err(e) if e.kind() == std::io::ErrorKind::NotFound && !segments.is_empty() => break,
                Err(e) => return Err(Error::os(path, "open relation", &e)),
            };
            if size % u64::from(block_size) != 0 {
                return Err(Error::new(
                    ErrorKind::Corrupt,
                    format!("size {size} is not a multiple of the block size {block_size}: the file is truncated"),
                )
                .with_path(path));
            }
            if size > segment_bytes {
                return Err(Error::new(
                    ErrorKind::Corrupt,
                    format!("size {size} is more than a segment of {segment_bytes} bytes"),
                )
                .with_path(path));
            }
            segments.push(OnceLock::new());
            total += size / u64::from(block_size);
            if size < segment_bytes {
                break;
            }
        }
        // A file behind a short segment holds blocks that a scan would never reach: rows would be missing silently.
        let next = segment_path(base, segments.len());
        if next.metadata().is_ok_and(|m| m.len() > 0) {
            return Err(Error::new(
                ErrorKind::Corrupt,
                format!("follows the short segment {}", segment_path(base, segments.len() - 1).display()),
            )
            .with_path(next));
        }
        let blocks = u32::try_from(total).ok().filter(|&b| b < u32::MAX).ok_or_else(|| {
            Error::new(ErrorKind::Corrupt, "has more blocks than a block number counts").with_path(base)
        })?;
        Ok(Self { base: base.to_owned(), block_size, blocks_per_segment, blocks, open, segments })
    }

    /// Number of blocks.
    pub fn blocks(&self) -> u32 {
        self.blocks
    }

    /// Bytes a block.
    pub fn block_size(&self) -> u32 {
        self.block_size
    }

    /// Path of the first segment.
    pub fn path(&self) -> &Path {
        &self.base
    }

    /// Path of the segment that holds `block`.
    pub fn path_of(&self, block: u32) -> PathBuf {
        segment_path(&self.base, (block / self.blocks_per_segment) as usize)
    }

    /// The file and offset of `block`.
    ///
    /// # Errors
    /// `Usage` if the relation has no such block, `Io` if its file cannot be opened.
    pub fn locate(&self, block: u32) -> Result<Location> {
        if block >= self.blocks {
            return Err(Error::new(ErrorKind::Usage, format!("the relation has {} blocks only", self.blocks))
                .with_path(&self.base)
                .with_block(block));
        }
        let index = (block / self.blocks_per_segment) as usize;
        let within = block % self.blocks_per_segment;
        let file = match self.segments[index].get() {
            Some(file) => Arc::clone(file),
            None => {
                let file = Arc::new(DataFile::open(&segment_path(&self.base, index), self.open)?);
                Arc::clone(self.segments[index].get_or_init(|| file))
            }
        };
        let segment_end =
            (u64::from(block) - u64::from(within) + u64::from(self.blocks_per_segment)).min(u64::from(self.blocks));
        Ok(Location {
            file,
            offset: u64::from(within) * u64::from(self.block_size),
            blocks: (segment_end - u64::from(block)) as u32,
        })
    }
}

fn segment_path(base: &Path, segment: usize) -> PathBuf {
    if segment == 0 {
        return base.to_owned();
    }
    let mut name = base.as_os_str().to_owned();
    name.push(format!(".{segment}"));
    PathBuf::from(name)
}
