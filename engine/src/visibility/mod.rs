//! Which rows are there: what the server's snapshot test (`HeapTupleSatisfiesMVCC`) says once every transaction has
//! ended one way or the other.
//!
//! A cluster at rest has no running transactions. Those that were running at a crash, and prepared ones, did not
//! commit, so their rows are not there and their deletes did not happen. Hint bits only save the look into `pg_xact`;
//! their absence says nothing. Nothing is ever written back.

mod log;
mod slru;
#[cfg(test)]
mod tests;

pub use log::{TransactionCounters, TransactionLog, XidStatus};

use crate::{
    Error, Result,
    heap::{LinePointer, TupleRef, ValidPage, infomask as bits},
};
use std::sync::atomic::{AtomicU64, Ordering};

/// Which rows a scan wants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rows {
    /// Those that a server would show.
    #[default]
    Committed,
    /// All tuples that are on the pages, dead or not.
    All,
    /// Only those that a server would not show.
    Dead,
}

/// What became of a row version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// It is there.
    Visible,
    /// Its inserter committed, and so did its deleter or updater.
    Deleted,
    /// Its inserter rolled back.
    Aborted,
    /// Its inserter never ended.
    Unfinished,
    /// Its inserter's id was never given out.
    Future,
}

/// The tuples of a page that a scan wants. Reused from page to page.
#[derive(Clone, Debug, Default)]
pub struct VisibleSet {
    tuples: Vec<LinePointer>,
    /// So many tuples, which are all of the page's, were not put into the list.
    unlisted: usize,
}

impl VisibleSet {
    /// Where they lie, in the order of their line pointers.
    #[inline]
    pub fn tuples(&self) -> &[LinePointer] {
        &self.tuples
    }

    /// How many there are, listed or not.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.tuples.len() + self.unlisted
    }

    /// Whether they are all tuples of the page, and not in the list.
    #[inline]
    pub(crate) fn is_unlisted(&self) -> bool {
        self.unlisted > 0
    }

    /// One tuple.
    pub(crate) fn of(tuple: LinePointer) -> Self {
        Self { tuples: vec![tuple], unlisted: 0 }
    }

    /// Keeps the tuples that `keep` says; they must be listed.
    pub(crate) fn retain(&mut self, keep: impl FnMut(&LinePointer) -> bool) {
        debug_assert_eq!(self.unlisted, 0, "tuples that are not listed cannot be told apart");
        self.tuples.retain(keep);
    }

    /// Of the tuples that are listed, keeps those whose bit is set.
    pub(crate) fn retain_bits(&mut self, bits: &[u64]) {
        let mut row = 0;
        self.tuples.retain(|_| {
            let keep = bits.get(row / 64).is_some_and(|word| word >> (row % 64) & 1 != 0);
            row += 1;
            keep
        });
    }

    /// Lists the tuples whose bit is set; `pointer` knows the line pointer of each.
    pub(crate) fn choose(&mut self, bits: &[u64], pointer: impl Fn(usize) -> LinePointer) {
        self.tuples.clear();
        self.unlisted = 0;
        for (first, &word) in (0..).step_by(64).zip(bits) {
            let mut left = word;
            while left != 0 {
                self.tuples.push(pointer(first + left.trailing_zeros() as usize));
                left &= left - 1;
            }
        }
    }

    /// Puts all tuples of `page`, for which [`Visibility::select`] made this set, into the list, if they are not there.
    #[inline]
    pub(crate) fn list(&mut self, page: &ValidPage<'_>) {
        if self.unlisted > 0 {
            self.unlisted = 0;
            page.collect_line_pointers(&mut self.tuples);
        }
    }
}

/// The visibility test of a scan. Can be shared by threads.
#[derive(Debug)]
pub struct Visibility<'log> {
    log: &'log TransactionLog,
    rows: Rows,
    future: AtomicU64,
}

/// The last transaction that was looked up: neighbours on a page mostly share theirs.
struct Recent {
    xid: u32,
    status: XidStatus,
}

impl Recent {
    /// Invalid, like `InvalidTransactionId`: knows nothing of any other.
    fn none() -> Self {
        Self { xid: 0, status: XidStatus::Aborted }
    }

    #[inline]
    fn status(&mut self, log: &TransactionLog, xid: u32) -> Result<XidStatus> {
        if self.xid != xid {
            *self = Self { xid, status: log.status(xid)? };
        }
        Ok(self.status)
    }
}

