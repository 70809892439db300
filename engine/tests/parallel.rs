//! Scans by several threads give what one thread gives.

mod method_support;
mod tool_support;

use heapscan::{
    ErrorKind, MethodName, OnCorruption, Predicate, RowFormat, ScanBuilder, Table, ThreadReports, aggregate,
    arrow::BatchOptions, visibility::Rows,
};
use heapscan_fixtures::{Snapshot, corpus, pgbench};
use method_support::{Random, accounts, fault, methods, options, own_cluster};
use std::time::{Duration, Instant};
use tool_support::{first_difference, patch, stderr, stdout};

const SIXTEEN_FRAMES: u64 = 16;
const LARGE: u64 = (64 << 20) / 8192;
/// Tables of the corpus with some blocks, with TOAST, with changed columns, and small ones.
const TABLES: [&str; 7] =
    ["sh_fill10", "sz_narrow", "sh_varlena", "sh_wide", "sz_all_deleted", "sh_missing", "ty_jsonb"];

/// Tables with what is hard: wide rows, TOAST, all types, dead rows, empty ones; and one with many blocks.
fn oracles(snapshot: &Snapshot) -> Vec<(u32, String, Vec<u8>)> {
    let wanted = |name: &str| !matches!(name, "ext_types" | "sh_genvirtual");
    snapshot
        .tables()
        .iter()
        .filter(|t| t.schema != "pg_catalog" && wanted(&t.name))
        .map(|t| (t.oid, t.name.clone(), snapshot.oracle_without_ctid(t.oid).expect("oracle")))
        .collect()
}

fn lines(text: &[u8]) -> Vec<&[u8]> {
    let mut lines: Vec<&[u8]> = text.split(|&c| c == b'\n').collect();
    lines.sort_unstable();
    lines
}

/// These tables of a snapshot, with these methods and pool sizes, thread counts in turn.
fn matrix(
    snapshot: &Snapshot,
    oracles: &[(u32, String, Vec<u8>)],
    methods: &[MethodName],
    pools: &[u64],
    counts: &[usize],
) {
    assert!(!oracles.is_empty());
    for &method in methods {
        for &frames in pools {
            let mut options = options(method, frames);
            options.follow_tablespace_links = true;
            let engine = heapscan::Engine::open(snapshot.data_dir(), options).expect("open");
            let database = engine.database(None).expect("database");
            for (i, (oid, name, expected)) in oracles.iter().enumerate() {
                let table = database.table(&format!("oid:{oid}")).expect("table");
                // All counts for tables of some size, the others in turn: threads need blocks.
                let counts = if table.blocks() > 40 { counts } else { &counts[i % counts.len()..][..1] };
                for &threads in counts {
                    let what = format!("{name}, {method}, {frames} frames, {threads} threads");
                    let mut printed = Vec::new();
                    let stats = table
                        .scan()
                        .threads(threads)
                        .write_rows(RowFormat::Text, &mut printed)
                        .unwrap_or_else(|e| panic!("{what}: {e}"));
                    assert!(printed == *expected, "{what}: {}", first_difference(&printed, expected));
                    assert_eq!(stats.pages, u64::from(table.blocks()), "{what}");
                    if table.blocks() <= 40 {
                        continue;
                    }
                    let mut any = Vec::new();
                    let unordered = table.scan().threads(threads).unordered(true);
                    unordered.write_rows(RowFormat::Text, &mut any).unwrap_or_else(|e| panic!("{what}: {e}"));
                    assert!(lines(&any) == lines(expected), "{what}: not the same rows");
                }
            }
            assert_eq!(engine.pool().pinned_frames(), 0);
        }
    }
}

/// A few tables of the corpus, one method: what differs with methods, `pgbench_tables_with_one_to_eight_threads` sees.
#[test]
fn text_is_what_the_server_prints() {
    let snapshot = corpus("corpus-small-18").and_then(|f| f.snapshot("clean")).expect("fixture");
    let mut tables = oracles(&snapshot);
    tables.retain(|(_, name, _)| TABLES.contains(&name.as_str()));
    assert_eq!(tables.len(), TABLES.len());
    matrix(&snapshot, &tables, &methods()[..1], &[LARGE], &[3, 8]);
}

