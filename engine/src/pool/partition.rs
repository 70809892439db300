//! Frames and their descriptors, in partitions that each have a clock hand of their own.

use super::state::{FrameCore, MAX_USAGE, Tick, Word};
use crate::{Error, ErrorKind, Result};
use crossbeam_utils::CachePadded;
use heapscan_io::Segment;
use heapscan_placement::memory::{MapError, MapOptions, MapReport, Mapping, PageKind};
use std::{
    ptr::NonNull,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering},
    },
};

/// Maps frame memory. Explicit huge pages are populated at once, because only then others can take their place when they
/// cannot be had after all; other memory is populated when it is first used.
fn map(len: usize, options: MapOptions) -> Result<Mapping> {
    let mut memory = Mapping::new(len, options).map_err(refused)?;
    if matches!(memory.report().used, PageKind::Huge(_)) {
        memory.populate_all().map_err(refused)?;
    }
    Ok(memory)
}

fn refused(error: MapError) -> Error {
    Error::new(ErrorKind::Limit, error.to_string())
        .with_hint("lower shared_buffers, or raise the memory limit of the process or container")
}

/// No frame: the end of a hash chain, an empty slot.
pub(crate) const NO_FRAME: u32 = u32::MAX;

/// Frames are populated in pieces of this size, before the first use of each.
const POPULATE_BYTES: usize = 2 << 20;

/// What is known of one frame. A cache line of its own, so that pins of neighbours do not disturb each other.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Descriptor {
    pub(crate) core: FrameCore,
    /// Next frame in the hash chain. Written under the stripe's mutex only.
    pub(crate) next: AtomicU32,
    /// Lane of the read in flight. Written by the holder of the claim, so stable for holders of a pin.
    pub(crate) lane: AtomicU32,
}

impl Descriptor {
    fn new() -> Self {
        Self { core: FrameCore::new(), next: AtomicU32::new(NO_FRAME), lane: AtomicU32::new(0) }
    }
}

/// A frame that was claimed, and what it was before.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Victim {
    pub(crate) frame: u32,
    pub(crate) was: Word,
}

/// A contiguous piece of the pool: memory, descriptors and the clock hand over them.
#[derive(Debug)]
pub(crate) struct Partition {
    first: u32,
    descriptors: Box<[Descriptor]>,
    memory: Mapping,
    block_size: usize,
    hand: CachePadded<AtomicU64>,
    populated: Box<[AtomicBool]>,
    populate: Mutex<()>,
}

impl Partition {
    fn new(first: u32, count: u32, block_size: u32, options: MapOptions) -> Result<Self> {
        let memory = map(count as usize * block_size as usize, options)?;
        let chunks = memory.len().div_ceil(POPULATE_BYTES);
        Ok(Self {
            first,
            descriptors: (0..count).map(|_| Descriptor::new()).collect(),
            memory,
            block_size: block_size as usize,
            hand: CachePadded::new(AtomicU64::new(0)),
            populated: (0..chunks).map(|_| AtomicBool::new(false)).collect(),
            populate: Mutex::new(()),
        })
    }

    fn len(&self) -> usize {
        self.descriptors.len()
    }

    fn offset(&self, frame: u32) -> usize {
        (frame - self.first) as usize * self.block_size
    }

    /// Claims up to `want` frames by the clock sweep. The hand is advanced by one atomic addition for a whole run of
    /// frames, which the caller then visits alone: a fresh pool gives contiguous frames, and the hand's cache line is
    /// touched once a run. Fewer than `want` only if as many frames as there are were seen pinned one after the other, or
    /// if other threads use the frames faster than the hand can age them.
    pub(crate) fn sweep(&self, want: usize, victims: &mut Vec<Victim>) {
        let count = self.len();
        let mut missing = want.min(count);
        let mut pinned_in_a_row = 0;
        let mut visits = 0;
        while missing > 0 && pinned_in_a_row < count && visits < count * (MAX_USAGE as usize + 2) {
            visits += missing;
            let start = self.hand.fetch_add(missing as u64, Ordering::Relaxed);
            for value in start..start + missing as u64 {
                let index = (value % count as u64) as usize;
                match self.descriptors[index].core.tick() {
                    Tick::Claimed(was) => {
                        victims.push(Victim { frame: self.first + index as u32, was });
                        missing -= 1;
                        pinned_in_a_row = 0;
                    }
                    Tick::Aged => pinned_in_a_row = 0,
                    Tick::Pinned => pinned_in_a_row += 1,
                }
            }
        }
    }

