//! The atomics of the frame state machine and of the balance between partitions: those of the standard library, or loom's
//! when their interleavings are tested.

#[cfg(heapscan_loom)]
pub(crate) use loom::sync::{
    Mutex,
    atomic::{AtomicU64, Ordering},
};
#[cfg(not(heapscan_loom))]
pub(crate) use std::sync::{
    Mutex,
    atomic::{AtomicU64, Ordering},
};
