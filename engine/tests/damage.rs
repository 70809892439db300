//! What `--on-corruption` makes of damage: rows that can be read come as they are, those that cannot are left out and
//! listed, and never is a wrong one given out. With every IO method.
#![cfg(feature = "tool")]

mod method_support;
mod tool_support;

use heapscan::{DamageKind, Engine, EngineOptions, ErrorKind, OnCorruption, Table};
use heapscan_fixtures::{Snapshot, checksum::page_checksum};
use method_support::{methods, options};
use std::{
    fs,
    io::Read,
    path::{Path, PathBuf},
    process::Stdio,
};
use tool_support::{copy, patch, pgbench_snapshot, refusal, run, snapshot, stderr, text, tool};

const BLOCK: usize = 8192;

fn file_of(snapshot: &Snapshot, data: &Path, table: &str) -> PathBuf {
    data.join(&snapshot.table("public", table).expect("table").path)
}

/// The lines of the server's answer whose ctid `keep` wants, without the ctid.
fn oracle(snapshot: &Snapshot, table: &str, keep: impl Fn(u32, u32) -> bool) -> Vec<u8> {
    let all = snapshot.oracle(snapshot.table("public", table).unwrap().oid).unwrap();
    let mut kept = Vec::new();
    for line in all.split_inclusive(|&b| b == b'\n') {
        let tab = line.iter().position(|&b| b == b'\t').unwrap();
        let ctid = std::str::from_utf8(&line[1..tab - 1]).unwrap();
        let (block, number) = ctid.split_once(',').unwrap();
        if keep(block.parse().unwrap(), number.parse().unwrap()) {
            kept.extend_from_slice(&line[tab + 1..]);
        }
    }
    kept
}

/// Makes the checksum of a page right again after it was changed.
fn seal(bytes: &mut [u8], block: usize) {
    let page = &mut bytes[block * BLOCK..(block + 1) * BLOCK];
    let sum = page_checksum(page, block as u32);
    page[8..10].copy_from_slice(&sum.to_le_bytes());
}

fn forgiving(method: heapscan::MethodName, policy: OnCorruption) -> EngineOptions {
    EngineOptions { on_corruption: policy, ..options(method, 64) }
}

fn open(data: &Path, table: &str, options: EngineOptions) -> (Engine, Table) {
    let engine = Engine::open(data, options).expect("open");
    let table = engine.database(None).expect("database").table(table).expect("table");
    (engine, table)
}

fn report(path: &Path) -> serde_json::Value {
    serde_json::from_slice(&fs::read(path).expect("a report")).expect("JSON")
}

/// Numbers of the blocks on the list of a report.
fn blocks(report: &serde_json::Value) -> Vec<u64> {
    report["damage"].as_array().unwrap().iter().map(|d| d["block"].as_u64().unwrap()).collect()
}

