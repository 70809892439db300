//! What is measured: one combination of workload, cache state and settings.

use heapscan::{
    EngineOptions, HugePages, MethodChoice, MethodName,
    pool::{DEFAULT_IO_CONCURRENCY, SMALL_READ_IO_CONCURRENCY},
};
use serde::{Serialize, Serializer};
use std::{fmt, str::FromStr};

/// Makes an enum with fixed names.
macro_rules! named {
    ($(#[$doc:meta])* $name:ident { $($(#[$inner:meta])* $variant:ident = $text:literal),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub(crate) enum $name { $($(#[$inner])* $variant,)* }

        impl $name {
            pub(crate) const ALL: &[Self] = &[$(Self::$variant),*];

            pub(crate) fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text,)* }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.as_str())
            }
        }

        impl FromStr for $name {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                let names: Vec<&str> = Self::ALL.iter().map(|v| v.as_str()).collect();
                Self::ALL.iter().copied().find(|v| v.as_str() == text)
                    .ok_or_else(|| format!("{text:?} is none of {}", names.join(", ")))
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.serialize_str(self.as_str())
            }
        }
    };
}

named! {
    /// What is done with the blocks.
    Workload {
        /// The ceiling of direct reads: a bare ring, no pool.
        Raw = "raw",
        /// The same by fio.
        Fio = "fio",
        /// The ceiling of lookups: direct reads of single blocks at random by a bare ring.
        RawRandom = "raw-random",
        /// The same by fio.
        FioRandom = "fio-random",
        /// The ceiling of reads from the page cache: one 128 kB pread after the other.
        Pread = "pread",
        /// The ceiling of memory: one core reads it from front to back.
        Memory = "memory",
        /// Blocks are read into the pool and not looked at.
        MethodOnly = "method-only",
        /// An aggregate over the table.
        Agg = "agg",
        /// Every row is taken apart and given to nobody, like `select * ... offset` all rows.
        Offset = "offset",
        /// Each client scans one of eight tables, again and again.
        SeqConcurrScans = "seqconcurrscans",
        /// Single rows by their place, uniformly at random.
        Lookups = "pgbenchS",
        /// The same among the first 100,000 rows.
        LookupsFew = "pgbenchS-100k",
    }
}

named! {
    /// Where the blocks are before the run.
    State {
        /// On the device only.
        Cold = "cold",
        /// In the page cache, not in the pool.
        Warm = "warm",
        /// In the pool.
        Hot = "hot",
    }
}

named! {
    /// How they are read.
    Access {
        /// Past the page cache (`O_DIRECT`).
        Direct = "direct",
        /// Through the page cache.
        Buffered = "buffered",
    }
}

impl Workload {
    /// A ceiling: something that is no scan of heapscan.
    pub(crate) fn is_ceiling(self) -> bool {
        matches!(self, Self::Raw | Self::Fio | Self::RawRandom | Self::FioRandom | Self::Pread | Self::Memory)
    }

    /// Whether it goes to single blocks.
    pub(crate) fn is_random(self) -> bool {
        matches!(self, Self::RawRandom | Self::FioRandom | Self::Lookups | Self::LookupsFew)
    }
}

/// One row of the table.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Case {
    /// Who reads: `heapscan`, or what a ceiling is made of.
    pub(super) system: String,
    pub(super) workload: Workload,
    pub(super) state: State,
    pub(super) access: Access,
    /// The IO method; of a ceiling what takes its place.
    pub(super) io_method: String,
    pub(super) io_combine_limit: u64,
    pub(super) effective_io_concurrency: u32,
    /// `None`: the method's default.
    pub(super) io_workers: Option<u32>,
    pub(super) clients: u32,
    /// Threads, or processes, of one scan.
    pub(super) threads: u32,
    pub(super) shared_buffers: u64,
    #[serde(serialize_with = "as_text")]
    pub(super) huge_pages: HugePages,
}

fn as_text<S: Serializer>(value: &impl fmt::Display, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&value.to_string())
}

impl Case {
    /// The settings of the engine for this row.
    pub(super) fn options(&self, base: &EngineOptions) -> EngineOptions {
        let mut options = EngineOptions {
            shared_buffers: self.shared_buffers,
            io_combine_limit: self.io_combine_limit,
            effective_io_concurrency: self.effective_io_concurrency,
            io_direct: self.access == Access::Direct,
            huge_pages: self.huge_pages,
            ..base.clone()
        };
        if let Some(name) = self.method() {
            options.io.method = MethodChoice::Named(name);
        }
        options.io.io_workers = self.io_workers.map(|n| n as usize);
        options
    }

    /// The same with another largest read, and as many in flight as the engine then takes by default.
    pub(super) fn with_combine_limit(&self, io_combine_limit: u64) -> Self {
        let small = io_combine_limit < 32 << 10 && self.effective_io_concurrency == DEFAULT_IO_CONCURRENCY;
        let effective_io_concurrency = if small { SMALL_READ_IO_CONCURRENCY } else { self.effective_io_concurrency };
        Self { io_combine_limit, effective_io_concurrency, ..self.clone() }
    }

    /// Whether an engine with these settings and what it holds is one with those.
    pub(super) fn options_equal(&self, other: &Case) -> bool {
        let concurrent = |case: &Case| case.workload == Workload::SeqConcurrScans;
        let one = Self { workload: other.workload, state: other.state, clients: other.clients, ..self.clone() };
        one == *other && concurrent(self) == concurrent(other)
    }

    pub(super) fn method(&self) -> Option<MethodName> {
        MethodName::ALL.into_iter().find(|name| name.as_str() == self.io_method)
    }

    /// The settings that are not those of `base`, for people: `combine 8kB`.
    pub(super) fn differs(&self, base: &Case) -> String {
        let mut parts = Vec::new();
        if self.io_combine_limit != base.io_combine_limit {
            parts.push(format!("combine {}", size(self.io_combine_limit)));
        }
        if self.effective_io_concurrency != base.effective_io_concurrency && self.system == base.system {
            parts.push(format!("concurrency {}", self.effective_io_concurrency));
        }
        if self.clients != base.clients {
            parts.push(format!("clients {}", self.clients));
        }
        if self.threads != base.threads {
            parts.push(format!("threads {}", self.threads));
        }
        if let Some(workers) = self.io_workers {
            parts.push(format!("workers {workers}"));
        }
        parts.join(", ")
    }
}

/// `128kB`.
pub(super) fn size(bytes: u64) -> String {
    match bytes {
        0 => "0".to_owned(),
        b if b % (1 << 30) == 0 => format!("{}GB", b >> 30),
        b if b % (1 << 20) == 0 => format!("{}MB", b >> 20),
        b if b % (1 << 10) == 0 => format!("{}kB", b >> 10),
        b => format!("{b}B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for workload in Workload::ALL {
            assert_eq!(workload.as_str().parse(), Ok(*workload));
        }
        assert!("agg,".parse::<Workload>().unwrap_err().contains("method-only"));
        assert_eq!([size(8192), size(1 << 20), size(3 << 30), size(100)], ["8kB", "1MB", "3GB", "100B"]);
    }
}
