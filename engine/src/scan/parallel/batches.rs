//! Record batches by several threads.

use super::{
    TeamOptions,
    crew::{Body, Crew, Job, Worker},
    merge::{CancelOnDrop, Cancelled, Merge, Next},
};
use crate::{
    Result,
    scan::{
        Scan, ScanBuilder, ScanStats, TableContext,
        arrow::{BatchOptions, BatchStats, Batches},
        filter::Predicate,
    },
    visibility::Rows,
};
use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use std::{
    fmt,
    ops::Range,
    sync::{Arc, Mutex, PoisonError, atomic::AtomicBool},
    time::Duration,
};

/// Blocks of a chunk at most: batches end with their chunk, and are not to be small.
const CHUNK: u32 = 256;

/// Blocks that a scan with a limit looks at before it takes threads.
const LEAD: u32 = 64;

impl ScanBuilder {
    /// As [`batches`](Self::batches), made by the [threads](Self::threads) that were asked for: the same rows in the same
    /// order (unless that is [given up](Self::unordered)), but cut into batches differently, as each thread makes those of
    /// its own blocks.
    ///
    /// # Errors
    /// As there.
    pub fn parallel_batches(self, options: BatchOptions) -> Result<ParallelBatches> {
        let columns = self.attributes()?;
        let blocks = self.context.existing(self.blocks.clone());
        let alone = !self.takes_threads();
        let lead = match (alone, self.limit) {
            (true, _) => blocks.clone(),
            (_, Some(_)) => blocks.start..blocks.end.min(blocks.start.saturating_add(LEAD)),
            (_, None) => blocks.start..blocks.start,
        };
        let (context, team, limit) = (Arc::clone(&self.context), self.team.clone(), self.limit);
        let cancel = self.cancel.clone();
        let (filter, rows, blocks) = (self.filter.clone(), self.rows, lead.end..blocks.end);
        let rest = Rest { context, columns, filter, rows, blocks, team, cancel, options: options.clone() };
        let first = if alone { self.batches(options)? } else { self.blocks(lead).batches(options)? };
        Ok(ParallelBatches {
            schema: first.schema(),
            stage: Stage::First(Box::new(first), Box::new(rest)),
            left: limit.unwrap_or(u64::MAX),
            done: BatchStats::default(),
        })
    }
}

/// What is left to the threads.
struct Rest {
    context: Arc<TableContext>,
    columns: Vec<usize>,
    filter: Option<Predicate>,
    rows: Rows,
    blocks: Range<u32>,
    team: TeamOptions,
    cancel: Option<Arc<AtomicBool>>,
    options: BatchOptions,
}

enum Stage {
    /// The calling thread scans.
    First(Box<Batches>, Box<Rest>),
    Threads(Box<Threads>),
    End,
}

struct Threads {
    // Dropped first: its threads then do not wait for the consumer any more.
    merge: CancelOnDrop<RecordBatch>,
    crew: Crew<()>,
    replaced: Arc<Mutex<BatchStats>>,
    team: TeamOptions,
}

/// Record batches that several threads make. To drop it at any moment is fine and does not block: the threads end on their
/// own.
///
/// After an error there are no more batches; in block order the rows before the bad page come first.
pub struct ParallelBatches {
    schema: SchemaRef,
    stage: Stage,
    /// Rows that are still wanted.
    left: u64,
    /// What ended stages did.
    done: BatchStats,
}

impl ParallelBatches {
    /// The schema of all batches.
    pub fn schema(&self) -> SchemaRef {
        SchemaRef::clone(&self.schema)
    }

    /// What the scan did so far; of threads what those did that have ended.
    pub fn stats(&self) -> BatchStats {
        match &self.stage {
            Stage::First(batches, _) => batches.stats(),
            Stage::Threads(threads) => added(self.done, threads.stats()),
            Stage::End => self.done,
        }
    }

    /// Pages that were looked at so far, for a progress bar.
    pub fn pages(&self) -> u64 {
        match &self.stage {
            Stage::Threads(threads) => self.done.scan.pages + threads.crew.shared.pages(),
            _ => self.stats().scan.pages,
        }
    }

    fn next_batch(&mut self) -> Result<Option<RecordBatch>> {
        loop {
            match &mut self.stage {
                Stage::First(batches, _) => match batches.next().transpose()? {
                    Some(batch) => return Ok(Some(self.take(batch))),
                    None => self.hire()?,
                },
                Stage::Threads(threads) => match threads.merge.0.next(Duration::from_secs(1)) {
                    Next::Piece(batch) if self.left > 0 => {
                        let batch = self.take(batch);
                        if self.left == 0 {
                            // What the threads find from now on, be it damage, is not wanted.
                            let _ = self.dismiss();
                        }
                        return Ok(Some(batch));
                    }
                    Next::Nothing => {}
                    Next::Piece(_) | Next::Failed | Next::End => self.dismiss()?,
                },
                Stage::End => return Ok(None),
            }
        }
    }

