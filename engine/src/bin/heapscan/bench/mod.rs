//! `heapscan bench`: IO methods, settings and cache states compared on this machine.
//!
//! Dangers, which the modules guard against: figures of another cache state than their row says (`cache`, `run`), of
//! another method (`run`), of one lucky run (rows take turns; medians and spread), of the neighbours (CPU seconds), and
//! without anything to hold them against (`ceilings`, measured in the same turns).

mod args;
mod bars;
mod cache;
mod case;
mod ceilings;
mod clock;
mod data;
mod facts;
mod fio;
mod html;
mod output;
mod plan;
mod postgres;
mod row;
mod run;
mod workload;

pub(crate) use args::BenchArgs;

use crate::{print, say};
use bars::Bar;
use case::Case;
use data::Data;
use facts::Facts;
use heapscan::{EngineOptions, Error, ErrorKind, MethodName, Result};
use heapscan_io::RawPoint;
use plan::Plan;
use postgres::Postgres;
use row::Row;
use run::{Failure, Run, Runner};

/// What a scan may take beside its pool, in bytes.
const BESIDE_POOL: u64 = 64 << 20;

/// Everything that the reports are made of.
#[derive(serde::Serialize)]
struct Results {
    facts: Facts,
    runs_of_each: u32,
    ceiling_of_direct_reads: Option<RawPoint>,
    base: Case,
    rows: Vec<Row>,
    bars: Vec<Bar>,
}

pub(crate) fn run(args: &BenchArgs) -> Result<()> {
    let methods = methods(args)?;
    let output = output::Output::create(&args.output)?;
    let data = Data::find(args)?;
    let mut server = args.postgres.as_deref().map(|bin| Postgres::new(args, bin, &data)).transpose()?;
    let facts = Facts::gather(&data);
    print(&head(&facts))?;
    let warnings = facts.warnings();
    for warning in &warnings {
        say(&format!("heapscan: warning: {warning}"));
    }
    let best = ceiling(args, &data);
    let fio = args.fio && {
        let there = fio::is_installed();
        if !there {
            say("heapscan: fio is not installed: nothing checks the ceiling of direct reads");
        }
        there
    };
    let plan = plan::plan(args, &data, &methods, best.as_ref(), fio);
    let runs = args.runs.unwrap_or(if args.quick { 3 } else { 5 });
    let mut runner = Runner::new(&data, EngineOptions::default(), args);
    print(&format!("{}\n", Row::header()))?;
    let mut rows = Vec::new();
    for group in &plan.groups {
        rows.extend(measure(&mut |case| runner.run(case), &plan, group, runs, 1, Some(args.seed))?);
        runner.forget();
    }
    if let Some(server) = &mut server {
        let cases = server.cases(args, &plan.base);
        // A warm-up turn costs minutes of restarts; each query's session warms up by itself.
        rows.extend(measure(&mut |case| server.run(case), &plan, &cases, runs, 0, None)?);
        server.stop()?;
        check_answers(&rows)?;
    }
    let bars = bars::bars(&rows, &plan.base, BESIDE_POOL);
    print("\n")?;
    for bar in &bars {
        print(&format!("{}\n", bar.line()))?;
    }
    let missed = bars.iter().filter(|b| !b.pass).count();
    let refused = rows.iter().filter(|r| r.refused.is_some()).count();
    let results = Results { facts, runs_of_each: runs, ceiling_of_direct_reads: best, base: plan.base, rows, bars };
    output.write(&results, &warnings)?;
    if args.strict && missed + refused > 0 {
        return Err(Error::new(ErrorKind::Method, format!("{missed} bars missed, {refused} rows refused")));
    }
    Ok(())
}

fn head(facts: &Facts) -> String {
    format!(
        "heapscan {} on {} ({} CPUs, {:.0} GB, Linux {}), {}\n{}: {} blocks of {} bytes, {:.2} GB, checksums {}\n\n",
        facts.version,
        facts.cpu,
        facts.cpus,
        facts.memory_bytes as f64 / 1e9,
        facts.kernel.kernel.as_deref().unwrap_or("unknown"),
        facts.file_system,
        facts.table,
        facts.blocks,
        facts.block_size,
        facts.bytes as f64 / 1e9,
        facts.checksums
    )
}

