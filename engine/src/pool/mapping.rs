//! Which frame holds which block: a hash table with chains through the descriptors.
//!
//! Lookups take no lock and may miss a block that is there (a chain may change under them): a miss is therefore
//! confirmed by [`MappingTable::insert`], which looks again under the stripe's mutex. A hit is certain, because the tag
//! is compared once the frame is pinned.

use super::{frames::Frames, partition::NO_FRAME, placement::Placement, slab::Slab, state::Word};
use crate::Result;
use crossbeam_utils::CachePadded;
use std::sync::{
    Mutex, MutexGuard, PoisonError,
    atomic::{AtomicU32, Ordering},
};

/// Blocks of a relation are hashed in groups of this many, which share a cache line of bucket heads.
const GROUP: u32 = 16;

/// A lock-free walk ends here; what lies further down the chain is found under the mutex.
const MAX_WALK: usize = 64;

const MAX_STRIPES: usize = 1024;

/// What became of an insertion.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Inserted {
    /// The frame now stands for the block, in state IN_IO with two pins (of the read and of the caller).
    Done,
    /// Another frame stands for the block; it is pinned for the caller.
    Exists(u32, Word),
}

#[derive(Debug)]
pub(crate) struct MappingTable {
    /// Two a frame, 4 bytes each. All threads look everywhere in it, so its pages are on all nodes in turn; the chains go
    /// through the descriptors, which lie on the nodes of their frames.
    heads: Slab<AtomicU32>,
    stripes: Box<[CachePadded<Mutex<()>>]>,
}

impl MappingTable {
    pub(crate) fn new(frames: u32, placement: &mut Placement) -> Result<Self> {
        let buckets = (frames as usize * 2).next_power_of_two().max(GROUP as usize);
        let stripes = (buckets / GROUP as usize).min(MAX_STRIPES);
        Ok(Self {
            heads: placement.shared_by_all(buckets, || AtomicU32::new(NO_FRAME))?,
            stripes: (0..stripes).map(|_| CachePadded::new(Mutex::new(()))).collect(),
        })
    }

