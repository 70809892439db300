//! What happens inside a tokio-uring runtime.

use crate::{
    DataFile,
    transfer::{Core, Operation, Step, Transfer},
};
use std::{
    cell::RefCell,
    collections::HashMap,
    os::fd::RawFd,
    rc::Rc,
    sync::{Arc, Weak},
};

/// Files of the runtime, which want descriptors of their own (duplicates), by file and descriptor.
#[derive(Default)]
pub(super) struct Files(RefCell<HashMap<(u64, RawFd), Known>>);

struct Known {
    ours: Weak<DataFile>,
    theirs: Rc<tokio_uring::fs::File>,
}

impl Files {
    fn get(&self, file: &Arc<DataFile>, fd: RawFd) -> std::io::Result<Rc<tokio_uring::fs::File>> {
        let mut known = self.0.borrow_mut();
        if let Some(found) = known.get(&(file.id(), fd)) {
            return Ok(Rc::clone(&found.theirs));
        }
        // Files that are closed on our side, which by then have no reads in flight.
        known.retain(|_, entry| entry.ours.strong_count() > 0);
        let theirs = Rc::new(tokio_uring::fs::File::from_std(duplicate(fd)?));
        known.insert((file.id(), fd), Known { ours: Arc::downgrade(file), theirs: Rc::clone(&theirs) });
        Ok(theirs)
    }
}

#[allow(unsafe_code, reason = "the runtime is lent memory that a request promised")]
mod fence {
    use super::*;
    use std::os::fd::BorrowedFd;
    use tokio_uring::buf::{IoBuf, IoBufMut};

    /// A piece of a request's memory, for as long as its transfer lives.
    pub(super) struct ArenaBuf {
        base: *mut u8,
        len: usize,
    }

    impl ArenaBuf {
        pub(super) fn of(iovec: &libc::iovec) -> Self {
            Self { base: iovec.iov_base.cast(), len: iovec.iov_len }
        }
    }

    // SAFETY: the address is that of a request's segment: it does not move with this value, and is valid until the
    // request's completion. The runtime keeps a buffer until the operation has ended, and `drive` keeps the transfer
    // until then, too.
    unsafe impl IoBuf for ArenaBuf {
        fn stable_ptr(&self) -> *const u8 {
            self.base
        }

        fn bytes_init(&self) -> usize {
            // Nothing that the runtime may look at.
            0
        }

        fn bytes_total(&self) -> usize {
            self.len
        }
    }

    // SAFETY: as above; a request's memory is valid for writes and nobody else's.
    unsafe impl IoBufMut for ArenaBuf {
        fn stable_mut_ptr(&mut self) -> *mut u8 {
            self.base
        }

        unsafe fn set_init(&mut self, _pos: usize) {}
    }

    /// A descriptor of its own for the same open file.
    pub(super) fn duplicate(fd: RawFd) -> std::io::Result<std::fs::File> {
        // SAFETY: `fd` belongs to a `DataFile` that the caller's transfer holds open.
        let borrowed = unsafe { BorrowedFd::borrow_raw(fd) };
        borrowed.try_clone_to_owned().map(std::fs::File::from)
    }
}
use fence::{ArenaBuf, duplicate};

/// Holds a transfer while it is under way. If the runtime gives up on it (it panics when it cannot submit), the rest is
/// read here, so that its completion comes in any case.
struct Guard<'a> {
    transfer: Option<Transfer>,
    core: &'a Core,
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        if let Some(mut transfer) = self.transfer.take() {
            crate::stats::add(&self.core.counters.blocking_reads, 1);
            transfer.run(self.core, Step::Ask);
            transfer.finish(self.core);
        }
    }
}

/// Reads one request to its end.
pub(super) async fn drive(transfer: Transfer, files: &Files, core: &Core) {
    let mut guard = Guard { transfer: Some(transfer), core };
    let mut step = Step::Ask;
    while let Some(transfer) = guard.transfer.as_mut()
        && step != Step::Done
        && let Some(operation) = transfer.prepare(core)
    {
        // Without a descriptor for the duplicate (EMFILE: closing ours does not free the runtime's at once) the read
        // needs none but the one that is open already.
        let theirs = match step {
            Step::Block => None,
            _ => files.get(&transfer.request().file, operation.fd).ok(),
        };
        let answer = match &theirs {
            None => {
                crate::stats::add(&core.counters.blocking_reads, 1);
                transfer.read_now()
            }
            Some(file) => {
                crate::stats::add(&core.counters.submits, 1);
                ask(transfer, operation, file).await
            }
        };
        step = transfer.settle(answer, theirs.is_none(), core);
    }
    if let Some(transfer) = guard.transfer.take() {
        transfer.finish(core);
    }
}

/// One operation through the runtime; the answer as the kernel gives it.
async fn ask(transfer: &Transfer, operation: Operation, file: &tokio_uring::fs::File) -> i32 {
    let result = match transfer.iovecs() {
        [only] => file.read_at(ArenaBuf::of(only), operation.offset).await.0,
        many => file.readv_at(many.iter().map(ArenaBuf::of).collect(), operation.offset).await.0,
    };
    match result {
        // `prepare` bounds it by 1 GiB.
        Ok(bytes) => i32::try_from(bytes).unwrap_or(i32::MAX),
        Err(error) => -error.raw_os_error().unwrap_or(libc::EIO),
    }
}