/// The methods to compare; those that cannot be used here have no row and are named.
fn methods(args: &BenchArgs) -> Result<Vec<MethodName>> {
    let status = heapscan::probe_methods();
    let why_not = |name: &MethodName| {
        let found = status.iter().find(|s| s.name == name.as_str());
        match found {
            Some(s) if s.usable => None,
            Some(s) => Some(s.reason.clone().unwrap_or_else(|| "not usable here".to_owned())),
            None => Some("unknown".to_owned()),
        }
    };
    let asked = if args.io_methods.is_empty() { MethodName::ALL.to_vec() } else { args.io_methods.clone() };
    let mut methods = Vec::new();
    for name in asked {
        match why_not(&name) {
            None if !methods.contains(&name) => methods.push(name),
            None => {}
            Some(why) if args.io_methods.is_empty() => say(&format!("heapscan: no rows for {name}: {why}")),
            Some(why) => {
                return Err(Error::new(ErrorKind::Method, format!("io_method {name} cannot be used here: {why}")));
            }
        }
    }
    Ok(methods)
}

/// Finds the best that the device gives for direct reads.
fn ceiling(args: &BenchArgs, data: &Data) -> Option<RawPoint> {
    if !args.states.contains(&case::State::Cold) || !args.reads.contains(&case::Access::Direct) {
        return None;
    }
    let bytes = data.bytes().min(if args.quick { 64 << 20 } else { 512 << 20 });
    let found = cache::make_cold(&data.main.files, args.drop_caches).and_then(|_| {
        ceilings::sweep(&data.main.files, bytes, &mut |point, rate| {
            tracing::debug!("{}: {:.2} GB/s", ceilings::name(point), rate / 1e9);
        })
    });
    match found {
        Ok(point) => Some(point),
        Err(why) => {
            say(&format!("heapscan: no ceiling of direct reads: {why}"));
            None
        }
    }
}

/// One run of a row.
type Work<'w> = &'w mut dyn FnMut(&Case) -> std::result::Result<Run, Failure>;

/// Runs the rows of a group in turns, with a seed in another order each time; the first turns warm up and do not count.
fn measure(
    work: Work<'_>,
    plan: &Plan,
    group: &[Case],
    runs: u32,
    warm_up: u32,
    seed: Option<u64>,
) -> Result<Vec<Row>> {
    struct Open<'c> {
        case: &'c Case,
        runs: Vec<Run>,
        refused: Option<String>,
    }
    let mut open: Vec<Open<'_>> = group.iter().map(|case| Open { case, runs: Vec::new(), refused: None }).collect();
    let mut random = seed.map(|seed| seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    for turn in 0..runs + warm_up {
        let order = match &mut random {
            Some(random) => shuffled(open.len(), random),
            None => (0..open.len()).collect(),
        };
        for index in order {
            let row = &mut open[index];
            if row.refused.is_none() {
                match attempt(work, row.case)? {
                    Ok(run) if turn >= warm_up => row.runs.push(run),
                    Ok(_) => {}
                    Err(why) => row.refused = Some(why),
                }
            }
        }
    }
    let mut rows = Vec::with_capacity(open.len());
    for Open { case, runs, refused } in open {
        let row = Row::new(case, &plan.base, runs, refused);
        print(&format!("{}\n", row.line()))?;
        rows.push(row);
    }
    check_answers(&rows)?;
    Ok(rows)
}

/// One run, again if something else on the machine spoiled the state of the cache meanwhile; or why there is none.
fn attempt(work: Work<'_>, case: &Case) -> Result<std::result::Result<Run, String>> {
    const ATTEMPTS: u32 = 3;
    let mut refused = String::new();
    for _ in 0..ATTEMPTS {
        match work(case) {
            Ok(run) => return Ok(Ok(run)),
            Err(Failure::Refused(why)) => refused = why,
            Err(Failure::Error(error)) => {
                return Err(error.in_context(format_args!("row {} {}", case.workload, case.io_method)));
            }
        }
    }
    Ok(Err(refused))
}

/// All scans of one table must come to the same.
fn check_answers(rows: &[Row]) -> Result<()> {
    for row in rows {
        let same = |other: &&Row| (other.case.workload, other.case.clients) == (row.case.workload, row.case.clients);
        let mut answers = rows.iter().filter(same).flat_map(|r| &r.runs).filter_map(|run| run.answer.as_ref());
        let Some(first) = answers.next() else { continue };
        if let Some(other) = answers.find(|answer| *answer != first) {
            let text = format!("two runs of {} gave different answers: {first}, {other}", row.case.workload);
            return Err(Error::new(ErrorKind::Corrupt, text));
        }
    }
    Ok(())
}

/// The numbers below `count` in an order of chance (Fisher and Yates, xorshift64).
fn shuffled(count: usize, state: &mut u64) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    for last in (1..count).rev() {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        order.swap(last, (*state % (last as u64 + 1)) as usize);
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_has_its_turn() {
        let mut state = 5;
        let (mut first, second) = (shuffled(20, &mut state), shuffled(20, &mut state));
        assert_ne!(first, second);
        first.sort_unstable();
        assert_eq!(first, (0..20).collect::<Vec<_>>());
        assert!(shuffled(0, &mut state).is_empty());
    }
}
