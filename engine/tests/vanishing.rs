//! Files that shrink, vanish or are replaced while they are scanned: what is missing is named, nothing is lost silently.

mod method_support;

use heapscan::{ErrorKind, MethodName, Scan, Table};
use heapscan_fixtures::generate::Generated;
use method_support::*;
use std::{fs::OpenOptions, path::PathBuf};

fn truncate(table: &Table, bytes: u64) {
    OpenOptions::new().write(true).open(table.fork().path()).and_then(|f| f.set_len(bytes)).expect("truncate");
}

/// Blocks that came (all of this table have rows), and those that errors named.
fn drain(scan: &mut Scan, table: &Table, what: &str) -> (Vec<u32>, Vec<u32>) {
    let (mut came, mut named) = (Vec::new(), Vec::new());
    loop {
        match scan.next_page() {
            Ok(Some(page)) => came.push(page.block()),
            Ok(None) => return (came, named),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Io, "{what}: {error}");
                assert_eq!(error.path(), Some(table.fork().path()), "{what}: {error}");
                assert!(error.to_string().contains("vanished"), "{what}: {error}");
                named.push(error.block().unwrap_or_else(|| panic!("{what}: names no block: {error}")));
            }
        }
    }
}

fn truncated(made: &Generated, method: MethodName, direct: bool, plan: &str, cut: u64) {
    let what = format!("{method} direct={direct} {plan:?} cut at {cut}");
    let mut options = options(method, 256);
    options.io_direct = direct;
    if !plan.is_empty() {
        fault(&mut options, plan);
    }
    let (engine, table) = accounts(&made.data_dir, options);
    let mut scan = table.scan().columns(&["aid"]).start().expect("a scan");
    let mut came = Vec::new();
    for _ in 0..100 {
        came.push(scan.next_page().expect("a page").expect("not the end").block());
    }
    truncate(&table, cut);
    let (later, named) = drain(&mut scan, &table, &what);
    came.extend(later);
    // Reads in flight may have had what lies behind the cut; all others must say that it is gone.
    let whole = (cut / 8192) as u32;
    let mut all: Vec<u32> = came.iter().chain(&named).copied().collect();
    all.sort_unstable();
    assert_eq!(all, (0..table.blocks()).collect::<Vec<_>>(), "{what}: each block came or was named");
    assert!(named.iter().all(|&block| block >= whole), "{what}: {named:?}");
    assert!(named.contains(&(table.blocks() - 1)), "{what}: {named:?}");
    assert!(came.is_sorted(), "{what}");
    drop(scan);
    // Reads of a dropped scan end on their own, and until then keep their pins.
    while engine.pool_metrics().in_flight > 0 {
        std::thread::yield_now();
    }
    assert_eq!(engine.pool().pinned_frames(), 0, "{what}");
}

/// The file of the accounts, to be written again after each harm.
fn accounts_file(made: &Generated) -> (PathBuf, Vec<u8>) {
    let table = made.tables.iter().find(|t| t.name == "pgbench_accounts").expect("accounts");
    let path = made.data_dir.join(&table.path);
    let bytes = std::fs::read(&path).expect("the file");
    (path, bytes)
}

#[test]
fn h26_a_truncated_file_says_which_blocks_are_gone() {
    let (_dir, made) = own_cluster(1);
    let (path, bytes) = accounts_file(&made);
    for method in methods() {
        for (direct, plan) in [(false, ""), (true, ""), (false, "seed=3,short=0.3,delay=200us,reorder")] {
            for cut in [900 * 8192, 900 * 8192 + 100, 0] {
                std::fs::write(&path, &bytes).expect("restore");
                truncated(&made, method, direct, plan, cut);
            }
        }
    }
}

#[test]
fn an_unlinked_file_is_read_to_its_end() {
    let (_dir, made) = own_cluster(1);
    let (path, bytes) = accounts_file(&made);
    for method in methods() {
        for direct in [false, true] {
            std::fs::write(&path, &bytes).expect("restore");
            let mut options = options(method, 256);
            options.io_direct = direct;
            let (_engine, table) = accounts(&made.data_dir, options);
            let mut scan = table.scan().columns(&["aid"]).start().expect("a scan");
            assert_eq!(scan.next_page().expect("a page").expect("not the end").block(), 0);
            std::fs::remove_file(table.fork().path()).expect("unlink");
            let (came, named) = drain(&mut scan, &table, method.as_str());
            assert_eq!((came.len() as u32, named), (table.blocks() - 1, vec![]), "{method} direct={direct}");
        }
    }
}

#[test]
fn a_file_that_is_gone_or_replaced_before_it_is_opened_is_an_error() {
    let (_dir, made) = own_cluster(1);
    let (file, bytes) = accounts_file(&made);
    for method in methods() {
        for replaced in [false, true] {
            std::fs::write(&file, &bytes).expect("restore");
            let (_engine, table) = accounts(&made.data_dir, options(method, 256));
            let path = table.fork().path();
            if replaced {
                // The same name, and even the same bytes, but not the file that was measured.
                let copy = path.with_extension("copy");
                std::fs::copy(path, &copy).and_then(|_| std::fs::rename(&copy, path)).expect("replace");
            } else {
                std::fs::remove_file(path).expect("unlink");
            }
            let mut scan = table.scan().start().expect("a scan");
            let error = scan.next_page().map(|page| page.is_some()).expect_err("must be refused");
            let expected = if replaced { ErrorKind::Corrupt } else { ErrorKind::Io };
            assert_eq!((error.kind(), error.path(), error.block()), (expected, Some(path), Some(0)), "{error}");
        }
    }
}
