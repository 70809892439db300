//! Files of results.

use super::{Results, case::size, html, row::Row};
use crate::say;
use heapscan::{Error, ErrorKind, Result};
use std::{
    fmt::Write,
    fs,
    path::{Path, PathBuf},
};

/// The folder of the results, made at once: not after an hour of measuring.
pub(super) struct Output {
    dir: PathBuf,
}

impl Output {
    pub(super) fn create(dir: &Path) -> Result<Self> {
        fs::create_dir_all(dir).map_err(|e| Error::os(dir, "create folder", &e))?;
        Ok(Self { dir: dir.to_owned() })
    }

    pub(super) fn write(&self, results: &Results, warnings: &[String]) -> Result<()> {
        let json = serde_json::to_string_pretty(results)
            .map_err(|e| Error::new(ErrorKind::Io, format!("cannot make JSON: {e}")))?;
        self.file("results.json", &json)?;
        self.file("results.csv", &csv(&results.rows))?;
        self.file("report.html", &html::page(results, warnings))?;
        say(&format!("{}: report.html, results.csv, results.json", self.dir.display()));
        Ok(())
    }

    fn file(&self, name: &str, text: &str) -> Result<()> {
        let path = self.dir.join(name);
        fs::write(&path, text).map_err(|e| Error::os(path, "write", &e))
    }
}

/// A line for each run.
fn csv(rows: &[Row]) -> String {
    let mut text = String::from(
        "system,workload,state,access,io_method,io_combine_limit,effective_io_concurrency,io_workers,clients,threads,shared_buffers,\
         run,refused,wall_seconds,user_seconds,system_seconds,bytes,operations,cached_before,cached_after,storage_bytes,hits,reads,\
         blocks_read,waits,submits,submit_nanos,wait_nanos,latency_p50_nanos,latency_p99_nanos,max_in_flight,peak_rss,answer\n",
    );
    for row in rows {
        let case = &row.case;
        let workers = case.io_workers.map_or(String::new(), |n| n.to_string());
        let head = format!(
            "{},{},{},{},{},{},{},{workers},{},{},{}",
            field(&case.system),
            case.workload,
            case.state,
            case.access,
            field(&case.io_method),
            size(case.io_combine_limit),
            case.effective_io_concurrency,
            case.clients,
            case.threads,
            size(case.shared_buffers)
        );
        if let Some(why) = &row.refused {
            // Writing to a String does not fail.
            let _ = writeln!(text, "{head},,{}{}", field(why), ",".repeat(20));
        }
        for (number, run) in row.runs.iter().enumerate() {
            let (spent, io, latency) = (&run.spent, &run.io, &run.latency);
            let storage = run.storage_bytes.map_or(String::new(), |b| b.to_string());
            let _ = writeln!(
                text,
                "{head},{},,{:.6},{:.6},{:.6},{},{},{:.4},{:.4},{storage},{},{},{},{},{},{},{},{},{},{},{},{}",
                number + 1,
                spent.wall,
                spent.user,
                spent.system,
                run.bytes,
                run.operations,
                run.cached_before,
                run.cached_after,
                io.hits,
                io.reads,
                io.blocks_read,
                io.waits,
                io.submits,
                io.submit_nanos,
                io.wait_nanos,
                latency.p50_nanos,
                latency.p99_nanos,
                io.max_in_flight,
                run.peak_rss,
                field(run.answer.as_deref().unwrap_or(""))
            );
        }
    }
    text
}

/// A field as RFC 4180 wants it.
fn field(text: &str) -> String {
    match text.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_with_commas_are_quoted() {
        assert_eq!(field("a,b\"c"), "\"a,b\"\"c\"");
        assert_eq!(field("a b"), "a b");
        assert_eq!(csv(&[]).matches(',').count(), 32);
    }
}
