//! Damage: what is done about a page, a row or a value that cannot be read, and the list of what was lost.
//!
//! Dangers: with any policy but [`OnCorruption::Fail`] a scan ends well although rows are missing. Whoever chooses one
//! looks at [`DamageLog::totals`] afterwards.
//!
//! - A page is all or nothing: of one that fails its checksum, or whose header, line pointers or tuple headers cannot be, no
//!   row is given out. Before it counts as damaged it is read a second time, because a writer may have been at work.
//! - A row is all or nothing: if one of the columns that are asked for cannot be read (a missing TOAST chunk, a broken
//!   compressed stream, a length that leads out of the tuple), or the fate of its transaction is not known, the row is left
//!   out. A NULL in place of the value would be a lie.

use crate::{Error, ErrorKind, Result};
use rustc_hash::FxHashSet;
use serde::Serialize;
use std::{
    fmt,
    path::{Path, PathBuf},
    str::FromStr,
    sync::{Mutex, MutexGuard, PoisonError},
};

/// What to do about damage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnCorruption {
    /// It is an error.
    #[default]
    Fail,
    /// What is damaged is left out and put on the list: pages, rows, files that end too early, missing segments.
    Skip,
    /// As PostgreSQL's `zero_damaged_pages`: a damaged page, and a block that should be there and is not, counts as
    /// empty and is put on the list. Damage within a row of a good page is an error.
    Zero,
}

impl OnCorruption {
    const ALL: [Self; 3] = [Self::Fail, Self::Skip, Self::Zero];
}

impl fmt::Display for OnCorruption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Fail => "fail",
            Self::Skip => "skip",
            Self::Zero => "zero",
        })
    }
}

impl FromStr for OnCorruption {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|policy| policy.to_string() == text)
            .ok_or_else(|| format!("{text:?} is none of fail, skip, zero"))
    }
}

/// What kind of thing is damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DamageKind {
    /// A block whose bytes cannot be a page, or fail their checksum.
    Page,
    /// Blocks that should be there and are not: a missing segment, a file that ends too early or shrank.
    Missing,
    /// A block that the device does not give (`EIO`).
    Unreadable,
    /// A row, or one of its values.
    Row,
    /// A row of a TOAST table, or of a catalog. Rows of the table that need it are listed on their own.
    Chunk,
    /// The status of a row's transaction, which is missing or damaged.
    Status,
    /// A file as a whole.
    File,
}

/// One piece of damage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Damage {
    /// The file (segment) where it is.
    pub file: PathBuf,
    /// The first block, counted over all segments.
    pub block: Option<u32>,
    /// How many blocks.
    pub blocks: u32,
    /// Number of the line pointer, from 1.
    pub tuple: Option<u16>,
    /// What kind of thing.
    pub kind: DamageKind,
    /// What is wrong, in words.
    pub reason: String,
    /// Rows that are lost by it, if that is known. Of [`DamageKind::Status`] the most: nobody knows if the row was there.
    pub rows_lost: Option<u64>,
}

/// How much damage there was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DamageTotals {
    /// Pieces of damage, listed or not.
    pub found: u64,
    /// Blocks that were left out, or counted as empty.
    pub blocks: u64,
    /// Rows of good pages that were left out.
    pub rows: u64,
    /// Files that end too early, or in a piece of a block.
    pub files: u64,
    /// Pages that failed at first and were right when they were read again. Not damage, but something writes here.
    pub reread: u64,
}

/// More pieces than this are only counted.
const LISTED_MAX: usize = 100_000;

#[derive(Debug, Default)]
struct State {
    list: Vec<Damage>,
    seen: FxHashSet<(PathBuf, Option<u32>, Option<u16>)>,
    totals: DamageTotals,
}

/// The policy of an engine, and what was found so far by all of its scans, catalogs included.
#[derive(Debug, Default)]
pub struct DamageLog {
    policy: OnCorruption,
    state: Mutex<State>,
}

