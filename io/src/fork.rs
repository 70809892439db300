//! Noticing that this process is a forked child.
//!
//! A ring is shared memory: a child that touched it would take entries away from its parent. Worker threads do not exist
//! in a child at all.

use std::sync::{
    Once,
    atomic::{AtomicU64, Ordering},
};

static FORKS: AtomicU64 = AtomicU64::new(0);

/// How many forks lie between the process that first asked and this one. Compare with an earlier answer.
pub(crate) fn count() -> u64 {
    static REGISTER: Once = Once::new();
    REGISTER.call_once(sys::register);
    FORKS.load(Ordering::Relaxed)
}

#[allow(unsafe_code, reason = "pthread_atfork")]
mod sys {
    use super::FORKS;
    use std::sync::atomic::Ordering;

    extern "C" fn in_child() {
        FORKS.fetch_add(1, Ordering::Relaxed);
    }

    unsafe extern "C" {
        /// pthread_atfork(3).
        fn pthread_atfork(
            prepare: Option<extern "C" fn()>,
            parent: Option<extern "C" fn()>,
            child: Option<extern "C" fn()>,
        ) -> libc::c_int;
    }

    pub(super) fn register() {
        // SAFETY: the handler only touches an atomic, which is allowed between fork and exec. Fails only for lack of
        // memory, and then a child is not noticed: nothing here could help that.
        unsafe { pthread_atfork(None, None, Some(in_child)) };
    }
}
