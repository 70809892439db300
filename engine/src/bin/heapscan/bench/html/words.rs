//! What the figures say, in sentences, and which settings they suggest.

use crate::bench::{
    Results,
    case::{Access, State, Workload, size},
    row::{Row, short},
};

/// A setting must bring this part of the best to be good enough.
const ENOUGH: f64 = 0.95;

pub(super) const STATES: [(State, Access, &str); 4] = [
    (State::Cold, Access::Direct, "cold, direct"),
    (State::Cold, Access::Buffered, "cold, through the page cache"),
    (State::Warm, Access::Buffered, "page cache warm"),
    (State::Hot, Access::Buffered, "pool hot"),
];

pub(super) fn rate(row: &Row) -> f64 {
    row.gb_per_second.median
}

/// Rows with figures.
pub(super) fn measured(results: &Results) -> impl Iterator<Item = &Row> {
    results.rows.iter().filter(|row| row.refused.is_none())
}

/// Rows of heapscan itself with the usual settings, one for each method.
pub(super) fn usual(results: &Results, workload: Workload, (state, access): (State, Access)) -> Vec<&Row> {
    measured(results)
        .filter(|row| {
            let case = &row.case;
            case.system == "heapscan"
                && row.remark.is_empty()
                && (case.workload, case.state, case.access) == (workload, state, access)
        })
        .collect()
}

pub(super) fn ceiling(results: &Results, workload: Workload) -> Option<&Row> {
    measured(results).find(|row| row.case.workload == workload)
}

/// Rows of a server.
pub(super) fn servers(results: &Results, workload: Workload, (state, access): (State, Access)) -> Vec<&Row> {
    measured(results)
        .filter(|row| {
            let case = &row.case;
            case.system.starts_with("postgres") && (case.workload, case.state, case.access) == (workload, state, access)
        })
        .collect()
}

pub(super) fn fastest<'a>(rows: &[&'a Row]) -> Option<&'a Row> {
    rows.iter().copied().max_by(|a, b| rate(a).total_cmp(&rate(b)))
}

fn ceiling_of(results: &Results, state: (State, Access)) -> Option<(&Row, &'static str)> {
    let (workload, what) = match state {
        (State::Cold, Access::Direct) => (Workload::Raw, "what the device gives a bare ring at best"),
        (State::Warm, _) => (Workload::Pread, "bare 128 kB reads from the page cache"),
        (State::Hot, _) => (Workload::Memory, "one core reading memory from front to back"),
        _ => return None,
    };
    Some((ceiling(results, workload)?, what))
}

/// What is fastest in each state, by how much, and how near to what the machine can do.
pub(super) fn findings(results: &Results) -> Vec<String> {
    let mut said = Vec::new();
    for (state, access, name) in STATES {
        let rows = usual(results, Workload::Agg, (state, access));
        let Some(best) = fastest(&rows) else { continue };
        let mut text = match state {
            State::Hot => format!("<b>{name}:</b> {:.2} GB/s; nothing is read, so no method matters", rate(best)),
            _ => format!("<b>{name}:</b> <b>{}</b> is fastest, {:.2} GB/s", best.case.io_method, rate(best)),
        };
        if state != State::Hot {
            let others = rows.iter().filter(|row| row.case.io_method != best.case.io_method);
            let others: Vec<String> =
                others.map(|row| format!("{:.2} × {}", rate(best) / rate(row), row.case.io_method)).collect();
            if !others.is_empty() {
                text.push_str(&format!(" ({})", others.join(", ")));
            }
        }
        if let Some((ceiling, what)) = ceiling_of(results, (state, access)) {
            text.push_str(&format!(
                "; that is {:.0} % of {what} ({:.2} GB/s)",
                100.0 * rate(best) / rate(ceiling),
                rate(ceiling)
            ));
        }
        let servers = servers(results, Workload::Agg, (state, access));
        let serial: Vec<&Row> = servers.iter().copied().filter(|row| row.case.threads == 1).collect();
        if let Some(server) = fastest(&serial) {
            text.push_str(&format!(
                "; {:.1} times as fast as one process of {} with {}, which takes {:.0} CPU ms where heapscan takes {:.0}",
                rate(best) / rate(server),
                super::escape(&server.case.system),
                server.case.io_method,
                1e3 * server.cpu_seconds.median,
                1e3 * best.cpu_seconds.median
            ));
        }
        said.push(text + ".");
    }
    if let Some(row) = measured(results).find(|r| r.case.workload == Workload::Lookups && r.case.state == State::Hot) {
        let rate = row.operations_per_second.median;
        said.push(format!("<b>single rows:</b> {} a second from the pool in one thread.", short(rate)));
    }
    said
}

