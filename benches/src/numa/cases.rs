//! The workloads that everybody compares with, as runs.

use super::{Client, Job, Machine, Memory, Outcome, PoolModel, Run};
use heapscan::pool::balance::NumaBalance;

/// How large and how long.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    /// Frames of the pool.
    pub frames: u32,
    /// Accesses to count, in frames of the pool.
    pub rounds: u32,
    /// For the dice.
    pub seed: u64,
}

impl Scale {
    /// For the report.
    pub const FULL: Self = Self { frames: 65_536, rounds: 20, seed: 1 };

    /// For tests: seconds, unoptimised.
    pub const TOY: Self = Self { frames: 16_384, rounds: 12, seed: 1 };

    fn run(self, machine: &Machine, memory: Memory, clients: Vec<Client>) -> Run {
        Run {
            machine: machine.clone(),
            memory,
            frames: self.frames,
            clients,
            warm_up: u64::from(self.frames) * u64::from(self.rounds) / 2,
            measured: u64::from(self.frames) * u64::from(self.rounds),
            hand_batch: 32,
            by_weight: false,
            seed: self.seed,
        }
    }

    /// Blocks that are `part` of the pool.
    pub fn part(self, part: f64) -> u32 {
        ((f64::from(self.frames) * part) as u32).max(1)
    }
}

/// An undivided pool, for comparison.
pub const UNDIVIDED: Memory = Memory::Interleaved;

/// Whether the lone client's thread stays where it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Thread {
    /// On the node where it loaded the table.
    Stays,
    /// The scheduler has moved it to another node since.
    Moved,
}

/// One client scans one table of `part` of the pool five times, in a pool that others have used before. The first run
/// reads; runs 2 to 5 count.
pub fn lone_scan(scale: Scale, machine: &Machine, memory: Memory, part: f64, thread: Thread) -> Outcome {
    let mut pool = PoolModel::new(machine, memory, scale.frames);
    let table = scale.part(part);
    let nodes = machine.nodes();
    let others = (0..nodes).map(|node| {
        Client::new(node, nodes, Job::Scan { first: table + node as u32 * scale.frames, blocks: scale.frames })
    });
    let before = scale.run(machine, memory, others.collect());
    Run { warm_up: 0, measured: 2 * u64::from(scale.frames), ..before }.outcome_on(&mut pool);
    let mut scans = |node: usize, runs: u64| {
        let client = Client::new(node, nodes, Job::Scan { first: 0, blocks: table });
        let run = scale.run(machine, memory, vec![client]);
        Run { warm_up: 0, measured: runs * u64::from(table), ..run }.outcome_on(&mut pool)
    };
    scans(0, 1);
    scans(usize::from(thread == Thread::Moved) % nodes, 4)
}

/// `clients` clients, client i scans table i mod 8; the tables together are `part` of the pool.
pub fn concurrent_scans(scale: Scale, machine: &Machine, memory: Memory, clients: usize, part: f64) -> Run {
    let blocks = scale.part(part / 8.0);
    let client = |i: usize| {
        let job = Job::Scan { first: (i % 8) as u32 * blocks, blocks };
        // Not all of a table's clients are at the same block.
        let at = (i / 8) as u32 * 7919 * 16 % blocks;
        Client::new(i, machine.nodes(), job).starting_at(at)
    };
    scale.run(machine, memory, (0..clients).map(client).collect())
}

/// One client for each home with a working set of its own of `part` of the pool; the first makes `first` times the accesses of
/// each other.
pub fn skewed(scale: Scale, machine: &Machine, memory: Memory, first: u32, part: f64) -> Run {
    let blocks = scale.part(part);
    let client = |i: usize| {
        let job = Job::Random { first: i as u32 * blocks, blocks };
        Client::new(i, machine.nodes(), job).with_weight(if i == 0 { first } else { 1 })
    };
    let run = scale.run(machine, memory, (0..machine.nodes()).map(client).collect());
    Run { by_weight: true, warm_up: 2 * run.measured, measured: 2 * run.measured, ..run }
}

/// As many clients on each partition, each with a working set of its own.
pub fn even(scale: Scale, machine: &Machine, memory: Memory, per_node: usize) -> Run {
    let nodes = machine.nodes();
    let blocks = scale.part(2.5 / (nodes * per_node) as f64);
    let client = |i: usize| Client::new(i, nodes, Job::Random { first: i as u32 * blocks, blocks });
    scale.run(machine, memory, (0..nodes * per_node).map(client).collect())
}

/// Single-row lookups in a table of twice the pool.
pub fn lookups(scale: Scale, machine: &Machine, memory: Memory, clients: usize) -> Run {
    let blocks = scale.part(2.0);
    let job = Job::Lookup { first: blocks / 10 + 1, blocks };
    scale.run(machine, memory, (0..clients).map(|i| Client::new(i, machine.nodes(), job.clone())).collect())
}

/// Half of the clients look up rows in a table of the pool's size, half scan tables of a fifth of it.
pub fn mixed(scale: Scale, machine: &Machine, memory: Memory, clients: usize) -> Run {
    let (rows, table) = (scale.part(1.0), scale.part(0.2));
    let client = |i: usize| {
        let job = match i % 2 {
            0 => Job::Lookup { first: rows / 10 + 1, blocks: rows },
            _ => Job::Scan { first: 2 * rows + (i as u32 / 2 % 8) * table, blocks: table },
        };
        // Both kinds on all nodes.
        Client::new(i / 2 + i % 2, machine.nodes(), job)
    };
    scale.run(machine, memory, (0..clients).map(client).collect())
}

/// All load on one home, for as many blocks as the pool has frames and a twentieth more.
pub fn fill(scale: Scale, machine: &Machine, per_node: u32, kind: NumaBalance) -> Outcome {
    let job = Job::Scan { first: 0, blocks: 2 * scale.frames };
    let clients = vec![Client::new(0, machine.nodes(), job)];
    let run = scale.run(machine, Memory::Partitioned(per_node, kind), clients);
    Run { warm_up: 0, measured: u64::from(scale.frames) * 21 / 20, ..run }.outcome()
}
