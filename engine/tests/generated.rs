//! Generated clusters through every method, with faults; memory stays at the size of the pool.

mod tool_support;

use heapscan_fixtures::generate::{self, PgbenchOptions};
use std::{path::PathBuf, sync::OnceLock};
use tool_support::{refusal, run, stderr};

const METHODS: [&str; 4] = ["sync", "worker", "io_uring", "tokio_uring"];
const LIST: &str = "count(*),sum(aid),min(aid),max(aid),sum(octet_length(filler))";

/// Scale of the cluster; HEAPSCAN_SCALE asks for more than the tests' 3.
fn scale() -> u32 {
    std::env::var("HEAPSCAN_SCALE").ok().and_then(|s| s.parse().ok()).unwrap_or(3)
}

fn cluster() -> &'static str {
    static CLUSTER: OnceLock<(tempfile::TempDir, PathBuf)> = OnceLock::new();
    let (_, path) = CLUSTER.get_or_init(|| {
        // Not below /tmp, which may be memory without direct IO.
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let path = folder.path().join("cluster");
        generate::pgbench(&path, PgbenchOptions { scale: scale(), ..PgbenchOptions::default() }).unwrap();
        (folder, path)
    });
    path.to_str().unwrap()
}

fn expected() -> String {
    let rows = u64::from(scale()) * 100_000;
    format!("{rows}\t{}\t1\t{rows}\t{}\n", rows * (rows + 1) / 2, rows * 84)
}

/// Whether the method can be used here; says so if not.
fn usable(method: &str) -> bool {
    let status = heapscan::probe_methods().into_iter().find(|m| m.name == method).expect("a status");
    if !status.usable {
        heapscan_fixtures::server::skip(method, status.reason.as_deref().unwrap_or(""));
    }
    status.usable
}

#[test]
fn rows_and_sums_are_right_and_memory_is_bounded() {
    for method in METHODS.into_iter().filter(|m| usable(m)) {
        for direct in [false, true] {
            for (pool, bytes) in [("128kB", 128u64 << 10), ("16MB", 16 << 20)] {
                let mut args = vec![
                    "scan",
                    cluster(),
                    "pgbench_accounts",
                    "--agg",
                    LIST,
                    "--io-method",
                    method,
                    "--shared-buffers",
                    pool,
                    "--stats",
                    "json",
                ];
                if direct {
                    args.push("--io-direct");
                }
                let output = run(&args);
                assert!(output.status.success(), "{args:?}: {}", stderr(&output));
                assert_eq!(String::from_utf8_lossy(&output.stdout), expected(), "{args:?}");
                let stats: serde_json::Value = serde_json::from_slice(&output.stderr).unwrap();
                let peak = stats["max_rss"].as_u64().unwrap();
                // A sanitizer's own memory counts as resident (`make asan` sets the variable).
                if std::env::var_os("HEAPSCAN_SANITIZER").is_none() {
                    assert!(peak <= bytes + (64 << 20), "{args:?}: {peak} bytes resident");
                }
                assert_eq!(stats["direct"], direct, "{args:?}");
            }
        }
    }
}

#[test]
fn faults_change_nothing() {
    let plans = [
        "seed=1,short=0.5",
        "seed=2,eintr=0.4",
        "seed=3,eagain=0.4",
        "seed=4,short=0.3,eintr=0.2,eagain=0.2,reorder,delay=20us",
        "seed=5,reorder,delay=100us",
    ];
    for method in METHODS.into_iter().filter(|m| usable(m)) {
        for plan in plans {
            for more in [&[][..], &["--io-direct"]] {
                let mut args = vec![
                    "scan",
                    cluster(),
                    "pgbench_accounts",
                    "--agg",
                    LIST,
                    "--io-method",
                    method,
                    "--io-fault",
                    plan,
                    "--shared-buffers",
                    "1MB",
                ];
                args.extend_from_slice(more);
                let output = run(&args);
                assert!(output.status.success(), "{args:?}: {}", stderr(&output));
                assert_eq!(String::from_utf8_lossy(&output.stdout), expected(), "{args:?}");
            }
        }
    }
}

#[test]
fn a_broken_disk_is_an_error_with_file_and_errno() {
    for method in METHODS.into_iter().filter(|m| usable(m)) {
        let plan = "seed=9,eio=0.2";
        let output =
            run(&["scan", cluster(), "pgbench_accounts", "--agg", LIST, "--io-method", method, "--io-fault", plan]);
        let line = refusal(&output, 1);
        assert!(line.contains("base/") || line.contains("global/"), "{line}");
        assert!(line.contains("Input/output error") && line.contains("os error 5"), "{line}");
    }
}

#[test]
fn many_scans_share_a_small_pool() {
    let options = heapscan::EngineOptions { shared_buffers: 8 * 8192, ..heapscan::EngineOptions::default() };
    for method in METHODS.into_iter().filter(|m| usable(m)) {
        let mut options = options.clone();
        options.io.method = method.parse().unwrap();
        let engine = heapscan::Engine::open(cluster(), options).unwrap();
        let table = engine.database(None).unwrap().table("pgbench_accounts").unwrap();
        let calls = heapscan::aggregate::parse(LIST).unwrap();
        std::thread::scope(|scope| {
            let scans: Vec<_> = (0..8).map(|_| scope.spawn(|| table.scan().aggregate(&calls))).collect();
            for scan in scans {
                let values = scan.join().unwrap().unwrap().values;
                let line = values.iter().map(|v| v.as_deref().unwrap()).collect::<Vec<_>>().join("\t");
                assert_eq!(format!("{line}\n"), expected(), "{method}");
            }
        });
    }
}
