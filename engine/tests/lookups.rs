//! Rows by their ctid are the rows that a scan finds there, and no others. (About a second.)

mod method_support;

use heapscan::{Engine, Error, ErrorKind, RowId, Table};
use heapscan_fixtures::{Snapshot, corpus, pgbench};
use method_support::{accounts, fault, methods, options};
use std::collections::BTreeMap;

/// Every place of a table, and some that are none, in an order that jumps about.
fn places(table: &Table) -> Vec<RowId> {
    let blocks = table.blocks();
    let mut places: Vec<RowId> = (0..blocks).flat_map(|block| (0..=300).map(move |n| (block, n))).collect();
    if blocks > 0 {
        places.push((0, u16::MAX));
    }
    let count = places.len().max(1) as u64;
    let mut state = 88_172_645_463_325_252_u64;
    for last in (1..count).rev() {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        places.swap(last as usize, (state % (last + 1)) as usize);
    }
    places
}

fn by_scan(table: &Table) -> BTreeMap<RowId, u32> {
    let mut rows = BTreeMap::new();
    let mut scan = table.scan().columns::<&str>(&[]).start().expect("a scan");
    while let Some(mut page) = scan.next_page().expect("a page") {
        while let Some(row) = page.next_row().expect("a row") {
            rows.insert(row.ctid(), row.xmin());
        }
    }
    rows
}

fn by_lookup(table: &Table, places: Vec<RowId>) -> BTreeMap<RowId, u32> {
    let mut rows = BTreeMap::new();
    let mut asked = places.clone().into_iter();
    let stats = table
        .scan()
        .columns::<&str>(&[])
        .lookup(places.into_iter(), &mut |place, row| {
            assert_eq!(Some(place), asked.next(), "answers come in the order of the questions");
            if let Some(row) = row {
                assert_eq!(row.ctid(), place);
                rows.insert(place, row.xmin());
            }
            Ok(())
        })
        .expect("lookups");
    assert_eq!(asked.next(), None);
    assert_eq!(stats.rows, rows.len() as u64);
    rows
}

fn snapshot(name: &str) -> Snapshot {
    corpus(name).and_then(|f| f.snapshot("clean")).expect("a fixture")
}

#[test]
fn every_table_has_the_rows_that_a_scan_finds() {
    let snapshot = snapshot("small-15");
    for (turn, method) in methods().into_iter().enumerate() {
        // A pool of few frames: blocks leave it and are read and checked again.
        for (frames, most_blocks, step) in [(16, 5, 4), (2048, 12, 2)] {
            let engine = Engine::open(snapshot.data_dir(), options(method, frames)).expect("open");
            let database = engine.database(None).expect("a database");
            let (mut tables, mut dead) = (0, 0);
            for oid in snapshot.user_tables().map(|t| t.oid).skip(turn % step).step_by(step) {
                let Ok(table) = database.table(&format!("oid:{oid}")) else { continue };
                if table.blocks() > most_blocks {
                    continue;
                }
                let (rows, all) = (by_scan(&table), places(&table));
                dead += all.len() - rows.len();
                assert_eq!(by_lookup(&table, all), rows, "{method}, {}", table.info().name);
                tables += 1;
            }
            assert!(tables > 3 && dead > 300, "{tables} tables");
        }
    }
}

#[test]
fn values_are_those_of_the_row_asked_for() {
    let snapshot = pgbench().and_then(|f| f.snapshot("clean")).expect("the pgbench fixture");
    for method in methods() {
        let mut options = options(method, 1024);
        fault(&mut options, "seed=3,short=0.3,eintr=0.1,eagain=0.1,reorder");
        let (_engine, table) = accounts(snapshot.data_dir(), options);
        // 61 rows a page, in the order of their keys.
        let keys: Vec<u32> = (0..6_000).map(|i: u32| i.wrapping_mul(2_654_435_761) % 100_000).collect();
        let places = keys.clone().into_iter().map(|key| (key / 61, (key % 61) as u16 + 1));
        let mut next = keys.iter();
        let stats = table.scan().columns(&["aid"]).lookup(places, &mut |_, row| {
            let row = row.expect("an account");
            assert_eq!(row.i32(0)?, next.next().map(|&key| key as i32 + 1));
            Ok(())
        });
        let stats = stats.expect("lookups");
        assert_eq!((stats.rows, stats.pages), (6_000, 6_000), "{method}");
        assert!(stats.io.hits > 0 && stats.io.blocks_read > 1639, "{method}: {:?}", stats.io);
    }
}

#[test]
fn a_block_behind_the_end_and_an_error_of_the_caller_end_it() {
    let snapshot = pgbench().and_then(|f| f.snapshot("clean")).expect("the pgbench fixture");
    for method in methods() {
        let (engine, table) = accounts(snapshot.data_dir(), options(method, 64));
        let error = table.scan().lookup([(0, 1), (1640, 1)].into_iter(), &mut |_, _| Ok(()));
        assert_eq!(error.expect_err("no such block").kind(), ErrorKind::Usage);
        let mut told = 0;
        let error = table.scan().lookup((0..1640).map(|block| (block, 1)), &mut |_, _| {
            told += 1;
            if told < 7 { Ok(()) } else { Err(Error::new(ErrorKind::Usage, "enough")) }
        });
        assert!(error.expect_err("the caller's").to_string().contains("enough"));
        assert_eq!((told, engine.pool().pinned_frames().min(32)), (7, engine.pool().pinned_frames()), "{method}");
        let none = table.scan().lookup(std::iter::empty(), &mut |_, _| Ok(())).expect("nothing");
        assert_eq!(none.pages, 0);
    }
}
