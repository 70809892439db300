//! The part of the pool that reads in flight keep alive: frames, mapping table, reads in flight, what failed.
//!
//! The IO method holds it as its [`Completer`]; the pool holds both and drops the method first, so the memory outlives
//! every read into it.

use super::{
    inflight::{FrameList, InFlight, Op},
    mapping::{Inserted, MappingTable},
    metrics::{Booked, ReadMetrics},
    partition::{Frames, NO_FRAME, Victim},
    state::{FrameState, Word},
    strategy::Ring,
};
use crate::{Error, ErrorKind, RelationFork, Result};
use crossbeam_utils::CachePadded;
use heapscan_io::{Completer, Completion, Request, Segment};
use smallvec::SmallVec;
use std::{
    cell::Cell,
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering},
    },
    time::Instant,
};

thread_local! {
    /// Memory of [`Shared::claim`], kept from one read to the next.
    static VICTIMS: Cell<Vec<Victim>> = const { Cell::new(Vec::new()) };
}

/// A fork that was registered with a pool; valid in that pool only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RelationId(pub(crate) u32);

impl RelationId {
    pub(crate) fn tag(self, block: u32) -> u64 {
        u64::from(self.0) << 32 | u64::from(block)
    }
}

pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What the mutexes here guard is consistent whenever they are released, also by a panic.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Why a block is not in its frame.
#[derive(Clone, Debug)]
pub(crate) struct ReadFailure {
    message: String,
    errno: Option<i32>,
    /// It is known that this very block cannot be read. If not, another block of the same read may be at fault.
    pub(crate) tried: bool,
}

impl ReadFailure {
    pub(crate) fn to_error(&self, fork: &RelationFork, block: u32) -> Error {
        let error = Error::new(ErrorKind::Io, self.message.clone()).with_path(fork.path_of(block)).with_block(block);
        match self.errno {
            Some(errno) => error.with_errno(errno),
            None => error.with_hint("the file became shorter after it was opened: something changes the cluster"),
        }
    }
}

/// What a stream shares with the pages that it handed out, and with streams that are out of frames.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) shared: Arc<Shared>,
    /// Frames pinned ahead. Whoever swaps one out owns its pin: the stream when it comes to the block, or another stream
    /// that has no frame at all and finds none unpinned.
    pub(crate) ahead: Box<[AtomicU32]>,
    pub(crate) booked: Arc<Booked>,
    pub(crate) metrics: Mutex<ReadMetrics>,
}

impl Session {
    pub(crate) fn new(shared: Arc<Shared>, slots: usize) -> Self {
        Self {
            shared,
            ahead: (0..slots).map(|_| AtomicU32::new(NO_FRAME)).collect(),
            booked: Arc::default(),
            metrics: Mutex::default(),
        }
    }

    /// Takes the pin out of slot `slot`, if nobody else did.
    pub(crate) fn take_ahead(&self, slot: usize) -> Option<u32> {
        Some(self.ahead[slot].swap(NO_FRAME, Ordering::AcqRel)).filter(|&frame| frame != NO_FRAME)
    }

    /// Unpins up to `limit` blocks pinned ahead whose read has ended.
    pub(crate) fn revoke(&self, limit: usize) -> usize {
        let mut revoked = 0;
        for slot in &self.ahead {
            if revoked == limit {
                break;
            }
            let frame = slot.load(Ordering::Acquire);
            if frame == NO_FRAME || self.shared.word(frame).state() == FrameState::InIo {
                continue;
            }
            // The exchange fails if the owner took its pin meanwhile.
            if slot.compare_exchange(frame, NO_FRAME, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                self.shared.unpin(frame);
                revoked += 1;
            }
        }
        revoked
    }

    pub(crate) fn snapshot(&self) -> ReadMetrics {
        let mut metrics = *lock(&self.metrics);
        self.booked.add_to(&mut metrics);
        metrics
    }
}

