//! How old victims are, for each partition.

use super::Layout;

/// Pieces of a partition for which it is known when the hand last entered them.
const SECTORS: u64 = 16;

/// When the hands last were where they come to next.
#[derive(Debug)]
pub(super) struct EvictionAges {
    partitions: Vec<Hand>,
}

#[derive(Clone, Debug)]
struct Hand {
    frames: u64,
    passed: u64,
    entered: [u64; SECTORS as usize],
}

impl Hand {
    /// The sector, counted on through all laps.
    fn sector(&self, passed: u64) -> u64 {
        (u128::from(passed) * u128::from(SECTORS) / u128::from(self.frames.max(1))) as u64
    }
}

impl EvictionAges {
    pub(super) fn new(layout: &Layout) -> Self {
        let hand = |p| Hand { frames: u64::from(layout.frames(p)), passed: 0, entered: [0; SECTORS as usize] };
        Self { partitions: (0..layout.partitions()).map(hand).collect() }
    }

    /// The hands are there now.
    pub(super) fn note(&mut self, now: u64, passed: &[u64]) {
        for (hand, &passed) in self.partitions.iter_mut().zip(passed) {
            let (from, to) = (hand.sector(hand.passed), hand.sector(passed));
            for sector in (from + 1)..=to.min(from + SECTORS) {
                hand.entered[(sector % SECTORS) as usize] = now;
            }
            hand.passed = hand.passed.max(passed);
        }
    }

    /// Ages at the time `now`.
    pub(super) fn ages(&self, now: u64) -> Vec<Option<u64>> {
        let age = |hand: &Hand| {
            // The sector that the hand is in was entered just now; the next one was a lap ago, less what is left.
            let next = hand.entered[((hand.sector(hand.passed) + 1) % SECTORS) as usize];
            (hand.frames > 0 && hand.passed >= hand.frames).then(|| now.saturating_sub(next))
        };
        self.partitions.iter().map(age).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_age_is_the_time_of_the_last_lap() {
        let mut ages = EvictionAges::new(&Layout::even(vec![160, 320]));
        let mut now = 0;
        for step in 0..64u64 {
            now += 20;
            ages.note(now, &[step * 10, step * 10]);
            assert_eq!(ages.ages(now)[0].is_some(), step >= 16);
        }
        let found: Vec<u64> = ages.ages(now).into_iter().map(Option::unwrap).collect();
        // A frame of the hand a tick of two: laps of 320 and 640 allocations.
        assert!((290..=320).contains(&found[0]), "{found:?}");
        assert!((590..=640).contains(&found[1]), "{found:?}");
        ages.note(now + 5000, &[630, 630]);
        assert!(ages.ages(now + 5000)[0].unwrap() > 5000, "a hand that stands still");
    }

    #[test]
    fn empty_partitions_and_hands_that_jump_are_no_trouble() {
        let mut ages = EvictionAges::new(&Layout::even(vec![0, 3]));
        ages.note(7, &[0, 1 << 60]);
        assert_eq!(ages.ages(7), [None, Some(0)]);
        ages.note(9, &[u64::MAX, 5]);
        assert_eq!(ages.ages(9)[0], None);
    }
}
