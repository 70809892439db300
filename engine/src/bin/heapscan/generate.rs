//! `heapscan generate`, and the bundled clusters.

use crate::{args::GenerateCommand, print, say};
use heapscan::{Error, ErrorKind, Result};
use heapscan_fixtures::{
    FixtureError, corpus,
    generate::{self, PgbenchOptions, Progress},
};
use indicatif::{ProgressBar, ProgressStyle};
use std::{
    io::{self, IsTerminal},
    path::Path,
};

pub(crate) fn run(command: &GenerateCommand) -> Result<()> {
    let GenerateCommand::Pgbench { scale, copies, version, dir } = command;
    check_space(dir, needed_bytes(*scale, *copies))?;
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

/// What a cluster takes on disk: 1,640 blocks of accounts a scale factor and copy, and the template with some room.
fn needed_bytes(scale: u32, copies: u8) -> u64 {
    u64::from(scale) * 1640 * 8192 * (1 + u64::from(copies)) + (64 << 20)
}

/// Refuses before anything is written, instead of filling the disk of everybody else first.
pub(crate) fn check_space(dir: &Path, needed: u64) -> Result<()> {
    let parent = dir.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let place = if dir.is_dir() { dir } else { parent };
    // A file system that does not tell is tried; a missing folder is the generator's error.
    let Ok(space) = nix::sys::statvfs::statvfs(place) else { return Ok(()) };
    let free = space.blocks_available().saturating_mul(space.fragment_size());
    if free >= needed {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Io, format!("{needed} bytes are needed, {free} are free"))
        .with_path(place)
        .with_hint("take a smaller --scale, or another file system"))
}

pub(crate) fn fixture(name: &str, snapshot: &str) -> Result<()> {
    let fixture = corpus(name).map_err(fixture_error)?;
    let snapshot = fixture.snapshot(snapshot).map_err(fixture_error)?;
    let path = snapshot.data_dir();
    print(&format!("{}\n", path.canonicalize().unwrap_or(path).display()))
}

pub(crate) fn fixture_error(error: FixtureError) -> Error {
    let made = Error::new(ErrorKind::Io, error.to_string());
    match error.errno() {
        Some(errno) => made.with_errno(errno),
        None => made,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_that_is_too_small_is_refused_at_once() {
        let folder = std::env::temp_dir();
        assert!(check_space(&folder.join("new"), 1).is_ok());
        let error = check_space(&folder.join("new"), u64::MAX).unwrap_err().to_string();
        assert!(error.contains("are free"), "{error}");
        assert!(needed_bytes(50, 0) > 50 * 1640 * 8192 && needed_bytes(20_000, 8) > 2 << 40);
    }
}
