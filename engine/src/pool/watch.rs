//! Tells of reads that take too long, whatever the method: a thread that looks now and then at what is in flight.
//!
//! It runs only while there is something in flight: the first submission starts it, and it ends when it finds nothing.

use super::{OutstandingRead, shared::Shared};
use std::{
    sync::{
        Arc, Condvar, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

#[derive(Debug, Default)]
pub(super) struct Watch {
    running: AtomicBool,
    closing: Mutex<bool>,
    changed: Condvar,
    /// Reads that were told of.
    pub(super) told: AtomicU64,
}

impl Watch {
    /// Sees to it that somebody looks. Called with each submission, so it costs a load where somebody does.
    pub(super) fn start(self: &Arc<Self>, shared: &Arc<Shared>, after: Duration) {
        if self.running.load(Ordering::SeqCst) || self.running.swap(true, Ordering::SeqCst) {
            return;
        }
        let (watch, shared) = (Arc::clone(self), Arc::downgrade(shared));
        let look = move || {
            let mut told = Vec::new();
            while !watch.sleep(after / 4) {
                let Some(shared) = shared.upgrade() else { return };
                if shared.in_flight.count() == 0 {
                    watch.running.store(false, Ordering::SeqCst);
                    // What was submitted in between found a watch that was about to end.
                    if shared.in_flight.count() == 0 || watch.running.swap(true, Ordering::SeqCst) {
                        return;
                    }
                }
                let reads = shared.in_flight.outstanding();
                drop(shared);
                watch.tell(&reads, after, &mut told);
            }
        };
        // Without a thread nobody is warned; that is no reason not to read.
        if std::thread::Builder::new().name("heapscan-watch".to_owned()).spawn(look).is_err() {
            self.running.store(false, Ordering::Release);
        }
    }

    /// Sleeps for `pause`; says whether the pool is gone.
    fn sleep(&self, pause: Duration) -> bool {
        let closing = self.closing.lock().unwrap_or_else(PoisonError::into_inner);
        let wait = self.changed.wait_timeout_while(closing, pause.max(Duration::from_millis(1)), |closing| !*closing);
        *wait.unwrap_or_else(PoisonError::into_inner).0
    }

    /// `told`: which reads were told of before, by block and beginning.
    fn tell(&self, reads: &[OutstandingRead], after: Duration, told: &mut Vec<(u32, Instant)>) {
        told.retain(|&(block, since)| reads.iter().any(|read| (read.block, read.since) == (block, since)));
        for read in reads.iter().filter(|read| read.age >= after) {
            let key = (read.block, read.since);
            if !told.contains(&key) {
                told.push(key);
                self.told.fetch_add(1, Ordering::Relaxed);
                let OutstandingRead { path, block, blocks, age, .. } = read;
                tracing::warn!(path = %path.display(), block, blocks, ?age, "a read takes long");
            }
        }
    }

    pub(super) fn close(&self) {
        *self.closing.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_all();
    }
}
