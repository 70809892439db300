//! Rows by their `ctid`: single blocks in any order, through the same stream as scans.

use super::{Row, ScanBuilder, ScanStats, TableContext, second_look, system::SystemValues, toast::PoolChunks};
use crate::{
    Error, ErrorKind, Result,
    heap::{Datum, DeformPlan, Detoaster, ValidPage},
    pool::{PinnedPage, Strategy},
    stream::{ReadStream, StreamOptions},
    types::TypeOutput,
    visibility::{Rows, Visibility},
};
use std::{hint::black_box, sync::Arc, time::Instant};

/// Pages that are pinned at a time, so that the loads of one do not wait for those of another; fewer in a small pool.
const BATCH: u32 = 16;

/// Where a row is: block, and line pointer number from 1.
pub type RowId = (u32, u16);

impl ScanBuilder {
    /// Looks up the rows at `places`, in that order, and tells each to `found`: the row, or `None` where there is no
    /// visible one (no such line pointer, an unused or dead one, or one that leads to another tuple of its page, as an
    /// update on the same page leaves them). Blocks are read ahead, as many at a time as `effective_io_concurrency` allows; a
    /// block is checked once as long as it stays in the pool. The builder's blocks and limit have no effect. Damage that is
    /// passed over is told as `None`, and counted.
    ///
    /// # Errors
    /// Those of [`start`](Self::start) and of reading pages (see [`Scan::next_page`](super::Scan::next_page)), `Usage` for
    /// a block behind the end and for a builder that has a filter, and those of `found`.
    pub fn lookup(
        self,
        places: impl Iterator<Item = RowId> + Clone + Send + 'static,
        found: &mut dyn FnMut(RowId, Option<Row<'_>>) -> Result<()>,
    ) -> Result<ScanStats> {
        if self.filter.is_some() {
            let error = Error::new(ErrorKind::Usage, "rows that are looked up by their ctid are not filtered");
            return Err(error.with_hint("look at the row's values in the function that is told of it"));
        }
        let columns = self.attributes()?;
        let context = self.context;
        if !context.parts.is_empty() {
            let what = format!("{} has rows in several tables: a ctid does not say in which", context.info.name);
            return Err(crate::Error::new(crate::ErrorKind::Usage, what).with_hint("look into one of its partitions"));
        }
        let pool = &context.engine.pool;
        let options = StreamOptions::new(pool.config(), Strategy::Normal);
        let blocks = places.clone().map(|(block, _)| block);
        let mut stream = ReadStream::new(Arc::clone(pool), context.relation, blocks, options)?;
        let mut fetch = Fetch::new(&context, columns)?;
        let batch = (pool.frames() / 8).clamp(1, BATCH) as usize;
        let mut places = places;
        let mut pages: Vec<(RowId, Option<PinnedPage>)> = Vec::with_capacity(batch);
        let (mut stats, began) = (ScanStats::default(), Instant::now());
        loop {
            while pages.len() < batch
                && let Some(place) = places.next()
                && let Some(page) = stream.next_page()
            {
                let page = match page {
                    Ok(page) => Some(page),
                    Err(error) => {
                        context.engine.cluster.damage().pass_block(error)?;
                        stats.damaged_pages += 1;
                        None
                    }
                };
                pages.push((place, page));
            }
            if pages.is_empty() {
                break;
            }
            stats.pages += pages.len() as u64;
            touch(&pages);
            for (place, page) in pages.drain(..) {
                match page {
                    Some(page) => fetch.row(place, page, &mut stats, found)?,
                    None => found(place, None)?,
                }
            }
        }
        stats.io = stream.metrics();
        stats.elapsed_nanos = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        Ok(stats)
    }
}

/// Loads what will be looked at of each page, all line pointers before the first tuple, so that the loads overlap.
fn touch(pages: &[(RowId, Option<PinnedPage>)]) {
    let mut tuples = [0usize; BATCH as usize];
    for (((_, number), page), tuple) in pages.iter().zip(&mut tuples) {
        let at = 24 + 4 * usize::from(number.saturating_sub(1));
        // Nothing is believed of it: a place within the page, or none.
        let bytes = page.as_ref().and_then(|page| page.bytes().get(at..at + 4)?.first_chunk().copied());
        let pointer = bytes.map_or(0, u32::from_le_bytes);
        *tuple = (pointer & 0x7fff) as usize;
    }
    let first =
        |page: &Option<PinnedPage>, at| page.as_ref().and_then(|page| page.bytes().get(at).copied()).unwrap_or(0);
    let loaded = pages.iter().zip(tuples).map(|((_, page), at)| first(page, at));
    black_box(loaded.fold(0u8, u8::wrapping_add));
}

/// What is needed to make rows.
struct Fetch<'c> {
    context: &'c Arc<TableContext>,
    plan: DeformPlan,
    columns: Vec<usize>,
    outputs: Vec<Option<TypeOutput>>,
    detoaster: Detoaster<PoolChunks>,
    visibility: Visibility<'c>,
    /// Kept for its allocation; empty.
    values: Vec<Datum<'static>>,
}

