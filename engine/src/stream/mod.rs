//! The read stream: block numbers in, pinned blocks out in the same order, reads in between combined and ahead of time.
//!
//! Dangers: while requests are staged and not yet submitted, nothing here may wait or call the caller's iterator (a
//! stream that joined one of those reads would wait for us); what is pinned ahead is budgeted and revocable, so that no
//! number of idle streams can hold all frames.

mod distance;
mod options;

pub use options::StreamOptions;

use crate::{
    Error, RelationFork, Result,
    pool::{
        Asker, BufferPool, FrameState, Handed, NO_FRAME, Pin, PinnedPage, ReadMetrics, RelationId, Ring, Session,
        Started, lock,
    },
};
use distance::Distance;
use heapscan_io::Request;
use std::{
    collections::VecDeque,
    fmt,
    sync::{Arc, atomic::Ordering},
};

/// PostgreSQL's bound of the pins of one stream, in blocks.
const MAX_PINS: u32 = 32767;

/// From so many reads ahead on they are made in batches.
const BATCHED_FROM: usize = 8;

/// How a block came to be in the look-ahead queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    /// It was in the pool.
    Hit,
    /// This stream asked for it; `first`: it is the first block of its read.
    Read { first: bool },
    /// Somebody else had asked for it.
    Joined,
    /// Nothing was done: asking for it will show the error in its turn.
    Later,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    block: u32,
    /// Where its pin lies, if it has one.
    slot: Option<usize>,
    how: How,
}

/// A stream of blocks of one relation.
pub struct ReadStream {
    pool: Arc<BufferPool>,
    session: Arc<Session>,
    fork: Arc<RelationFork>,
    relation: RelationId,
    blocks: Box<dyn Iterator<Item = u32> + Send>,
    ended: bool,
    /// Blocks that were taken from the iterator and not asked for yet.
    upcoming: VecDeque<u32>,
    /// Blocks that are pinned ahead, in order; the pins lie in `session.ahead`.
    queue: VecDeque<Entry>,
    next_slot: usize,
    /// Own reads whose first block was not consumed yet.
    reads_ahead: u32,
    staged: Vec<Request>,
    ring: Option<Ring>,
    distance: Distance,
    options: StreamOptions,
    /// Most reads ahead.
    max_reads: u32,
    /// Most pins ahead, by the settings and the ring; other streams lower it further.
    pin_limit: u32,
    lane: usize,
    metrics: ReadMetrics,
}

impl ReadStream {
    /// A stream of `blocks`, in that order, which may have gaps, go backwards and repeat. The iterator is called while
    /// no read of the stream is waiting to be submitted, so it may itself use the pool.
    ///
    /// # Errors
    /// `Usage` if the relation is not registered with the pool.
    pub fn new(
        pool: Arc<BufferPool>,
        relation: RelationId,
        blocks: impl Iterator<Item = u32> + Send + 'static,
        options: StreamOptions,
    ) -> Result<Self> {
        let fork = pool.fork(relation)?;
        let most_combined = ((1 << 20) / pool.block_size()).min(pool.frames());
        let limit = options.io_combine_limit.clamp(1, most_combined);
        let concurrency = options.effective_io_concurrency;
        let pin_limit = limit
            .saturating_mul(concurrency.saturating_add(1))
            .min(options.strategy.pin_limit(limit))
            .min(pool.frames())
            .clamp(1, MAX_PINS);
        let limit = limit.min(pin_limit);
        let asynchronous = pool.method().is_asynchronous() && concurrency > 0;
        let session = Arc::new(Session::new(Arc::clone(pool.shared()), pin_limit as usize + 1));
        lock(&pool.shared().sessions).push(Arc::downgrade(&session));
        pool.shared().open_streams.fetch_add(1, Ordering::Relaxed);
        let lane = options.lane % pool.method().lanes().max(1);
        Ok(Self {
            session,
            fork,
            relation,
            blocks: Box::new(blocks),
            ended: false,
            upcoming: VecDeque::new(),
            queue: VecDeque::new(),
            next_slot: 0,
            reads_ahead: 0,
            staged: Vec::new(),
            ring: Ring::new(options.strategy),
            distance: Distance::new(limit, asynchronous, options.full),
            options,
            max_reads: concurrency.max(1),
            pin_limit,
            lane,
            metrics: ReadMetrics::default(),
            pool,
        })
    }

