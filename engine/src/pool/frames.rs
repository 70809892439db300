//! All frames of the pool. Which partition a frame belongs to, and so which node, follows from its number.

use super::{
    balance::Balance,
    chooser::Homes,
    partition::{Descriptor, Partition},
    placement::Placement,
};
use crate::{Error, ErrorKind, Result};
use heapscan_io::Segment;
use heapscan_placement::memory::{MapReport, PageKind};
use std::ptr::NonNull;

/// All frames.
///
/// The number of a frame has the partition above `shift` and the frame's place in the partition below. Partitions may be
/// of different sizes, so numbers have gaps; [`ordinal`](Self::ordinal) has none.
#[derive(Debug)]
pub(crate) struct Frames {
    partitions: Box<[Partition]>,
    homes: Homes,
    balance: Balance,
    shift: u32,
    count: u32,
    block_size: u32,
}

impl Frames {
    /// Takes over the memory of a placement.
    ///
    /// # Errors
    /// `Limit` if there are more frames than numbers, or pages cannot be had.
    pub(crate) fn new(placement: &mut Placement, block_size: u32) -> Result<Self> {
        let processors = placement.processors();
        let placed = placement.take_memory();
        let largest = placed.iter().map(|p| p.frame_count).max().unwrap_or(0).max(1);
        // Always one bit less than a word, so that no frame has the number that stands for none.
        let shift = largest.next_power_of_two().trailing_zeros();
        let numbers = placed.len() as u64 * (1 << shift);
        if numbers > 1 << 31 {
            let message = format!("{} partitions of up to {largest} frames are too many", placed.len());
            return Err(Error::new(ErrorKind::Limit, message).with_hint("use fewer partitions"));
        }
        let partitions = (0u32..)
            .zip(placed)
            .map(|(index, placed)| Partition::new(index << shift, block_size, placed, processors))
            .collect::<Result<Box<[_]>>>()?;
        let count = partitions.iter().map(Partition::len).sum();
        let balance = placement.balance(partitions.iter().map(Partition::len).collect());
        Ok(Self { partitions, homes: Homes::new(placement.plan()), balance, shift, count, block_size })
    }

    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    pub(crate) fn block_size(&self) -> usize {
        self.block_size as usize
    }

    pub(crate) fn partitions(&self) -> &[Partition] {
        &self.partitions
    }

    /// Who is at home where.
    pub(crate) fn homes(&self) -> &Homes {
        &self.homes
    }

    /// From which partition streams take their frames.
    pub(crate) fn balance(&self) -> &Balance {
        &self.balance
    }

    /// The numbers of all frames.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = u32> + '_ {
        (0u32..).zip(&self.partitions).flat_map(move |(partition, p)| {
            let base = partition << self.shift;
            (0..p.len()).map(move |index| base | index)
        })
    }

    /// The index of the frame's partition.
    pub(crate) fn partition_index(&self, frame: u32) -> usize {
        (frame >> self.shift) as usize
    }

    pub(crate) fn partition_of(&self, frame: u32) -> &Partition {
        &self.partitions[self.partition_index(frame)]
    }

    fn index(&self, frame: u32) -> u32 {
        frame & ((1 << self.shift) - 1)
    }

    /// Which of all frames this one is, counted from 0 without gaps.
    pub(crate) fn ordinal(&self, frame: u32) -> u32 {
        let before = &self.partitions[..self.partition_index(frame)];
        before.iter().map(Partition::len).sum::<u32>() + self.index(frame)
    }

    pub(crate) fn descriptor(&self, frame: u32) -> &Descriptor {
        self.partition_of(frame).descriptor(self.index(frame))
    }

    pub(crate) fn address(&self, frame: u32) -> NonNull<u8> {
        self.partition_of(frame).address(self.index(frame))
    }

    /// Makes sure that the memory of the frame is there.
    pub(crate) fn populate(&self, frame: u32) -> Result<()> {
        self.partition_of(frame).populate(self.index(frame))
    }

    /// Makes all memory resident.
    pub(crate) fn populate_all(&self) -> Result<()> {
        self.numbers().try_for_each(|frame| self.populate(frame))
    }

    /// Whether the memory of `b` follows that of `a`.
    pub(crate) fn adjacent(&self, a: u32, b: u32) -> bool {
        b == a + 1 && self.partition_index(a) == self.partition_index(b)
    }

    /// All frame memory, one piece a partition.
    pub(crate) fn memory(&self) -> Vec<Segment> {
        self.partitions.iter().map(Partition::memory).collect()
    }

    /// What memory each partition got.
    pub(crate) fn memory_reports(&self) -> impl Iterator<Item = &MapReport> {
        self.partitions.iter().map(Partition::report)
    }

    /// How many partitions have their memory on reserved huge pages.
    pub(crate) fn huge_partitions(&self) -> usize {
        self.memory_reports().filter(|report| matches!(report.used, PageKind::Huge(_))).count()
    }
}

#[cfg(test)]
pub(super) fn for_tests(count: u32, partitions: u32, block_size: u32) -> Frames {
    use super::{NumaOptions, PoolConfig};
    let mut config = PoolConfig::new(block_size);
    config.shared_buffers = u64::from(count) * u64::from(block_size);
    config.huge_pages = heapscan_placement::memory::HugePages::Off;
    config.numa = NumaOptions::forced(partitions);
    let mut placement = Placement::here(&config).unwrap();
    placement.place().unwrap();
    Frames::new(&mut placement, block_size).unwrap()
}

#[cfg(test)]
mod tests {
    use super::{
        super::{clock::Run, state::FrameState},
        *,
    };

    fn sweep(frames: &Frames, want: usize) -> Vec<u32> {
        let (mut victims, mut run) = (Vec::new(), Run::default());
        let partition = &frames.partitions()[0];
        partition.sweep(&mut run, want, &mut victims);
        partition.clock().give_back(&mut run);
        victims.iter().map(|v| v.frame).collect()
    }

    #[test]
    fn a_fresh_pool_gives_contiguous_frames_and_never_one_twice() {
        let frames = for_tests(16, 1, 8192);
        assert_eq!(sweep(&frames, 6), [0, 1, 2, 3, 4, 5]);
        assert_eq!(sweep(&frames, 6), [6, 7, 8, 9, 10, 11]);
        let mut rest = sweep(&frames, 16);
        rest.sort_unstable();
        assert_eq!(rest, [12, 13, 14, 15], "only what is left, and it ends");
        assert_eq!(sweep(&frames, 1), [0u32; 0]);
    }

    #[test]
    fn usage_counts_are_worn_down_before_a_frame_is_taken() {
        let frames = for_tests(4, 1, 8192);
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
    fn frames_find_their_partition_by_their_number() {
        let frames = for_tests(10, 3, 8192);
        let sizes: Vec<u32> = frames.partitions().iter().map(Partition::len).collect();
        assert_eq!(sizes, [3, 3, 4]);
        let numbers: Vec<u32> = frames.numbers().collect();
        assert_eq!(numbers, [0, 1, 2, 4, 5, 6, 8, 9, 10, 11]);
        assert!(frames.adjacent(1, 2) && frames.adjacent(10, 11));
        assert!(!frames.adjacent(2, 4), "other mapping");
        for (ordinal, &frame) in (0u32..).zip(&numbers) {
            assert_eq!((frames.ordinal(frame), frames.partition_index(frame)), (ordinal, frame as usize / 4));
            frames.populate(frame).unwrap();
            frames.address(frame);
        }
        assert_eq!(frames.huge_partitions(), 0);
    }
}
