//! The table of reads in flight.

use super::metrics::Booked;
use crate::RelationFork;
use crossbeam_utils::CachePadded;
use smallvec::SmallVec;
use std::{
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

const SHARD_BITS: u32 = 4;
const SLOT_BITS: u32 = 28;

/// The frames of one read in block order; no allocation for reads of up to 16 blocks, the default limit.
pub(crate) type FrameList = SmallVec<[u32; 16]>;

/// One read: which blocks go to which frames, and to whom it is booked. It keeps the relation's files open.
#[derive(Debug)]
pub(crate) struct Op {
    pub(crate) fork: Arc<RelationFork>,
    /// Relation id in the upper half, first block in the lower.
    pub(crate) tag: u64,
    pub(crate) frames: FrameList,
    pub(crate) booked: Arc<Booked>,
    pub(crate) started: Instant,
}

impl Op {
    pub(crate) fn first_block(&self) -> u32 {
        self.tag as u32
    }
}

/// A read that has not ended yet, for reports of stalls.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct OutstandingRead {
    /// The file.
    pub path: PathBuf,
    /// First block of the read.
    pub block: u32,
    /// Blocks of the read.
    pub blocks: u32,
    /// How long it is in flight.
    pub age: Duration,
    pub(crate) since: Instant,
}

#[derive(Debug, Default)]
struct Shard {
    slots: Vec<Slot>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct Slot {
    generation: u32,
    op: Option<Op>,
}

/// Reads in flight, found again by the tag of their request: shard, slot, and a generation that makes a late or
/// duplicate completion miss. Grows with the reads in flight, of which there are never more than frames.
#[derive(Debug)]
pub(crate) struct InFlight {
    shards: Box<[CachePadded<Mutex<Shard>>]>,
    count: CachePadded<AtomicUsize>,
}

impl InFlight {
    pub(crate) fn new() -> Self {
        Self { shards: (0..1 << SHARD_BITS).map(|_| CachePadded::default()).collect(), count: CachePadded::default() }
    }

    fn lock(&self, shard: usize) -> MutexGuard<'_, Shard> {
        self.shards[shard].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes up a read; returns the tag for its request and how many are now in flight.
    pub(crate) fn insert(&self, lane: usize, op: Op) -> (u64, usize) {
        let number = lane % self.shards.len();
        let mut shard = self.lock(number);
        let slot = match shard.free.pop() {
            Some(slot) => {
                shard.slots[slot as usize].op = Some(op);
                slot
            }
            None => {
                let slot = u32::try_from(shard.slots.len()).expect("fewer reads than frames");
                assert!(slot < 1 << SLOT_BITS, "fewer reads than frames");
                shard.slots.push(Slot { generation: 0, op: Some(op) });
                slot
            }
        };
        let generation = shard.slots[slot as usize].generation;
        let tag = ((number as u64) << SLOT_BITS | u64::from(slot)) << 32 | u64::from(generation);
        (tag, self.count.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// The read of a completion; `None` if there is no such read (any more).
    pub(crate) fn take(&self, tag: u64) -> Option<Op> {
        let (position, generation) = ((tag >> 32) as u32, tag as u32);
        let slot = position & ((1 << SLOT_BITS) - 1);
        let mut shard = self.lock((position >> SLOT_BITS) as usize);
        let entry = shard.slots.get_mut(slot as usize).filter(|entry| entry.generation == generation)?;
        let op = entry.op.take()?;
        entry.generation = generation.wrapping_add(1);
        shard.free.push(slot);
        self.count.fetch_sub(1, Ordering::Relaxed);
        Some(op)
    }

    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// All reads in flight, oldest first.
    pub(crate) fn outstanding(&self) -> Vec<OutstandingRead> {
        let mut reads = Vec::new();
        for number in 0..self.shards.len() {
            let shard = self.lock(number);
            reads.extend(shard.slots.iter().filter_map(|slot| slot.op.as_ref()).map(|op| OutstandingRead {
                path: op.fork.path_of(op.first_block()),
                block: op.first_block(),
                blocks: op.frames.len() as u32,
                age: op.started.elapsed(),
                since: op.started,
            }));
        }
        reads.sort_by_key(|read| std::cmp::Reverse(read.age));
        reads
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use heapscan_io::OpenFileOptions;

    #[test]
    fn late_and_duplicate_completions_find_nothing() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(8192 * 4).unwrap();
        let fork = Arc::new(RelationFork::open(file.path(), 8192, 131072, OpenFileOptions::default()).unwrap());
        let op = |block: u64| Op {
            fork: Arc::clone(&fork),
            tag: 5 << 32 | block,
            frames: FrameList::from_slice(&[0]),
            booked: Arc::default(),
            started: Instant::now(),
        };
        let table = InFlight::new();
        let (first, _) = table.insert(3, op(1));
        let (second, in_flight) = table.insert(4, op(2));
        assert_eq!(in_flight, 2);
        assert_eq!(table.outstanding()[0].block, 1);
        assert_eq!(table.take(first).unwrap().first_block(), 1);
        assert!(table.take(first).is_none(), "duplicate");
        let (third, _) = table.insert(3, op(3));
        assert_ne!(first, third);
        assert_eq!(first >> 32, third >> 32, "same slot");
        assert!(table.take(first).is_none(), "late");
        assert!(table.take(u64::MAX).is_none(), "never given out");
        assert_eq!(table.take(third).unwrap().first_block(), 3);
        assert_eq!(table.take(second).unwrap().first_block(), 2);
        assert_eq!((table.count(), table.outstanding().len()), (0, 0));
    }
}
