//! What is checked of a heap page beyond what every scan checks: transaction ids, header lengths, attributes, TOAST
//! pointers, and whether the page lies where it was written.

use super::files::Target;
use crate::{
    Error, Result,
    heap::{Datum, DeformPlan, Detoaster, TupleRef, ValidPage, Varlena, infomask as bits},
    scan::toast::PoolChunks,
    visibility::{Rows, Status, TransactionLog, Visibility, XidStatus},
};

/// `SizeofHeapTupleHeader`.
const TUPLE_HEADER: usize = 23;
/// Smaller ids are not transactions of somebody.
const FIRST_NORMAL_XID: u32 = 3;
/// `SpecTokenOffsetNumber` and `MovedPartitionsOffsetNumber`: line pointer numbers that say something else.
const TOKENS: [u16; 2] = [0xfffe, 0xfffd];

/// Whether `a` is older than `b` on the circle of 2^32 ids.
fn precedes(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) < 0
}

/// Checks the tuples of one relation's pages. One for each thread.
pub(super) struct TupleChecker<'a> {
    target: &'a Target,
    log: &'a TransactionLog,
    visibility: Visibility<'a>,
    /// `None`: the catalog does not tell the columns.
    plan: Option<DeformPlan>,
    /// Looks into out-of-line values.
    detoaster: Option<Detoaster<PoolChunks>>,
    /// The cluster was shut down: the counters of its control file know of all transactions.
    at_rest: bool,
    /// The last transaction that was looked up.
    recent: (u32, XidStatus),
}

impl<'a> TupleChecker<'a> {
    pub(super) fn new(
        target: &'a Target,
        log: &'a TransactionLog,
        detoaster: Option<Detoaster<PoolChunks>>,
        at_rest: bool,
    ) -> Self {
        let layout = target.relation.as_ref().and_then(|relation| relation.layout.as_ref()?.as_ref().ok());
        let plan = layout.and_then(|layout| {
            let all: Vec<usize> = (0..layout.attributes.len()).collect();
            DeformPlan::new(layout, &all).ok()
        });
        let recent = (0, XidStatus::Aborted);
        Self { target, log, visibility: Visibility::new(log, Rows::Committed), plan, detoaster, at_rest, recent }
    }

    /// Calls `fault` with the number of each tuple of the page that cannot be right, and why.
    pub(super) fn page(&mut self, page: &ValidPage<'_>, mut fault: impl FnMut(u16, String)) {
        if let Some(other) = written_elsewhere(page) {
            fault(0, format!("the rows say that they lie in block {other}: another block is in this place"));
        }
        let plan = self.plan.take();
        let mut values = Vec::new();
        for tuple in page.tuples() {
            if let Some(what) = header(&tuple).or_else(|| self.transactions(&tuple)) {
                fault(tuple.number(), what);
                continue;
            }
            if let Some(plan) = &plan
                && self.is_of_this_schema(&tuple)
                && let Err(what) = self.values(plan, &tuple, &mut values)
            {
                fault(tuple.number(), what);
            }
        }
        self.plan = plan;
    }

    /// Rows of a transaction that did not commit can have columns that it had added, and that went with it.
    fn is_of_this_schema(&self, tuple: &TupleRef<'_>) -> bool {
        // An unknown status has been reported.
        matches!(self.visibility.status(tuple), Ok(Status::Visible | Status::Deleted))
    }

    fn status(&mut self, xid: u32) -> Result<XidStatus, String> {
        if self.recent.0 != xid {
            self.recent = (xid, self.log.status(xid).map_err(|e| e.to_string())?);
        }
        Ok(self.recent.1)
    }

    /// What is wrong with the transaction ids, if something is.
    fn transactions(&mut self, tuple: &TupleRef<'_>) -> Option<String> {
        let mask = tuple.infomask();
        let hint = mask & bits::XMIN_FROZEN;
        if hint != bits::XMIN_FROZEN && tuple.xmin() >= FIRST_NORMAL_XID {
            if let Some(what) = self.xid("xmin", tuple.xmin()) {
                return Some(what);
            }
            let contradicts = match (self.status(tuple.xmin()), hint) {
                (Err(what), 0) => return Some(what),
                (Ok(XidStatus::Aborted), bits::XMIN_COMMITTED) => "committed, pg_xact says aborted",
                (Ok(XidStatus::Committed), bits::XMIN_INVALID) => "aborted, pg_xact says committed",
                _ => "",
            };
            if !contradicts.is_empty() && self.at_rest {
                return Some(format!("xmin {} is marked as {contradicts}", tuple.xmin()));
            }
        }
        if mask & bits::XMAX_INVALID != 0 || tuple.xmax() == 0 && mask & bits::XMAX_IS_MULTI == 0 {
            return None;
        }
        if mask & bits::XMAX_IS_MULTI != 0 {
            return self.multixact(tuple);
        }
        if tuple.xmax() < FIRST_NORMAL_XID {
            return None;
        }
        if let Some(what) = self.xid("xmax", tuple.xmax()) {
            return Some(what);
        }
        match self.status(tuple.xmax()) {
            Err(what) if mask & bits::XMAX_COMMITTED == 0 => Some(what),
            Ok(XidStatus::Aborted) if mask & bits::XMAX_COMMITTED != 0 && self.at_rest => {
                Some(format!("xmax {} is marked as committed, pg_xact says aborted", tuple.xmax()))
            }
            _ => None,
        }
    }

