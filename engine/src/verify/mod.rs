//! Checking a whole cluster: the checksum and header of every block of every file, and the structure of every heap page.
//!
//! Reads go through the same streams, IO methods and pool as those of scans, in rings, so that a check leaves the pool's
//! pages alone. Files are taken by their names (`files`), as `pg_checksums` takes them; the catalogs tell which of them
//! hold heap pages and of which columns (`heap`), as for `amcheck`'s `verify_heapam`.
//!
//! What cannot be found: a block of another relation with the same columns at the same block number, whose checksum is
//! therefore right. Without checksums, a flipped bit within a value.

mod files;
mod heap;
mod page;

use crate::{
    Engine, Error, ErrorKind, Result,
    cluster::{ChecksumState, VisibilityMap},
    damage::{Damage, DamageKind, DamageLog, DamageTotals, OnCorruption},
    heap::{Detoaster, PageCheck, PageFault, ValidPage, VerifyMode},
    pool::PinnedPage,
    scan::toast::PoolChunks,
    stream::{ReadStream, StreamOptions},
};
use files::{Plan, Target, damage_of};
use heap::TupleChecker;
use serde::Serialize;
use std::{
    ops::Range,
    path::PathBuf,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Instant,
};

/// Blocks that a thread takes at a time: 128 MB of 8 kB blocks.
const CHUNK: u32 = 1 << 14;
/// Blocks between two calls of `progress`.
const PROGRESS: u64 = 256;
/// `VISIBILITYMAP_ALL_VISIBLE`.
const ALL_VISIBLE: u8 = 1;
/// That many blocks that all fail are not damage but something else.
const ENCRYPTED_LEAST: u64 = 16;

/// What is checked.
#[derive(Clone, Debug)]
pub struct VerifyOptions {
    /// Only these tables (names as for [`Database::table`](crate::Database::table)), with their maps and TOAST tables.
    pub tables: Vec<String>,
    /// Also unpack every compressed and out-of-line value of the rows that are there.
    pub toast: bool,
    /// Threads that check; reads overlap also with one.
    pub threads: usize,
}

impl Default for VerifyOptions {
    fn default() -> Self {
        Self { tables: Vec::new(), toast: false, threads: 1 }
    }
}

/// What was checked and found.
#[derive(Clone, Debug, Default, Serialize)]
pub struct VerifyReport {
    /// The data directory.
    pub pgdata: PathBuf,
    /// Whether checksums were compared: the cluster has them.
    pub checksums: bool,
    /// Databases whose catalogs were read.
    pub databases: u64,
    /// Files: segments of all forks.
    pub files: u64,
    /// Forks: files without regard to segments.
    pub forks: u64,
    /// Blocks that were read.
    pub blocks: u64,
    /// Bytes that were read.
    pub bytes: u64,
    /// Blocks that are all zero: relations were extended and nothing was written yet. No damage.
    pub new_blocks: u64,
    /// Blocks of heap relations among all, whose structure was checked.
    pub heap_blocks: u64,
    /// Tuples on these.
    pub tuples: u64,
    /// Files that no relation of the catalogs owns: left by a crash, or the catalogs are damaged.
    pub orphans: Vec<PathBuf>,
    /// What should be known and is no damage.
    pub notes: Vec<String>,
    /// How much damage there is.
    pub totals: DamageTotals,
    /// The damage, by file and block.
    pub damage: Vec<Damage>,
    /// Wall time.
    pub seconds: f64,
}

impl VerifyReport {
    /// Whether nothing is damaged.
    pub fn is_clean(&self) -> bool {
        !self.totals.any()
    }
}

/// Where the threads put what they find.
struct Findings<'a> {
    log: &'a DamageLog,
    notes: Mutex<Vec<String>>,
}

impl Findings<'_> {
    fn error(&self, error: &Error) {
        match damage_of(error) {
            Some(damage) => self.log.add(damage),
            None => self.note(error.to_string()),
        }
    }

    fn note(&self, note: String) {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner).push(note);
    }
}

#[derive(Default)]
struct Counters {
    blocks: AtomicU64,
    new_blocks: AtomicU64,
    heap_blocks: AtomicU64,
    tuples: AtomicU64,
    bad_blocks: AtomicU64,
}

