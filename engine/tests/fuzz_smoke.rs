//! The fuzzers' bodies (`engine/fuzz`) as an ordinary test: seeds from the fixtures, mutated by a seeded generator, some
//! seconds in sum. `HEAPSCAN_FUZZ_SECONDS` sets how many, `HEAPSCAN_FUZZ_SEED` where the generator begins,
//! `HEAPSCAN_FUZZ_TARGETS` which targets run, and `HEAPSCAN_FUZZ_CORPUS` a folder to write the seeds to, for cargo-fuzz.

#[allow(unreachable_pub, dead_code, reason = "the library of the fuzzers, of which this test uses a part")]
#[path = "../fuzz/src/lib.rs"]
mod bodies;

use heapscan::{Engine, EngineOptions, heap::Datum};
use heapscan_fixtures::{Snapshot, corpus};
use std::{
    collections::BTreeMap,
    fs,
    io::Write,
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    time::{Duration, Instant},
};

/// splitmix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit.max(1) as u64) as usize
    }
}

/// Values that lie at an edge of something.
const EDGES: [u32; 12] = [0, 1, 2, 3, 0x7f, 0x80, 0xff, 0x7fff, 0xffff, 0x3fff_ffff, 0x7fff_ffff, 0xffff_ffff];

/// Changes some bytes in one of a dozen ways, one to eight times over.
fn mutate(random: &mut Random, data: &mut Vec<u8>, other: &[u8], longest: usize) {
    for _ in 0..=random.below(8) {
        let at = random.below(data.len());
        match random.below(9) {
            0..=1 if !data.is_empty() => data[at] ^= 1 << random.below(8),
            2 if !data.is_empty() => data[at] = random.next() as u8,
            3 if !data.is_empty() => {
                let edge = EDGES[random.below(EDGES.len())].to_le_bytes();
                let length = (1 << random.below(3)).min(data.len() - at);
                data[at..at + length].copy_from_slice(&edge[..length]);
            }
            4 if !data.is_empty() => {
                let length = random.below((data.len() - at).min(64));
                data.drain(at..at + length);
            }
            5 => {
                let bytes: Vec<u8> = (0..random.below(16)).map(|_| random.next() as u8).collect();
                data.splice(at..at, bytes);
            }
            6 if !data.is_empty() => data.truncate(at),
            7 if !other.is_empty() => {
                let from = random.below(other.len());
                let length = random.below((other.len() - from).min(256));
                data.splice(at..at, other[from..from + length].iter().copied());
            }
            8 if !data.is_empty() => {
                let length = random.below((data.len() - at).min(64));
                data.extend_from_within(at..at + length);
            }
            _ => data.push(random.next() as u8),
        }
    }
    data.truncate(longest);
}

type Seeds = BTreeMap<&'static str, Vec<Vec<u8>>>;

fn add(seeds: &mut Seeds, target: &'static str, data: Vec<u8>) {
    seeds.entry(target).or_default().push(data);
}

/// Real pages, values, control files and maps of a cluster.
fn collect(snapshot: &Snapshot, seeds: &mut Seeds) {
    let data = snapshot.data_dir();
    add(seeds, "control_file", fs::read(data.join("global/pg_control")).expect("pg_control"));
    let folder = data.join("base").join(snapshot.manifest().database_oid.to_string());
    for map in [data.join("global/pg_filenode.map"), folder.join("pg_filenode.map")] {
        add(seeds, "map_file", fs::read(map).expect("a map"));
    }
    let mut names: Vec<_> =
        fs::read_dir(&folder).expect("the database").map(|e| e.expect("entry").file_name()).collect();
    names.sort();
    for name in &names {
        add(seeds, "file_names", name.as_encoded_bytes().to_vec());
        let Ok(text) = name.clone().into_string() else { continue };
        if text.bytes().all(|b| b.is_ascii_digit()) {
            pages(&folder.join(text), seeds);
        }
    }
    let options = EngineOptions { follow_tablespace_links: true, ..EngineOptions::default() };
    let database = Engine::open(data, options).and_then(|e| e.database(None)).expect("the cluster opens");
    for oracle in
        snapshot.user_tables().filter(|t| ["ty_", "ta_", "to_", "fuzz_"].iter().any(|p| t.name.starts_with(p)))
    {
        let scan = database.table(&format!("oid:{}", oracle.oid)).and_then(|table| table.scan().limit(40).start());
        let mut scan = scan.expect("a scan");
        let columns = scan.columns();
        while let Ok(Some(mut page)) = scan.next_page() {
            while let Ok(Some(mut row)) = page.next_row() {
                for (index, column) in columns.iter().enumerate() {
                    if let Ok(Datum::Varlena(raw)) = row.datum(index) {
                        add(seeds, "varlena", raw[..raw.len().min(4000)].to_vec());
                    }
                    if let Ok(Some(payload)) = row.bytes(index) {
                        value(column.type_oid, payload, seeds);
                    }
                }
            }
        }
    }
}

