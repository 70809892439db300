//! Wrong input: one clear line on standard error and exit code 1.
#![cfg(feature = "tool")]

mod tool_support;

use heapscan_fixtures::Snapshot;
use std::{
    fs,
    os::unix::{fs::PermissionsExt, process::CommandExt},
    path::PathBuf,
};
use tool_support::{copy, patch, pgbench_snapshot, refusal, run, snapshot, stderr, stdout, text, tool};

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

/// A control file whose CRC is right, of a release that does not exist, or of one that is too old.
#[test]
fn versions_of_the_control_file_that_are_not_read() {
    let (_folder, data) = copy(&pgbench_snapshot());
    let control = data.join("global/pg_control");
    let whole = fs::read(&control).unwrap();
    let data = text(&data);
    // pg_control_version, then catalog_version_no (ControlFileData of pg_control.h).
    for (at, value, words) in
        [(8, 1002u32, "PostgreSQL 10"), (8, 9900, "9900"), (12, 202_506_292, "202506292"), (12, 1, "1")]
    {
        patch(&control, |bytes| {
            bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
            let crc = crc32c::crc32c(&bytes[..292]);
            bytes[292..296].copy_from_slice(&crc.to_le_bytes());
        });
        refused(&["scan", &data, "pgbench_accounts"], &["pg_control", words]);
        fs::write(&control, &whole).unwrap();
    }
    // The CRC is computed as the server does: only what was changed is refused.
    patch(&control, |bytes| {
        let crc = crc32c::crc32c(&bytes[..292]);
        bytes[292..296].copy_from_slice(&crc.to_le_bytes());
    });
    assert!(fs::read(&control).unwrap() == whole);
    assert!(run(&["scan", &data, "pgbench_tellers"]).status.success());
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

/// The lock file of a server that died: nothing writes, but nobody shut down either.
#[test]
fn a_server_that_died() {
    let snapshot = pgbench_snapshot();
    let (_folder, data) = copy(&snapshot);
    let mut child = std::process::Command::new("true").spawn().unwrap();
    child.wait().unwrap();
    fs::write(data.join("postmaster.pid"), format!("{}\n{}\n", child.id(), data.display())).unwrap();
    let args = ["scan", &text(&data), "pgbench_tellers", "--io-method", "sync"];
    refused(&args, &["postmaster.pid", &child.id().to_string(), "does not run"]);
    let output = tool(&args).arg("--allow-unclean").output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let oid = snapshot.table("public", "pgbench_tellers").unwrap().oid;
    assert!(output.stdout == snapshot.oracle_without_ctid(oid).unwrap());
    let said = stderr(&output);
    assert!(said.lines().count() == 1 && said.contains("warning") && said.contains("postmaster.pid"), "{said}");
    fs::write(data.join("postmaster.pid"), "").unwrap();
    refused(&args, &["postmaster.pid", "names no process"]);
}

#[test]
fn h25_a_cluster_that_was_not_shut_down() {
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
    // A hint where the table may be that was meant.
    let data = text(&snapshot("small-18", "clean").data_dir());
    refused(&["scan", &data, "t"], &["no relation t", "there is \"Other Schema\".t"]);
    refused(&["scan", &data, "pg_catalog.ty_int4"], &["there is public.ty_int4"]);
}

#[test]
fn relations_without_rows_of_their_own() {
    let data = text(&snapshot("small-18", "clean").data_dir());
    refused(&["scan", &data, "pg_catalog.pg_tables"], &["pg_tables", "view"]);
    refused(&["scan", &data, "pg_catalog.pg_class_oid_index"], &["index"]);
}

#[test]
fn values_that_are_not_in_the_file() {
    let data = text(&snapshot("small-18", "clean").data_dir());
    refused(&["scan", &data, "sh_genvirtual", "--columns", "a,v"], &["column v", "virtual"]);
    refused(&["scan", &data, "sh_genvirtual", "--agg", "sum(w)"], &["column w", "virtual"]);
    // Nobody asked for them by name: they are left out, which is said.
    let output = run(&["scan", &data, "sh_genvirtual"]);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "1\t10\n\\N\t20\n3\t\\N\n4\t40\n");
    let said = stderr(&output);
    assert!(["column v ", "column t ", "column w "].iter().all(|column| said.contains(column)), "{said}");
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

/// Each bit of a line pointer, where no checksum would tell: the rows are the server's, or there is an error that names
/// the block. Never other rows, or fewer. The narrow table's tuples all have 32 bytes, so that a wrong offset often leads
/// to another whole tuple.
#[test]
fn flipped_bits_of_a_line_pointer_without_checksums() {
    let snapshot = snapshot("small-12", "clean");
    assert_eq!(snapshot.manifest().data_checksums, "off");
    let (_folder, data) = copy(&snapshot);
    for (table, block, last, least) in [("sz_big", 3, 7, 70), ("sz_narrow", 0, 100, 80)] {
        let file = file_of(&snapshot, &data, table);
        let oracle = snapshot.oracle_without_ctid(snapshot.table("public", table).unwrap().oid).unwrap();
        let blocks = format!("0..{}", block + 1);
        let args = ["scan", &text(&data), table, "--io-method", "sync", "--blocks", &blocks];
        let whole = stdout(&args);
        assert!(whole.len() > 500 && oracle.starts_with(&whole));
        let mut errors = 0;
        for bit in (0..32).flat_map(|bit| [bit, 3 * 32 + bit, last * 32 + bit]) {
            let flip = |bytes: &mut Vec<u8>| bytes[block * 8192 + 24 + bit / 8] ^= 1 << (bit % 8);
            patch(&file, flip);
            let output = run(&args);
            patch(&file, flip);
            if output.status.success() {
                assert!(output.stdout == whole, "{table} bit {bit}: other rows and no error");
                continue;
            }
            errors += 1;
            let said = stderr(&output);
            assert!(output.status.code() == Some(1) && said.lines().count() == 1, "{table} bit {bit}: {said}");
            let place = format!("{}: block {block}: ", file.display());
            assert!(said.contains(&place), "{table} bit {bit}: {said}");
        }
        assert!(errors > least, "{table}: {errors} of 96 were noticed");
        assert!(run(&args).stdout == whole, "all bits are back");
    }
}

#[test]
fn a_missing_status_file_names_the_transaction() {
    let snapshot = snapshot("small-18", "crash");
    let (_folder, data) = copy(&snapshot);
    fs::remove_file(data.join("pg_xact/0000")).unwrap();
    let output = run(&["scan", &text(&data), "vis_plain", "--allow-unclean", "--io-method", "sync"]);
    assert_eq!(output.status.code(), Some(1));
    let said = stderr(&output);
    let errors: Vec<_> = said.lines().filter(|l| !l.contains("warning")).collect();
    let [line] = errors[..] else { panic!("one line, not {said}") };
    assert!(line.contains("pg_xact/0000") && line.contains("transaction"), "{line}");
}

#[test]
fn files_that_may_not_be_read() {
    let snapshot = pgbench_snapshot();
    let (folder, data) = copy(&snapshot);
    // Everybody may read all but one file.
    open_to_all(folder.path());
    let file = file_of(&snapshot, &data, "pgbench_tellers");
    let data = text(&data);
    let as_somebody_else = |table: &str| {
        let mut command = tool(&["scan", &data, table, "--io-method", "sync"]);
        if nix::unistd::geteuid().is_root() {
            // Root may read everything, so somebody else has to try.
            command.uid(65534).gid(65534);
        }
        command.output()
    };
    match as_somebody_else("pgbench_tellers") {
        Ok(output) => assert!(output.status.success(), "{}", stderr(&output)),
        Err(error) => {
            let reason = format!("the program cannot be run as nobody: {error}");
            return heapscan_fixtures::server::skip("nobody", &reason);
        }
    }
    fs::set_permissions(&file, fs::Permissions::from_mode(0o000)).unwrap();
    let line = refusal(&as_somebody_else("pgbench_tellers").unwrap(), 1);
    assert!(line.contains(&text(&file)) && line.contains("Permission denied"), "{line}");
    assert!(as_somebody_else("pgbench_branches").unwrap().status.success());
    let control = std::path::Path::new(&data).join("global/pg_control");
    fs::set_permissions(&control, fs::Permissions::from_mode(0o000)).unwrap();
    let line = refusal(&as_somebody_else("pgbench_branches").unwrap(), 1);
    assert!(line.contains("pg_control") && line.contains("Permission denied"), "{line}");
}

fn open_to_all(path: &std::path::Path) {
    let folder = path.is_dir();
    fs::set_permissions(path, fs::Permissions::from_mode(if folder { 0o755 } else { 0o644 })).unwrap();
    if folder {
        fs::read_dir(path).unwrap().for_each(|entry| open_to_all(&entry.unwrap().path()));
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
