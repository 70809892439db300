//! The door: one call takes frames by the policy, counts, and has routes drawn anew in time.

use super::{
    super::sync::{AtomicU64, Mutex, Ordering},
    Balancer, Figures, Layout, NumaBalance, Routes, Turn,
    eviction_age::EvictionAges,
};
use crossbeam_utils::CachePadded;

/// Frames that one call got.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// Of the home partition.
    pub home: usize,
    /// Of other partitions.
    pub elsewhere: usize,
}

impl Taken {
    /// All.
    pub fn total(self) -> usize {
        self.home + self.elsewhere
    }
}

/// What one thread at a time works on.
#[derive(Debug)]
struct Desk {
    balancer: Box<dyn Balancer>,
    ages: EvictionAges,
    passed: Vec<u64>,
    asked: Vec<u64>,
    served: Vec<u64>,
}

/// Time in allocations of the whole pool.
#[derive(Debug)]
struct Clock {
    now: AtomicU64,
    /// When routes are to be drawn anew.
    due: AtomicU64,
}

/// Of one partition.
#[derive(Debug)]
struct Counters {
    asked: AtomicU64,
    served: AtomicU64,
}

impl Counters {
    fn new() -> Self {
        Self { asked: AtomicU64::new(0), served: AtomicU64::new(0) }
    }
}

/// A policy at work: shared by all streams of a pool.
#[derive(Debug)]
pub struct Balance {
    kind: NumaBalance,
    layout: Layout,
    routes: Routes,
    counters: Box<[CachePadded<Counters>]>,
    clock: CachePadded<Clock>,
    batch: u64,
    desk: Mutex<Desk>,
}

impl Balance {
    /// A policy for partitions that lie like this; at least one.
    pub fn new(kind: NumaBalance, layout: Layout) -> Self {
        let count = layout.partitions();
        let desk = Desk {
            balancer: kind.balancer(&layout),
            ages: EvictionAges::new(&layout),
            passed: vec![0; count],
            asked: vec![0; count],
            served: vec![0; count],
        };
        Self {
            kind,
            routes: Routes::new(&layout),
            counters: (0..count).map(|_| CachePadded::new(Counters::new())).collect(),
            clock: CachePadded::new(Clock { now: AtomicU64::new(0), due: AtomicU64::new(1) }),
            batch: layout.batch(),
            desk: Mutex::new(desk),
            layout,
        }
    }

    /// The policy's name.
    pub fn kind(&self) -> NumaBalance {
        self.kind
    }

    /// How the partitions lie.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// A new stream at home in `home` (taken modulo the number of partitions).
    pub fn turn(&self, home: usize) -> Turn {
        Turn::at_home(home % self.layout.partitions().max(1))
    }

    /// The stream's thread has moved to another home. Cheap if it has not.
    pub fn rehome(&self, turn: &mut Turn, home: usize) {
        let home = home % self.layout.partitions().max(1);
        if home != turn.home {
            self.count(turn);
            Routes::rehome(turn, home);
        }
    }

