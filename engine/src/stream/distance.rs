//! How far a stream looks ahead: two distances that grow with need and shrink without.

/// The distances of a stream, in blocks.
///
/// `combine` is how large one read may grow, `ahead` how many blocks may be pinned or asked for in front of the consumer.
/// Both begin at 1, so that a scan that stops early has read little.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Distance {
    combine: u32,
    ahead: u32,
    combine_limit: u32,
    asynchronous: bool,
    /// Reads go past the page cache: see [`Distance::read_consumed`].
    direct: bool,
    /// Hits to see before the distances shrink.
    hold_off: u32,
}

impl Distance {
    pub(super) fn new(combine_limit: u32, asynchronous: bool, full: bool) -> Self {
        let start = if full { combine_limit } else { 1 };
        let ahead = if asynchronous { start } else { 1 };
        Self { combine: start, ahead, combine_limit, asynchronous, direct: false, hold_off: 0 }
    }

    pub(super) fn combine(&self) -> u32 {
        self.combine
    }

    pub(super) fn ahead(&self) -> u32 {
        self.ahead
    }

    pub(super) fn is_direct(&self) -> bool {
        self.direct
    }

    /// Whether the stream's reads go past the page cache.
    pub(super) fn set_direct(&mut self, direct: bool) {
        self.direct = direct;
    }

    /// A read that the stream had asked for was consumed; `blocked`: it had to be waited for. `cap`: pins that the
    /// stream may have. Looking ahead pays only if a wait really blocked and reads do run by themselves.
    ///
    /// Direct reads that come in time still let it grow by a read each, never faster than the stream consumes: several
    /// of them then go to the kernel in one call. Reads from the page cache gain nothing by that and would leave the
    /// processor's cache.
    pub(super) fn read_consumed(&mut self, blocked: bool, cap: u32) {
        let full = self.combine == self.combine_limit;
        self.combine = self.combine.saturating_mul(2).min(self.combine_limit).min(cap).max(1);
        self.blocked(blocked, cap);
        if full && !blocked && self.asynchronous && self.direct {
            self.ahead = self.ahead.saturating_add(self.combine).min(cap).max(1);
        }
        self.hold_off = cap;
    }

    /// A block that somebody else was reading was consumed.
    pub(super) fn join_consumed(&mut self, blocked: bool, cap: u32) {
        self.blocked(blocked, cap);
        self.hold_off = cap;
    }

    fn blocked(&mut self, blocked: bool, cap: u32) {
        if blocked && self.asynchronous {
            self.ahead = self.ahead.saturating_mul(2).min(cap).max(1);
        }
    }

    /// A block was there already; `idle`: the stream has no read in flight.
    pub(super) fn hit(&mut self, idle: bool) {
        if !idle {
            return;
        }
        if self.hold_off > 0 {
            self.hold_off -= 1;
            return;
        }
        self.combine = (self.combine - 1).max(1);
        self.ahead = (self.ahead - 1).max(1);
    }

    /// No frame could be had for more than `pinned` blocks.
    pub(super) fn shortage(&mut self, pinned: u32) {
        self.ahead = self.ahead.min(pinned).max(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn combining_grows_with_every_read_and_look_ahead_only_with_blocking_waits() {
        let mut distance = Distance::new(16, true, false);
        let mut combine = Vec::new();
        for _ in 0..6 {
            combine.push(distance.combine());
            distance.read_consumed(false, 272);
        }
        assert_eq!((combine, distance.ahead()), (vec![1, 2, 4, 8, 16, 16], 1));
        for _ in 0..20 {
            distance.read_consumed(true, 272);
        }
        assert_eq!(distance.ahead(), 272);
        let mut sync = Distance::new(16, false, false);
        sync.read_consumed(true, 272);
        assert_eq!((sync.combine(), sync.ahead()), (2, 1));
        assert_eq!(Distance::new(16, true, true).combine(), 16);
    }

    #[test]
    fn direct_reads_in_time_let_it_grow_as_fast_as_it_consumes() {
        let mut distance = Distance::new(16, true, false);
        distance.set_direct(true);
        let mut consumed = 0;
        for _ in 0..20 {
            consumed += distance.combine();
            distance.read_consumed(false, 272);
            assert!(distance.ahead() <= consumed.max(1), "{} after {consumed}", distance.ahead());
        }
        assert_eq!(distance.ahead(), 16 * 16 + 1);
        let mut sync = Distance::new(16, false, true);
        sync.set_direct(true);
        sync.read_consumed(false, 272);
        assert_eq!(sync.ahead(), 1);
    }

    #[test]
    fn hits_shrink_both_after_a_while() {
        let mut distance = Distance::new(16, true, false);
        for _ in 0..5 {
            distance.read_consumed(true, 32);
        }
        for _ in 0..100 {
            distance.hit(false);
        }
        for _ in 0..32 {
            distance.hit(true);
        }
        assert_eq!((distance.combine(), distance.ahead()), (16, 32), "held off");
        for _ in 0..40 {
            distance.hit(true);
        }
        assert_eq!((distance.combine(), distance.ahead()), (1, 1));
        distance.read_consumed(true, 1);
        assert_eq!((distance.combine(), distance.ahead()), (1, 1), "one pin");
        distance.shortage(0);
        assert_eq!(distance.ahead(), 1);
    }
}
