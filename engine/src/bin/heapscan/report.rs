//! The metrics of a scan, for people and for programs.

use heapscan::{
    Engine, IoStats, LatencySummary, MethodReport, ScanStats, Table, ThreadReport,
    pool::{PartitionMetrics, PartitionPages, PlacementReport},
};
use nix::sys::resource::{UsageWho, getrusage};
use serde::Serialize;
use std::{fmt, time::Instant};

/// Wall and CPU time since the start.
pub(crate) struct Clock {
    wall: Instant,
}

impl Clock {
    pub(crate) fn start() -> Self {
        Self { wall: Instant::now() }
    }
}

#[derive(Serialize)]
pub(crate) struct Report {
    table: String,
    blocks: u32,
    block_size: u32,
    direct: bool,
    /// `direct`, `uncached` or `buffered`.
    reads: &'static str,
    /// Why the table is not read in the way that was asked for.
    reads_note: Option<String>,
    method: MethodReport,
    scan: ScanStats,
    /// Threads that were asked for; 1: no others than the program's first.
    threads_asked: usize,
    /// What each thread of the scan did; `scan` is their sum.
    threads: Vec<ThreadReport>,
    io: IoStats,
    /// From submission to completion, catalogs included.
    latency: LatencySummary,
    shared_buffers: u64,
    /// The kind of pages that the pool lies on, one a partition.
    memory_pages: Vec<String>,
    /// Which placement was asked for and what was done.
    numa: PlacementReport,
    /// What happened in each partition of the pool.
    partitions: Vec<PartitionMetrics>,
    /// Where the kernel says that frames and descriptors are; `None` where it does not say.
    partition_pages: Option<Vec<PartitionPages>>,
    mean_read_bytes: f64,
    wall_seconds: f64,
    /// CPU time of the whole process, its threads and the kernel's work for it included.
    user_seconds: f64,
    system_seconds: f64,
    /// Largest resident set of the process, in bytes.
    max_rss: u64,
}

impl Report {
    pub(crate) fn new(
        engine: &Engine,
        table: &Table,
        stats: &ScanStats,
        threads_asked: usize,
        threads: Vec<ThreadReport>,
        began: &Clock,
    ) -> Self {
        let wall_seconds = began.wall.elapsed().as_secs_f64();
        let usage = getrusage(UsageWho::RUSAGE_SELF).ok();
        let seconds = |t: nix::sys::time::TimeVal| t.tv_sec() as f64 + t.tv_usec() as f64 / 1e6;
        let block_size = engine.cluster().control().block_size;
        Self {
            table: format!("{}.{}", table.info().schema, table.info().name),
            blocks: table.blocks(),
            block_size,
            direct: table.is_direct(),
            reads: match (table.is_direct(), table.is_uncached()) {
                (true, _) => "direct",
                (false, true) => "uncached",
                (false, false) => "buffered",
            },
            reads_note: table.io_note(),
            method: engine.method().clone(),
            scan: *stats,
            threads_asked,
            threads,
            io: engine.io_stats(),
            latency: engine.io_latency(),
            shared_buffers: engine.options().shared_buffers,
            memory_pages: engine.pool().memory_reports().iter().map(|r| r.used.to_string()).collect(),
            numa: engine.placement().clone(),
            partitions: engine.pool().partition_metrics(),
            partition_pages: engine.pool().partition_pages().ok(),
            mean_read_bytes: stats.io.mean_read_bytes(block_size),
            wall_seconds,
            user_seconds: usage.map_or(0.0, |u| seconds(u.user_time())),
            system_seconds: usage.map_or(0.0, |u| seconds(u.system_time())),
            max_rss: peak_resident().or(usage.map(|u| u.max_rss() as u64 * 1024)).unwrap_or(0),
        }
    }
}

