//! Scans: from the blocks of a table to its visible rows.
//!
//! A [`ScanBuilder`] says which columns and blocks; [`Scan`] goes through them page by page, in block order. Each page
//! is checked once (checksum, header, line pointers), then one visibility test is made for the whole page, then the rows
//! that are there are taken apart.

pub mod aggregate;
#[cfg(feature = "arrow")]
pub mod arrow;
mod context;
pub mod filter;
mod lookup;
mod output;
mod parallel;
pub(crate) mod reader;
mod row;
pub mod stream;
mod system;
pub(crate) mod toast;

pub use context::Column;
pub(crate) use context::TableContext;
use context::second_look;
pub use lookup::RowId;
pub use output::RowFormat;
pub use parallel::{ThreadReport, ThreadReports};
pub use row::Row;
use system::SystemValues;

use crate::{
    Error, ErrorKind, Result,
    heap::{Datum, DeformPlan, Detoaster, LinePointer, PageSummary, ValidPage},
    pool::{PinnedPage, ReadMetrics},
    stream::{ReadStream, StreamOptions},
    types::TypeOutput,
    visibility::{Rows, Visibility, VisibleSet},
};
use serde::Serialize;
use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

/// What a scan did.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct ScanStats {
    /// Visible rows that were found (and, with a limit, given out).
    pub rows: u64,
    /// Pages that were looked at.
    pub pages: u64,
    /// Pages that were never written: all zero.
    pub new_pages: u64,
    /// Tuples on those pages, visible or not.
    pub tuples: u64,
    /// Visible rows that the filter took out.
    pub filtered: u64,
    /// Rows whose transaction ids the cluster never gave out; they are not shown. More than 0 is a sign of damage.
    pub future_xids: u64,
    /// Pages that were left out, or counted as empty, because they are damaged or not there.
    pub damaged_pages: u64,
    /// Rows of good pages that were left out because they are damaged, or because nobody knows whether they are there.
    pub damaged_rows: u64,
    /// Pages that failed their check and were right when they were read again.
    pub reread_pages: u64,
    /// Wall time since the scan began, in nanoseconds.
    pub elapsed_nanos: u64,
    /// What the reads did.
    pub io: ReadMetrics,
}

impl ScanStats {
    /// Adds the counts of another scan; the time is left alone.
    fn add(&mut self, other: &Self) {
        let Self { rows, pages, new_pages, tuples, filtered, future_xids, .. } = other;
        let Self { damaged_pages, damaged_rows, reread_pages, .. } = other;
        self.rows += rows;
        self.pages += pages;
        self.new_pages += new_pages;
        self.tuples += tuples;
        self.filtered += filtered;
        self.future_xids += future_xids;
        self.damaged_pages += damaged_pages;
        self.damaged_rows += damaged_rows;
        self.reread_pages += reread_pages;
        self.io.add(&other.io);
    }
}

/// A scan that has not begun.
#[derive(Clone)]
pub struct ScanBuilder {
    context: Arc<TableContext>,
    columns: Option<Vec<String>>,
    blocks: Range<u32>,
    limit: Option<u64>,
    filter: Option<filter::Predicate>,
    rows: Rows,
    team: parallel::TeamOptions,
    cancel: Option<Arc<AtomicBool>>,
}

impl ScanBuilder {
    pub(crate) fn new(context: Arc<TableContext>) -> Self {
        Self {
            context,
            columns: None,
            blocks: 0..u32::MAX,
            limit: None,
            filter: None,
            rows: Rows::Committed,
            team: parallel::TeamOptions::default(),
            cancel: None,
        }
    }

    /// Only these columns, in this order; a name may come twice. Names are taken as they are, without folding. Without
    /// this: all columns but virtual generated ones, which no file holds (`COPY` leaves generated columns out too).
    ///
    /// System columns can be among them: `ctid`, `xmin`, `xmax`, `cmin`, `cmax`, `tableoid` as the server has them, and
    /// `t_ctid`, `t_infomask`, `t_infomask2`, `t_field3` as `heap_page_items` of the extension `pageinspect` has them.
    #[must_use]
    pub fn columns<S: AsRef<str>>(mut self, names: &[S]) -> Self {
        self.columns = Some(names.iter().map(|n| n.as_ref().to_owned()).collect());
        self
    }

    /// Only the blocks of this range, as far as they exist.
    #[must_use]
    pub fn blocks(mut self, blocks: Range<u32>) -> Self {
        self.blocks = blocks;
        self
    }