/// Who asks for blocks.
#[derive(Debug)]
pub(crate) struct Asker<'a> {
    pub(crate) session: &'a Arc<Session>,
    pub(crate) fork: &'a Arc<RelationFork>,
    pub(crate) relation: RelationId,
    pub(crate) lane: usize,
    pub(crate) usage_cap: u64,
}

/// What became of asking for a block. Every frame named here is pinned for the asker.
#[derive(Debug)]
pub(crate) enum Started {
    /// It is there.
    Hit(u32),
    /// Somebody (perhaps the asker) is reading it.
    Joined(u32),
    /// A read of this and the following blocks was staged; the frames are in block order.
    Read(FrameList),
    /// No frame can be had now.
    NoFrame,
}

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) frames: Frames,
    pub(crate) table: MappingTable,
    pub(crate) in_flight: InFlight,
    /// Why FAILED frames failed, until they are claimed. At most one entry a frame.
    failures: Mutex<HashMap<u32, ReadFailure>>,
    pub(crate) sessions: Mutex<Vec<Weak<Session>>>,
    pub(crate) open_streams: AtomicUsize,
    /// Streams that have no frame and wait for one: the others then do not look ahead.
    pub(crate) starving: AtomicUsize,
    pub(crate) stale_completions: AtomicU64,
    /// Completions of all streams, also of those that had ended before.
    pub(crate) booked: CachePadded<Booked>,
    /// Counters of the streams that have ended, without what completions booked.
    pub(crate) retired: Mutex<ReadMetrics>,
}

impl Shared {
    pub(crate) fn new(frames: Frames) -> Self {
        let table = MappingTable::new(frames.count());
        Self {
            frames,
            table,
            in_flight: InFlight::new(),
            failures: Mutex::default(),
            sessions: Mutex::default(),
            open_streams: AtomicUsize::new(0),
            starving: AtomicUsize::new(0),
            stale_completions: AtomicU64::new(0),
            booked: CachePadded::default(),
            retired: Mutex::default(),
        }
    }

    pub(crate) fn word(&self, frame: u32) -> Word {
        self.frames.descriptor(frame).core.load()
    }

    pub(crate) fn unpin(&self, frame: u32) {
        self.frames.descriptor(frame).core.unpin();
    }

    pub(crate) fn lane_of(&self, frame: u32) -> usize {
        self.frames.descriptor(frame).lane.load(Ordering::Relaxed) as usize
    }

    /// Why a FAILED frame that the caller has pinned failed.
    pub(crate) fn failure(&self, frame: u32) -> ReadFailure {
        let unknown = || ReadFailure { message: "read failed".to_owned(), errno: None, tried: true };
        lock(&self.failures).get(&frame).cloned().unwrap_or_else(unknown)
    }

    /// Looks a block up without a lock, pinning it.
    pub(crate) fn lookup(&self, tag: u64, usage_cap: u64) -> Option<(u32, Word)> {
        self.table.lookup(&self.frames, tag, usage_cap)
    }