    /// A transaction id that the cluster, or the relation, cannot have.
    fn xid(&self, name: &str, xid: u32) -> Option<String> {
        let counters = self.log.counters();
        let frozen = self.target.relation.as_ref().map_or(0, |relation| relation.frozen_xid);
        if self.at_rest && self.log.is_future(xid) {
            let next = counters.next_xid as u32;
            return Some(format!("{name} {xid} was never given out: the next one is {next}"));
        }
        if frozen >= FIRST_NORMAL_XID && precedes(xid, frozen) {
            return Some(format!("{name} {xid} is older than relfrozenxid {frozen} and not frozen"));
        }
        None
    }

    fn multixact(&self, tuple: &TupleRef<'_>) -> Option<String> {
        let multi = tuple.xmax();
        let counters = self.log.counters();
        let oldest = self.target.relation.as_ref().map_or(0, |relation| relation.min_multi);
        if tuple.infomask() & bits::XMAX_COMMITTED != 0 {
            return Some(format!("multixact {multi} is marked as committed, which only transactions are"));
        }
        if multi == 0 {
            return Some("multixact 0 does not exist".to_owned());
        }
        if self.at_rest && !precedes(multi, counters.next_multi) {
            return Some(format!("multixact {multi} was never made: the next one is {}", counters.next_multi));
        }
        (oldest != 0 && precedes(multi, oldest)).then(|| format!("multixact {multi} is older than relminmxid {oldest}"))
    }

    /// Whether the values can be found, end where the tuple ends, and point where they should.
    fn values<'p>(
        &mut self,
        plan: &'p DeformPlan,
        tuple: &TupleRef<'p>,
        values: &mut Vec<Datum<'p>>,
    ) -> Result<(), String> {
        plan.deform(tuple, values).map_err(|e| plain(&e))?;
        let data = tuple.data();
        let stored = &values[..tuple.natts().min(values.len())];
        let mut end = 0;
        let mut looks_inside = false;
        for (value, number) in stored.iter().zip(1..) {
            let (bytes, behind) = match *value {
                Datum::Null => continue,
                Datum::Fixed(bytes) => (bytes, 0),
                Datum::CString(bytes) => (bytes, 1),
                Datum::Varlena(raw) => {
                    let parsed = Varlena::parse(raw).map_err(|e| format!("attribute {number}: {}", plain(&e)))?.0;
                    looks_inside |= !matches!(parsed, Varlena::Plain(_));
                    self.pointer(&parsed).map_err(|what| format!("attribute {number}: {what}"))?;
                    (raw, 0)
                }
            };
            // Where it ends within the tuple: the slices are of the same bytes.
            end = (bytes.as_ptr() as usize).wrapping_sub(data.as_ptr() as usize) + bytes.len() + behind;
        }
        if end != data.len() {
            return Err(format!("the values end at byte {} of {}", tuple.hoff() + end, tuple.bytes().len()));
        }
        if looks_inside && self.detoaster.is_some() {
            return self.inside(tuple, stored);
        }
        Ok(())
    }

    fn pointer(&self, value: &Varlena<'_>) -> Result<(), String> {
        let Varlena::External(pointer) = value else { return Ok(()) };
        let toast = self.target.relation.as_ref().map_or(0, |relation| relation.toast);
        if toast == 0 {
            return Err(format!("points into TOAST table {}, but the relation has none", pointer.toast_relation));
        }
        if pointer.toast_relation != toast {
            return Err(format!("points into TOAST table {}, the relation's is {toast}", pointer.toast_relation));
        }
        if pointer.external_size > pointer.raw_size {
            return Err(format!("{} bytes out of line for a value of {}", pointer.external_size, pointer.raw_size));
        }
        Ok(())
    }

    /// Unpacks compressed and out-of-line values. Only of rows that are there: vacuum may have taken the chunks of others.
    fn inside(&mut self, tuple: &TupleRef<'_>, values: &[Datum<'_>]) -> Result<(), String> {
        if self.visibility.status(tuple).map_err(|e| e.to_string())? != Status::Visible {
            return Ok(());
        }
        let Some(detoaster) = &mut self.detoaster else { return Ok(()) };
        for (value, number) in values.iter().zip(1..) {
            if let Datum::Varlena(raw) = value {
                detoaster.payload(raw).map_err(|e| format!("attribute {number}: {e}"))?;
            }
        }
        Ok(())
    }
}

/// Without the path and block, which come in front of every line.
fn plain(error: &Error) -> String {
    error.message().to_owned()
}

/// What is wrong with the header of a tuple that every scan would take.
fn header(tuple: &TupleRef<'_>) -> Option<String> {
    let bitmap = if tuple.has_nulls() { tuple.natts().div_ceil(8) } else { 0 };
    let expected = (TUPLE_HEADER + bitmap).next_multiple_of(8);
    if tuple.hoff() != expected {
        return Some(format!("its values begin at byte {}, after {expected} bytes of header", tuple.hoff()));
    }
    None
}

/// The block that the page was written for, if that is another one: a row that was never updated points to itself. Said
/// only if all such rows of the page agree.
fn written_elsewhere(page: &ValidPage<'_>) -> Option<u32> {
    let mut other = None;
    for tuple in page.tuples().filter(|tuple| tuple.xmax() == 0 && !TOKENS.contains(&tuple.ctid().1)) {
        let (block, number) = tuple.ctid();
        if number != tuple.number() || block == page.block() || other.is_some_and(|other| other != block) {
            return None;
        }
        other = Some(block);
    }
    // Sequences have no block number at all.
    other.filter(|&block| block != u32::MAX)
}
