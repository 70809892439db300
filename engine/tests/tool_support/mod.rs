//! Running the program as a user would.
#![allow(dead_code, unreachable_pub, reason = "each test file uses a part of it")]

use heapscan_fixtures::{Snapshot, corpus, pgbench};
use std::{
    path::{Path, PathBuf},
    process::{Command, Output},
};

/// The program, with arguments.
pub fn tool<S: AsRef<std::ffi::OsStr>>(args: &[S]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_heapscan"));
    command.args(args);
    command
}

/// Runs the program.
pub fn run<S: AsRef<std::ffi::OsStr>>(args: &[S]) -> Output {
    tool(args).output().expect("the program can be run")
}

/// Runs the program, which must succeed, and gives what it printed.
pub fn stdout<S: AsRef<std::ffi::OsStr>>(args: &[S]) -> Vec<u8> {
    let output = run(args);
    assert!(output.status.success(), "{}", stderr(&output));
    output.stdout
}

/// What was printed to standard error.
pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The refusal: nothing on standard output, exit code `code`, and the one line on standard error.
pub fn refusal(output: &Output, code: i32) -> String {
    let text = stderr(output);
    assert_eq!(output.status.code(), Some(code), "{text}");
    assert!(output.stdout.is_empty(), "{:?}", String::from_utf8_lossy(&output.stdout));
    assert_eq!(text.lines().count(), 1, "one line, not {text:?}");
    text
}

/// The pgbench cluster made by PostgreSQL 18.
pub fn pgbench_snapshot() -> Snapshot {
    pgbench().and_then(|f| f.snapshot("clean")).expect("fixture")
}

/// A snapshot of a corpus.
pub fn snapshot(name: &str, which: &str) -> Snapshot {
    corpus(name).and_then(|f| f.snapshot(which)).expect("fixture")
}

/// A private copy of a snapshot, to be damaged; with the folder that holds it.
pub fn copy(snapshot: &Snapshot) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("temporary folder");
    let data = snapshot.copy_to(&folder.path().join("copy")).expect("copy");
    (folder, data)
}

/// Changes bytes of a file.
pub fn patch(path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = std::fs::read(path).expect("read");
    change(&mut bytes);
    std::fs::write(path, bytes).expect("write");
}

pub fn text(path: &Path) -> String {
    path.display().to_string()
}

/// Where two answers part, for the message of a failed comparison.
pub fn first_difference(printed: &[u8], expected: &[u8]) -> String {
    let show = |line: Option<&[u8]>| {
        line.map_or("nothing".to_owned(), |l| format!("{:?}", String::from_utf8_lossy(&l[..l.len().min(300)])))
    };
    let (mut a, mut b) = (printed.split(|&c| c == b'\n'), expected.split(|&c| c == b'\n'));
    for line in 1.. {
        match (a.next(), b.next()) {
            (None, None) => break,
            (x, y) if x == y => {}
            (x, y) => return format!("line {line}: printed {}, expected {}", show(x), show(y)),
        }
    }
    "no difference".to_owned()
}
