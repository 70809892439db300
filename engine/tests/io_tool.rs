//! What the program says about IO: `heapscan methods` and `--stats`.
#![cfg(feature = "tool")]

use heapscan_fixtures::pgbench;
use serde_json::Value;
use std::process::{Command, Output};

fn heapscan(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_heapscan")).args(arguments).output().expect("the program")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn methods_is_a_diagnosis() {
    let output = heapscan(&["methods"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let shown = text(&output.stdout);
    for word in ["sync", "worker", "io_uring", "tokio_uring", "kernel.io_uring_disabled", "locked memory", "open files"]
    {
        assert!(shown.contains(word), "{word}: {shown}");
    }
    let output = heapscan(&["methods", "--format", "json"]);
    let json: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(json["methods"].as_array().map(Vec::len), Some(4));
    assert!(json["kernel"]["cpus"].as_u64() >= Some(1), "{json}");
    assert!(json["probe"].is_null());
    let ring = &json["io_uring"];
    let usable =
        json["methods"].as_array().is_some_and(|m| m.iter().any(|m| m["method"] == "io_uring" && m["usable"] == true));
    if usable {
        assert!(ring["setup_flags"].is_string() && ring["registered_buffers"].is_string(), "{ring}");
    } else {
        assert!(ring["refused"].is_string(), "{ring}");
    }
}

#[test]
fn a_probe_measures_and_recommends() {
    let file = tempfile::Builder::new().tempfile_in("/var/tmp").expect("a file");
    std::fs::write(file.path(), vec![1u8; 32 << 20]).expect("write");
    let path = file.path().to_str().expect("a path");
    let output = heapscan(&["methods", "--format", "json", "--probe", path]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let json: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let points = json["probe"]["points"].as_array().expect("points");
    for (bytes, depth) in
        [(131_072, 1), (131_072, 2), (131_072, 4), (131_072, 8), (131_072, 16), (131_072, 32), (8192, 1)]
    {
        let point = points.iter().find(|p| p["read_bytes"] == bytes && p["depth"] == depth).expect("a point");
        assert!(point["bytes_per_second"].as_f64() > Some(0.0), "{point}");
    }
    let said = &json["probe"]["recommendation"];
    let concurrency = said["effective_io_concurrency"].as_u64().expect("a number");
    assert!((1..=64).contains(&concurrency) && said["reasons"].as_array().is_some_and(|r| r.len() >= 3), "{said}");
    let output = heapscan(&["methods", "--probe", path, "--io-method", "worker"]);
    assert!(text(&output.stdout).contains("recommended: --io-method worker"), "{}", text(&output.stdout));
    let output = heapscan(&["methods", "--probe", "/nowhere/at/all"]);
    assert!(!output.status.success() && text(&output.stderr).contains("/nowhere/at/all"), "{}", text(&output.stderr));
}

#[test]
fn stats_say_how_it_was_read_and_how_long_that_took() {
    let snapshot = pgbench().and_then(|f| f.snapshot("clean")).expect("fixture");
    let dir = snapshot.data_dir();
    let dir = dir.to_str().expect("a path");
    let scan = |more: &[&str]| {
        let mut arguments = vec!["scan", dir, "pgbench_accounts", "--agg", "count(*)"];
        arguments.extend(more);
        let output = heapscan(&arguments);
        assert!(output.status.success(), "{more:?}: {}", text(&output.stderr));
        text(&output.stderr)
    };
    for method in ["sync", "worker"] {
        let json: Value = serde_json::from_str(&scan(&["--io-method", method, "--stats", "json"])).expect("JSON");
        assert_eq!(json["latency"]["count"], json["io"]["requests"], "{json}");
        let latency = |key: &str| json["latency"][key].as_u64().expect("a number");
        assert!(latency("p50_nanos") > 0 && latency("p50_nanos") <= latency("p90_nanos"));
        assert!(latency("p90_nanos") <= latency("p99_nanos") && latency("p99_nanos") <= latency("max_nanos"));
        assert_eq!((&json["reads"], &json["reads_note"]), (&Value::from("buffered"), &Value::Null));
    }
    let refused = ["--io-method", "sync", "--io-direct", "--io-fault", "seed=1,no_direct", "--stats", "text"];
    let said = scan(&refused);
    assert!(said.contains("through the page cache: ") && said.contains(" p50, "), "{said}");
    let said = scan(&["--io-method", "sync", "--io-direct", "--io-iopoll"]);
    assert!(said.contains("--io-iopoll is for io_uring; io_method sync ignores it"), "{said}");
}

#[test]
fn settings_of_another_method_are_not_ignored_silently() {
    let data_dir = pgbench().and_then(|f| f.snapshot("clean")).expect("fixture").data_dir();
    let data_dir = data_dir.to_str().expect("a path in UTF-8");
    for (method, flags, named) in [
        ("worker", &["--io-async", "always"][..], Some("--io-async is for io_uring; io_method worker ignores it")),
        ("sync", &["--io-async", "4/32kB"], Some("--io-async is for io_uring; io_method sync ignores it")),
        ("sync", &["--io-worker-always"], Some("--io-worker-always is for worker; io_method sync ignores it")),
        ("sync", &["--io-async", "never"], None),
        ("worker", &["--io-worker-always"], None),
    ] {
        let common = ["scan", data_dir, "pgbench_tellers", "--agg", "count(*)", "--io-method", method];
        let output = heapscan(&[&common[..], flags].concat());
        assert_eq!(text(&output.stdout), "10\n", "{method} {flags:?}");
        let said = text(&output.stderr);
        match named {
            Some(line) => assert!(said.lines().count() == 1 && said.contains(line), "{method} {flags:?}: {said}"),
            None => assert_eq!(said, "", "{method} {flags:?}"),
        }
    }
}

#[test]
fn polling_is_tried_on_the_file_of_the_table() {
    let snapshot = pgbench().and_then(|f| f.snapshot("clean")).expect("fixture");
    let data_dir = snapshot.data_dir();
    let arguments = ["scan", data_dir.to_str().expect("a path in UTF-8"), "pgbench_accounts", "--agg", "count(*)"];
    let output = heapscan(&[&arguments[..], &["--io-method", "io_uring", "--io-direct", "--io-iopoll"]].concat());
    let said = text(&output.stderr);
    if said.contains("io_uring cannot be used here") {
        return;
    }
    assert_eq!(text(&output.stdout), "100000\n", "{said}");
    let oid = snapshot.table("public", "pgbench_accounts").expect("accounts").oid;
    let engine = heapscan::Engine::open(&data_dir, heapscan::EngineOptions::default()).expect("open");
    let table = engine.database(None).and_then(|d| d.table(&format!("oid:{oid}"))).expect("accounts");
    let file = table.fork().path().display().to_string();
    assert!(said.is_empty() || said.contains(&format!("asked for, not used: {file}: ")), "{said}");
}
