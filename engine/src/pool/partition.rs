//! One contiguous piece of the pool: frames, their descriptors on the same node, and the clock over them.

use super::{
    clock::{self, Clock, Run},
    slab::Slab,
    state::{FrameCore, Word},
};
use crate::{Error, ErrorKind, Result};
use crossbeam_utils::CachePadded;
use heapscan_io::Segment;
use heapscan_placement::{
    bind::{Placed, PlacedPartition},
    memory::{MapError, MapReport},
};
use std::{
    ptr::NonNull,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
};

pub(super) fn refused(error: MapError) -> Error {
    Error::new(ErrorKind::Limit, error.to_string())
        .with_hint("lower shared_buffers, or raise the memory limit of the process or container")
}

/// No frame: the end of a hash chain, an empty slot.
pub(crate) const NO_FRAME: u32 = u32::MAX;

/// Frames are populated in pieces of this size, before the first use of each, unless placement populated them.
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

/// What streams did to a partition. They add to it once in many victims, and when they end.
#[derive(Debug, Default)]
pub(crate) struct PartitionCounters {
    /// Frames that streams at home here asked the pool for.
    pub(crate) asked: AtomicU64,
    /// Of these, frames of this partition.
    pub(crate) local: AtomicU64,
    /// Of these, frames of other partitions.
    pub(crate) remote: AtomicU64,
    /// Frames of this partition that streams at home elsewhere took.
    pub(crate) lent: AtomicU64,
    /// Blocks that streams at home here found in the pool.
    pub(crate) hits: AtomicU64,
    /// Blocks that streams at home here read.
    pub(crate) reads: AtomicU64,
}

/// A contiguous piece of the pool.
#[derive(Debug)]
pub(crate) struct Partition {
    /// Its number, shifted to where frame numbers have it.
    base: u32,
    frames: Placed,
    descriptors: Slab<Descriptor>,
    block_size: usize,
    populated: Box<[AtomicBool]>,
    populate: Mutex<()>,
    clock: CachePadded<Clock>,
    pub(crate) counters: CachePadded<PartitionCounters>,
}

impl Partition {
    /// Takes over what was placed. Numbers of its frames begin at `base`.
    ///
    /// # Errors
    /// `Limit` if the descriptors' pages cannot be had.
    pub(crate) fn new(base: u32, block_size: u32, placed: PlacedPartition, processors: usize) -> Result<Self> {
        let PlacedPartition { frames, frame_count, descriptors } = placed;
        let chunks = if frames.populated { 0 } else { frames.mapping.len().div_ceil(POPULATE_BYTES) };
        Ok(Self {
            base,
            descriptors: Slab::new(descriptors, frame_count as usize, Descriptor::new)?,
            frames,
            block_size: block_size as usize,
            populated: (0..chunks).map(|_| AtomicBool::new(false)).collect(),
            populate: Mutex::new(()),
            clock: CachePadded::new(Clock::new(frame_count, clock::batch(frame_count, processors))),
            counters: CachePadded::default(),
        })
    }

    pub(crate) fn len(&self) -> u32 {
        self.descriptors.len() as u32
    }

    pub(crate) fn clock(&self) -> &Clock {
        &self.clock
    }

    /// The descriptor of its `index`-th frame.
    pub(crate) fn descriptor(&self, index: u32) -> &Descriptor {
        &self.descriptors[index as usize]
    }

    fn core(&self, index: u32) -> &FrameCore {
        &self.descriptors[index as usize].core
    }

    /// Claims up to `want` frames by the clock sweep.
    pub(crate) fn sweep(&self, run: &mut Run, want: usize, victims: &mut Vec<Victim>) {
        let found = |index, was| victims.push(Victim { frame: self.base | index, was });
        self.clock.sweep(|index| self.core(index), run, want, found);
    }

    /// Makes sure that the memory of its `index`-th frame is there. Must be called, by the holder of the claim, before
    /// each read into it.
    pub(crate) fn populate(&self, index: u32) -> Result<()> {
        if self.populated.is_empty() {
            return Ok(());
        }
        let start = index as usize * self.block_size;
        for chunk in start / POPULATE_BYTES..=(start + self.block_size - 1) / POPULATE_BYTES {
            let flag = &self.populated[chunk];
            if flag.load(Ordering::Acquire) {
                continue;
            }
            // One thread at a time, so that the kernel is not asked twice for the same two megabytes.
            let _guard = self.populate.lock().unwrap_or_else(PoisonError::into_inner);
            if !flag.load(Ordering::Acquire) {
                let from = chunk * POPULATE_BYTES;
                let mapping = &self.frames.mapping;
                mapping.populate(from..(from + POPULATE_BYTES).min(mapping.len())).map_err(refused)?;
                flag.store(true, Ordering::Release);
            }
        }
        Ok(())
    }

    /// Its frames' memory.
    pub(crate) fn memory(&self) -> Segment {
        Segment { ptr: self.frames.mapping.as_ptr(), len: self.frames.mapping.len() }
    }

    pub(crate) fn report(&self) -> &MapReport {
        self.frames.mapping.report()
    }

    /// The frames' memory and the descriptors', to ask where they are.
    pub(crate) fn placed(&self) -> [&Placed; 2] {
        [&self.frames, self.descriptors.placed()]
    }
}

#[allow(unsafe_code, reason = "address arithmetic within the mapping")]
mod fence {
    use super::*;

    impl Partition {
        /// Address of the first byte of its `index`-th frame.
        pub(crate) fn address(&self, index: u32) -> NonNull<u8> {
            let offset = index as usize * self.block_size;
            assert!(offset + self.block_size <= self.frames.mapping.len(), "frame {index} is not in this partition");
            // SAFETY: offset .. offset + block_size is within the mapping, by the assertion.
            unsafe { self.frames.mapping.as_ptr().add(offset) }
        }
    }
}