    /// Takes `want` frames: from where the policy says; what is missing from the nearest others that have some. Fewer
    /// only if each partition was asked and none had more.
    ///
    /// `passed(p)` says how many frames the hand of partition `p` has passed since the beginning; it is called rarely.
    /// `sweep(p, n)` claims up to `n` frames of partition `p` and says how many it got; it is called without any lock.
    pub fn allocate(
        &self,
        turn: &mut Turn,
        want: usize,
        passed: impl Fn(usize) -> u64,
        mut sweep: impl FnMut(usize, usize) -> usize,
    ) -> Taken {
        let mut taken = Taken::default();
        let home = turn.home;
        let mut take = |turn: &mut Turn, partition: usize, want: usize| {
            let got = sweep(partition, want);
            Routes::took(turn, partition, got);
            self.serve(turn, partition, got as u64);
            if partition == home {
                taken.home += got
            } else {
                taken.elsewhere += got
            }
            got
        };
        let mut missing = want;
        if self.layout.partitions() > 1 {
            let first = self.routes.choose(turn);
            let nearest = self.layout.nearest(home).iter().copied();
            let order = std::iter::once(first).chain(nearest.filter(|&p| p != first));
            // The shunned are asked last: they may have frames again, and nobody else has.
            let shunned = turn.shunned;
            for asked_last in [false, true] {
                for partition in order.clone().filter(|&p| shunned.has(p) == asked_last) {
                    if missing > 0 {
                        let got = take(turn, partition, missing);
                        missing -= got;
                        if got == 0 && self.layout.frames(partition) > 0 {
                            turn.shunned.add(partition, self.layout.frames(partition));
                        }
                    }
                }
            }
            if turn.shunned.has(first) && !shunned.has(first) {
                // A whole lap found nothing. Others should hear of it now.
                self.redraw(&passed);
            }
        } else {
            missing -= take(turn, 0, missing);
        }
        self.counted(turn, (want - missing) as u64, &passed);
        taken
    }

    /// Counts what the stream has taken. To be called when the stream ends.
    pub fn count(&self, turn: &mut Turn) {
        let taken = std::mem::take(&mut turn.uncounted);
        if taken > 0 {
            self.counters[turn.home].asked.fetch_add(taken, Ordering::Relaxed);
            self.clock.now.fetch_add(taken, Ordering::Relaxed);
        }
        self.serve(turn, usize::MAX, 0);
    }

    /// Remembers how many frames a partition gave. Counts them when it is another one's turn.
    fn serve(&self, turn: &mut Turn, partition: usize, frames: u64) {
        let (last, before) = turn.served;
        if last == partition {
            turn.served.1 += frames;
            return;
        }
        if before > 0 {
            self.counters[last].served.fetch_add(before, Ordering::Relaxed);
        }
        turn.served = (partition, frames);
    }

    /// The eviction age of each partition in allocations of the whole pool; `None` while its hand has not been round.
    pub fn eviction_ages(&self, passed: impl Fn(usize) -> u64) -> Vec<Option<u64>> {
        self.redraw(&passed);
        match self.desk.lock() {
            Ok(desk) => desk.ages.ages(self.clock.now.load(Ordering::Relaxed)),
            Err(_) => vec![None; self.layout.partitions()],
        }
    }

    fn counted(&self, turn: &mut Turn, taken: u64, passed: &impl Fn(usize) -> u64) {
        turn.shunned.forget(taken);
        turn.uncounted += taken;
        if turn.uncounted < self.batch {
            return;
        }
        let taken = std::mem::take(&mut turn.uncounted);
        self.serve(turn, usize::MAX, 0);
        self.counters[turn.home].asked.fetch_add(taken, Ordering::Relaxed);
        let now = self.clock.now.fetch_add(taken, Ordering::Relaxed) + taken;
        if now >= self.clock.due.load(Ordering::Relaxed) {
            self.redraw(passed);
        }
    }

    /// Lets the policy draw the routes, unless another thread is just doing it.
    fn redraw(&self, passed: &impl Fn(usize) -> u64) {
        let Ok(mut desk) = self.desk.try_lock() else { return };
        let desk = &mut *desk;
        for (partition, counters) in self.counters.iter().enumerate() {
            desk.passed[partition] = passed(partition);
            desk.asked[partition] = counters.asked.load(Ordering::Relaxed);
            desk.served[partition] = counters.served.load(Ordering::Relaxed);
        }
        let now = self.clock.now.load(Ordering::Relaxed);
        desk.ages.note(now, &desk.passed);
        let figures = Figures { layout: &self.layout, asked: &desk.asked, served: &desk.served, passed: &desk.passed };
        let again = desk.balancer.draw(figures, &self.routes);
        self.clock.due.store(now + again.max(1), Ordering::Relaxed);
    }
}
