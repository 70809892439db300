//! The machine, as far as it bends figures.

use super::data::Data;
use heapscan::IoConfig;
use heapscan_io::{KernelFacts, kernel_facts};
use serde::Serialize;
use std::{fs, path::Path};

#[derive(Clone, Debug, Serialize)]
pub(super) struct Facts {
    pub(super) version: &'static str,
    pub(super) command: String,
    pub(super) unix_seconds: u64,
    pub(super) cpu: String,
    pub(super) cpus: usize,
    pub(super) memory_bytes: u64,
    pub(super) kernel: KernelFacts,
    pub(super) nodes: usize,
    pub(super) numa_balancing: Option<String>,
    pub(super) load_average: Option<f64>,
    /// File system and device of the data, from mountinfo.
    pub(super) file_system: String,
    pub(super) table: String,
    pub(super) blocks: u32,
    pub(super) block_size: u32,
    pub(super) bytes: u64,
    pub(super) checksums: String,
    pub(super) agg: String,
    pub(super) generated_scale: Option<u32>,
}

fn word(path: &str) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}

fn cpu_name() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = text.lines().find(|l| l.starts_with("model name") || l.starts_with("Model"));
    name.and_then(|l| l.split(": ").nth(1)).unwrap_or("unknown").trim().to_owned()
}

fn memory() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|l| l.strip_prefix("MemTotal:"));
    line.and_then(|l| l.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()).unwrap_or(0) << 10
}

/// Type and source of the mount that holds `path` (proc_pid_mountinfo(5)).
fn file_system(path: &Path) -> String {
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let text = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let mounts = text.lines().filter_map(|line| {
        let (head, tail) = line.split_once(" - ")?;
        let point = head.split(' ').nth(4)?;
        let mut tail = tail.split(' ');
        let (kind, source) = (tail.next()?, tail.next()?);
        path.starts_with(point).then(|| (point.len(), format!("{kind} on {source}")))
    });
    // Of two mounts at one place the later one counts.
    mounts.max_by_key(|(len, _)| *len).map_or_else(|| "unknown".to_owned(), |(_, text)| text)
}

impl Facts {
    pub(super) fn gather(data: &Data) -> Self {
        let load = word("/proc/loadavg").and_then(|text| text.split(' ').next()?.parse().ok());
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let machine = heapscan_placement::topology::Machine::detect();
        let quoted = |arg: String| if arg.contains([' ', '(', '*', '\'']) { format!("{arg:?}") } else { arg };
        Self {
            version: env!("CARGO_PKG_VERSION"),
            command: std::env::args().map(quoted).collect::<Vec<_>>().join(" "),
            unix_seconds: since.map_or(0, |d| d.as_secs()),
            cpu: cpu_name(),
            cpus: heapscan_placement::thread::allowed_cpus().len(),
            memory_bytes: memory(),
            kernel: kernel_facts(&IoConfig::default()),
            nodes: machine.nodes.len(),
            numa_balancing: word("/proc/sys/kernel/numa_balancing"),
            load_average: load,
            file_system: file_system(&data.pgdata),
            table: data.main.table.clone(),
            blocks: data.main.blocks,
            block_size: data.block_size,
            bytes: data.bytes(),
            checksums: data.checksums.clone(),
            agg: data.agg.clone(),
            generated_scale: data.generated,
        }
    }

    /// What spoils figures, a line each.
    pub(super) fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if let Some(load) = self.load_average
            && load > 0.5 * self.cpus as f64
        {
            warnings.push(format!(
                "the machine is busy (load {load:.1} on {} CPUs): wall times measure the neighbours too; look at CPU seconds",
                self.cpus
            ));
        }
        if self.nodes > 1 && self.numa_balancing.as_deref() == Some("1") {
            warnings.push("kernel.numa_balancing is on: the kernel moves pages while they are measured".to_owned());
        }
        if cfg!(debug_assertions) {
            warnings.push("this is a debug build: its figures mean nothing".to_owned());
        }
        if matches!(self.file_system.split(' ').next(), Some("tmpfs" | "ramfs" | "overlay")) {
            warnings.push(format!("the data lies on {}: cold and direct are not what they say", self.file_system));
        }
        warnings
    }
}
