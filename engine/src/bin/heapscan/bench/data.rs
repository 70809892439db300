//! What is read: a table of the user's cluster, or one that is generated.

use super::args::BenchArgs;
use crate::{generate, say};
use heapscan::{
    Engine, EngineOptions, Error, ErrorKind, Result,
    aggregate::{self, AggregateCall},
};
use heapscan_fixtures::generate as fixtures;
use std::path::{Path, PathBuf};

/// Rows of `pgbench_accounts` a page and bytes of its `filler`, which the generator writes.
const ACCOUNTS_A_PAGE: u64 = 61;
const FILLER: u64 = 84;

/// Default scale factors: a relation of 2.1 GB; of 270 MB.
const SCALE: u32 = 160;
const SCALE_QUICK: u32 = 20;

/// A folder that is removed at the end.
pub(super) struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            say(&format!("heapscan: warning: {}: cannot be removed: {error}", self.0.display()));
        }
    }
}

pub(super) struct Data {
    pub(super) pgdata: PathBuf,
    pub(super) database: Option<String>,
    pub(super) table: String,
    pub(super) blocks: u32,
    pub(super) block_size: u32,
    pub(super) checksums: String,
    /// Its segments.
    pub(super) files: Vec<PathBuf>,
    pub(super) agg: String,
    pub(super) calls: Vec<AggregateCall>,
    /// What the aggregates must be, where that is known beforehand.
    pub(super) expected: Option<String>,
    pub(super) generated: Option<u32>,
    _scratch: Option<Scratch>,
}

impl Data {
    pub(super) fn bytes(&self) -> u64 {
        u64::from(self.blocks) * u64::from(self.block_size)
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
                (dir.clone(), Some(Scratch(dir)))
            }
        };
        if !dir.join("global/pg_control").is_file() {
            generate::check_space(&dir, u64::from(scale) * 1640 * 8192 + (64 << 20))?;
            say(&format!("generating {scale}00,000 rows in {} ...", dir.display()));
            let accounts = fixtures::Accounts::new(scale);
            fixtures::cluster(&dir, 18, &[&accounts], None).map_err(generate::fixture_error)?;
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
        let table = engine.database(database.as_deref())?.table(&args.table)?;
        for warning in table.warnings() {
            say(&format!("heapscan: warning: {warning}"));
        }
        let blocks = table.blocks();
        if blocks == 0 {
            return Err(Error::new(ErrorKind::Usage, format!("table {} is empty: nothing to measure", args.table)));
        }
        if let Some(scale) = generated
            && u64::from(blocks) != (u64::from(scale) * 100_000).div_ceil(ACCOUNTS_A_PAGE)
        {
            return Err(Error::new(ErrorKind::Usage, format!("has another scale than {scale}"))
                .with_path(pgdata)
                .with_hint("remove it, name another folder, or give the right --scale"));
        }
        let filler = table.columns().iter().any(|c| c.name == "filler");
        let agg = args
            .agg
            .clone()
            .unwrap_or_else(|| if filler { "sum(octet_length(filler))" } else { "count(*)" }.to_owned());
        let calls = aggregate::parse(&agg)?;
        let control = engine.cluster().control();
        let segments = blocks.div_ceil(control.blocks_per_segment);
        let first = |segment: u32| segment * control.blocks_per_segment;
        let files = (0..segments).map(|segment| table.fork().path_of(first(segment))).collect();
        let expected = generated.filter(|_| args.agg.is_none()).map(|s| (u64::from(s) * 100_000 * FILLER).to_string());
        Ok(Self {
            pgdata: pgdata.to_owned(),
            database,
            table: args.table.clone(),
            blocks,
            block_size: control.block_size,
            checksums: format!("{:?}", control.checksums).to_lowercase(),
            files,
            agg,
            calls,
            expected,
            generated,
            _scratch: scratch,
        })
    }
}
