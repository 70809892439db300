//! Row versions, system columns, partitions and inheritance, tablespaces elsewhere: as the server has them.
#![cfg(feature = "tool")]

mod method_support;
mod tool_support;

use heapscan::{Engine, visibility::Rows};
use heapscan_fixtures::{
    generate::{self, PgbenchOptions, TEMPLATE_VERSIONS},
    server::{self, Server},
};
use method_support::{methods, options};
use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};
use tool_support::{copy, first_difference, pgbench_snapshot, refusal, run, snapshot, stderr, stdout, text, tool};

/// All tuples of the files, by the list that `heap_page_items` made of them on the server.
#[test]
fn h21_all_and_dead_row_versions_are_those_of_heap_page_items() {
    let snapshot = snapshot("small-18", "crash");
    let data = text(&snapshot.data_dir());
    let items = String::from_utf8(fs::read(snapshot.dir().join("items.tsv")).unwrap()).unwrap();
    for table in ["vis_plain", "vis_del", "vis_abort_all", "vis_multi", "vis_spec", "vis_prune", "vis_inprog"] {
        let prefix = format!("public.{table}\t");
        let mut expected = Vec::new();
        for line in items.lines().filter(|line| line.starts_with(&prefix)) {
            let f: Vec<&str> = line.split('\t').collect();
            if f[4] == "1" {
                let line = [&format!("({},{})", f[1], f[2]), f[6], f[7], f[8], f[9], f[10], f[11]].join("\t");
                expected.push(line + "\n");
            }
        }
        assert!(!expected.is_empty(), "{table}");
        let visible = snapshot.oracle(snapshot.table("public", table).unwrap().oid).unwrap();
        let visible = String::from_utf8(visible).unwrap();
        let visible: Vec<&str> = visible.lines().map(|line| line.split('\t').next().unwrap()).collect();
        let dead = |line: &&String| !visible.contains(&line.split('\t').next().unwrap());
        for method in methods() {
            let columns = "ctid,xmin,xmax,t_field3,t_ctid,t_infomask2,t_infomask";
            let scan = |rows| {
                let args = ["scan", &data, table, "--allow-unclean", "--io-method", method.as_str()];
                let output = tool(&args).args(["--columns", columns, "--visibility", rows]).output().unwrap();
                assert!(output.status.success(), "{}", stderr(&output));
                String::from_utf8(output.stdout).unwrap()
            };
            let all = expected.concat();
            assert!(scan("all") == all, "{table}: {}", first_difference(scan("all").as_bytes(), all.as_bytes()));
            assert_eq!(scan("dead"), expected.iter().filter(dead).cloned().collect::<String>(), "{table}");
            assert_eq!(scan("committed"), expected.iter().filter(|l| !dead(l)).cloned().collect::<String>(), "{table}");
        }
    }
}