    /// Stop after so many rows.
    #[must_use]
    pub fn limit(mut self, rows: u64) -> Self {
        self.limit = Some(rows);
        self
    }

    /// Which row versions: those that a server would show, all that are on the pages, or those that it would not show.
    ///
    /// Of dead rows the values are what the files have: out-of-line values of a row that was deleted can be gone, which is
    /// an error (see [`OnCorruption`](crate::OnCorruption)).
    #[must_use]
    pub fn visibility(mut self, rows: Rows) -> Self {
        self.rows = rows;
        self
    }

    /// Ends the scan with an error (`Cancelled`) soon after the flag was set, by whatever thread: it is looked at for
    /// each page, with rows on it or without.
    #[must_use]
    pub fn cancelled_by(mut self, flag: Arc<AtomicBool>) -> Self {
        self.cancel = Some(flag);
        self
    }

    /// Begins the scan.
    ///
    /// # Errors
    /// `NotFound` if a column does not exist, `Unsupported` if one is a virtual generated column.
    pub fn start(self) -> Result<Scan> {
        let (columns, filter) = (self.attributes()?, self.bound_filter()?);
        let mut scan = Scan { filter, ..Scan::new(self.context, columns, self.blocks, self.limit, self.rows)? };
        scan.cancel = self.cancel;
        Ok(scan)
    }

    /// Indices of the attributes that the scan yields.
    fn attributes(&self) -> Result<Vec<usize>> {
        match &self.columns {
            Some(names) => names.iter().map(|name| self.context.attribute_or_system(name)).collect(),
            None => Ok(self.context.live().filter(|&index| self.context.is_stored(index)).collect()),
        }
    }

    /// What a reader of the rows should know: columns that are left out because no file holds them, and columns of which
    /// only the bytes are known; and whether the threads that were asked for are not used
    /// ([`threads_note`](Self::threads_note)). Empty for nearly all tables.
    pub fn notes(&self) -> Vec<String> {
        let Ok(columns) = self.attributes() else { return Vec::new() };
        let mut notes = Vec::new();
        if self.columns.is_none() {
            for index in self.context.live().filter(|&index| !self.context.is_stored(index)) {
                let name = &self.context.info.layout.attributes[index].name;
                notes.push(format!("column {name} is left out: virtual generated columns are not stored"));
            }
        }
        for index in columns {
            let attribute = self.context.attribute_at(index);
            let output = TypeOutput::new(attribute.type_oid, attribute.typmod, &self.context.types);
            if output.is_ok_and(|output| output.is_raw()) {
                let Column { name, type_name, .. } = self.context.column(index);
                notes.push(format!(
                    "column {name} has the extension type {type_name}: its bytes are printed as stored, in hexadecimal"
                ));
            }
        }
        notes.extend(self.threads_note());
        notes
    }
}

/// A scan under way. To drop it at any moment is fine; reads in flight end on their own.
pub struct Scan {
    context: Arc<TableContext>,
    stream: ReadStream,
    plan: DeformPlan,
    columns: Vec<usize>,
    /// The table that was asked for, and its columns; `context` is the one that is read now: that, or a part of it.
    parent: (Arc<TableContext>, Vec<usize>),
    next_part: usize,
    /// What the reads of the parts before did.
    io_before: ReadMetrics,
    system: SystemValues,
    rows: Rows,
    /// One an output column; `None` where the type has no text form that is known.
    outputs: Vec<Option<TypeOutput>>,
    detoaster: Detoaster<toast::PoolChunks>,
    current: Option<PinnedPage>,
    visible: VisibleSet,
    filter: Option<filter::PageFilter>,
    summary: Option<PageSummary>,
    left: u64,
    /// The last block that the stream gave.
    at: Option<u32>,
    cancel: Option<Arc<AtomicBool>>,
    stats: ScanStats,
    began: Instant,
}

impl Scan {
    fn new(
        context: Arc<TableContext>,
        columns: Vec<usize>,
        blocks: Range<u32>,
        limit: Option<u64>,
        rows: Rows,
    ) -> Result<Self> {
        if !context.parts.is_empty() && blocks != (0..u32::MAX) {
            return Err(Error::new(
                ErrorKind::Usage,
                format!("{} has rows in several tables: a range of blocks says nothing of which", context.info.name),
            )
            .with_hint("scan one of its partitions"));
        }
        let pool = &context.engine.pool;
        let blocks = context.existing(blocks);
        let options = StreamOptions::new(pool.config(), pool.strategy_for(blocks.len() as u32));
        let stream = ReadStream::new(Arc::clone(pool), context.relation, blocks, options)?;
        Self::over(context, columns, stream, limit, rows)
    }

