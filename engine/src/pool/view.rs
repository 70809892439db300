//! Looking at a pool: its partitions, and each of its frames (what pg_buffercache and pg_buffercache_numa show).

use super::{BufferPool, FrameState, PartitionMetrics, shared::RelationId, state::NO_TAG};
use heapscan_placement::pages::{self, PageCounts};
use serde::Serialize;
use std::{io, path::PathBuf, sync::atomic::Ordering};

/// One frame, as it was when it was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct BufferInfo {
    /// Which of all frames it is, counted from 0.
    pub buffer: u32,
    /// The partition that it belongs to.
    pub partition: usize,
    /// The node on which it lies, by asking the kernel; `None` when it lies on several, on none yet, or was not asked.
    pub node: Option<u32>,
    /// The first file of the relation whose block it holds; `None` when it holds none, or the relation is gone.
    pub path: Option<PathBuf>,
    /// The block's number in its relation.
    pub block: Option<u32>,
    /// How many hold it.
    pub pins: u32,
    /// Its usage count, 0 to 5.
    pub usage_count: u32,
    /// Whether a read into it is in flight.
    pub in_io: bool,
    /// Whether somebody has validated the page.
    pub verified: bool,
}

/// Where the memory of one partition is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct PartitionPages {
    /// Its number.
    pub partition: usize,
    /// The node that it is meant to be on, if it is one.
    pub planned: Option<u32>,
    /// Pages of its frames.
    pub frames: PageCounts,
    /// Pages of its descriptors.
    pub descriptors: PageCounts,
}

impl BufferPool {
    /// What happened in each partition.
    pub fn partition_metrics(&self) -> Vec<PartitionMetrics> {
        let frames = &self.shared.frames;
        self.seats.report(frames);
        let mut used = vec![0; frames.partitions().len()];
        for frame in frames.numbers() {
            used[frames.partition_index(frame)] += u32::from(self.shared.word(frame).is_mapped());
        }
        let ages = frames.balance().eviction_ages(|p| frames.partitions()[p].clock().position());
        let load = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        let metrics = |(partition, p): (usize, &super::partition::Partition)| {
            let counters = &p.counters;
            PartitionMetrics {
                partition,
                frames: p.len(),
                used_frames: used[partition],
                asked: load(&counters.asked),
                served: load(&counters.local) + load(&counters.lent),
                local_victims: load(&counters.local),
                remote_victims: load(&counters.remote),
                passes: p.clock().passes(),
                eviction_age: ages[partition],
                hits: load(&counters.hits),
                blocks_read: load(&counters.reads),
            }
        };
        frames.partitions().iter().enumerate().map(metrics).collect()
    }

    /// Asks the kernel where the memory of each partition is; about 100 ns a page.
    ///
    /// # Errors
    /// When the kernel or a container refuses (EPERM, ENOSYS).
    pub fn partition_pages(&self) -> io::Result<Vec<PartitionPages>> {
        let partitions = self.shared.frames.partitions().iter().zip(&self.placement.partitions);
        partitions
            .map(|(partition, placed)| {
                let [frames, descriptors] = partition.placed();
                Ok(PartitionPages {
                    partition: placed.partition,
                    planned: placed.node,
                    frames: frames.where_are()?,
                    descriptors: descriptors.where_are()?,
                })
            })
            .collect()
    }

    /// All frames. Looks at each while others use them, so it is a picture of no single moment. With `ask_kernel` also the
    /// node of each, a system call a frame.
    ///
    /// # Errors
    /// With `ask_kernel`, when the kernel or a container refuses.
    pub fn buffers(&self, ask_kernel: bool) -> io::Result<Vec<BufferInfo>> {
        let frames = &self.shared.frames;
        let mut buffers = Vec::with_capacity(frames.count() as usize);
        for (buffer, frame) in (0..).zip(frames.numbers()) {
            let core = &frames.descriptor(frame).core;
            let (word, tag) = (core.load(), core.tag());
            // Between the two looks the frame may have changed hands.
            let holds = word.is_mapped() && tag != NO_TAG && core.tag() == tag && core.load().is_mapped();
            let fork = if holds { self.fork(RelationId((tag >> 32) as u32)).ok() } else { None };
            let node = match ask_kernel {
                true => {
                    let counts = pages::where_is(frames.address(frame).as_ptr(), frames.block_size())?;
                    let mut nodes = counts.nodes.keys();
                    nodes.next().copied().filter(|_| nodes.next().is_none() && counts.unknown == 0)
                }
                false => None,
            };
            buffers.push(BufferInfo {
                buffer,
                partition: frames.partition_index(frame),
                node,
                path: fork.map(|fork| fork.path().to_owned()),
                block: holds.then_some(tag as u32),
                pins: word.pins() as u32,
                usage_count: word.usage() as u32,
                in_io: word.state() == FrameState::InIo,
                verified: word.is_verified(),
            });
        }
        Ok(buffers)
    }
}
