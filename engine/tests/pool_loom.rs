//! Every interleaving of the frame state machine. Run with
//! `RUSTFLAGS="--cfg heapscan_loom" cargo test -p heapscan --no-default-features --test pool_loom --release`.
#![cfg(heapscan_loom)]
#![allow(dead_code, reason = "the modules are those of the pool; a part of them is tested here")]

#[path = "../src/pool/state.rs"]
mod state;
#[path = "../src/pool/sync.rs"]
mod sync;

use loom::{cell::UnsafeCell, sync::Arc, thread};
use state::{FrameCore, FrameState, MAX_USAGE, NO_TAG, Tick};

/// A frame with its bytes: loom reports any read of the cell that is not ordered against a write.
struct Frame {
    core: FrameCore,
    bytes: UnsafeCell<u64>,
}

#[allow(unsafe_code, reason = "access to loom's cell, which checks it")]
impl Frame {
    fn new() -> Arc<Self> {
        Arc::new(Self { core: FrameCore::new(), bytes: UnsafeCell::new(0) })
    }

    fn read(&self) -> u64 {
        // SAFETY: loom panics if a write is not ordered before or after this read.
        self.bytes.with(|bytes| unsafe { *bytes })
    }

    /// What the kernel does.
    fn write(&self, value: u64) {
        // SAFETY: loom panics if another access is not ordered before or after this write.
        self.bytes.with_mut(|bytes| unsafe { *bytes = value });
    }

    /// Reads the block `tag` into the frame, as its only user.
    fn load(&self, tag: u64) {
        self.core.begin_io(tag);
        self.write(tag);
        self.core.finish_io(true);
    }

    fn valid(tag: u64) -> Arc<Self> {
        let frame = Self::new();
        frame.core.try_claim(0).unwrap();
        frame.load(tag);
        frame.core.unpin();
        frame
    }
}

/// A reader who pins block 7 sees block 7, or nothing, while another thread evicts the frame and reads block 8 into it.
#[test]
fn pin_against_claim_and_reuse() {
    loom::model(|| {
        let frame = Frame::valid(7);
        let evictor = {
            let frame = Arc::clone(&frame);
            thread::spawn(move || {
                if frame.core.try_claim(MAX_USAGE).is_some() {
                    frame.load(8);
                    assert_eq!(frame.read(), 8);
                    frame.core.unpin();
                    return true;
                }
                false
            })
        };
        if let Some(word) = frame.core.try_pin(7, MAX_USAGE) {
            assert_eq!(word.state(), FrameState::Valid);
            assert_eq!((frame.core.tag(), frame.read()), (7, 7));
            frame.core.unpin();
        }
        let evicted = evictor.join().unwrap();
        assert_eq!(frame.core.load().pins(), 0);
        assert_eq!(frame.core.tag(), if evicted { 8 } else { 7 });
    });
}

/// A joiner of a read in flight sees the bytes once it sees VALID; an abandoned read keeps its frame until it has ended.
#[test]
fn completion_against_joiner_and_hand() {
    // Three threads: all interleavings with up to three preemptions, which is where such faults have been found.
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let frame = Frame::new();
        frame.core.try_claim(0).unwrap();
        frame.core.begin_io(7);
        let completer = {
            let frame = Arc::clone(&frame);
            thread::spawn(move || {
                frame.write(7);
                frame.core.finish_io(true);
            })
        };
        let hand = {
            let frame = Arc::clone(&frame);
            thread::spawn(move || {
                // The asker goes away at once; from then on only the read holds the frame.
                frame.core.unpin();
                for _ in 0..2 {
                    if let Tick::Claimed(was) = frame.core.tick() {
                        assert_eq!(was.state(), FrameState::Valid, "a read in flight was claimed");
                        frame.write(0);
                        frame.core.release_claim();
                        return;
                    }
                }
            })
        };
        if let Some(word) = frame.core.try_pin(7, 1) {
            if word.state() == FrameState::Valid || frame.core.load().state() == FrameState::Valid {
                assert_eq!(frame.read(), 7);
            }
            frame.core.unpin();
        }
        completer.join().unwrap();
        hand.join().unwrap();
        assert_eq!(frame.core.load().pins(), 0);
    });
}

/// A failed read is seen as failed by those who joined it, cannot be joined later, and is claimed by one thread only.
#[test]
fn failure_is_published_and_claimed_once() {
    loom::model(|| {
        let frame = Frame::new();
        frame.core.try_claim(0).unwrap();
        frame.core.begin_io(7);
        frame.core.unpin();
        let completer = {
            let frame = Arc::clone(&frame);
            thread::spawn(move || frame.core.finish_io(false))
        };
        let claimer = {
            let frame = Arc::clone(&frame);
            thread::spawn(move || frame.core.try_claim(1).is_some())
        };
        if frame.core.try_pin(7, 1).is_some() {
            let state = frame.core.load().state();
            assert!(matches!(state, FrameState::InIo | FrameState::Failed), "{state:?}");
            frame.core.unpin();
        }
        completer.join().unwrap();
        let first = claimer.join().unwrap();
        let second = frame.core.try_claim(1).is_some();
        assert!(first ^ second, "claimed by both or by none");
        assert_eq!(frame.core.try_pin(7, 1), None);
    });
}

/// Of two threads that want the frame one gets it; the ring's look at the tag and its undoing of a claim lose no page.
#[test]
fn claim_against_claim_and_restore() {
    loom::model(|| {
        let frame = Frame::valid(7);
        let ring = {
            let frame = Arc::clone(&frame);
            thread::spawn(move || {
                // A ring that believes block 9 to be here must put block 7 back.
                if let Some(was) = frame.core.try_claim(1) {
                    assert_ne!(frame.core.tag(), 9);
                    frame.core.restore(was);
                }
            })
        };
        let mut evicted = false;
        if let Some(was) = frame.core.try_claim(1) {
            assert_eq!((was.state(), frame.core.tag()), (FrameState::Valid, 7));
            frame.write(0);
            frame.core.release_claim();
            evicted = true;
        }
        ring.join().unwrap();
        let (state, tag) = if evicted { (FrameState::Empty, NO_TAG) } else { (FrameState::Valid, 7) };
        assert_eq!((frame.core.load().state(), frame.core.tag()), (state, tag));
    });
}
