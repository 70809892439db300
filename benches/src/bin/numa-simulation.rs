//! Simulates partitioned buffer pools on NUMA machines and writes a report.
#![deny(unsafe_code)]

use clap::Parser;
use heapscan_benches::numa::{cases::Scale, report};
use std::path::PathBuf;

/// Simulate partitioned buffer pools on NUMA machines and write a report.
#[derive(Debug, Parser)]
struct Arguments {
    /// Folder for the report.
    dir: PathBuf,
    /// Frames of the pool.
    #[arg(long, default_value_t = Scale::FULL.frames, value_parser = clap::value_parser!(u32).range(1024..=1 << 22))]
    frames: u32,
    /// Accesses to count, in frames of the pool.
    #[arg(long, default_value_t = Scale::FULL.rounds, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// For the dice.
    #[arg(long, default_value_t = Scale::FULL.seed)]
    seed: u64,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let Arguments { dir, frames, rounds, seed } = Arguments::parse();
    let command = format!(
        "cargo run --release -p heapscan-benches --bin numa-simulation -- --frames {frames} --rounds {rounds} \
         --seed {seed} DIR"
    );
    report::write(&dir, Scale { frames, rounds, seed }, &command)
}