    /// A batch, cut to the rows that are wanted.
    fn take(&mut self, batch: RecordBatch) -> RecordBatch {
        let rows = batch.num_rows().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        self.left -= rows as u64;
        if rows < batch.num_rows() { batch.slice(0, rows) } else { batch }
    }

    /// From the first stage to the second.
    fn hire(&mut self) -> Result<()> {
        let Stage::First(first, rest) = std::mem::replace(&mut self.stage, Stage::End) else { return Ok(()) };
        self.done = first.stats();
        drop(first);
        if self.left > 0 && !rest.blocks.is_empty() {
            self.stage = Stage::Threads(Box::new(Threads::start(*rest)?));
        } else {
            rest.team.report(Vec::new());
        }
        Ok(())
    }

    /// Ends the threads.
    fn dismiss(&mut self) -> Result<()> {
        let Stage::Threads(mut threads) = std::mem::replace(&mut self.stage, Stage::End) else { return Ok(()) };
        threads.merge.0.cancel();
        threads.crew.shared.allocator.stop();
        let result = threads.crew.join();
        self.done = added(self.done, threads.stats());
        threads.team.report(threads.crew.stats().1);
        result.map(|_| ())
    }
}

impl Threads {
    fn start(rest: Rest) -> Result<Self> {
        let Rest { context, columns, filter, rows, blocks, team, cancel, options } = rest;
        let ordered = (!team.unordered).then_some(CHUNK);
        let job = Job { context, columns, filter, rows, blocks, threads: team.threads, cancel, ordered };
        let merge = Arc::new(Merge::<RecordBatch>::new(job.useful_threads(), ordered.is_some()));
        let replaced = Arc::<Mutex<BatchStats>>::default();
        let (at_work, counted) = (Arc::clone(&merge), Arc::clone(&replaced));
        let make = move |scan| {
            let batches = Batches::over(scan, options.clone())?;
            Ok(Part { batches, merge: Arc::clone(&at_work), counted: Arc::clone(&counted) })
        };
        let crew = Crew::start(job, make, Arc::clone(&merge))?;
        Ok(Self { merge: CancelOnDrop(merge), crew, replaced, team })
    }

    fn stats(&self) -> BatchStats {
        let counted = *self.replaced.lock().unwrap_or_else(PoisonError::into_inner);
        BatchStats { scan: self.crew.stats().0, ..counted }
    }
}

/// The sum of two stages, the second of which began when the first one ended.
fn added(first: BatchStats, second: BatchStats) -> BatchStats {
    let mut scan: ScanStats = first.scan;
    scan.add(&second.scan);
    scan.elapsed_nanos += second.scan.elapsed_nanos;
    BatchStats { scan, batches: first.batches + second.batches, replaced: first.replaced + second.replaced }
}

/// One thread's part.
struct Part {
    batches: Batches,
    merge: Arc<Merge<RecordBatch>>,
    counted: Arc<Mutex<BatchStats>>,
}

impl Part {
    fn pieces(&mut self, worker: &mut Worker) -> Result<Result<(), Cancelled>> {
        while let Some(batch) = self.batches.next().transpose()? {
            let block = self.batches.first_block();
            if !worker.is_wanted(block) {
                continue;
            }
            if !worker.is_inside(block) {
                let merge = &self.merge;
                worker.move_to(block, |seq| merge.end_chunk(seq));
            }
            worker.tell(self.batches.stats().scan.pages);
            let bytes = batch.get_array_memory_size();
            let (index, seq) = (worker.index, worker.seq());
            if self.merge.push(index, seq, batch, bytes).is_err() {
                return Ok(Err(Cancelled));
            }
            // The page that the batch ended on may be still pinned: then only where frames are plenty.
            let pool = self.batches.source().stream.pool();
            let may_wait = self.batches.source().current.is_none() || pool.frames() as usize >= 2 * pool.open_streams();
            if may_wait && self.merge.wait_for_room(index, seq).is_err() {
                return Ok(Err(Cancelled));
            }
        }
        Ok(Ok(()))
    }
}

impl Body for Part {
    type Share = ();

    fn scan(&self) -> &Scan {
        self.batches.source()
    }

    fn work(&mut self, worker: &mut Worker) -> Result<()> {
        self.batches.cut_at(worker.assigned().clone());
        let end = self.pieces(worker);
        let stats = self.batches.stats();
        let mut counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        counted.batches += stats.batches;
        counted.replaced += stats.replaced;
        drop(counted);
        if let Ok(()) = end? {
            worker.end(|seq| self.merge.end_chunk(seq));
        }
        Ok(())
    }
}

impl Iterator for ParallelBatches {
    type Item = Result<RecordBatch>;

    fn next(&mut self) -> Option<Self::Item> {
        let next = self.next_batch();
        if next.is_err() {
            self.stage = Stage::End;
        }
        next.transpose()
    }
}

impl std::iter::FusedIterator for ParallelBatches {}

impl fmt::Debug for ParallelBatches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ParallelBatches")
            .field("schema", &self.schema)
            .field("left", &self.left)
            .finish_non_exhaustive()
    }
}
