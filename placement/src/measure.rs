//! Measures latency and bandwidth between the CPUs of one node and the memory of another.

use crate::{
    list,
    memory::{HugePages, MapError, MapOptions, Mapping},
    sys, thread,
    topology::Machine,
};
use serde::Serialize;
use std::{
    sync::{
        Barrier,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

/// A figure for each pair of a node with CPUs and a node with memory.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Matrix {
    /// Rows: nodes whose CPUs access.
    pub from: Vec<u32>,
    /// Columns: nodes whose memory is accessed.
    pub to: Vec<u32>,
    /// Row by row; `None` where it could not be measured.
    pub values: Vec<Vec<Option<f64>>>,
}

impl Matrix {
    /// The figure for CPUs of node `from` and memory of node `to`.
    pub fn get(&self, from: u32, to: u32) -> Option<f64> {
        let row = self.from.iter().position(|&node| node == from)?;
        let column = self.to.iter().position(|&node| node == to)?;
        self.values.get(row)?.get(column).copied().flatten()
    }
}

/// How much to measure.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Bytes to run through; several times the last-level cache, or it is the cache that is measured.
    pub bytes: usize,
    /// How long to measure each pair.
    pub time: Duration,
    /// Threads for the bandwidth, per node; never more than it has usable CPUs.
    pub threads: usize,
}

impl Default for Effort {
    fn default() -> Self {
        Self { bytes: 256 << 20, time: Duration::from_millis(200), threads: 8 }
    }
}

impl Effort {
    /// A few milliseconds a pair, good enough to see whether nodes differ.
    pub fn quick() -> Self {
        Self { bytes: 64 << 20, time: Duration::from_millis(10), threads: 1 }
    }
}

/// What was measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Measured {
    /// Nanoseconds of a load that depends on the one before, from memory.
    pub latency: Matrix,
    /// Bytes a second that the CPUs of a node read together.
    pub bandwidth: Matrix,
    /// What could not be measured as meant.
    pub notes: Vec<String>,
}

/// Latency only, quickly: for [`Settings::latencies`](crate::plan::Settings::latencies).
pub fn latencies(machine: &Machine, effort: Effort) -> Measured {
    run(machine, effort, false)
}

/// Latency and bandwidth between all usable nodes. On a machine that is not this one nothing is measured.
pub fn measure(machine: &Machine, effort: Effort) -> Measured {
    run(machine, effort, true)
}

fn run(machine: &Machine, effort: Effort, with_bandwidth: bool) -> Measured {
    let mut measured = Measured::default();
    if !machine.this_system {
        measured.notes.push("this is another machine's description: nothing can be measured".to_owned());
        return measured;
    }
    let from: Vec<(u32, Vec<u32>)> = machine
        .nodes
        .iter()
        .map(|node| (node.id, machine.usable_cpus(node)))
        .filter(|(_, cpus)| !cpus.is_empty())
        .collect();
    let usable = machine.nodes.iter().filter(|node| node.memory > 0 && machine.is_node_allowed(node.id));
    let to: Vec<u32> = usable.map(|node| node.id).collect();
    let empty = || Matrix {
        from: from.iter().map(|(id, _)| *id).collect(),
        to: to.clone(),
        values: vec![vec![None; to.len()]; from.len()],
    };
    (measured.latency, measured.bandwidth) = (empty(), empty());
    for (column, &node) in to.iter().enumerate() {
        // A node's memory is mapped once for all rows.
        let memory = match memory_on(machine, node, to.len() > 1, effort.bytes) {
            Ok(memory) => memory,
            Err(why) => {
                measured.notes.push(format!("memory of node {node}: {why}"));
                continue;
            }
        };
        chain(&memory);
        for (row, (id, cpus)) in from.iter().enumerate() {
            match on_cpus(&cpus[..1], || latency(&memory, effort.time)) {
                Ok(nanos) => measured.latency.values[row][column] = Some(nanos),
                Err(why) => measured.notes.push(format!("CPUs of node {id}: {why}")),
            }
            if with_bandwidth {
                let count = cpus.len().min(effort.threads.max(1));
                measured.bandwidth.values[row][column] = bandwidth(&memory, &cpus[..count], effort.time);
            }
        }
    }
    measured
}

/// Memory on one node. On a machine with one there is nothing to bind.
fn memory_on(machine: &Machine, node: u32, bind: bool, bytes: usize) -> Result<Mapping, String> {
    let room = machine.available_now(node).unwrap_or(u64::MAX);
    // A node that runs out of memory that is bound to it costs the process its life.
    if room / 2 < bytes as u64 {
        return Err(format!("{room} bytes can be had, too few to measure with {bytes}"));
    }
    // Huge pages where they can be had: else it is the page tables that are measured.
    let mapping = Mapping::new(bytes, MapOptions { huge_pages: HugePages::Try, huge_page_size: None });
    let show = |error: MapError| error.to_string();
    let mut mapping = mapping.map_err(show)?;
    if bind {
        sys::bind(&mapping, sys::MPOL_BIND, &[node]).map_err(|error| format!("mbind: {error}"))?;
        if mapping.populate(0..mapping.len()).is_ok() {
            return Ok(mapping);
        }
        // Explicit huge pages that this node does not have.
        drop(mapping);
        mapping = Mapping::ordinary(bytes, HugePages::Try, Vec::new()).map_err(show)?;
        sys::bind(&mapping, sys::MPOL_BIND, &[node]).map_err(|error| format!("mbind: {error}"))?;
    }
    mapping.populate_all().map_err(show)?;
    Ok(mapping)
}

