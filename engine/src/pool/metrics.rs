//! What reads cost, counted.

use serde::Serialize;
use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

/// Counters of a stream, or of all streams of a pool: what `EXPLAIN (ANALYZE, BUFFERS, IO)` shows, and more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ReadMetrics {
    /// Blocks that were in the pool when they were looked for.
    pub hits: u64,
    /// Read requests that were made.
    pub reads: u64,
    /// Blocks that were asked for by those requests.
    pub blocks_read: u64,
    /// Bytes that arrived by those requests.
    pub bytes_read: u64,
    /// Blocks that somebody else was already reading.
    pub joins: u64,
    /// Waits for a read that really blocked.
    pub waits: u64,
    /// Calls into the IO method that handed over requests.
    pub submits: u64,
    /// Nanoseconds spent in those calls.
    pub submit_nanos: u64,
    /// Nanoseconds spent in waits, for reads and for frames.
    pub wait_nanos: u64,
    /// Sum over the requests of the nanoseconds from submission to completion.
    pub latency_nanos: u64,
    /// Operations that were asked again (short results, EINTR, EAGAIN).
    pub retries: u64,
    /// Blocks that could not be read.
    pub failed_blocks: u64,
    /// Blocks that had to leave the pool.
    pub evictions: u64,
    /// Frames taken again from the stream's own ring.
    pub ring_reuses: u64,
    /// Blocks that were read ahead and not consumed.
    pub wasted: u64,
    /// Blocks pinned ahead that were given up because another stream had no frame at all.
    pub revoked: u64,
    /// Most requests in flight at one time.
    pub max_in_flight: u64,
}

impl ReadMetrics {
    /// Mean bytes asked for by a request; 0 without requests.
    pub fn mean_read_bytes(&self, block_size: u32) -> f64 {
        if self.reads == 0 { 0.0 } else { self.blocks_read as f64 * f64::from(block_size) / self.reads as f64 }
    }

    /// Adds the counters of `other`; of maxima the larger one counts.
    pub fn add(&mut self, other: &Self) {
        self.hits += other.hits;
        self.reads += other.reads;
        self.blocks_read += other.blocks_read;
        self.bytes_read += other.bytes_read;
        self.joins += other.joins;
        self.waits += other.waits;
        self.submits += other.submits;
        self.submit_nanos += other.submit_nanos;
        self.wait_nanos += other.wait_nanos;
        self.latency_nanos += other.latency_nanos;
        self.retries += other.retries;
        self.failed_blocks += other.failed_blocks;
        self.evictions += other.evictions;
        self.ring_reuses += other.ring_reuses;
        self.wasted += other.wasted;
        self.revoked += other.revoked;
        self.max_in_flight = self.max_in_flight.max(other.max_in_flight);
    }
}

/// What only the completion of a read knows, booked to whoever asked for the read, by whichever thread saw its end.
#[derive(Debug, Default)]
pub(crate) struct Booked {
    ended: AtomicU64,
    bytes: AtomicU64,
    retries: AtomicU64,
    latency_nanos: AtomicU64,
    failed_blocks: AtomicU64,
}

impl Booked {
    pub(crate) fn book(&self, bytes: u64, retries: u32, latency: Duration, failed_blocks: u64) {
        self.ended.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.retries.fetch_add(u64::from(retries), Ordering::Relaxed);
        self.latency_nanos.fetch_add(nanos(latency), Ordering::Relaxed);
        self.failed_blocks.fetch_add(failed_blocks, Ordering::Relaxed);
    }

    /// Requests that ended.
    pub(crate) fn ended(&self) -> u64 {
        self.ended.load(Ordering::Relaxed)
    }

    pub(crate) fn add_to(&self, metrics: &mut ReadMetrics) {
        metrics.bytes_read += self.bytes.load(Ordering::Relaxed);
        metrics.retries += self.retries.load(Ordering::Relaxed);
        metrics.latency_nanos += self.latency_nanos.load(Ordering::Relaxed);
        metrics.failed_blocks += self.failed_blocks.load(Ordering::Relaxed);
    }
}

pub(crate) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// The state of a pool and the sum of what its streams did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct PoolMetrics {
    /// Frames of the pool.
    pub frames: u32,
    /// Bytes a frame.
    pub block_size: u32,
    /// Partitions that lie on reserved huge pages.
    pub huge_partitions: usize,
    /// Partitions.
    pub partitions: usize,
    /// Streams that are open now.
    pub open_streams: usize,
    /// Requests in flight now.
    pub in_flight: usize,
    /// Completions with an unknown or outdated tag, which were ignored.
    pub stale_completions: u64,
    /// Reads that were told of because they took long.
    pub stalls: u64,
    /// All streams, open and ended. Streams report when they read and when they end, so hits may lag.
    pub totals: ReadMetrics,
}
