//! `io_uring`: reads through rings shared by all threads.

mod buffers;
mod files;
mod hand_over;
mod lane;
mod raw;
mod setup;
mod slots;
#[cfg(test)]
mod tests;

use self::{
    files::FileTable,
    hand_over::HandOver,
    lane::{Lane, LaneSettings},
};
use super::{IoMethod, MemoryRegistration, OutstandingRead, WaitOutcome};
use crate::{
    IoConfig, IoError, IoStats, MethodName, Request, Segment, fork,
    latency::LatencySummary,
    transfer::{Core, Step, Transfer},
};
use std::{
    sync::{Arc, Mutex, PoisonError, atomic::AtomicUsize},
    time::Duration,
};

pub(crate) struct IoUringMethod {
    core: Arc<Core>,
    lanes: Vec<Lane>,
    drain_timeout: Duration,
    forks: u64,
    /// Memory was registered, or tried to be.
    registered: Mutex<bool>,
}

/// What users are told about the rings.
pub(crate) type Details = Vec<(String, String)>;

/// Whether io_uring works here; if not, why, in one line.
pub(crate) fn probe(config: &IoConfig) -> Result<(), String> {
    setup::make(config).map(drop).map_err(|refusal| setup::explain(&refusal, config))
}

impl IoUringMethod {
    pub(crate) fn new(config: &IoConfig, core: Arc<Core>) -> Result<(Self, Details), IoError> {
        let mut lanes = Vec::new();
        let mut details = Details::new();
        let wanted = config.lane_count();
        let busy = Arc::new(AtomicUsize::new(0));
        while lanes.len() < wanted {
            let made = match setup::make(config) {
                Ok(made) => made,
                Err(refusal) if lanes.is_empty() => return Err(setup::unavailable(&refusal, config)),
                Err(refusal) => {
                    // Fewer lanes serve as well, a little slower.
                    let text = format!("{} of {wanted}: {}", lanes.len(), setup::explain(&refusal, config));
                    tracing::warn!("io_uring lanes: {text}");
                    details.push(("lanes_refused".to_owned(), text));
                    break;
                }
            };
            let (lane, about) = open_lane(made, config, lanes.len(), &busy);
            if lanes.is_empty() {
                details.extend(about);
            } else if !config.lane_cpus.is_empty() {
                // What differs between lanes.
                let workers = about.into_iter().filter(|(key, _)| key == "io_wq_workers");
                details.extend(workers.map(|(key, value)| (format!("{key}_{}", lanes.len()), value)));
            }
            lanes.push(lane);
        }
        details.insert(0, ("lanes".to_owned(), lanes.len().to_string()));
        let method = Self {
            core,
            lanes,
            drain_timeout: config.drain_timeout,
            forks: fork::count(),
            registered: Mutex::new(false),
        };
        Ok((method, details))
    }

    fn is_forked(&self) -> bool {
        fork::count() != self.forks
    }

    fn hand_over(&self, lane: usize, requests: &mut Vec<Request>, hold: bool) {
        if self.is_forked() {
            // The rings are the parent's.
            for request in requests.drain(..) {
                let mut transfer = Transfer::new(request);
                transfer.run(&self.core, Step::Ask);
                transfer.finish(&self.core);
            }
            return;
        }
        super::read_unfit_here(requests, &self.core);
        self.lanes[lane].submit(requests, hold, &self.core);
    }
}

