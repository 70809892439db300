//! What the IO methods promise a scan: the same blocks and rows whatever reads, few system calls, and a report of what
//! was asked for and not had.

use heapscan::{Engine, EngineOptions, FaultPlan, MethodChoice, MethodName, RegisteredBuffers, RowFormat, ScanStats};
use heapscan_fixtures::{Snapshot, pgbench};
use proptest::prelude::*;
use std::io::Write;

const TABLE: &str = "pgbench_accounts";

fn methods() -> Vec<MethodName> {
    let usable = heapscan::probe_methods();
    let is_usable = |name: &MethodName| {
        let status = usable.iter().find(|s| s.name == name.as_str()).expect("each method has a status");
        if !status.usable {
            skip(name.as_str(), status.reason.as_deref().unwrap_or("no reason given"));
        }
        status.usable
    };
    MethodName::ALL.into_iter().filter(is_usable).collect()
}

/// Says that something was not tested, unless HEAPSCAN_REQUIRE names it.
fn skip(what: &str, reason: &str) {
    let required = std::env::var("HEAPSCAN_REQUIRE").unwrap_or_default();
    assert!(!required.split(',').any(|r| r == what), "{what} is required: {reason}");
    let _ = writeln!(std::io::stderr(), "SKIP {what}: {reason}");
}

fn snapshot() -> Snapshot {
    pgbench().and_then(|f| f.snapshot("clean")).expect("fixture")
}

fn options(method: MethodName) -> EngineOptions {
    let mut options = EngineOptions { shared_buffers: 4 << 20, ..EngineOptions::default() };
    options.io.method = MethodChoice::Named(method);
    options
}

struct Outcome {
    engine: Engine,
    rows: Vec<u8>,
    stats: ScanStats,
    direct: bool,
    uncached: bool,
    note: Option<String>,
}

impl Outcome {
    fn detail(&self, key: &str) -> Option<&str> {
        self.engine.method().details.iter().find(|(name, _)| name == key).map(|(_, value)| value.as_str())
    }
}

fn scan(snapshot: &Snapshot, options: EngineOptions, blocks: std::ops::Range<u32>) -> Outcome {
    let engine = Engine::open(snapshot.data_dir(), options).expect("open");
    let table = engine.database(None).expect("database").table(TABLE).expect("table");
    let mut rows = Vec::new();
    let stats = table.scan().blocks(blocks).write_rows(RowFormat::Text, &mut rows).expect("rows");
    let (direct, uncached, note) = (table.is_direct(), table.is_uncached(), table.io_note());
    Outcome { engine, rows, stats, direct, uncached, note }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 6, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn rows_blocks_and_bytes_are_the_same_for_all_methods(
        from in 0u32..1000,
        length in 0u32..700,
        combine in 1u64..=32,
        effective_io_concurrency in prop::sample::select(vec![0u32, 1, 2, 16, 32, 100]),
        pool_blocks in prop::sample::select(vec![16u64, 100, 4000]),
        direct: bool,
    ) {
        let snapshot = snapshot();
        let mut first: Option<Outcome> = None;
        for method in methods() {
            let options = EngineOptions {
                shared_buffers: pool_blocks * 8192,
                io_combine_limit: combine * 8192,
                effective_io_concurrency,
                io_direct: direct,
                ..options(method)
            };
            let outcome = scan(&snapshot, options, from..from + length);
            let io = outcome.engine.io_stats();
            prop_assert_eq!(outcome.engine.io_latency().count, io.requests, "{}", method);
            prop_assert_eq!((io.errors, io.stale_completions), (0, 0));
            let s = &outcome.stats;
            prop_assert_eq!(s.io.bytes_read, s.io.blocks_read * 8192);
            if let Some(first) = &first {
                prop_assert!(outcome.rows == first.rows, "{} prints other rows", method);
                let logical = |s: &ScanStats| (s.rows, s.tuples, s.pages, s.io.blocks_read, s.io.bytes_read, s.io.hits);
                prop_assert_eq!(logical(s), logical(&first.stats), "{}", method);
            } else {
                first = Some(outcome);
            }
        }
    }
}

#[test]
fn sequential_direct_reads_are_handed_over_two_megabytes_at_a_time() {
    let snapshot = snapshot();
    for method in [MethodName::IoUring, MethodName::TokioUring] {
        if !methods().contains(&method) {
            continue;
        }
        let options = EngineOptions { io_direct: true, shared_buffers: 64 << 20, ..options(method) };
        let outcome = scan(&snapshot, options, 0..u32::MAX);
        if !outcome.direct {
            return skip("direct", outcome.note.as_deref().unwrap_or("no note"));
        }
        let io = &outcome.stats.io;
        // Beginning from one block: reads of 1 to 16 blocks, then 1 to 32 reads ahead.
        let ramp = 12;
        assert!(io.bytes_read > 10 << 20, "{io:?}");
        assert!(io.submits <= io.bytes_read / (2 << 20) + ramp, "{method}: {io:?}");
    }
}

