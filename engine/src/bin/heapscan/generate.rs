//! `heapscan generate`, and the bundled clusters.

use crate::{args::GenerateCommand, print, say};
use heapscan::{Error, ErrorKind, Result};
use heapscan_fixtures::{
    FixtureError, corpus,
    generate::{self, PgbenchOptions, Progress},
};
use indicatif::{ProgressBar, ProgressStyle};
use std::io::{self, IsTerminal};

pub(crate) fn run(command: &GenerateCommand) -> Result<()> {
    let GenerateCommand::Pgbench { scale, copies, version, dir } = command;
    let bar = if io::stderr().is_terminal() { ProgressBar::new(0) } else { ProgressBar::hidden() };
    if let Ok(style) = ProgressStyle::with_template("{bar:40} {percent}% {pos}/{len} rows, {eta} left") {
        bar.set_style(style);
    }
    let mut progress = |state: Progress<'_>| {
        bar.set_length(state.total_rows);
        bar.set_position(state.rows);
    };
    let options = PgbenchOptions { scale: *scale, tables: *copies, postgres: *version, progress: Some(&mut progress) };
    let made = generate::pgbench(dir, options).map_err(fixture_error)?;
    bar.finish_and_clear();
    say(&format!("{}: {} rows, {} bytes, database {}", made.data_dir.display(), made.rows, made.bytes, made.database));
    Ok(())
}

pub(crate) fn fixture(name: &str, snapshot: &str) -> Result<()> {
    let fixture = corpus(name).map_err(fixture_error)?;
    let snapshot = fixture.snapshot(snapshot).map_err(fixture_error)?;
    let path = snapshot.data_dir();
    print(&format!("{}\n", path.canonicalize().unwrap_or(path).display()))
}

fn fixture_error(error: FixtureError) -> Error {
    let made = Error::new(ErrorKind::Io, error.to_string());
    match error.errno() {
        Some(errno) => made.with_errno(errno),
        None => made,
    }
}
