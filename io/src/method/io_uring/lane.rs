//! One ring, shared by all threads.
//!
//! Three parties meet here, and none may hold up the others for longer than it must:
//!
//! - Submitters push entries and enter the kernel under `queue`. Reads from the page cache happen inside that call.
//! - One thread at a time is the *leader*: it alone looks at the completion queue, delivers under no lock at all, and
//!   may sleep in the kernel until the next completion. It never holds `queue` while it sleeps.
//! - Other waiters sleep at the gate until the leader delivered something or gave up its office.
//!
//! There must be one leader only: a second thread could take the completion that the first is about to sleep for.

use super::{
    buffers::{self, FixedBuffer},
    slots::{Slots, Ticket},
};
use crate::{
    AsyncRule, OutstandingRead, Request, WaitOutcome,
    method::gate::{Gate, NAP},
    stats::{add, add_time},
    transfer::{Core, Operation, Step, Transfer},
};
use io_uring::{EnterFlags, IoUring, opcode, squeue, types};
use std::{
    collections::VecDeque,
    io,
    sync::{
        Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering, fence},
    },
    time::{Duration, Instant},
};

/// The office of the leader; given up when it is dropped, also by a completer that panics.
struct Office<'a>(&'a Lane);

impl Drop for Office<'_> {
    fn drop(&mut self) {
        self.0.led.store(false, Ordering::SeqCst);
        self.0.gate.notify();
    }
}

/// Settings of a lane.
pub(super) struct LaneSettings {
    pub(super) async_rule: AsyncRule,
    pub(super) sqpoll: bool,
    pub(super) iopoll: bool,
    pub(super) stall_after: Duration,
}

/// Entries that were pushed and that the kernel has not taken yet, oldest first.
type Queued = VecDeque<Ticket>;

pub(super) struct Lane {
    pub(super) ring: IoUring,
    settings: LaneSettings,
    slots: Mutex<Slots>,
    queue: Mutex<Queued>,
    /// Empty: not registered.
    pub(super) buffers: OnceLock<Box<[FixedBuffer]>>,
    pub(super) files: super::files::FileTable,
    gate: Gate,
    /// Whether somebody is the leader.
    led: AtomicBool,
    /// Slots in use; a hint for those who do not hold `slots`.
    in_flight: AtomicUsize,
    /// Length of `queue`, likewise.
    queued: AtomicUsize,
    bound: usize,
    /// The kernel refused to be entered: new reads run in their threads.
    broken: AtomicBool,
    /// Cancelled reads are not asked again.
    closing: AtomicBool,
    stall_reported: AtomicBool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[allow(unsafe_code, reason = "the shared ring: raw entries, raw queues, raw io_uring_enter")]
mod raw {
    use super::*;

    impl Lane {
        /// Pushes under the lock of the queue. Only a ring with a polling kernel thread can be full here: there are no
        /// more operations than slots, and no more slots than entries.
        pub(super) fn push(&self, queue: &mut Queued, ticket: Ticket, entry: &squeue::Entry) {
            loop {
                // SAFETY: `queue` is the content of the lock that everybody takes who touches the submission queue.
                let mut submission = unsafe { self.ring.submission_shared() };
                // SAFETY: memory, iovecs and file of the entry belong to a transfer that is in a slot and stays there
                // until the completion of this entry was seen, or is leaked (`Lane::close`).
                if unsafe { submission.push(entry) }.is_ok() {
                    break;
                }
                drop(submission);
                // The kernel's thread has not fetched yet; EINTR and the like only mean to look again.
                let _ = self.ring.submitter().squeue_wait();
            }
            queue.push_back(ticket);
        }

        /// Has the kernel take `count` queued entries.
        pub(super) fn enter_submit(&self, count: usize) -> io::Result<usize> {
            if self.settings.sqpoll {
                return self.ring.submitter().submit();
            }
            let flags = if self.settings.iopoll { EnterFlags::GETEVENTS } else { EnterFlags::empty() };
            // SAFETY: no argument is passed; the entries were pushed under the conditions given there.
            unsafe { self.ring.submitter().enter::<libc::sigset_t>(count as u32, 0, flags.bits(), None) }
        }

