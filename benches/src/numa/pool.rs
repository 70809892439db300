//! The pool: frames with usage counts, hands, and the engine's balance between them.

use super::Machine;
use heapscan::pool::balance::{Balance, Layout, NumaBalance, Turn};
use std::cell::RefCell;

/// As in PostgreSQL and the engine.
const MAX_USAGE: u8 = 5;

const NOTHING: u32 = u32::MAX;

/// How the pool lies on the nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// Undivided, all on node 0.
    OneNode,
    /// Undivided, frames in turn on all nodes.
    Interleaved,
    /// So many partitions on each node.
    Partitioned(u32, NumaBalance),
}

#[derive(Debug)]
struct Partition {
    usage: Vec<u8>,
    block: Vec<u32>,
}

/// What a claim of frames did.
#[derive(Clone, Copy, Debug)]
pub(super) struct Claim {
    pub(super) frame: u32,
    pub(super) partition: usize,
}

/// A pool of so many frames on a machine.
#[derive(Debug)]
pub struct PoolModel {
    memory: Memory,
    nodes: usize,
    first: Vec<u32>,
    partitions: Vec<Partition>,
    hands: Vec<u64>,
    balance: Balance,
    /// By block: the frame, counted through all partitions.
    place: Vec<u32>,
}

impl PoolModel {
    /// An empty pool.
    pub fn new(machine: &Machine, memory: Memory, frames: u32) -> Self {
        let nodes = machine.nodes();
        let (count, kind) = match memory {
            Memory::Partitioned(per_node, kind) => (nodes * per_node as usize, kind),
            _ => (1, NumaBalance::Off),
        };
        let node_of = |p: usize| p * nodes / count;
        let distances: Vec<Vec<u32>> =
            (0..count).map(|a| (0..count).map(|b| machine.latency[node_of(a)][node_of(b)] as u32).collect()).collect();
        let size = |p: usize| frames / count as u32 + u32::from((p as u32) < frames % count as u32);
        let sizes: Vec<u32> = (0..count).map(size).collect();
        let first = sizes.iter().scan(0, |sum, &n| Some(std::mem::replace(sum, *sum + n))).collect();
        let partition = |&n: &u32| Partition { usage: vec![0; n as usize], block: vec![NOTHING; n as usize] };
        Self {
            memory,
            nodes,
            first,
            partitions: sizes.iter().map(partition).collect(),
            hands: vec![0; count],
            balance: Balance::new(kind, Layout::new(sizes, &distances)),
            place: Vec::new(),
        }
    }

    /// A stream of the `thread`-th thread of a node.
    pub fn turn(&self, node: usize, thread: usize) -> Turn {
        let per_node = (self.partitions.len() / self.nodes).max(1);
        self.balance.turn(node * per_node + thread % per_node)
    }

    /// How many frames the hand of a partition has passed.
    pub(super) fn passed(&self, partition: usize) -> u64 {
        self.hands[partition]
    }

    pub(super) fn partitions(&self) -> usize {
        self.partitions.len()
    }

    /// The node of a partition; `None` if it lies on several.
    pub(super) fn partition_node(&self, partition: usize) -> Option<usize> {
        match self.memory {
            Memory::OneNode => Some(0),
            Memory::Interleaved => None,
            Memory::Partitioned(..) => Some(partition * self.nodes / self.partitions.len()),
        }
    }

    /// The part of each partition's frames that holds a block.
    pub fn fill(&self) -> Vec<f64> {
        let used = |p: &Partition| p.block.iter().filter(|&&b| b != NOTHING).count() as f64 / p.block.len() as f64;
        self.partitions.iter().map(used).collect()
    }

    /// The engine's own eviction ages, in allocations of the whole pool.
    pub fn eviction_ages(&self) -> Vec<Option<u64>> {
        self.balance.eviction_ages(|p| self.hands[p])
    }

    /// The node of a frame.
    pub(super) fn node_of(&self, frame: u32) -> usize {
        match self.memory {
            Memory::OneNode => 0,
            Memory::Interleaved => frame as usize % self.nodes,
            Memory::Partitioned(..) => self.partition_of(frame) * self.nodes / self.partitions.len(),
        }
    }

    fn partition_of(&self, frame: u32) -> usize {
        self.first.partition_point(|&first| first <= frame) - 1
    }

    /// The frame of a block, if it is there. A hit heats it.
    pub(super) fn find(&mut self, block: u32) -> Option<u32> {
        let frame = self.place.get(block as usize).copied().filter(|&frame| frame != NOTHING)?;
        let p = self.partition_of(frame);
        let usage = &mut self.partitions[p].usage[(frame - self.first[p]) as usize];
        *usage = (*usage + 1).min(MAX_USAGE);
        Some(frame)
    }

    /// Claims frames for blocks that are not there and puts them in, as one combined read does.
    pub(super) fn load(&mut self, turn: &mut Turn, blocks: &[u32], claims: &mut Vec<Claim>) {
        claims.clear();
        let last = blocks.iter().max().map_or(0, |&b| b as usize);
        if self.place.len() <= last {
            self.place.resize(last + 1, NOTHING);
        }
        let Self { balance, partitions, hands, place, first, .. } = self;
        let hands = RefCell::new(hands);
        balance.allocate(
            turn,
            blocks.len(),
            |p| hands.borrow()[p],
            |p, want| {
                let frames = &mut partitions[p];
                let count = frames.usage.len();
                let hand = &mut hands.borrow_mut()[p];
                let mut index = (*hand % count as u64) as usize;
                for _ in 0..want {
                    while frames.usage[index] > 0 {
                        frames.usage[index] -= 1;
                        *hand += 1;
                        index = if index + 1 == count { 0 } else { index + 1 };
                    }
                    let block = blocks[claims.len()];
                    let old = std::mem::replace(&mut frames.block[index], block);
                    if old != NOTHING {
                        place[old as usize] = NOTHING;
                    }
                    frames.usage[index] = 1;
                    place[block as usize] = first[p] + index as u32;
                    claims.push(Claim { frame: first[p] + index as u32, partition: p });
                    *hand += 1;
                    index = if index + 1 == count { 0 } else { index + 1 };
                }
                want
            },
        );
    }
}