impl Engine {
    /// Checks all files of the cluster, or those of one database, or some of its tables; calls `progress` now and then, from
    /// any thread, with the number of blocks that are done and of all.
    ///
    /// Damage is not an error but on the list of the report. An engine that is to read damaged catalogs wants
    /// [`OnCorruption::Skip`].
    ///
    /// # Errors
    /// `NotFound` for databases and tables that there are not, `Unsupported` for incremental backups, `Io` if a folder
    /// cannot be listed, and those of the pool.
    pub fn verify(
        &self,
        database: Option<&str>,
        options: &VerifyOptions,
        progress: &(dyn Fn(u64, u64) + Sync),
    ) -> Result<VerifyReport> {
        let began = Instant::now();
        let log = DamageLog::new(OnCorruption::Skip);
        let findings = Findings { log: &log, notes: Mutex::default() };
        let plan = files::plan(self, database, &options.tables, &findings)?;
        let counters = Counters::default();
        let result = check_all(self, &plan, options, &findings, &counters, progress);
        for target in &plan.targets {
            self.pool().unregister(target.id);
        }
        result?;
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let blocks = get(&counters.blocks);
        let mut notes = findings.notes.into_inner().unwrap_or_else(PoisonError::into_inner);
        let control = self.cluster().control();
        if control.checksums != ChecksumState::On {
            notes.push(format!("the cluster's data checksums are {:?}: only structure was checked", control.checksums));
        }
        let bad = get(&counters.bad_blocks);
        if bad >= ENCRYPTED_LEAST && bad * 10 >= (blocks - get(&counters.new_blocks)) * 9 {
            notes.push(
                "nearly every block fails: looks encrypted, or the control file is of another cluster".to_owned(),
            );
        }
        let mut damage = log.list();
        damage.sort_by(|a, b| (&a.file, a.block, a.tuple).cmp(&(&b.file, b.block, b.tuple)));
        Ok(VerifyReport {
            pgdata: self.cluster().path().to_owned(),
            checksums: self.inner().verify == VerifyMode::Checksum,
            databases: plan.databases,
            files: plan.files,
            forks: plan.targets.len() as u64,
            blocks,
            bytes: blocks * u64::from(control.block_size),
            new_blocks: get(&counters.new_blocks),
            heap_blocks: get(&counters.heap_blocks),
            tuples: get(&counters.tuples),
            orphans: plan.orphans,
            notes,
            totals: log.totals(),
            damage,
            seconds: began.elapsed().as_secs_f64(),
        })
    }
}

/// Hands out chunks of all targets to threads.
fn check_all(
    engine: &Engine,
    plan: &Plan,
    options: &VerifyOptions,
    findings: &Findings<'_>,
    counters: &Counters,
    progress: &(dyn Fn(u64, u64) + Sync),
) -> Result<()> {
    let total = plan.targets.iter().map(|target| u64::from(target.fork.blocks())).sum();
    let chunks: Vec<(&Target, Range<u32>)> = plan
        .targets
        .iter()
        .flat_map(|target| {
            let blocks = target.fork.blocks();
            (0..blocks).step_by(CHUNK as usize).map(move |from| (target, from..from.saturating_add(CHUNK).min(blocks)))
        })
        .collect();
    let next = AtomicUsize::new(0);
    let work = |lane: usize| -> Result<()> {
        while let Some((target, blocks)) = chunks.get(next.fetch_add(1, Ordering::Relaxed)) {
            let mut checker = Checker::new(engine, target, options, findings, counters);
            checker.run(blocks.clone(), lane, &|| progress(counters.blocks.load(Ordering::Relaxed), total))?;
        }
        Ok(())
    };
    let result = std::thread::scope(|scope| {
        let threads: Vec<_> = (1..options.threads.clamp(1, 64)).map(|lane| scope.spawn(move || work(lane))).collect();
        let own = work(0);
        threads.into_iter().fold(own, |result, thread| {
            let other = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            result.and(other)
        })
    });
    progress(counters.blocks.load(Ordering::Relaxed), total);
    result
}

/// The check of one fork.
struct Checker<'a> {
    engine: &'a Engine,
    target: &'a Target,
    findings: &'a Findings<'a>,
    counters: &'a Counters,
    tuples: Option<TupleChecker<'a>>,
    verify: VerifyMode,
    /// The visibility map agrees with the heap.
    at_rest: bool,
    map: Option<VisibilityMap>,
}

impl<'a> Checker<'a> {
    fn new(
        engine: &'a Engine,
        target: &'a Target,
        options: &VerifyOptions,
        findings: &'a Findings<'a>,
        counters: &'a Counters,
    ) -> Self {
        let inner = engine.inner();
        let at_rest = engine.cluster().control().state.is_clean();
        let chunks = target.database.as_ref().filter(|_| options.toast).map(|database| database.toast_tables());
        let detoaster = chunks.map(|tables| Detoaster::new(PoolChunks(tables)));
        // What a crash leaves of an unlogged table is thrown away.
        let reset = target.relation.as_ref().is_some_and(|relation| relation.reset_by_crash);
        let heap = target.is_heap() && !reset;
        let tuples = heap.then(|| TupleChecker::new(target, &inner.log, detoaster, at_rest));
        let map = if heap { VisibilityMap::open(&target.fork) } else { None };
        Self { engine, target, findings, counters, tuples, verify: inner.verify, at_rest, map }
    }