/// Rows that differ from the usual ones of `method` in one setting, with the usual one, by that setting.
pub(super) fn sweep<'a>(results: &'a Results, method: &str, setting: impl Fn(&Row) -> u64) -> Vec<(u64, &'a Row)> {
    let base = &results.base;
    let mut rows: Vec<(u64, &Row)> = measured(results)
        .filter(|row| {
            let case = &row.case;
            case.system == "heapscan"
                && case.workload == Workload::Agg
                && (case.state, case.access) == (State::Cold, Access::Direct)
                && case.io_method == method
                && case.shared_buffers == base.shared_buffers
        })
        .map(|row| (setting(row), row))
        .collect();
    rows.sort_by_key(|(value, _)| *value);
    rows
}

/// By the largest combined read alone.
pub(super) fn by_combine<'a>(results: &'a Results, method: &str) -> Vec<(u64, &'a Row)> {
    let mut rows = sweep(results, method, |row| row.case.io_combine_limit);
    let usual = |limit| results.base.with_combine_limit(limit).effective_io_concurrency;
    rows.retain(|(limit, row)| row.case.effective_io_concurrency == usual(*limit) && row.case.io_workers.is_none());
    rows
}

/// By reads in flight alone.
pub(super) fn by_concurrency<'a>(results: &'a Results, method: &str) -> Vec<(u64, &'a Row)> {
    let mut rows = sweep(results, method, |row| u64::from(row.case.effective_io_concurrency));
    let usual = results.base.io_combine_limit;
    rows.retain(|(_, row)| row.case.io_combine_limit == usual && row.case.io_workers.is_none());
    rows
}

/// By worker threads alone.
pub(super) fn by_workers(results: &Results) -> Vec<(u64, &Row)> {
    let mut rows = sweep(results, "worker", |row| u64::from(row.case.io_workers.unwrap_or(0)));
    rows.retain(|(workers, _)| *workers > 0);
    rows
}

/// The least setting that is good enough, if several were tried.
fn enough(rows: &[(u64, &Row)]) -> Option<(u64, f64, f64)> {
    let best = rows.iter().map(|(_, row)| rate(row)).fold(0.0, f64::max);
    let (value, row) = rows.iter().find(|(_, row)| rate(row) >= ENOUGH * best)?;
    (rows.len() > 1).then(|| (*value, rate(row), best))
}

/// Settings of PostgreSQL, each with why.
pub(super) fn advice(results: &Results) -> Vec<(String, String)> {
    let mut said = Vec::new();
    if let Some(said_of_method) = method_advice(results) {
        said.push(said_of_method);
    }
    let why = |value: String, (_, rate, best): (u64, f64, f64)| {
        format!(
            "{value} reaches {rate:.2} GB/s of the {best:.2} GB/s that any value tried here reached, cold and direct"
        )
    };
    if let Some(found) = enough(&by_combine(results, "io_uring")) {
        let value = size(found.0);
        said.push((format!("io_combine_limit = {value}"), why(value, found)));
    }
    if let Some(found) = enough(&by_concurrency(results, "io_uring")) {
        let text =
            format!("{}; a network disk wants more, this one was tried up to 64", why(found.0.to_string(), found));
        said.push((format!("effective_io_concurrency = {}", found.0), text));
    }
    if let Some(found) = enough(&by_workers(results)) {
        let text = format!(
            "for io_method = worker: {}; more threads than that only take CPU",
            why(found.0.to_string(), found)
        );
        said.push((format!("io_workers = {}", found.0), text));
    }
    if results.facts.kernel.huge_pages_total.unwrap_or(0) == 0 {
        said.push((
            "huge_pages = on, vm.nr_hugepages for all of shared_buffers".to_owned(),
            "no huge pages are reserved here, so a server gets 4 kB pages. Direct reads into those can be less than half as \
             fast; heapscan's pool lies on transparent huge pages, which shared memory does not get"
                .to_owned(),
        ));
    }
    said
}

fn method_advice(results: &Results) -> Option<(String, String)> {
    let serial = |state| -> Vec<&Row> {
        servers(results, Workload::Agg, state).into_iter().filter(|row| row.case.threads == 1).collect()
    };
    let cold = (State::Cold, Access::Buffered);
    let of_servers = serial(cold);
    let asked: Vec<&Row> = match of_servers.len() > 1 {
        true => of_servers,
        // tokio_uring is no setting of a server.
        false => {
            usual(results, Workload::Agg, cold).into_iter().filter(|r| r.case.io_method != "tokio_uring").collect()
        }
    };
    let best = fastest(&asked)?;
    let worst = asked.iter().map(|row| rate(row)).fold(f64::INFINITY, f64::min);
    let whose = if best.case.system == "heapscan" { "in heapscan's own scans" } else { "on the server itself" };
    let spread = (best.wall_seconds.max - best.wall_seconds.min) / best.wall_seconds.median;
    let mut why = format!(
        "cold and through the page cache, as servers read by default, it was fastest {whose}: {:.2} GB/s against {worst:.2} of \
         the slowest",
        rate(best)
    );
    if rate(best) < worst * 1.1 {
        why.push_str("; the methods differ by less than 10 %, so the default will do");
    }
    if spread > 0.25 {
        why.push_str(&format!("; its runs differ by {:.0} %: measure again on a quiet machine", 100.0 * spread));
    }
    Some((format!("io_method = {}", best.case.io_method), why))
}
