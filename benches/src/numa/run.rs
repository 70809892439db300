//! Clients at work on a machine: who is next, what that costs, what was hit.

use super::{Client, Dice, Job, Machine, Memory, PoolModel, machine::BLOCK, pool::Claim};
use heapscan::pool::balance::Turn;
use std::{cmp::Reverse, collections::BinaryHeap};

/// Dependent memory accesses of a look at a single row in a block.
const LOOKUP_LINES: f64 = 12.0;

/// CPU nanoseconds of a single-row query for each of its blocks.
const LOOKUP_NS: f64 = 4000.0;

/// Nanoseconds for the clock hand's cache line, from a CPU of the same node and from another one.
const HAND_NS: [f64; 2] = [20.0, 100.0];

/// Nanoseconds for a look at a frame's descriptor in the sweep, on the same node and on another one.
const VISIT_NS: [f64; 2] = [3.0, 8.0];

/// A run: clients on a pool of a machine.
#[derive(Clone, Debug)]
pub struct Run {
    /// The machine.
    pub machine: Machine,
    /// Where the pool is.
    pub memory: Memory,
    /// Frames of the pool.
    pub frames: u32,
    /// The clients.
    pub clients: Vec<Client>,
    /// Blocks that all clients together access to warm up.
    pub warm_up: u64,
    /// Blocks that are counted.
    pub measured: u64,
    /// Frames that a thread takes of the hand at a time: 1 in PostgreSQL, 32 here.
    pub hand_batch: u64,
    /// Clients take turns by their weights, not by time, and do not wait for each other.
    pub by_weight: bool,
    /// For the dice.
    pub seed: u64,
}

/// What came of it.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Blocks found in the pool, of all.
    pub hit_ratio: f64,
    /// Victims of the client's home partition, of all; 1 without any.
    pub home_victims: f64,
    /// Victims on the client's node.
    pub local_victims: f64,
    /// Blocks read on the client's node, of all.
    pub local_reads: f64,
    /// Modelled blocks a second.
    pub blocks_per_second: f64,
    /// Longest eviction age divided by the shortest; 1 if there is only one.
    pub age_spread: f64,
    /// Fill of the partitions, the least.
    pub least_fill: f64,
}

#[derive(Debug, Default)]
struct Counts {
    blocks: u64,
    hits: u64,
    victims: u64,
    home_victims: u64,
    local_victims: u64,
    local: u64,
    busy: f64,
}

/// Something that does one thing after the other.
#[derive(Clone, Copy, Debug, Default)]
struct Server {
    free_at: f64,
}

impl Server {
    /// When work of `nanos` that comes at `now` is done.
    fn serve(&mut self, now: f64, nanos: f64) -> f64 {
        self.free_at = self.free_at.max(now) + nanos;
        self.free_at
    }
}

/// Memory, links, CPUs and hands, as far as they can be busy.
#[derive(Debug)]
struct Servers {
    memory: Vec<Server>,
    /// Out of each node, and into it.
    links: [Vec<Server>; 2],
    cpus: Vec<Server>,
    hands: Vec<(Server, usize)>,
}

/// What a step asks of the machine besides the client's own time.
#[derive(Debug, Default)]
struct Demand {
    /// Bytes by node.
    bytes: Vec<f64>,
    /// Nanoseconds of a CPU.
    cpu: f64,
}

impl Run {
    /// Does it.
    pub fn outcome(&self) -> Outcome {
        let mut pool = PoolModel::new(&self.machine, self.memory, self.frames);
        self.outcome_on(&mut pool)
    }

    /// Does it on a pool that may have been used before.
    pub fn outcome_on(&self, pool: &mut PoolModel) -> Outcome {
        let mut work = Work::new(self, pool);
        while work.counts.blocks < self.warm_up {
            work.step(pool);
        }
        work.counts = Counts::default();
        while work.counts.blocks < self.measured {
            work.step(pool);
        }
        work.outcome(pool)
    }
}

struct Work<'a> {
    run: &'a Run,
    clients: Vec<(Client, Turn)>,
    times: Vec<f64>,
    queue: BinaryHeap<Reverse<(u64, usize)>>,
    dice: Dice,
    counts: Counts,
    servers: Servers,
    demand: Demand,
    blocks: Vec<u32>,
    missing: Vec<u32>,
    claims: Vec<Claim>,
}

impl<'a> Work<'a> {
    fn new(run: &'a Run, pool: &PoolModel) -> Self {
        let nodes = run.machine.nodes();
        Self {
            clients: run.clients.iter().map(|c| (c.clone(), pool.turn(c.node, c.thread))).collect(),
            times: vec![0.0; run.clients.len()],
            queue: (0..run.clients.len()).map(|client| Reverse((0, client))).collect(),
            dice: Dice::new(run.seed),
            counts: Counts::default(),
            servers: Servers {
                memory: vec![Server::default(); nodes],
                links: [vec![Server::default(); nodes], vec![Server::default(); nodes]],
                cpus: vec![Server::default(); nodes],
                hands: vec![(Server::default(), usize::MAX); pool.partitions()],
            },
            demand: Demand::default(),
            blocks: Vec::new(),
            missing: Vec::new(),
            claims: Vec::new(),
            run,
        }
    }

    /// Who is next: the one whose time is least, or one by the weights.
    fn next(&mut self) -> usize {
        if !self.run.by_weight {
            return self.queue.pop().map_or(0, |Reverse((_, client))| client);
        }
        let total = self.clients.iter().map(|(client, _)| client.weight).sum();
        let mut at = self.dice.below(total);
        for (index, (client, _)) in self.clients.iter().enumerate() {
            match at.checked_sub(client.weight) {
                Some(left) => at = left,
                None => return index,
            }
        }
        0
    }