#[test]
fn pgbench_tables_with_one_to_eight_threads() {
    let snapshot = pgbench().and_then(|f| f.snapshot("clean")).expect("fixture");
    let pools = [SIXTEEN_FRAMES, LARGE];
    matrix(&snapshot, &oracles(&snapshot), &methods(), &pools, &[1, 2, 3, 4, 5, 6, 7, 8]);
}

fn text(table: &Table, threads: usize) -> Vec<u8> {
    let mut printed = Vec::new();
    table.scan().threads(threads).write_rows(RowFormat::Text, &mut printed).expect("a scan");
    printed
}

#[test]
fn aggregates_are_those_of_one_thread_to_the_last_bit() {
    let snapshot = corpus("corpus-small-18").and_then(|f| f.snapshot("clean")).expect("fixture");
    let mut options = options(methods()[0], LARGE);
    options.follow_tablespace_links = true;
    let engine = heapscan::Engine::open(snapshot.data_dir(), options).expect("open");
    let database = engine.database(None).expect("database");
    let (mut compared, mut floats, mut expressions) = (0, 0, 0);
    for (oid, name, _) in oracles(&snapshot) {
        let table = database.table(&format!("oid:{oid}")).expect("table");
        let mut calls = aggregate::parse("count(*)").expect("calls");
        for column in table.columns() {
            for function in ["count", "sum", "min", "max"] {
                let quoted = column.name.replace('"', "\"\"");
                let call = aggregate::parse(&format!("{function}(\"{quoted}\")")).expect("a call");
                if table.scan().blocks(0..0).aggregate(&call).is_ok() {
                    floats += usize::from(column.type_name.starts_with("float") && function == "sum");
                    calls.extend(call);
                }
            }
            let quoted = column.name.replace('"', "\"\"");
            let call = aggregate::parse(&format!("sum(\"{quoted}\" * 2 + 1)")).expect("a call");
            if table.scan().blocks(0..0).aggregate(&call).is_ok() {
                expressions += usize::from(column.type_name.starts_with("float"));
                calls.extend(call);
            }
        }
        let serial = table.scan().aggregate(&calls).map(|a| (a.values, a.stats.rows));
        for threads in [2, 5] {
            let parallel = table.scan().threads(threads).aggregate(&calls).map(|a| (a.values, a.stats.rows));
            match (&serial, parallel) {
                (Ok(serial), Ok(parallel)) => {
                    assert_eq!(*serial, parallel, "{name}, {threads} threads");
                    compared += 1;
                }
                (Err(serial), Err(parallel)) => assert_eq!(serial.to_string(), parallel.to_string(), "{name}"),
                (serial, parallel) => panic!("{name}: {serial:?}, {parallel:?}"),
            }
        }
    }
    assert!(
        compared > 20 && floats > 0 && expressions > 0,
        "{compared} tables, {floats}, {expressions} sums of floats"
    );
}

#[test]
fn limits_and_block_ranges() {
    let snapshot = pgbench().and_then(|f| f.snapshot("clean")).expect("fixture");
    let (_engine, table) = accounts(snapshot.data_dir(), options(methods()[0], LARGE));
    for (limit, blocks) in [(0, 0..9999), (1, 0..9999), (70_000, 0..9999), (1_000_000, 100..1500), (30_000, 7..1200)] {
        for format in [RowFormat::Text, RowFormat::Csv, RowFormat::Json] {
            let scan = || table.scan().blocks(blocks.clone()).limit(limit);
            let (mut serial, mut parallel) = (Vec::new(), Vec::new());
            let expected = scan().write_rows(format, &mut serial).expect("a scan");
            let stats = scan().threads(4).write_rows(format, &mut parallel).expect("a scan");
            assert_eq!(stats.rows, expected.rows);
            assert!(serial == parallel, "limit {limit}: {}", first_difference(&parallel, &serial));
        }
    }
    // A small limit is no reason to read much.
    let (engine, table) = accounts(snapshot.data_dir(), options(methods()[0], 128));
    let before = engine.pool_metrics().totals.blocks_read;
    table.scan().limit(1).threads(8).write_rows(RowFormat::Text, &mut std::io::sink()).expect("a scan");
    assert!(engine.pool_metrics().totals.blocks_read - before <= 32);
}

