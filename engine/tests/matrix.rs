//! Every table of every fixture cluster, with every IO method, with the smallest and an ordinary pool, buffered and
//! direct: what is printed is what the server's COPY printed.

use heapscan::{Engine, EngineOptions, MethodChoice, MethodName, RowFormat, Table};
use heapscan_fixtures::{ColumnEntry, Snapshot, TableOracle, corpus, pgbench};
use std::io::Write;

/// An io_method that this machine refuses is skipped visibly, unless HEAPSCAN_REQUIRE names it.
fn methods() -> Vec<MethodName> {
    let usable = heapscan::probe_methods();
    MethodName::ALL
        .into_iter()
        .filter(|&name| {
            let status = usable.iter().find(|s| s.name == name.as_str()).expect("each method has a status");
            if !status.usable {
                let reason = status.reason.as_deref().unwrap_or("no reason given");
                let required = std::env::var("HEAPSCAN_REQUIRE").unwrap_or_default();
                assert!(!required.split(',').any(|r| r == name.as_str()), "{name} is required: {reason}");
                let _ = writeln!(std::io::stderr(), "SKIP {name}: {reason}");
            }
            status.usable
        })
        .collect()
}

fn options(method: MethodName, shared_buffers: u64, direct: bool, crashed: bool) -> EngineOptions {
    let mut options = EngineOptions {
        shared_buffers,
        io_direct: direct,
        allow_unclean: crashed,
        follow_tablespace_links: true,
        ..EngineOptions::default()
    };
    options.io.method = MethodChoice::Named(method);
    // The same with faults, as `make asan` runs it.
    let plan = std::env::var("HEAPSCAN_FAULT").ok();
    options.io.fault = plan.map(|plan| plan.parse().expect("HEAPSCAN_FAULT is a fault plan"));
    options
}

/// Prints one table and compares; what differs is told with its first differing line.
fn compare(engine: &Engine, snapshot: &Snapshot, label: &str, problems: &mut Vec<String>) -> usize {
    let database = engine.database(None).expect("the fixture's database");
    let mut compared = 0;
    for oracle in snapshot.tables() {
        let what = format!("{label} {}.{}", oracle.schema, oracle.name);
        let mut expected = snapshot.oracle_without_ctid(oracle.oid).expect("oracle");
        let computed = columns_with(snapshot, oracle, |c| c.attgenerated == "v");
        if computed.contains(&true) {
            // The file does not hold them, and COPY of a table leaves them out: the other columns are compared.
            expected = without(&expected, &computed);
        }
        let names = match oracle.schema.as_str() {
            // The oracles of system catalogs have the object names of reg* columns as oids; those of users' tables
            // have the names.
            "pg_catalog" => {
                columns_with(snapshot, oracle, |c| c.type_name.as_deref().is_some_and(|t| t.starts_with("reg")))
            }
            _ => Vec::new(),
        };
        let result = database
            .table(&format!("oid:{}", oracle.oid))
            .and_then(|table| if names.contains(&true) { with_oids(&table, &names) } else { printed(&table) });
        match result {
            Err(error) => problems.push(format!("{what}: {error}")),
            Ok(have) if have != expected => problems.push(format!("{what}: {}", first_difference(&have, &expected))),
            Ok(_) => compared += 1,
        }
    }
    // Nothing is left out.
    assert!(compared + problems.len() >= snapshot.tables().len(), "{label}: only {compared} tables");
    compared
}

fn printed(table: &Table) -> heapscan::Result<Vec<u8>> {
    let mut out = Vec::new();
    table.scan().write_rows(RowFormat::Text, &mut out)?;
    Ok(out)
}

/// As [`printed`], but the columns `names` as the oids that the file holds.
fn with_oids(table: &Table, names: &[bool]) -> heapscan::Result<Vec<u8>> {
    let mut scan = table.scan().start()?;
    let (mut out, mut value) = (Vec::new(), Vec::new());
    while let Some(mut page) = scan.next_page()? {
        while let Some(mut row) = page.next_row()? {
            for (column, &is_name) in names.iter().enumerate().take(row.len()) {
                value.clear();
                let there = match row.bytes(column)? {
                    Some(oid) if is_name => {
                        value.extend(u32::from_le_bytes(oid.try_into().expect("an oid")).to_string().into_bytes());
                        true
                    }
                    _ => row.write_text(column, &mut value)?,
                };
                if column > 0 {
                    out.push(b'\t');
                }
                match there {
                    true => heapscan::copy::escape_text(&value, &mut out),
                    false => out.extend(b"\\N"),
                }
            }
            out.push(b'\n');
        }
    }
    Ok(out)
}

