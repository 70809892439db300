//! The program beside a real server over the same files: COPY's CSV and text, and aggregates.
#![cfg(feature = "tool")]

mod tool_support;

use heapscan_fixtures::{
    generate::{self, PgbenchOptions, TEMPLATE_VERSIONS},
    server::{self, Server},
};
use std::{fs, os::unix::fs::PermissionsExt, path::Path};
use tool_support::{first_difference, run, stderr, stdout, text};

/// Tables whose values are awkward for CSV, text, JSON and for sums.
const SCRIPT: &str = r#"
CREATE TABLE nasty (id int, t text, "a ""quoted"", column" text);
INSERT INTO nasty SELECT i, t, reverse(t) FROM unnest(ARRAY[
  NULL, '', ' ', ',', '"', '""', E'\n', E'\r', E'\r\n', E'\t', '\', '\.', '\N', 'NULL', 'a,b', 'say "hi"', E'two\nlines',
  E'\b\f\x0b', ' lead', 'trail ', 'é€😀', '{"a": 1}', repeat('long "x", ', 5000)]) WITH ORDINALITY AS u(t, i);
CREATE TABLE lone (t text);
INSERT INTO lone SELECT t FROM nasty ORDER BY id;
CREATE TABLE nothing ();
INSERT INTO nothing DEFAULT VALUES;
INSERT INTO nothing DEFAULT VALUES;
CREATE TABLE empty (a int, b text);
CREATE TABLE numbers (i2 int2, i4 int4, i8 int8, o oid, f4 float4, f8 float8, n numeric, d date, ts timestamp, t text, b bytea);
INSERT INTO numbers SELECT i - 150, i * 7000000, i * 9000000000000000, i::bigint * 14000000, i / 4.0, i / 8.0, i ^ 3 / 7.0,
  date '1999-12-31' + i, timestamp '1969-07-20 20:17:40.5' + i * interval '1 h', repeat('é', i % 50),
  decode(repeat('00ff', i % 3000), 'hex')
  FROM generate_series(1, 300) i;
INSERT INTO numbers DEFAULT VALUES;
INSERT INTO numbers (i2, i4, i8, n) VALUES (-32768, -2147483648, -9223372036854775808, -1e40), (32767, 2147483647, 9223372036854775807, 1e-40);
CREATE TABLE nulls (i2 int2, i4 int4, i8 int8, o oid, f4 float4, f8 float8, n numeric, d date, ts timestamp, t text, b bytea);
INSERT INTO nulls DEFAULT VALUES;
DELETE FROM numbers WHERE i4 % 5 = 0;
UPDATE numbers SET t = 'changed' WHERE i2 % 7 = 0;
"#;

/// Each aggregate that is offered, of columns of `numbers` and `nulls`.
fn aggregates() -> Vec<String> {
    let mut list = vec!["count(*)".to_owned()];
    for column in ["i2", "i4", "i8", "f4", "f8", "n"] {
        list.push(format!("sum({column})"));
    }
    for column in ["i2", "i4", "i8", "o", "f4", "f8", "d", "ts"] {
        list.push(format!("min({column})"));
        list.push(format!("max({column})"));
    }
    for column in ["t", "b"] {
        list.push(format!("count({column})"));
        for function in ["sum", "min", "max"] {
            list.push(format!("{function}(octet_length({column}))"));
        }
    }
    for expression in [
        "i2 * 3",
        "i4 - i2 * 2",
        "i8 - i2",
        "f4 * f4",
        "f4 * f8",
        "f8 * (1 - f8)",
        "-f8 * i4 + 5",
        "f4 * i2",
        "n * n",
        "-n * (1 - i2)",
        "i8 * 0.05",
        "n + n * 1.5 - i4",
        "f8 * n",
        "i2 * 123456789012345678901234567890.5",
        "f8 * 2.5 - 1",
    ] {
        list.push(format!("sum({expression})"));
    }
    list
}

#[test]
fn copy_and_aggregates_are_the_servers() {
    let installed: Vec<_> =
        TEMPLATE_VERSIONS.into_iter().filter_map(|major| Some((major, server::find_bin(major)?))).collect();
    if installed.is_empty() {
        server::skip("postgres", "no PostgreSQL 15 or 18 is installed; HEAPSCAN_PGBIN can name its folder of programs");
    }
    for (major, bin) in installed {
        beside(major, &bin);
    }
}

fn beside(major: u32, bin: &Path) {
    let folder = tempfile::tempdir_in("/tmp").unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o711)).unwrap();
    let options = PgbenchOptions { scale: 1, postgres: major, ..PgbenchOptions::default() };
    let made = generate::pgbench(&folder.path().join("cluster"), options).unwrap();
    let server = Server::start(bin, &made.data_dir).unwrap();
    let ask = |sql: &str| server.sql(&made.database, sql).unwrap();
    ask(SCRIPT);
    let tables = ["nasty", "lone", "nothing", "empty", "numbers", "nulls", "pgbench_accounts", "pgbench_branches"];
    let copies: Vec<[String; 2]> = tables
        .iter()
        .map(|t| [ask(&format!("COPY {t} TO STDOUT")), ask(&format!("COPY {t} TO STDOUT (FORMAT csv, HEADER)"))])
        .collect();
    let list = aggregates();
    let copy_of_list = |table: &str, how: &str| {
        let columns: Vec<_> = list.iter().map(|a| format!("{a} AS \"{a}\"")).collect();
        ask(&format!("COPY (SELECT {} FROM {table}) TO STDOUT {how}", columns.join(", ")))
    };
    let answers: Vec<[String; 2]> = ["numbers", "nulls", "empty_numbers"]
        .iter()
        .map(|table| {
            ask("CREATE TABLE IF NOT EXISTS empty_numbers (LIKE numbers)");
            [copy_of_list(table, ""), copy_of_list(table, "(FORMAT csv, HEADER)")]
        })
        .collect();
    server.stop().unwrap();

    let data = text(&made.data_dir);
    for (table, [plain, csv]) in tables.iter().zip(&copies) {
        for (format, expected) in [("text", plain), ("csv", csv)] {
            let printed = stdout(&["scan", &data, table, "--format", format]);
            assert!(
                printed == expected.as_bytes(),
                "{major} {table} {format}: {}",
                first_difference(&printed, expected.as_bytes())
            );
        }
    }
    for (table, [plain, csv]) in ["numbers", "nulls", "empty_numbers"].iter().zip(&answers) {
        let agg = |format| run(&["scan", &data, table, "--agg", &list.join(","), "--format", format]);
        for (format, expected) in [("text", plain), ("csv", csv)] {
            let output = agg(format);
            assert!(output.status.success(), "{}", stderr(&output));
            assert_eq!(String::from_utf8_lossy(&output.stdout), **expected, "{major} {table} {format}");
        }
        let json: serde_json::Value = serde_json::from_slice(&agg("json").stdout).unwrap();
        for (call, value) in list.iter().zip(plain.trim_end_matches('\n').split('\t')) {
            let same = if value == "\\N" { json[call].is_null() } else { json[call] == value };
            assert!(same, "{major} {table} {call}: {} is not {value}", json[call]);
        }
    }
}
