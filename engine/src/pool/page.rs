//! Pages that are pinned in the pool.

use super::{
    shared::{Session, Shared},
    state::FrameState,
};
use crate::{Error, ErrorKind};
use std::{fmt, sync::Arc};

/// A pin on a frame, given back when dropped. To leak one costs a frame, nothing else.
#[derive(Debug)]
pub(crate) struct Pin {
    session: Arc<Session>,
    frame: u32,
}

impl Pin {
    /// Takes over a pin that the caller has on `frame`.
    pub(crate) fn adopt(session: &Arc<Session>, frame: u32) -> Self {
        Self { session: Arc::clone(session), frame }
    }

    pub(crate) fn frame(&self) -> u32 {
        self.frame
    }

    pub(crate) fn state(&self) -> FrameState {
        self.shared().word(self.frame).state()
    }

    pub(crate) fn shared(&self) -> &Shared {
        &self.session.shared
    }

    /// The page, once its state is VALID.
    pub(crate) fn into_page(self, block: u32) -> crate::Result<PinnedPage> {
        match self.state() {
            FrameState::Valid => Ok(PinnedPage { pin: self, block }),
            state => Err(Error::new(ErrorKind::Method, format!("frame is {state:?} after its read")).with_block(block)),
        }
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        self.shared().unpin(self.frame);
    }
}

/// A block in the pool, which stays there and unchanged until this is dropped.
///
/// It may be sent to and dropped in any thread. To forget one is safe and costs the pool a frame.
pub struct PinnedPage {
    // Its frame is VALID: `Pin::into_page` and `adopt_valid` are the only makers.
    pin: Pin,
    block: u32,
}

impl PinnedPage {
    /// Takes over a pin on a frame that the caller, holding that pin, saw to be VALID.
    pub(crate) fn adopt_valid(session: &Arc<Session>, frame: u32, block: u32) -> Self {
        Self { pin: Pin::adopt(session, frame), block }
    }

    /// Number of the block in its relation.
    pub fn block(&self) -> u32 {
        self.block
    }

    /// The bytes of the block.
    #[allow(unsafe_code, reason = "reads a pinned frame")]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the pin lives as long as `self`, which the result borrows; whoever made the page saw state VALID with
        // the pin held, and a pinned VALID frame stays so; the pin keeps the session and so the shared part alive.
        unsafe { self.pin.shared().bytes(self.pin.frame) }
    }

    /// Whether somebody has validated the page since it was read.
    pub fn is_verified(&self) -> bool {
        self.pin.shared().word(self.pin.frame).is_verified()
    }

    /// Remembers, for all who pin this page from now on, that it is valid.
    pub fn mark_verified(&self) {
        self.pin.shared().frames.descriptor(self.pin.frame).core.mark_verified();
    }

    /// Which frame of the pool holds it, counted from 0.
    pub fn frame(&self) -> u32 {
        self.pin.shared().frames.ordinal(self.pin.frame)
    }

    /// The pool's own number of that frame.
    pub(crate) fn number(&self) -> u32 {
        self.pin.frame
    }

    /// The partition of that frame.
    pub fn partition(&self) -> usize {
        self.pin.shared().frames.partition_index(self.pin.frame)
    }
}

impl fmt::Debug for PinnedPage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PinnedPage").field("block", &self.block).field("frame", &self.pin.frame).finish_non_exhaustive()
    }
}
