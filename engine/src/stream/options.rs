//! Settings of a stream.

use crate::pool::{PoolConfig, Strategy};

/// Settings of a [`ReadStream`](super::ReadStream).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamOptions {
    /// How the pool's frames are used.
    pub strategy: Strategy,
    /// Most blocks of one read; clamped to 1 MB and to what the pool and the ring can spare.
    pub io_combine_limit: u32,
    /// Most reads in flight; 0: no reading ahead.
    pub effective_io_concurrency: u32,
    /// Lane of the IO method to submit to, taken modulo the number of lanes; 0: that of the home partition.
    pub lane: usize,
    /// The partition at home where the stream's frames come from first; by default that of the CPU on which the stream
    /// runs whenever it needs frames. Taken modulo the number of partitions.
    pub home: Option<u32>,
    /// A ring takes its frames from the home partition only, whatever the balance of the partitions.
    pub ring_local: bool,
    /// The caller will consume everything: begin with full reads instead of growing from one block (PostgreSQL's
    /// `READ_STREAM_FULL`).
    pub full: bool,
}

impl StreamOptions {
    /// The settings of a pool, for a scan with `strategy`.
    pub fn new(config: &PoolConfig, strategy: Strategy) -> Self {
        Self {
            strategy,
            io_combine_limit: config.io_combine_limit,
            effective_io_concurrency: config.effective_io_concurrency,
            lane: 0,
            home: None,
            ring_local: config.numa.ring_local,
            full: false,
        }
    }
}
