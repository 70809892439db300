//! `count`, `sum`, `min`, `max` over a scan, without making rows.
//!
//! Columns that lie at the same place in every tuple of a page are taken by a loop over the page; for the rest tuples
//! are taken apart.

mod accumulator;
mod expression;
mod merge;
mod numeric_sum;
mod page;
mod parse;
mod wide;

pub use parse::{AggregateCall, Argument, Expression, Function, parse, parse_columns};

use super::{Column, Scan, ScanBuilder, ScanStats, TableContext, locate, parallel, row::payload, toast::PoolChunks};
use crate::{
    Error, Result,
    heap::{Datum, DeformPlan, Detoaster, LinePointer, ValidPage, Varlena},
    types::TypeOutput,
    visibility::VisibleSet,
};
pub(super) use accumulator::Accumulator;
use expression::Program;
use page::{PageRows, take_column};

/// The results of a scan's aggregates.
#[derive(Clone, Debug)]
pub struct Aggregates {
    /// One text a call, as the server prints it; `None` is NULL.
    pub values: Vec<Option<String>>,
    /// What the scan did.
    pub stats: ScanStats,
}

impl ScanBuilder {
    /// Scans, and yields the results of `calls`.
    ///
    /// # Errors
    /// `NotFound` if a column does not exist, `Unsupported` if an aggregate is not offered for its type, `Value` where
    /// the server says that a result is out of range, and those of the scan.
    pub fn aggregate(self, calls: &[AggregateCall]) -> Result<Aggregates> {
        self.aggregate_with(calls, &mut |_| {})
    }

    /// As [`aggregate`](Self::aggregate); `progress` is called now and then with the number of pages that are done.
    ///
    /// # Errors
    /// As there.
    pub fn aggregate_with(self, calls: &[AggregateCall], progress: &mut dyn FnMut(u64)) -> Result<Aggregates> {
        let (columns, mut running) = self.running(calls)?;
        if self.takes_threads() {
            return parallel::aggregate(self, columns, running, calls, progress);
        }
        let filter = self.bound_filter()?;
        let scan = Scan::new(self.context, columns, self.blocks, None, self.rows)?;
        let mut scan = Scan { filter, cancel: self.cancel, ..scan };
        while scan.advance_unlisted()? {
            take_current(&mut scan, &mut running)?;
            progress(scan.stats.pages);
        }
        Ok(Aggregates { values: finish(&scan, calls, &running)?, stats: scan.stats() })
    }

    /// The columns that the aggregates need, and an accumulator for each.
    fn running(&self, calls: &[AggregateCall]) -> Result<(Vec<usize>, Vec<Running>)> {
        let mut columns: Vec<usize> = Vec::new();
        let mut running = Vec::with_capacity(calls.len());
        for call in calls {
            if let Argument::Expression(expression) = &call.argument {
                let program =
                    Program::new(expression, &self.context, &mut columns).map_err(|e| e.in_context(&call.text))?;
                let accumulator = Accumulator::new(call, program.result().oid(), "")?;
                running.push(Running { accumulator, place: None, expression: Some(Box::new(program)) });
                continue;
            }
            let place = match &call.argument {
                Argument::Star | Argument::Expression(_) => None,
                Argument::Column(name) | Argument::OctetLength(name) => {
                    let index = self.context.attribute(name)?;
                    check_octet_length(&self.context, call, index)?;
                    let place = columns.iter().position(|&c| c == index).unwrap_or(columns.len());
                    if place == columns.len() {
                        columns.push(index);
                    }
                    Some(place)
                }
            };
            let (oid, name) = match place {
                Some(place) => (self.context.base_types[columns[place]], self.context.column(columns[place]).type_name),
                None => (0, String::new()),
            };
            running.push(Running { accumulator: Accumulator::new(call, oid, &name)?, place, expression: None });
        }
        Ok((columns, running))
    }
}

/// Feeds the rows of the page that the scan has come to to all aggregates.
pub(super) fn take_current(scan: &mut Scan, running: &mut Vec<Running>) -> Result<()> {
    let Some(page) = &scan.current else { return Ok(()) };
    let Some(valid) = scan.checked(page) else { return Ok(()) };
    scan.stats.rows += scan.visible.len() as u64;
    let before = scan.context.engine.cluster.damage().skips_rows().then(|| running.clone());
    let taken = take_page(&valid, &mut scan.visible, &scan.plan, running, &mut scan.detoaster);
    match (taken, before) {
        (Ok(()), _) => Ok(()),
        (Err(_), Some(before)) => {
            *running = before;
            scan.visible.list(&valid);
            let rows = scan.visible.tuples();
            let lost = take_rows(&scan.context, &valid, rows, &scan.plan, running, &mut scan.detoaster)?;
            scan.stats.rows -= lost;
            scan.stats.damaged_rows += lost;
            Ok(())
        }
        (Err(error), None) => Err(locate(error, &scan.context, page.block())),
    }
}

