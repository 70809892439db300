//! The report: a Markdown page with tables, and plots beside it.

use super::{
    Machine, Memory, Outcome, Run,
    cases::{self, Scale, Thread, UNDIVIDED},
    plot::{Line, Plot},
    table::Table,
};
use heapscan::pool::balance::NumaBalance;
use std::{error::Error, fmt::Write as _, fs, path::Path};

const KINDS: [NumaBalance; 3] = NumaBalance::ALL;

fn partitioned(per_node: u32, kind: NumaBalance) -> Memory {
    Memory::Partitioned(per_node, kind)
}

fn percent(value: f64) -> String {
    format!("{:.1} %", value * 100.0)
}

fn change(value: f64) -> String {
    format!("{:+.0} %", (value - 1.0) * 100.0)
}

/// Writes `README.md` and its plots into `dir`. `command` is said to have made them.
///
/// # Errors
/// If a file cannot be written.
pub fn write(dir: &Path, scale: Scale, command: &str) -> Result<(), Box<dyn Error>> {
    fs::create_dir_all(dir)?;
    let mut page = String::from(include_str!("report-head.md"));
    writeln!(
        page,
        "\nMade by `{command}`: {} frames, {} rounds, seed {}. The same command gives the same page.",
        scale.frames, scale.rounds, scale.seed
    )?;
    for section in [decision, lone, sizes, concurrent, skew, shapes, lookups] {
        writeln!(page, "\n{}", section(dir, scale)?)?;
    }
    fs::write(dir.join("README.md"), page)?;
    Ok(())
}

type Section = Result<String, Box<dyn Error>>;

/// The figures that the default was chosen by.
fn decision(_: &Path, scale: Scale) -> Section {
    let machine = Machine::chiplets(4);
    let mut table = Table::new(["what (4 nodes, 2 partitions each; skew: 1 each)", "wanted", "off", "budget", "age"]);
    let mut row = |name: &str, wanted: &str, cell: &dyn Fn(NumaBalance) -> String| {
        table.row([name.to_owned(), wanted.to_owned()].into_iter().chain(KINDS.map(cell)));
    };
    let lone = |kind, part| cases::lone_scan(scale, &machine, partitioned(2, kind), part, Thread::Stays).hit_ratio;
    row("lone scan, 20 % of the pool: hits of runs 2 to 5", "99 %", &|kind| percent(lone(kind, 0.2)));
    row("lone scan, 80 % of the pool: hits of runs 2 to 5", "99 %", &|kind| percent(lone(kind, 0.8)));
    row("all load on one home: fill of the emptiest after 1.05 pools", "95 %", &|kind| {
        percent(cases::fill(scale, &machine, 2, kind).least_fill)
    });
    row("even load: victims at home", "95 %", &|kind| {
        percent(cases::even(scale, &machine, partitioned(2, kind), 2).outcome().home_victims)
    });
    for (first, name) in [(3, "50 %"), (27, "90 %")] {
        let of = |memory| cases::skewed(scale, &machine, memory, first, 0.72).outcome();
        let undivided = of(UNDIVIDED).hit_ratio;
        row(
            &format!("one client makes {name} of the accesses: hits, of those of an undivided pool"),
            "97 %",
            &|kind| percent(of(partitioned(1, kind)).hit_ratio / undivided),
        );
        row("the same: victims at home", "85 %", &|kind| percent(of(partitioned(1, kind)).home_victims));
    }
    Ok(format!("## What decided the default\n\n{table}\n{}", include_str!("report-decision.md")))
}

/// The published loss of a lone client.
fn lone(_: &Path, scale: Scale) -> Section {
    let machine = Machine::four_sockets();
    let base = cases::lone_scan(scale, &machine, Memory::OneNode, 0.2, Thread::Stays).blocks_per_second;
    let mut table =
        Table::new(["partitions per node", "published", "off", "off, moved", "budget, moved", "age", "age, moved"]);
    for (per_node, published) in [(1, "-25 %"), (2, "-47 %"), (4, "-49 %")] {
        let cell = |kind, thread| {
            let outcome = cases::lone_scan(scale, &machine, partitioned(per_node, kind), 0.2, thread);
            format!("{} ({} hits)", change(outcome.blocks_per_second / base), percent(outcome.hit_ratio))
        };
        table.row([
            per_node.to_string(),
            published.to_owned(),
            cell(NumaBalance::Off, Thread::Stays),
            cell(NumaBalance::Off, Thread::Moved),
            cell(NumaBalance::Budget, Thread::Moved),
            cell(NumaBalance::Age, Thread::Stays),
            cell(NumaBalance::Age, Thread::Moved),
        ]);
    }
    Ok(format!("{}\n{table}", include_str!("report-lone.md")))
}