#[test]
fn h8_damaged_pages_are_an_error_left_out_or_taken_as_empty() {
    let snapshot = pgbench_snapshot();
    let (folder, data) = copy(&snapshot);
    let file = file_of(&snapshot, &data, "pgbench_accounts");
    // The checksum, the header, a row.
    patch(&file, |bytes| {
        bytes[3 * BLOCK + 8] ^= 1;
        bytes[9 * BLOCK + 13] ^= 0x20;
        bytes[700 * BLOCK + 5000] ^= 4;
    });
    let good = |block| ![3, 9, 700].contains(&block);
    let expected = oracle(&snapshot, "pgbench_accounts", |block, _| good(block));
    let list = folder.path().join("damage.json");
    for method in methods() {
        let args = ["scan", &text(&data), "pgbench_accounts", "--io-method", method.as_str()];
        let failed = tool(&args).args(["--damage-report", &text(&list)]).output().unwrap();
        assert!(failed.status.code() == Some(1) && stderr(&failed).contains("block 3"), "{}", stderr(&failed));
        assert_eq!(failed.stdout, oracle(&snapshot, "pgbench_accounts", |block, _| block < 3));
        assert_eq!(blocks(&report(&list)), [3]);
        for policy in ["skip", "zero"] {
            let rest = ["--on-corruption", policy, "--damage-report", &text(&list)];
            let output = tool(&args).args(rest).output().unwrap();
            assert_eq!(output.status.code(), Some(1), "incomplete: {}", stderr(&output));
            assert!(output.stdout == expected, "{method} {policy}");
            let said = stderr(&output);
            assert!(said.lines().count() == 1 && said.contains("3 blocks") && said.contains("block 3"), "{said}");
            let report = report(&list);
            assert_eq!(blocks(&report), [3, 9, 700]);
            assert_eq!((&report["totals"]["blocks"], &report["totals"]["rows"]), (&3.into(), &0.into()));
            let first = &report["damage"][0];
            assert_eq!((first["file"].as_str(), first["kind"].as_str()), (Some(text(&file).as_str()), Some("page")));
            assert!(first["reason"].as_str().unwrap().contains("checksum") && first["rows_lost"].is_null(), "{first}");
        }
        let output = tool(&args).args(["--on-corruption", "skip", "--agg", "count(*),sum(aid)"]).output().unwrap();
        let aids = expected
            .split(|&b| b == b'\n')
            .filter(|l| !l.is_empty())
            .map(|line| std::str::from_utf8(line).unwrap().split_once('\t').unwrap().0.parse::<u64>().unwrap());
        let answer = format!("{}\t{}\n", aids.clone().count(), aids.sum::<u64>());
        assert_eq!((output.status.code(), String::from_utf8(output.stdout).unwrap()), (Some(1), answer));
        // And through the API, into batches.
        let (engine, table) = open(&data, "pgbench_accounts", forgiving(method, OnCorruption::Skip));
        let mut batches = table.scan().batches(heapscan::arrow::BatchOptions::default()).unwrap();
        let rows: usize = (&mut batches).map(|batch| batch.expect("a batch").num_rows()).sum();
        assert_eq!(rows, expected.iter().filter(|&&b| b == b'\n').count());
        assert_eq!((batches.stats().scan.damaged_pages, engine.damage().totals().blocks), (3, 3));
    }
}

/// A writer was at work when the page was read; when it is read again it is right.
#[test]
fn h5_a_page_that_fails_is_read_once_more() {
    let snapshot = pgbench_snapshot();
    let (_folder, data) = copy(&snapshot);
    let file = file_of(&snapshot, &data, "pgbench_accounts");
    let whole = fs::read(&file).unwrap();
    let expected = oracle(&snapshot, "pgbench_accounts", |_, _| true);
    for method in methods() {
        for policy in [OnCorruption::Fail, OnCorruption::Skip, OnCorruption::Zero] {
            let (engine, table) =
                open(&data, "pgbench_accounts", EngineOptions { on_corruption: policy, ..options(method, 2048) });
            // Half of the page is what it was before, half what it will be.
            patch(&file, |bytes| bytes[5 * BLOCK + 4096..6 * BLOCK].fill(7));
            let relation = engine.pool().register(table.fork().clone()).unwrap();
            drop(engine.pool().read_block(relation, 5).unwrap());
            fs::write(&file, &whole).unwrap();
            let mut rows = Vec::new();
            let stats = table.scan().write_rows(heapscan::RowFormat::Text, &mut rows).expect("all is well");
            assert!(rows == expected, "{method} {policy}");
            assert_eq!((stats.reread_pages, stats.damaged_pages), (1, 0));
            assert_eq!((engine.damage().totals().reread, engine.damage().totals().any()), (1, false));
            // The right bytes are in the pool now.
            let again = table.scan().aggregate(&[]).unwrap();
            assert_eq!(again.stats.reread_pages, 0);
        }
        // One that is wrong both times, but not in the same way, is not called damaged without a word of doubt.
        let (engine, table) = open(&data, "pgbench_accounts", options(method, 2048));
        patch(&file, |bytes| bytes[5 * BLOCK + 4096..6 * BLOCK].fill(7));
        let relation = engine.pool().register(table.fork().clone()).unwrap();
        drop(engine.pool().read_block(relation, 5).unwrap());
        patch(&file, |bytes| bytes[5 * BLOCK + 4096..6 * BLOCK].fill(8));
        let error = table.scan().write_rows(heapscan::RowFormat::Text, &mut Vec::new()).expect_err("damaged");
        assert!(error.to_string().contains("changes while it is read") && error.block() == Some(5), "{error}");
        fs::write(&file, &whole).unwrap();
    }
}

