//! Rows as Arrow record batches.
//!
//! [`ScanBuilder::batches`] scans a table into batches, in block order, one at a time: memory is bounded by
//! [`BatchOptions::max_bytes`] plus what one row takes, and a slow consumer slows the reads. The schema comes from the
//! catalog alone. What becomes of which type:
//!
//! | PostgreSQL | Arrow |
//! | --- | --- |
//! | `bool`, `int2`, `int4`, `int8`, `oid` | `Boolean`, `Int16`, `Int32`, `Int64`, `UInt32` |
//! | `float4`, `float8` | `Float32`, `Float64` |
//! | `numeric(p, s)`, p up to 38, up to 76 | `Decimal128(p, s)`, `Decimal256(p, s)` |
//! | other `numeric` | `Utf8`; see [`NumericPolicy`] |
//! | `date`, `time` | `Date32`, `Time64(Microsecond)` (24:00:00 is 86,400,000,000) |
//! | `timestamp`, `timestamptz` | `Timestamp(Microsecond, None)`, `Timestamp(Microsecond, "UTC")` |
//! | `text`, `varchar`, `char(n)` (padded, as stored), `name`, `json`, `xml`, `jsonb` | `Utf8` |
//! | enums | `Dictionary(Int32, Utf8)` |
//! | `bytea`, `uuid` | `Binary`, `FixedSizeBinary(16)` |
//! | `interval` | `Utf8`; see [`IntervalPolicy`] |
//! | domains | what they are over |
//! | system columns: `xmin`, `xmax`, `cmin`, `cmax`, `tableoid`; `ctid` | `UInt32`; `Utf8`: `(block,number)` |
//! | arrays | `Utf8`, or `List`; see [`ArrayPolicy`] |
//! | composites, ranges, `timetz` and all other built-in types | `Utf8`: the text that the server prints |
//! | `citext`, `hstore`, `ltree`, `cube` | `Utf8` |
//! | types of other extensions, whose text form is not known | `Binary`: the bytes as stored |
//!
//! The metadata of each field tells the PostgreSQL type ([`METADATA_TYPE`], [`METADATA_OID`], [`METADATA_TYPMOD`]) and
//! what was done to its values ([`METADATA_CONVERSION`]).
//!
//! ```no_run
//! use heapscan::{Engine, EngineOptions, arrow::BatchOptions};
//!
//! fn main() -> heapscan::Result<()> {
//!     let engine = Engine::open("/var/lib/postgresql/18/main", EngineOptions::default())?;
//!     let accounts = engine.database(Some("bank"))?.table("public.accounts")?;
//!     let mut batches = accounts.scan().columns(&["id", "balance"]).batches(BatchOptions::default())?;
//!     println!("{}", batches.schema());
//!     for batch in &mut batches {
//!         println!("{} rows", batch?.num_rows());
//!     }
//!     println!("{} pages", batches.stats().scan.pages);
//!     Ok(())
//! }
//! ```

mod bytes;
mod cells;
mod column;
mod decimal;
mod encoding;
mod labels;
mod list;
mod options;
mod schema;

pub use super::parallel::ParallelBatches;
pub use options::{
    ArrayPolicy, BatchOptions, BatchStats, InfinityPolicy, IntervalPolicy, NumericPolicy, SpecialNumericPolicy,
    TextPolicy, TimestampUnit,
};
pub use schema::{METADATA_CONVERSION, METADATA_OID, METADATA_TABLE, METADATA_TYPE, METADATA_TYPMOD};

use super::{Scan, ScanBuilder, locate, parallel::Assigned, stream::ScanStream, system::SystemValues};
use crate::{
    Error, ErrorKind, Result,
    heap::{Datum, DeformPlan, LinePointer, PageColumns, ValidPage},
    pool::PinnedPage,
};
use arrow_array::{RecordBatch, RecordBatchOptions};
use arrow_schema::{ArrowError, SchemaRef};
use cells::{Cells, Place};
use column::{Appending, ColumnBuilder};
use std::{fmt, ops::Range};

impl ScanBuilder {
    /// The scan's record batches as a futures stream, for any executor: the scan runs in a thread of its own and waits
    /// while nobody takes its batches. To drop the stream at any moment is fine.
    ///
    /// The items are errors as [`batches`](Self::batches) and its iterator have them; an error is the last item.
    pub fn stream(self, options: BatchOptions) -> ScanStream<RecordBatch> {
        self.stream_of(move |scan| scan.parallel_batches(options))
    }