    fn step(&mut self, pool: &mut PoolModel) {
        let index = self.next();
        let (client, turn) = &mut self.clients[index];
        client.step(&mut self.dice, &mut self.blocks);
        let (node, job) = (client.node, client.job.clone());
        self.demand.bytes.clear();
        self.demand.bytes.resize(self.run.machine.nodes(), 0.0);
        self.demand.cpu = 0.0;
        let home = turn.home();
        let mut own = 0.0;
        self.missing.clear();
        for i in 0..self.blocks.len() {
            match pool.find(self.blocks[i]) {
                Some(frame) => own += self.read(&job, node, pool.node_of(frame)),
                None => self.missing.push(self.blocks[i]),
            }
        }
        self.counts.blocks += self.blocks.len() as u64;
        self.counts.hits += (self.blocks.len() - self.missing.len()) as u64;
        if !self.missing.is_empty() {
            own += self.load(pool, index, home, &job);
        }
        let now = self.times[index];
        let done = if self.run.by_weight { now + own + self.demand.cpu } else { self.wait(node, now, own) };
        self.counts.busy += done - now;
        self.times[index] = done;
        if !self.run.by_weight {
            self.queue.push(Reverse((done as u64, index)));
        }
    }

    /// A client's own time to read a block that lies on `memory`, besides the CPU time.
    fn read(&mut self, job: &Job, node: usize, memory: usize) -> f64 {
        let machine = &self.run.machine;
        let latency = machine.latency[node][memory];
        self.counts.local += u64::from(node == memory);
        if let Job::Scan { .. } = job {
            self.demand.bytes[memory] += BLOCK;
            self.demand.cpu += machine.block_ns;
            BLOCK / 64.0 * latency / machine.parallel_lines
        } else {
            self.demand.bytes[memory] += LOOKUP_LINES * 64.0;
            self.demand.cpu += LOOKUP_NS;
            LOOKUP_LINES * latency
        }
    }

    /// Gets the missing blocks from the page cache, which lies on all nodes, into frames.
    fn load(&mut self, pool: &mut PoolModel, index: usize, home: usize, job: &Job) -> f64 {
        let machine = &self.run.machine;
        let before: Vec<u64> = (0..pool.partitions()).map(|p| pool.passed(p)).collect();
        let (client, turn) = &mut self.clients[index];
        let node = client.node;
        pool.load(turn, &self.missing, &mut self.claims);
        let mut own = 0.0;
        for (p, before) in before.into_iter().enumerate() {
            let visits = pool.passed(p) - before;
            if visits > 0 {
                let remote = usize::from(pool.partition_node(p) != Some(node));
                self.demand.cpu += visits as f64 * VISIT_NS[remote];
                let (hand, last) = &mut self.servers.hands[p];
                let runs = visits.div_ceil(self.run.hand_batch) as f64;
                let took = runs * HAND_NS[usize::from(*last != node)];
                *last = node;
                let now = self.times[index];
                own += if self.run.by_weight { took } else { hand.serve(now, took) - now };
            }
        }
        for i in 0..self.claims.len() {
            let Claim { frame, partition } = self.claims[i];
            let memory = pool.node_of(frame);
            self.counts.victims += 1;
            self.counts.home_victims += u64::from(partition == home);
            self.counts.local_victims += u64::from(memory == node);
            // Copied from the page cache to the frame, and then read by the same CPU: from its cache.
            let cached = self.missing[i] as usize % machine.nodes();
            let lines = BLOCK / 64.0 / machine.parallel_lines;
            own += lines * (machine.latency[node][cached] + machine.latency[node][memory]) / 2.0;
            self.demand.bytes[cached] += BLOCK;
            self.demand.bytes[memory] += BLOCK;
            self.counts.local += u64::from(memory == node);
            self.demand.cpu += machine.read_ns + if let Job::Scan { .. } = job { machine.block_ns } else { LOOKUP_NS };
        }
        own
    }

    /// When a step is done that takes `own` nanoseconds besides the CPU time, and keeps the machine busy.
    fn wait(&mut self, node: usize, now: f64, own: f64) -> f64 {
        let machine = &self.run.machine;
        let mut done = now + own + self.demand.cpu;
        done = done.max(self.servers.cpus[node].serve(now, (own + self.demand.cpu) / f64::from(machine.cpus)));
        for (memory, &bytes) in self.demand.bytes.iter().enumerate().filter(|(_, bytes)| **bytes > 0.0) {
            done = done.max(self.servers.memory[memory].serve(now, bytes / machine.node_bandwidth));
            if memory != node {
                for (way, end) in [memory, node].into_iter().enumerate() {
                    done = done.max(self.servers.links[way][end].serve(now, bytes / machine.link_bandwidth));
                }
            }
        }
        done
    }

    fn outcome(&self, pool: &PoolModel) -> Outcome {
        let counts = &self.counts;
        let part = |n: u64, of: u64| if of == 0 { 1.0 } else { n as f64 / of as f64 };
        let ages: Vec<f64> = pool.eviction_ages().into_iter().flatten().map(|age| age as f64).collect();
        let (least, most) = ages.iter().fold((f64::MAX, 1.0f64), |(a, b), &age| (a.min(age.max(1.0)), b.max(age)));
        Outcome {
            hit_ratio: part(counts.hits, counts.blocks),
            home_victims: part(counts.home_victims, counts.victims),
            local_victims: part(counts.local_victims, counts.victims),
            local_reads: part(counts.local, counts.blocks),
            blocks_per_second: counts.blocks as f64 * self.clients.len() as f64 / counts.busy.max(1.0) * 1e9,
            age_spread: if ages.len() < 2 { 1.0 } else { most / least },
            least_fill: pool.fill().into_iter().fold(1.0, f64::min),
        }
    }
}
