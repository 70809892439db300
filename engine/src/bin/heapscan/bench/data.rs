//! What is read: a table of the user's cluster, or one that is generated.

use super::{
    args::BenchArgs,
    case::{Case, Workload},
    postgres,
};
use crate::{generate, say};
use heapscan::{
    Database, Engine, EngineOptions, Error, ErrorKind, Result, Table,
    aggregate::{self, AggregateCall},
};
use heapscan_fixtures::generate as fixtures;
use std::path::{Path, PathBuf};

/// Rows of `pgbench_accounts` a page and bytes of its `filler`, which the generator writes.
const ACCOUNTS_A_PAGE: u64 = 61;
const FILLER: u64 = 84;

/// Tables of concurrent scans, and by how much they are smaller than the main one.
const COPIES: u8 = 8;
const SMALLER: u32 = 32;

/// Default scale factors: a relation of 2.1 GB; of 270 MB.
const SCALE: u32 = 160;
const SCALE_QUICK: u32 = 20;

/// A folder that is removed at the end.
pub(super) struct Scratch(PathBuf);

impl Scratch {
    /// `dir`, which may not exist yet.
    pub(super) fn new(dir: PathBuf) -> Self {
        Self(dir)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            say(&format!("heapscan: warning: {}: cannot be removed: {error}", self.0.display()));
        }
    }
}

/// A table and where it lies.
pub(super) struct Target {
    pub(super) table: String,
    pub(super) blocks: u32,
    /// Its segments.
    pub(super) files: Vec<PathBuf>,
}

impl Target {
    fn open(database: &Database, name: &str, blocks_per_segment: u32) -> Result<(Self, Table)> {
        let table = database.table(name)?;
        let segments = table.blocks().div_ceil(blocks_per_segment);
        let files = (0..segments).map(|segment| table.fork().path_of(segment * blocks_per_segment)).collect();
        Ok((Self { table: name.to_owned(), blocks: table.blocks(), files }, table))
    }
}

pub(super) struct Data {
    pub(super) pgdata: PathBuf,
    pub(super) database: Option<String>,
    pub(super) database_name: String,
    /// Major version of the server that wrote it.
    pub(super) postgres_version: u32,
    pub(super) main: Target,
    /// Tables of concurrent scans; the main one, if there are no others.
    pub(super) concurrent: Vec<Target>,
    pub(super) block_size: u32,
    pub(super) checksums: String,
    /// Rows of the first page that has some.
    pub(super) rows_a_page: u16,
    pub(super) agg: String,
    pub(super) calls: Vec<AggregateCall>,
    /// What the aggregates must be, where that is known beforehand.
    pub(super) expected: Option<String>,
    pub(super) generated: Option<u32>,
    _scratch: Option<Scratch>,
}

impl Data {
    /// Bytes of the main table.
    pub(super) fn bytes(&self) -> u64 {
        u64::from(self.main.blocks) * u64::from(self.block_size)
    }

    /// Bytes of the largest concurrent table, and of all.
    pub(super) fn concurrent_bytes(&self) -> (u64, u64) {
        let bytes = self.concurrent.iter().map(|t| u64::from(t.blocks) * u64::from(self.block_size));
        (bytes.clone().max().unwrap_or(0), bytes.sum())
    }

    /// How often each client of a row scans its table.
    pub(super) fn rounds(&self, case: &Case, quick: bool) -> usize {
        let least: u64 = if quick { 128 << 20 } else { 2 << 30 };
        let all = self.concurrent_bytes().1 / self.concurrent.len().max(1) as u64 * u64::from(case.clients);
        least.div_ceil(all.max(1)).clamp(1, 64) as usize
    }

    /// The tables that a row reads.
    pub(super) fn targets(&self, case: &Case) -> &[Target] {
        match case.workload {
            Workload::SeqConcurrScans => &self.concurrent,
            _ => std::slice::from_ref(&self.main),
        }
    }

