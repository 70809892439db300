//! `tokio_uring`: io_uring through the tokio-uring runtime, one for each lane, each in a thread of its own.
//!
//! It is here to be compared with: what does the runtime cost? It lacks what the raw ring has: the submitter's own
//! system call for a batch, registered files and memory, a bound on kernel workers, uncached reads.

mod runtime;

use super::{IoMethod, WaitOutcome, gate::Gate, ring_errors, sync::wait_at};
use crate::{
    IoConfig, IoError, IoStats, LatencySummary, MethodName, Request, fork,
    stats::add_time,
    transfer::{Core, Step, Transfer},
};
use std::{
    io,
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// What a lane's thread and the submitters share.
struct Shared {
    core: Arc<Core>,
    gate: Gate,
    in_flight: AtomicUsize,
}

struct Lane {
    shared: Arc<Shared>,
    /// Bounded by `in_flight`; `None` once it is closing.
    queue: Option<UnboundedSender<Transfer>>,
    thread: Option<JoinHandle<()>>,
}

pub(crate) struct TokioUringMethod {
    core: Arc<Core>,
    lanes: Vec<Lane>,
    bound: usize,
    drain_timeout: Duration,
    forks: u64,
}

/// Whether it works here; if not, why, in one line.
pub(crate) fn probe(config: &IoConfig) -> Result<(), String> {
    let attempt = std::thread::spawn(|| start(8).map(drop)).join();
    let result = attempt.unwrap_or_else(|_| Err(io::Error::other("the runtime panicked")));
    result.map_err(|error| explain(&error, config))
}

fn explain(error: &io::Error, config: &IoConfig) -> String {
    let errno = error.raw_os_error().unwrap_or(libc::EIO);
    format!("starting tokio-uring failed: {error}; {}", ring_errors::likely_cause(errno, config))
}

/// A runtime through which a file was read.
fn start(entries: u32) -> io::Result<tokio_uring::Runtime> {
    let mut builder = tokio_uring::builder();
    builder.entries(entries);
    let runtime = tokio_uring::Runtime::new(&builder)?;
    runtime.block_on(async {
        let file = tokio_uring::fs::File::open("/proc/self/exe").await?;
        let (result, bytes) = file.read_at(Vec::with_capacity(4), 0).await;
        match result {
            Ok(4) if bytes == *b"\x7fELF" => Ok(()),
            Ok(_) => Err(io::Error::from_raw_os_error(libc::EIO)),
            Err(error) => Err(error),
        }
    })?;
    Ok(runtime)
}

impl TokioUringMethod {
    pub(crate) fn new(config: &IoConfig, core: Arc<Core>) -> Result<(Self, Vec<(String, String)>), IoError> {
        let bound = config.io_max_concurrency as usize;
        let entries = config.io_max_concurrency.next_power_of_two().max(8);
        let mut method =
            Self { core, lanes: Vec::new(), bound, drain_timeout: config.drain_timeout, forks: fork::count() };
        for number in 0..config.lane_count() {
            let lane = open_lane(number, entries, config.cpus_of_lane(number), &method.core).map_err(|error| {
                IoError::Unavailable { method: MethodName::TokioUring, reason: explain(&error, config) }
            })?;
            method.lanes.push(lane);
        }
        let details = [
            ("lanes", method.lanes.len().to_string()),
            ("sq_entries", entries.to_string()),
            ("io_max_concurrency", bound.to_string()),
            ("io_wq_workers", "not bounded: the runtime has no setting for it".to_owned()),
            ("files", "plain".to_owned()),
        ];
        Ok((method, details.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()))
    }
}

fn open_lane(number: usize, entries: u32, cpus: Option<&[usize]>, core: &Arc<Core>) -> io::Result<Lane> {
    let cpus = cpus.map(<[usize]>::to_vec);
    let shared = Arc::new(Shared { core: Arc::clone(core), gate: Gate::default(), in_flight: AtomicUsize::new(0) });
    let (queue, jobs) = unbounded_channel();
    let (tell, told) = mpsc::channel();
    let run = Arc::clone(&shared);
    let thread = std::thread::Builder::new().name(format!("heapscan-tokio-{number}")).spawn(move || {
        super::worker::pin(cpus.as_deref());
        // A runtime cannot be moved, so it is made here.
        match start(entries) {
            Ok(runtime) => {
                // Nobody listens only if nobody waits for this lane.
                let _ = tell.send(Ok(()));
                runtime.block_on(serve(jobs, run));
            }
            Err(error) => drop(tell.send(Err(error))),
        }
    })?;
    // A thread that ends without a word panicked.
    told.recv().unwrap_or_else(|_| Err(io::Error::other("the runtime panicked")))?;
    Ok(Lane { shared, queue: Some(queue), thread: Some(thread) })
}

/// Serves a lane until its queue is closed and everything has ended.
async fn serve(mut jobs: UnboundedReceiver<Transfer>, shared: Arc<Shared>) {
    let files = Rc::new(runtime::Files::default());
    let mut tasks = std::collections::VecDeque::new();
    while let Some(transfer) = jobs.recv().await {
        let (files, shared) = (Rc::clone(&files), Arc::clone(&shared));
        tasks.push_back(tokio_uring::spawn(async move {
            let leave = Leave(&shared);
            runtime::drive(transfer, &files, &shared.core).await;
            drop(leave);
        }));
        while tasks.front().is_some_and(tokio::task::JoinHandle::is_finished) {
            tasks.pop_front();
        }
    }
    for task in tasks {
        // A task that panicked was told of by the panic itself, and its read was done by its guard.
        let _ = task.await;
    }
}

/// Makes room when a task ends, however it ends.
struct Leave<'a>(&'a Shared);

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::SeqCst);
        self.0.gate.notify();
    }
}