/// The results, as the server prints them. `scan` is any scan with the columns of `running`.
pub(super) fn finish(scan: &Scan, calls: &[AggregateCall], running: &[Running]) -> Result<Vec<Option<String>>> {
    running
        .iter()
        .zip(calls)
        .map(|(r, call)| {
            let types = &scan.parent.0.types;
            let own = r.expression.as_ref().map(|e| TypeOutput::new(e.result().oid(), -1, types)).transpose()?;
            let output = own.as_ref().or(r.place.and_then(|place| scan.outputs[place].as_ref()));
            r.accumulator.finish(output).map_err(|e| e.in_context(&call.text))
        })
        .collect()
}

/// `octet_length` exists for text, bytea and char(n) (whose padding counts), and what is coerced to them.
fn check_octet_length(context: &TableContext, call: &AggregateCall, index: usize) -> Result<()> {
    const TEXT_LIKE: [u32; 5] = [17, 19, 25, 1042, 1043];
    if matches!(call.argument, Argument::OctetLength(_)) && !TEXT_LIKE.contains(&context.base_types[index]) {
        let Column { type_name, .. } = context.column(index);
        return Err(Error::new(
            crate::ErrorKind::Unsupported,
            format!("{}: octet_length does not exist for type {type_name}", call.text),
        ));
    }
    Ok(())
}

#[derive(Clone, Debug)]
pub(super) struct Running {
    pub(super) accumulator: Accumulator,
    /// Index into the scan's columns; `None` for `count(*)`, and where there is an expression.
    place: Option<usize>,
    expression: Option<Box<Program>>,
}

/// Feeds the rows of one page to all aggregates.
fn take_page(
    page: &ValidPage<'_>,
    visible: &mut VisibleSet,
    plan: &DeformPlan,
    running: &mut [Running],
    detoaster: &mut Detoaster<PoolChunks>,
) -> Result<()> {
    let mut rest = Vec::new();
    let rows = PageRows::new(page, visible);
    for (i, aggregate) in running.iter_mut().enumerate() {
        if let Some(expression) = &mut aggregate.expression {
            if !expression.take_page(page, &rows, plan, &mut aggregate.accumulator)? {
                rest.push(i);
            }
            continue;
        }
        let Some(place) = aggregate.place else {
            aggregate.accumulator.add_presence(rows.len() as u64);
            continue;
        };
        if !take_column(page, &rows, plan, place, &mut aggregate.accumulator) {
            rest.push(i);
        }
    }
    if rest.is_empty() {
        return Ok(());
    }
    visible.list(page);
    let mut values = Vec::with_capacity(plan.outputs());
    for pointer in visible.tuples() {
        plan.deform(&page.tuple(*pointer), &mut values)?;
        for &i in &rest {
            let Running { accumulator, place, expression } = &mut running[i];
            if let Some(expression) = expression {
                expression.take_row(&values, detoaster, accumulator)?;
                continue;
            }
            let Some(datum) = place.map(|place| values[place]) else { continue };
            take_value(accumulator, datum, detoaster)?;
        }
    }
    Ok(())
}

/// Feeds the rows of a page that has damaged ones, and tells how many these are: a row counts for all aggregates or for
/// none.
#[cold]
fn take_rows(
    context: &TableContext,
    page: &ValidPage<'_>,
    visible: &[LinePointer],
    plan: &DeformPlan,
    running: &mut Vec<Running>,
    detoaster: &mut Detoaster<PoolChunks>,
) -> Result<u64> {
    let mut lost = 0;
    let mut values = Vec::with_capacity(plan.outputs());
    for pointer in visible {
        let before = running.clone();
        let taken = plan.deform(&page.tuple(*pointer), &mut values).and_then(|()| {
            running.iter_mut().try_for_each(|Running { accumulator, place, expression }| match (place, expression) {
                (_, Some(expression)) => expression.take_row(&values, detoaster, accumulator),
                (Some(place), None) => take_value(accumulator, values[*place], detoaster),
                (None, None) => {
                    accumulator.add_presence(1);
                    Ok(())
                }
            })
        });
        if let Err(error) = taken {
            *running = before;
            context.pass_row(error, page.block(), pointer.number)?;
            lost += 1;
        }
    }
    Ok(lost)
}

fn take_value(accumulator: &mut Accumulator, datum: Datum<'_>, detoaster: &mut Detoaster<PoolChunks>) -> Result<()> {
    if datum == Datum::Null {
        return Ok(());
    }
    if accumulator.wants_presence() {
        accumulator.add_presence(1);
        return Ok(());
    }
    if accumulator.wants_length() {
        let length = match datum {
            // The header tells, without decompressing or fetching anything.
            Datum::Varlena(raw) => match Varlena::parse(raw)?.0 {
                Varlena::Plain(bytes) => bytes.len() as i64,
                Varlena::Compressed { raw_size, .. } => i64::from(raw_size),
                Varlena::External(pointer) => i64::from(pointer.raw_size) - 4,
            },
            // A name ends at its first zero.
            Datum::Fixed(bytes) => bytes.iter().position(|&b| b == 0).unwrap_or(bytes.len()) as i64,
            Datum::CString(bytes) => bytes.len() as i64,
            Datum::Null => return Ok(()),
        };
        accumulator.add_length(length);
        return Ok(());
    }
    match payload(datum, detoaster)? {
        Some(bytes) => accumulator.add_value(bytes),
        None => Ok(()),
    }
}
