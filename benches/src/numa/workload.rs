//! What clients do.

use super::Dice;

/// Blocks of one combined read.
pub(super) const COMBINE: u32 = 16;

/// What a client does over and over.
#[derive(Clone, Debug)]
pub enum Job {
    /// Scans blocks `first .. first + blocks` from the beginning to the end: seqconcurrscans, lone scan.
    Scan {
        /// The table's first block.
        first: u32,
        /// Its size.
        blocks: u32,
    },
    /// Looks up single rows: one block of the index leaves and one of the table, both uniformly random. Inner pages of
    /// the index are in the processor's cache.
    Lookup {
        /// The table's first block; its index comes before it, of a tenth of its size.
        first: u32,
        /// Its size.
        blocks: u32,
    },
    /// Reads single blocks of its own working set at random.
    Random {
        /// The set's first block.
        first: u32,
        /// Its size.
        blocks: u32,
    },
}

/// A client: a thread that stays on its node.
#[derive(Clone, Debug)]
pub struct Client {
    /// The node it runs on.
    pub node: usize,
    /// The how-manieth thread of its node it is.
    pub thread: usize,
    /// What it does.
    pub job: Job,
    /// Its part of all accesses, if the clients take turns by parts instead of by time.
    pub weight: u32,
    /// Where it is in its scan.
    pub(super) at: u32,
}

impl Client {
    /// The `index`-th of many clients, spread over the nodes in turn.
    pub fn new(index: usize, nodes: usize, job: Job) -> Self {
        Self { node: index % nodes, thread: index / nodes, job, weight: 1, at: 0 }
    }

    /// With a part of all accesses.
    pub fn with_weight(self, weight: u32) -> Self {
        Self { weight, ..self }
    }

    /// Starting anywhere in its scan, as clients do that did not all start now.
    pub fn starting_at(self, at: u32) -> Self {
        Self { at, ..self }
    }

    /// The blocks of its next step.
    pub(super) fn step(&mut self, dice: &mut Dice, blocks: &mut Vec<u32>) {
        blocks.clear();
        match self.job {
            Job::Scan { first, blocks: count } => {
                let end = (self.at + COMBINE).min(count);
                blocks.extend((self.at..end).map(|block| first + block));
                self.at = if end == count { 0 } else { end };
            }
            Job::Lookup { first, blocks: count } => {
                let leaves = (count / 10).max(1);
                blocks.push(first - leaves + dice.below(leaves));
                blocks.push(first + dice.below(count));
            }
            Job::Random { first, blocks: count } => blocks.push(first + dice.below(count)),
        }
    }
}