    /// The bucket of a tag. Sixteen neighbouring blocks have neighbouring buckets, one cache line; within the line they
    /// are permuted, so that scans of every sixteenth block use all of it.
    fn bucket(&self, tag: u64) -> usize {
        let hash = (tag / u64::from(GROUP)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let line = (hash >> 32) as usize * GROUP as usize;
        let within = ((tag ^ (hash >> 28)) % u64::from(GROUP)) as usize;
        (line | within) & (self.heads.len() - 1)
    }

    fn lock(&self, bucket: usize) -> MutexGuard<'_, ()> {
        let stripe = (bucket / GROUP as usize) & (self.stripes.len() - 1);
        self.stripes[stripe].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn walk<'a>(&'a self, frames: &'a Frames, bucket: usize) -> impl Iterator<Item = u32> + 'a {
        let mut frame = self.heads[bucket].load(Ordering::Acquire);
        std::iter::from_fn(move || {
            let this = (frame != NO_FRAME).then_some(frame)?;
            frame = frames.descriptor(this).next.load(Ordering::Acquire);
            Some(this)
        })
    }

    /// Finds and pins the frame of `tag`, without a lock.
    pub(crate) fn lookup(&self, frames: &Frames, tag: u64, usage_cap: u64) -> Option<(u32, Word)> {
        for frame in self.walk(frames, self.bucket(tag)).take(MAX_WALK) {
            let core = &frames.descriptor(frame).core;
            if core.tag() == tag
                && let Some(word) = core.try_pin(tag, usage_cap)
            {
                return Some((frame, word));
            }
        }
        None
    }

    /// Whether a frame stands for `tag` just now, without a lock and without pinning it: a hint.
    pub(crate) fn probably_contains(&self, frames: &Frames, tag: u64) -> bool {
        self.walk(frames, self.bucket(tag)).take(MAX_WALK).any(|frame| {
            let core = &frames.descriptor(frame).core;
            core.tag() == tag && core.load().is_mapped()
        })
    }

    /// Lets the claimed `frame` stand for `tag`, unless another one does.
    pub(crate) fn insert(&self, frames: &Frames, tag: u64, frame: u32, usage_cap: u64) -> Inserted {
        let bucket = self.bucket(tag);
        let _guard = self.lock(bucket);
        for other in self.walk(frames, bucket) {
            let core = &frames.descriptor(other).core;
            // A frame with this tag that cannot be pinned was claimed by somebody who waits for our mutex to take it
            // out of the chain: the block is not here any more.
            if core.tag() == tag
                && let Some(word) = core.try_pin(tag, usage_cap)
            {
                return Inserted::Exists(other, word);
            }
        }
        let descriptor = frames.descriptor(frame);
        descriptor.core.begin_io(tag);
        descriptor.next.store(self.heads[bucket].load(Ordering::Relaxed), Ordering::Release);
        self.heads[bucket].store(frame, Ordering::Release);
        Inserted::Done
    }

    /// Takes `frame` out of the chain of `tag`, if it is there. Only for holders of the claim, or of the pin of the read.
    pub(crate) fn remove(&self, frames: &Frames, tag: u64, frame: u32) {
        let bucket = self.bucket(tag);
        let _guard = self.lock(bucket);
        let next = |frame: u32| &frames.descriptor(frame).next;
        let mut link = &self.heads[bucket];
        loop {
            match link.load(Ordering::Relaxed) {
                NO_FRAME => return,
                this if this == frame => {
                    // `next` of the removed frame stays: somebody may stand on it.
                    link.store(next(frame).load(Ordering::Relaxed), Ordering::Release);
                    return;
                }
                this => link = next(this),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::{NumaOptions, PoolConfig, frames};
    use std::collections::HashSet;

    fn setup(count: u32) -> (Frames, MappingTable) {
        let mut config = PoolConfig::new(4096);
        config.numa = NumaOptions::off();
        let table = MappingTable::new(count, &mut Placement::here(&config).unwrap()).unwrap();
        (frames::for_tests(count, 1, 4096), table)
    }

    fn put(frames: &Frames, table: &MappingTable, tag: u64, frame: u32) -> Inserted {
        frames.descriptor(frame).core.try_claim(0).unwrap();
        table.insert(frames, tag, frame, 5)
    }

    #[test]
    fn finds_what_was_inserted_and_not_what_was_removed() {
        let (frames, table) = setup(256);
        for frame in 0..256 {
            assert!(matches!(put(&frames, &table, 1 << 32 | u64::from(frame), frame), Inserted::Done));
        }
        for frame in 0..256u32 {
            let tag = 1 << 32 | u64::from(frame);
            assert_eq!(table.lookup(&frames, tag, 5).map(|(f, _)| f), Some(frame));
            assert!(table.probably_contains(&frames, tag));
            assert_eq!(table.lookup(&frames, 2 << 32 | u64::from(frame), 5), None);
            if frame % 2 == 0 {
                table.remove(&frames, tag, frame);
                table.remove(&frames, tag, frame);
            }
        }
        for frame in 0..256u32 {
            let found = table.lookup(&frames, 1 << 32 | u64::from(frame), 5).is_some();
            assert_eq!(found, frame % 2 == 1);
        }
    }

    #[test]
    fn a_block_has_one_frame() {
        let (frames, table) = setup(16);
        assert!(matches!(put(&frames, &table, 7, 0), Inserted::Done));
        let Inserted::Exists(frame, word) = put(&frames, &table, 7, 1) else { panic!("inserted twice") };
        assert_eq!((frame, word.pins()), (0, 3));
        // The loser of a race with an eviction: the old frame is claimed but still in the chain.
        let core = &frames.descriptor(0).core;
        core.finish_io(true);
        core.unpin();
        core.unpin();
        core.try_claim(5).unwrap();
        assert!(matches!(table.insert(&frames, 7, 1, 5), Inserted::Done));
        table.remove(&frames, 7, 0);
        assert_eq!(table.lookup(&frames, 7, 5).map(|(f, _)| f), Some(1));
    }

    #[test]
    fn neighbours_and_strides_spread_over_buckets() {
        let (_, table) = setup(4096);
        for stride in [1u64, 16, 128] {
            let used: HashSet<usize> = (0..4096).map(|i| table.bucket(3 << 32 | (i * stride))).collect();
            assert!(used.len() > 2048, "stride {stride} uses {} buckets of 8192", used.len());
        }
        let line: HashSet<usize> = (0..16).map(|i| table.bucket(3 << 32 | i) / 16).collect();
        assert_eq!(line.len(), 1);
    }
}