    /// The next block, or `None` after the last one. After an error of one block the stream goes on with the next one;
    /// after `NoUnpinnedBuffers` it tries the same block again.
    ///
    /// # Errors
    /// `Io` if the block cannot be read or has vanished, `Usage` if there is no such block, `Method` if the read
    /// stalled, `NoUnpinnedBuffers` if not one frame became free in time.
    pub fn next_page(&mut self) -> Option<Result<PinnedPage>> {
        if self.queue.is_empty()
            && self.upcoming.is_empty()
            && self.distance.ahead() == 1
            && self.distance.combine() == 1
        {
            // Nothing ahead and no reason to look there: one lookup, if the block is there.
            let block = self.pull()?;
            if let Some((frame, word)) = self.pool.shared().lookup(self.relation.tag(block), self.usage_cap()) {
                let pin = Pin::adopt(&self.session, frame);
                if word.state() == FrameState::Valid {
                    self.metrics.hits += 1;
                    return Some(pin.into_page(block));
                }
            }
            self.upcoming.push_back(block);
        }
        let mut handed = self.look_ahead();
        let result = match self.queue.pop_front() {
            Some(entry) => self.consume(entry, &mut handed),
            None => {
                // Not even one frame was free.
                let block = self.upcoming.pop_front()?;
                let result = self.acquire(block);
                if result.as_ref().is_err_and(|e| e.kind() == crate::ErrorKind::NoUnpinnedBuffers) {
                    self.upcoming.push_front(block);
                }
                result
            }
        };
        if handed == Handed::Queued {
            // There was no need to wait after all.
            self.pool.hand_over(self.lane);
        }
        Some(result)
    }

    /// What it did so far.
    pub fn metrics(&self) -> ReadMetrics {
        self.publish();
        self.session.snapshot()
    }

    /// The pool that it reads through.
    pub fn pool(&self) -> &Arc<BufferPool> {
        &self.pool
    }

    fn usage_cap(&self) -> u64 {
        self.options.strategy.usage_cap()
    }

    fn publish(&self) {
        *lock(&self.session.metrics) = self.metrics;
    }

    fn pull(&mut self) -> Option<u32> {
        debug_assert!(self.staged.is_empty(), "the caller's iterator must not run while reads are staged");
        if self.ended {
            return None;
        }
        let block = self.blocks.next();
        self.ended = block.is_none();
        block
    }

    /// Pins that this stream may have ahead: its share of the pool, one of which is for what the consumer holds.
    fn budget(&self) -> u32 {
        let shared = self.pool.shared();
        if shared.starving.load(Ordering::Relaxed) > 0 {
            return 1;
        }
        let streams = shared.open_streams.load(Ordering::Relaxed).max(1);
        let share = (self.pool.frames() as usize / streams).saturating_sub(1).max(1);
        self.pin_limit.min(u32::try_from(share).unwrap_or(u32::MAX))
    }

    /// Asks for blocks ahead of the consumer, as far as the distances and the budget allow, then submits all at once.
    fn look_ahead(&mut self) -> Handed {
        let budget = self.budget();
        let combine = self.distance.combine().min(budget) as usize;
        let ahead = self.distance.ahead().min(budget) as usize;
        let target = if self.queue.is_empty() { ahead.max(combine) } else { ahead };
        if !self.queue.is_empty() && self.is_full_enough(ahead, combine) {
            return Handed::Over;
        }
        while self.queue.len() + self.upcoming.len() < target
            && let Some(block) = self.pull()
        {
            self.upcoming.push_back(block);
        }
        // With nothing in front of the consumer one read may be larger than the look-ahead distance.
        while !self.upcoming.is_empty()
            && (self.queue.is_empty() || self.queue.len() < ahead)
            && self.reads_ahead < self.max_reads
        {
            let run = self.run_length(combine);
            let complete = run == combine || run < self.upcoming.len() || self.ended;
            // A read that could still grow waits for more blocks, unless the consumer has nothing else.
            if !complete && !self.queue.is_empty() {
                break;
            }
            if !self.start(run.min(target.saturating_sub(self.queue.len()).max(1))) {
                break;
            }
        }
        if self.staged.is_empty() {
            return Handed::Over;
        }
        self.distance.set_direct(self.staged.last().is_some_and(|request| request.file().is_direct()));
        let handed = if self.pending_front() == Some(self.lane) {
            self.pool.submit_for_wait(self.lane, &mut self.staged, &mut self.metrics)
        } else {
            self.pool.submit(self.lane, &mut self.staged, &mut self.metrics);
            Handed::Over
        };
        self.publish();
        handed
    }

