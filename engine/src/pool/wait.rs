//! Waiting: for a read to end, and for a frame to become free.

use super::{
    BufferPool,
    metrics::{ReadMetrics, nanos},
    page::{Pin, PinnedPage},
    shared::{Asker, Started},
    state::FrameState,
    strategy::Ring,
};
use crate::{Error, ErrorKind, RelationFork, Result};
use heapscan_io::{IoMethod, Request};
use std::{
    cell::Cell,
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

/// A wait is cut into pieces of this length, so that a wait that began before the read was submitted sees it too.
const WAIT_SLICE: Duration = Duration::from_millis(100);

/// Reads of a lane that lost some are waited for this long: those that the kernel had taken before still end.
const LOST_PATIENCE: Duration = Duration::from_secs(1);

/// A block whose joined read failed is asked for again this often in all.
const ATTEMPTS: u32 = 3;

thread_local! {
    /// Memory of [`BufferPool::acquire`], kept from one read to the next.
    static STAGED: Cell<Vec<Request>> = const { Cell::new(Vec::new()) };
}

/// Whether the reads that one waits for may still be in the queue of the method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Handed {
    /// No: all were submitted.
    Over,
    /// Yes: by [`BufferPool::submit_for_wait`], and they were not done a moment ago.
    Queued,
}

/// Counts a stream among those who starve.
struct Starving<'a> {
    pool: &'a BufferPool,
    since: Instant,
}

impl<'a> Starving<'a> {
    fn new(pool: &'a BufferPool) -> Self {
        pool.shared.starving.fetch_add(1, Ordering::Relaxed);
        Self { pool, since: Instant::now() }
    }
}

impl Drop for Starving<'_> {
    fn drop(&mut self) {
        self.pool.shared.starving.fetch_sub(1, Ordering::Relaxed);
    }
}

impl BufferPool {
    /// Hands the staged requests over.
    pub(crate) fn submit(&self, lane: usize, staged: &mut Vec<Request>, metrics: &mut ReadMetrics) {
        if staged.is_empty() {
            return;
        }
        let start = Instant::now();
        self.watch.start(&self.shared, self.config.stall_after);
        self.method.submit(lane, staged);
        metrics.submits += 1;
        metrics.submit_nanos += nanos(start.elapsed());
    }

    /// The same, by somebody who then calls [`wait_io`](Self::wait_io) or [`hand_over`](Self::hand_over). Direct reads may
    /// stay queued until then; reads from the page cache are over when submitting is, and there is nothing to wait for.
    pub(crate) fn submit_for_wait(&self, lane: usize, staged: &mut Vec<Request>, metrics: &mut ReadMetrics) -> Handed {
        if !staged.last().is_some_and(|request| request.file().is_direct()) {
            self.submit(lane, staged, metrics);
            return Handed::Over;
        }
        let start = Instant::now();
        self.watch.start(&self.shared, self.config.stall_after);
        self.method.submit_for_wait(lane, staged);
        metrics.submits += 1;
        metrics.submit_nanos += nanos(start.elapsed());
        Handed::Queued
    }

    /// Submits what was queued for a wait that was not needed after all.
    pub(crate) fn hand_over(&self, lane: usize) {
        self.method.submit(lane, &mut Vec::new());
    }

    /// Waits until no read into the pinned frame is in flight. Returns whether it really had to wait. `together`: how
    /// many reads that end at about the same time the caller can use.
    ///
    /// # Errors
    /// `Method` if the read does not end within the stall timeout.
    pub(crate) fn wait_io(
        &self,
        pin: &Pin,
        fork: &RelationFork,
        block: u32,
        handed: Handed,
        together: u32,
        metrics: &mut ReadMetrics,
    ) -> Result<bool> {
        let done = || pin.state() != FrameState::InIo;
        // Any thread may reap any lane: the one who asked for this read may have stopped consuming.
        let lane = self.shared.lane_of(pin.frame());
        if done() {
            if handed == Handed::Queued {
                self.hand_over(lane);
            }
            return Ok(false);
        }
        if handed == Handed::Over {
            self.method.reap(lane);
            if done() {
                return Ok(false);
            }
        }
        let start = Instant::now();
        let limit = self.config.stall_timeout;
        let mut lost = None;
        // At least once: that hands over what is queued.
        loop {
            let slice = WAIT_SLICE.min(limit.saturating_sub(start.elapsed()));
            self.method.wait_together(lane, &done, slice, together);
            if done() || start.elapsed() >= limit {
                break;
            }
            lost = self.method.lost(lane).filter(|_| start.elapsed() >= LOST_PATIENCE);
            if lost.is_some() {
                break;
            }
        }
        metrics.waits += 1;
        metrics.wait_nanos += nanos(start.elapsed());
        if done() {
            return Ok(true);
        }
        if let Some(why) = lost {
            return Err(Error::new(ErrorKind::Method, format!("its read was lost: {why}"))
                .with_path(fork.path_of(block))
                .with_block(block)
                .with_hint("open io_uring without sqpoll, or allow io_uring_enter in the filter"));
        }
        let outstanding = self.shared.in_flight.outstanding();
        let oldest = outstanding.first().map_or_else(String::new, |read| {
            format!(
                "; the oldest of {} in flight is for block {} of {} since {:.1?}",
                outstanding.len(),
                read.block,
                read.path.display(),
                read.age
            )
        });
        Err(Error::new(ErrorKind::Method, format!("read did not end within {limit:?}{oldest}"))
            .with_path(fork.path_of(block))
            .with_block(block)
            .with_hint(format!("the storage hangs, or io_method {} lost a completion; try sync", self.method.name())))
    }

