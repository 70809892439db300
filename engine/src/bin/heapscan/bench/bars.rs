//! The project's own bars: ratios of rows of one run.

use super::{
    case::{Access, Case, State, Workload},
    row::Row,
};
use serde::Serialize;

/// One bar.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Bar {
    pub(super) what: String,
    pub(super) figure: f64,
    /// What it is held against.
    pub(super) bar: f64,
    pub(super) unit: &'static str,
    pub(super) at_least: bool,
    pub(super) pass: bool,
}

impl Bar {
    fn new(what: String, figure: f64, at_least: bool, bar: f64, unit: &'static str) -> Self {
        let pass = if at_least { figure >= bar } else { figure <= bar };
        Self { what, figure, bar, unit, at_least, pass }
    }

    pub(super) fn line(&self) -> String {
        let (verdict, sign) = (if self.pass { "pass" } else { "MISS" }, if self.at_least { ">=" } else { "<=" });
        format!("{verdict}  {:<78} {:>8.3} {sign} {}{}", self.what, self.figure, self.bar, self.unit)
    }
}

/// Rows by what they are.
struct Rows<'a> {
    rows: &'a [Row],
    base: &'a Case,
}

impl<'a> Rows<'a> {
    fn find(&self, matches: impl Fn(&Case) -> bool) -> Option<&'a Row> {
        self.rows.iter().find(|row| row.refused.is_none() && matches(&row.case))
    }

    fn ceiling(&self, workload: Workload) -> Option<&'a Row> {
        self.find(|case| case.workload == workload)
    }

    /// A scan with the usual settings, but for those that `change` sets.
    fn scan(&self, method: &str, (state, access): (State, Access), change: impl Fn(&mut Case)) -> Option<&'a Row> {
        let mut wanted = Case { io_method: method.to_owned(), state, access, ..self.base.clone() };
        change(&mut wanted);
        self.find(|case| *case == wanted)
    }
}

/// All bars of which the rows are there.
pub(super) fn bars(rows: &[Row], base: &Case, pool_and: u64) -> Vec<Bar> {
    let rows = Rows { rows, base };
    let mut bars = Vec::new();
    direct(&rows, &mut bars);
    buffered(&rows, &mut bars);
    lookups(&rows, &mut bars);
    let scans = rows.rows.iter().filter(|r| !r.case.workload.is_ceiling() && r.peak_rss > 0);
    if let Some(most) = scans.map(|row| row.peak_rss.saturating_sub(row.case.shared_buffers)).max() {
        let what = "peak resident memory beyond the pool, of all rows".to_owned();
        bars.push(Bar::new(what, most as f64 / 1e6, false, pool_and as f64 / 1e6, " MB"));
    }
    bars
}

/// Single blocks at random.
fn lookups(rows: &Rows<'_>, bars: &mut Vec<Bar>) {
    let rate = |row: &Row| row.operations_per_second.median;
    let by = |method: &str, state| {
        rows.find(|case| case.workload == Workload::Lookups && case.state == state && case.io_method == method)
    };
    let (fio, raw) = (rows.ceiling(Workload::FioRandom), rows.ceiling(Workload::RawRandom));
    if let (Some(row), Some(ceiling)) = (by("io_uring", State::Cold), fio.or(raw)) {
        let what = format!("lookups, cold direct, 64 in flight: io_uring of {}", ceiling.case.system);
        bars.push(Bar::new(what, rate(row) / rate(ceiling), true, 0.9, ""));
    }
    if let Some(row) = rows.find(|case| case.workload == Workload::Lookups && case.state == State::Hot) {
        let what = "lookups, pool hot: millions a second".to_owned();
        bars.push(Bar::new(what, rate(row) / 1e6, true, 2.0, ""));
    }
}

const DIRECT: (State, Access) = (State::Cold, Access::Direct);
const WARM: (State, Access) = (State::Warm, Access::Buffered);

fn direct(rows: &Rows<'_>, bars: &mut Vec<Bar>) {
    let rate = |row: &Row| row.gb_per_second.median;
    let mut ratio = |what: &str, a: Option<&Row>, b: Option<&Row>, bar: f64| {
        if let (Some(a), Some(b)) = (a, b) {
            bars.push(Bar::new(what.to_owned(), rate(a) / rate(b), true, bar, ""));
        }
    };
    let usual = |method: &str| rows.scan(method, DIRECT, |_| {});
    let small = |method: &str| rows.scan(method, DIRECT, |case| *case = case.with_combine_limit(8 << 10));
    let io_uring = usual("io_uring");
    let device = rows.ceiling(Workload::Raw);
    ratio("cold direct: io_uring, checksum and decode, of R_dev", io_uring, device, 0.95);
    ratio("cold direct: io_uring of sync, 128 kB", io_uring, usual("sync"), 2.0);
    ratio("cold direct: io_uring of sync, 8 kB", small("io_uring"), small("sync"), 6.0);
    let workers = [8, 16].map(|n| rows.scan("worker", DIRECT, |case| case.io_workers = Some(n)));
    let worker = workers.into_iter().flatten().max_by(|a, b| rate(a).total_cmp(&rate(b)));
    ratio("cold direct: worker (the better of 8 and 16 threads) of io_uring, 128 kB", worker, io_uring, 0.8);
    ratio("cold direct: tokio_uring of io_uring", usual("tokio_uring"), io_uring, 0.9);
    let fio = |like: &Case| {
        let point = (like.io_combine_limit, like.effective_io_concurrency);
        rows.find(|case| {
            case.workload == Workload::Fio && (case.io_combine_limit, case.effective_io_concurrency) == point
        })
    };
    ratio("R_dev of fio with the same size and depth", device, device.and_then(|row| fio(&row.case)), 0.95);
    if let Some(row) = io_uring {
        bars.push(Bar::new("cold direct: cores that io_uring uses".to_owned(), row.cores, false, 0.35, ""));
    }
    let only = rows.scan("io_uring", DIRECT, |case| case.workload = Workload::MethodOnly);
    if let (Some(only), Some(fio)) = (only, fio(rows.base)) {
        let what = "cold direct: CPU seconds per GB of io_uring without decoding, of fio's at 128 kB".to_owned();
        bars.push(Bar::new(what, only.cpu_seconds_per_gb / fio.cpu_seconds_per_gb, false, 1.3, ""));
    }
}

fn buffered(rows: &Rows<'_>, bars: &mut Vec<Bar>) {
    let rate = |row: &Row| row.gb_per_second.median;
    let usual = |method: &str| rows.scan(method, WARM, |_| {});
    if let Some(sync) = usual("sync") {
        for method in ["worker", "io_uring", "tokio_uring"] {
            if let Some(row) = usual(method) {
                let what = format!("page cache warm: {method} of sync");
                bars.push(Bar::new(what, rate(row) / rate(sync), true, 0.97, ""));
            }
        }
    }
    if let (Some(row), Some(pread)) = (usual("io_uring"), rows.ceiling(Workload::Pread)) {
        let what = "page cache warm: io_uring, checksum and decode, of R_pc".to_owned();
        bars.push(Bar::new(what, rate(row) / rate(pread), true, 0.75, ""));
    }
    let hot = rows.find(|case| case.workload == Workload::Agg && case.state == State::Hot);
    if let (Some(hot), Some(memory)) = (hot, rows.ceiling(Workload::Memory)) {
        let what = "pool hot: checksum and decode, of R_mem".to_owned();
        bars.push(Bar::new(what, rate(hot) / rate(memory), true, 0.55, ""));
    }
}