#[test]
fn batches_have_the_rows_in_order() {
    let snapshot = pgbench().and_then(|f| f.snapshot("clean")).expect("fixture");
    for method in methods() {
        let (engine, table) = accounts(snapshot.data_dir(), options(method, SIXTEEN_FRAMES));
        let batch_options = BatchOptions { max_rows: 1000, ..BatchOptions::default() };
        for (threads, limit) in [(1, None), (3, None), (8, None), (3, Some(50_000)), (3, Some(10))] {
            let mut scan = table.scan().columns(&["aid"]).threads(threads);
            if let Some(limit) = limit {
                scan = scan.limit(limit);
            }
            let mut batches = scan.parallel_batches(batch_options.clone()).expect("batches");
            let mut next = 1;
            for batch in &mut batches {
                let batch = batch.expect("a batch");
                assert!(batch.num_rows() > 0 && batch.num_rows() <= 1000);
                let column = batch.column(0).as_any().downcast_ref::<arrow_array::Int32Array>().expect("int4");
                for value in column.values() {
                    assert_eq!(*value, next, "{method}, {threads} threads");
                    next += 1;
                }
            }
            assert_eq!(next - 1, limit.unwrap_or(100_000) as i32, "{method}, {threads} threads");
        }
        // Dropped at any moment.
        let mut random = Random(4711);
        for _ in 0..50 {
            let mut batches =
                table.scan().threads(1 + random.below(6) as usize).parallel_batches(batch_options.clone()).expect("x");
            for _ in 0..random.below(20) {
                batches.next().expect("a batch").expect("a batch");
            }
        }
        let deadline = Instant::now() + Duration::from_secs(10);
        while engine.pool().pinned_frames() > 0 || engine.pool_metrics().open_streams > 0 {
            assert!(Instant::now() < deadline, "{method}: frames stay pinned");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

#[test]
fn the_first_error_in_block_order_wins() {
    let (_dir, made) = own_cluster(1);
    let file = accounts(&made.data_dir, options(methods()[0], LARGE)).1.fork().path().to_owned();
    let whole = text(&accounts(&made.data_dir, options(methods()[0], LARGE)).1, 1);
    patch(&file, |bytes| {
        for block in [1200, 777, 1500] {
            bytes[block * 8192 + 4000] ^= 1;
        }
    });
    for method in methods() {
        for frames in [SIXTEEN_FRAMES, LARGE] {
            let (engine, table) = accounts(&made.data_dir, options(method, frames));
            let mut before = Vec::new();
            let serial = table.scan().write_rows(RowFormat::Text, &mut before).expect_err("damage").to_string();
            assert!(whole.starts_with(&before) && before.len() < whole.len());
            for threads in [2, 4, 7] {
                let what = format!("{method}, {frames} frames, {threads} threads");
                let mut printed = Vec::new();
                let error = table.scan().threads(threads).write_rows(RowFormat::Text, &mut printed).expect_err(&what);
                assert_eq!((error.kind(), error.block()), (ErrorKind::Checksum, Some(777)), "{what}");
                assert_eq!(error.to_string(), serial, "{what}");
                assert!(printed == before, "{what}: {}", first_difference(&printed, &before));
                let calls = aggregate::parse("sum(abalance)").expect("calls");
                let error = table.scan().threads(threads).aggregate(&calls).expect_err(&what);
                assert_eq!(error.block(), Some(777), "{what}");
                let unordered = table.scan().threads(threads).unordered(true);
                let error = unordered.write_rows(RowFormat::Text, &mut std::io::sink()).expect_err(&what);
                assert_eq!(error.block(), Some(777), "{what}");
            }
            assert_eq!((engine.pool().pinned_frames(), engine.pool_metrics().open_streams), (0, 0), "{method}");
        }
    }
}

#[test]
fn faults_of_the_reads_change_nothing() {
    let snapshot = pgbench().and_then(|f| f.snapshot("clean")).expect("fixture");
    let mut expected = None;
    for method in methods() {
        for plan in ["seed=1,short=0.3,eintr=0.2,eagain=0.1,reorder", "seed=2,delay=200us,reorder"] {
            let mut options = options(method, 64);
            fault(&mut options, plan);
            let (_engine, table) = accounts(snapshot.data_dir(), options);
            let expected =
                expected.get_or_insert_with(|| snapshot.oracle_without_ctid(table.info().oid).expect("oracle"));
            assert!(text(&table, 4) == *expected, "{method}, {plan}");
        }
    }
}

#[test]
fn many_scans_with_many_threads_share_sixteen_frames() {
    let snapshot = pgbench().and_then(|f| f.snapshot("clean")).expect("fixture");
    for method in methods() {
        let (engine, table) = accounts(snapshot.data_dir(), options(method, SIXTEEN_FRAMES));
        let calls = aggregate::parse("count(*),sum(aid)").expect("calls");
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let sums = table.scan().threads(3).aggregate(&calls).expect("a scan");
                    assert_eq!(sums.values, [Some("100000".to_owned()), Some("5000050000".to_owned())]);
                });
            }
        });
        assert_eq!((engine.pool().pinned_frames(), engine.pool_metrics().open_streams), (0, 0), "{method}");
    }
}

