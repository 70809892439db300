//! `io_uring`: reads through rings shared by all threads.

mod files;
mod lane;
mod setup;
mod slots;
#[cfg(test)]
mod tests;

use self::{
    files::FileTable,
    lane::{FixedBuffer, Lane, LaneSettings},
};
use super::{IoMethod, MemoryRegistration, OutstandingRead, WaitOutcome};
use crate::{
    IoConfig, IoError, IoStats, MethodName, Request, fork,
    transfer::{Core, Step, Transfer},
};
use std::{
    ptr::NonNull,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

/// Bytes of one registered buffer at most (the kernel refuses more), a multiple of every huge page up to that size.
const REGISTERED_BYTES_MAX: usize = 1 << 30;
/// Places in a ring's table of buffers; so much memory in GiB can be registered.
const BUFFER_PLACES: u16 = 1024;

pub(crate) struct IoUringMethod {
    core: Arc<Core>,
    lanes: Vec<Lane>,
    drain_timeout: Duration,
    forks: u64,
    /// Whether the tables of buffers exist; made when memory is first registered.
    buffer_tables: Mutex<Option<Result<(), String>>>,
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
            let (lane, about) = open_lane(made, config);
            if lanes.is_empty() {
                details.extend(about);
            }
            lanes.push(lane);
        }
        details.insert(0, ("lanes".to_owned(), lanes.len().to_string()));
        let method = Self {
            core,
            lanes,
            drain_timeout: config.drain_timeout,
            forks: fork::count(),
            buffer_tables: Mutex::new(None),
        };
        Ok((method, details))
    }

    fn is_forked(&self) -> bool {
        fork::count() != self.forks
    }

    /// Makes the tables of buffers in all rings, once.
    fn make_buffer_tables(&self) -> Result<(), String> {
        let mut tables = self.buffer_tables.lock().unwrap_or_else(PoisonError::into_inner);
        let make = || {
            for lane in &self.lanes {
                let made = lane.ring.submitter().register_buffers_sparse(u32::from(BUFFER_PLACES));
                made.map_err(|error| format!("the kernel refused a table of buffers: {error}"))?;
            }
            Ok(())
        };
        tables.get_or_insert_with(make).clone()
    }
}

fn open_lane(made: setup::Made, config: &IoConfig) -> (Lane, Details) {
    let setup::Made { ring, flags, depth, iopoll } = made;
    let parameters = ring.params();
    // The one bound on what is in flight: what was asked for, what the queue of submissions holds, and (never less, but
    // kernels differ) what the queue of completions holds.
    let bound = config.io_max_concurrency.min(parameters.sq_entries()).min(parameters.cq_entries());
    let workers = setup::bound_workers(&ring, config);
    let (files, files_about) = FileTable::new(&ring, config.registered_files);
    let mut details = vec![
        ("setup_flags".to_owned(), flags.to_owned()),
        ("sq_entries".to_owned(), parameters.sq_entries().to_string()),
        ("cq_entries".to_owned(), parameters.cq_entries().to_string()),
        ("io_max_concurrency".to_owned(), bound.to_string()),
        ("io_wq_workers".to_owned(), workers),
        ("files".to_owned(), files_about),
        ("sqpoll".to_owned(), config.sqpoll.to_string()),
        ("async_rule".to_owned(), format!("{:?}", config.async_rule)),
    ];
    if bound < config.io_max_concurrency {
        let text = format!("{bound} instead of {}: rings have {depth} entries", config.io_max_concurrency);
        details.push(("io_max_concurrency_clamped".to_owned(), text));
    }
    if config.iopoll {
        let text = if iopoll { "used" } else { "asked for, not used: a polled probe read was refused" };
        details.push(("iopoll".to_owned(), text.to_owned()));
    }
    let settings =
        LaneSettings { async_rule: config.async_rule, sqpoll: config.sqpoll, iopoll, stall_after: config.stall_after };
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
        if self.is_forked() {
            // The rings are the parent's.
            for request in requests.drain(..) {
                let mut transfer = Transfer::new(request);
                transfer.run(&self.core, Step::Ask);
                transfer.finish(&self.core);
            }
            return;
        }
        self.lanes[lane].submit(requests, &self.core);
    }

    fn reap(&self, lane: usize) -> usize {
        if self.is_forked() { 0 } else { self.lanes[lane].reap(&self.core) }
    }

    fn wait(&self, lane: usize, done: &dyn Fn() -> bool, timeout: Duration) -> WaitOutcome {
        if self.is_forked() {
            return if done() { WaitOutcome::Done } else { WaitOutcome::TimedOut };
        }
        self.lanes[lane].wait(done, timeout, &self.core)
    }

    fn stats(&self) -> IoStats {
        self.core.counters.snapshot()
    }

    fn outstanding(&self) -> Vec<OutstandingRead> {
        self.lanes.iter().flat_map(Lane::outstanding).collect()
    }

    #[allow(unsafe_code, reason = "the kernel pins the memory that the caller promised to keep")]
    unsafe fn register_memory(&self, base: NonNull<u8>, len: usize) -> MemoryRegistration {
        if let Err(why) = self.make_buffer_tables() {
            return MemoryRegistration::Plain(why);
        }
        for lane in &self.lanes {
            let mut buffers = lane.buffers.lock().unwrap_or_else(PoisonError::into_inner);
            let mut slices = Vec::new();
            for at in (0..len).step_by(REGISTERED_BYTES_MAX) {
                let index = buffers.len() + slices.len();
                let Some(index) = u16::try_from(index).ok().filter(|&index| index < BUFFER_PLACES) else {
                    return MemoryRegistration::Plain(format!("more than {BUFFER_PLACES} slices of 1 GiB"));
                };
                let slice =
                    FixedBuffer { base: base.as_ptr() as usize + at, len: (len - at).min(REGISTERED_BYTES_MAX), index };
                let iovec = libc::iovec { iov_base: base.as_ptr().wrapping_add(at).cast(), iov_len: slice.len };
                // SAFETY: mapped until this method is dropped, the caller promises; dropping it closes the ring.
                let registered =
                    unsafe { lane.ring.submitter().register_buffers_update(u32::from(index), &[iovec], None) };
                if let Err(error) = registered {
                    // Slices registered so far stay in the kernel's table and are simply not used.
                    return MemoryRegistration::Plain(format!(
                        "the kernel refused to register {} bytes: {error} (the limit on locked memory, ulimit -l?)",
                        slice.len
                    ));
                }
                slices.push(slice);
            }
            buffers.extend(slices);
        }
        MemoryRegistration::Fixed
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