impl DamageLog {
    pub(crate) fn new(policy: OnCorruption) -> Self {
        Self { policy, state: Mutex::default() }
    }

    /// The policy.
    pub fn policy(&self) -> OnCorruption {
        self.policy
    }

    /// How much there was.
    pub fn totals(&self) -> DamageTotals {
        self.lock().totals
    }

    /// The list, in the order in which it was found. Not more than 100,000 pieces; [`DamageTotals::found`] counts all.
    pub fn list(&self) -> Vec<Damage> {
        self.lock().list.clone()
    }

    /// Whether rows that cannot be read are left out.
    pub(crate) fn skips_rows(&self) -> bool {
        self.policy == OnCorruption::Skip
    }

    /// Passes over a block that cannot be read or is no page, if the policy says so.
    ///
    /// # Errors
    /// `error`, if it does not, or if it is no damage but for instance a lack of memory.
    #[cold]
    pub(crate) fn pass_block(&self, error: Error) -> Result<()> {
        let kind = match (error.kind(), error.errno()) {
            (ErrorKind::Checksum, _) => DamageKind::Page,
            (ErrorKind::Corrupt, None) if error.is_missing_block() => DamageKind::Missing,
            (ErrorKind::Corrupt, None) => DamageKind::Page,
            // A file that shrank or went away.
            (ErrorKind::Io, None | Some(libc::ENOENT)) => DamageKind::Missing,
            (ErrorKind::Io, Some(libc::EIO | libc::ENODATA | libc::EUCLEAN | libc::EBADMSG | libc::EREMOTEIO)) => {
                DamageKind::Unreadable
            }
            _ => return Err(error),
        };
        let passes = match self.policy {
            OnCorruption::Fail => false,
            OnCorruption::Skip => true,
            // zero_damaged_pages speaks of pages that came, and of blocks behind the end of the file.
            OnCorruption::Zero => kind != DamageKind::Unreadable,
        };
        let Some(file) = error.path().filter(|_| passes) else { return Err(error) };
        self.add(Damage {
            file: file.to_owned(),
            block: error.block(),
            blocks: 1,
            tuple: None,
            kind,
            reason: error.message().to_owned(),
            rows_lost: None,
        });
        Ok(())
    }

    /// Leaves out the row `(block, tuple)` of `file`, if the policy says so.
    ///
    /// # Errors
    /// `error`, if it does not, or if it is no damage.
    #[cold]
    pub(crate) fn pass_row(&self, error: Error, file: impl FnOnce() -> PathBuf, block: u32, tuple: u16) -> Result<()> {
        let kind = match error.kind() {
            ErrorKind::Visibility => DamageKind::Status,
            ErrorKind::Corrupt | ErrorKind::Schema | ErrorKind::Value | ErrorKind::Checksum => DamageKind::Row,
            // Of the status files, or of the TOAST table.
            ErrorKind::Io if error.path().is_some() => DamageKind::Row,
            _ => return Err(error),
        };
        if !self.skips_rows() || error.is_refusal() {
            return Err(error);
        }
        let file = file();
        let reason = match error.path() {
            Some(other) if other != file => error.to_string(),
            _ => error.message().to_owned(),
        };
        self.add(Damage { file, block: Some(block), blocks: 1, tuple: Some(tuple), kind, reason, rows_lost: Some(1) });
        Ok(())
    }

    /// As [`pass_row`](Self::pass_row), for the rows of TOAST tables and catalogs, which are not what the scan is after.
    #[cold]
    pub(crate) fn pass_chunk(
        &self,
        error: Error,
        file: impl FnOnce() -> PathBuf,
        block: u32,
        tuple: u16,
    ) -> Result<()> {
        let one = Self { policy: self.policy, state: Mutex::default() };
        one.pass_row(error, file, block, tuple)?;
        for damage in one.list() {
            self.add(Damage { kind: DamageKind::Chunk, rows_lost: None, ..damage });
        }
        Ok(())
    }

