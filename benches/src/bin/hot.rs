//! CPU time of an aggregate over a table whose blocks are all in the pool: what decoding costs, without any reading.
//!
//! ```text
//! hot PGDATA TABLE AGGREGATES [CONDITION]
//! ```
#![deny(unsafe_code)]

use heapscan::{Engine, EngineOptions, MethodChoice, MethodName, Predicate, Result, aggregate};
use std::fs;

/// CPU nanoseconds of this thread so far (`schedstat` of proc(5)).
fn cpu() -> f64 {
    let text = fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split(' ').next().and_then(|nanos| nanos.parse().ok()).unwrap_or(f64::NAN)
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (Some(data), Some(name), Some(list)) = (arguments.first(), arguments.get(1), arguments.get(2)) else {
        eprintln!("usage: hot PGDATA TABLE AGGREGATES [CONDITION]");
        std::process::exit(2);
    };
    let (calls, filter) = (aggregate::parse(list)?, arguments.get(3).map(|text| Predicate::parse(text)).transpose()?);
    let mut options = EngineOptions::default();
    let blocks = u64::from(Engine::open(data, options.clone())?.database(None)?.table(name)?.blocks());
    options.shared_buffers = (blocks + blocks / 4 + 4096) * 8192;
    options.io.method = MethodChoice::Named(MethodName::Sync);
    let engine = Engine::open(data, options)?;
    let table = engine.database(None)?.table(name)?;
    let mut rounds = Vec::new();
    for round in 0..8 {
        let scan = filter.iter().cloned().fold(table.scan(), |scan, filter| scan.filter(filter));
        let before = cpu();
        let result = scan.aggregate(&calls)?;
        let nanos = cpu() - before;
        let (tuples, pages) = (result.stats.tuples as f64, result.stats.pages as f64);
        let read = result.stats.io.blocks_read;
        println!(
            "round {round}: {:.2} ns a tuple, {:.0} ns a page, {:.1} GB/cpu-s, {read} blocks read: {:?}",
            nanos / tuples,
            nanos / pages,
            pages * 8192.0 / nanos,
            result.values
        );
        if read == 0 {
            rounds.push(nanos / tuples);
        }
    }
    rounds.sort_by(f64::total_cmp);
    let median = rounds.get(rounds.len() / 2).copied().unwrap_or(f64::NAN);
    println!("best {:.2}, median {median:.2} ns a tuple, pool hot", rounds.first().copied().unwrap_or(f64::NAN));
    Ok(())
}