    /// Begins a scan whose rows come as Arrow record batches.
    ///
    /// # Errors
    /// As [`start`](Self::start); `Usage` if `options` make no sense or name columns that there are not; `Unsupported`
    /// for types without text form when they are [`strict`](BatchOptions::strict).
    pub fn batches(self, options: BatchOptions) -> Result<Batches> {
        Batches::over(self.start()?, options)
    }

    /// The schema that [`batches`](Self::batches) would have, without reading a page of the table.
    ///
    /// # Errors
    /// As there.
    pub fn arrow_schema(&self, options: &BatchOptions) -> Result<SchemaRef> {
        let columns = self.attributes()?;
        Ok(schema::resolve(&self.context, &columns, options)?.0)
    }
}

/// A scan under way whose rows come as record batches, in block order. Batches are not empty: of an empty table there
/// is none, only the [`schema`](Self::schema).
///
/// After an error there are no more batches; the rows before the page with the bad row come first. While it lives, it
/// may hold a pin on one block.
pub struct Batches {
    scan: Scan,
    schema: SchemaRef,
    columns: Vec<ColumnBuilder>,
    /// Bytes that each row takes in all columns, whatever its values.
    width: usize,
    /// Rows of the batch that is being filled.
    rows: usize,
    /// The first row of the current page that is not in a batch yet.
    next: usize,
    /// Places of the values of the current page, if `has_slots`.
    slots: PageColumns,
    has_slots: bool,
    /// Rows of the current page are appended one by one, because one of them is damaged.
    careful: bool,
    /// Bytes of each row that is about to be appended; kept to be reused.
    sizes: Vec<usize>,
    /// Comes after the batch of the rows before it.
    failed: Option<Error>,
    ended: bool,
    /// The block of the first row of the batch that is being filled, or of the last one.
    first_block: u32,
    /// No batch has rows of two of these.
    chunks: Option<Assigned>,
    stats: BatchStats,
    options: BatchOptions,
}

impl Batches {
    /// The batches of a scan.
    pub(super) fn over(scan: Scan, options: BatchOptions) -> Result<Self> {
        let (schema, columns) = schema::resolve(&scan.context, &scan.columns, &options)?;
        let width = columns.iter().map(ColumnBuilder::width).sum();
        Ok(Self {
            scan,
            schema,
            columns,
            width,
            rows: 0,
            next: 0,
            slots: PageColumns::default(),
            has_slots: false,
            careful: false,
            sizes: Vec::new(),
            failed: None,
            ended: false,
            first_block: 0,
            chunks: None,
            stats: BatchStats::default(),
            options,
        })
    }

    /// The schema of all batches.
    pub fn schema(&self) -> SchemaRef {
        SchemaRef::clone(&self.schema)
    }

    /// What the scan did so far.
    pub fn stats(&self) -> BatchStats {
        BatchStats { scan: self.scan.stats(), ..self.stats }
    }

    /// The next batch, or `None` behind the last one.
    fn next_batch(&mut self) -> Result<Option<RecordBatch>> {
        if self.failed.is_none() && !self.ended {
            match self.fill() {
                Ok(more) => self.ended = !more,
                Err(error) => self.failed = Some(error),
            }
        }
        if self.rows > 0 {
            return self.finish().map(Some);
        }
        self.ended = true;
        self.failed.take().map_or(Ok(None), Err)
    }

    /// Appends rows until the batch is full; `false`: until there are no more.
    fn fill(&mut self) -> Result<bool> {
        loop {
            if self.next >= self.scan.visible.tuples().len() || self.scan.current.is_none() {
                if !self.scan.advance()? {
                    return Ok(false);
                }
                self.next = 0;
                self.has_slots = false;
                self.careful = false;
            }
            if self.is_cut() {
                return Ok(true);
            }
            let replaced = self.stats.replaced;
            let taken = match self.append() {
                Ok(taken) => taken,
                Err(error) => {
                    self.stats.replaced = replaced;
                    for column in &mut self.columns {
                        column.truncate(self.rows);
                    }
                    self.pass(error)?;
                    continue;
                }
            };
            self.rows += taken;
            self.next += taken;
            self.scan.left -= taken as u64;
            self.scan.stats.rows += taken as u64;
            if self.next >= self.scan.visible.tuples().len() || self.scan.left == 0 {
                // Nothing is left to be read on it: no need to pin it while the consumer is at work.
                self.scan.current = None;
            }
            if self.scan.left == 0 {
                return Ok(false);
            }
            if taken == 0 || self.rows >= self.options.max_rows {
                return Ok(true);
            }
        }
    }

