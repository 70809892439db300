//! One page that a person understands, with everything in it.

mod charts;
mod words;

use super::{
    Results,
    case::{Access, State, Workload, size},
    row::{Row, short},
};
use charts::{BLUE, BarLine, GREEN, GREY, ORANGE, PURPLE, Piece, Series};
use plotters::style::RGBColor;
use std::fmt::Write;
use words::{STATES, ceiling, measured, rate, servers, usual};

pub(super) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

const STYLE: &str = "body{font:16px/1.5 system-ui,sans-serif;color:#262b30;background:#fff;max-width:900px;margin:2em auto;\
padding:0 1em}h1{font-size:1.7em;margin-bottom:0}h2{font-size:1.25em;margin:2em 0 .3em;border-top:1px solid #dee2e6;\
padding-top:1em}p.sub{color:#5c656d;margin-top:.2em}h3{font-size:1.02em;margin:1.2em 0 .2em}li{margin:.35em 0}.plot{width:100%;height:auto;display:block}\
table{border-collapse:collapse;font-size:13px;width:100%}td,th{padding:3px 7px;text-align:right;border-bottom:1px solid #e9ecef;\
white-space:nowrap}th{background:#f4f6f8;position:sticky;top:0}td.l,th.l{text-align:left;white-space:normal}\
.wide{overflow-x:auto}code{background:#f1f3f5;padding:1px 5px;border-radius:3px}.pass{color:#2b7a3d;font-weight:600}\
.miss{color:#b8322a;font-weight:600}.key span{display:inline-block;margin-right:1.2em}.key i{display:inline-block;width:13px;\
height:13px;margin-right:5px;vertical-align:-1px}.note{color:#5c656d;font-size:14px}.warn{background:#fff4e0;padding:.5em .8em;\
border-left:4px solid #de7d2c}";

/// The whole page.
pub(super) fn page(results: &Results, warnings: &[String]) -> String {
    let facts = &results.facts;
    let mut page = format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width\"><title>heapscan bench</title><style>{STYLE}</style></head><body>\
         <h1>How fast can this machine scan a PostgreSQL table?</h1>\
         <p class=\"sub\">heapscan {} on {}, {} CPUs, {:.0} GB, Linux {}; {}. Table {}: {:.2} GB in {} blocks, checksums {}. \
         Median of {} run(s) a row, which took turns; bars show the median, the thin line the slowest and the fastest run.</p>",
        facts.version,
        escape(&facts.cpu),
        facts.cpus,
        facts.memory_bytes as f64 / 1e9,
        escape(facts.kernel.kernel.as_deref().unwrap_or("unknown")),
        escape(&facts.file_system),
        escape(&facts.table),
        facts.bytes as f64 / 1e9,
        facts.blocks,
        escape(&facts.checksums),
        results.runs_of_each
    );
    for warning in warnings {
        put(&mut page, &format!("<p class=\"warn\">{}</p>", escape(warning)));
    }
    section(&mut page, "In short", &list(&words::findings(results)));
    settings(&mut page, results);
    states(&mut page, results);
    split(&mut page, results);
    against(&mut page, results);
    sweeps(&mut page, results);
    clients(&mut page, results);
    lookups(&mut page, results);
    bars(&mut page, results);
    table(&mut page, results);
    put(
        &mut page,
        &format!(
            "<h2>How it was measured</h2><p class=\"note\">Command: <code>{}</code>. Cold: the table's files were dropped from \
             the page cache, and that was checked; warm: all of them were in it; hot: all blocks were in the buffer pool. A run \
             whose method, cache state or way of reading was not what its row says has no figure. CPU seconds are those of all \
             threads (of a server: of all its processes, in steps of 10 ms). A virtual machine cannot see whether its host \
             serves the device's reads from memory.</p></body></html>",
            escape(&facts.command)
        ),
    );
    page
}

fn put(page: &mut String, text: &str) {
    page.push_str(text);
}

fn section(page: &mut String, title: &str, body: &str) {
    if !body.is_empty() {
        put(page, &format!("<h2>{title}</h2>{body}"));
    }
}

fn list(items: &[String]) -> String {
    if items.is_empty() {
        return String::new();
    }
    let items: String = items.iter().map(|item| format!("<li>{item}</li>")).collect();
    format!("<ul>{items}</ul>")
}

fn settings(page: &mut String, results: &Results) {
    let said: Vec<String> = words::advice(results)
        .iter()
        .map(|(setting, why)| format!("<code>{}</code>: {}.", escape(setting), escape(why)))
        .collect();
    section(page, "PostgreSQL settings that this suggests", &list(&said));
}

