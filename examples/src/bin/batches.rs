//! Takes a table as Arrow record batches and sums a column.
//!
//! `cargo run --release -p heapscan-examples --bin batches -- PGDATA TABLE COLUMN`

use arrow_array::{Array, Int32Array};
use heapscan::{Engine, EngineOptions, Error, ErrorKind, Result, arrow::BatchOptions};

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [pgdata, table, column] = &arguments[..] else {
        return Err(Error::new(ErrorKind::Usage, "usage: batches PGDATA TABLE COLUMN"));
    };
    let engine = Engine::open(pgdata, EngineOptions::default())?;
    let table = engine.database(None)?.table(table)?;
    let mut batches = table.scan().columns(&[column]).batches(BatchOptions::default())?;
    println!("{}", batches.schema().field(0));

    let (mut rows, mut nulls, mut sum) = (0, 0, 0i64);
    for batch in &mut batches {
        let batch = batch?;
        let values = batch.column(0);
        rows += values.len();
        nulls += values.null_count();
        if let Some(values) = values.as_any().downcast_ref::<Int32Array>() {
            sum += values.iter().flatten().map(i64::from).sum::<i64>();
        }
    }
    println!("{rows} rows, {nulls} NULL, sum {sum}");
    Ok(())
}
