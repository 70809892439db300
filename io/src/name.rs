//! The names of the IO methods, as PostgreSQL's `io_method` setting has them.

use std::{fmt, str::FromStr};

/// An IO method by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum MethodName {
    /// `preadv` in the calling thread.
    Sync,
    /// `preadv` in a pool of threads.
    Worker,
    /// Linux io_uring, through the raw ring.
    IoUring,
    /// Linux io_uring, through the tokio-uring runtime.
    TokioUring,
}

impl MethodName {
    /// All methods, in the order in which they are listed to users.
    pub const ALL: [MethodName; 4] = [Self::Sync, Self::Worker, Self::IoUring, Self::TokioUring];

    /// The name as it is written in settings and reports.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Sync => "sync",
            Self::Worker => "worker",
            Self::IoUring => "io_uring",
            Self::TokioUring => "tokio_uring",
        }
    }
}

impl fmt::Display for MethodName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// What a user asked for: one method, or the best that works here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MethodChoice {
    /// The best usable method: `io_uring`, then `worker`, then `sync`.
    #[default]
    Auto,
    /// This method or an error.
    Named(MethodName),
}

impl fmt::Display for MethodChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.pad("auto"),
            Self::Named(name) => name.fmt(f),
        }
    }
}

impl FromStr for MethodChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "auto" {
            return Ok(Self::Auto);
        }
        MethodName::ALL
            .into_iter()
            .find(|name| name.as_str() == text)
            .map(Self::Named)
            .ok_or_else(|| format!("unknown io_method {text:?}: use auto, sync, worker, io_uring or tokio_uring"))
    }
}