    /// Notes what is wrong with a file as a whole, from `block` on.
    ///
    /// # Errors
    /// `error`, if the policy does not pass over it.
    #[cold]
    pub(crate) fn pass_file(&self, error: Error, block: u32) -> Result<()> {
        let Some(file) = error.path().filter(|_| self.policy != OnCorruption::Fail) else { return Err(error) };
        self.add(Damage {
            file: file.to_owned(),
            block: Some(block),
            blocks: 0,
            tuple: None,
            kind: DamageKind::File,
            reason: error.message().to_owned(),
            rows_lost: None,
        });
        Ok(())
    }

    /// Puts an error that ended a scan on the list, if it is about damage, for reports of what was wrong.
    pub fn record(&self, error: &Error) {
        let kind = match error.kind() {
            ErrorKind::Checksum => DamageKind::Page,
            ErrorKind::Corrupt if error.is_missing_block() => DamageKind::Missing,
            ErrorKind::Corrupt if error.block().is_some() => DamageKind::Page,
            ErrorKind::Corrupt => DamageKind::File,
            ErrorKind::Schema | ErrorKind::Value => DamageKind::Row,
            ErrorKind::Visibility => DamageKind::Status,
            _ => return,
        };
        let (Some(file), false) = (error.path(), error.is_refusal()) else { return };
        self.add(Damage {
            file: file.to_owned(),
            block: error.block(),
            blocks: 0,
            tuple: None,
            kind,
            reason: error.message().to_owned(),
            rows_lost: None,
        });
    }

    /// Counts a page that was right when it was read again.
    pub(crate) fn count_reread(&self) {
        self.lock().totals.reread += 1;
    }

    /// Takes over what somebody else found.
    pub(crate) fn add(&self, damage: Damage) {
        let mut state = self.lock();
        let known = state.list.iter().rev().find(|d| d.kind == DamageKind::Missing).is_some_and(|d| d.covers(&damage));
        if known || !state.seen.insert((damage.file.clone(), damage.block, damage.tuple)) {
            // Catalogs are read several times.
            return;
        }
        match damage.kind {
            DamageKind::Page | DamageKind::Missing | DamageKind::Unreadable => {
                state.totals.blocks += u64::from(damage.blocks);
            }
            DamageKind::Row | DamageKind::Status => state.totals.rows += 1,
            DamageKind::File => state.totals.files += 1,
            DamageKind::Chunk => {}
        }
        if state.list.last_mut().is_some_and(|last| last.extend(&damage)) {
            return;
        }
        state.totals.found += 1;
        if state.list.len() < LISTED_MAX {
            state.list.push(damage);
        }
        if state.seen.len() > 2 * LISTED_MAX {
            state.seen.clear();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // What it guards is consistent whenever it is released, also by a panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Damage {
    /// Whether `other` is a block that this range of missing blocks has.
    fn covers(&self, other: &Self) -> bool {
        other.kind == self.kind
            && other.file == self.file
            && matches!((self.block, other.block), (Some(first), Some(block))
                if block >= first && block - first < self.blocks)
    }

    /// Takes in a block that follows, missing for the same reason: a segment has up to 131,072.
    fn extend(&mut self, other: &Self) -> bool {
        let follows = self.kind == DamageKind::Missing
            && other.kind == self.kind
            && other.file == self.file
            && other.reason == self.reason
            && self.block.and_then(|first| first.checked_add(self.blocks)) == other.block;
        if follows {
            self.blocks += other.blocks;
        }
        follows
    }
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.file.display())?;
        match (self.block, self.blocks) {
            (Some(first), 2..) => write!(f, "blocks {first} to {}: ", first + (self.blocks - 1))?,
            (Some(block), _) => write!(f, "block {block}: ")?,
            (None, _) => {}
        }
        f.write_str(&self.reason)
    }
}

