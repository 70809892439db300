//! The buffer pool: frames of one block each, found by relation and block.
//!
//! Dangers:
//! - The kernel writes into frames. Frames belong to the pool and stay IN_IO until the completion was seen, whatever
//!   became of those who asked (`state`, `shared`).
//! - A scan that stops consuming must not stop others: any thread may reap any read, and blocks that a scan has pinned
//!   ahead can be taken from it by one that has no frame at all (`wait`).
//! - Locks here are held for a few instructions, one at a time, never while calling the IO method or waiting.

pub mod balance;
mod chooser;
mod clock;
mod config;
mod frames;
mod inflight;
mod mapping;
mod metrics;
mod page;
mod partition;
mod placement;
mod registry;
mod seats;
mod shared;
mod slab;
mod state;
mod strategy;
mod sync;
mod view;
mod wait;
mod watch;

pub use config::{DEFAULT_IO_CONCURRENCY, PoolConfig, SMALL_READ_IO_CONCURRENCY};
pub use inflight::OutstandingRead;
pub use metrics::{PartitionMetrics, PoolMetrics, ReadMetrics};
pub use page::PinnedPage;
pub use placement::{NumaOptions, PartitionPlacement, Placement, PlacementReport};
pub use shared::RelationId;
pub use strategy::Strategy;
pub use view::{BufferInfo, PartitionPages};

pub(crate) use chooser::Chooser;
pub(crate) use page::Pin;
pub(crate) use partition::NO_FRAME;
pub(crate) use shared::{Asker, Session, Started, lock};
pub(crate) use state::FrameState;
pub(crate) use wait::Handed;

use crate::{Error, ErrorKind, RelationFork, Result};
use frames::Frames;
use heapscan_io::{Completer, IoMethod, LatencySummary, MemoryRegistration};
use heapscan_placement::memory::MapReport;
use mapping::MappingTable;
use registry::Registry;
use seats::Seats;
use shared::Shared;
use std::{
    fmt,
    sync::{Arc, Weak, atomic::Ordering},
};

/// A pool of block frames and the IO method that fills them.
pub struct BufferPool {
    // Dropped first: the method drains its reads while `shared` still holds the memory.
    method: Box<dyn IoMethod>,
    shared: Arc<Shared>,
    /// For single blocks that no stream asks for.
    seats: Seats,
    relations: Registry,
    config: PoolConfig,
    registration: Option<MemoryRegistration>,
    placement: PlacementReport,
    watch: Arc<watch::Watch>,
}

impl BufferPool {
    /// Makes a pool on this machine. `open_method` makes the method that reports to the pool. The method must have
    /// delivered, or given up for good, all its reads when its drop returns.
    ///
    /// # Errors
    /// `Usage` if a setting is out of range, `Limit` if memory cannot be had, and those of `open_method`.
    pub fn new(
        config: PoolConfig,
        open_method: impl FnOnce(Arc<dyn Completer>) -> Result<Box<dyn IoMethod>>,
    ) -> Result<Self> {
        let placement = Placement::here(&config)?;
        Self::placed(config, placement, open_method)
    }

    /// As [`new`](Self::new), where a plan says.
    ///
    /// # Errors
    /// As [`new`](Self::new); `Limit` also for placement that is wanted strictly and cannot be had.
    pub fn placed(
        config: PoolConfig,
        mut placement: Placement,
        open_method: impl FnOnce(Arc<dyn Completer>) -> Result<Box<dyn IoMethod>>,
    ) -> Result<Self> {
        config.frames()?;
        placement.place()?;
        let frames = Frames::new(&mut placement, config.block_size)?;
        let table = MappingTable::new(frames.count(), &mut placement)?;
        let placement = placement.report(frames.partitions());
        let shared = Arc::new(Shared::new(frames, table));
        let method = open_method(Arc::clone(&shared) as Arc<dyn Completer>)?;
        let registration = config.register_memory.then(|| match shared.frames.populate_all() {
            Ok(()) => fence::register(&*method, &shared),
            Err(error) => MemoryRegistration::Plain(error.to_string()),
        });
        let seats = Seats::new(&shared);
        Ok(Self {
            method,
            shared,
            seats,
            relations: Registry::default(),
            config,
            registration,
            placement,
            watch: Arc::default(),
        })
    }

    /// What was planned for its memory, what became of it, and what the user should be told of that, once.
    pub fn placement(&self) -> &PlacementReport {
        &self.placement
    }

    /// Its settings.
    pub fn config(&self) -> &PoolConfig {
        &self.config
    }

    /// Number of frames.
    pub fn frames(&self) -> u32 {
        self.shared.frames.count()
    }

    /// Bytes a block.
    pub fn block_size(&self) -> u32 {
        self.config.block_size
    }

    /// Makes a fork known to the pool. The same `Arc` gets the same id; another one, even of the same file, gets its own,
    /// so that blocks of an earlier state of the file are never taken for those of a later one.
    ///
    /// # Errors
    /// `Usage` if its block size is not the pool's.
    pub fn register(&self, fork: Arc<RelationFork>) -> Result<RelationId> {
        if fork.block_size() != self.block_size() {
            let message = format!("blocks of {} bytes do not fit frames of {}", fork.block_size(), self.block_size());
            return Err(Error::new(ErrorKind::Usage, message).with_path(fork.path()));
        }
        self.relations.register(fork)
    }

    /// Lets go of a fork; its files are closed when the streams on it have ended. Its blocks age out of the pool.
    pub fn unregister(&self, relation: RelationId) {
        self.relations.unregister(relation);
    }

