//! Sizes of the partitions and how far they are from each other.

/// What a policy knows of the partitions from the beginning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    frames: Vec<u32>,
    distances: Vec<Vec<u32>>,
    order: Vec<Vec<usize>>,
    levels: Vec<Vec<u32>>,
}

impl Layout {
    /// Partitions of these many frames, as far from each other as `distances[home][partition]` says: in any unit (the
    /// kernel's, nanoseconds), smaller is nearer. Missing distances are those of different nodes. Partitions of no
    /// frames are allowed and never chosen.
    pub fn new(frames: Vec<u32>, distances: &[Vec<u32>]) -> Self {
        let count = frames.len();
        let distance = |a: usize, b: usize| {
            distances.get(a).and_then(|row| row.get(b)).copied().unwrap_or(if a == b { 10 } else { 20 })
        };
        let distances: Vec<Vec<u32>> = (0..count).map(|a| (0..count).map(|b| distance(a, b)).collect()).collect();
        let order = (0..count)
            .map(|home| {
                let mut order: Vec<usize> = (0..count).collect();
                // Of equally near ones the next by number, so that not all homes turn to the same one.
                order.sort_by_key(|&p| (p != home, distances[home][p], (p + count - home) % count));
                order
            })
            .collect();
        let levels = (0..count)
            .map(|home| {
                let mut others: Vec<u32> = (0..count).filter(|&p| p != home).map(|p| distances[home][p]).collect();
                others.sort_unstable();
                others.dedup();
                distances[home].iter().map(|d| others.partition_point(|other| other < d) as u32).collect()
            })
            .collect();
        Self { frames, distances, order, levels }
    }

    /// Partitions of these many frames, one as far as the other.
    pub fn even(frames: Vec<u32>) -> Self {
        Self::new(frames, &[])
    }

    /// How many partitions there are.
    pub fn partitions(&self) -> usize {
        self.frames.len()
    }

    /// Frames of a partition.
    pub fn frames(&self, partition: usize) -> u32 {
        self.frames[partition]
    }

    /// Frames of all partitions.
    pub fn total_frames(&self) -> u64 {
        self.frames.iter().map(|&n| u64::from(n)).sum()
    }

    /// How far `partition` is from `home`.
    pub fn distance(&self, home: usize, partition: usize) -> u32 {
        self.distances[home][partition]
    }

    /// How many distances of others from `home` are smaller than that of `partition`: 0 for the nearest.
    pub fn level(&self, home: usize, partition: usize) -> u32 {
        self.levels[home][partition]
    }

    /// All partitions, `home` first, then the nearest first.
    pub fn nearest(&self, home: usize) -> &[usize] {
        &self.order[home]
    }

    /// Allocations of the whole pool after which routes are drawn anew: few against the frames of one partition, so that
    /// what goes the wrong way meanwhile is little; at most 4096, so that policies answer within milliseconds.
    pub fn interval(&self) -> u64 {
        let mean = self.total_frames() / (self.partitions() as u64).max(1);
        (mean / 32).clamp(1, 4096)
    }

    /// Frames that one stream may take before it counts them in the pool.
    pub fn batch(&self) -> u64 {
        (self.interval() / 4).clamp(1, 64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_ones_come_first_and_equally_near_ones_differ_by_home() {
        let sockets = |a: usize, b: usize| {
            if a == b {
                10
            } else if a / 2 == b / 2 {
                12
            } else {
                32
            }
        };
        let distances: Vec<Vec<u32>> = (0..4).map(|a| (0..4).map(|b| sockets(a, b)).collect()).collect();
        let layout = Layout::new(vec![64; 4], &distances);
        assert_eq!(layout.nearest(1), [1, 0, 2, 3]);
        assert_eq!(layout.nearest(3), [3, 2, 0, 1]);
        assert_eq!([0, 1, 2, 3].map(|p| layout.level(1, p)), [0, 0, 1, 1]);
        let even = Layout::even(vec![64; 4]);
        assert_eq!(even.nearest(1), [1, 2, 3, 0]);
        assert_eq!((even.distance(1, 1), even.distance(1, 2)), (10, 20));
    }

    #[test]
    fn routes_are_drawn_often_enough_for_small_pools() {
        assert_eq!(Layout::even(vec![16; 4]).interval(), 1);
        assert_eq!(Layout::even(vec![2048; 8]).interval(), 64);
        assert_eq!(Layout::even(vec![1 << 20; 4]).interval(), 4096);
        assert_eq!(Layout::even(vec![]).interval(), 1);
    }
}
