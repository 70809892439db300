//! `heapscan verify` finds each kind of damage, with the right file and block, with every IO method, and nothing in
//! clusters without damage.
#![cfg(feature = "tool")]

mod method_support;
mod tool_support;

use heapscan_fixtures::{Snapshot, checksum::page_checksum};
use method_support::methods;
use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};
use tool_support::{copy, patch, pgbench_snapshot, run, snapshot, stderr, text, tool};

const BLOCK: usize = 8192;

fn file_of(snapshot: &Snapshot, data: &Path, table: &str) -> PathBuf {
    data.join(&snapshot.table("public", table).expect("table").path)
}

fn page(bytes: &mut [u8], block: usize) -> &mut [u8] {
    &mut bytes[block * BLOCK..(block + 1) * BLOCK]
}

/// Where the tuple of a line pointer (from 1) begins on its page.
fn tuple_at(page: &[u8], number: usize) -> usize {
    usize::from(u16::from_le_bytes([page[20 + 4 * number], page[21 + 4 * number]]) & 0x7fff)
}

/// Runs the check and gives its report, and its exit code.
fn verify(data: &Path, extra: &[&str]) -> (serde_json::Value, i32) {
    let output = tool(&["verify", &text(data), "--format", "json"]).args(extra).output().unwrap();
    let report = serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {}", stderr(&output)));
    (report, output.status.code().unwrap())
}

/// Files and blocks of the damage on the list.
fn places(report: &serde_json::Value) -> BTreeSet<(String, u64)> {
    let place = |d: &serde_json::Value| (d["file"].as_str().unwrap().to_owned(), d["block"].as_u64().unwrap());
    report["damage"].as_array().unwrap().iter().map(place).collect()
}

fn reason(report: &serde_json::Value, file: &str, block: u64) -> String {
    let damage = report["damage"].as_array().unwrap().iter();
    let mut found = damage.filter(|d| d["file"] == file && d["block"] == block);
    found.next().expect("listed")["reason"].as_str().unwrap().to_owned()
}

