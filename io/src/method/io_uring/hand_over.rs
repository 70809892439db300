//! Which buffered reads the kernel's worker threads copy (`IOSQE_ASYNC`).

use crate::AsyncRule;
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

/// The rule of one lane, and what it has to know of the others.
pub(super) struct HandOver {
    rule: AsyncRule,
    cpus: usize,
    /// Lanes of the method that have reads in flight.
    busy: Arc<AtomicUsize>,
}

impl HandOver {
    pub(super) fn new(rule: AsyncRule, cpus: usize, busy: Arc<AtomicUsize>) -> Self {
        Self { rule, cpus, busy }
    }

    /// The first read of this lane is in flight.
    pub(super) fn begins(&self) {
        self.busy.fetch_add(1, Ordering::Relaxed);
    }

    /// No read of this lane is in flight any more.
    pub(super) fn ends(&self) {
        self.busy.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether a buffered read of `bytes` bytes is handed over, with `in_flight` of them on this lane.
    pub(super) fn decide(&self, in_flight: usize, bytes: usize) -> bool {
        let above = |n: u32, size: usize| in_flight > n as usize || bytes >= size;
        match self.rule {
            AsyncRule::Never => false,
            AsyncRule::Always => true,
            AsyncRule::Threshold { in_flight: n, bytes: size } => above(n, size),
            // Each busy lane has a thread that decodes. A copy is spread only over CPUs that are left.
            AsyncRule::Auto => self.busy.load(Ordering::Relaxed) < self.cpus && above(4, 32 << 10),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn auto_spreads_large_reads_while_a_cpu_is_left() {
        let busy = Arc::new(AtomicUsize::new(0));
        let lane = HandOver::new(AsyncRule::Auto, 2, busy.clone());
        lane.begins();
        assert!(lane.decide(1, 32 << 10) && lane.decide(5, 8192));
        assert!(!lane.decide(4, 8192), "few small reads are cheaper inline");
        let other = HandOver::new(AsyncRule::Auto, 2, busy.clone());
        other.begins();
        assert!(!lane.decide(48, 128 << 10), "both CPUs decode");
        other.ends();
        assert!(lane.decide(48, 128 << 10));
        let alone = HandOver::new(AsyncRule::Auto, 1, busy);
        assert!(!alone.decide(48, 128 << 10), "one CPU has nobody to hand to");
    }
}