    /// A scan over the blocks of `stream`, which is one of the table's.
    fn over(
        context: Arc<TableContext>,
        columns: Vec<usize>,
        stream: ReadStream,
        limit: Option<u64>,
        rows: Rows,
    ) -> Result<Self> {
        let plan = DeformPlan::new(&context.info.layout, &columns)?;
        let output = |&index: &usize| {
            let attribute = context.attribute_at(index);
            TypeOutput::new(attribute.type_oid, attribute.typmod, &context.types).ok()
        };
        let outputs = columns.iter().map(output).collect();
        Ok(Self {
            stream,
            plan,
            system: SystemValues::new(&columns),
            rows,
            next_part: 0,
            parent: (Arc::clone(&context), columns.clone()),
            io_before: ReadMetrics::default(),
            columns,
            outputs,
            detoaster: Detoaster::new(toast::PoolChunks(Arc::clone(&context.toast))),
            current: None,
            visible: VisibleSet::default(),
            filter: None,
            summary: None,
            left: limit.unwrap_or(u64::MAX),
            at: None,
            cancel: None,
            stats: ScanStats::default(),
            began: Instant::now(),
            context,
        })
    }

    /// The columns that the rows have, in order.
    pub fn columns(&self) -> Vec<Column> {
        self.parent.1.iter().map(|&index| self.parent.0.column(index)).collect()
    }

    /// What the scan did so far.
    pub fn stats(&self) -> ScanStats {
        let elapsed_nanos = u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let mut io = self.io_before;
        io.add(&self.stream.metrics());
        ScanStats { io, elapsed_nanos, ..self.stats }
    }

    /// Blocks that were looked at, of how many: for a progress bar. With the time since the start.
    pub fn progress(&self) -> (u64, Duration) {
        (self.stats.pages, self.began.elapsed())
    }

