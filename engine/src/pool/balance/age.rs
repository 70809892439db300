//! Equal eviction ages.

use super::{Balancer, Figures, Layout, Routes};

/// How far, in laps, a hand may be ahead of the mean before its home's streams take frames elsewhere.
const SLACK: f64 = 0.08;

/// The same in frames, for small partitions: less is the chance of the moment.
const SLACK_FRAMES: f64 = 8.0;

/// How much faster than the mean a hand may be for good: what *markedly* younger means. Only as far as several homes
/// are at work (see [`Age::margin`]).
const MARGIN: f64 = 0.08;

/// After this part of a pool's frames was asked for, demand is forgotten by a factor of e: soon enough that a stream which
/// is alone now is not held back by others that are gone.
const DEMAND: f64 = 1.0 / 6.0;

/// The victims, in frames of the partition, over which the cost of a victim is averaged.
const VISITS: f64 = 2.0;

/// How far, in laps, a hand can get behind or ahead: what was longer ago does not count.
const LEADS: (f64, f64) = (-1.0, 4.0);

#[derive(Clone, Copy, Debug, Default)]
struct Hand {
    passed: u64,
    served: u64,
    /// Frames passed and victims found of late: what a victim costs here.
    visits: f64,
    victims: f64,
    /// Laps that this hand is ahead of the mean of all, old ones forgotten.
    lead: f64,
}

impl Hand {
    /// Frames that the hand has passed since the last time, its lumps spread over the victims: where all pages were used
    /// alike it goes round for one victim, several times even, and then finds one at each step. That this happens now
    /// here and then there says nothing about ages.
    fn progress(&mut self, figures: Figures<'_>, partition: usize) -> f64 {
        let frames = f64::from(figures.layout.frames(partition).max(1));
        let visits = figures.passed[partition].saturating_sub(self.passed) as f64;
        let victims = figures.served[partition].saturating_sub(self.served) as f64;
        self.passed = self.passed.max(figures.passed[partition]);
        self.served = self.served.max(figures.served[partition]);
        let keep = (-victims / (VISITS * frames)).exp();
        self.visits = self.visits * keep + visits;
        self.victims = self.victims * keep + victims;
        if victims == 0.0 && visits >= frames {
            // Nothing was found in a whole lap: the frames are pinned.
            self.visits -= visits;
            return visits;
        }
        victims * (self.visits + frames) / (self.victims + frames)
    }
}

/// Frames come from home, unless pages there live markedly shorter than elsewhere; then from where they live longest, and
/// of two that are about alike from the nearer one. Free frames live for ever: while there are some, the nearest are taken.
///
/// Ages are equal when hands go round equally fast, so this policy reckons how far each hand is ahead of the mean, in
/// laps. That is an integral: the chance order of claims averages out in it, while a lasting difference adds up, so
/// small differences can be told from noise even in small partitions, which a comparison of the ages as measured
/// cannot.
///
/// A partition whose frames are all pinned is found out by itself: looking for a victim there costs a lap, which puts
/// its hand ahead.
#[derive(Debug)]
pub struct Age {
    hands: Vec<Hand>,
    asked: Vec<u64>,
    /// For each home: frames asked for, those of long ago forgotten.
    demand: Vec<f64>,
}

impl Age {
    /// For partitions that lie like this.
    pub fn new(layout: &Layout) -> Self {
        let count = layout.partitions();
        Self { hands: vec![Hand::default(); count], asked: vec![0; count], demand: vec![0.0; count] }
    }

    /// Who asks for how much, of late.
    fn observe(&mut self, figures: Figures<'_>) {
        let asked = |home: usize| figures.asked[home].saturating_sub(self.asked[home]) as f64;
        let all: f64 = (0..self.asked.len()).map(asked).sum();
        let keep = (-all / (DEMAND * figures.layout.total_frames().max(1) as f64)).exp();
        for home in 0..self.asked.len() {
            self.demand[home] = self.demand[home] * keep + asked(home);
        }
        self.asked.copy_from_slice(figures.asked);
    }

    /// [`MARGIN`] if all homes ask for the same, nothing if only one asks: locality is worth a little difference in age
    /// if it lets others keep their place, but a lone stream can have the whole pool.
    fn margin(&self) -> f64 {
        let all: f64 = self.demand.iter().sum();
        let squares: f64 = self.demand.iter().map(|demand| demand * demand).sum();
        let others = self.demand.len().saturating_sub(1);
        if squares <= 0.0 || others == 0 {
            return 0.0;
        }
        // The number of equal homes that would be as uneven.
        MARGIN * ((all * all / squares - 1.0) / others as f64).clamp(0.0, 1.0)
    }

    /// Moves the leads on.
    fn reckon(&mut self, figures: Figures<'_>) {
        let layout = figures.layout;
        let progress: Vec<f64> = (0..self.hands.len()).map(|p| self.hands[p].progress(figures, p)).collect();
        let mean = progress.iter().sum::<f64>() / layout.total_frames().max(1) as f64;
        let forgiven = mean * self.margin();
        for (partition, hand) in self.hands.iter_mut().enumerate() {
            let laps = progress[partition] / f64::from(layout.frames(partition).max(1));
            let lead = hand.lead + laps - mean;
            hand.lead = (lead - lead.clamp(-forgiven, forgiven)).clamp(LEADS.0, LEADS.1);
        }
    }

    fn target(&self, home: usize, layout: &Layout) -> usize {
        let frames = |p: usize| f64::from(layout.frames(p).max(1));
        let slack = (SLACK_FRAMES / frames(home)).clamp(SLACK, 0.5);
        let lead = |p: usize| self.hands[p].lead;
        if layout.frames(home) > 0 && lead(home) <= slack {
            return home;
        }
        // Whoever could get all allocations until the next time and would still not be ahead of home.
        let has_room =
            |&p: &usize| layout.frames(p) > 0 && lead(p) + layout.interval() as f64 / frames(p) <= lead(home);
        // A farther one must be that much farther behind.
        let cost = |p: usize| lead(p) + SLACK * f64::from(layout.level(home, p));
        let others = layout.nearest(home)[1..].iter().copied().filter(has_room);
        others.min_by(|&a, &b| cost(a).total_cmp(&cost(b))).unwrap_or(home)
    }
}

/// Frames of a partition that nothing was ever read into, as far as they are worth the while: streams that have not
/// counted what they took would overrun the last few.
fn free(figures: Figures<'_>, partition: usize) -> u64 {
    let frames = u64::from(figures.layout.frames(partition));
    let left = frames.saturating_sub(figures.passed[partition]);
    if left <= (2 * figures.layout.batch()).min(frames / 32) { 0 } else { left }
}

impl Balancer for Age {
    fn draw(&mut self, figures: Figures<'_>, routes: &Routes) -> u64 {
        let layout = figures.layout;
        let homes = 0..layout.partitions();
        self.observe(figures);
        if homes.clone().all(|p| free(figures, p) == 0) {
            self.reckon(figures);
            homes.for_each(|home| routes.direct(home, self.target(home, layout)));
            return layout.interval();
        }
        for (p, hand) in self.hands.iter_mut().enumerate() {
            *hand = Hand { passed: figures.passed[p], served: figures.served[p], ..Hand::default() };
        }
        let mut again = layout.interval();
        for home in homes {
            let with_free = layout.nearest(home).iter().copied().find(|&p| free(figures, p) > 0);
            let target = with_free.unwrap_or(home);
            routes.direct(home, target);
            again = again.min(free(figures, target));
        }
        again
    }
}
