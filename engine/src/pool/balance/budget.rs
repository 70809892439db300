//! Shares by demand, as proposed for PostgreSQL.

use super::{Balancer, Figures, Layout, Routes};

/// All weights of a home.
const WHOLE: u32 = 1 << 16;

/// Requests of the average partition below which an interval says nothing, unless the partitions are tiny.
const LEAST_REQUESTS: u64 = 100;

/// How far apart in distance two partitions are, and which: the order in which demand and room are brought together.
#[derive(Clone, Debug)]
struct Level {
    distance: u32,
    /// For each home the partitions at this distance.
    partitions: Vec<Vec<usize>>,
}

/// Each home has a budget of frames in each partition. They are reckoned from how much each home asked for: one that
/// asks for more than its partition's part of the pool keeps that part for itself, and the rest is spread over those
/// that ask for less. New weights are half old and half new. Nothing changes if the average partition had fewer than
/// 100 requests, or if all that is too much is less than 10 % of the average.
///
/// Against the proposal: weights are shares of 65,536 and add up to it always (integers that sum to about 100 drift);
/// partitions may differ in size, and each one's fair part is that of its frames; what is spread goes to near
/// partitions first; an interval is not 200 milliseconds but as many requests as half the pool has frames; and a partition without unpinned frames
/// is passed over by [`Balance`](super::Balance), instead of an error.
///
/// It reckons with requests only. How long pages live does not come into it.
#[derive(Debug)]
pub struct Budget {
    levels: Vec<Level>,
    asked: Vec<u64>,
    weights: Vec<Vec<u32>>,
}

impl Budget {
    /// For partitions that lie like this. Each home begins with all of its weight on itself.
    pub fn new(layout: &Layout) -> Self {
        let count = layout.partitions();
        let pairs = || (0..count).flat_map(|home| (0..count).map(move |p| (home, p))).filter(|(home, p)| home != p);
        let mut distances: Vec<u32> = pairs().map(|(home, p)| layout.distance(home, p)).collect();
        distances.sort_unstable();
        distances.dedup();
        let level = |distance| {
            let at = |home: usize| layout.nearest(home)[1..].iter().copied();
            let partitions =
                (0..count).map(|home| at(home).filter(|&p| layout.distance(home, p) == distance).collect()).collect();
            Level { distance, partitions }
        };
        let mut levels: Vec<Level> = distances.into_iter().map(level).collect();
        levels.sort_by_key(|level| level.distance);
        let alone = |home| (0..count).map(|p| if p == home { WHOLE } else { 0 }).collect();
        Self { levels, asked: vec![0; count], weights: (0..count).map(alone).collect() }
    }

    /// What each home should take from each partition, as numbers of frames, if it asks as in the last interval.
    fn spread(&self, layout: &Layout, asked: &[f64], fair: &[f64]) -> Vec<Vec<f64>> {
        let count = layout.partitions();
        let mut excess: Vec<f64> = (0..count).map(|p| (asked[p] - fair[p]).max(0.0)).collect();
        let mut room: Vec<f64> = (0..count).map(|p| (fair[p] - asked[p]).max(0.0)).collect();
        let mut parts = vec![vec![0.0; count]; count];
        for level in &self.levels {
            for home in 0..count {
                let near = &level.partitions[home];
                let all: f64 = near.iter().map(|&p| room[p]).sum();
                let moved = excess[home].min(all);
                if moved <= 0.0 {
                    continue;
                }
                excess[home] -= moved;
                for &p in near {
                    let part = moved * room[p] / all;
                    parts[home][p] += part;
                    room[p] -= part;
                }
            }
        }
        for (home, row) in parts.iter_mut().enumerate() {
            row[home] = (asked[home] - row.iter().sum::<f64>()).max(0.0);
        }
        parts
    }

    /// Half old, half new; what rounding loses stays at home.
    fn mix(&mut self, home: usize, new: &[f64]) {
        let total: f64 = new.iter().sum();
        let row = &mut self.weights[home];
        let mut others = 0;
        for (p, weight) in row.iter_mut().enumerate().filter(|(p, _)| *p != home) {
            let part = if total > 0.0 { new[p] / total } else { 0.0 };
            *weight = ((f64::from(*weight) + part * f64::from(WHOLE)) / 2.0) as u32;
            others += *weight;
        }
        row[home] = WHOLE.saturating_sub(others);
    }
}

impl Balancer for Budget {
    fn draw(&mut self, figures: Figures<'_>, routes: &Routes) -> u64 {
        let again = figures.layout.interval();
        let layout = figures.layout;
        let count = layout.partitions();
        let asked: Vec<u64> =
            figures.asked.iter().zip(&self.asked).map(|(&now, &before)| now.saturating_sub(before)).collect();
        let total: u64 = asked.iter().sum();
        let least = LEAST_REQUESTS.min(layout.total_frames() / count as u64) * count as u64;
        let least = least.max(layout.total_frames() / 2);
        if total < least {
            return again;
        }
        self.asked.copy_from_slice(figures.asked);
        let asked: Vec<f64> = asked.into_iter().map(|n| n as f64).collect();
        let per_frame = total as f64 / layout.total_frames().max(1) as f64;
        let fair: Vec<f64> = (0..count).map(|p| f64::from(layout.frames(p)) * per_frame).collect();
        let excess: f64 = asked.iter().zip(&fair).map(|(asked, fair)| (asked - fair).max(0.0)).sum();
        if excess < 0.1 * total as f64 / count as f64 {
            return again;
        }
        let parts = self.spread(layout, &asked, &fair);
        for (home, new) in parts.iter().enumerate() {
            self.mix(home, new);
            routes.share(home, &self.weights[home]);
        }
        again
    }
}