#[test]
fn each_thread_reports_what_it_did() {
    let snapshot = pgbench().and_then(|f| f.snapshot("clean")).expect("fixture");
    let (_engine, table) = accounts(snapshot.data_dir(), options(methods()[0], LARGE));
    let reports = ThreadReports::default();
    let scan = table.scan().threads(3).thread_reports(&reports);
    let stats = scan.write_rows(RowFormat::Text, &mut std::io::sink()).expect("a scan");
    let threads = reports.get();
    assert_eq!(threads.iter().map(|t| t.thread).collect::<Vec<_>>(), [0, 1, 2]);
    assert_eq!(threads.iter().map(|t| t.stats.rows).sum::<u64>(), 100_000);
    assert_eq!(threads.iter().map(|t| t.stats.pages).sum::<u64>(), stats.pages);
    assert!(threads.iter().map(|t| t.chunks).sum::<u64>() > 3);
    // The tool shows it.
    let data_dir = snapshot.data_dir().display().to_string();
    let scan = ["scan", &data_dir, "pgbench_accounts"];
    let serial = stdout(&scan);
    assert!(stdout(&[&scan[..], &["--threads", "3"]].concat()) == serial);
    let output = tool_support::run(&[&scan[..], &["--threads", "2", "--agg", "count(*)", "--stats", "text"]].concat());
    assert_eq!(output.stdout, b"100000\n");
    assert!(stderr(&output).contains("thread 1"), "{}", stderr(&output));
}

