//! `heapscan verify`

use crate::{args, open, print, print_json};
use heapscan::{
    Error, ErrorKind, OnCorruption, Result,
    verify::{VerifyOptions, VerifyReport},
};
use indicatif::{ProgressBar, ProgressStyle};
use std::{
    fmt::Write,
    io::{self, IsTerminal},
    time::Duration,
};

pub(crate) fn run(mut args: args::VerifyArgs) -> Result<()> {
    // Damaged catalogs are read as far as they go; the files themselves tell of the rest.
    args.cluster.on_corruption = OnCorruption::Skip;
    let engine = open(&args.cluster)?;
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = args.threads.map_or(cpus.min(4), usize::from);
    let options = VerifyOptions { tables: args.tables.clone(), toast: args.toast, threads };
    let bar = progress_bar();
    let report = engine.verify(args.cluster.database.as_deref(), &options, &|done, all| {
        bar.set_length(all);
        bar.set_position(done);
    });
    bar.finish_and_clear();
    let report = report?;
    match args.format {
        args::ListFormat::Json => print_json(&report)?,
        args::ListFormat::Table => print(&text(&report))?,
    }
    if report.is_clean() {
        return Ok(());
    }
    let count = report.totals.found;
    Err(Error::new(ErrorKind::Corrupt, format!("{count} damaged place{} found", if count == 1 { "" } else { "s" }))
        .with_path(engine.cluster().path()))
}

fn text(report: &VerifyReport) -> String {
    let mut out = String::new();
    for damage in &report.damage {
        let _ = writeln!(out, "{damage}");
    }
    for note in &report.notes {
        let _ = writeln!(out, "note: {note}");
    }
    for orphan in &report.orphans {
        let _ = writeln!(out, "note: {}: belongs to no relation (left by a crash?)", orphan.display());
    }
    let rate = if report.seconds > 0.0 { report.bytes as f64 / report.seconds / 1e9 } else { 0.0 };
    let _ = writeln!(out, "databases       {}", report.databases);
    let _ = writeln!(out, "files           {} ({} forks of relations)", report.files, report.forks);
    let _ = writeln!(
        out,
        "blocks          {} ({:.1} MB, {:.2} s, {rate:.2} GB/s), {} of them all zero",
        report.blocks,
        report.bytes as f64 / 1e6,
        report.seconds,
        report.new_blocks
    );
    let _ = writeln!(out, "heap            {} tuples on {} pages", report.tuples, report.heap_blocks);
    let _ = writeln!(out, "checksums       {}", if report.checksums { "verified" } else { "not verified" });
    let _ = writeln!(out, "damage          {}", report.totals.found);
    out
}

fn progress_bar() -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(0);
    if let Ok(style) = ProgressStyle::with_template("{bar:40} {percent}% {pos}/{len} blocks, {eta} left") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(250));
    bar
}