/// Rows whose out-of-line values are not whole are left out, and no value is ever shortened or NULL instead.
#[test]
fn h20_rows_with_missing_chunks_are_left_out() {
    let snapshot = snapshot("small-18", "clean");
    let (_folder, data) = copy(&snapshot);
    let table = "to_external";
    let entry = snapshot.manifest().relation("public", table).expect("the table");
    let toast = data.join(&entry.toast.as_ref().expect("a TOAST table").path);
    // One zeroed page, which is valid and empty, and one damaged page.
    patch(&toast, |bytes| {
        bytes[..BLOCK].fill(0);
        bytes[4 * BLOCK + 100] ^= 1;
    });
    let all = oracle(&snapshot, table, |_, _| true);
    let lines: Vec<&[u8]> = all.split_inclusive(|&b| b == b'\n').collect();
    for method in methods() {
        for policy in ["fail", "zero"] {
            let args = ["scan", &text(&data), table, "--io-method", method.as_str(), "--on-corruption", policy];
            let output = run(&args);
            assert_eq!(output.status.code(), Some(1), "{policy}");
            let said = stderr(&output);
            assert!(policy == "fail" || said.contains("chunk"), "{said}");
        }
        let args = ["scan", &text(&data), table, "--io-method", method.as_str(), "--on-corruption", "skip"];
        let output = run(&args);
        assert_eq!(output.status.code(), Some(1));
        let came: Vec<&[u8]> = output.stdout.split_inclusive(|&b| b == b'\n').collect();
        assert!(came.len() < lines.len() && !came.is_empty(), "{} of {}", came.len(), lines.len());
        assert!(came.iter().all(|line| lines.contains(line)), "only rows as they were");
        let lost = (lines.len() - came.len()) as u64;
        // All ways to take the rows leave out the same ones.
        for format in ["csv", "json"] {
            let output = tool(&args).args(["--format", format]).output().unwrap();
            let count = output.stdout.iter().filter(|&&b| b == b'\n').count();
            assert_eq!(count, came.len() + usize::from(format == "csv"), "{format}");
        }
        let (engine, table) = open(&data, table, forgiving(method, OnCorruption::Skip));
        let mut batches = table.scan().batches(heapscan::arrow::BatchOptions::default()).unwrap();
        let rows: usize = (&mut batches).map(|batch| batch.expect("a batch").num_rows()).sum();
        assert_eq!((rows, batches.stats().scan.damaged_rows), (came.len(), lost));
        let damage = engine.damage().list();
        let row = damage.iter().find(|d| d.kind == DamageKind::Row).expect("a row");
        assert!(row.file == *table.fork().path() && row.tuple.is_some() && row.rows_lost == Some(1), "{row:?}");
        assert!(row.reason.contains("chunk"), "{row:?}");
        // What does not ask for the values does not miss them.
        let calls = heapscan::aggregate::parse("count(*),sum(octet_length(t))").unwrap();
        let result = table.scan().aggregate(&calls).expect("aggregates");
        assert_eq!(result.values[0], Some(lines.len().to_string()));
    }
}

