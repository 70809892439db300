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

/// The threads of one pool.
#[derive(Default)]
struct Crew {
    /// Workers that wait for a job.
    idle: AtomicUsize,
    alive: AtomicUsize,
}

/// What the workers need; outlives the method while a worker is stuck in a read.
struct Shared {
    core: Arc<Core>,
    gates: Box<[Gate]>,
    /// One for all lanes, or one a lane where lanes have CPUs of their own.
    crews: Box<[Crew]>,
    in_flight: AtomicU64,
    /// Bounds of each crew.
    min: usize,
    max: usize,
    cpus: Box<[Option<Vec<usize>>]>,
}

/// The queue of a crew.
struct Queue {
    /// `None` once it is closing.
    sender: Option<Sender<Job>>,
    jobs: Receiver<Job>,
}

pub(crate) struct WorkerMethod {
    shared: Arc<Shared>,
    /// As many as there are crews.
    queues: Box<[Queue]>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    started: AtomicUsize,
    drain_timeout: Duration,
    /// Read here what the page cache has.
    inline: bool,
    forks: u64,
}

/// Bounds of each of the crews: all together those of the settings, at least one thread each.
pub(crate) fn crew_bounds(config: &IoConfig) -> (usize, usize, usize) {
    let (min, max) = config.worker_bounds();
    let crews = if config.lane_cpus.is_empty() { 1 } else { config.lane_count() };
    (crews, min.div_ceil(crews), max.div_ceil(crews))
}

impl WorkerMethod {
    pub(crate) fn new(config: &IoConfig, core: Arc<Core>) -> Result<Self, IoError> {
        let (crews, min, max) = crew_bounds(config);
        let lanes = config.lane_count();
        let places = config.io_max_concurrency as usize * lanes.div_ceil(crews);
        let queue = |_| {
            let (sender, jobs) = bounded(places);
            Queue { sender: Some(sender), jobs }
        };
        let shared = Arc::new(Shared {
            core,
            gates: (0..lanes).map(|_| Gate::default()).collect(),
            crews: (0..crews).map(|_| Crew::default()).collect(),
            in_flight: 0.into(),
            min,
            max,
            cpus: (0..crews).map(|crew| config.cpus_of_lane(crew).map(<[usize]>::to_vec)).collect(),
        });
        let method = Self {
            shared,
            queues: (0..crews).map(queue).collect(),
            threads: Mutex::default(),
            started: 0.into(),
            drain_timeout: config.drain_timeout,
            inline: config.worker_inline,
            forks: fork::count(),
        };
        for crew in (0..crews).flat_map(|crew| std::iter::repeat_n(crew, min)) {
            if let Err(error) = method.start_worker(crew) {
                let reason = format!(
                    "cannot start {} threads: {error}: lower io_workers or raise the limit on threads (ulimit -u, pids.max)",
                    min * crews
                );
                return Err(IoError::Unavailable { method: MethodName::Worker, reason });
            }
        }
        Ok(method)
    }

    fn start_worker(&self, crew: usize) -> std::io::Result<()> {
        let (shared, jobs) = (Arc::clone(&self.shared), self.queues[crew].jobs.clone());
        let number = self.started.fetch_add(1, Ordering::Relaxed);
        let alive = &self.shared.crews[crew].alive;
        alive.fetch_add(1, Ordering::SeqCst);
        let spawned =
            std::thread::Builder::new().name(format!("heapscan-io-{number}")).spawn(move || shared.work(crew, &jobs));
        match spawned {
            Ok(thread) => {
                let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
                threads.retain(|thread| !thread.is_finished());
                threads.push(thread);
                Ok(())
            }
            Err(error) => {
                alive.fetch_sub(1, Ordering::SeqCst);
                Err(error)
            }
        }
    }

    /// Starts one more when there is a backlog.
    fn grow(&self, crew: usize) {
        let Crew { idle, alive } = &self.shared.crews[crew];
        if self.queues[crew].jobs.len() > idle.load(Ordering::Relaxed)
            && alive.load(Ordering::Relaxed) < self.shared.max
            && let Err(error) = self.start_worker(crew)
        {
            tracing::warn!(%error, "cannot start another IO worker");
        }
    }

    fn run_inline(&self, job: Job) {
        add(&self.shared.core.counters.inline_full, 1);
        self.shared.run(job);
    }
}

/// Confines the calling thread, if it is to be confined. Placement is best effort.
pub(super) fn pin(cpus: Option<&[usize]>) {
    if let Some(cpus) = cpus
        && let Err(error) = heapscan_placement::thread::pin_current_thread(cpus)
    {
        tracing::warn!(?cpus, %error, "cannot pin an IO thread");
    }
}

impl Shared {
    fn work(&self, crew: usize, jobs: &Receiver<Job>) {
        pin(self.cpus[crew].as_deref());
        let Crew { idle, alive } = &self.crews[crew];
        loop {
            idle.fetch_add(1, Ordering::Relaxed);
            let job = jobs.recv_timeout(IDLE_LEAVE);
            idle.fetch_sub(1, Ordering::Relaxed);
            match job {
                Ok(job) => self.run(job),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {
                    let leave = |alive| (alive > self.min).then(|| alive - 1);
                    if alive.fetch_update(Ordering::SeqCst, Ordering::SeqCst, leave).is_ok() {
                        return;
                    }
                }
            }
        }
        alive.fetch_sub(1, Ordering::SeqCst);
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
            let crew = lane % self.queues.len();
            let Some(queue) = self.queues[crew].sender.as_ref().filter(|_| fork::count() == self.forks) else {
                self.shared.run(job);
                continue;
            };
            match queue.try_send(job) {
                Ok(()) => self.grow(crew),
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
        for queue in &mut self.queues {
            drop(queue.sender.take());
        }
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
