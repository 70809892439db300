//! Which thread scans which blocks: runs of contiguous blocks, handed out one after the other, shorter near the end.
//!
//! The sizes follow PostgreSQL's parallel sequential scan (`table_block_parallelscan_nextpage`): runs of up to 8192 blocks,
//! about 2048 for a relation, which are halved whenever fewer than 64 of them are left. Unlike there, a run is never shorter
//! than one combined read while the relation is large enough: runs of one block would make reads of one block.

use crossbeam_utils::CachePadded;
use std::{
    collections::VecDeque,
    ops::Range,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
};

/// PostgreSQL's `PARALLEL_SEQSCAN_MAX_CHUNK_SIZE`.
const MAX_BLOCKS: u32 = 8192;

/// PostgreSQL's `PARALLEL_SEQSCAN_NCHUNKS`.
const CHUNKS: u32 = 2048;

/// PostgreSQL's `PARALLEL_SEQSCAN_RAMPDOWN_CHUNKS`.
const RAMP_DOWN: u32 = 64;

/// A helper leaves a region alone whose own threads have fewer than this many of the smallest chunks left each: they are
/// through before the helper is, and the blocks stay on their node.
const WORTH_HELPING: u32 = 2;

/// A run of blocks for one thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Chunk {
    /// Its place among the chunks, where these are handed out in block order.
    pub(crate) seq: u32,
    /// Its blocks.
    pub(crate) blocks: Range<u32>,
}

/// How long chunks are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sizes {
    pub(crate) least: u32,
    pub(crate) most: u32,
}

impl Sizes {
    /// For a scan of `blocks` blocks by `threads` threads in any order. `combine`: blocks of the largest read.
    pub(crate) fn for_any_order(blocks: u32, threads: u32, combine: u32) -> Self {
        let most = (blocks / CHUNKS).max(1).checked_next_power_of_two().unwrap_or(MAX_BLOCKS).min(MAX_BLOCKS);
        let least = combine.min(blocks / (4 * threads.max(1))).max(1);
        Self { least, most: most.max(least) }
    }

    /// For a scan whose results are wanted in block order: those of a chunk wait for those of the chunks before it, so
    /// chunks have `wanted` blocks at most.
    pub(crate) fn for_block_order(blocks: u32, threads: u32, combine: u32, wanted: u32) -> Self {
        let Self { least, .. } = Self::for_any_order(blocks, threads, combine);
        let share = blocks / threads.max(1).saturating_mul(RAMP_DOWN);
        Self { least, most: share.clamp(least, wanted.max(least)) }
    }

    /// Blocks of the next chunk when `left` are left.
    fn next(self, left: u32) -> u32 {
        let share = left / RAMP_DOWN;
        let share = if share == 0 { 0 } else { 1 << share.ilog2() };
        share.clamp(self.least, self.most).min(left)
    }
}

/// The blocks that have their home on one node.
#[derive(Debug)]
struct Region {
    /// Blocks that were not handed out.
    left: Mutex<Range<u32>>,
    /// Threads at home here that have not ended.
    threads: AtomicU32,
}

/// Hands out the blocks of a range, each once, to any number of threads.
#[derive(Debug)]
pub(crate) struct ChunkAllocator {
    regions: Box<[CachePadded<Region>]>,
    sizes: Sizes,
    /// Chunks that were handed out.
    count: AtomicU32,
    /// No block from here on is wanted any more: an error was met here.
    bound: AtomicU32,
}

impl ChunkAllocator {
    /// The blocks in equal parts, a region each for `homes` homes.
    pub(crate) fn new(blocks: Range<u32>, homes: u32, sizes: Sizes) -> Self {
        let (count, homes) = (u64::from(blocks.end.saturating_sub(blocks.start)), homes.max(1));
        // Rounded to full reads, so that no read is cut where homes meet.
        let edge = |home: u32| match home {
            0 => blocks.start,
            _ if home == homes => blocks.end.max(blocks.start),
            _ => {
                let offset = count * u64::from(home) / u64::from(homes);
                blocks.start + (offset - offset % u64::from(sizes.least)) as u32
            }
        };
        let region = |home| {
            CachePadded::new(Region { left: Mutex::new(edge(home)..edge(home + 1)), threads: AtomicU32::new(0) })
        };
        Self {
            regions: (0..homes).map(region).collect(),
            sizes,
            count: AtomicU32::new(0),
            bound: AtomicU32::new(u32::MAX),
        }
    }

