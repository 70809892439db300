//! Settings of a pool.

use crate::{Error, ErrorKind, Result};
use heapscan_placement::memory::HugePages;
use std::time::Duration;

/// Reads that one scan keeps in flight unless told otherwise. A scan refills a half to two thirds of them at a time: with
/// 48 reads of 128 kB that is 3 to 4 MB a system call (PostgreSQL has 16 and a call for nearly every read), and reads of
/// 8 kB come 24 to 32 at a time, which the block layer merges.
pub const DEFAULT_IO_CONCURRENCY: u32 = 48;

/// The same where reads cannot be combined to 32 kB. Neighbours among them become one request of the block layer, so as
/// many are no more work for the device, but more of it is under way: 8 kB reads with 128 in flight took 0.89 of the time
/// that they took with 48 (medians of 7 interleaved scans of 134 MB, virtio disk).
pub const SMALL_READ_IO_CONCURRENCY: u32 = 128;

/// Settings of a [`BufferPool`](super::BufferPool).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolConfig {
    /// Bytes of frame memory; rounded down to whole frames, at least one.
    pub shared_buffers: u64,
    /// Bytes a block: a power of two from 1024 to 32768, that of the cluster.
    pub block_size: u32,
    /// Most blocks of one read; at most 1 MB, as in PostgreSQL.
    pub io_combine_limit: u32,
    /// Reads that one stream keeps in flight; 0: no reading ahead, combining only.
    pub effective_io_concurrency: u32,
    /// Partitions of the pool.
    pub partitions: u32,
    /// Whether to use huge pages.
    pub huge_pages: HugePages,
    /// Register the frames with the IO method, which pins all of them: the whole pool becomes resident.
    pub register_memory: bool,
    /// A read that takes longer is told of by a warning, once.
    pub stall_after: Duration,
    /// After this long without an end, a read counts as stalled and those who wait for it get an error.
    pub stall_timeout: Duration,
    /// How long a stream waits for a frame when all are pinned.
    pub pin_timeout: Duration,
}

impl PoolConfig {
    /// PostgreSQL's defaults (128 MB of `shared_buffers`, reads of up to 128 kB) for blocks of
    /// `block_size` bytes.
    pub fn new(block_size: u32) -> Self {
        Self {
            shared_buffers: 128 << 20,
            block_size,
            io_combine_limit: (128 * 1024 / block_size.max(1)).max(1),
            effective_io_concurrency: DEFAULT_IO_CONCURRENCY,
            partitions: 1,
            huge_pages: HugePages::default(),
            register_memory: false,
            stall_after: Duration::from_secs(30),
            stall_timeout: Duration::from_secs(60),
            pin_timeout: Duration::from_secs(10),
        }
    }

    /// How many frames that makes, after a check of all settings.
    pub(crate) fn frames(&self) -> Result<u32> {
        let wrong = |message: String| Err(Error::new(ErrorKind::Usage, message));
        if !self.block_size.is_power_of_two() || !(1024..=32768).contains(&self.block_size) {
            return wrong(format!("block size {} is not a power of two from 1024 to 32768", self.block_size));
        }
        if self.io_combine_limit == 0 || u64::from(self.io_combine_limit) * u64::from(self.block_size) > 1 << 20 {
            return wrong(format!(
                "io_combine_limit {} blocks: use 1 to {} (1 MB)",
                self.io_combine_limit,
                (1 << 20) / self.block_size
            ));
        }
        if self.effective_io_concurrency > 1000 {
            return wrong(format!("effective_io_concurrency {}: use 0 to 1000", self.effective_io_concurrency));
        }
        if self.partitions == 0 {
            return wrong("a pool has at least one partition".to_owned());
        }
        match u32::try_from(self.shared_buffers / u64::from(self.block_size)) {
            Ok(0) => wrong(format!("shared_buffers {} holds no block of {}", self.shared_buffers, self.block_size)),
            Ok(frames) if frames <= MAX_FRAMES => Ok(frames),
            _ => wrong(format!("shared_buffers {} is more than {MAX_FRAMES} blocks", self.shared_buffers)),
        }
    }
}

/// Frame numbers, and the reads in flight on them, are counted within this.
const MAX_FRAMES: u32 = 1 << 28;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_out_of_range_are_refused() {
        assert_eq!(PoolConfig::new(8192).frames().unwrap(), 16384);
        let bad = |change: fn(&mut PoolConfig)| {
            let mut config = PoolConfig::new(8192);
            change(&mut config);
            config.frames().unwrap_err().kind()
        };
        assert_eq!(bad(|c| c.block_size = 12288), ErrorKind::Usage);
        assert_eq!(bad(|c| c.block_size = 0), ErrorKind::Usage);
        assert_eq!(bad(|c| c.io_combine_limit = 0), ErrorKind::Usage);
        assert_eq!(bad(|c| c.io_combine_limit = 129), ErrorKind::Usage);
        assert_eq!(bad(|c| c.effective_io_concurrency = 1001), ErrorKind::Usage);
        assert_eq!(bad(|c| c.shared_buffers = 8191), ErrorKind::Usage);
        assert_eq!(bad(|c| c.shared_buffers = u64::MAX), ErrorKind::Usage);
        assert_eq!(bad(|c| c.partitions = 0), ErrorKind::Usage);
    }
}