/// Hits of a lone scan by the size of its table.
fn sizes(dir: &Path, scale: Scale) -> Section {
    let machine = Machine::four_sockets();
    let memories = [("undivided".to_owned(), UNDIVIDED)]
        .into_iter()
        .chain(KINDS.map(|kind| (kind.to_string(), partitioned(2, kind))));
    let parts = [0.05, 0.1, 0.12, 0.14, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.97, 1.05];
    let line = |(name, memory): (String, Memory)| -> Line {
        let hits = |part| cases::lone_scan(scale, &machine, memory, part, Thread::Stays).hit_ratio;
        (name, parts.into_iter().map(|part| (part, hits(part))).collect())
    };
    let plot = Plot {
        title: "Lone scan, 4 nodes x 2 partitions: hits of runs 2 to 5",
        x: "table, part of the pool",
        y: "hit ratio",
        y_range: 0.0..1.02,
        lines: memories.map(line).collect(),
    };
    plot.write(&dir.join("lone-scan.svg"))?;
    Ok("![Hit ratio of a lone scan by the size of its table](lone-scan.svg)".into())
}

/// seqconcurrscans.
fn concurrent(dir: &Path, scale: Scale) -> Section {
    let mut text = String::from(include_str!("report-concurrent.md"));
    for (machine, file) in
        [(Machine::four_sockets(), "concurrent-4-sockets.svg"), (Machine::two_sockets(), "concurrent-2-sockets.svg")]
    {
        let head = ["clients", "undivided, blocks/s", "hits", "one node", "hand moved singly", "off", "budget", "age"];
        let mut table = Table::new(head.into_iter().chain(["age x 4", "age: local victims"]));
        let names = ["one node", "off", "budget", "age"];
        let mut lines: Vec<Line> = names.iter().map(|name| ((*name).to_owned(), Vec::new())).collect();
        for clients in [1, 8, 16, 32, 64, 96, 128] {
            let run = |memory| cases::concurrent_scans(scale, &machine, memory, clients, 1.6);
            let base = run(UNDIVIDED).outcome();
            let of = |outcome: &Outcome| outcome.blocks_per_second / base.blocks_per_second;
            let single = Run { hand_batch: 1, ..run(UNDIVIDED) }.outcome();
            let age = run(partitioned(1, NumaBalance::Age)).outcome();
            let [off, budget] = [NumaBalance::Off, NumaBalance::Budget].map(|k| of(&run(partitioned(1, k)).outcome()));
            let values = [of(&run(Memory::OneNode).outcome()), off, budget, of(&age)];
            for (line, value) in lines.iter_mut().zip(values) {
                line.1.push((clients as f64, value));
            }
            let first =
                [clients.to_string(), format!("{:.2} M", base.blocks_per_second / 1e6), percent(base.hit_ratio)];
            let shown = [values[0], of(&single), off, budget, of(&age)].map(change);
            let four = change(of(&run(partitioned(4, NumaBalance::Age)).outcome()));
            table.row(first.into_iter().chain(shown).chain([four, percent(age.local_victims)]));
        }
        let plot = Plot {
            title: "seqconcurrscans: throughput against an undivided, interleaved pool",
            x: "clients",
            y: "times as fast",
            y_range: 0.4..2.2,
            lines,
        };
        plot.write(&dir.join(file))?;
        let fits = |memory| cases::concurrent_scans(scale, &machine, memory, 64, 0.8).outcome().blocks_per_second;
        let gain = fits(UNDIVIDED) / fits(Memory::OneNode);
        writeln!(
            text,
            "\n### {}\n\n{table}\nTables that fit the pool, 64 clients: interleaved is {gain:.2} times one node.\n\n\
             ![Throughput by clients]({file})",
            machine.name
        )?;
    }
    Ok(text)
}

