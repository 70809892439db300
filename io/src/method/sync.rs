//! `sync`: the calling thread reads.

use super::{IoMethod, WaitOutcome, gate::Gate};
use crate::{
    IoStats, MethodName, Request,
    latency::LatencySummary,
    stats::{add, add_time},
    transfer::{Core, Step, Transfer},
};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

pub(crate) struct SyncMethod {
    core: Arc<Core>,
    /// Others may wait for what one thread is reading just now.
    lanes: Box<[Gate]>,
}

impl SyncMethod {
    pub(crate) fn new(core: Arc<Core>, lanes: usize) -> Self {
        Self { core, lanes: (0..lanes).map(|_| Gate::default()).collect() }
    }
}

impl IoMethod for SyncMethod {
    fn name(&self) -> MethodName {
        MethodName::Sync
    }

    fn lanes(&self) -> usize {
        self.lanes.len()
    }

    fn is_asynchronous(&self) -> bool {
        false
    }

    fn submit(&self, lane: usize, requests: &mut Vec<Request>) {
        let began = Instant::now();
        self.core.note_in_flight(u64::from(!requests.is_empty()));
        for request in requests.drain(..) {
            let mut transfer = Transfer::new(request);
            transfer.run(&self.core, Step::Ask);
            transfer.finish(&self.core);
            self.lanes[lane].notify();
        }
        add(&self.core.counters.submits, 1);
        add_time(&self.core.counters.submit_nanos, began);
    }

    fn reap(&self, _lane: usize) -> usize {
        0
    }

    fn wait(&self, lane: usize, done: &dyn Fn() -> bool, timeout: Duration) -> WaitOutcome {
        wait_at(&self.lanes[lane], &self.core, done, timeout)
    }

    fn latency(&self) -> LatencySummary {
        self.core.latencies.summary()
    }

    fn stats(&self) -> IoStats {
        self.core.counters.snapshot()
    }
}

/// Waits where other threads deliver.
pub(crate) fn wait_at(gate: &Gate, core: &Core, done: &dyn Fn() -> bool, timeout: Duration) -> WaitOutcome {
    if done() {
        return WaitOutcome::Done;
    }
    let began = Instant::now();
    let holds = gate.wait(done, began + timeout);
    add(&core.counters.waits, 1);
    add_time(&core.counters.wait_nanos, began);
    if holds { WaitOutcome::Done } else { WaitOutcome::TimedOut }
}