/// Rows that do not end where they should, on a page whose checksum is right.
#[test]
fn h28_rows_that_cannot_be_taken_apart_are_left_out() {
    let snapshot = pgbench_snapshot();
    let (_folder, data) = copy(&snapshot);
    let file = file_of(&snapshot, &data, "pgbench_accounts");
    patch(&file, |bytes| {
        // The tuple of line pointer 2 gets a header of its filler that says 200 bytes.
        let offset = usize::from(u16::from_le_bytes([bytes[6 * BLOCK + 28], bytes[6 * BLOCK + 29]]) & 0x7fff);
        bytes[6 * BLOCK + offset + 24 + 12] = (100 << 1) | 1;
        seal(bytes, 6);
        // And one on another page has an attribute too many.
        let offset = usize::from(u16::from_le_bytes([bytes[8 * BLOCK + 24], bytes[8 * BLOCK + 25]]) & 0x7fff);
        bytes[8 * BLOCK + offset + 18] = 5;
        seal(bytes, 8);
    });
    let expected = oracle(&snapshot, "pgbench_accounts", |block, n| (block, n) != (6, 2) && (block, n) != (8, 1));
    for method in methods() {
        let args = ["scan", &text(&data), "pgbench_accounts", "--io-method", method.as_str()];
        let output = run(&args);
        let said = stderr(&output);
        assert!(output.status.code() == Some(1) && said.contains("block 6") && said.contains("tuple 2"), "{said}");
        let output = tool(&args).args(["--on-corruption", "skip"]).output().unwrap();
        assert!(output.stdout == expected && stderr(&output).contains("2 rows"), "{}", stderr(&output));
        let output = tool(&args).args(["--on-corruption", "skip", "--format", "csv"]).output().unwrap();
        assert_eq!(output.stdout.iter().filter(|&&b| b == b'\n').count(), 99_999);
        let output = tool(&args).args(["--on-corruption", "zero"]).output().unwrap();
        assert!(output.status.code() == Some(1) && stderr(&output).contains("tuple 2"), "rows of good pages");
        let (_engine, table) = open(&data, "pgbench_accounts", forgiving(method, OnCorruption::Skip));
        let mut batches = table.scan().batches(heapscan::arrow::BatchOptions::default()).unwrap();
        let rows: usize = (&mut batches).map(|batch| batch.expect("a batch").num_rows()).sum();
        assert_eq!((rows, batches.stats().scan.damaged_rows), (99_998, 2));
        let mut scan = table.scan().start().unwrap();
        let mut rows = 0;
        while let Some(mut page) = scan.next_page().unwrap() {
            while page.next_row().unwrap().is_some() {
                rows += 1;
            }
        }
        assert_eq!((rows, scan.stats().damaged_rows), (99_998, 2));
        let calls = heapscan::aggregate::parse("count(*),sum(aid),sum(octet_length(filler))").unwrap();
        let sums = table.scan().aggregate(&calls).expect("sums");
        assert_eq!(sums.values[2], Some((99_998 * 84).to_string()));
    }
}

/// Makes a cluster with segments of `blocks` blocks out of one with 1 GB, as a server built so would have it.
fn cut_segments(data: &Path, file: &Path, blocks: usize) {
    patch(&data.join("global/pg_control"), |bytes| {
        // `relseg_size` of ControlFileData, and its CRC.
        assert_eq!(bytes[220..224], 131_072u32.to_le_bytes());
        bytes[220..224].copy_from_slice(&(blocks as u32).to_le_bytes());
        let crc = crc32c::crc32c(&bytes[..292]);
        bytes[292..296].copy_from_slice(&crc.to_le_bytes());
    });
    let bytes = fs::read(file).unwrap();
    for (number, part) in bytes.chunks(blocks * BLOCK).enumerate() {
        let name = if number == 0 { text(file) } else { format!("{}.{number}", text(file)) };
        fs::write(name, part).unwrap();
    }
}