/// One flag for each column that is not dropped.
fn columns_with(snapshot: &Snapshot, oracle: &TableOracle, is: impl Fn(&ColumnEntry) -> bool) -> Vec<bool> {
    let relation = snapshot.manifest().relation(&oracle.schema, &oracle.name).expect("the manifest has all relations");
    relation.columns.iter().filter(|c| !c.attisdropped).map(is).collect()
}

/// The lines of an oracle without some columns.
fn without(lines: &[u8], left_out: &[bool]) -> Vec<u8> {
    let mut out = Vec::new();
    for line in lines.split_inclusive(|&c| c == b'\n') {
        let fields = line.strip_suffix(b"\n").unwrap_or(line).split(|&c| c == b'\t');
        let kept: Vec<&[u8]> =
            fields.zip(left_out).filter(|(_, left_out)| !**left_out).map(|(field, _)| field).collect();
        out.extend(kept.join(&b'\t'));
        out.push(b'\n');
    }
    out
}

fn first_difference(printed: &[u8], expected: &[u8]) -> String {
    let (mut a, mut b) = (printed.split(|&c| c == b'\n'), expected.split(|&c| c == b'\n'));
    for line in 1.. {
        match (a.next(), b.next()) {
            (None, None) => break,
            (x, y) if x == y => {}
            (x, y) => {
                let show = |line: Option<&[u8]>| {
                    line.map_or("nothing".to_owned(), |l| String::from_utf8_lossy(&l[..l.len().min(300)]).into_owned())
                };
                return format!("line {line}: printed {:?}, expected {:?}", show(x), show(y));
            }
        }
    }
    "no difference".to_owned()
}

fn run(name: &str, snapshot_name: &str, pools: &[u64], direct: &[bool]) {
    let snapshot = corpus(name).and_then(|f| f.snapshot(snapshot_name)).expect("fixture");
    let crashed = snapshot_name == "crash";
    let mut problems = Vec::new();
    for method in methods() {
        for &shared_buffers in pools {
            for &direct in direct {
                let label = format!("{name}/{snapshot_name} {method} {shared_buffers} direct={direct}");
                let engine = Engine::open(snapshot.data_dir(), options(method, shared_buffers, direct, crashed))
                    .unwrap_or_else(|e| panic!("{label}: {e}"));
                assert_eq!(engine.method().used, method.as_str(), "{label}");
                let compared = compare(&engine, &snapshot, &label, &mut problems);
                assert!(compared > 0 || !problems.is_empty(), "{label}: no table was compared");
            }
        }
    }
    assert!(problems.is_empty(), "{} tables differ:\n{}", problems.len(), problems.join("\n"));
}

const SIXTEEN_FRAMES: u64 = 16 * 8192;
const POOLS: [u64; 2] = [SIXTEEN_FRAMES, 64 << 20];

#[test]
fn postgresql_18_at_rest() {
    run("corpus-small-18", "clean", &POOLS, &[false, true]);
}

#[test]
fn postgresql_15_at_rest() {
    run("corpus-small-15", "clean", &POOLS, &[false, true]);
}

#[test]
fn postgresql_14_at_rest() {
    run("corpus-small-14", "clean", &[SIXTEEN_FRAMES], &[false]);
}

#[test]
fn postgresql_12_at_rest() {
    run("corpus-small-12", "clean", &[SIXTEEN_FRAMES], &[false]);
}

#[test]
fn postgresql_18_crashed() {
    run("corpus-small-18", "crash", &[SIXTEEN_FRAMES], &[true]);
}

#[test]
fn postgresql_15_crashed() {
    run("corpus-small-15", "crash", &[SIXTEEN_FRAMES], &[false]);
}

#[test]
fn postgresql_14_and_12_crashed() {
    run("corpus-small-14", "crash", &[SIXTEEN_FRAMES], &[false]);
    run("corpus-small-12", "crash", &[SIXTEEN_FRAMES], &[false]);
}

#[test]
fn wrapped_transaction_ids() {
    run("corpus-wrap-15", "clean", &POOLS, &[false]);
    run("corpus-wrap-15", "crash", &POOLS, &[true]);
}

#[test]
fn pgbench_of_18() {
    let snapshot = pgbench().and_then(|f| f.snapshot("clean")).expect("fixture");
    for method in methods() {
        let engine = Engine::open(snapshot.data_dir(), options(method, 64 << 20, false, false)).expect("open");
        let mut problems = Vec::new();
        assert!(compare(&engine, &snapshot, method.as_str(), &mut problems) >= 4);
        assert!(problems.is_empty(), "{problems:?}");
    }
}
