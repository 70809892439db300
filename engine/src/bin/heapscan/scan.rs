//! `heapscan scan`

use crate::{args, columnar, open, report, say};
use heapscan::{
    Engine, Error, ErrorKind, Result, RowFormat, ScanBuilder, ScanStats, Table,
    aggregate::{self, AggregateCall},
    copy,
};
use indicatif::{ProgressBar, ProgressStyle};
use std::{
    fs::File,
    io::{self, IsTerminal, Write},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    time::Duration,
};

pub(crate) fn run(args: &args::ScanArgs) -> Result<()> {
    let calls = args.agg.as_deref().map(aggregate::parse).transpose()?;
    if let Some(kind) = columnar::Kind::of(args.format) {
        check_columnar(kind, args)?;
    }
    let columns = args.columns.as_deref().map(aggregate::parse_columns).transpose()?;
    let began = report::Clock::start();
    let engine = open(&args.cluster)?;
    let table = engine.database(args.cluster.database.as_deref())?.table(&args.table)?;
    for warning in table.warnings() {
        say(&format!("heapscan: warning: {warning}"));
    }
    if let Some(path) = &args.output {
        check_output(path, &engine, &table)?;
    }
    let mut scan = table.scan();
    if let Some(columns) = &columns {
        scan = scan.columns(columns);
    }
    if let Some((from, to)) = args.blocks {
        scan = scan.blocks(from..to);
    }
    if let Some(limit) = args.limit {
        scan = scan.limit(limit);
    }
    if calls.is_none() {
        for note in scan.notes() {
            say(&format!("heapscan: warning: {note}"));
        }
    }
    let progress = progress_bar(&table, args);
    let stats = match &calls {
        Some(calls) => aggregates(scan, calls, args, &progress)?,
        None => rows(scan, args, &progress)?,
    };
    progress.finish_and_clear();
    if stats.future_xids > 0 {
        say(&format!(
            "heapscan: warning: {} rows have transaction ids that the cluster never gave out and were not shown",
            stats.future_xids
        ));
    }
    print_stats(&engine, &table, args, &stats, &began)
}

fn rows(scan: ScanBuilder, args: &args::ScanArgs, progress: &ProgressBar) -> Result<ScanStats> {
    let mut out = output(args.output.as_deref())?;
    if let Some(kind) = columnar::Kind::of(args.format) {
        let mut done = |pages| progress.set_position(pages);
        return columnar::write(scan, kind, &args.columnar, out, &mut done).map_err(|e| in_output(e, args));
    }
    let format = match args.format {
        args::RowFormat::Csv => RowFormat::Csv,
        args::RowFormat::Json => RowFormat::Json,
        _ => RowFormat::Text,
    };
    scan.write_rows_with(format, &mut out, &mut |pages| progress.set_position(pages)).map_err(|e| in_output(e, args))
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
    let result = scan.aggregate_with(calls, &mut |pages| {
        if pages % 256 == 0 {
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
    let mut out = output(args.output.as_deref())?;
    out.write_all(&line).and_then(|()| out.flush()).map_err(|e| {
        let error = Error::new(ErrorKind::Io, format!("cannot write the output: {e}"));
        in_output(
            e.raw_os_error().map_or(error.with_source(e), |errno| {
                Error::new(ErrorKind::Io, format!("cannot write the output: {}", io::Error::from_raw_os_error(errno)))
                    .with_errno(errno)
            }),
            args,
        )
    })?;
    Ok(result.stats)
}

/// Refuses to write where the cluster lies: creating the output would empty one of its files, or leave a stray one.
fn check_output(path: &Path, engine: &Engine, table: &Table) -> Result<()> {
    let refuse = |why: &str| {
        Err(Error::new(ErrorKind::Usage, format!("will not be written: {why}"))
            .with_path(path)
            .with_hint("choose an output file outside the cluster"))
    };
    let target = match (path.canonicalize(), path.symlink_metadata()) {
        (Ok(target), _) => target,
        (Err(_), Ok(_)) => return refuse("it is a link that leads nowhere, or cannot be followed"),
        (Err(_), Err(_)) => {
            let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
            let folder = folder.canonicalize().map_err(|e| Error::os(path, "create", &e))?;
            folder.join(path.file_name().unwrap_or_default())
        }
    };
    let inside = |folder: &Path| folder.canonicalize().is_ok_and(|folder| target.starts_with(folder));
    if inside(engine.cluster().path()) || table.fork().path().parent().is_some_and(inside) {
        return refuse("it lies in the cluster that is read");
    }
    // A hard link elsewhere is the same file.
    let Ok(existing) = target.metadata() else { return Ok(()) };
    let last = table.blocks().saturating_sub(1);
    let per_segment = engine.cluster().control().blocks_per_segment;
    let same = (0..=last).step_by(per_segment as usize).any(|block| {
        let segment = table.fork().path_of(block).metadata();
        segment.is_ok_and(|s| (s.dev(), s.ino()) == (existing.dev(), existing.ino()))
    });
    if same { refuse("it is a file of the table that is read") } else { Ok(()) }
}

fn output(path: Option<&Path>) -> Result<Box<dyn Write + Send>> {
    match path {
        Some(path) => Ok(Box::new(LateFile { path: path.to_owned(), file: None })),
        None => Ok(Box::new(io::stdout())),
    }
}

/// A file that is created at the first write or flush: what is refused before that leaves an existing file alone.
struct LateFile {
    path: PathBuf,
    file: Option<File>,
}

impl LateFile {
    fn file(&mut self) -> io::Result<&mut File> {
        let file = match self.file.take() {
            Some(file) => file,
            None => File::create(&self.path)?,
        };
        Ok(self.file.insert(file))
    }
}

impl Write for LateFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file()?.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file()?.flush()
    }
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
    let (from, to) = args.blocks.unwrap_or((0, u32::MAX));
    let blocks = to.min(table.blocks()).saturating_sub(from);
    let bar = ProgressBar::new(u64::from(blocks));
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
    began: &report::Clock,
) -> Result<()> {
    let Some(format) = args.stats else { return Ok(()) };
    let report = report::Report::new(engine, table, stats, began);
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