/// Words of a cache line of 64 bytes.
const LINE: usize = 8;

/// Writes a random cycle through all cache lines into the memory (Sattolo's algorithm), so that no prefetcher guesses
/// the next load.
fn chain(memory: &Mapping) {
    let words = sys::words(memory);
    let lines = words.len() / LINE;
    let mut order: Vec<u32> = (0..lines as u32).collect();
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    for last in (1..lines).rev() {
        // xorshift64
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        order.swap(last, (seed % last as u64) as usize);
    }
    for (line, &next) in order.iter().enumerate() {
        words[line * LINE].store(u64::from(next) * LINE as u64, Ordering::Relaxed);
    }
}

fn latency(memory: &Mapping, time: Duration) -> f64 {
    const STEPS: u64 = 20_000;
    let words = sys::words(memory);
    sys::chase(words, 0, STEPS);
    // The best of several: what disturbs only ever adds.
    let (mut best, began) = (f64::INFINITY, Instant::now());
    // Each round goes on elsewhere in the chain, or short rounds would stay in the cache.
    let mut start = 0;
    loop {
        let round = Instant::now();
        start = sys::chase(words, start, STEPS);
        best = best.min(round.elapsed().as_nanos() as f64 / STEPS as f64);
        if began.elapsed() >= time {
            return best;
        }
    }
}

/// Bytes a second, or `None` when no thread could be pinned.
fn bandwidth(memory: &Mapping, cpus: &[u32], time: Duration) -> Option<f64> {
    let words = sys::words(memory);
    let share = words.len() / cpus.len();
    let (bytes, start) = (AtomicU64::new(0), Barrier::new(cpus.len()));
    let slowest = std::thread::scope(|scope| {
        let threads: Vec<_> = cpus
            .iter()
            .enumerate()
            .map(|(index, &cpu)| {
                let (bytes, start) = (&bytes, &start);
                scope.spawn(move || {
                    let pinned = thread::pin_current_thread(&[cpu as usize]);
                    start.wait();
                    pinned.ok()?;
                    let began = Instant::now();
                    while began.elapsed() < time {
                        let part = &words[index * share..(index + 1) * share];
                        sys::sum(part);
                        bytes.fetch_add(part.len() as u64 * 8, Ordering::Relaxed);
                    }
                    Some(began.elapsed())
                })
            })
            .collect();
        threads.into_iter().filter_map(|thread| thread.join().ok().flatten()).max()
    })?;
    Some(bytes.into_inner() as f64 / slowest.as_secs_f64())
}

/// Runs something on a thread of its own that is pinned to these CPUs.
fn on_cpus<T: Send>(cpus: &[u32], work: impl FnOnce() -> T + Send) -> Result<T, String> {
    let wanted: Vec<usize> = cpus.iter().map(|&cpu| cpu as usize).collect();
    let pinned =
        || thread::pin_current_thread(&wanted).map_err(|error| format!("CPUs {}: {error}", list::format(cpus)));
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| pinned().map(|()| work()));
        thread.join().unwrap_or_else(|_| Err("the measuring thread panicked".to_owned()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chain_is_one_cycle_through_all_lines() {
        let memory = Mapping::new(1 << 20, MapOptions { huge_pages: HugePages::Off, huge_page_size: None }).unwrap();
        chain(&memory);
        let words = sys::words(&memory);
        let lines = (words.len() / LINE) as u64;
        assert_eq!(sys::chase(words, 0, lines), 0);
        let mut at = 0;
        for step in 1..lines {
            at = words[at as usize].load(Ordering::Relaxed);
            assert_ne!(at, 0, "back after {step} of {lines} steps");
        }
    }

    #[test]
    fn this_machine_is_measured() {
        let machine = Machine::detect();
        let effort = Effort { bytes: 16 << 20, time: Duration::from_millis(2), threads: 2 };
        let measured = measure(&machine, effort);
        let node = machine.nodes.iter().find(|node| !machine.usable_cpus(node).is_empty() && node.memory > 0);
        if let Some(node) = node.filter(|_| measured.notes.is_empty()) {
            let nanos = measured.latency.get(node.id, node.id).expect("a latency");
            assert!((0.1..100_000.0).contains(&nanos), "{nanos} ns");
            let rate = measured.bandwidth.get(node.id, node.id).expect("a bandwidth");
            assert!(rate > 1e6, "{rate} bytes a second");
        }
        let other = Machine { this_system: false, ..machine };
        assert!(!measure(&other, effort).notes.is_empty());
    }
}
