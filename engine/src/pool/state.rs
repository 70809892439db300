//! The state machine of one frame: pin count, usage count, state and flags in one word, and the tag beside it.
//!
//! This file depends on nothing but the atomics, so that loom can try every interleaving of it (`tests/pool_loom.rs`).
//!
//! ```text
//!           claim                begin_io            finish_io(true)
//!   EMPTY ---------> CLAIMED ---------------> IN_IO -----------------> VALID
//!     ^                |  ^                     |   finish_io(false)
//!     +----------------+  |                     +--------------------> FAILED
//!        release_claim    +---- claim (pins == 0) ---- VALID, FAILED
//! ```
//!
//! What makes it safe without locks:
//! - The tag is written only by the thread that holds the claim, and a claim needs zero pins. So whoever holds a pin
//!   reads a tag that cannot change; a pin is taken first and the tag compared afterwards.
//! - A frame in IO carries one pin that belongs to the read itself. It cannot be claimed until the completion was seen,
//!   whatever happens to those who asked for it.
//! - A completion publishes with Release, a pin and a state query read with Acquire: who sees VALID sees the bytes. An
//!   unpin is a Release and a claim an Acquire: the next read into the frame happens after everybody has stopped looking.

use super::sync::{AtomicU64, Ordering};

const PIN_ONE: u64 = 1;
const PIN_MASK: u64 = (1 << 18) - 1;
const USAGE_SHIFT: u32 = 18;
const USAGE_ONE: u64 = 1 << USAGE_SHIFT;
const USAGE_MASK: u64 = 0xf << USAGE_SHIFT;
const STATE_SHIFT: u32 = 22;
const STATE_MASK: u64 = 0x7 << STATE_SHIFT;
const VERIFIED: u64 = 1 << 25;
// Bit 26 is left for DIRTY.

/// The cap of the usage count, as in PostgreSQL (`BM_MAX_USAGE_COUNT`).
pub(crate) const MAX_USAGE: u64 = 5;

/// The tag of a frame that holds no block. Relation ids stay below `u32::MAX`, so no block has it.
pub(crate) const NO_TAG: u64 = u64::MAX;

/// What a frame is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FrameState {
    /// Holds nothing.
    Empty = 0,
    /// Belongs to one thread, which is evicting it or about to read into it.
    Claimed = 1,
    /// A read into it is in flight.
    InIo = 2,
    /// Holds the block that its tag names.
    Valid = 3,
    /// The read failed; the block is not here.
    Failed = 4,
}

/// The word, read once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Word(u64);

impl Word {
    fn new(state: FrameState, pins: u64, usage: u64) -> Self {
        Self(((state as u64) << STATE_SHIFT) | (usage << USAGE_SHIFT) | pins)
    }

    pub(crate) fn pins(self) -> u64 {
        self.0 & PIN_MASK
    }

    pub(crate) fn usage(self) -> u64 {
        (self.0 & USAGE_MASK) >> USAGE_SHIFT
    }

    pub(crate) fn state(self) -> FrameState {
        match (self.0 & STATE_MASK) >> STATE_SHIFT {
            0 => FrameState::Empty,
            1 => FrameState::Claimed,
            2 => FrameState::InIo,
            3 => FrameState::Valid,
            _ => FrameState::Failed,
        }
    }

    pub(crate) fn is_verified(self) -> bool {
        self.0 & VERIFIED != 0
    }

    /// Whether the tag names a block that is here or on its way.
    pub(crate) fn is_mapped(self) -> bool {
        matches!(self.state(), FrameState::InIo | FrameState::Valid)
    }

    fn is_claimable(self, max_usage: u64) -> bool {
        self.pins() == 0
            && self.usage() <= max_usage
            && matches!(self.state(), FrameState::Empty | FrameState::Valid | FrameState::Failed)
    }
}

/// What the clock hand met at a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tick {
    /// The frame now belongs to the caller; it was in this state before.
    Claimed(Word),
    /// Its usage count was lowered.
    Aged,
    /// Somebody holds it.
    Pinned,
}

