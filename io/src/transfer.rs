//! The one rule for partial results, used by every method.
//!
//! Advance by the bytes returned and ask for the rest; zero bytes are the end of the file; EINTR and EAGAIN are asked
//! again a bounded number of times, then by one blocking read, then they are an error. A method only carries operations
//! to the kernel: [`Transfer::prepare`] says what to ask, [`Transfer::settle`] what the answer means.

use crate::{
    Completer, Completion, ReadError, Request,
    fault::{Faults, Injected},
    latency::Latencies,
    stats::{Counters, add},
};
use smallvec::SmallVec;
use std::{
    os::fd::RawFd,
    sync::{Arc, atomic::Ordering},
    time::Instant,
};

/// Segments of one operation at most (`UIO_MAXIOV`); longer requests take several operations.
pub(crate) const IOV_MAX: usize = 1024;
/// Bytes of one operation at most, under the kernel's MAX_RW_COUNT and a multiple of every block size.
const OPERATION_BYTES_MAX: usize = 1 << 30;
/// Refusals (EINTR, EAGAIN) in a row after which one blocking read is tried.
const REFUSALS_MAX: u32 = 16;
/// `RWF_DONTCACHE` of linux/fs.h (Linux 6.14).
pub(crate) const RWF_DONTCACHE: i32 = 0x80;

/// What all parts of a method share.
pub(crate) struct Core {
    pub(crate) completer: Arc<dyn Completer>,
    pub(crate) counters: Counters,
    pub(crate) latencies: Latencies,
    pub(crate) faults: Option<Faults>,
}

/// What to do after an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Ask the kernel for what [`Transfer::prepare`] says now.
    Ask,
    /// The same, but by a blocking call.
    Block,
    /// Nothing: [`Transfer::finish`].
    Done,
}

/// One operation to give to the kernel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operation {
    pub(crate) fd: RawFd,
    pub(crate) offset: u64,
    pub(crate) len: usize,
    /// `RWF_` flags.
    pub(crate) flags: i32,
    /// Whether it goes past the page cache.
    pub(crate) direct: bool,
}

/// A request under way.
pub(crate) struct Transfer {
    request: Request,
    total: usize,
    done: usize,
    iovecs: SmallVec<[libc::iovec; 4]>,
    operation: Operation,
    injected: Injected,
    refusals: u32,
    retries: u32,
    operations: u32,
    /// The rest goes through the page cache although the file is direct.
    rest_buffered: bool,
    error: Option<ReadError>,
    started: Instant,
}

#[allow(unsafe_code, reason = "iovecs hold raw pointers; system calls write through them")]
mod fence {
    use super::*;

    // SAFETY: the raw pointers in `iovecs` point into the segments of `request`, which is `Send` for the reason given
    // there; nothing else in here is bound to a thread.
    unsafe impl Send for Transfer {}

    impl Transfer {
        /// Does the prepared operation by a system call; the answer as the kernel gives it (bytes or a negative errno).
        pub(crate) fn read_now(&self) -> i32 {
            self.read_with(0)
        }

        /// The same, with further `RWF_` flags.
        pub(super) fn read_with(&self, more: i32) -> i32 {
            let Operation { fd, offset, flags, .. } = self.operation;
            let flags = flags | more;
            let Ok(offset) = libc::off_t::try_from(offset) else { return -libc::EINVAL };
            // `prepare` bounds it by IOV_MAX.
            let count = self.iovecs.len() as libc::c_int;
            // SAFETY: the iovecs describe parts of the request's segments, which by the contract of `Request::new`
            // are valid for writes and nobody else's until the completion, which comes after this call.
            let result = unsafe {
                if flags == 0 {
                    libc::preadv(fd, self.iovecs.as_ptr(), count, offset)
                } else {
                    libc::preadv2(fd, self.iovecs.as_ptr(), count, offset, flags)
                }
            };
            if result < 0 {
                -std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
            } else {
                // At most OPERATION_BYTES_MAX.
                result as i32
            }
        }
    }
}

