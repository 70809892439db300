//! The shared ring itself: its two queues and `io_uring_enter`.
#![allow(unsafe_code, reason = "the shared ring: raw entries, raw queues, raw io_uring_enter")]

use super::{
    lane::{Lane, Queued},
    slots::Ticket,
};
use crate::stats::add;
use io_uring::{EnterFlags, squeue, types};
use std::{
    io,
    time::{Duration, Instant},
};

/// How long a full submission queue is waited for, if the kernel's thread does not empty it.
const FULL_PATIENCE: Duration = Duration::from_secs(1);

impl Lane {
    /// Pushes under the lock of the queue. Only a ring with a polling kernel thread can be full here: there are no
    /// more operations than slots, and no more slots than entries. `false`: it stays full, nobody takes entries any more.
    pub(super) fn push(&self, queue: &mut Queued, ticket: Ticket, entry: &squeue::Entry) -> bool {
        let began = Instant::now();
        loop {
            // SAFETY: `queue` is the content of the lock that everybody takes who touches the submission queue.
            let mut submission = unsafe { self.ring.submission_shared() };
            // SAFETY: memory, iovecs and file of the entry belong to a transfer that is in a slot and stays there
            // until the completion of this entry was seen, or is leaked (`Lane::close`).
            if unsafe { submission.push(entry) }.is_ok() {
                break;
            }
            drop(submission);
            if began.elapsed() > FULL_PATIENCE {
                return false;
            }
            // The kernel's thread has not fetched yet. When asking it fails (EINTR), looking again is all that helps.
            if self.ring.submitter().squeue_wait().is_err() {
                std::thread::sleep(Duration::from_micros(50));
            }
        }
        queue.push_back(ticket);
        true
    }

    /// Forgets the tickets whose entries the kernel has taken, whoever entered for it: all but as many as still lie in
    /// the shared queue. Under the lock of the queue.
    pub(super) fn trim(&self, queue: &mut Queued) {
        // SAFETY: `queue` is the content of the lock that everybody takes who touches the submission queue.
        let left = unsafe { self.ring.submission_shared() }.len();
        let taken = queue.len().saturating_sub(left);
        queue.drain(..taken);
    }

    /// Whether a polling kernel thread sleeps and has to be woken by a system call. Under the lock of the queue.
    pub(super) fn needs_wakeup(&self, _queue: &mut Queued) -> bool {
        // SAFETY: the parameter is the content of the lock that everybody takes who touches the submission queue.
        unsafe { self.ring.submission_shared() }.need_wakeup()
    }

    /// Has the kernel take `count` queued entries.
    pub(super) fn enter_submit(&self, count: usize, enters: &std::sync::atomic::AtomicU64) -> io::Result<usize> {
        if self.settings.sqpoll {
            return self.ring.submitter().submit();
        }
        add(enters, 1);
        let flags = if self.settings.iopoll { EnterFlags::GETEVENTS } else { EnterFlags::empty() };
        // SAFETY: no argument is passed; the entries were pushed under the conditions given there.
        unsafe { self.ring.submitter().enter::<libc::sigset_t>(count as u32, 0, flags.bits(), None) }
    }

    /// Has the kernel take `count` queued entries and sleeps until `want` completions are there, as the leader, without
    /// the lock of the queue. When others enter meanwhile and take some of these entries, the call ends early.
    pub(super) fn enter_wait(
        &self,
        count: usize,
        want: u32,
        timeout: Duration,
        enters: &std::sync::atomic::AtomicU64,
    ) -> io::Result<usize> {
        add(enters, 1);
        let limit = types::Timespec::from(timeout);
        let arguments = types::SubmitArgs::new().timespec(&limit);
        let mut flags = EnterFlags::GETEVENTS | EnterFlags::EXT_ARG;
        if self.ring.params().is_feature_no_iowait() {
            // Waiting here is not what an operator understands by iowait.
            flags |= EnterFlags::NO_IOWAIT;
        }
        // SAFETY: with EXT_ARG the argument is an io_uring_getevents_arg, which SubmitArgs is transparent over; it
        // and the timespec live until the call returns. The entries were pushed under the conditions given there.
        unsafe { self.ring.submitter().enter(count as u32, want, flags.bits(), Some(&arguments)) }
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

    /// Entries and completions that the kernel says it lost.
    pub(super) fn lost_by_kernel(&self) -> u32 {
        // SAFETY: `overflow` is a load of a word that only the kernel writes; the view is not advanced, and the caller
        // is the leader.
        unsafe { self.ring.completion_shared() }.overflow()
    }

    /// For tests: a completion with the given name.
    #[cfg(test)]
    pub(super) fn forge(&self, name: u64) {
        let mut queue = self.lock_queue();
        let entry = io_uring::opcode::Nop::new().build().user_data(name);
        assert!(self.push(&mut queue, Ticket(name), &entry));
        self.enter_submit(1, &Default::default()).expect("submitted");
        self.trim(&mut queue);
    }
}