#[test]
fn h2_segments_that_are_missing_or_cut_lose_only_their_blocks() {
    let snapshot = pgbench_snapshot();
    let (folder, data) = copy(&snapshot);
    let file = file_of(&snapshot, &data, "pgbench_accounts");
    cut_segments(&data, &file, 400);
    let second = PathBuf::from(format!("{}.1", text(&file)));
    let third = PathBuf::from(format!("{}.2", text(&file)));
    let list = folder.path().join("damage.json");
    let all = oracle(&snapshot, "pgbench_accounts", |_, _| true);
    let args = ["scan", &text(&data), "pgbench_accounts"];
    assert!(run(&args).stdout == all, "the pages of all segments, with their checksums");
    fs::remove_file(&second).unwrap();
    patch(&third, |bytes| bytes.truncate(300 * BLOCK + 77));
    let there = |block| !(400..800).contains(&block) && !(1100..1200).contains(&block);
    let expected = oracle(&snapshot, "pgbench_accounts", |block, _| there(block));
    for method in methods() {
        let args = ["scan", &text(&data), "pgbench_accounts", "--io-method", method.as_str()];
        let line = refusal(&run(&args), 1);
        assert!(line.contains(&text(&third)) && line.contains("gap"), "{line}");
        for policy in ["skip", "zero"] {
            let rest = ["--on-corruption", policy, "--damage-report", &text(&list)];
            let output = tool(&args).args(rest).output().unwrap();
            assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
            assert!(output.stdout == expected, "{method} {policy}");
            let report = report(&list);
            let places: Vec<_> = report["damage"]
                .as_array()
                .unwrap()
                .iter()
                .map(|d| {
                    (
                        d["file"].as_str().unwrap().to_owned(),
                        d["kind"].as_str().unwrap().to_owned(),
                        d["block"].as_u64(),
                        d["blocks"].as_u64(),
                    )
                })
                .collect();
            assert!(places.contains(&(text(&second), "missing".into(), Some(400), Some(400))), "{places:?}");
            assert!(places.contains(&(text(&third), "missing".into(), Some(1100), Some(100))), "{places:?}");
            assert!(places.iter().any(|p| p.0 == text(&third) && p.1 == "file"), "a piece of a block: {places:?}");
        }
    }
    // Blocks at the end, of which only the visibility map knows.
    fs::remove_file(format!("{}.4", text(&file))).unwrap();
    let output = run(&[&args[..], &["--on-corruption", "skip"]].concat());
    let said = stderr(&output);
    assert!(
        output.status.code() == Some(1) && said.contains("visibility map") || said.contains("damage at the end"),
        "{said}"
    );
    assert!(output.stdout == oracle(&snapshot, "pgbench_accounts", |block, _| there(block) && block < 1600));
}