/// One client of four makes more accesses than the others.
fn skew(dir: &Path, scale: Scale) -> Section {
    let machine = Machine::chiplets(4);
    let mut hits: Vec<Line> = KINDS.iter().map(|kind| (kind.to_string(), Vec::new())).collect();
    let mut table =
        Table::new(["accesses of the first", "undivided: hits", "off", "budget", "age", "eviction ages apart"]);
    for first in [1, 2, 3, 5, 9, 27, 57] {
        let part = f64::from(first) / f64::from(first + 3);
        let of = |memory| cases::skewed(scale, &machine, memory, first, 0.72).outcome();
        let undivided = of(UNDIVIDED).hit_ratio;
        let outcomes = KINDS.map(|kind| of(partitioned(1, kind)));
        for (line, outcome) in hits.iter_mut().zip(&outcomes) {
            line.1.push((part, outcome.hit_ratio / undivided));
        }
        let cell = |o: &Outcome| format!("{} ({} local)", percent(o.hit_ratio), percent(o.home_victims));
        let ages = outcomes.iter().map(|o| format!("{:.1}", o.age_spread)).collect::<Vec<_>>().join(" / ");
        let cells = outcomes.iter().map(cell);
        table.row([percent(part), percent(undivided)].into_iter().chain(cells).chain([ages]));
    }
    let plot = Plot {
        title: "Skewed clients, 4 nodes: hits against an undivided pool",
        x: "part of the accesses that the first client makes",
        y: "hits, of an undivided pool's",
        y_range: 0.3..1.05,
        lines: hits,
    };
    plot.write(&dir.join("skew.svg"))?;
    Ok(format!("{}\n{table}\n![Hits by skew](skew.svg)", include_str!("report-skew.md")))
}

/// One to eight nodes.
fn shapes(_: &Path, scale: Scale) -> Section {
    let head =
        ["nodes x partitions", "even load at home: budget", "age", "lone scan of 80 %, hits: off", "budget", "age"];
    let mut table = Table::new(head.into_iter().chain(["fill of the emptiest: budget", "age"]));
    for nodes in [1, 2, 4, 6, 8] {
        let machine = Machine::chiplets(nodes);
        for per_node in [1, 2, 4] {
            let even = [NumaBalance::Budget, NumaBalance::Age].map(|kind| {
                percent(
                    cases::even(scale, &machine, partitioned(per_node, kind), per_node as usize).outcome().home_victims,
                )
            });
            let lone = KINDS.map(|kind| {
                percent(cases::lone_scan(scale, &machine, partitioned(per_node, kind), 0.8, Thread::Stays).hit_ratio)
            });
            let fill = [NumaBalance::Budget, NumaBalance::Age]
                .map(|kind| percent(cases::fill(scale, &machine, per_node, kind).least_fill));
            table.row([format!("{nodes} x {per_node}")].into_iter().chain(even).chain(lone).chain(fill));
        }
    }
    Ok(format!("## One to eight nodes\n\n{table}"))
}

/// pgbenchS and mixed load.
fn lookups(_: &Path, scale: Scale) -> Section {
    let mut table = Table::new([
        "machine",
        "load, 32 clients",
        "undivided: hits",
        "off",
        "budget",
        "age",
        "age: blocks read locally",
    ]);
    type Case = fn(Scale, &Machine, Memory, usize) -> Run;
    let loads: [(&str, Case); 2] = [("pgbenchS", cases::lookups), ("mixed", cases::mixed)];
    for machine in [Machine::four_sockets(), Machine::two_sockets(), Machine::chiplets(4), Machine::cloud()] {
        for (name, case) in loads {
            let of = |memory| case(scale, &machine, memory, 32).outcome();
            let base = of(UNDIVIDED);
            let outcomes = KINDS.map(|kind| of(partitioned(1, kind)));
            let cell = |o: &Outcome| change(o.blocks_per_second / base.blocks_per_second);
            let first = [machine.name.clone(), name.to_owned(), percent(base.hit_ratio)];
            let local = percent(outcomes[2].local_reads);
            table.row(first.into_iter().chain(outcomes.iter().map(cell)).chain([local]));
        }
    }
    Ok(format!("{}\n{table}", include_str!("report-lookups.md")))
}