    /// Whether more reads are better made later, so that several go to the kernel together. `ahead` and `combine` in
    /// blocks, as they are bounded now.
    ///
    /// With direct reads a system call is made when the consumer has to wait anyway, which then takes along all reads
    /// that there is room for; else when hardly a read is in flight any more and half of all that may be can be made. So
    /// two calls in a row hand over at least three quarters of what may be in flight: 4.5 MB with 48 reads of 128 kB.
    fn is_full_enough(&self, ahead: usize, combine: usize) -> bool {
        let most = self.max_reads;
        // Reads from the page cache are made as they are needed: they do not run by themselves.
        if !self.distance.is_direct() || ahead < BATCHED_FROM * combine {
            return self.reads_ahead > most - most / 2;
        }
        if self.queue.front().is_some_and(|entry| entry.how == How::Read { first: false }) {
            return true;
        }
        if self.pending_front().is_some() {
            return false;
        }
        let left = self.queue.len();
        let mean = (left / self.reads_ahead.max(1) as usize).max(1);
        let full = u32::try_from(ahead / mean).unwrap_or(u32::MAX).min(most);
        let in_flight = self.metrics.reads.saturating_sub(self.session.booked.ended());
        in_flight > u64::from(full / 4) || self.reads_ahead > most - full / 2 || left > ahead - ahead / 2
    }

    /// The lane of the read of the block that the consumer gets next, if it has not ended; looks at the completions that
    /// are there.
    fn pending_front(&self) -> Option<usize> {
        let slot = self.queue.front()?.slot?;
        let shared = self.pool.shared();
        let pending = || {
            let frame = self.session.ahead[slot].load(Ordering::Acquire);
            let is_pending = frame != NO_FRAME && shared.word(frame).state() == FrameState::InIo;
            is_pending.then(|| shared.lane_of(frame))
        };
        self.pool.method().reap(pending()?);
        pending()
    }

    /// How many of the upcoming blocks follow each other, up to `limit`.
    fn run_length(&self, limit: usize) -> usize {
        let adjacent = |(a, b): (&u32, &u32)| a.checked_add(1) == Some(*b);
        1 + self.upcoming.iter().zip(self.upcoming.iter().skip(1)).take(limit - 1).take_while(|&p| adjacent(p)).count()
    }

    /// Asks for the first of the upcoming blocks and, in the same read, for up to `run - 1` that follow. Returns whether
    /// it makes sense to go on.
    fn start(&mut self, run: usize) -> bool {
        let Some(&first) = self.upcoming.front() else { return false };
        let asker = Asker {
            session: &self.session,
            fork: &self.fork,
            relation: self.relation,
            lane: self.lane,
            usage_cap: self.options.strategy.usage_cap(),
        };
        let started = self.pool.shared().start_read(
            &asker,
            first,
            run as u32,
            &mut self.ring,
            &mut self.staged,
            &mut self.metrics,
        );
        match started {
            Ok(Started::Hit(frame)) => {
                self.push(Some(frame), How::Hit);
                self.distance.hit(self.reads_ahead == 0);
            }
            Ok(Started::Joined(frame)) => self.push(Some(frame), How::Joined),
            Ok(Started::Read(frames)) => {
                self.reads_ahead += 1;
                for (i, frame) in frames.into_iter().enumerate() {
                    self.push(Some(frame), How::Read { first: i == 0 });
                }
            }
            Ok(Started::NoFrame) => {
                self.distance.shortage(self.queue.len() as u32);
                return false;
            }
            Err(_) => self.push(None, How::Later),
        }
        true
    }