    /// Looks for `first`; if it is not there, stages one read of it and of up to `max - 1` of the blocks behind it that
    /// are not there either and lie in the same file. Never waits.
    ///
    /// # Errors
    /// If the block does not exist, its file cannot be opened or frame memory cannot be had.
    pub(crate) fn start_read(
        &self,
        asker: &Asker<'_>,
        first: u32,
        max: u32,
        ring: &mut Option<Ring>,
        staged: &mut Vec<Request>,
        metrics: &mut ReadMetrics,
    ) -> Result<Started> {
        let tag = asker.relation.tag(first);
        if let Some((frame, word)) = self.lookup(tag, asker.usage_cap) {
            return Ok(self.found(frame, word, metrics));
        }
        let location = asker.fork.locate(first)?;
        let max = max.clamp(1, location.blocks);
        let misses =
            (1..max).take_while(|&i| !self.table.probably_contains(&self.frames, tag + u64::from(i))).count() + 1;
        let mut victims = self.claim(misses, ring, metrics)?;
        if victims.is_empty() {
            return Ok(Started::NoFrame);
        }
        let mut inserted = FrameList::new();
        let mut exists = None;
        for (i, &frame) in victims.iter().enumerate() {
            let descriptor = self.frames.descriptor(frame);
            descriptor.lane.store(asker.lane as u32, Ordering::Relaxed);
            match self.table.insert(&self.frames, tag + i as u64, frame, asker.usage_cap) {
                Inserted::Done => inserted.push(frame),
                // Somebody was faster: the read ends in front of that block.
                Inserted::Exists(other, word) => {
                    exists = Some((other, word));
                    break;
                }
            }
        }
        for (i, frame) in victims.drain(..).enumerate() {
            let used = i < inserted.len();
            if !used {
                self.frames.descriptor(frame).core.release_claim();
            }
            if let Some(ring) = ring {
                ring.push(frame, if used { tag + i as u64 } else { super::state::NO_TAG });
            }
        }
        match exists {
            Some((frame, word)) if inserted.is_empty() => return Ok(self.found(frame, word, metrics)),
            Some((frame, _)) => self.unpin(frame),
            None => {}
        }
        let op = Op {
            fork: Arc::clone(asker.fork),
            tag,
            frames: inserted.clone(),
            booked: Arc::clone(&asker.session.booked),
            started: Instant::now(),
        };
        let (request, in_flight) = self.in_flight.insert(asker.lane, op);
        staged.push(self.request(location, &inserted, request));
        metrics.reads += 1;
        metrics.blocks_read += inserted.len() as u64;
        metrics.max_in_flight = metrics.max_in_flight.max(in_flight as u64);
        Ok(Started::Read(inserted))
    }

    fn found(&self, frame: u32, word: Word, metrics: &mut ReadMetrics) -> Started {
        if word.state() == FrameState::Valid {
            metrics.hits += 1;
            return Started::Hit(frame);
        }
        metrics.joins += 1;
        Started::Joined(frame)
    }

    /// Claims up to `want` frames, from the ring if there is one, then from the pool, and takes them out of the mapping.
    fn claim(&self, want: usize, ring: &mut Option<Ring>, metrics: &mut ReadMetrics) -> Result<FrameList> {
        let mut victims = VICTIMS.take();
        if let Some(ring) = ring {
            metrics.ring_reuses += ring.claim(&self.frames, want, &mut victims) as u64;
        }
        let from_ring = victims.len();
        if victims.len() < want {
            self.frames.sweep(want, &mut victims);
        }
        let mut claimed = FrameList::new();
        let mut failed = None;
        for (i, &Victim { frame, was }) in victims.iter().enumerate() {
            let core = &self.frames.descriptor(frame).core;
            match was.state() {
                FrameState::Valid => {
                    self.table.remove(&self.frames, core.tag(), frame);
                    metrics.evictions += u64::from(i >= from_ring);
                }
                FrameState::Failed => {
                    lock(&self.failures).remove(&frame);
                }
                _ => {}
            }
            match self.frames.partition_of(frame).populate(frame) {
                Ok(()) => claimed.push(frame),
                Err(error) => {
                    core.release_claim();
                    failed = Some(error);
                }
            }
        }
        victims.clear();
        VICTIMS.set(victims);
        match failed {
            Some(error) if claimed.is_empty() => Err(error),
            _ => Ok(claimed),
        }
    }

    /// Whether some frame is neither pinned nor claimed just now.
    pub(crate) fn has_unpinned(&self) -> bool {
        (0..self.frames.count()).any(|frame| {
            let word = self.word(frame);
            word.pins() == 0 && word.state() != FrameState::Claimed
        })
    }