impl<'c> Fetch<'c> {
    fn new(context: &'c Arc<TableContext>, columns: Vec<usize>) -> Result<Self> {
        let plan = DeformPlan::new(&context.info.layout, &columns)?;
        let output = |&index: &usize| {
            let attribute = context.attribute_at(index);
            TypeOutput::new(attribute.type_oid, attribute.typmod, &context.types).ok()
        };
        let outputs = columns.iter().map(output).collect();
        let detoaster = Detoaster::new(PoolChunks(Arc::clone(&context.toast)));
        let visibility = Visibility::new(&context.engine.log, Rows::Committed);
        Ok(Self { context, plan, columns, outputs, detoaster, visibility, values: Vec::new() })
    }

    fn row(
        &mut self,
        place: RowId,
        mut page: PinnedPage,
        stats: &mut ScanStats,
        found: &mut dyn FnMut(RowId, Option<Row<'_>>) -> Result<()>,
    ) -> Result<()> {
        let (context, block) = (self.context, page.block());
        if !page.is_verified() {
            match context.check(page.bytes(), block) {
                Ok(Some(_)) => page.mark_verified(),
                Ok(None) => return found(place, None),
                Err(error) => match second_look(&context.engine, &context.fork, context.relation, &page, error)? {
                    Some(again) => {
                        stats.reread_pages += 1;
                        page = again;
                        if context.check(page.bytes(), block)?.is_none() {
                            return found(place, None);
                        }
                    }
                    None => {
                        stats.damaged_pages += 1;
                        return found(place, None);
                    }
                },
            }
        }
        // Somebody has checked the same bytes since they were read.
        let valid = ValidPage::from_checked(page.bytes(), block);
        let Some(tuple) = valid.and_then(|valid| valid.tuple_at(place.1)) else { return found(place, None) };
        stats.tuples += 1;
        let all_visible = valid.is_some_and(|valid| valid.all_visible());
        let visible = if all_visible { Ok(true) } else { self.visibility.check(&tuple) };
        stats.future_xids = self.visibility.future_xids();
        let mut values: Vec<Datum<'_>> = std::mem::take(&mut self.values);
        let there = visible.and_then(|visible| match visible {
            true => self.plan.deform(&tuple, &mut values).map(|()| true),
            false => Ok(false),
        });
        let there = there.or_else(|error| {
            context.pass_row(error, block, place.1)?;
            stats.damaged_rows += 1;
            Ok::<bool, crate::Error>(false)
        })?;
        if !there {
            return found(place, None);
        }
        stats.rows += 1;
        let mut system = SystemValues::new(&self.columns);
        if let (Some(valid), false) = (&valid, system.is_empty()) {
            let pointer = valid.line_pointers().find(|pointer| pointer.number == place.1);
            system.fill(valid, pointer.as_slice(), context.info.oid);
            system.put(0, &mut values);
        }
        let row = Row {
            tuple,
            values: &values,
            context: self.context,
            columns: &self.columns,
            outputs: &self.outputs,
            detoaster: &mut self.detoaster,
        };
        let result = found(place, Some(row));
        values.clear();
        // An empty vector of another lifetime, in the same allocation.
        self.values = values.into_iter().map(|_| Datum::Null).collect();
        result
    }
}
