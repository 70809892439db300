//! What the benchmarks share: the bundled pgbench table, as bytes and as an open engine; and the simulator of NUMA
//! machines ([`numa`]).
#![deny(unsafe_code)]

pub mod numa;
pub mod shapes;

use heapscan::{Engine, EngineOptions, MethodChoice, Table};
use heapscan_fixtures::{Snapshot, pgbench};

/// The snapshot of the bundled pgbench cluster.
///
/// # Panics
/// If the fixtures cannot be unpacked.
pub fn snapshot() -> Snapshot {
    pgbench().and_then(|f| f.snapshot("clean")).expect("the pgbench fixture")
}

/// All bytes of a table's first segment.
///
/// # Panics
/// As [`snapshot`]; if there is no such table.
pub fn table_bytes(name: &str) -> Vec<u8> {
    let snapshot = snapshot();
    let oracle = snapshot.table("public", name).expect("table");
    std::fs::read(snapshot.data_dir().join(&oracle.path)).expect("the table's file")
}

/// An engine over the bundled cluster, and one of its tables.
///
/// # Panics
/// As [`snapshot`]; if the IO method cannot be used here.
pub fn open(method: MethodChoice, shared_buffers: u64, table: &str) -> (Engine, Table) {
    let mut options = EngineOptions { shared_buffers, ..EngineOptions::default() };
    options.io.method = method;
    let engine = Engine::open(snapshot().data_dir(), options).expect("the fixture opens");
    let table = engine.database(Some("pgbench")).and_then(|d| d.table(table)).expect("the fixture's table");
    (engine, table)
}