    /// A thread at home in the first region of `nearest`; it takes blocks there, then elsewhere in that order.
    pub(crate) fn enter(self: &Arc<Self>, nearest: &[u32]) -> Seat {
        let regions: Vec<usize> = nearest.iter().map(|&r| r as usize).filter(|&r| r < self.regions.len()).collect();
        let regions = if regions.is_empty() { (0..self.regions.len()).collect() } else { regions };
        self.regions[regions[0]].threads.fetch_add(1, Ordering::AcqRel);
        Seat { allocator: Arc::clone(self), regions }
    }

    /// An error was met at `block`: what lies behind it is not wanted any more.
    pub(crate) fn stop_at(&self, block: u32) {
        self.bound.fetch_min(block, Ordering::AcqRel);
    }

    /// No block is wanted any more.
    pub(crate) fn stop(&self) {
        self.stop_at(0);
    }

    /// The first block that is not wanted any more.
    pub(crate) fn bound(&self) -> u32 {
        self.bound.load(Ordering::Acquire)
    }

    fn region(&self, index: usize) -> MutexGuard<'_, Range<u32>> {
        // Consistent whenever it is released, also by a panic.
        self.regions[index].left.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next chunk from the front of a region, for its own threads.
    fn own(&self, index: usize) -> Option<Chunk> {
        let mut left = self.region(index);
        left.end = left.end.min(self.bound().max(left.start));
        if left.is_empty() {
            return None;
        }
        let size = self.sizes.next(left.end - left.start);
        let blocks = left.start..left.start + size;
        left.start += size;
        // Counted under the lock: with one region the numbers follow the blocks.
        let seq = self.count.fetch_add(1, Ordering::Relaxed);
        Some(Chunk { seq, blocks })
    }

    /// A chunk from the back of a region, for a thread from elsewhere: the own threads go on without a gap.
    fn help(&self, index: usize) -> Option<Chunk> {
        let mut left = self.region(index);
        left.end = left.end.min(self.bound().max(left.start));
        let threads = self.regions[index].threads.load(Ordering::Acquire);
        let count = left.end - left.start;
        if left.is_empty() || count < threads.saturating_mul(self.sizes.least).saturating_mul(WORTH_HELPING) {
            return None;
        }
        let size = self.sizes.next(count);
        let blocks = left.end - size..left.end;
        left.end -= size;
        let seq = self.count.fetch_add(1, Ordering::Relaxed);
        Some(Chunk { seq, blocks })
    }
}

/// A thread's place at the allocator.
#[derive(Debug)]
pub(crate) struct Seat {
    allocator: Arc<ChunkAllocator>,
    /// Regions, its own first.
    regions: Vec<usize>,
}

