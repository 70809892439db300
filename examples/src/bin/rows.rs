//! Goes through the rows of a pgbench accounts table: how many accounts has each branch, and what do they hold?
//!
//! `cargo run --release -p heapscan-examples --bin rows -- PGDATA [TABLE]`

use heapscan::{Engine, EngineOptions, Error, ErrorKind, Result};
use std::collections::BTreeMap;

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let usage = || Error::new(ErrorKind::Usage, "usage: rows PGDATA [TABLE]");
    let pgdata = arguments.next().ok_or_else(usage)?;
    let table = arguments.next().unwrap_or_else(|| "public.pgbench_accounts".to_owned());

    let engine = Engine::open(pgdata, EngineOptions::default())?;
    let accounts = engine.database(None)?.table(&table)?;

    let mut branches: BTreeMap<i32, (u64, i64)> = BTreeMap::new();
    let mut scan = accounts.scan().columns(&["bid", "abalance"]).start()?;
    while let Some(mut page) = scan.next_page()? {
        while let Some(row) = page.next_row()? {
            let (count, balance) = branches.entry(row.i32(0)?.unwrap_or_default()).or_default();
            *count += 1;
            *balance += row.i64(1)?.unwrap_or_default();
        }
    }
    for (branch, (count, balance)) in &branches {
        println!("branch {branch}: {count} accounts, balance {balance}");
    }
    let stats = scan.stats();
    eprintln!("{} rows on {} pages by {}", stats.rows, stats.pages, engine.method().used);
    Ok(())
}