/// The first and the last page of a table.
fn pages(file: &Path, seeds: &mut Seeds) {
    let bytes = fs::read(file).expect("a table");
    let mut pages = bytes.chunks_exact(8192);
    for page in [pages.next(), pages.next_back()].into_iter().flatten() {
        add(seeds, "page", [&[1], page].concat());
        // Something like a tuple of a column list that the bytes themselves choose.
        add(seeds, "tuple", [&[9, 1, 9, 24], &page[8192 - 600..]].concat());
    }
}

fn value(type_oid: u32, payload: &[u8], seeds: &mut Seeds) {
    let payload = &payload[..payload.len().min(4000)];
    match type_oid {
        1700 => add(seeds, "numeric", payload.to_vec()),
        3802 | 4072 => add(seeds, "jsonb", payload.to_vec()),
        1000..=1300 | 3905 => add(seeds, "array", payload.to_vec()),
        25 => add(seeds, "decompress", [&[0, 4, 0], payload].concat()),
        _ => {}
    }
    if let Some(number) = bodies::type_number(type_oid) {
        add(seeds, "types", [&[number], payload].concat());
    }
}

fn variable<T: std::str::FromStr>(name: &str) -> Option<T> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text:?} is no such value")))
}

#[test]
fn no_input_panics() {
    let seconds: f64 = variable("HEAPSCAN_FUZZ_SECONDS").unwrap_or(5.0);
    let mut random = Random(variable("HEAPSCAN_FUZZ_SEED").unwrap_or(1));
    let only: Option<String> = variable("HEAPSCAN_FUZZ_TARGETS");
    let mut seeds = Seeds::new();
    for name in ["corpus-small-18", "corpus-small-15", "corpus-small-12"] {
        collect(&corpus(name).and_then(|f| f.snapshot("clean")).expect("fixture"), &mut seeds);
    }
    if let Ok(folder) = std::env::var("HEAPSCAN_FUZZ_CORPUS") {
        return write_corpus(Path::new(&folder), &seeds);
    }
    let share = Duration::from_secs_f64(seconds / bodies::TARGETS.len() as f64);
    for (name, body) in bodies::TARGETS {
        if only.as_ref().is_some_and(|only| !only.split(',').any(|o| o == name)) {
            continue;
        }
        let seeds = &seeds[name];
        assert!(!seeds.is_empty(), "no seeds for {name}");
        let longest = if name == "page" { 8193 } else { 8192 };
        let began = Instant::now();
        let mut executions = 0u64;
        for seed in seeds.iter().take(2000) {
            execute(name, body, seed);
            executions += 1;
        }
        let mut data = Vec::new();
        while began.elapsed() < share {
            // A batch between looks at the clock.
            for _ in 0..64 {
                data.clear();
                data.extend_from_slice(&seeds[random.below(seeds.len())]);
                let other = &seeds[random.below(seeds.len())];
                mutate(&mut random, &mut data, other, longest);
                execute(name, body, &data);
                executions += 1;
            }
        }
        let spent = began.elapsed().as_secs_f64();
        let _ = writeln!(std::io::stderr(), "fuzz {name}: {executions} executions in {spent:.1} s");
    }
}

/// Runs a body; a panic becomes a failure that says how to repeat it.
fn execute(name: &str, body: bodies::Body, data: &[u8]) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| body(data))) {
        let file = std::env::temp_dir().join(format!("heapscan-fuzz-{name}-{}", std::process::id()));
        let _ = fs::write(&file, data);
        let what = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
        panic!("{name} panics: {}; the input is in {}", what.unwrap_or("?"), file.display());
    }
}

fn write_corpus(folder: &Path, seeds: &Seeds) {
    for (name, seeds) in seeds {
        let folder = folder.join(name);
        fs::create_dir_all(&folder).expect("a folder");
        for (i, seed) in seeds.iter().take(3000).enumerate() {
            fs::write(folder.join(format!("seed-{i}")), seed).expect("a seed");
        }
    }
}
