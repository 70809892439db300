//! Wrong input: one clear line on standard error and exit code 1.

mod tool_support;

use heapscan_fixtures::Snapshot;
use std::{fs, os::unix::fs::PermissionsExt, path::PathBuf};
use tool_support::{copy, patch, pgbench_snapshot, refusal, run, snapshot, stderr, text, tool};

fn refused(args: &[&str], words: &[&str]) {
    let line = refusal(&run(args), 1);
    for word in words {
        assert!(line.contains(word), "{word:?} is not in {line:?}");
    }
}

fn file_of(snapshot: &Snapshot, data: &std::path::Path, table: &str) -> PathBuf {
    data.join(&snapshot.table("public", table).expect("table").path)
}

#[test]
fn folders_that_are_no_cluster() {
    refused(&["scan", "/no/such/folder", "t"], &["/no/such/folder", "no such directory"]);
    let empty = tempfile::tempdir().unwrap();
    refused(&["scan", &text(empty.path()), "t"], &["not a PostgreSQL cluster"]);
    let file = empty.path().join("file");
    fs::write(&file, "x").unwrap();
    refused(&["ls", &text(&file)], &["file"]);
}

#[test]
fn control_files_that_cannot_be_believed() {
    let (_folder, data) = copy(&pgbench_snapshot());
    let control = data.join("global/pg_control");
    let whole = fs::read(&control).unwrap();
    let data = text(&data);
    patch(&control, |bytes| bytes[100] ^= 1);
    refused(&["scan", &data, "pgbench_accounts"], &["pg_control", "CRC"]);
    fs::write(&control, &whole[..100]).unwrap();
    refused(&["scan", &data, "pgbench_accounts"], &["pg_control"]);
    fs::write(&control, b"").unwrap();
    refused(&["scan", &data, "pgbench_accounts"], &["pg_control"]);
    fs::remove_file(&control).unwrap();
    refused(&["scan", &data, "pgbench_accounts"], &["pg_control"]);
}

#[test]
fn versions_that_are_not_read() {
    let (_folder, data) = copy(&pgbench_snapshot());
    fs::write(data.join("PG_VERSION"), "11\n").unwrap();
    refused(&["scan", &text(&data), "pgbench_accounts"], &["11"]);
    fs::write(data.join("PG_VERSION"), "17\n").unwrap();
    refused(&["scan", &text(&data), "pgbench_accounts"], &["17", "18"]);
    fs::write(data.join("PG_VERSION"), "banana\n").unwrap();
    refused(&["scan", &text(&data), "pgbench_accounts"], &["PG_VERSION"]);
}

#[test]
fn a_running_server() {
    let (_folder, data) = copy(&pgbench_snapshot());
    // This process runs, so to all appearances the server does.
    fs::write(data.join("postmaster.pid"), format!("{}\n{}\n", std::process::id(), data.display())).unwrap();
    refused(&["scan", &text(&data), "pgbench_accounts"], &["postmaster.pid", &std::process::id().to_string()]);
    refused(&["scan", &text(&data), "pgbench_accounts", "--allow-unclean"], &["postmaster.pid"]);
}

#[test]
fn a_cluster_that_was_not_shut_down() {
    let crashed = snapshot("small-18", "crash");
    let data = text(&crashed.data_dir());
    refused(&["scan", &data, "vis_plain"], &["not shut down cleanly", "in production"]);
    let output = run(&["scan", &data, "vis_plain", "--allow-unclean"]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stderr(&output).contains("warning"), "{}", stderr(&output));
    let oid = crashed.table("public", "vis_plain").unwrap().oid;
    assert!(output.stdout == crashed.oracle_without_ctid(oid).unwrap());
    let (_folder, data) = copy(&pgbench_snapshot());
    fs::write(data.join("backup_label"), "START WAL LOCATION: 0/2000028 (file 000000010000000000000002)\n").unwrap();
    refused(&["scan", &text(&data), "pgbench_accounts"], &["backup_label"]);
}

#[test]
fn names_that_do_not_exist() {
    let data = text(&pgbench_snapshot().data_dir());
    refused(&["scan", &data, "pgbench_accounts", "--database", "nope"], &["nope", "pgbench"]);
    refused(&["scan", &data, "nope"], &["nope"]);
    refused(&["scan", &data, "nope.pgbench_accounts"], &["nope"]);
    refused(&["scan", &data, "oid:4242424"], &["4242424"]);
    refused(&["scan", &data, "pgbench_accounts", "--columns", "nope"], &["nope", "aid, bid, abalance, filler"]);
    refused(&["scan", &data, "pgbench_accounts", "--agg", "sum(filler)"], &["sum(filler)"]);
}