/// State word and tag of a frame.
#[derive(Debug)]
pub(crate) struct FrameCore {
    word: AtomicU64,
    tag: AtomicU64,
}

impl FrameCore {
    pub(crate) fn new() -> Self {
        Self { word: AtomicU64::new(0), tag: AtomicU64::new(NO_TAG) }
    }

    /// The word; what it says may be history already, except that a frame pinned by the caller stays where it is.
    pub(crate) fn load(&self) -> Word {
        Word(self.word.load(Ordering::Acquire))
    }

    /// The tag; stable only for whoever holds a pin or the claim.
    pub(crate) fn tag(&self) -> u64 {
        self.tag.load(Ordering::Acquire)
    }

    /// Pins the frame if it holds, or is being read to hold, the block `tag`. The usage count rises by one up to
    /// `usage_cap` (never falls). Returns the word as it is with the new pin.
    pub(crate) fn try_pin(&self, tag: u64, usage_cap: u64) -> Option<Word> {
        let mut old = self.load();
        loop {
            if !old.is_mapped() || old.pins() == PIN_MASK {
                return None;
            }
            let mut new = old.0 + PIN_ONE;
            if old.usage() < usage_cap {
                new += USAGE_ONE;
            }
            match self.word.compare_exchange_weak(old.0, new, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => {
                    // Only now can the tag not change any more: between our look at it and the pin the frame may have
                    // been given to another block.
                    if self.tag() == tag {
                        return Some(Word(new));
                    }
                    self.unpin();
                    return None;
                }
                Err(now) => old = Word(now),
            }
        }
    }

    /// Gives back one pin of the caller.
    pub(crate) fn unpin(&self) {
        let old = self.word.fetch_sub(PIN_ONE, Ordering::AcqRel);
        debug_assert!(old & PIN_MASK > 0, "unpinned a frame without pins");
    }

    /// Takes the frame for the caller alone, if nobody holds it and its usage count is at most `max_usage`.
    pub(crate) fn try_claim(&self, max_usage: u64) -> Option<Word> {
        let mut old = self.load();
        while old.is_claimable(max_usage) {
            let new = Word::new(FrameState::Claimed, 0, 0);
            match self.word.compare_exchange_weak(old.0, new.0, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Some(old),
                Err(now) => old = Word(now),
            }
        }
        None
    }

    /// One visit of the clock hand.
    pub(crate) fn tick(&self) -> Tick {
        let mut old = self.load();
        loop {
            if !old.is_claimable(u64::MAX) {
                return Tick::Pinned;
            }
            let new = match old.usage() {
                0 => Word::new(FrameState::Claimed, 0, 0).0,
                _ => old.0 - USAGE_ONE,
            };
            match self.word.compare_exchange_weak(old.0, new, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) if old.usage() == 0 => return Tick::Claimed(old),
                Ok(_) => return Tick::Aged,
                Err(now) => old = Word(now),
            }
        }
    }

    /// Undoes a claim of a frame whose mapping was not touched. Only for the holder of the claim.
    pub(crate) fn restore(&self, old: Word) {
        debug_assert_eq!(self.load().state(), FrameState::Claimed);
        self.word.store(old.0, Ordering::Release);
    }

    /// Gives a claimed frame back as empty. Only for the holder of the claim, after the mapping was removed.
    pub(crate) fn release_claim(&self) {
        debug_assert_eq!(self.load().state(), FrameState::Claimed);
        self.tag.store(NO_TAG, Ordering::Relaxed);
        self.word.store(Word::new(FrameState::Empty, 0, 0).0, Ordering::Release);
    }

    /// Turns a claimed frame into one that waits for the block `tag`, with two pins: one of the read, one of the
    /// caller. Only for the holder of the claim.
    pub(crate) fn begin_io(&self, tag: u64) {
        debug_assert_eq!(self.load().state(), FrameState::Claimed);
        self.tag.store(tag, Ordering::Relaxed);
        self.word.store(Word::new(FrameState::InIo, 2 * PIN_ONE, 1).0, Ordering::Release);
    }

    /// Publishes the end of the read and drops the pin of the read. Called once for each [`begin_io`](Self::begin_io).
    pub(crate) fn finish_io(&self, valid: bool) {
        let to = if valid { FrameState::Valid } else { FrameState::Failed } as u64;
        let mut old = self.word.load(Ordering::Relaxed);
        loop {
            debug_assert_eq!(Word(old).state(), FrameState::InIo);
            let new = ((old & !STATE_MASK) | (to << STATE_SHIFT)) - PIN_ONE;
            match self.word.compare_exchange_weak(old, new, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => old = now,
            }
        }
    }

    /// Remembers that the page was validated. Only for holders of a pin; gone when the frame is claimed.
    pub(crate) fn mark_verified(&self) {
        self.word.fetch_or(VERIFIED, Ordering::AcqRel);
    }
}