/// `VmHWM` of proc_pid_status(5), in bytes. Not `ru_maxrss` of getrusage(2), which outlives execve(2): a large program
/// that starts this one would be counted.
pub(crate) fn peak_resident() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (scan, io) = (&self.scan, &self.scan.io);
        let bytes = scan.pages as f64 * f64::from(self.block_size);
        let seconds = scan.elapsed_nanos as f64 / 1e9;
        let rate = if seconds > 0.0 { bytes / seconds / 1e9 } else { 0.0 };
        writeln!(f, "table           {} ({} blocks of {} bytes)", self.table, self.blocks, self.block_size)?;
        write!(f, "io_method       {} (asked: {})", self.method.used, self.method.requested)?;
        match &self.method.why {
            Some(why) => writeln!(f, ": {why}")?,
            None => writeln!(f)?,
        }
        for (key, value) in &self.method.details {
            writeln!(f, "  {key:<13} {value}")?;
        }
        let way = match self.reads {
            "direct" => "past the page cache",
            "uncached" => "through the page cache, leaving nothing there",
            _ => "through the page cache",
        };
        match &self.reads_note {
            Some(note) => writeln!(f, "reads go        {way}: {note}")?,
            None => writeln!(f, "reads go        {way}")?,
        }
        writeln!(f, "rows            {} visible of {} tuples on {} pages", scan.rows, scan.tuples, scan.pages)?;
        writeln!(f, "time            {seconds:.3} s for the scan ({rate:.2} GB/s), {:.3} s in all", self.wall_seconds)?;
        if self.threads_asked > 1 {
            writeln!(f, "threads         {} (asked: {})", self.threads.len().max(1), self.threads_asked)?;
        }
        for thread in &self.threads {
            write!(
                f,
                "  thread {:<5}  {} rows, {} pages in {} chunks; {} hit, {} read, {} waits ({:.3} s); CPU {:.3} s user, {:.3} s system",
                thread.thread,
                thread.stats.rows,
                thread.stats.pages,
                thread.chunks,
                thread.stats.io.hits,
                thread.stats.io.blocks_read,
                thread.stats.io.waits,
                thread.stats.io.wait_nanos as f64 / 1e9,
                thread.user_seconds,
                thread.system_seconds
            )?;
            match thread.nodes.as_slice() {
                [] => writeln!(f)?,
                nodes => writeln!(f, "; {} node {nodes:?}", if thread.pinned { "pinned to" } else { "at home on" })?,
            }
        }
        writeln!(f, "CPU             {:.3} s user, {:.3} s system", self.user_seconds, self.system_seconds)?;
        writeln!(
            f,
            "buffers         {} hit, {} read, {} joined, {} evicted, {} ring reuses",
            io.hits, io.blocks_read, io.joins, io.evictions, io.ring_reuses
        )?;
        writeln!(
            f,
            "reads           {} of {:.0} kB on average, {:.1} MB; at most {} in flight; {} retries, {} wasted blocks",
            io.reads,
            self.mean_read_bytes / 1024.0,
            io.bytes_read as f64 / 1e6,
            io.max_in_flight,
            io.retries,
            io.wasted
        )?;
        writeln!(
            f,
            "waits           {} that blocked; {:.3} s in submit, {:.3} s in wait",
            io.waits,
            io.submit_nanos as f64 / 1e9,
            io.wait_nanos as f64 / 1e9
        )?;
        let micros = |nanos: u64| nanos as f64 / 1e3;
        let latency = &self.latency;
        writeln!(
            f,
            "latency         {:.0} us p50, {:.0} us p90, {:.0} us p99, {:.0} us at most, of {} reads",
            micros(latency.p50_nanos),
            micros(latency.p90_nanos),
            micros(latency.p99_nanos),
            micros(latency.max_nanos),
            latency.count
        )?;
        writeln!(
            f,
            "memory          {:.1} MB resident at most, pool {:.1} MB ({})",
            self.max_rss as f64 / 1e6,
            self.shared_buffers as f64 / 1e6,
            kinds(&self.memory_pages)
        )?;
        self.partitions(f)
    }
}

/// Each kind once.
fn kinds(pages: &[String]) -> String {
    let mut kinds: Vec<&str> = pages.iter().map(String::as_str).collect();
    kinds.dedup();
    kinds.join(", ")
}

impl Report {
    fn partitions(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let numa = &self.numa;
        let why = numa.reasons.last().map_or("", String::as_str);
        write!(f, "numa            {} (asked: {}): {why}", numa.used, numa.asked)?;
        if self.partitions.len() == 1 {
            return Ok(());
        }
        write!(f, "\n  balance       {}", numa.balance)?;
        for metrics in &self.partitions {
            let local =
                metrics.local_victims as f64 * 100.0 / (metrics.local_victims + metrics.remote_victims).max(1) as f64;
            write!(
                f,
                "\n  partition {:<3} {} of {} frames used; {} asked, {} served, {local:.0} % of victims local; {} passes; {:.1} % hits",
                metrics.partition,
                metrics.used_frames,
                metrics.frames,
                metrics.asked,
                metrics.served,
                metrics.passes,
                metrics.hit_ratio() * 100.0
            )?;
            if let Some(age) = metrics.eviction_age {
                write!(f, "; eviction age {age}")?;
            }
            let pages = self.partition_pages.as_ref().and_then(|pages| pages.get(metrics.partition));
            if let Some(pages) = pages {
                let nodes: Vec<String> =
                    pages.frames.nodes.iter().map(|(node, pages)| format!("{pages} on node {node}")).collect();
                let planned = pages.planned.map_or(String::new(), |node| format!(" (planned: {node})"));
                write!(f, "; pages {}, {} not there{planned}", nodes.join(", "), pages.frames.unknown)?;
            }
        }
        Ok(())
    }
}