#[test]
fn a_file_system_without_direct_io_is_read_buffered_and_the_report_says_so() {
    let snapshot = snapshot();
    let plain = scan(&snapshot, options(MethodName::Sync), 0..300);
    assert!(!plain.direct && plain.note.is_none());
    for method in methods() {
        let direct = scan(&snapshot, EngineOptions { io_direct: true, ..options(method) }, 0..300);
        if !direct.direct {
            return skip("direct", direct.note.as_deref().unwrap_or("no note"));
        }
        assert!(direct.note.is_none() && direct.engine.io_stats().direct_refused == 0);
        let mut options = EngineOptions { io_direct: true, ..options(method) };
        options.io.fault = Some("seed=1,no_direct".parse::<FaultPlan>().expect("a plan"));
        let refused = scan(&snapshot, options, 0..300);
        assert!(refused.rows == plain.rows && direct.rows == plain.rows, "{method}");
        assert!(!refused.direct, "{method}");
        assert!(refused.note.as_deref().is_some_and(|note| note.contains("EINVAL")), "{method}: {:?}", refused.note);
        assert!(refused.engine.io_stats().direct_refused >= 1, "{method}");
    }
}

#[test]
fn uncached_reads_bring_the_same_or_say_why_not() {
    let snapshot = snapshot();
    let plain = scan(&snapshot, options(MethodName::Sync), 0..300);
    for method in methods() {
        let outcome = scan(&snapshot, EngineOptions { io_uncached: true, ..options(method) }, 0..300);
        assert!(outcome.rows == plain.rows, "{method}");
        assert_eq!(outcome.uncached, outcome.note.is_none(), "{method}: {:?}", outcome.note);
        if let Some(note) = &outcome.note {
            assert!(note.contains("RWF_DONTCACHE"), "{note}");
            skip("uncached", note);
        }
        // Direct reads have nothing to leave behind.
        let both = EngineOptions { io_uncached: true, io_direct: true, ..options(method) };
        let outcome = scan(&snapshot, both, 0..10);
        assert!(!(outcome.uncached && outcome.direct));
    }
}

#[test]
fn polling_is_used_or_refused_with_the_reason() {
    if !methods().contains(&MethodName::IoUring) {
        return;
    }
    let snapshot = snapshot();
    let plain = scan(&snapshot, options(MethodName::Sync), 0..300);
    let mut with = EngineOptions { io_direct: true, ..options(MethodName::IoUring) };
    with.io.sqpoll = true;
    with.io.iopoll = true;
    let outcome = scan(&snapshot, with, 0..300);
    assert!(outcome.rows == plain.rows);
    let iopoll = outcome.detail("iopoll").expect("said");
    assert!(iopoll == "used" || iopoll.contains("pg_control: "), "the cluster's device was asked: {iopoll}");
    let sqpoll = outcome.detail("sqpoll").expect("said");
    assert!(sqpoll == "used" || sqpoll.starts_with("asked for, not used: "), "{sqpoll}");
    assert_eq!(scan(&snapshot, options(MethodName::IoUring), 0..1).detail("iopoll"), None);
}

#[test]
fn the_pool_is_registered_when_asked_and_reads_are_the_same() {
    let snapshot = snapshot();
    let plain = scan(&snapshot, options(MethodName::Sync), 0..600);
    for method in methods() {
        let mut with = EngineOptions { io_direct: true, ..options(method) };
        with.io.lanes = Some(3);
        with.io.registered_buffers = RegisteredBuffers::Auto;
        let outcome = scan(&snapshot, with, 0..600);
        assert!(outcome.rows == plain.rows, "{method}");
        let buffers = outcome.detail("buffers").expect("said");
        match method {
            MethodName::IoUring if buffers.starts_with("registered") => assert!(buffers.contains("4 MiB"), "{buffers}"),
            MethodName::IoUring => skip("registered_buffers", buffers),
            _ => assert!(buffers.starts_with("plain: "), "{method}: {buffers}"),
        }
        // Buffered reads copy; there is nothing to pin.
        let mut buffered = options(method);
        buffered.io.registered_buffers = RegisteredBuffers::Auto;
        assert_eq!(scan(&snapshot, buffered, 0..1).detail("buffers"), None, "{method}");
    }
}