#[test]
fn relations_without_rows_of_their_own() {
    let data = text(&snapshot("small-18", "clean").data_dir());
    refused(&["scan", &data, "pg_catalog.pg_tables"], &["pg_tables", "view"]);
    refused(&["scan", &data, "pg_catalog.pg_class_oid_index"], &["index"]);
    refused(&["scan", &data, "pt"], &["partitioned", "pt_1"]);
}

#[test]
fn values_that_are_not_in_the_file() {
    let data = text(&snapshot("small-18", "clean").data_dir());
    refused(&["scan", &data, "ext_types"], &["hstore"]);
    refused(&["scan", &data, "sh_genvirtual"], &["virtual"]);
}

#[test]
fn a_file_that_does_not_end_at_a_block() {
    let snapshot = pgbench_snapshot();
    let (_folder, data) = copy(&snapshot);
    let file = file_of(&snapshot, &data, "pgbench_accounts");
    patch(&file, |bytes| bytes.truncate(bytes.len() - 100));
    refused(&["scan", &text(&data), "pgbench_accounts"], &[&text(&file), "truncated"]);
    fs::remove_file(&file).unwrap();
    refused(&["scan", &text(&data), "pgbench_accounts"], &[&text(&file)]);
}

/// A cut at a block boundary looks like a smaller table; the visibility map and pg_class know better.
#[test]
fn a_table_that_ends_too_early() {
    let snapshot = pgbench_snapshot();
    let (_folder, data) = copy(&snapshot);
    let file = file_of(&snapshot, &data, "pgbench_accounts");
    for blocks in [1000, 1639, 0] {
        patch(&file, |bytes| bytes.truncate(blocks * 8192));
        refused(&["scan", &text(&data), "pgbench_accounts"], &[&text(&file), "visibility map", "missing"]);
        fs::copy(file_of(&snapshot, &snapshot.data_dir(), "pgbench_accounts"), &file).unwrap();
    }
    // Without a visibility map there is only the count of the last VACUUM, which may be out of date.
    patch(&file, |bytes| bytes.truncate(1000 * 8192));
    fs::remove_file(text(&file) + "_vm").unwrap();
    let output = run(&["scan", &text(&data), "pgbench_accounts", "--agg", "count(*)"]);
    assert!(output.status.success());
    assert!(stderr(&output).contains("1000 blocks") && stderr(&output).contains("1640"), "{}", stderr(&output));
}

#[test]
fn files_outside_the_cluster_are_refused_or_named() {
    let snapshot = snapshot("small-18", "clean");
    let data = text(&snapshot.data_dir());
    refused(&["scan", &data, "sp_ts"], &["tablespace", "outside the cluster", "--follow-tablespace-links"]);
    let output = run(&["scan", &data, "sp_ts", "--follow-tablespace-links"]);
    assert!(output.status.success() && stderr(&output).contains("outside the data directory"), "{}", stderr(&output));
}

#[test]
fn a_flipped_bit_names_file_and_block() {
    let snapshot = pgbench_snapshot();
    for method in ["sync", "worker", "auto"] {
        let (_folder, data) = copy(&snapshot);
        let file = file_of(&snapshot, &data, "pgbench_accounts");
        patch(&file, |bytes| bytes[700 * 8192 + 5000] ^= 4);
        let output = run(&["scan", &text(&data), "pgbench_accounts", "--io-method", method, "--agg", "count(*)"]);
        let line = refusal(&output, 1);
        assert!(line.contains(&text(&file)) && line.contains("block 700") && line.contains("checksum"), "{line}");
        // A dead line pointer has no storage: this one hides a row.
        patch(&file, |bytes| bytes[700 * 8192 + 24..][..4].copy_from_slice(&[0xff; 4]));
        let args = ["scan", &text(&data), "pgbench_accounts", "--verify", "never", "--agg", "count(*)"];
        let line = refusal(&run(&args), 1);
        assert!(line.contains("block 700") && line.contains("line pointer 1"), "{line}");
        // Without verification the structure is still checked: a line pointer that leads nowhere.
        patch(&file, |bytes| bytes[700 * 8192 + 24..][..4].copy_from_slice(&normal_pointer(0x7fff, 100)));
        let args = ["scan", &text(&data), "pgbench_accounts", "--verify", "never", "--agg", "count(*)"];
        let line = refusal(&run(&args), 1);
        assert!(line.contains("block 700") && line.contains("line pointer 1"), "{line}");
    }
}

