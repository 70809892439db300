//! The trait of the IO methods.

use crate::{IoStats, LatencySummary, MethodName, Request, Segment};
use std::{path::PathBuf, time::Duration};

pub(crate) mod gate;
#[cfg(feature = "io_uring")]
pub(crate) mod io_uring;
#[cfg(any(feature = "io_uring", feature = "tokio_uring"))]
mod ring_errors;
pub(crate) mod sync;
#[cfg(feature = "tokio_uring")]
pub(crate) mod tokio_uring;
pub(crate) mod worker;

/// How a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitOutcome {
    /// The condition holds.
    Done,
    /// It did not come to hold in time.
    TimedOut,
}

/// A read that was submitted and has not ended.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct OutstandingRead {
    /// The file.
    pub path: PathBuf,
    /// Where the request began, in bytes.
    pub offset: u64,
    /// Bytes asked for.
    pub len: usize,
    /// Since when.
    pub age: Duration,
}

/// Whether memory given to [`IoMethod::register_memory`] is known to the kernel now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemoryRegistration {
    /// Registered: single-segment reads into it save the pinning of pages; in which way.
    Fixed(String),
    /// Not registered, reads are plain; why.
    Plain(String),
}

/// A way of reading. One instance serves all scans of an engine from any thread.
///
/// A method is divided into lanes (a lane is a ring, or a queue). Any thread may submit to, reap and wait on any lane:
/// a scan that stopped consuming must never keep others from the blocks that it has in flight.
pub trait IoMethod: Send + Sync {
    /// Its name.
    fn name(&self) -> MethodName;

    /// How many lanes it has.
    fn lanes(&self) -> usize;

    /// Whether `submit` returns before the reads are done, so that reading ahead pays.
    fn is_asynchronous(&self) -> bool;

    /// Takes all requests. Never fails: what goes wrong becomes a completion. Completions may be delivered from within
    /// this call (by `sync` all of them). Blocks for room when the lane is full, delivering completions meanwhile.
    fn submit(&self, lane: usize, requests: &mut Vec<Request>);

    /// As [`submit`](Self::submit), by somebody who is going to wait on the lane next: submitting and waiting can be one
    /// system call then. If he does not wait after all, he calls `submit` without requests.
    fn submit_for_wait(&self, lane: usize, requests: &mut Vec<Request>) {
        self.submit(lane, requests);
    }

    /// Delivers the completions that are ready, without blocking and, where it can be had, without a system call.
    fn reap(&self, lane: usize) -> usize;

    /// Delivers completions until `done` says so, blocking in between, for at most `timeout`.
    ///
    /// `done` must depend on completions of this lane only; it is called under a lock and must not call the method.
    fn wait(&self, lane: usize, done: &dyn Fn() -> bool, timeout: Duration) -> WaitOutcome;

    /// As [`wait`](Self::wait), by somebody who can use `together` completions at a time: they may then be waited for
    /// together for a few milliseconds, which saves system calls and wake-ups.
    fn wait_together(&self, lane: usize, done: &dyn Fn() -> bool, timeout: Duration, together: u32) -> WaitOutcome {
        let _ = together;
        self.wait(lane, done, timeout)
    }

    /// Why what is in flight on the lane can never end, if it is known that it cannot.
    fn lost(&self, lane: usize) -> Option<&'static str> {
        let _ = lane;
        None
    }

    /// What it did so far; all zero for a method that does not count.
    fn stats(&self) -> IoStats {
        IoStats::default()
    }

    /// How long its requests took, from submission to completion.
    fn latency(&self) -> LatencySummary {
        LatencySummary::default()
    }

    /// Reads that have not ended, as far as the method knows them one by one.
    fn outstanding(&self) -> Vec<OutstandingRead> {
        Vec::new()
    }

    /// Tells the kernel of memory that most reads will go to (the pool's arena), once in the life of the method. All of
    /// it becomes resident. When it cannot be had, reads are plain.
    ///
    /// # Safety
    /// The memory must stay mapped until the method was dropped.
    #[allow(unsafe_code, reason = "the caller promises that the memory stays mapped")]
    unsafe fn register_memory(&self, memory: &[Segment]) -> MemoryRegistration {
        let _ = memory;
        MemoryRegistration::Plain(format!("{} does not register memory", self.name()))
    }
}

/// Takes out the requests whose files a ring must not read, and reads them here, by blocking calls.
#[cfg(any(feature = "io_uring", feature = "tokio_uring"))]
fn read_unfit_here(requests: &mut Vec<Request>, core: &crate::transfer::Core) {
    for request in requests.extract_if(.., |request| request.file.is_unfit_for_rings()) {
        request.file.note_unfit_for_rings();
        let mut transfer = crate::transfer::Transfer::new(request);
        crate::stats::add(&core.counters.blocking_reads, 1);
        transfer.run(core, crate::transfer::Step::Ask);
        transfer.finish(core);
    }
}