    pub(super) fn find(args: &BenchArgs) -> Result<Self> {
        if let Some(pgdata) = &args.pgdata {
            return Self::open(args, pgdata, args.database.clone(), None, None);
        }
        let scale = args.scale.unwrap_or(if args.quick { SCALE_QUICK } else { SCALE });
        let (dir, scratch) = match &args.data {
            Some(dir) => (dir.clone(), None),
            None => {
                let dir = Path::new("/var/tmp").join(format!("heapscan-bench-{}", std::process::id()));
                (dir.clone(), Some(Scratch::new(dir)))
            }
        };
        if !dir.join("global/pg_control").is_file() {
            let small = (scale / SMALLER).max(1);
            let version = args.postgres.as_deref().map_or(Ok(18), postgres::major)?;
            generate::check_space(&dir, u64::from(scale + 8 * small) * 1640 * 8192 + (64 << 20))?;
            say(&format!("generating {scale}00000 rows and 8 tables of {small}00000 in {} ...", dir.display()));
            let mut tables = vec![fixtures::Accounts::new(scale)];
            tables.extend((1..=COPIES).map(|k| fixtures::Accounts::copy(small, k)));
            let tables: Vec<&dyn fixtures::Table> = tables.iter().map(|t| t as &dyn fixtures::Table).collect();
            fixtures::cluster(&dir, version, &tables, None).map_err(generate::fixture_error)?;
        }
        Self::open(args, &dir, Some("pgbench".to_owned()), Some(scale), scratch)
    }

    fn open(
        args: &BenchArgs,
        pgdata: &Path,
        database: Option<String>,
        generated: Option<u32>,
        scratch: Option<Scratch>,
    ) -> Result<Self> {
        let options = EngineOptions { shared_buffers: 8 << 20, ..EngineOptions::default() };
        let engine = Engine::open(pgdata, options)?;
        let source = engine.database(database.as_deref())?;
        let control = engine.cluster().control();
        let per_segment = control.blocks_per_segment;
        let (main, table) = Target::open(&source, &args.table, per_segment)?;
        for warning in table.warnings() {
            say(&format!("heapscan: warning: {warning}"));
        }
        let Some(rows_a_page) = rows_of_first_page(&table)? else {
            return Err(Error::new(ErrorKind::Usage, format!("table {} is empty: nothing to measure", args.table)));
        };
        if let Some(scale) = generated
            && u64::from(main.blocks) != (u64::from(scale) * 100_000).div_ceil(ACCOUNTS_A_PAGE)
        {
            return Err(Error::new(ErrorKind::Usage, format!("has another scale than {scale}"))
                .with_path(pgdata)
                .with_hint("remove it, name another folder, or give the right --scale"));
        }
        let concurrent = concurrent(&source, &args.table, per_segment)?;
        let filler = table.columns().iter().any(|c| c.name == "filler");
        let agg = args
            .agg
            .clone()
            .unwrap_or_else(|| if filler { "sum(octet_length(filler))" } else { "count(*)" }.to_owned());
        let calls = aggregate::parse(&agg)?;
        let expected = generated.filter(|_| args.agg.is_none()).map(|s| (u64::from(s) * 100_000 * FILLER).to_string());
        Ok(Self {
            pgdata: pgdata.to_owned(),
            database_name: source.info().name.clone(),
            postgres_version: control.major_version,
            database,
            main,
            concurrent,
            block_size: control.block_size,
            checksums: format!("{:?}", control.checksums).to_lowercase(),
            rows_a_page,
            agg,
            calls,
            expected,
            generated,
            _scratch: scratch,
        })
    }
}

/// Visible rows of the first page that has some.
fn rows_of_first_page(table: &Table) -> Result<Option<u16>> {
    let mut scan = table.scan().columns::<&str>(&[]).start()?;
    Ok(scan.next_page()?.map(|page| page.len() as u16))
}

/// The numbered copies of the accounts, if all are there and have rows; else the table itself, for all clients.
fn concurrent(database: &Database, table: &str, per_segment: u32) -> Result<Vec<Target>> {
    let copies: Vec<Target> = (1..=COPIES)
        .filter_map(|k| Target::open(database, &format!("pgbench_accounts_{k}"), per_segment).ok())
        .map(|(target, _)| target)
        .filter(|target| target.blocks > 0)
        .collect();
    match copies.len() == usize::from(COPIES) && table == "pgbench_accounts" {
        true => Ok(copies),
        false => Ok(vec![Target::open(database, table, per_segment)?.0]),
    }
}
