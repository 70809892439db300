//! What a user can set, with PostgreSQL's names and defaults.

use crate::{OnCorruption, pool::DEFAULT_IO_CONCURRENCY};
use heapscan_io::IoConfig;
use heapscan_placement::memory::HugePages;
use std::{fmt, path::PathBuf, str::FromStr};

/// Whether the checksum of each page that was read is verified.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum VerifyChecksums {
    /// When the control file says that the cluster has checksums.
    #[default]
    Auto,
    /// Always; opening a cluster without checksums is then an error.
    Always,
    /// Never. The header and the line pointers are checked all the same.
    Never,
}

impl fmt::Display for VerifyChecksums {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Auto => "auto",
            Self::Always => "always",
            Self::Never => "never",
        })
    }
}

impl FromStr for VerifyChecksums {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        [Self::Auto, Self::Always, Self::Never]
            .into_iter()
            .find(|v| v.to_string() == text)
            .ok_or_else(|| format!("{text:?} is none of auto, always, never"))
    }
}

/// Settings of an [`Engine`](crate::Engine). The names are those of PostgreSQL's settings.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// IO method, workers, rings and faults.
    pub io: IoConfig,
    /// Size of the buffer pool in bytes (`shared_buffers`). 128 MB.
    pub shared_buffers: u64,
    /// Largest combined read in bytes (`io_combine_limit`). 128 kB; 1 MB at most.
    pub io_combine_limit: u64,
    /// Reads that one scan keeps in flight (`effective_io_concurrency`), [`DEFAULT_IO_CONCURRENCY`] by default,
    /// which means [`SMALL_READ_IO_CONCURRENCY`](crate::pool::SMALL_READ_IO_CONCURRENCY) where `io_combine_limit` is under
    /// 32 kB.
    pub effective_io_concurrency: u32,
    /// Read past the page cache (`debug_io_direct = data`).
    pub io_direct: bool,
    /// Read through the page cache, but leave nothing there (`RWF_DONTCACHE`), where kernel and file system can. Without
    /// effect on reads that go past the page cache.
    pub io_uncached: bool,
    /// Data files that the process keeps open at most (`max_files_per_process`); `None` leaves the limit as it is, which
    /// is three quarters of RLIMIT_NOFILE unless another engine set one. It holds for all engines of the process.
    pub max_files_per_process: Option<usize>,
    /// Huge pages for the pool (`huge_pages`).
    pub huge_pages: HugePages,
    /// Verify page checksums.
    pub verify: VerifyChecksums,
    /// What to do about damaged pages, rows and files: of tables, TOAST tables and catalogs.
    pub on_corruption: OnCorruption,
    /// Open clusters that were not shut down cleanly; their rows are those of the files, WAL is not replayed.
    pub allow_unclean: bool,
    /// Follow tablespace links that lead out of the data directory.
    pub follow_tablespace_links: bool,
    /// Other folders of tablespaces: see [`OpenOptions::tablespace_map`](crate::cluster::OpenOptions::tablespace_map).
    pub tablespace_map: Vec<(PathBuf, PathBuf)>,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            io: IoConfig::default(),
            shared_buffers: 128 << 20,
            io_combine_limit: 128 << 10,
            effective_io_concurrency: DEFAULT_IO_CONCURRENCY,
            io_direct: false,
            io_uncached: false,
            max_files_per_process: None,
            huge_pages: HugePages::Try,
            verify: VerifyChecksums::Auto,
            on_corruption: OnCorruption::Fail,
            allow_unclean: false,
            follow_tablespace_links: false,
            tablespace_map: Vec::new(),
        }
    }
}