#[cfg(all(test, not(heapscan_loom)))]
mod tests {
    use super::*;

    fn valid(tag: u64) -> FrameCore {
        let core = FrameCore::new();
        core.try_claim(0).unwrap();
        core.begin_io(tag);
        core.finish_io(true);
        core.unpin();
        core
    }

    #[test]
    fn a_read_in_flight_cannot_be_claimed_although_nobody_waits_for_it() {
        let core = FrameCore::new();
        assert_eq!(core.try_claim(0).unwrap().state(), FrameState::Empty);
        assert_eq!(core.try_claim(MAX_USAGE), None, "claimed twice");
        core.begin_io(7);
        core.unpin();
        assert_eq!(core.load().pins(), 1, "the pin of the read itself");
        assert_eq!(core.try_claim(MAX_USAGE), None);
        assert_eq!(core.tick(), Tick::Pinned);
        core.finish_io(true);
        assert!(core.try_claim(MAX_USAGE).is_some());
    }

    #[test]
    fn pin_checks_the_tag_and_respects_the_usage_cap() {
        let core = valid(7);
        assert_eq!(core.try_pin(8, MAX_USAGE), None);
        assert_eq!(core.load().pins(), 0, "the pin of a wrong tag was given back");
        for _ in 0..10 {
            core.try_pin(7, MAX_USAGE).unwrap();
        }
        assert_eq!((core.load().pins(), core.load().usage()), (10, MAX_USAGE));
        core.try_pin(7, 1).unwrap();
        assert_eq!(core.load().usage(), MAX_USAGE, "a ring scan does not cool a hot page either");
        let once = valid(9);
        once.try_pin(9, 1).unwrap();
        assert_eq!(once.load().usage(), 1, "a ring scan does not heat a page");
    }

    #[test]
    fn the_hand_ages_then_claims_and_forgets_the_flag() {
        let core = valid(7);
        core.mark_verified();
        assert!(core.load().is_verified());
        assert_eq!(core.tick(), Tick::Aged);
        assert!(core.load().is_verified(), "ageing keeps the flags");
        let Tick::Claimed(old) = core.tick() else { panic!("usage count was zero") };
        assert_eq!(old.state(), FrameState::Valid);
        assert_eq!(core.try_pin(7, MAX_USAGE), None, "claimed frames cannot be pinned");
        core.restore(old);
        assert!(core.try_pin(7, MAX_USAGE).unwrap().is_verified());
        core.unpin();
        core.try_claim(MAX_USAGE).unwrap();
        core.begin_io(8);
        core.finish_io(false);
        assert!(!core.load().is_verified());
        assert_eq!(core.load().state(), FrameState::Failed);
        assert_eq!(core.try_pin(8, MAX_USAGE), None, "failed frames are not here");
        core.unpin();
        core.try_claim(1).unwrap();
        core.release_claim();
        assert_eq!((core.load().state(), core.tag()), (FrameState::Empty, NO_TAG));
    }
}
