//! Tables at random, made by an installed server: types, NULLs, storage, ALTER, UPDATE, DELETE, aborted transactions and
//! subtransactions, VACUUM, FREEZE, TOAST. The server is stopped, and what is printed is what its COPY printed.
//!
//! By default a few tables; `HEAPSCAN_RANDOM_TABLES=300` is the full size, in which each type has 10,000 rows and more.
//! `HEAPSCAN_RANDOM_SEED` makes others.
#![cfg(feature = "tool")]

mod random_tables_support;

use heapscan::{Engine, EngineOptions, MethodChoice, MethodName, RowFormat};
use heapscan_fixtures::{
    generate::{self, PgbenchOptions, TEMPLATE_VERSIONS},
    server::{self, Server},
};
use random_tables_support::{PRELUDE, Random, Recipe, types_of};
use std::{collections::BTreeMap, fs, io::Write, os::unix::fs::PermissionsExt, path::Path};

fn variable(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name}={text:?} is no number")),
        Err(_) => default,
    }
}

#[test]
fn tables_at_random() {
    let installed: Vec<_> =
        TEMPLATE_VERSIONS.into_iter().filter_map(|major| Some((major, server::find_bin(major)?))).collect();
    if installed.is_empty() {
        server::skip("postgres", "no PostgreSQL 15 or 18 is installed; HEAPSCAN_PGBIN can name its folder of programs");
    }
    for (major, bin) in installed {
        of_server(major, &bin);
    }
}

fn of_server(major: u32, bin: &Path) {
    let tables = variable("HEAPSCAN_RANDOM_TABLES", 12);
    let seed = variable("HEAPSCAN_RANDOM_SEED", 5);
    let folder = tempfile::tempdir_in("/tmp").unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o711)).unwrap();
    let options = PgbenchOptions { scale: 1, postgres: major, ..PgbenchOptions::default() };
    let made = generate::pgbench(&folder.path().join("cluster"), options).unwrap();
    let server = Server::start(bin, &made.data_dir).unwrap();
    let ask = |sql: &str| server.sql(&made.database, sql).unwrap_or_else(|e| panic!("{e}\n{sql}"));
    ask(PRELUDE);
    let extensions = ask("SELECT extname FROM pg_extension");
    let types = types_of(major, &extensions);
    let mut random = Random(seed);
    let mut recipes = Vec::new();
    for number in 0..tables {
        // Each type comes first in some table, so that none is forgotten.
        let recipe = Recipe::new(&mut random, &types, number as usize, tables >= 100);
        ask(&recipe.sql);
        recipes.push(recipe);
    }
    let oracles: Vec<String> = recipes
        .iter()
        .map(|recipe| ask(&format!("COPY (SELECT * FROM {} ORDER BY ctid) TO STDOUT", recipe.name)))
        .collect();
    server.stop().unwrap();

    let mut rows_of: BTreeMap<&str, usize> = BTreeMap::new();
    for (recipe, oracle) in recipes.iter().zip(&oracles) {
        let rows = oracle.bytes().filter(|&b| b == b'\n').count();
        for name in &recipe.types {
            *rows_of.entry(name).or_default() += rows;
        }
    }
    compare(major, &made.data_dir, &recipes, &oracles);
    let rows: usize = oracles.iter().map(|o| o.bytes().filter(|&b| b == b'\n').count()).sum();
    let fewest = rows_of.iter().min_by_key(|(_, rows)| **rows);
    let note =
        format!("PostgreSQL {major}: {tables} tables, {rows} rows, {} types, fewest rows {fewest:?}", rows_of.len());
    let _ = writeln!(std::io::stderr(), "{note}");
    if tables >= 300 {
        assert_eq!(rows_of.len(), types.len(), "{note}");
        assert!(rows_of.values().all(|&rows| rows >= 10_000), "{rows_of:?}");
    }
}

fn compare(major: u32, data: &Path, recipes: &[Recipe], oracles: &[String]) {
    let mut problems = Vec::new();
    for method in MethodName::ALL {
        let status = heapscan::probe_methods();
        let status = status.iter().find(|s| s.name == method.as_str()).expect("each method has a status");
        if !status.usable {
            server::skip(method.as_str(), status.reason.as_deref().unwrap_or("no reason given"));
            continue;
        }
        let mut options = EngineOptions { shared_buffers: 32 * 8192, ..EngineOptions::default() };
        options.io.method = MethodChoice::Named(method);
        let database = Engine::open(data, options).and_then(|e| e.database(None)).expect("the cluster opens");
        for (recipe, oracle) in recipes.iter().zip(oracles) {
            let mut printed = Vec::new();
            let result = database.table(&recipe.name).and_then(|t| t.scan().write_rows(RowFormat::Text, &mut printed));
            let difference = match result {
                Err(error) => error.to_string(),
                Ok(_) if printed != oracle.as_bytes() => first_difference(&printed, oracle.as_bytes()),
                Ok(_) => continue,
            };
            problems.push(format!("{major} {method} {}: {difference}\n{}", recipe.name, recipe.sql));
        }
    }
    assert!(problems.is_empty(), "{} differ, the first:\n{}", problems.len(), problems[0]);
}

fn first_difference(printed: &[u8], expected: &[u8]) -> String {
    let lines = |text: &[u8]| text.split(|&c| c == b'\n').map(<[u8]>::to_vec).collect::<Vec<_>>();
    let (printed, expected) = (lines(printed), lines(expected));
    let show = |line: Option<&Vec<u8>>| line.map(|l| String::from_utf8_lossy(&l[..l.len().min(400)]).into_owned());
    let at = (0..).find(|&i| printed.get(i) != expected.get(i)).unwrap_or(0);
    format!("line {}: printed {:?}, expected {:?}", at + 1, show(printed.get(at)), show(expected.get(at)))
}
