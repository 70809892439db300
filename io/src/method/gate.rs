//! Where threads sleep until a lane delivered something.

use std::{
    sync::{
        Condvar, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering, fence},
    },
    time::{Duration, Instant},
};

/// The longest sleep before the condition is looked at again: bounds the harm of a condition that depends on something
/// else than the lane.
pub(crate) const NAP: Duration = Duration::from_millis(100);

/// A condition variable that costs a notifier nothing while nobody waits.
///
/// No wake-up is lost: a waiter announces itself (`waiters`), then fences, then evaluates its condition; a notifier
/// changes what the condition reads, then fences, then reads `waiters`. With both fences sequentially consistent, either
/// the waiter sees the change or the notifier sees the waiter. In the second case the notifier takes the lock, which the
/// waiter holds from evaluating until it sleeps, so the notification cannot fall in between.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    waiters: AtomicUsize,
    lock: Mutex<()>,
    changed: Condvar,
}

impl Gate {
    /// Sleeps until `condition` holds or `deadline` has passed; says whether it holds.
    pub(crate) fn wait(&self, condition: &dyn Fn() -> bool, deadline: Instant) -> bool {
        self.waiters.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let mut guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        let holds = loop {
            if condition() {
                break true;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break false;
            }
            guard = self.changed.wait_timeout(guard, left.min(NAP)).unwrap_or_else(PoisonError::into_inner).0;
        };
        drop(guard);
        self.waiters.fetch_sub(1, Ordering::SeqCst);
        holds
    }

    /// Whether somebody sleeps here; a hint.
    #[cfg_attr(not(feature = "io_uring"), expect(dead_code, reason = "only leaders of rings ask"))]
    pub(crate) fn has_waiters(&self) -> bool {
        self.waiters.load(Ordering::Relaxed) > 0
    }

    /// Tells waiters to look again. Call after the change.
    pub(crate) fn notify(&self) {
        fence(Ordering::SeqCst);
        if self.waiters.load(Ordering::SeqCst) > 0 {
            drop(self.lock.lock().unwrap_or_else(PoisonError::into_inner));
            self.changed.notify_all();
        }
    }
}
