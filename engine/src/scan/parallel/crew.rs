//! The threads of a scan: each with a read stream of its own, over the chunks that it takes.

use super::{
    ThreadReport,
    chunks::{Assigned, ChunkAllocator, ChunkBlocks, Sizes},
    merge::Merge,
    seats::{self, SeatPlan},
};
use crate::{
    Error, ErrorKind, Result,
    pool::{BufferPool, Strategy},
    scan::{
        Scan, ScanStats, TableContext,
        filter::{self, Predicate},
    },
    stream::{ReadStream, StreamOptions},
    visibility::Rows,
};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use crossbeam_utils::CachePadded;
use heapscan_placement::thread::pin_current_thread;
use nix::sys::resource::{UsageWho, getrusage};
use std::{
    ops::Range,
    panic,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

/// What the threads of a scan scan.
pub(super) struct Job {
    pub(super) context: Arc<TableContext>,
    pub(super) columns: Vec<usize>,
    pub(super) filter: Option<Predicate>,
    pub(super) rows: Rows,
    pub(super) blocks: Range<u32>,
    pub(super) threads: usize,
    pub(super) cancel: Option<Arc<AtomicBool>>,
    /// Blocks of a chunk at most, if chunks are to be handed out in block order.
    pub(super) ordered: Option<u32>,
}

impl Job {
    /// Threads that can be of use: no more than chunks, and no more than half of the pool's frames, because each needs one
    /// for itself while it works on it.
    pub(super) fn useful_threads(&self) -> usize {
        let frames = self.context.engine.pool.frames() as usize;
        self.threads.min(frames / 2).min(self.blocks.len()).max(1)
    }

    fn sizes(&self, threads: usize) -> Sizes {
        let (blocks, threads) = (self.blocks.len() as u32, threads as u32);
        let combine = self.context.engine.pool.config().io_combine_limit;
        match self.ordered {
            Some(most) => Sizes::for_block_order(blocks, threads, combine, most),
            None => Sizes::for_any_order(blocks, threads, combine),
        }
    }

    /// The strategy of each thread: together they take no more of the pool than is good for one scan.
    fn strategy(&self, pool: &BufferPool, threads: usize) -> Strategy {
        match pool.strategy_for(self.blocks.len() as u32) {
            Strategy::BulkRead { ring_frames } => {
                let share = pool.frames() / 4 / threads as u32;
                let least = pool.config().io_combine_limit.saturating_add(4).min(pool.frames() / 2);
                Strategy::BulkRead { ring_frames: ring_frames.min(share.max(least)).max(1) }
            }
            strategy => strategy,
        }
    }
}

/// What the threads share.
pub(super) struct Shared {
    pub(super) allocator: Arc<ChunkAllocator>,
    /// Pages that each thread has looked at.
    pages: Box<[CachePadded<AtomicU64>]>,
    /// The error at the first block that has one.
    error: Mutex<Option<(u32, Error)>>,
    reports: Mutex<Vec<ThreadReport>>,
}

impl Shared {
    /// Pages that were looked at so far.
    pub(super) fn pages(&self) -> u64 {
        self.pages.iter().map(|pages| pages.load(Ordering::Relaxed)).sum()
    }

    /// An error at a block: blocks behind it need not be scanned, those before it may have one too.
    pub(super) fn fail(&self, block: u32, error: Error) {
        self.allocator.stop_at(block);
        let mut first = self.error.lock().unwrap_or_else(PoisonError::into_inner);
        if first.as_ref().is_none_or(|(at, _)| block < *at) {
            *first = Some((block, error));
        }
    }
}

/// One thread at work.
pub(super) struct Worker {
    pub(super) index: usize,
    pub(super) shared: Arc<Shared>,
    assigned: Assigned,
    /// The chunk that the scan is in.
    current: (u32, Range<u32>),
    chunks: u64,
}

impl Worker {
    /// The number of the chunk that the scan is in.
    pub(super) fn seq(&self) -> u32 {
        self.current.0
    }

    /// The first block of that chunk; `None` before the first one.
    pub(super) fn chunk_start(&self) -> Option<u32> {
        (!self.current.1.is_empty()).then_some(self.current.1.start)
    }

    /// The chunks that were assigned, for who cuts at their edges.
    pub(super) fn assigned(&self) -> &Assigned {
        &self.assigned
    }

    /// Whether `block` is in the same chunk as the one before.
    #[inline]
    pub(super) fn is_inside(&self, block: u32) -> bool {
        self.current.1.contains(&block)
    }

    /// Moves on to the chunk of `block`; those before it have ended.
    pub(super) fn move_to(&mut self, block: u32, ended: impl FnMut(u32)) {
        let seq = self.assigned.seq_of(block);
        self.end_before(seq, ended);
        if let (Some(seq), Some(chunk)) = (seq, self.assigned.first()) {
            self.current = (seq, chunk.blocks);
        }
    }

    /// All chunks that were assigned have ended.
    pub(super) fn end(&mut self, ended: impl FnMut(u32)) {
        self.end_before(None, ended);
    }

    fn end_before(&mut self, seq: Option<u32>, mut ended: impl FnMut(u32)) {
        while let Some(chunk) = self.assigned.take_ended(seq) {
            self.chunks += 1;
            ended(chunk.seq);
        }
    }

    /// Whether the rows of `block` are still wanted: no block before it had an error, and nobody has cancelled.
    #[inline]
    pub(super) fn is_wanted(&self, block: u32) -> bool {
        block < self.shared.allocator.bound()
    }

    /// Tells how far it is.
    #[inline]
    pub(super) fn tell(&self, pages: u64) {
        self.shared.pages[self.index].store(pages, Ordering::Relaxed);
    }

    /// The block at which the scan failed with `error`: the one that the error names, if it is one of this table (a TOAST
    /// table's is not), else the last one that was looked at.
    fn block_of(&self, scan: &Scan, error: &Error) -> u32 {
        let named = error.block().filter(|&block| {
            let own = error.path().is_none_or(|path| path == scan.context.fork.path_of(block));
            own && self.assigned.seq_of(block).is_some()
        });
        let first = || self.assigned.first().map_or(0, |chunk| chunk.blocks.start);
        named.or(scan.at).unwrap_or_else(first)
    }
}

/// What one thread does with its scan.
pub(super) trait Body {
    /// What it brings home.
    type Share: Send + 'static;
    /// Its scan.
    fn scan(&self) -> &Scan;
    /// Scans to the end, or until nobody wants more.
    fn work(&mut self, worker: &mut Worker) -> Result<Self::Share>;
}

/// Where what the threads make goes to.
pub(super) trait Output: Send + Sync + 'static {
    /// Nothing more comes of a chunk.
    fn end_chunk(&self, seq: u32);
    /// The scan of a chunk has failed, behind what came of it.
    fn fail_chunk(&self, seq: u32);
    /// A thread has ended, or could not be started.
    fn leave(&self);
}

