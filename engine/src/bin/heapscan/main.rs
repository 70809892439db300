//! The `heapscan` program: data to standard output, everything else to standard error; exit code 0, 1 for errors in the
//! data or the run, 2 for usage.
#![deny(unsafe_code)]

mod args;
mod bench;
mod columnar;
mod generate;
mod ls;
mod methods;
mod numa;
mod output;
mod report;
mod scan;
mod signals;
mod verify;

use args::{Cli, Command};
use clap::Parser;
use heapscan::{Engine, EngineOptions, Error, ErrorKind, Result};
use std::{
    io::{self, Write},
    process::ExitCode,
};

fn main() -> ExitCode {
    signals::ignore_file_size_limit();
    let cli = Cli::parse();
    let result = match cli.command {
        Command::Ls(args) => ls::run(&args),
        Command::Scan(args) => scan::run(&args),
        Command::Verify(args) => verify::run(args),
        Command::Methods(args) => methods::run(&args),
        Command::Numa(args) => numa::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Generate(command) => generate::run(&command),
        Command::Fixture { name, snapshot } => generate::fixture(&name, &snapshot),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever reads the output has had enough (`heapscan scan ... | head`); that is no error of ours.
        Err(error) if error.errno() == Some(libc::EPIPE) && error.path().is_none() => ExitCode::SUCCESS,
        Err(error) => {
            say(&format!("heapscan: {error}"));
            ExitCode::from(if error.kind() == ErrorKind::Usage { 2 } else { 1 })
        }
    }
}

/// A line to standard error. If nobody can read it, there is nothing left to do.
fn say(line: &str) {
    let _ = writeln!(io::stderr().lock(), "{line}");
}

/// Opens the cluster and says what is to be known about it.
fn open(args: &args::ClusterArgs) -> Result<Engine> {
    open_for(args, None)
}

/// The same, to read `table`: polling for completions is tried on its file, which may lie on another device.
fn open_for(args: &args::ClusterArgs, table: Option<&str>) -> Result<Engine> {
    let mut options = options(args);
    if let Some(table) = table.filter(|_| options.io.iopoll) {
        let mut look = options.clone();
        look.io = heapscan::IoConfig {
            method: heapscan::MethodChoice::Named(heapscan::MethodName::Sync),
            ..heapscan::IoConfig::default()
        };
        let engine = Engine::open(&args.pgdata, look)?;
        let table = engine.database(args.database.as_deref())?.table(table)?;
        options.io.probe_file = Some(table.fork().path().to_owned());
    }
    let engine = Engine::open(&args.pgdata, options)?;
    for warning in engine.cluster().warnings() {
        say(&format!("heapscan: warning: {warning}"));
    }
    for warning in &engine.placement().warnings {
        say(&format!("heapscan: numa: {warning}"));
    }
    let method = engine.method();
    if let Some(why) = &method.why {
        say(&format!("heapscan: io_method {} uses {}: {why}", method.requested, method.used));
    }
    for (asked, name) in [(args.engine.io_sqpoll, "sqpoll"), (args.engine.io_iopoll, "iopoll")] {
        let detail = method.details.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str());
        match detail {
            _ if !asked => {}
            Some("used") => {}
            Some(why) => say(&format!("heapscan: --io-{name}: {why}")),
            None => say(&format!("heapscan: --io-{name} is for io_uring; io_method {} ignores it", method.used)),
        }
    }
    let ignored = [
        (
            "io-async",
            "io_uring",
            !matches!(args.engine.io_async, heapscan::AsyncRule::Auto | heapscan::AsyncRule::Never),
        ),
        ("io-worker-always", "worker", args.engine.io_worker_always),
        (
            "io-registered-buffers",
            "io_uring",
            args.engine.io_registered_buffers != heapscan::RegisteredBuffers::default(),
        ),
    ];
    for (name, owner, asked) in ignored {
        if asked && method.used != owner {
            say(&format!("heapscan: warning: --{name} is for {owner}; io_method {} ignores it", method.used));
        }
    }
    Ok(engine)
}

fn options(args: &args::ClusterArgs) -> EngineOptions {
    let engine = &args.engine;
    let mut options = EngineOptions {
        shared_buffers: engine.shared_buffers,
        io_combine_limit: engine.io_combine_limit,
        effective_io_concurrency: engine.effective_io_concurrency,
        io_direct: engine.io_direct,
        io_uncached: engine.io_uncached,
        max_files_per_process: engine.max_files_per_process.map(|n| n as usize),
        huge_pages: engine.huge_pages,
        huge_page_size: engine.huge_page_size.map(|size| usize::try_from(size).unwrap_or(usize::MAX)),
        numa: heapscan::NumaOptions { ring_local: engine.ring_local, ..numa::options(&engine.numa) },
        verify: engine.verify,
        on_corruption: args.on_corruption,
        allow_unclean: args.allow_unclean,
        follow_tablespace_links: args.follow_tablespace_links,
        tablespace_map: args.tablespace_map.clone(),
        ..EngineOptions::default()
    };
    options.io.method = engine.io_method;
    options.io.io_workers = engine.io_workers.map(|n| n as usize);
    options.io.sqpoll = engine.io_sqpoll;
    options.io.iopoll = engine.io_iopoll;
    options.io.registered_buffers = engine.io_registered_buffers;
    options.io.async_rule = engine.io_async;
    options.io.worker_inline = !engine.io_worker_always;
    options.io.io_max_concurrency = engine.io_max_concurrency;
    options.io.fault = engine.io_fault.clone();
    options
}

/// Prints `value` as one JSON document to standard output.
fn print_json(value: &impl serde::Serialize) -> Result<()> {
    let text =
        serde_json::to_string_pretty(value).map_err(|e| Error::new(ErrorKind::Io, format!("cannot make JSON: {e}")))?;
    print(&format!("{text}\n"))
}

/// Prints `text` to standard output.
fn print(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(|e| output_error(&e))
}

fn output_error(error: &io::Error) -> Error {
    let message = format!("cannot write to standard output: {error}");
    match error.raw_os_error() {
        Some(errno) => Error::new(ErrorKind::Io, message).with_errno(errno),
        None => Error::new(ErrorKind::Io, message),
    }
}
