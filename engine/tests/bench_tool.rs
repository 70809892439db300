//! `heapscan bench` at toy size: what it prints and writes, and what it refuses. (About three seconds.)
#![cfg(feature = "tool")]

mod tool_support;

use heapscan_fixtures::{
    sandbox::{IO_URING_CALLS, deny},
    server,
};
use serde_json::Value;
use std::path::Path;
use tool_support::{refusal, run, stderr, text, tool};

/// Not /tmp, which can be a tmpfs: its files are on no device.
fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in("/var/tmp").expect("a folder")
}

fn json(folder: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(folder.join("results.json")).expect("results")).expect("JSON")
}

/// Rows that have figures.
fn measured(json: &Value) -> Vec<&Value> {
    json["rows"].as_array().expect("rows").iter().filter(|row| row["refused"].is_null()).collect()
}

#[test]
fn methods_are_compared_in_every_state() {
    let folder = folder();
    let (data, out) = (folder.path().join("data"), folder.path().join("out"));
    let arguments = [
        "bench",
        "--quick",
        "--scale",
        "1",
        "--runs",
        "1",
        "--clients",
        "2",
        "--data",
        &text(&data),
        "--output",
        &text(&out),
    ];
    let output = run(&arguments);
    assert!(output.status.success(), "{}", stderr(&output));
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    let json = json(&out);
    let rows = measured(&json);
    for method in ["sync", "worker"] {
        for (state, access) in [("cold", "direct"), ("cold", "buffered"), ("warm", "buffered")] {
            let found = rows.iter().any(|row| {
                row["io_method"] == method
                    && row["state"] == state
                    && row["access"] == access
                    && row["workload"] == "agg"
            });
            // A page cache that does not let go, or a file system without direct IO, is a reason to refuse.
            assert!(found || shown.contains("REFUSED"), "{method} {state} {access}: {shown}");
        }
    }
    for row in &rows {
        assert_eq!(row["runs"].as_array().map(Vec::len), Some(1), "{row}");
        let run = &row["runs"][0];
        assert!(
            run["spent"]["wall"].as_f64() > Some(0.0) && row["gb_per_second"]["median"].as_f64() > Some(0.0),
            "{row}"
        );
        if row["workload"] == "agg" {
            assert_eq!(run["answer"], (100_000 * 84).to_string());
            let share = run["cached_before"].as_f64().expect("a share");
            match row["state"].as_str() {
                Some("cold") => assert!(share <= 0.01, "{row}"),
                Some("warm") => assert!(share >= 0.99, "{row}"),
                _ => assert!(run["io"]["blocks_read"].as_u64() <= Some(40), "{row}"),
            }
        }
    }
    for workload in ["agg", "offset", "seqconcurrscans", "pgbenchS", "pgbenchS-100k"] {
        assert!(rows.iter().any(|row| row["state"] == "hot" && row["workload"] == workload), "{workload}: {shown}");
    }
    assert!(rows.iter().any(|row| row["workload"] == "memory") && rows.iter().any(|row| row["workload"] == "pread"));
    assert!(json["bars"].as_array().is_some_and(|bars| bars.len() > 2), "{shown}");
    let csv = std::fs::read_to_string(out.join("results.csv")).expect("CSV");
    let columns = csv.lines().next().expect("a header").split(',').count();
    assert_eq!(csv.lines().count(), rows.len() + 1 + json["rows"].as_array().map_or(0, Vec::len) - rows.len());
    for line in csv.lines().filter(|line| !line.contains('"')) {
        assert_eq!(line.split(',').count(), columns, "{line}");
    }
    let html = std::fs::read_to_string(out.join("report.html")).expect("a page");
    assert!(html.starts_with("<!doctype html>") && html.ends_with("</html>"), "{html}");
    for part in ["In short", "PostgreSQL settings", "where the time", "Concurrent scans", "Every row", "<svg"] {
        assert!(html.contains(part), "{part}");
    }
    // Nothing is fetched from anywhere.
    assert!(!html.contains("src=") && !html.contains("href=") && !html.contains("url("), "{html}");
    // What is there is used again, if it fits.
    let line = stderr(&run(&["bench", "--scale", "3", "--data", &text(&data), "--output", &text(&out)]));
    assert!(line.contains("another scale"), "{line}");
}

#[test]
fn only_what_is_asked_for_is_measured() {
    let folder = folder();
    let out = text(&folder.path().join("out"));
    let data = text(&tool_support::pgbench_snapshot().data_dir());
    let output = run(&[
        "bench",
        &data,
        "--method-only",
        "--states",
        "warm",
        "--io-methods",
        "worker,sync",
        "--runs",
        "2",
        "--output",
        &out,
    ]);
    assert!(output.status.success(), "{}", stderr(&output));
    let json = json(&folder.path().join("out"));
    let scans: Vec<(&str, &str)> = measured(&json)
        .iter()
        .filter(|row| row["system"] == "heapscan")
        .map(|row| (row["workload"].as_str().expect("a name"), row["io_method"].as_str().expect("a name")))
        .collect();
    assert_eq!(scans, [("method-only", "worker"), ("method-only", "sync")]);
}

