//! How one stream comes by frames: from its ring, from the partition at home where its thread runs, from others.

use super::{
    balance::Turn,
    clock::Run,
    frames::Frames,
    metrics::ReadMetrics,
    partition::{PartitionCounters, Victim},
    strategy::{Ring, Strategy},
};
use heapscan_placement::plan::Plan;
use std::{
    cell::Cell,
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
};

/// Victims that a stream takes before it tells the partitions' counters, which other threads use too.
const TELL_EVERY: u32 = 64;

thread_local! {
    static ORDINAL: Cell<u32> = const { Cell::new(u32::MAX) };
}

/// The how-manieth thread this is, of those that ever asked.
pub(crate) fn thread_ordinal() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    ORDINAL.with(|ordinal| {
        if ordinal.get() == u32::MAX {
            ordinal.set(NEXT.fetch_add(1, Ordering::Relaxed) & (u32::MAX >> 1));
        }
        ordinal.get()
    })
}

/// Which partitions are at home where.
#[derive(Debug)]
pub(crate) struct Homes {
    /// By CPU: the partitions at home there that the CPU's threads share out. One where there are more CPUs than
    /// partitions.
    by_cpu: Box<[Box<[u32]>]>,
    /// For threads on CPUs that the plan does not know.
    all: Box<[u32]>,
}

impl Homes {
    pub(crate) fn new(plan: &Plan) -> Self {
        let cpus = plan.groups.iter().flat_map(|group| &group.home_cpus).max().map_or(0, |&cpu| cpu + 1);
        let group_of = |cpu: u32| plan.groups.iter().find(|group| group.home_cpus.contains(&cpu));
        let homes = |cpu: u32| {
            let all = plan.homes(cpu);
            let share = group_of(cpu).map_or(all.len(), |group| group.partitions.len().div_ceil(group.home_cpus.len()));
            all[..share.clamp(1, all.len())].into()
        };
        Self { by_cpu: (0..cpus).map(homes).collect(), all: (0..plan.partitions.len() as u32).collect() }
    }

    /// The home of the calling thread on the CPU where it runs just now.
    pub(crate) fn now(&self) -> usize {
        if self.all.len() == 1 {
            return 0;
        }
        let cpu = nix::sched::sched_getcpu().unwrap_or(usize::MAX);
        let homes = self.by_cpu.get(cpu).unwrap_or(&self.all);
        homes[thread_ordinal() as usize % homes.len()] as usize
    }
}

/// What the counters of a partition have not been told yet.
#[derive(Clone, Copy, Debug, Default)]
struct Untold {
    asked: u32,
    local: u32,
    remote: u32,
    lent: u32,
}

impl Untold {
    fn tell(&mut self, counters: &PartitionCounters) {
        let add = |counter: &AtomicU64, value: &mut u32| {
            if *value > 0 {
                counter.fetch_add(u64::from(std::mem::take(value)), Ordering::Relaxed);
            }
        };
        add(&counters.asked, &mut self.asked);
        add(&counters.local, &mut self.local);
        add(&counters.remote, &mut self.remote);
        add(&counters.lent, &mut self.lent);
    }
}

/// A stream's own part in the choice of victims. Belongs to one stream, so nothing in it is shared.
#[derive(Debug)]
pub(crate) struct Chooser {
    pub(super) ring: Option<Ring>,
    ring_local: bool,
    /// Whether the home was asked for instead of following from the thread's CPU.
    fixed: bool,
    turn: Turn,
    hands: Hands,
    told_hits: u64,
    told_reads: u64,
}

/// What a stream has of each partition's clock and counters.
#[derive(Debug)]
struct Hands {
    runs: Box<[Run]>,
    untold: Box<[Untold]>,
    untold_victims: u32,
}

