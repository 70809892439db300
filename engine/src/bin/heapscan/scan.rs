//! `heapscan scan`

use crate::{
    args, columnar, open_for,
    output::{Output, check_output},
    report, say,
};
use heapscan::{
    DamageReport, Engine, Error, ErrorKind, Predicate, Result, RowFormat, ScanBuilder, ScanStats, Table, ThreadReport,
    ThreadReports,
    aggregate::{self, AggregateCall},
    copy,
};
use indicatif::{ProgressBar, ProgressStyle};
use std::{
    io::{self, IsTerminal, Write},
    time::Duration,
};

pub(crate) fn run(args: &args::ScanArgs) -> Result<()> {
    let calls = args.agg.as_deref().map(aggregate::parse).transpose()?;
    if let Some(kind) = columnar::Kind::of(args.format) {
        check_columnar(kind, args)?;
    }
    if args.unordered && args.threads == 1 {
        return Err(Error::new(ErrorKind::Usage, "--unordered: one thread has nothing to print out of order")
            .with_hint("ask for --threads 2 or more"));
    }
    let columns = args.columns.as_deref().map(aggregate::parse_columns).transpose()?;
    let filter = args.filter.as_deref().map(Predicate::parse).transpose()?;
    let began = report::Clock::start();
    let engine = open_for(&args.cluster, Some(&args.table))?;
    let database = engine.database(args.cluster.database.as_deref())?;
    let table = match args.include_children {
        true => database.table_with_children(&args.table)?,
        false => database.table(&args.table)?,
    };
    for warning in table.warnings() {
        say(&format!("heapscan: warning: {warning}"));
    }
    for path in [&args.output, &args.damage_report].into_iter().flatten() {
        check_output(path, &engine, &table)?;
    }
    let mut scan = table.scan().visibility(args.visibility.into());
    if let Some(columns) = &columns {
        scan = scan.columns(columns);
    }
    if let Some(filter) = filter {
        scan = scan.filter(filter);
    }
    if let Some((from, to)) = args.blocks {
        scan = scan.blocks(from..to);
    }
    if let Some(limit) = args.limit {
        scan = scan.limit(limit);
    }
    let threads = ThreadReports::default();
    scan = scan.threads(args.threads.into()).unordered(args.unordered).thread_reports(&threads);
    // Of aggregates the columns' values are not printed.
    let notes = if calls.is_none() { scan.notes() } else { scan.threads_note().into_iter().collect() };
    for note in notes {
        say(&format!("heapscan: warning: {note}"));
    }
    let progress = progress_bar(&table, args);
    let result = match &calls {
        Some(calls) => aggregates(scan, calls, args, &progress),
        None => rows(scan, args, &progress),
    };
    progress.finish_and_clear();
    if let Err(error) = &result {
        engine.damage().record(error);
    }
    // Also of a scan that did not end: what was left out before counts.
    damage_report(&engine, &table, args)?;
    let stats = result?;
    if stats.future_xids > 0 {
        say(&format!(
            "heapscan: warning: {} rows have transaction ids that the cluster never gave out and were not shown",
            stats.future_xids
        ));
    }
    print_stats(&engine, &table, args, &stats, threads.get(), &began)?;
    let totals = engine.damage().totals();
    if totals.reread > 0 {
        let pages = totals.reread;
        say(&format!(
            "heapscan: warning: {pages} pages failed their check and were right when read again: something writes"
        ));
    }
    if totals.any() {
        let mut what = format!("the output is incomplete: {totals}");
        if let Some(first) = engine.damage().list().first() {
            what.push_str(&format!("; the first: {first}"));
        }
        let error = Error::new(ErrorKind::Corrupt, what);
        return Err(match &args.damage_report {
            Some(file) => error.with_hint(format!("all are in {}", file.display())),
            None => error.with_hint("--damage-report FILE lists all"),
        });
    }
    Ok(())
}

fn damage_report(engine: &Engine, table: &Table, args: &args::ScanArgs) -> Result<()> {
    let Some(path) = &args.damage_report else { return Ok(()) };
    let name = format!("{}.{}", table.info().schema, table.info().name);
    let report = DamageReport::new(engine.cluster().path(), Some(name), engine.damage());
    let text = serde_json::to_string_pretty(&report)
        .map_err(|e| Error::new(ErrorKind::Io, format!("cannot make JSON: {e}")))?;
    let mut out = Output::new(Some(path));
    writeln!(out, "{text}").and_then(|()| out.finish()).map_err(|e| Error::os(path, "write the damage report", &e))
}

fn rows(scan: ScanBuilder, args: &args::ScanArgs, progress: &ProgressBar) -> Result<ScanStats> {
    let mut out = Output::new(args.output.as_deref());
    if let Some(kind) = columnar::Kind::of(args.format) {
        let mut done = |pages| progress.set_position(pages);
        let stats = columnar::write(scan, kind, &args.columnar, &mut out, &mut done).map_err(|e| in_output(e, args))?;
        out.finish().map_err(|e| write_error(e, args))?;
        return Ok(stats);
    }
    let format = match args.format {
        args::RowFormat::Csv => RowFormat::Csv,
        args::RowFormat::Json => RowFormat::Json,
        _ => RowFormat::Text,
    };
    let stats = scan
        .write_rows_with(format, &mut out, &mut |pages| progress.set_position(pages))
        .map_err(|e| in_output(e, args))?;
    out.finish().map_err(|e| write_error(e, args))?;
    Ok(stats)
}