impl IoMethod for TokioUringMethod {
    fn name(&self) -> MethodName {
        MethodName::TokioUring
    }

    fn lanes(&self) -> usize {
        self.lanes.len()
    }

    fn is_asynchronous(&self) -> bool {
        true
    }

    fn submit(&self, lane: usize, requests: &mut Vec<Request>) {
        let began = Instant::now();
        let Lane { shared, queue, .. } = &self.lanes[lane];
        super::read_unfit_here(requests, &self.core);
        for request in requests.drain(..) {
            let mut transfer = Transfer::new(request);
            let Some(queue) = queue.as_ref().filter(|_| fork::count() == self.forks) else {
                transfer.run(&self.core, Step::Ask);
                transfer.finish(&self.core);
                continue;
            };
            let room = || {
                let enter = |count| (count < self.bound).then_some(count + 1);
                shared.in_flight.fetch_update(Ordering::SeqCst, Ordering::SeqCst, enter).is_ok()
            };
            while !room() {
                let has_room = || shared.in_flight.load(Ordering::SeqCst) < self.bound;
                shared.gate.wait(&has_room, Instant::now() + Duration::from_secs(1));
            }
            self.core.note_in_flight(shared.in_flight.load(Ordering::SeqCst) as u64);
            if let Err(tokio::sync::mpsc::error::SendError(mut transfer)) = queue.send(transfer) {
                // The lane's thread ended by a panic.
                let leave = Leave(shared);
                transfer.run(&self.core, Step::Ask);
                transfer.finish(&self.core);
                drop(leave);
            }
        }
        add_time(&self.core.counters.submit_nanos, began);
    }

    fn reap(&self, _lane: usize) -> usize {
        // The lane's thread delivers by itself.
        0
    }

    fn wait(&self, lane: usize, done: &dyn Fn() -> bool, timeout: Duration) -> WaitOutcome {
        wait_at(&self.lanes[lane].shared.gate, &self.core, done, timeout)
    }

    fn latency(&self) -> LatencySummary {
        self.core.latencies.summary()
    }

    fn stats(&self) -> IoStats {
        self.core.counters.snapshot()
    }
}

impl Drop for TokioUringMethod {
    fn drop(&mut self) {
        for lane in &mut self.lanes {
            drop(lane.queue.take());
        }
        if fork::count() != self.forks {
            return;
        }
        let deadline = Instant::now() + self.drain_timeout;
        for thread in self.lanes.iter_mut().filter_map(|lane| lane.thread.take()) {
            while !thread.is_finished() && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(1));
            }
            if thread.is_finished() {
                // A panic was told of by itself.
                let _ = thread.join();
            } else {
                // It holds what it needs, the completer and with it the memory included.
                tracing::warn!("a tokio-uring lane is stuck in a read; left behind");
            }
        }
    }
}
