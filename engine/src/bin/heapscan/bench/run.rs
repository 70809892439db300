//! One run of one row: state before, work, checks after.

use super::{
    args::BenchArgs,
    cache,
    case::{Access, Case, State, Workload},
    ceilings,
    clock::{Clock, Spent, reset_peak},
    data::Data,
    fio,
    workload::{self, Effort},
};
use crate::report::peak_resident;
use heapscan::{Engine, EngineOptions, Error, LatencySummary, Result, Table, pool::ReadMetrics};
use heapscan_placement::ceiling::StreamingRead;
use serde::Serialize;
use std::path::PathBuf;

/// What one run measured.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Run {
    pub(super) spent: Spent,
    pub(super) bytes: u64,
    /// Scans, lookups or reads.
    pub(super) operations: u64,
    /// Share of the files in the page cache.
    pub(super) cached_before: f64,
    pub(super) cached_after: f64,
    /// Bytes from storage, as the kernel counts them for the process.
    pub(super) storage_bytes: Option<u64>,
    pub(super) io: ReadMetrics,
    pub(super) latency: LatencySummary,
    /// Peak of resident memory during the run, without the memory of the ceiling.
    pub(super) peak_rss: u64,
    /// The kind of memory pages of the pool.
    pub(super) memory_pages: String,
    pub(super) answer: Option<String>,
}

/// Why a run gives no figure.
pub(super) enum Failure {
    /// What ran is not what the row says.
    Refused(String),
    /// It cannot go on.
    Error(Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

/// A pool that holds the table already, kept from one run to the next.
struct HotPool {
    case: Case,
    engine: Engine,
    tables: Vec<Table>,
}

pub(super) struct Runner<'a> {
    pub(super) data: &'a Data,
    pub(super) base: EngineOptions,
    pub(super) drop_caches: bool,
    /// Little is touched before cold runs.
    pub(super) quick: bool,
    /// Bytes of memory for the ceiling of memory.
    pub(super) memory_bytes: usize,
    hot: Option<HotPool>,
    memory: Option<StreamingRead>,
}

impl<'a> Runner<'a> {
    pub(super) fn new(data: &'a Data, base: EngineOptions, args: &BenchArgs) -> Self {
        let memory_bytes = if args.quick { 256 << 20 } else { 1 << 30 };
        Self { data, base, drop_caches: args.drop_caches, quick: args.quick, memory_bytes, hot: None, memory: None }
    }

    /// Lets go of pools and memory that were kept.
    pub(super) fn forget(&mut self) {
        (self.hot, self.memory) = (None, None);
    }

    pub(super) fn run(&mut self, case: &Case) -> Result<Run, Failure> {
        match case.workload {
            Workload::Memory => self.memory_ceiling(),
            _ if case.state == State::Hot => self.hot(case),
            _ => self.unpooled(case),
        }
    }

    fn memory_ceiling(&mut self) -> Result<Run, Failure> {
        let memory = match self.memory.take() {
            Some(memory) => memory,
            None => StreamingRead::new(self.memory_bytes).map_err(|e| Failure::Refused(e.to_string()))?,
        };
        let memory = self.memory.insert(memory);
        let clock = Clock::start();
        memory.pass();
        Ok(Run { spent: clock.stop(), bytes: memory.len() as u64, ..Run::default() })
    }

    fn open(&self, case: &Case) -> Result<(Engine, Vec<Table>), Failure> {
        let engine = Engine::open(&self.data.pgdata, case.options(&self.base))?;
        let database = engine.database(self.data.database.as_deref())?;
        let targets = self.data.targets(case);
        let clients = case.clients as usize;
        // A handle for each scan: see `workload`.
        let fresh = case.workload == Workload::SeqConcurrScans && case.state != State::Hot;
        let count = if fresh { self.effort(case).rounds * clients } else { targets.len() };
        let name = |index: usize| &targets[if fresh { index % clients % targets.len() } else { index }].table;
        let tables = (0..count).map(|index| database.table(name(index))).collect::<Result<_>>()?;
        Ok((engine, tables))
    }

    fn files(&self, case: &Case) -> Vec<PathBuf> {
        self.data.targets(case).iter().flat_map(|t| t.files.iter().cloned()).collect()
    }

