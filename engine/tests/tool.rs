//! The program's commands, formats and exit codes.
#![cfg(feature = "tool")]

mod tool_support;

use std::{
    fs::File,
    io::{BufRead, BufReader},
    process::Stdio,
};
use tool_support::{pgbench_snapshot, refusal, run, snapshot, stderr, stdout, text, tool};

#[test]
fn ls_lists_the_tables_with_sizes() {
    let data = text(&pgbench_snapshot().data_dir());
    let table = String::from_utf8(stdout(&["ls", &data])).unwrap();
    let line = table.lines().find(|l| l.contains("pgbench_accounts")).expect("listed");
    assert!(line.contains("public") && line.contains("1640") && line.contains("13434880"), "{line}");
    let json: serde_json::Value = serde_json::from_slice(&stdout(&["ls", &data, "--format", "json"])).unwrap();
    assert_eq!(json["database"], "pgbench");
    assert_eq!(json["version"], 18);
    let names: Vec<_> = json["tables"].as_array().unwrap().iter().map(|t| t["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["pgbench_accounts", "pgbench_branches", "pgbench_history", "pgbench_tellers"]);
}

#[test]
fn scan_prints_what_copy_prints() {
    let snapshot = pgbench_snapshot();
    for table in snapshot.user_tables() {
        let printed = stdout(&["scan", &text(&snapshot.data_dir()), &table.name, "--database", "pgbench"]);
        assert!(printed == snapshot.oracle_without_ctid(table.oid).unwrap(), "{}", table.name);
    }
}

#[test]
fn tables_are_named_as_in_sql() {
    let snapshot = snapshot("small-18", "clean");
    let data = text(&snapshot.data_dir());
    let oracle = snapshot.table("Other Schema", "t").unwrap();
    let expected = snapshot.oracle_without_ctid(oracle.oid).unwrap();
    assert_eq!(stdout(&["scan", &data, "\"Other Schema\".t"]), expected);
    assert_eq!(stdout(&["scan", &data, "\"Other Schema\".T"]), expected);
    assert_eq!(stdout(&["scan", &data, &format!("oid:{}", oracle.oid)]), expected);
    let plain = snapshot.table("public", "ty_int4").unwrap();
    assert_eq!(stdout(&["scan", &data, "Ty_Int4"]), snapshot.oracle_without_ctid(plain.oid).unwrap());
}

#[test]
fn columns_blocks_and_limit_select() {
    let snapshot = pgbench_snapshot();
    let data = text(&snapshot.data_dir());
    let oracle = snapshot.oracle_without_ctid(snapshot.table("public", "pgbench_accounts").unwrap().oid).unwrap();
    let first = |n| -> Vec<u8> { oracle.split_inclusive(|&b| b == b'\n').take(n).flatten().copied().collect() };
    assert_eq!(stdout(&["scan", &data, "pgbench_accounts", "--limit", "100"]), first(100));
    assert_eq!(stdout(&["scan", &data, "pgbench_accounts", "--limit", "0"]), b"");
    assert_eq!(
        stdout(&["scan", &data, "pgbench_accounts", "--columns", "bid, aid,bid", "--limit", "2"]),
        b"1\t1\t1\n1\t2\t1\n"
    );
    let parts: Vec<u8> = ["0..1", "1..700", "700..", "5000..6000"]
        .iter()
        .flat_map(|blocks| stdout(&["scan", &data, "pgbench_accounts", "--blocks", blocks]))
        .collect();
    assert!(parts == oracle, "the union of all ranges is the table");
}

/// The ctids of the server's answer say which rows lie in which block.
#[test]
fn blocks_are_the_blocks_of_the_ctids() {
    let snapshot = pgbench_snapshot();
    let data = text(&snapshot.data_dir());
    let oracle = snapshot.oracle(snapshot.table("public", "pgbench_accounts").unwrap().oid).unwrap();
    let block = |line: &str| -> u32 { line[1..].split(',').next().unwrap().parse().unwrap() };
    for (from, to) in [(0, 1), (17, 18), (1000, 1003), (1639, 1640), (1639, 9999), (1640, 1641), (5, 5)] {
        let expected: String = std::str::from_utf8(&oracle)
            .unwrap()
            .lines()
            .filter(|line| (from..to).contains(&block(line)))
            .map(|line| line.split_once('\t').unwrap().1.to_owned() + "\n")
            .collect();
        let range = format!("{from}..{to}");
        let printed = stdout(&["scan", &data, "pgbench_accounts", "--blocks", &range]);
        assert!(printed == expected.as_bytes(), "{range}");
        let counted = stdout(&["scan", &data, "pgbench_accounts", "--blocks", &range, "--agg", "count(*)"]);
        assert_eq!(counted, format!("{}\n", expected.lines().count()).as_bytes(), "{range}");
    }
}

#[test]
fn aggregates_are_those_of_the_server() {
    let data = text(&pgbench_snapshot().data_dir());
    let list = "count(*),sum(abalance),sum(octet_length(filler)),min(aid),max(aid),sum(aid)";
    // select count(*), sum(abalance), ... over the rows of pgbench -i -s 1.
    let expected = ["100000", "0", "8400000", "1", "100000", "5000050000"];
    let printed = stdout(&["scan", &data, "pgbench_accounts", "--agg", list]);
    assert_eq!(printed, format!("{}\n", expected.join("\t")).into_bytes());
    let json = stdout(&["scan", &data, "pgbench_accounts", "--agg", list, "--format", "json"]);
    let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
    assert_eq!(json["sum(aid)"], "5000050000");
    let csv =
        String::from_utf8(stdout(&["scan", &data, "pgbench_accounts", "--agg", list, "--format", "csv"])).unwrap();
    assert_eq!(csv.lines().collect::<Vec<_>>(), [list, &expected.join(",")]);
    // filler is NULL throughout in the branches, so its sum is NULL and its count 0.
    let nulls =
        stdout(&["scan", &data, "pgbench_branches", "--agg", "count(*),count(filler),sum(octet_length(filler))"]);
    assert_eq!(nulls, b"1\t0\t\\N\n");
}

#[test]
fn aggregates_agree_with_the_printed_rows() {
    let snapshot = snapshot("small-15", "clean");
    let data = text(&snapshot.data_dir());
    for (table, column) in [("ty_int4", "v"), ("ty_int2", "v"), ("vis_del", "id"), ("sh_missing", "a")] {
        let rows = String::from_utf8(stdout(&["scan", &data, table, "--columns", column])).unwrap();
        let values: Vec<i128> = rows.lines().filter(|l| *l != "\\N").map(|l| l.parse().unwrap()).collect();
        let expected = format!(
            "{}\t{}\t{}\t{}\t{}\n",
            rows.lines().count(),
            values.len(),
            values.iter().sum::<i128>(),
            values.iter().min().unwrap(),
            values.iter().max().unwrap()
        );
        let list = format!("count(*),count({column}),sum({column}),min({column}),max({column})");
        let printed = String::from_utf8(stdout(&["scan", &data, table, "--agg", &list])).unwrap();
        assert_eq!(printed, expected, "{table}");
    }
}

#[test]
fn json_lines_hold_the_same_values() {
    let snapshot = pgbench_snapshot();
    let data = text(&snapshot.data_dir());
    let lines = String::from_utf8(stdout(&["scan", &data, "pgbench_tellers", "--format", "json"])).unwrap();
    for (i, line) in lines.lines().enumerate() {
        let row: serde_json::Value = serde_json::from_str(line).unwrap();
        assert_eq!(row["tid"], i + 1);
        assert_eq!(row["bid"], 1);
        assert!(row["filler"].is_null());
    }
    assert_eq!(lines.lines().count(), 10);
}

#[test]
fn csv_quotes_what_copy_quotes() {
    let snapshot = snapshot("small-18", "clean");
    let data = text(&snapshot.data_dir());
    let printed = String::from_utf8(stdout(&["scan", &data, "ty_text", "--format", "csv"])).unwrap();
    assert!(printed.starts_with("id,v\n"), "a header");
    assert!(printed.lines().any(|l| l.ends_with(",\"\"")), "the empty string is quoted");
    let rows = String::from_utf8(stdout(&["scan", &data, "ty_text"])).unwrap();
    let nulls = |text: &str, end: &str| text.lines().filter(|l| l.ends_with(end)).count();
    assert!(nulls(&rows, "\t\\N") > 0, "the table has a NULL");
}

#[test]
fn output_goes_to_a_file_and_stats_to_standard_error() {
    let snapshot = pgbench_snapshot();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("rows");
    let output = run(&[
        "scan",
        &text(&snapshot.data_dir()),
        "pgbench_accounts",
        "--output",
        &text(&file),
        "--stats",
        "json",
        "--io-method",
        "worker",
    ]);
    assert!(output.status.success() && output.stdout.is_empty());
    let oid = snapshot.table("public", "pgbench_accounts").unwrap().oid;
    assert!(std::fs::read(&file).unwrap() == snapshot.oracle_without_ctid(oid).unwrap());
    let stats: serde_json::Value = serde_json::from_slice(&output.stderr).expect("standard error is one JSON document");
    assert_eq!(stats["method"]["requested"], "worker");
    assert_eq!(stats["method"]["used"], "worker");
    assert_eq!(stats["scan"]["rows"], 100_000);
    assert_eq!(stats["scan"]["pages"], 1640);
    assert_eq!(stats["scan"]["io"]["blocks_read"], 1640);
    let plain = run(&["scan", &text(&snapshot.data_dir()), "pgbench_tellers", "--stats", "text"]);
    assert!(stderr(&plain).contains("io_method") && stderr(&plain).contains("10 visible"), "{}", stderr(&plain));
}

#[test]
fn methods_tells_of_each_method() {
    let json: serde_json::Value = serde_json::from_slice(&stdout(&["methods", "--format", "json"])).unwrap();
    let names: Vec<_> = json["methods"].as_array().unwrap().iter().map(|m| m["method"].as_str().unwrap()).collect();
    assert_eq!(names, ["sync", "worker", "io_uring", "tokio_uring"]);
    let table = String::from_utf8(stdout(&["methods"])).unwrap();
    assert!(table.contains("compiled in") && table.contains("usable here"));
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let data = text(&pgbench_snapshot().data_dir());
    let mut child =
        tool(&["scan", &data, "pgbench_accounts"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{:?} {}", output.status, stderr(&output));
    assert_eq!(stderr(&output), "");
}

/// As `| head -1`: one line is taken, then nobody reads any more.
#[test]
fn head_takes_one_line() {
    let data = text(&pgbench_snapshot().data_dir());
    for (format, first) in [
        ("text", format!("1\t1\t0\t{:84}\n", "")),
        ("csv", "aid,bid,abalance,filler\n".to_owned()),
        ("json", format!("{{\"aid\":1,\"bid\":1,\"abalance\":0,\"filler\":\"{:84}\"}}\n", "")),
    ] {
        let mut child = tool(&["scan", &data, "pgbench_accounts", "--format", format, "--io-method", "sync"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, first);
        let output = child.wait_with_output().unwrap();
        assert_eq!((output.status.code(), &stderr(&output)[..]), (Some(0), ""), "{format}");
    }
}

/// Standard output on a full disk: no command may pretend that it printed.
#[test]
fn a_full_standard_output_is_an_error() {
    let data = text(&pgbench_snapshot().data_dir());
    for args in [
        &["scan", &data, "pgbench_accounts"][..],
        &["scan", &data, "pgbench_tellers"],
        &["scan", &data, "pgbench_tellers", "--format", "json"],
        &["scan", &data, "pgbench_accounts", "--agg", "count(*)"],
        &["ls", &data],
        &["ls", &data, "--format", "json"],
        &["methods"],
        &["methods", "--format", "json"],
    ] {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let mut command = tool(args);
        if args[0] != "methods" {
            command.args(["--io-method", "sync"]);
        }
        let output = command.stdout(full).output().unwrap();
        let line = refusal(&output, 1);
        assert!(line.contains("No space left"), "{args:?}: {line}");
    }
}

#[test]
fn an_output_file_that_cannot_be_made() {
    let data = text(&pgbench_snapshot().data_dir());
    for more in [&[][..], &["--agg", "count(*)"]] {
        let mut args = vec!["scan", &data, "pgbench_tellers", "--output", "/no/such/folder/rows"];
        args.extend_from_slice(more);
        let line = refusal(&run(&args), 1);
        assert!(line.contains("/no/such/folder/rows") && line.contains("No such file"), "{line}");
    }
}

#[test]
fn a_refused_scan_leaves_an_existing_output_file_alone() {
    let data = text(&pgbench_snapshot().data_dir());
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("rows");
    std::fs::write(&file, "precious").unwrap();
    refusal(&run(&["scan", &data, "pgbench_tellers", "--columns", "nope", "--output", &text(&file)]), 1);
    assert_eq!(std::fs::read(&file).unwrap(), b"precious");
    // A scan without rows still makes the file.
    assert!(run(&["scan", &data, "pgbench_history", "--output", &text(&file)]).status.success());
    assert_eq!(std::fs::read(&file).unwrap(), b"");
}

/// Data to standard output, everything else to standard error.
#[test]
fn standard_output_holds_data_only() {
    let data = text(&pgbench_snapshot().data_dir());
    let args = ["scan", &data, "pgbench_tellers", "--io-method", "sync"];
    let plain = run(&args);
    assert!(plain.status.success() && plain.stderr.is_empty(), "{}", stderr(&plain));
    for format in ["text", "json"] {
        let output = tool(&args).args(["--stats", format]).output().unwrap();
        assert_eq!(output.stdout, plain.stdout, "{format}");
        assert!(!output.stderr.is_empty(), "{format}");
        let sum = tool(&args).args(["--stats", format, "--agg", "sum(tid)"]).output().unwrap();
        assert_eq!(sum.stdout, b"55\n", "{format}");
    }
    let ls = run(&["ls", &data, "--io-method", "sync"]);
    assert!(ls.status.success() && ls.stderr.is_empty(), "{}", stderr(&ls));
    let folder = tempfile::tempdir().unwrap();
    let made = run(&["generate", "pgbench", "--scale", "1", &text(&folder.path().join("made"))]);
    assert!(made.status.success() && made.stdout.is_empty(), "{}", stderr(&made));
    assert!(stderr(&made).contains("100011 rows"), "{}", stderr(&made));
}

#[test]
fn a_full_disk_is_an_error() {
    let data = text(&pgbench_snapshot().data_dir());
    let output = run(&["scan", &data, "pgbench_accounts", "--output", "/dev/full"]);
    let line = refusal(&output, 1);
    assert!(line.contains("/dev/full") && line.contains("No space left"), "{line}");
}

#[test]
fn a_file_size_limit_is_an_error_and_no_death() {
    let data = text(&pgbench_snapshot().data_dir());
    let folder = tempfile::tempdir().unwrap();
    let file = text(&folder.path().join("rows"));
    let mut command = tool(&["scan", &data, "pgbench_accounts", "--output", &file]);
    heapscan_fixtures::sandbox::limit(&mut command, nix::sys::resource::Resource::RLIMIT_FSIZE, 100_000);
    let line = refusal(&command.output().unwrap(), 1);
    assert!(line.contains("File too large") && line.contains(&file), "{line}");
}

#[test]
fn usage_errors_exit_with_2() {
    let data = text(&pgbench_snapshot().data_dir());
    for args in [
        &["scan", &data, "pgbench_accounts", "--agg", "avg(aid)"][..],
        &["scan", &data, "pgbench_accounts", "--agg", "sum(aid"],
        &["scan", &data, "pgbench_accounts", "--columns", "aid,,bid"],
        &["scan", &data, "pgbench_accounts", "--blocks", "7..3"],
        &["scan", &data, "pgbench_accounts", "--io-method", "aio"],
        &["scan", &data, "pgbench_accounts", "--shared-buffers", "12 parsecs"],
        &["scan", &data, "a.b.c.d"],
        &["scan", &data],
        &["frobnicate"],
    ] {
        let output = run(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {}", stderr(&output));
        assert!(output.stdout.is_empty(), "{args:?}");
        assert!(!output.stderr.is_empty(), "{args:?}");
    }
}