impl DamageTotals {
    /// Whether something was lost.
    pub fn any(&self) -> bool {
        self.found > 0
    }
}

/// A summary in words.
impl fmt::Display for DamageTotals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = |n: u64, word: &str| format!("{n} {word}{}", if n == 1 { "" } else { "s" });
        write!(f, "{} and {} of other blocks were left out", plural(self.blocks, "block"), plural(self.rows, "row"))?;
        if self.files > 0 {
            write!(f, ", {} with damage at the end", plural(self.files, "file"))?;
        }
        Ok(())
    }
}

/// The list as one JSON document: what `--damage-report` writes.
#[derive(Debug, Serialize)]
pub struct DamageReport {
    /// The data directory.
    pub pgdata: PathBuf,
    /// What was scanned.
    pub table: Option<String>,
    /// `fail`, `skip` or `zero`.
    pub on_corruption: String,
    /// Counts of all, listed or not.
    pub totals: DamageTotals,
    /// What was found.
    pub damage: Vec<Damage>,
}

impl DamageReport {
    /// The report of `log`.
    pub fn new(pgdata: &Path, table: Option<String>, log: &DamageLog) -> Self {
        let (totals, damage) = {
            let state = log.lock();
            (state.totals, state.list.clone())
        };
        Self { pgdata: pgdata.to_owned(), table, on_corruption: log.policy.to_string(), totals, damage }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn missing(block: u32) -> Error {
        Error::new(ErrorKind::Io, "block has vanished").with_path("/t/1").with_block(block)
    }

    #[test]
    fn policies_have_names() {
        for policy in OnCorruption::ALL {
            assert_eq!(policy.to_string().parse(), Ok(policy));
        }
        assert!("ignore".parse::<OnCorruption>().is_err());
    }

    #[test]
    fn neighbours_that_are_missing_are_one_piece() {
        let log = DamageLog::new(OnCorruption::Skip);
        for block in [7, 8, 9, 12, 8] {
            log.pass_block(missing(block)).unwrap();
        }
        let list: Vec<_> = log.list().iter().map(|d| (d.block, d.blocks)).collect();
        assert_eq!(list, [(Some(7), 3), (Some(12), 1)]);
        let totals = log.totals();
        assert_eq!((totals.found, totals.blocks), (2, 4));
        assert_eq!(log.list()[0].to_string(), "/t/1: blocks 7 to 9: block has vanished");
    }

    #[test]
    fn what_each_policy_passes_over() {
        let page = || Error::new(ErrorKind::Checksum, "checksum mismatch").with_path("/t/1").with_block(3);
        let unreadable = || Error::os("/t/1", "read", &std::io::Error::from_raw_os_error(libc::EIO)).with_block(3);
        let forbidden = || Error::os("/t/1", "open", &std::io::Error::from_raw_os_error(libc::EACCES)).with_block(3);
        let row = || Error::new(ErrorKind::Value, "a chunk is missing");
        for (policy, expected) in [
            (OnCorruption::Fail, [false; 5]),
            (OnCorruption::Skip, [true, true, true, false, true]),
            (OnCorruption::Zero, [true, true, false, false, false]),
        ] {
            let log = DamageLog::new(policy);
            let passed = [
                log.pass_block(page()).is_ok(),
                log.pass_block(missing(9)).is_ok(),
                log.pass_block(unreadable()).is_ok(),
                log.pass_block(forbidden()).is_ok(),
                log.pass_row(row(), || "/t/1".into(), 5, 2).is_ok(),
            ];
            assert_eq!(passed, expected, "{policy}");
        }
        let log = DamageLog::new(OnCorruption::Skip);
        assert!(log.pass_row(row().into_refusal(), || "/t/1".into(), 5, 2).is_err(), "a refusal is no damage");
        assert!(!log.totals().any());
    }
}