#[test]
fn system_columns_in_every_form() {
    let snapshot = pgbench_snapshot();
    let data = text(&snapshot.data_dir());
    let oid = snapshot.table("public", "pgbench_tellers").unwrap().oid;
    let args = ["scan", &data, "pgbench_tellers", "--limit", "1", "--columns"];
    let line = |columns: &str, format: &str| {
        let output = tool(&args).args([columns, "--format", format]).output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(line("tid,ctid,tableoid", "text"), format!("1\t(0,1)\t{oid}\n"));
    assert_eq!(line("ctid,tid", "csv"), "ctid,tid\n\"(0,1)\",1\n");
    let json: serde_json::Value = serde_json::from_str(&line("ctid,tid,ctid", "json")).unwrap();
    assert_eq!((&json["ctid"], &json["tid"]), (&"(0,1)".into(), &1.into()));
    for method in methods() {
        let engine = Engine::open(snapshot.data_dir(), options(method, 64)).unwrap();
        let table = engine.database(None).unwrap().table("pgbench_accounts").unwrap();
        let scan = table.scan().columns(&["ctid", "aid", "xmin", "tableoid"]).visibility(Rows::All);
        let mut rows = 0u32;
        for batch in scan.batches(heapscan::arrow::BatchOptions::default()).unwrap() {
            use arrow_array::cast::AsArray;
            let batch = batch.unwrap();
            let (ctid, aid) = (batch.column(0).as_string::<i32>(), batch.column(1));
            let aid = aid.as_primitive::<arrow_array::types::Int32Type>();
            let oids = batch.column(3).as_primitive::<arrow_array::types::UInt32Type>();
            for row in 0..batch.num_rows() {
                assert_eq!(ctid.value(row), format!("({},{})", rows / 61, rows % 61 + 1));
                assert_eq!((aid.value(row), oids.value(row)), (rows as i32 + 1, table.info().oid));
                rows += 1;
            }
        }
        assert_eq!(rows, 100_000);
        // By row, and by ctid.
        let mut scan = table.scan().columns(&["xmin", "ctid"]).start().unwrap();
        let mut page = scan.next_page().unwrap().unwrap();
        let mut row = page.next_row().unwrap().unwrap();
        let mut printed = Vec::new();
        assert!(row.write_text(1, &mut printed).unwrap() && printed == b"(0,1)");
        let mut found = Vec::new();
        table
            .scan()
            .columns(&["ctid", "aid"])
            .lookup([(7, 3)].into_iter(), &mut |_, row| {
                let mut row = row.expect("there");
                row.write_text(0, &mut found)?;
                found.extend(row.i32(1)?.map(|aid| format!(" {aid}")).unwrap_or_default().bytes());
                Ok(())
            })
            .unwrap();
        assert_eq!(String::from_utf8(found).unwrap(), format!("(7,3) {}", 7 * 61 + 3));
    }
}

const SCRIPT: &str = r#"
CREATE TABLE r (id int, dropped text, v text DEFAULT 'x', d date) PARTITION BY RANGE (d);
CREATE TABLE r_late PARTITION OF r FOR VALUES FROM ('2020-01-01') TO (MAXVALUE);
CREATE TABLE r_default PARTITION OF r DEFAULT;
CREATE TABLE r_old (d date, gone int, v text, id int, dropped text, more int);
ALTER TABLE r_old DROP gone, DROP more;
ALTER TABLE r ATTACH PARTITION r_old FOR VALUES FROM (MINVALUE) TO ('1999-12-31');
CREATE TABLE r_mid PARTITION OF r FOR VALUES FROM ('1999-12-31') TO ('2010-01-01') PARTITION BY LIST (v);
CREATE TABLE r_mid_null PARTITION OF r_mid FOR VALUES IN (NULL);
CREATE TABLE r_mid_z PARTITION OF r_mid FOR VALUES IN ('z', 'a');
CREATE TABLE r_mid_b PARTITION OF r_mid FOR VALUES IN ('b', 'y');
CREATE TABLE r_mid_default PARTITION OF r_mid DEFAULT;
INSERT INTO r SELECT i, 'd' || i, CASE i % 5 WHEN 0 THEN 'z' WHEN 1 THEN 'b' WHEN 2 THEN NULL WHEN 3 THEN 'q' ELSE 'a' END,
  date '1990-01-01' + i * 11 FROM generate_series(1, 2000) i;
INSERT INTO r VALUES (0, NULL, NULL, NULL);
ALTER TABLE r DROP dropped;
ALTER TABLE r ADD added int DEFAULT 42;
INSERT INTO r SELECT i, 'new', date '2000-06-01' + i, i FROM generate_series(1, 10) i;
CREATE TABLE h (k int, t text) PARTITION BY HASH (k);
CREATE TABLE h3 PARTITION OF h FOR VALUES WITH (MODULUS 4, REMAINDER 3);
CREATE TABLE h1 PARTITION OF h FOR VALUES WITH (MODULUS 4, REMAINDER 1);
CREATE TABLE h0 PARTITION OF h FOR VALUES WITH (MODULUS 2, REMAINDER 0);
INSERT INTO h SELECT i, repeat(md5(i::text), 1 + i % 100) FROM generate_series(1, 500) i;
CREATE TABLE n (x numeric, y bigint) PARTITION BY RANGE (x, y);
CREATE TABLE n_b PARTITION OF n FOR VALUES FROM (0.5, 7) TO (100000000, MINVALUE);
CREATE TABLE n_c PARTITION OF n FOR VALUES FROM (100000000, 0) TO (MAXVALUE, MAXVALUE);
CREATE TABLE n_a PARTITION OF n FOR VALUES FROM (-12345.678, -5) TO (0.5, 7);
INSERT INTO n SELECT i, i FROM generate_series(-100, 100) i;
INSERT INTO n VALUES (100000001, -3), (99999999, 0);
CREATE TABLE nobody (a int) PARTITION BY LIST (a);
CREATE TABLE p (a int, b text);
CREATE TABLE c1 (extra int) INHERITS (p);
CREATE TABLE c2 () INHERITS (c1);
ALTER TABLE c1 ALTER b SET DEFAULT 'c';
INSERT INTO p VALUES (1, 'p'), (2, 'p');
INSERT INTO c1 VALUES (3, 'c1', 9);
INSERT INTO c2 VALUES (4, 'c2', 8);
UPDATE h SET t = 'short' WHERE k % 7 = 0;
DELETE FROM h WHERE k % 11 = 0;
"#;

#[test]
fn r6_partitions_are_scanned_in_the_servers_order() {
    let installed: Vec<_> =
        TEMPLATE_VERSIONS.into_iter().filter_map(|major| Some((major, server::find_bin(major)?))).collect();
    if installed.is_empty() {
        server::skip("postgres", "no PostgreSQL 15 or 18 is installed; HEAPSCAN_PGBIN can name its folder of programs");
    }
    for (major, bin) in installed {
        partitions(major, &bin);
    }
}

fn partitions(major: u32, bin: &Path) {
    let folder = tempfile::tempdir_in("/tmp").unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o711)).unwrap();
    let made = PgbenchOptions { scale: 1, postgres: major, ..PgbenchOptions::default() };
    let made = generate::pgbench(&folder.path().join("cluster"), made).unwrap();
    let server = Server::start(bin, &made.data_dir).unwrap();
    let ask = |sql: &str| server.sql(&made.database, sql).unwrap();
    ask(SCRIPT);
    let parents = ["r", "r_mid", "h", "n", "nobody"];
    let rows: Vec<String> = parents.iter().map(|t| ask(&format!("COPY (SELECT * FROM {t}) TO STDOUT"))).collect();
    let system = "tableoid, ctid, xmin, xmax, cmin, cmax";
    let query = |from: &str| {
        ask(&format!("COPY (SELECT {} FROM {from}) TO STDOUT", system.replace("tableoid", "tableoid::oid")))
    };
    let of_system = [query("r"), query("h"), query("h0"), query("p")];
    let (only, all) = (ask("COPY p TO STDOUT"), ask("COPY (SELECT * FROM p) TO STDOUT"));
    let toasted = ask("COPY (SELECT sum(octet_length(t)), count(*), sum(k) FROM h) TO STDOUT");
    server.stop().unwrap();
    let data = text(&made.data_dir);
    for method in methods() {
        let scan = |table: &str, extra: &[&str]| {
            let args = ["scan", &data, table, "--io-method", method.as_str(), "--shared-buffers", "1MB"];
            String::from_utf8(stdout(&[&args[..], extra].concat())).unwrap()
        };
        for (table, expected) in parents.iter().zip(&rows) {
            let printed = scan(table, &[]);
            let parts = first_difference(printed.as_bytes(), expected.as_bytes());
            assert!(printed == *expected, "{major} {table}: {parts}");
        }
        for (table, expected) in ["r", "h", "h0", "p"].iter().zip(&of_system) {
            let printed = scan(table, &["--columns", &system.replace(' ', ""), "--include-children"]);
            let parts = first_difference(printed.as_bytes(), expected.as_bytes());
            assert!(printed == *expected, "{major} {table}: {parts}");
        }
        assert_eq!(scan("h", &["--agg", "sum(octet_length(t)),count(*),sum(k)"]), toasted);
        assert_eq!(scan("p", &["--include-children"]), all);
        let output = run(&["scan", &data, "p", "--io-method", method.as_str()]);
        assert!(output.status.success() && output.stdout == only.as_bytes());
        assert!(stderr(&output).contains("2 other tables inherit from p"), "{}", stderr(&output));
        assert_eq!(scan("r", &["--limit", "3"]), rows[0].split_inclusive('\n').take(3).collect::<String>());
        let engine = Engine::open(&made.data_dir, options(method, 64)).unwrap();
        let table = engine.database(None).unwrap().table("r").unwrap();
        assert_eq!(table.parts().count(), 7);
        let batches = table.scan().batches(heapscan::arrow::BatchOptions::default()).unwrap();
        let count: usize = batches.map(|batch| batch.unwrap().num_rows()).sum();
        assert_eq!(count, rows[0].lines().count());
    }
    let line = refusal(&run(&["scan", &data, "r", "--blocks", "0..1"]), 2);
    assert!(line.contains("range of blocks"), "{line}");
    // A leaf whose file is gone is told, by name.
    let engine = Engine::open(&made.data_dir, heapscan::EngineOptions::default()).unwrap();
    let leaf = engine.database(None).unwrap().table("h1").unwrap().fork().path().to_owned();
    fs::remove_file(&leaf).unwrap();
    let line = refusal(&run(&["scan", &data, "h"]), 1);
    assert!(line.contains("partition h1") && line.contains(&text(&leaf)), "{line}");
    let output = run(&["scan", &data, "h", "--on-corruption", "skip"]);
    assert!(output.status.code() == Some(1) && stderr(&output).contains("incomplete"), "{}", stderr(&output));
}

