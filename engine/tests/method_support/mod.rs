//! The IO methods that can be used here, engines and clusters for tests of scans under way.
#![allow(dead_code, unreachable_pub, reason = "each test file uses a part of it")]

use heapscan::{Engine, EngineOptions, HugePages, MethodChoice, MethodName, Table};
use heapscan_fixtures::generate::{self, PgbenchOptions};
use std::{io::Write, path::Path};

/// Whether something that not every machine has must be there (`HEAPSCAN_REQUIRE=io_uring,root`). If not, says what is
/// skipped.
pub fn skip(what: &str, reason: &str) {
    let required = std::env::var("HEAPSCAN_REQUIRE").unwrap_or_default();
    assert!(!required.split(',').any(|r| r == what), "{what} is required: {reason}");
    let _ = writeln!(std::io::stderr(), "SKIP {what}: {reason}");
}

/// The methods that this machine does not refuse.
pub fn methods() -> Vec<MethodName> {
    let usable = heapscan::probe_methods();
    MethodName::ALL
        .into_iter()
        .filter(|&name| {
            let status = usable.iter().find(|s| s.name == name.as_str()).expect("each method has a status");
            if !status.usable {
                skip(name.as_str(), status.reason.as_deref().unwrap_or("no reason given"));
            }
            status.usable
        })
        .collect()
}

pub fn options(method: MethodName, frames: u64) -> EngineOptions {
    let mut options =
        EngineOptions { shared_buffers: frames * 8192, huge_pages: HugePages::Off, ..EngineOptions::default() };
    options.io.method = MethodChoice::Named(method);
    options.io.lanes = Some(2);
    options.io.io_max_concurrency = 32;
    options
}

pub fn fault(options: &mut EngineOptions, plan: &str) {
    options.io.fault = Some(plan.parse().expect("a plan"));
}

pub fn accounts(data_dir: impl AsRef<Path>, options: EngineOptions) -> (Engine, Table) {
    let engine = Engine::open(data_dir, options).expect("open");
    let table = engine.database(None).expect("database").table("pgbench_accounts").expect("table");
    (engine, table)
}

/// A cluster of its own, whose files may be harmed; 1640 blocks of accounts for each unit of `scale`.
pub fn own_cluster(scale: u32) -> (tempfile::TempDir, generate::Generated) {
    let dir = tempfile::tempdir().expect("a folder");
    let made = generate::pgbench(&dir.path().join("data"), PgbenchOptions { scale, ..PgbenchOptions::default() });
    (dir, made.expect("a cluster"))
}

/// xorshift; seeded, so that a failure can be repeated.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}
