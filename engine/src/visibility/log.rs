//! How transactions ended: `pg_xact`, `pg_subtrans`, `pg_multixact`.

use super::slru::Slru;
use crate::{Error, ErrorKind, Result};
use std::path::Path;

/// The counters of the control file that transaction ids are judged by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransactionCounters {
    /// `nextXid` with its epoch in the upper 32 bits: no transaction has this id or a later one.
    pub next_xid: u64,
    /// `oldestXid`: `pg_xact` reaches back to here.
    pub oldest_xid: u32,
    /// `nextMulti`.
    pub next_multi: u32,
    /// `nextMultiOffset`.
    pub next_multi_offset: u32,
    /// `oldestMulti`: `pg_multixact` reaches back to here.
    pub oldest_multi: u32,
}

/// How a transaction ended, seen from a cluster at rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XidStatus {
    /// It committed.
    Committed,
    /// It rolled back.
    Aborted,
    /// It never ended: it was running at a crash, or is prepared. Its rows are not there.
    Unfinished,
    /// The id was never given out: it is at or beyond the next one.
    Future,
}

/// Special ids below this are no transactions of somebody.
const FIRST_NORMAL_XID: u32 = 3;
/// `BootstrapTransactionId` and `FrozenTransactionId` are committed.
const BOOTSTRAP_XID: u32 = 1;

/// Members lie in groups of four: a word with their four statuses, then their ids.
const GROUP_MEMBERS: u32 = 4;
const GROUP_BYTES: u64 = 20;
/// Member statuses from here on are updates or deletes, those below are locks (`ISUPDATE_from_mxstatus`).
const FIRST_UPDATE_STATUS: u8 = 4;
/// More members than any number of sessions makes: a damaged offset must not cost hours.
const MEMBERS_MAX: u32 = 1 << 22;
/// Longest chain of parents that is followed.
const SUBTRANSACTION_DEPTH_MAX: u32 = 1 << 16;

/// The transaction status files of a cluster. Can be shared by threads; segments are read once, when needed.
#[derive(Debug)]
pub struct TransactionLog {
    counters: TransactionCounters,
    block_size: u32,
    xact: Slru,
    subtrans: Slru,
    offsets: Slru,
    members: Slru,
}

/// Whether `a` is older than `b` on the circle of 2^32 ids.
fn precedes(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) < 0
}