fn color(method: &str) -> RGBColor {
    match method {
        "sync" => GREY,
        "worker" => ORANGE,
        "io_uring" => BLUE,
        _ => PURPLE,
    }
}

fn bar(row: &Row, label: String, value: f64, range: Option<(f64, f64)>, note: String) -> BarLine {
    BarLine { label, pieces: vec![Piece { value, color: color(&row.case.io_method) }], range, note }
}

fn rate_bar(row: &Row, label: String) -> BarLine {
    let spread = &row.gb_per_second;
    let note = format!("{:.2} GB/s, {:.2} cores", spread.median, row.cores);
    bar(row, label, spread.median, Some((spread.min, spread.max)), note)
}

/// Methods in each state, beside what the machine can do.
fn states(page: &mut String, results: &Results) {
    for (state, access, name) in STATES {
        let rows = usual(results, Workload::Agg, (state, access));
        let rows: Vec<&Row> = match state {
            State::Hot => measured(results)
                .filter(|r| {
                    r.case.system == "heapscan" && r.case.state == State::Hot && r.case.workload == Workload::Agg
                })
                .collect(),
            _ => rows,
        };
        if rows.is_empty() {
            continue;
        }
        let lines: Vec<BarLine> = rows
            .iter()
            .map(|row| {
                rate_bar(row, if state == State::Hot { "from the pool".to_owned() } else { row.case.io_method.clone() })
            })
            .collect();
        let mark = match (state, access) {
            (State::Cold, Access::Direct) => ceiling(results, Workload::Raw).map(|r| (r, "device, bare ring")),
            (State::Warm, _) => ceiling(results, Workload::Pread).map(|r| (r, "bare reads of the page cache")),
            (State::Hot, _) => ceiling(results, Workload::Memory).map(|r| (r, "one core reading memory")),
            _ => None,
        };
        let marks: Vec<(String, f64)> =
            mark.map(|(row, text)| (format!("{text}: {:.2} GB/s", rate(row)), rate(row))).into_iter().collect();
        let what = escape(&results.facts.agg);
        let body = format!(
            "<p class=\"note\"><code>{what}</code>, checksums verified</p>{}",
            charts::bars("GB/s", &lines, &marks)
        );
        section(page, &format!("Scan: {name}"), &body);
    }
}

/// Where the time of a scan goes.
fn split(page: &mut String, results: &Results) {
    let mut lines = Vec::new();
    for (state, access, name) in STATES {
        for row in usual(results, Workload::Agg, (state, access)) {
            let Some(run) = row.typical() else { continue };
            let (submit, wait) = (run.io.submit_nanos as f64 / 1e9, run.io.wait_nanos as f64 / 1e9);
            // What the method does within the call is the reading itself: copying, if the page cache has it.
            let inline = row.case.io_method == "sync" || (state == State::Warm && row.case.io_method != "tokio_uring");
            let rest = (run.spent.wall - submit - wait).max(0.0);
            let pieces = [(submit, if inline { ORANGE } else { GREEN }), (wait, GREY), (rest, BLUE)];
            lines.push(BarLine {
                label: format!("{name}: {}", row.case.io_method).replace("through the page cache", "buffered"),
                pieces: pieces.map(|(value, color)| Piece { value: 1e3 * value, color }).into(),
                range: None,
                note: format!("{:.0} ms", 1e3 * run.spent.wall),
            });
        }
    }
    if lines.is_empty() {
        return;
    }
    let key = |color: RGBColor, text: &str| {
        format!("<span><i style=\"background:rgb({},{},{})\"></i>{text}</span>", color.0, color.1, color.2)
    };
    let keys = [
        key(GREEN, "handing reads over"),
        key(ORANGE, "reading within the call (warm: copying from the page cache)"),
        key(GREY, "waiting for reads"),
        key(BLUE, "checksum, decoding, summing"),
    ];
    let body = format!(
        "<p class=\"key note\">{}</p>{}",
        keys.concat(),
        charts::bars("milliseconds of a typical run", &lines, &[])
    );
    section(page, "Why: where the time of the scanning thread goes", &body);
}

