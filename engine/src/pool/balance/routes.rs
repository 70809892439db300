//! Where streams of each home take frames now. Written by the policy now and then, read by all.

use super::{
    super::sync::{AtomicU64, Ordering},
    Layout,
};
use crossbeam_utils::CachePadded;

/// A [`Routes::direct`] entry that says: by the shares.
const SHARED: u64 = u64::MAX;

#[derive(Debug)]
struct Route {
    /// The partition, or [`SHARED`].
    direct: AtomicU64,
    /// For each partition: frames of a cycle to take there.
    shares: Box<[AtomicU64]>,
}

/// For each home: one partition, or shares of several.
///
/// Each home's word lies on a cache line of its own, and is written only if it changes: reading it is as cheap as
/// reading one's own memory. A reader may see a half drawn table of shares; then a few frames go elsewhere, that is all.
#[derive(Debug)]
pub struct Routes {
    homes: Box<[CachePadded<Route>]>,
    order: Box<[Box<[usize]>]>,
    cycle: u64,
}

/// What one stream remembers: where its home is, and how far it is in its shares.
#[derive(Clone, Debug, Default)]
pub struct Turn {
    pub(super) home: usize,
    /// Where it is in the cycle of shares: an index into the home's order.
    at: usize,
    /// Frames that it may still take, by partition; below zero after a large claim. Empty while there are no shares.
    credit: Vec<i64>,
    /// Frames taken and not yet counted in the pool.
    pub(super) uncounted: u64,
    /// Of these, the last ones that came from one partition, and which.
    pub(super) served: (usize, u64),
    pub(super) shunned: Shunned,
}

/// Partitions (of the first 64) that had nothing for this stream, and for how many more frames it asks them last.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Shunned {
    partitions: u64,
    left: u64,
}

impl Shunned {
    pub(super) fn has(self, partition: usize) -> bool {
        self.partitions != 0 && partition < 64 && self.partitions >> partition & 1 == 1
    }

    /// A lap over a partition of these many frames found nothing: one look in a quarter of that is enough.
    pub(super) fn add(&mut self, partition: usize, frames: u32) {
        if partition < 64 {
            self.partitions |= 1 << partition;
            self.left = self.left.max(u64::from(frames / 4).clamp(16, 4096));
        }
    }

    /// The stream took frames.
    pub(super) fn forget(&mut self, taken: u64) {
        if self.partitions != 0 {
            self.left = self.left.saturating_sub(taken.max(1));
            if self.left == 0 {
                *self = Self::default();
            }
        }
    }
}

impl Turn {
    pub(super) fn at_home(home: usize) -> Self {
        Self { home, ..Self::default() }
    }

    /// The stream's home.
    pub fn home(&self) -> usize {
        self.home
    }
}

impl Routes {
    /// Everybody goes home.
    pub(super) fn new(layout: &Layout) -> Self {
        let count = layout.partitions();
        let route = |home| Route {
            direct: AtomicU64::new(home as u64),
            shares: (0..count).map(|_| AtomicU64::new(0)).collect(),
        };
        Self {
            homes: (0..count).map(|home| CachePadded::new(route(home))).collect(),
            order: (0..count).map(|home| layout.nearest(home).into()).collect(),
            cycle: (layout.total_frames() / 8).clamp(64, 1024),
        }
    }

    /// Streams of `home` take all from `partition`.
    pub fn direct(&self, home: usize, partition: usize) {
        set(&self.homes[home].direct, partition as u64);
    }

    /// Streams of `home` take from each partition the share `weights[partition]` of all weights.
    pub fn share(&self, home: usize, weights: &[u32]) {
        let route = &self.homes[home];
        let total: u64 = weights.iter().map(|&w| u64::from(w)).sum();
        if total == 0 {
            return self.direct(home, home);
        }
        // Ends of shares are rounded, not shares: so they add up to the cycle whatever the weights are.
        let (mut sum, mut end) = (0, 0);
        for &partition in &self.order[home] {
            sum += u64::from(weights[partition]);
            let next = (sum * self.cycle + total / 2) / total;
            set(&route.shares[partition], next - end);
            end = next;
        }
        let alone = weights.iter().position(|&w| u64::from(w) == total);
        set(&route.direct, alone.map_or(SHARED, |partition| partition as u64));
    }

