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
        let per = |a: f64, b: f64| if b > 0.0 { a / b } else { 0.0 };
        Self {
            remark: remark(case, base),
            gb_per_second: Spread {
                median: per(gigabytes, wall_seconds.median),
                min: per(gigabytes, wall_seconds.max),
                max: per(gigabytes, wall_seconds.min),
            },
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

    pub(super) const HEADER: &str = "workload     state  reads     method          settings              \
                                     wall s (min..max)        GB/s   CPU s  cores  CPU s/GB  cached  peak MB";

    pub(super) fn line(&self) -> String {
        let case = &self.case;
        let method = match case.workload {
            w if w.is_ceiling() => case.system.as_str(),
            _ => case.io_method.as_str(),
        };
        let head =
            format!("{:<12} {:<6} {:<9} {method:<15} {:<21} ", case.workload, case.state, case.access, self.remark);
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
            "{head}{range:<22} {:>6.2} {:>7.3} {:>6.2} {:>9.4} {cached:>8} {peak:>7}",
            self.gb_per_second.median, self.cpu_seconds.median, self.cores, self.cpu_seconds_per_gb
        )
    }
}