/// heapscan beside a server.
fn against(page: &mut String, results: &Results) {
    let mut body = String::new();
    for (state, access, name) in STATES {
        let theirs = servers(results, Workload::Agg, (state, access));
        if theirs.is_empty() {
            continue;
        }
        let ours = match state {
            State::Hot => measured(results)
                .filter(|r| {
                    r.case.system == "heapscan" && r.case.state == State::Hot && r.case.workload == Workload::Agg
                })
                .collect(),
            _ => usual(results, Workload::Agg, (state, access)),
        };
        let one = |row: &&Row| {
            let (case, wall) = (&row.case, &row.wall_seconds);
            let who = match (case.system.as_str(), case.threads) {
                ("heapscan", 1) => format!("heapscan, {}", case.io_method),
                ("heapscan", n) => format!("heapscan, {}, {n} threads", case.io_method),
                (system, 1) => format!("{system}, {}", case.io_method),
                (system, n) => format!("{system}, {}, {n} processes", case.io_method),
            };
            let note = format!("{:.0} ms, {:.0} CPU ms", 1e3 * wall.median, 1e3 * row.cpu_seconds.median);
            let mut line = bar(row, who, 1e3 * wall.median, Some((1e3 * wall.min, 1e3 * wall.max)), note);
            line.pieces[0].color = if case.system == "heapscan" { BLUE } else { ORANGE };
            line
        };
        let lines: Vec<BarLine> = ours.iter().map(one).chain(theirs.iter().map(one)).collect();
        let _ = write!(body, "<h3>{name}</h3>{}", charts::bars("milliseconds; shorter is better", &lines, &[]));
    }
    section(page, "Beside PostgreSQL: the same query on the same cluster", &body);
}

fn sweeps(page: &mut String, results: &Results) {
    type Find = for<'a> fn(&'a Results, &str) -> Vec<(u64, &'a Row)>;
    type Show = fn(u64) -> String;
    let kinds: [(&str, Find, Show); 2] = [
        ("io_combine_limit", words::by_combine, size),
        ("effective_io_concurrency", words::by_concurrency, |n| n.to_string()),
    ];
    let mut body = String::new();
    for (name, find, show) in kinds {
        let all = ["sync", "worker", "io_uring", "tokio_uring"].map(|method| (method, find(results, method)));
        body.push_str(&sweep_plot(name, &all, show));
    }
    body.push_str(&sweep_plot("io_workers", &[("worker", words::by_workers(results))], |n| n.to_string()));
    section(page, "Settings, one at a time: cold, direct", &body);
}

/// One setting across, the rate up, a line for each method.
fn sweep_plot(name: &str, all: &[(&str, Vec<(u64, &Row)>)], show: fn(u64) -> String) -> String {
    let mut values: Vec<u64> = all.iter().flat_map(|(_, rows)| rows.iter().map(|(value, _)| *value)).collect();
    values.sort_unstable();
    values.dedup();
    let place = |value: u64| values.iter().position(|&v| v == value).unwrap_or(0);
    let series: Vec<Series> = all
        .iter()
        .filter(|(_, rows)| rows.len() > 1)
        .map(|(method, rows)| Series {
            name: (*method).to_owned(),
            color: color(method),
            points: rows.iter().map(|(value, row)| (place(*value), rate(row))).collect(),
        })
        .collect();
    if series.is_empty() {
        return String::new();
    }
    let labels: Vec<String> = values.iter().map(|&value| show(value)).collect();
    charts::lines(name, "GB/s", &labels, &series)
}

fn clients(page: &mut String, results: &Results) {
    let mut body = String::new();
    for (state, name) in [(State::Warm, "page cache warm"), (State::Hot, "pool hot")] {
        let rows: Vec<&Row> = measured(results)
            .filter(|r| r.case.workload == Workload::SeqConcurrScans && r.case.state == state)
            .collect();
        let mut counts: Vec<u32> = rows.iter().map(|r| r.case.clients).collect();
        counts.sort_unstable();
        counts.dedup();
        let mut names: Vec<(String, String)> = Vec::new();
        for row in &rows {
            let name = (row.case.system.clone(), row.case.io_method.clone());
            if !names.contains(&name) {
                names.push(name);
            }
        }
        let place = |n: u32| counts.iter().position(|&c| c == n).unwrap_or(0);
        let series: Vec<Series> = names
            .into_iter()
            .map(|(system, method)| {
                let mine = rows.iter().filter(|r| r.case.system == system && r.case.io_method == method);
                let mut points: Vec<(usize, f64)> =
                    mine.map(|r| (place(r.case.clients), r.operations_per_second.median)).collect();
                points.sort_by_key(|p| p.0);
                let ours = system == "heapscan";
                let name = if ours { method.clone() } else { format!("{} {method}", system.replace("postgres", "PG")) };
                Series { name, color: if ours { color(&method) } else { GREEN }, points }
            })
            .collect();
        if !series.is_empty() {
            let labels: Vec<String> = counts.iter().map(u32::to_string).collect();
            let _ = write!(body, "<h3>{name}</h3>{}", charts::lines("clients", "scans a second", &labels, &series));
        }
    }
    section(page, "Concurrent scans: each client its own table", &body);
}