    /// The partition from which a stream takes its next frames.
    pub(super) fn choose(&self, turn: &mut Turn) -> usize {
        let route = &self.homes[turn.home];
        match route.direct.load(Ordering::Relaxed) {
            SHARED => self.choose_shared(turn, route),
            partition => partition as usize,
        }
    }

    /// Deficit round robin: a partition is used until the frames of its share are taken; what was taken beyond is
    /// missing in the next cycle.
    fn choose_shared(&self, turn: &mut Turn, route: &Route) -> usize {
        let order = &self.order[turn.home];
        if turn.credit.is_empty() {
            turn.credit = route.shares.iter().map(|share| share.load(Ordering::Relaxed) as i64).collect();
        }
        // Shares are at least one frame somewhere, and debts are at most one claim: this ends soon. The bound is for
        // tables seen half drawn.
        for _ in 0..order.len() * 1024 {
            let partition = order[turn.at];
            if turn.credit[partition] > 0 {
                return partition;
            }
            turn.at = (turn.at + 1) % order.len();
            let next = order[turn.at];
            turn.credit[next] += route.shares[next].load(Ordering::Relaxed) as i64;
        }
        turn.home
    }

    /// Remembers that a stream took frames of a partition.
    pub(super) fn took(turn: &mut Turn, partition: usize, frames: usize) {
        if let Some(credit) = turn.credit.get_mut(partition) {
            *credit -= frames as i64;
        }
    }

    /// The stream's thread has moved.
    pub(super) fn rehome(turn: &mut Turn, home: usize) {
        *turn = Turn { uncounted: turn.uncounted, served: turn.served, ..Turn::at_home(home) };
    }
}

/// Writes only what changes, so that the line stays in the readers' caches.
fn set(word: &AtomicU64, value: u64) {
    if word.load(Ordering::Relaxed) != value {
        word.store(value, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(heapscan_loom)))]
mod tests {
    use super::*;

    fn taken(routes: &Routes, turn: &mut Turn, claims: usize, want: usize) -> Vec<usize> {
        let mut taken = vec![0; routes.homes.len()];
        for _ in 0..claims {
            let partition = routes.choose(turn);
            Routes::took(turn, partition, want);
            taken[partition] += want;
        }
        taken
    }

    #[test]
    fn frames_are_taken_by_the_shares_whatever_the_size_of_a_claim() {
        let routes = Routes::new(&Layout::even(vec![2048; 4]));
        routes.share(1, &[100, 600, 0, 300]);
        for want in [1, 16, 128] {
            let mut turn = Turn::at_home(1);
            let taken = taken(&routes, &mut turn, 100 * 1024 / want, want);
            for (partition, share) in [0.1, 0.6, 0.0, 0.3].into_iter().enumerate() {
                let got = taken[partition] as f64 / (100.0 * 1024.0);
                assert!((got - share).abs() < 0.01, "claims of {want}: {got} of {share} in {partition}");
            }
        }
    }

    #[test]
    fn tiny_shares_of_many_partitions_add_up() {
        let routes = Routes::new(&Layout::even(vec![8; 64]));
        routes.share(0, &[1; 64]);
        let taken = taken(&routes, &mut Turn::default(), 64 * 100, 16);
        assert!(taken.iter().all(|&n| (1500..1700).contains(&n)), "{taken:?}");
    }

    #[test]
    fn the_way_home_is_direct_again_when_nothing_is_shared() {
        let routes = Routes::new(&Layout::even(vec![64; 2]));
        let mut turn = Turn::at_home(1);
        assert_eq!(routes.choose(&mut turn), 1);
        routes.direct(1, 0);
        assert_eq!(routes.choose(&mut turn), 0);
        routes.share(1, &[1, 1]);
        assert_eq!(routes.homes[1].direct.load(Ordering::Relaxed), SHARED);
        routes.share(1, &[0, 7]);
        assert_eq!(routes.choose(&mut turn), 1);
        routes.share(1, &[0, 0]);
        assert_eq!(routes.choose(&mut turn), 1);
    }
}