    /// Whether the current page belongs to another batch than the rows so far.
    fn is_cut(&mut self) -> bool {
        let Some(block) = self.scan.current.as_ref().map(PinnedPage::block) else { return false };
        if self.rows == 0 {
            self.first_block = block;
            return false;
        }
        self.chunks.as_ref().is_some_and(|chunks| chunks.seq_of(block) != chunks.seq_of(self.first_block))
    }

    /// No batch shall have rows of two of these chunks.
    pub(super) fn cut_at(&mut self, chunks: Assigned) {
        self.chunks = Some(chunks);
    }

    /// The block of the first row of the last batch.
    pub(super) fn first_block(&self) -> u32 {
        self.first_block
    }

    /// The scan.
    pub(super) fn source(&self) -> &Scan {
        &self.scan
    }

    /// What to do about rows that could not be appended: first those that cannot be taken apart are left out, then rows
    /// are appended one by one, and the one that fails is left out.
    ///
    /// # Errors
    /// `error`, if the policy does not pass over it.
    #[cold]
    fn pass(&mut self, error: Error) -> Result<()> {
        let context = &self.scan.context;
        if !context.engine.cluster.damage().skips_rows() || error.is_refusal() {
            return Err(error);
        }
        if !self.careful {
            self.careful = true;
            // Nothing of the page was taken while its values' places are not known.
            return if self.has_slots || self.next > 0 { Ok(()) } else { self.scan.pass_broken_rows(error) };
        }
        let (Some(pinned), Some(row)) = (&self.scan.current, self.scan.visible.tuples().get(self.next)) else {
            return Err(error);
        };
        context.pass_row(error, pinned.block(), row.number)?;
        self.next += 1;
        self.scan.stats.damaged_rows += 1;
        Ok(())
    }

    /// Appends rows of the current page, as many as there is room for, and tells how many.
    fn append(&mut self) -> Result<usize> {
        let scan = &mut self.scan;
        let Some(pinned) = &scan.current else { return Ok(0) };
        let block = pinned.block();
        let checked = ValidPage::from_checked(pinned.bytes(), block);
        let (Some(page), Some(summary)) = (checked, scan.summary) else {
            return Err(Error::new(ErrorKind::Corrupt, "the page changed while it was read").with_block(block));
        };
        let page = page.with_summary(summary);
        let context = &scan.context;
        let tuples = scan.visible.tuples();
        if !self.has_slots && (0..self.columns.len()).any(|index| direct(&scan.plan, index, &page).is_none()) {
            scan.plan.deform_page(&page, tuples, &mut self.slots).map_err(|e| locate(e, context, block))?;
            self.has_slots = true;
        }
        let used: usize = self.columns.iter().filter_map(ColumnBuilder::variable).sum();
        let room = self.options.max_bytes.saturating_sub(used + self.rows * self.width);
        // A row that alone is larger than a batch may be is a batch all the same.
        let least = usize::from(self.rows == 0);
        let left = usize::try_from(scan.left).unwrap_or(usize::MAX);
        let most = if self.careful { 1 } else { tuples.len() - self.next };
        let wanted = most.min(self.options.max_rows - self.rows).min(left);
        let source =
            CellSource { page, plan: &scan.plan, slots: &self.slots, system: &scan.system, schema: &self.schema };
        let located = |error| locate(error, context, block);
        self.sizes.clear();
        self.sizes.resize(wanted, self.width);
        for (index, column) in self.columns.iter().enumerate() {
            if let Some(bytes) = column.bytes() {
                let cells = source.cells(index, tuples, self.next..self.next + wanted);
                bytes.add_sizes(&cells, &mut self.sizes).map_err(located)?;
            }
        }
        let (mut rows, known) = fitting(&self.sizes, room, least);
        let mut printed = self.columns.iter().filter(|column| column.is_printed()).count();
        let mut budget = room.saturating_sub(known);
        // Printed columns come first: only they can take fewer rows than they are given, so nothing that a policy
        // replaced and counted in the others is taken back.
        for (index, column) in self.columns.iter_mut().enumerate().filter(|(_, column)| column.is_printed()) {
            let before = column.variable().unwrap_or(0);
            let mut how = Appending {
                detoaster: &mut scan.detoaster,
                // Shared out, so that the first such column does not leave the others without.
                budget: budget / printed.max(1),
                least,
                replaced: &mut self.stats.replaced,
            };
            let cells = source.cells(index, tuples, self.next..self.next + rows);
            rows = column.append(&cells, &mut how).map_err(located)?;
            printed -= 1;
            budget = budget.saturating_sub(column.variable().unwrap_or(0) - before);
        }
        for (index, column) in self.columns.iter_mut().enumerate().filter(|(_, column)| !column.is_printed()) {
            let (detoaster, replaced) = (&mut scan.detoaster, &mut self.stats.replaced);
            let cells = source.cells(index, tuples, self.next..self.next + rows);
            column.append(&cells, &mut Appending { detoaster, budget: 0, least, replaced }).map_err(located)?;
        }
        let end = self.rows + rows;
        let taken_back: u64 = self.columns.iter_mut().map(|column| column.truncate(end)).sum();
        self.stats.replaced = self.stats.replaced.saturating_sub(taken_back);
        Ok(rows)
    }