#[test]
fn h26_blocks_that_vanish_or_cannot_be_read() {
    let snapshot = pgbench_snapshot();
    let (_folder, data) = copy(&snapshot);
    let file = file_of(&snapshot, &data, "pgbench_accounts");
    let whole = fs::read(&file).unwrap();
    for method in methods() {
        for policy in [OnCorruption::Skip, OnCorruption::Zero] {
            fs::write(&file, &whole).unwrap();
            let (engine, table) = open(&data, "pgbench_accounts", forgiving(method, policy));
            let mut scan = table.scan().columns(&["aid"]).start().unwrap();
            let mut rows = scan.next_page().unwrap().expect("a page").len();
            fs::OpenOptions::new().write(true).open(&file).unwrap().set_len(1500 * 8192).unwrap();
            while let Some(page) = scan.next_page().expect("passed over") {
                rows += page.len();
            }
            let stats = scan.stats();
            // What was read ahead may have come from behind the cut.
            assert!(stats.damaged_pages > 0 && stats.damaged_pages <= 140, "{stats:?}");
            assert_eq!(stats.pages + stats.damaged_pages, 1640);
            assert!((1500 * 61..100_000).contains(&rows), "{rows}");
            let list = engine.damage().list();
            assert!(list.iter().all(|d| d.kind == DamageKind::Missing && d.block >= Some(1500)), "{list:?}");
            assert_eq!(list.last().map(|d| d.block.unwrap() + d.blocks), Some(1640));
        }
        fs::write(&file, &whole).unwrap();
        let mut options = forgiving(method, OnCorruption::Skip);
        method_support::fault(&mut options, "seed=1,eio_at=8196000");
        let (engine, table) = open(&data, "pgbench_accounts", options.clone());
        let result = table.scan().aggregate(&heapscan::aggregate::parse("count(*)").unwrap()).expect("passed over");
        assert_eq!(result.values[0].as_deref(), Some((100_000 - 61).to_string().as_str()));
        let list = engine.damage().list();
        assert_eq!((list.len(), list[0].kind, list[0].block), (1, DamageKind::Unreadable, Some(1000)));
        // PostgreSQL's zero_damaged_pages does not make empty pages of what the device refuses.
        options.on_corruption = OnCorruption::Zero;
        let (_engine, table) = open(&data, "pgbench_accounts", options);
        let error = table.scan().aggregate(&[]).map(|_| ()).expect_err("EIO");
        assert_eq!((error.kind(), error.errno(), error.block()), (ErrorKind::Io, Some(libc::EIO), Some(1000)));
    }
}

#[test]
fn h22_rows_without_transaction_status_are_left_out_and_counted() {
    let snapshot = snapshot("small-18", "crash");
    let (folder, data) = copy(&snapshot);
    fs::remove_file(data.join("pg_xact/0000")).unwrap();
    let list = folder.path().join("damage.json");
    for method in methods() {
        // The catalogs of this snapshot need pg_xact too: what can be read of them is.
        let args = ["scan", &text(&data), "vis_plain", "--allow-unclean", "--io-method", method.as_str()];
        let output = run(&args);
        let said = stderr(&output);
        assert!(output.status.code() == Some(1) && said.contains("pg_xact/0000"), "{said}");
        let rest = ["--on-corruption", "skip", "--damage-report", &text(&list)];
        let output = tool(&args).args(rest).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    }
    let snapshot = tool_support::snapshot("small-18", "clean");
    let (folder, data) = copy(&snapshot);
    let list = folder.path().join("damage.json");
    fs::remove_file(data.join("pg_xact/0000")).unwrap();
    let all = oracle(&snapshot, "vis_lock", |_, _| true);
    for method in methods() {
        let args = ["scan", &text(&data), "vis_lock", "--io-method", method.as_str()];
        let output = run(&args);
        let line = stderr(&output);
        assert!(output.status.code() == Some(1) && line.contains("pg_xact/0000"), "{line}");
        assert!(line.contains("transaction") && line.lines().count() == 1, "{line}");
        let rest = ["--on-corruption", "skip", "--damage-report", &text(&list)];
        let output = tool(&args).args(rest).output().unwrap();
        let report = report(&list);
        // Hint bits tell of most rows; the others may or may not have been there.
        let lost = report["damage"].as_array().unwrap();
        let numbers: Vec<u64> = lost.iter().map(|d| d["tuple"].as_u64().unwrap()).collect();
        assert!(!numbers.is_empty() && report["totals"]["rows"] == numbers.len(), "{report}");
        let known = oracle(&snapshot, "vis_lock", |_, number| !numbers.contains(&u64::from(number)));
        assert!(output.stdout == known && known.len() < all.len(), "{}", stderr(&output));
        for damage in lost {
            assert_eq!((damage["kind"].as_str(), damage["rows_lost"].as_u64()), (Some("status"), Some(1)));
            assert!(damage["reason"].as_str().unwrap().contains("pg_xact/0000"), "{damage}");
        }
    }
}