impl Transfer {
    pub(crate) fn new(request: Request) -> Self {
        let operation = Operation { fd: -1, offset: request.offset, len: 0, flags: 0, direct: false };
        Self {
            total: request.len(),
            request,
            done: 0,
            iovecs: SmallVec::new(),
            operation,
            injected: Injected::Nothing,
            refusals: 0,
            retries: 0,
            operations: 0,
            rest_buffered: false,
            error: None,
            started: Instant::now(),
        }
    }

    pub(crate) fn request(&self) -> &Request {
        &self.request
    }

    #[cfg_attr(not(feature = "io_uring"), expect(dead_code, reason = "only rings look into transfers"))]
    pub(crate) fn started(&self) -> Instant {
        self.started
    }

    #[cfg_attr(
        not(any(feature = "io_uring", feature = "tokio_uring")),
        expect(dead_code, reason = "only rings look into transfers")
    )]
    pub(crate) fn iovecs(&self) -> &[libc::iovec] {
        &self.iovecs
    }

    fn position(&self) -> u64 {
        self.request.offset.saturating_add(self.done as u64)
    }

    /// The next operation; `None` when there is nothing to ask (see [`Transfer::finish`]). The iovecs stay as they are
    /// until the next call; where they are in memory changes when the transfer is moved.
    pub(crate) fn prepare(&mut self, core: &Core) -> Option<Operation> {
        if self.done == self.total || self.error.is_some() {
            return None;
        }
        let len = self.fill_iovecs();
        let file = &self.request.file;
        let mut direct = file.is_direct() && !self.rest_buffered;
        if direct && !self.is_aligned(len) {
            add(&core.counters.unaligned_reads, 1);
            direct = false;
        }
        let fd = if direct || !file.opened_direct() {
            file.fd()
        } else {
            match file.buffered_fd() {
                Ok(fd) => fd,
                Err(errno) => {
                    self.fail(errno);
                    return None;
                }
            }
        };
        let flags = if file.is_uncached() && !direct { RWF_DONTCACHE } else { 0 };
        self.operation = Operation { fd, offset: self.position(), len, flags, direct };
        self.injected = match &core.faults {
            Some(faults) if direct && faults.refuse_direct() => Injected::Errno(libc::EINVAL),
            Some(faults) => faults.draw(self.request.offset, self.operation.offset, len, self.operations),
            None => Injected::Nothing,
        };
        self.operations += 1;
        add(&core.counters.operations, 1);
        Some(self.operation)
    }

    /// Describes the memory from `done` on and says how many bytes that is.
    fn fill_iovecs(&mut self) -> usize {
        self.iovecs.clear();
        let mut skip = self.done;
        let mut room = OPERATION_BYTES_MAX;
        for segment in &self.request.segments {
            if skip >= segment.len {
                skip -= segment.len;
                continue;
            }
            if self.iovecs.len() == IOV_MAX || room == 0 {
                break;
            }
            let len = (segment.len - skip).min(room);
            let base = segment.ptr.as_ptr().wrapping_add(skip);
            self.iovecs.push(libc::iovec { iov_base: base.cast(), iov_len: len });
            room -= len;
            skip = 0;
        }
        OPERATION_BYTES_MAX - room
    }

    fn is_aligned(&self, len: usize) -> bool {
        let align = self.request.file.alignment();
        let offset_align = u64::from(align.offset.max(1));
        self.position().is_multiple_of(offset_align)
            && (len as u64).is_multiple_of(offset_align)
            && self.iovecs.iter().all(|v| {
                (v.iov_base as usize).is_multiple_of(align.memory.max(1) as usize)
                    && (v.iov_len as u64).is_multiple_of(offset_align)
            })
    }

    /// Takes the kernel's answer to the prepared operation: bytes, or a negative errno. `blocking` says that it was the
    /// blocking call which [`Step::Block`] demanded.
    pub(crate) fn settle(&mut self, answer: i32, blocking: bool, core: &Core) -> Step {
        let answer = self.injected.apply(answer, blocking);
        match usize::try_from(answer) {
            Ok(bytes) => self.advance(bytes, core),
            Err(_) => self.refused(answer.saturating_neg(), blocking, core),
        }
    }

    fn advance(&mut self, bytes: usize, core: &Core) -> Step {
        debug_assert!(bytes <= self.operation.len, "the kernel does not read more than it was asked for");
        let bytes = bytes.min(self.operation.len);
        if bytes == 0 {
            return Step::Done;
        }
        self.done += bytes;
        self.refusals = 0;
        if self.done == self.total {
            return Step::Done;
        }
        if bytes < self.operation.len {
            self.retries += 1;
            add(&core.counters.retries_short, 1);
            // A direct read cannot go on in the middle of a sector. The page cache can; and it says "end of file" for
            // the tail of a file without another device read.
            if !self.position().is_multiple_of(u64::from(self.request.file.alignment().offset.max(1))) {
                self.rest_buffered = true;
            }
        }
        Step::Ask
    }

    fn refused(&mut self, errno: i32, blocking: bool, core: &Core) -> Step {
        let Operation { flags, direct, .. } = self.operation;
        let counter = match errno {
            // The kernel cancels what a thread had handed to io-wq when that thread ends.
            libc::EINTR | libc::ECANCELED => &core.counters.retries_eintr,
            libc::EAGAIN => &core.counters.retries_eagain,
            libc::EINVAL | libc::EOPNOTSUPP if flags & RWF_DONTCACHE != 0 => {
                self.request.file.give_up_uncached();
                return Step::Ask;
            }
            libc::EINVAL if direct => {
                if self.request.file.give_up_direct() {
                    add(&core.counters.direct_refused, 1);
                }
                self.rest_buffered = true;
                return Step::Ask;
            }
            // A polled ring and a file that cannot be polled.
            libc::EOPNOTSUPP if !blocking => return Step::Block,
            _ => return self.fail(errno),
        };
        add(counter, 1);
        self.retries += 1;
        self.refusals += 1;
        if blocking {
            return self.fail(errno);
        }
        if self.refusals > REFUSALS_MAX { Step::Block } else { Step::Ask }
    }

    /// Ends the request with an error.
    pub(crate) fn fail(&mut self, errno: i32) -> Step {
        self.error = Some(ReadError { path: self.request.file.path().to_owned(), offset: self.position(), errno });
        Step::Done
    }

    /// Reads if the page cache has everything, without blocking; says whether it did. If not, the request is as if nobody
    /// had asked, and so are the counters: what is there of it is copied again.
    pub(crate) fn read_cached(&mut self, core: &Core) -> bool {
        while let Some(operation) = self.prepare(core) {
            let answer = if operation.direct { -libc::EAGAIN } else { self.read_with(libc::RWF_NOWAIT) };
            let partial = usize::try_from(answer).is_ok_and(|bytes| bytes > 0 && bytes < operation.len);
            // Also EOPNOTSUPP, of file systems that cannot tell: whoever may block will see what is the matter.
            if answer < 0 || partial {
                self.operations -= 1;
                core.counters.operations.fetch_sub(1, Ordering::Relaxed);
                return false;
            }
            match self.settle(answer, false, core) {
                Step::Done => return true,
                Step::Block => return false,
                Step::Ask => {}
            }
        }
        true
    }

    /// Reads until the end, by system calls.
    pub(crate) fn run(&mut self, core: &Core, mut step: Step) {
        while step != Step::Done && self.prepare(core).is_some() {
            let blocking = step == Step::Block;
            if blocking {
                add(&core.counters.blocking_reads, 1);
            }
            step = self.settle(self.read_now(), blocking, core);
        }
    }

    /// Reports the end to the completer; the memory is its owner's again.
    pub(crate) fn finish(self, core: &Core) {
        let counters = &core.counters;
        add(&counters.requests, 1);
        add(&counters.bytes, self.done as u64);
        let latency = self.started.elapsed();
        core.latencies.record(latency);
        if self.error.is_some() {
            add(&counters.errors, 1);
        }
        let Self { request, done, error, retries, .. } = self;
        let tag = request.tag;
        // The file goes first: whoever is told may want it closed.
        drop(request);
        core.completer.complete(Completion { tag, bytes: done, error, retries, latency });
    }
}

impl Core {
    /// Notes that `count` requests are in flight now.
    pub(crate) fn note_in_flight(&self, count: u64) {
        self.counters.in_flight_max.fetch_max(count, Ordering::Relaxed);
    }
}