fn lookups(page: &mut String, results: &Results) {
    let rows: Vec<&Row> = measured(results).filter(|r| r.case.workload.is_random()).collect();
    let mut body = String::new();
    for (state, name) in [(State::Cold, "cold, direct, 64 in flight"), (State::Hot, "pool hot, one thread")] {
        let lines: Vec<BarLine> = rows
            .iter()
            .filter(|row| row.case.state == state)
            .map(|row| {
                let case = &row.case;
                let label = match case.workload {
                    w if w.is_ceiling() => format!("{} (no decoding)", case.system),
                    Workload::LookupsFew => "among 100,000 rows".to_owned(),
                    _ if case.system != "heapscan" => format!("{}, {}", case.system, case.io_method),
                    _ if state == State::Hot => "whole table".to_owned(),
                    _ => case.io_method.clone(),
                };
                let spread = &row.operations_per_second;
                let note = format!("{} a second", short(spread.median));
                let mut line = bar(row, label, spread.median, Some((spread.min, spread.max)), note);
                line.pieces[0].color = match case.system.as_str() {
                    "heapscan" => BLUE,
                    system if system.starts_with("postgres") => ORANGE,
                    _ => GREY,
                };
                line
            })
            .collect();
        if !lines.is_empty() {
            let _ = write!(body, "<h3>{name}</h3>{}", charts::bars("rows a second", &lines, &[]));
        }
    }
    section(page, "Single rows by their place, at random", &body);
}

/// The project's own bars.
fn bars(page: &mut String, results: &Results) {
    let mut body = String::new();
    for bar in &results.bars {
        let (class, word) = if bar.pass { ("pass", "pass") } else { ("miss", "miss") };
        let sign = if bar.at_least { "≥" } else { "≤" };
        let _ = write!(
            body,
            "<tr><td class=\"{class}\">{word}</td><td class=\"l\">{}</td><td>{:.3}</td><td>{sign} {}{}</td></tr>",
            escape(&bar.what),
            bar.figure,
            short(bar.bar),
            bar.unit
        );
    }
    if !body.is_empty() {
        section(page, "The project's own bars", &format!("<table>{body}</table>"));
    }
}

fn table(page: &mut String, results: &Results) {
    let mut body = String::from(
        "<div class=\"wide\"><table><tr><th class=\"l\">workload</th><th class=\"l\">state</th><th class=\"l\">reads</th>\
         <th class=\"l\">by</th><th class=\"l\">settings</th><th>wall s</th><th>least</th><th>most</th><th>GB/s</th>\
         <th>a second</th><th>CPU s</th><th>CPU s/GB</th><th>cached before, after</th><th>peak MB</th></tr>",
    );
    for row in &results.rows {
        let case = &row.case;
        let by = match case.system.as_str() {
            "heapscan" => case.io_method.clone(),
            _ if case.workload.is_ceiling() => case.system.clone(),
            system => format!("{system}, {}", case.io_method),
        };
        let _ = write!(
            body,
            "<tr><td class=\"l\">{}</td><td class=\"l\">{}</td><td class=\"l\">{}</td><td class=\"l\">{}</td><td class=\"l\">{}</td>",
            case.workload,
            case.state,
            case.access,
            escape(&by),
            escape(&row.remark)
        );
        if let Some(why) = &row.refused {
            let _ = write!(body, "<td class=\"l miss\" colspan=\"9\">refused: {}</td></tr>", escape(why));
            continue;
        }
        let cached = row.typical().map_or((0.0, 0.0), |run| (100.0 * run.cached_before, 100.0 * run.cached_after));
        let wall = &row.wall_seconds;
        let _ = write!(
            body,
            "<td>{:.3}</td><td>{:.3}</td><td>{:.3}</td><td>{:.2}</td><td>{}</td><td>{:.3}</td><td>{:.4}</td>\
             <td>{:.0} %, {:.0} %</td><td>{:.0}</td></tr>",
            wall.median,
            wall.min,
            wall.max,
            rate(row),
            short(row.operations_per_second.median),
            row.cpu_seconds.median,
            row.cpu_seconds_per_gb,
            cached.0,
            cached.1,
            row.peak_rss as f64 / 1e6
        );
    }
    section(page, "Every row", &(body + "</table></div>"));
}
