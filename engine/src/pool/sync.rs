//! The atomics of the frame state machine: those of the standard library, or loom's when its interleavings are tested.

#[cfg(heapscan_loom)]
pub(crate) use loom::sync::atomic::{AtomicU64, Ordering};
#[cfg(not(heapscan_loom))]
pub(crate) use std::sync::atomic::{AtomicU64, Ordering};