impl Seat {
    fn next(&self) -> Option<Chunk> {
        let (own, others) = self.regions.split_first()?;
        self.allocator.own(*own).or_else(|| others.iter().find_map(|&region| self.allocator.help(region)))
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        if let Some(&own) = self.regions.first() {
            self.allocator.regions[own].threads.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

/// The chunks that one thread was given and has not ended, in the order in which it gets their blocks. Shared between the
/// iterator in its read stream, which looks ahead, and the thread.
#[derive(Clone, Debug, Default)]
pub(crate) struct Assigned(Arc<Mutex<VecDeque<Chunk>>>);

impl Assigned {
    fn lock(&self) -> MutexGuard<'_, VecDeque<Chunk>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of the chunk that `block` is in, if it was assigned.
    pub(crate) fn seq_of(&self, block: u32) -> Option<u32> {
        self.lock().iter().find(|chunk| chunk.blocks.contains(&block)).map(|chunk| chunk.seq)
    }

    /// The first chunk that has not ended.
    pub(crate) fn first(&self) -> Option<Chunk> {
        self.lock().front().cloned()
    }

    /// Takes out the first chunk, if it ended before the one numbered `current` (which is assigned too) began; with `None`
    /// any.
    pub(crate) fn take_ended(&self, current: Option<u32>) -> Option<Chunk> {
        let mut chunks = self.lock();
        if current.is_some_and(|seq| chunks.front().is_none_or(|chunk| chunk.seq == seq)) {
            return None;
        }
        chunks.pop_front()
    }
}

/// The blocks of the chunks that one thread takes, for its read stream.
#[derive(Debug)]
pub(crate) struct ChunkBlocks {
    seat: Seat,
    assigned: Assigned,
    current: Range<u32>,
}

impl ChunkBlocks {
    pub(crate) fn new(seat: Seat, assigned: Assigned) -> Self {
        Self { seat, assigned, current: 0..0 }
    }
}

impl Iterator for ChunkBlocks {
    type Item = u32;

    #[inline]
    fn next(&mut self) -> Option<u32> {
        loop {
            match self.current.next() {
                Some(block) if block < self.seat.allocator.bound() => return Some(block),
                // An earlier block was at fault: what is left of this chunk is not wanted.
                Some(_) => self.current = 0..0,
                None => {
                    let chunk = self.seat.next()?;
                    self.current = chunk.blocks.clone();
                    self.assigned.lock().push_back(chunk);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn allocator(blocks: Range<u32>, homes: u32, sizes: Sizes) -> Arc<ChunkAllocator> {
        Arc::new(ChunkAllocator::new(blocks, homes, sizes))
    }

    #[test]
    fn sizes_are_those_of_postgresql() {
        let large = Sizes::for_any_order(u32::MAX - 1, 8, 16);
        assert_eq!(large, Sizes { least: 16, most: 8192 });
        assert_eq!(Sizes::for_any_order(83_334, 2, 16).most, 64);
        assert_eq!(Sizes::for_any_order(1640, 2, 16), Sizes { least: 16, most: 16 });
        // Small relations are shared out all the same.
        assert_eq!(Sizes::for_any_order(12, 3, 16), Sizes { least: 1, most: 1 });
        assert_eq!(Sizes::for_any_order(0, 0, 0), Sizes { least: 1, most: 1 });
        assert_eq!(Sizes::for_block_order(1 << 20, 2, 16, 64), Sizes { least: 16, most: 64 });
        assert_eq!(Sizes::for_block_order(40, 8, 16, 64), Sizes { least: 1, most: 1 });
    }

    #[test]
    fn chunks_shrink_near_the_end() {
        let sizes = Sizes { least: 16, most: 1024 };
        let all = allocator(0..200_000, 1, sizes);
        let seat = all.enter(&[0]);
        let lengths: Vec<u32> = std::iter::from_fn(|| seat.next()).map(|c| c.blocks.end - c.blocks.start).collect();
        assert_eq!(lengths[0], 1024);
        assert!(lengths.windows(2).all(|pair| pair[1] <= pair[0]), "{lengths:?}");
        assert!(*lengths.last().unwrap() <= 16);
        // At each size but the last there are about as many as the ramp-down says.
        let of = |size| lengths.iter().filter(|&&l| l == size).count();
        assert!((31..=66).contains(&of(256)), "{}", of(256));
    }

    #[test]
    fn helpers_leave_alone_what_does_not_pay() {
        let sizes = Sizes { least: 10, most: 10 };
        let all = allocator(0..200, 2, sizes);
        let (here, there) = (all.enter(&[0, 1]), all.enter(&[1, 0]));
        // The other one's first: from the back, while it has two chunks or more.
        let own: Vec<_> = (0..10).map(|_| here.next().unwrap().blocks).collect();
        assert_eq!(own.last(), Some(&(90..100)));
        assert_eq!(here.next().unwrap().blocks, 190..200);
        assert_eq!(there.next().unwrap().blocks, 100..110);
        let helped = std::iter::from_fn(|| here.next()).count();
        assert_eq!(helped, 7);
        assert_eq!(there.next().unwrap().blocks, 110..120);
        assert!(there.next().is_none());
        // Nobody is at home there: always.
        let all = allocator(0..200, 2, sizes);
        let here = all.enter(&[0, 1]);
        assert_eq!(std::iter::from_fn(|| here.next()).count(), 20);
        // Nobody is at home there any more.
        let all = allocator(0..200, 2, sizes);
        drop(all.enter(&[1, 0]));
        let here = all.enter(&[0, 1]);
        assert_eq!(std::iter::from_fn(|| here.next()).count(), 20);
    }

    #[test]
    fn behind_an_error_nothing_is_handed_out() {
        let all = allocator(0..1000, 1, Sizes { least: 16, most: 16 });
        let assigned = Assigned::default();
        let mut blocks = ChunkBlocks::new(all.enter(&[0]), assigned.clone());
        assert_eq!(blocks.next(), Some(0));
        all.stop_at(40);
        all.stop_at(50);
        assert_eq!(blocks.by_ref().collect::<Vec<_>>(), (1..40).collect::<Vec<_>>());
        assert_eq!(assigned.first().unwrap().seq, 0);
        assert_eq!(assigned.seq_of(39), Some(2));
        assert_eq!(assigned.take_ended(Some(0)), None);
        assert_eq!(assigned.take_ended(Some(2)).unwrap().seq, 0);
        assert_eq!(assigned.take_ended(None).unwrap().seq, 1);
        let all = allocator(10..20, 1, Sizes { least: 1, most: 1 });
        all.stop();
        assert!(all.enter(&[0]).next().is_none());
    }

    proptest! {
        /// Whatever the range, the regions, the sizes and the order in which threads come: every block exactly once, and
        /// with one region in ascending chunks.
        #[test]
        fn every_block_once(
            start in 0u32..1000,
            count in 0u32..5000,
            homes in 1u32..6,
            threads in 1u32..9,
            combine in 1u32..40,
            ordered in any::<bool>(),
            turns in prop::collection::vec(0usize..8, 1..200),
        ) {
            let sizes = match ordered {
                true => Sizes::for_block_order(count, threads, combine, 64),
                false => Sizes::for_any_order(count, threads, combine),
            };
            let all = allocator(start..start + count, homes, sizes);
            // Rotated preferences: a home each, the others behind it.
            let seat = |thread: u32| {
                let order: Vec<u32> = (0..homes).map(|i| (thread + i) % homes).collect();
                all.enter(&order)
            };
            let mut seats: Vec<Option<Seat>> = (0..threads).map(|thread| Some(seat(thread))).collect();
            let mut chunks = Vec::new();
            let mut turns = turns.into_iter().cycle();
            while seats.iter().any(Option::is_some) {
                let turn = turns.next().unwrap_or(0) % seats.len();
                // Whoever is not at turn for long comes at last.
                let index = (0..seats.len()).map(|i| (turn + i) % seats.len()).find(|&i| seats[i].is_some()).unwrap();
                match seats[index].as_ref().and_then(Seat::next) {
                    Some(chunk) => chunks.push(chunk),
                    None => seats[index] = None,
                }
            }
            if homes == 1 {
                prop_assert!(chunks.windows(2).all(|p| p[0].seq < p[1].seq && p[0].blocks.end == p[1].blocks.start));
            }
            let mut blocks: Vec<u32> = chunks.iter().flat_map(|chunk| chunk.blocks.clone()).collect();
            blocks.sort_unstable();
            prop_assert_eq!(blocks, (start..start + count).collect::<Vec<_>>());
            let mut numbers: Vec<u32> = chunks.iter().map(|chunk| chunk.seq).collect();
            numbers.sort_unstable();
            prop_assert_eq!(numbers, (0..chunks.len() as u32).collect::<Vec<_>>());
        }
    }

    #[test]
    fn every_block_once_with_threads() {
        for homes in [1, 3] {
            let all = allocator(7..100_007, homes, Sizes::for_any_order(100_000, 4, 16));
            let parts: Vec<Vec<u32>> = std::thread::scope(|scope| {
                let threads: Vec<_> = (0..4)
                    .map(|i| {
                        let all = &all;
                        scope.spawn(move || {
                            let order: Vec<u32> = (0..homes).map(|r| (i + r) % homes).collect();
                            ChunkBlocks::new(all.enter(&order), Assigned::default()).collect()
                        })
                    })
                    .collect();
                threads.into_iter().map(|t| t.join().unwrap()).collect()
            });
            let mut blocks: Vec<u32> = parts.into_iter().flatten().collect();
            blocks.sort_unstable();
            assert_eq!(blocks, (7..100_007).collect::<Vec<_>>(), "{homes} regions");
        }
    }
}
