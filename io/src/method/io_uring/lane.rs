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
    hand_over::HandOver,
    slots::{Slots, Ticket},
};
use crate::{
    OutstandingRead, Request, WaitOutcome,
    method::gate::{Gate, NAP},
    stats::{add, add_time},
    transfer::{Core, Operation, Step, Transfer},
};
use io_uring::{IoUring, opcode, squeue, types};
use std::{
    collections::VecDeque,
    io,
    sync::{
        Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering, fence},
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
    pub(super) hand_over: HandOver,
    pub(super) sqpoll: bool,
    pub(super) iopoll: bool,
    pub(super) stall_after: Duration,
}

/// Entries that were pushed and that the kernel has not taken yet, oldest first.
pub(super) type Queued = VecDeque<Ticket>;

pub(super) struct Lane {
    pub(super) ring: IoUring,
    pub(super) settings: LaneSettings,
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
    /// What was queued for a kernel thread that sleeps and that nobody may wake: it never ends.
    lost: AtomicBool,
    /// Completions to sleep for together; see [`Lane::want`].
    batch: AtomicU32,
    stall_reported: AtomicBool,
}

/// Most completions to sleep for together.
const BATCH_MAX: u32 = 32;
/// For how long. It bounds how late others learn of completions that came meanwhile.
const BATCH_WAIT: Duration = Duration::from_millis(5);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
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
            lost: AtomicBool::new(false),
            batch: AtomicU32::new(BATCH_MAX / 2),
            stall_reported: AtomicBool::new(false),
        }
    }

    #[cfg(test)]
    pub(super) fn lock_queue(&self) -> MutexGuard<'_, Queued> {
        lock(&self.queue)
    }

    pub(super) fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::SeqCst)
    }

    /// Takes all requests. With `hold` they may stay in the queue for the wait that the caller is going to make; whoever
    /// else waits meanwhile hands them over too.
    pub(super) fn submit(&self, requests: &mut Vec<Request>, hold: bool, core: &Core) {
        let began = Instant::now();
        let mut requests = requests.drain(..).peekable();
        while requests.peek().is_some() {
            if self.broken.load(Ordering::Relaxed) {
                for request in requests.by_ref() {
                    run_here(Transfer::new(request), core);
                    self.gate.notify();
                }
                break;
            }
            if !self.fill(&mut requests, core) {
                // No room: wait as anybody waits, until the next completion.
                let together = self.bound as u32 / 2;
                self.wait(&|| self.in_flight() < self.bound, Duration::from_secs(3600), together, core);
            }
        }
        if self.queued.load(Ordering::SeqCst) > 0 {
            if !hold || self.settings.sqpoll {
                self.flush(core);
            }
            // Somebody may wait who found nothing in flight, and must now become the leader.
            self.gate.notify();
        }
        add_time(&core.counters.submit_nanos, began);
    }

    /// Gives slots to as many requests as there is room for, and queues their entries. Whether there was any room.
    fn fill(&self, requests: &mut std::iter::Peekable<std::vec::Drain<'_, Request>>, core: &Core) -> bool {
        // Rarely filled: reads that ended before they began, or that the ring does not take.
        let mut ended = Vec::new();
        let mut any = false;
        let mut queue = lock(&self.queue);
        let mut slots = lock(&self.slots);
        while requests.peek().is_some() {
            let Some(slot) = slots.claim() else { break };
            any = true;
            let Some(request) = requests.next() else { break };
            let count = self.in_flight.fetch_add(1, Ordering::SeqCst) + 1;
            if count == 1 {
                self.settings.hand_over.begins();
            }
            core.note_in_flight(count as u64);
            let mut transfer = Transfer::new(request);
            match transfer.prepare(core) {
                Some(operation) => {
                    if let Some(refused) = self.place(&mut queue, &mut slots, slot, transfer, operation) {
                        ended.push((slot, refused, Step::Block));
                    }
                }
                None => ended.push((slot, transfer, Step::Done)),
            }
        }
        drop(slots);
        self.queued.store(queue.len(), Ordering::SeqCst);
        drop(queue);
        for (slot, mut transfer, step) in ended {
            transfer.run(core, step);
            self.free(slot);
            transfer.finish(core);
            self.gate.notify();
        }
        any
    }

    /// Puts a prepared transfer into its slot, where it stays until its completion, and queues its entry. Gives it back
    /// if the ring does not take it. The order of the locks is: queue, slots.
    fn place(
        &self,
        queue: &mut Queued,
        slots: &mut Slots,
        slot: usize,
        transfer: Transfer,
        operation: Operation,
    ) -> Option<Transfer> {
        let (ticket, transfer) = slots.put(slot, transfer);
        let entry = self.entry(transfer, operation).user_data(ticket.0);
        if self.push(queue, ticket, &entry) { None } else { slots.take(ticket) }
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
        let hand_over = !direct && self.settings.hand_over.decide(self.in_flight(), len);
        if hand_over { entry.flags(squeue::Flags::ASYNC) } else { entry }
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
        self.trim(&mut queue);
        while !queue.is_empty() {
            let before = queue.len();
            let count = match &core.faults {
                Some(faults) => faults.enter(before).ok_or(libc::EAGAIN)?,
                None => before,
            };
            add(&core.counters.submits, 1);
            let entered = self.enter_submit(count, &core.counters.enters);
            if self.settings.sqpoll && entered.is_ok() {
                // The kernel's thread will take them by itself.
                queue.clear();
            } else {
                self.trim(&mut queue);
            }
            self.queued.store(queue.len(), Ordering::SeqCst);
            entered.map_err(|error| error.raw_os_error().unwrap_or(libc::EIO))?;
            if queue.len() == before {
                return Err(libc::EAGAIN);
            }
        }
        self.queued.store(0, Ordering::SeqCst);
        Ok(())
    }

    /// The kernel does not let us in any more (a seccomp filter installed after opening, for instance). What it has not
    /// taken it will never take, because nobody enters to submit from now on: those reads are done here. A polling
    /// kernel thread takes them by itself, if it is awake; if not, they are [lost](Lane::is_lost).
    fn fall_back(&self, errno: i32, core: &Core) {
        let mut queue = lock(&self.queue);
        if !self.broken.swap(true, Ordering::SeqCst) {
            add(&core.counters.broken_lanes, 1);
            let error = io::Error::from_raw_os_error(errno);
            tracing::warn!(%error, "io_uring_enter refused: this lane reads in the calling threads from now on");
        }
        if self.settings.sqpoll {
            if self.needs_wakeup(&mut queue) && !queue.is_empty() {
                self.lost.store(true, Ordering::SeqCst);
                tracing::error!(
                    reads = queue.len(),
                    "the ring's kernel thread sleeps and may not be woken: these reads never end"
                );
            }
            queue.clear();
        }
        let stranded: Vec<Ticket> = queue.drain(..).collect();
        self.queued.store(0, Ordering::SeqCst);
        drop(queue);
        for ticket in stranded {
            let Some(transfer) = lock(&self.slots).take(ticket) else { continue };
            run_here(transfer, core);
            self.free(ticket.slot());
            self.gate.notify();
        }
    }

    /// Why reads of this lane that are still in flight will never end, if so.
    pub(super) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::SeqCst)
    }

    fn free(&self, slot: usize) {
        lock(&self.slots).release(slot);
        if self.in_flight.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.settings.hand_over.ends();
        }
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
            let _ = self.enter_wait(0, 0, Duration::ZERO, &core.counters.enters);
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
        loop {
            let count = self.take_completions(&mut taken);
            for &(ticket, answer) in &taken[..count] {
                delivered += usize::from(self.handle(ticket, answer, core));
            }
            if count < taken.len() {
                break;
            }
        }
        if delivered > 0 {
            self.stall_reported.store(false, Ordering::Relaxed);
        }
        delivered
    }

    /// One completion; says whether its request ended.
    fn handle(&self, ticket: Ticket, answer: i32, core: &Core) -> bool {
        let Some(mut transfer) = lock(&self.slots).take(ticket) else {
            add(&core.counters.stale_completions, 1);
            return false;
        };
        let step = if answer == -libc::ECANCELED && self.closing.load(Ordering::SeqCst) {
            transfer.fail(libc::ECANCELED)
        } else {
            transfer.settle(answer, false, core)
        };
        let slot = ticket.slot();
        let next = match step {
            Step::Ask if !self.broken.load(Ordering::Relaxed) => transfer.prepare(core),
            Step::Ask | Step::Block => {
                transfer.run(core, step);
                None
            }
            Step::Done => None,
        };
        if let Some(operation) = next {
            // Asked again with the next call that enters the kernel.
            let mut queue = lock(&self.queue);
            let refused = self.place(&mut queue, &mut lock(&self.slots), slot, transfer, operation);
            self.queued.store(queue.len(), Ordering::SeqCst);
            drop(queue);
            let Some(refused) = refused else { return false };
            transfer = refused;
            transfer.run(core, Step::Block);
        }
        // First the slot, then the news: who hears it may find room.
        self.free(slot);
        transfer.finish(core);
        true
    }

    /// `together`: how many completions the caller can use at a time.
    pub(super) fn wait(&self, done: &dyn Fn() -> bool, timeout: Duration, together: u32, core: &Core) -> WaitOutcome {
        let deadline = Instant::now() + timeout;
        let mut blocked_since = None;
        let outcome = loop {
            if done() {
                break WaitOutcome::Done;
            }
            if let Some(office) = self.lead() {
                let holds = self.wait_as_leader(done, deadline, together, &mut blocked_since, core);
                drop(office);
                if holds {
                    break WaitOutcome::Done;
                }
            } else if self.queued.load(Ordering::SeqCst) > 0 {
                // The leader sleeps and does not know of them.
                self.flush(core);
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
        if self.queued.load(Ordering::SeqCst) > 0 {
            // Nothing of the caller's stays behind in the queue.
            self.flush(core);
        }
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
        together: u32,
        blocked_since: &mut Option<Instant>,
        core: &Core,
    ) -> bool {
        loop {
            if self.drain(core) > 0 {
                self.gate.notify();
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
            self.sleep_as_leader((deadline - now).min(NAP), together, core);
        }
    }

    /// One system call: what is queued is handed over, then completions are slept for.
    fn sleep_as_leader(&self, limit: Duration, together: u32, core: &Core) {
        let mut count = 0;
        if self.queued.load(Ordering::SeqCst) > 0 {
            if core.faults.is_some() || self.settings.sqpoll || self.broken.load(Ordering::SeqCst) {
                self.flush_as_leader(core);
            } else {
                let mut queue = lock(&self.queue);
                self.trim(&mut queue);
                count = queue.len();
                add(&core.counters.submits, u64::from(count > 0));
            }
        }
        let want = self.want(together);
        let limit = if want > 1 { limit.min(BATCH_WAIT) } else { limit };
        let began = Instant::now();
        let result = self.enter_wait(count, want, limit, &core.counters.enters);
        if count > 0 {
            let mut queue = lock(&self.queue);
            self.trim(&mut queue);
            self.queued.store(queue.len(), Ordering::SeqCst);
        }
        let result = result.map_err(|error| error.raw_os_error().unwrap_or(libc::EIO));
        if want > 1 {
            // Slower than that: fewer together, until they come in time. Faster: more.
            let batch = if began.elapsed() >= BATCH_WAIT { want / 2 } else { want.saturating_mul(2).min(BATCH_MAX) };
            self.batch.store(batch.max(2), Ordering::Relaxed);
        }
        match result {
            Ok(_) | Err(libc::ETIME | libc::EINTR) => {}
            Err(libc::EAGAIN | libc::EBUSY) => std::thread::sleep(Duration::from_micros(50)),
            Err(errno) if count > 0 => self.fall_back(errno, core),
            // Completions still appear in shared memory, but nobody tells us when.
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
    }

    /// For how many completions to sleep: half of those in flight at most, so that the device never runs dry, and one if
    /// somebody else waits, who should not wait for more than his own.
    fn want(&self, together: u32) -> u32 {
        if together <= 1 || self.gate.has_waiters() {
            return 1;
        }
        let half = u32::try_from(self.in_flight() / 2).unwrap_or(1);
        half.min(together).min(self.batch.load(Ordering::Relaxed)).max(1)
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
            tracing::info!(path = %path.display(), offset, len, ?age, dropped, "a read does not complete");
        }
    }

    /// Waits for what is in flight, then cancels it, then gives up: says whether the kernel has nothing of ours any more.
    pub(super) fn close(&self, patience: Duration, core: &Core) -> bool {
        let nothing_left = || self.in_flight() == 0;
        if self.wait(&nothing_left, patience, 1, core) == WaitOutcome::Done {
            return true;
        }
        self.closing.store(true, Ordering::SeqCst);
        let limit = types::Timespec::new().sec(1);
        if let Err(error) = self.ring.submitter().register_sync_cancel(Some(limit), types::CancelBuilder::any()) {
            tracing::warn!(%error, "cannot cancel reads that are in flight");
        }
        self.wait(&nothing_left, Duration::from_secs(1), 1, core) == WaitOutcome::Done
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
