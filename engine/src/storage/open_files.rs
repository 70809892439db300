//! How many data files are open at a time, and which one has to go.

use crate::{Error, ErrorKind, Result};
use heapscan_io::DataFile;
use nix::sys::resource::{Resource, getrlimit};
use std::{
    io,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError, Weak,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

/// Even with an unlimited RLIMIT_NOFILE no more files are kept open than this.
const MOST: usize = 8192;

/// A file that is opened when it is needed.
#[derive(Debug, Default)]
pub(super) struct Slot {
    file: Mutex<Option<Arc<DataFile>>>,
    /// When it was last asked for, by the clock of its table.
    used: AtomicU64,
}

/// The open data files of a process, of which the least recently used ones are closed when there are too many (as
/// PostgreSQL's `max_files_per_process` does it). Files with reads in flight stay open.
///
/// Locks: that of a slot, then that of the table; slots of others are only tried, so nobody waits in a circle.
#[derive(Debug, Default)]
pub struct OpenFiles {
    /// 0: from RLIMIT_NOFILE.
    limit: AtomicUsize,
    clock: AtomicU64,
    slots: Mutex<Vec<Weak<Slot>>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What the mutexes here guard is consistent whenever they are released, also by a panic.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl OpenFiles {
    /// A table that keeps at most `limit` files open, at least one.
    pub fn new(limit: usize) -> Self {
        Self { limit: AtomicUsize::new(limit.max(1)), ..Self::default() }
    }

    /// The table of all relations of the process, unless they were given another one.
    pub fn of_process() -> &'static Arc<Self> {
        static TABLE: OnceLock<Arc<OpenFiles>> = OnceLock::new();
        TABLE.get_or_init(Arc::default)
    }

    /// Keeps at most `limit` files open from the next opening on; `None`: three quarters of RLIMIT_NOFILE, 8192 at most,
    /// so that a quarter is left for the process's other files, sockets and rings.
    pub fn set_limit(&self, limit: Option<usize>) {
        self.limit.store(limit.map_or(0, |limit| limit.max(1)), Ordering::Relaxed);
    }

    /// How many files it keeps open at most.
    pub fn limit(&self) -> usize {
        match self.limit.load(Ordering::Relaxed) {
            // Asked each time, because it can be changed from outside (prlimit).
            0 => {
                let soft = getrlimit(Resource::RLIMIT_NOFILE).map_or(1024, |(soft, _)| soft);
                usize::try_from(soft / 4 * 3).unwrap_or(MOST).clamp(1, MOST)
            }
            limit => limit,
        }
    }

    /// How many files are open now. More than the limit only when all have reads in flight.
    pub fn count(&self) -> usize {
        let slots: Vec<_> = lock(&self.slots).iter().filter_map(Weak::upgrade).collect();
        slots.iter().filter(|slot| lock(&slot.file).is_some()).count()
    }

    /// The file of `slot`; opens it, if it is not open, once there is room.
    pub(super) fn file(&self, slot: &Arc<Slot>, open: impl Fn() -> Result<DataFile>) -> Result<Arc<DataFile>> {
        slot.used.store(self.clock.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
        let mut place = lock(&slot.file);
        if let Some(file) = &*place {
            return Ok(Arc::clone(file));
        }
        self.close_down_to(self.limit() - 1);
        let opened = loop {
            match open() {
                // The limit of the process, or of the system, is reached before ours.
                Err(error) if matches!(error.errno(), Some(libc::EMFILE | libc::ENFILE)) => {
                    if !self.close_one() {
                        return Err(too_many(error));
                    }
                }
                other => break other?,
            }
        };
        let file = Arc::new(opened);
        *place = Some(Arc::clone(&file));
        lock(&self.slots).push(Arc::downgrade(slot));
        Ok(file)
    }

    /// Opens another file of the cluster; when no descriptor is left, closes data files that nobody reads just now.
    ///
    /// # Errors
    /// Those of `open`.
    pub(crate) fn make_room_for<T>(&self, open: impl Fn() -> io::Result<T>) -> io::Result<T> {
        loop {
            match open() {
                Err(error) if matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE)) && self.close_one() => {
                }
                result => return result,
            }
        }
    }

    fn close_down_to(&self, most: usize) {
        while lock(&self.slots).len() > most {
            if !self.close_one() {
                break;
            }
        }
    }

    /// Closes the least recently used file that nobody uses just now; `false` if there is none.
    fn close_one(&self) -> bool {
        let mut slots = lock(&self.slots);
        let before = slots.len();
        // Relations that are gone have closed their files.
        slots.retain(|slot| slot.strong_count() > 0);
        if slots.len() < before {
            return true;
        }
        let mut order: Vec<_> = slots.iter().filter_map(Weak::upgrade).collect();
        order.sort_by_key(|slot| slot.used.load(Ordering::Relaxed));
        for slot in order {
            let mut place = match slot.file.try_lock() {
                Ok(place) => place,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => continue,
            };
            // Requests hold the file too. New ones can only get it through this slot, which is locked.
            if place.as_ref().is_some_and(|file| Arc::strong_count(file) == 1) {
                *place = None;
                let this = Arc::as_ptr(&slot);
                slots.retain(|other| other.as_ptr() != this);
                return true;
            }
        }
        false
    }
}

fn too_many(error: Error) -> Error {
    let (what, hint) = match error.errno() {
        Some(libc::ENFILE) => ("the system has too many open files (fs.file-max)".to_owned(), "raise fs.file-max"),
        _ => {
            let limit = match getrlimit(Resource::RLIMIT_NOFILE) {
                Ok((soft, hard)) => format!("RLIMIT_NOFILE is {soft} (hard {hard})"),
                Err(_) => "RLIMIT_NOFILE is reached".to_owned(),
            };
            (
                format!("too many open files: {limit}, and every data file that is open is being read"),
                "raise the limit (ulimit -n, LimitNOFILE), or run fewer scans at a time",
            )
        }
    };
    let mut typed = Error::new(ErrorKind::Limit, what).with_hint(hint);
    if let Some(errno) = error.errno() {
        typed = typed.with_errno(errno);
    }
    match error.path() {
        Some(path) => typed.with_path(path),
        None => typed,
    }
}