    /// The fork of an id.
    ///
    /// # Errors
    /// `Usage` if it is not registered.
    pub fn fork(&self, relation: RelationId) -> Result<Arc<RelationFork>> {
        self.relations.fork(relation)
    }

    /// One block, outside of any stream. A block that is in the pool costs neither a lock nor a cache line that threads
    /// share.
    ///
    /// # Errors
    /// As those of [`ReadStream::next_page`](crate::stream::ReadStream::next_page).
    pub fn read_block(&self, relation: RelationId, block: u32) -> Result<PinnedPage> {
        let seat = self.seats.mine();
        if self.relations.is_live(relation)
            && let Some((frame, word)) = self.shared.lookup(relation.tag(block), Strategy::Normal.usage_cap())
        {
            if word.state() == FrameState::Valid {
                seat.count_hit();
                return Ok(PinnedPage::adopt_valid(&seat.session, frame, block));
            }
            // In IO: the ordinary way waits for it.
            self.shared.unpin(frame);
        }
        let fork = self.fork(relation)?;
        let usage_cap = Strategy::Normal.usage_cap();
        let asker = Asker { session: &seat.session, fork: &fork, relation, lane: 0, usage_cap };
        seat.with_chooser(&self.shared.frames, |chooser| {
            let mut metrics = ReadMetrics::default();
            let page = self.acquire(&asker, block, chooser, &mut metrics);
            lock(&seat.session.metrics).add(&metrics);
            page
        })
    }

    /// The block of `page` once more from the file, because the bytes that are in the pool seem wrong. Whoever asks for
    /// the block from now on gets the new bytes; who holds a pin keeps the old ones.
    ///
    /// # Errors
    /// As [`read_block`](Self::read_block).
    pub fn reread(&self, relation: RelationId, page: &PinnedPage) -> Result<PinnedPage> {
        // The caller's pin keeps the frame with this block, so this takes nobody else's entry.
        self.shared.table.remove(&self.shared.frames, relation.tag(page.block()), page.number());
        self.read_block(relation, page.block())
    }

    /// The strategy for a scan over `blocks` blocks with the pool's settings.
    pub fn strategy_for(&self, blocks: u32) -> Strategy {
        let config = &self.config;
        Strategy::for_scan(blocks, self.frames(), config.io_combine_limit, config.effective_io_concurrency)
    }

    /// Streams that are open now.
    pub fn open_streams(&self) -> usize {
        self.shared.open_streams.load(Ordering::Relaxed)
    }

    /// The strategy for a pass over everything that leaves the pool as it is, with the pool's settings.
    pub fn vacuum_strategy(&self) -> Strategy {
        let config = &self.config;
        Strategy::vacuum(self.frames(), config.io_combine_limit, config.effective_io_concurrency)
    }

    /// Reads that are in flight now, oldest first.
    pub fn outstanding(&self) -> Vec<OutstandingRead> {
        self.shared.in_flight.outstanding()
    }

    /// Frames that are pinned now, by consumers, by look-ahead or by reads in flight. Looks at every frame: for tests and
    /// diagnosis.
    pub fn pinned_frames(&self) -> u32 {
        self.shared.frames.numbers().map(|frame| u32::from(self.shared.word(frame).pins() > 0)).sum()
    }

    /// Counters of the pool.
    pub fn metrics(&self) -> PoolMetrics {
        let mut totals = *lock(&self.shared.retired);
        let sessions: Vec<Arc<Session>> = lock(&self.shared.sessions).iter().filter_map(Weak::upgrade).collect();
        for session in &sessions {
            totals.add(&lock(&session.metrics));
        }
        self.seats.add_to(&mut totals);
        self.shared.booked.add_to(&mut totals);
        PoolMetrics {
            frames: self.frames(),
            block_size: self.block_size(),
            huge_partitions: self.shared.frames.huge_partitions(),
            partitions: self.shared.frames.partitions().len(),
            open_streams: self.shared.open_streams.load(Ordering::Relaxed),
            in_flight: self.shared.in_flight.count(),
            stale_completions: self.shared.stale_completions.load(Ordering::Relaxed),
            stalls: self.watch.told.load(Ordering::Relaxed),
            totals,
        }
    }

    /// What memory each partition's frames got: the kind of pages, and why not the kind that was asked for.
    pub fn memory_reports(&self) -> Vec<MapReport> {
        self.shared.frames.memory_reports().cloned().collect()
    }

    /// Whether the IO method knows the frames' memory; `None` if that was not asked for.
    pub fn memory_registration(&self) -> Option<&MemoryRegistration> {
        self.registration.as_ref()
    }

    /// How long the requests took, from submission to completion, of all streams together.
    pub fn io_latency(&self) -> LatencySummary {
        self.method.latency()
    }

    /// Counters of the IO method.
    pub fn io_stats(&self) -> heapscan_io::IoStats {
        self.method.stats()
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }
}

#[allow(unsafe_code, reason = "the IO method is told of the frames' memory")]
mod fence {
    use super::*;

    pub(super) fn register(method: &dyn IoMethod, shared: &Arc<Shared>) -> MemoryRegistration {
        // SAFETY: the mappings are unmapped when the last Arc of `shared` goes. The pool drops the method before its own,
        // so the memory stays mapped until the method was dropped; if making the pool fails, the method goes first as
        // well, because it was declared later.
        unsafe { method.register_memory(&shared.frames.memory()) }
    }
}

impl Drop for BufferPool {
    fn drop(&mut self) {
        self.watch.close();
    }
}

impl fmt::Debug for BufferPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BufferPool")
            .field("config", &self.config)
            .field("method", &self.method.name())
            .finish_non_exhaustive()
    }
}
