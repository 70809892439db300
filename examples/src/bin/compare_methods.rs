//! Runs the same scan through each IO method that works here, and checks that all answer the same.
//!
//! `cargo run --release -p heapscan-examples --bin compare_methods -- PGDATA TABLE`

use heapscan::{Engine, EngineOptions, Error, ErrorKind, Result, aggregate, probe_methods};

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [pgdata, table] = &arguments[..] else {
        return Err(Error::new(ErrorKind::Usage, "usage: compare_methods PGDATA TABLE"));
    };
    let calls = aggregate::parse("count(*)")?;
    let mut answer = None;
    for method in probe_methods() {
        if !method.usable {
            println!("{:<12} not usable: {}", method.name, method.reason.unwrap_or_default());
            continue;
        }
        let mut options = EngineOptions::default();
        options.io.method = method.name.parse().map_err(|e: String| Error::new(ErrorKind::Usage, e))?;
        let engine = Engine::open(pgdata, options)?;
        let result = engine.database(None)?.table(table)?.scan().aggregate(&calls)?;
        let seconds = result.stats.elapsed_nanos as f64 / 1e9;
        println!("{:<12} {} rows, {seconds:.3} s", method.name, result.stats.rows);
        if *answer.get_or_insert(result.stats.rows) != result.stats.rows {
            return Err(Error::new(ErrorKind::Corrupt, "the methods do not agree"));
        }
    }
    Ok(())
}