/// Threads that keep what they make until they end.
pub(super) struct Kept;

impl Output for Kept {
    fn end_chunk(&self, _: u32) {}
    fn fail_chunk(&self, _: u32) {}
    fn leave(&self) {}
}

impl<T: Send + 'static> Output for Arc<Merge<T>> {
    fn end_chunk(&self, seq: u32) {
        Merge::end_chunk(self, seq);
    }

    fn fail_chunk(&self, seq: u32) {
        Merge::fail_chunk(self, seq);
    }

    fn leave(&self) {
        Merge::leave(self);
    }
}

/// Tells, also when the thread unwinds, that it has ended.
struct Leaving<F: Fn()>(F);

impl<F: Fn()> Drop for Leaving<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// The threads of a scan. Dropping it stops them, without waiting for their end.
pub(super) struct Crew<R> {
    pub(super) shared: Arc<Shared>,
    threads: Vec<JoinHandle<Option<R>>>,
    ended: Receiver<()>,
    began: Instant,
}

impl<R: Send + 'static> Crew<R> {
    /// Starts the threads. `make` is called in each; `output` is told of their chunks that fail, and of their end.
    ///
    /// # Errors
    /// `Limit` if not one thread can be started. If only some can, these do it.
    pub(super) fn start<B: Body<Share = R>>(
        job: Job,
        make: impl Fn(Scan) -> Result<B> + Send + Sync + 'static,
        output: impl Output,
    ) -> Result<Self> {
        let threads = job.useful_threads();
        let pool = &job.context.engine.pool;
        let seats = seats::seats(None, threads);
        // In block order all threads are at the same place of the table: parts of it cannot have homes.
        let homes = if job.ordered.is_some() { 1 } else { seats::homes(&seats) };
        let shared = Arc::new(Shared {
            allocator: Arc::new(ChunkAllocator::new(job.blocks.clone(), homes, job.sizes(threads))),
            pages: (0..threads).map(|_| CachePadded::default()).collect(),
            error: Mutex::default(),
            reports: Mutex::default(),
        });
        let strategy = job.strategy(pool, threads);
        let task = Arc::new((job, make, output, strategy));
        let (done, ended) = crossbeam_channel::unbounded::<()>();
        let mut crew = Self { shared, threads: Vec::with_capacity(threads), ended, began: Instant::now() };
        let mut refused = None;
        for (index, seat) in seats.into_iter().enumerate() {
            let body = {
                let (task, shared, done) = (Arc::clone(&task), Arc::clone(&crew.shared), Sender::clone(&done));
                move || {
                    let _leaving = Leaving(|| {
                        task.2.leave();
                        let _ = done.send(());
                    });
                    let (job, make, output, strategy) = &*task;
                    run(index, &seat, job, *strategy, &shared, make, output)
                }
            };
            match std::thread::Builder::new().name(format!("heapscan-scan-{index}")).spawn(body) {
                Ok(thread) => crew.threads.push(thread),
                Err(error) => {
                    task.2.leave();
                    refused = Some(error);
                }
            }
        }
        match refused {
            Some(error) if crew.threads.is_empty() => {
                Err(Error::new(ErrorKind::Limit, format!("cannot start a thread for the scan: {error}"))
                    .with_hint("the limit on threads is reached (ulimit -u, pids.max), or memory is short"))
            }
            _ => Ok(crew),
        }
    }

    /// Waits for the end of all threads; `progress` is called now and then with the pages that are done.
    pub(super) fn wait(&self, progress: &mut dyn FnMut(u64)) {
        let mut left = self.threads.len();
        while left > 0 {
            match self.ended.recv_timeout(Duration::from_millis(100)) {
                Ok(()) => left -= 1,
                Err(RecvTimeoutError::Timeout) => progress(self.shared.pages()),
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
    }

    /// What the threads did so far, all together, and each for itself as far as they have ended.
    pub(super) fn stats(&self) -> (ScanStats, Vec<ThreadReport>) {
        let mut reports = self.shared.reports.lock().unwrap_or_else(PoisonError::into_inner).clone();
        reports.sort_by_key(|report| report.thread);
        let mut total = ScanStats::default();
        reports.iter().for_each(|report| total.add(&report.stats));
        total.elapsed_nanos = u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        (total, reports)
    }

    /// Waits for the end of all threads, and gives their results and the error at the first block that has one.
    ///
    /// # Panics
    /// As a thread did, if one panicked.
    pub(super) fn join(&mut self) -> Result<Vec<R>> {
        let mut results = Vec::with_capacity(self.threads.len());
        let mut panicked = None;
        for thread in std::mem::take(&mut self.threads) {
            match thread.join() {
                Ok(result) => results.extend(result),
                Err(payload) => {
                    self.shared.allocator.stop();
                    panicked = Some(payload);
                }
            }
        }
        if let Some(payload) = panicked {
            panic::resume_unwind(payload);
        }
        let error = self.shared.error.lock().unwrap_or_else(PoisonError::into_inner).take();
        error.map_or(Ok(results), |(_, error)| Err(error))
    }
}

impl<R> Drop for Crew<R> {
    fn drop(&mut self) {
        self.shared.allocator.stop();
    }
}

/// A thread's life.
fn run<B: Body>(
    index: usize,
    seat: &SeatPlan,
    job: &Job,
    strategy: Strategy,
    shared: &Arc<Shared>,
    make: &impl Fn(Scan) -> Result<B>,
    output: &impl Output,
) -> Option<B::Share> {
    // Placement is best effort: a thread that cannot be pinned works where it is.
    let pinned = seat.cpus.as_ref().is_some_and(|cpus| pin_current_thread(cpus).is_ok());
    let pool = &job.context.engine.pool;
    let assigned = Assigned::default();
    let nearest: &[u32] = if job.ordered.is_some() { &[0] } else { &seat.nearest };
    let blocks = ChunkBlocks::new(shared.allocator.enter(nearest), assigned.clone());
    let options = StreamOptions { lane: index, ..StreamOptions::new(pool.config(), strategy) };
    let scan = ReadStream::new(Arc::clone(pool), job.context.relation, blocks, options)
        .and_then(|stream| Scan::over(Arc::clone(&job.context), job.columns.clone(), stream, None, job.rows))
        .and_then(|scan| {
            let filter = filter::bound(job.filter.as_ref(), &job.context)?;
            Ok(Scan { filter, cancel: job.cancel.clone(), ..scan })
        });
    let mut body = match scan.and_then(make) {
        Ok(body) => body,
        Err(error) => {
            shared.fail(0, error);
            output.fail_chunk(0);
            return None;
        }
    };
    let mut worker = Worker { index, shared: Arc::clone(shared), assigned, current: (0, 0..0), chunks: 0 };
    let result = body.work(&mut worker);
    let stats = body.scan().stats();
    worker.tell(stats.pages);
    let result = match result {
        Ok(result) => Some(result),
        Err(error) => {
            let block = worker.block_of(body.scan(), &error);
            worker.move_to(block, |seq| output.end_chunk(seq));
            shared.fail(block, error);
            output.fail_chunk(worker.seq());
            None
        }
    };
    let seconds = |t: nix::sys::time::TimeVal| t.tv_sec() as f64 + t.tv_usec() as f64 / 1e6;
    let usage = getrusage(UsageWho::RUSAGE_THREAD).ok();
    let report = ThreadReport {
        thread: index,
        nodes: seat.nodes.clone(),
        pinned,
        chunks: worker.chunks,
        user_seconds: usage.map_or(0.0, |u| seconds(u.user_time())),
        system_seconds: usage.map_or(0.0, |u| seconds(u.system_time())),
        stats,
    };
    shared.reports.lock().unwrap_or_else(PoisonError::into_inner).push(report);
    result
}