    /// Gives up blocks that streams have pinned ahead, so that one that has none can go on.
    pub(crate) fn revoke_some(&self, limit: usize) -> usize {
        let sessions: Vec<Arc<Session>> = lock(&self.sessions).iter().filter_map(Weak::upgrade).collect();
        let mut revoked = 0;
        for session in sessions {
            revoked += session.revoke(limit - revoked);
            if revoked == limit {
                break;
            }
        }
        revoked
    }
}

#[allow(unsafe_code, reason = "frames are lent to the IO method, and read by holders of a pin")]
mod fence {
    use super::*;

    impl Shared {
        /// The request of a read into `frames`, all of which this read has just put in IO.
        pub(super) fn request(&self, location: crate::Location, frames: &[u32], tag: u64) -> Request {
            let block = self.frames.block_size();
            let mut segments: SmallVec<[Segment; 4]> = SmallVec::new();
            let mut last = NO_FRAME;
            for &frame in frames {
                match segments.last_mut() {
                    Some(segment) if self.frames.adjacent(last, frame) => segment.len += block,
                    _ => segments.push(Segment { ptr: self.frames.address(frame), len: block }),
                }
                last = frame;
            }
            // SAFETY: each segment lies within a mapping of `self.frames`, which lives as long as the IO method, as the
            // method holds an Arc of `self` as its completer. Nobody else writes to the memory: each frame is in state
            // IN_IO, which only `finish_io` of this read's completion ends, and it carries the pin of this read, so it
            // cannot be claimed for another read. Nobody reads it: `bytes` requires VALID.
            unsafe { Request::new(location.file, location.offset, segments, tag) }
        }

        /// The bytes of a frame.
        ///
        /// # Safety
        /// For as long as the result lives the caller must hold a pin on the frame, taken while, or before, it became
        /// VALID, and have seen that state; and it must keep `self` alive.
        pub(crate) unsafe fn bytes(&self, frame: u32) -> &[u8] {
            let address = self.frames.address(frame);
            // SAFETY: the address is that of block_size bytes of a live mapping. The frame is VALID and pinned, so it is
            // not claimed and no read into it is in flight: nobody writes. The Acquire load that saw VALID makes the bytes
            // of the read visible. Memory that the read did fill is initialised, and an anonymous mapping starts as zeros.
            unsafe { std::slice::from_raw_parts(address.as_ptr(), self.frames.block_size()) }
        }
    }
}

impl Completer for Shared {
    fn complete(&self, completion: Completion) {
        let Some(op) = self.in_flight.take(completion.tag) else {
            self.stale_completions.fetch_add(1, Ordering::Relaxed);
            return;
        };
        let block_size = self.frames.block_size();
        let bytes = completion.bytes.min(op.frames.len() * block_size);
        // A block counts as read only when all of its bytes came.
        let whole = bytes / block_size;
        let failed = op.frames.len() - whole;
        for booked in [&*op.booked, &*self.booked] {
            booked.book(bytes as u64, completion.retries, completion.latency, failed as u64);
        }
        for (i, &frame) in op.frames.iter().enumerate() {
            if i >= whole {
                let failure = match &completion.error {
                    Some(e) => ReadFailure {
                        message: format!(
                            "read at offset {} failed: {}",
                            e.offset,
                            std::io::Error::from_raw_os_error(e.errno)
                        ),
                        errno: Some(e.errno),
                        // A kernel may refuse a whole read because of one bad block in it: only a read of a single
                        // block says which one it is.
                        tried: op.frames.len() == 1,
                    },
                    None => ReadFailure {
                        message: format!(
                            "block has vanished: the file ends after {} of its {block_size} bytes",
                            if i == whole { bytes % block_size } else { 0 }
                        ),
                        errno: None,
                        tried: i == whole,
                    },
                };
                lock(&self.failures).insert(frame, failure);
                // Out of the mapping first, so that whoever comes from now on reads again.
                self.table.remove(&self.frames, op.tag + i as u64, frame);
            }
            self.frames.descriptor(frame).core.finish_io(i < whole);
        }
    }
}