#[test]
fn nothing_is_labelled_io_uring_that_is_not() {
    let folder = folder();
    let out = text(&folder.path().join("out"));
    let data = text(&tool_support::pgbench_snapshot().data_dir());
    let mut command = tool(&["bench", &data, "--io-methods", "io_uring", "--output", &out]);
    deny(&mut command, &IO_URING_CALLS, libc::EPERM);
    assert!(refusal(&command.output().expect("output"), 1).contains("io_uring cannot be used here"));
    let mut command =
        tool(&["bench", &data, "--states", "warm", "--workloads", "agg", "--runs", "1", "--quick", "--output", &out]);
    deny(&mut command, &IO_URING_CALLS, libc::EPERM);
    let output = command.output().expect("output");
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stderr(&output).contains("no rows for io_uring"), "{}", stderr(&output));
    let json = json(&folder.path().join("out"));
    let rows = json["rows"].as_array().expect("rows");
    assert!(rows.iter().all(|row| !row["io_method"].as_str().is_some_and(|m| m.contains("uring"))), "{json}");
    assert!(rows.iter().any(|row| row["io_method"] == "worker"), "{json}");
}

#[test]
fn a_server_answers_the_same_queries() {
    let Some(bin) = server::find_bin(15) else {
        return server::skip("postgres", "no PostgreSQL 15 is installed");
    };
    let folder = folder();
    // The server's user must pass.
    std::fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("permissions");
    let (data, out) = (folder.path().join("data"), folder.path().join("out"));
    let (data_text, out_text, bin_text) = (text(&data), text(&out), text(&bin));
    let arguments = [
        "bench",
        "--quick",
        "--scale",
        "1",
        "--runs",
        "1",
        "--clients",
        "2",
        "--workloads",
        "agg,seqconcurrscans,pgbenchS",
        "--io-methods",
        "sync",
        "--reads",
        "buffered",
        "--data",
        &data_text,
        "--output",
        &out_text,
        "--postgres",
        &bin_text,
    ];
    let output = run(&arguments);
    assert!(output.status.success(), "{}", stderr(&output));
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    let json = json(&out);
    let theirs: Vec<&Value> = measured(&json)
        .into_iter()
        .filter(|r| r["system"].as_str().is_some_and(|s| s.starts_with("postgres 15")))
        .collect();
    for (workload, state, threads) in [
        ("agg", "cold", 1),
        ("agg", "warm", 1),
        ("agg", "hot", 1),
        ("seqconcurrscans", "hot", 1),
        ("pgbenchS", "hot", 1),
    ] {
        let found = theirs
            .iter()
            .find(|r| r["workload"] == workload && r["state"] == state && r["threads"] == threads)
            .unwrap_or_else(|| panic!("{workload} {state}: {shown}"));
        if workload == "agg" {
            assert_eq!(found["runs"][0]["answer"], (100_000 * 84).to_string());
        }
    }
    assert!(theirs.iter().any(|r| r["threads"].as_u64() > Some(2)), "parallel workers: {shown}");
    let page = std::fs::read_to_string(out.join("report.html")).expect("a page");
    assert!(page.contains("Beside PostgreSQL"));
    // The server is gone and left a cluster at rest.
    assert!(!data.join("postmaster.pid").exists());
    tool_support::stdout(&["scan", &data_text, "pgbench_accounts", "--limit", "1"]);
    // The cluster of another version.
    let other = text(&tool_support::pgbench_snapshot().data_dir());
    let line = stderr(&run(&[
        "bench",
        &other,
        "--states",
        "hot",
        "--workloads",
        "agg",
        "--output",
        &out_text,
        "--postgres",
        &bin_text,
    ]));
    assert!(line.contains("was written by 18"), "{line}");
}

#[test]
fn wrong_uses_are_one_line() {
    let folder = folder();
    let out = text(&folder.path().join("out"));
    let data = text(&tool_support::pgbench_snapshot().data_dir());
    let line = refusal(&run(&["bench", &data, "--table", "nowhere", "--output", &out]), 1);
    assert!(line.contains("nowhere"), "{line}");
    let output = run(&["bench", &data, "--io-methods", "auto", "--output", &out]);
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    let line = refusal(&run(&["bench", &data, "--table", "pgbench_history", "--output", &out]), 2);
    assert!(line.contains("empty"), "{line}");
}