/// A line pointer (`ItemIdData`): offset, flag 1 (normal), length.
fn normal_pointer(offset: u32, length: u32) -> [u8; 4] {
    (offset | 1 << 15 | length << 17).to_le_bytes()
}

#[test]
fn damaged_catalog_files() {
    let snapshot = pgbench_snapshot();
    let (_folder, data) = copy(&snapshot);
    let map = data.join("global/pg_filenode.map");
    let whole = fs::read(&map).unwrap();
    patch(&map, |bytes| bytes.fill(0));
    refused(&["scan", &text(&data), "pgbench_accounts"], &["pg_filenode.map"]);
    fs::write(&map, whole).unwrap();
    let class = snapshot.table("pg_catalog", "pg_class").unwrap();
    patch(&data.join(&class.path), |bytes| bytes[4000] ^= 0x40);
    refused(&["scan", &text(&data), "pgbench_accounts"], &["block 0", "checksum"]);
}

#[test]
fn a_missing_status_file_names_the_transaction() {
    let snapshot = snapshot("small-18", "crash");
    let (_folder, data) = copy(&snapshot);
    fs::remove_file(data.join("pg_xact/0000")).unwrap();
    let line = stderr(&run(&["scan", &text(&data), "vis_plain", "--allow-unclean"]));
    assert!(line.contains("pg_xact/0000") && line.contains("transaction"), "{line}");
}

#[test]
fn files_that_may_not_be_read() {
    let snapshot = pgbench_snapshot();
    let (folder, data) = copy(&snapshot);
    let file = file_of(&snapshot, &data, "pgbench_tellers");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o000)).unwrap();
    let mut command = tool(&["scan", &text(&data), "pgbench_tellers"]);
    if nix::unistd::geteuid().is_root() {
        // Root may read everything, so somebody else has to try.
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        std::os::unix::process::CommandExt::uid(&mut command, 65534);
        std::os::unix::process::CommandExt::gid(&mut command, 65534);
    }
    match command.output() {
        Ok(output) => {
            let line = refusal(&output, 1);
            assert!(line.contains("Permission denied"), "{line}");
        }
        Err(error) => {
            heapscan_fixtures::server::skip("nobody", &format!("the program cannot be run as nobody: {error}"))
        }
    }
}

/// Creating the output would empty the file that is read.
#[test]
fn the_output_never_lies_in_the_cluster() {
    let snapshot = pgbench_snapshot();
    let (folder, data) = copy(&snapshot);
    let file = file_of(&snapshot, &data, "pgbench_branches");
    let before = fs::read(&file).unwrap();
    let (link, hard) = (folder.path().join("link"), folder.path().join("hard"));
    std::os::unix::fs::symlink(&file, &link).unwrap();
    fs::hard_link(&file, &hard).unwrap();
    let dangling = folder.path().join("dangling");
    std::os::unix::fs::symlink(data.join("new"), &dangling).unwrap();
    for target in [&file, &data.join("base/stray"), &link, &hard, &dangling] {
        let output = run(&["scan", &text(&data), "pgbench_branches", "--output", &text(target)]);
        let line = refusal(&output, 2);
        assert!(line.contains("will not be written"), "{line}");
    }
    assert!(fs::read(&file).unwrap() == before, "the table is as it was");
    assert!(!data.join("base/stray").exists() && !data.join("new").exists());
}

/// Pipes and devices where files belong: neither a hang nor memory without end.
#[test]
fn files_that_are_none_do_not_block() {
    let snapshot = snapshot("small-18", "crash");
    let (_folder, data) = copy(&snapshot);
    let map = text(&file_of(&snapshot, &data, "vis_plain")) + "_vm";
    for path in [data.join("pg_xact/0000"), data.join("pg_multixact/offsets/0000"), PathBuf::from(&map)] {
        for pipe in [true, false] {
            let _ = fs::remove_file(&path);
            if pipe {
                nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
            } else {
                std::os::unix::fs::symlink("/dev/zero", &path).unwrap();
            }
            let program = env!("CARGO_BIN_EXE_heapscan");
            for table in ["vis_plain", "vis_multi"] {
                let mut command = std::process::Command::new("timeout");
                command.args(["20", program, "scan", &text(&data), table, "--allow-unclean"]);
                let status = command.output().unwrap().status;
                assert!(matches!(status.code(), Some(0 | 1)), "{} {table}: {status}", path.display());
            }
        }
    }
}