    /// Makes sure that the memory of `frame` is there. Must be called, by the holder of the claim, before each read
    /// into it.
    pub(crate) fn populate(&self, frame: u32) -> Result<()> {
        let start = self.offset(frame);
        for chunk in start / POPULATE_BYTES..=(start + self.block_size - 1) / POPULATE_BYTES {
            let flag = &self.populated[chunk];
            if flag.load(Ordering::Acquire) {
                continue;
            }
            // One thread at a time, so that the kernel is not asked twice for the same two megabytes.
            let _guard = self.populate.lock().unwrap_or_else(PoisonError::into_inner);
            if !flag.load(Ordering::Acquire) {
                let from = chunk * POPULATE_BYTES;
                self.memory.populate(from..(from + POPULATE_BYTES).min(self.memory.len())).map_err(refused)?;
                flag.store(true, Ordering::Release);
            }
        }
        Ok(())
    }
}

#[allow(unsafe_code, reason = "address arithmetic within the mapping")]
mod fence {
    use super::*;

    impl Partition {
        /// Address of the first byte of `frame`.
        pub(crate) fn address(&self, frame: u32) -> NonNull<u8> {
            let offset = self.offset(frame);
            assert!(offset + self.block_size <= self.memory.len(), "frame {frame} is not in this partition");
            // SAFETY: offset .. offset + block_size is within the mapping, by the assertion.
            unsafe { self.memory.as_ptr().add(offset) }
        }
    }
}

/// All frames of the pool.
#[derive(Debug)]
pub(crate) struct Frames {
    partitions: Vec<Partition>,
    per_partition: u32,
    count: u32,
    block_size: u32,
    /// Where the next claim begins, so that all partitions are worn alike.
    next: CachePadded<AtomicUsize>,
}

impl Frames {
    pub(crate) fn new(count: u32, partitions: u32, block_size: u32, options: MapOptions) -> Result<Self> {
        let per_partition = count.div_ceil(partitions.clamp(1, count));
        let partitions = (0..count)
            .step_by(per_partition as usize)
            .map(|first| Partition::new(first, per_partition.min(count - first), block_size, options))
            .collect::<Result<Vec<_>>>()?;
        Ok(Self { partitions, per_partition, count, block_size, next: CachePadded::default() })
    }

    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    pub(crate) fn block_size(&self) -> usize {
        self.block_size as usize
    }

    /// What memory each partition got.
    pub(crate) fn memory_reports(&self) -> impl Iterator<Item = &MapReport> {
        self.partitions.iter().map(|p| p.memory.report())
    }

    /// Makes all memory resident.
    pub(crate) fn populate_all(&self) -> Result<()> {
        (0..self.count).try_for_each(|frame| self.partition_of(frame).populate(frame))
    }

    /// All frame memory, one piece a partition.
    pub(crate) fn memory(&self) -> Vec<Segment> {
        self.partitions.iter().map(|p| Segment { ptr: p.memory.as_ptr(), len: p.memory.len() }).collect()
    }

    /// How many partitions have their memory on reserved huge pages.
    pub(crate) fn huge_partitions(&self) -> usize {
        self.partitions.iter().filter(|p| matches!(p.memory.report().used, PageKind::Huge(_))).count()
    }

    pub(crate) fn partitions(&self) -> &[Partition] {
        &self.partitions
    }

    /// Claims up to `want` frames, all from one partition if it has them, from the others if not. Partitions take turns:
    /// pages are evicted at the same age everywhere, as in an undivided pool.
    pub(crate) fn sweep(&self, want: usize, victims: &mut Vec<Victim>) {
        let count = self.partitions.len();
        let first = if count == 1 { 0 } else { self.next.fetch_add(1, Ordering::Relaxed) % count };
        for i in 0..count {
            if victims.len() < want {
                self.partitions[(first + i) % count].sweep(want - victims.len(), victims);
            }
        }
    }