/// What has no sense for the binary formats.
fn check_columnar(kind: columnar::Kind, args: &args::ScanArgs) -> Result<()> {
    let name = if kind == columnar::Kind::Arrow { "arrow" } else { "parquet" };
    let usage = |message: &str, hint: &str| {
        Err(Error::new(ErrorKind::Usage, format!("--format {name}: {message}")).with_hint(hint))
    };
    if args.agg.is_some() {
        return usage("aggregates have no such form", "use text, csv or json with --agg");
    }
    if args.output.is_none() && io::stdout().is_terminal() {
        return usage("standard output is a terminal", "name a file with --output, or redirect");
    }
    Ok(())
}

fn aggregates(
    scan: ScanBuilder,
    calls: &[AggregateCall],
    args: &args::ScanArgs,
    progress: &ProgressBar,
) -> Result<ScanStats> {
    let threads = args.threads > 1;
    let result = scan.aggregate_with(calls, &mut |pages| {
        // Several threads are asked for their pages now and then, one tells each.
        if threads || pages % 256 == 0 {
            progress.set_position(pages);
        }
    })?;
    let mut line = Vec::new();
    match args.format {
        args::RowFormat::Text => {
            for (i, value) in result.values.iter().enumerate() {
                if i > 0 {
                    line.push(b'\t');
                }
                line.extend_from_slice(value.as_deref().unwrap_or("\\N").as_bytes());
            }
        }
        args::RowFormat::Csv => {
            let single = calls.len() == 1;
            for (i, call) in calls.iter().enumerate() {
                if i > 0 {
                    line.push(b',');
                }
                copy::csv_field(Some(call.text.as_bytes()), single, &mut line);
            }
            line.push(b'\n');
            for (i, value) in result.values.iter().enumerate() {
                if i > 0 {
                    line.push(b',');
                }
                copy::csv_field(value.as_deref().map(str::as_bytes), single, &mut line);
            }
        }
        // Arrow and Parquet were refused before.
        args::RowFormat::Json | args::RowFormat::Arrow | args::RowFormat::Parquet => {
            // Numbers stay texts here: a sum can have more digits than a JSON reader keeps.
            line.push(b'{');
            for (i, (call, value)) in calls.iter().zip(&result.values).enumerate() {
                if i > 0 {
                    line.push(b',');
                }
                copy::json_string(call.text.as_bytes(), &mut line);
                line.push(b':');
                match value {
                    Some(value) => copy::json_string(value.as_bytes(), &mut line),
                    None => line.extend_from_slice(b"null"),
                }
            }
            line.push(b'}');
        }
    }
    line.push(b'\n');
    let mut out = Output::new(args.output.as_deref());
    out.write_all(&line).and_then(|()| out.finish()).map_err(|e| write_error(e, args))?;
    Ok(result.stats)
}

fn write_error(error: io::Error, args: &args::ScanArgs) -> Error {
    let message = format!("cannot write the output: {error}");
    let refused = Error::new(ErrorKind::Io, message);
    in_output(
        error.raw_os_error().map_or(refused.with_source(error), |errno| {
            let error = io::Error::from_raw_os_error(errno);
            Error::new(ErrorKind::Io, format!("cannot write the output: {error}")).with_errno(errno)
        }),
        args,
    )
}

/// Names the output file in an error of writing to it.
fn in_output(error: Error, args: &args::ScanArgs) -> Error {
    match (&args.output, error.path()) {
        (Some(path), None) if error.errno().is_some() => error.with_path(path),
        _ => error,
    }
}

fn progress_bar(table: &Table, args: &args::ScanArgs) -> ProgressBar {
    // Rows on the same terminal would be torn by a bar.
    let rows_on_terminal = args.agg.is_none() && args.output.is_none() && io::stdout().is_terminal();
    if !io::stderr().is_terminal() || rows_on_terminal {
        return ProgressBar::hidden();
    }
    let blocks = match args.blocks {
        Some((from, to)) => to.min(table.blocks()).saturating_sub(from).into(),
        None => table.total_blocks(),
    };
    let bar = ProgressBar::new(blocks);
    if let Ok(style) = ProgressStyle::with_template("{bar:40} {percent}% {pos}/{len} blocks, {eta} left") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(250));
    bar
}

fn print_stats(
    engine: &Engine,
    table: &Table,
    args: &args::ScanArgs,
    stats: &ScanStats,
    threads: Vec<ThreadReport>,
    began: &report::Clock,
) -> Result<()> {
    let Some(format) = args.stats else { return Ok(()) };
    let report = report::Report::new(engine, table, stats, args.threads.into(), threads, began);
    match format {
        args::StatsFormat::Json => {
            let text = serde_json::to_string_pretty(&report)
                .map_err(|e| Error::new(ErrorKind::Io, format!("cannot make JSON: {e}")))?;
            say(&text);
        }
        args::StatsFormat::Text => say(report.to_string().trim_end()),
    }
    Ok(())
}
