//! Writes a table to a CSV file, past the page cache, and tells what it cost.
//!
//! `cargo run --release -p heapscan-examples --bin export_csv -- PGDATA TABLE FILE`

use heapscan::{Engine, EngineOptions, Error, ErrorKind, Result, RowFormat};
use std::fs::File;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [pgdata, table, path] = &arguments[..] else {
        return Err(Error::new(ErrorKind::Usage, "usage: export_csv PGDATA TABLE FILE"));
    };
    let options = EngineOptions { io_direct: true, shared_buffers: 16 << 20, ..EngineOptions::default() };
    let engine = Engine::open(pgdata, options)?;
    let table = engine.database(None)?.table(table)?;
    let mut file = File::create(path).map_err(|e| Error::os(path, "create", &e))?;
    let stats = table.scan().write_rows(RowFormat::Csv, &mut file)?;
    println!(
        "{} rows, {} blocks in {} reads by {}, {:.3} s",
        stats.rows,
        stats.io.blocks_read,
        stats.io.reads,
        engine.method().used,
        stats.elapsed_nanos as f64 / 1e9
    );
    Ok(())
}