impl<'log> Visibility<'log> {
    /// A test for `rows` against `log`.
    pub fn new(log: &'log TransactionLog, rows: Rows) -> Self {
        Self { log, rows, future: AtomicU64::new(0) }
    }

    /// How many transaction ids were met that the cluster never gave out: damage, or a reset counter.
    pub fn future_xids(&self) -> u64 {
        self.future.load(Ordering::Relaxed)
    }

    /// Whether the scan wants `tuple`.
    ///
    /// # Errors
    /// As [`status`](Self::status).
    pub fn check(&self, tuple: &TupleRef<'_>) -> Result<bool> {
        match self.rows {
            Rows::All => Ok(true),
            rows => Ok((self.status(tuple)? == Status::Visible) == (rows == Rows::Committed)),
        }
    }

    /// What became of `tuple`.
    ///
    /// # Errors
    /// `Visibility` or `Io` if the fate of a transaction cannot be found out.
    pub fn status(&self, tuple: &TupleRef<'_>) -> Result<Status> {
        self.judge(tuple, &mut Recent::none(), &mut Recent::none())
    }

    /// Puts the tuples of `page` that the scan wants into `out`, replacing what was there.
    ///
    /// # Errors
    /// As [`status`](Self::status).
    pub fn visible(&self, page: &ValidPage<'_>, out: &mut VisibleSet) -> Result<()> {
        self.select(page, out)?;
        out.list(page);
        Ok(())
    }

    /// As [`visible`](Self::visible), but if all tuples of the page are wanted they are only counted where that is enough
    /// to know them: [`VisibleSet::list`] lists them when somebody needs that.
    pub(crate) fn select(&self, page: &ValidPage<'_>, out: &mut VisibleSet) -> Result<()> {
        out.tuples.clear();
        out.unlisted = 0;
        if self.rows == Rows::All || page.all_visible() || self.all_alike(page) {
            if self.rows != Rows::Dead {
                out.unlisted = usize::from(page.summary().tuples);
                if out.unlisted == 0 {
                    // No tuples, or nothing is known of the page.
                    page.collect_line_pointers(&mut out.tuples);
                }
            }
            return Ok(());
        }
        out.tuples.reserve(usize::from(page.line_pointer_count()));
        let wanted = self.rows == Rows::Committed;
        let (mut inserter, mut deleter) = (Recent::none(), Recent::none());
        for pointer in page.line_pointers() {
            let tuple = page.tuple(pointer);
            let visible =
                self.plainly_visible(&tuple) || self.judge(&tuple, &mut inserter, &mut deleter)? == Status::Visible;
            if visible == wanted {
                out.tuples.push(pointer);
            }
        }
        Ok(())
    }

    /// As [`visible`](Self::visible), but a tuple whose fate cannot be found out goes, with its number, to `unknown`, and
    /// is left out.
    ///
    /// # Errors
    /// What `unknown` says.
    pub(crate) fn select_known(
        &self,
        page: &ValidPage<'_>,
        out: &mut VisibleSet,
        mut unknown: impl FnMut(Error, u16) -> Result<()>,
    ) -> Result<()> {
        out.tuples.clear();
        out.unlisted = 0;
        for pointer in page.line_pointers() {
            match self.check(&page.tuple(pointer)) {
                Ok(true) => out.tuples.push(pointer),
                Ok(false) => {}
                Err(error) => unknown(error, pointer.number)?,
            }
        }
        Ok(())
    }

    /// Whether the summary of the page alone says that all its tuples are visible: none was deleted, and all were
    /// inserted by transactions known to have committed, or by the same one.
    fn all_alike(&self, page: &ValidPage<'_>) -> bool {
        let summary = page.summary();
        if summary.tuples == 0 || summary.infomask_all & bits::XMAX_INVALID == 0 {
            return false;
        }
        let (first, last) = (summary.xmin_min, summary.xmin_max);
        match summary.infomask_all & bits::XMIN_FROZEN {
            bits::XMIN_FROZEN => true,
            bits::XMIN_COMMITTED => self.log.all_past(first, last),
            _ => {
                const OTHER: u16 = bits::XMIN_FROZEN | bits::MOVED_OFF | bits::MOVED_IN;
                first == last
                    && summary.infomask_any & OTHER == 0
                    && self.log.status(first).is_ok_and(|status| status == XidStatus::Committed)
            }
        }
    }

