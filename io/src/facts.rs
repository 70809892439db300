//! What kernel, limits and machine say about reading, for people who ask why.

use crate::{IoConfig, MethodReport, config::cpu_count};
use nix::sys::resource::{Resource, getrlimit};
use serde::Serialize;
use std::path::Path;

/// A soft and a hard limit; `None` is unlimited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Limit {
    /// What counts.
    pub soft: Option<u64>,
    /// How far the process may raise it.
    pub hard: Option<u64>,
}

/// Facts that decide which method works, and how well. `None`: the kernel does not say (no procfs, no such file).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct KernelFacts {
    /// Version of the kernel; for reading only, nothing is decided by it.
    pub kernel: Option<String>,
    /// CPUs that this process may use.
    pub cpus: usize,
    /// sysctl kernel.io_uring_disabled: 0 allowed, 1 only for a group, 2 off.
    pub io_uring_disabled: Option<String>,
    /// RLIMIT_MEMLOCK in bytes, which rings and registered buffers count against, for all processes of a user.
    pub memlock: Option<Limit>,
    /// RLIMIT_NOFILE.
    pub nofile: Option<Limit>,
    /// Mode of transparent huge pages: always, madvise or never.
    pub transparent_huge_pages: Option<String>,
    /// Reserved explicit huge pages of the default size.
    pub huge_pages_total: Option<u64>,
    /// Those of them that are free.
    pub huge_pages_free: Option<u64>,
    /// The default size of huge pages, in bytes.
    pub huge_page_bytes: Option<u64>,
}

fn limit(resource: Resource) -> Option<Limit> {
    let value = |value| (value != libc::RLIM_INFINITY).then_some(value);
    getrlimit(resource).ok().map(|(soft, hard)| Limit { soft: value(soft), hard: value(hard) })
}

fn word(path: &Path) -> Option<String> {
    std::fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

/// Asks kernel and limits. `config` says where procfs is.
pub fn kernel_facts(config: &IoConfig) -> KernelFacts {
    let proc = &config.proc_root;
    let meminfo = word(&proc.join("meminfo")).unwrap_or_default();
    let number = |key: &str| {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
        line.split_whitespace().next()?.parse::<u64>().ok()
    };
    let thp = word(Path::new("/sys/kernel/mm/transparent_hugepage/enabled"));
    KernelFacts {
        kernel: word(&proc.join("sys/kernel/osrelease")),
        cpus: cpu_count(),
        io_uring_disabled: word(&proc.join("sys/kernel/io_uring_disabled")),
        memlock: limit(Resource::RLIMIT_MEMLOCK),
        nofile: limit(Resource::RLIMIT_NOFILE),
        // `always [madvise] never`
        transparent_huge_pages: thp.and_then(|text| Some(text.split_once('[')?.1.split_once(']')?.0.to_owned())),
        huge_pages_total: number("HugePages_Total"),
        huge_pages_free: number("HugePages_Free"),
        huge_page_bytes: number("Hugepagesize").and_then(|kib| kib.checked_mul(1024)),
    }
}

/// What a ring got here: flags, depth, files, and whether memory can be registered. The error is why there is none.
///
/// # Errors
/// A line for the user: why io_uring cannot be had.
#[cfg(feature = "io_uring")]
pub fn ring_facts(config: &IoConfig) -> Result<Vec<(String, String)>, String> {
    use crate::{Completer, Completion, MemoryRegistration, MethodChoice, MethodName, Segment};
    struct Nobody;
    impl Completer for Nobody {
        fn complete(&self, _: Completion) {}
    }
    let config = IoConfig {
        method: MethodChoice::Named(MethodName::IoUring),
        lanes: config.lanes.or(Some(2)),
        ..config.clone()
    };
    // Declared first: it outlives the method.
    let memory = heapscan_placement::memory::Mapping::new(2 << 20, Default::default()).map_err(|e| e.to_string())?;
    let opened = crate::open(&config, std::sync::Arc::new(Nobody)).map_err(|error| error.to_string())?;
    let MethodReport { mut details, .. } = opened.report;
    #[allow(unsafe_code, reason = "memory that outlives the method")]
    // SAFETY: `memory` is dropped after `opened.method`, as locals are dropped in reverse order.
    let registration = unsafe { opened.method.register_memory(&[Segment { ptr: memory.as_ptr(), len: memory.len() }]) };
    let text = match registration {
        MemoryRegistration::Fixed(how) => format!("possible ({how})"),
        MemoryRegistration::Plain(why) => format!("not possible: {why}"),
    };
    details.push(("registered_buffers".to_owned(), text));
    drop(opened.method);
    Ok(details)
}

/// This build has no rings.
///
/// # Errors
/// Always.
#[cfg(not(feature = "io_uring"))]
pub fn ring_facts(_: &IoConfig) -> Result<Vec<(String, String)>, String> {
    Err("not compiled in: build with the cargo feature io_uring".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_come_from_procfs_and_limits() {
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::create_dir_all(dir.path().join("sys/kernel")).expect("directories");
        std::fs::write(dir.path().join("sys/kernel/io_uring_disabled"), "1\n").expect("write");
        std::fs::write(
            dir.path().join("meminfo"),
            "HugePages_Total:   12\nHugePages_Free:  5\nHugepagesize: 2048 kB\n",
        )
        .expect("write");
        let facts = kernel_facts(&IoConfig { proc_root: dir.path().to_owned(), ..IoConfig::default() });
        assert_eq!(facts.io_uring_disabled.as_deref(), Some("1"));
        assert_eq!((facts.huge_pages_total, facts.huge_pages_free), (Some(12), Some(5)));
        assert_eq!((facts.huge_page_bytes, facts.kernel), (Some(2 << 20), None));
        assert!(facts.cpus >= 1 && facts.nofile.is_some_and(|limit| limit.soft.is_none_or(|soft| soft > 0)));
    }
}