    fn effort(&self, case: &Case) -> Effort {
        let hot = case.state == State::Hot;
        let lookups = match self.quick {
            true => {
                if hot {
                    200_000
                } else {
                    10_000
                }
            }
            false => {
                if hot {
                    2_000_000
                } else {
                    100_000
                }
            }
        };
        Effort { lookups, rounds: self.data.rounds(case, self.quick), rows_a_page: self.data.rows_a_page }
    }

    /// A run that begins with a pool that has nothing of the table.
    fn unpooled(&mut self, case: &Case) -> Result<Run, Failure> {
        let files = &self.files(case);
        let before = match case.state {
            State::Cold => cache::make_cold(files, self.drop_caches),
            _ => cache::make_warm(files),
        };
        let before = before.map_err(Failure::Refused)?;
        if case.state == State::Cold && case.access == Access::Buffered {
            cache::provide_memory(self.data.bytes(), self.quick);
        }
        let storage = cache::storage_bytes();
        let mut run = match case.workload {
            Workload::Raw | Workload::RawRandom => {
                ceilings::raw(case, files, self.effort(case).lookups).map_err(Failure::Refused)?
            }
            Workload::Fio | Workload::FioRandom => {
                fio::run(case, files, self.effort(case).lookups).map_err(Failure::Refused)?
            }
            Workload::Pread => ceilings::pread(files).map_err(Failure::Refused)?,
            _ => {
                let (engine, tables) = self.open(case)?;
                self.measure(case, &engine, &tables)?
            }
        };
        run.cached_before = before.share();
        // What another process read is not in our account.
        if !matches!(case.workload, Workload::Fio | Workload::FioRandom) {
            run.storage_bytes = storage.and_then(|was| cache::storage_bytes()?.checked_sub(was));
        }
        self.check(case, &mut run)?;
        Ok(run)
    }

    fn hot(&mut self, case: &Case) -> Result<Run, Failure> {
        let same = |kept: &HotPool| kept.case.options_equal(case);
        let kept = match self.hot.take().filter(same) {
            Some(kept) => kept,
            None => {
                let (engine, tables) = self.open(case)?;
                for table in &tables {
                    workload::prewarm(&engine, table)?;
                }
                HotPool { case: case.clone(), engine, tables }
            }
        };
        let before = cache::cached(&self.files(case)).map_err(Failure::Refused)?;
        let storage = cache::storage_bytes();
        let mut run = self.measure(case, &kept.engine, &kept.tables)?;
        run.cached_before = before.share();
        run.storage_bytes = storage.and_then(|was| cache::storage_bytes()?.checked_sub(was));
        self.check(case, &mut run)?;
        self.hot = Some(kept);
        Ok(run)
    }

    fn measure(&self, case: &Case, engine: &Engine, tables: &[Table]) -> Result<Run, Failure> {
        let used = &engine.method().used;
        if *used != case.io_method {
            let why = engine.method().why.as_deref().unwrap_or("no reason given");
            return Err(Failure::Refused(format!("{used} ran instead: {why}")));
        }
        reset_peak();
        let clock = Clock::start();
        let outcome = workload::run(case, engine, tables, self.data, self.effort(case))?;
        let spent = clock.stop();
        if let Some(table) = tables.iter().find(|t| t.is_direct() != (case.access == Access::Direct)) {
            let why = table.io_note().unwrap_or_else(|| "no reason given".to_owned());
            return Err(Failure::Refused(format!("the reads were not {}: {why}", case.access)));
        }
        let stats = engine.io_stats();
        if stats.direct_refused + stats.unaligned_reads + stats.broken_lanes > 0 {
            let text = "some reads went through the page cache, or a ring gave up";
            return Err(Failure::Refused(format!("{text}: {stats:?}")));
        }
        let reports = engine.pool().memory_reports();
        Ok(Run {
            spent,
            bytes: outcome.bytes,
            operations: outcome.operations,
            io: outcome.io,
            latency: engine.io_latency(),
            peak_rss: peak_resident().unwrap_or(0).saturating_sub(self.memory.as_ref().map_or(0, |m| m.len() as u64)),
            memory_pages: reports.first().map_or_else(String::new, |r| r.used.to_string()),
            answer: outcome.answer,
            ..Run::default()
        })
    }