    fn run(&mut self, blocks: Range<u32>, lane: usize, progress: &dyn Fn()) -> Result<()> {
        let pool = self.engine.pool();
        // As if it were larger than the pool: nothing is read twice.
        let options =
            StreamOptions { full: true, lane, ..StreamOptions::new(pool.config(), pool.strategy_for(u32::MAX)) };
        let mut stream = ReadStream::new(Arc::clone(pool), self.target.id, blocks, options)?;
        while let Some(page) = stream.next_page() {
            match page {
                Ok(page) => self.page(page)?,
                Err(error) => {
                    self.counters.bad_blocks.fetch_add(1, Ordering::Relaxed);
                    self.findings.log.pass_block(error)?;
                }
            }
            if self.counters.blocks.fetch_add(1, Ordering::Relaxed).is_multiple_of(PROGRESS) {
                progress();
            }
        }
        Ok(())
    }

    /// Checks a page; one that fails is read once more before it is reported.
    fn page(&mut self, page: PinnedPage) -> Result<()> {
        let block = page.block();
        let Err(first) = self.check(&page) else { return Ok(()) };
        let fault = match self.engine.pool().reread(self.target.id, &page) {
            Ok(again) => match self.check(&again) {
                Ok(()) => {
                    self.findings.log.count_reread();
                    return Ok(());
                }
                Err(second) => second,
            },
            Err(_) => first,
        };
        self.counters.bad_blocks.fetch_add(1, Ordering::Relaxed);
        let mut error = fault.into_error(&self.target.fork.path_of(block), block);
        if error.kind() == ErrorKind::Unsupported {
            // A page of the other byte order in a cluster of this one.
            error = Error::new(ErrorKind::Corrupt, error.message())
                .with_path(self.target.fork.path_of(block))
                .with_block(block);
        }
        self.findings.log.pass_block(error)
    }

    fn check(&mut self, page: &PinnedPage) -> Result<(), PageFault> {
        let (bytes, block) = (page.bytes(), page.block());
        let Some(tuples) = &mut self.tuples else {
            if !page::check_any(bytes, block, self.verify)? {
                self.counters.new_blocks.fetch_add(1, Ordering::Relaxed);
            }
            return Ok(());
        };
        let valid = match ValidPage::check(bytes, block, self.verify)? {
            PageCheck::Valid(valid) => valid,
            PageCheck::New => {
                self.counters.new_blocks.fetch_add(1, Ordering::Relaxed);
                self.zeroed(block);
                return Ok(());
            }
        };
        self.counters.heap_blocks.fetch_add(1, Ordering::Relaxed);
        self.counters.tuples.fetch_add(u64::from(valid.summary().tuples), Ordering::Relaxed);
        let (target, log) = (self.target, self.findings.log);
        let file = || target.fork.path_of(block);
        let damage = |tuple: Option<u16>, reason: String| Damage {
            file: file(),
            block: Some(block),
            blocks: 1,
            tuple,
            kind: if tuple.is_some() { DamageKind::Row } else { DamageKind::Page },
            reason,
            rows_lost: None,
        };
        tuples.page(&valid, |number, what| match number {
            0 => log.add(damage(None, what)),
            _ => log.add(damage(Some(number), format!("tuple {number}: {what}"))),
        });
        if self.at_rest && !valid.all_visible() && self.mapped_visible(block) {
            let what = "the visibility map says that all its rows are visible, the page does not".to_owned();
            log.add(damage(None, what));
        }
        Ok(())
    }

    /// A page that is all zero: allowed, unless somebody knows that rows were on it.
    fn zeroed(&self, block: u32) {
        if self.at_rest && self.mapped_visible(block) {
            self.findings.log.add(Damage {
                file: self.target.fork.path_of(block),
                block: Some(block),
                blocks: 1,
                tuple: None,
                kind: DamageKind::Page,
                reason: "all bytes are zero, but the visibility map knows of rows: the block was overwritten or lost"
                    .to_owned(),
                rows_lost: None,
            });
        } else if let Some(relation) = self.target.relation.as_ref().filter(|r| i64::from(r.pages) > i64::from(block)) {
            let file = self.target.fork.path_of(block);
            self.findings.note(format!(
                "{}: block {block}: all bytes are zero: an empty page, unless {} had rows there ({} blocks at the last vacuum)",
                file.display(),
                relation.name,
                relation.pages
            ));
        }
    }

    fn mapped_visible(&self, block: u32) -> bool {
        self.map.as_ref().and_then(|map| map.bits(block)).is_some_and(|bits| bits & ALL_VISIBLE != 0)
    }
}