/// Tells the control file that segments have so many blocks, and cuts the file.
fn cut_segments(data: &Path, file: &Path, blocks: usize) {
    patch(&data.join("global/pg_control"), |bytes| {
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
fn every_kind_of_damage_is_found() {
    let snapshot = pgbench_snapshot();
    let (_folder, data) = copy(&snapshot);
    let accounts = file_of(&snapshot, &data, "pgbench_accounts");
    let branches = file_of(&snapshot, &data, "pgbench_branches");
    let tellers = fs::read(file_of(&snapshot, &data, "pgbench_tellers")).unwrap();
    let index = data.join(&snapshot.table("public", "pgbench_accounts").unwrap().path).parent().unwrap().to_owned();
    let index = largest_of_others(&index, &accounts);
    let first = fs::read(&accounts).unwrap()[..BLOCK].to_vec();
    patch(&accounts, |bytes| {
        page(bytes, 3)[8] ^= 0x10; // pd_checksum
        page(bytes, 9)[14] ^= 4; // pd_upper
        page(bytes, 20)[24 + 4 * 7] ^= 8; // a line pointer
        let at = tuple_at(page(bytes, 40), 5);
        page(bytes, 40)[at + 20] ^= 1; // t_infomask
        page(bytes, 60)[6000] ^= 0x20; // a value
        let (left, right) = bytes.split_at_mut(101 * BLOCK);
        left[100 * BLOCK..].swap_with_slice(&mut right[..BLOCK]);
        page(bytes, 200).fill(0);
        page(bytes, 300).copy_from_slice(&tellers[..BLOCK]);
        page(bytes, 500)[0] ^= 1; // pd_lsn
    });
    // At the same block number: the checksum is right.
    patch(&branches, |bytes| page(bytes, 0).copy_from_slice(&first));
    patch(&index, |bytes| page(bytes, 2)[4000] ^= 1);
    cut_segments(&data, &accounts, 400);
    let segment = |number: u32| format!("{}.{number}", text(&accounts));
    fs::remove_file(segment(3)).unwrap();
    let mut expected: BTreeSet<(String, u64)> =
        [3, 9, 20, 40, 60, 100, 101, 200, 300].iter().map(|&block| (text(&accounts), block)).collect();
    expected.extend([(segment(1), 500), (text(&branches), 0), (text(&index), 2), (segment(3), 1200)]);
    for method in methods() {
        for direct in [false, true] {
            let mut extra = vec!["--io-method", method.as_str(), "--shared-buffers", "2MB", "--toast"];
            if direct {
                extra.push("--io-direct");
            }
            let (report, code) = verify(&data, &extra);
            assert_eq!(code, 1);
            assert_eq!(places(&report), expected, "{method} direct={direct}: {report:#}");
            for (block, word) in [(3, "checksum"), (9, "checksum"), (101, "checksum"), (200, "zero"), (300, "checksum")]
            {
                let reason = reason(&report, &text(&accounts), block);
                assert!(reason.contains(word), "{block}: {reason}");
            }
            assert!(reason(&report, &text(&branches), 0).contains("4 attributes, the relation has 3"));
            assert!(reason(&report, &segment(3), 1200).contains("segment is missing"));
            let hole = report["damage"].as_array().unwrap().iter().find(|d| d["kind"] == "missing").unwrap();
            assert_eq!(hole["blocks"], 400);
        }
    }
    // As people read it.
    let output = run(&["verify", &text(&data)]);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        said.lines().any(|l| l.starts_with(&text(&accounts)) && l.contains("block 60: checksum mismatch")),
        "{said}"
    );
    assert!(stderr(&output).contains("damaged places"), "{}", stderr(&output));
}

/// The largest file of the folder that is not `file`: the primary key's index.
fn largest_of_others(folder: &Path, file: &Path) -> PathBuf {
    let others = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path != file);
    others.max_by_key(|path| path.metadata().unwrap().len()).unwrap()
}

/// The segments at the end, of which only others know; a file that is not there at all; tables by name.
#[test]
fn what_is_missing_at_the_end() {
    let snapshot = pgbench_snapshot();
    let (_folder, data) = copy(&snapshot);
    let accounts = file_of(&snapshot, &data, "pgbench_accounts");
    let tellers = file_of(&snapshot, &data, "pgbench_tellers");
    cut_segments(&data, &accounts, 400);
    fs::remove_file(format!("{}.4", text(&accounts))).unwrap();
    fs::remove_file(&tellers).unwrap();
    for method in methods() {
        let (report, code) = verify(&data, &["--io-method", method.as_str(), "--database", "pgbench"]);
        assert_eq!(code, 1);
        let expected = [(format!("{}.4", text(&accounts)), 1600), (text(&tellers), 0)];
        assert_eq!(places(&report), expected.into_iter().collect(), "{report:#}");
        let (report, code) = verify(&data, &["pgbench_branches", "pgbench_history", "--io-method", method.as_str()]);
        assert_eq!((code, report["damage"].as_array().unwrap().len()), (0, 0), "{report:#}");
        let (report, code) = verify(&data, &["pgbench_tellers", "--io-method", method.as_str()]);
        assert_eq!((code, places(&report)), (1, [(text(&tellers), 0)].into_iter().collect()), "{report:#}");
    }
    let output = run(&["verify", &text(&data), "no_such_table"]);
    assert!(output.status.code() == Some(1) && stderr(&output).contains("no_such_table"));
}

/// What can be found where no checksum tells.
#[test]
fn clusters_without_checksums() {
    let snapshot = snapshot("small-12", "clean");
    assert_eq!(snapshot.manifest().data_checksums, "off");
    let (_folder, data) = copy(&snapshot);
    let file = file_of(&snapshot, &data, "sz_big");
    let other = fs::read(file_of(&snapshot, &data, "al_pairs")).unwrap();
    patch(&file, |bytes| {
        page(bytes, 3)[15] ^= 0x40; // pd_upper
        page(bytes, 5)[24 + 4] ^= 1; // a line pointer: not aligned any more
        let at = tuple_at(page(bytes, 7), 2);
        page(bytes, 7)[at + 22] ^= 8; // t_hoff
        let at = tuple_at(page(bytes, 9), 2);
        page(bytes, 9)[at + 18] ^= 4; // natts
        let at = tuple_at(page(bytes, 11), 2);
        page(bytes, 11)[at + 3] ^= 0x40; // xmin: never given out, or older than the table's oldest
        page(bytes, 11)[at + 21] &= !2; // not frozen
        let (left, right) = bytes.split_at_mut(101 * BLOCK);
        left[100 * BLOCK..].swap_with_slice(&mut right[..BLOCK]);
        page(bytes, 200).copy_from_slice(&other[..BLOCK]);
    });
    let expected: BTreeSet<_> = [3, 5, 7, 9, 11, 100, 101, 200].map(|block| (text(&file), block)).into_iter().collect();
    for method in methods() {
        let (report, code) = verify(&data, &["--io-method", method.as_str(), "--follow-tablespace-links"]);
        assert_eq!((code, places(&report)), (1, expected.clone()), "{report:#}");
        assert!(reason(&report, &text(&file), 100).contains("block 101"), "{report:#}");
        assert_eq!(report["checksums"], false);
    }
}

/// Nothing is found in clusters of every version that are whole, crashed ones included.
#[test]
fn nothing_is_found_where_nothing_is_wrong() {
    for name in ["small-12", "small-14", "small-15", "small-18", "wrap-15"] {
        for which in ["clean", "crash"] {
            let snapshot = snapshot(name, which);
            let (report, code) =
                verify(&snapshot.data_dir(), &["--allow-unclean", "--follow-tablespace-links", "--toast"]);
            assert_eq!((code, &report["damage"]), (0, &serde_json::json!([])), "{name} {which}");
            let least = if name == "wrap-15" { 200 } else { 1000 };
            assert!(
                report["files"].as_u64().unwrap() > least && report["tuples"].as_u64().unwrap() > 5_000,
                "{report:#}"
            );
        }
    }
    // A tablespace that may not be looked at is no success.
    let (report, code) = verify(&snapshot("small-18", "clean").data_dir(), &[]);
    assert!(code == 1 && report["damage"][0]["reason"].as_str().unwrap().contains("outside the cluster"), "{report:#}");
}

/// H9: what is encrypted, and not by the server's own means, fails everywhere; that is said, and nothing is decoded.
#[test]
fn h9_clusters_of_which_every_page_fails() {
    let snapshot = pgbench_snapshot();
    let (_folder, data) = copy(&snapshot);
    let mut key = 0x9e37_79b9_7f4a_7c15u64;
    for entry in
        fs::read_dir(data.join(&snapshot.table("public", "pgbench_accounts").unwrap().path).parent().unwrap()).unwrap()
    {
        let path = entry.unwrap().path();
        if path.file_name().unwrap().to_str().unwrap().starts_with(|c: char| c.is_ascii_digit()) {
            patch(&path, |bytes| {
                for byte in bytes {
                    key ^= key << 13;
                    key ^= key >> 7;
                    key ^= key << 17;
                    *byte ^= key as u8;
                }
            });
        }
    }
    let (report, code) = verify(&data, &["--database", "pgbench"]);
    assert_eq!(code, 1);
    let notes = report["notes"].to_string();
    assert!(notes.contains("looks encrypted"), "{notes}");
    let output = run(&["scan", &text(&data), "pgbench_accounts"]);
    assert!(output.status.code() == Some(1) && output.stdout.is_empty());
}

/// A page that is right when it is read again is no damage (H5), and a checksum is never excused by an LSN (H6).
#[test]
fn h6_random_bytes_with_a_future_lsn_are_damage() {
    let snapshot = pgbench_snapshot();
    let (_folder, data) = copy(&snapshot);
    let accounts = file_of(&snapshot, &data, "pgbench_accounts");
    patch(&accounts, |bytes| {
        let page = page(bytes, 10);
        for (i, byte) in page.iter_mut().enumerate() {
            *byte = (i as u8).wrapping_mul(31) ^ 0xa5;
        }
        page[..8].fill(0xff);
        assert_ne!(page_checksum(page, 10).to_le_bytes(), [page[8], page[9]]);
    });
    for method in methods() {
        let (report, code) = verify(&data, &["pgbench_accounts", "--io-method", method.as_str()]);
        assert_eq!((code, places(&report)), (1, [(text(&accounts), 10)].into_iter().collect()));
        let output =
            run(&["scan", &text(&data), "pgbench_accounts", "--io-method", method.as_str(), "--agg", "count(*)"]);
        assert!(output.status.code() == Some(1) && stderr(&output).contains("block 10"), "{}", stderr(&output));
    }
}