    /// Gets one block, waiting for whatever must be waited for. `staged` must be empty: nobody waits while others wait
    /// for reads that he has not submitted.
    ///
    /// # Errors
    /// `NoUnpinnedBuffers` if no frame became free in time, `Method` for a stalled read, `Io` and others of the read.
    pub(crate) fn acquire(
        &self,
        asker: &Asker<'_>,
        block: u32,
        ring: &mut Option<Ring>,
        metrics: &mut ReadMetrics,
    ) -> Result<PinnedPage> {
        let mut staged = STAGED.take();
        let result = self.acquire_staging(asker, block, ring, &mut staged, metrics);
        staged.clear();
        STAGED.set(staged);
        result
    }

    fn acquire_staging(
        &self,
        asker: &Asker<'_>,
        block: u32,
        ring: &mut Option<Ring>,
        staged: &mut Vec<Request>,
        metrics: &mut ReadMetrics,
    ) -> Result<PinnedPage> {
        let mut attempt = 1;
        let mut starving = None;
        loop {
            let started = self.shared.start_read(asker, block, 1, ring, staged, metrics)?;
            let (frame, own) = match started {
                Started::Hit(frame) => (frame, false),
                Started::Joined(frame) => (frame, false),
                Started::Read(frames) => (frames[0], true),
                Started::NoFrame => {
                    let starving = starving.get_or_insert_with(|| Starving::new(self));
                    let waited = self.wait_for_frame(asker, block, starving.since);
                    metrics.wait_nanos += nanos(waited.as_ref().map_or(self.config.pin_timeout, |waited| *waited));
                    waited?;
                    continue;
                }
            };
            let pin = Pin::adopt(asker.session, frame);
            let handed = self.submit_for_wait(asker.lane, staged, metrics);
            self.wait_io(&pin, asker.fork, block, handed, 1, metrics)?;
            if pin.state() == FrameState::Failed {
                if own || attempt == ATTEMPTS {
                    return Err(self.shared.failure(frame).to_error(asker.fork, block));
                }
                attempt += 1;
                continue;
            }
            return pin.into_page(block);
        }
    }

    /// Waits until a frame seems to be free: for reads to end, for consumers to unpin. First the asker gives up what it
    /// has pinned ahead, then it takes from the others what they have pinned ahead. `since`: when it began to starve.
    fn wait_for_frame(&self, asker: &Asker<'_>, block: u32, since: Instant) -> Result<Duration> {
        let start = Instant::now();
        let mut pause = Duration::from_micros(10);
        loop {
            for lane in 0..self.method.lanes() {
                self.method.reap(lane);
            }
            if since.elapsed() >= self.config.pin_timeout {
                return Err(self.no_unpinned(asker.fork, block));
            }
            if self.shared.has_unpinned() || asker.session.revoke(1) > 0 || self.shared.revoke_some(1) > 0 {
                std::thread::yield_now();
                return Ok(start.elapsed());
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(1));
        }
    }

    fn no_unpinned(&self, fork: &RelationFork, block: u32) -> Error {
        let in_flight = self.shared.in_flight.count();
        Error::new(
            ErrorKind::NoUnpinnedBuffers,
            format!(
                "all {} frames of the buffer pool stayed pinned for {:?} ({in_flight} reads in flight)",
                self.frames(),
                self.config.pin_timeout
            ),
        )
        .with_path(fork.path_of(block))
        .with_block(block)
        .with_hint("drop pages before asking for more, run fewer scans at a time, or raise shared_buffers")
    }

    /// The method that reads.
    pub fn method(&self) -> &dyn IoMethod {
        &*self.method
    }
}