    /// Whether the run was what its row says, by what the kernel and the pool counted.
    fn check(&self, case: &Case, run: &mut Run) -> Result<(), Failure> {
        run.cached_after = cache::cached(&self.files(case)).map_err(Failure::Refused)?.share();
        verdict(case, run, u64::from(self.data.block_size)).map_err(Failure::Refused)?;
        match (&run.answer, &self.data.expected) {
            (Some(answer), Some(expected)) if case.workload == Workload::Agg && answer != expected => {
                let text = format!("the answer is {answer}, must be {expected}");
                Err(Failure::Error(Error::new(heapscan::ErrorKind::Corrupt, text)))
            }
            _ => Ok(()),
        }
    }
}

/// Why a run is not what its row says.
fn verdict(case: &Case, run: &Run, block_size: u64) -> Result<(), String> {
    if case.access == Access::Direct && case.state == State::Cold && run.cached_after > cache::COLD {
        return Err(format!("{:.0} % of the files are in the page cache after it", 100.0 * run.cached_after));
    }
    // At random some blocks come twice, and the second time the pool has them.
    let (least, blocks) = (if case.workload.is_random() { 90 } else { 98 }, run.bytes / block_size.max(1));
    let storage = run.storage_bytes.map(|bytes| 100.0 * bytes as f64 / run.bytes as f64);
    match (case.state, storage) {
        (State::Cold, Some(share)) if share < least as f64 => {
            return Err(format!("only {share:.0} % came from storage: not cold"));
        }
        (State::Warm | State::Hot, Some(share)) if share > 1.0 => {
            return Err(format!("{share:.0} % came from storage: not {}", case.state));
        }
        _ => {}
    }
    if case.workload.is_ceiling() {
        return Ok(());
    }
    let (read, joined) = (run.io.blocks_read, run.io.joins);
    match case.state {
        State::Hot if read * 100 > blocks => Err(format!("{read} of {blocks} blocks were not in the pool")),
        State::Cold | State::Warm if (read + joined) * 100 < blocks * least => {
            Err(format!("only {read} of {blocks} blocks were read: the rest was in the pool"))
        }
        _ => Ok(()),
    }
}

/// Paths as fio takes them.
pub(super) fn list(files: &[PathBuf]) -> String {
    files.iter().map(|f| f.display().to_string().replace(':', "\\:")).collect::<Vec<_>>().join(":")
}

#[cfg(test)]
mod tests {
    use super::*;
    use heapscan::HugePages;

    #[test]
    fn a_row_that_ran_on_something_else_is_refused() {
        let case = |state, access| Case {
            system: "heapscan".to_owned(),
            workload: Workload::Agg,
            state,
            access,
            io_method: "sync".to_owned(),
            io_combine_limit: 8192,
            effective_io_concurrency: 1,
            io_workers: None,
            clients: 1,
            threads: 1,
            shared_buffers: 0,
            huge_pages: HugePages::Try,
        };
        let cold = case(State::Cold, Access::Direct);
        let mut run = Run { bytes: 8_192_000, storage_bytes: Some(8_192_000), ..Run::default() };
        run.io.blocks_read = 1000;
        assert_eq!(verdict(&cold, &run, 8192), Ok(()));
        // The page cache, or the pool, had it.
        assert!(verdict(&cold, &Run { storage_bytes: Some(4_096_000), ..run.clone() }, 8192).is_err());
        assert!(verdict(&cold, &Run { cached_after: 0.5, ..run.clone() }, 8192).is_err());
        let mut hits = run.clone();
        hits.io.blocks_read = 500;
        assert!(verdict(&cold, &hits, 8192).unwrap_err().contains("pool"));
        // A direct row that was buffered fills the page cache; a buffered one may.
        let full = Run { cached_after: 1.0, ..run.clone() };
        assert_eq!(verdict(&case(State::Cold, Access::Buffered), &full, 8192), Ok(()));
        // It had to be read from the device after all.
        for state in [State::Warm, State::Hot] {
            assert!(verdict(&case(state, Access::Buffered), &full, 8192).unwrap_err().contains("storage"));
        }
        let cached = Run { storage_bytes: Some(0), ..full };
        assert_eq!(verdict(&case(State::Warm, Access::Buffered), &cached, 8192), Ok(()));
        assert!(verdict(&case(State::Hot, Access::Buffered), &cached, 8192).unwrap_err().contains("pool"));
    }
}
