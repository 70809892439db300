//! Settings of this crate.

use crate::{FaultPlan, IoError, MethodChoice};
use std::{fmt, path::PathBuf, str::FromStr, time::Duration};

/// When a buffered read is handed to the kernel's own worker threads (`IOSQE_ASYNC`) instead of running inside
/// `io_uring_enter`. Direct reads are never handed over: they do not copy, so there is nothing to spread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AsyncRule {
    /// As PostgreSQL 19 (more than 4 in flight on the lane, or 32 kB and more an operation), while the lanes that have
    /// reads in flight are fewer than the CPUs that this process may use: the copy then runs beside the decoding.
    #[default]
    Auto,
    /// Never.
    Never,
    /// With more than `in_flight` requests in flight on the lane, or from `bytes` an operation on. PostgreSQL 19 has 4
    /// and 32 kB here (`method_io_uring.c`).
    Threshold {
        /// Requests in flight on the lane above which reads are handed over.
        in_flight: u32,
        /// Size of one operation from which on it is handed over, in bytes.
        bytes: usize,
    },
    /// Always.
    Always,
}

/// Whether the memory that is read into is registered with the rings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RegisteredBuffers {
    /// No: memory is pinned for each read, and a pool takes only the memory that it uses. The default, because making
    /// a whole pool resident costs a single scan more than registering saves (see the README).
    #[default]
    Off,
    /// For direct reads. The whole pool becomes resident and counts as locked memory.
    Auto,
}

impl fmt::Display for RegisteredBuffers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Off => "off",
            Self::Auto => "auto",
        })
    }
}

impl FromStr for RegisteredBuffers {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "off" => Ok(Self::Off),
            "auto" => Ok(Self::Auto),
            _ => Err(format!("{text:?} is none of off, auto")),
        }
    }
}

/// Requests in flight on one lane at most, unless told otherwise: what a scan with small reads keeps in flight.
pub const DEFAULT_MAX_CONCURRENCY: u32 = 128;

/// How to read.
#[derive(Clone, Debug)]
pub struct IoConfig {
    /// The method (PostgreSQL's `io_method`).
    pub method: MethodChoice,
    /// Threads of `worker` (PostgreSQL's `io_workers`); sets both bounds below. Default: from the CPUs that may be used.
    pub io_workers: Option<usize>,
    /// Threads of `worker` that stay even when idle; default: the number of CPUs, at least 2.
    pub io_min_workers: Option<usize>,
    /// Threads of `worker` at most; default: twice the number of CPUs, 2 to 16.
    pub io_max_workers: Option<usize>,
    /// Requests in flight on one lane at most, 1 to 1024 (PostgreSQL's `io_max_concurrency`).
    pub io_max_concurrency: u32,
    /// Lanes (rings, queues), 1 to 64; default: the number of CPUs that may be used, at most 4.
    pub lanes: Option<usize>,
    /// When `io_uring` hands buffered reads to kernel threads.
    pub async_rule: AsyncRule,
    /// `worker`: what the page cache has is read by the submitting thread (`RWF_NOWAIT`), and only what would block is
    /// handed over: a copy is over sooner than another thread wakes up. Direct reads are always handed over.
    pub worker_inline: bool,
    /// `io_uring`: a kernel thread polls for submissions. It burns a core while there is work.
    pub sqpoll: bool,
    /// `io_uring`: poll the device for completions. Needs direct reads and a device with poll queues; given up, and
    /// reported, when a probe read is refused.
    pub iopoll: bool,
    /// File for the probe read of `iopoll`, on the device that will be read; default: this program.
    pub probe_file: Option<PathBuf>,
    /// `io_uring`: tell the kernel of the pool's memory, so that it is pinned once and not for every read.
    pub registered_buffers: RegisteredBuffers,
    /// `io_uring`: keep files in the ring's own table, which saves a reference count an operation. A file then stays
    /// open until its place is needed or the method ends.
    pub registered_files: bool,
    /// `io_uring`: bound of the kernel's worker threads for one lane; default: the number of CPUs, at most 16.
    pub io_wq_workers: Option<u32>,
    /// CPUs of the threads of `worker` and of the kernel's io_uring workers; `None` leaves them where they are.
    pub worker_cpus: Option<Vec<usize>>,
    /// CPUs for each lane instead, where the memory that it reads into is at home (lane n serves partition n of a pool;
    /// with fewer lanes than entries, modulo the lanes). `worker` then has a pool of threads for each lane, which share
    /// the numbers above out between them; the kernel's io_uring workers and the runtimes of `tokio_uring` go there too.
    /// Empty: all lanes are alike. CPUs that cannot be had leave the threads where they are, with a warning.
    pub lane_cpus: Vec<Vec<usize>>,
    /// A read that is outstanding longer is named in a warning, once.
    pub stall_after: Duration,
    /// How long the end of a method waits for reads that are still in flight.
    pub drain_timeout: Duration,
    /// Faults to inject, for tests.
    pub fault: Option<FaultPlan>,
    /// Where procfs is mounted; tests put another one here.
    pub proc_root: PathBuf,
}