    pub(crate) fn partition_of(&self, frame: u32) -> &Partition {
        if self.partitions.len() == 1 {
            return &self.partitions[0];
        }
        &self.partitions[(frame / self.per_partition) as usize]
    }

    pub(crate) fn descriptor(&self, frame: u32) -> &Descriptor {
        let partition = self.partition_of(frame);
        &partition.descriptors[(frame - partition.first) as usize]
    }

    pub(crate) fn address(&self, frame: u32) -> NonNull<u8> {
        self.partition_of(frame).address(frame)
    }

    /// Whether the memory of `b` follows that of `a`.
    pub(crate) fn adjacent(&self, a: u32, b: u32) -> bool {
        b == a + 1 && std::ptr::eq(self.partition_of(a), self.partition_of(b))
    }
}

#[cfg(test)]
mod tests {
    use super::{super::state::FrameState, *};
    use heapscan_placement::memory::HugePages;

    fn frames(count: u32, partitions: u32) -> Frames {
        Frames::new(count, partitions, 8192, MapOptions { huge_pages: HugePages::Off, ..MapOptions::default() })
            .unwrap()
    }

    fn sweep(frames: &Frames, want: usize) -> Vec<u32> {
        let mut victims = Vec::new();
        frames.partitions()[0].sweep(want, &mut victims);
        victims.iter().map(|v| v.frame).collect()
    }

    #[test]
    fn a_fresh_pool_gives_contiguous_frames_and_never_one_twice() {
        let frames = frames(16, 1);
        assert_eq!(sweep(&frames, 6), [0, 1, 2, 3, 4, 5]);
        assert_eq!(sweep(&frames, 6), [6, 7, 8, 9, 10, 11]);
        let mut rest = sweep(&frames, 16);
        rest.sort_unstable();
        assert_eq!(rest, [12, 13, 14, 15], "only what is left, and it ends");
        assert_eq!(sweep(&frames, 1), [0u32; 0]);
    }

    #[test]
    fn usage_counts_are_worn_down_before_a_frame_is_taken() {
        let frames = frames(4, 1);
        for frame in sweep(&frames, 4) {
            let core = &frames.descriptor(frame).core;
            core.begin_io(u64::from(frame));
            core.finish_io(true);
            core.unpin();
        }
        for _ in 0..3 {
            let core = &frames.descriptor(2).core;
            core.try_pin(2, 5).unwrap();
            core.unpin();
        }
        frames.descriptor(1).core.try_pin(1, 5).unwrap();
        assert_eq!(sweep(&frames, 1), [0]);
        let order: Vec<u32> = (0..2).flat_map(|_| sweep(&frames, 1)).collect();
        assert_eq!(order, [3, 2], "the hot frame goes last, the pinned one never");
        assert_eq!(frames.descriptor(1).core.load().state(), FrameState::Valid);
        assert!(sweep(&frames, 4).is_empty());
    }

    #[test]
    fn partitions_take_turns_and_help_out() {
        let frames = frames(12, 3);
        let take = |want| {
            let mut victims = Vec::new();
            frames.sweep(want, &mut victims);
            victims.iter().map(|v| v.frame).collect::<Vec<_>>()
        };
        assert_eq!([take(2), take(2), take(2)], [[0, 1], [4, 5], [8, 9]]);
        assert_eq!(take(4), [2, 3, 6, 7], "the rest comes from the next one");
        assert_eq!(take(4), [10, 11]);
    }

    #[test]
    fn frames_find_their_partition() {
        let frames = frames(10, 3);
        let sizes: Vec<usize> = frames.partitions().iter().map(Partition::len).collect();
        assert_eq!(sizes, [4, 4, 2]);
        assert!(frames.adjacent(2, 3));
        assert!(!frames.adjacent(3, 4), "other mapping");
        for frame in 0..10 {
            frames.partition_of(frame).populate(frame).unwrap();
            frames.address(frame);
        }
        assert_eq!(frames.huge_partitions(), 0);
    }
}
