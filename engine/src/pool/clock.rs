//! The clock sweep over the frames of one partition.
//!
//! This file depends on nothing but the frame state and the atomics, so that loom can try its interleavings.

use super::{
    state::{FrameCore, MAX_USAGE, Tick, Word},
    sync::{AtomicU64, Ordering},
};

/// Values of the hand that somebody has taken and not visited yet: theirs alone, until used or given back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Run {
    next: u64,
    end: u64,
}

impl Run {
    pub(crate) fn left(self) -> u64 {
        self.end - self.next
    }
}

/// The hand: a number that only grows. Where it points and how often it went round follow from it by arithmetic, so
/// there is nothing to reset and nothing to lock.
///
/// The hand's cache line is touched once a run, not once a frame: a thread takes the next `batch` values by one addition
/// and visits those frames alone. Each frame is still visited once a round.
#[derive(Debug)]
pub(crate) struct Clock {
    hand: AtomicU64,
    frames: u32,
    batch: u32,
}

impl Clock {
    pub(crate) fn new(frames: u32, batch: u32) -> Self {
        Self { hand: AtomicU64::new(0), frames: frames.max(1), batch: batch.max(1) }
    }

    /// How often the hand went round.
    pub(crate) fn passes(&self) -> u64 {
        self.position() / u64::from(self.frames)
    }

    /// How many frames the hand has passed since the beginning.
    pub(crate) fn position(&self) -> u64 {
        self.hand.load(Ordering::Relaxed)
    }

    /// Gives back what is left of a run, if nobody has moved the hand since. If somebody has, those frames are spared in
    /// this round.
    pub(crate) fn give_back(&self, run: &mut Run) {
        if run.left() > 0 {
            // Nobody else has a value from `next` on when the hand still stands at `end`.
            let _ = self.hand.compare_exchange(run.end, run.next, Ordering::Relaxed, Ordering::Relaxed);
        }
        *run = Run::default();
    }

    /// Claims up to `want` frames and tells `found` their index and what they were. Fewer if as many frames as there are
    /// were seen pinned one after the other, or if other threads use the frames faster than the hand can age them; and at
    /// the end of the first round, because other partitions may still have frames that were never used.
    pub(crate) fn sweep<'a>(
        &self,
        core: impl Fn(u32) -> &'a FrameCore,
        run: &mut Run,
        want: usize,
        mut found: impl FnMut(u32, Word),
    ) {
        let frames = u64::from(self.frames);
        let mut missing = (want as u64).min(frames);
        let mut pinned_in_a_row = 0;
        let mut left = frames * (MAX_USAGE + 2);
        let mut index = run.next % frames;
        let mut in_first_round = false;
        while missing > 0 && pinned_in_a_row < frames && left > 0 {
            if in_first_round && index == 0 && missing < want as u64 {
                return;
            }
            if run.left() == 0 {
                let to_the_end = frames.saturating_sub(self.position());
                let take = missing.max(u64::from(self.batch)).min(if to_the_end > 0 { to_the_end } else { frames });
                run.next = self.hand.fetch_add(take, Ordering::Relaxed);
                run.end = run.next + take;
                index = run.next % frames;
            }
            in_first_round = run.next < frames;
            match core(index as u32).tick() {
                Tick::Claimed(was) => {
                    found(index as u32, was);
                    missing -= 1;
                    pinned_in_a_row = 0;
                }
                Tick::Aged => pinned_in_a_row = 0,
                Tick::Pinned => pinned_in_a_row += 1,
            }
            run.next += 1;
            left -= 1;
            index = if index + 1 == frames { 0 } else { index + 1 };
        }
    }
}

/// Values of the hand to take at a time: enough to make its cache line cheap, few enough that all processors together
/// hold a small part of the frames at most.
pub(crate) fn batch(frames: u32, processors: usize) -> u32 {
    let processors = u32::try_from(processors).unwrap_or(u32::MAX).max(1);
    (frames / processors.saturating_mul(4)).clamp(1, 32)
}

#[cfg(all(test, not(heapscan_loom)))]
mod tests {
    use super::*;

    fn take(clock: &Clock, cores: &[FrameCore], run: &mut Run, want: usize) -> Vec<u32> {
        let mut found = Vec::new();
        clock.sweep(|i| &cores[i as usize], run, want, |i, _| found.push(i));
        found
    }

    #[test]
    fn runs_are_disjoint_and_what_is_left_goes_back() {
        let cores: Vec<FrameCore> = (0..64).map(|_| FrameCore::new()).collect();
        let clock = Clock::new(64, 8);
        let (mut a, mut b) = (Run::default(), Run::default());
        assert_eq!(take(&clock, &cores, &mut a, 1), [0]);
        assert_eq!(take(&clock, &cores, &mut b, 1), [8]);
        assert_eq!(take(&clock, &cores, &mut a, 8), [1, 2, 3, 4, 5, 6, 7, 16], "the rest of its run, then a new one");
        clock.give_back(&mut b);
        assert_eq!(clock.position(), 24, "somebody went on: nothing to give back");
        clock.give_back(&mut a);
        assert_eq!((clock.position(), a.left()), (17, 0));
        assert_eq!(take(&clock, &cores, &mut a, 1), [17]);
    }

    #[test]
    fn passes_follow_from_the_hand() {
        let cores: Vec<FrameCore> = (0..5).map(|_| FrameCore::new()).collect();
        let clock = Clock::new(5, 3);
        let mut run = Run::default();
        for round in 0..10 {
            let mut all = Vec::new();
            for _ in 0..5 {
                all.extend(take(&clock, &cores, &mut run, 1));
            }
            all.sort_unstable();
            assert_eq!(all, [0, 1, 2, 3, 4], "round {round}: each frame once");
            cores.iter().for_each(FrameCore::release_claim);
        }
        clock.give_back(&mut run);
        assert_eq!((clock.position(), clock.passes()), (50, 10));
    }

    #[test]
    fn a_sweep_ends_when_everything_is_pinned() {
        let cores: Vec<FrameCore> = (0..4).map(|_| FrameCore::new()).collect();
        let (clock, mut run) = (Clock::new(4, 2), Run::default());
        for i in take(&clock, &cores, &mut run, 4) {
            cores[i as usize].begin_io(u64::from(i));
        }
        assert!(take(&clock, &cores, &mut run, 1).is_empty());
        assert_eq!(clock.passes(), 2);
    }

    #[test]
    fn batches_fit_partitions_and_processors() {
        assert_eq!(batch(1 << 20, 2), 32);
        assert_eq!(batch(16, 2), 2);
        assert_eq!(batch(3, 8), 1);
        assert_eq!(batch(4096, 128), 8);
        assert_eq!(batch(u32::MAX, usize::MAX), 1);
    }
}
