//! What the IO methods promise a scan: the same blocks and rows whatever reads, few system calls, and a report of what
//! was asked for and not had.

use heapscan::{
    Engine, EngineOptions, FaultPlan, MethodChoice, MethodName, RegisteredBuffers, RowFormat, ScanStats,
    stream::{ReadStream, StreamOptions},
};

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

/// A relation of `blocks` blocks in a file of its own, on a disk.
fn plain_relation(blocks: u32) -> (tempfile::TempDir, std::sync::Arc<heapscan::RelationFork>) {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    let path = dir.path().join("16384");
    // Not sparse: holes are read without the device.
    std::fs::write(&path, vec![0x5a; blocks as usize * 8192]).expect("write");
    let how = heapscan_io::OpenFileOptions { direct: true, ..Default::default() };
    let fork = heapscan::RelationFork::open(&path, 8192, 131_072, how).expect("a relation");
    std::fs::File::open(&path).and_then(|file| file.sync_all()).expect("sync");
    (dir, std::sync::Arc::new(fork))
}

/// System calls for each byte, whether the consumer is faster or slower than the device.
#[test]
fn sequential_direct_reads_enter_the_kernel_once_for_two_megabytes() {
    let blocks = 12_288;
    let (_dir, fork) = plain_relation(blocks);
    for method in [MethodName::IoUring, MethodName::TokioUring] {
        if !methods().contains(&method) {
            continue;
        }
        for slow in [false, true] {
            let io = options(method).io;
            let config = heapscan::pool::PoolConfig::new(8192);
            let open = |completer| Ok(heapscan_io::open(&io, completer)?.method);
            let pool = std::sync::Arc::new(heapscan::pool::BufferPool::new(config, open).expect("a pool"));
            let relation = pool.register(std::sync::Arc::clone(&fork)).expect("registered");
            if !fork.locate(0).expect("block 0").file.is_direct() {
                return skip("direct", "the file system has no direct IO");
            }
            let settings = StreamOptions::new(pool.config(), pool.strategy_for(blocks));
            let mut stream =
                ReadStream::new(std::sync::Arc::clone(&pool), relation, 0..blocks, settings).expect("a stream");
            while let Some(page) = stream.next_page() {
                let page = page.expect("a page");
                if slow && page.block().is_multiple_of(16) {
                    std::thread::sleep(std::time::Duration::from_micros(500));
                }
            }
            let (io, stats) = (stream.metrics(), pool.io_stats());
            assert_eq!((io.bytes_read, io.hits), (u64::from(blocks) * 8192, 0));
            // Beginning from one block: reads of 1 to 16 blocks, then 1 to 48 reads ahead. A device that is busy with
            // other things lets waits for many completions end early, after 5 ms.
            let ramp = 32;
            let late = stats.wait_nanos / 1_000_000;
            let bound = io.bytes_read / (2 << 20) + ramp;
            let what = format!("{method}, slow {slow}: {io:?} {stats:?}");
            if method == MethodName::IoUring {
                assert!(io.submits <= bound && stats.enters > 0 && stats.enters <= bound + late, "{what}");
            } else {
                // A runtime wakes the scan for each completion; still, most reads share a hand-over.
                assert!(io.submits <= io.reads * 3 / 4, "{what}");
            }
        }
    }
}

#[test]
fn small_reads_have_more_of_them_in_flight_unless_told_otherwise() {
    let snapshot = snapshot();
    for method in methods().into_iter().filter(|&m| m != MethodName::Sync) {
        for (limit, asked, range) in [(8192, None, 33..=128), (8192, Some(16), 1..=16), (128 << 10, None, 1..=48)] {
            let mut options =
                EngineOptions { io_direct: true, io_combine_limit: limit, shared_buffers: 64 << 20, ..options(method) };
            options.effective_io_concurrency = asked.unwrap_or(options.effective_io_concurrency);
            let outcome = scan(&snapshot, options, 0..1640);
            if !outcome.direct {
                return skip("direct", outcome.note.as_deref().unwrap_or("no note"));
            }
            let most = outcome.stats.io.max_in_flight;
            assert!(range.contains(&most), "{method} {limit} {asked:?}: {most} in flight");
        }
    }
}

/// Reads of one block, several at a time all along: that is what makes them fast.
#[test]
fn single_blocks_are_read_with_many_in_flight() {
    let blocks = 4096;
    let (_dir, fork) = plain_relation(blocks);
    for method in methods().into_iter().filter(|&m| m != MethodName::Sync) {
        for slow in [false, true] {
            let io = options(method).io;
            let config = heapscan::pool::PoolConfig { io_combine_limit: 1, ..heapscan::pool::PoolConfig::new(8192) };
            let open = |completer| Ok(heapscan_io::open(&io, completer)?.method);
            let pool = std::sync::Arc::new(heapscan::pool::BufferPool::new(config, open).expect("a pool"));
            let relation = pool.register(std::sync::Arc::clone(&fork)).expect("registered");
            let settings = StreamOptions::new(pool.config(), pool.strategy_for(blocks));
            let mut stream =
                ReadStream::new(std::sync::Arc::clone(&pool), relation, 0..blocks, settings).expect("a stream");
            while let Some(page) = stream.next_page() {
                let page = page.expect("a page");
                if slow && page.block().is_multiple_of(16) {
                    std::thread::sleep(std::time::Duration::from_micros(200));
                }
            }
            let io = stream.metrics();
            let what = format!("{method}, slow {slow}: {io:?}");
            assert_eq!(io.reads, u64::from(blocks), "{what}");
            assert!((32..=128).contains(&io.max_in_flight), "{what}");
            assert!(method != MethodName::IoUring || io.submits <= io.reads / 16 + 64, "{what}");
        }
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
