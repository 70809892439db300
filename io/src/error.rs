//! Errors of this crate.

use std::{io, path::PathBuf};

/// A read that failed for good, after all retries that the shared rule allows.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{}: read at offset {offset} failed: {} (errno {errno})", path.display(), io::Error::from_raw_os_error(*errno))]
pub struct ReadError {
    /// The file that was read.
    pub path: PathBuf,
    /// Byte offset in the file at which the failing operation began.
    pub offset: u64,
    /// The kernel's error number.
    pub errno: i32,
}

/// Opening a file or a method failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IoError {
    /// A file could not be opened or examined.
    #[error("{}: {what}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What was tried.
        what: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
    /// A method was asked for by name and cannot be used here.
    #[error("io_method {method} cannot be used here: {reason}")]
    Unavailable {
        /// The method.
        method: crate::MethodName,
        /// Why not, and what to do.
        reason: String,
    },
    /// A setting is out of range or contradicts another one.
    #[error("{0}")]
    Setting(String),
}