impl Default for IoConfig {
    fn default() -> Self {
        Self {
            method: MethodChoice::Auto,
            io_workers: None,
            io_min_workers: None,
            io_max_workers: None,
            io_max_concurrency: DEFAULT_MAX_CONCURRENCY,
            lanes: None,
            async_rule: AsyncRule::Auto,
            worker_inline: true,
            sqpoll: false,
            iopoll: false,
            probe_file: None,
            registered_buffers: RegisteredBuffers::Off,
            registered_files: false,
            io_wq_workers: None,
            worker_cpus: None,
            lane_cpus: Vec::new(),
            stall_after: Duration::from_secs(30),
            drain_timeout: Duration::from_secs(5),
            fault: None,
            proc_root: PathBuf::from("/proc"),
        }
    }
}

/// CPUs that this process may use, at least one.
pub(crate) fn cpu_count() -> usize {
    heapscan_placement::thread::allowed_cpus().len().max(1)
}

impl IoConfig {
    /// Lanes, with the default filled in.
    pub(crate) fn lane_count(&self) -> usize {
        let alike = || if self.lane_cpus.is_empty() { cpu_count().min(4) } else { self.lane_cpus.len().min(64) };
        self.lanes.unwrap_or_else(alike)
    }

    /// The CPUs for what works for a lane; `None`: anywhere.
    pub(crate) fn cpus_of_lane(&self, lane: usize) -> Option<&[usize]> {
        self.lane_cpus.get(lane).or(self.worker_cpus.as_ref()).map(Vec::as_slice)
    }

    /// Minimum and maximum of worker threads, with the defaults filled in.
    pub(crate) fn worker_bounds(&self) -> (usize, usize) {
        let cpus = cpu_count();
        let max = self.io_workers.or(self.io_max_workers).unwrap_or_else(|| (2 * cpus).clamp(2, 16));
        let min = self.io_workers.or(self.io_min_workers).unwrap_or_else(|| cpus.max(2).min(max));
        (min, max)
    }

    /// Refuses settings out of range.
    pub(crate) fn check(&self) -> Result<(), IoError> {
        let refuse = |text: String| Err(IoError::Setting(text));
        if !(1..=1024).contains(&self.io_max_concurrency) {
            return refuse(format!("io_max_concurrency = {} is not within 1..=1024", self.io_max_concurrency));
        }
        if !(1..=64).contains(&self.lane_count()) {
            return refuse(format!("lanes = {} is not within 1..=64", self.lane_count()));
        }
        let (min, max) = self.worker_bounds();
        if min == 0 || max > 1024 || min > max {
            return refuse(format!("io_workers: {min} to {max} is not a range within 1..=1024"));
        }
        if let Some(cpus) = &self.worker_cpus
            && cpus.is_empty()
        {
            return refuse("worker_cpus is an empty list: leave it out to not bind the workers".to_owned());
        }
        if let Some(lane) = self.lane_cpus.iter().position(Vec::is_empty) {
            return refuse(format!("lane_cpus has no CPU for lane {lane}: name all CPUs to not bind it"));
        }
        Ok(())
    }
}
