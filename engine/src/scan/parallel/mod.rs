//! Scans by several threads at once.
//!
//! Each thread has a read stream of its own in the shared pool, over chunks of contiguous blocks that it takes from a common
//! allocator (`chunks`). What they make is put together in the calling thread (`merge`): rows and batches in block order,
//! unless that is given up, and then byte for byte what a serial scan gives.
//!
//! Where the pool's plan has several nodes, threads are pinned to their node and the blocks are parted between the nodes
//! (`seats`): a thread takes those of its node first and then helps others, the nearest first. In block order that cannot
//! be: all threads are at the same place of the table then.
//!
//! Of several errors the one at the first block is reported, whichever thread was faster.

mod aggregates;
#[cfg(feature = "arrow")]
mod batches;
mod chunks;
mod crew;
mod merge;
mod rows;
mod seats;

pub(super) use aggregates::aggregate;
#[cfg(feature = "arrow")]
pub use batches::ParallelBatches;
#[cfg(feature = "arrow")]
pub(super) use chunks::Assigned;
pub(super) use rows::write_rows;

use super::{ScanBuilder, ScanStats};
use crate::OnCorruption;
use serde::Serialize;
use std::sync::{Arc, Mutex, PoisonError};

/// Blocks of a chunk, at most, where results are wanted in block order: 512 kB of blocks of 8 kB, four combined reads.
const ORDERED_CHUNK: u32 = 64;

/// What one thread of a scan did.
#[derive(Clone, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct ThreadReport {
    /// Its number, from 0.
    pub thread: usize,
    /// The nodes that it belongs to; none where nodes are not told apart.
    pub nodes: Vec<u32>,
    /// Whether it was pinned to the CPUs of these.
    pub pinned: bool,
    /// Chunks of blocks that it took.
    pub chunks: u64,
    /// CPU time, in seconds.
    pub user_seconds: f64,
    /// CPU time of the kernel for it, in seconds.
    pub system_seconds: f64,
    /// What its part of the scan did.
    pub stats: ScanStats,
}

/// A place where a scan with several threads leaves what each of them did. Clones are the same place.
#[derive(Clone, Debug, Default)]
pub struct ThreadReports(Arc<Mutex<Vec<ThreadReport>>>);

impl ThreadReports {
    /// Of the last scan that was given this place and has ended, by number; empty if it used no threads of its own.
    pub fn get(&self) -> Vec<ThreadReport> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, reports: Vec<ThreadReport>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = reports;
    }
}

/// How a scan uses threads.
#[derive(Clone, Debug, Default)]
pub(super) struct TeamOptions {
    /// 0 and 1: the calling thread alone.
    threads: usize,
    unordered: bool,
    reports: Option<ThreadReports>,
}

impl TeamOptions {
    fn report(&self, reports: Vec<ThreadReport>) {
        if let Some(place) = &self.reports {
            place.set(reports);
        }
    }
}

impl ScanBuilder {
    /// Whether several threads are to scan. If not, there is nothing that these could report.
    pub(super) fn takes_threads(&self) -> bool {
        let takes = self.team.threads > 1 && self.why_one_thread().is_none();
        if !takes {
            self.team.report(Vec::new());
        }
        takes
    }

    /// Why threads do not help this scan.
    fn why_one_thread(&self) -> Option<&'static str> {
        if !self.context.parts.is_empty() {
            return Some("its rows are in several tables, which are read one after the other");
        }
        let policy = self.context.engine.cluster.damage().policy();
        (policy != OnCorruption::Fail).then_some("damage is passed over, and is to be listed in block order")
    }

    /// Says so, with the reason, if [threads](Self::threads) were asked for that this scan does not use.
    pub fn threads_note(&self) -> Option<String> {
        let asked = Some(self.team.threads).filter(|&threads| threads > 1)?;
        let why = self.why_one_thread()?;
        Some(format!("{} is scanned by 1 thread instead of {asked}: {why}", self.context.info.name))
    }

    /// Scan with `threads` threads besides the calling one, which puts the results together; 1 (and 0) scans in the calling
    /// thread alone. It holds for [`aggregate`](Self::aggregate), [`write_rows`](Self::write_rows),
    /// [`stream_rows`](Self::stream_rows), `parallel_batches` and `stream`; [`start`](Self::start) and `batches` are one
    /// thread's. The results are those of one thread, floating-point sums included.
    ///
    /// Fewer threads are used for a table of fewer blocks, for a pool of less than two frames for each, and where the system
    /// gives no more. One is used, and [`threads_note`](Self::threads_note) says so, for a table whose rows are in several
    /// (partitions, children), and where [`OnCorruption`] is not to fail.
    #[must_use]
    pub fn threads(mut self, threads: usize) -> Self {
        self.team.threads = threads;
        self
    }

    /// Give up the order of the rows, for scans with several threads (with one it changes nothing): nothing waits for its turn then. It is the same set
    /// of rows; after an error the rows of all blocks before the bad one were given out, and some of those behind it.
    #[must_use]
    pub fn unordered(mut self, unordered: bool) -> Self {
        self.team.unordered = unordered;
        self
    }

    /// Leave there what each thread did, when the scan has ended.
    #[must_use]
    pub fn thread_reports(mut self, reports: &ThreadReports) -> Self {
        self.team.reports = Some(reports.clone());
        self
    }
}
