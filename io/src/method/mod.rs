//! The trait of the IO methods.

use crate::{MethodName, Request};
use std::time::Duration;

/// How a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitOutcome {
    /// The condition holds.
    Done,
    /// It did not come to hold in time.
    TimedOut,
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

    /// Delivers the completions that are ready, without blocking and, where it can be had, without a system call.
    fn reap(&self, lane: usize) -> usize;

    /// Delivers completions until `done` says so, blocking in between, for at most `timeout`.
    fn wait(&self, lane: usize, done: &dyn Fn() -> bool, timeout: Duration) -> WaitOutcome;
}
