//! Buffer access strategies: how a scan chooses the frames that it reads into.

use super::{
    frames::Frames,
    partition::Victim,
    state::{FrameState, MAX_USAGE},
};
use std::collections::VecDeque;

/// Frames a consumer may hold besides the look-ahead before a ring leaks into the pool.
pub(crate) const CONSUMER_PINS: u32 = 4;

/// How a scan uses the pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Strategy {
    /// Any frame; pages that are used again stay longer.
    #[default]
    Normal,
    /// A ring of frames that the scan uses again and again, so that it does not push other pages out.
    BulkRead {
        /// Most frames of the ring: look-ahead, one combined read, and what the consumer holds. The ring grows only as
        /// far as the scan's look-ahead needs, because a small ring stays in the processor's cache.
        ring_frames: u32,
    },
    /// As `BulkRead`, whatever the size of the relation, and without a trace: pages that others keep in the pool are not
    /// heated by being looked at. For passes over a whole cluster, such as verifying it.
    Vacuum {
        /// Most frames of the ring, as above.
        ring_frames: u32,
    },
}

impl Strategy {
    /// The strategy for a scan over `blocks` blocks with these settings (in blocks): a ring if the scan is larger than a
    /// quarter of the pool. The ring has room for the whole look-ahead, but takes at most an eighth of the pool, at least
    /// one combined read and what the consumer holds, and never more than half of a pool too small for that.
    pub fn for_scan(blocks: u32, pool_frames: u32, io_combine_limit: u32, effective_io_concurrency: u32) -> Self {
        if blocks <= pool_frames / 4 {
            return Self::Normal;
        }
        Self::BulkRead { ring_frames: ring_frames(pool_frames, io_combine_limit, effective_io_concurrency) }
    }

    /// The strategy for a pass over everything that should leave the pool as it is, with these settings (in blocks).
    pub fn vacuum(pool_frames: u32, io_combine_limit: u32, effective_io_concurrency: u32) -> Self {
        Self::Vacuum { ring_frames: ring_frames(pool_frames, io_combine_limit, effective_io_concurrency) }
    }

    /// Most frames of its ring, if it has one.
    pub fn ring_frames(self) -> Option<u32> {
        match self {
            Self::Normal => None,
            Self::BulkRead { ring_frames } | Self::Vacuum { ring_frames } => Some(ring_frames.max(1)),
        }
    }

    /// Most pins that the look-ahead of a scan may hold.
    pub(crate) fn pin_limit(self, io_combine_limit: u32) -> u32 {
        match self.ring_frames() {
            None => u32::MAX,
            // A read is started when the look-ahead is this long at most, and the consumer holds a few.
            Some(ring_frames) => {
                let reserve = CONSUMER_PINS.min(ring_frames / 2);
                let room = ring_frames - reserve;
                if room > 2 * io_combine_limit { room - io_combine_limit } else { room.max(1) }
            }
        }
    }

    /// How far a page that this scan meets is heated.
    pub(crate) fn usage_cap(self) -> u64 {
        match self {
            Self::Normal => MAX_USAGE,
            Self::BulkRead { .. } => 1,
            Self::Vacuum { .. } => 0,
        }
    }
}

/// Room for the whole look-ahead, one combined read and what the consumer holds; at most an eighth of the pool, at least
/// one combined read and what the consumer holds, and never more than half of a pool too small for that.
fn ring_frames(pool_frames: u32, io_combine_limit: u32, effective_io_concurrency: u32) -> u32 {
    let wanted =
        io_combine_limit.saturating_mul(effective_io_concurrency.saturating_add(2)).saturating_add(CONSUMER_PINS);
    let least = io_combine_limit.saturating_add(CONSUMER_PINS).min(pool_frames / 2).max(1);
    wanted.min((pool_frames / 8).max(least)).max(1)
}

/// Frames in use that a full ring looks past before it takes one from the pool.
const LOOK_PAST: usize = 64;

/// The frames of one scan, least recently used first.
#[derive(Debug)]
pub(crate) struct Ring {
    entries: VecDeque<(u32, u64)>,
    limit: usize,
}

impl Ring {
    pub(crate) fn new(strategy: Strategy) -> Option<Self> {
        Some(Self { entries: VecDeque::new(), limit: strategy.ring_frames()? as usize })
    }

    /// Claims up to `want` frames of the ring, in ring order. A frame that was taken over by others (another block is in
    /// it, or it was used more than once) leaves the ring; one that is only in use stays a member and gets its turn later.
    ///
    /// So the ring takes no more frames from the pool than its limit and what others hold of it at one time, however long
    /// the scan: two scans in lockstep, each pinning what the other has read, leave nothing behind.
    pub(crate) fn claim(&mut self, frames: &Frames, want: usize, victims: &mut Vec<Victim>) -> usize {
        let mut claimed = 0;
        let mut looks = self.entries.len().min(want + LOOK_PAST);
        while claimed < want
            && looks > 0
            && let Some(entry @ (frame, tag)) = self.entries.pop_front()
        {
            looks -= 1;
            let core = &frames.descriptor(frame).core;
            let word = core.load();
            if core.tag() != tag || word.usage() > 1 {
                continue;
            }
            if word.pins() > 0 || word.state() == FrameState::Claimed {
                if self.entries.len() + 1 < self.limit {
                    // All others of the ring were used later, so they are in use too: let it grow.
                    self.entries.push_front(entry);
                    break;
                }
                self.entries.push_back(entry);
                continue;
            }
            match core.try_claim(1) {
                Some(was) if core.tag() == tag => {
                    victims.push(Victim { frame, was });
                    claimed += 1;
                }
                Some(was) => core.restore(was),
                None => self.entries.push_back(entry),
            }
        }
        claimed
    }

    /// Remembers a frame that the scan has just filled with `tag`.
    pub(crate) fn push(&mut self, frame: u32, tag: u64) {
        self.entries.push_back((frame, tag));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_scans_use_the_pool_and_large_ones_a_ring() {
        assert_eq!(Strategy::for_scan(4096, 16384, 16, 16), Strategy::Normal);
        assert_eq!(Strategy::for_scan(4097, 16384, 16, 16), Strategy::BulkRead { ring_frames: 18 * 16 + 4 });
        assert_eq!(Strategy::for_scan(1000, 1024, 16, 16), Strategy::BulkRead { ring_frames: 128 });
        assert_eq!(Strategy::for_scan(1000, 16, 16, 16), Strategy::BulkRead { ring_frames: 8 });
        assert_eq!(Strategy::for_scan(1000, 1, 1, 16), Strategy::BulkRead { ring_frames: 1 });
        assert_eq!(Strategy::for_scan(u32::MAX, u32::MAX, u32::MAX, u32::MAX).usage_cap(), 1);
    }

    #[test]
    fn look_ahead_leaves_room_in_the_ring() {
        assert_eq!(Strategy::BulkRead { ring_frames: 292 }.pin_limit(16), 272);
        for ring_frames in 1..600 {
            let limit = Strategy::BulkRead { ring_frames }.pin_limit(16);
            assert!(limit >= 1 && limit <= ring_frames, "{ring_frames}: {limit}");
            assert!(ring_frames < 2 || limit < ring_frames, "{ring_frames}: room for the consumer");
        }
        assert_eq!(Strategy::Normal.pin_limit(16), u32::MAX);
    }
}