        /// Sleeps until a completion is there, as the leader.
        pub(super) fn enter_wait(&self, timeout: Duration, want: u32) -> io::Result<usize> {
            let limit = types::Timespec::from(timeout);
            let arguments = types::SubmitArgs::new().timespec(&limit);
            let mut flags = EnterFlags::GETEVENTS | EnterFlags::EXT_ARG;
            if self.ring.params().is_feature_no_iowait() {
                // Waiting here is not what an operator understands by iowait.
                flags |= EnterFlags::NO_IOWAIT;
            }
            // SAFETY: with EXT_ARG the argument is an io_uring_getevents_arg, which SubmitArgs is transparent over; it
            // and the timespec live until the call returns. Nothing is submitted: entries of others are not ours.
            unsafe { self.ring.submitter().enter(0, want, flags.bits(), Some(&arguments)) }
        }

        /// Takes up to `N` completions from the queue, as the leader.
        pub(super) fn take_completions<const N: usize>(&self, into: &mut [(Ticket, i32); N]) -> usize {
            // SAFETY: only the leader calls this, and there is one leader.
            let mut completion = unsafe { self.ring.completion_shared() };
            let mut count = 0;
            while count < N
                && let Some(entry) = completion.next()
            {
                into[count] = (Ticket(entry.user_data()), entry.result());
                count += 1;
            }
            count
        }
    }
}

impl Lane {
    pub(super) fn new(ring: IoUring, bound: usize, settings: LaneSettings, files: super::files::FileTable) -> Self {
        Self {
            ring,
            settings,
            slots: Mutex::new(Slots::new(bound)),
            queue: Mutex::default(),
            buffers: OnceLock::new(),
            files,
            gate: Gate::default(),
            led: AtomicBool::new(false),
            in_flight: AtomicUsize::new(0),
            queued: AtomicUsize::new(0),
            bound,
            broken: AtomicBool::new(false),
            closing: AtomicBool::new(false),
            stall_reported: AtomicBool::new(false),
        }
    }