/// An empty or truncated catalog is damage, not a cluster without databases.
#[test]
fn catalogs_that_lost_their_rows() {
    let snapshot = pgbench_snapshot();
    for (catalog, words) in [("pg_database", "pg_database has no rows"), ("pg_class", "pg_class has no row")] {
        let (_folder, data) = copy(&snapshot);
        let file = data.join(&snapshot.table("pg_catalog", catalog).unwrap().path);
        patch(&file, Vec::clear);
        // Else the visibility map would tell.
        let _ = fs::remove_file(text(&file) + "_vm");
        for command in [&["ls"][..], &["scan"]] {
            let mut args =
                [command, &[text(&data).as_str()]].concat().iter().map(|s| (*s).to_owned()).collect::<Vec<_>>();
            if command == ["scan"] {
                args.push("pgbench_tellers".to_owned());
            }
            let line = refusal(&run(&args), 1);
            assert!(line.contains(words) && line.contains(&text(&file)), "{line}");
        }
    }
}

/// The output file has its name when it is whole, and what was there before stays after an error.
#[test]
fn output_files_are_whole_or_not_there() {
    let snapshot = pgbench_snapshot();
    let (folder, data) = copy(&snapshot);
    let file = file_of(&snapshot, &data, "pgbench_accounts");
    let target = folder.path().join("rows.txt");
    let scan = |extra: &[&str]| {
        let mut command = tool(&["scan", &text(&data), "pgbench_accounts", "--output", &text(&target)]);
        command.args(extra).output().unwrap()
    };
    let leftovers = || fs::read_dir(folder.path()).unwrap().count();
    let before = leftovers();
    assert!(scan(&[]).status.success());
    let all = oracle(&snapshot, "pgbench_accounts", |_, _| true);
    assert!(fs::read(&target).unwrap() == all && leftovers() == before + 1);
    fs::write(&target, "old").unwrap();
    patch(&file, |bytes| bytes[1600 * BLOCK + 5000] ^= 4);
    let output = scan(&[]);
    assert!(output.status.code() == Some(1) && stderr(&output).contains("block 1600"));
    assert!(fs::read(&target).unwrap() == b"old" && leftovers() == before + 1, "nothing half done stays");
    fs::remove_file(&target).unwrap();
    assert_eq!(scan(&["--format", "json"]).status.code(), Some(1));
    assert_eq!(leftovers(), before);
    // Incomplete on request: the file is there, and the exit code tells.
    let output = scan(&["--on-corruption", "skip"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(fs::read(&target).unwrap() == oracle(&snapshot, "pgbench_accounts", |block, _| block != 1600));
    // Devices and pipes are written as they are.
    let output = run(&["scan", &text(&data), "pgbench_tellers", "--output", "/dev/stdout"]);
    assert!(output.status.success() && output.stdout == oracle(&snapshot, "pgbench_tellers", |_, _| true));
    let pipe = folder.path().join("pipe");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let mut child = tool(&["scan", &text(&data), "pgbench_tellers", "--output", &text(&pipe)]).spawn().unwrap();
    let mut came = Vec::new();
    fs::File::open(&pipe).unwrap().read_to_end(&mut came).unwrap();
    assert!(child.wait().unwrap().success() && came == oracle(&snapshot, "pgbench_tellers", |_, _| true));
}

/// A reader that has gone away does not hide damage.
#[test]
fn damage_is_told_even_if_nobody_reads() {
    let snapshot = pgbench_snapshot();
    let (_folder, data) = copy(&snapshot);
    let file = file_of(&snapshot, &data, "pgbench_accounts");
    patch(&file, |bytes| bytes[2 * BLOCK + 5000] ^= 4);
    let mut command = tool(&["scan", &text(&data), "pgbench_accounts", "--io-method", "sync"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.code() == Some(1) && stderr(&output).contains("block 2"), "{}", stderr(&output));
}