    fn finish(&mut self) -> Result<RecordBatch> {
        let rows = std::mem::take(&mut self.rows);
        let arrays = self
            .columns
            .iter_mut()
            .zip(self.schema.fields())
            .map(|(c, f)| c.finish(f.data_type()))
            .collect::<Result<Vec<_>>>();
        let batch = arrays.and_then(|arrays| {
            // Without columns the arrays do not tell how many rows there are.
            let options = RecordBatchOptions::new().with_row_count(Some(rows));
            RecordBatch::try_new_with_options(self.schema(), arrays, &options).map_err(arrow_error)
        });
        match batch {
            Ok(batch) => {
                self.stats.batches += 1;
                Ok(batch)
            }
            Err(error) => {
                self.ended = true;
                Err(error)
            }
        }
    }
}

impl Iterator for Batches {
    type Item = Result<RecordBatch>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_batch().transpose()
    }
}

impl std::iter::FusedIterator for Batches {}

impl fmt::Debug for Batches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batches").field("schema", &self.schema).field("stats", &self.stats()).finish_non_exhaustive()
    }
}

/// What is needed to find the values of any column on a page.
struct CellSource<'a> {
    page: ValidPage<'a>,
    plan: &'a DeformPlan,
    slots: &'a PageColumns,
    system: &'a SystemValues,
    schema: &'a SchemaRef,
}

impl<'a> CellSource<'a> {
    /// The values of the column `index` in `rows` of `tuples`.
    fn cells(&self, index: usize, tuples: &'a [LinePointer], rows: Range<usize>) -> Cells<'a> {
        if let Some((bytes, slots)) = self.system.column(index) {
            let (place, block) = (Place::Slots(&slots[rows.clone()]), self.page.block());
            return Cells { bytes, block, rows: &tuples[rows], place, missing: None, field: self.schema.field(index) };
        }
        let place = match direct(self.plan, index, &self.page) {
            Some(at) => Place::Direct(at),
            None => Place::Slots(&self.slots.column(index)[rows.clone()]),
        };
        let missing = match self.plan.missing(index) {
            Datum::Null => None,
            Datum::Fixed(bytes) | Datum::Varlena(bytes) | Datum::CString(bytes) => Some(bytes),
        };
        let (bytes, block) = (self.page.bytes(), self.page.block());
        Cells { bytes, block, rows: &tuples[rows], place, missing, field: self.schema.field(index) }
    }
}

/// How far behind the start of each tuple of the page the column lies, if that is the same in all of them.
fn direct(plan: &DeformPlan, index: usize, page: &ValidPage<'_>) -> Option<usize> {
    let summary = page.summary();
    let fixed = plan.fixed_on_page(index, summary)?;
    (summary.hoff != 0).then(|| usize::from(summary.hoff) + fixed.offset)
}

/// How many of the first rows, whose bytes are `sizes`, have room, and how many bytes these are.
fn fitting(sizes: &[usize], room: usize, least: usize) -> (usize, usize) {
    let total = sizes.iter().sum();
    if total <= room {
        return (sizes.len(), total);
    }
    let mut bytes = 0;
    for (row, size) in sizes.iter().enumerate() {
        if bytes + size > room && row >= least {
            return (row, bytes);
        }
        bytes += size;
    }
    (sizes.len(), bytes)
}

#[cold]
fn arrow_error(error: ArrowError) -> Error {
    Error::new(ErrorKind::Value, format!("the batch cannot be: {error}")).with_source(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_that_fit() {
        assert_eq!(fitting(&[4, 4, 4], 12, 1), (3, 12));
        assert_eq!(fitting(&[4, 4, 4], 11, 1), (2, 8));
        assert_eq!(fitting(&[40, 4], 11, 1), (1, 40));
        assert_eq!(fitting(&[40, 4], 11, 0), (0, 0));
        assert_eq!(fitting(&[], 0, 1), (0, 0));
    }

    #[test]
    fn batches_can_go_to_another_thread() {
        fn is_send<T: Send>() {}
        is_send::<Batches>();
    }
}
