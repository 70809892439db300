//! A simulator of a NUMA machine with a partitioned buffer pool, to compare policies on machines that one does not have.
//!
//! Dangers:
//! - Its hit ratios and local shares are those of the engine's own policy code ([`heapscan::pool::balance`]) over a clock
//!   sweep with usage counts as the engine has it. Its *throughput* is a model: latencies and bandwidths are those that
//!   were published for such machines, the rest ([`Machine`]) was chosen so that the published figures come out. Read
//!   ratios, not numbers.
//! - A pool here is smaller than a real one; all sizes are parts of the pool. Policies look at laps and parts too.
//!
//! No clock, no threads, no hash seeds: the same arguments give the same report, byte for byte.

pub mod cases;
mod machine;
mod plot;
mod pool;
pub mod report;
mod run;
mod table;
mod workload;

pub use machine::Machine;
pub use pool::{Memory, PoolModel};
pub use run::{Outcome, Run};
pub use workload::{Client, Job};

/// Numbers that look random, the same each time.
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    /// A sequence of its own for each seed.
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x1234_5678_9abc_def1)
    }

    /// A number from 0 to `end - 1`.
    pub fn below(&mut self, end: u32) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((u128::from(self.0 >> 16) * u128::from(end)) >> 48) as u32
    }
}