/// The folder of the tablespace that `sp_ts` lies in, and its oid.
fn tablespace(data: &Path) -> (PathBuf, String) {
    let entries = fs::read_dir(data.join("pg_tblspc")).unwrap().map(|entry| entry.unwrap().path());
    let link = entries.into_iter().find(|path| path.is_symlink()).expect("a tablespace with a link");
    (link.clone(), link.file_name().unwrap().to_str().unwrap().to_owned())
}

#[test]
fn h13_tablespaces_that_a_copy_keeps_elsewhere() {
    let snapshot = snapshot("small-18", "clean");
    let (folder, data) = copy(&snapshot);
    let oracle = snapshot.oracle_without_ctid(snapshot.table("public", "sp_ts").unwrap().oid).unwrap();
    let (link, oid) = tablespace(&data);
    let here = link.canonicalize().unwrap();
    let elsewhere = folder.path().join("elsewhere");
    fs::rename(&here, &elsewhere).unwrap();
    let data_text = text(&data);
    let scan = |extra: &[&str]| tool(&["scan", &data_text, "sp_ts"]).args(extra).output().unwrap();
    let map = |old: &str| format!("{old}={}", text(&elsewhere));
    // The link leads nowhere.
    let line = refusal(&scan(&["--allow-links-outside"]), 1);
    assert!(line.contains(&oid) && line.contains("--tablespace-map"), "{line}");
    let target = text(&link.read_link().unwrap());
    for method in methods() {
        for old in [&oid, &target] {
            let output = scan(&["--tablespace-map", &map(old), "--io-method", method.as_str()]);
            assert!(output.status.success() && output.stdout == oracle, "{old}: {}", stderr(&output));
            assert!(stderr(&output).contains("outside the data directory"), "{}", stderr(&output));
        }
    }
    // An absolute link to the live server's folder, and a chain of links.
    fs::remove_file(&link).unwrap();
    let chain = folder.path().join("chain");
    std::os::unix::fs::symlink(&elsewhere, &chain).unwrap();
    std::os::unix::fs::symlink(&chain, &link).unwrap();
    let line = refusal(&scan(&[]), 1);
    assert!(line.contains("outside the cluster") && line.contains(&text(&elsewhere)), "{line}");
    let output = scan(&["--allow-links-outside"]);
    assert!(output.status.success() && output.stdout == oracle, "{}", stderr(&output));
    let output = scan(&["--tablespace-map", &map(&text(&chain))]);
    assert!(output.status.success() && output.stdout == oracle, "{}", stderr(&output));
    // The folder of another version.
    let line = refusal(&scan(&["--tablespace-map", &format!("{oid}={}", text(folder.path()))]), 1);
    assert!(line.contains("no folder of this cluster's version"), "{line}");
    let line = refusal(&scan(&["--tablespace-map", &format!("{oid}=/no/such/folder")]), 1);
    assert!(line.contains("/no/such/folder"), "{line}");
    // A backup that was not recovered has a file in place of the links.
    fs::remove_file(&link).unwrap();
    let line = refusal(&scan(&[]), 1);
    assert!(line.contains("is missing") && line.contains(&format!("--tablespace-map {oid}=")), "{line}");
    fs::write(data.join("tablespace_map"), format!("1 /x\n{oid} /srv/with \\\\ and \\\nnewline\n")).unwrap();
    let line = refusal(&scan(&[]), 1);
    assert!(line.contains("tablespace_map") && line.contains("base backup"), "{line}");
    let output = scan(&["--allow-unclean", "--tablespace-map", &map("/srv/with \\ and \nnewline")]);
    assert!(output.status.success() && output.stdout == oracle, "{}", stderr(&output));
    fs::write(data.join("tablespace_map"), format!("{oid} {}\n", text(&elsewhere))).unwrap();
    let output = scan(&["--allow-unclean"]);
    assert!(output.status.code() == Some(1) && stderr(&output).contains("outside the cluster"), "{}", stderr(&output));
    let output = scan(&["--allow-unclean", "--allow-links-outside"]);
    assert!(output.status.success() && output.stdout == oracle, "{}", stderr(&output));
    assert_eq!(scan(&["--tablespace-map", "nothing"]).status.code(), Some(2));
}

/// Incremental backups have only the blocks that changed: refused by name, with what to do.
#[test]
fn incremental_backups_are_refused() {
    let snapshot = pgbench_snapshot();
    let (_folder, data) = copy(&snapshot);
    let file = data.join(&snapshot.table("public", "pgbench_tellers").unwrap().path);
    let incremental = file.with_file_name(format!("INCREMENTAL.{}", file.file_name().unwrap().to_str().unwrap()));
    fs::rename(&file, &incremental).unwrap();
    for args in [&["scan", &text(&data), "pgbench_tellers"][..], &["verify", &text(&data)]] {
        let line = refusal(&run(args), 1);
        assert!(line.contains(&text(&incremental)) && line.contains("pg_combinebackup"), "{line}");
    }
    fs::rename(&incremental, &file).unwrap();
    let label = "START WAL LOCATION: 0/2000028 (file 000000010000000000000002)\nINCREMENTAL FROM LSN: 0/1000028\n";
    fs::write(data.join("backup_label"), label).unwrap();
    let line = refusal(&run(&["scan", &text(&data), "pgbench_tellers", "--allow-unclean"]), 1);
    assert!(line.contains("backup_label") && line.contains("pg_combinebackup"), "{line}");
}
