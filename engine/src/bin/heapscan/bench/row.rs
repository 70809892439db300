//! A row: the runs of a case and what they come to.

use super::{
    case::{Case, Workload},
    clock::Spread,
    plan::remark,
    run::Run,
};
use serde::Serialize;

#[derive(Clone, Debug, Serialize)]
pub(super) struct Row {
    #[serde(flatten)]
    pub(super) case: Case,
    /// Settings that differ from the usual ones.
    pub(super) remark: String,
    /// Why there are no figures.
    pub(super) refused: Option<String>,
    pub(super) wall_seconds: Spread,
    pub(super) cpu_seconds: Spread,
    pub(super) gb_per_second: Spread,
    /// Scans, lookups or reads a second.
    pub(super) operations_per_second: Spread,
    /// CPUs that were busy, on average.
    pub(super) cores: f64,
    pub(super) cpu_seconds_per_gb: f64,
    pub(super) peak_rss: u64,
    pub(super) runs: Vec<Run>,
}

impl Row {
    pub(super) fn new(case: &Case, base: &Case, runs: Vec<Run>, refused: Option<String>) -> Self {
        let runs = if refused.is_some() { Vec::new() } else { runs };
        let wall_seconds = Spread::of(runs.iter().map(|r| r.spent.wall));
        let cpu_seconds = Spread::of(runs.iter().map(|r| r.spent.cpu()));
        let gigabytes = runs.first().map_or(0.0, |r| r.bytes as f64 / 1e9);
        let operations = runs.first().map_or(0.0, |r| r.operations as f64);
        let per = |a: f64, b: f64| if b > 0.0 { a / b } else { 0.0 };
        let rate = |amount| Spread {
            median: per(amount, wall_seconds.median),
            min: per(amount, wall_seconds.max),
            max: per(amount, wall_seconds.min),
        };
        Self {
            remark: remark(case, base),
            gb_per_second: rate(gigabytes),
            operations_per_second: rate(operations),
            cores: per(cpu_seconds.median, wall_seconds.median),
            cpu_seconds_per_gb: per(cpu_seconds.median, gigabytes),
            peak_rss: runs.iter().map(|r| r.peak_rss).max().unwrap_or(0),
            case: case.clone(),
            refused,
            wall_seconds,
            cpu_seconds,
            runs,
        }
    }

    /// The run whose wall time is the median, or next to it.
    pub(super) fn typical(&self) -> Option<&Run> {
        let median = self.wall_seconds.median;
        self.runs.iter().min_by(|a, b| (a.spent.wall - median).abs().total_cmp(&(b.spent.wall - median).abs()))
    }

    /// The head of the table that [`line`](Self::line) makes.
    pub(super) fn header() -> String {
        format!(
            "{:<15} {:<5} {:<8} {:<16} {:<27} {:<22} {:>6} {:>9} {:>7} {:>5} {:>8} {:>8} {:>5}",
            "workload",
            "state",
            "reads",
            "by",
            "settings",
            "wall s (least..most)",
            "GB/s",
            "a second",
            "CPU s",
            "cores",
            "CPU s/GB",
            "cached",
            "MB"
        )
    }

    pub(super) fn line(&self) -> String {
        let case = &self.case;
        let by = match case.workload {
            w if w.is_ceiling() => case.system.clone(),
            _ if case.system != "heapscan" => {
                format!("PG {} {}", case.system.trim_start_matches("postgres "), case.io_method)
            }
            _ => case.io_method.clone(),
        };
        let head = format!("{:<15} {:<5} {:<8} {by:<16} {:<27}", case.workload, case.state, case.access, self.remark);
        if let Some(why) = &self.refused {
            return format!("{head} REFUSED: {why}");
        }
        let cached = self
            .typical()
            .map_or(String::new(), |run| format!("{:.0}>{:.0}%", 100.0 * run.cached_before, 100.0 * run.cached_after));
        let wall = &self.wall_seconds;
        let range = format!("{:.3} ({:.3}..{:.3})", wall.median, wall.min, wall.max);
        let cached = if case.workload == Workload::Memory { String::new() } else { cached };
        let peak = if self.peak_rss > 0 { format!("{:.0}", self.peak_rss as f64 / 1e6) } else { String::new() };
        format!(
            "{head} {range:<22} {:>6.2} {:>9} {:>7.3} {:>5.2} {:>8.4} {cached:>8} {peak:>5}",
            self.gb_per_second.median,
            short(self.operations_per_second.median),
            self.cpu_seconds.median,
            self.cores,
            self.cpu_seconds_per_gb
        )
    }
}

/// Three digits and a unit: `1.23M`.
pub(super) fn short(value: f64) -> String {
    match value {
        v if v >= 1e6 => format!("{:.2}M", v / 1e6),
        v if v >= 1e3 => format!("{:.1}k", v / 1e3),
        v => format!("{v:.2}"),
    }
}