    /// The most frequent case in one test: hinted as committed and as not deleted.
    #[inline(always)]
    fn plainly_visible(&self, tuple: &TupleRef<'_>) -> bool {
        const WANT: u16 = bits::XMIN_COMMITTED | bits::XMAX_INVALID;
        let mask = tuple.infomask();
        mask & WANT == WANT && (mask & bits::XMIN_INVALID != 0 || !self.log.is_future(tuple.xmin()))
    }

    fn judge(&self, tuple: &TupleRef<'_>, inserter: &mut Recent, deleter: &mut Recent) -> Result<Status> {
        let located = |error: Error| {
            // The error's path is the status file; the row is what the user can look at.
            error.in_context(format_args!("row ({},{})", tuple.block(), tuple.number()))
        };
        match self.inserted(tuple, inserter).map_err(located)? {
            XidStatus::Committed => {}
            XidStatus::Aborted => return Ok(Status::Aborted),
            XidStatus::Unfinished => return Ok(Status::Unfinished),
            XidStatus::Future => {
                self.count_future();
                return Ok(Status::Future);
            }
        }
        let deleted = self.deleted(tuple, deleter).map_err(located)?;
        Ok(if deleted { Status::Deleted } else { Status::Visible })
    }

    /// How the insert ended.
    fn inserted(&self, tuple: &TupleRef<'_>, recent: &mut Recent) -> Result<XidStatus> {
        let mask = tuple.infomask();
        match mask & bits::XMIN_FROZEN {
            // Frozen, whatever xmin says: both bits together mean neither.
            bits::XMIN_FROZEN => return Ok(XidStatus::Committed),
            bits::XMIN_COMMITTED => {
                let future = self.log.is_future(tuple.xmin());
                return Ok(if future { XidStatus::Future } else { XidStatus::Committed });
            }
            bits::XMIN_INVALID => return Ok(XidStatus::Aborted),
            _ => {}
        }
        if mask & (bits::MOVED_OFF | bits::MOVED_IN) != 0 {
            return self.moved(tuple);
        }
        recent.status(self.log, tuple.xmin())
    }

    /// A VACUUM FULL of 8.4 or older moved the row: its transaction, in `t_field3`, decides which copy counts. The row
    /// itself was committed, or it would not have been moved.
    #[cold]
    fn moved(&self, tuple: &TupleRef<'_>) -> Result<XidStatus> {
        let away = tuple.infomask() & bits::MOVED_OFF != 0;
        let vacuum_committed = self.log.status(tuple.field3())? == XidStatus::Committed;
        Ok(if vacuum_committed == away { XidStatus::Aborted } else { XidStatus::Committed })
    }

    /// Whether a delete or update of the row committed.
    fn deleted(&self, tuple: &TupleRef<'_>, recent: &mut Recent) -> Result<bool> {
        let mask = tuple.infomask();
        if mask & bits::XMAX_INVALID != 0 || only_locked(mask) {
            return Ok(false);
        }
        let xid = if mask & bits::XMAX_IS_MULTI != 0 {
            match self.log.multixact_updater(tuple.xmax())? {
                Some(updater) => updater,
                None => return Ok(false),
            }
        } else if mask & bits::XMAX_COMMITTED != 0 && !self.log.is_future(tuple.xmax()) {
            return Ok(true);
        } else {
            tuple.xmax()
        };
        match recent.status(self.log, xid)? {
            XidStatus::Committed => Ok(true),
            XidStatus::Aborted | XidStatus::Unfinished => Ok(false),
            XidStatus::Future => {
                self.count_future();
                Ok(false)
            }
        }
    }

    #[cold]
    fn count_future(&self) {
        self.future.fetch_add(1, Ordering::Relaxed);
    }
}

/// Whether xmax only locks (`HEAP_XMAX_IS_LOCKED_ONLY`): it says so, or it is an exclusive lock as 9.2 and older wrote
/// it, which had no bit for that and no other lock strength beside it.
fn only_locked(mask: u16) -> bool {
    mask & bits::XMAX_LOCK_ONLY != 0 || mask & (bits::XMAX_IS_MULTI | bits::LOCK_MASK) == bits::XMAX_EXCL_LOCK
}
