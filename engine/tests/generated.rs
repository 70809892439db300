//! Generated clusters through every method, with faults; memory stays at the size of the pool.
#![cfg(feature = "tool")]

mod tool_support;

use heapscan_fixtures::generate::{self, PgbenchOptions};
use std::{fmt::Write, path::PathBuf, sync::OnceLock};
use tool_support::{refusal, run, stderr, stdout, tool};

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
            for (pool, bytes) in [("128kB", 128u64 << 10), ("8MB", 8 << 20)] {
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
                    "--stats",
                    "json",
                ];
                args.extend_from_slice(more);
                let output = run(&args);
                assert!(output.status.success(), "{args:?}: {}", stderr(&output));
                assert_eq!(String::from_utf8_lossy(&output.stdout), expected(), "{args:?}");
                let stats: serde_json::Value = serde_json::from_slice(&output.stderr).unwrap();
                assert_eq!(stats["method"]["used"], method, "{args:?}");
                assert_faults_happened(plan, method, &stats["io"]);
            }
        }
    }
}

/// A plan that does nothing would make the test pass for nothing.
fn assert_faults_happened(plan: &str, method: &str, io: &serde_json::Value) {
    let what = format!("{method} {plan}: {io}");
    let count = |key: &str| io[key].as_u64().unwrap();
    assert_eq!(count("errors"), 0, "{what}");
    assert_eq!(count("retries_short") > 0, plan.contains("short"), "{what}");
    // A blocking read of worker is interrupted, but never told to come again; sync may block throughout.
    let blocks = matches!(method, "sync" | "worker");
    if plan.contains("eintr") && !blocks {
        assert!(count("retries_eintr") > 0, "{what}");
    }
    if plan.contains("eagain") && !blocks {
        assert!(count("retries_eagain") > 0, "{what}");
    }
}

/// Every row of the tables, not only sums: what `pgbench -i` writes is known.
#[test]
fn rows_are_those_of_pgbench() {
    let scale = scale();
    let mut accounts = String::new();
    for aid in 1..=scale * 100_000 {
        writeln!(accounts, "{aid}\t{}\t0\t{:84}", (aid - 1) / 100_000 + 1, "").unwrap();
    }
    let tellers: String = (1..=scale * 10).map(|tid| format!("{tid}\t{}\t0\t\\N\n", (tid - 1) / 10 + 1)).collect();
    let branches: String = (1..=scale).map(|bid| format!("{bid}\t0\t\\N\n")).collect();
    for method in METHODS.into_iter().filter(|m| usable(m)) {
        for (table, rows) in [
            ("pgbench_accounts", &accounts),
            ("pgbench_tellers", &tellers),
            ("pgbench_branches", &branches),
            ("pgbench_history", &String::new()),
        ] {
            let how = ["--io-method", method, "--shared-buffers", "128kB"];
            let printed = stdout(&[&["scan", cluster(), table], &how[..]].concat());
            assert!(printed == rows.as_bytes(), "{method} {table}");
        }
    }
}

/// One bad place of the table: the rows before it were printed, the error says where it is.
#[test]
fn a_bad_sector_names_file_and_block() {
    // Catalogs are not this long, and the table is.
    let at = 30_000_000u64;
    let relation = heapscan::Engine::open(cluster(), heapscan::EngineOptions::default())
        .and_then(|engine| engine.database(None)?.table("pgbench_accounts"))
        .unwrap();
    let block = u32::try_from(at / 8192).unwrap();
    let file = relation.fork().path_of(block).display().to_string();
    for method in METHODS.into_iter().filter(|m| usable(m)) {
        for more in [&[][..], &["--io-direct"]] {
            let plan = format!("eio_at={at}");
            let output = tool(&["scan", cluster(), "pgbench_accounts", "--io-method", method, "--io-fault", &plan])
                .args(more)
                .output()
                .unwrap();
            let said = stderr(&output);
            assert_eq!((output.status.code(), said.lines().count()), (Some(1), 1), "{method}: {said}");
            assert!(said.contains(&file) && said.contains("Input/output error (os error 5)"), "{method}: {said}");
            assert!(said.contains(&format!("block {block}:")), "{method}: {said}");
            // 61 rows a page.
            let expected: usize = 61 * 3662;
            let rows = output.stdout.iter().filter(|&&b| b == b'\n').count();
            assert_eq!((rows, block), (expected, 3662), "{method}: the rows before the bad block");
            assert!(output.stdout.ends_with(b"\n"), "{method}: whole rows");
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
