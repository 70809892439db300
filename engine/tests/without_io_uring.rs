//! Where io_uring's system calls are refused, as container profiles and hardened kernels do.
#![cfg(feature = "tool")]

mod tool_support;

use heapscan_fixtures::sandbox::{IO_URING_CALLS, deny};
use tool_support::{pgbench_snapshot, refusal, stderr, text, tool};

/// The errnos that refusals were seen with.
const ERRNOS: [i32; 4] = [libc::EPERM, libc::ENOSYS, libc::EOPNOTSUPP, libc::EINVAL];

#[test]
fn auto_uses_worker_and_says_so() {
    let snapshot = pgbench_snapshot();
    let oracle = snapshot.oracle_without_ctid(snapshot.table("public", "pgbench_accounts").unwrap().oid).unwrap();
    for errno in ERRNOS {
        let mut command = tool(&["scan", &text(&snapshot.data_dir()), "pgbench_accounts"]);
        deny(&mut command, &IO_URING_CALLS, errno);
        let output = command.output().unwrap();
        assert!(output.status.success(), "errno {errno}: {}", stderr(&output));
        assert!(output.stdout == oracle, "errno {errno}");
        let said = stderr(&output);
        assert_eq!(said.lines().count(), 1, "{said}");
        assert!(said.contains("worker") && said.contains("io_uring"), "{said}");
    }
    let mut command =
        tool(&["scan", &text(&snapshot.data_dir()), "pgbench_tellers", "--agg", "count(*)", "--stats", "json"]);
    deny(&mut command, &IO_URING_CALLS, libc::EPERM);
    let said = stderr(&command.output().unwrap());
    let stats: serde_json::Value = serde_json::from_str(&said[said.find('{').unwrap()..]).unwrap();
    assert_eq!(stats["method"]["requested"], "auto");
    assert_eq!(stats["method"]["used"], "worker");
    assert!(stats["method"]["why"].as_str().unwrap().contains("io_uring"));
}

#[test]
fn every_table_is_that_of_the_server() {
    let snapshot = pgbench_snapshot();
    let mut compared = 0;
    for table in snapshot.user_tables() {
        for more in [&[][..], &["--io-direct", "--shared-buffers", "128kB"]] {
            let mut command = tool(&["scan", &text(&snapshot.data_dir()), &format!("oid:{}", table.oid)]);
            deny(&mut command, &IO_URING_CALLS, libc::EPERM);
            let output = command.args(more).output().unwrap();
            assert!(output.status.success(), "{}: {}", table.name, stderr(&output));
            assert!(output.stdout == snapshot.oracle_without_ctid(table.oid).unwrap(), "{} {more:?}", table.name);
            compared += 1;
        }
    }
    assert_eq!(compared, 8);
}

#[test]
fn io_uring_by_name_is_one_clear_error() {
    let data = text(&pgbench_snapshot().data_dir());
    for method in ["io_uring", "tokio_uring"] {
        for errno in ERRNOS {
            let mut command = tool(&["scan", &data, "pgbench_tellers", "--io-method", method]);
            deny(&mut command, &IO_URING_CALLS, errno);
            let line = refusal(&command.output().unwrap(), 1);
            assert!(line.contains(method) && line.contains(&format!("os error {errno}")), "{line}");
        }
        let mut command = tool(&["scan", &data, "pgbench_tellers", "--io-method", method]);
        deny(&mut command, &IO_URING_CALLS, libc::EPERM);
        let line = refusal(&command.output().unwrap(), 1);
        assert!(line.contains("seccomp"), "{line}");
    }
}

#[test]
fn methods_says_why_not() {
    let mut command = tool(&["methods", "--format", "json"]);
    deny(&mut command, &IO_URING_CALLS, libc::EPERM);
    let output = command.output().unwrap();
    assert!(output.status.success());
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    for method in json["methods"].as_array().unwrap() {
        let ring = method["method"].as_str().unwrap().ends_with("uring");
        assert_eq!(method["usable"], !ring, "{method}");
        assert_eq!(method["reason"].is_string(), ring, "{method}");
    }
    let mut command = tool(&["methods"]);
    deny(&mut command, &IO_URING_CALLS, libc::EPERM);
    let table = String::from_utf8(command.output().unwrap().stdout).unwrap();
    let row = |method: &str| table.lines().find(|l| l.trim_start().starts_with(method)).expect("a row").to_owned();
    assert!(row("io_uring").contains("os error 1"), "{table}");
    assert!(!row("worker").contains("os error"), "{table}");
}