impl TransactionLog {
    /// Opens the status files below the data directory `pgdata`. SLRU pages have the cluster's block size.
    ///
    /// # Errors
    /// `Io` if a directory cannot be listed; `Unsupported` if `major_version` is not 12 to 18 (19 lays multixacts out
    /// differently).
    pub fn open(pgdata: &Path, counters: TransactionCounters, block_size: u32, major_version: u32) -> Result<Self> {
        if !(12..=18).contains(&major_version) {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!("transaction status files of PostgreSQL {major_version}"),
            )
            .with_path(pgdata)
            .with_hint("12 to 18 are read"));
        }
        Ok(Self {
            counters,
            block_size,
            xact: Slru::open(pgdata.join("pg_xact"), block_size)?,
            subtrans: Slru::open(pgdata.join("pg_subtrans"), block_size)?,
            offsets: Slru::open(pgdata.join("pg_multixact/offsets"), block_size)?,
            members: Slru::open(pgdata.join("pg_multixact/members"), block_size)?,
        })
    }

    /// The counters it was opened with.
    pub fn counters(&self) -> &TransactionCounters {
        &self.counters
    }

    /// Whether `xid` was never given out.
    #[inline(always)]
    pub fn is_future(&self, xid: u32) -> bool {
        xid >= FIRST_NORMAL_XID && !precedes(xid, self.counters.next_xid as u32)
    }

    /// Whether every id that is, as a plain number, between `first` and `last` was given out.
    ///
    /// The ids that were are the half circle before the next one. When both ends lie in it and the way up from one to
    /// the other is less than half the circle, that way cannot have left it.
    pub(super) fn all_past(&self, first: u32, last: u32) -> bool {
        first >= FIRST_NORMAL_XID
            && last.wrapping_sub(first) < 1 << 31
            && !self.is_future(first)
            && !self.is_future(last)
    }

    /// How transaction `xid` ended.
    ///
    /// # Errors
    /// `Visibility` naming the transaction and the `pg_xact` segment that should know; `Io`.
    pub fn status(&self, xid: u32) -> Result<XidStatus> {
        let mut xid = xid;
        for _ in 0..SUBTRANSACTION_DEPTH_MAX {
            if xid < FIRST_NORMAL_XID {
                return Ok(if xid >= BOOTSTRAP_XID { XidStatus::Committed } else { XidStatus::Aborted });
            }
            if self.is_future(xid) {
                return Ok(XidStatus::Future);
            }
            match self.commit_bits(xid)? {
                0 => return Ok(XidStatus::Unfinished),
                1 => return Ok(XidStatus::Committed),
                2 => return Ok(XidStatus::Aborted),
                // Sub-committed: as its parent. Only a crash between the two steps of a commit leaves this.
                _ => match self.parent(xid) {
                    Some(parent) => xid = parent,
                    None => return Ok(XidStatus::Unfinished),
                },
            }
        }
        Ok(XidStatus::Unfinished)
    }

    fn commit_bits(&self, xid: u32) -> Result<u8> {
        let per_page = self.block_size * 4;
        let [byte] = self.xact.read(u64::from(xid / per_page), u64::from(xid % per_page / 4), &|| {
            let oldest = self.counters.oldest_xid;
            let age = if precedes(xid, oldest) { ", older than any that is kept" } else { "" };
            format!("status of transaction {xid} (kept: {oldest} to {}{age})", self.counters.next_xid as u32)
        })?;
        Ok(byte >> (xid % 4 * 2) & 3)
    }

    /// The parent of a subtransaction, as long as `pg_subtrans` still knows it. Parents are older than their children.
    fn parent(&self, xid: u32) -> Option<u32> {
        let per_page = self.block_size / 4;
        let bytes = self.subtrans.read(u64::from(xid / per_page), u64::from(xid % per_page) * 4, &String::new).ok()?;
        let parent = u32::from_le_bytes(bytes);
        (parent >= FIRST_NORMAL_XID && precedes(parent, xid)).then_some(parent)
    }

    /// The member of multixact `multi` that updated or deleted, if there is one; the others only locked.
    ///
    /// # Errors
    /// `Visibility` naming the multixact if it was never made, is no longer kept, or its files do not have it; `Io`.
    pub fn multixact_updater(&self, multi: u32) -> Result<Option<u32>> {
        let TransactionCounters { next_multi, next_multi_offset, oldest_multi, .. } = self.counters;
        if multi == 0 || !precedes(multi, next_multi) || precedes(multi, oldest_multi) {
            return Err(self.bad_multixact(multi, &format!("only {oldest_multi} to {next_multi} are kept")));
        }
        let start = self.member_offset(multi)?;
        // Id 0 is left out when the counter wraps.
        let next = multi.wrapping_add(1).max(1);
        // The last one's end is in the control file: up to PostgreSQL 13 the entry behind it is still 0.
        let end = match next == next_multi {
            true => next_multi_offset,
            // 0 is no offset but an entry that was never written.
            false => Some(self.member_offset(next)?).filter(|&end| end != 0).unwrap_or(start),
        };
        let count = end.wrapping_sub(start);
        if start == 0 || count == 0 || count > MEMBERS_MAX {
            return Err(self.bad_multixact(multi, &format!("members from {start} to {end} cannot be")));
        }
        for i in 0..count {
            let (xid, status) = self.member(multi, start.wrapping_add(i))?;
            // Offset 0 is left out when the counter wraps, and reads as transaction 0.
            if status >= FIRST_UPDATE_STATUS && xid != 0 {
                return Ok(Some(xid));
            }
        }
        Ok(None)
    }

    fn member_offset(&self, multi: u32) -> Result<u32> {
        let per_page = self.block_size / 4;
        let bytes = self.offsets.read(u64::from(multi / per_page), u64::from(multi % per_page) * 4, &|| {
            format!("members of multixact {multi}")
        })?;
        Ok(u32::from_le_bytes(bytes))
    }

    fn member(&self, multi: u32, offset: u32) -> Result<(u32, u8)> {
        let groups = self.block_size / GROUP_BYTES as u32;
        let (group, index) = (offset / GROUP_MEMBERS, u64::from(offset % GROUP_MEMBERS));
        let (page, base) = (u64::from(group / groups), u64::from(group % groups) * GROUP_BYTES);
        let what = || format!("member {offset} of multixact {multi}");
        let [status] = self.members.read(page, base + index, &what)?;
        let xid = self.members.read(page, base + 4 + index * 4, &what)?;
        Ok((u32::from_le_bytes(xid), status))
    }

    #[cold]
    fn bad_multixact(&self, multi: u32, why: &str) -> Error {
        Error::new(ErrorKind::Visibility, format!("multixact {multi}: {why}")).with_path(self.offsets.directory())
    }
}
