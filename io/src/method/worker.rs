//! `worker`: a pool of threads reads.
//!
//! Between `io_min_workers` and `io_max_workers` threads; one more is started when requests queue up and nobody is idle,
//! and a surplus one leaves after it was idle for a while.

use super::{IoMethod, WaitOutcome, gate::Gate, sync::wait_at};
use crate::{
    IoConfig, IoError, IoStats, MethodName, Request, fork,
    latency::LatencySummary,
    stats::{add, add_time},
    transfer::{Core, Step, Transfer},
};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, TrySendError, bounded};
use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

/// After this long without work a surplus worker leaves.
const IDLE_LEAVE: Duration = Duration::from_secs(10);

struct Job {
    transfer: Transfer,
    lane: usize,
}

/// What the workers need; outlives the method while a worker is stuck in a read.
struct Shared {
    core: Arc<Core>,
    gates: Box<[Gate]>,
    /// Workers that wait for a job.
    idle: AtomicUsize,
    alive: AtomicUsize,
    in_flight: AtomicU64,
    min: usize,
    max: usize,
    cpus: Option<Vec<usize>>,
}

pub(crate) struct WorkerMethod {
    shared: Arc<Shared>,
    /// `None` once it is closing.
    queue: Option<Sender<Job>>,
    jobs: Receiver<Job>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    started: AtomicUsize,
    drain_timeout: Duration,
    /// Read here what the page cache has.
    inline: bool,
    forks: u64,
}

impl WorkerMethod {
    pub(crate) fn new(config: &IoConfig, core: Arc<Core>) -> Result<Self, IoError> {
        let (min, max) = config.worker_bounds();
        let lanes = config.lane_count();
        let (queue, jobs) = bounded(config.io_max_concurrency as usize * lanes);
        let shared = Arc::new(Shared {
            core,
            gates: (0..lanes).map(|_| Gate::default()).collect(),
            idle: 0.into(),
            alive: 0.into(),
            in_flight: 0.into(),
            min,
            max,
            cpus: config.worker_cpus.clone(),
        });
        let method = Self {
            shared,
            queue: Some(queue),
            jobs,
            threads: Mutex::default(),
            started: 0.into(),
            drain_timeout: config.drain_timeout,
            inline: config.worker_inline,
            forks: fork::count(),
        };
        for _ in 0..min {
            if let Err(error) = method.start_worker() {
                let reason = format!(
                    "cannot start {min} threads: {error}: lower io_workers or raise the limit on threads (ulimit -u, pids.max)"
                );
                return Err(IoError::Unavailable { method: MethodName::Worker, reason });
            }
        }
        Ok(method)
    }

    fn start_worker(&self) -> std::io::Result<()> {
        let (shared, jobs) = (Arc::clone(&self.shared), self.jobs.clone());
        let number = self.started.fetch_add(1, Ordering::Relaxed);
        self.shared.alive.fetch_add(1, Ordering::SeqCst);
        let spawned =
            std::thread::Builder::new().name(format!("heapscan-io-{number}")).spawn(move || shared.work(&jobs));
        match spawned {
            Ok(thread) => {
                let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
                threads.retain(|thread| !thread.is_finished());
                threads.push(thread);
                Ok(())
            }
            Err(error) => {
                self.shared.alive.fetch_sub(1, Ordering::SeqCst);
                Err(error)
            }
        }
    }

    /// Starts one more when there is a backlog.
    fn grow(&self) {
        let shared = &self.shared;
        if self.jobs.len() > shared.idle.load(Ordering::Relaxed)
            && shared.alive.load(Ordering::Relaxed) < shared.max
            && let Err(error) = self.start_worker()
        {
            tracing::warn!(%error, "cannot start another IO worker");
        }
    }

    fn run_inline(&self, job: Job) {
        add(&self.shared.core.counters.inline_full, 1);
        self.shared.run(job);
    }
}

impl Shared {
    fn work(&self, jobs: &Receiver<Job>) {
        if let Some(cpus) = &self.cpus
            && let Err(error) = heapscan_placement::thread::pin_current_thread(cpus)
        {
            tracing::warn!(?cpus, %error, "cannot pin an IO worker");
        }
        loop {
            self.idle.fetch_add(1, Ordering::Relaxed);
            let job = jobs.recv_timeout(IDLE_LEAVE);
            self.idle.fetch_sub(1, Ordering::Relaxed);
            match job {
                Ok(job) => self.run(job),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {
                    let leave = |alive| (alive > self.min).then(|| alive - 1);
                    if self.alive.fetch_update(Ordering::SeqCst, Ordering::SeqCst, leave).is_ok() {
                        return;
                    }
                }
            }
        }
        self.alive.fetch_sub(1, Ordering::SeqCst);
    }

    fn run(&self, mut job: Job) {
        job.transfer.run(&self.core, Step::Ask);
        self.finish(job);
    }

    fn finish(&self, job: Job) {
        let Job { transfer, lane } = job;
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
        transfer.finish(&self.core);
        self.gates[lane].notify();
    }
}

impl IoMethod for WorkerMethod {
    fn name(&self) -> MethodName {
        MethodName::Worker
    }

    fn lanes(&self) -> usize {
        self.shared.gates.len()
    }

    fn is_asynchronous(&self) -> bool {
        true
    }

    fn submit(&self, lane: usize, requests: &mut Vec<Request>) {
        let began = Instant::now();
        let core = &self.shared.core;
        for request in requests.drain(..) {
            let mut job = Job { transfer: Transfer::new(request), lane };
            core.note_in_flight(self.shared.in_flight.fetch_add(1, Ordering::Relaxed) + 1);
            if self.inline && job.transfer.request().file().may_be_cached() && job.transfer.read_cached(core) {
                add(&core.counters.inline_cached, 1);
                self.shared.finish(job);
                continue;
            }
            // A forked child has the queue but not the workers.
            let Some(queue) = self.queue.as_ref().filter(|_| fork::count() == self.forks) else {
                self.shared.run(job);
                continue;
            };
            match queue.try_send(job) {
                Ok(()) => self.grow(),
                Err(TrySendError::Full(job) | TrySendError::Disconnected(job)) => self.run_inline(job),
            }
        }
        add(&core.counters.submits, 1);
        add_time(&core.counters.submit_nanos, began);
    }

    fn reap(&self, _lane: usize) -> usize {
        // Workers deliver by themselves.
        0
    }

    fn wait(&self, lane: usize, done: &dyn Fn() -> bool, timeout: Duration) -> WaitOutcome {
        wait_at(&self.shared.gates[lane], &self.shared.core, done, timeout)
    }

    fn latency(&self) -> LatencySummary {
        self.shared.core.latencies.summary()
    }

    fn stats(&self) -> IoStats {
        self.shared.core.counters.snapshot()
    }
}

impl Drop for WorkerMethod {
    fn drop(&mut self) {
        // Workers take what is queued, then see that the queue is closed.
        drop(self.queue.take());
        if fork::count() != self.forks {
            return;
        }
        let deadline = Instant::now() + self.drain_timeout;
        for thread in std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner)) {
            while !thread.is_finished() && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(1));
            }
            if thread.is_finished() {
                // A completer that panicked did so in its own name.
                let _ = thread.join();
            } else {
                // It holds what it needs (`Shared`, its job); its memory belongs to the completer, which it holds too.
                tracing::warn!("an IO worker is stuck in a read; left behind");
            }
        }
    }
}