impl Hands {
    /// Claims up to `want` frames of one partition for a stream at home in `home`.
    fn sweep(
        &mut self,
        frames: &Frames,
        home: usize,
        partition: usize,
        want: usize,
        victims: &mut Vec<Victim>,
    ) -> usize {
        let had = victims.len();
        frames.partitions()[partition].sweep(&mut self.runs[partition], want, victims);
        let got = victims.len() - had;
        if partition == home {
            self.untold[home].local += got as u32;
        } else {
            self.untold[home].remote += got as u32;
            self.untold[partition].lent += got as u32;
        }
        got
    }
}

impl Chooser {
    pub(crate) fn new(frames: &Frames, strategy: Strategy, ring_local: bool, home: Option<u32>) -> Self {
        let partitions = frames.partitions().len();
        let now = home.map_or_else(|| frames.homes().now(), |home| home as usize);
        let ring = Ring::new(strategy);
        Self {
            ring_local: ring_local && ring.is_some(),
            ring,
            fixed: home.is_some(),
            turn: frames.balance().turn(now),
            hands: Hands {
                runs: vec![Run::default(); partitions].into(),
                untold: vec![Untold::default(); partitions].into(),
                untold_victims: 0,
            },
            told_hits: 0,
            told_reads: 0,
        }
    }

    /// The partition at home where the stream last asked for frames.
    pub(crate) fn home(&self) -> usize {
        self.turn.home()
    }

    /// Claims up to `want` frames for the calling thread: from the ring, if there is one, then from the pool. Returns how
    /// many are the ring's.
    pub(crate) fn claim(&mut self, frames: &Frames, want: usize, victims: &mut Vec<Victim>) -> usize {
        let from_ring = self.ring.as_mut().map_or(0, |ring| ring.claim(frames, want, victims));
        if victims.len() < want {
            self.claim_from_pool(frames, want - victims.len(), victims);
        }
        from_ring
    }

    fn claim_from_pool(&mut self, frames: &Frames, want: usize, victims: &mut Vec<Victim>) {
        let balance = frames.balance();
        if !self.fixed {
            balance.rehome(&mut self.turn, frames.homes().now());
        }
        let (home, hands) = (self.turn.home(), &mut self.hands);
        hands.untold[home].asked += want as u32;
        hands.untold_victims += want as u32;
        if self.ring_local {
            // The nearest others only when all frames at home are pinned.
            let mut missing = want;
            for &partition in balance.layout().nearest(home) {
                if missing > 0 {
                    missing -= hands.sweep(frames, home, partition, missing, victims);
                }
            }
        } else {
            let passed = |partition: usize| frames.partitions()[partition].clock().position();
            balance.allocate(&mut self.turn, want, passed, |partition, want| {
                hands.sweep(frames, home, partition, want, victims)
            });
        }
        if self.hands.untold_victims >= TELL_EVERY {
            self.tell(frames);
        }
    }

    fn tell(&mut self, frames: &Frames) {
        self.hands.untold_victims = 0;
        for (untold, partition) in self.hands.untold.iter_mut().zip(frames.partitions()) {
            untold.tell(&partition.counters);
        }
    }

    /// Tells the home partition what the stream found and read so far, and the others what it took from them.
    pub(crate) fn report(&mut self, frames: &Frames, metrics: &ReadMetrics) {
        self.tell(frames);
        let counters = &frames.partitions()[self.turn.home()].counters;
        let (hits, reads) = (metrics.hits + metrics.joins, metrics.blocks_read);
        counters.hits.fetch_add(hits.saturating_sub(self.told_hits), Ordering::Relaxed);
        counters.reads.fetch_add(reads.saturating_sub(self.told_reads), Ordering::Relaxed);
        (self.told_hits, self.told_reads) = (hits, reads);
    }

    /// Gives back what it holds of the clock hands. To forget that costs nothing but a few frames that stay a round longer.
    pub(crate) fn close(&mut self, frames: &Frames) {
        frames.balance().count(&mut self.turn);
        for (run, partition) in self.hands.runs.iter_mut().zip(frames.partitions()) {
            partition.clock().give_back(run);
        }
    }
}