fn open_lane(made: setup::Made, config: &IoConfig, number: usize, busy: &Arc<AtomicUsize>) -> (Lane, Details) {
    let setup::Made { ring, flags, depth, sqpoll, iopoll } = made;
    let parameters = ring.params();
    // The one bound on what is in flight: what was asked for, what the queue of submissions holds, and (never less, but
    // kernels differ) what the queue of completions holds.
    let bound = config.io_max_concurrency.min(parameters.sq_entries()).min(parameters.cq_entries());
    let workers = setup::bound_workers(&ring, config, number);
    let (files, files_about) = FileTable::new(&ring, config.registered_files);
    let mut details = vec![
        ("setup_flags".to_owned(), flags.to_owned()),
        ("sq_entries".to_owned(), parameters.sq_entries().to_string()),
        ("cq_entries".to_owned(), parameters.cq_entries().to_string()),
        ("io_max_concurrency".to_owned(), bound.to_string()),
        ("io_wq_workers".to_owned(), workers),
        ("files".to_owned(), files_about),
        ("async_rule".to_owned(), format!("{:?}", config.async_rule)),
    ];
    if bound < config.io_max_concurrency {
        let text = format!("{bound} instead of {}: rings have {depth} entries", config.io_max_concurrency);
        details.push(("io_max_concurrency_clamped".to_owned(), text));
    }
    for (name, asked, outcome) in [("sqpoll", config.sqpoll, &sqpoll), ("iopoll", config.iopoll, &iopoll)] {
        let text = match outcome {
            Ok(()) => "used".to_owned(),
            Err(why) => format!("asked for, not used: {why}"),
        };
        if asked {
            details.push((name.to_owned(), text));
        }
    }
    let settings = LaneSettings {
        hand_over: HandOver::new(config.async_rule, crate::config::cpu_count(), busy.clone()),
        sqpoll: sqpoll.is_ok(),
        iopoll: iopoll.is_ok(),
        stall_after: config.stall_after,
    };
    (Lane::new(ring, bound as usize, settings, files), details)
}

impl IoMethod for IoUringMethod {
    fn name(&self) -> MethodName {
        MethodName::IoUring
    }

    fn lanes(&self) -> usize {
        self.lanes.len()
    }

    fn is_asynchronous(&self) -> bool {
        true
    }

    fn submit(&self, lane: usize, requests: &mut Vec<Request>) {
        self.hand_over(lane, requests, false);
    }

    fn submit_for_wait(&self, lane: usize, requests: &mut Vec<Request>) {
        self.hand_over(lane, requests, true);
    }

    fn reap(&self, lane: usize) -> usize {
        if self.is_forked() { 0 } else { self.lanes[lane].reap(&self.core) }
    }

    fn wait(&self, lane: usize, done: &dyn Fn() -> bool, timeout: Duration) -> WaitOutcome {
        self.wait_together(lane, done, timeout, 1)
    }

    fn wait_together(&self, lane: usize, done: &dyn Fn() -> bool, timeout: Duration, together: u32) -> WaitOutcome {
        if self.is_forked() {
            return if done() { WaitOutcome::Done } else { WaitOutcome::TimedOut };
        }
        self.lanes[lane].wait(done, timeout, together, &self.core)
    }

    fn lost(&self, lane: usize) -> Option<&'static str> {
        self.lanes[lane].is_lost().then_some(
            "the kernel thread that polls for submissions sleeps, and waking it is refused (a seccomp filter that came after opening)",
        )
    }

    fn latency(&self) -> LatencySummary {
        self.core.latencies.summary()
    }

    fn stats(&self) -> IoStats {
        self.core.counters.snapshot()
    }

    fn outstanding(&self) -> Vec<OutstandingRead> {
        self.lanes.iter().flat_map(Lane::outstanding).collect()
    }

    #[allow(unsafe_code, reason = "the kernel pins the memory that the caller promised to keep")]
    unsafe fn register_memory(&self, memory: &[Segment]) -> MemoryRegistration {
        let mut registered = self.registered.lock().unwrap_or_else(PoisonError::into_inner);
        if std::mem::replace(&mut *registered, true) {
            return MemoryRegistration::Plain("memory was registered before".to_owned());
        }
        // SAFETY: passed on from the caller.
        match unsafe { buffers::register(&self.lanes, memory) } {
            Ok(how) => {
                tracing::debug!("registered buffers: {how}");
                MemoryRegistration::Fixed(how)
            }
            Err(why) => {
                tracing::info!("reads are plain: {why}");
                MemoryRegistration::Plain(why)
            }
        }
    }
}

impl Drop for IoUringMethod {
    fn drop(&mut self) {
        if self.is_forked() {
            // Whatever is in flight is the parent's business.
            return;
        }
        let mut abandoned = false;
        for lane in &self.lanes {
            if !lane.close(self.drain_timeout, &self.core) {
                lane.leak();
                abandoned = true;
            }
        }
        if abandoned {
            tracing::warn!("reads are still in flight at the end: their memory is leaked, not freed");
            // The kernel may still write to what the completer owns.
            std::mem::forget(Arc::clone(&self.core.completer));
        }
    }
}