    /// Moves the first upcoming block to the queue, with its pin.
    fn push(&mut self, frame: Option<u32>, how: How) {
        let Some(block) = self.upcoming.pop_front() else { return };
        let slot = frame.map(|frame| {
            let slot = self.next_slot;
            self.next_slot = (slot + 1) % self.session.ahead.len();
            let old = self.session.ahead[slot].swap(frame, Ordering::AcqRel);
            debug_assert_eq!(old, NO_FRAME, "more pins ahead than slots");
            slot
        });
        self.queue.push_back(Entry { block, slot, how });
    }

    fn consume(&mut self, entry: Entry, handed: &mut Handed) -> Result<PinnedPage> {
        let Entry { block, slot, how } = entry;
        let frame = slot.and_then(|slot| self.session.take_ahead(slot));
        let own_read = how == How::Read { first: true };
        self.reads_ahead -= u32::from(own_read);
        let Some(frame) = frame else {
            if how != How::Later {
                self.metrics.revoked += 1;
                self.metrics.wasted += u64::from(matches!(how, How::Read { .. }));
            }
            return self.acquire_in_turn(block);
        };
        let pin = Pin::adopt(&self.session, frame);
        let queued = std::mem::replace(handed, Handed::Over);
        let together = self.reads_ahead / 2;
        let blocked = self.pool.wait_io(&pin, &self.fork, block, queued, together, &mut self.metrics)?;
        match how {
            How::Read { first: true } => self.distance.read_consumed(blocked, self.pin_limit),
            How::Joined => self.distance.join_consumed(blocked, self.pin_limit),
            _ => {}
        }
        if pin.state() != FrameState::Failed {
            return pin.into_page(block);
        }
        let failure = self.pool.shared().failure(frame);
        drop(pin);
        // The failure of a read that we asked for, at this very block, is ours. Any other says nothing about this block.
        if matches!(how, How::Read { .. }) && failure.tried {
            return Err(failure.to_error(&self.fork, block));
        }
        self.acquire_in_turn(block)
    }

    /// Asks again for a block whose turn it is.
    fn acquire_in_turn(&mut self, block: u32) -> Result<PinnedPage> {
        let result = self.acquire(block);
        if result.as_ref().is_err_and(|e| e.kind() == crate::ErrorKind::NoUnpinnedBuffers) {
            // Comes first again, without a pin.
            self.queue.push_front(Entry { block, slot: None, how: How::Later });
        }
        result
    }

    fn acquire(&mut self, block: u32) -> Result<PinnedPage, Error> {
        let asker = Asker {
            session: &self.session,
            fork: &self.fork,
            relation: self.relation,
            lane: self.lane,
            usage_cap: self.options.strategy.usage_cap(),
        };
        self.pool.acquire(&asker, block, &mut self.ring, &mut self.metrics)
    }
}

impl Iterator for ReadStream {
    type Item = Result<PinnedPage>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_page()
    }
}

impl Drop for ReadStream {
    fn drop(&mut self) {
        // Nothing is staged unless something panicked in between; others may already wait for those reads.
        self.pool.submit(self.lane, &mut self.staged, &mut self.metrics);
        for entry in std::mem::take(&mut self.queue) {
            self.metrics.wasted += u64::from(matches!(entry.how, How::Read { .. }));
            if let Some(frame) = entry.slot.and_then(|slot| self.session.take_ahead(slot)) {
                // A frame whose read is in flight keeps the pin of the read.
                self.pool.shared().unpin(frame);
            }
        }
        self.publish();
        let shared = self.pool.shared();
        let this = Arc::downgrade(&self.session);
        lock(&shared.sessions).retain(|session| !session.ptr_eq(&this));
        lock(&shared.retired).add(&self.metrics);
        shared.open_streams.fetch_sub(1, Ordering::Relaxed);
    }
}

impl fmt::Debug for ReadStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadStream")
            .field("file", &self.fork.path())
            .field("options", &self.options)
            .field("distance", &self.distance)
            .field("ahead", &self.queue.len())
            .finish_non_exhaustive()
    }
}
