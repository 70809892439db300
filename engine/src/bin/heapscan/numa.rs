//! `heapscan numa`

use crate::{args, ls, print, print_json, say};
use heapscan::{Error, ErrorKind, NumaOptions, Result};
use heapscan_placement::{
    list,
    measure::{self, Matrix, Measured},
    pages::{self, FilePages},
    plan::{self, Plan, PlanError, Settings},
    topology::{HugePagePool, Machine, Node},
};
use serde_json::json;
use std::{fmt::Write, path::Path};

pub(crate) fn run(args: &args::NumaCommandArgs) -> Result<()> {
    if let Some(file) = &args.pages {
        return run_pages(file, args.format);
    }
    let machine = machine(args)?;
    let measured = args.measure.then(|| measure::measure(&machine, measure::Effort::default()));
    let mut settings = settings(&args.numa, args.shared_buffers);
    settings.latencies = measured.as_ref().map(|m| m.latency.clone()).filter(|m| !m.to.is_empty());
    let plan = plan::plan(&machine, &settings).map_err(refused)?;
    if args.format == args::ListFormat::Json {
        return print_json(&json!({
            "machine": machine, "measured": measured, "plan": plan, "warnings": warnings(&machine, &plan),
        }));
    }
    print(&text(&machine, measured.as_ref(), &plan))
}

fn refused(error: PlanError) -> Error {
    let kind = if matches!(error, PlanError::Setting(_)) { ErrorKind::Usage } else { ErrorKind::Limit };
    Error::new(kind, error.to_string())
}

/// The planner's settings of the command line.
pub(crate) fn settings(args: &args::NumaArgs, shared_buffers: u64) -> Settings {
    // The block size is the cluster's; without one it is PostgreSQL's default.
    options(args).settings(shared_buffers, 8192)
}

/// The engine's settings of the command line.
pub(crate) fn options(args: &args::NumaArgs) -> NumaOptions {
    NumaOptions {
        mode: args.numa,
        nodes: args.numa_nodes.as_ref().map(|nodes| nodes.0.clone()),
        bind_threads: args.numa_bind,
        partitions_per_node: args.partitions_per_node,
        force_partitions: args.force_partitions,
        grouping: args.numa_grouping,
        strict: args.numa_strict,
        balance: args.numa_balance,
        ..NumaOptions::default()
    }
}

/// The machine to speak of: this one, or one that is described.
fn machine(args: &args::NumaCommandArgs) -> Result<Machine> {
    let Some(text) = &args.machine else { return Ok(Machine::detect()) };
    let wrong = |message: String| Error::new(ErrorKind::Usage, message);
    match text.split_once(':') {
        Some(("tree", root)) => Machine::from_tree(Path::new(root)).map_err(|error| wrong(error.to_string())),
        #[cfg(feature = "hwloc")]
        Some(("xml", file)) => {
            let xml = std::fs::read_to_string(file).map_err(|error| wrong(format!("cannot read {file}: {error}")))?;
            Machine::from_xml(&xml).map_err(|error| wrong(format!("{file}: {error}")))
        }
        #[cfg(feature = "hwloc")]
        Some(("synthetic", text)) => Machine::from_synthetic(text).map_err(|error| wrong(error.to_string())),
        #[cfg(not(feature = "hwloc"))]
        Some(("xml" | "synthetic", _)) => Err(wrong(format!("--machine {text} needs hwloc, which is not compiled in"))),
        _ => Err(wrong(format!("--machine {text:?}: use tree:FOLDER, xml:FILE or synthetic:DESCRIPTION"))),
    }
}

/// What is to be known before believing in placement.
fn warnings(machine: &Machine, plan: &Plan) -> Vec<String> {
    let mut warnings = plan.warnings.clone();
    if let Some(why) = machine.refused.as_ref().filter(|_| plan.warnings.is_empty()) {
        warnings.push(format!("memory policies cannot be used here ({why})"));
    }
    warnings
}

fn text(machine: &Machine, measured: Option<&Measured>, plan: &Plan) -> String {
    let mut out = String::new();
    // Writing to a String does not fail.
    let _ = writeln!(out, "nodes of {} (online {})\n", machine.source, machine.online());
    out += &ls::lines(&nodes(machine));
    if !machine.offline.is_empty() {
        let _ = writeln!(out, "\npossible but not online: {}", list::format(&machine.offline));
    }
    if machine.policy.is_set() {
        let (mode, nodes) = (machine.policy.mode, list::format(&machine.policy.nodes));
        let _ = writeln!(out, "\ninherited memory policy: {mode} of nodes {nodes}");
    }
    out += "\ndistances (10 is local)\n";
    match &machine.distances {
        Some(_) => {
            let ids: Vec<u32> = machine.nodes.iter().map(|node| node.id).collect();
            out += &matrix(&ids, &ids, |from, to| Some(machine.distance(from, to).to_string()));
        }
        None => out += "not known\n",
    }
    if let Some(measured) = measured {
        let cells = |values: &Matrix, scale: f64, digits: usize| {
            matrix(&values.from, &values.to, |from, to| {
                values.get(from, to).map(|value| format!("{:.digits$}", value / scale))
            })
        };
        out += "\nmeasured latency, ns (CPUs of the row, memory of the column)\n";
        out += &cells(&measured.latency, 1.0, 0);
        out += "\nmeasured bandwidth, GB/s (all CPUs of the row, at most 8, reading memory of the column)\n";
        out += &cells(&measured.bandwidth, 1e9, 1);
        for note in &measured.notes {
            let _ = writeln!(out, "not measured: {note}");
        }
    }
    out += "\nplan\n";
    let mut shown = plan.clone();
    shown.warnings.clear();
    let _ = write!(out, "{shown}");
    for warning in warnings(machine, plan) {
        let _ = writeln!(out, "warning: {warning}");
    }
    out
}

