//! Counters of a method.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Instant,
};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// What a method did since it was opened. `requests`, `bytes` and `errors` are the same for every method that did
        /// the same reads; the others say how it did them.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
        pub struct IoStats {
            $($(#[$doc])* pub $name: u64,)*
        }

        /// The counters themselves; relaxed, because nobody orders memory by them.
        #[derive(Debug, Default)]
        pub(crate) struct Counters {
            $(pub(crate) $name: AtomicU64,)*
        }

        impl Counters {
            pub(crate) fn snapshot(&self) -> IoStats {
                IoStats { $($name: self.$name.load(Relaxed),)* }
            }
        }
    };
}

counters! {
    /// Requests that ended, well or not.
    requests,
    /// Bytes delivered.
    bytes,
    /// Requests that ended with an error.
    errors,
    /// Read operations given to the kernel, retries included.
    operations,
    /// Operations repeated because of EINTR (or because the kernel cancelled them when their thread ended).
    retries_eintr,
    /// Operations repeated because of EAGAIN.
    retries_eagain,
    /// Operations that returned less than was asked for.
    retries_short,
    /// Reads done by one blocking call after all retries, or because the ring would not take them.
    blocking_reads,
    /// Operations on a direct file that went through the page cache: position, length or memory was not aligned.
    unaligned_reads,
    /// Files that were reopened without O_DIRECT because a read said EINVAL.
    direct_refused,
    /// `worker`: requests that ran in the submitting thread because the queue was full.
    inline_full,
    /// `worker`: requests that the page cache served in the submitting thread.
    inline_cached,
    /// System calls (or queue operations) that submitted.
    submits,
    /// `io_uring`: `io_uring_enter` calls, to submit, to wait, or both.
    enters,
    /// Waits that blocked.
    waits,
    /// Time spent in submitting, in nanoseconds; with `sync` and for page-cache hits of `io_uring` this is the reading itself.
    submit_nanos,
    /// Time spent in waiting, in nanoseconds.
    wait_nanos,
    /// Completions that belonged to no outstanding operation.
    stale_completions,
    /// Most requests that were in flight at a time, over all lanes.
    in_flight_max,
    /// Stalled reads reported.
    stalls,
    /// Lanes whose ring refused to work after it was opened; their reads then ran in the submitting thread.
    broken_lanes,
}

pub(crate) fn add(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Relaxed);
}

pub(crate) fn add_time(counter: &AtomicU64, since: Instant) {
    add(counter, u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX));
}
