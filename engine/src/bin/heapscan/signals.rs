//! Signals that would end the program without a word.
#![allow(unsafe_code, reason = "sigaction")]

use nix::sys::signal::{SigHandler, Signal, signal};

/// Makes a write beyond RLIMIT_FSIZE an error (EFBIG) instead of death by SIGXFSZ (setrlimit(2)).
pub(crate) fn ignore_file_size_limit() {
    // SAFETY: to ignore a signal installs no handler, so nothing runs in a signal context.
    let _ = unsafe { signal(Signal::SIGXFSZ, SigHandler::SigIgn) };
}