fn nodes(machine: &Machine) -> comfy_table::Table {
    let header =
        ["node", "kind", "allowed", "socket", "CPUs", "usable CPUs", "memory", "free", "huge pages (free/all)"];
    let mut table = ls::columns(&header);
    for index in [0, 6, 7] {
        ls::align_right(&mut table, index);
    }
    for node in &machine.nodes {
        table.add_row([
            node.id.to_string(),
            kind(node),
            if machine.is_node_allowed(node.id) { "yes" } else { "no" }.to_owned(),
            node.package.map_or_else(|| "-".to_owned(), |package| package.to_string()),
            list::format(&node.cpus),
            list::format(&machine.usable_cpus(node)),
            bytes(node.memory),
            node.free.map_or_else(|| "-".to_owned(), bytes),
            huge_pages(&node.huge_pages),
        ]);
    }
    table
}

fn kind(node: &Node) -> String {
    match &node.subtype {
        Some(subtype) => format!("{} {subtype}", node.kind()),
        None => node.kind().to_string(),
    }
}

fn huge_pages(pools: &[HugePagePool]) -> String {
    let show = |pool: &HugePagePool| {
        let free = pool.free.map_or_else(|| "?".to_owned(), |free| free.to_string());
        format!("{}: {free}/{}", bytes(pool.page_size), pool.total)
    };
    if pools.is_empty() { "-".to_owned() } else { pools.iter().map(show).collect::<Vec<_>>().join(", ") }
}

fn bytes(bytes: u64) -> String {
    let units = [(30, "GB"), (20, "MB"), (10, "kB")];
    match units.iter().find(|(shift, _)| bytes >= 1 << shift) {
        Some((shift, unit)) if bytes.trailing_zeros() >= *shift => format!("{} {unit}", bytes >> shift),
        Some((shift, unit)) => format!("{:.1} {unit}", bytes as f64 / (1u64 << shift) as f64),
        None => format!("{bytes} B"),
    }
}

fn matrix(from: &[u32], to: &[u32], cell: impl Fn(u32, u32) -> Option<String>) -> String {
    let header: Vec<String> = std::iter::once("node".to_owned()).chain(to.iter().map(u32::to_string)).collect();
    let mut table = ls::columns(&header.iter().map(String::as_str).collect::<Vec<_>>());
    for index in 0..header.len() {
        ls::align_right(&mut table, index);
    }
    for &row in from {
        let cells = to.iter().map(|&column| cell(row, column).unwrap_or_else(|| "-".to_owned()));
        table.add_row(std::iter::once(row.to_string()).chain(cells));
    }
    ls::lines(&table)
}

fn run_pages(file: &Path, format: args::ListFormat) -> Result<()> {
    let found = pages::file_pages(file).map_err(|error| {
        let failed = Error::new(ErrorKind::Io, format!("cannot ask about the page cache of this file: {error}"));
        let failed = failed.with_path(file);
        match error.raw_os_error() {
            Some(errno) => failed.with_errno(errno),
            None => failed,
        }
    })?;
    if format == args::ListFormat::Json {
        return print_json(&found);
    }
    if found.cached.unknown > 0 {
        say(&format!("heapscan: the kernel gave no node for {} cached pages", found.cached.unknown));
    }
    print(&pages_text(&found))
}

fn pages_text(found: &FilePages) -> String {
    let mut table = ls::columns(&["where", "pages", "bytes", "share"]);
    for index in 1..4 {
        ls::align_right(&mut table, index);
    }
    let all = (found.cached.total() + found.uncached).max(1);
    let mut row = |name: String, pages: u64| {
        let share = format!("{:.1} %", pages as f64 * 100.0 / all as f64);
        table.add_row([name, pages.to_string(), bytes(pages * found.cached.page_size), share]);
    };
    for (node, &pages) in &found.cached.nodes {
        row(format!("node {node}"), pages);
    }
    if found.cached.unknown > 0 {
        row("cached, node unknown".to_owned(), found.cached.unknown);
    }
    row("not cached".to_owned(), found.uncached);
    ls::lines(&table)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_short() {
        assert_eq!([bytes(2 << 20), bytes(512), bytes((3 << 30) / 2)], ["2 MB", "512 B", "1.5 GB"]);
    }
}