    pub(super) fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::SeqCst)
    }

    pub(super) fn submit(&self, requests: &mut Vec<Request>, core: &Core) {
        let began = Instant::now();
        let mut requests = requests.drain(..).peekable();
        let mut batch = Vec::new();
        while requests.peek().is_some() {
            if self.broken.load(Ordering::Relaxed) {
                for request in requests.by_ref() {
                    run_here(Transfer::new(request), core);
                    self.gate.notify();
                }
                break;
            }
            self.fill(&mut requests, &mut batch, core);
            if batch.is_empty() {
                // No room: wait as anybody waits, until the next completion.
                self.wait(&|| self.in_flight() < self.bound, Duration::from_secs(3600), core);
            } else {
                self.push_all(&mut batch, core);
            }
        }
        add_time(&core.counters.submit_nanos, began);
    }

    /// Gives slots to as many requests as there is room for.
    fn fill(
        &self,
        requests: &mut std::iter::Peekable<std::vec::Drain<'_, Request>>,
        batch: &mut Vec<(Ticket, squeue::Entry)>,
        core: &Core,
    ) {
        let mut ended = Vec::new();
        let mut slots = lock(&self.slots);
        while requests.peek().is_some() {
            let Some(slot) = slots.claim() else { break };
            let Some(request) = requests.next() else { break };
            let count = self.in_flight.fetch_add(1, Ordering::SeqCst) + 1;
            core.note_in_flight(count as u64);
            let mut transfer = Transfer::new(request);
            match transfer.prepare(core) {
                Some(operation) => batch.push(self.place(&mut slots, slot, transfer, operation)),
                None => {
                    slots.release(slot);
                    self.in_flight.fetch_sub(1, Ordering::SeqCst);
                    ended.push(transfer);
                }
            }
        }
        drop(slots);
        if !ended.is_empty() {
            ended.into_iter().for_each(|transfer| transfer.finish(core));
            self.gate.notify();
        }
    }

    /// Puts a prepared transfer into its slot and makes the entry for it.
    fn place(
        &self,
        slots: &mut Slots,
        slot: usize,
        transfer: Transfer,
        operation: Operation,
    ) -> (Ticket, squeue::Entry) {
        let entry = self.entry(&transfer, operation);
        let ticket = slots.put(slot, transfer);
        (ticket, entry.user_data(ticket.0))
    }

    fn entry(&self, transfer: &Transfer, operation: Operation) -> squeue::Entry {
        let Operation { fd, offset, len, flags, direct } = operation;
        let iovecs = transfer.iovecs();
        let entry = if let [only] = iovecs {
            let base = only.iov_base.cast::<u8>();
            // `prepare` bounds an operation by 1 GiB.
            let len = len as u32;
            let buffer = self.buffers.get().and_then(|all| buffers::find(all, base as usize, len as usize));
            match (buffer, self.files.index(transfer.request(), fd, &self.ring)) {
                (Some(b), Some(file)) => {
                    opcode::ReadFixed::new(types::Fixed(file), base, len, b).offset(offset).rw_flags(flags).build()
                }
                (Some(b), None) => {
                    opcode::ReadFixed::new(types::Fd(fd), base, len, b).offset(offset).rw_flags(flags).build()
                }
                (None, Some(file)) => {
                    opcode::Read::new(types::Fixed(file), base, len).offset(offset).rw_flags(flags).build()
                }
                (None, None) => opcode::Read::new(types::Fd(fd), base, len).offset(offset).rw_flags(flags).build(),
            }
        } else {
            opcode::Readv::new(types::Fd(fd), iovecs.as_ptr(), iovecs.len() as u32)
                .offset(offset)
                .rw_flags(flags)
                .build()
        };
        let hand_over = !direct
            && match self.settings.async_rule {
                AsyncRule::Never => false,
                AsyncRule::Always => true,
                AsyncRule::Threshold { in_flight, bytes } => self.in_flight() > in_flight as usize || len >= bytes,
            };
        if hand_over { entry.flags(squeue::Flags::ASYNC) } else { entry }
    }

    fn push_all(&self, batch: &mut Vec<(Ticket, squeue::Entry)>, core: &Core) {
        let mut queue = lock(&self.queue);
        for (ticket, entry) in batch.drain(..) {
            self.push(&mut queue, ticket, &entry);
        }
        self.queued.store(queue.len(), Ordering::SeqCst);
        drop(queue);
        self.flush(core);
        // Somebody may wait who found nothing in flight, and must now become the leader.
        self.gate.notify();
    }

    /// Has the kernel take everything that is queued. What it does not take stays queued: whoever comes next tries
    /// again, and the slots stay taken.
    fn flush(&self, core: &Core) {
        for patience in 0..1000u32 {
            match self.flush_once(core) {
                Ok(()) => return,
                Err(libc::EINTR) => {}
                // Out of memory for requests, or completions have to be taken first.
                Err(libc::EAGAIN | libc::EBUSY) => {
                    self.reap(core);
                    if patience > 10 {
                        std::thread::sleep(Duration::from_micros(50));
                    }
                }
                Err(errno) => return self.fall_back(errno, core),
            }
        }
    }

    fn flush_once(&self, core: &Core) -> Result<(), i32> {
        let mut queue = lock(&self.queue);
        while !queue.is_empty() {
            let count = match &core.faults {
                Some(faults) => faults.enter(queue.len()).ok_or(libc::EAGAIN)?,
                None => queue.len(),
            };
            add(&core.counters.submits, 1);
            let taken = self.enter_submit(count).map_err(|error| error.raw_os_error().unwrap_or(libc::EIO))?;
            if taken == 0 {
                return Err(libc::EAGAIN);
            }
            // With a polling kernel thread it will take them by itself.
            let taken = if self.settings.sqpoll { queue.len() } else { taken.min(queue.len()) };
            queue.drain(..taken);
            self.queued.store(queue.len(), Ordering::SeqCst);
        }
        Ok(())
    }

    /// The kernel does not let us in any more (a seccomp filter installed after opening, for instance). What it has not
    /// taken it will never take, because nobody enters to submit from now on: those reads are done here.
    fn fall_back(&self, errno: i32, core: &Core) {
        let mut queue = lock(&self.queue);
        if !self.broken.swap(true, Ordering::SeqCst) {
            add(&core.counters.broken_lanes, 1);
            let error = io::Error::from_raw_os_error(errno);
            tracing::warn!(%error, "io_uring_enter refused: this lane reads in the calling threads from now on");
        }
        if self.settings.sqpoll {
            // The kernel's thread still runs and takes them.
            queue.clear();
        }
        let stranded: Vec<Ticket> = queue.drain(..).collect();
        self.queued.store(0, Ordering::SeqCst);
        drop(queue);
        for ticket in stranded {
            let Some(transfer) = lock(&self.slots).take(ticket) else { continue };
            run_here(transfer, core);
            self.free(ticket);
            self.gate.notify();
        }
    }

    fn free(&self, ticket: Ticket) {
        lock(&self.slots).release(ticket.slot());
        self.in_flight.fetch_sub(1, Ordering::SeqCst);
    }

    /// Becomes the leader, unless somebody is.
    fn lead(&self) -> Option<Office<'_>> {
        // Not `then_some`: it would make, and drop, an office also for those who do not get it.
        self.led.compare_exchange(false, true, Ordering::SeqCst, Ordering::SeqCst).is_ok().then(|| Office(self))
    }

    /// Delivers what is there. No system call, unless a read has to be asked again or the device is polled.
    pub(super) fn reap(&self, core: &Core) -> usize {
        if self.in_flight() == 0 {
            return 0;
        }
        let Some(_office) = self.lead() else { return 0 };
        if self.settings.iopoll {
            // Polled completions are found by looking, and only the kernel can look.
            let _ = self.enter_wait(Duration::ZERO, 0);
        }
        let delivered = self.drain(core);
        if self.queued.load(Ordering::SeqCst) > 0 {
            self.flush_as_leader(core);
        }
        delivered
    }

    /// Delivers everything in the completion queue, as the leader.
    fn drain(&self, core: &Core) -> usize {
        let mut delivered = 0;
        let mut taken = [(Ticket(0), 0); 32];
        let mut again = Vec::new();
        loop {
            let count = self.take_completions(&mut taken);
            for &(ticket, answer) in &taken[..count] {
                delivered += usize::from(self.handle(ticket, answer, &mut again, core));
            }
            if count < taken.len() {
                break;
            }
        }
        if !again.is_empty() {
            let mut queue = lock(&self.queue);
            for (ticket, entry) in again {
                self.push(&mut queue, ticket, &entry);
            }
            self.queued.store(queue.len(), Ordering::SeqCst);
        }
        if delivered > 0 {
            self.stall_reported.store(false, Ordering::Relaxed);
        }
        delivered
    }

    /// One completion; says whether its request ended.
    fn handle(&self, ticket: Ticket, answer: i32, again: &mut Vec<(Ticket, squeue::Entry)>, core: &Core) -> bool {
        let Some(mut transfer) = lock(&self.slots).take(ticket) else {
            add(&core.counters.stale_completions, 1);
            return false;
        };
        let step = if answer == -libc::ECANCELED && self.closing.load(Ordering::SeqCst) {
            transfer.fail(libc::ECANCELED)
        } else {
            transfer.settle(answer, false, core)
        };
        let next = match step {
            Step::Ask if !self.broken.load(Ordering::Relaxed) => transfer.prepare(core),
            Step::Ask | Step::Block => {
                transfer.run(core, step);
                None
            }
            Step::Done => None,
        };
        if let Some(operation) = next {
            again.push(self.place(&mut lock(&self.slots), ticket.slot(), transfer, operation));
            return false;
        }
        // First the slot, then the news: who hears it may find room.
        self.free(ticket);
        transfer.finish(core);
        true
    }

    pub(super) fn wait(&self, done: &dyn Fn() -> bool, timeout: Duration, core: &Core) -> WaitOutcome {
        let deadline = Instant::now() + timeout;
        let mut blocked_since = None;
        let outcome = loop {
            if done() {
                break WaitOutcome::Done;
            }
            if let Some(office) = self.lead() {
                let holds = self.wait_as_leader(done, deadline, &mut blocked_since, core);
                drop(office);
                if holds {
                    break WaitOutcome::Done;
                }
            }
            // Somebody else leads, or there is nothing to wait for in the kernel.
            let may_lead = || done() || (self.in_flight() > 0 && !self.led.load(Ordering::SeqCst));
            if !may_lead() {
                blocked_since.get_or_insert_with(Instant::now);
                self.gate.wait(&may_lead, deadline);
            }
            if Instant::now() >= deadline {
                break if done() { WaitOutcome::Done } else { WaitOutcome::TimedOut };
            }
        };
        if let Some(since) = blocked_since {
            add(&core.counters.waits, 1);
            add_time(&core.counters.wait_nanos, since);
        }
        outcome
    }

    /// Delivers and sleeps until `done` holds (true), the deadline has passed, or nothing is in flight (both false).
    fn wait_as_leader(
        &self,
        done: &dyn Fn() -> bool,
        deadline: Instant,
        blocked_since: &mut Option<Instant>,
        core: &Core,
    ) -> bool {
        loop {
            if self.drain(core) > 0 {
                self.gate.notify();
            }
            if self.queued.load(Ordering::SeqCst) > 0 {
                self.flush_as_leader(core);
            }
            // What was delivered by others (a thread that fell back) is seen here too.
            fence(Ordering::SeqCst);
            if done() {
                return true;
            }
            let now = Instant::now();
            if self.in_flight() == 0 || now >= deadline {
                return false;
            }
            blocked_since.get_or_insert(now);
            self.report_stall(core);
            match self.enter_wait((deadline - now).min(NAP), 1).map_err(|error| error.raw_os_error()) {
                Ok(_) | Err(Some(libc::ETIME | libc::EINTR | libc::EAGAIN | libc::EBUSY)) => {}
                // Completions still appear in shared memory, but nobody tells us when.
                Err(_) => std::thread::sleep(Duration::from_millis(1)),
            }
        }
    }

    /// [`Lane::flush`] for the leader, who takes completions himself.
    fn flush_as_leader(&self, core: &Core) {
        match self.flush_once(core) {
            Ok(()) | Err(libc::EINTR | libc::EAGAIN | libc::EBUSY) => {}
            Err(errno) => self.fall_back(errno, core),
        }
    }

    pub(super) fn outstanding(&self) -> Vec<OutstandingRead> {
        let read = |transfer: &Transfer| OutstandingRead {
            path: transfer.request().file.path().to_owned(),
            offset: transfer.request().offset,
            len: transfer.request().len(),
            age: transfer.started().elapsed(),
        };
        lock(&self.slots).iter().map(read).collect()
    }

    /// Names reads that are long overdue, once until something moves again.
    fn report_stall(&self, core: &Core) {
        if self.stall_reported.load(Ordering::Relaxed) {
            return;
        }
        let oldest = lock(&self.slots).iter().map(Transfer::started).min();
        if oldest.is_none_or(|since| since.elapsed() < self.settings.stall_after) {
            return;
        }
        self.stall_reported.store(true, Ordering::Relaxed);
        add(&core.counters.stalls, 1);
        let dropped = self.lost_by_kernel();
        for read in self.outstanding() {
            let OutstandingRead { path, offset, len, age } = read;
            tracing::warn!(path = %path.display(), offset, len, ?age, dropped, "a read does not complete");
        }
    }

    /// Entries and completions that the kernel says it lost.
    fn lost_by_kernel(&self) -> u32 {
        #[allow(unsafe_code, reason = "reads two counters of the shared ring")]
        // SAFETY: `overflow` and `dropped` are loads of words that only the kernel writes; neither view is advanced,
        // and the caller is the leader.
        unsafe {
            self.ring.completion_shared().overflow()
        }
    }

    /// Waits for what is in flight, then cancels it, then gives up: says whether the kernel has nothing of ours any more.
    pub(super) fn close(&self, patience: Duration, core: &Core) -> bool {
        let nothing_left = || self.in_flight() == 0;
        if self.wait(&nothing_left, patience, core) == WaitOutcome::Done {
            return true;
        }
        self.closing.store(true, Ordering::SeqCst);
        let limit = types::Timespec::new().sec(1);
        if let Err(error) = self.ring.submitter().register_sync_cancel(Some(limit), types::CancelBuilder::any()) {
            tracing::warn!(%error, "cannot cancel reads that are in flight");
        }
        self.wait(&nothing_left, Duration::from_secs(1), core) == WaitOutcome::Done
    }

    /// Leaks what the kernel may still use.
    pub(super) fn leak(&self) {
        for transfer in lock(&self.slots).take_all() {
            std::mem::forget(transfer);
        }
    }
}

fn run_here(mut transfer: Transfer, core: &Core) {
    add(&core.counters.blocking_reads, 1);
    transfer.run(core, Step::Ask);
    transfer.finish(core);
}