    /// The next page that has visible rows, or `None` behind the last one.
    ///
    /// # Errors
    /// `Io`, `Checksum`, `Corrupt` (naming file and block), `Visibility`, and those of the buffer pool. After an error
    /// the scan can go on with the next page; rows of the bad page are then missing. [`OnCorruption`](crate::OnCorruption)
    /// says which damage is no error.
    pub fn next_page(&mut self) -> Result<Option<Page<'_>>> {
        if !self.advance()? {
            return Ok(None);
        }
        self.page()
    }

    /// The page that `advance` has come to.
    fn page(&mut self) -> Result<Option<Page<'_>>> {
        let Some(page) = &self.current else { return Ok(None) };
        // The same bytes were checked in `advance`; this only finds the line pointers again.
        let valid = self.checked(page).ok_or_else(|| {
            Error::new(ErrorKind::Corrupt, "the page changed while it was read").with_block(page.block())
        })?;
        Ok(Some(Page {
            page: valid,
            context: &self.context,
            plan: &self.plan,
            columns: &self.columns,
            outputs: &self.outputs,
            system: &self.system,
            detoaster: &mut self.detoaster,
            visible: self.visible.tuples(),
            next: 0,
            values: Vec::with_capacity(self.plan.outputs()),
            left: &mut self.left,
            rows: &mut self.stats.rows,
            damaged: &mut self.stats.damaged_rows,
        }))
    }

    /// Moves to the next page with visible rows, whose rows are then listed in `visible`.
    fn advance(&mut self) -> Result<bool> {
        if !self.advance_unlisted()? {
            return Ok(false);
        }
        if self.visible.is_unlisted()
            && let Some(page) = &self.current
            && let Some(valid) = self.checked(page)
        {
            self.visible.list(&valid);
        }
        self.fill_system();
        Ok(true)
    }

    /// Makes the values of the system columns for the listed rows of the current page.
    #[inline]
    fn fill_system(&mut self) {
        if !self.system.is_empty()
            && let Some(page) = &self.current
            && let Some(valid) = self.checked(page)
        {
            // Borrowed apart: `checked` looks at the summary only.
            let mut system = std::mem::take(&mut self.system);
            system.fill(&valid, self.visible.tuples(), self.context.info.oid);
            self.system = system;
        }
    }

    /// Goes on to the next relation that has rows of the table. `false`: there is none.
    #[cold]
    fn next_part(&mut self) -> Result<bool> {
        let Some((context, map)) = self.parent.0.parts.get(self.next_part) else { return Ok(false) };
        self.next_part += 1;
        let context = Arc::clone(context);
        // System columns are the same everywhere.
        self.columns = self.parent.1.iter().map(|&index| map.get(index).copied().unwrap_or(index)).collect();
        self.plan = DeformPlan::new(&context.info.layout, &self.columns)?;
        if let Some(filter) = &mut self.filter {
            filter.move_to(&context, map)?;
        }
        let pool = &context.engine.pool;
        let blocks = context.fork.blocks();
        let options = StreamOptions::new(pool.config(), pool.strategy_for(blocks));
        let stream = ReadStream::new(Arc::clone(pool), context.relation, 0..blocks, options)?;
        self.io_before.add(&self.stream.metrics());
        self.stream = stream;
        self.context = context;
        Ok(true)
    }

    /// As [`advance`](Self::advance), but rows that are all of a page's may be counted only.
    fn advance_unlisted(&mut self) -> Result<bool> {
        self.current = None;
        if self.filter.as_ref().is_some_and(filter::PageFilter::is_never) {
            return Ok(false);
        }
        while self.left > 0 {
            if self.cancel.as_ref().is_some_and(|flag| flag.load(Ordering::Relaxed)) {
                return Err(Error::new(ErrorKind::Cancelled, "the scan was cancelled"));
            }
            let Some(page) = self.stream.next_page() else {
                if self.next_part()? {
                    continue;
                }
                return Ok(false);
            };
            let mut page = match page {
                Ok(page) => page,
                Err(error) => {
                    self.pass_block(error)?;
                    continue;
                }
            };
            self.at = Some(page.block());
            self.stats.pages += 1;
            let checked = match self.context.check(page.bytes(), page.block()) {
                Ok(checked) => checked,
                Err(error) => match self.second_look(&page, error)? {
                    Some(again) => {
                        page = again;
                        self.context.check(page.bytes(), page.block())?
                    }
                    None => continue,
                },
            };
            let Some(valid) = checked else {
                self.stats.new_pages += 1;
                continue;
            };
            let visibility = Visibility::new(&self.context.engine.log, self.rows);
            let mut found = visibility.select(&valid, &mut self.visible);
            if found.is_err() && self.context.engine.cluster.damage().skips_rows() {
                let (context, lost) = (&self.context, &mut self.stats.damaged_rows);
                found = visibility.select_known(&valid, &mut self.visible, |error, number| {
                    context.pass_row(error, valid.block(), number).map(|()| *lost += 1)
                });
            }
            self.summary = Some(*valid.summary());
            self.stats.tuples += u64::from(valid.summary().tuples);
            self.stats.future_xids += visibility.future_xids();
            found.map_err(|e| locate(e, &self.context, page.block()))?;
            if let Some(filter) = &mut self.filter {
                let mut passed = filter.apply(&valid, &mut self.visible);
                if passed.is_err() && self.context.engine.cluster.damage().skips_rows() {
                    let (context, lost) = (&self.context, &mut self.stats.damaged_rows);
                    passed = filter.apply_known(&valid, &mut self.visible, |error, number| {
                        context.pass_row(error, valid.block(), number).map(|()| *lost += 1)
                    });
                }
                self.stats.filtered += passed? as u64;
            }
            if self.visible.len() > 0 {
                self.current = Some(page);
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Goes on behind a block that cannot be read, if the policy says so.
    #[cold]
    fn pass_block(&mut self, error: Error) -> Result<()> {
        self.context.engine.cluster.damage().pass_block(error)?;
        self.stats.damaged_pages += 1;
        Ok(())
    }

    /// A page that failed its check: read again, or passed over.
    #[cold]
    fn second_look(&mut self, page: &PinnedPage, error: Error) -> Result<Option<PinnedPage>> {
        let context = &self.context;
        let again = second_look(&context.engine, &context.fork, context.relation, page, error)?;
        match again {
            Some(_) => self.stats.reread_pages += 1,
            None => self.stats.damaged_pages += 1,
        }
        Ok(again)
    }

    /// Takes the rows that cannot be taken apart out of the current page's, if `error`, which one of them caused, is
    /// passed over.
    #[cold]
    fn pass_broken_rows(&mut self, error: Error) -> Result<()> {
        if !self.context.engine.cluster.damage().skips_rows() {
            return Err(error);
        }
        let Some(page) = &self.current else { return Err(error) };
        let Some(valid) = self.checked(page) else { return Err(error) };
        let (context, plan, lost) = (&self.context, &self.plan, &mut self.stats.damaged_rows);
        self.visible.list(&valid);
        let (mut values, mut failed) = (Vec::new(), None);
        self.visible.retain(|pointer| {
            let Err(error) = plan.deform(&valid.tuple(*pointer), &mut values) else { return true };
            match context.pass_row(error, valid.block(), pointer.number) {
                Ok(()) => *lost += 1,
                Err(error) => failed = Some(error),
            }
            false
        });
        self.fill_system();
        failed.map_or(Ok(()), Err)
    }

    /// The page that `advance` has checked: its line pointers and what held for all its tuples.
    fn checked<'p>(&self, page: &'p PinnedPage) -> Option<ValidPage<'p>> {
        let valid = ValidPage::from_checked(page.bytes(), page.block())?;
        Some(match self.summary {
            Some(summary) => valid.with_summary(summary),
            None => valid,
        })
    }

    /// The outputs of all columns.
    ///
    /// # Errors
    /// `Unsupported`, naming the type, if a column's type has no text form that is known.
    fn all_outputs(&self) -> Result<()> {
        for (output, &index) in self.outputs.iter().zip(&self.columns) {
            if output.is_none() {
                let attribute = self.context.attribute_at(index);
                TypeOutput::new(attribute.type_oid, attribute.typmod, &self.context.types)
                    .map_err(|e| e.in_context(format_args!("column {}", attribute.name)))?;
            }
        }
        Ok(())
    }
}

