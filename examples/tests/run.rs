//! Each example does what its story says, on the bundled pgbench cluster.

use heapscan_fixtures::pgbench;
use std::process::Command;

fn run(program: &str, arguments: &[&str]) -> String {
    let data = pgbench().and_then(|f| f.snapshot("clean")).unwrap().data_dir();
    let output = Command::new(program).arg(data).args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn rows() {
    assert_eq!(run(env!("CARGO_BIN_EXE_rows"), &[]), "branch 1: 100000 accounts, balance 0\n");
}

#[test]
fn batches() {
    let printed = run(env!("CARGO_BIN_EXE_batches"), &["pgbench_accounts", "aid"]);
    assert!(printed.ends_with("100000 rows, 0 NULL, sum 5000050000\n"), "{printed}");
}

#[test]
fn export_csv() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tellers.csv");
    run(env!("CARGO_BIN_EXE_export_csv"), &["pgbench_tellers", file.to_str().unwrap()]);
    let expected: String = (1..=10).map(|tid| format!("{tid},1,0,\n")).collect();
    assert_eq!(std::fs::read_to_string(file).unwrap(), format!("tid,bid,tbalance,filler\n{expected}"));
}

#[test]
fn compare_methods() {
    let printed = run(env!("CARGO_BIN_EXE_compare_methods"), &["pgbench_accounts"]);
    for method in ["sync", "worker"] {
        assert!(printed.lines().any(|l| l.starts_with(method) && l.contains("100000 rows")), "{printed}");
    }
}