#[test]
fn a_scan_that_is_cancelled_or_not_read_ends() {
    struct Full(usize);
    impl std::io::Write for Full {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0 = self.0.checked_sub(1).ok_or_else(|| std::io::Error::from_raw_os_error(libc::ENOSPC))?;
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let snapshot = pgbench().and_then(|f| f.snapshot("clean")).expect("fixture");
    for method in methods() {
        let (engine, table) = accounts(snapshot.data_dir(), options(method, SIXTEEN_FRAMES));
        for writes in [0, 1, 5] {
            let error = table.scan().threads(4).write_rows(RowFormat::Text, &mut Full(writes)).expect_err("full");
            assert_eq!(error.errno(), Some(libc::ENOSPC), "{method}: {error}");
        }
        assert_eq!((engine.pool().pinned_frames(), engine.pool_metrics().open_streams), (0, 0), "{method}");
    }
}

/// Text, aggregates and batches of a scan with filters, row versions and system columns are those of one thread.
#[test]
fn filters_row_versions_and_system_columns() {
    let (_dir, made) = own_cluster(1);
    for method in methods() {
        let (_engine, table) = accounts(&made.data_dir, options(method, LARGE));
        let filters = ["aid between 5000 and 70000 or aid in (7, 90000)", "aid < 0", "aid > 99990 and filler like '%'"];
        let calls = aggregate::parse("count(*),sum(aid * 2 + 1),min(aid),max(aid),sum(aid * 1.5)").expect("calls");
        let mut rows = 0;
        for filter in filters {
            for visible in [Rows::Committed, Rows::All, Rows::Dead] {
                let scan = || {
                    let filter: Predicate = filter.parse().expect("a predicate");
                    table.scan().columns(&["ctid", "aid", "xmin"]).filter(filter).visibility(visible)
                };
                for threads in [2, 5] {
                    let what = format!("{method}, {filter}, {visible:?}, {threads} threads");
                    let print = |scan: ScanBuilder| {
                        let mut printed = Vec::new();
                        let stats = scan.write_rows(RowFormat::Text, &mut printed).expect("a scan");
                        (printed, stats)
                    };
                    let (serial, expected) = print(scan());
                    let (printed, stats) = print(scan().threads(threads));
                    assert!(printed == serial, "{what}: {}", first_difference(&printed, &serial));
                    assert_eq!((stats.rows, stats.filtered), (expected.rows, expected.filtered), "{what}");
                    rows += stats.rows;
                    let limited = |scan: ScanBuilder| print(scan.limit(6000)).0;
                    assert!(limited(scan().threads(threads)) == limited(scan()), "{what}, with a limit");
                    assert!(lines(&print(scan().threads(threads).unordered(true)).0) == lines(&serial), "{what}");
                    let values = |scan: ScanBuilder| scan.aggregate(&calls).expect("a scan").values;
                    assert_eq!(values(scan().threads(threads)), values(scan()), "{what}");
                    let count = |scan: ScanBuilder| {
                        let batches = scan.parallel_batches(BatchOptions::default()).expect("batches");
                        batches.map(|batch| batch.expect("a batch").num_rows() as u64).sum::<u64>()
                    };
                    assert_eq!(count(scan().threads(threads)), expected.rows, "{what}");
                }
            }
        }
        assert!(rows > 0);
        let wrong = || table.scan().filter("nothing = 1".parse().expect("a predicate"));
        let error = |scan: ScanBuilder| scan.write_rows(RowFormat::Csv, &mut Vec::new()).expect_err("x").to_string();
        assert_eq!(error(wrong().threads(3)), error(wrong()), "{method}");
    }
}

#[test]
fn where_threads_do_not_help_one_is_used_and_it_is_said() {
    let (_dir, made) = own_cluster(1);
    let file = accounts(&made.data_dir, options(methods()[0], LARGE)).1.fork().path().to_owned();
    patch(&file, |bytes| [1200, 777].iter().for_each(|block| bytes[block * 8192 + 4000] ^= 1));
    let data_dir = made.data_dir.display().to_string();
    let scan = ["scan", &data_dir, "pgbench_accounts"];
    for method in methods() {
        let mut options = options(method, LARGE);
        options.on_corruption = OnCorruption::Skip;
        let (engine, table) = accounts(&made.data_dir, options);
        let reports = ThreadReports::default();
        assert_eq!(table.scan().threads_note(), None);
        let parallel = table.scan().threads(4).thread_reports(&reports);
        assert!(parallel.threads_note().expect("a note").contains("by 1 thread instead of 4"));
        assert_eq!(parallel.notes().len(), 1);
        let stats = parallel.write_rows(RowFormat::Text, &mut std::io::sink()).expect("a scan");
        assert_eq!((stats.damaged_pages, reports.get().len()), (2, 0), "{method}");
        let blocks: Vec<_> = engine.damage().list().iter().map(|damage| damage.block).collect();
        assert_eq!(blocks, [Some(777), Some(1200)], "{method}");
    }
    let more = ["--threads", "3", "--on-corruption", "skip", "--agg", "count(*)", "--stats", "text"];
    let output = tool_support::run(&[&scan[..], &more].concat());
    let said = stderr(&output);
    assert_eq!(said.matches("by 1 thread instead of 3").count(), 1, "{said}");
    assert!(said.contains("threads         1 (asked: 3)"), "{said}");
    // One thread has no other order.
    for threads in [&["--threads", "1"][..], &[]] {
        let output = tool_support::run(&[&scan[..], &["--unordered"], threads].concat());
        assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    }
}