/// Adds where it happened to an error that does not say so.
fn locate(error: Error, context: &TableContext, block: u32) -> Error {
    match (error.path(), error.block()) {
        (None, None) => error.with_path(context.fork.path_of(block)).with_block(block),
        (None, Some(_)) => error.with_path(context.fork.path_of(block)),
        _ => error,
    }
}

/// The visible rows of one block. Holds a pin on the block while it lives.
pub struct Page<'s> {
    page: ValidPage<'s>,
    context: &'s TableContext,
    plan: &'s DeformPlan,
    columns: &'s [usize],
    outputs: &'s [Option<TypeOutput>],
    system: &'s SystemValues,
    detoaster: &'s mut Detoaster<toast::PoolChunks>,
    visible: &'s [LinePointer],
    next: usize,
    values: Vec<Datum<'s>>,
    left: &'s mut u64,
    rows: &'s mut u64,
    damaged: &'s mut u64,
}

impl Page<'_> {
    /// Its block number.
    pub fn block(&self) -> u32 {
        self.page.block()
    }

    /// Number of visible rows on the page.
    pub fn len(&self) -> usize {
        self.visible.len()
    }

    /// Whether there are none; a scan does not yield such pages.
    pub fn is_empty(&self) -> bool {
        self.visible.is_empty()
    }

    /// All bytes of the block.
    pub fn bytes(&self) -> &[u8] {
        self.page.bytes()
    }

    /// Leaves out the row that [`next_row`](Self::next_row) gave last, because one of its values cannot be read, if the
    /// policy ([`OnCorruption`](crate::OnCorruption)) says so: it goes to the list of damage and does not count.
    ///
    /// # Errors
    /// `error`, with file and block, if the policy does not pass over it.
    pub fn leave_out(&mut self, error: Error) -> Result<()> {
        let number = self.next.checked_sub(1).and_then(|last| self.visible.get(last)).map_or(0, |p| p.number);
        self.context.pass_row(error, self.page.block(), number)?;
        *self.damaged += 1;
        *self.left += 1;
        *self.rows -= 1;
        Ok(())
    }

    /// The next row, or `None` behind the last one of the page (or of the scan's limit). Rows that cannot be taken apart
    /// are left out if the policy ([`OnCorruption`](crate::OnCorruption)) says so.
    ///
    /// # Errors
    /// `Corrupt` if the row's values do not fit its tuple, `Schema` if it has more columns than the catalog says.
    #[inline]
    pub fn next_row(&mut self) -> Result<Option<Row<'_>>> {
        let tuple = loop {
            let Some(pointer) = self.visible.get(self.next) else { return Ok(None) };
            if *self.left == 0 {
                return Ok(None);
            }
            self.next += 1;
            let tuple = self.page.tuple(*pointer);
            match self.plan.deform(&tuple, &mut self.values) {
                Ok(()) => break tuple,
                Err(error) => {
                    self.context.pass_row(error, self.page.block(), tuple.number())?;
                    *self.damaged += 1;
                }
            }
        };
        if !self.system.is_empty() {
            self.system.put(self.next - 1, &mut self.values);
        }
        *self.left -= 1;
        *self.rows += 1;
        Ok(Some(Row {
            tuple,
            values: &self.values,
            context: self.context,
            columns: self.columns,
            outputs: self.outputs,
            detoaster: self.detoaster,
        }))
    }
}
